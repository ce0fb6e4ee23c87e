//! A selection of the objects of a store, evaluated on decoded objects: a caller that needs few objects can use the store
//! of a watch that another caller has on all of them.

use wharf_model::Kind;

use crate::{WatchOptions, selector};

/// Which objects of a store are selected.
pub(crate) struct Filter<K> {
    namespace: Option<String>,
    label_selector: Option<String>,
    fields: Vec<FieldFilter<K>>,
}

/// The value that a field must have, or must not have.
struct FieldFilter<K> {
    field: fn(&K) -> &str,
    value: String,
    negated: bool,
}

impl<K: Kind> Filter<K> {
    /// The filter of a watch with these options; `None` if the view lacks what they select by.
    pub(crate) fn new(options: &WatchOptions) -> Option<Self> {
        let WatchOptions { namespace, label_selector, field_selector, view: _ } = options;
        if let Some(labels) = label_selector {
            let parsed = selector::match_labels(|_| None, labels);
            parsed.filter(|_| K::HAS_LABELS)?;
        }
        let mut fields = Vec::new();
        for term in selector::field_terms(field_selector.as_deref().unwrap_or_default()) {
            let term = term?;
            let (value, negated) = (term.value.to_owned(), term.negated);
            fields.push(FieldFilter { field: K::field(term.path)?, value, negated });
        }
        Some(Self { namespace: namespace.clone(), label_selector: label_selector.clone(), fields })
    }

    /// Whether the object is selected.
    pub(crate) fn matches(&self, object: &K) -> bool {
        let meta = object.meta();
        let labels = |selector: &String| selector::match_labels(|key| meta.labels.get(key), selector);
        (self.namespace.is_none() || self.namespace == meta.namespace)
            && self.label_selector.as_ref().is_none_or(|selector| labels(selector) == Some(true))
            && self.fields.iter().all(|term| ((term.field)(object) == term.value) != term.negated)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use wharf_model::{CSIStorageCapacity, Pod};

    use super::*;

    fn options(namespace: &str, labels: &str, fields: &str) -> WatchOptions {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let (namespace, label_selector) = (some(namespace), some(labels));
        WatchOptions { namespace, label_selector, field_selector: some(fields), ..WatchOptions::default() }
    }

    #[test]
    fn pods_are_filtered_by_namespace_and_fields() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        for (namespace, fields, expected) in [
            ("", "spec.nodeName=n1", true),
            ("", "spec.nodeName=n2", false),
            ("", "status.phase!=Succeeded,status.phase!=Failed", true),
            ("", "status.phase!=Running", false),
            ("shop", "metadata.name=p", true),
            ("home", "metadata.name=p", false),
        ] {
            let filter = Filter::<Pod>::new(&options(namespace, "", fields)).unwrap();
            assert_eq!(filter.matches(&pod), expected, "{namespace} {fields}");
        }
    }

    #[test]
    fn capacities_are_filtered_by_labels() {
        let object = json!({"metadata": {"name": "c", "labels": {"driver": "d"}}});
        let capacity: CSIStorageCapacity = serde_json::from_value(object).unwrap();
        for (labels, expected) in [("driver=d", true), ("driver=e", false), ("driver in (d,e),!other", true)]
        {
            let filter = Filter::<CSIStorageCapacity>::new(&options("", labels, "")).unwrap();
            assert_eq!(filter.matches(&capacity), expected, "{labels}");
        }
    }

    #[test]
    fn no_filter_for_what_the_view_lacks() {
        assert!(Filter::<Pod>::new(&options("", "app=db", "")).is_none());
        assert!(Filter::<Pod>::new(&options("", "", "spec.schedulerName=x")).is_none());
        assert!(Filter::<Pod>::new(&options("", "", "nonsense")).is_none());
        assert!(Filter::<CSIStorageCapacity>::new(&options("", "what is this", "")).is_none());
    }
}
