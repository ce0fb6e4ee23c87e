//! Rules of the plugin manager for one socket: given its state, the next step.
//!
//! Pure functions, no I/O; [`decide`] is the entry point. A driver is deregistered only if its socket is known to be
//! gone, or if a new socket at the same path cannot be registered. A failed step waits for its backoff; a new socket
//! starts without one.

use std::time::Duration;

use super::view::{Driver, Entries, Facts, Phase, Rules, Socket, View};

/// The next step for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Call GetInfo, query the driver, write the entries, notify the plugin.
    Register,
    /// Register a re-created socket: the old driver stays registered until the new one is known.
    Replace,
    /// Deregister the driver and remove its entries.
    Deregister,
    /// Drop the record of a socket that no longer exists.
    DropState,
    /// Repeat NotifyRegistrationStatus.
    Notify,
    /// Query the driver's capabilities and node info again.
    Query,
    /// Write the driver's node info to Node and CSINode.
    Write,
    /// Wait for a change, or until this time.
    Wait(Option<Duration>),
}

/// Determines the next step for a socket.
pub(super) fn decide(view: &View, rules: Rules, now: Duration) -> Step {
    let due = |at: Duration, step: Step| if now >= at { step } else { Step::Wait(Some(at)) };
    let paused = |step: Step| due(view.not_before.unwrap_or_default(), step);
    match (view.socket, view.phase) {
        (Socket::Gone { .. }, Phase::Pending | Phase::Refused | Phase::Superseded) => Step::DropState,
        // A plugin that restarts removes its socket first, then creates a new one.
        (Socket::Gone { since }, Phase::Registered(_)) => due(since + rules.grace, Step::Deregister),
        // Leftover entries are removed before the socket can register again.
        (_, Phase::Deregistering) => paused(Step::Deregister),

        // The new process may need a moment before it responds. One that never does counts as gone.
        (Socket::New { since }, Phase::Registered(_)) if rules.handover && now < since + rules.grace => {
            paused(Step::Replace)
        }
        (Socket::New { .. }, Phase::Registered(_)) => Step::Deregister,
        (Socket::New { .. }, Phase::Pending | Phase::Refused | Phase::Superseded) => paused(Step::Register),

        (Socket::Same, Phase::Pending) => paused(Step::Register),
        (Socket::Same, Phase::Refused) if rules.retry => paused(Step::Register),
        (Socket::Same, Phase::Refused) => Step::Wait(None),
        // Its name is taken; it is woken when the name is released.
        (Socket::Same, Phase::Superseded) => Step::Wait(None),
        (Socket::Same, Phase::Registered(facts)) => match step_for_registered(&facts, rules, now) {
            Step::Wait(until) => Step::Wait(until),
            step => paused(step),
        },
    }
}

