//! Events as the API server receives them.

use super::*;
use crate::testing::{Objects, Reply, cluster};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn event(name: &str, note: &str) -> Event {
    Event {
        regarding: ObjectReference {
            api_version: "v1".into(),
            kind: "PersistentVolumeClaim".into(),
            key: Key::namespaced("ns", name),
            uid: "u".into(),
        },
        event_type: EventType::Warning,
        reason: "ProvisioningFailed".into(),
        note: note.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn repetitions_are_counted_on_one_object() {
    let objects = Arc::new(Mutex::new(Objects::default()));
    let requests = Arc::new(Mutex::new(0));
    let (server, counter) = (Arc::clone(&objects), Arc::clone(&requests));
    let cluster = cluster(move |request| {
        *counter.lock().unwrap() += 1;
        server.lock().unwrap().respond(&request)
    });
    let events = EventRecorder::start(&cluster, "driver_x", "pod-0");
    for _ in 0..50 {
        events.record(event("a", "no room"));
    }
    events.record(event("b", &"ä".repeat(2000)));
    events.flush(Duration::from_secs(5)).await;
    for _ in 0..7 {
        events.record(event("a", "no room"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    let objects = objects.lock().unwrap();
    let written: Vec<_> = objects.by_path.values().collect();
    assert_eq!(written.len(), 2);
    let a = written.iter().find(|event| event["involvedObject"]["name"] == "a").unwrap();
    assert_eq!(
        (&a["count"], &a["reason"], &a["type"]),
        (&json!(57), &json!("ProvisioningFailed"), &json!("Warning"))
    );
    assert_eq!((&a["source"]["component"], &a["metadata"]["namespace"]), (&json!("driver_x"), &json!("ns")));
    assert!(a["lastTimestamp"].as_str().unwrap().ends_with('Z'));
    let b = written.iter().find(|event| event["involvedObject"]["name"] == "b").unwrap();
    assert!(b["message"].as_str().unwrap().len() <= MAX_NOTE);
    assert!(*requests.lock().unwrap() <= 4, "{} requests", requests.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn unresponsive_server_drops_events_without_blocking() {
    let cluster = cluster(|_| Reply::Never);
    let events = EventRecorder::start(&cluster, "driver_x", "pod-0");
    let started = Instant::now();
    for number in 0..5000 {
        events.record(event("a", &number.to_string()));
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    let mut registry = prometheus_client::registry::Registry::default();
    cluster.metrics().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    assert!(text.contains("wharf_events_total{outcome=\"dropped\"} 3976"), "{text}");
    events.flush(Duration::from_secs(1)).await;
    assert_eq!(started.elapsed().as_secs(), 1);
}

#[tokio::test(start_paused = true)]
async fn expired_event_is_recreated() {
    let objects = Arc::new(Mutex::new(Objects::default()));
    let server = Arc::clone(&objects);
    let cluster = cluster(move |request| server.lock().unwrap().respond(&request));
    let events = EventRecorder::start(&cluster, "driver_x", "pod-0");
    events.record(event("a", "x"));
    events.flush(Duration::from_secs(5)).await;
    objects.lock().unwrap().by_path.clear();
    tokio::time::sleep(Duration::from_secs(20)).await;
    events.record(event("a", "x"));
    events.flush(Duration::from_secs(5)).await;
    let objects = objects.lock().unwrap();
    assert_eq!(objects.by_path.values().next().unwrap()["count"], json!(2));
}

#[test]
fn event_names_are_valid() {
    assert_eq!(event_name("data-web-0", Time(255), 0.5), "data-web-0.ff8000");
    let long = format!("{}-{}", "a".repeat(199), "b".repeat(20));
    assert_eq!(event_name(&long, Time(255), 0.0), format!("{}.ff0000", "a".repeat(199)));
}
