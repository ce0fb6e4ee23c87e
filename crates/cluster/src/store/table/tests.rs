//! The table under every order of its three sources.

use super::*;
use crate::testing::{Thing, decoded, thing};
use proptest::prelude::*;

fn at(name: &str, version: u64) -> Thing {
    decoded(thing(name, version, "red"))
}

fn key(name: &str) -> Key {
    Key::namespaced("ns", name)
}

fn version(table: &Table<Thing>, name: &str) -> Option<String> {
    table.get(&key(name)).map(|thing| thing.metadata.resource_version.clone())
}

/// A table that has listed `a` and `b` as of version 10.
fn listed() -> Table<Thing> {
    let mut table = Table::new();
    table.list_begins();
    table.list_item(at("a", 5));
    table.list_item(at("b", 6));
    table.list_ends("10");
    table
}

/// kubernetes.md 1.1 "Own writes".
#[test]
fn older_versions_are_ignored() {
    let mut table = listed();
    assert!(table.watched(at("a", 12)).is_some());
    assert!(table.watched(at("a", 11)).is_none());
    assert!(table.absorb(at("a", 12)).is_none());
    assert_eq!(version(&table, "a").as_deref(), Some("12"));
}

#[test]
fn own_writes_are_seen_at_once_and_stay() {
    let mut table = listed();
    assert!(table.absorb(at("c", 13)).is_some());
    assert!(table.watched(at("a", 12)).is_some());
    assert!(table.watched(at("c", 13)).is_none(), "the watch tells what we know");
    assert_eq!(table.len(), 3);
}

#[test]
fn an_answer_that_comes_late_does_not_raise_the_dead() {
    let mut table = listed();
    table.watched_deletion(&key("a"), "u-a", "15");
    assert!(table.absorb(at("a", 14)).is_none());
    assert_eq!(version(&table, "a"), None);
}

#[test]
fn a_relist_removes_only_what_it_proves_gone() {
    let mut table = listed();
    table.absorb(at("new", 25));
    table.list_begins();
    table.list_item(at("a", 5));
    table.list_unreadable(key("x"));
    let changes = table.list_ends("20");
    assert_eq!(changes.len(), 1);
    assert_eq!((&changes[0].key, changes[0].new.is_none()), (&key("b"), true));
    assert_eq!(table.len(), 2, "a, and the one newer than the list");
}

#[test]
fn an_unreadable_object_keeps_its_last_version() {
    let mut table = listed();
    table.list_begins();
    table.list_item(at("a", 5));
    table.list_unreadable(key("b"));
    assert!(table.list_ends("20").is_empty());
    assert_eq!(version(&table, "b").as_deref(), Some("6"));
}

#[test]
fn what_we_deleted_stays_deleted() {
    let mut table = listed();
    assert!(table.bury(&key("a"), "other").is_none());
    assert!(table.bury(&key("a"), "u-a").is_some());
    // Late news of its life, then of its death, then a successor.
    assert!(table.watched(at("a", 11)).is_none());
    assert!(table.watched_deletion(&key("a"), "u-a", "12").is_none());
    assert!(table.buried.is_empty());
    assert!(table.watched(at("a", 13)).is_some());
}

#[test]
fn a_successor_survives_news_of_the_predecessor() {
    let mut table = listed();
    table.bury(&key("a"), "u-a");
    let mut successor = at("a", 14);
    successor.metadata.uid = "u-a2".into();
    assert!(table.absorb(successor).is_some());
    assert!(table.watched_deletion(&key("a"), "u-a", "12").is_none());
    assert_eq!(version(&table, "a").as_deref(), Some("14"));
}

