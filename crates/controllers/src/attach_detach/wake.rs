//! What calls for a look, at which volume or node, and how urgently. Changes that cannot matter call for none: nodes
//! say every few seconds that they live, pods that they are ready.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_cluster::work::Wish;
use wharf_cluster::{Change, Priority};
use wharf_model::whole::{Node, Pod};
use wharf_model::{CSIDriver, Key, PersistentVolume, PersistentVolumeClaim, VolumeAttachment, VolumeName};

use super::orphan::is_untouched;
use super::view::{Machine, is_live};
use super::{AttachDetach, BY_CLAIM, BY_NODE, BY_VOLUME};

/// What is worked on at once by one worker only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// A volume, whatever nodes it is on: two workers could let it into one node before it is out of the other.
    Volume(VolumeName),
    /// What a node is told: the list is written as a whole.
    Node(String),
    /// An attachment whose volume is not known.
    Orphan(String),
}

type Wishes = Vec<Wish<Subject>>;

fn wishes(volumes: impl IntoIterator<Item = VolumeName>, priority: Priority) -> Wishes {
    let volumes: BTreeSet<VolumeName> = volumes.into_iter().collect();
    volumes.into_iter().map(|volume| Wish { key: Subject::Volume(volume), priority }).collect()
}

/// Whether two versions of an object differ in what is looked at.
fn differ<K, F: PartialEq>(change: &Change<K>, fact: impl Fn(&K) -> F) -> bool {
    change.old.as_deref().map(&fact) != change.new.as_deref().map(&fact)
}

fn both<K>(change: &Change<K>) -> impl Iterator<Item = &Arc<K>> {
    change.old.iter().chain(&change.new)
}

impl AttachDetach {
    pub(super) fn pod_changed(&self, change: &Change<Pod>) -> Wishes {
        let fact = |pod: &Pod| (pod.metadata.uid.clone(), pod.spec.node_name.clone(), is_live(pod));
        if !differ(change, fact) {
            return Vec::new();
        }
        // Somebody waits for what comes; what leaves comes in bursts, and must not hold that up.
        let comes = change.new.as_ref().is_some_and(|pod| is_live(pod));
        let priority = if comes { Priority::High } else { Priority::Normal };
        wishes(both(change).flat_map(|pod| self.volumes_of_pod(pod)), priority)
    }

    pub(super) fn claim_changed(&self, change: &Change<PersistentVolumeClaim>) -> Wishes {
        let fact = |claim: &PersistentVolumeClaim| {
            let owners = claim.metadata.owner_references.clone();
            (claim.metadata.uid.clone(), claim.status.phase, claim.spec.volume_name.clone(), owners)
        };
        match differ(change, fact) {
            true => wishes(self.volumes_of_claim(&change.key, change.old.as_deref()), Priority::High),
            false => Vec::new(),
        }
    }

    pub(super) fn volume_changed(&self, change: &Change<PersistentVolume>) -> Wishes {
        let fact = |volume: &PersistentVolume| {
            let spec = &volume.spec;
            (VolumeName::of(spec), spec.claim_ref.clone(), spec.access_modes.clone())
        };
        if !differ(change, fact) {
            return Vec::new();
        }
        let mut wishes =
            wishes(both(change).filter_map(|volume| VolumeName::of(&volume.spec)), Priority::High);
        let attachments = self.attachments.by_index(BY_VOLUME, &change.key.name);
        wishes.extend(self.orphans(&attachments));
        wishes
    }

    pub(super) fn attachment_changed(&self, change: &Change<VolumeAttachment>) -> Wishes {
        let fact = |attachment: &VolumeAttachment| {
            let meta = &attachment.metadata;
            (meta.uid.clone(), meta.is_deleting(), attachment.status.clone())
        };
        if !differ(change, fact) {
            return Vec::new();
        }
        // An attachment that is gone lets another in.
        let mut wishes = wishes(both(change).filter_map(|a| self.volume_of_attachment(a)), Priority::High);
        let nodes: BTreeSet<&String> = both(change).map(|attachment| &attachment.spec.node_name).collect();
        let node = |node: &&String| Wish { key: Subject::Node((*node).clone()), priority: Priority::High };
        wishes.extend(nodes.iter().map(node));
        wishes.extend(self.orphans(change.new.as_slice()));
        wishes
    }

