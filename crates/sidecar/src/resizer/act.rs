//! Performs one step and records the result where the next view reads it: writes in the store, responses of the driver
//! in the state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};
use wharf_cluster::work::{self, WriteOutcome};
use wharf_cluster::{monotonic, now};
use wharf_csi::{ErrorClass, Operation, classify, v1};
use wharf_model::access::AccessError;
use wharf_model::migration::TranslationError;
use wharf_model::names::key;
use wharf_model::secret::redact;
use wharf_model::volume::CsiVolumeSource;
use wharf_model::{Kind, PersistentVolume, PersistentVolumeClaim, Quantity, modify};

use super::decide::{ResizeStep, orphaned_volume_write};
use super::state::{ExpandRequest, Expanded, Failure, ModifyRequest};
use super::view::ExpandOn;
use super::write::{EventRecord, Write, write};
use super::{Inputs, MODIFIER, ROLE, Resizer};
use crate::capability;
use crate::secret::{self, SecretError};

/// Why the driver was not called.
#[derive(Debug, thiserror::Error)]
enum NotCalled {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("failed to get capabilities of volume {0} with {1}")]
    Access(String, AccessError),
    #[error("failed to translate persistent volume: {0}")]
    Translation(TranslationError),
    #[error("volume {0} has no volumeHandle: recreate the PersistentVolume with one")]
    Handle(String),
}

impl From<NotCalled> for Failure {
    fn from(not_called: NotCalled) -> Self {
        Self { class: None, code: Code::Unknown, message: not_called.to_string() }
    }
}

/// The driver's error, without the secrets that the driver received: it is shown in conditions, events and logs.
fn failure(operation: Operation, status: &Status, secrets: &BTreeMap<String, String>) -> Failure {
    let class = Some(classify(operation, status.code()));
    Failure { class, code: status.code(), message: redact(status.message(), secrets.values()) }
}

impl Resizer {
    /// Performs one step. Returns the result of its write; errors of the driver are recorded in the state.
    pub(crate) async fn act(
        &self,
        inputs: &mut Inputs,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        step: &ResizeStep,
    ) -> WriteOutcome {
        let event = EventRecord::of(step, claim, volume, self.context.driver.name());
        match step {
            ResizeStep::Expand { size } => {
                self.record_event(claim, event);
                self.expand(inputs, claim, volume, *size).await;
                return self.finish_orphaned(inputs, claim, volume).await;
            }
            ResizeStep::Modify { target } => {
                self.modify(inputs, claim, volume, target).await;
                return self.finish_orphaned(inputs, claim, volume).await;
            }
            _ => {}
        }
        if let Some(write) = write(step, claim, volume, &inputs.state, now()) {
            let written = self.send(claim, volume, write).await;
            if written != WriteOutcome::Written {
                return written;
            }
        }
        self.record_event(claim, event);
        inputs.state.apply(step);
        self.save_state(inputs);
        match step {
            ResizeStep::FinishExpansion { size } => self.record_success(ROLE, claim, volume, "expand", size),
            ResizeStep::MarkNodeExpansionPending => {
                self.record_success(ROLE, claim, volume, "expand in the controller", "node expansion pending")
            }
            ResizeStep::CompleteModification { target } => {
                self.record_success(MODIFIER, claim, volume, "modify", target)
            }
            _ => {}
        }
        WriteOutcome::Written
    }

    /// Sends a patch.
    async fn send(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        write: Write,
    ) -> WriteOutcome {
        let cluster = &self.context.cluster;
        match write {
            Write::Claim(patch) => {
                let meta = &claim.metadata;
                work::write::patch::<PersistentVolumeClaim>(cluster, meta, Some("status"), patch).await
            }
            Write::Volume(patch) => {
                work::write::patch::<PersistentVolume>(cluster, &volume.metadata, None, patch).await
            }
        }
    }

