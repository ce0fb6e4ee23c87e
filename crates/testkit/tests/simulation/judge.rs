//! What is looked at from outside: whether pods run, what is left, and whether `wharf explain` has a reason for everything
//! that is not done.

use wharf_explain::{Subject, SubjectKind, explain};
use wharf_model::claim::ClaimPhase;
use wharf_model::pod::PodPhase;
use wharf_model::{
    Kind, Lease, Meta, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment, random,
};

use crate::driver::lock;
use crate::planted::{self, Bug};
use crate::testbed::{AT_ONCE, Testbed};
use crate::turns::{Turn, World};

/// How often it is looked again because something has changed meanwhile.
const LOOKS: usize = 20;

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
/// volume is expanded.
fn claim_must_progress(claim: &PersistentVolumeClaim, pods: &[Pod]) -> bool {
    let used = |pod: &Pod| pod_is_done(pod) && pod.claims.contains(&claim.metadata.name);
    match claim.status.phase {
        _ if claim.metadata.is_deleting() => false,
        ClaimPhase::Bound => !is_as_large(claim) && pods.iter().any(used),
        _ => claim.class() == Some(AT_ONCE),
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
        let goes = |name: &str| {
            claims.iter().any(|claim| claim.metadata.name == name && claim.metadata.is_deleting())
        };
        let pods = self.all::<Pod>().await;
        let waits = |pod: &&Pod| !pod_is_done(pod) && !pod.claims.iter().any(|claim| goes(claim));
        let pending =
            claims.iter().filter(|claim| claim_must_progress(claim, &pods)).map(|claim| &claim.metadata);
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

    /// Whether `wharf explain` says of all that is not done whose turn it is. It reads one object after the other, so it is
    /// held only to what was so from before it looked until after.
    pub(crate) async fn explained(&self) -> Result<(), String> {
        for _ in 0..LOOKS {
            let world = self.world().await;
            match self.first_untold(&world).await {
                None => return Ok(()),
                Some(untold) if self.world().await == world => return Err(untold),
                Some(_) => {}
            }
        }
        Err("nothing can be told: the cluster never stands still".to_owned())
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

    /// The first object of which it is said that something else is waited for.
    async fn first_untold(&self, world: &World) -> Option<String> {
        let claims = world.claims.iter().filter(|claim| !claim_is_done(claim));
        let claims = claims.map(|claim| (SubjectKind::Claim, &claim.metadata, world.claim(claim)));
        let pods = world.pods.iter().filter(|pod| !pod_is_done(pod));
        let pods = pods.map(|pod| (SubjectKind::Pod, &pod.metadata, world.pod(pod)));
        let volumes = world.volumes.iter();
        let volumes = volumes.map(|volume| (SubjectKind::Volume, &volume.metadata, world.volume(volume)));
        for (what, meta, turn) in claims.chain(pods).chain(volumes) {
            let wrong = self.untold(what, meta, turn).await;
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }

    /// What is wrong with what is said of an object, if it is to wait for this.
    async fn untold(&self, what: SubjectKind, meta: &Meta, turn: Option<Turn>) -> Option<String> {
        let turn = turn?;
        let subject = Subject { kind: what, namespace: "default".to_owned(), name: meta.name.clone() };
        let mut story = match explain(&self.cluster, &subject, None, random::now()).await {
            Ok(story) => story,
            Err(error) => return Some(format!("{subject} cannot be explained: {error}")),
        };
        if self.sim.has(Bug::BinderIsBlamed) {
            planted::blame_the_binder(&mut story);
        }
        let told = story.pending_step().is_some_and(|step| turn.is(step));
        (!told).then(|| format!("another reason is named for {subject} than {turn:?}: {story:#?}"))
    }
}
