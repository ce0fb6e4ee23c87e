//! Bodies that are small on the wire and large in memory, and requests that are cheap to send and expensive to process.

use super::*;
use crate::bounds::{MAX_COMPOSITES, MAX_VALUES};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn refused(response: &TestResponse) {
    assert_eq!(
        (response.code, &response.body["reason"]),
        (413, &json!("RequestEntityTooLarge")),
        "{}",
        response.message()
    );
    assert!(
        response.message().starts_with("Request entity too large: limit is 100000 values"),
        "{}",
        response.message()
    );
}

fn map(name: &str, data: Value) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn too_many_small_values_are_rejected_in_any_encoding() {
    let server = Server::start().await;
    let pod = |containers: Value| json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": {"containers": containers}});
    for many in [json!({}), json!([]), Value::Null] {
        refused(&server.post(PODS, pod(vec![many; 350_000].into())).await);
    }
    refused(&server.post(MAPS, map("m", vec![1; 1_000_000].into())).await);
    // As protobuf: a message with a list of empty messages.
    let varint = |mut length: usize| {
        let mut bytes = Vec::new();
        while length >= 0x80 {
            bytes.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes
    };
    let field =
        |number: u8, payload: &[u8]| [&[number << 3 | 2][..], &varint(payload.len()), payload].concat();
    // Containers are field 2 of a spec, which is field 2 of a pod.
    let spec = [0x12, 0].repeat(1_000_000);
    let of = [field(1, b"v1"), field(2, b"Pod")].concat();
    let body = [b"k8s\0".to_vec(), field(1, &of), field(2, &field(2, &spec))].concat();
    let request = Request::builder()
        .method("POST")
        .uri(PODS)
        .header("content-type", "application/vnd.kubernetes.protobuf")
        .body(Full::new(bytes::Bytes::from(body)))
        .unwrap();
    refused(&read_response(server.api.serve(request, User::admin()).await).await);

    server.create(MAPS, map("m", json!({"a": "b"}))).await;
    let at = format!("{MAPS}/m");
    for (media, patch) in [
        (MERGE, json!({"data": vec![json!({}); 350_000]})),
        (STRATEGIC, json!({"data": vec![json!([]); 350_000]})),
        (JSON_PATCH, json!([{"op": "add", "path": "/data", "value": vec![Value::Null; 350_000]}])),
    ] {
        refused(&server.request("PATCH", &at, media, patch).await);
    }
}

#[tokio::test]
async fn patch_result_has_the_same_limits_as_a_body() {
    let server = Server::start().await;
    let data = |from: usize, many: usize| -> Value {
        (from..from + many)
            .map(|key| (key.to_string(), Value::from("")))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let half = MAX_VALUES / 2 + 1;
    server.create(MAPS, map("m", data(0, half))).await;
    let at = format!("{MAPS}/m");
    for media in [MERGE, STRATEGIC] {
        refused(&server.request("PATCH", &at, media, json!({"data": data(half, half)})).await);
    }
    // Copies of copies cost the client nothing.
    let mut operations = vec![json!({"op": "add", "path": "/x", "value": [[]]})];
    operations.extend((0..20).map(|_| json!({"op": "copy", "from": "/x", "path": "/x/-"})));
    let response = server.request("PATCH", &at, JSON_PATCH, operations.into()).await;
    assert!(matches!(response.code, 413 | 422), "{}", response.body);
    // Neither do repeated insertions at the front of a long list.
    let long = json!({"op": "add", "path": "/x", "value": vec![""; 80_000]});
    let turn = [json!({"op": "add", "path": "/x/0", "value": ""}), json!({"op": "remove", "path": "/x/0"})];
    let operations: Vec<Value> = std::iter::once(long).chain(turn.into_iter().cycle().take(4_000)).collect();
    let response = server.request("PATCH", &at, JSON_PATCH, operations.into()).await;
    assert_eq!(response.code, 422, "{}", response.body);
}

/// A stored object can be read and sent back, including its defaults.
#[tokio::test]
async fn stored_object_can_be_sent_back() {
    let server = Server::start().await;
    let keys: serde_json::Map<_, _> =
        (0..MAX_VALUES - 100).map(|key| (format!("k{key}"), Value::from(""))).collect();
    let created = server.create(MAPS, map("m", keys.into())).await;
    assert_eq!(server.put(&format!("{MAPS}/m"), created).await.code, 200);
    let containers = |many: usize| -> Value {
        (0..many).map(|at| json!({"name": format!("c{at}"), "image": "i"})).collect::<Vec<_>>().into()
    };
    let pod = |name: &str, many: usize| {
        let spec = json!({"containers": containers(many), "automountServiceAccountToken": false});
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec})
    };
    // A container is one object when sent, and has one more when stored.
    let created = server.create(PODS, pod("p", MAX_COMPOSITES / 2 - 100)).await;
    assert_eq!(server.put(&format!("{PODS}/p"), created).await.code, 200);
    refused(&server.post(PODS, pod("q", MAX_COMPOSITES / 2 + 100)).await);
}

#[tokio::test]
async fn reported_causes_are_limited() {
    let server = Server::start().await;
    // Each duplicate controller is reported with all owners: for thousands that would be gigabytes.
    let owner = json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true});
    let mut object = map("m", json!({}));
    object["metadata"]["ownerReferences"] = vec![owner; 9_000].into();
    let response = server.post(MAPS, object).await;
    assert_eq!(response.code, 422);
    assert!(response.message().len() < 2 << 20, "{}", response.message().len());
    let mut object = map("m", json!({}));
    object["metadata"]["finalizers"] =
        (0..9_000).map(|at| format!("no finalizer {at}")).collect::<Vec<_>>().into();
    let response = server.post(MAPS, object).await;
    assert_eq!(response.code, 422);
    assert_eq!(response.body["details"]["causes"].as_array().map(Vec::len), Some(256));
    assert!(
        response.message().contains(" more]"),
        "{}",
        &response.message()[response.message().len() - 99..]
    );
}

#[tokio::test]
async fn concurrent_lists_share_a_memory_budget() {
    let options = Options { max_list_bytes: 4 << 10, ..Options::default() };
    let server = Server::with(store::Options { sync: false, ..store::Options::default() }, options).await;
    for name in ["a", "b", "c"] {
        server.create(MAPS, map(name, json!({"a": "x".repeat(2 << 10)}))).await;
    }
    let list = async || server.raw(&User::admin(), "GET", MAPS, &[], "").await;
    // Larger than the whole budget, and still served.
    let first = list().await;
    assert_eq!(first.status().as_u16(), 200);
    tokio::time::pause();
    let refused = list().await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert_eq!(read_response(refused).await.body["reason"], "TooManyRequests");
    assert_eq!(server.get(&format!("{MAPS}/a")).await.code, 200, "a single object needs no list budget");
    let bytes = first.into_body().collect().await.unwrap().to_bytes();
    let (second, ()) = tokio::join!(list(), async {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        drop(bytes);
    });
    assert_eq!(read_response(second).await.body["items"].as_array().unwrap().len(), 3);
    // Deleted objects are returned in any case.
    let held = list().await;
    let deleted = server.delete(MAPS).await;
    assert_eq!((deleted.code, deleted.body["items"].as_array().unwrap().len()), (200, 3));
    drop(held);
}
