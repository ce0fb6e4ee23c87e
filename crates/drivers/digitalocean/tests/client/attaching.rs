//! Attach, detach and resize of one volume, and every error of these operations.

use std::time::Duration;

use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_driver_digitalocean::{ApiErrorKind, OperationError};
use wharf_fake_digitalocean::{Fault, FaultEffect};

use crate::support::{POLLING, bench, bench_with, options};

const ACTIONS: &str = "/v2/volumes/*/actions";

#[tokio::test]
async fn volume_is_attached_detached_and_resized() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    let attached = bench.attachments.attach(&volume.id, 1).await.unwrap();
    assert_eq!((attached.name.as_str(), attached.droplet_ids.as_slice()), ("pvc-1", &[1][..]));
    assert_eq!(bench.count("POST attach"), 1);
    let larger = bench.attachments.resize(&volume.id, 20).await.unwrap();
    assert_eq!(larger.size_gigabytes, 20);
    bench.attachments.detach(&volume.id, 1).await.unwrap();
    assert_eq!(bench.attached_to(&volume.id), None);
    assert_eq!(bench.count("POST detach"), 1);
    assert_eq!(bench.refusals(), [] as [u16; 0]);
}

#[tokio::test]
async fn repeated_operation_succeeds_with_few_requests() {
    let bench = bench().await;
    let volume = bench.attached("pvc-1", 1).await;
    assert_eq!(bench.attachments.attach(&volume.id, 1).await.unwrap(), volume);
    assert_eq!(bench.seen(), ["POST attach", "GET"]);
    assert_eq!(bench.attachments.resize(&volume.id, 5).await.unwrap().size_gigabytes, 10);
    bench.attachments.detach(&volume.id, 2).await.unwrap();
    assert_eq!(bench.attached_to(&volume.id), Some(1), "a detach from one droplet must not affect another");
    bench.attachments.detach(&volume.id, 1).await.unwrap();
    bench.fake.forget_requests();
    bench.attachments.detach(&volume.id, 1).await.unwrap();
    // Two GET requests: the volume's actions (an attach may be running) and the volume itself.
    assert_eq!(bench.seen(), ["POST detach", "GET", "GET"]);
}

#[tokio::test]
async fn reached_goal_succeeds_while_the_droplet_is_busy() {
    let bench = bench().await;
    let volume = bench.attached("pvc-1", 1).await;
    let other = bench.volume("pvc-2").await;
    bench.fake.add_fault(Fault::new(FaultEffect::ActionNeverEnds).times(1));
    let attach = wharf_driver_digitalocean::api::VolumeAction::Attach { droplet_id: 1 };
    bench.client.start_action(&other.id, &attach).await.unwrap();
    bench.attachments.attach(&volume.id, 1).await.unwrap();
}

#[tokio::test]
async fn action_completed_in_the_response_is_not_polled() {
    let bench = bench().await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 0);
    let volume = bench.volume("pvc-1").await;
    bench.attachments.attach(&volume.id, 1).await.unwrap();
    assert_eq!(bench.seen(), ["POST attach", "GET"]);
}

#[tokio::test]
async fn volume_attached_elsewhere_is_refused() {
    let bench = bench().await;
    let volume = bench.attached("pvc-1", 1).await;
    let error = bench.attachments.attach(&volume.id, 2).await.unwrap_err();
    assert_eq!(error, OperationError::AttachedElsewhere { volume: volume.id.clone(), droplet: 1 });
    assert_eq!(bench.attached_to(&volume.id), Some(1));
}

#[tokio::test]
async fn missing_volume_or_droplet_is_not_found() {
    let bench = bench().await;
    let none = "506f78a4-e098-11e5-ad9f-000f53306ae1";
    let volume = bench.attached("pvc-1", 1).await;
    let free = bench.volume("pvc-2").await;
    let no_volume = OperationError::NoVolume(none.to_owned());
    assert_eq!(bench.attachments.attach(none, 1).await.unwrap_err(), no_volume);
    assert_eq!(bench.attachments.resize(none, 20).await.unwrap_err(), no_volume);
    bench.attachments.detach(none, 1).await.unwrap();
    assert_eq!(bench.attachments.attach(&free.id, 99).await.unwrap_err(), OperationError::NoDroplet(99));
    bench.attachments.detach(&volume.id, 99).await.unwrap();
    assert_eq!(bench.attached_to(&volume.id), Some(1));
}

#[tokio::test]
async fn full_droplet_reports_its_volume_count() {
    let bench = bench().await;
    bench.fake.change_settings(|settings| settings.volumes_per_droplet = 2);
    for name in ["pvc-1", "pvc-2"] {
        bench.attached(name, 1).await;
    }
    let volume = bench.volume("pvc-3").await;
    let error = bench.attachments.attach(&volume.id, 1).await.unwrap_err();
    let OperationError::TooManyVolumes { droplet: 1, attached: Some(2), .. } = error else {
        panic!("{error}")
    };
}

/// DigitalOcean's existing driver polls such an action until its timeout.
#[tokio::test]
async fn errored_action_fails_at_once() {
    let long = PollingOptions { timeout: Duration::from_secs(600), ..POLLING };
    let bench = bench_with(options(), |_| {}, long).await;
    let volume = bench.volume("pvc-1").await;
    let attached = bench.attached("pvc-2", 2).await;
    for kind in ["attach", "detach", "resize"] {
        bench
            .fake
            .add_fault(Fault::new(FaultEffect::ActionErrored).at("POST", ACTIONS).action(kind).times(1));
    }
    let errors = [
        bench.attachments.attach(&volume.id, 1).await.unwrap_err(),
        bench.attachments.detach(&attached.id, 2).await.unwrap_err(),
        bench.attachments.resize(&volume.id, 20).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, OperationError::Errored { .. }), "{error}");
    }
    // A retry starts a new action.
    bench.attachments.attach(&volume.id, 1).await.unwrap();
    bench.attachments.detach(&attached.id, 2).await.unwrap();
}

/// The next call resumes an action that was running at the deadline, and starts no new one.
#[tokio::test]
async fn endless_action_is_unfinished_and_resumed_by_retry() {
    let short = PollingOptions { timeout: Duration::from_secs(3), ..POLLING };
    let bench = bench_with(options(), |_| {}, short).await;
    let volume = bench.volume("pvc-1").await;
    bench.fake.add_fault(Fault::new(FaultEffect::ActionNeverEnds).at("POST", ACTIONS).times(1));
    let error = bench.attachments.attach(&volume.id, 1).await.unwrap_err();
    assert!(matches!(error, OperationError::Unfinished { .. }), "{error}");
    let running = bench.fake.state().pending().next().unwrap().id;
    bench.fake.forget_requests();
    // The action must not end before the second call has found it.
    let (second, ()) = tokio::join!(bench.attachments.attach(&volume.id, 1), async {
        while bench.count("GET") < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bench.fake.change(|state, now| state.finish(running, now));
    });
    assert_eq!(second.unwrap().droplet_ids, [1]);
    assert_eq!(bench.fake.state().actions.len(), 1, "no second action may be started");
}

#[tokio::test]
async fn forbidden_token_is_an_api_error() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    bench.fault(FaultEffect::Status { code: 403, message: None, retry_after: None }, "POST", ACTIONS, 1);
    let OperationError::Api { error, .. } = bench.attachments.attach(&volume.id, 1).await.unwrap_err() else {
        panic!("expected an API error")
    };
    assert_eq!(error.kind(), ApiErrorKind::Forbidden);
    assert_eq!(bench.count("POST attach"), 1);
}
