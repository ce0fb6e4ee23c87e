//! Checks of the cluster's state: whether pods run, what is left, and whether `wharf explain` explains everything that
//! is pending.

use wharf_explain::{Subject, SubjectKind, explain};
use wharf_model::claim::ClaimPhase;
use wharf_model::pod::PodPhase;
use wharf_model::{
    Kind, Lease, Meta, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment, system,
};

use crate::driver::lock;
use crate::expected_steps::{ExpectedStep, World};
use crate::planted::{self, Bug};
use crate::testbed::{IMMEDIATE_CLASS, Testbed};

/// Part of the failure if objects remain after everything was deleted.
pub(crate) const LEFT_BEHIND: &str = "left behind:";
/// Part of the failure if `wharf explain` names the wrong component; the subject follows.
pub(crate) const WRONG_EXPLANATION: &str = "wrong component in the explanation of";

/// How often the check is repeated because an object changed in the meantime.
const CHECKS: usize = 20;

fn pod_is_done(pod: &Pod) -> bool {
    pod.phase == PodPhase::Running && !pod.metadata.is_deleting()
}

fn claim_is_done(claim: &PersistentVolumeClaim) -> bool {
    claim.status.phase == ClaimPhase::Bound && !claim.metadata.is_deleting() && is_as_large(claim)
}

/// Whether the claim has the requested capacity.
fn is_as_large(claim: &PersistentVolumeClaim) -> bool {
    claim.status.capacity.storage >= claim.requested_storage()
}

/// Whether a claim must make progress without further action: an Immediate claim is provisioned, and a mounted
/// volume is expanded. A volume that the driver does not expand while it is in use (`offline`) waits for its pods.
fn claim_must_progress(claim: &PersistentVolumeClaim, pods: &[Pod], offline: bool) -> bool {
    let used = |pod: &Pod| pod_is_done(pod) && pod.claims.contains(&claim.metadata.name);
    match claim.status.phase {
        _ if claim.metadata.is_deleting() => false,
        ClaimPhase::Bound => !is_as_large(claim) && !offline && pods.iter().any(used),
        _ => claim.class() == Some(IMMEDIATE_CLASS),
    }
}

impl Testbed {
    /// Whether all pods that can run do so, and all claims have what they requested. A pod whose claim is being
    /// deleted can never run.
    pub(crate) async fn all_converged(&self) -> bool {
        self.waiting().await.is_empty()
    }

    /// The names of pods and claims that have not converged.
    pub(crate) async fn waiting(&self) -> String {
        let claims = self.all::<PersistentVolumeClaim>().await;
        let is_deleting = |name: &str| {
            claims.iter().any(|claim| claim.metadata.name == name && claim.metadata.is_deleting())
        };
        let pods = self.all::<Pod>().await;
        let waits = |pod: &&Pod| !pod_is_done(pod) && !pod.claims.iter().any(|claim| is_deleting(claim));
        let offline = |claim: &PersistentVolumeClaim| {
            let handle = format!("vol-{}", claim.spec.volume_name);
            lock(&self.driver_state).offline_expansion.contains(&handle)
        };
        let must_progress =
            |claim: &&PersistentVolumeClaim| claim_must_progress(claim, &pods, offline(claim));
        let pending = claims.iter().filter(must_progress).map(|claim| &claim.metadata);
        let waiting = pods.iter().filter(waits).map(|pod| &pod.metadata).chain(pending);
        waiting.map(|meta| meta.name.clone()).collect::<Vec<_>>().join(", ")
    }

    /// Everything that should be deleted once all claims and pods are.
    pub(crate) async fn leftovers(&self) -> Vec<String> {
        let mut left = lock(&self.driver_state).leftovers();
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

    /// Whether `wharf explain` names the right component for everything that is pending. It reads one object after the
    /// other, so a wrong answer counts only if no object changed in the meantime.
    pub(crate) async fn explained(&self) -> Result<(), String> {
        for _ in 0..CHECKS {
            let world = self.world().await;
            match self.first_unexplained(&world).await {
                None => return Ok(()),
                Some(error) if self.world().await == world => return Err(error),
                Some(_) => {}
            }
        }
        Err("the explanations could not be checked: the cluster never became stable".to_owned())
    }

    async fn world(&self) -> World {
        World {
            claims: self.all().await,
            volumes: self.all().await,
            pods: self.all().await,
            attachments: self.all().await,
            nodes: self.all().await,
        }
    }

    /// The first object for which the explanation names another component than it should.
    async fn first_unexplained(&self, world: &World) -> Option<String> {
        let claims = world.claims.iter().filter(|claim| !claim_is_done(claim));
        let claims = claims.map(|claim| (SubjectKind::Claim, &claim.metadata, world.claim(claim)));
        let pods = world.pods.iter().filter(|pod| !pod_is_done(pod));
        let pods = pods.map(|pod| (SubjectKind::Pod, &pod.metadata, world.pod(pod)));
        let volumes = world.volumes.iter();
        let volumes = volumes.map(|volume| (SubjectKind::Volume, &volume.metadata, world.volume(volume)));
        for (kind, meta, expected) in claims.chain(pods).chain(volumes) {
            let wrong = self.unexplained(kind, meta, expected).await;
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }

    /// The error if the explanation of the object does not match `expected`.
    async fn unexplained(
        &self,
        kind: SubjectKind,
        meta: &Meta,
        expected: Option<ExpectedStep>,
    ) -> Option<String> {
        let expected = expected?;
        let subject = Subject { kind, namespace: "default".to_owned(), name: meta.name.clone() };
        let mut explanation = match explain(&self.cluster, &subject, None, system::now()).await {
            Ok(explanation) => explanation,
            Err(error) => return Some(format!("{subject} cannot be explained: {error}")),
        };
        if self.sim.has(Bug::BinderIsBlamed) {
            planted::blame_the_binder(&mut explanation);
        }
        let explained = explanation.pending_step().is_some_and(|step| expected.matches(step));
        (!explained)
            .then(|| format!("{WRONG_EXPLANATION} {subject}: expected {expected:?}: {explanation:#?}"))
    }
}
