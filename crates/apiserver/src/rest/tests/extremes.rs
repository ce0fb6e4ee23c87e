//! Numbers at the limits of their types, in every query parameter and in the fields of objects that are numbers. None
//! causes a panic, which would be answered with status 500.

use std::time::Duration;

use tokio::time::timeout;

use super::*;

/// As text, for a query: in the range of an `i64`, of a `u64`, and in none.
const IN_I64: &[&str] = &[
    "-9223372036854775808",
    "-2147483649",
    "-1",
    "-0",
    "0",
    "1",
    "2147483648",
    "4294967297",
    "9007199254740993",
    "9223372036854775807",
];
const IN_U64: &[&str] = &["9223372036854775808", "18446744073709551615"];
const OUT_OF_RANGE: &[&str] = &[
    "-9223372036854775809",
    "18446744073709551616",
    "1e400",
    "NaN",
    "inf",
    "0x7fffffffffffffff",
    "%2B",
    "%00",
];

fn all() -> impl Iterator<Item = &'static str> {
    IN_I64.iter().chain(IN_U64).chain(OUT_OF_RANGE).copied()
}

const PODS: &str = "/api/v1/namespaces/default/pods";

async fn status(server: &Server, method: &str, path: &str) -> u16 {
    let response = server.raw(&User::admin(), method, path, &[], "").await;
    let code = response.status().as_u16();
    let _ = timeout(Duration::from_millis(1), response.into_body().frame()).await;
    code
}

#[tokio::test]
async fn extreme_numbers_in_a_query_are_refused_or_limited() {
    let server = Server::start().await;
    server.create(CONFIGS, config("a", "red")).await;
    for number in all() {
        let in_i64 = if IN_I64.contains(&number) { 200 } else { 400 };
        let list = |query: &str| format!("{CONFIGS}?{query}={number}");
        assert_eq!(status(&server, "GET", &list("limit")).await, in_i64, "{number}");
        assert_eq!(status(&server, "GET", &list("labelSelector=color&limit")).await, in_i64, "{number}");
        for watch in ["watch=1", "watch=1&allowWatchBookmarks=1", "watch=1&resourceVersion=0"] {
            assert_eq!(
                status(&server, "GET", &list(&format!("{watch}&timeoutSeconds"))).await,
                in_i64,
                "{number}"
            );
        }
        // Upstream refuses a revision that it has not reached with 504; its clients then list from the newest one.
        let unsigned = !number.starts_with('-') && (IN_I64.contains(&number) || IN_U64.contains(&number));
        let expected = if unsigned { &[200, 410, 504][..] } else { &[400] };
        for query in [
            "resourceVersion",
            "limit=5&resourceVersion",
            "resourceVersionMatch=NotOlderThan&resourceVersion",
        ] {
            let code = status(&server, "GET", &list(query)).await;
            assert!(expected.contains(&code), "{query}={number}: {code}");
        }
        for query in [
            "watch=1&resourceVersion",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion",
        ] {
            if unsigned {
                let code = status(&server, "GET", &list(query)).await;
                assert!([200, 504].contains(&code), "{query}={number}: {code}");
            } else {
                // As upstream, with status 500.
                let refused = server.get(&list(query)).await;
                assert!(
                    refused.message().contains("strconv.ParseUint"),
                    "{query}={number}: {}",
                    refused.body
                );
            }
        }
    }
}

