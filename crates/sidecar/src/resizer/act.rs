//! Does the one step it is given, and puts the outcome where the next view sees it: a write in the store, an answer
//! of the driver in the memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};
use wharf_cluster::{ApiError, now};
use wharf_csi::{ErrorClass, Operation, classify, v1};
use wharf_model::access::AccessError;
use wharf_model::names::key;
use wharf_model::{Kind, PersistentVolume, PersistentVolumeClaim, Quantity, modify};

use super::decide::{Step, outliving};
use super::memory::{ClassQuestion, Expanded, Failure, SizeQuestion};
use super::view::Where;
use super::write::{Told, Write, write};
use super::{MODIFIER, ROLE, Resizer, Seen};
use crate::capability;
use crate::secret::{self, SecretError};

/// Why the driver could not be asked.
#[derive(Debug, thiserror::Error)]
enum Unasked {
    /// No secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No access mode.
    #[error("failed to get capabilities of volume {0} with {1}")]
    Access(String, AccessError),
    /// Not a volume to ask for.
    #[error("volume {0} has no volumeHandle: recreate the PersistentVolume with one")]
    Handle(String),
}

impl From<Unasked> for Failure {
    fn from(unasked: Unasked) -> Self {
        Self { class: None, code: Code::Unknown, message: unasked.to_string() }
    }
}

/// What the driver answered, without the secrets that it was given: it is told in conditions, events and logs.
fn failure(operation: Operation, status: &Status, secrets: &BTreeMap<String, String>) -> Failure {
    let class = Some(classify(operation, status.code()));
    Failure { class, code: status.code(), message: secret::without(status.message(), secrets) }
}

impl Resizer {
    /// Does one step. An error is one of the API server; the driver's are outcomes like others.
    pub(crate) async fn act(
        &self,
        seen: &mut Seen,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        step: &Step,
    ) -> Result<(), ApiError> {
        let told = Told::of(step, claim, volume, self.context.driver.name());
        match step {
            Step::Expand { size } => {
                self.tell(claim, told);
                self.expand(seen, claim, volume, *size).await;
                return self.outlive(seen, claim, volume).await;
            }
            Step::Modify { target } => {
                self.modify(seen, claim, volume, target).await;
                return self.outlive(seen, claim, volume).await;
            }
            _ => {}
        }
        if let Some(write) = write(step, claim, volume, &seen.memory, now())
            && !self.send(claim, volume, write).await?
        {
            // It was not as we saw it; the store has it now as it is.
            return Ok(());
        }
        self.tell(claim, told);
        seen.memory.after(step);
        self.remember(seen);
        match step {
            Step::FinishExpansion { size } => self.done(ROLE, claim, volume, "expand", size),
            Step::HandToNode => {
                self.done(ROLE, claim, volume, "expand in the controller", "the node goes on")
            }
            Step::CompleteModification { target } => self.done(MODIFIER, claim, volume, "modify", target),
            _ => {}
        }
        Ok(())
    }

