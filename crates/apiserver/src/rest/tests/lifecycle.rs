use super::*;

fn owned(name: &str, owners: &[(&Value, bool)]) -> Value {
    let owners: Vec<Value> = owners
        .iter()
        .map(|(owner, blocks)| {
            json!({
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks,
            })
        })
        .collect();
    json!({"metadata": {"name": name, "ownerReferences": owners}})
}

#[tokio::test]
async fn dependent_is_deleted_with_its_last_owner() {
    let server = Server::start().await;
    let one = server.create(CONFIGS, config("one", "red")).await;
    let two = server.create(CONFIGS, config("two", "red")).await;
    server.create(CONFIGS, owned("both", &[(&one, false), (&two, false)])).await;
    server.create(CONFIGS, owned("only", &[(&one, false)])).await;
    let both = format!("{CONFIGS}/both");
    server.delete(&format!("{CONFIGS}/one")).await;
    server.wait_deleted(&format!("{CONFIGS}/only")).await;
    let left = server
        .wait_until(&both, |object| object["metadata"]["ownerReferences"].as_array().unwrap().len() == 1)
        .await;
    assert_eq!(left["metadata"]["ownerReferences"][0]["name"], "two");
    server.delete(&format!("{CONFIGS}/two")).await;
    server.wait_deleted(&both).await;
}

#[tokio::test]
async fn unknown_owner_kind_keeps_dependent_and_missing_owner_deletes_it() {
    let server = Server::start().await;
    let deployment =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "uid": "u"}});
    server.create(CONFIGS, owned("held", &[(&deployment, true)])).await;
    let never = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u"}});
    server.create(CONFIGS, owned("free", &[(&never, true)])).await;
    server.wait_deleted(&format!("{CONFIGS}/free")).await;
    assert_eq!(server.get(&format!("{CONFIGS}/held")).await.code, 200);
}

