//! Decides how to handle an installed CRD: keep, upgrade or refuse it. Pure functions; [`plan`] is the entry point.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Annotation with the revision of a CRD that Wharf installed.
const REVISION: &str = "wharf.dev/crd-revision";

/// What to do with an installed CRD.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Plan {
    /// Leave it unchanged, for this reason.
    Keep(String),
    /// Update it.
    Write {
        /// The complete new object.
        object: Value,
        /// A description of the changes.
        what: String,
    },
    /// Leave it unchanged and report failure: an upgrade would lose something, or is impossible.
    Refuse(String),
}

/// Compares the installed CRD with ours.
pub(super) fn plan(existing: &Value, ours: &Value) -> Plan {
    if existing.pointer("/metadata/deletionTimestamp").is_some() {
        return Plan::Refuse(
            "it is being deleted: wait until it is gone, then run the command again".to_owned(),
        );
    }
    for path in ["/spec/group", "/spec/scope", "/spec/names/kind", "/spec/names/plural"] {
        if existing.pointer(path) != ours.pointer(path) {
            return Plan::Refuse(format!("{path} differs: this is a different kind"));
        }
    }
    let (theirs, our_revision) = (revision(existing), revision(ours));
    if theirs > our_revision {
        return Plan::Keep("installed by a newer version of wharf".to_owned());
    }
    let mut object = existing.clone();
    let mut what = Vec::new();
    for (place, version) in versions(ours).iter().enumerate() {
        let name = text(version, "name");
        match versions(existing).iter().find(|found| text(found, "name") == name) {
            None => {
                if let Err(reason) = check_can_add_version(existing, ours) {
                    return Plan::Refuse(format!("it lacks {name}, and {reason}"));
                }
                // The storage version does not change.
                let mut version = version.clone();
                version["storage"] = Value::Bool(false);
                versions_mut(&mut object).push(version);
                what.push(format!("added version {name}"));
            }
            Some(found) => match compare(name, found, version, theirs) {
                // Our first version is the one that Wharf uses; it must be served.
                Comparison::Newer if place == 0 && found["served"] == Value::Bool(false) => {
                    return Plan::Refuse(format!(
                        "it is newer than ours and does not serve {name}, which wharf needs: \
                         set served to true for {name}, or use a newer version of wharf"
                    ));
                }
                Comparison::Newer | Comparison::Keep => {}
                Comparison::Replace(changes) => {
                    for entry in
                        versions_mut(&mut object).iter_mut().filter(|entry| text(entry, "name") == name)
                    {
                        let (served, storage) = (entry["served"].clone(), entry["storage"].clone());
                        *entry = version.clone();
                        entry["storage"] = storage;
                        if served == Value::Bool(true) {
                            entry["served"] = served;
                        }
                    }
                    what.push(changes);
                }
                Comparison::Diverged(reason) => return Plan::Refuse(reason),
            },
        }
    }
    let our_versions = versions(ours).len();
    if what.is_empty() {
        return Plan::Keep("up to date".to_owned());
    }
    let annotations = object["metadata"].as_object_mut().map(|metadata| metadata.entry("annotations"));
    if let (Some(annotations), Some(ours)) =
        (annotations, ours.pointer("/metadata/annotations").and_then(Value::as_object))
    {
        let annotations = annotations.or_insert_with(|| Value::Object(Map::new()));
        // A CRD that keeps a version of another installer does not get our revision: we must not replace its rules later.
        let is_ours = theirs.is_some() || what.len() == our_versions;
        for (key, value) in ours.iter().filter(|(key, _)| is_ours || *key != REVISION) {
            annotations[key.as_str()] = value.clone();
        }
    }
    Plan::Write { object, what: what.join("; ") }
}

/// Whether a version can be added. Without a webhook, the server's conversion only changes apiVersion, so the stored
/// objects must have the same schema.
fn check_can_add_version(existing: &Value, ours: &Value) -> Result<(), String> {
    if existing.pointer("/spec/conversion/strategy").and_then(Value::as_str) == Some("Webhook") {
        return Err("its versions are converted by a webhook, which would not know the new one: \
                    install the definitions of external-snapshotter 8.6 with their webhook"
            .to_owned());
    }
    let known: BTreeSet<&str> = versions(ours).iter().map(|version| text(version, "name")).collect();
    let stored = existing.pointer("/status/storedVersions").and_then(Value::as_array);
    let foreign: Vec<&str> = stored
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .filter(|version| !known.contains(version))
        .collect();
    match foreign.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "objects may be stored as {}, which has a different schema: migrate them, or delete the CRD and its objects",
            foreign.join(", ")
        )),
    }
}