#[tokio::test]
async fn extreme_revisions_in_a_continue_token_are_refused() {
    use base64::Engine as _;
    let server = Server::start().await;
    for number in
        ["-9223372036854775808", "-2", "-1", "0", "1", "9223372036854775807", "18446744073709551615", "1e400"]
    {
        let token = format!(r#"{{"v":"meta.k8s.io/v1","rv":{number},"start":"a"}}"#);
        let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
        let code =
            status(&server, "GET", &format!("{CONFIGS}?limit=9223372036854775807&continue={token}")).await;
        let expected = match number {
            "-1" => 200,
            "1" => 410,
            "9223372036854775807" => 504,
            _ => 400,
        };
        assert_eq!(code, expected, "{number}");
    }
}

#[tokio::test]
async fn extreme_grace_periods_are_refused_or_limited() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    let (path, forced) = (format!("{PODS}/p"), format!("{PODS}/p?gracePeriodSeconds=0"));
    for number in all() {
        for (path, body) in [
            (format!("{path}?gracePeriodSeconds={number}"), String::new()),
            (path.clone(), format!(r#"{{"gracePeriodSeconds": {number}}}"#)),
        ] {
            server.create(PODS, pod.clone()).await;
            server.create(&format!("{PODS}/p/binding"), binding.clone()).await;
            for _ in 0..2 {
                let headers = [("content-type", JSON)];
                let response = server.raw(&User::admin(), "DELETE", &path, &headers, &body).await;
                let response = read_response(response).await;
                // In JSON, this is not an integer.
                let is_number = number != "-0" || body.is_empty();
                let in_i64 = is_number && IN_I64.contains(&number);
                assert!(
                    if in_i64 {
                        matches!(response.code, 200 | 404)
                    } else {
                        matches!(response.code, 200 | 400 | 404)
                    },
                    "{path} {body}: {}",
                    response.body
                );
            }
            let left = server.get(&format!("{PODS}/p")).await;
            if left.code == 200 && left.body["metadata"]["deletionTimestamp"].is_string() {
                let seconds = left.body["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap();
                assert!((0..=i64::from(i32::MAX)).contains(&seconds), "{path} {body}: {}", left.body);
                let at = left.body["metadata"]["deletionTimestamp"].as_str().unwrap();
                assert!(at.parse::<jiff::Timestamp>().is_ok(), "{path} {body}: {at}");
            }
            server.delete(&forced).await;
        }
    }
}

/// An object, and its numbers.
fn objects() -> Vec<(&'static str, Value, Vec<&'static str>)> {
    let pod = json!({
        "metadata": {"name": "x", "generation": 1},
        "spec": {
            "terminationGracePeriodSeconds": 1, "activeDeadlineSeconds": 1,
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}],
            "securityContext": {"runAsUser": 1, "fsGroup": 1},
            "volumes": [
                {"name": "t", "projected": {
                    "defaultMode": 1,
                    "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}}],
                }},
                {"name": "e", "emptyDir": {"sizeLimit": 1}},
            ],
            "containers": [{
                "name": "c", "image": "i", "ports": [{"containerPort": 1}],
                "resources": {"requests": {"memory": 1}},
                "livenessProbe": {
                    "exec": {"command": ["x"]}, "periodSeconds": 1, "timeoutSeconds": 1, "initialDelaySeconds": 1,
                    "failureThreshold": 1, "terminationGracePeriodSeconds": 1,
                },
                "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
            }],
        },
    });
    let lease = json!({
        "metadata": {"name": "x"}, "spec": {"holderIdentity": "h", "leaseDurationSeconds": 1, "leaseTransitions": 1},
    });
    let driver = json!({
        "metadata": {"name": "x", "generation": 1},
        "spec": {"nodeAllocatableUpdatePeriodSeconds": 10, "tokenRequests": [{"audience": "a", "expirationSeconds": 600}]},
    });
    let node = json!({
        "metadata": {"name": "x"},
        "spec": {"drivers": [{"name": "d", "nodeID": "n", "topologyKeys": [], "allocatable": {"count": 1}}]},
    });
    let volume = json!({
        "metadata": {"name": "x", "generation": 1, "finalizers": ["a/b"], "deletionGracePeriodSeconds": 1},
        "spec": {
            "capacity": {"storage": 1}, "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h"},
        },
    });
    let mut claim = claim("x");
    claim["spec"]["resources"]["requests"]["storage"] = 1.into();
    let event = json!({
        "metadata": {"name": "x", "namespace": "default"}, "involvedObject": {"namespace": "default"}, "count": 1,
        "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
    });
    vec![
        (
            PODS,
            pod,
            vec![
                "/metadata/generation",
                "/spec/terminationGracePeriodSeconds",
                "/spec/activeDeadlineSeconds",
                "/spec/tolerations/0/tolerationSeconds",
                "/spec/securityContext/runAsUser",
                "/spec/securityContext/fsGroup",
                "/spec/volumes/0/projected/defaultMode",
                "/spec/volumes/0/projected/sources/0/serviceAccountToken/expirationSeconds",
                "/spec/volumes/1/emptyDir/sizeLimit",
                "/spec/containers/0/ports/0/containerPort",
                "/spec/containers/0/resources/requests/memory",
                "/spec/containers/0/livenessProbe/periodSeconds",
                "/spec/containers/0/livenessProbe/timeoutSeconds",
                "/spec/containers/0/livenessProbe/initialDelaySeconds",
                "/spec/containers/0/livenessProbe/failureThreshold",
                "/spec/containers/0/livenessProbe/terminationGracePeriodSeconds",
                "/spec/containers/0/lifecycle/preStop/sleep/seconds",
            ],
        ),
        (
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            lease,
            vec!["/spec/leaseDurationSeconds", "/spec/leaseTransitions"],
        ),
        (
            "/apis/storage.k8s.io/v1/csidrivers",
            driver,
            vec![
                "/metadata/generation",
                "/spec/nodeAllocatableUpdatePeriodSeconds",
                "/spec/tokenRequests/0/expirationSeconds",
            ],
        ),
        ("/apis/storage.k8s.io/v1/csinodes", node, vec!["/spec/drivers/0/allocatable/count"]),
        (
            "/api/v1/persistentvolumes",
            volume,
            vec!["/metadata/generation", "/metadata/deletionGracePeriodSeconds", "/spec/capacity/storage"],
        ),
        (CLAIMS, claim, vec!["/spec/resources/requests/storage"]),
        ("/api/v1/namespaces/default/events", event, vec!["/count", "/series/count"]),
    ]
}

