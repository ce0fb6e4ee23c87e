//! What is looked at from outside: whether pods run, what is left, and whether `wharf explain` has a reason for everything
//! that is not done.

use wharf_explain::{State, Step, Subject, What, explain};
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

/// What must be said of a claim that is not done: the step that its own fields put it in, and whose turn that is.
fn is_said_of_claim(claim: &PersistentVolumeClaim, waiting: &[&Step]) -> bool {
    let name = format!("claim {}", claim.metadata.key());
    let says = |text: &str| waiting.iter().any(|step| step.object == name && step.says.contains(text));
    let turn = |who: &str| waiting.iter().any(|step| step.object == name && step.whose.contains(who));
    match claim.status.phase {
        _ if claim.metadata.is_deleting() => says("it is being deleted"),
        ClaimPhase::Bound => claim.requested().is_some_and(|wanted| says(&format!("wants {wanted}"))),
        // Its driver was asked, or its node is not chosen, or the binder has not come to it.
        _ if claim.provisioner().is_some() => turn("the provisioner of") || turn("volume binder"),
        _ if claim.class() == Some(AT_ONCE) => turn("volume binder"),
        _ => turn("scheduler") || turn("you: make a pod that uses it") || turn("volume binder"),
    }
}

/// The same of a pod: without a node it is the scheduler's, but not before claims have what they do not need a node for;
/// with one it is on its way there or from there.
fn is_said_of_pod(pod: &Pod, waiting: &[&Step]) -> bool {
    let name = format!("pod {}", pod.metadata.key());
    let own = |text: &str| waiting.iter().any(|step| step.object == name && step.whose.contains(text));
    let claims = waiting.iter().any(|step| step.object.starts_with("claim "));
    let first = waiting.first().is_some_and(|step| step.object == name);
    let unbound = ["the provisioner of", "volume binder"]
        .iter()
        .any(|who| waiting.iter().any(|step| step.object.starts_with("claim ") && step.whose.contains(who)));
    let volumes = waiting.iter().any(|step| step.object.starts_with("volume "));
    let node = &pod.spec.node_name;
    match (node.is_empty(), pod.metadata.is_deleting()) {
        (true, _) => own("the scheduler") && !(first && unbound),
        (false, true) => own(&format!("node {node}")),
        (false, false) => own(&format!("node {node}")) || claims || volumes,
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
                let said = |waiting: &[&Step]| is_said_of_claim(&claim, waiting);
                self.has_reason::<PersistentVolumeClaim>(What::Claim, &claim.metadata, said).await?;
            }
        }
        for pod in self.all::<Pod>().await {
            if !pod_is_done(&pod) {
                let said = |waiting: &[&Step]| is_said_of_pod(&pod, waiting);
                self.has_reason::<Pod>(What::Pod, &pod.metadata, said).await?;
            }
        }
        Ok(())
    }

    /// Whether `explain` names the step that an object is in. One that has changed meanwhile is in another.
    async fn has_reason<K: Kind>(
        &self,
        what: What,
        meta: &Meta,
        said: impl Fn(&[&Step]) -> bool,
    ) -> Result<(), String> {
        let namespace = meta.namespace.clone().unwrap_or_default();
        let subject = Subject { what, namespace, name: meta.name.clone() };
        let story =
            explain(&self.cluster, &subject, None, chance::now()).await.map_err(|error| error.to_string())?;
        let waits = |step: &&Step| matches!(step.state, State::Waits | State::Failed);
        let waiting: Vec<&Step> = story.steps.iter().filter(waits).collect();
        if said(&waiting) {
            return Ok(());
        }
        let now = self.cluster.get::<K>(&meta.key()).await.unwrap();
        match now.is_none_or(|now| now.meta().resource_version != meta.resource_version) {
            true => Ok(()),
            false => Err(format!("no reason, or another one, is named for {subject}: {story:#?}")),
        }
    }
}
