//! Builds the view for one pod from the stores and the assume cache.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_cluster::indexes::{ATTACHMENTS_BY_NODE, PODS_BY_CLAIM, PODS_BY_NODE, VOLUMES_BY_CLAIM};
use wharf_model::names::annotation;
use wharf_model::{
    AccessMode, Key, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, matching,
};

use super::assume::{self, AssumeCache};
use super::requests::{self, Requests};
use super::view::{CountedVolume, InFlight, NodeInfo, Rules, View, counted_volume};
use super::{AVAILABLE_VOLUMES_BY_CLASS, CAPACITIES_BY_CLASS, PROVISIONING_CLAIMS_BY_CLASS, Scheduler};

impl Scheduler {
    /// The inputs for scheduling a pod.
    pub(super) fn gather(&self, pod: &Arc<Pod>) -> View {
        let mut assumed = self.assumed();
        assumed.prune(|key| self.pods.get(key));
        let assumed = &*assumed;
        let claims = self.claims_of(pod, assumed);
        let classes: BTreeMap<String, Arc<StorageClass>> = claims
            .values()
            .filter_map(|claim| claim.class())
            .filter_map(|name| Some((name.to_owned(), self.classes.get(&Key::cluster(name))?)))
            .collect();
        let bound = claims.values().map(|claim| &claim.spec.volume_name).filter(|name| !name.is_empty());
        let volumes =
            bound.filter_map(|name| Some((name.clone(), self.volumes.get(&Key::cluster(name))?))).collect();
        let provisioners: BTreeSet<&str> = classes.values().map(|class| class.provisioner.as_str()).collect();
        let drivers = provisioners
            .iter()
            .filter_map(|name| Some((String::from(*name), self.drivers.get(&Key::cluster(*name))?)))
            .collect();
        let assumed_volumes: BTreeMap<Key, &str> =
            assumed.volumes().into_iter().map(|(volume, claim)| (claim.metadata.key(), volume)).collect();
        let assumed_volumes = (!claims.is_empty()).then_some(&assumed_volumes);
        let nodes = match pod.node_name.as_str() {
            "" => self.nodes.all(),
            name => self.nodes.get(&Key::cluster(name)).into_iter().collect(),
        };
        View {
            rules: Rules { capacity: self.settings.capacity_check, drivers: self.settings.driver_check },
            candidates: self.candidates(&claims, assumed),
            claims_in_use: self.claims_in_use(pod, &claims, assumed),
            in_flight: self.in_flight(pod, &classes, assumed),
            capacities: classes
                .keys()
                .flat_map(|class| self.capacities.by_index(CAPACITIES_BY_CLASS, class))
                .collect(),
            nodes: nodes
                .into_iter()
                .map(|node| self.node_info(pod, node, assumed_volumes, assumed))
                .collect(),
            pod: Arc::clone(pod),
            claims,
            volumes,
            classes,
            drivers,
        }
    }

    /// The pod's claims, with the nodes that are assumed for them.
    fn claims_of(&self, pod: &Pod, assumed: &AssumeCache) -> BTreeMap<String, Arc<PersistentVolumeClaim>> {
        let assumed_for = assumed.claims();
        let with_assumption = |key: Key| {
            let claim = self.claims.get(&key)?;
            let unselected = claim.metadata.annotation(annotation::SELECTED_NODE).is_none();
            let claim = match assumed_for.get(&key) {
                Some((_, node)) if unselected => assume::assume_claim(&claim, node),
                _ => claim,
            };
            Some((key.name, claim))
        };
        pod.claim_keys().filter_map(with_assumption).collect()
    }

    /// The volumes that each unbound claim may be bound to, with assumed claims.
    fn candidates(
        &self,
        claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>,
        assumed: &AssumeCache,
    ) -> BTreeMap<String, Vec<Arc<PersistentVolume>>> {
        let assumed_for = assumed.volumes();
        let with_assumption =
            |volume: Arc<PersistentVolume>| match assumed_for.get(volume.metadata.name.as_str()) {
                Some(claim) => assume::assume_volume(&volume, claim),
                None => volume,
            };
        let unbound = claims.iter().filter(|(_, claim)| claim.spec.volume_name.is_empty());
        unbound
            .map(|(name, claim)| {
                let reserved = self.volumes.find(&VOLUMES_BY_CLAIM, &claim.metadata.key().to_string());
                let available =
                    self.volumes.by_index(AVAILABLE_VOLUMES_BY_CLASS, matching::class_or_empty(claim));
                (name.clone(), reserved.into_iter().chain(available).map(with_assumption).collect())
            })
            .collect()
    }

    /// The ReadWriteOncePod claims that another pod uses.
    fn claims_in_use(
        &self,
        pod: &Pod,
        claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>,
        assumed: &AssumeCache,
    ) -> BTreeSet<String> {
        let (own, namespace) = (pod.metadata.key(), pod.metadata.namespace.as_deref());
        let is_exclusive = |claim: &&Arc<PersistentVolumeClaim>| {
            claim.spec.access_modes.contains(&AccessMode::ReadWriteOncePod)
        };
        let used_by_another = |claim: &PersistentVolumeClaim| {
            let users = self.pods.find(&PODS_BY_CLAIM, &claim.metadata.key().to_string());
            let uses = |user: &Arc<Pod>| {
                user.metadata.key() != own && !user.node_name.is_empty() && !user.has_ended()
            };
            users.iter().any(uses) || assumed.claim_in_use(namespace, &claim.metadata.name, &own)
        };
        let used = claims.values().filter(is_exclusive).filter(|claim| used_by_another(claim));
        used.map(|claim| claim.metadata.name.clone()).collect()
    }

