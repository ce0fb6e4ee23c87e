//! Permissions of node agents and tokens through the verbs; the rules have their own tests in `access`.

use super::*;

async fn as_user(server: &Server, user: &User, method: &str, path: &str, body: Value) -> TestResponse {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    read_response(server.raw(user, method, path, &[("content-type", JSON)], &body).await).await
}

/// Two pods on two nodes, each with its Secret.
async fn two_nodes() -> (Server, Value) {
    let server = Server::start().await;
    for (pod, node, secret) in [("mine", "n1", "mine"), ("theirs", "n2", "theirs")] {
        let named = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}});
        server.create("/api/v1/namespaces/default/secrets", named).await;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod},
            "spec": {
                "nodeName": node, "containers": [{"name": "c", "image": "i"}],
                "volumes": [{"name": "v", "secret": {"secretName": secret}}],
            },
        });
        server.create("/api/v1/namespaces/default/pods", pod).await;
    }
    let pod = server.get("/api/v1/namespaces/default/pods/mine").await.body;
    (server, pod)
}

#[tokio::test]
async fn node_reads_what_its_pods_reference() {
    let (server, _) = two_nodes().await;
    let node = User::node("n1");
    for (path, code) in [
        ("/api/v1/namespaces/default/secrets/mine", 200),
        ("/api/v1/namespaces/default/secrets/theirs", 403),
        ("/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dmine", 200),
        ("/api/v1/namespaces/default/secrets", 403),
        ("/api/v1/secrets", 403),
        ("/api/v1/namespaces/default/pods/mine", 200),
        ("/api/v1/namespaces/default/pods/theirs", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", 200),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn2", 403),
        ("/api/v1/pods", 403),
        ("/api/v1/persistentvolumes", 403),
        ("/apis/storage.k8s.io/v1/csidrivers", 200),
        ("/api/v1", 200),
    ] {
        let response = as_user(&server, &node, "GET", path, Value::Null).await;
        assert_eq!(response.code, code, "{path}: {}", response.body);
    }
    // The access ends when the pod is deleted.
    let deleted = server
        .request("DELETE", "/api/v1/namespaces/default/pods/mine?gracePeriodSeconds=0", JSON, Value::Null)
        .await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    let response =
        as_user(&server, &node, "GET", "/api/v1/namespaces/default/secrets/mine", Value::Null).await;
    assert_eq!(response.code, 403, "{}", response.body);
}

#[tokio::test]
async fn node_evicts_only_its_own_pods() {
    let (server, _) = two_nodes().await;
    for (pod, code) in [("theirs", 403), ("mine", 201)] {
        let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
        let response = as_user(&server, &User::node("n1"), "POST", &path, eviction).await;
        assert_eq!(response.code, code, "{pod}: {}", response.body);
    }
}

#[tokio::test]
async fn node_gets_tokens_bound_to_its_pods() {
    let (server, pod) = two_nodes().await;
    let (node, path) = (User::node("n1"), "/api/v1/namespaces/default/serviceaccounts/default/token");
    let request = |bound: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "boundObjectRef": bound}});
    let unbound = as_user(&server, &node, "POST", path, request(Value::Null)).await;
    assert_eq!(
        (unbound.code, unbound.message()),
        (403, r#"serviceaccounts "default" is forbidden: node requested token not bound to a pod"#)
    );
    let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "mine", "uid": pod["metadata"]["uid"]});
    let response = as_user(&server, &node, "POST", path, request(bound)).await;
    assert_eq!(response.code, 201, "{}", response.body);

    let token = response.body["status"]["token"].as_str().unwrap().to_owned();
    let review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let status = server.create(reviews, review.clone()).await["status"].clone();
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:default", "{status}");
    assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/node-name"], json!(["n1"]));
    let deleted = server
        .request("DELETE", "/api/v1/namespaces/default/pods/mine?gracePeriodSeconds=0", JSON, Value::Null)
        .await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    let status = server.create(reviews, review).await["status"].clone();
    assert_eq!(status["error"], "[invalid bearer token, service account token has been invalidated]");
}
