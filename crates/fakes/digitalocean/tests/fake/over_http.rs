//! The fake over HTTP.

use std::time::Duration;

use serde_json::json;
use wharf_fake_digitalocean::{FakeDigitalOcean, FakeOptions, Fault, FaultEffect};

use crate::client::Client;

async fn start(options: FakeOptions) -> (FakeDigitalOcean, Client) {
    let fake = FakeDigitalOcean::start(options).await.unwrap();
    let client = Client::new(&fake.url());
    (fake, client)
}

fn volume(name: &str) -> serde_json::Value {
    json!({ "name": name, "region": "nyc3", "size_gigabytes": 1 })
}

#[tokio::test]
async fn volume_lifecycle_over_http() {
    let options = FakeOptions::new().droplet(7, "nyc3").settings(|settings| settings.action_delay_ms = 50);
    let (fake, client) = start(options).await;
    let created = client.post("/v2/volumes", volume("pvc-1")).await;
    assert_eq!(created.status, 201);
    let id = created.body["volume"]["id"].as_str().unwrap().to_owned();
    let actions = format!("/v2/volumes/{id}/actions");
    let response = client.post(&actions, json!({ "type": "attach", "droplet_id": 7 })).await;
    assert_eq!(response.status, 202);
    assert_eq!(response.body["action"]["status"], "in-progress");
    let again = client.post(&actions, json!({ "type": "attach", "droplet_id": 7 })).await;
    assert_eq!(again.status, 422);
    assert_eq!(again.body["message"], "Droplet already has a pending event.");
    let action = format!("{actions}/{}", response.body["action"]["id"]);
    while client.get(&action).await.body["action"]["status"] == "in-progress" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let found = client.get(&format!("/v2/volumes/{id}")).await;
    assert_eq!(found.body["volume"]["droplet_ids"], json!([7]));
    assert_eq!(client.get("/v2/droplets/7").await.body["droplet"]["volume_ids"], json!([id]));
    assert_eq!(client.delete(&format!("/v2/volumes/{id}")).await.status, 409);
    assert_eq!(client.delete("/v2/droplets/7").await.status, 204);
    assert_eq!(client.delete(&format!("/v2/volumes/{id}")).await.status, 204);
    assert!(fake.state().is_empty());
    let posts = fake.requests().iter().filter(|request| request.method == "POST").count();
    assert_eq!(posts, 3);
    fake.stop().await.unwrap();
}

#[tokio::test]
async fn restarted_fake_keeps_its_state() {
    let root = tempfile::tempdir().unwrap();
    let options = || FakeOptions { state: Some(root.path().to_owned()), ..FakeOptions::new() };
    let (fake, client) = start(options()).await;
    let created = client.post("/v2/volumes", volume("pvc-1")).await;
    fake.stop().await.unwrap();
    let (fake, client) = start(options()).await;
    let found = client.get(&format!("/v2/volumes/{}", created.body["volume"]["id"].as_str().unwrap())).await;
    assert_eq!(found.body, created.body);
    // Also after a crash.
    client.post("/v2/volumes", volume("pvc-2")).await;
    let kept = std::fs::read_to_string(root.path().join("state.json")).unwrap();
    assert!(kept.contains("pvc-2"), "{kept}");
    fake.stop().await.unwrap();
}

#[tokio::test]
async fn unknown_and_revoked_tokens_are_refused() {
    let (fake, client) = start(FakeOptions::new().token("secret")).await;
    assert_eq!(client.get("/v2/account").await.status, 401);
    let client = client.with_token("secret");
    assert_eq!(client.get("/v2/account").await.status, 200);
    fake.revoke_token("secret");
    let refused = client.get("/v2/account").await;
    assert_eq!((refused.status, refused.body["id"].as_str()), (401, Some("unauthorized")));
    fake.allow_token("secret");
    assert_eq!(client.get("/v2/account").await.status, 200);
    // A request without a token is always refused.
    let (_any, client) = start(FakeOptions::new()).await;
    assert_eq!(client.get("/v2/account").await.status, 200);
    assert_eq!(client.with_token("").get("/v2/account").await.status, 401);
}

