//! Many operations on one droplet: one at a time, waiting for events of other clients.

use std::time::Duration;

use wharf_driver_digitalocean::OperationError;
use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_driver_digitalocean::api::VolumeAction;
use wharf_fake_digitalocean::{Fault, FaultEffect};

use crate::support::{Bench, POLLING, bench, bench_with, options};

async fn volumes(bench: &Bench, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for number in 0..count {
        ids.push(bench.volume(&format!("pvc-{number}")).await.id);
    }
    ids
}

#[tokio::test]
async fn operations_on_one_droplet_run_one_at_a_time() {
    let bench = bench().await;
    let volumes = volumes(&bench, 5).await;
    let tasks: Vec<_> = volumes
        .iter()
        .map(|id| {
            let (attachments, id) = (bench.attachments.clone(), id.clone());
            tokio::spawn(async move { attachments.attach(&id, 1).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(bench.refusals(), [] as [u16; 0]);
    assert_eq!(bench.count("POST attach"), 5);
    assert_eq!(bench.fake.state().volumes_of(1).count(), 5);
}

#[tokio::test]
async fn detach_takes_precedence() {
    let bench = bench().await;
    let there = bench.attached("there", 1).await;
    let volumes = volumes(&bench, 3).await;
    let attach = |id: String| {
        let attachments = bench.attachments.clone();
        tokio::spawn(async move { attachments.attach(&id, 1).await.map(|_| ()) })
    };
    let mut tasks: Vec<_> = volumes.into_iter().map(attach).collect();
    // The first one holds the droplet, the others wait.
    while bench.count("POST attach") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let attachments = bench.attachments.clone();
    tasks.push(tokio::spawn(async move { attachments.detach(&there.id, 1).await }));
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let posts: Vec<_> = bench.seen().into_iter().filter(|seen| seen.starts_with("POST")).collect();
    assert_eq!(posts, ["POST attach", "POST detach", "POST attach", "POST attach"]);
}

#[tokio::test]
async fn foreign_event_is_waited_for() {
    let bench = bench().await;
    let volumes = volumes(&bench, 2).await;
    let foreign_event =
        Fault::new(FaultEffect::ActionDelayMs(700)).at("POST", "/v2/volumes/*/actions").times(1);
    bench.fake.add_fault(foreign_event);
    bench.client.start_action(&volumes[0], &VolumeAction::Attach { droplet_id: 1 }).await.unwrap();
    bench.attachments.attach(&volumes[1], 1).await.unwrap();
    assert_eq!(bench.fake.state().volumes_of(1).count(), 2);
    assert!(bench.refusals().iter().all(|code| *code == 422) && !bench.refusals().is_empty());
}

#[tokio::test]
async fn endless_foreign_event_is_busy_and_starts_nothing() {
    let short = PollingOptions { timeout: Duration::from_secs(1), ..POLLING };
    let bench = bench_with(options(), |_| {}, short).await;
    let volumes = volumes(&bench, 3).await;
    bench
        .fake
        .add_fault(Fault::new(FaultEffect::ActionNeverEnds).at("POST", "/v2/volumes/*/actions").times(1));
    bench.client.start_action(&volumes[0], &VolumeAction::Attach { droplet_id: 1 }).await.unwrap();
    // One is refused because of the event, the other waits in the queue.
    let (one, two) =
        tokio::join!(bench.attachments.attach(&volumes[1], 1), bench.attachments.attach(&volumes[2], 1));
    for error in [one.unwrap_err(), two.unwrap_err()] {
        assert!(matches!(error, OperationError::Busy { .. }), "{error}");
    }
    assert_eq!(bench.fake.state().actions.len(), 1);
}

#[tokio::test]
async fn cancelled_operation_does_not_block_others() {
    let bench = bench().await;
    let volumes = volumes(&bench, 2).await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 500);
    let (attachments, id) = (bench.attachments.clone(), volumes[0].clone());
    let task = tokio::spawn(async move { attachments.attach(&id, 1).await.map(|_| ()) });
    while bench.count("POST attach") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    // Its event is still running on the droplet; both operations complete anyway.
    bench.attachments.attach(&volumes[1], 1).await.unwrap();
    bench.attachments.attach(&volumes[0], 1).await.unwrap();
    assert_eq!(bench.fake.state().actions.len(), 2, "a started action must be resumed");
}
