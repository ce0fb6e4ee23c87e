//! The registrar's rules: what to do next, and how healthy it is.
//!
//! Kubelet takes a driver out of the node and puts it in again whenever its socket is made anew. So a socket
//! is made anew only if kubelet would otherwise not know something: never because a driver restarted as it
//! was.

use std::time::Duration;

use http::StatusCode;

use super::view::{Driver, Held, Place, View, Word};

/// A socket that is gone or not served may be that of another registrar which takes over: it removes ours, makes
/// its own, then listens. It gets this long.
const GRACE: Duration = Duration::from_millis(250);

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask the driver for its name.
    AskName,
    /// Ask the driver what it tells kubelet of this node.
    AskNode,
    /// Make the socket, in the place of the one we had and of whatever socket is there.
    Serve(Why),
    /// End with an error: somebody has to look at it.
    GiveUp,
    /// Nothing, until something happens or this moment comes.
    Wait(Option<Duration>),
}

/// What calls for a new socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// The first one.
    First,
    /// The driver is another one now.
    Renamed,
    /// Ours is gone: somebody cleaned the directory, as kubelet may when it restarts.
    Vanished,
    /// Somebody else's took its place, and nobody serves it any more.
    Stale,
    /// The driver restarted, and tells other things of this node; kubelet asks only when it registers.
    NodeChanged,
    /// Kubelet said no; it looks again at a new socket.
    Refused,
}

impl Why {
    /// For log lines and metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Renamed => "renamed",
            Self::Vanished => "vanished",
            Self::Stale => "stale",
            Self::NodeChanged => "node-changed",
            Self::Refused => "refused",
        }
    }
}

/// What to do next. Times count from the registrar's start.
pub(super) fn decide(view: &View<'_>, now: Duration) -> Step {
    let due = |at: Duration, step: Step| if now >= at { step } else { Step::Wait(Some(at)) };

    let (name, node, ask_node_at) = match view.driver {
        // Kubelet calls the driver when it registers: without one there it could only say no.
        Driver::Away => return Step::Wait(None),
        Driver::Unasked { ask_at } => return due(ask_at, Step::AskName),
        Driver::Named { name, ask_at } => (name, None, Some(ask_at)),
        Driver::Known { name, node } => (name, Some(node), None),
    };
    let wanted = match view.held {
        Held::Nothing if view.failed_until.is_some() => return Step::GiveUp,
        Held::Nothing => Some((Why::First, Duration::ZERO)),
        Held::Socket { name: held, .. } if held != name => Some((Why::Renamed, Duration::ZERO)),
        Held::Socket { place: Place::Missing { since }, .. } => Some((Why::Vanished, since + GRACE)),
        Held::Socket { place: Place::Stale { since }, .. } => Some((Why::Stale, since + GRACE)),
        // Another registrar came after us, as in a rolling update. Taking it back would begin a quarrel.
        Held::Socket { place: Place::Others | Place::NotASocket, .. } => None,
        Held::Socket { place: Place::Ours, node: told, word, .. } => match (node, word) {
            (Some(node), _) if told != Some(node) => Some((Why::NodeChanged, Duration::ZERO)),
            (_, Word::Refused { again_at }) => Some((Why::Refused, again_at)),
            (_, Word::Silent | Word::Registered) => None,
        },
    };
    let serve = wanted.map(|(why, at)| due(at.max(view.failed_until.unwrap_or_default()), Step::Serve(why)));
    let ask = ask_node_at.map(|at| due(at, Step::AskNode));
    match (serve, ask) {
        (Some(Step::Wait(Some(serve))), Some(Step::Wait(Some(ask)))) => Step::Wait(Some(serve.min(ask))),
        (Some(Step::Wait(_)), Some(ask)) => ask,
        (Some(serve), _) => serve,
        (None, Some(ask)) => ask,
        (None, None) => Step::Wait(None),
    }
}

/// What the health check found at the socket's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing, or no path yet.
    NoSocket,
    /// A registrar that gives this name.
    Name(String),
    /// Something that does not answer.
    NoAnswer(String),
}

