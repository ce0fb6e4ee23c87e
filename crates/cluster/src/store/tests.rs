//! Subscriptions: order, bounds and closing.

use super::*;
use crate::testing::{Thing, decoded, thing};

#[tokio::test]
async fn subscription_starts_with_a_resync_then_changes_in_order() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let mut changes = store.subscribe();
    store.update(|table| table.watched(decoded(thing("a", 1, "red"))));
    store.update(|table| table.watched(decoded(thing("a", 2, "blue"))));
    store.update(|table| table.watched_deletion(&Key::namespaced("ns", "a"), "u-a", "3"));
    assert!(matches!(changes.next().await, Some(StoreEvent::Resync)));
    let mut seen = Vec::new();
    for _ in 0..3 {
        let Some(StoreEvent::Change(change)) = changes.next().await else { panic!() };
        let color = |thing: &Option<Arc<Thing>>| thing.as_ref().map(|thing| thing.color.clone());
        seen.push((color(&change.old), color(&change.new)));
    }
    let color = |text: &str| Some(text.to_owned());
    assert_eq!(seen, [(None, color("red")), (color("red"), color("blue")), (color("blue"), None)]);
    drop(store);
    assert!(changes.next().await.is_none());
}

/// Asserts that the number of held events is bounded and includes exactly one resync.
async fn is_bounded(mut changes: Subscription<Thing>) {
    let (mut events, mut resyncs) = (0, 0);
    while let Some(event) = changes.next().await {
        events += 1;
        resyncs += usize::from(matches!(event, StoreEvent::Resync));
    }
    assert!(events <= changes::MAX_PENDING && resyncs == 1, "{events} {resyncs}");
}

#[tokio::test]
async fn slow_subscriber_gets_a_resync() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let changes = store.subscribe();
    for version in 1..=3 * changes::MAX_PENDING as u64 {
        store.update(|table| table.watched(decoded(thing("a", version, "red"))));
    }
    drop(store);
    is_bounded(changes).await;
}

/// A relist after an interruption can remove more objects at once than changes may wait for a subscriber.
#[tokio::test]
async fn deletions_are_not_replaced_by_a_resync() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let many = 3 * changes::MAX_PENDING;
    let put = |name: String| store.update(|table| table.watched(decoded(thing(&name, 1, "red"))));
    (0..many).for_each(|number| put(number.to_string()));
    let mut changes = store.subscribe();
    store.update(|table| {
        table.begin_list();
        table.end_list("2")
    });
    // Further changes do not displace the deletions.
    for version in 3..3 + 2 * changes::MAX_PENDING as u64 {
        store.update(|table| table.watched(decoded(thing("a", version, "red"))));
    }
    drop(store);
    let (mut deletions, mut others, mut resyncs) = (0, 0, 0);
    while let Some(event) = changes.next().await {
        match event {
            StoreEvent::Change(change) if change.new.is_none() => deletions += 1,
            StoreEvent::Change(_) => others += 1,
            StoreEvent::Resync => resyncs += 1,
        }
    }
    assert_eq!((deletions, resyncs), (many, 1));
    assert!(others <= changes::MAX_PENDING, "{others}");
}

#[tokio::test]
async fn number_of_held_deletions_is_bounded() {
    let store = Store::<Thing>::new(WatchOptions::default());
    let changes = store.subscribe();
    for version in 0..changes::MAX_DELETIONS as u64 + 2 {
        store.update(|table| table.watched(decoded(thing("a", 2 * version + 1, "red"))));
        let gone = (2 * version + 2).to_string();
        store.update(|table| table.watched_deletion(&Key::namespaced("ns", "a"), "u-a", &gone));
    }
    drop(store);
    is_bounded(changes).await;
}

#[tokio::test]
async fn absorbs_only_objects_that_match_its_options() {
    let options = WatchOptions {
        namespace: Some("ns".into()),
        label_selector: Some("mine=yes".into()),
        ..WatchOptions::default()
    };
    let store = Store::<Thing>::new(options);
    let absorb = |value: Value| store.absorb(value.to_string().as_bytes(), &value);
    absorb(thing("plain", 1, "red"));
    let mut labelled = thing("mine", 2, "red");
    labelled["metadata"]["labels"] = serde_json::json!({"mine": "yes"});
    absorb(labelled.clone());
    labelled["metadata"]["namespace"] = "elsewhere".into();
    absorb(labelled);
    absorb(serde_json::json!({"metadata": 5}));
    let names: Vec<String> = store.all().iter().map(|thing| thing.metadata.name.clone()).collect();
    assert_eq!(names, ["mine"]);
}

#[test]
fn revision_increases_with_every_change_only() {
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
