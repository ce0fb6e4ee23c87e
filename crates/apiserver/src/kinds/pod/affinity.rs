//! Validation of node affinity, pod affinity and topology spread constraints.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::kinds::{json, meta, names, topology};
use crate::status::Cause;

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const LABEL_KEY_FIELDS: [(&str, &str); 2] = [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")];

/// Validates a pod's affinity.
pub(super) fn validate(spec: &Value) -> Vec<Cause> {
    let mut causes = node_affinity(spec);
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = spec.pointer(&format!("/affinity/{kind}")) else { continue };
        let at = format!("spec.affinity.{kind}");
        for (index, term) in json::list(affinity, &format!("/{REQUIRED}")).iter().enumerate() {
            causes.extend(pod_term(term, &format!("{at}.{REQUIRED}[{index}]")));
        }
        for (index, weighted) in json::list(affinity, &format!("/{PREFERRED}")).iter().enumerate() {
            let at = format!("{at}.{PREFERRED}[{index}]");
            causes.extend(weight(weighted, &at));
            causes
                .extend(pod_term(&json::at(weighted, "/podAffinityTerm"), &format!("{at}.podAffinityTerm")));
        }
    }
    causes
}

fn node_affinity(spec: &Value) -> Vec<Cause> {
    const FIELD: &str = "spec.affinity.nodeAffinity";
    let Some(affinity) = spec.pointer("/affinity/nodeAffinity") else { return Vec::new() };
    let mut causes = Vec::new();
    if let Some(selector) = affinity.get(REQUIRED) {
        causes.extend(topology::node_selector(selector, &format!("{FIELD}.{REQUIRED}"), false));
    }
    for (index, term) in json::list(affinity, &format!("/{PREFERRED}")).iter().enumerate() {
        let field = format!("{FIELD}.{PREFERRED}[{index}]");
        causes.extend(weight(term, &field));
        if let Some(preference) = term.get("preference") {
            // Upstream accepts invalid label values in preferences.
            causes.extend(topology::node_selector_term(preference, &format!("{field}.preference"), true));
        }
    }
    causes
}

fn weight(term: &Value, at: &str) -> Option<Cause> {
    let weight = json::number(term, "/weight").unwrap_or_default();
    let is_good = (1..=100).contains(&weight);
    (!is_good).then(|| Cause::invalid(&format!("{at}.weight"), &weight.into(), "must be in the range 1-100"))
}

fn pod_term(term: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for selector in ["labelSelector", "namespaceSelector"] {
        causes.extend(meta::label_selector(
            term,
            &format!("/{selector}"),
            &format!("{at}.{selector}"),
            false,
        ));
    }
    for name in json::list(term, "/namespaces").iter().filter_map(Value::as_str) {
        causes.extend(meta::invalid_causes(&format!("{at}.namespace"), name, names::label(name, false)));
    }
    causes.extend(label_keys(term, at));
    let key = json::text(term, "/topologyKey");
    causes.extend(topology_key(key, at));
    causes.extend(meta::invalid_causes(&format!("{at}.topologyKey"), key, names::qualified_name(key)));
    causes
}

