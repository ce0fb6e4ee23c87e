//! The plugin manager's rules for one socket: what to do next.
//!
//! A driver is taken out only if its socket is proven to be gone, or another one has taken its place and cannot be
//! registered. Whatever fails waits for its pause; a new socket has none behind it.

use std::time::Duration;

use super::view::{Driver, Entries, Facts, Held, Rules, Socket, View};

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask who it is, ask its driver, write, and tell it.
    Register,
    /// The same, in the place of the socket that was there before: its driver stays until the new one is known.
    Replace,
    /// Take the driver out, and its entries.
    Deregister,
    /// There is nothing more to know of it.
    Forget,
    /// Tell it once more that it is registered.
    Tell,
    /// Ask the driver again what it says of itself and of this node.
    Ask,
    /// Write into Node and CSINode what the driver says.
    Write,
    /// Nothing, until something changes or this moment comes.
    Wait(Option<Duration>),
}

/// What to do next.
pub(super) fn decide(view: &View, rules: Rules, now: Duration) -> Step {
    let due = |at: Duration, step: Step| if now >= at { step } else { Step::Wait(Some(at)) };
    let paused = |step: Step| due(view.not_before.unwrap_or_default(), step);
    match (view.socket, view.held) {
        (Socket::Gone { .. }, Held::Nothing | Held::Refused | Held::Superseded) => Step::Forget,
        // A plugin that comes again removes its socket first, then makes another.
        (Socket::Gone { since }, Held::Registered(_)) => due(since + rules.grace, Step::Deregister),
        // What was left behind goes first; only then something new may come of the socket.
        (_, Held::Leaving) => paused(Step::Deregister),

        // The new one may need a moment before it answers. One that does not is as good as none.
        (Socket::New { since }, Held::Registered(_)) if rules.handover && now < since + rules.grace => {
            paused(Step::Replace)
        }
        (Socket::New { .. }, Held::Registered(_)) => Step::Deregister,
        (Socket::New { .. }, Held::Nothing | Held::Refused | Held::Superseded) => paused(Step::Register),

        (Socket::Same, Held::Nothing) => paused(Step::Register),
        (Socket::Same, Held::Refused) if rules.retry => paused(Step::Register),
        (Socket::Same, Held::Refused) => Step::Wait(None),
        // Its name is taken: it is woken when that ends.
        (Socket::Same, Held::Superseded) => Step::Wait(None),
        (Socket::Same, Held::Registered(facts)) => match wanted(&facts, rules, now) {
            Step::Wait(until) => Step::Wait(until),
            step => paused(step),
        },
    }
}

