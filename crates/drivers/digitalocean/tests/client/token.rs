//! Tokens that are revoked, restored and rotated; and that they are told to nobody.

use wharf_driver_digitalocean::{Client, Kind, Token};

use crate::support::{TOKEN, bench, client_options};

#[tokio::test]
async fn revoked_and_restored() {
    let bench = bench().await;
    bench.client.account().await.unwrap();
    bench.fake.revoke_token(TOKEN);
    bench.fake.forget_requests();
    let error = bench.client.account().await.unwrap_err();
    assert_eq!((error.kind(), error.id()), (Kind::Unauthorized, "unauthorized"), "{error}");
    assert_eq!(bench.fake.requests().len(), 1, "the same token is not tried again");
    bench.fake.allow_token(TOKEN);
    bench.client.account().await.unwrap();
}

#[tokio::test]
async fn a_rotated_file_works_without_a_restart() {
    let bench = bench().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("access-token");
    std::fs::write(&file, TOKEN).unwrap();
    let mut options = client_options(bench.fake.url());
    options.token = Token::file(&file).unwrap();
    let client = Client::new(options).unwrap();
    client.account().await.unwrap();
    bench.fake.revoke_token(TOKEN);
    bench.fake.allow_token("dop_v1_next");
    assert_eq!(client.account().await.unwrap_err().kind(), Kind::Unauthorized);
    std::fs::write(&file, "dop_v1_next\n").unwrap();
    client.account().await.unwrap();
}

/// The file is replaced while a request with the old token is on its way.
#[tokio::test]
async fn a_token_replaced_meanwhile_is_tried_at_once() {
    let bench = bench().await;
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("access-token");
    std::fs::write(&file, "dop_v1_old").unwrap();
    let mut options = client_options(bench.fake.url());
    options.token = Token::file(&file).unwrap();
    let client = Client::new(options).unwrap();
    bench.fault(wharf_fake_digitalocean::What::LatencyMs(1_000), "GET", "/v2/account", 1);
    let (answer, ()) = tokio::join!(client.account(), async {
        while !std::fs::read_to_string(&file).is_ok_and(|text| text == TOKEN) {
            // Until it is on its way: the double has logged nothing yet, so there is only time to go by.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            std::fs::write(&file, TOKEN).unwrap();
        }
    });
    answer.unwrap();
    let codes: Vec<_> = bench.fake.requests().iter().map(|request| request.status).collect();
    assert_eq!(codes, [Some(401), Some(200)]);
}

#[tokio::test]
async fn no_error_and_no_debug_output_has_it() {
    let bench = bench().await;
    let shown = format!("{:?} {:?}", bench.client, bench.attachments);
    assert!(!shown.contains(TOKEN), "{shown}");
    bench.fake.revoke_token(TOKEN);
    let error = bench.client.account().await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(TOKEN));
    drop(bench.fake);
}
