//! Reads the objects related to a subject, once, and records which it could not read or is not allowed to.

use std::collections::BTreeSet;

use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_controllers::binder;
use wharf_controllers::snapshot_controller::{group_content_key, is_parent_group};
use wharf_model::matching::{available_class, claim_index_key, class_or_empty};
use wharf_model::modify::relevant_classes;
use wharf_model::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSINode, Event, Key, Kind, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment,
    VolumeAttributesClass, VolumeGroupSnapshot, VolumeGroupSnapshotContent,
};

use crate::facts::{ClaimFacts, Facts, Lookup, NodeFacts};
use crate::subject::{Subject, SubjectKind};
use crate::{attach, attempts};

/// The subject itself could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {source}")]
pub struct GatherError {
    /// The subject.
    pub subject: String,
    /// The API server's error.
    pub source: ApiError,
}

/// Reads everything related to the subject. `attempts` is the address of a sidecar's `/debug/attempts` page.
pub async fn gather(
    cluster: &Cluster,
    subject: &Subject,
    attempts: Option<&str>,
) -> Result<Facts, GatherError> {
    let mut reading = Reading { cluster, facts: Facts::default() };
    let failed = |source| GatherError { subject: subject.to_string(), source };
    let key = subject.key();
    match subject.kind {
        SubjectKind::Claim => {
            let claim = cluster.get::<PersistentVolumeClaim>(&key).await.map_err(failed)?;
            let facts = reading.claim(key, known(claim)).await;
            reading.facts.claims.push(facts);
        }
        SubjectKind::Pod => {
            let pod = cluster.get::<Pod>(&key).await.map_err(failed)?;
            if let Some(pod) = &pod {
                reading.pod(pod).await;
            }
            reading.facts.pod = known(pod);
        }
        SubjectKind::Volume => {
            let volume = cluster.get::<PersistentVolume>(&key).await.map_err(failed)?;
            let facts = reading.volume(known(volume)).await;
            reading.facts.claims.push(facts);
        }
        SubjectKind::Snapshot => {
            let snapshot = cluster.get::<VolumeSnapshot>(&key).await.map_err(failed)?;
            if let Some(snapshot) = &snapshot {
                reading.snapshot(snapshot, &subject.namespace).await;
            }
            reading.facts.snapshot = known(snapshot);
        }
    }
    reading.events(&subject.namespace).await;
    if let Some(address) = attempts {
        match attempts::read(address).await {
            Ok(read) => reading.facts.attempts = read,
            Err(error) => reading.facts.missing.push(format!("sidecar attempts ({address}): {error}")),
        }
    }
    Ok(reading.facts)
}

fn known<T>(object: Option<T>) -> Lookup<T> {
    object.map_or(Lookup::Absent, Lookup::Found)
}

struct Reading<'a> {
    cluster: &'a Cluster,
    facts: Facts,
}