#[tokio::test]
async fn rate_limits_are_reported_in_headers() {
    let (fake, client) =
        start(FakeOptions::new().settings(|settings| settings.requests_per_minute = 2)).await;
    let first = client.get("/v2/account").await;
    assert_eq!(first.header("ratelimit-limit"), Some("5000"));
    assert_eq!(first.header("ratelimit-remaining"), Some("4999"));
    assert_eq!(client.get("/v2/account").await.header("retry-after"), None);
    let refused = client.get("/v2/account").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.body["message"], "API Rate limit exceeded.");
    let wait: i64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((50..=60).contains(&wait), "{wait}");
    assert_eq!(refused.header("ratelimit-remaining"), Some("4998"));
    fake.advance(Duration::from_secs(61));
    assert_eq!(client.get("/v2/account").await.status, 200);
}

/// (fault, whether the volume exists afterwards, what the client receives)
#[tokio::test]
async fn faults_affect_one_request() {
    let status = |code| FaultEffect::Status { code, message: None, retry_after: Some(7) };
    let table = [
        (FaultEffect::LatencyMs(1), true, Ok(201)),
        (status(503), false, Ok(503)),
        (status(429), false, Ok(429)),
        (FaultEffect::StatusAfter(502), true, Ok(502)),
        (FaultEffect::Html(502), false, Ok(502)),
        (FaultEffect::ResetBefore, false, Err("reset")),
        (FaultEffect::ResetAfter, true, Err("reset")),
        (FaultEffect::Truncated, true, Err("json")),
        (FaultEffect::CutOff, true, Err("eof")),
    ];
    let (fake, client) = start(FakeOptions::new()).await;
    for (i, (what, effect, expected)) in table.into_iter().enumerate() {
        let name = format!("pvc-{i}");
        fake.forget_requests();
        fake.add_fault(Fault::new(what.clone()).at("POST", "/v2/volumes").times(1));
        let response = client.try_post("/v2/volumes", volume(&name)).await;
        match (&response, expected) {
            (Ok(response), Ok(status)) => assert_eq!(response.status, status, "{what:?}"),
            (Err(error), Err(kind)) => assert_eq!(error.kind(), kind, "{what:?}: {error:?}"),
            _ => panic!("{what:?} gave {response:?}, and not {expected:?}"),
        }
        if let (FaultEffect::Status { .. }, Ok(response)) = (&what, &response) {
            assert_eq!(response.header("retry-after"), Some("7"));
        }
        let logged = fake.requests().remove(0);
        assert_eq!(
            logged.status.is_none(),
            matches!(what, FaultEffect::ResetBefore | FaultEffect::ResetAfter),
            "{what:?}"
        );
        assert_eq!(logged.faulted, !matches!(what, FaultEffect::LatencyMs(_)), "{what:?}");
        let exists = fake.state().volumes.values().any(|volume| volume.name == name);
        assert_eq!(exists, effect, "{what:?}");
        // The fault applied to one request only.
        let again = client.post("/v2/volumes", volume(&name)).await.status;
        assert_eq!(again, if effect { 409 } else { 201 }, "{what:?}");
    }
}

#[tokio::test]
async fn action_faults_are_applied() {
    let options = FakeOptions::new().droplet(1, "nyc3").settings(|settings| settings.action_delay_ms = 0);
    let (fake, client) = start(options).await;
    let created = client.post("/v2/volumes", volume("pvc")).await;
    let actions = format!("/v2/volumes/{}/actions", created.body["volume"]["id"].as_str().unwrap());
    let attach = json!({ "type": "attach", "droplet_id": 1 });
    let only = |what| Fault::new(what).action("attach").times(1);

    fake.add_fault(only(FaultEffect::ActionErrored));
    let response = client.post(&actions, attach.clone()).await;
    assert_eq!(response.body["action"]["status"], "errored");
    assert_eq!(fake.state().volumes_of(1).count(), 0);

    fake.add_fault(only(FaultEffect::ActionNeverEnds));
    let response = client.post(&actions, attach.clone()).await;
    fake.advance(Duration::from_secs(3600));
    let action = format!("{actions}/{}", response.body["action"]["id"]);
    assert_eq!(client.get(&action).await.body["action"]["status"], "in-progress");
    let end = format!("/fake/v1/actions/{}", response.body["action"]["id"]);
    assert_eq!(client.post(&end, json!({ "status": "completed" })).await.status, 204);
    assert_eq!(fake.state().volumes_of(1).count(), 1);
    assert_eq!(client.post(&end, json!({ "status": "completed" })).await.status, 404);
}

