//! The metadata service.

use wharf_driver_digitalocean::Metadata;
use wharf_driver_digitalocean::metadata::MetadataError;
use wharf_fake_digitalocean::FaultEffect;

use crate::support::{REGION, bench};

#[tokio::test]
async fn metadata_returns_id_and_region() {
    let bench = bench().await;
    let metadata = Metadata::new(&bench.fake.metadata_url(3).unwrap()).unwrap();
    assert_eq!(metadata.droplet_id().await.unwrap(), 3);
    assert_eq!(metadata.region().await.unwrap(), REGION);
}

#[tokio::test]
async fn metadata_request_is_retried_a_few_times() {
    let bench = bench().await;
    let metadata = Metadata::new(&bench.fake.metadata_url(3).unwrap()).unwrap();
    bench.fault(FaultEffect::ResetBefore, "GET", "/metadata/v1/id", 1);
    bench.fault(FaultEffect::Html(503), "GET", "/metadata/v1/id", 1);
    assert_eq!(metadata.droplet_id().await.unwrap(), 3);
    bench.fake.clear_faults();
    bench.fake.forget_requests();
    bench.fault(FaultEffect::Html(503), "GET", "/metadata/v1/id", 1000);
    let error = metadata.droplet_id().await.unwrap_err();
    assert!(matches!(error, MetadataError::Silent { .. }), "{error}");
    assert_eq!(bench.fake.requests().len(), 4);
}

#[tokio::test]
async fn html_page_is_not_an_id() {
    let bench = bench().await;
    let metadata = Metadata::new(&bench.fake.metadata_url(3).unwrap()).unwrap();
    bench.fault(FaultEffect::Html(200), "GET", "/metadata/v1/*", 2);
    assert!(matches!(metadata.droplet_id().await, Err(MetadataError::Odd { .. })));
    assert!(matches!(metadata.region().await, Err(MetadataError::Odd { .. })));
}

#[test]
fn only_http_urls_are_accepted() {
    for (url, good) in [
        ("http://169.254.169.254", true),
        ("http://127.0.0.1:8080/", true),
        ("https://169.254.169.254", false),
        ("169.254.169.254", false),
        ("", false),
    ] {
        assert_eq!(Metadata::new(url).is_ok(), good, "{url}");
    }
}
