//! Rate limits: the client's own limiter stops before the API refuses.

use std::time::{Duration, Instant};

use wharf_driver_digitalocean::ApiErrorKind;
use wharf_fake_digitalocean::FaultEffect;

use crate::support::{POLLING, bench, bench_with, options};

#[tokio::test]
async fn client_stops_before_the_limit_and_keeps_the_reserve() {
    let short = |options: &mut wharf_driver_digitalocean::ClientOptions| options.requests_per_minute = 20;
    let bench =
        bench_with(options().settings(|settings| settings.requests_per_minute = 20), short, POLLING).await;
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
        (ApiErrorKind::RateLimited, None, false),
        "{error}"
    );
    let wait = error.retry_after().unwrap();
    assert!(wait > Duration::from_secs(30) && wait <= Duration::from_secs(60), "{wait:?}");
    assert_eq!(bench.fake.requests().len(), 18, "a call that waits for the limit sends nothing");
    for _ in 0..2 {
        bench.client.urgent().account().await.unwrap();
    }
    assert_eq!(bench.client.urgent().account().await.unwrap_err().kind(), ApiErrorKind::RateLimited);
    assert_eq!(bench.refusals(), [] as [u16; 0]);
}

#[tokio::test]
async fn hourly_limit_is_learned_from_responses() {
    let bench =
        bench_with(options().settings(|settings| settings.requests_per_hour = 30), |_| {}, POLLING).await;
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
async fn retry_after_delays_all_calls() {
    let bench = bench().await;
    bench.fault(
        FaultEffect::Status { code: 429, message: None, retry_after: Some(2) },
        "GET",
        "/v2/account",
        1,
    );
    let started = Instant::now();
    let (one, two) = tokio::join!(bench.client.account(), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        bench.client.urgent().account().await
    });
    one.unwrap();
    two.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(bench.fake.requests().len(), 3);
}

#[tokio::test]
async fn refusal_beyond_the_deadline_reports_retry_after() {
    let bench =
        bench_with(options().settings(|settings| settings.requests_per_minute = 3), |_| {}, POLLING).await;
    for _ in 0..3 {
        bench.client.account().await.unwrap();
    }
    for _ in 0..3 {
        let error = bench.client.account().await.unwrap_err();
        assert_eq!(error.kind(), ApiErrorKind::RateLimited, "{error}");
        assert!(error.retry_after().is_some_and(|wait| wait > Duration::from_secs(30)), "{error}");
    }
    assert_eq!(bench.refusals(), [429], "refused once, not retried");
}