/// The next step for a registered driver whose socket exists.
fn step_for_registered(facts: &Facts, rules: Rules, now: Duration) -> Step {
    match facts.entries {
        Entries::Outdated => return Step::Write,
        Entries::Modified if rules.restore => return Step::Write,
        Entries::Modified | Entries::Current => {}
    }
    if !facts.notified {
        return Step::Notify;
    }
    let again_at = facts.period.map(|period| facts.queried_at + period);
    match facts.driver {
        // It cannot respond now. When it is back, it counts as restarted.
        Driver::Absent => Step::Wait(None),
        Driver::Restarted => Step::Query,
        Driver::Same if facts.refresh_requested || again_at.is_some_and(|at| now >= at) => Step::Query,
        Driver::Same => Step::Wait(again_at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { retry: true, handover: true, restore: true, grace: Duration::from_secs(1) };
    const UPSTREAM: Rules = Rules { retry: false, handover: false, restore: false, ..RULES };
    const NOW: Duration = Duration::from_secs(100);
    const WELL: Facts = Facts {
        notified: true,
        entries: Entries::Current,
        driver: Driver::Same,
        queried_at: Duration::from_secs(90),
        period: None,
        refresh_requested: false,
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn new(since: u64) -> Socket {
        Socket::New { since: seconds(since) }
    }

    fn gone(since: u64) -> Socket {
        Socket::Gone { since: seconds(since) }
    }

    /// kubernetes.md 1.6 "New socket", "Same name", "No retry", "Unresponsive socket", "Socket removed".
    #[test]
    fn socket_changes_register_and_deregister_the_driver() {
        let registered = Phase::Registered(WELL);
        let wait = |at| Step::Wait(Some(seconds(at)));
        let idle = Step::Wait(None);
        for (rule, rules, socket, phase, not_before, expected) in [
            (
                "1.6 a socket that is not in the actual state is registered",
                RULES,
                new(100),
                Phase::Pending,
                None,
                Step::Register,
            ),
            ("1.6 one that is stays registered", RULES, Socket::Same, registered, None, idle),
            ("1.6 socket removed: deregister", RULES, gone(99), registered, None, Step::Deregister),
            ("socket removed a moment ago: being re-created", RULES, gone(100), registered, None, wait(101)),
            ("1.6 UUID differs: unregister first", UPSTREAM, new(100), registered, None, Step::Deregister),
            ("ours: the new one takes over", RULES, new(100), registered, None, Step::Replace),
            ("ours: it may start slowly", RULES, new(100), registered, Some(101), wait(101)),
            ("ours: but not for long", RULES, new(99), registered, Some(101), Step::Deregister),
            (
                "1.6 after a failed RegisterPlugin kubelet does not retry",
                UPSTREAM,
                Socket::Same,
                Phase::Refused,
                None,
                idle,
            ),
            (
                "1.6 node-driver-registrar re-creates the socket: retry",
                UPSTREAM,
                new(100),
                Phase::Refused,
                None,
                Step::Register,
            ),
            (
                "1.6 a dead socket file retries with backoff",
                UPSTREAM,
                Socket::Same,
                Phase::Pending,
                Some(100),
                Step::Register,
            ),
            (
                "1.6 a dead socket file, in its pause",
                UPSTREAM,
                Socket::Same,
                Phase::Pending,
                Some(101),
                wait(101),
            ),
            (
                "ours: retried without a new socket",
                RULES,
                Socket::Same,
                Phase::Refused,
                Some(100),
                Step::Register,
            ),
            ("ours: after its backoff", RULES, Socket::Same, Phase::Refused, Some(103), wait(103)),
            ("1.6 name registered with a higher version", RULES, Socket::Same, Phase::Superseded, None, idle),
            (
                "superseded, re-created: its version may be higher",
                RULES,
                new(100),
                Phase::Superseded,
                None,
                Step::Register,
            ),
            (
                "entries could not be removed: retry",
                RULES,
                gone(1),
                Phase::Deregistering,
                None,
                Step::Deregister,
            ),
            (
                "entries could not be removed: after its backoff",
                RULES,
                gone(1),
                Phase::Deregistering,
                Some(101),
                wait(101),
            ),
            (
                "back while entries are being removed: removal first",
                RULES,
                new(100),
                Phase::Deregistering,
                None,
                Step::Deregister,
            ),
            ("gone before it was processed", RULES, gone(100), Phase::Pending, None, Step::DropState),
            ("gone after a refusal", RULES, gone(100), Phase::Refused, Some(200), Step::DropState),
            ("gone while superseded", RULES, gone(100), Phase::Superseded, None, Step::DropState),
        ] {
            let view = View { socket, phase, not_before: not_before.map(seconds) };
            assert_eq!(decide(&view, rules, NOW), expected, "{rule}");
        }
    }

    /// kubernetes.md 1.7 "Limit refresh"; and drift that kubelet ignores.
    #[test]
    fn registered_driver_is_refreshed_and_its_entries_restored() {
        let wait = |at| Step::Wait(Some(seconds(at)));
        let idle = Step::Wait(None);
        let every = |period| Facts { period: Some(seconds(period)), ..WELL };
        for (rule, rules, facts, expected) in [
            ("nothing to do", RULES, WELL, idle),
            (
                "the driver's node info changed",
                UPSTREAM,
                Facts { entries: Entries::Outdated, ..WELL },
                Step::Write,
            ),
            ("kubelet ignores foreign changes", UPSTREAM, Facts { entries: Entries::Modified, ..WELL }, idle),
            ("ours restores the entries", RULES, Facts { entries: Entries::Modified, ..WELL }, Step::Write),
            ("the plugin was not notified", RULES, Facts { notified: false, ..WELL }, Step::Notify),
            (
                "write entries before notifying",
                RULES,
                Facts { notified: false, entries: Entries::Outdated, ..WELL },
                Step::Write,
            ),
            (
                "capabilities may change with a restart",
                RULES,
                Facts { driver: Driver::Restarted, ..WELL },
                Step::Query,
            ),
            (
                "the driver is absent",
                RULES,
                Facts { driver: Driver::Absent, refresh_requested: true, ..every(1) },
                idle,
            ),
            ("1.7 nodeAllocatableUpdatePeriodSeconds, not yet", RULES, every(20), wait(110)),
            ("1.7 nodeAllocatableUpdatePeriodSeconds", RULES, every(10), Step::Query),
            ("1.7 ResourceExhausted", RULES, Facts { refresh_requested: true, ..WELL }, Step::Query),
        ] {
            let view = View { socket: Socket::Same, phase: Phase::Registered(facts), not_before: None };
            assert_eq!(decide(&view, rules, NOW), expected, "{rule}");
            let paused = View { not_before: Some(seconds(105)), ..view };
            let after = match expected {
                Step::Wait(_) => expected,
                _ => wait(105),
            };
            assert_eq!(decide(&paused, rules, NOW), after, "{rule}, after a failure");
        }
    }
}