    /// Records the driver's result in the volume if the claim was deleted during the call.
    async fn finish_orphaned(
        &self,
        inputs: &Inputs,
        claim: &PersistentVolumeClaim,
        called_for: &PersistentVolume,
    ) -> WriteOutcome {
        if self.claims.get(&inputs.key).is_some_and(|now| now.metadata.uid == inputs.uid) {
            return WriteOutcome::Written;
        }
        // Not another volume of the same name.
        let same = |volume: &Arc<PersistentVolume>| volume.metadata.uid == called_for.metadata.uid;
        let Some(volume) = self.volumes.get(&called_for.key()).filter(same) else {
            return WriteOutcome::Written;
        };
        let step = orphaned_volume_write(&inputs.state, &volume);
        match step.and_then(|step| write(&step, claim, &volume, &inputs.state, now())) {
            Some(write) => self.send(claim, &volume, write).await,
            None => WriteOutcome::Written,
        }
    }

    async fn expand(
        &self,
        inputs: &mut Inputs,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        size: Quantity,
    ) {
        let outcome = match self.capabilities.expand {
            Some(ExpandOn::Controller) => self.call_expand(inputs, volume, size).await,
            // Only the node expands: the controller accepts every size.
            Some(ExpandOn::Node) | None => {
                Ok(Expanded { requested: size, size, node_expansion_required: true })
            }
        };
        match outcome {
            Ok(expanded) => inputs.state.expansion.succeeded(expanded),
            Err(failure) => {
                self.record_failure(ROLE, claim, volume, "expand", &failure);
                self.record_event(
                    claim,
                    Some(EventRecord::expansion_failed(volume, self.context.driver.name(), &failure)),
                );
                if failure.is_in_use() && self.settings.handle_volume_inuse_error {
                    self.pods_wanted.notify_one();
                }
                let requested = claim.requested_storage().unwrap_or(Quantity::ZERO);
                let request = ExpandRequest { requested, size, pod_use: inputs.pod_use };
                inputs.state.expansion.failed(request, failure, monotonic(), |failure, failures| {
                    self.backoff(failure, failures)
                });
            }
        }
        self.save_state(inputs);
    }

    async fn call_expand(
        &self,
        inputs: &mut Inputs,
        volume: &PersistentVolume,
        size: Quantity,
    ) -> Result<Expanded, Failure> {
        let request = self.expand_request(volume, size).await?;
        let secrets = request.secrets.clone().into_iter().collect();
        inputs.state.expansion.call_started();
        self.save_state(inputs);
        let deadline = self.settings.worker_options.timeout;
        let call =
            self.context.driver.controller("ControllerExpandVolume", deadline, |mut client| async move {
                client.controller_expand_volume(request).await
            });
        match call.await {
            Ok(response) if response.capacity_bytes < size.bytes() => Err(Failure {
                class: Some(ErrorClass::Final),
                code: Code::Internal,
                message: format!(
                    "the driver was asked for {} bytes and reported {}",
                    size.bytes(),
                    response.capacity_bytes
                ),
            }),
            Ok(response) => Ok(Expanded {
                requested: size,
                size: Quantity::from_bytes(response.capacity_bytes),
                node_expansion_required: response.node_expansion_required,
            }),
            Err(status) => Err(failure(Operation::Expand, &status, &secrets)),
        }
    }

