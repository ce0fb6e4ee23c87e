//! Compares the state of the API server, the driver and the journal with what the test requested.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;
use wharf_testkit::{ApiClient, ScriptedDriver};

use super::environment::{DRIVER, NAMESPACE};
use super::model::{Claim, Model, Source};

/// The finalizers that an idle claim has until it is deleted; it gets the second one when it is cloned. Any other
/// finalizer means that a controller is still working.
const AT_REST: [&str; 2] =
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
        found.same("intents", &BTreeSet::new(), &names(&self.intents));
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
    fn unless(&mut self, so: bool, what: impl FnOnce() -> String) {
        if !so {
            self.0.push(what());
        }
    }

    fn same(&mut self, what: &str, wanted: &BTreeSet<String>, found: &BTreeSet<String>) {
        for name in found.difference(wanted) {
            self.0.push(format!("{what}: {name} should not be there"));
        }
        for name in wanted.difference(found) {
            self.0.push(format!("{what}: {name} is missing"));
        }
    }

    fn claims(&mut self, observed: &Observed, model: &Model, driver: &ScriptedDriver) {
        self.same("claims", &names(&model.claims), &names(&observed.claims));
        let volumes = model.claims.values().map(|claim| format!("pvc-{}", claim.uid)).collect();
        self.same("volumes", &volumes, &names(&observed.volumes));
        let handles = model.claims.values().map(Claim::volume).collect();
        self.same("the driver's volumes", &handles, &driver.volumes());
        for (name, claim) in &model.claims {
            let Some(object) = observed.claims.get(name) else { continue };
            self.unless(text(object, "/status/phase") == "Bound", || format!("{name} is not bound"));
            let finalizers = strings(&object["metadata"]["finalizers"]);
            let at_rest = finalizers.iter().all(|finalizer| AT_REST.contains(&finalizer.as_str()));
            self.unless(at_rest, || format!("{name} has {finalizers:?}"));
            let volume = observed.volumes.get(&format!("pvc-{}", claim.uid)).unwrap_or(&Value::Null);
            let record = driver.record("volumes", &claim.volume()).unwrap_or_default();
            for (whose, bytes) in [
                ("request", bytes(text(object, "/spec/resources/requests/storage"))),
                ("capacity", bytes(text(object, "/status/capacity/storage"))),
                ("volume", bytes(text(volume, "/spec/capacity/storage"))),
                ("driver", record["bytes"].as_u64()),
            ] {
                self.unless(bytes == Some(claim.bytes), || {
                    format!("{name}: {whose} is {bytes:?} and should be {}", claim.bytes)
                });
            }
            let (from_snapshot, from_volume) = match &claim.source {
                Source::New => (None, None),
                Source::Snapshot { handle, .. } => (Some(handle.as_str()), None),
                Source::Claim { volume, .. } => (None, Some(volume.as_str())),
            };
            let from = (record["source_snapshot"].as_str(), record["source_volume"].as_str());
            self.unless(from == (from_snapshot, from_volume), || {
                format!("{name} was created from {from:?} instead of {:?}", claim.source)
            });
            let file = fs::read_to_string(driver.data(&claim.volume()).join("file")).ok();
            let right = match &file {
                Some(file) => *file == claim.holds.text,
                None => !claim.holds.certain,
            };
            self.unless(right, || format!("{name} holds {file:?} and should hold {:?}", claim.holds));
        }
    }

    /// Each snapshot has its content, each content its snapshot, and the driver has the snapshots that the contents
    /// name.
    fn snapshots(&mut self, observed: &Observed, model: &Model, driver: &ScriptedDriver) {
        let alone = observed.snapshots.iter().filter(|(_, it)| group_of(it).is_none());
        let alone = alone.map(|(name, _)| name.clone()).collect();
        self.same("snapshots", &names(&model.snapshots), &alone);
        let bound = |it: &Value| text(it, "/status/boundVolumeSnapshotContentName").to_owned();
        let contents = observed.snapshots.values().map(bound).collect();
        self.same("contents", &contents, &names(&observed.contents));
        let handle = |it: &Value| text(it, "/status/snapshotHandle").to_owned();
        self.same(
            "the driver's snapshots",
            &observed.contents.values().map(handle).collect(),
            &driver.snapshots(),
        );
        for (name, object) in &observed.snapshots {
            self.unless(object["status"]["readyToUse"] == true, || format!("snapshot {name} is not ready"));
            self.unless(object["status"]["error"].is_null(), || {
                format!("{name}: {}", object["status"]["error"])
            });
            let content = observed.contents.get(&bound(object)).unwrap_or(&Value::Null);
            let back = text(content, "/spec/volumeSnapshotRef/uid");
            self.unless(back == text(object, "/metadata/uid"), || format!("{name}'s content is {back:?}'s"));
            let at_work = content["metadata"]["annotations"].to_string().contains("being-");
            self.unless(!at_work, || format!("{name}: {}", content["metadata"]["annotations"]));
            let Some(requested) = model.snapshots.get(name) else { continue };
            self.unless(handle(content) == requested.handle(), || format!("{name} is {:?}", handle(content)));
            let volume = driver.record("snapshots", &requested.handle()).unwrap_or_default()["volume"].take();
            self.unless(volume == requested.volume, || {
                format!("{name} is of {volume}, not of {}", requested.volume)
            });
        }
    }

    fn groups(&mut self, observed: &Observed, model: &Model, driver: &ScriptedDriver) {
        self.same("groups", &names(&model.groups), &names(&observed.groups));
        let contents = model.groups.values().map(|group| format!("groupsnapcontent-{}", group.uid)).collect();
        self.same("group contents", &contents, &names(&observed.group_contents));
        let handles = model.groups.values().map(|group| group.handle()).collect();
        self.same("the driver's groups", &handles, &driver.groups());
        for (name, object) in &observed.groups {
            self.unless(object["status"]["readyToUse"] == true, || format!("group {name} is not ready"));
            let Some(requested) = model.groups.get(name) else { continue };
            let record = driver.record("groups", &requested.handle()).unwrap_or_default();
            let wanted: BTreeSet<String> = strings(&record["members"]);
            let members = observed.snapshots.values().filter(|it| group_of(it) == Some(name));
            let members = members.map(|it| observed.handle(it).unwrap_or_default().to_owned()).collect();
            self.same(&format!("members of {name}"), &wanted, &members);
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