fn topology_key(key: &str, at: &str) -> Option<Cause> {
    key.is_empty().then(|| Cause::required(&format!("{at}.topologyKey"), "can not be empty"))
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys`: labels whose values other pods must, or must not, share.
fn label_keys(term: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let selector = term.get("labelSelector");
    let keys = |list: &str| json::list(term, &format!("/{list}")).iter().filter_map(Value::as_str);
    for (list, _) in LABEL_KEY_FIELDS {
        if keys(list).next().is_some() && selector.is_none() {
            let detail = "must not be specified when labelSelector is not set";
            causes.push(Cause::forbidden(&format!("{at}.{list}"), detail));
            continue;
        }
        for (index, key) in keys(list).enumerate() {
            causes.extend(meta::invalid_causes(
                &format!("{at}.{list}[{index}]"),
                key,
                names::qualified_name(key),
            ));
        }
    }
    // `merge_label_keys` has already added these keys to the selector, so a key that occurs twice was also set by the
    // user.
    let mut seen: BTreeSet<&str> =
        json::entries(term, "/labelSelector/matchLabels").map(|(key, _)| key).collect();
    for expression in json::list(term, "/labelSelector/matchExpressions") {
        let key = json::text(expression, "/key");
        if let Some(index) = keys("matchLabelKeys").position(|other| other == key)
            && seen.contains(key)
        {
            let detail = "exists in both matchLabelKeys and labelSelector";
            // Upstream's path omits the name of the list.
            causes.push(Cause::invalid(&format!("{at}[{index}]"), &key.into(), detail));
        }
        seen.insert(key);
    }
    for (index, key) in keys("matchLabelKeys").enumerate() {
        if keys("mismatchLabelKeys").any(|other| other == key) {
            let detail = "exists in both matchLabelKeys and mismatchLabelKeys";
            causes.push(Cause::invalid(&format!("{at}.matchLabelKeys[{index}]"), &key.into(), detail));
        }
    }
    causes
}

/// Validates topology spread constraints.
pub(super) fn topology_spread(spec: &Value) -> Vec<Cause> {
    let constraints = json::list(spec, "/topologySpreadConstraints");
    let mut causes = Vec::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let at = format!("spec.topologySpreadConstraints[{index}]");
        let text = |field: &str| json::text(constraint, &format!("/{field}"));
        let positive = |field: &str, number: i64| {
            (number <= 0).then(|| {
                Cause::invalid(&format!("{at}.{field}"), &number.into(), "must be greater than zero")
            })
        };
        causes.extend(positive("maxSkew", json::number(constraint, "/maxSkew").unwrap_or_default()));
        causes.extend(topology_key(text("topologyKey"), &at));
        let (action, known) = (text("whenUnsatisfiable"), ["DoNotSchedule", "ScheduleAnyway"]);
        if !known.contains(&action) {
            causes.push(Cause::not_supported(&format!("{at}.whenUnsatisfiable"), &action.into(), &known));
        }
        let same = |other: &Value| {
            ["topologyKey", "whenUnsatisfiable"]
                .iter()
                .all(|field| json::text(other, &format!("/{field}")) == text(field))
        };
        if constraints[index + 1..].iter().any(same) {
            let pair = format!("{{{}, {action}}}", text("topologyKey"));
            causes.push(Cause::duplicate(&format!("{at}.{{topologyKey, whenUnsatisfiable}}"), &pair.into()));
        }
        if let Some(least) = json::number(constraint, "/minDomains") {
            causes.extend(positive("minDomains", least));
            if action != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                causes.push(Cause::invalid(&format!("{at}.minDomains"), &least.into(), &detail));
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            let (policy, known) = (text(field), ["Honor", "Ignore"]);
            if json::has(constraint, &format!("/{field}")) && !known.contains(&policy) {
                causes.push(Cause::not_supported(&format!("{at}.{field}"), &policy.into(), &known));
            }
        }
        causes.extend(label_keys(constraint, &at));
        causes.extend(meta::label_selector(
            constraint,
            "/labelSelector",
            &format!("{at}.labelSelector"),
            false,
        ));
    }
    causes
}

/// Adds the pod's own values of the labels in `matchLabelKeys` and `mismatchLabelKeys` to the label selectors. Runs
/// once, when the pod is created.
pub(super) fn merge_label_keys(pod: &mut Value) {
    let labels = json::at(pod, "/metadata/labels");
    let Some(spec) = pod.get_mut("spec") else { return };
    for kind in ["podAffinity", "podAntiAffinity"] {
        for (list, inner) in [(PREFERRED, "/podAffinityTerm"), (REQUIRED, "")] {
            let terms = spec.pointer_mut(&format!("/affinity/{kind}/{list}")).and_then(Value::as_array_mut);
            for term in terms.into_iter().flatten().filter_map(|term| term.pointer_mut(inner)) {
                merge(term, &LABEL_KEY_FIELDS, &labels);
            }
        }
    }
    let constraints = spec.get_mut("topologySpreadConstraints").and_then(Value::as_array_mut);
    for constraint in constraints.into_iter().flatten() {
        merge(constraint, &LABEL_KEY_FIELDS[..1], &labels);
    }
}

fn merge(term: &mut Value, lists: &[(&str, &str)], labels: &Value) {
    let mut expressions = Vec::new();
    for (list, operator) in lists {
        for key in json::list(term, &format!("/{list}")).iter().filter_map(Value::as_str) {
            if let Some(value) = labels.get(key) {
                expressions.push(json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    // Without a selector, the keys have no effect.
    let Some(Value::Object(selector)) = term.get_mut("labelSelector").filter(|_| !expressions.is_empty())
    else {
        return;
    };
    match selector.entry("matchExpressions").or_insert_with(|| json!([])) {
        Value::Array(all) => all.extend(expressions),
        other => *other = expressions.into(),
    }
}

#[cfg(test)]
mod tests;