    /// sidecars.md 1.3 "Writes", the second.
    async fn expand_request(
        &self,
        volume: &PersistentVolume,
        size: Quantity,
    ) -> Result<v1::ControllerExpandVolumeRequest, NotCalled> {
        let csi = expanded_source(volume)?;
        let capability = capability(volume, self.context.driver.capabilities().single_node_multi_writer)?;
        let secrets = secret::read(&self.context.cluster, csi.controller_expand_secret_ref.as_ref()).await?;
        Ok(v1::ControllerExpandVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            capacity_range: Some(v1::CapacityRange { required_bytes: size.bytes(), limit_bytes: 0 }),
            secrets: secrets.into_iter().collect(),
            volume_capability: Some(capability),
        })
    }

    async fn modify(
        &self,
        inputs: &mut Inputs,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) {
        match self.call_modify(inputs, claim, volume, target).await {
            Ok(()) => inputs.state.modification.succeeded(target),
            Err(failure) => {
                self.record_failure(MODIFIER, claim, volume, "modify", &failure);
                self.record_event(claim, Some(EventRecord::modification_failed(target, &failure)));
                let requested = claim.spec.volume_attributes_class_name.clone();
                let request = ModifyRequest { requested, target: target.to_owned() };
                inputs.state.modification.failed(request, failure, monotonic(), |failure, failures| {
                    self.backoff(failure, failures)
                });
            }
        }
        self.save_state(inputs);
    }

    async fn call_modify(
        &self,
        inputs: &mut Inputs,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<(), Failure> {
        let request = self.modify_request(inputs, claim, volume, target).await?;
        let secrets = request.secrets.clone().into_iter().collect();
        inputs.state.modification.call_started();
        self.save_state(inputs);
        let deadline = self.settings.worker_options.timeout;
        let call =
            self.context.driver.controller("ControllerModifyVolume", deadline, |mut client| async move {
                client.controller_modify_volume(request).await
            });
        call.await.map(drop).map_err(|status| failure(Operation::Modify, &status, &secrets))
    }

    /// sidecars.md 1.3 "Modify (VAC GA)": the parameters of the class and, if configured, the names of claim and
    /// volume.
    async fn modify_request(
        &self,
        inputs: &Inputs,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<v1::ControllerModifyVolumeRequest, NotCalled> {
        let csi = volume.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty());
        let csi = csi.ok_or_else(|| NotCalled::Handle(volume.metadata.name.clone()))?;
        let parameters = inputs.classes().get(target).map(|class| class.parameters.clone());
        let mut parameters = parameters.unwrap_or_default();
        if self.settings.extra_modify_metadata {
            parameters.extend(extra_metadata(claim, volume));
        }
        let secrets = secret::read(&self.context.cluster, modify::modify_secret(volume).as_ref()).await?;
        Ok(v1::ControllerModifyVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            secrets: secrets.into_iter().collect(),
            mutable_parameters: parameters.into_iter().collect(),
        })
    }

    /// The backoff. An infeasible request is repeated slowly: only a different one can succeed.
    fn backoff(&self, failure: &Failure, failures: u32) -> Duration {
        match failure.class {
            Some(ErrorClass::Infeasible) => self.settings.worker_options.retry_max,
            _ => self.settings.worker_options.backoff().delay(failures),
        }
    }

    fn save_state(&self, inputs: &Inputs) {
        self.states.put(&inputs.key, &inputs.uid, inputs.epoch, inputs.state.clone());
    }

    fn record_event(&self, claim: &PersistentVolumeClaim, event: Option<EventRecord>) {
        if let Some(EventRecord { kind, reason, note }) = event {
            self.context.record_event(claim, kind, reason, note);
        }
    }

    fn record_failure(
        &self,
        role: &'static str,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        step: &str,
        failure: &Failure,
    ) {
        let (pvc, pv, error) = (claim.key().to_string(), &volume.metadata.name, failure.text());
        tracing::warn!(pvc, pv, error, "failed to {step} volume");
        self.context.attempts.record(role, &pvc, step, Some(error));
    }

    fn record_success(
        &self,
        role: &'static str,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        step: &str,
        result: impl std::fmt::Display,
    ) {
        let (pvc, pv) = (claim.key().to_string(), &volume.metadata.name);
        tracing::info!(pvc, pv, step, %result, "completed step");
        self.context.attempts.record(role, &pvc, step, None);
    }
}

/// The source of the volume to expand: its own, or the one that replaces its in-tree source.
fn expanded_source(volume: &PersistentVolume) -> Result<&CsiVolumeSource, NotCalled> {
    if let Some(error) = volume.translation_error() {
        return Err(NotCalled::Translation(error.clone()));
    }
    let csi = volume.csi_source().filter(|csi| !csi.volume_handle.is_empty());
    csi.ok_or_else(|| NotCalled::Handle(volume.metadata.name.clone()))
}

/// The CSI capability of the volume.
fn capability(
    volume: &PersistentVolume,
    single_node_multi_writer: bool,
) -> Result<v1::VolumeCapability, NotCalled> {
    capability::for_volume(volume.csi_spec(), "", single_node_multi_writer)
        .map_err(|error| NotCalled::Access(volume.metadata.name.clone(), error))
}