#[tokio::test]
async fn foreground_waits_for_dependents_and_orphan_releases_them() {
    let server = Server::start().await;
    let owner = server.create(CONFIGS, config("owner", "red")).await;
    let mut dependent = owned("dependent", &[(&owner, true)]);
    dependent["metadata"]["finalizers"] = json!(["a/b"]);
    server.create(CONFIGS, dependent).await;
    let at = format!("{CONFIGS}/owner");
    let deleted = server.request("DELETE", &at, JSON, json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!(deleted.code, 200, "{}", deleted.body);
    assert_eq!(deleted.body["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    let held = format!("{CONFIGS}/dependent");
    server.wait_until(&held, |object| object["metadata"]["deletionTimestamp"].is_string()).await;
    assert_eq!(server.get(&at).await.code, 200);
    server.request("PATCH", &held, MERGE, json!({"metadata": {"finalizers": null}})).await;
    server.wait_deleted(&held).await;
    server.wait_deleted(&at).await;

    let owner = server.create(CONFIGS, config("owner", "red")).await;
    server.create(CONFIGS, owned("dependent", &[(&owner, true)])).await;
    server.request("DELETE", &at, JSON, json!({"propagationPolicy": "Orphan"})).await;
    server.wait_deleted(&at).await;
    let free = server.get(&held).await.body;
    assert_eq!(free["metadata"].get("ownerReferences"), None, "{free}");
}

#[tokio::test]
async fn owner_cycle_is_deleted() {
    let server = Server::start().await;
    let one = server.create(CONFIGS, config("one", "red")).await;
    let two = server.create(CONFIGS, owned("two", &[(&one, true)])).await;
    let owners = owned("one", &[(&two, true)])["metadata"]["ownerReferences"].clone();
    let at = format!("{CONFIGS}/one");
    server.request("PATCH", &at, MERGE, json!({"metadata": {"ownerReferences": owners}})).await;
    server.request("DELETE", &at, JSON, json!({"propagationPolicy": "Foreground"})).await;
    server.wait_deleted(&at).await;
    server.wait_deleted(&format!("{CONFIGS}/two")).await;
}

#[tokio::test]
async fn namespace_is_emptied_and_deleted() {
    let server = Server::start().await;
    server.create("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await;
    let accounts = "/api/v1/namespaces/a/serviceaccounts/default";
    server.wait_until(accounts, |_| true).await;
    server.delete(accounts).await;
    server.wait_until(accounts, |_| true).await;
    let configs = "/api/v1/namespaces/a/configmaps";
    let mut held = config("held", "red");
    held["metadata"]["finalizers"] = json!(["a/b"]);
    server.create(configs, held).await;
    server.create(configs, config("free", "red")).await;
    let deleted = server.delete("/api/v1/namespaces/a").await;
    assert_eq!(
        (deleted.code, &deleted.body["status"]["phase"]),
        (200, &json!("Terminating")),
        "{}",
        deleted.body
    );
    let refused = server.post(configs, config("late", "red")).await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert_eq!(
        refused.message(),
        "configmaps \"late\" is forbidden: unable to create new content in namespace a because it is being terminated"
    );
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    server.wait_deleted(&format!("{configs}/free")).await;
    let waits = |namespace: &Value| {
        namespace["status"]["conditions"].as_array().is_some_and(|conditions| {
            conditions.iter().any(|condition| {
                condition["type"] == "NamespaceContentRemaining"
                    && condition["message"]
                        == "Some resources are remaining: configmaps. has 1 resource instances"
            })
        })
    };
    server.wait_until("/api/v1/namespaces/a", waits).await;
    server
        .request("PATCH", &format!("{configs}/held"), MERGE, json!({"metadata": {"finalizers": null}}))
        .await;
    server.wait_deleted("/api/v1/namespaces/a").await;
    // A new namespace of that name is active.
    let again = server.create("/api/v1/namespaces", json!({"metadata": {"name": "a"}})).await;
    assert_eq!(again["status"]["phase"], "Active");
}

#[tokio::test]
async fn initial_namespaces_have_service_accounts() {
    let server = Server::start().await;
    for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
        let namespace = server.get(&format!("/api/v1/namespaces/{name}")).await.body;
        assert_eq!(namespace["status"]["phase"], "Active", "{namespace}");
        assert_eq!(namespace["spec"]["finalizers"], json!(["kubernetes"]));
        assert_eq!(server.get(&format!("/api/v1/namespaces/{name}/serviceaccounts/default")).await.code, 200);
    }
    // A second start creates nothing.
    let before = server.api.store().revision();
    server.api.prepare().await.unwrap();
    assert_eq!(server.api.store().revision(), before);
}

const PODS: &str = "/api/v1/namespaces/default/pods";

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn pod_is_bound_and_deleted_gracefully() {
    let server = Server::start().await;
    server.create(PODS, pod("p")).await;
    let bind = async |node: &str| {
        let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
        server.post(&format!("{PODS}/p/binding"), binding).await
    };
    let bound = bind("n1").await;
    assert_eq!((bound.code, &bound.body["status"]), (201, &json!("Success")), "{}", bound.body);
    assert_eq!(bind("n2").await.code, 409);
    let at = format!("{PODS}/p");
    let on_node = server.get(&format!("{PODS}?fieldSelector=spec.nodeName%3Dn1")).await.body;
    assert_eq!(on_node["items"].as_array().unwrap().len(), 1, "{on_node}");
    let evicted = server.post(&format!("{at}/eviction"), json!({"metadata": {"name": "p"}})).await;
    assert_eq!((evicted.code, &evicted.body["status"]), (201, &json!("Success")), "{}", evicted.body);
    let deleting = server.get(&at).await.body;
    assert_eq!(deleting["metadata"]["deletionGracePeriodSeconds"], 30, "{deleting}");
    let deleted = server.request("DELETE", &at, JSON, json!({"gracePeriodSeconds": 0})).await;
    assert_eq!((deleted.code, &deleted.body["kind"]), (200, &json!("Pod")), "{}", deleted.body);
    assert_eq!(server.get(&at).await.code, 404);
    // No node runs the pod: it is deleted at once.
    server.create(PODS, pod("q")).await;
    server.delete(&format!("{PODS}/q")).await;
    assert_eq!(server.get(&format!("{PODS}/q")).await.code, 404);
}

#[tokio::test]
async fn logs_need_a_node_agent() {
    let server = Server::start().await;
    server.create(PODS, pod("p")).await;
    let refused = server.get(&format!("{PODS}/p/log")).await;
    assert_eq!(refused.code, 501);
    assert!(refused.message().contains("no node agent is connected"), "{}", refused.body);
    assert_eq!(server.get(&format!("{PODS}/q/log")).await.code, 404);
}

#[tokio::test]
async fn events_of_both_groups_are_shared() {
    let server = Server::start().await;
    let core = "/api/v1/namespaces/default/events";
    let newer = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({
        "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "R", "message": "m", "type": "Normal", "count": 2, "source": {"component": "c"},
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:01Z",
    });
    server.create(core, event).await;
    let seen = server.get(&format!("{newer}/e")).await.body;
    assert_eq!((&seen["apiVersion"], &seen["note"]), (&json!("events.k8s.io/v1"), &json!("m")), "{seen}");
    assert_eq!((&seen["regarding"]["name"], &seen["deprecatedCount"]), (&json!("p"), &json!(2)));
    let event = json!({
        "metadata": {"name": "f"}, "regarding": {"kind": "Pod", "name": "q", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "a.io/b", "reportingInstance": "i",
        "action": "A", "reason": "R", "note": "n", "type": "Normal",
    });
    server.create(newer, event).await;
    let list = server.get(&format!("{core}?fieldSelector=involvedObject.name%3Dq")).await.body;
    assert_eq!(list["items"][0]["message"], "n", "{list}");
    let mut watch = server.watch(&format!("{newer}?watch=1")).await;
    assert_eq!(watch.next_summary().await, summary("ADDED", "e"));
    let event = watch.next().await.unwrap();
    assert_eq!(
        (&event["object"]["apiVersion"], &event["object"]["note"]),
        (&json!("events.k8s.io/v1"), &json!("n"))
    );
}

#[tokio::test]
async fn reviews_and_tokens_follow_the_roles() {
    let server = Server::start().await;
    server.create("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).await;
    let node = User::node("n1");
    let path = "/api/v1/namespaces/default/secrets/s";
    let refused = read_response(server.raw(&node, "GET", path, &[], "").await).await;
    assert_eq!((refused.code, &refused.body["reason"]), (403, &json!("Forbidden")), "{}", refused.body);
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default"}}});
    let review = server.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).await;
    assert_eq!((review.code, &review.body["status"]["allowed"]), (201, &json!(true)), "{}", review.body);
    let token =
        server.post("/api/v1/namespaces/default/serviceaccounts/default/token", json!({"spec": {}})).await;
    assert_eq!(token.code, 201, "{}", token.body);
    let review = json!({"spec": {"token": token.body["status"]["token"]}});
    let review = server.post("/apis/authentication.k8s.io/v1/tokenreviews", review).await;
    assert_eq!(
        review.body["status"]["user"]["username"], "system:serviceaccount:default:default",
        "{}",
        review.body
    );
}

#[tokio::test]
async fn collection_is_deleted_and_returned_in_order() {
    let server = Server::start().await;
    for number in 0..200 {
        let color = if number % 4 == 0 { "blue" } else { "red" };
        server.create(CONFIGS, config(&format!("c{number:03}"), color)).await;
    }
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let red = names(&server.get(&format!("{CONFIGS}?labelSelector=color%3Dred")).await.body);
    assert_eq!(red.len(), 150);
    let deleted = server.delete(&format!("{CONFIGS}?labelSelector=color%3Dred")).await;
    assert_eq!((deleted.code, names(&deleted.body)), (200, red));
    assert_eq!(names(&server.get(CONFIGS).await.body).len(), 50);
    // A failed precondition deletes nothing and is returned.
    let refused =
        server.request("DELETE", CONFIGS, JSON, json!({"preconditions": {"uid": "somebody-else"}})).await;
    assert_eq!(refused.code, 409, "{}", refused.body);
    assert_eq!(names(&server.get(CONFIGS).await.body).len(), 50);
}

const NO_SYNC: store::Options = store::Options { sync: false, history: 10_000, history_bytes: 32 << 20 };

fn with_ca(certificate: &str) -> Options {
    Options { ca_certificate: certificate.into(), ..Options::default() }
}

fn root_ca(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt")
}

#[tokio::test]
async fn every_namespace_has_the_root_ca_config_map() {
    let server = Server::with(NO_SYNC, with_ca("a certificate")).await;
    server.create("/api/v1/namespaces", json!({"metadata": {"name": "new"}})).await;
    for namespace in ["default", "kube-system", "new"] {
        let path = root_ca(namespace);
        assert_eq!(server.get(&path).await.body["data"]["ca.crt"], "a certificate", "{namespace}");
        server.delete(&path).await;
        server.wait_until(&path, |object| object["data"]["ca.crt"] == "a certificate").await;
    }
}

/// What a user may do to the ConfigMap: each is undone.
#[tokio::test]
async fn changed_root_ca_config_map_is_restored() {
    let server = Server::with(NO_SYNC, with_ca("a certificate")).await;
    let path = root_ca("default");
    let full = "x".repeat((1 << 20) - "a certificate".len());
    for change in [
        json!({"data": {"ca.crt": "another"}}),
        json!({"data": {"ca.crt": null}}),
        json!({"data": {"more": "x"}}),
        json!({"metadata": {"annotations": null}}),
        json!({"data": {"ca.crt": null, "more": full}}),
        json!({"data": {"ca.crt": "another"}, "immutable": true}),
    ] {
        let changed = server.request("PATCH", &path, MERGE, change.clone()).await;
        assert_eq!(changed.code, 200, "{}", changed.body);
        server
            .wait_until(&path, |object| {
                object["data"] == json!({"ca.crt": "a certificate"})
                    && object["metadata"]["annotations"]["kubernetes.io/description"].is_string()
            })
            .await;
    }
}

/// Otherwise the two writers would use the server without a pause.
#[tokio::test(start_paused = true)]
async fn root_ca_config_map_that_another_writer_changes_back_is_repaired_once_per_second() {
    let server = Server::in_memory(with_ca("a certificate")).await;
    let path = root_ca("default");
    let mut repairs = 0;
    for _ in 0..5000 {
        if server.get(&path).await.body["data"]["ca.crt"] == "a certificate" {
            repairs += 1;
            server.request("PATCH", &path, MERGE, json!({"data": {"ca.crt": "another"}})).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    assert!((4..=7).contains(&repairs), "{repairs}");
}

/// The server starts with another CA than the one that its store has published.
#[tokio::test]
async fn new_ca_is_published_before_the_first_request() {
    let dir = tempfile::tempdir().unwrap();
    for certificate in ["old", "new"] {
        let store = Store::open(dir.path(), NO_SYNC).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), with_ca(certificate));
        api.prepare().await.unwrap();
        let configs = core_kind("configmaps").unwrap();
        for namespace in ["default", "kube-system"] {
            let key = key(configs, namespace, "kube-root-ca.crt");
            let stored = decode(configs, &api.store().get(&key).unwrap().value).unwrap();
            assert_eq!(stored["data"]["ca.crt"], certificate, "{namespace}");
        }
    }
}

/// The client of the deletion disconnects while the store writes: the deletion takes place all the same.
#[tokio::test]
async fn dropped_deletion_of_a_namespace_lets_no_object_in() {
    let server = Server::start().await;
    // Nothing else takes the lock, and the namespace stays.
    server.controllers.abort();
    server.create("/api/v1/namespaces", json!({"metadata": {"name": "ns"}})).await;
    {
        let mut deletion = std::pin::pin!(server.delete("/api/v1/namespaces/ns"));
        let is_pending = std::future::poll_fn(|cx| Poll::Ready(deletion.as_mut().poll(cx).is_pending()));
        assert!(is_pending.await, "the store is writing");
    }
    assert!(server.api.namespace_deletion_lock().try_read().is_err(), "no create may start");
    let late = server.post("/api/v1/namespaces/ns/configmaps", config("late", "red")).await;
    assert_eq!(
        (late.code, &late.body["details"]["causes"][0]["reason"]),
        (403, &json!("NamespaceTerminating"))
    );
}