impl Reading<'_> {
    async fn get<K: Kind>(&mut self, key: Key) -> Lookup<K> {
        match self.cluster.get::<K>(&key).await {
            Ok(object) => known(object),
            Err(error) => {
                self.facts.missing.push(format!("{} {key}: {error}", K::API.kind));
                Lookup::Unknown
            }
        }
    }

    /// All objects of a kind; `None` if any of them could not be read.
    async fn list<K: Kind>(&mut self, namespace: Option<&str>) -> Option<Vec<K>> {
        let options = WatchOptions { namespace: namespace.map(str::to_owned), ..WatchOptions::default() };
        match self.cluster.list::<K>(&options).await {
            Ok(listed) if listed.undecodable.is_empty() => Some(listed.items),
            Ok(_) => {
                self.facts.missing.push(format!("{}: some objects could not be decoded", K::API.plural));
                None
            }
            Err(error) => {
                self.facts.missing.push(format!("{}: {error}", K::API.plural));
                None
            }
        }
    }

    async fn claim(&mut self, key: Key, claim: Lookup<PersistentVolumeClaim>) -> ClaimFacts {
        let mut facts = ClaimFacts { key: Some(key.clone()), claim, ..ClaimFacts::default() };
        let Lookup::Found(claim) = facts.claim.clone() else { return facts };
        match claim.class() {
            Some("") => {}
            Some(class) => facts.class = self.get(Key::cluster(class)).await,
            None => {
                let classes = self.list::<StorageClass>(None).await;
                facts.default_class = classes.map(|classes| classes.iter().any(StorageClass::is_default));
            }
        }
        match claim.spec.volume_name.as_str() {
            "" => facts.candidates = self.candidates(&claim).await,
            volume => facts.volume = self.get(Key::cluster(volume)).await,
        }
        let driver = match (facts.volume.found(), facts.class.found()) {
            (Some(volume), _) => volume.spec.csi.as_ref().map(|csi| csi.driver.clone()),
            (None, Some(class)) => binder::csi_provisioner(&class.provisioner).map(str::to_owned),
            (None, None) => None,
        };
        if let Some(driver) = driver {
            facts.driver = self.get(Key::cluster(driver)).await;
        }
        facts.attributes_classes = self.attributes_classes(&claim).await;
        facts.attachments = self.attachments(facts.volume.found()).await;
        facts.pods = self.users(&key).await;
        self.nodes(&facts).await;
        facts
    }

    /// Volumes that the binder may choose for a claim: those reserved for it, and the available ones of its class.
    async fn candidates(&mut self, claim: &PersistentVolumeClaim) -> Option<Vec<PersistentVolume>> {
        let volumes = self.list::<PersistentVolume>(None).await?;
        let key = claim.key().to_string();
        let is_candidate = |volume: &PersistentVolume| {
            claim_index_key(volume).as_ref() == Some(&key)
                || available_class(volume) == Some(class_or_empty(claim))
        };
        Some(volumes.into_iter().filter(is_candidate).collect())
    }

    /// Those of the VolumeAttributesClasses that a claim requests or is changing to that exist.
    async fn attributes_classes(&mut self, claim: &PersistentVolumeClaim) -> Option<BTreeSet<String>> {
        let mut existing = BTreeSet::new();
        for name in relevant_classes(claim) {
            match self.get::<VolumeAttributesClass>(Key::cluster(name)).await {
                Lookup::Found(_) => existing.insert(name.to_owned()),
                Lookup::Absent => false,
                Lookup::Unknown => return None,
            };
        }
        Some(existing)
    }

    /// Pods that use a claim.
    async fn users(&mut self, claim: &Key) -> Option<Vec<Pod>> {
        let pods = self.list::<Pod>(claim.namespace.as_deref()).await?;
        Some(pods.into_iter().filter(|pod| pod.claims().any(|name| name == claim.name)).collect())
    }

    /// The nodes that the volume is attached to or whose pods use it.
    async fn nodes(&mut self, facts: &ClaimFacts) {
        for node in attach::nodes(facts) {
            self.node(node).await;
        }
    }

    async fn node(&mut self, name: &str) {
        if self.facts.nodes.contains_key(name) {
            return;
        }
        let node = self.get::<Node>(Key::cluster(name)).await;
        let csi_node = self.get::<CSINode>(Key::cluster(name)).await;
        self.facts.nodes.insert(name.to_owned(), NodeFacts { node, csi_node });
    }

    async fn attachments(&mut self, volume: Option<&PersistentVolume>) -> Option<Vec<VolumeAttachment>> {
        let Some(volume) = volume else { return Some(Vec::new()) };
        let name = volume.metadata.name.clone();
        let all = self.list::<VolumeAttachment>(None).await?;
        let of = |attachment: &VolumeAttachment| {
            attachment.spec.source.persistent_volume_name.as_deref() == Some(name.as_str())
        };
        Some(all.into_iter().filter(of).collect())
    }

    async fn volume(&mut self, volume: Lookup<PersistentVolume>) -> ClaimFacts {
        let mut facts = ClaimFacts { volume, ..ClaimFacts::default() };
        let Some(found) = facts.volume.found().cloned() else { return facts };
        facts.attachments = self.attachments(Some(&found)).await;
        match found.spec.claim_ref.as_ref().map(|claim| claim.key()) {
            Some(key) => {
                facts.claim = self.get(key.clone()).await;
                facts.pods = self.users(&key).await;
                facts.key = Some(key);
            }
            None => facts.pods = Some(Vec::new()),
        }
        if let Some(csi) = found.spec.csi {
            facts.driver = self.get(Key::cluster(csi.driver)).await;
        }
        self.nodes(&facts).await;
        facts
    }

    async fn pod(&mut self, pod: &Pod) {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        for name in pod.claims().collect::<Vec<_>>() {
            let key = Key::namespaced(&namespace, name);
            let claim = self.get(key.clone()).await;
            let facts = self.claim(key, claim).await;
            self.facts.claims.push(facts);
        }
        if !pod.spec.node_name.is_empty() {
            self.node(&pod.spec.node_name).await;
        }
    }

    async fn snapshot(&mut self, snapshot: &VolumeSnapshot, namespace: &str) {
        if let Some(claim) = snapshot.source_claim_name() {
            let key = Key::namespaced(namespace, claim);
            let claim = self.get(key.clone()).await;
            let facts = self.claim(key, claim).await;
            self.facts.claims.push(facts);
        }
        let content = Key::cluster(snapshot.expected_content_name());
        self.facts.content = self.get::<VolumeSnapshotContent>(content).await;
        if snapshot.metadata.is_deleting() {
            self.deletion_blockers(snapshot, namespace).await;
            return;
        }
        if snapshot.bound_content().is_none() {
            self.facts.snapshot_class = self.snapshot_class(snapshot).await;
        }
    }

    /// Whether the class that a snapshot needs exists. A pre-provisioned snapshot needs none, unless it names one.
    async fn snapshot_class(&mut self, snapshot: &VolumeSnapshot) -> Option<bool> {
        if let Some(class) = &snapshot.spec.volume_snapshot_class_name {
            return match self.get::<VolumeSnapshotClass>(Key::cluster(class)).await {
                Lookup::Found(_) => Some(true),
                Lookup::Absent => Some(false),
                Lookup::Unknown => None,
            };
        }
        if snapshot.pre_provisioned_content().is_some() {
            return Some(true);
        }
        let volume = self.facts.claims.first().and_then(|claim| claim.volume.found());
        let driver = volume.and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.driver.clone());
        let classes = self.list::<VolumeSnapshotClass>(None).await?;
        let has_driver =
            |class: &VolumeSnapshotClass| driver.as_ref().is_none_or(|driver| class.driver == *driver);
        Some(classes.iter().filter(|class| class.is_default()).any(has_driver))
    }

    /// What may delay a snapshot's deletion: claims that are to be restored from it, and its group.
    async fn deletion_blockers(&mut self, snapshot: &VolumeSnapshot, namespace: &str) {
        let key = snapshot.key();
        let claims = self.list::<PersistentVolumeClaim>(Some(namespace)).await;
        self.facts.restoring_claims = claims.map(|mut claims| {
            claims.retain(|claim| claim.restore_sources().contains(&key));
            claims.into_iter().map(|claim| claim.metadata.name).collect()
        });
        if let Some((key, uid)) = snapshot.parent_group() {
            self.facts.group = self.parent_group(key, uid).await;
        }
    }

    /// The group snapshot that a snapshot names, if it is still the same one.
    async fn parent_group(&mut self, key: Key, uid: Option<&str>) -> Lookup<VolumeGroupSnapshot> {
        let group = match self.get::<VolumeGroupSnapshot>(key).await {
            Lookup::Found(group) => group,
            other => return other,
        };
        let group_content = match uid {
            Some(_) => Lookup::Absent,
            None => self.get::<VolumeGroupSnapshotContent>(group_content_key(&group)).await,
        };
        if matches!(group_content, Lookup::Unknown) {
            return Lookup::Unknown;
        }
        match is_parent_group(uid, &group, group_content.found(), self.facts.content.found()) {
            true => Lookup::Found(group),
            false => Lookup::Absent,
        }
    }

    /// Events of the subject's and its claims' namespaces, and of cluster-scoped objects, which are in `default`.
    async fn events(&mut self, namespace: &str) {
        let claims = self.facts.claims.iter().filter_map(|claim| claim.key.as_ref()?.namespace.clone());
        let namespaces = claims.chain([namespace.to_owned(), "default".to_owned()]);
        for namespace in namespaces.collect::<BTreeSet<_>>() {
            let events = self.list::<Event>(Some(&namespace)).await.unwrap_or_default();
            self.facts.events.extend(events);
        }
    }
}