/// What a driver that is registered, and whose socket is there, calls for.
fn wanted(facts: &Facts, rules: Rules, now: Duration) -> Step {
    match facts.entries {
        Entries::Outdated => return Step::Write,
        Entries::Disturbed if rules.restore => return Step::Write,
        Entries::Disturbed | Entries::Right => {}
    }
    if !facts.told {
        return Step::Tell;
    }
    let again_at = facts.period.map(|period| facts.asked_at + period);
    match facts.driver {
        // It could not answer. When it is back, it is another one.
        Driver::Away => Step::Wait(None),
        Driver::Restarted => Step::Ask,
        Driver::Same if facts.wanted || again_at.is_some_and(|at| now >= at) => Step::Ask,
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
        told: true,
        entries: Entries::Right,
        driver: Driver::Same,
        asked_at: Duration::from_secs(90),
        period: None,
        wanted: false,
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

    /// kubernetes.md 1.6 "New socket", "Same name", "No retry", "Dead socket", "Removed".
    #[test]
    fn sockets_come_and_go() {
        let registered = Held::Registered(WELL);
        let wait = |at| Step::Wait(Some(seconds(at)));
        let idle = Step::Wait(None);
        for (rule, rules, socket, held, not_before, expected) in [
            (
                "1.6 a socket that is not in the actual state is registered",
                RULES,
                new(100),
                Held::Nothing,
                None,
                Step::Register,
            ),
            ("1.6 one that is goes on", RULES, Socket::Same, registered, None, idle),
            ("1.6 socket removed: deregister", RULES, gone(99), registered, None, Step::Deregister),
            ("socket removed a moment ago: being made anew", RULES, gone(100), registered, None, wait(101)),
            ("1.6 UUID differs: unregister first", UPSTREAM, new(100), registered, None, Step::Deregister),
            ("ours: the new one takes over", RULES, new(100), registered, None, Step::Replace),
            ("ours: it may be slow", RULES, new(100), registered, Some(101), wait(101)),
            ("ours: but not for long", RULES, new(99), registered, Some(101), Step::Deregister),
            (
                "1.6 after a failed RegisterPlugin kubelet does not retry",
                UPSTREAM,
                Socket::Same,
                Held::Refused,
                None,
                idle,
            ),
            (
                "1.6 node-driver-registrar re-creates the socket: retry",
                UPSTREAM,
                new(100),
                Held::Refused,
                None,
                Step::Register,
            ),
            (
                "1.6 a dead socket file retries with backoff",
                UPSTREAM,
                Socket::Same,
                Held::Nothing,
                Some(100),
                Step::Register,
            ),
            (
                "1.6 a dead socket file, in its pause",
                UPSTREAM,
                Socket::Same,
                Held::Nothing,
                Some(101),
                wait(101),
            ),
            ("ours: again by ourselves", RULES, Socket::Same, Held::Refused, Some(100), Step::Register),
            ("ours: after a pause", RULES, Socket::Same, Held::Refused, Some(103), wait(103)),
            ("1.6 name registered with a higher version", RULES, Socket::Same, Held::Superseded, None, idle),
            (
                "superseded, made anew: it may have grown",
                RULES,
                new(100),
                Held::Superseded,
                None,
                Step::Register,
            ),
            ("entries could not be removed: again", RULES, gone(1), Held::Leaving, None, Step::Deregister),
            (
                "entries could not be removed: after a pause",
                RULES,
                gone(1),
                Held::Leaving,
                Some(101),
                wait(101),
            ),
            (
                "back while entries were being removed: first that",
                RULES,
                new(100),
                Held::Leaving,
                None,
                Step::Deregister,
            ),
            ("gone before anything came of it", RULES, gone(100), Held::Nothing, None, Step::Forget),
            ("gone after a refusal", RULES, gone(100), Held::Refused, Some(200), Step::Forget),
            ("gone while another had its name", RULES, gone(100), Held::Superseded, None, Step::Forget),
        ] {
            let view = View { socket, held, not_before: not_before.map(seconds) };
            assert_eq!(decide(&view, rules, NOW), expected, "{rule}");
        }
    }

    /// kubernetes.md 1.7 "Limits refreshed"; and what kubelet leaves to chance.
    #[test]
    fn what_is_registered_is_kept_right() {
        let wait = |at| Step::Wait(Some(seconds(at)));
        let idle = Step::Wait(None);
        let every = |period| Facts { period: Some(seconds(period)), ..WELL };
        for (rule, rules, facts, expected) in [
            ("nothing to do", RULES, WELL, idle),
            (
                "the driver says other things now",
                UPSTREAM,
                Facts { entries: Entries::Outdated, ..WELL },
                Step::Write,
            ),
            (
                "kubelet leaves alone what others changed",
                UPSTREAM,
                Facts { entries: Entries::Disturbed, ..WELL },
                idle,
            ),
            ("ours puts it back", RULES, Facts { entries: Entries::Disturbed, ..WELL }, Step::Write),
            ("the plugin was not told", RULES, Facts { told: false, ..WELL }, Step::Tell),
            (
                "first what is true, then the word",
                RULES,
                Facts { told: false, entries: Entries::Outdated, ..WELL },
                Step::Write,
            ),
            (
                "capabilities may be others after a restart",
                RULES,
                Facts { driver: Driver::Restarted, ..WELL },
                Step::Ask,
            ),
            ("nobody to ask", RULES, Facts { driver: Driver::Away, wanted: true, ..every(1) }, idle),
            ("1.7 nodeAllocatableUpdatePeriodSeconds, not yet", RULES, every(20), wait(110)),
            ("1.7 nodeAllocatableUpdatePeriodSeconds", RULES, every(10), Step::Ask),
            ("1.7 ResourceExhausted", RULES, Facts { wanted: true, ..WELL }, Step::Ask),
        ] {
            let view = View { socket: Socket::Same, held: Held::Registered(facts), not_before: None };
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
