//! All sockets, and what came of each; which socket has a driver's name. Plain data: who calls holds the lock and
//! brings the time, which counts from the manager's start.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use wharf_csi::SocketIdentity;

use super::Plugin;
use super::sockets::Sockets;
use super::validate::{Invalid, Version};
use super::view::{Driver, Facts, Held, Socket, View};

/// A driver that is registered.
#[derive(Debug, Clone)]
pub(super) struct Registration {
    /// The socket by which it came.
    pub(super) identity: SocketIdentity,
    /// What it said.
    pub(super) plugin: Plugin,
    /// The driver's own socket when it was asked, and now.
    pub(super) asked: Option<SocketIdentity>,
    pub(super) now: Option<SocketIdentity>,
    /// When that was.
    pub(super) asked_at: Duration,
    /// How many wishes to ask it again have been seen to.
    pub(super) answered: u64,
    /// Node and CSINode were given what it said.
    pub(super) written: bool,
    /// The plugin was told.
    pub(super) told: bool,
}

impl Registration {
    /// Whether it is the driver that was asked.
    pub(super) fn driver(&self) -> Driver {
        match (&self.asked, &self.now) {
            (_, None) => Driver::Away,
            (asked, now) if asked == now => Driver::Same,
            (_, Some(_)) => Driver::Restarted,
        }
    }
}

/// What came of a socket.
#[derive(Debug, Clone)]
pub(super) enum Holding {
    /// Nothing yet.
    Nothing,
    /// This one did not say who it is.
    Silent(SocketIdentity),
    /// This one could not be registered.
    Refused(SocketIdentity),
    /// Another socket has its driver's name.
    Superseded(SocketIdentity),
    /// This is registered.
    Registered(Box<Registration>),
    /// This driver's entries are not all gone.
    Leaving(String),
}

#[derive(Debug)]
struct Record {
    found: Option<SocketIdentity>,
    /// Since when that is so.
    since: Duration,
    holding: Holding,
    failures: u32,
    not_before: Option<Duration>,
    /// Something changed since the step began that is under way: should it fail, it failed for what was before.
    woken: bool,
}

impl Record {
    /// What failed may go well now.
    fn wake(&mut self) {
        (self.failures, self.not_before, self.woken) = (0, None, true);
    }
}

