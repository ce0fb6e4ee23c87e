//! Bodies that are small on the wire and large in memory, and work that is cheap to ask for.

use super::*;
use crate::bounds::{HOLDERS, VALUES};

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

fn refused(answer: &Answered) {
    assert_eq!(
        (answer.code, &answer.body["reason"]),
        (413, &json!("RequestEntityTooLarge")),
        "{}",
        answer.message()
    );
    assert!(
        answer.message().starts_with("Request entity too large: limit is 100000 values"),
        "{}",
        answer.message()
    );
}

fn map(name: &str, data: Value) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn many_tiny_values_are_too_many_wherever_they_are() {
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
    // Containers are the second field of a spec, which is the second of a pod.
    let spec = [0x12, 0].repeat(1_000_000);
    let of = [field(1, b"v1"), field(2, b"Pod")].concat();
    let body = [b"k8s\0".to_vec(), field(1, &of), field(2, &field(2, &spec))].concat();
    let request = Request::builder()
        .method("POST")
        .uri(PODS)
        .header("content-type", "application/vnd.kubernetes.protobuf")
        .body(Full::new(bytes::Bytes::from(body)))
        .unwrap();
    refused(&answered(server.api.serve(request, User::admin()).await).await);

    server.make(MAPS, map("m", json!({"a": "b"}))).await;
    let at = format!("{MAPS}/m");
    for (media, patch) in [
        (MERGE, json!({"data": vec![json!({}); 350_000]})),
        (STRATEGIC, json!({"data": vec![json!([]); 350_000]})),
        (JSON_PATCH, json!([{"op": "add", "path": "/data", "value": vec![Value::Null; 350_000]}])),
    ] {
        refused(&server.ask("PATCH", &at, media, patch).await);
    }
}

#[tokio::test]
async fn a_patch_makes_nothing_larger_than_what_can_be_sent() {
    let server = Server::start().await;
    let data = |from: usize, many: usize| -> Value {
        (from..from + many)
            .map(|key| (key.to_string(), Value::from("")))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let half = VALUES / 2 + 1;
    server.make(MAPS, map("m", data(0, half))).await;
    let at = format!("{MAPS}/m");
    for media in [MERGE, STRATEGIC] {
        refused(&server.ask("PATCH", &at, media, json!({"data": data(half, half)})).await);
    }
    // Copies of copies cost the sender nothing.
    let mut operations = vec![json!({"op": "add", "path": "/x", "value": [[]]})];
    operations.extend((0..20).map(|_| json!({"op": "copy", "from": "/x", "path": "/x/-"})));
    let answer = server.ask("PATCH", &at, JSON_PATCH, operations.into()).await;
    assert!(matches!(answer.code, 413 | 422), "{}", answer.body);
    // Nor does room that is made at the front of a long list, again and again.
    let long = json!({"op": "add", "path": "/x", "value": vec![""; 80_000]});
    let turn = [json!({"op": "add", "path": "/x/0", "value": ""}), json!({"op": "remove", "path": "/x/0"})];
    let operations: Vec<Value> = std::iter::once(long).chain(turn.into_iter().cycle().take(4_000)).collect();
    let answer = server.ask("PATCH", &at, JSON_PATCH, operations.into()).await;
    assert_eq!(answer.code, 422, "{}", answer.body);
}

/// What is stored can be read and sent back, defaults and all.
#[tokio::test]
async fn what_is_stored_can_be_sent_again() {
    let server = Server::start().await;
    let keys: serde_json::Map<_, _> =
        (0..VALUES - 100).map(|key| (format!("k{key}"), Value::from(""))).collect();
    let made = server.make(MAPS, map("m", keys.into())).await;
    assert_eq!(server.put(&format!("{MAPS}/m"), made).await.code, 200);
    let containers = |many: usize| -> Value {
        (0..many).map(|at| json!({"name": format!("c{at}"), "image": "i"})).collect::<Vec<_>>().into()
    };
    let pod = |name: &str, many: usize| {
        let spec = json!({"containers": containers(many), "automountServiceAccountToken": false});
        json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec})
    };
    // A container is one object when it is sent, and has one more when it is stored.
    let made = server.make(PODS, pod("p", HOLDERS / 2 - 100)).await;
    assert_eq!(server.put(&format!("{PODS}/p"), made).await.code, 200);
    refused(&server.post(PODS, pod("q", HOLDERS / 2 + 100)).await);
}

#[tokio::test]
async fn faults_are_told_up_to_a_bound() {
    let server = Server::start().await;
    // Of two controllers both are told, with all owners: of thousands that would be gigabytes.
    let owner = json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true});
    let mut object = map("m", json!({}));
    object["metadata"]["ownerReferences"] = vec![owner; 9_000].into();
    let answer = server.post(MAPS, object).await;
    assert_eq!(answer.code, 422);
    assert!(answer.message().len() < 2 << 20, "{}", answer.message().len());
    let mut object = map("m", json!({}));
    object["metadata"]["finalizers"] =
        (0..9_000).map(|at| format!("no finalizer {at}")).collect::<Vec<_>>().into();
    let answer = server.post(MAPS, object).await;
    assert_eq!(answer.code, 422);
    assert_eq!(answer.body["details"]["causes"].as_array().map(Vec::len), Some(256));
    assert!(answer.message().contains(" more]"), "{}", &answer.message()[answer.message().len() - 99..]);
}

#[tokio::test]
async fn lists_have_so_much_room_together() {
    let options = Options { lists: 4 << 10, ..Options::default() };
    let server = Server::with(store::Options { sync: false, ..store::Options::default() }, options).await;
    for name in ["a", "b", "c"] {
        server.make(MAPS, map(name, json!({"a": "x".repeat(2 << 10)}))).await;
    }
    let list = async || server.raw(&User::admin(), "GET", MAPS, &[], "").await;
    // Larger than all the room, and answered.
    let first = list().await;
    assert_eq!(first.status().as_u16(), 200);
    tokio::time::pause();
    let refused = list().await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    assert_eq!(answered(refused).await.body["reason"], "TooManyRequests");
    assert_eq!(server.get(&format!("{MAPS}/a")).await.code, 200, "one object is no list");
    let bytes = first.into_body().collect().await.unwrap().to_bytes();
    let (second, ()) = tokio::join!(list(), async {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        drop(bytes);
    });
    assert_eq!(answered(second).await.body["items"].as_array().unwrap().len(), 3);
    // What was deleted is told in any case.
    let held = list().await;
    let deleted = server.delete(MAPS).await;
    assert_eq!((deleted.code, deleted.body["items"].as_array().unwrap().len()), (200, 3));
    drop(held);
}
