//! A segment of the journal: a Lease without a holder, with one intent in each annotation. It is written once, never
//! updated, and deleted when all of its intents are finished.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{Kind, Lease};

use crate::lease_label::{fnv1a, label_value};
use crate::provisioner::intent::Intent;

/// The label with the driver's name.
const DRIVER: &str = "intents.wharf.dev/driver";
/// The label with the node's name, with node deployment.
const NODE: &str = "intents.wharf.dev/node";
/// The prefix of the intents' annotations; their number follows.
const INTENT: &str = "intent.wharf.dev/";

/// Maximum number of intents in a segment.
pub(super) const MAX_INTENTS: usize = 100;
/// Maximum bytes of annotations. Kubernetes allows 256 KiB on an object.
pub(super) const MAX_BYTES: usize = 200 << 10;
/// The bytes of an intent's annotation key.
const KEY_BYTES: usize = INTENT.len() + 2;

/// The owner of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    /// The driver.
    pub(super) driver: String,
    /// The node, with node deployment.
    pub(super) node: Option<String>,
}

impl Owner {
    /// The labels of the owner's segments.
    pub(super) fn labels(&self) -> BTreeMap<String, String> {
        let driver = (DRIVER.to_owned(), label_value(&self.driver));
        let node = self.node.as_ref().map(|node| (NODE.to_owned(), label_value(node)));
        [driver].into_iter().chain(node).collect()
    }

    /// The label selector of the owner's segments.
    pub(super) fn selector(&self) -> String {
        let driver = format!("{DRIVER}={}", label_value(&self.driver));
        match &self.node {
            Some(node) => format!("{driver},{NODE}={}", label_value(node)),
            None => format!("{driver},!{NODE}"),
        }
    }

    /// A name for a new segment.
    pub(super) fn segment_name(&self, random: u64) -> String {
        let owner = match &self.node {
            Some(node) => format!("{}/{node}", self.driver),
            None => self.driver.clone(),
        };
        format!("wharf-intents-{:08x}-{random:016x}", fnv1a(&owner) as u32)
    }

    /// The Lease to create.
    pub(super) fn lease<'a>(&self, name: &str, intents: impl IntoIterator<Item = &'a str>) -> Value {
        let annotations: BTreeMap<String, &str> = intents
            .into_iter()
            .enumerate()
            .map(|(index, intent)| (format!("{INTENT}{index}"), intent))
            .collect();
        json!({
            "apiVersion": Lease::API.api_version(),
            "kind": Lease::API.kind,
            "metadata": {"name": name, "labels": self.labels(), "annotations": annotations},
            "spec": {},
        })
    }
}

/// The bytes that an intent occupies in a segment.
pub(super) fn cost(intent: &str) -> usize {
    intent.len() + KEY_BYTES
}

/// Whether an intent fits into a segment at all.
pub(super) fn fits(intent: &str) -> bool {
    cost(intent) <= MAX_BYTES
}

/// A segment that was read from the server.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct FoundSegment {
    /// The Lease's name.
    pub(super) name: String,
    /// The Lease's UID.
    pub(super) uid: String,
    /// The decoded intents.
    pub(super) intents: Vec<Arc<Intent>>,
    /// The number of intents that cannot be decoded.
    pub(super) unreadable: usize,
}

/// Reads a segment. Intents that another version wrote and this one cannot decode are counted, never ignored.
pub(super) fn read(lease: &Lease) -> FoundSegment {
    let mut found = FoundSegment {
        name: lease.metadata.name.clone(),
        uid: lease.metadata.uid.clone(),
        ..FoundSegment::default()
    };
    for (_, text) in lease.metadata.annotations.iter().filter(|(key, _)| key.starts_with(INTENT)) {
        match serde_json::from_str::<Intent>(text) {
            Ok(intent) if intent.is_complete() => found.intents.push(Arc::new(intent)),
            Ok(_) | Err(_) => found.unreadable += 1,
        }
    }
    found
}

