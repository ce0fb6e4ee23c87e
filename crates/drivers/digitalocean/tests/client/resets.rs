//! The connection breaks after each call with an effect, or the response is lost: no duplicates, nothing lost.

use wharf_driver_digitalocean::api::NewSnapshot;
use wharf_driver_digitalocean::client::ApiError;
use wharf_fake_digitalocean::{Fault, FaultEffect};

use crate::support::{REGION, bench, new_volume};

/// Faults after which the call took effect, but the client does not know.
fn lost() -> [FaultEffect; 5] {
    [
        FaultEffect::ResetAfter,
        FaultEffect::Truncated,
        FaultEffect::CutOff,
        FaultEffect::StatusAfter(500),
        FaultEffect::StatusAfter(502),
    ]
}

fn uncertain<T: std::fmt::Debug>(response: Result<T, ApiError>) {
    let error = response.unwrap_err();
    assert!(error.uncertain(), "{error}");
}

#[tokio::test]
async fn volume_with_lost_response_is_found_by_name() {
    for what in lost() {
        let bench = bench().await;
        bench.fault(what.clone(), "POST", "/v2/volumes", 1);
        uncertain(bench.client.create_volume(&new_volume("pvc-1")).await);
        assert_eq!(bench.count("POST"), 1, "{what:?}");
        let found = bench.client.volumes_named("pvc-1", REGION).await.unwrap();
        assert_eq!(found.len(), 1, "{what:?}");
    }
}

#[tokio::test]
async fn snapshot_with_lost_response_is_found_by_volume() {
    for what in lost() {
        let bench = bench().await;
        let volume = bench.volume("pvc-1").await;
        bench.fault(what.clone(), "POST", "/v2/volumes/*/snapshots", 1);
        let wanted =
            NewSnapshot { volume_id: volume.id.clone(), name: "snapshot-1".into(), ..NewSnapshot::default() };
        uncertain(bench.client.create_snapshot(&wanted).await);
        assert_eq!(bench.count("POST"), 1, "{what:?}");
        let found = bench.client.snapshots_of(&volume.id).await.unwrap().unwrap();
        assert_eq!(found.len(), 1, "{what:?}");
    }
}

#[tokio::test]
async fn delete_with_lost_response_succeeds_on_retry() {
    for what in [FaultEffect::ResetAfter, FaultEffect::StatusAfter(500), FaultEffect::ResetBefore] {
        let bench = bench().await;
        let volume = bench.volume("pvc-1").await;
        let wanted =
            NewSnapshot { volume_id: volume.id.clone(), name: "snapshot-1".into(), ..NewSnapshot::default() };
        let snapshot = bench.client.create_snapshot(&wanted).await.unwrap();
        bench.fault(what.clone(), "DELETE", "/v2/volumes/*", 1);
        bench.fault(what.clone(), "DELETE", "/v2/volumes/snapshots/*", 1);
        bench.client.delete_volume(&volume.id).await.unwrap();
        bench.client.delete_snapshot(&snapshot.id).await.unwrap();
        assert_eq!(bench.count("DELETE"), 4, "{what:?}");
        assert!(bench.fake.state().is_empty(), "{what:?}");
    }
}

#[tokio::test]
async fn action_with_lost_response_is_not_started_twice() {
    for what in lost() {
        let bench = bench().await;
        let volume = bench.volume("pvc-1").await;
        let fault = |kind: &str| {
            let fault = Fault::new(what.clone()).at("POST", "/v2/volumes/*/actions").action(kind).times(1);
            bench.fake.add_fault(fault);
        };
        for kind in ["attach", "resize", "detach"] {
            fault(kind);
        }
        assert_eq!(bench.attachments.attach(&volume.id, 1).await.unwrap().droplet_ids, [1], "{what:?}");
        assert_eq!(bench.attachments.resize(&volume.id, 20).await.unwrap().size_gigabytes, 20, "{what:?}");
        bench.attachments.detach(&volume.id, 1).await.unwrap();
        assert_eq!(bench.attached_to(&volume.id), None, "{what:?}");
        assert_eq!(bench.fake.state().actions.len(), 3, "{what:?}: one action each");
        assert_eq!(bench.count("POST attach") + bench.count("POST detach"), 2, "{what:?}");
    }
}

#[tokio::test]
async fn action_that_was_never_received_is_started_again() {
    for what in [
        FaultEffect::ResetBefore,
        FaultEffect::Status { code: 503, message: None, retry_after: None },
        FaultEffect::Html(502),
    ] {
        let bench = bench().await;
        let volume = bench.volume("pvc-1").await;
        for kind in ["attach", "detach"] {
            let fault = Fault::new(what.clone()).at("POST", "/v2/volumes/*/actions").action(kind).times(1);
            bench.fake.add_fault(fault);
        }
        bench.attachments.attach(&volume.id, 1).await.unwrap();
        assert_eq!(bench.count("POST attach"), 2, "{what:?}");
        bench.attachments.detach(&volume.id, 1).await.unwrap();
        assert_eq!(bench.attached_to(&volume.id), None, "{what:?}");
    }
}
