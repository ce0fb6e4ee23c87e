//! The provisioner's watched objects. Lookups use indexes: nothing here waits or scans a whole store.

use std::sync::{Arc, Mutex, PoisonError};

use wharf_cluster::indexes::{ATTACHMENTS_BY_VOLUME, VOLUMES_BY_HANDLE, handle_key};
use wharf_cluster::{Cluster, Store, WatchOptions};
use wharf_model::migration::Plugin;
use wharf_model::names::annotation;
use wharf_model::topology::{self, Segments, TopologyError};
use wharf_model::volume::CsiVolumeSource;
use wharf_model::{
    CSINode, Key, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
};

use super::act::ProvisionStates;
use super::intent::Intent;
use super::journal::Journal;
use super::protection;
use super::source::{self, SourceRef};
use super::view::{FixedNodes, Nodes, ProvisionState, ProvisionView, ProvisionerConfig, claimant};
use super::volume;

/// Unbound claims, by the name that their volume would have.
const BY_VOLUME: &str = "provisioner/volume";
/// Unbound claims, by their class.
const BY_CLASS: &str = "provisioner/class";
/// Unbound claims, by the driver that is to provision them.
const BY_DRIVER: &str = "provisioner/driver";
/// Volumes of drivers that replace an in-tree plugin, by driver and identity of the handle.
const BY_IDENTITY: &str = "provisioner/identity";
/// CSINodes, by the drivers that have topology keys there.
const BY_KEYS: &str = "provisioner/keys";

/// The watched objects.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) config: Arc<ProvisionerConfig>,
    pub(crate) claims: Store<PersistentVolumeClaim>,
    pub(crate) volumes: Store<PersistentVolume>,
    pub(crate) classes: Store<StorageClass>,
    /// Only if the driver attaches volumes.
    pub(crate) attachments: Option<Store<VolumeAttachment>>,
    /// Only if the driver supports topology and this process acts for all nodes.
    pub(crate) nodes: Option<StoredNodes>,
    fixed_nodes: FixedNodes,
}

/// The drivers that a claim's annotations name as its provisioner.
fn drivers(claim: &PersistentVolumeClaim) -> impl Iterator<Item = &str> {
    let migrated = claim.metadata.annotation(annotation::MIGRATED_TO);
    claim.provisioner().into_iter().chain(migrated)
}

impl Stores {
    /// Starts the watches, or joins existing ones.
    pub(crate) fn watch(cluster: &Cluster, config: &Arc<ProvisionerConfig>) -> Self {
        let claims = cluster.store::<PersistentVolumeClaim>(WatchOptions::default());
        let naming = config.settings.naming.clone();
        let unbound = |claim: &PersistentVolumeClaim| claim.spec.volume_name.is_empty();
        claims.add_index(BY_VOLUME, move |claim| match unbound(claim) {
            true => naming.name(&claim.metadata.uid).into_iter().collect(),
            false => Vec::new(),
        });
        claims.add_index(BY_CLASS, move |claim| match unbound(claim) {
            true => claim.class().map(str::to_owned).into_iter().collect(),
            false => Vec::new(),
        });
        claims.add_index(BY_DRIVER, move |claim| match unbound(claim) {
            true => drivers(claim).map(str::to_owned).collect(),
            false => Vec::new(),
        });
        protection::index(&claims);
        let volumes = cluster.store::<PersistentVolume>(WatchOptions::default());
        volumes.share_index(&VOLUMES_BY_HANDLE);
        volumes.add_index(BY_IDENTITY, |volume| {
            let csi = volume.csi_source();
            let plugin = csi.and_then(|csi| Some((csi, Plugin::replaced_by(&csi.driver)?)));
            let key = |(csi, plugin): (&CsiVolumeSource, Plugin)| {
                handle_key(&csi.driver, &plugin.identity(&csi.volume_handle))
            };
            plugin.map(key).into_iter().collect()
        });
        let attachments = config.capabilities.publish_unpublish_volume.then(|| {
            let attachments = cluster.store::<VolumeAttachment>(WatchOptions::default());
            attachments.share_index(&ATTACHMENTS_BY_VOLUME);
            attachments
        });
        let nodes =
            (config.capabilities.topology && config.node.is_none()).then(|| StoredNodes::watch(cluster));
        let fixed_nodes =
            config.node.as_ref().map(|node| FixedNodes::one(&config.driver, node)).unwrap_or_default();
        let classes = cluster.store(WatchOptions::default());
        Self { config: Arc::clone(config), claims, volumes, classes, attachments, nodes, fixed_nodes }
    }