/// The parameters of `--extra-modify-metadata`.
fn extra_metadata(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> [(String, String); 3] {
    let namespace = claim.metadata.namespace.clone().unwrap_or_default();
    [
        (key::CLAIM_NAME.to_owned(), claim.metadata.name.clone()),
        (key::CLAIM_NAMESPACE.to_owned(), namespace),
        (key::VOLUME_NAME.to_owned(), volume.metadata.name.clone()),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use v1::volume_capability::AccessType;

    use super::*;

    fn volume(spec: Value) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv1"}, "spec": spec})).unwrap()
    }

    /// sidecars.md 1.0 "Access modes", sidecars.md 1.3 "Writes": the capability in the request.
    #[test]
    fn capability_follows_volume_spec() {
        let mounted = volume(json!({
            "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
            "csi": {"driver": "d", "volumeHandle": "h", "fsType": "xfs"},
        }));
        for (capable, mode) in [(false, 1), (true, 7)] {
            let capability = capability(&mounted, capable).unwrap();
            assert_eq!(capability.access_mode.unwrap().mode, mode);
            let Some(AccessType::Mount(mount)) = capability.access_type else {
                panic!("not a mount capability")
            };
            assert_eq!(
                (mount.fs_type.as_str(), &mount.mount_flags[..]),
                ("xfs", &["noatime".to_owned()][..])
            );
        }
        let block = volume(json!({"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}));
        let capability = capability(&block, true).unwrap();
        assert_eq!(capability.access_mode.unwrap().mode, 5);
        assert!(matches!(capability.access_type, Some(AccessType::Block(_))));
        let none = super::capability(&volume(json!({})), true).unwrap_err();
        assert!(none.to_string().starts_with("failed to get capabilities of volume pv1 with "), "{none}");
    }

    /// sidecars.md 1.3 "Modify (VAC GA)": `--extra-modify-metadata`.
    #[test]
    fn extra_modify_metadata_adds_names() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"metadata": {"name": "data", "namespace": "shop"}})).unwrap();
        let names = extra_metadata(&claim, &volume(json!({})));
        let expected = [
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pv/name", "pv1"),
        ];
        assert_eq!(names, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    /// sidecars.md 1.3 "Errors": a call that was never sent does not change what may still run in the driver.
    #[test]
    fn call_that_was_not_sent_has_no_error_class() {
        let not_called = Failure::from(NotCalled::Handle("pv1".into()));
        assert_eq!(not_called.class, None);
        let refused = failure(Operation::Expand, &Status::out_of_range("too large"), &BTreeMap::new());
        assert_eq!(refused.class, Some(ErrorClass::Infeasible));
        let busy = failure(Operation::Modify, &Status::resource_exhausted("later"), &BTreeMap::new());
        assert_eq!(busy.class, Some(ErrorClass::StillRunning));
    }

    /// sidecars.md 1.0 "Secrets": a driver may quote a secret, and many users can read conditions and events.
    #[test]
    fn secrets_are_redacted_from_errors() {
        let secrets = BTreeMap::from([("token".to_owned(), "s3cr3t".to_owned())]);
        let refused = failure(Operation::Expand, &Status::internal("login with s3cr3t failed"), &secrets);
        assert_eq!(refused.text(), "rpc error: code = Internal desc = login with *** failed");
    }

    /// sidecars.md 1.0 "In-tree migration".
    #[test]
    fn in_tree_volume_is_expanded_with_translated_source() {
        let in_tree = |id: &str| {
            volume(
                json!({"accessModes": ["ReadWriteMany"], "gcePersistentDisk": {"pdName": id, "fsType": "xfs"}}),
            )
        };
        let disk = in_tree("d");
        let handle = &expanded_source(&disk).unwrap().volume_handle;
        assert_eq!(handle, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d");
        // The in-tree plugin attached to one node only, whatever the access modes.
        assert_eq!(capability(&disk, false).unwrap().access_mode.unwrap().mode, 1);
        let invalid = volume(json!({"awsElasticBlockStore": {"volumeID": "aws://z/disk"}}));
        assert_eq!(
            expanded_source(&invalid).unwrap_err().to_string(),
            "failed to translate persistent volume: invalid EBS volume ID \"aws://z/disk\": expected vol-<id> or \
             aws://<zone>/vol-<id>"
        );
        let nfs = volume(json!({"nfs": {"server": "s"}}));
        assert!(matches!(expanded_source(&nfs), Err(NotCalled::Handle(_))));
    }
}
