//! The metadata service.

use wharf_driver_digitalocean::Metadata;
use wharf_driver_digitalocean::metadata::MetadataError;
use wharf_fake_digitalocean::What;

use crate::support::{REGION, bench};

#[tokio::test]
async fn tells_who_and_where() {
    let bench = bench().await;
    let metadata = Metadata::new(&bench.fake.metadata_url(3).unwrap()).unwrap();
    assert_eq!(metadata.droplet_id().await.unwrap(), 3);
    assert_eq!(metadata.region().await.unwrap(), REGION);
}

#[tokio::test]
async fn asked_again_but_not_for_ever() {
    let bench = bench().await;
    let metadata = Metadata::new(&bench.fake.metadata_url(3).unwrap()).unwrap();
    bench.fault(What::ResetBefore, "GET", "/metadata/v1/id", 1);
    bench.fault(What::Html(503), "GET", "/metadata/v1/id", 1);
    assert_eq!(metadata.droplet_id().await.unwrap(), 3);
    bench.fake.clear_faults();
    bench.fake.forget_requests();
    bench.fault(What::Html(503), "GET", "/metadata/v1/id", 1000);
    let error = metadata.droplet_id().await.unwrap_err();
    assert!(matches!(error, MetadataError::Silent { .. }), "{error}");
    assert_eq!(bench.fake.requests().len(), 4);
}

#[tokio::test]
async fn a_page_is_no_id() {
    let bench = bench().await;
    let metadata = Metadata::new(&bench.fake.metadata_url(3).unwrap()).unwrap();
    bench.fault(What::Html(200), "GET", "/metadata/v1/*", 2);
    assert!(matches!(metadata.droplet_id().await, Err(MetadataError::Odd { .. })));
    assert!(matches!(metadata.region().await, Err(MetadataError::Odd { .. })));
}

#[test]
fn urls() {
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