    /// Waits until all stores are synced: an object that is not listed yet must not be taken for deleted.
    pub(crate) async fn synced(&self) {
        self.claims.wait_synced().await;
        self.volumes.wait_synced().await;
        self.classes.wait_synced().await;
        if let Some(attachments) = &self.attachments {
            attachments.wait_synced().await;
        }
        if let Some(nodes) = &self.nodes {
            nodes.csi_nodes.wait_synced().await;
            nodes.nodes.wait_synced().await;
        }
    }

    /// The name of the volume that a claim has or would get, if the claim is for this driver.
    pub(crate) fn volume_name_for(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let ours = drivers(claim).any(|driver| driver == self.config.driver);
        ours.then(|| self.config.settings.naming.name(&claim.metadata.uid).ok()).flatten()
    }

    /// Whether a change of the volume may matter to this driver.
    pub(crate) fn is_relevant(&self, volume: &PersistentVolume, journal: &Journal) -> bool {
        let driver = Some(self.config.driver.as_str());
        let name = &volume.metadata.name;
        volume.is_for_driver(&self.config.driver)
            || volume.metadata.annotation(annotation::PROVISIONED_BY) == driver
            || volume.metadata.annotation(annotation::MIGRATED_TO) == driver
            || journal.get(name).is_some()
            || !self.claims.by_index(BY_VOLUME, name).is_empty()
    }

    /// Pending claims of a class.
    pub(crate) fn pending_for_class(&self, class: &str) -> Vec<Arc<PersistentVolumeClaim>> {
        self.claims.by_index(BY_CLASS, class)
    }

    /// Pending claims that clone this one.
    pub(crate) fn pending_clones_of(&self, claim: &Key) -> Vec<Arc<PersistentVolumeClaim>> {
        protection::waiting_for(&self.claims, &SourceRef::Claim(claim.clone()))
    }

    /// All pending claims of this driver.
    pub(crate) fn pending_claims(&self) -> Vec<Arc<PersistentVolumeClaim>> {
        self.claims.by_index(BY_DRIVER, &self.config.driver)
    }

    /// What a resync reconciles: the names of pending claims' volumes, of intents' volumes, and of this driver's volumes.
    pub(crate) fn volumes_to_resync(&self, journal: &Journal) -> Vec<String> {
        let pending = self.pending_claims();
        let pending = pending.iter().filter_map(|claim| self.volume_name_for(claim));
        let volumes = self.volumes.all();
        let relevant = volumes.iter().filter(|volume| self.is_relevant(volume, journal));
        let existing = relevant.map(|volume| volume.metadata.name.clone());
        pending.chain(journal.volumes()).chain(existing).collect()
    }

    /// The current inputs for deciding about a volume.
    pub(crate) fn inputs(&self, volume: &str, journal: &Journal, states: &ProvisionStates) -> Inputs {
        let state = states.get(volume);
        let intent = journal.get(volume);
        let pv = self.volumes.get(&Key::cluster(volume));
        let claim = match &intent {
            Some(intent) => self
                .claims
                .get(&Key::namespaced(&intent.claim.namespace, &intent.claim.name))
                .filter(|claim| claim.metadata.uid == intent.claim.uid),
            None => claimant(self.claims.by_index(BY_VOLUME, volume), pv.as_deref()),
        };
        let class = claim.as_ref().and_then(|claim| claim.class()).map(Key::cluster);
        let class = class.and_then(|key| self.classes.get(&key));
        let handle_owner = state.created().and_then(|created| {
            let translated =
                intent.as_ref().map(|intent| volume::handle_in_pv(intent, created, &self.config));
            let mut handles = [Some(created.handle.clone()), translated].into_iter().flatten();
            let volume = handles.find_map(|handle| self.with_handle(&handle).into_iter().next());
            volume.map(|volume| volume.metadata.name.clone())
        });
        let source_claim = claim.as_ref().and_then(|claim| match source::requested_source(claim) {
            Ok(Some(SourceRef::Claim(key))) => self.claims.get(&key),
            _ => None,
        });
        let source_volume = source_claim
            .as_ref()
            .and_then(|source| self.volumes.get(&Key::cluster(source.spec.volume_name.as_str())));
        let pv_class = pv.as_ref().map(|pv| pv.spec.storage_class_name.as_str());
        let pv_class = pv_class.and_then(|class| self.classes.get(&Key::cluster(class)));
        let siblings = pv.as_ref().map(|pv| self.siblings(pv)).unwrap_or_default();
        let attached = match (&pv, &self.attachments) {
            (Some(_), Some(attachments)) => {
                let attached = attachments.find(&ATTACHMENTS_BY_VOLUME, volume);
                attached.iter().map(|attachment| attachment.metadata.name.clone()).collect()
            }
            _ => Vec::new(),
        };
        Inputs {
            pv,
            claim,
            class,
            intent,
            handle_owner,
            state,
            source_claim,
            source_volume,
            pv_class,
            siblings,
            attached,
        }
    }

