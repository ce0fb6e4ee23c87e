//! Faults during calls: nothing is created twice, nothing is lost, no half-attached device is used.

use std::time::Duration;

use tonic::{Code, Status};
use wharf_driver_digitalocean::DESCRIPTION;
use wharf_fake_digitalocean::{Attachment, Fault, FaultEffect, HalfAttached, HalfAttachedShape};

use crate::support::{Bench, GIB, HERE, TOKEN, mount, refused, restored};

/// Retries a call until it succeeds, as a sidecar does.
async fn retry_until_ok<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let mut last = None;
    for _ in 0..20 {
        match call().await {
            Ok(response) => return response,
            Err(status) => {
                let passes = matches!(status.code(), Code::Unavailable | Code::Aborted);
                assert!(passes, "not a retryable error: {status}");
                last = Some(status);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("never succeeded: {last:?}");
}

/// A lifecycle in the API only, with every call retried until it succeeds.
async fn cloud_lifecycle(bench: &Bench, fault: &str) {
    let here = HERE.to_string();
    let volume = retry_until_ok(async || bench.create("pvc-1", GIB).await).await;
    assert_eq!(bench.fake.state().volumes.len(), 1, "{fault}: one volume per name");
    let id = volume.volume_id;
    retry_until_ok(async || bench.attach(&id, &here).await).await;
    retry_until_ok(async || bench.expand(&id, 2 * GIB).await).await;
    let snapshot = retry_until_ok(async || bench.snapshot("snapshot-1", &id).await).await.snapshot_id;
    assert_eq!(bench.fake.state().snapshots.len(), 1, "{fault}: one snapshot per name");
    let copy = retry_until_ok(async || bench.call(restored("pvc-2", 3 * GIB, &snapshot)).await)
        .await
        .volume
        .unwrap();
    assert_eq!(copy.capacity_bytes, 3 * GIB, "{fault}");
    assert_eq!(bench.fake.state().volumes.len(), 2, "{fault}: one volume per name");
    retry_until_ok(async || bench.detach(&id, &here).await).await;
    for id in [&id, &copy.volume_id] {
        retry_until_ok(async || bench.delete(id).await).await;
    }
    retry_until_ok(async || bench.delete_snapshot(&snapshot).await).await;
    let state = bench.fake.state();
    assert!(state.volumes.is_empty() && state.snapshots.is_empty(), "{fault}: {state:?}");
}

#[tokio::test]
async fn call_with_unknown_result_succeeds_on_retry() {
    let bench = Bench::with(|config| config.tag = Some("k8s:test".into())).await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 20);
    let calls = [
        ("POST", "/v2/volumes", None),
        ("POST", "/v2/volumes/*/actions", Some("attach")),
        ("POST", "/v2/volumes/*/actions", Some("resize")),
        ("POST", "/v2/volumes/*/actions", Some("detach")),
        ("POST", "/v2/volumes/*/snapshots", None),
        ("DELETE", "/v2/volumes/*", None),
        ("DELETE", "/v2/volumes/snapshots/*", None),
    ];
    for what in [
        FaultEffect::ResetAfter,
        FaultEffect::StatusAfter(500),
        FaultEffect::Truncated,
        FaultEffect::ResetBefore,
    ] {
        for (method, path, action) in calls {
            let mut fault = Fault::new(what.clone()).at(method, path).times(1);
            if let Some(action) = action {
                fault = fault.action(action);
            }
            let number = bench.fake.add_fault(fault.clone());
            cloud_lifecycle(&bench, &format!("{fault:?}")).await;
            assert!(bench.fake.requests().iter().any(|seen| seen.faulted), "{fault:?} matched no request");
            bench.fake.forget_requests();
            bench.fake.remove_fault(number);
        }
    }
}

/// A final error would make the provisioner drop a volume that exists.
#[tokio::test]
async fn create_stays_retryable_while_its_volume_may_exist() {
    let bench = Bench::new().await;
    // The volume is created, the response is lost, and the token is revoked before the search by name.
    bench.fake.add_fault(Fault::new(FaultEffect::ResetAfter).at("POST", "/v2/volumes").times(1));
    let refusal = FaultEffect::Status { code: 401, message: None, retry_after: None };
    bench.fake.add_fault(Fault::new(refusal).at("GET", "/v2/volumes").skip(1).times(1));
    refused(bench.create("pvc-1", GIB).await, Code::Unavailable, "token");
    bench.fake.revoke_token(TOKEN);
    refused(bench.create("pvc-1", GIB).await, Code::Unavailable, "token");
    bench.fake.allow_token(TOKEN);
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    assert_eq!(bench.fake.state().volumes.len(), 1);

    // It is restored, and the resize fails for various reasons.
    let snapshot = bench.snapshot("snapshot-1", &id).await.unwrap().snapshot_id;
    let restore = async || bench.call(restored("pvc-2", 3 * GIB, &snapshot)).await;
    let refusal = |code| FaultEffect::Status { code, message: None, retry_after: None };
    for what in [FaultEffect::ActionErrored, refusal(401), refusal(403), refusal(422)] {
        bench.fake.add_fault(Fault::new(what).at("POST", "/v2/volumes/*/actions").action("resize").times(1));
        refused(restore().await, Code::Unavailable, "action");
        assert_eq!(bench.fake.state().volumes.len(), 2, "the volume must remain for the next call");
    }
    assert_eq!(restore().await.unwrap().volume.unwrap().capacity_bytes, 3 * GIB);
    assert_eq!(bench.fake.state().volumes.len(), 2);
}

/// The first driver crashed before the resize; the next one reaches the limit, and the caller may give up.
#[tokio::test]
async fn restored_volume_that_cannot_be_resized_is_deleted() {
    let bench = Bench::new().await;
    let source = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    let snapshot = bench.snapshot("snapshot-1", &source).await.unwrap().snapshot_id;
    let restore = async || bench.call(restored("pvc-2", 5 * GIB, &snapshot)).await.map(drop);
    for (description, droplet, left) in
        [("by hand", None, true), (DESCRIPTION, Some(HERE), true), (DESCRIPTION, None, false)]
    {
        let id = bench.create("pvc-2", GIB).await.unwrap().volume_id;
        bench.fake.change(|state, now| {
            let volume = state.volumes.get_mut(&id).unwrap();
            volume.description = description.to_owned();
            volume.attached = droplet.map(|droplet| Attachment { droplet, since: now });
        });
        bench.fake.change_settings(|settings| settings.capacity_gigabytes = 4);
        let code = if left { Code::Unavailable } else { Code::ResourceExhausted };
        refused(restore().await, code, "volume limit has been reached");
        assert_eq!(bench.fake.state().volumes.contains_key(&id), left, "{description} {droplet:?}");
        bench.fake.change_settings(|settings| settings.capacity_gigabytes = 0);
        bench.detach(&id, &HERE.to_string()).await.unwrap();
        bench.delete(&id).await.unwrap();
    }
    // If the volume cannot be deleted, the error is retryable.
    bench.fake.change_settings(|settings| settings.capacity_gigabytes = 4);
    let fault = bench.fake.add_fault(Fault::new(FaultEffect::Html(503)).at("DELETE", "/v2/volumes/*"));
    refused(restore().await, Code::Unavailable, "was not deleted");
    bench.fake.remove_fault(fault);
    refused(restore().await, Code::ResourceExhausted, "volume limit has been reached");
    assert_eq!(bench.fake.state().volumes.len(), 1);
}

/// An errored action is reported at once. At the timeout the code would be UNAVAILABLE.
#[tokio::test]
async fn errored_action_fails_at_once() {
    let bench = Bench::new().await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.fake.add_fault(Fault::new(FaultEffect::ActionErrored).action("attach").times(1));
    refused(bench.attach(&id, &HERE.to_string()).await, Code::Internal, "failed in the API without a reason");
    bench.attach(&id, &HERE.to_string()).await.unwrap();
}

#[tokio::test]
async fn unreachable_api_is_unavailable() {
    let bench = Bench::new().await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.fake.add_fault(Fault::new(FaultEffect::Html(503)));
    refused(bench.create("pvc-2", GIB).await, Code::Unavailable, "503");
    refused(bench.delete(&id).await, Code::Unavailable, "503");
    bench.fake.clear_faults();
    bench.fake.add_fault(Fault::new(FaultEffect::Html(404)));
    // An error page of a proxy proves nothing.
    refused(bench.delete(&id).await, Code::Unavailable, "404");
    refused(bench.detach(&id, &HERE.to_string()).await, Code::Unavailable, "404");
    bench.fake.clear_faults();
    assert_eq!(bench.fake.state().volumes.len(), 1);
    bench.delete(&id).await.unwrap();
}

/// A half-attached device is neither formatted nor mounted until it is complete.
#[tokio::test]
async fn half_attached_device_is_waited_for() {
    let bench = Bench::new().await;
    let here = HERE.to_string();
    for (shape, name) in [
        (HalfAttachedShape::Dangling, "pvc-a"),
        (HalfAttachedShape::Empty, "pvc-b"),
        (HalfAttachedShape::Short, "pvc-c"),
    ] {
        bench
            .fake
            .change_settings(|settings| settings.half_attached = Some(HalfAttached { shape, for_ms: 1500 }));
        let id = bench.create(name, 2 * GIB).await.unwrap().volume_id;
        let context = bench.attach(&id, &here).await.unwrap();
        bench.stage(&id, &mount("ext4"), context.clone()).await.unwrap();
        let total = bench.stats(&id, &bench.staging(&id)).await.unwrap()[0].total;
        assert!(total > 3 * GIB / 2, "{shape:?}: the file system was created on {total} bytes");
        std::fs::write(bench.staging(&id).join("file"), "data").unwrap();
        bench.unstage(&id).await.unwrap();
        bench.detach(&id, &here).await.unwrap();
        // A formatted device that returns half-attached is not mistaken for a blank one.
        let context = bench.attach(&id, &here).await.unwrap();
        bench.stage(&id, &mount("ext4"), context).await.unwrap();
        assert_eq!(std::fs::read_to_string(bench.staging(&id).join("file")).unwrap(), "data", "{shape:?}");
        bench.unstage(&id).await.unwrap();
        bench.detach(&id, &here).await.unwrap();
        bench.delete(&id).await.unwrap();
    }
    bench.assert_empty();
}
