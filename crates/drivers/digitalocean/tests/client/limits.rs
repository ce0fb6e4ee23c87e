//! The API's rate limits, ours before theirs.

use std::time::{Duration, Instant};

use wharf_driver_digitalocean::Kind;
use wharf_fake_digitalocean::What;

use crate::support::{PACE, bench, bench_with, options};

#[tokio::test]
async fn we_stop_before_the_api_refuses_and_the_reserve_is_left() {
    let short = |options: &mut wharf_driver_digitalocean::ClientOptions| options.requests_a_minute = 20;
    let bench = bench_with(options().knobs(|knobs| knobs.requests_per_minute = 20), short, PACE).await;
    let mut sent = 0;
    let error = loop {
        match bench.client.account().await {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(sent, 18);
    assert_eq!(
        (error.kind(), error.status(), error.uncertain()),
        (Kind::RateLimited, None, false),
        "{error}"
    );
    let wait = error.retry_after().unwrap();
    assert!(wait > Duration::from_secs(30) && wait <= Duration::from_secs(60), "{wait:?}");
    assert_eq!(bench.fake.requests().len(), 18, "who waits for a limit sends nothing");
    for _ in 0..2 {
        bench.client.urgent().account().await.unwrap();
    }
    assert_eq!(bench.client.urgent().account().await.unwrap_err().kind(), Kind::RateLimited);
    assert_eq!(bench.refusals(), [] as [u16; 0]);
}

#[tokio::test]
async fn the_hour_is_learnt_from_the_answers() {
    let bench = bench_with(options().knobs(|knobs| knobs.requests_per_hour = 30), |_| {}, PACE).await;
    let mut sent = 0;
    while bench.client.account().await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 27);
    let mut urgent = 0;
    while bench.client.urgent().account().await.is_ok() {
        urgent += 1;
    }
    assert_eq!(urgent, 3);
    assert_eq!(bench.refusals(), [] as [u16; 0]);
}

/// Others may use the same token, so that the API refuses although we have kept to our part.
#[tokio::test]
async fn a_refusal_with_a_time_is_waited_for_by_everybody() {
    let bench = bench().await;
    bench.fault(What::Status { code: 429, message: None, retry_after: Some(2) }, "GET", "/v2/account", 1);
    let began = Instant::now();
    let (one, two) = tokio::join!(bench.client.account(), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.client.urgent().account().await
    });
    one.unwrap();
    two.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(bench.fake.requests().len(), 3);
}

#[tokio::test]
async fn a_refusal_for_longer_than_we_can_wait_says_until_when() {
    let bench = bench_with(options().knobs(|knobs| knobs.requests_per_minute = 3), |_| {}, PACE).await;
    for _ in 0..3 {
        bench.client.account().await.unwrap();
    }
    for _ in 0..3 {
        let error = bench.client.account().await.unwrap_err();
        assert_eq!(error.kind(), Kind::RateLimited, "{error}");
        assert!(error.retry_after().is_some_and(|wait| wait > Duration::from_secs(30)), "{error}");
    }
    assert_eq!(bench.refusals(), [429], "refused once, not asked again");
}