    /// Claims of these classes that have a selected node and no volume yet, except the pod's own.
    fn in_flight(
        &self,
        pod: &Pod,
        classes: &BTreeMap<String, Arc<StorageClass>>,
        assumed: &AssumeCache,
    ) -> Vec<InFlight> {
        let mut provisioning: BTreeMap<Key, (Arc<PersistentVolumeClaim>, String)> = BTreeMap::new();
        for class in classes.keys() {
            for claim in self.claims.by_index(PROVISIONING_CLAIMS_BY_CLASS, class) {
                if let Some(node) = claim.selected_node() {
                    provisioning.insert(claim.metadata.key(), (Arc::clone(&claim), node.to_owned()));
                }
            }
        }
        for (key, (claim, node)) in assumed.claims() {
            if claim.class().is_some_and(|class| classes.contains_key(class)) {
                // The claim may have been bound since.
                let unbound = self.claims.get(&key).is_some_and(|now| now.spec.volume_name.is_empty());
                if unbound {
                    provisioning.entry(key).or_insert_with(|| (Arc::clone(claim), node.to_owned()));
                }
            }
        }
        let own: BTreeSet<&String> = pod.claims.iter().collect();
        provisioning.retain(|key, _| key.namespace != pod.metadata.namespace || !own.contains(&key.name));
        let in_flight = |(claim, node): &(Arc<PersistentVolumeClaim>, String)| {
            let node = self.nodes.get(&Key::cluster(node))?;
            Some(InFlight {
                class: claim.class()?.to_owned(),
                size: claim.requested_storage()?.bytes(),
                labels: BTreeMap::from(&node.metadata.labels),
            })
        };
        provisioning.values().filter_map(in_flight).collect()
    }

    /// A node with the requests and volumes of its pods. Volumes, including `assumed_volumes`, are counted only if a
    /// driver has a limit on the node.
    fn node_info(
        &self,
        pod: &Pod,
        node: Arc<Node>,
        assumed_volumes: Option<&BTreeMap<Key, &str>>,
        assumed: &AssumeCache,
    ) -> NodeInfo {
        let name = node.metadata.name.as_str();
        let mut pods: BTreeMap<Key, Arc<Pod>> = BTreeMap::new();
        let bound = self.pods.find(&PODS_BY_NODE, name);
        for other in bound.iter().chain(assumed.pods_on(name)).filter(|other| !other.has_ended()) {
            pods.insert(other.metadata.key(), Arc::clone(other));
        }
        pods.remove(&pod.metadata.key());
        let mut requested = Requests::new();
        for other in pods.values() {
            requests::add(&mut requested, &requests::of(other));
        }
        let csi_node = self.csi_nodes.get(&Key::cluster(name));
        let has_volume_limit = csi_node.as_ref().is_some_and(|node| {
            node.spec
                .drivers
                .iter()
                .any(|driver| driver.allocatable.is_some_and(|limit| limit.count.is_some()))
        });
        let (volumes, attached) = match assumed_volumes.filter(|_| has_volume_limit) {
            Some(assumed_volumes) => (
                pods.values().flat_map(|other| self.csi_volumes(other, assumed_volumes)).collect(),
                self.attached(name),
            ),
            None => Default::default(),
        };
        NodeInfo {
            labels: BTreeMap::from(&node.metadata.labels),
            pods: i64::try_from(pods.len()).unwrap_or(i64::MAX),
            csi_node,
            requested,
            volumes,
            attached,
            node,
        }
    }

    /// The CSI volumes of a pod, including assumed ones. Missing volumes and volumes without a CSI driver are not counted.
    fn csi_volumes(&self, pod: &Pod, assumed_volumes: &BTreeMap<Key, &str>) -> Vec<CountedVolume> {
        let counted = |key: Key| {
            let claim = self.claims.get(&key)?;
            let class = claim.class().and_then(|name| self.classes.get(&Key::cluster(name)));
            let volume = match claim.spec.volume_name.as_str() {
                "" => assumed_volumes.get(&key).copied(),
                name => Some(name),
            };
            let volume = volume.and_then(|name| self.volumes.get(&Key::cluster(name)));
            counted_volume(&claim, volume.as_deref(), class.as_deref())
        };
        pod.claim_keys().filter_map(counted).collect()
    }

    /// The CSI volumes with a VolumeAttachment to a node.
    fn attached(&self, node: &str) -> BTreeSet<CountedVolume> {
        let counted = |attachment: &Arc<wharf_model::VolumeAttachment>| {
            let name = attachment.spec.source.persistent_volume_name.as_deref()?;
            let volume = self.volumes.get(&Key::cluster(name))?;
            let id = volume.spec.csi.as_ref()?.volume_handle.clone();
            let driver = attachment.spec.attacher.clone();
            (!driver.is_empty())
                .then_some(CountedVolume { driver, volume: super::view::CountedId::Handle(id) })
        };
        self.attachments.find(&ATTACHMENTS_BY_NODE, node).iter().filter_map(counted).collect()
    }
}
