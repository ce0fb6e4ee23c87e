//! Compares the state of the API server, the driver and the journal with what the test requested.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;
use wharf_testkit::{ApiClient, ScriptedDriver};

use super::environment::{DRIVER, NAMESPACE};
use super::model::{Claim, Model, Source};

/// The finalizers that an idle claim may have; it gets the second one when it is cloned. Any other finalizer means that
/// a controller is still working on the claim.
const IDLE_FINALIZERS: [&str; 2] =
    ["kubernetes.io/pvc-protection", "provisioner.storage.kubernetes.io/cloning-protection"];

/// The observed objects, by name.
pub(crate) struct Observed {
    pub(crate) claims: BTreeMap<String, Value>,
    volumes: BTreeMap<String, Value>,
    pub(crate) snapshots: BTreeMap<String, Value>,
    contents: BTreeMap<String, Value>,
    pub(crate) groups: BTreeMap<String, Value>,
    group_contents: BTreeMap<String, Value>,
    intents: BTreeMap<String, Value>,
}

impl Observed {
    /// Reads all objects.
    pub(crate) fn read(server: &ApiClient) -> Result<Self, String> {
        let all = |kind: &str, selector: &str| -> Result<BTreeMap<String, Value>, String> {
            let list = server.list(NAMESPACE, kind, selector)?;
            Ok(list.into_iter().map(|object| (text(&object, "/metadata/name").to_owned(), object)).collect())
        };
        Ok(Self {
            claims: all("pvc", "")?,
            volumes: all("pv", "")?,
            snapshots: all("vs", "")?,
            contents: all("vsc", "")?,
            groups: all("vgs", "")?,
            group_contents: all("vgsc", "")?,
            intents: all("lease", &format!("intents.wharf.dev/driver={DRIVER}"))?,
        })
    }

    /// All differences from the requested state; empty if everything agrees.
    pub(crate) fn differences(&self, model: &Model, driver: &ScriptedDriver) -> Vec<String> {
        let mut found = Differences(Vec::new());
        found.claims(self, model, driver);
        found.snapshots(self, model, driver);
        found.groups(self, model, driver);
        found.compare_names("intents", &BTreeSet::new(), &names(&self.intents));
        found.0
    }

    /// The snapshot handle in a snapshot's content.
    pub(crate) fn handle(&self, snapshot: &Value) -> Option<&str> {
        let content = self.contents.get(text(snapshot, "/status/boundVolumeSnapshotContentName"))?;
        Some(text(content, "/status/snapshotHandle")).filter(|handle| !handle.is_empty())
    }
}

struct Differences(Vec<String>);

impl Differences {
    fn require(&mut self, condition: bool, message: impl FnOnce() -> String) {
        if !condition {
            self.0.push(message());
        }
    }

    fn compare_names(&mut self, kind: &str, expected: &BTreeSet<String>, found: &BTreeSet<String>) {
        for name in found.difference(expected) {
            self.0.push(format!("{kind}: {name} should not exist"));
        }
        for name in expected.difference(found) {
            self.0.push(format!("{kind}: {name} is missing"));
        }
    }

    fn claims(&mut self, observed: &Observed, model: &Model, driver: &ScriptedDriver) {
        self.compare_names("claims", &names(&model.claims), &names(&observed.claims));
        let volumes = model.claims.values().map(|claim| format!("pvc-{}", claim.uid)).collect();
        self.compare_names("volumes", &volumes, &names(&observed.volumes));
        let handles = model.claims.values().map(Claim::volume).collect();
        self.compare_names("the driver's volumes", &handles, &driver.volumes());
        for (name, claim) in &model.claims {
            let Some(object) = observed.claims.get(name) else { continue };
            self.require(text(object, "/status/phase") == "Bound", || format!("{name} is not bound"));
            let finalizers = strings(&object["metadata"]["finalizers"]);
            let is_idle = finalizers.iter().all(|finalizer| IDLE_FINALIZERS.contains(&finalizer.as_str()));
            self.require(is_idle, || format!("{name} has finalizers {finalizers:?}"));
            let volume = observed.volumes.get(&format!("pvc-{}", claim.uid)).unwrap_or(&Value::Null);
            let record = driver.record("volumes", &claim.volume()).unwrap_or_default();
            for (size, bytes) in [
                ("requested size", bytes(text(object, "/spec/resources/requests/storage"))),
                ("capacity of the claim", bytes(text(object, "/status/capacity/storage"))),
                ("capacity of the volume", bytes(text(volume, "/spec/capacity/storage"))),
                ("size in the driver", record["bytes"].as_u64()),
            ] {
                self.require(bytes == Some(claim.bytes), || {
                    format!("{name}: {size} is {bytes:?}, expected {}", claim.bytes)
                });
            }
            let (from_snapshot, from_volume) = match &claim.source {
                Source::New => (None, None),
                Source::Snapshot { handle, .. } => (Some(handle.as_str()), None),
                Source::Claim { volume, .. } => (None, Some(volume.as_str())),
            };
            let from = (record["source_snapshot"].as_str(), record["source_volume"].as_str());
            self.require(from == (from_snapshot, from_volume), || {
                format!("{name} was created from {from:?} instead of {:?}", claim.source)
            });
            let file = fs::read_to_string(driver.data(&claim.volume()).join("file")).ok();
            let is_expected = match &file {
                Some(file) => *file == claim.holds.text,
                None => !claim.holds.certain,
            };
            self.require(is_expected, || format!("{name} contains {file:?}, expected {:?}", claim.holds));
        }
    }

