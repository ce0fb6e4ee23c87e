//! The connection ends after each call that has an effect, or the answer is lost: no duplicate, nothing lost.

use wharf_driver_digitalocean::api::NewSnapshot;
use wharf_driver_digitalocean::client::ApiError;
use wharf_fake_digitalocean::{Fault, What};

use crate::support::{REGION, bench, new_volume};

/// The effect has happened, and nobody says so.
fn lost() -> [What; 5] {
    [What::ResetAfter, What::Truncated, What::CutOff, What::StatusAfter(500), What::StatusAfter(502)]
}

fn uncertain<T: std::fmt::Debug>(answer: Result<T, ApiError>) {
    let error = answer.unwrap_err();
    assert!(error.uncertain(), "{error}");
}

#[tokio::test]
async fn a_volume_that_was_made_is_found_by_its_name_and_not_made_twice() {
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
async fn a_snapshot_that_was_cut_is_found_among_the_volumes() {
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
async fn what_was_deleted_is_gone_when_asked_again() {
    for what in [What::ResetAfter, What::StatusAfter(500), What::ResetBefore] {
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
async fn an_action_whose_answer_was_lost_is_found_and_not_begun_twice() {
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
        assert_eq!(bench.place(&volume.id), None, "{what:?}");
        assert_eq!(bench.fake.state().actions.len(), 3, "{what:?}: one action each");
        assert_eq!(bench.count("POST attach") + bench.count("POST detach"), 2, "{what:?}");
    }
}

#[tokio::test]
async fn an_action_that_was_never_heard_of_is_begun_again() {
    for what in
        [What::ResetBefore, What::Status { code: 503, message: None, retry_after: None }, What::Html(502)]
    {
        let bench = bench().await;
        let volume = bench.volume("pvc-1").await;
        for kind in ["attach", "detach"] {
            let fault = Fault::new(what.clone()).at("POST", "/v2/volumes/*/actions").action(kind).times(1);
            bench.fake.add_fault(fault);
        }
        bench.attachments.attach(&volume.id, 1).await.unwrap();
        assert_eq!(bench.count("POST attach"), 2, "{what:?}");
        bench.attachments.detach(&volume.id, 1).await.unwrap();
        assert_eq!(bench.place(&volume.id), None, "{what:?}");
    }
}
