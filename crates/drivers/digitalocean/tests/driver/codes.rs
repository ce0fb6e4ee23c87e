//! gRPC codes of refused calls, and that these have no side effects.

use tonic::Code;
use wharf_csi::v1;
use wharf_driver_digitalocean::{Account, AccountStatus};

use crate::support::{Bench, GIB, HERE, THERE, TOKEN, mount, new_volume, refused, restored};

const UNKNOWN_ID: &str = "506f78a4-e098-11e5-ad9f-000f53306ae1";

#[tokio::test]
async fn missing_objects_are_not_found() {
    let bench = Bench::new().await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.fake.forget_requests();
    refused(bench.attach(UNKNOWN_ID, &HERE.to_string()).await, Code::NotFound, UNKNOWN_ID);
    refused(bench.attach(&id, "999").await, Code::NotFound, "999");
    refused(bench.attach(&id, "a-name").await, Code::NotFound, "a-name");
    refused(bench.expand(UNKNOWN_ID, GIB).await, Code::NotFound, UNKNOWN_ID);
    refused(bench.snapshot("s", UNKNOWN_ID).await, Code::NotFound, "");
    refused(bench.call(restored("pvc-2", GIB, UNKNOWN_ID)).await, Code::NotFound, UNKNOWN_ID);
    for id in [UNKNOWN_ID, "not-a-uuid", "../volumes"] {
        bench.delete(id).await.unwrap();
        bench.delete_snapshot(id).await.unwrap();
        bench.detach(id, &HERE.to_string()).await.unwrap();
        bench.detach(id, "").await.unwrap();
    }
    bench.detach(&id, "999").await.unwrap();
    bench.detach(&id, "a-name").await.unwrap();
    let state = bench.fake.state();
    assert_eq!((state.volumes.len(), state.snapshots.len()), (1, 0));
    assert_eq!(state.volumes[&id].attached, None);
}

/// The other path also serves droplet snapshots: a wrong id would delete a machine image.
#[tokio::test]
async fn droplet_snapshot_is_not_deleted() {
    let bench = Bench::new().await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    let snapshot = bench.snapshot("snapshot-1", &id).await.unwrap().snapshot_id;
    bench.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(bench.fake.state().snapshots.len(), 0);
    assert_eq!(bench.request_count("DELETE", &format!("/v2/volumes/snapshots/{snapshot}")), 1);
    assert_eq!(bench.request_count("DELETE", "/v2/snapshots/*"), 0);
}

/// One list of droplets for all volumes; a separate request only for a suspected problem.
#[tokio::test]
async fn health_needs_no_request_per_volume() {
    let bench = Bench::new().await;
    for name in ["pvc-1", "pvc-2", "pvc-3"] {
        let id = bench.create(name, GIB).await.unwrap().volume_id;
        bench.attach(&id, &HERE.to_string()).await.unwrap();
    }
    bench.fake.forget_requests();
    let all = v1::ControllerListVolumeHealthRequest::default;
    assert!(bench.call(all()).await.unwrap().entries.is_empty());
    assert_eq!(bench.request_count("GET", "/v2/droplets"), 1);
    assert_eq!(bench.request_count("GET", "/v2/droplets/*"), 0);

    bench.fake.change(|state, _| drop(state.droplets.remove(&HERE)));
    let id = bench.create("pvc-4", GIB).await.unwrap().volume_id;
    bench.attach(&id, &THERE.to_string()).await.unwrap();
    let unhealthy = bench.call(all()).await.unwrap().entries;
    assert_eq!(unhealthy.len(), 3, "{unhealthy:?}");
}

