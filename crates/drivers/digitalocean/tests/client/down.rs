//! The API away, for a while or for good.

use std::time::Duration;

use wharf_driver_digitalocean::{Attachments, Client, Kind};
use wharf_fake_digitalocean::Fake;

use crate::support::{PACE, REGION, bench_with, client_options, new_volume, options};

#[tokio::test]
async fn away_for_good_is_an_error_in_time_and_nothing_was_sent() {
    let fake = Fake::start(options()).await.unwrap();
    let url = fake.url();
    fake.stop().await.unwrap();
    let mut wanted = client_options(url);
    wanted.patience = Duration::from_secs(1);
    let client = Client::new(wanted).unwrap();
    let error = client.account().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Transport, "{error}");
    let error = client.create_volume(&new_volume("pvc-1")).await.unwrap_err();
    assert_eq!((error.kind(), error.uncertain()), (Kind::Transport, false), "{error}");
}

#[tokio::test]
async fn back_in_time_is_no_error_and_one_volume() {
    let fake = Fake::start(options()).await.unwrap();
    let url = fake.url();
    fake.stop().await.unwrap();
    let client = Client::new(client_options(url.clone())).unwrap();
    let (made, fake) = tokio::join!(
        async {
            let wanted = new_volume("pvc-1");
            client.create_volume(&wanted).await
        },
        async {
            tokio::time::sleep(Duration::from_millis(700)).await;
            let mut options = options();
            options.listen = url.trim_start_matches("http://").parse().unwrap();
            Fake::start(options).await.unwrap()
        }
    );
    let made = made.unwrap();
    assert_eq!(fake.state().volumes.keys().collect::<Vec<_>>(), [&made.id]);
    fake.stop().await.unwrap();
}

/// The action ends while nobody can be asked about it.
#[tokio::test]
async fn away_while_one_waits_is_waited_for() {
    let home = tempfile::tempdir().unwrap();
    let with_state = || {
        let mut options = options();
        options.state = Some(home.path().join("state"));
        options
    };
    let fake = Fake::start(with_state()).await.unwrap();
    let url = fake.url();
    let mut wanted = client_options(url.clone());
    wanted.patience = Duration::from_secs(2);
    let client = Client::new(wanted).unwrap();
    let attachments = Attachments::new(client.clone(), REGION, PACE);
    let volume = client.create_volume(&new_volume("pvc-1")).await.unwrap();
    fake.set_knobs(|knobs| knobs.action_delay_ms = 1_000);
    let (attaching, id) = (attachments.clone(), volume.id.clone());
    let task = tokio::spawn(async move { attaching.attach(&id, 1).await });
    fake.forget_requests();
    // It waits once it has asked how far the action is.
    while !fake.requests().iter().any(|request| request.method == "GET") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fake.stop().await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut options = with_state();
    options.listen = url.trim_start_matches("http://").parse().unwrap();
    let fake = Fake::start(options).await.unwrap();
    assert_eq!(task.await.unwrap().unwrap().droplet_ids, [1]);
    assert_eq!(fake.state().actions.len(), 1);
    fake.stop().await.unwrap();
}

/// A server that takes requests and never answers.
#[tokio::test]
async fn silence_ends_too() {
    let patience = |options: &mut wharf_driver_digitalocean::ClientOptions| {
        options.patience = Duration::from_secs(1);
    };
    let bench = bench_with(options(), patience, PACE).await;
    bench.fault(wharf_fake_digitalocean::What::LatencyMs(600_000), "POST", "/v2/volumes", 1);
    let error = bench.client.create_volume(&new_volume("pvc-1")).await.unwrap_err();
    assert_eq!((error.kind(), error.uncertain()), (Kind::Transport, true), "{error}");
}
