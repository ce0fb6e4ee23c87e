//! Namespace rules: the next step for one namespace. Pure; [`decide`] is the entry point.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_model::Time;

use super::{NAMESPACE_FINALIZER, text};
use crate::kinds::Kind;

/// The description that upstream sets on the ConfigMap of the CA bundle.
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";
const DESCRIPTION: &str = "/metadata/annotations/kubernetes.io~1description";

/// One object in the namespace.
#[derive(Clone)]
pub(super) struct Content {
    pub(super) kind: &'static Kind,
    pub(super) name: String,
    pub(super) deleting: bool,
    pub(super) finalizers: Vec<String>,
}

impl Content {
    pub(super) fn from_object(kind: &'static Kind, object: &Value) -> Self {
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

/// The input of [`decide`].
pub(super) struct View<'a> {
    pub(super) namespace: &'a Value,
    /// The content of a terminating namespace.
    pub(super) content: Vec<Content>,
    /// The default objects exist and are current.
    pub(super) has_defaults: bool,
}

/// The next step for a namespace.
#[derive(Debug)]
pub(super) enum Step {
    Idle,
    /// Create or update the default objects.
    EnsureDefaults,
    /// Delete this content.
    Delete(Vec<Content>),
    /// Report in the status what the deletion waits for.
    UpdateStatus(Value),
    /// The namespace is empty: remove our finalizer.
    Finalize,
}

/// Whether the namespace is not being deleted.
pub(super) fn is_active(namespace: &Value) -> bool {
    text(namespace, "/metadata/deletionTimestamp").is_empty()
}

/// Returns the next step for the namespace.
pub(super) fn decide(view: &View<'_>, now: Time) -> Step {
    let View { namespace, content, has_defaults } = view;
    if is_active(namespace) {
        return if *has_defaults { Step::Idle } else { Step::EnsureDefaults };
    }
    if content.is_empty() {
        let finalizers = namespace.pointer("/spec/finalizers").and_then(Value::as_array);
        let is_ours = finalizers.is_none_or(|finalizers| {
            finalizers.is_empty() || finalizers.iter().any(|condition| condition == NAMESPACE_FINALIZER)
        });
        return if is_ours { Step::Finalize } else { Step::Idle };
    }
    // Delete pods first and wait for them, because they use the other objects.
    let pods = content.iter().any(Content::is_pod);
    let to_delete: Vec<Content> =
        content.iter().filter(|object| !object.deleting && (!pods || object.is_pod())).cloned().collect();
    if !to_delete.is_empty() {
        return Step::Delete(to_delete);
    }
    let status = terminating_status(namespace, content, now);
    if namespace.get("status") == Some(&status) { Step::Idle } else { Step::UpdateStatus(status) }
}

/// The state of the CA bundle of a namespace.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RootCa {
    /// It is as it has to be, or there is no CA to publish.
    Current,
    Missing,
    /// The CA has changed, or a user has changed the ConfigMap.
    Outdated,
}

/// Compares the ConfigMap of the CA bundle with the CA.
pub(super) fn root_ca(found: Option<&Value>, ca: &str) -> RootCa {
    match found {
        _ if ca.is_empty() => RootCa::Current,
        None => RootCa::Missing,
        Some(found) if *found == with_root_ca(found, ca) => RootCa::Current,
        Some(_) => RootCa::Outdated,
    }
}

/// The ConfigMap with the CA as its only data, and with a description as upstream sets it.
pub(super) fn with_root_ca(config_map: &Value, ca: &str) -> Value {
    let mut new = config_map.clone();
    new["data"] = json!({"ca.crt": ca});
    // Binary data under the same key would be a duplicate. Upstream does not read any.
    if let Some(binary) = new.get_mut("binaryData").and_then(Value::as_object_mut) {
        binary.remove("ca.crt");
    }
    if text(&new, DESCRIPTION).is_empty() {
        if !new["metadata"]["annotations"].is_object() {
            new["metadata"]["annotations"] = json!({});
        }
        new["metadata"]["annotations"]["kubernetes.io/description"] = ROOT_CA_DESCRIPTION.into();
    }
    new
}