    /// Each snapshot has its content, each content its snapshot, and the driver has the snapshots that the contents
    /// name.
    fn snapshots(&mut self, observed: &Observed, model: &Model, driver: &ScriptedDriver) {
        let ungrouped = observed.snapshots.iter().filter(|(_, snapshot)| group_of(snapshot).is_none());
        let ungrouped = ungrouped.map(|(name, _)| name.clone()).collect();
        self.compare_names("snapshots", &names(&model.snapshots), &ungrouped);
        let bound_content =
            |snapshot: &Value| text(snapshot, "/status/boundVolumeSnapshotContentName").to_owned();
        let contents = observed.snapshots.values().map(bound_content).collect();
        self.compare_names("contents", &contents, &names(&observed.contents));
        let handle = |content: &Value| text(content, "/status/snapshotHandle").to_owned();
        self.compare_names(
            "the driver's snapshots",
            &observed.contents.values().map(handle).collect(),
            &driver.snapshots(),
        );
        for (name, object) in &observed.snapshots {
            self.require(object["status"]["readyToUse"] == true, || format!("snapshot {name} is not ready"));
            self.require(object["status"]["error"].is_null(), || {
                format!("{name} has an error: {}", object["status"]["error"])
            });
            let content = observed.contents.get(&bound_content(object)).unwrap_or(&Value::Null);
            let bound_uid = text(content, "/spec/volumeSnapshotRef/uid");
            self.require(bound_uid == text(object, "/metadata/uid"), || {
                format!("the content of {name} references the snapshot with UID {bound_uid:?}")
            });
            let in_progress = content["metadata"]["annotations"].to_string().contains("being-");
            self.require(!in_progress, || {
                format!("{name} is in progress: {}", content["metadata"]["annotations"])
            });
            let Some(requested) = model.snapshots.get(name) else { continue };
            self.require(handle(content) == requested.handle(), || {
                format!("{name} has handle {:?}", handle(content))
            });
            let volume = driver.record("snapshots", &requested.handle()).unwrap_or_default()["volume"].take();
            self.require(volume == requested.volume, || {
                format!("{name} is a snapshot of {volume}, expected {}", requested.volume)
            });
        }
    }

    fn groups(&mut self, observed: &Observed, model: &Model, driver: &ScriptedDriver) {
        self.compare_names("groups", &names(&model.groups), &names(&observed.groups));
        let contents = model.groups.values().map(|group| format!("groupsnapcontent-{}", group.uid)).collect();
        self.compare_names("group contents", &contents, &names(&observed.group_contents));
        let handles = model.groups.values().map(|group| group.handle()).collect();
        self.compare_names("the driver's groups", &handles, &driver.groups());
        for (name, object) in &observed.groups {
            self.require(object["status"]["readyToUse"] == true, || format!("group {name} is not ready"));
            let Some(requested) = model.groups.get(name) else { continue };
            let record = driver.record("groups", &requested.handle()).unwrap_or_default();
            let expected: BTreeSet<String> = strings(&record["members"]);
            let members = observed.snapshots.values().filter(|snapshot| group_of(snapshot) == Some(name));
            let members =
                members.map(|snapshot| observed.handle(snapshot).unwrap_or_default().to_owned()).collect();
            self.compare_names(&format!("members of {name}"), &expected, &members);
        }
    }
}

/// The group that a snapshot is a member of.
pub(crate) fn group_of(snapshot: &Value) -> Option<&str> {
    let owner = snapshot.pointer("/metadata/ownerReferences/0")?;
    (owner["kind"] == "VolumeGroupSnapshot").then_some(owner["name"].as_str()?)
}

pub(crate) fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn names<T>(all: &BTreeMap<String, T>) -> BTreeSet<String> {
    all.keys().cloned().collect()
}

fn strings(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The bytes of a quantity.
pub(crate) fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match &quantity[digits.len()..] {
        "" => 0,
        "Ki" => 10,
        "Mi" => 20,
        "Gi" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok().map(|number| number << shift)
}
