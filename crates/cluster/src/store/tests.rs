//! Subscriptions: order, bounds, and their end.

use super::*;
use crate::testing::{Thing, decoded, thing};

#[tokio::test]
async fn begins_with_a_resync_then_changes_in_order() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let mut changes = store.changes();
    store.update(|table| table.watched(decoded(thing("a", 1, "red"))));
    store.update(|table| table.watched(decoded(thing("a", 2, "blue"))));
    store.update(|table| table.watched_deletion(&Key::namespaced("ns", "a"), "u-a", "3"));
    assert!(matches!(changes.next().await, Some(Notice::Resync)));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let Some(Notice::Change(change)) = changes.next().await else { panic!() };
        let color = |thing: &Option<Arc<Thing>>| thing.as_ref().map(|thing| thing.color.clone());
        seen.push((color(&change.old), color(&change.new)));
    }
    let color = |text: &str| Some(text.to_owned());
    assert_eq!(seen, [(None, color("red")), (color("red"), color("blue")), (color("blue"), None)]);
    drop(store);
    assert!(changes.next().await.is_none());
}

/// Of all that happened before the store's end, a subscriber holds so much, and one word that it is not all.
async fn is_bounded(mut changes: Changes<Thing>) {
    let (mut notices, mut resyncs) = (0, 0);
    while let Some(notice) = changes.next().await {
        notices += 1;
        resyncs += usize::from(matches!(notice, Notice::Resync));
    }
    assert!(notices <= changes::PENDING && resyncs == 1, "{notices} {resyncs}");
}

#[tokio::test]
async fn a_slow_subscriber_gets_a_resync_instead_of_everything() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let changes = store.changes();
    for version in 1..=3 * changes::PENDING as u64 {
        store.update(|table| table.watched(decoded(thing("a", version, "red"))));
    }
    drop(store);
    is_bounded(changes).await;
}

/// A list after a break ends more objects at once than wait for a subscriber, and somebody waits for one of them.
#[tokio::test]
async fn ends_of_objects_are_told_however_many_there_are() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let many = 3 * changes::PENDING;
    let put = |name: String| store.update(|table| table.watched(decoded(thing(&name, 1, "red"))));
    (0..many).for_each(|number| put(number.to_string()));
    let mut changes = store.changes();
    store.update(|table| {
        table.list_begins();
        table.list_ends("2")
    });
    // And what comes on top leaves none of them out.
    for version in 3..3 + 2 * changes::PENDING as u64 {
        store.update(|table| table.watched(decoded(thing("a", version, "red"))));
    }
    drop(store);
    let (mut ends, mut others, mut resyncs) = (0, 0, 0);
    while let Some(notice) = changes.next().await {
        match notice {
            Notice::Change(change) if change.new.is_none() => ends += 1,
            Notice::Change(_) => others += 1,
            Notice::Resync => resyncs += 1,
        }
    }
    assert_eq!((ends, resyncs), (many, 1));
    assert!(others <= changes::PENDING, "{others}");
}

/// Also ends of objects take no more room than so much.
#[tokio::test]
async fn a_subscriber_that_never_looks_holds_a_bounded_number_of_ends() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let changes = store.changes();
    for version in 0..changes::ENDS as u64 + 2 {
        store.update(|table| table.watched(decoded(thing("a", 2 * version + 1, "red"))));
        let gone = (2 * version + 2).to_string();
        store.update(|table| table.watched_deletion(&Key::namespaced("ns", "a"), "u-a", &gone));
    }
    drop(store);
    is_bounded(changes).await;
}

#[tokio::test]
async fn absorbs_only_what_belongs_to_it() {
    let options = WatchOptions {
        namespace: Some("ns".into()),
        label_selector: Some("mine=yes".into()),
        field_selector: None,
    };
    let store = Store::<Thing>::new(options);
    let enter = |value: Value| store.absorb(value.to_string().as_bytes(), &value);
    enter(thing("plain", 1, "red"));
    let mut labelled = thing("mine", 2, "red");
    labelled["metadata"]["labels"] = serde_json::json!({"mine": "yes"});
    enter(labelled.clone());
    labelled["metadata"]["namespace"] = "elsewhere".into();
    enter(labelled);
    enter(serde_json::json!({"metadata": 5}));
    let names: Vec<String> = store.all().iter().map(|thing| thing.metadata.name.clone()).collect();
    assert_eq!(names, ["mine"]);
}

#[test]
fn a_revision_is_another_one_after_every_change_and_no_other_time() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let mut seen = vec![store.revision()];
    store.update(|table| table.watched(decoded(thing("a", 1, "red"))));
    seen.push(store.revision());
    store.update(|table| table.watched(decoded(thing("a", 2, "blue"))));
    seen.push(store.revision());
    store.update(|table| table.watched(decoded(thing("a", 1, "red"))));
    assert_eq!(store.revision(), seen[2], "an older version changes nothing");
    store.update(|table| table.watched_deletion(&Key::namespaced("ns", "a"), "u-a", "3"));
    seen.push(store.revision());
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
}
