//! The environment of the resizer: an API server with one claim and its volume, a driver that fails in every way that
//! CSI allows, a user and a kubelet. It has no clock and no randomness of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::Code;
use wharf_csi::{Operation, classify};
use wharf_model::testing::{PatchResult, SimulatedApi};
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Quantity, modify, resize};

use crate::resizer::state::{Expanded, Failure};
use crate::resizer::write::Write;

/// The largest volume of the driver, in GiB. Users request even sizes, so they never request exactly this one.
const LIMIT: i64 = 21;

/// A violated invariant.
pub(super) type Violation = String;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Claim,
    Volume,
}

const CLAIM: (Kind, &str) = (Kind::Claim, "data");
const VOLUME: (Kind, &str) = (Kind::Volume, "pv1");
/// The resizer is the only process with a cache.
const RESIZER: usize = 0;

/// A call to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Expand(Quantity),
    Modify(String),
}

pub(super) struct World {
    api: SimulatedApi<Kind>,
    /// The VolumeAttributesClasses that exist.
    pub(super) classes: BTreeSet<&'static str>,
    /// Whether a pod uses the volume.
    pub(super) pod: bool,
    /// Whether the node has to expand the volume, too.
    node_expansion_required: bool,
    /// The actual size and class of the volume.
    size: Quantity,
    class: String,
    /// Calls that may still run although no caller waits for them: they timed out, or their caller crashed.
    uncertain: Vec<Call>,
    /// Calls whose caller waits for the response.
    running: Vec<Call>,
}

pub(super) fn gibibytes(count: i64) -> Quantity {
    Quantity::from_bytes(count << 30)
}

