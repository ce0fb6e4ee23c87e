//! What goes wrong on the way: nothing is made twice, nothing is lost, nothing half is used.

use std::time::Duration;

use tonic::{Code, Status};
use wharf_driver_digitalocean::DESCRIPTION;
use wharf_fake_digitalocean::{Attachment, Fault, Half, HalfAttached, What};

use crate::support::{Bench, GIB, HERE, TOKEN, mount, refused, restored};

/// Repeats a call as an orchestrator does, until it succeeds.
async fn until<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) -> T {
    let mut last = None;
    for _ in 0..20 {
        match call().await {
            Ok(answer) => return answer,
            Err(status) => {
                let passes = matches!(status.code(), Code::Unavailable | Code::Aborted);
                assert!(passes, "this is not what an orchestrator repeats in peace: {status}");
                last = Some(status);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it never succeeds: {last:?}");
}

/// A life in the cloud alone, every call repeated until it succeeds.
async fn live(bench: &Bench, fault: &str) {
    let here = HERE.to_string();
    let volume = until(async || bench.create("pvc-1", GIB).await).await;
    assert_eq!(bench.fake.state().volumes.len(), 1, "{fault}: one name, one volume");
    let id = volume.volume_id;
    until(async || bench.attach(&id, &here).await).await;
    until(async || bench.expand(&id, 2 * GIB).await).await;
    let snapshot = until(async || bench.snapshot("snapshot-1", &id).await).await.snapshot_id;
    assert_eq!(bench.fake.state().snapshots.len(), 1, "{fault}: one name, one snapshot");
    let copy = until(async || bench.call(restored("pvc-2", 3 * GIB, &snapshot)).await).await.volume.unwrap();
    assert_eq!(copy.capacity_bytes, 3 * GIB, "{fault}");
    assert_eq!(bench.fake.state().volumes.len(), 2, "{fault}: one name, one volume");
    until(async || bench.detach(&id, &here).await).await;
    for id in [&id, &copy.volume_id] {
        until(async || bench.delete(id).await).await;
    }
    until(async || bench.delete_snapshot(&snapshot).await).await;
    let state = bench.fake.state();
    assert!(state.volumes.is_empty() && state.snapshots.is_empty(), "{fault}: {state:?}");
}

#[tokio::test]
async fn a_call_of_which_nobody_knows_what_became_is_made_good() {
    let bench = Bench::with(|config| config.tag = Some("k8s:test".into())).await;
    bench.fake.set_knobs(|knobs| knobs.action_delay_ms = 20);
    let calls = [
        ("POST", "/v2/volumes", None),
        ("POST", "/v2/volumes/*/actions", Some("attach")),
        ("POST", "/v2/volumes/*/actions", Some("resize")),
        ("POST", "/v2/volumes/*/actions", Some("detach")),
        ("POST", "/v2/volumes/*/snapshots", None),
        ("DELETE", "/v2/volumes/*", None),
        ("DELETE", "/v2/volumes/snapshots/*", None),
    ];
    for what in [What::ResetAfter, What::StatusAfter(500), What::Truncated, What::ResetBefore] {
        for (method, path, action) in calls {
            let mut fault = Fault::new(what.clone()).at(method, path).times(1);
            if let Some(action) = action {
                fault = fault.action(action);
            }
            let number = bench.fake.add_fault(fault.clone());
            live(&bench, &format!("{fault:?}")).await;
            assert!(bench.fake.requests().iter().any(|seen| seen.faulted), "{fault:?} hit nothing");
            bench.fake.forget_requests();
            bench.fake.remove_fault(number);
        }
    }
}

/// A final answer would make the orchestrator forget a volume that is there.
#[tokio::test]
async fn a_create_does_not_end_while_its_volume_may_be_there() {
    let bench = Bench::new().await;
    // The volume is made, the answer is lost, and the token is revoked before anybody can look.
    bench.fake.add_fault(Fault::new(What::ResetAfter).at("POST", "/v2/volumes").times(1));
    let refusal = What::Status { code: 401, message: None, retry_after: None };
    bench.fake.add_fault(Fault::new(refusal).at("GET", "/v2/volumes").skip(1).times(1));
    refused(bench.create("pvc-1", GIB).await, Code::Unavailable, "token");
    bench.fake.revoke_token(TOKEN);
    refused(bench.create("pvc-1", GIB).await, Code::Unavailable, "token");
    bench.fake.allow_token(TOKEN);
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    assert_eq!(bench.fake.state().volumes.len(), 1);

    // It is restored, and cannot grow for this or that reason.
    let snapshot = bench.snapshot("snapshot-1", &id).await.unwrap().snapshot_id;
    let restore = async || bench.call(restored("pvc-2", 3 * GIB, &snapshot)).await;
    let refusal = |code| What::Status { code, message: None, retry_after: None };
    for what in [What::ActionErrored, refusal(401), refusal(403), refusal(422)] {
        bench.fake.add_fault(Fault::new(what).at("POST", "/v2/volumes/*/actions").action("resize").times(1));
        refused(restore().await, Code::Unavailable, "action");
        assert_eq!(bench.fake.state().volumes.len(), 2, "it waits for the next call");
    }
    assert_eq!(restore().await.unwrap().volume.unwrap().capacity_bytes, 3 * GIB);
    assert_eq!(bench.fake.state().volumes.len(), 2);
}

/// The one that made it died before it grew; the next one hears that there is no room, and may give up.
#[tokio::test]
async fn what_an_earlier_call_restored_and_cannot_grow_is_taken_back() {
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
        bench.fake.set_knobs(|knobs| knobs.capacity_gigabytes = 4);
        let code = if left { Code::Unavailable } else { Code::ResourceExhausted };
        refused(restore().await, code, "volume limit has been reached");
        assert_eq!(bench.fake.state().volumes.contains_key(&id), left, "{description} {droplet:?}");
        bench.fake.set_knobs(|knobs| knobs.capacity_gigabytes = 0);
        bench.detach(&id, &HERE.to_string()).await.unwrap();
        bench.delete(&id).await.unwrap();
    }
    // Where it cannot be taken back, the create is not at its end.
    bench.fake.set_knobs(|knobs| knobs.capacity_gigabytes = 4);
    let fault = bench.fake.add_fault(Fault::new(What::Html(503)).at("DELETE", "/v2/volumes/*"));
    refused(restore().await, Code::Unavailable, "not taken back");
    bench.fake.remove_fault(fault);
    refused(restore().await, Code::ResourceExhausted, "volume limit has been reached");
    assert_eq!(bench.fake.state().volumes.len(), 1);
}

/// B4: an action that ended in an error is not waited for until time has run out. Were it, it would be UNAVAILABLE.
#[tokio::test]
async fn an_action_that_failed_is_an_error_at_once() {
    let bench = Bench::new().await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.fake.add_fault(Fault::new(What::ActionErrored).action("attach").times(1));
    refused(bench.attach(&id, &HERE.to_string()).await, Code::Internal, "error");
    bench.attach(&id, &HERE.to_string()).await.unwrap();
}

#[tokio::test]
async fn an_api_that_is_down_is_waited_for_by_the_caller() {
    let bench = Bench::new().await;
    let id = bench.create("pvc-1", GIB).await.unwrap().volume_id;
    bench.fake.add_fault(Fault::new(What::Html(503)));
    refused(bench.create("pvc-2", GIB).await, Code::Unavailable, "503");
    refused(bench.delete(&id).await, Code::Unavailable, "503");
    bench.fake.clear_faults();
    bench.fake.add_fault(Fault::new(What::Html(404)));
    // A proxy that knows nothing of us proves nothing.
    refused(bench.delete(&id).await, Code::Unavailable, "404");
    refused(bench.detach(&id, &HERE.to_string()).await, Code::Unavailable, "404");
    bench.fake.clear_faults();
    assert_eq!(bench.fake.state().volumes.len(), 1);
    bench.delete(&id).await.unwrap();
}

/// B2 and B6: what is not whole is neither formatted nor mounted, and what comes of it is.
#[tokio::test]
async fn a_half_attached_device_is_waited_for() {
    let bench = Bench::new().await;
    let here = HERE.to_string();
    for (shape, name) in [(Half::Dangling, "pvc-a"), (Half::Empty, "pvc-b"), (Half::Short, "pvc-c")] {
        bench.fake.set_knobs(|knobs| knobs.half_attached = Some(HalfAttached { shape, for_ms: 1500 }));
        let id = bench.create(name, 2 * GIB).await.unwrap().volume_id;
        let context = bench.attach(&id, &here).await.unwrap();
        bench.stage(&id, &mount("ext4"), context.clone()).await.unwrap();
        let total = bench.stats(&id, &bench.staging(&id)).await.unwrap()[0].total;
        assert!(total > 3 * GIB / 2, "{shape:?}: it was made on {total} bytes");
        std::fs::write(bench.staging(&id).join("file"), "data").unwrap();
        bench.unstage(&id).await.unwrap();
        bench.detach(&id, &here).await.unwrap();
        // A device that comes back half is not taken for a blank one either.
        let context = bench.attach(&id, &here).await.unwrap();
        bench.stage(&id, &mount("ext4"), context).await.unwrap();
        assert_eq!(std::fs::read_to_string(bench.staging(&id).join("file")).unwrap(), "data", "{shape:?}");
        bench.unstage(&id).await.unwrap();
        bench.detach(&id, &here).await.unwrap();
        bench.delete(&id).await.unwrap();
    }
    bench.assert_empty();
}