/// How the installed version compares with ours.
enum Comparison {
    Keep,
    Newer,
    Replace(String),
    Diverged(String),
}

fn compare(name: &str, existing: &Value, ours: &Value, their_revision: Option<u64>) -> Comparison {
    let of = |version: &Value| fields(&version["schema"]["openAPIV3Schema"]);
    let (theirs, our_fields) = (of(existing), of(ours));
    let more: Vec<_> = theirs.difference(&our_fields).cloned().collect();
    let less: Vec<_> = our_fields.difference(&theirs).cloned().collect();
    let is_ours = their_revision.is_some();
    match (more.is_empty(), less.is_empty()) {
        (false, false) => Comparison::Diverged(format!(
            "{name} has unknown fields ({}) and lacks required fields ({}): install the CRDs of a single release",
            more.join(", "),
            less.join(", ")
        )),
        // It has more fields than ours: it is newer.
        (false, true) => Comparison::Newer,
        (true, false) => Comparison::Replace(format!("added to {name}: {}", less.join(", "))),
        // The same fields. The rules of another installer stay; rules of an earlier release of ours are replaced.
        (true, true) if is_ours && without_flags(existing) != without_flags(ours) => {
            Comparison::Replace(format!("updated the validation rules of {name}"))
        }
        (true, true) if existing["served"] == Value::Bool(false) => {
            Comparison::Replace(format!("enabled version {name}"))
        }
        (true, true) => Comparison::Keep,
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

/// The paths of all fields of a schema, without those that every object has.
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

fn versions_mut(object: &mut Value) -> &mut Vec<Value> {
    let versions = &mut object["spec"]["versions"];
    if !versions.is_array() {
        *versions = Value::Array(Vec::new());
    }
    match versions {
        Value::Array(list) => list,
        _ => unreachable!("replaced by an array above"),
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

    /// sidecars.md 1.4 "CRDs": an installed CRD is never downgraded.
    #[test]
    fn newer_crd_is_kept() {
        let mine = ours(vec![stored(version("v1", &["a", "b"]))], "1");
        // The same fields, with rules of another installer.
        let mut theirs = crd(vec![stored(version("v1", &["a", "b"]))]);
        theirs["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "X"}]);
        assert_eq!(plan(&theirs, &mine), Plan::Keep("up to date".into()));
        // More fields, and an unknown version.
        let newer = crd(vec![version("v1", &["a", "b", "c"]), stored(version("v2", &["z"]))]);
        assert_eq!(plan(&newer, &mine), Plan::Keep("up to date".into()));
        // It is newer, but the version that Wharf needs is not served.
        let mut off = newer.clone();
        off["spec"]["versions"][0]["served"] = json!(false);
        assert!(matches!(plan(&off, &mine), Plan::Refuse(reason) if reason.contains("does not serve v1")));
        // A version that Wharf does not use need not be served.
        let both = ours(vec![version("v2", &["z"]), stored(version("v1", &["a", "b"]))], "1");
        assert_eq!(plan(&off, &both), Plan::Keep("up to date".into()));
        // Ours, of a later release.
        let later = ours(vec![stored(version("v1", &["a"]))], "2");
        assert_eq!(plan(&later, &mine), Plan::Keep("installed by a newer version of wharf".into()));
        assert_eq!(plan(&mine, &mine), Plan::Keep("up to date".into()));
    }

    #[test]
    fn older_crd_is_upgraded_and_keeps_its_versions() {
        let mine = ours(vec![stored(version("v1", &["a", "b"]))], "2");
        let older = crd(vec![version("v1", &["a"]), stored(version("v1beta1", &["old"]))]);
        let (object, what) = written(plan(&older, &mine));
        assert_eq!(what, "added to v1: spec.b");
        let versions = object["spec"]["versions"].as_array().unwrap();
        assert_eq!(versions.len(), 2);
        // The storage version is unchanged, and the old version is still served.
        assert_eq!((&versions[0]["storage"], &versions[0]["served"]), (&json!(false), &json!(true)));
        assert_eq!(versions[1], stored(version("v1beta1", &["old"])));
        assert_eq!(object["metadata"]["annotations"][REVISION], "2");
        assert_eq!(object["metadata"]["resourceVersion"], "7");
        // A second run has nothing to do.
        assert_eq!(plan(&object, &mine), Plan::Keep("up to date".into()));
        // Ours, of an earlier release, gets new rules.
        let mut before = ours(vec![stored(version("v1", &["a", "b"]))], "1");
        before["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] = json!([]);
        assert_eq!(written(plan(&before, &mine)).1, "updated the validation rules of v1");
        // A version that was disabled is served again.
        let mut off = crd(vec![stored(version("v1", &["a", "b"]))]);
        off["spec"]["versions"][0]["served"] = json!(false);
        let (object, what) = written(plan(&off, &mine));
        assert_eq!(
            (what.as_str(), &object["spec"]["versions"][0]["served"]),
            ("enabled version v1", &json!(true))
        );
    }

    #[test]
    fn version_is_added_only_if_stored_objects_have_its_schema() {
        let mine = ours(vec![version("v1", &["a"]), stored(version("v1beta2", &["a"]))], "1");
        let mut existing = crd(vec![stored(version("v1beta2", &["a"]))]);
        existing["status"] = json!({"storedVersions": ["v1beta2"]});
        let (object, what) = written(plan(&existing, &mine));
        assert_eq!(what, "added version v1");
        assert_eq!(object["spec"]["versions"][1], version("v1", &["a"]));
        // The other version still belongs to another installer, also in later runs.
        assert_eq!(revision(&object), None);
        let mut rules = object.clone();
        rules["spec"]["versions"][0]["additionalPrinterColumns"] = json!([{"name": "X"}]);
        assert_eq!(plan(&rules, &mine), Plan::Keep("up to date".into()));
        existing["status"] = json!({"storedVersions": ["v1beta1", "v1beta2"]});
        assert!(
            matches!(plan(&existing, &mine), Plan::Refuse(reason) if reason.contains("stored as v1beta1"))
        );
        existing["status"] = json!({"storedVersions": ["v1beta2"]});
        existing["spec"]["conversion"] = json!({"strategy": "Webhook"});
        assert!(matches!(plan(&existing, &mine), Plan::Refuse(reason) if reason.contains("webhook")));
    }

    #[test]
    fn diverged_foreign_or_terminating_crd_is_refused() {
        let mine = ours(vec![stored(version("v1", &["a", "b"]))], "1");
        let apart = crd(vec![stored(version("v1", &["a", "c"]))]);
        assert!(
            matches!(plan(&apart, &mine), Plan::Refuse(reason) if reason.contains("spec.c") && reason.contains("spec.b"))
        );
        let mut other = mine.clone();
        other["spec"]["scope"] = json!("Namespaced");
        assert!(matches!(plan(&other, &mine), Plan::Refuse(reason) if reason.contains("/spec/scope")));
        let mut terminating = mine.clone();
        terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(
            matches!(plan(&terminating, &mine), Plan::Refuse(reason) if reason.contains("being deleted"))
        );
    }

    /// sidecars.md 1.4 "CRDs": the embedded CRDs can be parsed and have the expected form.
    #[test]
    fn embedded_crds_are_well_formed() {
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
            let used = if group == "cbt.storage.k8s.io" { "v1beta1" } else { "v1" };
            assert_eq!(versions(&crd).first().map(|version| text(version, "name")), Some(used), "{name}");
            assert_eq!(plan(&crd, &crd), Plan::Keep("up to date".into()), "{name}");
            let fields = fields(&crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
            assert!(!fields.contains("metadata") && fields.len() > 2, "{name}: {fields:?}");
        }
    }

    #[test]
    fn all_crds_of_the_deploy_directory_are_embedded() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
        let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let shipped: BTreeSet<String> = paths.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        assert_eq!(shipped, CRDS.map(str::to_owned).into());
    }

    /// Upstream's first release of the kind had only v1alpha1, with the same schema.
    #[test]
    fn older_snapshot_metadata_service_crd_is_upgraded() {
        let name = |crd: &Value| crd.pointer("/spec/names/kind") == Some(&json!("SnapshotMetadataService"));
        let crds = CRDS.map(|crd| serde_saphyr::from_str::<Value>(crd).unwrap());
        let ours = crds.into_iter().find(name).unwrap();
        let mut existing = ours.clone();
        existing["metadata"]["annotations"] = json!({});
        existing["status"] = json!({"storedVersions": ["v1alpha1"]});
        existing["spec"]["versions"].as_array_mut().unwrap().retain(|version| version["name"] == "v1alpha1");
        existing["spec"]["versions"][0]["storage"] = json!(true);
        let (object, what) = written(plan(&existing, &ours));
        assert_eq!(what, "added version v1beta1");
        assert_eq!(object["spec"]["versions"][0], existing["spec"]["versions"][0]);
    }
}