impl World {
    pub(super) fn new(node_expansion_required: bool) -> Self {
        let claim = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u"},
            "spec": {"volumeName": "pv1", "resources": {"requests": {"storage": "4Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "4Gi"}},
        });
        let volume = json!({
            "metadata": {"name": "pv1", "uid": "v"},
            "spec": {
                "capacity": {"storage": "4Gi"}, "csi": {"driver": "d", "volumeHandle": "h"},
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
            },
        });
        let mut api = SimulatedApi::new(1);
        api.put(Kind::Claim, claim);
        api.put(Kind::Volume, volume);
        api.relist(RESIZER);
        Self {
            api,
            classes: ["gold"].into(),
            pod: false,
            node_expansion_required,
            size: gibibytes(4),
            class: String::new(),
            uncertain: Vec::new(),
            running: Vec::new(),
        }
    }

    /// The current claim.
    fn claim(&self) -> PersistentVolumeClaim {
        self.decode(CLAIM)
    }

    /// The current volume.
    fn volume(&self) -> PersistentVolume {
        self.decode(VOLUME)
    }

    fn decode<T: DeserializeOwned>(&self, (kind, name): (Kind, &str)) -> T {
        T::deserialize(self.api.get(kind, name).unwrap()).unwrap()
    }

    /// The claim in the resizer's cache.
    pub(super) fn cached_claim(&self) -> Arc<PersistentVolumeClaim> {
        self.api.cached_object(RESIZER, CLAIM.0, CLAIM.1).unwrap()
    }

    /// The volume in the resizer's cache.
    pub(super) fn cached_volume(&self) -> Arc<PersistentVolume> {
        self.api.cached_object(RESIZER, VOLUME.0, VOLUME.1).unwrap()
    }

    /// The watch delivers all changes.
    pub(super) fn deliver_all(&mut self) {
        while !self.api.all_delivered() {
            self.api.deliver(RESIZER, Kind::Claim);
            self.api.deliver(RESIZER, Kind::Volume);
        }
    }

    /// A new process has a cache that may lag.
    pub(super) fn restart(&mut self, lags: bool) {
        match lags {
            true => self.api.restart(RESIZER),
            false => self.api.relist(RESIZER),
        }
    }

    /// The resizer writes. `None` if the response is lost.
    pub(super) fn write(&mut self, write: &Write, lost: bool) -> Option<PatchResult> {
        let ((kind, name), patch) = match write {
            Write::Claim(patch) => (CLAIM, patch),
            Write::Volume(patch) => (VOLUME, patch),
        };
        let result = self.api.patch((!lost).then_some(RESIZER), kind, name, patch);
        (!lost).then_some(result)
    }

    fn edit_claim(&mut self, edit: impl FnOnce(&mut Value)) {
        self.api.edit(None, CLAIM.0, CLAIM.1, edit);
    }

    pub(super) fn user_requests_size(&mut self, size: i64) {
        let size = gibibytes(size);
        // The API server's validation.
        if Some(size) > self.claim().status.capacity.storage {
            self.edit_claim(|raw| raw["spec"]["resources"]["requests"]["storage"] = json!(size.to_string()));
        }
    }

    pub(super) fn user_requests_class(&mut self, class: &str) {
        self.edit_claim(|raw| raw["spec"]["volumeAttributesClassName"] = json!(class));
    }

    /// Kubelet expands the volume or reports it as infeasible. `true`: it had something to do.
    pub(super) fn kubelet(&mut self, fails: bool) -> bool {
        use wharf_model::claim::ResizeStatus::{NodeResizeInProgress, NodeResizePending};
        let status = self.claim().status.allocated_resource_statuses.storage;
        let size = self.volume().spec.capacity.storage.unwrap().to_string();
        match status {
            Some(NodeResizePending) => self.edit_claim(|raw| {
                raw["status"]["allocatedResourceStatuses"] =
                    json!({"storage": NodeResizeInProgress.as_str()});
            }),
            Some(NodeResizeInProgress) if fails => self.edit_claim(|raw| {
                raw["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
            }),
            Some(NodeResizeInProgress) => self.edit_claim(|raw| {
                let status = &mut raw["status"];
                status["capacity"] = json!({"storage": size});
                status["allocatedResourceStatuses"] = json!({});
                if let Some(conditions) = status["conditions"].as_array_mut() {
                    let is_resize =
                        |condition: &Value| resize::CONDITIONS.iter().any(|kind| condition["type"] == *kind);
                    conditions.retain(|condition| !is_resize(condition));
                }
            }),
            _ => return false,
        }
        true
    }

    /// A call is sent.
    pub(super) fn begin(&mut self, call: Call) -> Result<(), Violation> {
        if let Some(running) = self.running.first() {
            return Err(format!("{call:?} sent while {running:?} has no response"));
        }
        let same = |open: &&Call| std::mem::discriminant(*open) == std::mem::discriminant(&call);
        if let Some(open) = self.uncertain.iter().find(same).filter(|open| **open != call) {
            return Err(format!("{call:?} sent while {open:?} may still run"));
        }
        self.running.push(call);
        Ok(())
    }

    /// A call returns. `how` selects one of the possible results.
    pub(super) fn respond(&mut self, call: &Call, how: u8) -> Result<Option<Expanded>, Failure> {
        self.running.retain(|running| running != call);
        let code = match (how % 8, call) {
            (0, _) => Code::DeadlineExceeded,
            (1, _) => Code::Aborted,
            // A completed request is idempotent.
            _ if self.is_done(call) => Code::Ok,
            (_, Call::Expand(size)) if *size > gibibytes(LIMIT) => Code::OutOfRange,
            (_, Call::Expand(_)) if self.pod && how >= 128 => Code::FailedPrecondition,
            (2, Call::Expand(_)) => Code::Internal,
            (2, Call::Modify(_)) => Code::InvalidArgument,
            (3, _) => Code::Internal,
            _ => Code::Ok,
        };
        let operation = match call {
            Call::Expand(_) => Operation::Expand,
            Call::Modify(_) => Operation::Modify,
        };
        match code {
            Code::Ok => {
                self.finish(call, true);
                Ok(match call {
                    Call::Expand(size) => Some(Expanded {
                        requested: *size,
                        size: self.size,
                        node_expansion_required: self.node_expansion_required,
                    }),
                    Call::Modify(_) => None,
                })
            }
            code => {
                let class = classify(operation, code);
                match class {
                    wharf_csi::ErrorClass::StillRunning => self.abandon(call, how >= 64),
                    _ => self.finish(call, false),
                }
                Err(Failure { class: Some(class), code, message: "no".into() })
            }
        }
    }

    /// The caller is gone or timed out. The call may have taken effect.
    pub(super) fn abandon(&mut self, call: &Call, done: bool) {
        self.running.retain(|running| running != call);
        if done && !matches!(call, Call::Expand(size) if *size > gibibytes(LIMIT)) {
            self.apply(call);
        }
        if !self.uncertain.contains(call) {
            self.uncertain.push(call.clone());
        }
    }

    fn finish(&mut self, call: &Call, done: bool) {
        if done {
            self.apply(call);
        }
        self.uncertain.retain(|open| open != call);
    }

    fn is_done(&self, call: &Call) -> bool {
        match call {
            Call::Expand(size) => self.size >= *size,
            Call::Modify(class) => self.class == *class,
        }
    }

    fn apply(&mut self, call: &Call) {
        match call {
            Call::Expand(size) => self.size = self.size.max(*size),
            Call::Modify(class) => self.class = class.clone(),
        }
    }

    /// The user requests a feasible size, and all classes exist.
    pub(super) fn make_feasible(&mut self) {
        self.pod = false;
        self.classes = ["gold", "tin", "lost"].into();
        if self.claim().requested_storage() > Some(gibibytes(LIMIT)) {
            self.user_requests_size(LIMIT);
        }
    }

    /// The invariants at the end.
    pub(super) fn check(&self, trivial: bool) -> Result<(), Violation> {
        let (claim, volume) = (self.claim(), self.volume());
        let status = &claim.status;
        let checks = [
            ("the claim is too small", status.capacity.storage >= claim.requested_storage()),
            ("claim and volume differ in size", status.capacity == volume.spec.capacity),
            (
                "the volume's actual size differs from its capacity",
                trivial || volume.spec.capacity.storage == Some(self.size),
            ),
            ("an expansion is stuck", status.allocated_resource_statuses.storage.is_none()),
            ("a modification is stuck", status.modify_volume_status.is_none()),
            ("an annotation is left on the volume", volume.metadata.annotations.is_empty()),
            (
                "a condition is stuck",
                [&resize::CONDITIONS[..], &modify::CONDITIONS[..]]
                    .concat()
                    .iter()
                    .all(|kind| status.condition(kind).is_none()),
            ),
            (
                "the requested class is not applied",
                claim.spec.volume_attributes_class_name.as_ref().is_none_or(|requested| {
                    status.current_volume_attributes_class_name.as_ref() == Some(requested)
                        && volume.spec.volume_attributes_class_name.as_ref() == Some(requested)
                        && self.class == *requested
                }),
            ),
            ("a call never ends", self.running.is_empty()),
        ];
        match checks.iter().find(|(_, holds)| !holds) {
            Some((what, _)) => Err(format!("{what}: {}", self.api.remaining())),
            None => Ok(()),
        }
    }
}
