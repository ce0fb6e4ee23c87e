//! Every row of the contract's table of errors: its kind, whether it is sent again, and that nothing happened.

use std::time::Duration;

use wharf_driver_digitalocean::Kind;
use wharf_driver_digitalocean::Kind::*;
use wharf_driver_digitalocean::Refused;
use wharf_driver_digitalocean::api::NewSnapshot;
use wharf_fake_digitalocean::What;

use crate::support::{bench, new_volume};

fn status(code: u16, message: &str) -> What {
    let message = Some(message.to_owned()).filter(|message| !message.is_empty());
    What::Status { code, message, retry_after: None }
}

/// What the answer is, its kind, whether it is sent again: GET and DELETE, POST.
fn table() -> Vec<(What, Kind, bool, bool)> {
    let page = |code| What::Html(code);
    vec![
        (status(400, ""), BadRequest, false, false),
        (status(401, ""), Unauthorized, false, false),
        (status(403, ""), Forbidden, false, false),
        (status(403, "volume/snapshot capacity limit exceeded"), CapacityLimit, false, false),
        (status(409, ""), Conflict, false, false),
        (
            status(422, "This volume is already attached"),
            Unprocessable(Refused::AlreadyAttached),
            false,
            false,
        ),
        (
            status(422, "Droplet already has a pending event."),
            Unprocessable(Refused::PendingEvent),
            false,
            false,
        ),
        (
            status(422, "cannot attach more volumes to the Droplet"),
            Unprocessable(Refused::TooManyVolumes),
            false,
            false,
        ),
        (
            status(422, "cannot attach more than 7 volumes to a single Droplet"),
            Unprocessable(Refused::TooManyVolumes),
            false,
            false,
        ),
        (status(422, "Attachment not found"), Unprocessable(Refused::AttachmentNotFound), false, false),
        (status(422, ""), Unprocessable(Refused::Other), false, false),
        (What::Status { code: 429, message: None, retry_after: Some(1) }, RateLimited, true, true),
        (
            status(429, "failed to create snapshot: this operation is rate-limited - one request per 10m0s"),
            SnapshotTooSoon,
            false,
            false,
        ),
        (status(500, ""), Server, true, false),
        (status(502, ""), Server, true, false),
        (status(503, ""), Server, true, false),
        (page(200), BadAnswer, true, false),
        (page(404), BadAnswer, true, false),
        (page(502), Server, true, false),
        (What::ResetBefore, Transport, true, false),
    ]
}

#[tokio::test]
async fn get() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    for (what, kind, again, _) in table() {
        bench.fake.forget_requests();
        bench.fault(what.clone(), "GET", "/v2/volumes/*", 1);
        let answer = bench.client.volume(&volume.id).await;
        assert_eq!(bench.count("GET"), if again { 2 } else { 1 }, "{what:?}");
        match answer {
            Ok(found) => assert!(again && found.as_ref() == Some(&volume), "{what:?}"),
            Err(error) => assert_eq!((error.kind(), error.uncertain()), (kind, false), "{what:?} {error}"),
        }
    }
}

#[tokio::test]
async fn delete() {
    let bench = bench().await;
    for (number, (what, kind, again, _)) in table().into_iter().enumerate() {
        let volume = bench.volume(&format!("pvc-{number}")).await;
        bench.fault(what.clone(), "DELETE", "/v2/volumes/*", 1);
        let answer = bench.client.delete_volume(&volume.id).await;
        assert_eq!(bench.count("DELETE"), if again { 2 } else { 1 }, "{what:?}");
        assert_eq!(answer.is_ok(), again, "{what:?}");
        assert_eq!(bench.fake.state().volumes.contains_key(&volume.id), !again, "{what:?}");
        if let Err(error) = answer {
            assert_eq!(error.kind(), kind, "{what:?} {error}");
        }
    }
}

#[tokio::test]
async fn post() {
    let bench = bench().await;
    for (number, (what, kind, _, again)) in table().into_iter().enumerate() {
        bench.fake.forget_requests();
        bench.fault(what.clone(), "POST", "/v2/volumes", 1);
        let name = format!("pvc-{number}");
        let answer = bench.client.create_volume(&new_volume(&name)).await;
        assert_eq!(bench.count("POST"), if again { 2 } else { 1 }, "{what:?}");
        assert_eq!(answer.is_ok(), again, "{what:?}");
        let made = bench.fake.state().volumes.values().filter(|volume| volume.name == name).count();
        assert_eq!(made, usize::from(again), "{what:?}");
        if let Err(error) = answer {
            assert_eq!(error.kind(), kind, "{what:?} {error}");
            let unsure = matches!(kind, Server | BadAnswer | Transport);
            assert_eq!(error.uncertain(), unsure, "{what:?} {error}");
        }
    }
}

#[tokio::test]
async fn what_is_not_there() {
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
    assert_eq!(requests, 9, "nothing of that is asked twice");
    // No such thing can exist, so nobody is asked.
    assert_eq!(bench.client.volume("../account").await.unwrap(), None);
    assert_eq!(bench.fake.requests().len(), requests);
    // A volume's id is no snapshot's.
    let volume = bench.volume("pvc-1").await;
    assert_eq!(bench.client.snapshot(&volume.id).await.unwrap(), None);
}

#[tokio::test]
async fn the_doubles_own_refusals() {
    let bench = bench().await;
    bench.fake.set_knobs(|knobs| knobs.volume_limit = 2);
    let volume = bench.attached("pvc-1", 1).await;
    let error = bench.client.delete_volume(&volume.id).await.unwrap_err();
    assert_eq!((error.kind(), error.status()), (Conflict, Some(409)), "{error}");
    let error = bench.client.create_volume(&new_volume("pvc-1")).await.unwrap_err();
    assert_eq!(error.kind(), Conflict, "{error}");
    let error = bench.client.create_volume(&new_volume("Wrong_Name")).await.unwrap_err();
    assert_eq!(error.kind(), Unprocessable(Refused::Other), "{error}");
    bench.volume("pvc-2").await;
    let error = bench.client.create_volume(&new_volume("pvc-3")).await.unwrap_err();
    assert_eq!(error.kind(), CapacityLimit, "{error}");
}

#[tokio::test]
async fn the_ten_minutes_between_snapshots_hold_up_nothing_else() {
    let bench = bench().await;
    bench.fake.set_knobs(|knobs| knobs.snapshot_interval_ms = 600_000);
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
async fn tagging_makes_the_tag_and_can_be_repeated() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    bench.fault(What::ResetAfter, "POST", "/v2/tags", 1);
    bench.fault(What::ResetAfter, "POST", "/v2/tags/*/resources", 1);
    bench.client.tag_volume(&volume.id, "k8s:one").await.unwrap();
    bench.client.tag_volume(&volume.id, "k8s:one").await.unwrap();
    let tagged = bench.client.volume(&volume.id).await.unwrap().unwrap();
    assert_eq!(tagged.tags, ["k8s:one"]);
}
