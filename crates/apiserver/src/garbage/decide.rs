//! What is to be done with one object, by how its owners and its dependents stand.

use serde_json::Value;

use crate::kinds::{self, Kind};
use crate::rest::{FOREGROUND, ORPHAN, Propagation};

/// An owner, as a dependent names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) blocks: bool,
}

impl Owner {
    /// Its kind, if it is served here.
    pub(super) fn kind(&self) -> Option<&'static Kind> {
        // In whichever version it is named: the objects of a group are the same in all.
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

/// How an owner stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is there.
    There,
    /// It is there, and waits for its dependents to go.
    Waits,
    /// Its place is empty, or another object's.
    Gone,
    /// It cannot be here at all: nothing is known of it, so it holds.
    Unknown,
}

/// How an owner stands whose place holds this.
pub(super) fn standing(owner: &Owner, there: Option<&Value>) -> Standing {
    match there {
        Some(object) if object.pointer("/metadata/uid").and_then(Value::as_str) == Some(&owner.uid) => {
            if is_deleting(object) && has_finalizer(object, FOREGROUND) {
                Standing::Waits
            } else {
                Standing::There
            }
        }
        _ => Standing::Gone,
    }
}

/// One that names this object as its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dependent {
    /// The owner has to wait for it.
    pub(super) blocks: bool,
    /// It waits for dependents of its own.
    pub(super) waits: bool,
}

/// All that the decision rests on.
pub(super) struct View<'a> {
    pub(super) object: &'a Value,
    pub(super) owners: Vec<(Owner, Standing)>,
    pub(super) dependents: Vec<Dependent>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Nobody owns it any more.
    Delete(Propagation),
    /// Some owners are gone: it forgets them.
    Disown(Vec<String>),
    /// It and its owners would wait for each other.
    Unblock,
    /// Its dependents forget it.
    FreeDependents,
    /// Nothing holds it on account of its dependents.
    Release(&'static str),
}

/// Decides.
pub(super) fn decide(view: &View<'_>) -> Step {
    let View { object, owners, dependents } = view;
    if is_deleting(object) {
        return match (has_finalizer(object, ORPHAN), has_finalizer(object, FOREGROUND)) {
            (true, _) if !dependents.is_empty() => Step::FreeDependents,
            (true, _) => Step::Release(ORPHAN),
            (false, true) if dependents.iter().any(|dependent| dependent.blocks) => Step::Nothing,
            (false, true) => Step::Release(FOREGROUND),
            (false, false) => Step::Nothing,
        };
    }
    if owners.is_empty() {
        return Step::Nothing;
    }
    let holds = |standing: Standing| matches!(standing, Standing::There | Standing::Unknown);
    if owners.iter().any(|(_, standing)| holds(*standing)) {
        let lost: Vec<String> = owners
            .iter()
            .filter(|(_, standing)| !holds(*standing))
            .map(|(owner, _)| owner.uid.clone())
            .collect();
        return if lost.is_empty() { Step::Nothing } else { Step::Disown(lost) };
    }
    let waited_for = owners.iter().any(|(_, standing)| *standing == Standing::Waits);
    if waited_for && !dependents.is_empty() {
        let circle = dependents.iter().any(|dependent| dependent.waits);
        if circle && owners.iter().any(|(owner, _)| owner.blocks) {
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
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|of| of == finalizer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn owner(uid: &str, blocks: bool) -> Owner {
        Owner { uid: uid.into(), name: "o".into(), api_version: "v1".into(), kind: "Pod".into(), blocks }
    }

    const QUIET: Dependent = Dependent { blocks: false, waits: false };
    const BLOCKS: Dependent = Dependent { blocks: true, waits: false };
    const CIRCLE: Dependent = Dependent { blocks: true, waits: true };

    #[test]
    fn dependents() {
        use Standing::{Gone, There, Unknown, Waits};
        let alive = json!({"metadata": {}});
        let orphan = json!({"metadata": {"finalizers": [ORPHAN]}});
        let on_its_way = json!({"metadata": {"deletionTimestamp": "t"}});
        for (object, standings, dependents, expected) in [
            (&alive, vec![], vec![], Step::Nothing),
            (&alive, vec![There], vec![], Step::Nothing),
            (&alive, vec![Unknown], vec![], Step::Nothing),
            (&alive, vec![Gone], vec![], Step::Delete(Propagation::Background)),
            (&alive, vec![Gone, Gone], vec![QUIET], Step::Delete(Propagation::Background)),
            (&alive, vec![There, Gone], vec![], Step::Disown(vec!["1".into()])),
            (&alive, vec![Unknown, Waits, Gone], vec![], Step::Disown(vec!["1".into(), "2".into()])),
            (&alive, vec![Waits], vec![], Step::Delete(Propagation::Background)),
            (&alive, vec![Waits], vec![QUIET], Step::Delete(Propagation::Foreground)),
            (&alive, vec![Waits], vec![CIRCLE], Step::Unblock),
            (&orphan, vec![Gone], vec![], Step::Delete(Propagation::Orphan)),
            (&on_its_way, vec![Gone], vec![], Step::Nothing),
        ] {
            let owners: Vec<(Owner, Standing)> = standings
                .iter()
                .enumerate()
                .map(|(position, standing)| (owner(&position.to_string(), true), *standing))
                .collect();
            let said = format!("{object} {standings:?} {dependents:?}");
            assert_eq!(decide(&View { object, owners, dependents }), expected, "{said}");
        }
    }

    #[test]
    fn owners_that_are_deleted() {
        for (finalizers, dependents, expected) in [
            (json!([FOREGROUND]), vec![BLOCKS], Step::Nothing),
            (json!([FOREGROUND]), vec![QUIET], Step::Release(FOREGROUND)),
            (json!([FOREGROUND]), vec![], Step::Release(FOREGROUND)),
            (json!([ORPHAN]), vec![QUIET], Step::FreeDependents),
            (json!([ORPHAN]), vec![], Step::Release(ORPHAN)),
            (json!(["a/b"]), vec![BLOCKS], Step::Nothing),
        ] {
            let object = json!({"metadata": {"deletionTimestamp": "t", "finalizers": finalizers}});
            let said = format!("{finalizers} {dependents:?}");
            assert_eq!(decide(&View { object: &object, owners: Vec::new(), dependents }), expected, "{said}");
        }
    }

    #[test]
    fn an_owner_is_gone_only_if_its_place_is_not_its_own() {
        let of = |uid: &str, finalizers: Value| json!({"metadata": {"uid": uid, "deletionTimestamp": "t", "finalizers": finalizers}});
        let owner = owner("u", false);
        assert_eq!(standing(&owner, None), Standing::Gone);
        assert_eq!(standing(&owner, Some(&of("v", json!([])))), Standing::Gone);
        assert_eq!(standing(&owner, Some(&of("u", json!([])))), Standing::There);
        assert_eq!(standing(&owner, Some(&of("u", json!([FOREGROUND])))), Standing::Waits);
        let deployment = Owner { api_version: "apps/v1".into(), kind: "Deployment".into(), ..owner };
        assert!(deployment.kind().is_none());
    }
}
