//! Reads what a story needs, once, and notes what it may not or cannot read.

use std::collections::BTreeSet;

use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_controllers::binder;
use wharf_model::claim::{ClaimPhase, DataSource};
use wharf_model::matching::{class, offered_in, reserved_for};
use wharf_model::snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, names};
use wharf_model::whole::{Node, Pod};
use wharf_model::{
    CSINode, Event, Key, Kind, OwnerRef, PersistentVolume, PersistentVolumeClaim, StorageClass,
    VolumeAttachment, VolumeAttributesClass, VolumeGroupSnapshot,
};

use crate::facts::{ClaimFacts, Facts, Known, NodeFacts};
use crate::subject::{Subject, What};
use crate::{attach, attempts};

/// Why there is no story at all.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {source}")]
pub struct GatherError {
    /// What was asked about.
    pub subject: String,
    /// What the server said.
    pub source: ApiError,
}

/// Reads all that matters for the subject. `attempts` is where a sidecar tells what it tried.
pub async fn gather(
    cluster: &Cluster,
    subject: &Subject,
    attempts: Option<&str>,
) -> Result<Facts, GatherError> {
    let mut reading = Reading { cluster, facts: Facts::default() };
    let failed = |source| GatherError { subject: subject.to_string(), source };
    let key = subject.key();
    match subject.what {
        What::Claim => {
            let claim = cluster.get::<PersistentVolumeClaim>(&key).await.map_err(failed)?;
            let facts = reading.claim(key, known(claim)).await;
            reading.facts.claims.push(facts);
        }
        What::Pod => {
            let pod = cluster.get::<Pod>(&key).await.map_err(failed)?;
            if let Some(pod) = &pod {
                reading.pod(pod).await;
            }
            reading.facts.pod = known(pod);
        }
        What::Volume => {
            let volume = cluster.get::<PersistentVolume>(&key).await.map_err(failed)?;
            let facts = reading.volume(known(volume)).await;
            reading.facts.claims.push(facts);
        }
        What::Snapshot => {
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
            Err(error) => reading.facts.missing.push(format!("what the sidecar tried ({address}): {error}")),
        }
    }
    Ok(reading.facts)
}

fn known<T>(object: Option<T>) -> Known<T> {
    object.map_or(Known::Absent, Known::There)
}

/// The content that belongs to a snapshot, also if nobody has written that down yet.
fn content_of(snapshot: &VolumeSnapshot) -> String {
    let named = snapshot.spec.source.volume_snapshot_content_name.as_ref();
    let bound = snapshot.status.as_ref().and_then(|it| it.bound_volume_snapshot_content_name.as_ref());
    named.or(bound).cloned().unwrap_or_else(|| names::content_name(&snapshot.metadata.uid))
}

fn is_group(owner: &OwnerRef) -> bool {
    owner.kind == VolumeGroupSnapshot::API.kind
        && owner.api_version.split('/').next() == Some(VolumeGroupSnapshot::API.group)
}

struct Reading<'a> {
    cluster: &'a Cluster,
    facts: Facts,
}

