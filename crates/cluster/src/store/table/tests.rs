//! Updates from the three sources in any order.

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
    let mut table = Table::new(View::Full);
    table.begin_list();
    table.list_item(at("a", 5));
    table.list_item(at("b", 6));
    table.end_list("10");
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
fn own_writes_are_visible_immediately() {
    let mut table = listed();
    assert!(table.absorb(at("c", 13)).is_some());
    assert!(table.watched(at("a", 12)).is_some());
    assert!(table.watched(at("c", 13)).is_none(), "already known from our own write");
    assert_eq!(table.len(), 3);
}

#[test]
fn late_response_does_not_restore_a_deleted_object() {
    let mut table = listed();
    table.watched_deletion(&key("a"), "u-a", "15");
    assert!(table.absorb(at("a", 14)).is_none());
    assert_eq!(version(&table, "a"), None);
}

#[test]
fn relist_removes_only_objects_older_than_the_list() {
    let mut table = listed();
    table.absorb(at("new", 25));
    table.begin_list();
    table.list_item(at("a", 5));
    table.list_undecodable(Some(key("x")));
    let changes = table.end_list("20");
    assert_eq!(changes.len(), 1);
    assert_eq!((&changes[0].key, changes[0].new.is_none()), (&key("b"), true));
    assert_eq!(table.len(), 2, "a, and the object newer than the list");
}

#[test]
fn undecodable_object_keeps_its_last_version() {
    let mut table = listed();
    table.begin_list();
    table.list_item(at("a", 5));
    table.list_undecodable(Some(key("b")));
    assert!(table.end_list("20").is_empty());
    assert_eq!(version(&table, "b").as_deref(), Some("6"));
}

#[test]
fn object_is_undecodable_until_a_later_version_is_decoded_or_it_is_gone() {
    let mut table = listed();
    let undecodable = |table: &Table<Thing>| table.undecodable().cloned().collect::<Vec<_>>();
    for end in 0..3 {
        table.watched_undecodable(Some(key("b")));
        assert_eq!(undecodable(&table), [Some(key("b"))]);
        match end {
            0 => drop(table.watched(at("b", 30))),
            1 => drop(table.watched_deletion(&key("b"), "u-b", "31")),
            _ => {
                table.begin_list();
                table.list_undecodable(None);
                table.end_list("40");
            }
        }
        assert_eq!(undecodable(&table), if end == 2 { vec![None] } else { vec![] }, "{end}");
    }
}

#[test]
fn store_reaches_versions_by_lists_events_and_bookmarks() {
    let mut table = listed();
    let versions = ["10", "14", "15", "20"];
    let reached = |table: &Table<Thing>| versions.map(|version| table.has_reached(version));
    assert_eq!(reached(&table), [true, false, false, false]);
    // The response to a request proves nothing about other objects.
    table.absorb(at("c", 20));
    assert_eq!(reached(&table), [true, false, false, false]);
    table.watched(at("a", 14));
    assert_eq!(reached(&table), [true, true, false, false]);
    table.observe_version("15");
    assert_eq!(reached(&table), [true, true, true, false]);
    table.begin_list();
    assert_eq!(reached(&table), [true, true, true, false]);
    table.end_list("20");
    assert_eq!(reached(&table), [true; 4]);
}

#[test]
fn own_deletion_is_not_undone_by_late_events() {
    let mut table = listed();
    assert!(table.mark_deleted(&key("a"), "other").is_none());
    assert!(table.mark_deleted(&key("a"), "u-a").is_some());
    // A late modification, then the deletion, then a successor.
    assert!(table.watched(at("a", 11)).is_none());
    assert!(table.watched_deletion(&key("a"), "u-a", "12").is_none());
    assert!(table.tombstones.is_empty());
    assert!(table.watched(at("a", 13)).is_some());
}

#[test]
fn successor_survives_the_deletion_of_its_predecessor() {
    let mut table = listed();
    table.mark_deleted(&key("a"), "u-a");
    let mut successor = at("a", 14);
    successor.metadata.uid = "u-a2".into();
    assert!(table.absorb(successor).is_some());
    assert!(table.watched_deletion(&key("a"), "u-a", "12").is_none());
    assert_eq!(version(&table, "a").as_deref(), Some("14"));
}

