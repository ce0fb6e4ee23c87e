//! Reads scenario files. A file has object templates and a list of scenarios; a scenario with a table (`each`) expands
//! to one for each combination. Loading is pure: it resolves all names and placeholders except those that are known
//! only during a run (`${id}`, `${driver}`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A sequence of steps that both sides execute.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: the subject, followed by the values from its `each` table.
    pub name: String,
    /// The sidecars to run, by upstream's names.
    pub(super) sidecars: Vec<String>,
    /// Whether it needs the snapshot-controller, which all scenarios share.
    #[serde(default)]
    pub controller: bool,
    /// Whether it must run alone, because it kills what other scenarios need.
    #[serde(default)]
    pub alone: bool,
    /// Additional arguments of the sidecars.
    #[serde(default)]
    pub(super) args: Vec<String>,
    /// The options of the scripted driver.
    #[serde(default)]
    pub(super) driver: Vec<String>,
    /// The initial faults.
    #[serde(default)]
    pub(super) faults: Map<String, Value>,
    /// The steps.
    pub(super) steps: Vec<Step>,
    /// Whether it is part of the fast slice.
    #[serde(default)]
    pub slice: bool,
}

/// An action, or a condition to wait for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Step {
    /// Create these objects.
    Create(Vec<Value>),
    /// Apply a merge patch to an object.
    Patch { object: String, with: Value },
    /// Apply a merge patch to an object's status.
    PatchStatus { object: String, with: Value },
    /// Delete an object.
    Delete(String),
    /// Wait until an object, or the value at a JSON pointer in it, equals `is` (null: does not exist), or until a
    /// list contains `has`.
    Await {
        object: String,
        #[serde(default)]
        at: String,
        #[serde(default)]
        is: Value,
        has: Option<Value>,
    },
    /// Wait for an event with this reason on an object.
    AwaitEvent { object: String, reason: String },
    /// Wait until the driver has served this method `times` times, with this code and these request fields if
    /// given.
    Called {
        method: String,
        #[serde(default)]
        with: Map<String, Value>,
        #[serde(default = "once")]
        times: usize,
        code: Option<String>,
    },
    /// Wait until a call of this method is held by a fault.
    Held(String),
    /// Replace the faults; held calls continue.
    Faults(Map<String, Value>),
    /// Set the volumes that the driver reports as abnormal, with a message for each.
    Conditions(Map<String, Value>),
    /// Kill a process with SIGKILL.
    Kill(Process),
    /// Start a killed process again.
    Start(Process),
    /// Wait this many milliseconds, to give an unwanted action time to happen.
    Pause(u64),
    /// Add a pre-existing volume to the driver's backend.
    Volume { id: String, bytes: i64 },
    /// Add a pre-existing snapshot, which may belong to a group.
    Snapshot { id: String, volume: String, bytes: i64, group: Option<String> },
    /// Add a pre-existing group with its snapshots.
    Group { id: String, volumes: Vec<String>, members: Vec<String> },
}

/// A process that a step can kill and start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Process {
    Sidecars,
    Driver,
    Controller,
}

fn once() -> usize {
    1
}

/// A file of scenarios.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// Defaults for all scenarios of the file.
    #[serde(default)]
    defaults: Map<String, Value>,
    /// Object templates by name.
    #[serde(default)]
    templates: BTreeMap<String, Value>,
    scenarios: Vec<Map<String, Value>>,
}

/// Loads a scenario file; an error names the scenario.
pub fn load(yaml: &str) -> Result<Vec<Scenario>, String> {
    let file: File = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for written in &file.scenarios {
        for words in combinations(written.get("each"))? {
            let mut scenario = file.defaults.clone();
            scenario.extend(written.iter().map(|(name, value)| (name.clone(), value.clone())));
            scenario.remove("each");
            // The common first steps of all scenarios in the file.
            let before = scenario.remove("before");
            if let (Some(Value::Array(before)), Some(Value::Array(steps))) =
                (before, scenario.get_mut("steps"))
            {
                steps.splice(..0, before);
            }
            let mut scenario = Value::Object(scenario);
            substitute(&mut scenario, &words);
            let name = scenario["name"].as_str().unwrap_or_default().to_owned();
            let wrong = |error: String| format!("{name}: {error}");
            place_templates(&mut scenario, &file.templates).map_err(wrong)?;
            // For a scenario with an `each` table, `slice` can be a list of name endings, which selects some of its
            // rows.
            let slice = match &scenario["slice"] {
                Value::Array(ends) => ends.iter().filter_map(Value::as_str).any(|end| name.ends_with(end)),
                other => other.as_bool().unwrap_or(false),
            };
            scenario["slice"] = slice.into();
            all.push(serde_json::from_value(scenario).map_err(|error| wrong(error.to_string()))?);
        }
    }
    Ok(all)
}

