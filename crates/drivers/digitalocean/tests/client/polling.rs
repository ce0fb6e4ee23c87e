//! One poller for all waiting operations. B10: the existing driver polls each once a second, 12 to 15 requests per attach.

use std::time::Duration;

use wharf_driver_digitalocean::OperationError;
use wharf_driver_digitalocean::actions::PollingOptions;
use wharf_fake_digitalocean::{FakeOptions, Fault, FaultEffect};

use crate::support::{Bench, POLLING, REGION, TOKEN, bench_with, options};

fn droplets(count: u64) -> FakeOptions {
    let options = (1..=count).fold(FakeOptions::new().token(TOKEN), |all, id| all.droplet(id, REGION));
    options.settings(|settings| *settings = crate::support::options().settings)
}

/// Attaches as ControllerPublishVolume does, which gets the volume first.
async fn attach_all(bench: &Bench, wanted: Vec<(String, u64)>) -> Vec<Result<(), OperationError>> {
    let attach = |(id, droplet): (String, u64)| {
        let (client, attachments) = (bench.client.clone(), bench.attachments.clone());
        tokio::spawn(async move {
            client.volume(&id).await.unwrap().unwrap();
            attachments.attach(&id, droplet).await.map(|_| ())
        })
    };
    let tasks: Vec<_> = wanted.into_iter().map(attach).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

/// 100 volumes on 20 droplets, ten times faster than real time; `examples/rate.rs` measures the real one.
#[tokio::test]
async fn hundred_volumes_attach_on_twenty_droplets() {
    let polling = PollingOptions {
        timeout: Duration::from_secs(60),
        initial_interval: Duration::from_millis(100),
        max_interval: POLLING.max_interval * 2,
    };
    let bench = bench_with(droplets(20), |_| {}, polling).await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 1_000);
    let mut wanted = Vec::new();
    for number in 0..100 {
        wanted.push((bench.volume(&format!("pvc-{number}")).await.id, number % 20 + 1));
    }
    for response in attach_all(&bench, wanted).await {
        response.unwrap();
    }
    assert_eq!(bench.refusals(), [] as [u16; 0]);
    assert_eq!(bench.count("POST attach"), 100);
    assert!((1..=20).all(|droplet| bench.fake.state().volumes_of(droplet).count() == 5));
    let requests = bench.fake.requests().len();
    println!("{:.2} requests for each attach", requests as f64 / 100.0);
    // 2.2 on an idle machine. A poller for each operation would need 12.
    assert!(requests < 400, "{requests} requests");
}

#[tokio::test]
async fn errored_action_among_many_fails_without_delaying_others() {
    let polling = PollingOptions { timeout: Duration::from_secs(600), ..POLLING };
    let bench = bench_with(droplets(10), |_| {}, polling).await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 300);
    let mut wanted = Vec::new();
    for number in 0..10 {
        wanted.push((bench.volume(&format!("pvc-{number}")).await.id, number + 1));
    }
    for (skip, what) in [(3, FaultEffect::ActionErrored), (5, FaultEffect::ActionErrored)] {
        let fault = Fault::new(what).at("POST", "/v2/volumes/*/actions").skip(skip).times(1);
        bench.fake.add_fault(fault);
    }
    let results = attach_all(&bench, wanted).await;
    let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 2);
    for error in errors {
        assert!(matches!(error, OperationError::Errored { .. }), "{error}");
    }
}

#[tokio::test]
async fn poller_survives_outage_and_revoked_token() {
    let bench = bench_with(options(), |options| options.timeout = Duration::from_secs(2), POLLING).await;
    let volume = bench.volume("pvc-1").await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 1_000);
    let (attachments, id) = (bench.attachments.clone(), volume.id.clone());
    let task = tokio::spawn(async move { attachments.attach(&id, 1).await });
    while bench.count("POST attach") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bench.fake.revoke_token(TOKEN);
    tokio::time::sleep(Duration::from_millis(500)).await;
    bench.fault(FaultEffect::ResetBefore, "GET", "*", 5);
    bench.fake.allow_token(TOKEN);
    assert_eq!(task.await.unwrap().unwrap().droplet_ids, [1]);
}

/// A problem with one action does not affect the others.
#[tokio::test]
async fn unreadable_action_does_not_delay_others() {
    let polling = PollingOptions { timeout: Duration::from_secs(5), ..POLLING };
    let bench = bench_with(options(), |_| {}, polling).await;
    let (broken, good) = (bench.volume("pvc-1").await, bench.volume("pvc-2").await);
    let forbidden = FaultEffect::Status { code: 403, message: None, retry_after: None };
    bench.fault(forbidden, "GET", &format!("/v2/volumes/{}/actions/*", broken.id), 1_000);
    let (first, second) =
        tokio::join!(bench.attachments.attach(&broken.id, 1), bench.attachments.attach(&good.id, 2));
    let first = first.unwrap_err();
    assert!(
        matches!(&first, OperationError::Unfinished { message, .. } if message.contains("403")),
        "{first}"
    );
    second.unwrap();
    // It was attached anyway, and the next call observes that.
    bench.attachments.attach(&broken.id, 1).await.unwrap();
}

#[tokio::test]
async fn idle_poller_sends_no_requests() {
    let bench = bench_with(options(), |_| {}, POLLING).await;
    bench.attached("pvc-1", 1).await;
    tokio::time::sleep(POLLING.max_interval * 4).await;
    assert_eq!(bench.seen(), [] as [String; 0]);
}
