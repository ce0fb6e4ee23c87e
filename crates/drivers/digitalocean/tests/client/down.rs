//! The API is unreachable, temporarily or permanently.

use std::time::Duration;

use wharf_driver_digitalocean::{ApiErrorKind, Attachments, Client};
use wharf_fake_digitalocean::FakeDigitalOcean;

use crate::support::{POLLING, REGION, bench_with, client_options, new_volume, options};

#[tokio::test]
async fn unreachable_api_fails_in_time_without_sending() {
    let fake = FakeDigitalOcean::start(options()).await.unwrap();
    let url = fake.url();
    fake.stop().await.unwrap();
    let mut wanted = client_options(url);
    wanted.timeout = Duration::from_secs(1);
    let client = Client::new(wanted).unwrap();
    let error = client.account().await.unwrap_err();
    assert_eq!(error.kind(), ApiErrorKind::Transport, "{error}");
    let error = client.create_volume(&new_volume("pvc-1")).await.unwrap_err();
    assert_eq!((error.kind(), error.uncertain()), (ApiErrorKind::Transport, false), "{error}");
}

#[tokio::test]
async fn api_back_before_the_deadline_creates_one_volume() {
    let fake = FakeDigitalOcean::start(options()).await.unwrap();
    let url = fake.url();
    fake.stop().await.unwrap();
    let client = Client::new(client_options(url.clone())).unwrap();
    let (created, fake) = tokio::join!(
        async {
            let wanted = new_volume("pvc-1");
            client.create_volume(&wanted).await
        },
        async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let mut options = options();
            options.listen = url.trim_start_matches("http://").parse().unwrap();
            FakeDigitalOcean::start(options).await.unwrap()
        }
    );
    let created = created.unwrap();
    assert_eq!(fake.state().volumes.keys().collect::<Vec<_>>(), [&created.id]);
    fake.stop().await.unwrap();
}

/// The action ends while the API is unreachable.
#[tokio::test]
async fn poller_survives_an_outage_during_an_action() {
    let home = tempfile::tempdir().unwrap();
    let with_state = || {
        let mut options = options();
        options.state = Some(home.path().join("state"));
        options
    };
    let fake = FakeDigitalOcean::start(with_state()).await.unwrap();
    let url = fake.url();
    let mut wanted = client_options(url.clone());
    wanted.timeout = Duration::from_secs(2);
    let client = Client::new(wanted).unwrap();
    let attachments = Attachments::new(client.clone(), REGION, POLLING);
    let volume = client.create_volume(&new_volume("pvc-1")).await.unwrap();
    fake.change_settings(|settings| settings.action_delay_ms = 1_000);
    let (attaching, id) = (attachments.clone(), volume.id.clone());
    let task = tokio::spawn(async move { attaching.attach(&id, 1).await });
    fake.forget_requests();
    // It waits once it has polled the action.
    while !fake.requests().iter().any(|request| request.method == "GET") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fake.stop().await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut options = with_state();
    options.listen = url.trim_start_matches("http://").parse().unwrap();
    let fake = FakeDigitalOcean::start(options).await.unwrap();
    assert_eq!(task.await.unwrap().unwrap().droplet_ids, [1]);
    assert_eq!(fake.state().actions.len(), 1);
    fake.stop().await.unwrap();
}

/// A server that accepts requests and never responds.
#[tokio::test]
async fn server_without_response_times_out() {
    let timeout = |options: &mut wharf_driver_digitalocean::ClientOptions| {
        options.timeout = Duration::from_secs(1);
    };
    let bench = bench_with(options(), timeout, POLLING).await;
    bench.fault(wharf_fake_digitalocean::FaultEffect::LatencyMs(600_000), "POST", "/v2/volumes", 1);
    let error = bench.client.create_volume(&new_volume("pvc-1")).await.unwrap_err();
    assert_eq!((error.kind(), error.uncertain()), (ApiErrorKind::Transport, true), "{error}");
}
