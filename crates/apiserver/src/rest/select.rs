//! The label and field selectors of a list or watch.

use serde_json::Value;

use super::encode::is_custom;
use super::query::Query;
use crate::kinds::Kind;
use crate::select::{FieldSelector, LabelSelector};
use crate::status::StatusError;

/// The label and field selectors of a request.
#[derive(Clone)]
pub(crate) struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
    kind: &'static Kind,
}

impl Selection {
    /// Parses both selectors. Rejects fields that the kind does not support.
    pub(crate) fn parse(kind: &'static Kind, query: &Query) -> Result<Self, StatusError> {
        let labels = LabelSelector::parse(query.text("labelSelector"))?;
        let fields = FieldSelector::parse(query.text("fieldSelector"))?;
        fields.check_supported(kind.fields.iter().map(|(name, _)| *name), is_custom(kind))?;
        Ok(Self { labels, fields, kind })
    }

    /// Whether every object is selected.
    pub(crate) fn is_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The name of the only object that can match, if the fields require one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.requires_exact_match("metadata.name")
    }

    /// Whether the object at this key can match, so that others need not be decoded.
    pub(crate) fn can_match(&self, key: &str) -> bool {
        match self.name() {
            Some(name) => key.rsplit('/').next() == Some(name),
            None => true,
        }
    }

    /// Whether the object is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        let value_of = |field: &str| self.kind.field(field).map(|value_of| value_of(object));
        self.labels.matches(object) && self.fields.matches(value_of)
    }
}
