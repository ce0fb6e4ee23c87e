//! Random requests: paths, parameters, headers and bodies that resemble what the server supports.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::vocabulary::{
    ACCEPT, COLLECTIONS, CONTENT_TYPES, FIELDS, OTHER_PATHS, PARAMETERS, SUBRESOURCES, TEXTS, VALUES,
};

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct TestRequest {
    /// 0: a node, 1: a sidecar, otherwise an administrator.
    pub(crate) user: u8,
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(TEXTS).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => "[a-z]{1,5}".prop_map(|text| text.repeat(60)),
    ]
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        2 => text().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => prop::sample::select(vec![0_i64, 1, -1, 65536, i64::MAX, i64::MIN]).prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let key = prop_oneof![8 => prop::sample::select(FIELDS.split(' ').collect::<Vec<_>>()).prop_map(str::to_owned), 1 => text()];
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            3 => prop::collection::vec((key, inner), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Valid objects with their collections. Random changes are applied to them.
fn valid_objects() -> Vec<(&'static str, Value)> {
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let container = json!({
        "name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
    });
    let pod = json!({
        "containers": [container], "tolerations": [{"key": "k", "operator": "Exists"}], "nodeName": "n1",
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}, {"name": "w", "emptyDir": {}}],
    });
    let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]});
    let volume = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"},
        "claimRef": {"namespace": "default", "name": "a"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
    });
    let drivers = json!([{"name": "d", "nodeID": "n", "topologyKeys": ["k"], "allocatable": {"count": 1}}]);
    let attachment = json!({"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "a"}});
    let lease =
        json!({"holderIdentity": "h", "leaseDurationSeconds": 1, "renewTime": "2020-01-01T00:00:00.000000Z"});
    let snapshot = json!({"volumeSnapshotClassName": "a", "source": {"persistentVolumeClaimName": "a"}});
    let topologies = json!([{"matchLabelExpressions": [{"key": "k", "values": ["v"]}]}]);
    let class = json!({"provisioner": "d", "parameters": {"a": "b"}, "allowedTopologies": topologies});
    let about = json!({"kind": "Pod", "namespace": "default", "name": "a"});
    let event = json!({"involvedObject": about, "reason": "R", "message": "m", "type": "Normal"});
    let object = |spec: Value| json!({"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": spec});
    let plain = |fields: Value| {
        let mut object = json!({"metadata": {"name": "a", "finalizers": ["a/b"]}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let here = "/api/v1/namespaces/default";
    let collection = |plural: &str| -> &'static str {
        COLLECTIONS.iter().find(|path| path.starts_with(here) && path.ends_with(plural)).unwrap()
    };
    vec![
        (collection("/persistentvolumeclaims"), object(claim)),
        (collection("/pods"), object(pod)),
        (collection("/secrets"), plain(json!({"data": {"a": "YQ=="}, "type": "Opaque"}))),
        (collection("/configmaps"), plain(json!({"data": {"a": "b"}}))),
        (collection("/events"), plain(event)),
        ("/api/v1/persistentvolumes", object(volume)),
        ("/api/v1/nodes", object(json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}))),
        ("/apis/storage.k8s.io/v1/csinodes", object(json!({"drivers": drivers}))),
        ("/apis/storage.k8s.io/v1/volumeattachments", object(attachment)),
        ("/apis/storage.k8s.io/v1/storageclasses", plain(class)),
        ("/apis/coordination.k8s.io/v1/namespaces/default/leases", object(lease)),
        ("/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots", object(snapshot)),
    ]
}

/// The JSON pointers to all values within a value.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    out.push(at.to_owned());
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            pointers(value, &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")), out);
        }),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), out))
        }
        _ => {}
    }
}

/// An object with random changes.
fn changed(mut object: Value, changes: Vec<(prop::sample::Index, Value)>) -> Vec<u8> {
    for (index, value) in changes {
        let mut all = Vec::new();
        pointers(&object, "", &mut all);
        if let Some(place) = object.pointer_mut(&all[index.index(all.len())]) {
            *place = value;
        }
    }
    object.to_string().into_bytes()
}

fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, Value)>> {
    prop::collection::vec((any::<prop::sample::Index>(), json()), 0..3)
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let protobuf = (
        prop::sample::select(vec!["Pod", "ConfigMap", "Event", "PersistentVolumeClaim", "DeleteOptions"]),
        any::<Vec<u8>>(),
    )
        .prop_map(|(kind, raw)| {
            let mut type_meta = vec![0x0a, 2, b'v', b'1', 0x12, kind.len() as u8];
            type_meta.extend_from_slice(kind.as_bytes());
            let mut body = b"k8s\0".to_vec();
            body.extend([0x0a, type_meta.len() as u8]);
            body.extend(type_meta);
            body.extend([0x12, raw.len().min(127) as u8]);
            body.extend(raw.into_iter().take(127));
            body
        });
    prop_oneof![
        3 => json().prop_map(|value| value.to_string().into_bytes()),
        1 => prop::collection::vec(json(), 0..4).prop_map(|list| Value::from(list).to_string().into_bytes()),
        1 => any::<Vec<u8>>(),
        1 => protobuf,
        1 => Just(Vec::new()),
    ]
}

/// Selectors of labels and fields, whole and in pieces.
fn selector() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "a",
        "b/c",
        "metadata.name",
        "spec.nodeName",
        "=",
        "==",
        "!=",
        "!",
        ">",
        "<",
        " in ",
        " notin ",
        "(",
        ")",
        ",",
        " ",
        "1",
        "\\",
        "\\,",
        "ü",
    ];
    prop::collection::vec(prop::sample::select(PIECES), 0..12).prop_map(|pieces| pieces.concat())
}

