//! Expands volumes on the node. The claim says first that it has begun, so that whoever finds it knows.

use std::sync::Arc;

use tonic::Code;
use wharf_cluster::{ApiError, EventType, Patch, now};
use wharf_model::resize::node as write;
use wharf_model::{Kind as _, PersistentVolumeClaim, Quantity};

use super::super::expand::{Answer, Plan, answer, plan};
use super::super::failure::Class;
use super::super::manager::{Manager, Seen};
use super::super::request::{Purpose, Share};
use super::super::world::{Expansion, Source, Want};
use super::Trouble;

/// Upstream's reasons.
const DONE: &str = "FileSystemResizeSuccessful";
const FAILED: &str = "FileSystemResizeFailed";

/// An expansion under way.
struct Growth<'a> {
    unique: &'a str,
    seen: &'a Seen,
    want: &'a Want,
    pod: &'a str,
    claim: PersistentVolumeClaim,
    size: Quantity,
    /// Whether the claim has the size already.
    told: bool,
}

/// What the driver said no with.
struct Refused {
    code: Code,
    why: String,
}

impl Manager {
    pub(super) async fn expand(&self, unique: &str, seen: &Seen, pod: &str) -> Result<(), Trouble> {
        let want = self.wanted(seen, pod)?;
        let Source::Persistent { claim, volume } = &want.source else { return Ok(()) };
        // As it is now, not as it was when the pod was looked at: the user may have changed their mind, and what we wrote
        // ourselves counts too.
        let claim = self.claim_now(claim).await?;
        self.seen_claim(unique, &claim);
        let known = &seen.volume;
        let (size, told) = match plan(&claim, volume, known.size, want.read_only, known.expansion) {
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
                self.parts.events.tell(&claim, EventType::Warning, FAILED, note);
                // Not the volume's size: a pod that writes may come later.
                self.change(unique, |volume| volume.expansion.readers_told = Some(size));
                return Ok(());
            }
            Plan::Expand { size, told } => (size, told),
        };
        if !told && !self.write_claim(unique, &claim, write::begin(&claim)).await? {
            return Ok(());
        }
        let growth = Growth { unique, seen, want, pod, claim, size, told };
        match self.call(&growth).await? {
            None => self.expanded(&growth).await,
            Some(refused) => self.refused(&growth, refused).await,
        }
    }

    async fn call(&self, growth: &Growth<'_>) -> Result<Option<Refused>, Trouble> {
        let Growth { seen, want, pod, size, .. } = growth;
        let (volume, plugin) = (&seen.volume, self.plugin(seen)?);
        if !plugin.capabilities.expand {
            let why = format!("NodeExpand is not supported by the CSI driver {}", volume.driver);
            return Ok(Some(Refused { code: Code::Unimplemented, why }));
        }
        let secrets = self.secrets(want, &Purpose::Expand, "NodeExpandSecretRef").await?;
        let staging = volume.staging(&self.parts.root);
        let staging = plugin.capabilities.stage_unstage.then_some(&*staging);
        let share = Share { volume, want, can: &plugin.capabilities, staging };
        let request = share.expand(&volume.target(&self.parts.root, pod), *size, secrets.clone());
        let client = plugin.client().with_deadline(self.settings.timeout);
        let answer = client.node().node_expand_volume(request).await;
        Ok(answer.err().map(|status| {
            let why = Trouble::of_driver(&status, &secrets).message;
            Refused {
                code: status.code(),
                why: format!("Expander.NodeExpand failed to expand the volume : {why}"),
            }
        }))
    }

    async fn expanded(&self, growth: &Growth<'_>) -> Result<(), Trouble> {
        let Growth { unique, seen, want, claim, size, told, .. } = growth;
        let note = format!(
            "MountVolume.NodeExpandVolume succeeded for volume \"{}\" {}",
            seen.volume.spec, self.parts.node
        );
        self.parts.events.tell(&*want.pod, EventType::Normal, DONE, note.clone());
        self.parts.events.tell(claim, EventType::Normal, DONE, note);
        if !told {
            // What was written at the begin has made another version of it.
            let claim = self.claim_now(claim).await?;
            if !self.write_claim(unique, &claim, write::finished(&claim, *size)).await? {
                return Ok(());
            }
        }
        self.change(unique, |volume| {
            volume.size = Some(*size);
            volume.expansion = Expansion::default();
        });
        Ok(())
    }

    async fn refused(&self, growth: &Growth<'_>, refused: Refused) -> Result<(), Trouble> {
        let Growth { unique, seen, claim, size, told, .. } = growth;
        let Refused { code, why } = refused;
        let changed = claim.requested() != Some(*size) && seen.volume.expansion.refused;
        let meaning = answer(code, *told, changed);
        if matches!(meaning, Answer::InUse | Answer::Infeasible | Answer::Failed) {
            let patch = write::failed(claim, &why, meaning == Answer::Infeasible, now());
            if let Err(trouble) = self.write_claim(unique, claim, patch).await {
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
                self.change(unique, |volume| volume.size = Some(*size));
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

    /// What the next decision is made of, whoever tells of the claim later.
    fn seen_claim(&self, unique: &str, now: &PersistentVolumeClaim) {
        self.change(unique, |volume| {
            for want in volume.wants.values_mut() {
                if let Source::Persistent { claim, .. } = &mut want.source
                    && claim.metadata.uid == now.metadata.uid
                {
                    *claim = Arc::new(now.clone());
                }
            }
        });
    }

    /// Writes to the claim; `false`: it is not as we saw it, and has to be looked at again.
    async fn write_claim(
        &self,
        unique: &str,
        claim: &PersistentVolumeClaim,
        patch: Patch,
    ) -> Result<bool, Trouble> {
        let api = &PersistentVolumeClaim::API;
        match self.parts.cluster.patch(api, &claim.key(), Some("status"), patch).await {
            Ok(written) => {
                // An answer that cannot be read is read again.
                if let Ok(now) = serde_json::from_value(written) {
                    self.seen_claim(unique, &now);
                }
                Ok(true)
            }
            Err(ApiError::Conflict(_)) => Ok(false),
            Err(error) => Err(Trouble::transient(format!("update pvc status failed: {error}"))),
        }
    }
}
