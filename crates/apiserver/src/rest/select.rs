//! Which objects of a kind a list or watch is about.

use serde_json::Value;

use super::encode::is_custom;
use super::query::Query;
use crate::kinds::Kind;
use crate::select::{FieldSelector, LabelSelector};
use crate::status::Refusal;

/// Both selectors of a request.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    known: Vec<(String, fn(&Value) -> String)>,
}

impl Selection {
    /// Reads both; refuses fields that the kind cannot be selected by.
    pub(crate) fn parse(kind: &Kind, query: &Query) -> Result<Self, Refusal> {
        let labels = LabelSelector::parse(query.text("labelSelector"))?;
        let fields = FieldSelector::parse(query.text("fieldSelector"))?;
        fields.check(kind.fields.iter().map(|(name, _)| *name), is_custom(kind))?;
        let names = kind.fields.iter().map(|(name, _)| *name).chain(["metadata.name", "metadata.namespace"]);
        let known = names.filter_map(|name| Some((name.to_owned(), kind.field(name)?))).collect();
        Ok(Self { labels, fields, known })
    }

    /// Whether every object is selected.
    pub(crate) fn is_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether this one is.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object)
            && self.fields.matches(|field| {
                self.known.iter().find(|(known, _)| known == field).map(|(_, value_of)| value_of(object))
            })
    }
}
