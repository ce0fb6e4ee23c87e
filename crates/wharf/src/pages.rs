//! `--metrics ADDRESS`: the pages of a program's parts, for whom the user names an address.

use std::future::{Future, pending};
use std::net::SocketAddr;

use anyhow::Context as _;
use tokio::net::TcpListener;
use wharf_sidecar::board::Board;

/// Takes the address, if there is one: a program that cannot have it ends before it has begun. The pages are served for as
/// long as the answer is polled.
pub(crate) async fn serve(
    board: Board,
    address: Option<SocketAddr>,
) -> anyhow::Result<impl Future<Output = ()>> {
    let listener = match address {
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.with_context(|| format!("serve metrics on {address}"))?)
        }
        None => None,
    };
    Ok(async {
        match listener {
            Some(listener) => board.serve(listener).await,
            None => pending().await,
        }
    })
}