/// All combinations of one value for each name.
fn combinations(each: Option<&Value>) -> Result<Vec<Vec<(String, String)>>, String> {
    let mut all = vec![Vec::new()];
    for (name, words) in each.and_then(Value::as_object).into_iter().flatten() {
        let words = words.as_array().ok_or_else(|| format!("{name} is not a list of words"))?;
        all = all
            .into_iter()
            .flat_map(|chosen: Vec<(String, String)>| {
                words.iter().map(move |word| {
                    let word = word.as_str().map_or_else(|| word.to_string(), str::to_owned);
                    let mut chosen = chosen.clone();
                    chosen.push((format!("${{{name}}}"), word));
                    chosen
                })
            })
            .collect();
    }
    Ok(all)
}

/// Substitutes placeholders, in keys too.
pub(super) fn substitute(value: &mut Value, words: &[(String, String)]) {
    let replaced =
        |text: &str| words.iter().fold(text.to_owned(), |text, (name, word)| text.replace(name, word));
    match value {
        Value::String(text) => *text = replaced(text),
        Value::Array(items) => items.iter_mut().for_each(|item| substitute(item, words)),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(key, mut value)| {
                    substitute(&mut value, words);
                    (replaced(&key), value)
                })
                .collect();
        }
        _ => {}
    }
}

/// Replaces templates by objects. An object to create is a template name, `template:` with a merge patch in `with:`, or
/// a literal object.
fn place_templates(scenario: &mut Value, templates: &BTreeMap<String, Value>) -> Result<(), String> {
    let find = |name: &str| templates.get(name).cloned().ok_or_else(|| format!("unknown template {name}"));
    let steps = scenario["steps"].as_array_mut().ok_or("it has no steps")?;
    for object in steps.iter_mut().filter_map(|step| step.get_mut("create")?.as_array_mut()).flatten() {
        if let Some(name) = object.as_str() {
            *object = find(name)?;
        } else if let Some(name) = object.get("template").and_then(Value::as_str) {
            let mut created = find(name)?;
            merge(&mut created, &object["with"]);
            *object = created;
        }
    }
    Ok(())
}

/// Applies a merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            fields.remove(key);
        } else {
            merge(fields.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
defaults: {sidecars: [csi-provisioner], before: [{create: [claim]}]}
templates:
  claim: {kind: PersistentVolumeClaim, metadata: {name: claim}, spec: {size: 1Gi, mode: Block}}
scenarios:
- name: create/${code}
  each: {code: [Aborted, Internal]}
  slice: [/Aborted]
  faults: {CreateVolume: {code: "${code}", count: 3}}
  steps:
  - create: [{template: claim, with: {metadata: {name: other}, spec: {mode: null}}}]
  - called: {method: CreateVolume, times: 3, code: "${code}"}
  - kill: sidecars
- name: plain
  sidecars: [csi-resizer]
  before: []
  steps: [{delete: pvc/claim}]
"#;

    #[test]
    fn each_table_expands_to_scenarios_and_templates_to_objects() {
        let all = load(FILE).unwrap();
        let names: Vec<_> =
            all.iter().map(|it| (it.name.as_str(), it.slice, it.sidecars[0].as_str())).collect();
        assert_eq!(
            names,
            [
                ("create/Aborted", true, "csi-provisioner"),
                ("create/Internal", false, "csi-provisioner"),
                ("plain", false, "csi-resizer"),
            ]
        );
        assert_eq!(all[1].faults["CreateVolume"]["code"], "Internal");
        let Step::Create(objects) = &all[1].steps[0] else { panic!("{:?}", all[1].steps) };
        assert_eq!(objects[0]["metadata"]["name"], "claim", "the common first step");
        let Step::Create(objects) = &all[1].steps[1] else { panic!("{:?}", all[1].steps) };
        assert_eq!(objects[0]["metadata"]["name"], "other");
        assert_eq!(objects[0]["spec"], serde_json::json!({"size": "1Gi"}));
        assert_eq!(all[1].steps[3], Step::Kill(Process::Sidecars));
        assert_eq!(all[2].steps, [Step::Delete("pvc/claim".to_owned())]);
    }

    #[test]
    fn load_error_names_the_scenario() {
        let unknown = FILE.replace("[claim]", "[clam]");
        assert_eq!(load(&unknown).unwrap_err(), "create/Aborted: unknown template clam");
        let misspelt = FILE.replace("kill: sidecars", "kil: sidecars");
        assert!(load(&misspelt).unwrap_err().starts_with("create/Aborted: unknown variant `kil`"));
    }
}
