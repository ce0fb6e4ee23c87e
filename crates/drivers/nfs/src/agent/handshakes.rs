//! Limits connections that have not finished their TLS handshake: anybody can open those.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many connections may be in their handshake at the same time.
const MAX: usize = 512;
/// How many of them may be from one address.
const MAX_PER_PEER: usize = 64;

/// The connections in their handshake, counted by address.
#[derive(Clone, Default)]
pub(super) struct Handshakes(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One connection in its handshake.
pub(super) struct Handshake {
    all: Handshakes,
    peer: IpAddr,
}

impl Handshakes {
    /// Counts a connection until the result is dropped. `None` if there are too many.
    pub(super) fn start(&self, peer: IpAddr) -> Option<Handshake> {
        let mut counts = self.lock();
        let of_peer = counts.get(&peer).copied().unwrap_or(0);
        if of_peer >= MAX_PER_PEER || counts.values().sum::<usize>() >= MAX {
            return None;
        }
        counts.insert(peer, of_peer + 1);
        drop(counts);
        Some(Handshake { all: self.clone(), peer })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_limited_by_address_and_in_total() {
        let peer = |number: usize| IpAddr::from([10, 0, 0, number as u8]);
        let handshakes = Handshakes::default();
        let mut held: Vec<_> = (0..MAX_PER_PEER).map(|_| handshakes.start(peer(0)).unwrap()).collect();
        assert!(handshakes.start(peer(0)).is_none());
        for number in 1..MAX / MAX_PER_PEER {
            held.extend((0..MAX_PER_PEER).map(|_| handshakes.start(peer(number)).unwrap()));
        }
        assert!(handshakes.start(peer(200)).is_none());
        held.pop();
        let last = handshakes.start(peer(200));
        assert!(last.is_some() && handshakes.start(peer(201)).is_none());
        drop((held, last));
        assert!(handshakes.lock().is_empty());
    }
}
