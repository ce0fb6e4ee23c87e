//! What becomes of a definition that is there already: a pure comparison.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Which of our own definitions it is. Only ours carry it.
const REVISION: &str = "wharf.dev/crd-revision";

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plan {
    /// It stays as it is.
    Keep(String),
    /// It becomes this.
    Write {
        /// The whole of it.
        object: Value,
        /// What changes.
        what: String,
    },
    /// Nothing can be done without losing something.
    Refuse(String),
}

/// Compares what is there with ours.
pub(super) fn plan(there: &Value, ours: &Value) -> Plan {
    if there.pointer("/metadata/deletionTimestamp").is_some() {
        return Plan::Refuse("it is being deleted: wait until it is gone, then run this again".to_owned());
    }
    for path in ["/spec/group", "/spec/scope", "/spec/names/kind", "/spec/names/plural"] {
        if there.pointer(path) != ours.pointer(path) {
            return Plan::Refuse(format!("{path} is another one: this is not the kind we know"));
        }
    }
    let (theirs, our_revision) = (revision(there), revision(ours));
    if theirs > our_revision {
        return Plan::Keep("it was made by a newer wharf".to_owned());
    }
    let mut object = there.clone();
    let mut what = Vec::new();
    for (place, version) in versions(ours).iter().enumerate() {
        let name = text(version, "name");
        match versions(there).iter().find(|found| text(found, "name") == name) {
            None => {
                if let Err(why) = may_add(there, ours) {
                    return Plan::Refuse(format!("it lacks {name}, and {why}"));
                }
                // What is stored stays stored.
                let mut version = version.clone();
                version["storage"] = Value::Bool(false);
                list(&mut object).push(version);
                what.push(format!("{name} is served"));
            }
            Some(found) => match compare(name, found, version, theirs) {
                // Our first version is the one that our programs speak; without it they do not work.
                Compared::Newer if place == 0 && found["served"] == Value::Bool(false) => {
                    return Plan::Refuse(format!(
                        "it is newer than ours and does not serve {name}, which we need: \
                         set served to true for {name}, or run a newer wharf"
                    ));
                }
                Compared::Newer | Compared::Keep => {}
                Compared::Replace(changes) => {
                    for entry in list(&mut object).iter_mut().filter(|entry| text(entry, "name") == name) {
                        let (served, storage) = (entry["served"].clone(), entry["storage"].clone());
                        *entry = version.clone();
                        entry["storage"] = storage;
                        if served == Value::Bool(true) {
                            entry["served"] = served;
                        }
                    }
                    what.push(changes);
                }
                Compared::Neither(why) => return Plan::Refuse(why),
            },
        }
    }
    let our_versions = versions(ours).len();
    if what.is_empty() {
        return Plan::Keep("it has everything".to_owned());
    }
    let annotations = object["metadata"].as_object_mut().map(|metadata| metadata.entry("annotations"));
    if let (Some(annotations), Some(ours)) =
        (annotations, ours.pointer("/metadata/annotations").and_then(Value::as_object))
    {
        let annotations = annotations.or_insert_with(|| Value::Object(Map::new()));
        // What keeps a version of somebody else's is not ours, and its rules are not ours to renew.
        let is_ours = theirs.is_some() || what.len() == our_versions;
        for (key, value) in ours.iter().filter(|(key, _)| is_ours || *key != REVISION) {
            annotations[key.as_str()] = value.clone();
        }
    }
    Plan::Write { object, what: what.join("; ") }
}

/// Whether a version can be added. The server converts between versions by their names alone, unless a webhook does it.
fn may_add(there: &Value, ours: &Value) -> Result<(), String> {
    if there.pointer("/spec/conversion/strategy").and_then(Value::as_str) == Some("Webhook") {
        return Err("its versions are converted by a webhook, which would not know the new one: \
                    install the definitions of external-snapshotter 8.6 with their webhook"
            .to_owned());
    }
    let known: BTreeSet<&str> = versions(ours).iter().map(|version| text(version, "name")).collect();
    let stored = there.pointer("/status/storedVersions").and_then(Value::as_array);
    let foreign: Vec<&str> = stored
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|version| !known.contains(version))
        .collect();
    match foreign.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "objects may be stored as {}, which has another form: migrate them, or delete the definition with its objects",
            foreign.join(", ")
        )),
    }
}

/// What is better of one version.
enum Compared {
    Keep,
    Newer,
    Replace(String),
    Neither(String),
}

fn compare(name: &str, there: &Value, ours: &Value, their_revision: Option<u64>) -> Compared {
    let of = |version: &Value| fields(&version["schema"]["openAPIV3Schema"]);
    let (theirs, our_fields) = (of(there), of(ours));
    let more: Vec<_> = theirs.difference(&our_fields).cloned().collect();
    let less: Vec<_> = our_fields.difference(&theirs).cloned().collect();
    let is_ours = their_revision.is_some();
    match (more.is_empty(), less.is_empty()) {
        (false, false) => Compared::Neither(format!(
            "{name} has fields that we do not know ({}) and lacks some that we need ({}): install the definitions of one release",
            more.join(", "),
            less.join(", ")
        )),
        // It knows more than we do: it is newer.
        (false, true) => Compared::Newer,
        (true, false) => Compared::Replace(format!("{name} gets {}", less.join(", "))),
        // The same fields. Somebody else's rules are theirs; our own of before are replaced.
        (true, true) if is_ours && without_flags(there) != without_flags(ours) => {
            Compared::Replace(format!("{name} gets its rules anew"))
        }
        (true, true) if there["served"] == Value::Bool(false) => {
            Compared::Replace(format!("{name} is served"))
        }
        (true, true) => Compared::Keep,
    }
}

