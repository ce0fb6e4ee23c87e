//! Every error in the contract's table: its kind, whether it is retried, and that it had no effect.

use std::time::Duration;

use wharf_driver_digitalocean::ApiErrorKind;
use wharf_driver_digitalocean::ApiErrorKind::*;
use wharf_driver_digitalocean::UnprocessableReason;
use wharf_driver_digitalocean::api::NewSnapshot;
use wharf_fake_digitalocean::FaultEffect;

use crate::support::{bench, new_volume};

fn status(code: u16, message: &str) -> FaultEffect {
    let message = Some(message.to_owned()).filter(|message| !message.is_empty());
    FaultEffect::Status { code, message, retry_after: None }
}

/// Fault, error kind, whether GET and DELETE are retried, whether POST is retried.
fn table() -> Vec<(FaultEffect, ApiErrorKind, bool, bool)> {
    let page = |code| FaultEffect::Html(code);
    vec![
        (status(400, ""), BadRequest, false, false),
        (status(401, ""), Unauthorized, false, false),
        (status(403, ""), Forbidden, false, false),
        (status(403, "volume/snapshot capacity limit exceeded"), CapacityLimit, false, false),
        (status(409, ""), Conflict, false, false),
        (
            status(422, "This volume is already attached"),
            Unprocessable(UnprocessableReason::AlreadyAttached),
            false,
            false,
        ),
        (
            status(422, "Droplet already has a pending event."),
            Unprocessable(UnprocessableReason::PendingEvent),
            false,
            false,
        ),
        (
            status(422, "cannot attach more volumes to the Droplet"),
            Unprocessable(UnprocessableReason::TooManyVolumes),
            false,
            false,
        ),
        (
            status(422, "cannot attach more than 7 volumes to a single Droplet"),
            Unprocessable(UnprocessableReason::TooManyVolumes),
            false,
            false,
        ),
        (
            status(422, "Attachment not found"),
            Unprocessable(UnprocessableReason::AttachmentNotFound),
            false,
            false,
        ),
        (status(422, ""), Unprocessable(UnprocessableReason::Other), false, false),
        (FaultEffect::Status { code: 429, message: None, retry_after: Some(1) }, RateLimited, true, true),
        (
            status(429, "failed to create snapshot: this operation is rate-limited - one request per 10m0s"),
            SnapshotTooSoon,
            false,
            false,
        ),
        (status(500, ""), Server, true, false),
        (status(502, ""), Server, true, false),
        (status(503, ""), Server, true, false),
        (page(200), BadResponse, true, false),
        (page(404), BadResponse, true, false),
        (page(502), Server, true, false),
        (FaultEffect::ResetBefore, Transport, true, false),
    ]
}

#[tokio::test]
async fn get_errors_are_classified_and_retried() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    for (what, kind, again, _) in table() {
        bench.fake.forget_requests();
        bench.fault(what.clone(), "GET", "/v2/volumes/*", 1);
        let response = bench.client.volume(&volume.id).await;
        assert_eq!(bench.count("GET"), if again { 2 } else { 1 }, "{what:?}");
        match response {
            Ok(found) => assert!(again && found.as_ref() == Some(&volume), "{what:?}"),
            Err(error) => assert_eq!((error.kind(), error.uncertain()), (kind, false), "{what:?} {error}"),
        }
    }
}

#[tokio::test]
async fn delete_errors_are_classified_and_retried() {
    let bench = bench().await;
    for (number, (what, kind, again, _)) in table().into_iter().enumerate() {
        let volume = bench.volume(&format!("pvc-{number}")).await;
        bench.fault(what.clone(), "DELETE", "/v2/volumes/*", 1);
        let response = bench.client.delete_volume(&volume.id).await;
        assert_eq!(bench.count("DELETE"), if again { 2 } else { 1 }, "{what:?}");
        assert_eq!(response.is_ok(), again, "{what:?}");
        assert_eq!(bench.fake.state().volumes.contains_key(&volume.id), !again, "{what:?}");
        if let Err(error) = response {
            assert_eq!(error.kind(), kind, "{what:?} {error}");
        }
    }
}

#[tokio::test]
async fn post_errors_are_classified_and_not_retried_after_effect() {
    let bench = bench().await;
    for (number, (what, kind, _, again)) in table().into_iter().enumerate() {
        bench.fake.forget_requests();
        bench.fault(what.clone(), "POST", "/v2/volumes", 1);
        let name = format!("pvc-{number}");
        let response = bench.client.create_volume(&new_volume(&name)).await;
        assert_eq!(bench.count("POST"), if again { 2 } else { 1 }, "{what:?}");
        assert_eq!(response.is_ok(), again, "{what:?}");
        let created = bench.fake.state().volumes.values().filter(|volume| volume.name == name).count();
        assert_eq!(created, usize::from(again), "{what:?}");
        if let Err(error) = response {
            assert_eq!(error.kind(), kind, "{what:?} {error}");
            let unsure = matches!(kind, Server | BadResponse | Transport);
            assert_eq!(error.uncertain(), unsure, "{what:?} {error}");
        }
    }
}

