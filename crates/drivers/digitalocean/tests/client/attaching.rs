//! Attach, detach and resize of one volume, with all that can be in the way.

use std::time::Duration;

use wharf_driver_digitalocean::actions::Pace;
use wharf_driver_digitalocean::{Kind, OperationError};
use wharf_fake_digitalocean::{Fault, What};

use crate::support::{PACE, bench, bench_with, options};

const ACTIONS: &str = "/v2/volumes/*/actions";

#[tokio::test]
async fn there_and_back_and_larger() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    let attached = bench.attachments.attach(&volume.id, 1).await.unwrap();
    assert_eq!((attached.name.as_str(), attached.droplet_ids.as_slice()), ("pvc-1", &[1][..]));
    assert_eq!(bench.count("POST attach"), 1);
    let larger = bench.attachments.resize(&volume.id, 20).await.unwrap();
    assert_eq!(larger.size_gigabytes, 20);
    bench.attachments.detach(&volume.id, 1).await.unwrap();
    assert_eq!(bench.place(&volume.id), None);
    assert_eq!(bench.count("POST detach"), 1);
    assert_eq!(bench.refusals(), [] as [u16; 0]);
}

#[tokio::test]
async fn done_already_is_success_and_cheap() {
    let bench = bench().await;
    let volume = bench.attached("pvc-1", 1).await;
    assert_eq!(bench.attachments.attach(&volume.id, 1).await.unwrap(), volume);
    assert_eq!(bench.seen(), ["POST attach", "GET"]);
    assert_eq!(bench.attachments.resize(&volume.id, 5).await.unwrap().size_gigabytes, 10);
    bench.attachments.detach(&volume.id, 2).await.unwrap();
    assert_eq!(bench.place(&volume.id), Some(1), "not there is no reason to detach it elsewhere");
    bench.attachments.detach(&volume.id, 1).await.unwrap();
    bench.fake.forget_requests();
    bench.attachments.detach(&volume.id, 1).await.unwrap();
    // Its actions, of which one may be an attach under way, and the volume itself.
    assert_eq!(bench.seen(), ["POST detach", "GET", "GET"]);
}

#[tokio::test]
async fn done_already_is_seen_while_the_droplet_is_busy() {
    let bench = bench().await;
    let volume = bench.attached("pvc-1", 1).await;
    let other = bench.volume("pvc-2").await;
    bench.fake.add_fault(Fault::new(What::ActionNeverEnds).times(1));
    let attach = wharf_driver_digitalocean::api::VolumeAction::Attach { droplet_id: 1 };
    bench.client.start_action(&other.id, &attach).await.unwrap();
    bench.attachments.attach(&volume.id, 1).await.unwrap();
}

#[tokio::test]
async fn an_action_that_ended_in_the_answer_is_not_waited_for() {
    let bench = bench().await;
    bench.fake.set_knobs(|knobs| knobs.action_delay_ms = 0);
    let volume = bench.volume("pvc-1").await;
    bench.attachments.attach(&volume.id, 1).await.unwrap();
    assert_eq!(bench.seen(), ["POST attach", "GET"]);
}

#[tokio::test]
async fn elsewhere_is_an_error_and_stays_so() {
    let bench = bench().await;
    let volume = bench.attached("pvc-1", 1).await;
    let error = bench.attachments.attach(&volume.id, 2).await.unwrap_err();
    assert_eq!(error, OperationError::AttachedElsewhere { volume: volume.id.clone(), droplet: 1 });
    assert_eq!(bench.place(&volume.id), Some(1));
}

#[tokio::test]
async fn volumes_and_droplets_that_are_not_there() {
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
    assert_eq!(bench.place(&volume.id), Some(1));
}

#[tokio::test]
async fn a_full_droplet_tells_how_many_it_has() {
    let bench = bench().await;
    bench.fake.set_knobs(|knobs| knobs.volumes_per_droplet = 2);
    for name in ["pvc-1", "pvc-2"] {
        bench.attached(name, 1).await;
    }
    let volume = bench.volume("pvc-3").await;
    let error = bench.attachments.attach(&volume.id, 1).await.unwrap_err();
    let OperationError::TooManyVolumes { droplet: 1, attached: Some(2), .. } = error else {
        panic!("{error}")
    };
}

/// B4: the old driver asks for such an action until its time is over.
#[tokio::test]
async fn an_errored_action_is_an_error_at_once() {
    let long = Pace { patience: Duration::from_secs(600), ..PACE };
    let bench = bench_with(options(), |_| {}, long).await;
    let volume = bench.volume("pvc-1").await;
    let there = bench.attached("pvc-2", 2).await;
    for kind in ["attach", "detach", "resize"] {
        bench.fake.add_fault(Fault::new(What::ActionErrored).at("POST", ACTIONS).action(kind).times(1));
    }
    let errors = [
        bench.attachments.attach(&volume.id, 1).await.unwrap_err(),
        bench.attachments.detach(&there.id, 2).await.unwrap_err(),
        bench.attachments.resize(&volume.id, 20).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, OperationError::Errored { .. }), "{error}");
    }
    // And the next try is a new one.
    bench.attachments.attach(&volume.id, 1).await.unwrap();
    bench.attachments.detach(&there.id, 2).await.unwrap();
}

/// What is under way at the deadline is taken up by the next call, not begun again.
#[tokio::test]
async fn an_action_without_an_end_is_unfinished_and_taken_up_again() {
    let short = Pace { patience: Duration::from_secs(3), ..PACE };
    let bench = bench_with(options(), |_| {}, short).await;
    let volume = bench.volume("pvc-1").await;
    bench.fake.add_fault(Fault::new(What::ActionNeverEnds).at("POST", ACTIONS).times(1));
    let error = bench.attachments.attach(&volume.id, 1).await.unwrap_err();
    assert!(matches!(error, OperationError::Unfinished { .. }), "{error}");
    let running = bench.fake.state().pending().next().unwrap().id;
    bench.fake.forget_requests();
    // The fake must hold still until the second call has found it.
    let (second, ()) = tokio::join!(bench.attachments.attach(&volume.id, 1), async {
        while bench.count("GET") < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bench.fake.change(|state, now| state.finish(running, now));
    });
    assert_eq!(second.unwrap().droplet_ids, [1]);
    assert_eq!(bench.fake.state().actions.len(), 1, "there was never a second action");
}

#[tokio::test]
async fn what_the_token_may_not_do() {
    let bench = bench().await;
    let volume = bench.volume("pvc-1").await;
    bench.fault(What::Status { code: 403, message: None, retry_after: None }, "POST", ACTIONS, 1);
    let OperationError::Api { error, .. } = bench.attachments.attach(&volume.id, 1).await.unwrap_err() else {
        panic!("no API error")
    };
    assert_eq!(error.kind(), Kind::Forbidden);
    assert_eq!(bench.count("POST attach"), 1);
}
