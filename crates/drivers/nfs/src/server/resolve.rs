//! Name resolution. getaddrinfo cannot be cancelled, so it runs in a thread of its own, which nothing waits for: neither the
//! caller past its deadline nor the shutdown of the runtime.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;

/// How many lookups can wait for a name server at the same time.
const MAX_LOOKUPS: usize = 32;

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// Counts a running lookup.
struct Running;

impl Running {
    fn start() -> Option<Self> {
        let running = Self;
        (LOOKUPS.fetch_add(1, Ordering::Relaxed) < MAX_LOOKUPS).then_some(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All addresses of the server, in the system's order; at least one. An address is not looked up.
pub(super) async fn addresses(server: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Some(address) = literal(server) {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let Some(running) = Running::start() else {
        return Err(format!("{MAX_LOOKUPS} names are being resolved; the name servers do not answer"));
    };
    let (send, result) = oneshot::channel();
    let name = server.to_owned();
    let lookup = move || {
        let _running = running;
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        // The caller may have given up.
        let _ = send.send(found);
    };
    let thread = std::thread::Builder::new().name("nfs-resolve".to_owned()).spawn(lookup);
    thread.map_err(|error| format!("failed to start a thread for name resolution: {error}"))?;
    match result.await {
        Ok(Ok(found)) if !found.is_empty() => Ok(found),
        Ok(Ok(_)) => Err("its name has no address".to_owned()),
        Ok(Err(error)) => Err(format!("failed to resolve its name: {error}")),
        Err(_) => Err("name resolution ended without a result".to_owned()),
    }
}

/// An IPv4 or IPv6 address, the latter also in brackets.
fn literal(server: &str) -> Option<IpAddr> {
    let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(server);
    bare.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_not_looked_up_and_names_are() {
        for (server, expected) in
            [("192.0.2.7", "192.0.2.7:2049"), ("2001:db8::7", "[2001:db8::7]:2049"), ("[::1]", "[::1]:2049")]
        {
            assert_eq!(addresses(server, 2049).await.unwrap(), [expected.parse().unwrap()]);
        }
        let local = addresses("localhost", 1).await.unwrap();
        assert!(local.iter().all(|address| address.ip().is_loopback()), "{local:?}");
        let missing = addresses("does-not-exist.invalid", 1).await.unwrap_err();
        assert!(missing.contains("resolve"), "{missing}");
    }
}