/// The answer to a health check. `name` is the driver's, `trouble` what keeps it from being registered.
pub(super) fn health(found: Found, name: &str, trouble: Option<&str>) -> (StatusCode, String) {
    match (found, trouble) {
        (Found::NoSocket, None) => (StatusCode::NOT_FOUND, "registration socket does not exist".to_owned()),
        (Found::NoSocket, Some(trouble)) => {
            (StatusCode::NOT_FOUND, format!("registration socket does not exist: {trouble}"))
        }
        (Found::NoAnswer(error), _) => (StatusCode::INTERNAL_SERVER_ERROR, error),
        (Found::Name(found), _) if found != name => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the socket is served for driver {found:?}"))
        }
        (Found::Name(_), Some(trouble)) => (StatusCode::INTERNAL_SERVER_ERROR, trouble.to_owned()),
        (Found::Name(_), None) => (StatusCode::OK, "ok".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::registrar::view::NodeAnswer;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const N1: &NodeAnswer = &NodeAnswer { node_id: String::new(), max_volumes: 1, topology: BTreeMap::new() };
    const N2: &NodeAnswer = &NodeAnswer { node_id: String::new(), max_volumes: 2, topology: BTreeMap::new() };

    /// A driver that is known, a socket in place, kubelet content; at 10 s.
    fn decided(change: impl FnOnce(&mut View<'static>)) -> Step {
        let mut view = View {
            driver: Driver::Known { name: "d", node: N1 },
            held: Held::Socket { name: "d", node: Some(N1), place: Place::Ours, word: Word::Registered },
            failed_until: None,
        };
        change(&mut view);
        decide(&view, s(10))
    }

    fn place(place: Place) -> Step {
        decided(|view| {
            if let Held::Socket { place: at, .. } = &mut view.held {
                *at = place;
            }
        })
    }

    fn word(said: Word) -> Step {
        decided(|view| {
            if let Held::Socket { word, .. } = &mut view.held {
                *word = said;
            }
        })
    }

    /// sidecars.md 1.7 "Health": `--timeout` … at start; we ask again where upstream exits.
    #[test]
    fn a_driver_is_asked_until_it_answers() {
        for (driver, step) in [
            (Driver::Away, Step::Wait(None)),
            (Driver::Unasked { ask_at: s(10) }, Step::AskName),
            (Driver::Unasked { ask_at: s(11) }, Step::Wait(Some(s(11)))),
            (Driver::Named { name: "d", ask_at: s(10) }, Step::AskNode),
            (Driver::Named { name: "d", ask_at: s(11) }, Step::Wait(Some(s(11)))),
        ] {
            assert_eq!(decided(|view| view.driver = driver.clone()), step, "{driver:?}");
        }
        // The name is enough for a socket: upstream asks for no more either.
        let unanswered = Driver::Named { name: "d", ask_at: s(10) };
        let first = decided(|view| (view.driver, view.held) = (unanswered.clone(), Held::Nothing));
        assert_eq!(first, Step::Serve(Why::First));
        // Without a driver kubelet could only say no, so even a socket that is gone can wait.
        let gone =
            Held::Socket { name: "d", node: None, place: Place::Missing { since: s(9) }, word: Word::Silent };
        let away = decided(|view| (view.driver, view.held) = (Driver::Away, gone.clone()));
        assert_eq!(away, Step::Wait(None));
    }

    /// sidecars.md 1.7 "Socket"
    #[test]
    fn the_socket_is_made_once_and_again_when_it_is_gone() {
        assert_eq!(decided(|view| view.held = Held::Nothing), Step::Serve(Why::First));
        for (found, step) in [
            (Place::Ours, Step::Wait(None)),
            (Place::Missing { since: s(9) }, Step::Serve(Why::Vanished)),
            (Place::Missing { since: s(10) }, Step::Wait(Some(s(10) + GRACE))),
            (Place::Stale { since: s(9) }, Step::Serve(Why::Stale)),
            (Place::Stale { since: s(10) }, Step::Wait(Some(s(10) + GRACE))),
            (Place::Others, Step::Wait(None)),
            (Place::NotASocket, Step::Wait(None)),
        ] {
            assert_eq!(place(found), step, "{found:?}");
        }
    }

    /// sidecars.md 1.7 "Socket": non-socket file → error
    #[test]
    fn a_first_socket_that_cannot_be_made_is_the_end_and_a_later_one_is_tried_again() {
        let failed = |held: Held<'static>, until| {
            decided(|view| (view.held, view.failed_until) = (held.clone(), Some(until)))
        };
        assert_eq!(failed(Held::Nothing, s(11)), Step::GiveUp);
        let gone =
            Held::Socket { name: "d", node: None, place: Place::Missing { since: s(9) }, word: Word::Silent };
        assert_eq!(failed(gone.clone(), s(11)), Step::Wait(Some(s(11))));
        assert_eq!(failed(gone, s(10)), Step::Serve(Why::Vanished));
    }

    /// sidecars.md 1.7 "API": NotifyRegistrationStatus(false) → exit 1; we make the socket anew instead.
    #[test]
    fn kubelets_word() {
        assert_eq!(word(Word::Silent), Step::Wait(None));
        assert_eq!(word(Word::Registered), Step::Wait(None));
        assert_eq!(word(Word::Refused { again_at: s(11) }), Step::Wait(Some(s(11))));
        assert_eq!(word(Word::Refused { again_at: s(10) }), Step::Serve(Why::Refused));
        let both = |again_at, ask_at| {
            decided(|view| {
                view.driver = Driver::Named { name: "d", ask_at };
                if let Held::Socket { word, .. } = &mut view.held {
                    *word = Word::Refused { again_at };
                }
            })
        };
        assert_eq!(both(s(12), s(11)), Step::Wait(Some(s(11))));
        assert_eq!(both(s(11), s(12)), Step::Wait(Some(s(11))));
        assert_eq!(both(s(11), s(9)), Step::AskNode);
        assert_eq!(both(s(9), s(9)), Step::Serve(Why::Refused));
    }

    /// sidecars.md 1.7 "Health": does not watch the driver; we do.
    #[test]
    fn a_driver_that_comes_back_is_registered_again_only_if_kubelet_would_not_know_it() {
        for (name, node, told, step) in [
            ("d", N1, Some(N1), Step::Wait(None)),
            ("d", N2, Some(N1), Step::Serve(Why::NodeChanged)),
            ("d", N1, None, Step::Serve(Why::NodeChanged)),
            ("e", N1, Some(N1), Step::Serve(Why::Renamed)),
        ] {
            let step_now = decided(|view| {
                view.driver = Driver::Known { name, node };
                view.held =
                    Held::Socket { name: "d", node: told, place: Place::Ours, word: Word::Registered };
            });
            assert_eq!(step_now, step, "{name} {node:?} {told:?}");
        }
    }

    /// Metrics carry them, so that dashboards can.
    #[test]
    fn names_of_reasons() {
        use Why::{First, NodeChanged, Refused, Renamed, Stale, Vanished};
        let names = [First, Renamed, Vanished, Stale, NodeChanged, Refused].map(Why::name);
        assert_eq!(names, ["first", "renamed", "vanished", "stale", "node-changed", "refused"]);
    }

    /// sidecars.md 1.7 "Health": /healthz
    #[test]
    fn health_answers() {
        let named = |name: &str| Found::Name(name.to_owned());
        for (found, trouble, status, text) in [
            (named("d"), None, 200, "ok"),
            (Found::NoSocket, None, 404, "registration socket does not exist"),
            (Found::NoSocket, Some("t"), 404, "registration socket does not exist: t"),
            (Found::NoAnswer("no answer".into()), None, 500, "no answer"),
            (named("e"), None, 500, "the socket is served for driver \"e\""),
            (named("d"), Some("kubelet said no"), 500, "kubelet said no"),
        ] {
            let expected = (StatusCode::from_u16(status).unwrap(), text.to_owned());
            assert_eq!(health(found.clone(), "d", trouble), expected, "{found:?} {trouble:?}");
        }
    }
}
