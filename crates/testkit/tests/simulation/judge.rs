//! What is looked at from outside: whether pods run, what is left, and whether `wharf explain` has a reason for everything
//! that is not done.

use wharf_explain::{State, Subject, What, explain};
use wharf_model::claim::ClaimPhase;
use wharf_model::pod::PodPhase;
use wharf_model::whole::{Node, Pod};
use wharf_model::{Kind, Lease, Meta, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, chance};

use crate::driver::lock;
use crate::ground::{AT_ONCE, Ground};

fn pod_is_done(pod: &Pod) -> bool {
    pod.status.phase == PodPhase::Running && !pod.metadata.is_deleting()
}

fn claim_is_done(claim: &PersistentVolumeClaim) -> bool {
    claim.status.phase == ClaimPhase::Bound && !claim.metadata.is_deleting() && is_as_large(claim)
}

/// As it was asked to be.
fn is_as_large(claim: &PersistentVolumeClaim) -> bool {
    claim.status.capacity.storage >= claim.requested()
}

/// What must come to pass of itself: a volume that waits for no pod is made, and one that is mounted grows.
fn claim_must_come(claim: &PersistentVolumeClaim, pods: &[Pod]) -> bool {
    let used = |pod: &Pod| pod_is_done(pod) && pod.claims().any(|name| name == claim.metadata.name);
    match claim.status.phase {
        _ if claim.metadata.is_deleting() => false,
        ClaimPhase::Bound => !is_as_large(claim) && pods.iter().any(used),
        _ => claim.class() == Some(AT_ONCE),
    }
}

impl Ground {
    /// Whether all pods run that can, and all claims have what they asked for: a pod whose claim is being deleted never
    /// will.
    pub(crate) async fn all_is_done(&self) -> bool {
        self.waiting().await.is_empty()
    }

    /// Those that do not, and have not.
    pub(crate) async fn waiting(&self) -> String {
        let claims = self.all::<PersistentVolumeClaim>().await;
        let goes = |name: &str| {
            claims.iter().any(|claim| claim.metadata.name == name && claim.metadata.is_deleting())
        };
        let pods = self.all::<Pod>().await;
        let waits = |pod: &&Pod| !pod_is_done(pod) && !pod.claims().any(|claim| goes(&claim));
        let pending =
            claims.iter().filter(|claim| claim_must_come(claim, &pods)).map(|claim| &claim.metadata);
        let waiting = pods.iter().filter(waits).map(|pod| &pod.metadata).chain(pending);
        waiting.map(|meta| meta.name.clone()).collect::<Vec<_>>().join(", ")
    }

    /// Everything that should be gone when nobody wants anything any more.
    pub(crate) async fn left(&self) -> Vec<String> {
        let mut left = lock(&self.truth).left();
        left.extend(self.names::<Pod>().await);
        left.extend(self.names::<PersistentVolumeClaim>().await);
        left.extend(self.names::<PersistentVolume>().await);
        left.extend(self.names::<VolumeAttachment>().await);
        left.extend(self.names::<Lease>().await);
        for node in self.all::<Node>().await {
            let attached = node.status.volumes_attached.iter().map(|volume| volume.name.clone());
            let used = node.status.volumes_in_use.iter().cloned().chain(attached);
            left.extend(used.map(|volume| format!("{} on node {}", volume, node.metadata.name)));
        }
        left.extend(self.processes.files());
        left
    }

    async fn names<K: Kind>(&self) -> Vec<String> {
        let all = self.all::<K>().await;
        all.iter().map(|object| format!("{} {}", K::API.kind, object.key())).collect()
    }

    /// Whether there is a reason for all that is not done.
    pub(crate) async fn explained(&self) -> Result<(), String> {
        for claim in self.all::<PersistentVolumeClaim>().await {
            if !claim_is_done(&claim) {
                self.has_reason(What::Claim, &claim.metadata, async |ground| {
                    let now = ground.cluster.get::<PersistentVolumeClaim>(&claim.metadata.key()).await;
                    now.unwrap().is_none_or(|now| claim_is_done(&now))
                })
                .await?;
            }
        }
        for pod in self.all::<Pod>().await {
            if !pod_is_done(&pod) {
                self.has_reason(What::Pod, &pod.metadata, async |ground| {
                    let now = ground.cluster.get::<Pod>(&pod.metadata.key()).await.unwrap();
                    now.is_none_or(|now| pod_is_done(&now))
                })
                .await?;
            }
        }
        Ok(())
    }

    async fn has_reason(
        &self,
        what: What,
        meta: &Meta,
        done_now: impl AsyncFn(&Self) -> bool,
    ) -> Result<(), String> {
        let namespace = meta.namespace.clone().unwrap_or_default();
        let subject = Subject { what, namespace, name: meta.name.clone() };
        let story =
            explain(&self.cluster, &subject, None, chance::now()).await.map_err(|error| error.to_string())?;
        let named = story.steps.iter().any(|step| {
            matches!(step.state, State::Waits | State::Failed)
                && !step.says.is_empty()
                && !step.whose.is_empty()
        });
        match named || done_now(self).await {
            true => Ok(()),
            false => Err(format!("no reason is named for {subject}: {story:#?}")),
        }
    }
}
