//! The objects that the provisioner reads, and how they are found: stores with indexes, and what of them belongs
//! to one volume. Nothing here waits, and nothing is scanned.

use std::sync::{Arc, Mutex, PoisonError};

use wharf_cluster::{Cluster, Store, WatchOptions};
use wharf_model::names::annotation;
use wharf_model::topology::{self, Segments, TopologyError};
use wharf_model::{
    CSINode, Key, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
};

use super::act::Memories;
use super::intent::Intent;
use super::journal::Journal;
use super::protection;
use super::source::{self, Named};
use super::view::{Memory, Nodes, Own, View, WrittenNodes, claimant};

/// Unbound claims, by the name that their volume would have.
const BY_VOLUME: &str = "provisioner/volume";
/// Unbound claims, by their class.
const BY_CLASS: &str = "provisioner/class";
/// Unbound claims, by the driver that is to provision them.
const BY_DRIVER: &str = "provisioner/driver";
/// Volumes, by driver and handle.
const BY_HANDLE: &str = "provisioner/handle";
/// Nodes' drivers, by driver, where it has topology keys.
const BY_KEYS: &str = "provisioner/keys";
/// Attachments, by volume.
const BY_ATTACHED: &str = "provisioner/attached";

/// The objects.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) own: Arc<Own>,
    pub(crate) claims: Store<PersistentVolumeClaim>,
    pub(crate) volumes: Store<PersistentVolume>,
    pub(crate) classes: Store<StorageClass>,
    /// Only where the driver attaches volumes.
    pub(crate) attachments: Option<Store<VolumeAttachment>>,
    /// Only where the driver knows places, and we act for all nodes.
    pub(crate) nodes: Option<StoredNodes>,
    written: WrittenNodes,
}

/// The drivers to whom a claim is said to belong.
fn drivers(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &str> {
    let migrated = claim.metadata.annotation(annotation::MIGRATED_TO);
    claim.provisioner().into_iter().chain(migrated)
}

fn handle_key(driver: &str, handle: &str) -> String {
    // No driver's name has a slash.
    format!("{driver}/{handle}")
}

impl World {
    /// Starts watching, or joins the watches that are there.
    pub(crate) fn watch(cluster: &Cluster, own: &Arc<Own>) -> Self {
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        let naming = own.settings.naming.clone();
        let unbound = |claim: &PersistentVolumeClaim| claim.spec.volume_name.is_empty();
        claims.index(BY_VOLUME, move |claim| match unbound(claim) {
            true => naming.name(&claim.metadata.uid).into_iter().collect(),
            false => Vec::new(),
        });
        claims.index(BY_CLASS, move |claim| match unbound(claim) {
            true => claim.class().map(str::to_owned).into_iter().collect(),
            false => Vec::new(),
        });
        claims.index(BY_DRIVER, move |claim| match unbound(claim) {
            true => drivers(claim).map(str::to_owned).collect(),
            false => Vec::new(),
        });
        protection::index(&claims);
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.index(BY_HANDLE, |volume| {
            let csi = volume.spec.csi.as_ref();
            csi.map(|csi| handle_key(&csi.driver, &csi.volume_handle)).into_iter().collect()
        });
        let attachments = own.can.publish_unpublish_volume.then(|| {
            let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
            attachments.index(BY_ATTACHED, |attachment| {
                attachment.spec.source.persistent_volume_name.clone().into_iter().collect()
            });
            attachments
        });
        let nodes = (own.can.topology && own.node.is_none()).then(|| StoredNodes::watch(cluster));
        let written = own.node.as_ref().map(|node| WrittenNodes::one(&own.driver, node)).unwrap_or_default();
        let classes = cluster.store(WatchOptions::default());
        Self { own: Arc::clone(own), claims, volumes, classes, attachments, nodes, written }
    }

    /// Waits until all of them were listed. What is not known to be there must not be taken for gone.
    pub(crate) async fn synced(&self) {
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        if let Some(attachments) = &self.attachments {
            attachments.synced().await;
        }
        if let Some(nodes) = &self.nodes {
            nodes.csi_nodes.synced().await;
            nodes.nodes.synced().await;
        }
    }

    /// The volume that a claim has or would have, if it is for this driver.
    pub(crate) fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let ours = drivers(claim).any(|driver| driver == self.own.driver);
        ours.then(|| self.own.settings.naming.name(&claim.metadata.uid).ok()).flatten()
    }

    /// Whether a volume is any of our business.
    pub(crate) fn concerns_us(&self, volume: &PersistentVolume, journal: &Journal) -> bool {
        let driver = Some(self.own.driver.as_str());
        let name = &volume.metadata.name;
        volume.is_of(&self.own.driver)
            || volume.metadata.annotation(annotation::PROVISIONED_BY) == driver
            || volume.metadata.annotation(annotation::MIGRATED_TO) == driver
            || journal.get(name).is_some()
            || !self.claims.by_index(BY_VOLUME, name).is_empty()
    }

    /// Claims of a class that wait for a volume.
    pub(crate) fn waiting_for_class(&self, class: &str) -> Vec<Arc<PersistentVolumeClaim>> {
        self.claims.by_index(BY_CLASS, class)
    }

    /// Claims that wait for a clone of this one.
    pub(crate) fn waiting_for_clone_of(&self, claim: &Key) -> Vec<Arc<PersistentVolumeClaim>> {
        protection::waiting_for(&self.claims, &Named::Claim(claim.clone()))
    }

    /// All claims that wait for a volume of this driver.
    pub(crate) fn waiting(&self) -> Vec<Arc<PersistentVolumeClaim>> {
        self.claims.by_index(BY_DRIVER, &self.own.driver)
    }

    /// All that belongs to a volume, as it is now.
    pub(crate) fn see(&self, volume: &str, journal: &Journal, memories: &Memories) -> Seen {
        let memory = memories.get(volume);
        let intent = journal.get(volume);
        let present = self.volumes.get(&Key::cluster(volume));
        let claim = match &intent {
            Some(intent) => self
                .claims
                .get(&Key::namespaced(&intent.claim.namespace, &intent.claim.name))
                .filter(|claim| claim.metadata.uid == intent.claim.uid),
            None => claimant(self.claims.by_index(BY_VOLUME, volume), present.as_deref()),
        };
        let class = claim.as_ref().and_then(|claim| claim.class()).map(Key::cluster);
        let class = class.and_then(|key| self.classes.get(&key));
        let holder = memory.made().and_then(|made| {
            let key = handle_key(&self.own.driver, &made.handle);
            self.volumes.by_index(BY_HANDLE, &key).first().map(|volume| volume.metadata.name.clone())
        });
        let source_claim = claim.as_ref().and_then(|claim| match source::wanted(claim) {
            Ok(Some(Named::Claim(key))) => self.claims.get(&key),
            _ => None,
        });
        let source_volume = source_claim
            .as_ref()
            .and_then(|source| self.volumes.get(&Key::cluster(source.spec.volume_name.as_str())));
        let present_class = present.as_ref().map(|present| present.spec.storage_class_name.as_str());
        let present_class = present_class.and_then(|class| self.classes.get(&Key::cluster(class)));
        let siblings = present.as_ref().map(|present| self.siblings(present)).unwrap_or_default();
        let attached = match (&present, &self.attachments) {
            (Some(_), Some(attachments)) => {
                let attached = attachments.by_index(BY_ATTACHED, volume);
                attached.iter().map(|attachment| attachment.metadata.name.clone()).collect()
            }
            _ => Vec::new(),
        };
        Seen {
            present,
            claim,
            class,
            intent,
            holder,
            memory,
            source_claim,
            source_volume,
            present_class,
            siblings,
            attached,
        }
    }

    /// The volumes that have the same handle as this one, itself among them.
    pub(crate) fn siblings(&self, volume: &PersistentVolume) -> Vec<Arc<PersistentVolume>> {
        let Some(csi) = &volume.spec.csi else { return Vec::new() };
        self.volumes.by_index(BY_HANDLE, &handle_key(&csi.driver, &csi.volume_handle))
    }

    fn nodes(&self) -> &dyn Nodes {
        match &self.nodes {
            Some(nodes) => nodes,
            None => &self.written,
        }
    }
}

