//! What is looked at from outside: whether pods run, what is left, and whether `wharf explain` has a reason for everything
//! that is not done.

use wharf_explain::{Subject, What, explain};
use wharf_model::claim::ClaimPhase;
use wharf_model::pod::PodPhase;
use wharf_model::whole::{Node, Pod};
use wharf_model::{Kind, Lease, Meta, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, chance};

use crate::driver::lock;
use crate::ground::{AT_ONCE, Ground};
use crate::planted::{self, Bug};
use crate::turns::{Turn, World};

/// How often it is looked again because something has changed meanwhile.
const LOOKS: usize = 20;

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
        let claims = claims.map(|claim| (What::Claim, &claim.metadata, world.claim(claim)));
        let pods = world.pods.iter().filter(|pod| !pod_is_done(pod));
        let pods = pods.map(|pod| (What::Pod, &pod.metadata, world.pod(pod)));
        let volumes = world.volumes.iter();
        let volumes = volumes.map(|volume| (What::Volume, &volume.metadata, world.volume(volume)));
        for (what, meta, turn) in claims.chain(pods).chain(volumes) {
            let wrong = self.untold(what, meta, turn).await;
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }

    /// What is wrong with what is said of an object, if it is to wait for this.
    async fn untold(&self, what: What, meta: &Meta, turn: Option<Turn>) -> Option<String> {
        let turn = turn?;
        let subject = Subject { what, namespace: "default".to_owned(), name: meta.name.clone() };
        let mut story = match explain(&self.cluster, &subject, None, chance::now()).await {
            Ok(story) => story,
            Err(error) => return Some(format!("{subject} cannot be explained: {error}")),
        };
        if self.sim.has(Bug::BinderIsBlamed) {
            planted::blame_the_binder(&mut story);
        }
        let told = story.waits_for().is_some_and(|step| turn.is(step));
        (!told).then(|| format!("another reason is named for {subject} than {turn:?}: {story:#?}"))
    }
}