#[tokio::test]
async fn extreme_numbers_in_objects_are_refused_or_harmless() {
    const TABLE: &[(&str, &str)] = &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let server = Server::start().await;
    let numbers = [
        json!(i64::MIN),
        json!(-1),
        json!(0),
        json!(599),
        json!(i32::MAX),
        json!(i64::from(i32::MAX) + 1),
        json!(1_u64 << 32),
        json!((1_u64 << 32) + 1),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(0.5),
        json!(1e308),
        json!(-1e308),
    ];
    let mut accepted = 0;
    for (collection, object, fields) in objects() {
        for field in fields {
            for number in &numbers {
                let mut object = object.clone();
                *object.pointer_mut(field).unwrap() = number.clone();
                let path = format!("{collection}/x");
                let what = format!("{collection} {field} = {number}");
                let created = server.post(collection, object).await;
                assert!(matches!(created.code, 201 | 400 | 422), "{what}: {}", created.body);
                if created.code != 201 {
                    continue;
                }
                accepted += 1;
                for shown in [collection, path.as_str()] {
                    let table = server.raw(&User::admin(), "GET", shown, TABLE, "").await;
                    assert_eq!(table.status().as_u16(), 200, "{what}");
                    assert!(read_response(table).await.body["rows"].is_array(), "{what}");
                }
                // A change of the spec, which increments the generation of some kinds.
                let mut changed = created.body.clone();
                changed["metadata"]["labels"] = json!({"a": "b"});
                if let Some(requires) = changed.pointer_mut("/spec/requiresRepublish") {
                    *requires = true.into();
                }
                let put = server.put(&path, changed).await;
                assert!(matches!(put.code, 200 | 422), "{what}: {}", put.body);
                let deleted = server.delete(&path).await;
                assert_eq!(deleted.code, 200, "{what}: {}", deleted.body);
                let left =
                    server.request("PATCH", &path, MERGE, json!({"metadata": {"finalizers": null}})).await;
                assert!(matches!(left.code, 200 | 404), "{what}: {}", left.body);
                server.delete(&format!("{path}?gracePeriodSeconds=0")).await;
                server.wait_deleted(&path).await;
            }
        }
    }
    assert!(accepted > 50, "only {accepted} objects were accepted");
}

#[tokio::test]
async fn extreme_token_lifetimes_are_refused() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    for (seconds, code) in [
        (json!(i64::MIN), 422),
        (json!(-1), 422),
        (json!(0), 422),
        (json!(599), 422),
        (json!(600), 201),
        (json!(1_u64 << 32), 201),
        (json!((1_u64 << 32) + 1), 422),
        (json!(i64::MAX), 422),
        (json!(u64::MAX), 400),
        (json!(1e308), 400),
        (json!("600"), 400),
    ] {
        let response = server.post(path, json!({"spec": {"expirationSeconds": seconds}})).await;
        assert_eq!(response.code, code, "{seconds}: {}", response.body);
    }
}

/// Quality values of `Accept`, and the numbers of a WebSocket handshake.
#[tokio::test]
async fn extreme_numbers_in_headers_are_refused_or_ignored() {
    let server = Server::start().await;
    for number in all().chain(["1e-400", "-inf"]) {
        let accept = format!("application/json;q={number}, */*;q=0.1");
        let headers = [("accept", accept.as_str()), ("sec-websocket-version", number)];
        let response = server.raw(&User::admin(), "GET", CONFIGS, &headers, "").await;
        assert_eq!(response.status().as_u16(), 200, "{number}");
    }
}
