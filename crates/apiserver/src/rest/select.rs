//! Which objects of a kind a list or watch is about.

use serde_json::Value;

use super::encode::is_custom;
use super::query::Query;
use crate::kinds::Kind;
use crate::select::{FieldSelector, LabelSelector};
use crate::status::Refusal;

/// Both selectors of a request.
#[derive(Clone)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    kind: &'static Kind,
}

impl Selection {
    /// Reads both; refuses fields that the kind cannot be selected by.
    pub(crate) fn parse(kind: &'static Kind, query: &Query) -> Result<Self, Refusal> {
        let labels = LabelSelector::parse(query.text("labelSelector"))?;
        let fields = FieldSelector::parse(query.text("fieldSelector"))?;
        fields.check(kind.fields.iter().map(|(name, _)| *name), is_custom(kind))?;
        Ok(Self { labels, fields, kind })
    }

    /// Whether every object is selected.
    pub(crate) fn is_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether the object of a key can be: no need to read those of other names.
    pub(crate) fn can_match(&self, key: &str) -> bool {
        match self.fields.exact("metadata.name") {
            Some(name) => key.rsplit('/').next() == Some(name),
            None => true,
        }
    }

    /// Whether this one is.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let value_of = |field: &str| self.kind.field(field).map(|value_of| value_of(object));
        self.labels.matches(object) && self.fields.matches(value_of)
    }
}
