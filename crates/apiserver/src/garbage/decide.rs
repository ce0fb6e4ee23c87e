//! Garbage collection rules: the next step for one object, given the state of its owners and dependents.
//!
//! Pure functions, no I/O. [`decide`] is the entry point.

use serde_json::Value;

use crate::kinds::{self, Kind};
use crate::rest::{FOREGROUND, ORPHAN, Propagation};

/// An owner reference of a dependent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) blocks: bool,
}

impl Owner {
    /// The owner's kind, if it is served here.
    pub(super) fn kind(&self) -> Option<&'static Kind> {
        // In any version: the objects of a group are the same in all versions.
        let group = self.api_version.split_once('/').map_or("", |(group, _)| group);
        kinds::KINDS
            .iter()
            .copied()
            .find(|kind| kind.group == group && kind.kind == self.kind && kind.is_stored())
    }
}

/// `metadata.ownerReferences`.
pub(super) fn owners(object: &Value) -> Vec<Owner> {
    let list = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .map(|owner| {
            let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
            Owner {
                uid: text("uid"),
                name: text("name"),
                api_version: text("apiVersion"),
                kind: text("kind"),
                blocks: owner.get("blockOwnerDeletion").and_then(Value::as_bool).unwrap_or(false),
            }
        })
        .collect()
}

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerState {
    /// The owner exists.
    Present,
    /// The owner exists and waits for its dependents to be deleted (foreground deletion).
    WaitsForDependents,
    /// The owner's key is empty or holds another object.
    Absent,
    /// The owner's kind is not served here. Nothing is known about the owner, so it counts as existing.
    Unknown,
}

/// The state of an owner whose key holds this object.
pub(super) fn owner_state(owner: &Owner, existing: Option<&Value>) -> OwnerState {
    match existing {
        Some(object) if object.pointer("/metadata/uid").and_then(Value::as_str) == Some(&owner.uid) => {
            if is_deleting(object) && has_finalizer(object, FOREGROUND) {
                OwnerState::WaitsForDependents
            } else {
                OwnerState::Present
            }
        }
        _ => OwnerState::Absent,
    }
}

/// An object that names this one as its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dependent {
    /// Its `blockOwnerDeletion` is set: the owner has to wait for it.
    pub(super) blocks: bool,
    /// It waits for its own dependents.
    pub(super) waits: bool,
}

/// The input of [`decide`].
pub(super) struct View<'a> {
    pub(super) object: &'a Value,
    pub(super) owners: Vec<(Owner, OwnerState)>,
    pub(super) dependents: Vec<Dependent>,
}

/// The next step for an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Idle,
    /// No owner exists any more: delete the object.
    Delete(Propagation),
    /// Some owners are absent: remove these owner references, given by UID.
    RemoveOwners(Vec<String>),
    /// The object and its owners would wait for each other: clear `blockOwnerDeletion`.
    Unblock,
    /// Remove the owner reference from all dependents.
    OrphanDependents,
    /// No dependent blocks the deletion any more: remove this finalizer.
    RemoveFinalizer(&'static str),
}

/// Returns the next step for the object.
pub(super) fn decide(view: &View<'_>) -> Step {
    let View { object, owners, dependents } = view;
    if is_deleting(object) {
        return match (has_finalizer(object, ORPHAN), has_finalizer(object, FOREGROUND)) {
            (true, _) if !dependents.is_empty() => Step::OrphanDependents,
            (true, _) => Step::RemoveFinalizer(ORPHAN),
            (false, true) if dependents.iter().any(|dependent| dependent.blocks) => Step::Idle,
            (false, true) => Step::RemoveFinalizer(FOREGROUND),
            (false, false) => Step::Idle,
        };
    }
    if owners.is_empty() {
        return Step::Idle;
    }
    let keeps = |owner_state: OwnerState| matches!(owner_state, OwnerState::Present | OwnerState::Unknown);
    if owners.iter().any(|(_, owner_state)| keeps(*owner_state)) {
        let absent: Vec<String> = owners
            .iter()
            .filter(|(_, owner_state)| !keeps(*owner_state))
            .map(|(owner, _)| owner.uid.clone())
            .collect();
        return if absent.is_empty() { Step::Idle } else { Step::RemoveOwners(absent) };
    }
    let owner_waits = owners.iter().any(|(_, owner_state)| *owner_state == OwnerState::WaitsForDependents);
    if owner_waits && !dependents.is_empty() {
        let cycle = dependents.iter().any(|dependent| dependent.waits);
        if cycle && owners.iter().any(|(owner, _)| owner.blocks) {
            return Step::Unblock;
        }
        return Step::Delete(Propagation::Foreground);
    }
    Step::Delete(if has_finalizer(object, ORPHAN) {
        Propagation::Orphan
    } else if has_finalizer(object, FOREGROUND) {
        Propagation::Foreground
    } else {
        Propagation::Background
    })
}

fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string)
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|entry| entry == finalizer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn owner(uid: &str, blocks: bool) -> Owner {
        Owner { uid: uid.into(), name: "o".into(), api_version: "v1".into(), kind: "Pod".into(), blocks }
    }

    const NON_BLOCKING: Dependent = Dependent { blocks: false, waits: false };
    const BLOCKING: Dependent = Dependent { blocks: true, waits: false };
    const CYCLE: Dependent = Dependent { blocks: true, waits: true };

    #[test]
    fn dependent_follows_the_state_of_its_owners() {
        use OwnerState::{Absent, Present, Unknown, WaitsForDependents};
        let live = json!({"metadata": {}});
        let orphan = json!({"metadata": {"finalizers": [ORPHAN]}});
        let deleting = json!({"metadata": {"deletionTimestamp": "t"}});
        for (object, states, dependents, expected) in [
            (&live, vec![], vec![], Step::Idle),
            (&live, vec![Present], vec![], Step::Idle),
            (&live, vec![Unknown], vec![], Step::Idle),
            (&live, vec![Absent], vec![], Step::Delete(Propagation::Background)),
            (&live, vec![Absent, Absent], vec![NON_BLOCKING], Step::Delete(Propagation::Background)),
            (&live, vec![Present, Absent], vec![], Step::RemoveOwners(vec!["1".into()])),
            (
                &live,
                vec![Unknown, WaitsForDependents, Absent],
                vec![],
                Step::RemoveOwners(vec!["1".into(), "2".into()]),
            ),
            (&live, vec![WaitsForDependents], vec![], Step::Delete(Propagation::Background)),
            (&live, vec![WaitsForDependents], vec![NON_BLOCKING], Step::Delete(Propagation::Foreground)),
            (&live, vec![WaitsForDependents], vec![CYCLE], Step::Unblock),
            (&orphan, vec![Absent], vec![], Step::Delete(Propagation::Orphan)),
            (&deleting, vec![Absent], vec![], Step::Idle),
        ] {
            let owners: Vec<(Owner, OwnerState)> = states
                .iter()
                .enumerate()
                .map(|(position, owner_state)| (owner(&position.to_string(), true), *owner_state))
                .collect();
            let case = format!("{object} {states:?} {dependents:?}");
            assert_eq!(decide(&View { object, owners, dependents }), expected, "{case}");
        }
    }

    #[test]
    fn deleted_owner_waits_for_or_orphans_its_dependents() {
        for (finalizers, dependents, expected) in [
            (json!([FOREGROUND]), vec![BLOCKING], Step::Idle),
            (json!([FOREGROUND]), vec![NON_BLOCKING], Step::RemoveFinalizer(FOREGROUND)),
            (json!([FOREGROUND]), vec![], Step::RemoveFinalizer(FOREGROUND)),
            (json!([ORPHAN]), vec![NON_BLOCKING], Step::OrphanDependents),
            (json!([ORPHAN]), vec![], Step::RemoveFinalizer(ORPHAN)),
            (json!(["a/b"]), vec![BLOCKING], Step::Idle),
        ] {
            let object = json!({"metadata": {"deletionTimestamp": "t", "finalizers": finalizers}});
            let case = format!("{finalizers} {dependents:?}");
            assert_eq!(decide(&View { object: &object, owners: Vec::new(), dependents }), expected, "{case}");
        }
    }

    #[test]
    fn owner_is_absent_only_if_its_key_holds_another_object() {
        let entry = |uid: &str, finalizers: Value| json!({"metadata": {"uid": uid, "deletionTimestamp": "t", "finalizers": finalizers}});
        let owner = owner("u", false);
        assert_eq!(owner_state(&owner, None), OwnerState::Absent);
        assert_eq!(owner_state(&owner, Some(&entry("v", json!([])))), OwnerState::Absent);
        assert_eq!(owner_state(&owner, Some(&entry("u", json!([])))), OwnerState::Present);
        assert_eq!(
            owner_state(&owner, Some(&entry("u", json!([FOREGROUND])))),
            OwnerState::WaitsForDependents
        );
        let deployment = Owner { api_version: "apps/v1".into(), kind: "Deployment".into(), ..owner };
        assert!(deployment.kind().is_none());
    }
}