fn without_flags(version: &Value) -> Value {
    let mut version = version.clone();
    if let Some(fields) = version.as_object_mut() {
        fields.remove("served");
        fields.remove("storage");
    }
    version
}

/// The paths of all fields of a schema, but those that every object has.
fn fields(schema: &Value) -> BTreeSet<String> {
    fn walk(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            walk(property, &path, found);
            found.insert(path);
        }
        if let Some(items) = schema.get("items") {
            walk(items, &format!("{path}[]"), found);
        }
    }
    let mut found = BTreeSet::new();
    walk(schema, "", &mut found);
    found.retain(|path| !["apiVersion", "kind", "metadata"].contains(&path.as_str()));
    found
}

fn revision(object: &Value) -> Option<u64> {
    object["metadata"]["annotations"][REVISION].as_str()?.parse().ok()
}

fn versions(object: &Value) -> &[Value] {
    object.pointer("/spec/versions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn list(object: &mut Value) -> &mut Vec<Value> {
    let versions = &mut object["spec"]["versions"];
    if !versions.is_array() {
        *versions = Value::Array(Vec::new());
    }
    match versions {
        Value::Array(list) => list,
        _ => unreachable!("it was made a list a line above"),
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CRDS;
    use super::*;

    fn version(name: &str, fields: &[&str]) -> Value {
        let properties: Map<String, Value> =
            fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"properties": properties}}}});
        json!({"name": name, "served": true, "storage": false, "schema": schema})
    }

    fn stored(mut version: Value) -> Value {
        version["storage"] = json!(true);
        version
    }

    fn crd(versions: Vec<Value>) -> Value {
        let names = json!({"kind": "Thing", "plural": "things"});
        json!({
            "metadata": {"name": "things.g", "resourceVersion": "7"},
            "spec": {"group": "g", "scope": "Cluster", "names": names, "versions": versions},
        })
    }

    fn ours(versions: Vec<Value>, revision: &str) -> Value {
        let mut crd = crd(versions);
        crd["metadata"]["annotations"] = json!({REVISION: revision});
        crd
    }

    fn written(plan: Plan) -> (Value, String) {
        match plan {
            Plan::Write { object, what } => (object, what),
            other => panic!("{other:?}"),
        }
    }

    /// sidecars.md 1.4 "CRDs": what is there is never downgraded.
    #[test]
    fn what_is_newer_stays() {
        let mine = ours(vec![stored(version("v1", &["a", "b"]))], "1");
        // The same fields, with somebody else's rules.
        let mut theirs = crd(vec![stored(version("v1", &["a", "b"]))]);
        theirs["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "X"}]);
        assert_eq!(plan(&theirs, &mine), Plan::Keep("it has everything".into()));
        // More fields, and a version we do not know.
        let newer = crd(vec![version("v1", &["a", "b", "c"]), stored(version("v2", &["z"]))]);
        assert_eq!(plan(&newer, &mine), Plan::Keep("it has everything".into()));
        // It stays as it is, but that will not do if what we need is turned off.
        let mut off = newer.clone();
        off["spec"]["versions"][0]["served"] = json!(false);
        assert!(matches!(plan(&off, &mine), Plan::Refuse(why) if why.contains("does not serve v1")));
        // What only others speak may be off.
        let both = ours(vec![version("v2", &["z"]), stored(version("v1", &["a", "b"]))], "1");
        assert_eq!(plan(&off, &both), Plan::Keep("it has everything".into()));
        // Our own, of a later release.
        let later = ours(vec![stored(version("v1", &["a"]))], "2");
        assert_eq!(plan(&later, &mine), Plan::Keep("it was made by a newer wharf".into()));
        assert_eq!(plan(&mine, &mine), Plan::Keep("it has everything".into()));
    }

    #[test]
    fn what_is_older_is_upgraded_and_keeps_what_it_has() {
        let mine = ours(vec![stored(version("v1", &["a", "b"]))], "2");
        let older = crd(vec![version("v1", &["a"]), stored(version("v1beta1", &["old"]))]);
        let (object, what) = written(plan(&older, &mine));
        assert_eq!(what, "v1 gets spec.b");
        let versions = object["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 2);
        // Stored as before, and the old version is served as before.
        assert_eq!((&versions[0]["storage"], &versions[0]["served"]), (&json!(false), &json!(true)));
        assert_eq!(versions[1], stored(version("v1beta1", &["old"])));
        assert_eq!(object["metadata"]["annotations"][REVISION], "2");
        assert_eq!(object["metadata"]["resourceVersion"], "7");
        // Once more, nothing is left to do.
        assert_eq!(plan(&object, &mine), Plan::Keep("it has everything".into()));
        // Our own of before gets new rules.
        let mut before = ours(vec![stored(version("v1", &["a", "b"]))], "1");
        before["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = json!([]);
        assert_eq!(written(plan(&before, &mine)).1, "v1 gets its rules anew");
        // One that was turned off is served again.
        let mut off = crd(vec![stored(version("v1", &["a", "b"]))]);
        off["spec"]["versions"][0]["served"] = json!(false);
        let (object, what) = written(plan(&off, &mine));
        assert_eq!((what.as_str(), &object["spec"]["versions"][0]["served"]), ("v1 is served", &json!(true)));
    }

    #[test]
    fn a_version_is_added_where_objects_have_its_form() {
        let mine = ours(vec![version("v1", &["a"]), stored(version("v1beta2", &["a"]))], "1");
        let mut there = crd(vec![stored(version("v1beta2", &["a"]))]);
        there["status"] = json!({"storedVersions": ["v1beta2"]});
        let (object, what) = written(plan(&there, &mine));
        assert_eq!(what, "v1 is served");
        assert_eq!(object["spec"]["versions"][1], version("v1", &["a"]));
        // The other one is somebody else's still, and stays so when it is looked at again.
        assert_eq!(revision(&object), None);
        let mut rules = object.clone();
        rules["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "X"}]);
        assert_eq!(plan(&rules, &mine), Plan::Keep("it has everything".into()));
        there["status"] = json!({"storedVersions": ["v1beta1", "v1beta2"]});
        assert!(matches!(plan(&there, &mine), Plan::Refuse(why) if why.contains("stored as v1beta1")));
        there["status"] = json!({"storedVersions": ["v1beta2"]});
        there["spec"]["conversion"] = json!({"strategy": "Webhook"});
        assert!(matches!(plan(&there, &mine), Plan::Refuse(why) if why.contains("webhook")));
    }

    #[test]
    fn what_cannot_be_compared_is_refused() {
        let mine = ours(vec![stored(version("v1", &["a", "b"]))], "1");
        let apart = crd(vec![stored(version("v1", &["a", "c"]))]);
        assert!(
            matches!(plan(&apart, &mine), Plan::Refuse(why) if why.contains("spec.c") && why.contains("spec.b"))
        );
        let mut other = mine.clone();
        other["spec"]["scope"] = json!("Namespaced");
        assert!(matches!(plan(&other, &mine), Plan::Refuse(why) if why.contains("/spec/scope")));
        let mut going = mine.clone();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(matches!(plan(&going, &mine), Plan::Refuse(why) if why.contains("being deleted")));
    }

    /// sidecars.md 1.4 "CRDs": what is shipped can be read, and is of the form that the slim views expect.
    #[test]
    fn what_is_shipped() {
        for crd in CRDS {
            let crd: Value = serde_saphyr::from_str(crd).unwrap();
            let name = text(&crd["metadata"], "name");
            let (plural, group) = name.split_once('.').unwrap();
            assert_eq!((text(&crd["spec"]["names"], "plural"), text(&crd["spec"], "group")), (plural, group));
            assert!(
                text(&crd["metadata"]["annotations"], "api-approved.kubernetes.io").starts_with("https://")
            );
            assert_eq!(revision(&crd), Some(1), "{name}");
            let stored: Vec<_> = versions(&crd).iter().filter(|version| version["storage"] == true).collect();
            assert_eq!(stored.len(), 1, "{name}");
            let spoken = if group == "cbt.storage.k8s.io" { "v1beta1" } else { "v1" };
            assert_eq!(versions(&crd).first().map(|version| text(version, "name")), Some(spoken), "{name}");
            assert_eq!(plan(&crd, &crd), Plan::Keep("it has everything".into()), "{name}");
            let fields = fields(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
            assert!(!fields.contains("metadata") && fields.len() > 2, "{name}: {fields:?}");
        }
    }

    #[test]
    fn all_that_is_shipped_is_installed() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
        let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let shipped: BTreeSet<String> = paths.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert_eq!(shipped, CRDS.map(str::to_owned).into());
    }

    /// Upstream's first release of the kind had v1alpha1 only, in the same form.
    #[test]
    fn an_older_snapshot_metadata_service_is_upgraded() {
        let name = |crd: &Value| crd.pointer("/spec/names/kind") == Some(&json!("SnapshotMetadataService"));
        let crds = CRDS.map(|crd| serde_saphyr::from_str::<Value>(crd).unwrap());
        let ours = crds.into_iter().find(name).unwrap();
        let mut there = ours.clone();
        there["metadata"]["annotations"] = json!({});
        there["status"] = json!({"storedVersions": ["v1alpha1"]});
        there["spec"]["versions"].as_array_mut().unwrap().retain(|version| version["name"] == "v1alpha1");
        there["spec"]["versions"][0]["storage"] = json!(true);
        let (object, what) = written(plan(&there, &ours));
        assert_eq!(what, "v1beta1 is served");
        assert_eq!(object["spec"]["versions"][0], there["spec"]["versions"][0]);
    }
}