    pub(super) fn node_changed(&self, change: &Change<Node>) -> Wishes {
        let name = &change.key.name;
        match (&change.old, &change.new) {
            (_, Some(_)) => self.memories.node_there(name),
            (Some(old), None) => {
                self.memories.node_gone(name, old.status.volumes_in_use.iter().cloned().collect());
            }
            (None, None) => {}
        }
        let state = |node: &Node| (node.metadata.uid.clone(), Machine::of(Some(node), "", None));
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
            volumes.extend(changed.filter_map(|name| VolumeName::parse(name)));
        } else if volumes.is_empty() && change.old.is_some() {
            return Vec::new();
        }
        let mut wishes = wishes(volumes, Priority::Normal);
        wishes.push(Wish { key: Subject::Node(name.clone()), priority: Priority::Normal });
        wishes
    }

    pub(super) fn driver_changed(&self, change: &Change<CSIDriver>) -> Wishes {
        let driver = &change.key.name;
        // A driver of which nothing is said has to attach, as if it were said.
        let attaches = |object: &Option<Arc<CSIDriver>>| {
            object.as_ref().is_none_or(|object| object.spec.attach_required != Some(false))
        };
        if attaches(&change.old) == attaches(&change.new) && change.old.is_some() {
            return Vec::new();
        }
        let volumes = self.volumes.all();
        let names = volumes.iter().filter_map(|volume| VolumeName::of(&volume.spec));
        wishes(names.filter(|name| name.driver == *driver), Priority::Normal)
    }

    /// All that is on a node or to be there.
    pub(super) fn volumes_on(&self, node: &str) -> BTreeSet<VolumeName> {
        let attachments = self.attachments.by_index(BY_NODE, node);
        let attached = attachments.iter().filter_map(|attachment| self.volume_of_attachment(attachment));
        let pods = self.pods.by_index(BY_NODE, node);
        let used = pods.iter().flat_map(|pod| self.volumes_of_pod(pod));
        attached.chain(used).collect()
    }

    fn orphans(&self, attachments: &[Arc<VolumeAttachment>]) -> Wishes {
        let orphans = attachments.iter().filter_map(|attachment| self.orphan(attachment));
        orphans.map(|key| Wish { key, priority: Priority::Normal }).collect()
    }

    /// The attachment itself, if no volume leads to it.
    pub(super) fn orphan(&self, attachment: &VolumeAttachment) -> Option<Subject> {
        let volume = attachment.spec.source.persistent_volume_name.as_ref()?;
        let gone = self.volumes.get(&Key::cluster(volume.as_str())).is_none();
        (self.settings.forget_orphans && gone && is_untouched(attachment))
            .then(|| Subject::Orphan(attachment.metadata.name.clone()))
    }

    pub(super) fn volume_of_attachment(&self, attachment: &VolumeAttachment) -> Option<VolumeName> {
        let name = attachment.spec.source.persistent_volume_name.as_ref()?;
        VolumeName::of(&self.volumes.get(&Key::cluster(name.as_str()))?.spec)
    }

    fn volumes_of_pod(&self, pod: &Pod) -> Vec<VolumeName> {
        let Some(namespace) = pod.metadata.namespace.as_deref().filter(|_| !pod.spec.node_name.is_empty())
        else {
            return Vec::new();
        };
        pod.claims()
            .flat_map(|claim| self.volumes_of_claim(&Key::namespaced(namespace, claim), None))
            .collect()
    }

    /// By either end of the binding.
    fn volumes_of_claim(&self, key: &Key, before: Option<&PersistentVolumeClaim>) -> Vec<VolumeName> {
        let named =
            |claim: &PersistentVolumeClaim| self.volumes.get(&Key::cluster(claim.spec.volume_name.as_str()));
        let by_claim = self.claims.get(key).and_then(|claim| named(&claim));
        let by_volume = self.volumes.by_index(BY_CLAIM, &key.to_string());
        let volumes = by_claim.into_iter().chain(before.and_then(named)).chain(by_volume);
        volumes.filter_map(|volume| VolumeName::of(&volume.spec)).collect()
    }
}
