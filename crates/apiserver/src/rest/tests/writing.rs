use super::*;

#[tokio::test]
async fn a_claim_from_its_creation_to_its_end() {
    let server = Server::start().await;
    let at = format!("{CLAIMS}/c");
    let made = server.make(CLAIMS, claim("c")).await;
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("PersistentVolumeClaim"), &json!("v1")));
    assert_eq!(made["metadata"]["namespace"], "default");
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(made["spec"]["volumeMode"], "Filesystem");
    assert_eq!(made["status"]["phase"], "Pending");
    assert!(made["metadata"]["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{made}");
    assert_eq!(server.get(&at).await.body, made);
    let list = server.get(CLAIMS).await.body;
    assert_eq!(list["kind"], "PersistentVolumeClaimList");
    let mut item = made.clone();
    item.as_object_mut().unwrap().retain(|field, _| field != "kind" && field != "apiVersion");
    assert_eq!(list["items"], json!([item]));

    let patch = json!({"metadata": {"labels": {"l": "m"}}});
    for media in [MERGE, "application/strategic-merge-patch+json"] {
        let patched = server.ask("PATCH", &at, media, patch.clone()).await;
        assert_eq!(
            (patched.code, &patched.body["metadata"]["labels"]["l"]),
            (200, &json!("m")),
            "{}",
            patched.body
        );
    }
    let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]);
    let patched = server.ask("PATCH", &at, "application/json-patch+json", patch).await;
    assert_eq!(
        (patched.code, &patched.body["metadata"]["annotations"]["a"]),
        (200, &json!("b")),
        "{}",
        patched.body
    );

    // Its spec cannot change, and its status only where it is.
    let patched = server
        .ask("PATCH", &at, MERGE, json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}}))
        .await;
    assert_eq!(
        (patched.code, &patched.body["status"]["phase"]),
        (200, &json!("Pending")),
        "{}",
        patched.body
    );
    let patched = server.ask("PATCH", &at, MERGE, json!({"spec": {"accessModes": ["ReadWriteMany"]}})).await;
    assert_eq!((patched.code, &patched.body["reason"]), (422, &json!("Invalid")), "{}", patched.body);
    let status = format!("{at}/status");
    let patched = server
        .ask("PATCH", &status, MERGE, json!({"spec": {"volumeName": "w"}, "status": {"phase": "Bound"}}))
        .await;
    assert_eq!(patched.body["status"]["phase"], "Bound", "{}", patched.body);
    assert_eq!(patched.body["spec"]["volumeName"], "v", "{}", patched.body);

    let deleted = server.delete(&at).await;
    assert_eq!(deleted.code, 200);
    assert!(deleted.body["metadata"]["deletionTimestamp"].is_string(), "{}", deleted.body);
    let again = server.post(CLAIMS, claim("c")).await;
    assert_eq!(again.code, 409);
    assert_eq!(again.message(), "object is being deleted: persistentvolumeclaims \"c\" already exists");
    let freed = server.ask("PATCH", &at, MERGE, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(freed.code, 200, "{}", freed.body);
    let gone = server.get(&at).await;
    assert_eq!((gone.code, gone.message()), (404, "persistentvolumeclaims \"c\" not found"));
}