#[test]
fn tombstones_are_resolved_by_lists() {
    // Deleted during a list that may predate the deletion.
    let mut table = listed();
    table.begin_list();
    table.mark_deleted(&key("a"), "u-a");
    assert!(table.list_item(at("a", 5)).is_none());
    table.list_item(at("b", 6));
    table.end_list("20");
    assert_eq!((version(&table, "a"), table.tombstones.len()), (None, 1));
    // The next list still contains it: it exists after all.
    table.begin_list();
    assert!(table.list_item(at("a", 5)).is_some());
    table.list_item(at("b", 6));
    table.end_list("30");
    assert!(table.tombstones.is_empty());
    // Deleted, and a later list does not contain it: the tombstone is dropped.
    table.mark_deleted(&key("b"), "u-b");
    table.begin_list();
    table.list_item(at("a", 5));
    table.end_list("40");
    assert!(table.tombstones.is_empty());
}

fn by_index(table: &Table<Thing>, name: &str, value: &str) -> Vec<Arc<Thing>> {
    table.find_by_index(name, value).cloned().collect()
}

#[test]
fn indexes_are_updated() {
    let mut table = listed();
    table.index("color", Box::new(|thing| vec![thing.color.clone()]));
    table.index("color", Box::new(|_| panic!("the first index is kept")));
    assert_eq!(by_index(&table, "color", "red").len(), 2);
    assert_eq!(
        table.find_by_index("color", "red").next().map(|found| found.metadata.name.as_str()),
        Some("a")
    );
    table.watched(decoded(thing("a", 11, "blue")));
    assert_eq!(by_index(&table, "color", "red").len(), 1);
    assert_eq!(by_index(&table, "color", "blue")[0].metadata.name, "a");
    table.watched_deletion(&key("a"), "u-a", "12");
    assert!(by_index(&table, "color", "blue").is_empty());
    assert!(by_index(&table, "shape", "red").is_empty());
    assert_eq!(table.indexes[0].entries.len(), 1, "empty values are removed");
}

proptest! {
    /// The watch delivers one object's history in order; responses to our own requests arrive at any time after they
    /// were produced. In the end the table matches the end of the history.
    #[test]
    fn table_converges_to_the_history(alive in prop::collection::vec(any::<bool>(), 1..12),
                                responses in prop::collection::vec((0_usize..12, 0_usize..12), 0..12)) {
        let mut table = Table::new(View::Full);
        table.begin_list();
        table.end_list("1");
        // Each revision either writes the object or deletes it; a recreated object has a new UID.
        let mut incarnation = 0;
        let mut history = Vec::new();
        let mut before = false;
        for (step, alive) in alive.iter().enumerate() {
            if *alive && !before { incarnation += 1; }
            if *alive || before { history.push((step as u64 + 2, *alive, format!("u{incarnation}"))); }
            before = *alive;
        }
        let object = |version: u64, uid: &str| {
            let mut thing = at("a", version);
            thing.metadata.uid = uid.to_owned();
            thing
        };
        for (position, (version, alive, uid)) in history.iter().enumerate() {
            for (when, which) in &responses {
                // A response can be ahead of the watch or behind it.
                if *when == position && let Some((version, true, uid)) = history.get(*which) {
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

/// Pods without claims cost nothing.
#[test]
fn irrelevant_objects_are_not_cached() {
    let pod = |name: &str, version: u64, claims: &[&str]| wharf_model::Pod {
        metadata: at(name, version).metadata,
        claims: claims.iter().map(|&claim| claim.to_owned()).collect(),
        ..wharf_model::Pod::default()
    };
    let mut table = Table::new(View::Slim);
    table.begin_list();
    assert!(table.list_item(pod("idle", 4, &[])).is_none());
    assert!(table.list_item(pod("user", 5, &["data"])).is_some());
    assert!(table.end_list("10").is_empty());
    assert_eq!(table.len(), 1);
    assert!(table.watched(pod("idle", 11, &[])).is_none());
    let change = table.watched(pod("user", 12, &[])).unwrap();
    assert!(change.old.is_some() && change.new.is_none());
    assert!(table.watched(pod("user", 13, &["data"])).is_some());
    table.begin_list();
    table.list_item(pod("user", 14, &[]));
    assert_eq!(table.end_list("20").len(), 1);
    assert_eq!(table.len(), 0);
}
