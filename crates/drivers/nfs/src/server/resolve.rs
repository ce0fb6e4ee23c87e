//! Name resolution. getaddrinfo cannot be cancelled, so it runs in a thread of its own, which nothing waits for: neither the
//! caller past its deadline nor the shutdown of the runtime.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// How many lookups can wait for a name server at the same time.
const MAX_LOOKUPS: usize = 128;

/// How many lookups of one name can wait: a name that is never resolved must leave room for the others.
const MAX_LOOKUPS_OF_NAME: usize = 4;

/// The number of running lookups of each name.
static LOOKUPS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Counts a running lookup.
struct Running(String);

impl Running {
    fn start(name: &str) -> Option<Self> {
        let mut lookups = lock();
        let of_name = lookups.get(name).copied().unwrap_or_default();
        if of_name >= MAX_LOOKUPS_OF_NAME || lookups.values().sum::<usize>() >= MAX_LOOKUPS {
            return None;
        }
        lookups.insert(name.to_owned(), of_name + 1);
        Some(Self(name.to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut lookups = lock();
        match lookups.get_mut(&self.0) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(lookups.remove(&self.0)),
        }
    }
}

fn lock() -> MutexGuard<'static, BTreeMap<String, usize>> {
    LOOKUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All addresses of the server, in the system's order; at least one. An address is not looked up.
pub(super) async fn addresses(server: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Some(address) = literal(server) {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let Some(running) = Running::start(server) else {
        return Err("its name is being resolved for several calls; the name servers do not answer".to_owned());
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

    /// Calls for a server whose name is never resolved must not keep the names of others from being resolved.
    #[test]
    fn lookups_of_one_name_leave_room_for_others() {
        let hanging: Vec<Running> =
            std::iter::from_fn(|| Running::start("dead.example")).take(1000).collect();
        assert_eq!(hanging.len(), MAX_LOOKUPS_OF_NAME);
        let other = Running::start("nas.example").unwrap();
        drop(hanging);
        assert!(Running::start("dead.example").is_some());
        drop(other);
        assert!(!lock().contains_key("nas.example") && !lock().contains_key("dead.example"));
    }
}
