//! Expands volumes on the node. The claim is marked in progress first, so that a later run finds it.

use std::sync::Arc;

use tonic::Code;
use wharf_cluster::{ApiError, EventType, Patch, now};
use wharf_model::resize::node as write;
use wharf_model::{Kind as _, PersistentVolumeClaim, Quantity};

use super::super::expand::{ExpandOutcome, Plan, classify, plan};
use super::super::failure::Class;
use super::super::manager::{Inputs, Manager};
use super::super::request::{MountCall, Purpose};
use super::super::world::{DesiredMount, Expansion, Source};
use super::StepError;

/// Upstream's reasons.
const DONE: &str = "FileSystemResizeSuccessful";
const FAILED: &str = "FileSystemResizeFailed";

/// An expansion in progress.
struct Expanding<'a> {
    unique: &'a str,
    inputs: &'a Inputs,
    desired: &'a DesiredMount,
    pod: &'a str,
    claim: PersistentVolumeClaim,
    size: Quantity,
    /// Whether the claim's status already has the new size.
    claim_updated: bool,
}

/// The driver's error.
struct ExpandFailure {
    code: Code,
    reason: String,
}

impl Manager {
    pub(super) async fn expand(&self, unique: &str, inputs: &Inputs, pod: &str) -> Result<(), StepError> {
        let desired = self.wanted(inputs, pod)?;
        let Source::Persistent { claim, volume } = &desired.source else { return Ok(()) };
        // Read the claim again: the user may have changed the request since the pod was resolved, and our own writes
        // count too.
        let claim = self.current_claim(claim).await?;
        self.update_claim(unique, &claim);
        let known = &inputs.volume;
        let (size, claim_updated) = match plan(&claim, volume, known.size, desired.read_only, known.expansion)
        {
            Plan::Nothing => return Ok(()),
            Plan::Known { size } => {
                self.change(unique, |volume| volume.size = Some(size));
                return Ok(());
            }
            Plan::ReadOnly { size } => {
                let note = format!(
                    "MountVolume.NodeExpandVolume failed for volume \"{}\" requested read-only file system",
                    inputs.volume.spec
                );
                self.parts.events.record_for(&*desired.pod, EventType::Warning, FAILED, note.clone());
                self.parts.events.record_for(&claim, EventType::Warning, FAILED, note);
                // Do not record it as the volume's size: a pod that writes may follow.
                self.change(unique, |volume| volume.expansion.reported_to_readers = Some(size));
                return Ok(());
            }
            Plan::Expand { size, claim_updated } => (size, claim_updated),
        };
        if !claim_updated && !self.write_claim(unique, &claim, write::mark_in_progress(&claim)).await? {
            return Ok(());
        }
        let expanding = Expanding { unique, inputs, desired, pod, claim, size, claim_updated };
        match self.call(&expanding).await? {
            None => self.expanded(&expanding).await,
            Some(refused) => self.refused(&expanding, refused).await,
        }
    }

    async fn call(&self, expanding: &Expanding<'_>) -> Result<Option<ExpandFailure>, StepError> {
        let Expanding { inputs, desired, pod, size, .. } = expanding;
        let (volume, plugin) = (&inputs.volume, self.plugin(inputs)?);
        if !plugin.capabilities.expand {
            let reason = format!("NodeExpand is not supported by the CSI driver {}", volume.driver);
            return Ok(Some(ExpandFailure { code: Code::Unimplemented, reason }));
        }
        let secrets = self.secrets(desired, &Purpose::Expand, "NodeExpandSecretRef").await?;
        let staging = volume.staging(&self.parts.root);
        let staging = plugin.capabilities.stage_unstage.then_some(&*staging);
        let call = MountCall { volume, desired, capabilities: &plugin.capabilities, staging };
        let request = call.expand(&volume.target(&self.parts.root, pod), *size, secrets.clone());
        let client = plugin.client().with_deadline(self.settings.timeout);
        let response = client.node().node_expand_volume(request).await;
        Ok(response.err().map(|status| {
            let reason = StepError::of_driver(&status, &secrets).message;
            ExpandFailure {
                code: status.code(),
                reason: format!("Expander.NodeExpand failed to expand the volume : {reason}"),
            }
        }))
    }