    /// Writes; `false` if the object was not as it was seen.
    async fn send(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        write: Write,
    ) -> Result<bool, ApiError> {
        let cluster = &self.context.cluster;
        let (claim, volume) = (claim.key(), volume.key());
        let sent = match write {
            Write::Claim(patch) => {
                cluster.patch(&PersistentVolumeClaim::API, &claim, Some("status"), patch).await
            }
            Write::Volume(patch) => cluster.patch(&PersistentVolume::API, &volume, None, patch).await,
        };
        match sent {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict(_)) => {
                tokio::try_join!(
                    cluster.get::<PersistentVolumeClaim>(&claim),
                    cluster.get::<PersistentVolume>(&volume),
                )?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes down what the driver did, if the claim went meanwhile.
    async fn outlive(
        &self,
        seen: &Seen,
        claim: &PersistentVolumeClaim,
        asked: &PersistentVolume,
    ) -> Result<(), ApiError> {
        if self.claims.get(&seen.key).is_some_and(|now| now.metadata.uid == seen.uid) {
            return Ok(());
        }
        // Not another one of its name.
        let same = |volume: &Arc<PersistentVolume>| volume.metadata.uid == asked.metadata.uid;
        let Some(volume) = self.volumes.get(&asked.key()).filter(same) else { return Ok(()) };
        let step = outliving(&seen.memory, &volume);
        let write = step.and_then(|step| write(&step, claim, &volume, &seen.memory, now()));
        match write {
            Some(write) => self.send(claim, &volume, write).await.map(drop),
            None => Ok(()),
        }
    }

    async fn expand(
        &self,
        seen: &mut Seen,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        size: Quantity,
    ) {
        let outcome = match self.can.expand {
            Some(Where::Controller) => self.call_expand(seen, volume, size).await,
            // For the controller every size is fine.
            Some(Where::Node) | None => Ok(Expanded { asked: size, size, on_node: true }),
        };
        match outcome {
            Ok(expanded) => seen.memory.expansion.succeeded(expanded),
            Err(failure) => {
                self.failed(ROLE, claim, volume, "expand", &failure);
                self.tell(claim, Some(Told::expansion_failed(volume, self.context.driver.name(), &failure)));
                if failure.is_in_use() && self.settings.handle_volume_inuse_error {
                    self.pods_wanted.notify_one();
                }
                let request = claim.requested().unwrap_or(Quantity::ZERO);
                let question = SizeQuestion { request, size, users: seen.users };
                seen.memory
                    .expansion
                    .failed(question, failure, now(), |failure, failures| self.pause(failure, failures));
            }
        }
        self.remember(seen);
    }

    async fn call_expand(
        &self,
        seen: &mut Seen,
        volume: &PersistentVolume,
        size: Quantity,
    ) -> Result<Expanded, Failure> {
        let request = self.expand_request(volume, size).await?;
        let secrets = request.secrets.clone().into_iter().collect();
        seen.memory.expansion.calling();
        self.remember(seen);
        let deadline = self.settings.pace.timeout;
        let call =
            self.context.driver.controller("ControllerExpandVolume", deadline, |mut client| async move {
                client.controller_expand_volume(request).await
            });
        match call.await {
            Ok(answer) if answer.capacity_bytes < size.bytes() => Err(Failure {
                class: Some(ErrorClass::Final),
                code: Code::Internal,
                message: format!(
                    "the driver was asked for {} bytes and says that it gave {}",
                    size.bytes(),
                    answer.capacity_bytes
                ),
            }),
            Ok(answer) => Ok(Expanded {
                asked: size,
                size: Quantity::from_bytes(answer.capacity_bytes),
                on_node: answer.node_expansion_required,
            }),
            Err(status) => Err(failure(Operation::Expand, &status, &secrets)),
        }
    }

    /// sidecars.md 1.3 "Writes", the second.
    async fn expand_request(
        &self,
        volume: &PersistentVolume,
        size: Quantity,
    ) -> Result<v1::ControllerExpandVolumeRequest, Unasked> {
        let csi = volume.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty());
        let csi = csi.ok_or_else(|| Unasked::Handle(volume.metadata.name.clone()))?;
        let capability = capability(volume, self.context.driver.can().single_node_multi_writer)?;
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
        seen: &mut Seen,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) {
        match self.call_modify(seen, claim, volume, target).await {
            Ok(()) => seen.memory.modification.succeeded(target),
            Err(failure) => {
                self.failed(MODIFIER, claim, volume, "modify", &failure);
                self.tell(claim, Some(Told::modification_failed(target, &failure)));
                let asked = claim.spec.volume_attributes_class_name.clone();
                let question = ClassQuestion { asked, target: target.to_owned() };
                seen.memory
                    .modification
                    .failed(question, failure, now(), |failure, failures| self.pause(failure, failures));
            }
        }
        self.remember(seen);
    }

    async fn call_modify(
        &self,
        seen: &mut Seen,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<(), Failure> {
        let request = self.modify_request(seen, claim, volume, target).await?;
        let secrets = request.secrets.clone().into_iter().collect();
        seen.memory.modification.calling();
        self.remember(seen);
        let deadline = self.settings.pace.timeout;
        let call =
            self.context.driver.controller("ControllerModifyVolume", deadline, |mut client| async move {
                client.controller_modify_volume(request).await
            });
        call.await.map(drop).map_err(|status| failure(Operation::Modify, &status, &secrets))
    }

    /// sidecars.md 1.3 "Modify (VAC GA)": the class's words, and the names of claim and volume where they are asked for.
    async fn modify_request(
        &self,
        seen: &Seen,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        target: &str,
    ) -> Result<v1::ControllerModifyVolumeRequest, Unasked> {
        let csi = volume.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty());
        let csi = csi.ok_or_else(|| Unasked::Handle(volume.metadata.name.clone()))?;
        let parameters = seen.classes().get(target).map(|class| class.parameters.clone());
        let mut parameters = parameters.unwrap_or_default();
        if self.settings.extra_modify_metadata {
            parameters.extend(extra_metadata(claim, volume));
        }
        let secrets = secret::read(&self.context.cluster, modify::secret(volume).as_ref()).await?;
        Ok(v1::ControllerModifyVolumeRequest {
            volume_id: csi.volume_handle.clone(),
            secrets: secrets.into_iter().collect(),
            mutable_parameters: parameters.into_iter().collect(),
        })
    }

    /// An infeasible request is repeated slowly: only another one can succeed.
    fn pause(&self, failure: &Failure, failures: u32) -> Duration {
        match failure.class {
            Some(ErrorClass::Infeasible) => self.settings.pace.retry_max,
            _ => self.settings.pace.backoff().after(failures),
        }
    }

    fn remember(&self, seen: &Seen) {
        self.memories.put(&seen.key, &seen.uid, seen.epoch, seen.memory.clone());
    }

    fn tell(&self, claim: &PersistentVolumeClaim, told: Option<Told>) {
        if let Some(Told { kind, reason, note }) = told {
            self.context.event(claim, kind, reason, note);
        }
    }

    fn failed(
        &self,
        role: &'static str,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        what: &str,
        failure: &Failure,
    ) {
        let (claim, volume, error) = (claim.key().to_string(), &volume.metadata.name, failure.text());
        tracing::warn!(claim, volume, error, "cannot {what} the volume");
        self.context.attempts.note(role, &claim, what, Some(error));
    }

    fn done(
        &self,
        role: &'static str,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        what: &str,
        result: impl std::fmt::Display,
    ) {
        let (claim, volume) = (claim.key().to_string(), &volume.metadata.name);
        tracing::info!(claim, volume, %result, "{what}: done");
        self.context.attempts.note(role, &claim, what, None);
    }
}

/// How the volume is used, from its own words.
fn capability(
    volume: &PersistentVolume,
    single_node_multi_writer: bool,
) -> Result<v1::VolumeCapability, Unasked> {
    capability::of_volume(&volume.spec, "", single_node_multi_writer)
        .map_err(|error| Unasked::Access(volume.metadata.name.clone(), error))
}

/// `--extra-modify-metadata`.
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