#[derive(Debug)]
struct Claim {
    path: PathBuf,
    version: Version,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct World {
    sockets: BTreeMap<PathBuf, Record>,
    names: BTreeMap<String, Claim>,
}

impl World {
    /// What is there now. Gives the paths at which something changed: what failed there before says nothing any
    /// more.
    pub(super) fn saw(&mut self, sockets: &Sockets, now: Duration) -> Vec<PathBuf> {
        for path in sockets.keys() {
            self.sockets.entry(path.clone()).or_insert_with(|| Record {
                found: None,
                since: now,
                holding: Holding::Nothing,
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

    /// What is at drivers' own sockets now, by path. Gives the sockets whose drivers changed.
    pub(super) fn saw_drivers(&mut self, identity: impl Fn(&Path) -> Option<SocketIdentity>) -> Vec<PathBuf> {
        let mut changed = Vec::new();
        for (path, record) in &mut self.sockets {
            let Holding::Registered(registration) = &mut record.holding else { continue };
            let found = identity(registration.plugin.endpoint.path());
            if registration.now != found {
                registration.now = found;
                record.wake();
                changed.push(path.clone());
            }
        }
        changed
    }

    /// The socket as the rules see it; `None` if nothing is known of it.
    pub(super) fn view(&self, path: &Path, facts: impl FnOnce(&Registration) -> Facts) -> Option<View> {
        let record = self.sockets.get(path)?;
        let (held, about) = match &record.holding {
            Holding::Nothing => (Held::Nothing, None),
            Holding::Silent(identity) => (Held::Nothing, Some(identity)),
            Holding::Refused(identity) => (Held::Refused, Some(identity)),
            Holding::Superseded(identity) => (Held::Superseded, Some(identity)),
            Holding::Registered(registration) => {
                (Held::Registered(facts(registration)), Some(&registration.identity))
            }
            Holding::Leaving(_) => (Held::Leaving, None),
        };
        let socket = match (&record.found, about) {
            (None, _) => Socket::Gone { since: record.since },
            (Some(found), Some(about)) if found == about => Socket::Same,
            (Some(_), _) => Socket::New { since: record.since },
        };
        Some(View { socket, held, not_before: record.not_before })
    }

    /// Which file is at the path.
    pub(super) fn found(&self, path: &Path) -> Option<SocketIdentity> {
        self.sockets.get(path)?.found.clone()
    }

    /// What came of it.
    pub(super) fn holding(&self, path: &Path) -> Option<&Holding> {
        self.sockets.get(path).map(|record| &record.holding)
    }

    /// What is registered there.
    pub(super) fn registration(&self, path: &Path) -> Option<&Registration> {
        match self.holding(path)? {
            Holding::Registered(registration) => Some(registration),
            _ => None,
        }
    }

    /// The same, to change it.
    pub(super) fn registration_mut(&mut self, path: &Path) -> Option<&mut Registration> {
        match &mut self.sockets.get_mut(path)?.holding {
            Holding::Registered(registration) => Some(registration),
            _ => None,
        }
    }

    /// The sockets of registered drivers, with the drivers' names.
    pub(super) fn registered(&self) -> Vec<(PathBuf, String)> {
        let registered = |(path, record): (&PathBuf, &Record)| match &record.holding {
            Holding::Registered(registration) => Some((path.clone(), registration.plugin.name.clone())),
            _ => None,
        };
        self.sockets.iter().filter_map(registered).collect()
    }

    /// A step went well.
    pub(super) fn succeeded(&mut self, path: &Path) {
        if let Some(record) = self.sockets.get_mut(path) {
            (record.failures, record.not_before) = (0, None);
        }
    }

    /// A step begins.
    pub(super) fn begin(&mut self, path: &Path) {
        if let Some(record) = self.sockets.get_mut(path) {
            record.woken = false;
        }
    }

    /// A step failed. `pause` says how long to wait after so many others; if something changed meanwhile, it is not
    /// waited at all.
    pub(super) fn failed(&mut self, path: &Path, now: Duration, pause: impl FnOnce(u32) -> Duration) {
        if let Some(record) = self.sockets.get_mut(path).filter(|record| !record.woken) {
            record.not_before = Some(now + pause(record.failures));
            record.failures = record.failures.saturating_add(1);
        }
    }

    /// What failed may go well now. Gives the sockets that waited.
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

    /// Sets what came of a socket, if it is known.
    pub(super) fn hold(&mut self, path: &Path, holding: Holding) {
        if let Some(record) = self.sockets.get_mut(path) {
            record.holding = holding;
        }
    }

    /// Nothing is there, and nothing came of it.
    pub(super) fn forget(&mut self, path: &Path) {
        if self.sockets.get(path).is_some_and(|record| record.found.is_none()) {
            self.sockets.remove(path);
        }
    }

    /// Whether this socket may have a driver's name: with a higher version than the one that has it.
    pub(super) fn may_claim(&self, path: &Path, name: &str, version: &Version) -> Result<(), Invalid> {
        match self.names.get(name) {
            Some(claim) if claim.path != path && claim.version >= *version => {
                Err(Invalid::Taken(claim.version.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Takes the name, from another socket if this one's version is higher.
    pub(super) fn claim(&mut self, path: &Path, name: &str, version: Version) -> Result<(), Invalid> {
        self.may_claim(path, name, &version)?;
        let claim = Claim { path: path.to_owned(), version };
        let before = self.names.insert(name.to_owned(), claim).filter(|before| before.path != path);
        if let Some(record) = before.and_then(|before| self.sockets.get_mut(&before.path)) {
            record.holding = match std::mem::replace(&mut record.holding, Holding::Nothing) {
                Holding::Registered(registration) => Holding::Superseded(registration.identity),
                // The name is another's now, and so are the entries.
                Holding::Leaving(_) => Holding::Nothing,
                other => other,
            };
        }
        Ok(())
    }

    /// Whether the name is this socket's, or nobody's.
    pub(super) fn is_free_for(&self, path: &Path, name: &str) -> bool {
        self.names.get(name).is_none_or(|claim| claim.path == path)
    }

    /// Gives the name up. Gives the sockets that may want it.
    pub(super) fn release(&mut self, path: &Path, name: &str) -> Vec<PathBuf> {
        if self.names.get(name).is_none_or(|claim| claim.path != path) {
            return Vec::new();
        }
        self.names.remove(name);
        let mut woken = Vec::new();
        for (other, record) in self.sockets.iter_mut().filter(|(other, _)| *other != path) {
            if let Holding::Superseded(identity) = &record.holding {
                record.holding = Holding::Refused(identity.clone());
            }
            if matches!(record.holding, Holding::Refused(_)) {
                woken.push(other.clone());
            }
            record.wake();
        }
        woken
    }
}

#[cfg(test)]
mod tests;
