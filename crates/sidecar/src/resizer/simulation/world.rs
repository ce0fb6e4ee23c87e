//! The environment of the resizer: an API server with one claim and its volume, a driver that fails in every way that
//! CSI allows, a user and a kubelet. It has no clock and no randomness of its own.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::Code;
use wharf_csi::{Operation, classify};
use wharf_model::names::condition;
use wharf_model::patch::Patch;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Quantity, modify, resize};

use crate::resizer::state::{Expanded, Failure};
use crate::resizer::write::Write;

/// The largest volume of the driver, in GiB. Users request even sizes, so they never request exactly this one.
const LIMIT: i64 = 21;

/// A violated invariant.
pub(super) type Violation = String;

/// An object: the server's JSON and the decoded form.
#[derive(Clone)]
pub(super) struct Object<K> {
    raw: Value,
    pub(super) view: K,
}

impl<K: DeserializeOwned> Object<K> {
    fn new(raw: Value) -> Self {
        Self { view: serde_json::from_value(raw.clone()).unwrap(), raw }
    }

    /// Changes the object like another client.
    fn edit(&mut self, edit: impl FnOnce(&mut Value)) {
        edit(&mut self.raw);
        let version: u64 = self.raw["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        self.raw["metadata"]["resourceVersion"] = json!((version + 1).to_string());
        self.view = K::deserialize(&self.raw).unwrap();
    }

    /// Applies a patch. `false`: conflict.
    fn patch(&mut self, patch: &Patch) -> bool {
        let mut body = patch.body().clone();
        let meta = body["metadata"].as_object_mut().unwrap();
        for field in ["uid", "resourceVersion"] {
            if let Some(expected) = meta.remove(field)
                && expected != self.raw["metadata"][field]
            {
                return false;
            }
        }
        self.edit(|raw| merge(raw, &body));
        true
    }
}

/// Merges like the server: conditions are merged by type.
fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (field, value) in fields {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(field)),
            Value::Array(list) if field == "conditions" => {
                let present = into[field].as_array().cloned().unwrap_or_default();
                let kept =
                    present.into_iter().filter(|old| list.iter().all(|new| new["type"] != old["type"]));
                let set = list.iter().filter(|new| new.get("$patch").is_none()).map(|new| {
                    let mut clean = json!({});
                    merge(&mut clean, new);
                    clean
                });
                into[field] = kept.chain(set).collect();
            }
            value => merge(&mut into[field], value),
        }
    }
}

/// A call to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Call {
    Expand(Quantity),
    Modify(String),
}

pub(super) struct World {
    pub(super) claim: Object<PersistentVolumeClaim>,
    pub(super) volume: Object<PersistentVolume>,
    pub(super) classes: BTreeSet<&'static str>,
    pub(super) pod: bool,
    /// Whether the node has to expand the volume, too.
    node_expansion_required: bool,
    /// The actual size and class of the volume.
    size: Quantity,
    class: String,
    /// Calls that may still run: without a response, or whose caller crashed.
    open: Vec<Call>,
    /// Calls whose callers wait.
    running: Vec<Call>,
}

pub(super) fn gibibytes(count: i64) -> Quantity {
    Quantity::from_bytes(count << 30)
}

impl World {
    pub(super) fn new(node_expansion_required: bool) -> Self {
        let claim = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "1"},
            "spec": {"volumeName": "pv1", "resources": {"requests": {"storage": "4Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "4Gi"}},
        });
        let volume = json!({
            "metadata": {"name": "pv1", "uid": "v", "resourceVersion": "1"},
            "spec": {
                "capacity": {"storage": "4Gi"}, "csi": {"driver": "d", "volumeHandle": "h"},
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
            },
        });
        Self {
            claim: Object::new(claim),
            volume: Object::new(volume),
            classes: ["gold"].into(),
            pod: false,
            node_expansion_required,
            size: gibibytes(4),
            class: String::new(),
            open: Vec::new(),
            running: Vec::new(),
        }
    }

    pub(super) fn write(&mut self, write: &Write) -> bool {
        match write {
            Write::Claim(patch) => self.claim.patch(patch),
            Write::Volume(patch) => self.volume.patch(patch),
        }
    }

    pub(super) fn user_requests_size(&mut self, size: i64) {
        let size = gibibytes(size);
        // The API server's validation.
        if Some(size) > self.claim.view.status.capacity.storage {
            self.claim.edit(|raw| raw["spec"]["resources"]["requests"]["storage"] = json!(size.to_string()));
        }
    }

    pub(super) fn user_requests_class(&mut self, class: &str) {
        self.claim.edit(|raw| raw["spec"]["volumeAttributesClassName"] = json!(class));
    }

    /// Kubelet expands the volume or reports it as infeasible. `true`: it had something to do.
    pub(super) fn kubelet(&mut self, fails: bool) -> bool {
        use wharf_model::claim::ResizeStatus::{NodeResizeInProgress, NodeResizePending};
        let status = self.claim.view.status.allocated_resource_statuses.storage;
        let size = self.volume.view.spec.capacity.storage.unwrap().to_string();
        match status {
            Some(NodeResizePending) => self.claim.edit(|raw| {
                raw["status"]["allocatedResourceStatuses"] =
                    json!({"storage": NodeResizeInProgress.as_str()});
            }),
            Some(NodeResizeInProgress) if fails => self.claim.edit(|raw| {
                raw["status"]["allocatedResourceStatuses"] = json!({"storage": "NodeResizeInfeasible"});
            }),
            Some(NodeResizeInProgress) => self.claim.edit(|raw| {
                let removed: Vec<_> =
                    resize::CONDITIONS.iter().map(|kind| json!({"$patch": "delete", "type": kind})).collect();
                let done = json!({
                    "capacity": {"storage": size}, "conditions": removed,
                    "allocatedResourceStatuses": {"storage": null},
                });
                merge(&mut raw["status"], &done);
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
        if let Some(open) = self.open.iter().find(same).filter(|open| **open != call) {
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
        if !self.open.contains(call) {
            self.open.push(call.clone());
        }
    }

    fn finish(&mut self, call: &Call, done: bool) {
        if done {
            self.apply(call);
        }
        self.open.retain(|open| open != call);
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
    pub(super) fn heal(&mut self) {
        self.pod = false;
        self.classes = ["gold", "tin", "lost"].into();
        if self.claim.view.requested_storage() > Some(gibibytes(LIMIT)) {
            self.user_requests_size(LIMIT);
        }
    }

    /// The invariants at the end.
    pub(super) fn check(&self, trivial: bool) -> Result<(), Violation> {
        let (claim, volume) = (&self.claim.view, &self.volume.view);
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
            Some((what, _)) => Err(format!("{what}: {} {}", self.claim.raw, self.volume.raw)),
            None => Ok(()),
        }
    }
}

#[test]
fn patches_are_merged_like_on_the_server() {
    let mut object =
        json!({"a": {"b": 1, "c": 2}, "conditions": [{"type": "X", "reason": "r"}, {"type": "Y"}]});
    let patch = json!({
        "a": {"b": null, "d": {"e": null}},
        "conditions": [{"$patch": "delete", "type": "X"}, {"type": condition::RESIZING, "reason": null}],
    });
    merge(&mut object, &patch);
    let expected = json!({"a": {"c": 2, "d": {}}, "conditions": [{"type": "Y"}, {"type": "Resizing"}]});
    assert_eq!(object, expected);
}