/// Reads an intent from a segment, builds the request and the PersistentVolume from it, and writes it again; `None` if
/// it is counted as unreadable. For the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn rewrite_intent(text: &str) -> Option<String> {
    use crate::provisioner::{Settings, request, view, volume};
    let owner = Owner { driver: "d.test".to_owned(), node: None };
    let found = read(&serde_json::from_value(owner.lease("s", [text])).ok()?);
    let intent = found.intents.first()?;
    request::create_volume_request(intent, BTreeMap::new());
    let config = view::ProvisionerConfig {
        driver: owner.driver,
        capabilities: Default::default(),
        settings: Settings::default(),
        node: None,
        identity: String::new(),
    };
    let _ = volume::build_pv(intent, &view::CreatedVolume::default(), &config, true);
    serde_json::to_string(&**intent).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provisioner::journal::testing::intent;

    fn owner(driver: &str, node: Option<&str>) -> Owner {
        Owner { driver: driver.to_owned(), node: node.map(str::to_owned) }
    }

    #[test]
    fn segment_round_trips() {
        let owner = owner("d.test", None);
        let intents: Vec<_> = (0..MAX_INTENTS).map(|i| intent(&format!("pvc-{i:03}"))).collect();
        let texts: Vec<_> = intents.iter().map(|intent| serde_json::to_string(intent).unwrap()).collect();
        let mut lease = owner.lease("s", texts.iter().map(String::as_str));
        lease["metadata"]["uid"] = json!("u");
        let cost: usize = texts.iter().map(|text| super::cost(text)).sum();
        let bytes: usize = lease["metadata"]["annotations"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| key.len() + value.as_str().unwrap().len())
            .sum();
        assert!((bytes..bytes + 20).contains(&cost), "{bytes} {cost}");
        let mut found = read(&serde_json::from_value(lease).unwrap());
        found.intents.sort_by(|a, b| a.volume.cmp(&b.volume));
        assert_eq!((found.name.as_str(), found.uid.as_str(), found.unreadable), ("s", "u", 0));
        assert_eq!(found.intents, intents.into_iter().map(Arc::new).collect::<Vec<_>>());
    }

    #[test]
    fn undecodable_intents_are_counted() {
        let mut malformed = serde_json::to_value(intent("pvc-1")).unwrap();
        malformed["template"] = json!({"spec": "of another form"});
        let malformed = malformed.to_string();
        let mut lease = owner("d", None).lease("s", ["{}", "no", &malformed]);
        lease["metadata"]["annotations"]["other"] = json!("not ours");
        let found = read(&serde_json::from_value(lease).unwrap());
        assert_eq!((found.intents.len(), found.unreadable), (0, 3));
    }

    #[test]
    fn labels_identify_driver_and_node() {
        let long = "n".repeat(253);
        for (owner, selector) in [
            (owner("d.test", None), "intents.wharf.dev/driver=d.test,!intents.wharf.dev/node"),
            (owner("d", Some("node-a")), "intents.wharf.dev/driver=d,intents.wharf.dev/node=node-a"),
            (owner("a/b", None), "intents.wharf.dev/driver=xa-b-e620c3190468cf61,!intents.wharf.dev/node"),
        ] {
            assert_eq!(owner.selector(), selector);
        }
        for value in owner(&long, Some("-odd")).labels().into_values() {
            assert!(value.len() <= crate::lease_label::MAX_BYTES && !value.starts_with('-'), "{value}");
        }
        assert_ne!(label_value(&long), label_value(&"n".repeat(252)));
    }

    #[test]
    fn segment_names_are_valid_and_differ_by_owner() {
        let name = owner("a/B_", Some("n")).segment_name(u64::MAX);
        assert!(wharf_model::names::is_dns_label(&name), "{name}");
        assert_ne!(owner("d", None).segment_name(1), owner("d", Some("n")).segment_name(1));
    }
}
