//! Scenarios as they are written down: a file has templates of objects and a list of scenarios, each of which may stand
//! for many by a table of words (`each`). Reading them is pure: every name is resolved and every word put in its place,
//! but for those that only a run knows (`${id}`, `${driver}`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A story that both sides go through.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name: what it is about, then the words of its table.
    pub name: String,
    /// The sidecars that run, by upstream's names.
    pub(super) sidecars: Vec<String>,
    /// Whether it needs the snapshot-controller, of which there is one for all scenarios.
    #[serde(default)]
    pub controller: bool,
    /// Whether it must be the only one that runs: it kills what others need.
    #[serde(default)]
    pub alone: bool,
    /// Their further arguments.
    #[serde(default)]
    pub(super) args: Vec<String>,
    /// The options of the scripted driver.
    #[serde(default)]
    pub(super) driver: Vec<String>,
    /// Which calls fail at first.
    #[serde(default)]
    pub(super) faults: Map<String, Value>,
    /// What happens.
    pub(super) steps: Vec<Step>,
    /// Whether it is in the fast slice.
    #[serde(default)]
    pub slice: bool,
}

/// One thing that happens, or that is waited for.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Step {
    /// Somebody makes these objects.
    Create(Vec<Value>),
    /// Somebody changes an object by a merge patch.
    Patch { object: String, with: Value },
    /// The same with its status.
    PatchStatus { object: String, with: Value },
    /// Somebody deletes an object.
    Delete(String),
    /// An object, or what a JSON pointer finds in it, comes to be so; null is for what is not there. Or a list comes to have
    /// this among others.
    Await {
        object: String,
        #[serde(default)]
        at: String,
        #[serde(default)]
        is: Value,
        has: Option<Value>,
    },
    /// An event with this reason tells about an object.
    AwaitEvent { object: String, reason: String },
    /// The driver has answered this method so many times, with this code and asked for these fields if they are given.
    Called {
        method: String,
        #[serde(default)]
        with: Map<String, Value>,
        #[serde(default = "once")]
        times: usize,
        code: Option<String>,
    },
    /// A call of this method stands still at the driver, as a fault told it.
    Held(String),
    /// Other calls fail from now on; held ones go on.
    Faults(Map<String, Value>),
    /// What is wrong with volumes from now on, as their driver tells it: words for each.
    Conditions(Map<String, Value>),
    /// kill -9.
    Kill(Process),
    /// And it is back.
    Start(Process),
    /// So many milliseconds in which something would happen, if it happened at all.
    Pause(u64),
    /// The driver has had this volume all along.
    Volume { id: String, bytes: i64 },
    /// The same of a snapshot, which may be a group's.
    Snapshot { id: String, volume: String, bytes: i64, group: Option<String> },
    /// The same of a group, with its snapshots.
    Group { id: String, volumes: Vec<String>, members: Vec<String> },
}

/// What can be killed.
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
    /// What each scenario has if it does not say otherwise.
    #[serde(default)]
    defaults: Map<String, Value>,
    /// Objects by name.
    #[serde(default)]
    templates: BTreeMap<String, Value>,
    scenarios: Vec<Map<String, Value>>,
}

/// Reads a file of scenarios; the error says which scenario is wrong.
pub fn load(yaml: &str) -> Result<Vec<Scenario>, String> {
    let file: File = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for written in &file.scenarios {
        for words in combinations(written.get("each"))? {
            let mut scenario = file.defaults.clone();
            scenario.extend(written.iter().map(|(name, value)| (name.clone(), value.clone())));
            scenario.remove("each");
            // Steps that all scenarios of a file begin with.
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
            // Where the scenario is a table, the slice may have some of its rows.
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

/// Every choice of one word for each name.
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

/// Puts words in the place of their names, in keys too.
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

/// An object to create is a template's name, or `template:` with a merge patch in `with:`, or written out.
fn place_templates(scenario: &mut Value, templates: &BTreeMap<String, Value>) -> Result<(), String> {
    let find =
        |name: &str| templates.get(name).cloned().ok_or_else(|| format!("there is no template {name}"));
    let steps = scenario["steps"].as_array_mut().ok_or("it has no steps")?;
    for object in steps.iter_mut().filter_map(|step| step.get_mut("create")?.as_array_mut()).flatten() {
        if let Some(name) = object.as_str() {
            *object = find(name)?;
        } else if let Some(name) = object.get("template").and_then(Value::as_str) {
            let mut made = find(name)?;
            merge(&mut made, &object["with"]);
            *object = made;
        }
    }
    Ok(())
}

/// A merge patch (RFC 7386).
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
    fn a_table_stands_for_many_scenarios_and_templates_for_objects() {
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
        assert_eq!(objects[0]["metadata"]["name"], "claim", "what all begin with");
        let Step::Create(objects) = &all[1].steps[1] else { panic!("{:?}", all[1].steps) };
        assert_eq!(objects[0]["metadata"]["name"], "other");
        assert_eq!(objects[0]["spec"], serde_json::json!({"size": "1Gi"}));
        assert_eq!(all[1].steps[3], Step::Kill(Process::Sidecars));
        assert_eq!(all[2].steps, [Step::Delete("pvc/claim".to_owned())]);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_scenarios_name() {
        let unknown = FILE.replace("[claim]", "[clam]");
        assert_eq!(load(&unknown).unwrap_err(), "create/Aborted: there is no template clam");
        let misspelt = FILE.replace("kill: sidecars", "kil: sidecars");
        assert!(load(&misspelt).unwrap_err().starts_with("create/Aborted: unknown variant `kil`"));
    }
}
