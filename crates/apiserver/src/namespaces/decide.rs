//! What is to be done with one namespace.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_model::Time;

use super::{FINALIZER, text};
use crate::kinds::Kind;

/// One object in it.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) kind: &'static Kind,
    pub(super) name: String,
    pub(super) deleting: bool,
    pub(super) finalizers: Vec<String>,
}

impl Content {
    pub(super) fn of(kind: &'static Kind, object: &Value) -> Self {
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        Self {
            kind,
            name: text(object, "/metadata/name").into(),
            deleting: !text(object, "/metadata/deletionTimestamp").is_empty(),
            finalizers: finalizers
                .into_iter()
                .flatten()
                .filter_map(|finalizer| Some(finalizer.as_str()?.to_owned()))
                .collect(),
        }
    }

    fn is_pod(&self) -> bool {
        self.kind.group.is_empty() && self.kind.plural == "pods"
    }
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.resource(), self.name)
    }
}

/// All that the decision rests on.
pub(super) struct View<'a> {
    pub(super) namespace: &'a Value,
    /// Of one that ends.
    pub(super) content: Vec<Content>,
    /// What every namespace has is there.
    pub(super) furnished: bool,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Step {
    Nothing,
    /// It gets what every namespace has.
    Furnish,
    /// Its content goes, as far as it is not going already.
    Delete(Vec<Content>),
    /// What it waits for stands in its status.
    Report(Value),
    /// It is empty: nothing of ours holds it any more.
    Finalize,
}

/// Whether it does not end.
pub(super) fn is_active(namespace: &Value) -> bool {
    text(namespace, "/metadata/deletionTimestamp").is_empty()
}

/// Decides.
pub(super) fn decide(view: &View<'_>, now: Time) -> Step {
    let View { namespace, content, furnished } = view;
    if is_active(namespace) {
        return if *furnished { Step::Nothing } else { Step::Furnish };
    }
    if content.is_empty() {
        let holders = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
        let ours =
            holders.is_none_or(|holders| holders.is_empty() || holders.iter().any(|of| of == FINALIZER));
        return if ours { Step::Finalize } else { Step::Nothing };
    }
    // Pods first, and nothing else while there are any: they use what else is there.
    let pods = content.iter().any(Content::is_pod);
    let now_due: Vec<Content> =
        content.iter().filter(|object| !object.deleting && (!pods || object.is_pod())).cloned().collect();
    if !now_due.is_empty() {
        return Step::Delete(now_due);
    }
    let status = report(namespace, content, now);
    if namespace.get("status") == Some(&status) { Step::Nothing } else { Step::Report(status) }
}

/// Its status, with what it waits for in upstream's words.
fn report(namespace: &Value, content: &[Content], now: Time) -> Value {
    let mut resources: BTreeMap<String, usize> = BTreeMap::new();
    let mut finalizers: BTreeMap<&str, usize> = BTreeMap::new();
    for object in content {
        *resources.entry(format!("{}.{}", object.kind.plural, object.kind.group)).or_default() += 1;
        for finalizer in &object.finalizers {
            *finalizers.entry(finalizer).or_default() += 1;
        }
    }
    let resources: Vec<String> =
        resources.iter().map(|(of, count)| format!("{of} has {count} resource instances")).collect();
    let held: Vec<String> =
        finalizers.iter().map(|(of, count)| format!("{of} in {count} resource instances")).collect();
    let remaining = format!("Some resources are remaining: {}", resources.join(", "));
    let holding = format!("Some content in the namespace has finalizers remaining: {}", held.join(", "));
    let conditions = [
        (
            "NamespaceDeletionDiscoveryFailure",
            "False",
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "False",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            "False",
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        ("NamespaceContentRemaining", "True", "SomeResourcesRemain", remaining.as_str()),
        if held.is_empty() {
            (
                "NamespaceFinalizersRemaining",
                "False",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            )
        } else {
            ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", holding.as_str())
        },
    ];
    let mut next = namespace.get("status").cloned().unwrap_or_else(|| json!({}));
    next["phase"] = "Terminating".into();
    let old = namespace.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    next["conditions"] = conditions
        .iter()
        .map(|(of, status, reason, message)| {
            let before = old.iter().find(|condition| condition["type"] == **of);
            let since = before.filter(|condition| condition["status"] == **status);
            let since = since.map_or_else(|| now.to_string().into(), |condition| condition["lastTransitionTime"].clone());
            json!({
                "type": of, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
            })
        })
        .collect();
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn content(plural: &str, deleting: bool, finalizers: &[&str]) -> Content {
        let kind = kinds::find("", "v1", plural).unwrap();
        let finalizers = finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect();
        Content { kind, name: plural.into(), deleting, finalizers }
    }

    fn namespace(ends: bool, finalizers: Value) -> Value {
        let mut namespace = json!({"metadata": {"name": "a"}, "spec": {"finalizers": finalizers}});
        if ends {
            namespace["metadata"]["deletionTimestamp"] = "t".into();
        }
        namespace
    }

    fn step(namespace: &Value, content: Vec<Content>, furnished: bool) -> String {
        match decide(&View { namespace, content, furnished }, Time(0)) {
            Step::Report(_) => "Report".into(),
            step => format!("{step:?}"),
        }
    }

    #[test]
    fn steps() {
        let active = namespace(false, json!(["kubernetes"]));
        let ends = namespace(true, json!(["kubernetes"]));
        let (pod, claim) = (content("pods", false, &[]), content("persistentvolumeclaims", false, &[]));
        let (pod_goes, claim_goes) =
            (content("pods", true, &[]), content("persistentvolumeclaims", true, &["f"]));
        for (namespace, content, furnished, expected) in [
            (&active, vec![], true, "Nothing"),
            (&active, vec![], false, "Furnish"),
            (&ends, vec![pod.clone(), claim.clone()], false, "Delete([pods pods])"),
            (&ends, vec![pod_goes, claim.clone()], false, "Report"),
            (&ends, vec![claim], false, "Delete([persistentvolumeclaims persistentvolumeclaims])"),
            (&ends, vec![claim_goes], false, "Report"),
            (&ends, vec![], false, "Finalize"),
            // Somebody else's finalizer is theirs to take away.
            (&namespace(true, json!(["a/b"])), vec![], false, "Nothing"),
            (&namespace(true, json!([])), vec![], false, "Finalize"),
        ] {
            assert_eq!(step(namespace, content, furnished), expected);
        }
    }

    #[test]
    fn the_report_is_upstreams_and_is_written_once() {
        let mut ends = namespace(true, json!(["kubernetes"]));
        let claims = || vec![content("persistentvolumeclaims", true, &["kubernetes.io/pvc-protection"])];
        let view = View { namespace: &ends, content: claims(), furnished: false };
        let Step::Report(status) = decide(&view, Time(0)) else { panic!("it waits") };
        let words: Vec<&str> = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|of| of["message"].as_str().unwrap())
            .collect();
        assert_eq!(
            words[3],
            "Some resources are remaining: persistentvolumeclaims. has 1 resource instances"
        );
        assert_eq!(
            words[4],
            "Some content in the namespace has finalizers remaining: kubernetes.io/pvc-protection in 1 resource instances"
        );
        ends["status"] = status;
        let view = View { namespace: &ends, content: claims(), furnished: false };
        assert!(matches!(decide(&view, Time(9_000)), Step::Nothing));
    }
}