/// Forged continue tokens.
fn token() -> impl Strategy<Value = String> {
    let version = prop::sample::select(vec!["meta.k8s.io/v1", "v1", ""]);
    let revision = prop_oneof![Just(-1), Just(0), Just(1), any::<i64>()];
    (version, revision, text()).prop_map(|(version, revision, start)| {
        BASE64.encode(json!({"v": version, "rv": revision, "start": start}).to_string())
    })
}

/// A JSON patch for a generated object: most of its paths exist.
fn operations() -> impl Strategy<Value = Vec<u8>> {
    const PLACES: &[&str] = &[
        "",
        "/",
        "/metadata",
        "/metadata/labels",
        "/metadata/labels/a",
        "/metadata/finalizers/-",
        "/metadata/finalizers/0",
        "/metadata/name",
        "/spec",
        "/spec/containers/0/image",
        "/spec/containers/-1",
        "/spec/accessModes/1",
        "/data",
        "/data/a",
        "/data/a~1b~0",
        "/status/phase",
        "/~2",
        "no pointer",
    ];
    let name = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test", "jump"]);
    let place = prop::sample::select(PLACES);
    let operation = (name, place.clone(), place, json())
        .prop_map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}));
    prop::collection::vec(operation, 0..6).prop_map(|all| Value::from(all).to_string().into_bytes())
}

fn query() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        3 => prop::sample::select(VALUES).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => selector(),
        1 => token(),
    ];
    prop::collection::vec((prop::sample::select(PARAMETERS), value), 0..4).prop_map(|pairs| {
        let escaped = |text: &str| {
            text.bytes()
                .map(|byte| {
                    if byte.is_ascii_alphanumeric() || b"%-_.".contains(&byte) {
                        char::from(byte).to_string()
                    } else {
                        format!("%{byte:02x}")
                    }
                })
                .collect::<String>()
        };
        pairs.iter().map(|(name, value)| format!("{name}={}", escaped(value))).collect::<Vec<_>>().join("&")
    })
}

fn path() -> impl Strategy<Value = String> {
    let name =
        prop_oneof![4 => Just("a".to_owned()), 1 => "[a-zA-Z%.0-9-]{0,6}", 1 => Just("%2e%2e%2f".to_owned())];
    let object = (prop::sample::select(COLLECTIONS), name, prop::sample::select(SUBRESOURCES))
        .prop_map(|(collection, name, below)| format!("{collection}/{name}{below}"));
    prop_oneof![
        4 => prop::sample::select(COLLECTIONS).prop_map(str::to_owned),
        6 => object,
        1 => prop::sample::select(OTHER_PATHS).prop_map(str::to_owned),
        1 => "(/[a-z0-9.%*]{0,8}){1,7}",
    ]
}

/// Valid requests with random changes in their bodies.
fn nearly_valid() -> impl Strategy<Value = TestRequest> {
    let how = prop::sample::select(vec![
        ("POST", "", "application/json"),
        ("PUT", "/a", "application/json"),
        ("PUT", "/a/status", "application/json"),
        ("PATCH", "/a", "application/merge-patch+json"),
        ("PATCH", "/a", "application/strategic-merge-patch+json"),
        ("PATCH", "/a/status", "application/strategic-merge-patch+json"),
        ("PATCH", "/a", "application/json-patch+json"),
        ("PATCH", "/a/status", "application/json-patch+json"),
        ("DELETE", "/a", "application/json"),
        ("GET", "", "application/json"),
    ]);
    let query = prop_oneof![3 => Just(String::new()), 1 => query()];
    let accept = prop::sample::select(&ACCEPT[..3]);
    (prop::sample::select(valid_objects()), changes(), operations(), how, query, accept).prop_map(
        |((collection, object), changes, operations, (method, below, media), query, accept)| {
            let body = match (method, media) {
                ("GET" | "DELETE", _) => Vec::new(),
                (_, "application/json-patch+json") => operations,
                _ => changed(object, changes),
            };
            let headers = vec![("content-type", media.to_owned()), ("accept", accept.to_owned())];
            TestRequest { user: 2, method, path: format!("{collection}{below}?{query}"), headers, body }
        },
    )
}

/// Any request: most are nearly valid.
pub(crate) fn any_request() -> impl Strategy<Value = TestRequest> {
    prop_oneof![2 => nearly_valid(), 1 => arbitrary_request()]
}

fn arbitrary_request() -> impl Strategy<Value = TestRequest> {
    let method = prop::sample::select(vec![
        "GET", "GET", "POST", "POST", "POST", "PUT", "PUT", "PATCH", "PATCH", "PATCH", "DELETE", "HEAD",
        "OPTIONS", "TRACE",
    ]);
    let media =
        prop_oneof![6 => prop::sample::select(CONTENT_TYPES).prop_map(str::to_owned), 1 => "[ -~]{0,20}"];
    let accept = prop_oneof![6 => prop::sample::select(ACCEPT).prop_map(str::to_owned), 1 => "[ -~]{0,20}"];
    (0..4_u8, method, path(), query(), media, accept, body()).prop_map(
        |(user, method, path, query, media, accept, body)| {
            let path = if query.is_empty() { path } else { format!("{path}?{query}") };
            TestRequest {
                user,
                method,
                path,
                headers: vec![("content-type", media), ("accept", accept)],
                body,
            }
        },
    )
}