    /// The PersistentVolumes that may have the same volume, including this one.
    pub(crate) fn siblings(&self, volume: &PersistentVolume) -> Vec<Arc<PersistentVolume>> {
        let own = volume.csi_source().filter(|csi| csi.driver == self.config.driver);
        own.map(|csi| self.with_handle(&csi.volume_handle)).unwrap_or_default()
    }

    /// The driver's PersistentVolumes that may have the volume with this handle. Those with an in-tree source may have
    /// another handle for it.
    fn with_handle(&self, handle: &str) -> Vec<Arc<PersistentVolume>> {
        let driver = &self.config.driver;
        let Some(plugin) = Plugin::replaced_by(driver) else {
            return self.volumes.find(&VOLUMES_BY_HANDLE, &handle_key(driver, handle));
        };
        let mut volumes = self.volumes.by_index(BY_IDENTITY, &handle_key(driver, &plugin.identity(handle)));
        volumes.retain(|volume| {
            volume.csi_source().is_some_and(|csi| plugin.may_be_same_volume(handle, &csi.volume_handle))
        });
        volumes
    }

    fn nodes(&self) -> &dyn Nodes {
        match &self.nodes {
            Some(nodes) => nodes,
            None => &self.fixed_nodes,
        }
    }
}

/// The inputs of one decision about a volume.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) pv: Option<Arc<PersistentVolume>>,
    pub(crate) claim: Option<Arc<PersistentVolumeClaim>>,
    pub(crate) class: Option<Arc<StorageClass>>,
    intent: Option<Arc<Intent>>,
    handle_owner: Option<String>,
    state: ProvisionState,
    source_claim: Option<Arc<PersistentVolumeClaim>>,
    source_volume: Option<Arc<PersistentVolume>>,
    pv_class: Option<Arc<StorageClass>>,
    siblings: Vec<Arc<PersistentVolume>>,
    attached: Vec<String>,
}

impl Inputs {
    /// The view that the rules read.
    pub(crate) fn view<'a>(&'a self, volume: &'a str, stores: &'a Stores) -> ProvisionView<'a> {
        ProvisionView {
            volume,
            config: &stores.config,
            pv: self.pv.as_deref(),
            claim: self.claim.as_deref(),
            class: self.class.as_deref(),
            intent: self.intent.as_ref(),
            handle_owner: self.handle_owner.as_deref(),
            state: &self.state,
            source_claim: self.source_claim.as_deref(),
            source_volume: self.source_volume.as_deref(),
            nodes: stores.nodes(),
            pv_class: self.pv_class.as_deref(),
            attached: &self.attached,
            siblings: &self.siblings,
        }
    }
}

/// The nodes of the cluster, from stores.
#[derive(Clone)]
pub(crate) struct StoredNodes {
    pub(crate) csi_nodes: Store<CSINode>,
    pub(crate) nodes: Store<Node>,
    /// The segments of all nodes, as last computed: claims arrive far more often than nodes change.
    cache: Arc<Mutex<Option<CachedTopology>>>,
}

struct CachedTopology {
    revision: u64,
    keys: Vec<String>,
    topologies: Vec<Segments>,
}

impl StoredNodes {
    fn watch(cluster: &Cluster) -> Self {
        let csi_nodes = cluster.store::<CSINode>(WatchOptions::default());
        csi_nodes.add_index(BY_KEYS, |node| {
            let located = node.spec.drivers.iter().filter(|driver| !driver.topology_keys.is_empty());
            located.map(|driver| driver.name.clone()).collect()
        });
        Self { csi_nodes, nodes: cluster.store(WatchOptions::slim()), cache: Arc::default() }
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
        located.map(|node| topology::topology_keys(&node, driver).to_vec()).unwrap_or_default()
    }

