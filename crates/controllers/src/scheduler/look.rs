//! Gathers what is known for one pod: from the stores, and from what was promised to pods on their way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_model::names::annotation;
use wharf_model::whole::{Node, Pod};
use wharf_model::{AccessMode, Key, PersistentVolume, PersistentVolumeClaim, StorageClass, matching};

use super::ledger::{self, Ledger};
use super::requests::{self, Requests};
use super::view::{Handle, InFlight, Place, Rules, View, handle};
use super::{BY_CLAIM, BY_CLASS, BY_NODE, OFFERED, RESERVED, SELECTED, Scheduler};

impl Scheduler {
    /// All that says where a pod may go.
    pub(super) fn look(&self, pod: &Arc<Pod>) -> View {
        let mut ledger = self.ledger();
        ledger.settle(|key| self.pods.get(key));
        let ledger = &*ledger;
        let claims = self.claims_of(pod, ledger);
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
        let given: BTreeMap<Key, &str> =
            ledger.volumes().into_iter().map(|(volume, claim)| (claim.metadata.key(), volume)).collect();
        let given = (!claims.is_empty()).then_some(&given);
        let places = match pod.spec.node_name.as_str() {
            "" => self.nodes.all(),
            name => self.nodes.get(&Key::cluster(name)).into_iter().collect(),
        };
        View {
            rules: Rules { capacity: self.settings.capacity, drivers: self.settings.drivers },
            candidates: self.candidates(&claims, ledger),
            used: self.used(pod, &claims, ledger),
            in_flight: self.in_flight(pod, &classes, ledger),
            capacities: classes.keys().flat_map(|class| self.capacities.by_index(BY_CLASS, class)).collect(),
            places: places.into_iter().map(|node| self.place(pod, node, given, ledger)).collect(),
            pod: Arc::clone(pod),
            claims,
            volumes,
            classes,
            drivers,
        }
    }

    fn claims_of(&self, pod: &Pod, ledger: &Ledger) -> BTreeMap<String, Arc<PersistentVolumeClaim>> {
        let promised = ledger.claims();
        let shown = |name: String| {
            let key = Key { namespace: pod.metadata.namespace.clone(), name: name.clone() };
            let claim = self.claims.get(&key)?;
            let waits = claim.metadata.annotation(annotation::SELECTED_NODE).is_none();
            let claim = match promised.get(&key) {
                Some((_, node)) if waits => ledger::selected(&claim, node),
                _ => claim,
            };
            Some((name, claim))
        };
        pod.claims().filter_map(shown).collect()
    }

    fn candidates(
        &self,
        claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>,
        ledger: &Ledger,
    ) -> BTreeMap<String, Vec<Arc<PersistentVolume>>> {
        let promised = ledger.volumes();
        let shown = |volume: Arc<PersistentVolume>| match promised.get(volume.metadata.name.as_str()) {
            Some(claim) => ledger::taken(&volume, claim),
            None => volume,
        };
        let unbound = claims.iter().filter(|(_, claim)| claim.spec.volume_name.is_empty());
        unbound
            .map(|(name, claim)| {
                let reserved = self.volumes.by_index(RESERVED, &claim.metadata.key().to_string());
                let offered = self.volumes.by_index(OFFERED, matching::class(claim));
                (name.clone(), reserved.into_iter().chain(offered).map(shown).collect())
            })
            .collect()
    }

    /// Those of the claims that are for one pod alone and that another pod has.
    fn used(
        &self,
        pod: &Pod,
        claims: &BTreeMap<String, Arc<PersistentVolumeClaim>>,
        ledger: &Ledger,
    ) -> BTreeSet<String> {
        let (own, namespace) = (pod.metadata.key(), pod.metadata.namespace.as_deref());
        let alone = |claim: &&Arc<PersistentVolumeClaim>| {
            claim.spec.access_modes.contains(&AccessMode::ReadWriteOncePod)
        };
        let elsewhere = |claim: &PersistentVolumeClaim| {
            let users = self.pods.by_index(BY_CLAIM, &claim.metadata.key().to_string());
            let uses = |user: &Arc<Pod>| {
                user.metadata.key() != own && !user.spec.node_name.is_empty() && !user.has_ended()
            };
            users.iter().any(uses) || ledger.uses(namespace, &claim.metadata.name, &own)
        };
        let used = claims.values().filter(alone).filter(|claim| elsewhere(claim));
        used.map(|claim| claim.metadata.name.clone()).collect()
    }

