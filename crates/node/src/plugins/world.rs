//! State of all registration sockets, and which socket owns each driver name. Plain data: the caller holds the lock and
//! supplies the time, which counts from the start of the manager.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wharf_csi::SocketIdentity;

use super::Plugin;
use super::sockets::Sockets;
use super::validate::{Invalid, Version};
use super::view::{Driver, Facts, Phase, Socket, View};

/// A registered driver.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    /// The registration socket.
    pub(super) identity: SocketIdentity,
    /// The driver and its node info.
    pub(super) plugin: Plugin,
    /// The driver's own socket when it was queried, and now.
    pub(super) queried_socket: Option<SocketIdentity>,
    pub(super) now: Option<SocketIdentity>,
    /// When it was queried.
    pub(super) queried_at: Duration,
    /// Number of refresh requests served by then.
    pub(super) refreshes_served: u64,
    /// The node info was written to Node and CSINode.
    pub(super) written: bool,
    /// NotifyRegistrationStatus succeeded.
    pub(super) notified: bool,
}

impl Registration {
    /// Whether the driver restarted since it was queried.
    pub(super) fn driver(&self) -> Driver {
        match (&self.queried_socket, &self.now) {
            (_, None) => Driver::Absent,
            (queried_socket, now) if queried_socket == now => Driver::Same,
            (_, Some(_)) => Driver::Restarted,
        }
    }
}

/// How far the registration of a socket got.
#[derive(Debug, Clone)]
pub(super) enum SocketState {
    /// Not processed yet.
    Pending,
    /// GetInfo failed on this socket.
    GetInfoFailed(SocketIdentity),
    /// Registration of this socket failed.
    Refused(SocketIdentity),
    /// Another socket took over the driver's name.
    Superseded(SocketIdentity),
    /// Registered.
    Registered(Box<Registration>),
    /// Some entries of this driver still exist.
    Deregistering(String),
}

#[derive(Debug)]
struct SocketRecord {
    found: Option<SocketIdentity>,
    /// Since when `found` has its value.
    since: Duration,
    state: SocketState,
    failures: u32,
    not_before: Option<Duration>,
    /// Something changed since the current step began: if the step fails, it failed on outdated state.
    woken: bool,
}

impl SocketRecord {
    /// Clears the backoff: a failed step may succeed now.
    fn wake(&mut self) {
        (self.failures, self.not_before, self.woken) = (0, None, true);
    }
}

#[derive(Debug)]
struct NameOwner {
    path: PathBuf,
    version: Version,
}

/// State of all sockets.
#[derive(Debug, Default)]
pub(super) struct World {
    sockets: BTreeMap<PathBuf, SocketRecord>,
    names: BTreeMap<String, NameOwner>,
}

impl World {
    /// Updates the sockets found by a scan. Returns the paths that changed; their backoff is cleared.
    pub(super) fn observe(&mut self, sockets: &Sockets, now: Duration) -> Vec<PathBuf> {
        for path in sockets.keys() {
            self.sockets.entry(path.clone()).or_insert_with(|| SocketRecord {
                found: None,
                since: now,
                state: SocketState::Pending,
                failures: 0,
                not_before: None,
                woken: false,
            });
        }
        let mut changed = Vec::new();
        for (path, record) in &mut self.sockets {
            let found = sockets.get(path);
            if record.found.as_ref() != found {
                record.found = found.cloned();
                record.since = now;
                record.wake();
                changed.push(path.clone());
            }
        }
        changed
    }

    /// Updates the identities of the drivers' own sockets. Returns the registration sockets whose drivers changed.
    pub(super) fn observe_drivers(
        &mut self,
        identity: impl Fn(&Path) -> Option<SocketIdentity>,
    ) -> Vec<PathBuf> {
        let mut changed = Vec::new();
        for (path, record) in &mut self.sockets {
            let SocketState::Registered(registration) = &mut record.state else { continue };
            let found = identity(registration.plugin.endpoint.path());
            if registration.now != found {
                registration.now = found;
                record.wake();
                changed.push(path.clone());
            }
        }
        changed
    }

    /// The inputs of the rules for a socket; `None` if it is unknown.
    pub(super) fn view(&self, path: &Path, facts: impl FnOnce(&Registration) -> Facts) -> Option<View> {
        let record = self.sockets.get(path)?;
        let (phase, about) = match &record.state {
            SocketState::Pending => (Phase::Pending, None),
            SocketState::GetInfoFailed(identity) => (Phase::Pending, Some(identity)),
            SocketState::Refused(identity) => (Phase::Refused, Some(identity)),
            SocketState::Superseded(identity) => (Phase::Superseded, Some(identity)),
            SocketState::Registered(registration) => {
                (Phase::Registered(facts(registration)), Some(&registration.identity))
            }
            SocketState::Deregistering(_) => (Phase::Deregistering, None),
        };
        let socket = match (&record.found, about) {
            (None, _) => Socket::Gone { since: record.since },
            (Some(found), Some(about)) if found == about => Socket::Same,
            (Some(_), _) => Socket::New { since: record.since },
        };
        Some(View { socket, phase, not_before: record.not_before })
    }

