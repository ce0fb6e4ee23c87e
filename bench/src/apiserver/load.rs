//! The workload for a server, and its timing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::task::JoinSet;

use crate::sides::Side;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const VOLUMES: &str = "/api/v1/persistentvolumes";
/// Pause between two observed writes, so that each is measured separately.
const BEAT: Duration = Duration::from_millis(25);

async fn send(client: &Client, method: &str, path: &str, body: String) -> String {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body.into_bytes())
        .expect("a request");
    client.request_text(request).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
}

/// A ConfigMap of about 1 KiB, a typical object size.
fn map(name: &str) -> String {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "labels": {"app": "bench"}},
        "data": {"filling": "x".repeat(800)}})
    .to_string()
}

fn volume(number: usize) -> String {
    json!({
        "kind": "PersistentVolume", "apiVersion": "v1",
        "metadata": {"name": format!("pvc-{number:08}-5ba2-4e0c-8f4b-17bd3f5ff2b4"), "annotations": {
            "pv.kubernetes.io/provisioned-by": "bench.test.wharf.dev",
            "volume.kubernetes.io/provisioner-deletion-secret-name": "",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
        }},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "bench",
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
            "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default",
                "name": format!("claim-{number}"), "uid": format!("{number:08}-5ba2-4e0c-8f4b-17bd3f5ff2b4")},
            "csi": {"driver": "bench.test.wharf.dev", "volumeHandle": format!("vol-{number:016x}"), "fsType": "ext4",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-1234-bench.test.wharf.dev"}},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.bench.test.wharf.dev/node", "operator": "In", "values": ["bench-node"]}]}]}},
        },
    })
    .to_string()
}

/// Creates objects with several clients; returns objects per second.
async fn make(
    side: &Side,
    clients: usize,
    count: usize,
    path: &'static str,
    body: fn(usize, &str) -> String,
    of: &str,
) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let mut connected = Vec::new();
    for _ in 0..clients {
        let client = side.client().await;
        // Connect first: the handshake is not measured.
        send(&client, "GET", "/version", String::new()).await;
        connected.push(client);
    }
    let (mut running, started) = (JoinSet::new(), Instant::now());
    for client in connected {
        let (next, of) = (next.clone(), of.to_owned());
        running.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                send(&client, "POST", path, body(number, &of)).await;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("a client does not panic");
    }
    count as f64 / started.elapsed().as_secs_f64()
}

/// Durable writes per second.
pub(crate) async fn writes(side: &Side, of: &str, clients: usize, count: usize) -> f64 {
    make(side, clients, count, MAPS, |number, of| map(&format!("{of}-{number}")), of).await
}

/// Creates PersistentVolumes.
pub(crate) async fn volumes(side: &Side, count: usize) {
    make(side, crate::CLIENTS, count, VOLUMES, |number, _| volume(number), "").await;
}

/// Deletes the written ConfigMaps.
pub(crate) async fn clear(side: &Side) {
    send(&side.client().await, "DELETE", MAPS, String::new()).await;
}

/// Seconds for a complete list of all volumes; the median of several runs.
pub(crate) async fn list(side: &Side, count: usize, times: usize) -> f64 {
    let client = side.client().await;
    let mut took = Vec::new();
    for _ in 0..times {
        let started = Instant::now();
        let list = send(&client, "GET", VOLUMES, String::new()).await;
        took.push(started.elapsed().as_secs_f64());
        assert_eq!(list.matches("\"volumeHandle\"").count(), count);
    }
    crate::median(took)
}

/// Milliseconds from sending a write until a watcher receives the event: median and 99th percentile over all watchers
/// and writes.
pub(crate) async fn watch_latency(side: &Side, watchers: usize, writes: usize) -> (f64, f64) {
    let mut watching = JoinSet::new();
    for _ in 0..watchers {
        let client = side.client().await;
        let request = Request::get(format!(
            "{MAPS}?watch=true&labelSelector=app%3Dbench&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
        ));
        let response = client.send(request.body(Body::empty()).expect("a request")).await.expect("a watch");
        let mut watch = Lines { body: response.into_body(), rest: Vec::new() };
        // A bookmark ends the initial events.
        while !contains(&watch.next().await, b"k8s.io/initial-events-end") {}
        watching.spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < writes {
                if contains(&watch.next().await, b"\"name\":\"seen-") {
                    seen.push(Instant::now());
                }
            }
            seen
        });
    }
    let client = side.client().await;
    send(&client, "GET", "/version", String::new()).await;
    let mut sent = Vec::new();
    for number in 0..writes {
        tokio::time::sleep(BEAT).await;
        sent.push(Instant::now());
        send(&client, "POST", MAPS, map(&format!("seen-{number}"))).await;
    }
    let mut took = Vec::new();
    while let Some(seen) = watching.join_next().await {
        let seen = seen.expect("a watcher does not panic");
        took.extend(sent.iter().zip(seen).map(|(sent, seen)| (seen - *sent).as_secs_f64() * 1e3));
    }
    took.sort_by(f64::total_cmp);
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

fn contains(line: &[u8], words: &[u8]) -> bool {
    line.windows(words.len()).any(|window| window == words)
}

/// A body, line by line.
struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Vec<u8> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                return self.rest.drain(..=end).collect();
            }
            let frame = self.body.frame().await.expect("a watch does not end").expect("a watch goes on");
            if let Ok(data) = frame.into_data() {
                self.rest.extend_from_slice(&data);
            }
        }
    }
}