#[tokio::test]
async fn missing_objects_are_not_found() {
    let bench = bench().await;
    let id = "506f78a4-e098-11e5-ad9f-000f53306ae1";
    assert_eq!(bench.client.volume(id).await.unwrap(), None);
    assert_eq!(bench.client.snapshot(id).await.unwrap(), None);
    assert_eq!(bench.client.snapshots_of(id).await.unwrap(), None);
    assert_eq!(bench.client.droplet(99).await.unwrap(), None);
    assert_eq!(bench.client.action(id, 99).await.unwrap(), None);
    assert_eq!(bench.client.actions(id).await.unwrap(), None);
    bench.client.delete_volume(id).await.unwrap();
    bench.client.delete_snapshot(id).await.unwrap();
    assert_eq!(bench.client.volumes_named("no-such", "nyc3").await.unwrap(), []);
    let requests = bench.fake.requests().len();
    assert_eq!(requests, 9, "no request is repeated");
    // Such an id cannot exist, so no request is sent.
    assert_eq!(bench.client.volume("../account").await.unwrap(), None);
    assert_eq!(bench.fake.requests().len(), requests);
    // A volume's id is not a snapshot's.
    let volume = bench.volume("pvc-1").await;
    assert_eq!(bench.client.snapshot(&volume.id).await.unwrap(), None);
}

#[tokio::test]
async fn refusals_of_the_fake_are_classified() {
    let bench = bench().await;
    bench.fake.change_settings(|settings| settings.volume_limit = 2);
    let volume = bench.attached("pvc-1", 1).await;
    let error = bench.client.delete_volume(&volume.id).await.unwrap_err();
    assert_eq!((error.kind(), error.status()), (Conflict, Some(409)), "{error}");
    let error = bench.client.create_volume(&new_volume("pvc-1")).await.unwrap_err();
    assert_eq!(error.kind(), Conflict, "{error}");
    let error = bench.client.create_volume(&new_volume("Wrong_Name")).await.unwrap_err();
    assert_eq!(error.kind(), Unprocessable(UnprocessableReason::Other), "{error}");
    bench.volume("pvc-2").await;
    let error = bench.client.create_volume(&new_volume("pvc-3")).await.unwrap_err();
    assert_eq!(error.kind(), CapacityLimit, "{error}");
}

#[tokio::test]
async fn snapshot_interval_does_not_block_other_calls() {
    let bench = bench().await;
    bench.fake.change_settings(|settings| settings.snapshot_interval_ms = 600_000);
    let volume = bench.volume("pvc-1").await;
    let wanted = |name: &str| NewSnapshot {
        volume_id: volume.id.clone(),
        name: name.into(),
        ..NewSnapshot::default()
    };
    let snapshot = bench.client.create_snapshot(&wanted("snapshot-1")).await.unwrap();
    assert_eq!((snapshot.resource_id.as_str(), snapshot.min_disk_size), (volume.id.as_str(), 10));
    let error = bench.client.create_snapshot(&wanted("snapshot-1")).await.unwrap_err();
    assert_eq!(error.kind(), Conflict, "{error}");
    let error = bench.client.create_snapshot(&wanted("snapshot-2")).await.unwrap_err();
    assert_eq!(error.kind(), SnapshotTooSoon, "{error}");
    bench.fake.forget_requests();
    assert_eq!(bench.client.snapshot(&snapshot.id).await.unwrap(), Some(snapshot));
    assert_eq!(bench.seen(), ["GET"]);
    bench.fake.advance(Duration::from_secs(601));
    bench.client.create_snapshot(&wanted("snapshot-2")).await.unwrap();
    assert_eq!(bench.client.snapshots_of(&volume.id).await.unwrap().unwrap().len(), 2);
}

#[tokio::test]
async fn tagging_creates_the_tag_and_is_idempotent() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    bench.fault(FaultEffect::ResetAfter, "POST", "/v2/tags", 1);
    bench.fault(FaultEffect::ResetAfter, "POST", "/v2/tags/*/resources", 1);
    bench.client.tag_volume(&volume.id, "k8s:one").await.unwrap();
    bench.client.tag_volume(&volume.id, "k8s:one").await.unwrap();
    let tagged = bench.client.volume(&volume.id).await.unwrap().unwrap();
    assert_eq!(tagged.tags, ["k8s:one"]);
}
