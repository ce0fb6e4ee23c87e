//! Objects as their own keys in a set, so that the name is not stored twice.
//!
//! Guarantees: the order is that of [`Key`], and an object is found by its key.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::sync::Arc;

use wharf_model::{Key, Kind};

/// An object, ordered by its key.
pub(super) struct Named<K>(pub(super) Arc<K>);

/// Something with an object's name: an object, or the key to find one.
pub(super) trait Name {
    /// Namespace and name, in the order of [`Key`].
    fn name(&self) -> (Option<&str>, &str);
}

impl Name for Key {
    fn name(&self) -> (Option<&str>, &str) {
        (self.namespace.as_deref(), &self.name)
    }
}

impl<K: Kind> Name for Named<K> {
    fn name(&self) -> (Option<&str>, &str) {
        let meta = self.0.meta();
        (meta.namespace.as_deref(), &meta.name)
    }
}

impl<'a, K: Kind + 'a> Borrow<dyn Name + 'a> for Named<K> {
    fn borrow(&self) -> &(dyn Name + 'a) {
        self
    }
}

impl Ord for dyn Name + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(&other.name())
    }
}

impl PartialOrd for dyn Name + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Name + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Name + '_ {}

impl<K: Kind> Ord for Named<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name().cmp(&other.name())
    }
}

impl<K: Kind> PartialOrd for Named<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Kind> PartialEq for Named<K> {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl<K: Kind> Eq for Named<K> {}