#[tokio::test]
async fn conflicting_requests_are_refused_without_effect() {
    let bench = Bench::new().await;
    let (here, there) = (HERE.to_string(), THERE.to_string());
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.attach(&id, &here).await.unwrap();
    refused(bench.attach(&id, &there).await, Code::FailedPrecondition, "attached to the wrong droplet (101)");
    refused(bench.delete(&id).await, Code::FailedPrecondition, "detach it first");
    bench.detach(&id, &there).await.unwrap();
    refused(bench.detach(&id, "a-name").await, Code::NotFound, "101");
    assert_eq!(
        bench.fake.state().volumes[&id].attached.unwrap().droplet,
        HERE,
        "refused calls must not have an effect"
    );
    let readonly = v1::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: here.clone(),
        volume_capability: Some(mount("")),
        readonly: true,
        ..Default::default()
    };
    refused(bench.call(readonly).await, Code::AlreadyExists, "can only be attached read-write");

    refused(bench.create("pvc-1", 2 * GIB).await, Code::AlreadyExists, "1 GiB");
    let elsewhere = v1::Topology { segments: [("region".to_owned(), "ams3".to_owned())].into() };
    let far = v1::TopologyRequirement { requisite: vec![elsewhere], preferred: vec![] };
    let far = v1::CreateVolumeRequest { accessibility_requirements: Some(far), ..new_volume("pvc-2", GIB) };
    refused(bench.call(far).await, Code::ResourceExhausted, "nyc3");
    refused(bench.create("pvc-2", 17 << 40).await, Code::OutOfRange, "16 TiB");
    let tight = Some(v1::CapacityRange { required_bytes: GIB / 2, limit_bytes: GIB - 1 });
    let tight = v1::CreateVolumeRequest { capacity_range: tight, ..new_volume("pvc-2", 0) };
    refused(bench.call(tight).await, Code::OutOfRange, "whole GiB");
    assert_eq!(bench.fake.state().volumes.len(), 1);
}

#[tokio::test]
async fn account_limits_are_reported_and_restores_undone() {
    let bench = Bench::new().await;
    let here = HERE.to_string();
    bench
        .fake
        .change_settings(|settings| (settings.volumes_per_droplet, settings.capacity_gigabytes) = (1, 4));
    let one = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    let two = bench.create("pvc-2", GIB).await.unwrap().volume_id;
    refused(bench.create("pvc-3", 3 * GIB).await, Code::ResourceExhausted, "volume limit has been reached");
    refused(bench.expand(&one, 9 * GIB).await, Code::OutOfRange, "volume limit has been reached");
    bench.attach(&one, &here).await.unwrap();
    refused(bench.attach(&two, &here).await, Code::ResourceExhausted, "101");

    // A restored volume that cannot be resized is deleted.
    let snapshot = bench.snapshot("snapshot-1", &one).await.unwrap();
    let copy = bench.call(restored("pvc-4", 5 * GIB, &snapshot.snapshot_id)).await;
    refused(copy, Code::ResourceExhausted, "volume limit has been reached");
    assert_eq!(bench.fake.state().volumes.len(), 2);

    // One snapshot per volume in ten minutes.
    bench.fake.change_settings(|settings| settings.snapshot_interval_ms = 600_000);
    refused(bench.snapshot("snapshot-2", &one).await, Code::Unavailable, "ten minutes");
}

#[tokio::test]
async fn revoked_token_and_full_account_are_reported() {
    let bench = Bench::new().await;
    let account = Account::new(bench.client());
    assert_eq!(account.check().await, AccountStatus::Good);
    bench.fake.revoke_token(TOKEN);
    // An earlier create may have created the volume, so the error is retryable.
    refused(bench.create("pvc-1", GIB).await, Code::Unavailable, "token");
    refused(bench.delete("506f78a4-e098-11e5-ad9f-000f53306ae1").await, Code::Unauthenticated, "token");
    // The result is cached, regardless of how often it is checked.
    bench.fake.forget_requests();
    for _ in 0..20 {
        assert_eq!(account.check().await, AccountStatus::Good);
    }
    assert_eq!(bench.request_count("GET", "/v2/account"), 0);
    assert!(matches!(Account::new(bench.client()).check().await, AccountStatus::Refused(_)));
    bench.fake.allow_token(TOKEN);
    bench.create("pvc-1", GIB).await.unwrap();

    // Volumes of all regions count.
    bench.fake.change_settings(|settings| settings.volume_limit = 1);
    let full = Account::new(bench.client()).check().await;
    assert_eq!(full, AccountStatus::Full { volumes: 1, limit: 1 });
}

#[tokio::test]
async fn existing_volume_gets_the_tag_on_attach() {
    let bench = Bench::with(|config| config.tag = Some("k8s:test".into())).await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.fake.change(|state, _| {
        state.tags.clear();
        state.volumes.values_mut().for_each(|volume| volume.tags.clear());
    });
    bench.attach(&id, &HERE.to_string()).await.unwrap();
    assert_eq!(bench.fake.state().volumes[&id].tags, ["k8s:test"]);
    bench.fake.forget_requests();
    bench.attach(&id, &HERE.to_string()).await.unwrap();
    assert_eq!(bench.request_count("POST", "/v2/tags/*"), 0, "once is enough");
}