    /// Claims of these classes for which a node was chosen and that have no volume yet, but the pod's own.
    fn in_flight(
        &self,
        pod: &Pod,
        classes: &BTreeMap<String, Arc<StorageClass>>,
        ledger: &Ledger,
    ) -> Vec<InFlight> {
        let mut chosen: BTreeMap<Key, (Arc<PersistentVolumeClaim>, String)> = BTreeMap::new();
        for class in classes.keys() {
            for claim in self.claims.by_index(SELECTED, class) {
                if let Some(node) = claim.selected_node() {
                    chosen.insert(claim.metadata.key(), (Arc::clone(&claim), node.to_owned()));
                }
            }
        }
        for (key, (claim, node)) in ledger.claims() {
            if claim.class().is_some_and(|class| classes.contains_key(class)) {
                // The store may show that it has its volume by now.
                let waits = self.claims.get(&key).is_some_and(|now| now.spec.volume_name.is_empty());
                if waits {
                    chosen.entry(key).or_insert_with(|| (Arc::clone(claim), node.to_owned()));
                }
            }
        }
        let own: BTreeSet<String> = pod.claims().collect();
        chosen.retain(|key, _| key.namespace != pod.metadata.namespace || !own.contains(&key.name));
        let promised = |(claim, node): &(Arc<PersistentVolumeClaim>, String)| {
            let node = self.nodes.get(&Key::cluster(node))?;
            Some(InFlight {
                class: claim.class()?.to_owned(),
                size: claim.requested()?.bytes(),
                labels: BTreeMap::from(&node.metadata.labels),
            })
        };
        chosen.values().filter_map(promised).collect()
    }

    /// A node, and what is on it. Its volumes are counted, with those that are `given`, only where a count is of use.
    fn place(
        &self,
        pod: &Pod,
        node: Arc<Node>,
        given: Option<&BTreeMap<Key, &str>>,
        ledger: &Ledger,
    ) -> Place {
        let name = node.metadata.name.as_str();
        let mut pods: BTreeMap<Key, Arc<Pod>> = BTreeMap::new();
        let here = self.pods.by_index(BY_NODE, name);
        for other in here.iter().chain(ledger.on(name)).filter(|other| !other.has_ended()) {
            pods.insert(other.metadata.key(), Arc::clone(other));
        }
        pods.remove(&pod.metadata.key());
        let mut requested = Requests::new();
        for other in pods.values() {
            requests::add(&mut requested, &requests::of(other));
        }
        let csi_node = self.csi_nodes.get(&Key::cluster(name));
        let limited = csi_node.as_ref().is_some_and(|node| {
            node.spec
                .drivers
                .iter()
                .any(|driver| driver.allocatable.is_some_and(|limit| limit.count.is_some()))
        });
        let (volumes, attached) = match given.filter(|_| limited) {
            Some(given) => {
                (pods.values().flat_map(|other| self.handles(other, given)).collect(), self.attached(name))
            }
            None => Default::default(),
        };
        Place {
            labels: BTreeMap::from(&node.metadata.labels),
            pods: i64::try_from(pods.len()).unwrap_or(i64::MAX),
            csi_node,
            requested,
            volumes,
            attached,
            node,
        }
    }

    /// The CSI volumes of a pod, also those it was promised. What is missing or another's is not counted.
    fn handles(&self, pod: &Pod, given: &BTreeMap<Key, &str>) -> Vec<Handle> {
        let of = |name: String| {
            let key = Key { namespace: pod.metadata.namespace.clone(), name };
            let claim = self.claims.get(&key)?;
            let class = claim.class().and_then(|name| self.classes.get(&Key::cluster(name)));
            let volume = match claim.spec.volume_name.as_str() {
                "" => given.get(&key).copied(),
                name => Some(name),
            };
            let volume = volume.and_then(|name| self.volumes.get(&Key::cluster(name)));
            handle(&claim, volume.as_deref(), class.as_deref())
        };
        pod.claims().filter_map(of).collect()
    }

    /// The CSI volumes that are, or are to be, attached to a node.
    fn attached(&self, node: &str) -> BTreeSet<Handle> {
        let of = |attachment: &Arc<wharf_model::VolumeAttachment>| {
            let name = attachment.spec.source.persistent_volume_name.as_deref()?;
            let volume = self.volumes.get(&Key::cluster(name))?;
            let id = volume.spec.csi.as_ref()?.volume_handle.clone();
            let driver = attachment.spec.attacher.clone();
            (!driver.is_empty()).then_some(Handle { driver, volume: super::view::Counted::Volume(id) })
        };
        self.attachments.by_index(BY_NODE, node).iter().filter_map(of).collect()
    }
}
