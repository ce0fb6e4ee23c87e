use super::*;

#[tokio::test]
async fn claim_is_created_patched_and_deleted() {
    let server = Server::start().await;
    let at = format!("{CLAIMS}/c");
    let created = server.create(CLAIMS, claim("c")).await;
    assert_eq!((&created["kind"], &created["apiVersion"]), (&json!("PersistentVolumeClaim"), &json!("v1")));
    assert_eq!(created["metadata"]["namespace"], "default");
    assert_eq!(created["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!(created["spec"]["volumeMode"], "Filesystem");
    assert_eq!(created["status"]["phase"], "Pending");
    assert!(created["metadata"]["uid"].as_str().is_some_and(|uid| uid.len() == 36), "{created}");
    assert_eq!(server.get(&at).await.body, created);
    let list = server.get(CLAIMS).await.body;
    assert_eq!(list["kind"], "PersistentVolumeClaimList");
    let mut item = created.clone();
    item.as_object_mut().unwrap().retain(|field, _| field != "kind" && field != "apiVersion");
    assert_eq!(list["items"], json!([item]));

    let patch = json!({"metadata": {"labels": {"l": "m"}}});
    for media in [MERGE, "application/strategic-merge-patch+json"] {
        let patched = server.request("PATCH", &at, media, patch.clone()).await;
        assert_eq!(
            (patched.code, &patched.body["metadata"]["labels"]["l"]),
            (200, &json!("m")),
            "{}",
            patched.body
        );
    }
    let patch = json!([{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]);
    let patched = server.request("PATCH", &at, "application/json-patch+json", patch).await;
    assert_eq!(
        (patched.code, &patched.body["metadata"]["annotations"]["a"]),
        (200, &json!("b")),
        "{}",
        patched.body
    );

    // The spec is immutable, and the status only changes through its subresource.
    let patched = server
        .request("PATCH", &at, MERGE, json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}}))
        .await;
    assert_eq!(
        (patched.code, &patched.body["status"]["phase"]),
        (200, &json!("Pending")),
        "{}",
        patched.body
    );
    let patched =
        server.request("PATCH", &at, MERGE, json!({"spec": {"accessModes": ["ReadWriteMany"]}})).await;
    assert_eq!((patched.code, &patched.body["reason"]), (422, &json!("Invalid")), "{}", patched.body);
    let status = format!("{at}/status");
    let patched = server
        .request("PATCH", &status, MERGE, json!({"spec": {"volumeName": "w"}, "status": {"phase": "Bound"}}))
        .await;
    assert_eq!(patched.body["status"]["phase"], "Bound", "{}", patched.body);
    assert_eq!(patched.body["spec"]["volumeName"], "v", "{}", patched.body);

    let deleted = server.delete(&at).await;
    assert_eq!(deleted.code, 200);
    assert!(deleted.body["metadata"]["deletionTimestamp"].is_string(), "{}", deleted.body);
    let again = server.post(CLAIMS, claim("c")).await;
    assert_eq!(again.code, 409);
    assert_eq!(again.message(), "object is being deleted: persistentvolumeclaims \"c\" already exists");
    let freed = server.request("PATCH", &at, MERGE, json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(freed.code, 200, "{}", freed.body);
    let deleted = server.get(&at).await;
    assert_eq!((deleted.code, deleted.message()), (404, "persistentvolumeclaims \"c\" not found"));
}

#[tokio::test]
async fn invalid_creates_are_rejected() {
    let server = Server::start().await;
    server.create(CONFIGS, config("x", "red")).await;
    let mut elsewhere = config("y", "red");
    elsewhere["metadata"]["namespace"] = "other".into();
    let mut versioned = config("y", "red");
    versioned["metadata"]["resourceVersion"] = "3".into();
    for (path, body, code, message) in [
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
        let response = server.post(path, body.clone()).await;
        assert_eq!(response.code, code, "{body}: {}", response.body);
        assert!(response.message().contains(message), "{body}: {}", response.body);
        assert_eq!((&response.body["kind"], &response.body["status"]), (&json!("Status"), &json!("Failure")));
    }
    let other = server.request("POST", CONFIGS, "application/yaml", json!({})).await;
    assert_eq!((other.code, &other.body["reason"]), (415, &json!("UnsupportedMediaType")));
    let other = server.request("POST", CONFIGS, "application/vnd.kubernetes.protobuf", json!({})).await;
    assert_eq!(other.code, 400);
    assert!(other.message().contains("does not appear to be a protobuf message"), "{}", other.body);
    let large = config("large", &"x".repeat(4 << 20));
    let large = server.post(CONFIGS, large).await;
    assert_eq!((large.code, &large.body["reason"]), (413, &json!("RequestEntityTooLarge")));
}

#[tokio::test]
async fn generate_name_creates_unique_names() {
    let server = Server::start().await;
    let body = json!({"metadata": {"generateName": "made-"}});
    let (one, two) = (server.create(CONFIGS, body.clone()).await, server.create(CONFIGS, body).await);
    let name = one["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("made-") && name.len() == 10, "{one}");
    assert_ne!(name, two["metadata"]["name"]);
}

#[tokio::test]
async fn dry_run_changes_nothing() {
    let server = Server::start().await;
    let before = server.api.store().revision();
    let dry = server.post(&format!("{CONFIGS}?dryRun=All"), config("x", "red")).await;
    assert_eq!((dry.code, &dry.body["metadata"]["name"]), (201, &json!("x")), "{}", dry.body);
    assert_eq!(dry.body["metadata"].get("resourceVersion"), None);
    assert_eq!(server.get(&format!("{CONFIGS}/x")).await.code, 404);
    assert_eq!(server.api.store().revision(), before);
    server.create(CONFIGS, config("x", "red")).await;
    let after = server.api.store().revision();
    let at = format!("{CONFIGS}/x?dryRun=All");
    let patched = server.request("PATCH", &at, MERGE, json!({"data": {"a": "c"}})).await;
    assert_eq!(patched.body["data"]["a"], "c");
    assert_eq!(server.delete(&at).await.code, 200);
    assert_eq!(server.post(&format!("{CONFIGS}?dryRun=All"), config("x", "red")).await.code, 409);
    assert_eq!(server.api.store().revision(), after);
    assert_eq!(server.post(&format!("{CONFIGS}?dryRun=Some"), config("y", "red")).await.code, 422);
}

#[tokio::test]
async fn unknown_fields_are_warned_rejected_or_ignored() {
    let server = Server::start().await;
    let mut unknown = config("x", "red");
    unknown["spec"] = json!({"unicorn": 1});
    let warned = server.post(CONFIGS, unknown.clone()).await;
    assert_eq!(warned.code, 201);
    assert_eq!(warned.warnings, [r#"299 - "unknown field \"spec\"""#]);
    assert_eq!(warned.body.get("spec"), None);
    unknown["metadata"]["name"] = "y".into();
    let strict = server.post(&format!("{CONFIGS}?fieldValidation=Strict"), unknown.clone()).await;
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.message(),
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"spec\""
    );
    let ignored = server.post(&format!("{CONFIGS}?fieldValidation=Ignore"), unknown).await;
    assert_eq!((ignored.code, ignored.warnings.len()), (201, 0));
    let at = format!("{CONFIGS}/x?fieldValidation=Strict");
    let patched = server.request("PATCH", &at, MERGE, json!({"unicorn": 1})).await;
    assert_eq!(patched.code, 422, "{}", patched.body);
    assert!(
        patched.message().contains("strict decoding error: unknown field \"unicorn\""),
        "{}",
        patched.body
    );
}

#[tokio::test]
async fn update_checks_version_uid_and_name() {
    let server = Server::start().await;
    let at = format!("{CONFIGS}/x");
    let created = server.create(CONFIGS, config("x", "red")).await;
    let mut next = created.clone();
    next["data"]["a"] = "c".into();
    let updated = server.put(&at, next.clone()).await;
    assert_eq!((updated.code, &updated.body["data"]["a"]), (200, &json!("c")), "{}", updated.body);
    assert!(updated.version() > created["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap());
    // An identical update changes nothing and takes no revision.
    let same = server.put(&at, updated.body.clone()).await;
    assert_eq!(same.body, updated.body);
    let stale = server.put(&at, next.clone()).await;
    assert_eq!((stale.code, &stale.body["reason"]), (409, &json!("Conflict")));
    assert_eq!(
        stale.message(),
        "Operation cannot be fulfilled on configmaps \"x\": the object has been modified; please apply your changes to the latest version and try again"
    );
    let unconditional = server.put(&at, config("x", "blue")).await;
    assert_eq!(
        (unconditional.code, &unconditional.body["metadata"]["uid"]),
        (200, &created["metadata"]["uid"])
    );
    let mut other = config("x", "red");
    other["metadata"]["uid"] = "other".into();
    for (path, body, code, message) in [
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
        let response = server.put(path, body).await;
        assert_eq!(response.code, code, "{message}: {}", response.body);
        assert!(response.message().contains(message), "{message}: {}", response.body);
    }
}

#[tokio::test]
async fn put_creates_a_lease_and_then_needs_its_version() {
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
async fn concurrent_patches_succeed_and_stale_patch_conflicts() {
    let server = Server::start().await;
    let at = format!("{CONFIGS}/x");
    let created = server.create(CONFIGS, config("x", "red")).await;
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
    let version = &created["metadata"]["resourceVersion"];
    let stale = json!({"metadata": {"resourceVersion": version}, "data": {"z": "z"}});
    assert_eq!(server.request("PATCH", &at, MERGE, stale).await.code, 409);
    let apply = server.request("PATCH", &at, "application/apply-patch+yaml", json!({})).await;
    assert_eq!(apply.code, 415, "{}", apply.body);
}

#[tokio::test]
async fn delete_checks_preconditions_and_selectors() {
    let server = Server::start().await;
    let created = server.create(CONFIGS, config("x", "red")).await;
    let at = format!("{CONFIGS}/x");
    let wrong = json!({"preconditions": {"uid": "other"}});
    assert_eq!(server.request("DELETE", &at, JSON, wrong).await.code, 409);
    let right = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": created["metadata"]["uid"]}});
    let deleted = server.request("DELETE", &at, JSON, right).await;
    assert_eq!(deleted.code, 200);
    assert_eq!(
        deleted.body,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
               "details": {"name": "x", "kind": "configmaps", "uid": created["metadata"]["uid"]}})
    );
    assert_eq!(server.delete(&at).await.code, 404);
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    server.create(classes, json!({"metadata": {"name": "fast"}, "provisioner": "p"})).await;
    assert_eq!(server.delete(&format!("{classes}/fast")).await.body["kind"], "StorageClass");
    for (name, color) in [("a", "red"), ("b", "red"), ("c", "blue")] {
        server.create(CONFIGS, config(name, color)).await;
    }
    let deleted = server.delete(&format!("{CONFIGS}?labelSelector=color%3Dred")).await;
    assert_eq!((deleted.code, deleted.body["items"].as_array().unwrap().len()), (200, 2), "{}", deleted.body);
    let left = server.get(CONFIGS).await.body;
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left}");
    let refused = server.delete("/api/v1/namespaces/default").await;
    assert_eq!(refused.code, 403, "{}", refused.body);
    assert_eq!(refused.message(), "namespaces \"default\" is forbidden: this namespace may not be deleted");
}