    /// sidecars.md 1.0 "Access modes", sidecars.md 1.3 "Writes": what the driver is told of the volume.
    #[test]
    fn capabilities() {
        let mounted = volume(json!({
            "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"],
            "csi": {"driver": "d", "volumeHandle": "h", "fsType": "xfs"},
        }));
        for (capable, mode) in [(false, 1), (true, 7)] {
            let capability = capability(&mounted, capable).unwrap();
            assert_eq!(capability.access_mode.unwrap().mode, mode);
            let Some(AccessType::Mount(mount)) = capability.access_type else { panic!("not mounted") };
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
    fn names_for_the_driver() {
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

    /// sidecars.md 1.3 "Errors": what never reached the driver says nothing about what is under way there.
    #[test]
    fn what_was_not_asked_has_no_class() {
        let unasked = Failure::from(Unasked::Handle("pv1".into()));
        assert_eq!(unasked.class, None);
        let refused = failure(Operation::Expand, &Status::out_of_range("too large"), &BTreeMap::new());
        assert_eq!(refused.class, Some(ErrorClass::Infeasible));
        let busy = failure(Operation::Modify, &Status::resource_exhausted("later"), &BTreeMap::new());
        assert_eq!(busy.class, Some(ErrorClass::StillRunning));
    }

    /// sidecars.md 1.0 "Secrets": a driver may quote what it was given; conditions and events are read by many.
    #[test]
    fn no_secret_is_told() {
        let secrets = BTreeMap::from([("token".to_owned(), "s3cr3t".to_owned())]);
        let refused = failure(Operation::Expand, &Status::internal("login with s3cr3t failed"), &secrets);
        assert_eq!(refused.text(), "rpc error: code = Internal desc = login with *** failed");
    }
}
