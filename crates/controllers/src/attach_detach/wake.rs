//! Which work items a change enqueues, and with which priority. Irrelevant changes, such as node heartbeats and pod
//! readiness, enqueue none.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_cluster::work::EnqueueRequest;
use wharf_cluster::{Change, Priority};
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSIDriver, Key, PersistentVolume, PersistentVolumeClaim, UniqueVolumeName, VolumeAttachment,
};

use super::orphan::is_untouched;
use super::view::{NodeStatus, may_be_running};
use super::{AttachDetach, BY_CLAIM, BY_NODE, BY_VOLUME};

/// What one worker at a time handles.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum WorkItem {
    /// A volume on all its nodes: two workers could attach it to one node before it is detached from the other.
    Volume(UniqueVolumeName),
    /// A node's `volumesAttached`: the list is written as a whole.
    Node(String),
    /// An attachment whose volume is unknown.
    Orphan(String),
}

type EnqueueRequests = Vec<EnqueueRequest<WorkItem>>;

fn enqueue_volumes(
    volumes: impl IntoIterator<Item = UniqueVolumeName>,
    priority: Priority,
) -> EnqueueRequests {
    let volumes: BTreeSet<UniqueVolumeName> = volumes.into_iter().collect();
    volumes.into_iter().map(|volume| EnqueueRequest { key: WorkItem::Volume(volume), priority }).collect()
}

/// Whether the relevant facts of an object changed.
fn differ<K, F: PartialEq>(change: &Change<K>, fact: impl Fn(&K) -> F) -> bool {
    change.old.as_deref().map(&fact) != change.new.as_deref().map(&fact)
}

fn both<K>(change: &Change<K>) -> impl Iterator<Item = &Arc<K>> {
    change.old.iter().chain(&change.new)
}

impl AttachDetach {
    pub(super) fn pod_changed(&self, change: &Change<Pod>) -> EnqueueRequests {
        let fact = |pod: &Pod| (pod.metadata.uid.clone(), pod.spec.node_name.clone(), may_be_running(pod));
        if !differ(change, fact) {
            return Vec::new();
        }
        // A new pod waits for its volume. Terminated pods come in bursts and must not delay it.
        let is_new_user = change.new.as_ref().is_some_and(|pod| may_be_running(pod));
        let priority = if is_new_user { Priority::High } else { Priority::Normal };
        enqueue_volumes(both(change).flat_map(|pod| self.volumes_of_pod(pod)), priority)
    }