#[tokio::test]
async fn control_api_reads_and_changes_the_fake() {
    let (fake, client) = start(FakeOptions::new().token("secret")).await;
    let fault = json!({ "path": "/v2/*", "effect": { "status": { "code": 500 } } });
    let added = client.post("/fake/v1/faults", fault.clone()).await;
    assert_eq!(added.status, 201);
    assert_eq!(client.get("/v2/account").await.status, 500);
    let faults = client.get("/fake/v1/faults").await.body;
    assert_eq!(faults["faults"][0]["seen"], 1);
    assert_eq!(client.delete(&format!("/fake/v1/faults/{}", added.body["id"])).await.status, 204);
    assert_eq!(client.get("/v2/account").await.status, 401);
    assert_eq!(client.post("/fake/v1/tokens", json!({ "allow": "any" })).await.status, 204);
    assert_eq!(client.get("/v2/account").await.status, 200);
    assert_eq!(client.post("/fake/v1/tokens", json!({ "revoke": "any" })).await.status, 204);
    assert_eq!(client.get("/v2/account").await.status, 401);
    let settings = client.send("PATCH", "/fake/v1/settings", Some(json!({ "volume_limit": 3 }))).await;
    assert_eq!((settings.status, fake.settings().volume_limit), (200, 3));
    assert_eq!(client.post("/fake/v1/faults", json!({ "effect": "nonsense" })).await.status, 400);
    let requests = client.get("/fake/v1/requests").await.body;
    let statuses: Vec<u64> =
        requests["requests"].as_array().unwrap().iter().map(|r| r["status"].as_u64().unwrap()).collect();
    assert_eq!(statuses, [500, 401, 200, 401]);
    assert_eq!(client.delete("/fake/v1/requests").await.status, 204);
    assert!(fake.requests().is_empty());
    assert_eq!(client.get("/fake/v1/state").await.body["volumes"], json!({}));
    assert_eq!(client.get("/fake/v1/nothing").await.status, 404);
}

#[tokio::test]
async fn each_droplet_has_its_metadata_service() {
    let (fake, _) = start(FakeOptions::new().droplet(11, "nyc3").droplet(12, "ams3")).await;
    for (id, region) in [(11, "nyc3"), (12, "ams3")] {
        let client = Client::new(&fake.metadata_url(id).unwrap()).with_token("");
        assert_eq!(client.get_text("/metadata/v1/id").await, (200, id.to_string()));
        assert_eq!(client.get_text("/metadata/v1/region").await, (200, region.to_owned()));
        assert_eq!(client.get("/metadata/v1.json").await.body["droplet_id"], id);
        assert_eq!(client.get_text("/metadata/v1/nothing").await.0, 404);
        let moved = client.send("GET", "/metadata/v1/dns", None).await;
        assert_eq!((moved.status, moved.header("location")), (301, Some("/metadata/v1/dns/")));
    }
    assert_eq!(fake.metadata_url(13), None);
    assert!(fake.requests().iter().all(|request| request.droplet.is_some()));
    fake.add_fault(Fault::new(FaultEffect::ResetBefore).at("GET", "/metadata/*"));
    let client = Client::new(&fake.metadata_url(11).unwrap());
    assert!(client.try_send("GET", "/metadata/v1/id", None).await.is_err());
}