    fn topologies(&self, keys: &[String]) -> Result<Vec<Segments>, TopologyError> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        // Read first: a node that changes in between only causes another computation.
        let revision = self.nodes.revision();
        if let Some(cache) =
            cache.as_ref().filter(|cached| cached.revision == revision && cached.keys == keys)
        {
            return Ok(cache.topologies.clone());
        }
        let topologies = topology::cluster_segments(keys, self.nodes.all().iter().map(|node| &**node))?;
        *cache = Some(CachedTopology { revision, keys: keys.to_vec(), topologies: topologies.clone() });
        Ok(topologies)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::provisioner::testing;

    /// Stores of a driver, with these volumes.
    async fn stores_with(driver: &str, volumes: Value) -> Stores {
        let context = testing::context(move |_, path, _| {
            let items = if path.ends_with("/persistentvolumes") { volumes.clone() } else { json!([]) };
            (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
        });
        let config = ProvisionerConfig { driver: driver.into(), ..testing::config() };
        let stores = Stores::watch(&context.cluster, &Arc::new(config));
        stores.synced().await;
        stores
    }

    fn volume(name: &str, spec: Value) -> Value {
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}, "spec": spec})
    }

    fn siblings(stores: &Stores, name: &str) -> Vec<String> {
        let volume = stores.volumes.get(&Key::cluster(name)).unwrap();
        let mut names: Vec<_> =
            stores.siblings(&volume).iter().map(|volume| volume.metadata.name.clone()).collect();
        names.sort();
        names
    }

    /// Otherwise a volume would be deleted that another PersistentVolume refers to.
    #[tokio::test]
    async fn volumes_are_siblings_if_translated_handle_is_the_same() {
        const EBS: &str = "ebs.csi.aws.com";
        let volumes = json!([
            volume("csi", json!({"csi": {"driver": EBS, "volumeHandle": "vol-1"}})),
            volume("in-tree", json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}})),
            volume("other", json!({"awsElasticBlockStore": {"volumeID": "vol-2"}})),
            volume("cinder", json!({"cinder": {"volumeID": "vol-1"}})),
        ]);
        let stores = stores_with(EBS, volumes).await;
        assert_eq!(siblings(&stores, "csi"), ["csi", "in-tree"]);
        assert_eq!(siblings(&stores, "in-tree"), ["csi", "in-tree"]);
        assert_eq!(siblings(&stores, "other"), ["other"]);
        assert_eq!(siblings(&stores, "cinder"), [""; 0]);
    }

    /// The handle of an in-tree volume lacks the project, has the name of its PersistentVolume, or is spelled
    /// differently.
    #[tokio::test]
    async fn volumes_are_siblings_if_different_handles_are_of_one_disk() {
        const GCE: &str = "pd.csi.storage.gke.io";
        let csi = |handle: &str| json!({"csi": {"driver": GCE, "volumeHandle": handle}});
        let volumes = json!([
            volume("csi", csi("projects/p/zones/us-east1-b/disks/d")),
            volume("in-tree", json!({"gcePersistentDisk": {"pdName": "d"}})),
            volume("zone", csi("projects/p/zones/us-east1-c/disks/d")),
            volume("other", json!({"gcePersistentDisk": {"pdName": "e"}})),
        ]);
        let stores = stores_with(GCE, volumes).await;
        assert_eq!(siblings(&stores, "csi"), ["csi", "in-tree"]);
        assert_eq!(siblings(&stores, "in-tree"), ["csi", "in-tree", "zone"]);
        assert_eq!(siblings(&stores, "other"), ["other"]);

        let share = |secret: &str| json!({"azureFile": {"secretName": secret, "shareName": "f", "secretNamespace": "n"}});
        let native = json!({"csi": {"driver": "file.csi.azure.com", "volumeHandle": "g#a#f#x"}});
        let volumes = json!([
            volume("one", share("azure-storage-account-a-secret")),
            volume("two", share("azure-storage-account-a-secret")),
            volume("csi", native),
            volume("other", share("azure-storage-account-b-secret")),
        ]);
        let stores = stores_with("file.csi.azure.com", volumes).await;
        assert_eq!(siblings(&stores, "one"), ["csi", "one", "two"]);
        assert_eq!(siblings(&stores, "other"), ["other"]);

        let volumes = json!([
            volume("in-tree", json!({"azureDisk": {"diskURI": "/subscriptions/S/disks/D"}})),
            volume(
                "csi",
                json!({"csi": {"driver": "disk.csi.azure.com", "volumeHandle": "/subscriptions/s/disks/d"}})
            ),
        ]);
        let stores = stores_with("disk.csi.azure.com", volumes).await;
        assert_eq!(siblings(&stores, "in-tree"), ["csi", "in-tree"]);
    }
}