#[tokio::test]
async fn what_cannot_be_created() {
    let server = Server::start().await;
    server.make(CONFIGS, config("x", "red")).await;
    let mut elsewhere = config("y", "red");
    elsewhere["metadata"]["namespace"] = "other".into();
    let mut versioned = config("y", "red");
    versioned["metadata"]["resourceVersion"] = "3".into();
    for (path, body, code, words) in [
        (CONFIGS, config("x", "red"), 409, "configmaps \"x\" already exists"),
        (CONFIGS, config("", "red"), 422, "metadata.name: Required value: name or generateName is required"),
        (CONFIGS, config("A_B", "red"), 422, "metadata.name: Invalid value: \"A_B\""),
        (
            CONFIGS,
            elsewhere,
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (CONFIGS, versioned, 500, "resourceVersion should not be set on objects to be created"),
        ("/api/v1/namespaces/no/configmaps", config("x", "red"), 404, "namespaces \"no\" not found"),
        (
            CONFIGS,
            json!({"kind": "Secret", "apiVersion": "v1"}),
            400,
            "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion",
        ),
        (
            CONFIGS,
            json!({"kind": "ConfigMap", "apiVersion": "v2"}),
            400,
            "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\"",
        ),
        (CONFIGS, json!("text"), 400, "the object provided is unrecognized (must be of type ConfigMap)"),
        (CONFIGS, Value::Null, 400, "the object provided is unrecognized"),
        (
            CONFIGS,
            json!({"metadata": {"name": 5}}),
            400,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap",
        ),
    ] {
        let answer = server.post(path, body.clone()).await;
        assert_eq!(answer.code, code, "{body}: {}", answer.body);
        assert!(answer.message().contains(words), "{body}: {}", answer.body);
        assert_eq!((&answer.body["kind"], &answer.body["status"]), (&json!("Status"), &json!("Failure")));
    }
    let other = server.ask("POST", CONFIGS, "application/yaml", json!({})).await;
    assert_eq!((other.code, &other.body["reason"]), (415, &json!("UnsupportedMediaType")));
    let other = server.ask("POST", CONFIGS, "application/vnd.kubernetes.protobuf", json!({})).await;
    assert_eq!(other.code, 400);
    assert!(other.message().contains("does not appear to be a protobuf message"), "{}", other.body);
    let large = config("large", &"x".repeat(4 << 20));
    let large = server.post(CONFIGS, large).await;
    assert_eq!((large.code, &large.body["reason"]), (413, &json!("RequestEntityTooLarge")));
}

#[tokio::test]
async fn names_are_made_up() {
    let server = Server::start().await;
    let body = json!({"metadata": {"generateName": "made-"}});
    let (one, two) = (server.make(CONFIGS, body.clone()).await, server.make(CONFIGS, body).await);
    let name = one["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("made-") && name.len() == 10, "{one}");
    assert_ne!(name, two["metadata"]["name"]);
}

#[tokio::test]
async fn nothing_is_done_in_a_dry_run() {
    let server = Server::start().await;
    let before = server.api.store().revision();
    let dry = server.post(&format!("{CONFIGS}?dryRun=All"), config("x", "red")).await;
    assert_eq!((dry.code, &dry.body["metadata"]["name"]), (201, &json!("x")), "{}", dry.body);
    assert_eq!(dry.body["metadata"].get("resourceVersion"), None);
    assert_eq!(server.get(&format!("{CONFIGS}/x")).await.code, 404);
    assert_eq!(server.api.store().revision(), before);
    server.make(CONFIGS, config("x", "red")).await;
    let after = server.api.store().revision();
    let at = format!("{CONFIGS}/x?dryRun=All");
    let patched = server.ask("PATCH", &at, MERGE, json!({"data": {"a": "c"}})).await;
    assert_eq!(patched.body["data"]["a"], "c");
    assert_eq!(server.delete(&at).await.code, 200);
    assert_eq!(server.post(&format!("{CONFIGS}?dryRun=All"), config("x", "red")).await.code, 409);
    assert_eq!(server.api.store().revision(), after);
    assert_eq!(server.post(&format!("{CONFIGS}?dryRun=Some"), config("y", "red")).await.code, 422);
}

#[tokio::test]
async fn unknown_fields() {
    let server = Server::start().await;
    let mut strange = config("x", "red");
    strange["spec"] = json!({"unicorn": 1});
    let warned = server.post(CONFIGS, strange.clone()).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.warnings, [r#"299 - "unknown field \"spec\"""#]);
    assert_eq!(warned.body.get("spec"), None);
    strange["metadata"]["name"] = "y".into();
    let strict = server.post(&format!("{CONFIGS}?fieldValidation=Strict"), strange.clone()).await;
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"spec\""
    );
    let ignored = server.post(&format!("{CONFIGS}?fieldValidation=Ignore"), strange).await;
    assert_eq!((ignored.code, ignored.warnings.len()), (201, 0));
    let at = format!("{CONFIGS}/x?fieldValidation=Strict");
    let patched = server.ask("PATCH", &at, MERGE, json!({"unicorn": 1})).await;
    assert_eq!(patched.code, 422, "{}", patched.body);
    assert!(
        patched.message().contains("strict decoding error: unknown field \"unicorn\""),
        "{}",
        patched.body
    );
}

#[tokio::test]
async fn updates() {
    let server = Server::start().await;
    let at = format!("{CONFIGS}/x");
    let made = server.make(CONFIGS, config("x", "red")).await;
    let mut next = made.clone();
    next["data"]["a"] = "c".into();
    let updated = server.put(&at, next.clone()).await;
    assert_eq!((updated.code, &updated.body["data"]["a"]), (200, &json!("c")), "{}", updated.body);
    assert!(updated.version() > made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap());
    // The same again changes nothing, and takes no revision.
    let same = server.put(&at, updated.body.clone()).await;
    assert_eq!(same.body, updated.body);
    let stale = server.put(&at, next.clone()).await;
    assert_eq!((stale.code, &stale.body["reason"]), (409, &json!("Conflict")));
    assert_eq!(
        stale.message(),
        "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let unconditional = server.put(&at, config("x", "blue")).await;
    assert_eq!((unconditional.code, &unconditional.body["metadata"]["uid"]), (200, &made["metadata"]["uid"]));
    let mut other = config("x", "red");
    other["metadata"]["uid"] = "other".into();
    for (path, body, code, words) in [
        (
            at.as_str(),
            config("y", "red"),
            400,
            "the name of the object (y) does not match the name on the URL (x)",
        ),
        (
            &at,
            config("", "red"),
            400,
            "the name of the object (x based on URL) was undeterminable: name must be provided",
        ),
        (&at, other, 409, "Precondition failed: UID in precondition: other"),
        (&format!("{CONFIGS}/z"), config("z", "red"), 404, "configmaps \"z\" not found"),
    ] {
        let answer = server.put(path, body).await;
        assert_eq!(answer.code, code, "{words}: {}", answer.body);
        assert!(answer.message().contains(words), "{words}: {}", answer.body);
    }
}

#[tokio::test]
async fn a_put_makes_a_lease_and_needs_its_version_then() {
    let server = Server::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let at = format!("{leases}/l");
    let lease = |holder: &str| json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}});
    assert_eq!(server.put(&at, lease("a")).await.code, 201);
    let refused = server.put(&at, lease("b")).await;
    assert_eq!(refused.code, 422, "{}", refused.body);
    assert!(
        refused
            .message()
            .contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update")
    );
}