    pub(super) fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) -> EnqueueRequests {
        let fact = |claim: &PersistentVolumeClaim| {
            let owners = claim.metadata.owner_references.clone();
            (claim.metadata.uid.clone(), claim.status.phase, claim.spec.volume_name.clone(), owners)
        };
        match differ(change, fact) {
            true => {
                enqueue_volumes(self.volumes_of_claim(&change.key, change.old.as_deref()), Priority::High)
            }
            false => Vec::new(),
        }
    }

    pub(super) fn volume_changed(&self, change: &Change<PersistentVolume>) -> EnqueueRequests {
        let fact = |volume: &PersistentVolume| {
            let spec = &volume.spec;
            (UniqueVolumeName::from_spec(spec), spec.claim_ref.clone(), spec.access_modes.clone())
        };
        if !differ(change, fact) {
            return Vec::new();
        }
        let mut requests = enqueue_volumes(
            both(change).filter_map(|volume| UniqueVolumeName::from_spec(&volume.spec)),
            Priority::High,
        );
        let attachments = self.attachments.by_index(BY_VOLUME, &change.key.name);
        requests.extend(self.orphans(&attachments));
        requests
    }

    pub(super) fn attachment_changed(&self, change: &Change<VolumeAttachment>) -> EnqueueRequests {
        let fact = |attachment: &VolumeAttachment| {
            let meta = &attachment.metadata;
            (meta.uid.clone(), meta.is_deleting(), attachment.status.clone())
        };
        if !differ(change, fact) {
            return Vec::new();
        }
        // A deleted attachment may unblock another node.
        let mut requests =
            enqueue_volumes(both(change).filter_map(|a| self.volume_of_attachment(a)), Priority::High);
        let nodes: BTreeSet<&String> = both(change).map(|attachment| &attachment.spec.node_name).collect();
        let node = |node: &&String| EnqueueRequest {
            key: WorkItem::Node((*node).clone()),
            priority: Priority::High,
        };
        requests.extend(nodes.iter().map(node));
        requests.extend(self.orphans(change.new.as_slice()));
        requests
    }

    pub(super) fn node_changed(&self, change: &Change<Node>) -> EnqueueRequests {
        let name = &change.key.name;
        match (&change.old, &change.new) {
            (_, Some(_)) => self.states.node_exists(name),
            (Some(old), None) => {
                self.states.node_deleted(name, old.status.volumes_in_use.iter().cloned().collect());
            }
            (None, None) => {}
        }
        let state = |node: &Node| (node.metadata.uid.clone(), NodeStatus::of(Some(node), "", None));
        let lists = |node: &Node| {
            let attached = node.status.volumes_attached.iter().map(|volume| volume.name.clone());
            let in_use = node.status.volumes_in_use.iter().cloned();
            (attached.collect::<BTreeSet<_>>(), in_use.collect::<BTreeSet<_>>())
        };
        let mut volumes = BTreeSet::new();
        if differ(change, state) {
            volumes.extend(self.volumes_on(name));
        }
        if differ(change, lists) {
            let listed = |node: Option<&Arc<Node>>| node.map(|node| lists(node.as_ref())).unwrap_or_default();
            let (old, new) = (listed(change.old.as_ref()), listed(change.new.as_ref()));
            let attached = old.0.symmetric_difference(&new.0);
            let changed = attached.chain(old.1.symmetric_difference(&new.1));
            volumes.extend(changed.filter_map(|name| UniqueVolumeName::parse(name)));
        } else if volumes.is_empty() && change.old.is_some() {
            return Vec::new();
        }
        let mut requests = enqueue_volumes(volumes, Priority::Normal);
        requests.push(EnqueueRequest { key: WorkItem::Node(name.clone()), priority: Priority::Normal });
        requests
    }

    pub(super) fn driver_changed(&self, change: &Change<CSIDriver>) -> EnqueueRequests {
        let driver = &change.key.name;
        let attaches = |object: &Option<Arc<CSIDriver>>| CSIDriver::requires_attach(object.as_deref());
        if attaches(&change.old) == attaches(&change.new) && change.old.is_some() {
            return Vec::new();
        }
        let volumes = self.volumes.all();
        let names = volumes.iter().filter_map(|volume| UniqueVolumeName::from_spec(&volume.spec));
        enqueue_volumes(names.filter(|name| name.driver == *driver), Priority::Normal)
    }

    /// All volumes that are attached to a node or wanted there.
    pub(super) fn volumes_on(&self, node: &str) -> BTreeSet<UniqueVolumeName> {
        let attachments = self.attachments.by_index(BY_NODE, node);
        let attached = attachments.iter().filter_map(|attachment| self.volume_of_attachment(attachment));
        let pods = self.pods.by_index(BY_NODE, node);
        let used = pods.iter().flat_map(|pod| self.volumes_of_pod(pod));
        attached.chain(used).collect()
    }

    fn orphans(&self, attachments: &[Arc<VolumeAttachment>]) -> EnqueueRequests {
        let orphans = attachments.iter().filter_map(|attachment| self.orphan(attachment));
        orphans.map(|key| EnqueueRequest { key, priority: Priority::Normal }).collect()
    }

    /// The work item of an attachment that no volume leads to.
    pub(super) fn orphan(&self, attachment: &VolumeAttachment) -> Option<WorkItem> {
        let volume = attachment.spec.source.persistent_volume_name.as_ref()?;
        let volume_missing = self.volumes.get(&Key::cluster(volume.as_str())).is_none();
        (self.settings.forget_orphans && volume_missing && is_untouched(attachment))
            .then(|| WorkItem::Orphan(attachment.metadata.name.clone()))
    }

    pub(super) fn volume_of_attachment(&self, attachment: &VolumeAttachment) -> Option<UniqueVolumeName> {
        let name = attachment.spec.source.persistent_volume_name.as_ref()?;
        UniqueVolumeName::from_spec(&self.volumes.get(&Key::cluster(name.as_str()))?.spec)
    }

    fn volumes_of_pod(&self, pod: &Pod) -> Vec<UniqueVolumeName> {
        let Some(namespace) = pod.metadata.namespace.as_deref().filter(|_| !pod.spec.node_name.is_empty())
        else {
            return Vec::new();
        };
        pod.claims()
            .flat_map(|claim| self.volumes_of_claim(&Key::namespaced(namespace, claim), None))
            .collect()
    }

    /// By the claim's volumeName or the volume's claimRef.
    fn volumes_of_claim(&self, key: &Key, before: Option<&PersistentVolumeClaim>) -> Vec<UniqueVolumeName> {
        let named =
            |claim: &PersistentVolumeClaim| self.volumes.get(&Key::cluster(claim.spec.volume_name.as_str()));
        let by_claim = self.claims.get(key).and_then(|claim| named(&claim));
        let by_volume = self.volumes.by_index(BY_CLAIM, &key.to_string());
        let volumes = by_claim.into_iter().chain(before.and_then(named)).chain(by_volume);
        volumes.filter_map(|volume| UniqueVolumeName::from_spec(&volume.spec)).collect()
    }
}