/// The status of a terminating namespace, with upstream's conditions for the remaining content.
fn terminating_status(namespace: &Value, content: &[Content], now: Time) -> Value {
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
    let remaining_finalizers: Vec<String> =
        finalizers.iter().map(|(of, count)| format!("{of} in {count} resource instances")).collect();
    let remaining_message = format!("Some resources are remaining: {}", resources.join(", "));
    let finalizers_message = format!(
        "Some content in the namespace has finalizers remaining: {}",
        remaining_finalizers.join(", ")
    );
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
        ("NamespaceContentRemaining", "True", "SomeResourcesRemain", remaining_message.as_str()),
        if remaining_finalizers.is_empty() {
            (
                "NamespaceFinalizersRemaining",
                "False",
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            )
        } else {
            ("NamespaceFinalizersRemaining", "True", "SomeFinalizersRemain", finalizers_message.as_str())
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

    fn namespace(terminating: bool, finalizers: Value) -> Value {
        let mut namespace = json!({"metadata": {"name": "a"}, "spec": {"finalizers": finalizers}});
        if terminating {
            namespace["metadata"]["deletionTimestamp"] = "t".into();
        }
        namespace
    }

    fn step(namespace: &Value, content: Vec<Content>, has_defaults: bool) -> String {
        match decide(&View { namespace, content, has_defaults }, Time(0)) {
            Step::UpdateStatus(_) => "UpdateStatus".into(),
            step => format!("{step:?}"),
        }
    }

    #[test]
    fn next_step_depends_on_content_and_finalizers() {
        let active = namespace(false, json!(["kubernetes"]));
        let terminating = namespace(true, json!(["kubernetes"]));
        let (pod, claim) = (content("pods", false, &[]), content("persistentvolumeclaims", false, &[]));
        let (deleting_pod, deleting_claim) =
            (content("pods", true, &[]), content("persistentvolumeclaims", true, &["f"]));
        for (namespace, content, has_defaults, expected) in [
            (&active, vec![], true, "Idle"),
            (&active, vec![], false, "EnsureDefaults"),
            (&terminating, vec![pod.clone(), claim.clone()], false, "Delete([pods pods])"),
            (&terminating, vec![deleting_pod, claim.clone()], false, "UpdateStatus"),
            (&terminating, vec![claim], false, "Delete([persistentvolumeclaims persistentvolumeclaims])"),
            (&terminating, vec![deleting_claim], false, "UpdateStatus"),
            (&terminating, vec![], false, "Finalize"),
            // Only its owner removes another finalizer.
            (&namespace(true, json!(["a/b"])), vec![], false, "Idle"),
            (&namespace(true, json!([])), vec![], false, "Finalize"),
        ] {
            assert_eq!(step(namespace, content, has_defaults), expected);
        }
    }

    #[test]
    fn root_ca_has_exactly_the_current_data_and_a_description() {
        let stored = |change: &dyn Fn(&mut Value)| {
            let mut map = with_root_ca(&json!({"metadata": {"name": "kube-root-ca.crt", "uid": "u"}}), "CA");
            change(&mut map);
            map
        };
        let own_description = |map: &mut Value| {
            map["metadata"]["annotations"]["kubernetes.io/description"] = "mine".into();
        };
        for (found, ca, expected) in [
            (None, "CA", RootCa::Missing),
            (None, "", RootCa::Current),
            (Some(json!({"metadata": {}})), "", RootCa::Current),
            (Some(json!({"metadata": {}})), "CA", RootCa::Outdated),
            (Some(stored(&|_| ())), "CA", RootCa::Current),
            (Some(stored(&|_| ())), "a new CA", RootCa::Outdated),
            (Some(stored(&|map| map["data"]["more"] = "x".into())), "CA", RootCa::Outdated),
            (Some(stored(&|map| map["data"] = Value::Null)), "CA", RootCa::Outdated),
            (Some(stored(&|map| map["binaryData"] = json!({"ca.crt": "eA=="}))), "CA", RootCa::Outdated),
            (Some(stored(&|map| map["binaryData"] = json!({"b": "eA=="}))), "CA", RootCa::Current),
            (Some(stored(&|map| map["metadata"]["annotations"] = Value::Null)), "CA", RootCa::Outdated),
            (Some(stored(&own_description)), "CA", RootCa::Current),
            (Some(stored(&|map| map["metadata"]["labels"] = json!({"a": "b"}))), "CA", RootCa::Current),
        ] {
            assert_eq!(root_ca(found.as_ref(), ca), expected, "{found:?}");
            let written = with_root_ca(&found.unwrap_or_else(|| json!({"metadata": {}})), "CA");
            assert_eq!(root_ca(Some(&written), "CA"), RootCa::Current, "one write is enough");
        }
    }

    #[test]
    fn status_has_upstream_conditions_and_is_written_once() {
        let mut terminating = namespace(true, json!(["kubernetes"]));
        let claims = || vec![content("persistentvolumeclaims", true, &["kubernetes.io/pvc-protection"])];
        let view = View { namespace: &terminating, content: claims(), has_defaults: false };
        let Step::UpdateStatus(status) = decide(&view, Time(0)) else { panic!("expected a status update") };
        let messages: Vec<&str> = status["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|condition| condition["message"].as_str().unwrap())
            .collect();
        assert_eq!(
            messages[3],
            "Some resources are remaining: persistentvolumeclaims. has 1 resource instances"
        );
        assert_eq!(
            messages[4],
            "Some content in the namespace has finalizers remaining: kubernetes.io/pvc-protection in 1 resource instances"
        );
        terminating["status"] = status;
        let view = View { namespace: &terminating, content: claims(), has_defaults: false };
        assert!(matches!(decide(&view, Time(9_000)), Step::Idle));
    }
}