    async fn expanded(&self, expanding: &Expanding<'_>) -> Result<(), StepError> {
        let Expanding { unique, inputs, desired, claim, size, claim_updated, .. } = expanding;
        let note = format!(
            "MountVolume.NodeExpandVolume succeeded for volume \"{}\" {}",
            inputs.volume.spec, self.parts.node
        );
        self.parts.events.record_for(&*desired.pod, EventType::Normal, DONE, note.clone());
        self.parts.events.record_for(claim, EventType::Normal, DONE, note);
        if !claim_updated {
            // The write at the beginning has created a new version of the claim.
            let claim = self.current_claim(claim).await?;
            if !self.write_claim(unique, &claim, write::mark_finished(&claim, *size)).await? {
                return Ok(());
            }
        }
        self.change(unique, |volume| {
            volume.size = Some(*size);
            volume.expansion = Expansion::default();
        });
        Ok(())
    }

    async fn refused(&self, expanding: &Expanding<'_>, refused: ExpandFailure) -> Result<(), StepError> {
        let Expanding { unique, inputs, claim, size, claim_updated, .. } = expanding;
        let ExpandFailure { code, reason } = refused;
        let changed = claim.requested_storage() != Some(*size) && inputs.volume.expansion.refused;
        let outcome = classify(code, *claim_updated, changed);
        if matches!(outcome, ExpandOutcome::InUse | ExpandOutcome::Infeasible | ExpandOutcome::Failed) {
            let patch = write::mark_failed(claim, &reason, outcome == ExpandOutcome::Infeasible, now());
            if let Err(error) = self.write_claim(unique, claim, patch).await {
                tracing::warn!(
                    driver = inputs.volume.driver,
                    volume_handle = inputs.volume.handle,
                    error = error.message,
                    "failed to record expansion failure on claim"
                );
            }
            self.change(unique, |volume| volume.expansion.refused = true);
        }
        match outcome {
            ExpandOutcome::NotNeeded => {
                self.change(unique, |volume| volume.size = Some(*size));
                Ok(())
            }
            ExpandOutcome::InUse => {
                tracing::warn!(
                    driver = inputs.volume.driver,
                    volume_handle = inputs.volume.handle,
                    error = reason,
                    "driver does not expand the volume while it is in use; not retrying on this node"
                );
                self.change(unique, |volume| volume.expansion.in_use = true);
                Ok(())
            }
            ExpandOutcome::Infeasible | ExpandOutcome::Failed => Err(StepError::new(Class::Final, reason)),
            ExpandOutcome::Uncertain => Err(StepError::new(Class::Uncertain, reason)),
        }
    }

    async fn current_claim(&self, claim: &PersistentVolumeClaim) -> Result<PersistentVolumeClaim, StepError> {
        let failed = |reason: &str| {
            StepError::transient(format!("mountVolume.NodeExpandVolume get PVC failed : {reason}"))
        };
        match self.parts.cluster.get::<PersistentVolumeClaim>(&claim.key()).await {
            Ok(Some(now)) if now.metadata.uid == claim.metadata.uid => Ok(now),
            Ok(_) => Err(failed("the claim was deleted")),
            Err(error) => Err(failed(&error.to_string())),
        }
    }

    /// Updates the claim in the world, ahead of the watch.
    fn update_claim(&self, unique: &str, now: &PersistentVolumeClaim) {
        self.change(unique, |volume| {
            for desired in volume.desired.values_mut() {
                if let Source::Persistent { claim, .. } = &mut desired.source
                    && claim.metadata.uid == now.metadata.uid
                {
                    *claim = Arc::new(now.clone());
                }
            }
        });
    }

    /// Patches the claim's status; `false` on a conflict: the claim has to be evaluated again.
    async fn write_claim(
        &self,
        unique: &str,
        claim: &PersistentVolumeClaim,
        patch: Patch,
    ) -> Result<bool, StepError> {
        let api = &PersistentVolumeClaim::API;
        match self.parts.cluster.patch(api, &claim.key(), Some("status"), patch).await {
            Ok(written) => {
                // A response that cannot be decoded is read again later.
                if let Ok(now) = serde_json::from_value(written) {
                    self.update_claim(unique, &now);
                }
                Ok(true)
            }
            Err(ApiError::Conflict(_)) => Ok(false),
            Err(error) => Err(StepError::transient(format!("update pvc status failed: {error}"))),
        }
    }
}