/// What was seen of a volume at one moment.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) present: Option<Arc<PersistentVolume>>,
    pub(crate) claim: Option<Arc<PersistentVolumeClaim>>,
    pub(crate) class: Option<Arc<StorageClass>>,
    intent: Option<Arc<Intent>>,
    holder: Option<String>,
    memory: Memory,
    source_claim: Option<Arc<PersistentVolumeClaim>>,
    source_volume: Option<Arc<PersistentVolume>>,
    present_class: Option<Arc<StorageClass>>,
    siblings: Vec<Arc<PersistentVolume>>,
    attached: Vec<String>,
}

impl Seen {
    /// As the rules see it.
    pub(crate) fn view<'a>(&'a self, volume: &'a str, world: &'a World) -> View<'a> {
        View {
            volume,
            own: &world.own,
            present: self.present.as_deref(),
            claim: self.claim.as_deref(),
            class: self.class.as_deref(),
            intent: self.intent.as_ref(),
            holder: self.holder.as_deref(),
            memory: &self.memory,
            source_claim: self.source_claim.as_deref(),
            source_volume: self.source_volume.as_deref(),
            nodes: world.nodes(),
            present_class: self.present_class.as_deref(),
            attached: &self.attached,
            siblings: &self.siblings,
        }
    }
}

/// The cluster's nodes.
#[derive(Clone)]
pub(crate) struct StoredNodes {
    pub(crate) csi_nodes: Store<CSINode>,
    pub(crate) nodes: Store<Node>,
    /// The places of all nodes, as last computed: claims come far more often than nodes change.
    computed: Arc<Mutex<Option<Computed>>>,
}

struct Computed {
    revision: u64,
    keys: Vec<String>,
    places: Vec<Segments>,
}

impl StoredNodes {
    fn watch(cluster: &Cluster) -> Self {
        let csi_nodes = cluster.store::<CSINode>(WatchOptions::default());
        csi_nodes.index(BY_KEYS, |node| {
            let located = node.spec.drivers.iter().filter(|driver| !driver.topology_keys.is_empty());
            located.map(|driver| driver.name.clone()).collect()
        });
        Self { csi_nodes, nodes: cluster.store(WatchOptions::default()), computed: Arc::default() }
    }
}

impl Nodes for StoredNodes {
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(&Key::cluster(name))
    }

    fn node(&self, name: &str) -> Option<Arc<Node>> {
        self.nodes.get(&Key::cluster(name))
    }

    fn keys(&self, driver: &str) -> Vec<String> {
        let located = self.csi_nodes.first_by_index(BY_KEYS, driver);
        located.map(|node| topology::keys(&node, driver).to_vec()).unwrap_or_default()
    }

    fn places(&self, keys: &[String]) -> Result<Vec<Segments>, TopologyError> {
        let mut computed = self.computed.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked first: a node that changes meanwhile only makes it be computed again.
        let revision = self.nodes.revision();
        if let Some(computed) = computed.as_ref().filter(|is| is.revision == revision && is.keys == keys) {
            return Ok(computed.places.clone());
        }
        let places = topology::places(keys, self.nodes.all().iter().map(|node| &**node))?;
        *computed = Some(Computed { revision, keys: keys.to_vec(), places: places.clone() });
        Ok(places)
    }
}