#[test]
fn burials_and_lists() {
    // Buried while a list runs that may have been taken before.
    let mut table = listed();
    table.list_begins();
    table.bury(&key("a"), "u-a");
    assert!(table.list_item(at("a", 5)).is_none());
    table.list_item(at("b", 6));
    table.list_ends("20");
    assert_eq!((version(&table, "a"), table.buried.len()), (None, 1));
    // The next list still shows it: it is there after all.
    table.list_begins();
    assert!(table.list_item(at("a", 5)).is_some());
    table.list_item(at("b", 6));
    table.list_ends("30");
    assert!(table.buried.is_empty());
    // Buried, and a later list does not show it: nothing to remember.
    table.bury(&key("b"), "u-b");
    table.list_begins();
    table.list_item(at("a", 5));
    table.list_ends("40");
    assert!(table.buried.is_empty());
}

#[test]
fn indexes_follow() {
    let mut table = listed();
    table.index("color", Box::new(|thing| vec![thing.color.clone()]));
    table.index("color", Box::new(|_| panic!("the first meaning stays")));
    assert_eq!(table.by_index("color", "red").len(), 2);
    assert_eq!(table.found("color", "red").next().map(|found| found.metadata.name.as_str()), Some("a"));
    table.watched(decoded(thing("a", 11, "blue")));
    assert_eq!(table.by_index("color", "red").len(), 1);
    assert_eq!(table.by_index("color", "blue")[0].metadata.name, "a");
    table.watched_deletion(&key("a"), "u-a", "12");
    assert!(table.by_index("color", "blue").is_empty());
    assert!(table.by_index("shape", "red").is_empty());
    assert_eq!(table.indexes[0].entries.len(), 1, "empty values are not kept");
}

proptest! {
    /// One object's true history is told by the watch in order, with answers to our own requests thrown in at any
    /// moment after they were true. In the end the table is what the watch's end says.
    #[test]
    fn ends_as_the_history_ends(alive in prop::collection::vec(any::<bool>(), 1..12),
                                answers in prop::collection::vec((0_usize..12, 0_usize..12), 0..12)) {
        let mut table = Table::new();
        table.list_begins();
        table.list_ends("1");
        // Each revision either writes the object or deletes it; a new life has a new uid.
        let mut life = 0;
        let mut history = Vec::new();
        let mut before = false;
        for (step, alive) in alive.iter().enumerate() {
            if *alive && !before { life += 1; }
            if *alive || before { history.push((step as u64 + 2, *alive, format!("u{life}"))); }
            before = *alive;
        }
        let object = |version: u64, uid: &str| {
            let mut thing = at("a", version);
            thing.metadata.uid = uid.to_owned();
            thing
        };
        for (told, (version, alive, uid)) in history.iter().enumerate() {
            for (when, which) in &answers {
                // An answer can be ahead of the watch or behind it.
                if *when == told && let Some((version, true, uid)) = history.get(*which) {
                    table.absorb(object(*version, uid));
                }
            }
            match alive {
                true => table.watched(object(*version, uid)),
                false => table.watched_deletion(&key("a"), uid, &version.to_string()),
            };
        }
        let expected = history.last().filter(|(_, alive, _)| *alive).map(|(version, _, _)| version.to_string());
        prop_assert_eq!(version(&table, "a"), expected);
    }
}

/// sidecars.md 3, item 2: pods without claims cost nothing.
#[test]
fn what_is_not_worth_keeping_is_forgotten() {
    let pod = |name: &str, version: u64, claims: &[&str]| wharf_model::Pod {
        metadata: at(name, version).metadata,
        claims: claims.iter().map(|&claim| claim.to_owned()).collect(),
        ..wharf_model::Pod::default()
    };
    let mut table = Table::new();
    table.list_begins();
    assert!(table.list_item(pod("idle", 4, &[])).is_none());
    assert!(table.list_item(pod("user", 5, &["data"])).is_some());
    assert!(table.list_ends("10").is_empty());
    assert_eq!(table.len(), 1);
    assert!(table.watched(pod("idle", 11, &[])).is_none());
    let change = table.watched(pod("user", 12, &[])).unwrap();
    assert!(change.old.is_some() && change.new.is_none());
    assert!(table.watched(pod("user", 13, &["data"])).is_some());
    table.list_begins();
    table.list_item(pod("user", 14, &[]));
    assert_eq!(table.list_ends("20").len(), 1);
    assert_eq!(table.len(), 0);
}
