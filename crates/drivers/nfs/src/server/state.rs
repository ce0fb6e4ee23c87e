//! What is known about each server. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use crate::mount::Version;

/// How long a server is remembered that nothing uses.
const REMEMBERED: Duration = Duration::from_secs(900);

/// A server that did not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// The server.
    pub server: String,
    /// The first failure since the last answer.
    pub since: SystemTime,
    /// The last failure.
    pub reason: String,
}

/// The last known state of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerHealth {
    /// It answered at this time.
    Answered(SystemTime),
    /// It did not answer.
    Unreachable(Unreachable),
}

#[derive(Debug)]
struct ServerState {
    answered: Option<SystemTime>,
    failing: Option<(SystemTime, String)>,
    version: Option<Version>,
    port: Option<u16>,
    used: Option<SystemTime>,
}

impl Default for ServerState {
    fn default() -> Self {
        Self { answered: None, failing: None, version: None, port: Some(2049), used: None }
    }
}

/// State by server.
#[derive(Debug, Default)]
pub(super) struct ServerTable(BTreeMap<String, ServerState>);

impl ServerTable {
    /// Records an answer; whether the server had been unreachable.
    pub(super) fn answered(&mut self, server: &str, now: SystemTime) -> bool {
        let state = self.0.entry(server.to_owned()).or_default();
        state.answered = Some(now);
        state.failing.take().is_some()
    }

    /// Records a failure; whether it is the first since the last answer.
    pub(super) fn failed(&mut self, server: &str, reason: &str, now: SystemTime) -> bool {
        let state = self.0.entry(server.to_owned()).or_default();
        let first = state.failing.is_none();
        let since = state.failing.take().map_or(now, |(since, _)| since);
        state.failing = Some((since, reason.to_owned()));
        first
    }

    pub(super) fn mounted(&mut self, server: &str, version: Option<Version>, now: SystemTime) {
        self.answered(server, now);
        if let (Some(state), Some(_)) = (self.0.get_mut(server), version) {
            state.version = version;
        }
    }

    pub(super) fn version(&self, server: &str) -> Option<Version> {
        self.0.get(server)?.version
    }

    pub(super) fn health(&self, server: &str) -> Option<ServerHealth> {
        let state = self.0.get(server)?;
        match &state.failing {
            Some((since, reason)) => Some(ServerHealth::Unreachable(Unreachable {
                server: server.to_owned(),
                since: *since,
                reason: reason.clone(),
            })),
            None => state.answered.map(ServerHealth::Answered),
        }
    }

    pub(super) fn unreachable(&self) -> Vec<Unreachable> {
        let all = self.0.keys().filter_map(|server| self.health(server));
        all.filter_map(|health| match health {
            ServerHealth::Unreachable(unreachable) => Some(unreachable),
            ServerHealth::Answered(_) => None,
        })
        .collect()
    }

    /// The TCP port that was last used for the server; `None` if it was another transport.
    pub(super) fn port(&self, server: &str) -> Option<u16> {
        self.0.get(server).map_or(Some(2049), |state| state.port)
    }

    /// Records a use of the server, with its TCP port, if it has one.
    pub(super) fn used(&mut self, server: &str, port: Option<u16>, now: SystemTime) {
        let state = self.0.entry(server.to_owned()).or_default();
        state.port = port;
        state.used = Some(now);
    }

    /// Forgets servers without a mount that were not used recently: one that was removed, or whose name was mistyped, would
    /// be reported as unreachable without end.
    pub(super) fn forget_unused(&mut self, mounted: &BTreeSet<String>, now: SystemTime) {
        let recent = |used: SystemTime| now.duration_since(used).map_or(true, |age| age < REMEMBERED);
        self.0.retain(|server, state| mounted.contains(server) || state.used.is_some_and(recent));
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn unreachable_since_the_first_failure_until_an_answer() {
        let mut table = ServerTable::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(table.health("nas"), None);
        assert!(table.failed("nas", "refused", at(5)));
        assert!(!table.failed("nas", "silent", at(9)));
        let expected = Unreachable { server: "nas".into(), since: at(5), reason: "silent".into() };
        assert_eq!(table.unreachable(), [expected]);
        assert!(table.answered("nas", at(20)) && !table.answered("nas", at(21)));
        assert_eq!(table.health("nas"), Some(ServerHealth::Answered(at(21))));
        assert!(table.unreachable().is_empty());
        table.mounted("nas", Some(Version::V41), at(22));
        table.mounted("nas", None, at(23));
        table.failed("nas", "silent", at(30));
        assert_eq!(table.version("nas"), Some(Version::V41));
        assert_eq!((table.names(), table.version("other")), (vec!["nas".to_owned()], None));
        assert_eq!(table.port("other"), Some(2049));
        for port in [Some(12049), None] {
            table.used("nas", port, at(40));
            assert_eq!(table.port("nas"), port);
        }
    }

    #[test]
    fn server_is_forgotten_when_nothing_uses_it() {
        let mut table = ServerTable::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (server, used) in [("mounted", 0), ("removed", 0), ("recent", 500), ("later", 2000)] {
            table.used(server, Some(2049), at(used));
            table.failed(server, "refused", at(used));
        }
        table.forget_unused(&BTreeSet::from(["mounted".to_owned()]), at(1000));
        assert_eq!(table.names(), ["later", "mounted", "recent"]);
    }
}