impl Reading<'_> {
    async fn get<K: Kind>(&mut self, key: Key) -> Known<K> {
        match self.cluster.get::<K>(&key).await {
            Ok(object) => known(object),
            Err(error) => {
                self.facts.missing.push(format!("{} {key}: {error}", K::API.kind));
                Known::Unknown
            }
        }
    }

    /// All of a kind that there are; `None` if they cannot be told completely.
    async fn list<K: Kind>(&mut self, namespace: Option<&str>) -> Option<Vec<K>> {
        let options = WatchOptions { namespace: namespace.map(str::to_owned), ..WatchOptions::default() };
        match self.cluster.list::<K>(&options).await {
            Ok(listed) if listed.unreadable.is_empty() => Some(listed.items),
            Ok(_) => {
                self.facts.missing.push(format!("{}: some could not be read", K::API.plural));
                None
            }
            Err(error) => {
                self.facts.missing.push(format!("{}: {error}", K::API.plural));
                None
            }
        }
    }

    async fn claim(&mut self, key: Key, claim: Known<PersistentVolumeClaim>) -> ClaimFacts {
        let mut facts = ClaimFacts { key: Some(key.clone()), claim, ..ClaimFacts::default() };
        let Known::There(claim) = facts.claim.clone() else { return facts };
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
        let driver = match (facts.volume.there(), facts.class.there()) {
            (Some(volume), _) => volume.spec.csi.as_ref().map(|csi| csi.driver.clone()),
            (None, Some(class)) => binder::provisioner(&class.provisioner).map(str::to_owned),
            (None, None) => None,
        };
        if let Some(driver) = driver {
            facts.driver = self.get(Key::cluster(driver)).await;
        }
        facts.attributes_classes = self.attributes_classes(&claim).await;
        facts.attachments = self.attachments(facts.volume.there()).await;
        facts.pods = self.users(&key).await;
        self.nodes(&facts).await;
        facts
    }

    /// Volumes that a claim may be given: those reserved for it, and those of its class that are to be had.
    async fn candidates(&mut self, claim: &PersistentVolumeClaim) -> Option<Vec<PersistentVolume>> {
        let volumes = self.list::<PersistentVolume>(None).await?;
        let key = claim.key().to_string();
        let may = |volume: &PersistentVolume| {
            reserved_for(volume).as_ref() == Some(&key) || offered_in(volume) == Some(class(claim))
        };
        Some(volumes.into_iter().filter(may).collect())
    }

    /// Of the attributes classes that a claim is to be brought to, those that exist.
    async fn attributes_classes(&mut self, claim: &PersistentVolumeClaim) -> Option<BTreeSet<String>> {
        let asked = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
        let current = claim.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
        let target = match &claim.status.modify_volume_status {
            Some(status) => status.target_volume_attributes_class_name.as_str(),
            None if asked == current => return Some(BTreeSet::new()),
            None => "",
        };
        let mut there = BTreeSet::new();
        for name in BTreeSet::from([asked, target]).into_iter().filter(|name| !name.is_empty()) {
            match self.get::<VolumeAttributesClass>(Key::cluster(name)).await {
                Known::There(_) => there.insert(name.to_owned()),
                Known::Absent => false,
                Known::Unknown => return None,
            };
        }
        Some(there)
    }

    /// Pods that name a claim.
    async fn users(&mut self, claim: &Key) -> Option<Vec<Pod>> {
        let pods = self.list::<Pod>(claim.namespace.as_deref()).await?;
        Some(pods.into_iter().filter(|pod| pod.claims().any(|name| name == claim.name)).collect())
    }

    /// The nodes on which the volume is, or is to be.
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

    async fn volume(&mut self, volume: Known<PersistentVolume>) -> ClaimFacts {
        let mut facts = ClaimFacts { volume, ..ClaimFacts::default() };
        let Some(there) = facts.volume.there().cloned() else { return facts };
        facts.attachments = self.attachments(Some(&there)).await;
        match there.spec.claim_ref.as_ref().map(|claim| claim.key()) {
            Some(key) => {
                facts.claim = self.get(key.clone()).await;
                facts.pods = self.users(&key).await;
                facts.key = Some(key);
            }
            None => facts.pods = Some(Vec::new()),
        }
        if let Some(csi) = there.spec.csi {
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
        if let Some(claim) = &snapshot.spec.source.persistent_volume_claim_name {
            let key = Key::namespaced(namespace, claim);
            let claim = self.get(key.clone()).await;
            let facts = self.claim(key, claim).await;
            self.facts.claims.push(facts);
        }
        let content = content_of(snapshot);
        self.facts.content = self.get::<VolumeSnapshotContent>(Key::cluster(content)).await;
        if snapshot.metadata.is_deleting() {
            self.holders(snapshot, namespace).await;
            return;
        }
        let is_bound =
            snapshot.status.as_ref().is_some_and(|it| it.bound_volume_snapshot_content_name.is_some());
        if !is_bound {
            self.facts.snapshot_class = self.snapshot_class(snapshot).await;
        }
    }

    /// Whether the class is there that a snapshot needs, or that it needs none: a content that is there already has
    /// no use for one, unless the snapshot names it.
    async fn snapshot_class(&mut self, snapshot: &VolumeSnapshot) -> Option<bool> {
        if let Some(class) = &snapshot.spec.volume_snapshot_class_name {
            return match self.get::<VolumeSnapshotClass>(Key::cluster(class)).await {
                Known::There(_) => Some(true),
                Known::Absent => Some(false),
                Known::Unknown => None,
            };
        }
        if snapshot.spec.source.volume_snapshot_content_name.is_some() {
            return Some(true);
        }
        let volume = self.facts.claims.first().and_then(|claim| claim.volume.there());
        let driver = volume.and_then(|volume| volume.spec.csi.as_ref()).map(|csi| csi.driver.clone());
        let classes = self.list::<VolumeSnapshotClass>(None).await?;
        let is_default =
            |class: &&VolumeSnapshotClass| class.metadata.annotation(names::IS_DEFAULT_CLASS) == Some("true");
        let is_its =
            |class: &VolumeSnapshotClass| driver.as_ref().is_none_or(|driver| class.driver == *driver);
        Some(classes.iter().filter(is_default).any(is_its))
    }

    /// Who keeps a snapshot that is to go: claims that are to be restored from it, and its group.
    async fn holders(&mut self, snapshot: &VolumeSnapshot, namespace: &str) {
        let name = &snapshot.metadata.name;
        let of_snapshot = |source: &DataSource| {
            let here = source.namespace.as_deref().is_none_or(|there| there == namespace);
            here && source.kind == VolumeSnapshot::API.kind
                && source.api_group.as_deref() == Some(VolumeSnapshot::API.group)
                && source.name == *name
        };
        let waits = |claim: &PersistentVolumeClaim| {
            let sources = [&claim.spec.data_source, &claim.spec.data_source_ref];
            !matches!(claim.status.phase, ClaimPhase::Bound | ClaimPhase::Lost)
                && sources.into_iter().flatten().any(|source| of_snapshot(source))
        };
        let claims = self.list::<PersistentVolumeClaim>(Some(namespace)).await;
        self.facts.restored = claims.map(|mut claims| {
            claims.retain(waits);
            claims.into_iter().map(|claim| claim.metadata.name).collect()
        });
        if let Some(owner) = snapshot.metadata.owner_references.iter().find(|owner| is_group(owner)) {
            let key = Key::namespaced(namespace, &*owner.name);
            self.facts.group = match self.get::<VolumeGroupSnapshot>(key).await {
                Known::There(group) if group.metadata.uid != owner.uid => Known::Absent,
                found => found,
            };
        }
    }

    /// Events of the namespaces that have to do with it, and those of objects that have none, which are in `default`.
    async fn events(&mut self, namespace: &str) {
        let claims = self.facts.claims.iter().filter_map(|claim| claim.key.as_ref()?.namespace.clone());
        let namespaces = claims.chain([namespace.to_owned(), "default".to_owned()]);
        for namespace in namespaces.collect::<BTreeSet<_>>() {
            let events = self.list::<Event>(Some(&namespace)).await.unwrap_or_default();
            self.facts.events.extend(events);
        }
    }
}