#[tokio::test]
async fn patches_wait_for_nobody_but_name_their_version() {
    let server = Server::start().await;
    let at = format!("{CONFIGS}/x");
    let made = server.make(CONFIGS, config("x", "red")).await;
    let mut tasks = Vec::new();
    for number in 0..20 {
        let (api, at) = (server.api.clone(), at.clone());
        tasks.push(tokio::spawn(async move {
            let patch = json!({"data": {number.to_string(): "there"}}).to_string();
            let request =
                Request::patch(at).header("content-type", MERGE).body(Full::new(bytes::Bytes::from(patch)));
            api.serve(request.unwrap(), User::admin()).await.status().as_u16()
        }));
    }
    for task in tasks {
        assert_eq!(task.await.unwrap(), 200);
    }
    let now = server.get(&at).await.body;
    assert_eq!(now["data"].as_object().unwrap().len(), 21, "{now}");
    let version = &made["metadata"]["resourceVersion"];
    let stale = json!({"metadata": {"resourceVersion": version}, "data": {"z": "z"}});
    assert_eq!(server.ask("PATCH", &at, MERGE, stale).await.code, 409);
    let apply = server.ask("PATCH", &at, "application/apply-patch+yaml", json!({})).await;
    assert_eq!(apply.code, 415, "{}", apply.body);
}

#[tokio::test]
async fn deletions() {
    let server = Server::start().await;
    let made = server.make(CONFIGS, config("x", "red")).await;
    let at = format!("{CONFIGS}/x");
    let wrong = json!({"preconditions": {"uid": "other"}});
    assert_eq!(server.ask("DELETE", &at, JSON, wrong).await.code, 409);
    let right = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": made["metadata"]["uid"]}});
    let deleted = server.ask("DELETE", &at, JSON, right).await;
    assert_eq!(deleted.code, 200);
    assert_eq!(
        deleted.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
               "details": {"name": "x", "kind": "configmaps", "uid": made["metadata"]["uid"]}})
    );
    assert_eq!(server.delete(&at).await.code, 404);
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    server.make(classes, json!({"metadata": {"name": "fast"}, "provisioner": "p"})).await;
    assert_eq!(server.delete(&format!("{classes}/fast")).await.body["kind"], "StorageClass");
    for (name, color) in [("a", "red"), ("b", "red"), ("c", "blue")] {
        server.make(CONFIGS, config(name, color)).await;
    }
    let deleted = server.delete(&format!("{CONFIGS}?labelSelector=color%3Dred")).await;
    assert_eq!((deleted.code, deleted.body["items"].as_array().unwrap().len()), (200, 2), "{}", deleted.body);
    let left = server.get(CONFIGS).await.body;
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left}");
    let refused = server.delete("/api/v1/namespaces/default").await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert_eq!(refused.message(), "namespaces \"default\" is forbidden: this namespace may not be deleted");
}
