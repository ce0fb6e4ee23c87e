//! Expands volumes on the node. The claim says first that it has begun, so that whoever finds it knows.

use tonic::Code;
use wharf_cluster::{ApiError, EventType, Patch, now};
use wharf_model::resize::node as write;
use wharf_model::{Kind as _, PersistentVolumeClaim, Quantity};

use super::super::expand::{Answer, Plan, answer};
use super::super::failure::Class;
use super::super::manager::{Manager, Seen};
use super::super::request::{Purpose, Share};
use super::super::world::{Source, Want};
use super::Trouble;

/// Upstream's reasons.
const DONE: &str = "FileSystemResizeSuccessful";
const FAILED: &str = "FileSystemResizeFailed";

impl Manager {
    pub(super) async fn expand(
        &self,
        unique: &str,
        seen: &Seen,
        pod: &str,
        plan: Plan,
    ) -> Result<(), Trouble> {
        let want = self.wanted(seen, pod)?;
        let Source::Persistent { claim, .. } = &want.source else { return Ok(()) };
        let (size, told) = match plan {
            Plan::Nothing => return Ok(()),
            Plan::Known { size } => {
                self.change(unique, |volume| volume.size = Some(size));
                return Ok(());
            }
            Plan::ReadOnly { size } => {
                let note = format!(
                    "MountVolume.NodeExpandVolume failed for volume \"{}\" requested read-only file system",
                    seen.volume.spec
                );
                self.parts.events.tell(&*want.pod, EventType::Warning, FAILED, note.clone());
                self.parts.events.tell(&**claim, EventType::Warning, FAILED, note);
                self.change(unique, |volume| volume.size = Some(size));
                return Ok(());
            }
            Plan::Expand { size, told } => (size, told),
        };
        // As it is now, not as it was when the pod was looked at: the user may have changed their mind.
        let claim = self.claim_now(claim).await?;
        if !told && !self.write_claim(&claim, write::begin(&claim)).await? {
            return Ok(());
        }
        self.call(unique, seen, want, pod, &claim, size, told).await
    }

    #[allow(clippy::too_many_arguments, reason = "one call, and what its answer means")]
    async fn call(
        &self,
        unique: &str,
        seen: &Seen,
        want: &Want,
        pod: &str,
        claim: &PersistentVolumeClaim,
        size: Quantity,
        told: bool,
    ) -> Result<(), Trouble> {
        let plugin = self.plugin(seen)?;
        let volume = &seen.volume;
        let secrets = self.secrets(want, &Purpose::Expand, "NodeExpandSecretRef").await?;
        let refused = match plugin.capabilities.expand {
            false => {
                let why = format!("NodeExpand is not supported by the CSI driver {}", volume.driver);
                Some((Code::Unimplemented, why))
            }
            true => {
                let staging = volume.staging(&self.parts.root);
                let staging = plugin.capabilities.stage_unstage.then_some(&*staging);
                let share = Share { volume, want, can: &plugin.capabilities, staging };
                let target = volume.target(&self.parts.root, pod);
                let request = share.expand(&target, size, secrets.clone());
                let client = plugin.client().with_deadline(self.settings.timeout);
                let answer = client.node().node_expand_volume(request).await;
                answer.err().map(|status| {
                    let why = Trouble::of_driver(&status, &secrets).message;
                    (status.code(), format!("Expander.NodeExpand failed to expand the volume : {why}"))
                })
            }
        };
        match refused {
            None => self.expanded(unique, seen, want, claim, size, told).await,
            Some((code, why)) => self.refused(unique, seen, claim, size, told, code, why).await,
        }
    }

    async fn expanded(
        &self,
        unique: &str,
        seen: &Seen,
        want: &Want,
        claim: &PersistentVolumeClaim,
        size: Quantity,
        told: bool,
    ) -> Result<(), Trouble> {
        let note = format!(
            "MountVolume.NodeExpandVolume succeeded for volume \"{}\" {}",
            seen.volume.spec, self.parts.node
        );
        self.parts.events.tell(&*want.pod, EventType::Normal, DONE, note.clone());
        self.parts.events.tell(claim, EventType::Normal, DONE, note);
        if !told {
            // It came back from the server when the begin was written: this version is newer.
            let claim = self.claim_now(claim).await?;
            if !self.write_claim(&claim, write::finished(&claim, size)).await? {
                return Ok(());
            }
        }
        self.change(unique, |volume| {
            volume.size = Some(size);
            volume.expansion = Default::default();
        });
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "one answer, and all that it depends on")]
    async fn refused(
        &self,
        unique: &str,
        seen: &Seen,
        claim: &PersistentVolumeClaim,
        size: Quantity,
        told: bool,
        code: Code,
        why: String,
    ) -> Result<(), Trouble> {
        let changed = claim.requested() != Some(size) && seen.volume.expansion.refused;
        let meaning = answer(code, told, changed);
        if matches!(meaning, Answer::InUse | Answer::Infeasible | Answer::Failed) {
            let patch = write::failed(claim, &why, meaning == Answer::Infeasible, now());
            if let Err(trouble) = self.write_claim(claim, patch).await {
                tracing::warn!(
                    volume = unique,
                    error = trouble.message,
                    "the claim does not say what failed"
                );
            }
            self.change(unique, |volume| volume.expansion.refused = true);
        }
        match meaning {
            Answer::NotNeeded => {
                self.change(unique, |volume| volume.size = Some(size));
                Ok(())
            }
            Answer::InUse => {
                tracing::warn!(volume = unique, error = why, "not expanded on this node while it is in use");
                self.change(unique, |volume| volume.expansion.in_use = true);
                Ok(())
            }
            Answer::Infeasible | Answer::Failed => Err(Trouble::new(Class::Final, why)),
            Answer::Uncertain => Err(Trouble::new(Class::Uncertain, why)),
        }
    }

    async fn claim_now(&self, claim: &PersistentVolumeClaim) -> Result<PersistentVolumeClaim, Trouble> {
        let failed =
            |why: &str| Trouble::transient(format!("mountVolume.NodeExpandVolume get PVC failed : {why}"));
        match self.parts.cluster.get::<PersistentVolumeClaim>(&claim.key()).await {
            Ok(Some(now)) if now.metadata.uid == claim.metadata.uid => Ok(now),
            Ok(_) => Err(failed("it is gone")),
            Err(error) => Err(failed(&error.to_string())),
        }
    }

    /// Writes to the claim; `false`: it is not as we saw it, and has to be looked at again.
    async fn write_claim(&self, claim: &PersistentVolumeClaim, patch: Patch) -> Result<bool, Trouble> {
        let api = &PersistentVolumeClaim::API;
        match self.parts.cluster.patch(api, &claim.key(), Some("status"), patch).await {
            Ok(_) => Ok(true),
            Err(ApiError::Conflict(_) | ApiError::Invalid(_)) => Ok(false),
            Err(error) => Err(Trouble::transient(format!("update pvc status failed: {error}"))),
        }
    }
}