    /// The identity of the file at the path.
    pub(super) fn found(&self, path: &Path) -> Option<SocketIdentity> {
        self.sockets.get(path)?.found.clone()
    }

    /// How far its registration got.
    pub(super) fn state(&self, path: &Path) -> Option<&SocketState> {
        self.sockets.get(path).map(|record| &record.state)
    }

    /// The registration of a registered socket.
    pub(super) fn registration(&self, path: &Path) -> Option<&Registration> {
        match self.state(path)? {
            SocketState::Registered(registration) => Some(registration),
            _ => None,
        }
    }

    /// Mutable variant of [`Self::registration`].
    pub(super) fn registration_mut(&mut self, path: &Path) -> Option<&mut Registration> {
        match &mut self.sockets.get_mut(path)?.state {
            SocketState::Registered(registration) => Some(registration),
            _ => None,
        }
    }

    /// Registration sockets of registered drivers, with the drivers' names.
    pub(super) fn registered(&self) -> Vec<(PathBuf, String)> {
        let registered = |(path, record): (&PathBuf, &SocketRecord)| match &record.state {
            SocketState::Registered(registration) => Some((path.clone(), registration.plugin.name.clone())),
            _ => None,
        };
        self.sockets.iter().filter_map(registered).collect()
    }

    /// Records that a step succeeded.
    pub(super) fn succeeded(&mut self, path: &Path) {
        if let Some(record) = self.sockets.get_mut(path) {
            (record.failures, record.not_before) = (0, None);
        }
    }

    /// Records that a step begins.
    pub(super) fn begin(&mut self, path: &Path) {
        if let Some(record) = self.sockets.get_mut(path) {
            record.woken = false;
        }
    }

    /// Records that a step failed. `pause` returns the delay after a number of earlier failures; if something changed
    /// during the step, there is no delay.
    pub(super) fn failed(&mut self, path: &Path, now: Duration, pause: impl FnOnce(u32) -> Duration) {
        if let Some(record) = self.sockets.get_mut(path).filter(|record| !record.woken) {
            record.not_before = Some(now + pause(record.failures));
            record.failures = record.failures.saturating_add(1);
        }
    }

    /// Clears all backoffs. Returns the sockets that were waiting.
    pub(super) fn wake_all(&mut self) -> Vec<PathBuf> {
        let mut waiting = Vec::new();
        for (path, record) in &mut self.sockets {
            if record.not_before.is_some() {
                waiting.push(path.clone());
            }
            record.wake();
        }
        waiting
    }

    /// Sets the state of a known socket.
    pub(super) fn set_state(&mut self, path: &Path, state: SocketState) {
        if let Some(record) = self.sockets.get_mut(path) {
            record.state = state;
        }
    }

    /// Drops the record of a socket that no longer exists.
    pub(super) fn drop_record(&mut self, path: &Path) {
        if self.sockets.get(path).is_some_and(|record| record.found.is_none()) {
            self.sockets.remove(path);
        }
    }

    /// Checks whether a socket may take a driver's name: the current owner must have a lower version.
    pub(super) fn check_name(&self, path: &Path, name: &str, version: &Version) -> Result<(), Invalid> {
        match self.names.get(name) {
            Some(claim) if claim.path != path && claim.version >= *version => {
                Err(Invalid::Taken(claim.version.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Takes the name, from another socket if this one's version is higher.
    pub(super) fn claim(&mut self, path: &Path, name: &str, version: Version) -> Result<(), Invalid> {
        self.check_name(path, name, &version)?;
        let claim = NameOwner { path: path.to_owned(), version };
        let before = self.names.insert(name.to_owned(), claim).filter(|before| before.path != path);
        if let Some(record) = before.and_then(|before| self.sockets.get_mut(&before.path)) {
            record.state = match std::mem::replace(&mut record.state, SocketState::Pending) {
                SocketState::Registered(registration) => SocketState::Superseded(registration.identity),
                // The name has a new owner, and so have the entries.
                SocketState::Deregistering(_) => SocketState::Pending,
                other => other,
            };
        }
        Ok(())
    }

    /// Whether the name is owned by this socket or by none.
    pub(super) fn is_available_to(&self, path: &Path, name: &str) -> bool {
        self.names.get(name).is_none_or(|claim| claim.path == path)
    }

    /// Releases the name. Returns the sockets that may be waiting for it.
    pub(super) fn release_name(&mut self, path: &Path, name: &str) -> Vec<PathBuf> {
        if self.names.get(name).is_none_or(|claim| claim.path != path) {
            return Vec::new();
        }
        self.names.remove(name);
        let mut woken = Vec::new();
        for (other, record) in self.sockets.iter_mut().filter(|(other, _)| *other != path) {
            if let SocketState::Superseded(identity) = &record.state {
                record.state = SocketState::Refused(identity.clone());
            }
            if matches!(record.state, SocketState::Refused(_)) {
                woken.push(other.clone());
            }
            record.wake();
        }
        woken
    }
}

#[cfg(test)]
mod tests;
