//! Rules of the registrar: the next step, and the health.
//!
//! Kubelet unregisters and registers a driver whenever its socket is re-created. Therefore the socket is re-created
//! only if kubelet would otherwise miss something, never because a driver restarted unchanged.

use std::time::Duration;

use http::StatusCode;

use super::view::{Driver, KubeletStatus, OwnSocket, PathState, View};

/// A socket that is missing or not served may belong to another registrar that takes over: it removes ours, creates
/// its own, then listens. It gets this much time.
const TAKEOVER_GRACE: Duration = Duration::from_millis(250);

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Call GetPluginInfo.
    GetPluginInfo,
    /// Call NodeGetInfo.
    GetNodeInfo,
    /// Create the socket, replacing ours and any other socket at its path.
    Serve(SocketReason),
    /// End with an error that needs attention.
    GiveUp,
    /// Wait for an event, or until this time.
    Wait(Option<Duration>),
}

/// Why a new socket is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketReason {
    /// There is none yet.
    First,
    /// The driver has another name now.
    Renamed,
    /// Ours is gone: the directory was cleaned, as kubelet may do when it restarts.
    Vanished,
    /// Another socket replaced ours and is no longer served.
    Stale,
    /// The restarted driver has other node info; kubelet reads it only during registration.
    NodeChanged,
    /// Kubelet refused; it tries again with a new socket.
    Refused,
}

impl SocketReason {
    /// The name in logs and metrics.
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

/// Decides the next step. Times count from the registrar's start.
pub(super) fn decide(view: &View<'_>, now: Duration) -> Step {
    let due = |at: Duration, step: Step| if now >= at { step } else { Step::Wait(Some(at)) };

    let (name, node, node_info_at) = match view.driver {
        // Kubelet calls the driver during registration: without a driver it would fail.
        Driver::NoSocket => return Step::Wait(None),
        Driver::Unknown { call_at } => return due(call_at, Step::GetPluginInfo),
        Driver::Named { name, call_at } => (name, None, Some(call_at)),
        Driver::Known { name, node } => (name, Some(node), None),
    };
    let needed = match view.own_socket {
        OwnSocket::None if view.failed_until.is_some() => return Step::GiveUp,
        OwnSocket::None => Some((SocketReason::First, Duration::ZERO)),
        OwnSocket::Served { name: own_socket, .. } if own_socket != name => {
            Some((SocketReason::Renamed, Duration::ZERO))
        }
        OwnSocket::Served { path_state: PathState::Missing { since }, .. } => {
            Some((SocketReason::Vanished, since + TAKEOVER_GRACE))
        }
        OwnSocket::Served { path_state: PathState::Stale { since }, .. } => {
            Some((SocketReason::Stale, since + TAKEOVER_GRACE))
        }
        // Another registrar took over, as in a rolling update. Do not fight over the socket.
        OwnSocket::Served { path_state: PathState::Foreign | PathState::NotSocket, .. } => None,
        OwnSocket::Served { path_state: PathState::Ours, node: registered_node, kubelet_status, .. } => {
            match (node, kubelet_status) {
                (Some(node), _) if registered_node != Some(node) => {
                    Some((SocketReason::NodeChanged, Duration::ZERO))
                }
                (_, KubeletStatus::Refused { retry_at }) => Some((SocketReason::Refused, retry_at)),
                (_, KubeletStatus::Pending | KubeletStatus::Registered) => None,
            }
        }
    };
    let serve =
        needed.map(|(reason, at)| due(at.max(view.failed_until.unwrap_or_default()), Step::Serve(reason)));
    let call = node_info_at.map(|at| due(at, Step::GetNodeInfo));
    match (serve, call) {
        (Some(Step::Wait(Some(serve))), Some(Step::Wait(Some(call)))) => Step::Wait(Some(serve.min(call))),
        (Some(Step::Wait(_)), Some(call)) => call,
        (Some(serve), _) => serve,
        (None, Some(call)) => call,
        (None, None) => Step::Wait(None),
    }
}

/// What a health check found at the socket's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProbeResult {
    /// No socket.
    NoSocket,
    /// A registrar that serves this driver name.
    Name(String),
    /// No valid response.
    Failed(String),
}

/// The response to a health check. `name` is the driver's name, `problem` what prevents its registration.
pub(super) fn health(found: ProbeResult, name: &str, problem: Option<&str>) -> (StatusCode, String) {
    match (found, problem) {
        (ProbeResult::NoSocket, None) => {
            (StatusCode::NOT_FOUND, "registration socket does not exist".to_owned())
        }
        (ProbeResult::NoSocket, Some(problem)) => {
            (StatusCode::NOT_FOUND, format!("registration socket does not exist: {problem}"))
        }
        (ProbeResult::Failed(error), _) => (StatusCode::INTERNAL_SERVER_ERROR, error),
        (ProbeResult::Name(found), _) if found != name => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("the socket is served for driver {found:?}"))
        }
        (ProbeResult::Name(_), Some(problem)) => (StatusCode::INTERNAL_SERVER_ERROR, problem.to_owned()),
        (ProbeResult::Name(_), None) => (StatusCode::OK, "ok".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::registrar::view::NodeInfo;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const N1: &NodeInfo = &NodeInfo { node_id: String::new(), max_volumes: 1, topology: BTreeMap::new() };
    const N2: &NodeInfo = &NodeInfo { node_id: String::new(), max_volumes: 2, topology: BTreeMap::new() };

    /// The default case at 10 s: the driver is known, the socket in place, and the driver registered.
    fn decided(change: impl FnOnce(&mut View<'static>)) -> Step {
        let mut view = View {
            driver: Driver::Known { name: "d", node: N1 },
            own_socket: OwnSocket::Served {
                name: "d",
                node: Some(N1),
                path_state: PathState::Ours,
                kubelet_status: KubeletStatus::Registered,
            },
            failed_until: None,
        };
        change(&mut view);
        decide(&view, s(10))
    }

    fn path_state(path_state: PathState) -> Step {
        decided(|view| {
            if let OwnSocket::Served { path_state: at, .. } = &mut view.own_socket {
                *at = path_state;
            }
        })
    }

    fn kubelet_status(notification: KubeletStatus) -> Step {
        decided(|view| {
            if let OwnSocket::Served { kubelet_status, .. } = &mut view.own_socket {
                *kubelet_status = notification;
            }
        })
    }

    /// sidecars.md 1.7 "Health": `--timeout` … at start; we retry where upstream exits.
    #[test]
    fn driver_is_called_until_it_responds() {
        for (driver, step) in [
            (Driver::NoSocket, Step::Wait(None)),
            (Driver::Unknown { call_at: s(10) }, Step::GetPluginInfo),
            (Driver::Unknown { call_at: s(11) }, Step::Wait(Some(s(11)))),
            (Driver::Named { name: "d", call_at: s(10) }, Step::GetNodeInfo),
            (Driver::Named { name: "d", call_at: s(11) }, Step::Wait(Some(s(11)))),
        ] {
            assert_eq!(decided(|view| view.driver = driver.clone()), step, "{driver:?}");
        }
        // The name is enough for a socket: upstream needs no more either.
        let named = Driver::Named { name: "d", call_at: s(10) };
        let first = decided(|view| (view.driver, view.own_socket) = (named.clone(), OwnSocket::None));
        assert_eq!(first, Step::Serve(SocketReason::First));
        // Without a driver the registration would fail, so a missing socket is not re-created yet.
        let missing = OwnSocket::Served {
            name: "d",
            node: None,
            path_state: PathState::Missing { since: s(9) },
            kubelet_status: KubeletStatus::Pending,
        };
        let away = decided(|view| (view.driver, view.own_socket) = (Driver::NoSocket, missing.clone()));
        assert_eq!(away, Step::Wait(None));
    }

    /// sidecars.md 1.7 "Socket"
    #[test]
    fn socket_is_created_once_and_again_when_missing_or_stale() {
        assert_eq!(decided(|view| view.own_socket = OwnSocket::None), Step::Serve(SocketReason::First));
        for (found, step) in [
            (PathState::Ours, Step::Wait(None)),
            (PathState::Missing { since: s(9) }, Step::Serve(SocketReason::Vanished)),
            (PathState::Missing { since: s(10) }, Step::Wait(Some(s(10) + TAKEOVER_GRACE))),
            (PathState::Stale { since: s(9) }, Step::Serve(SocketReason::Stale)),
            (PathState::Stale { since: s(10) }, Step::Wait(Some(s(10) + TAKEOVER_GRACE))),
            (PathState::Foreign, Step::Wait(None)),
            (PathState::NotSocket, Step::Wait(None)),
        ] {
            assert_eq!(path_state(found), step, "{found:?}");
        }
    }

    /// sidecars.md 1.7 "Socket": non-socket file → error
    #[test]
    fn failure_of_first_socket_is_fatal_and_later_ones_are_retried() {
        let failed = |own_socket: OwnSocket<'static>, until| {
            decided(|view| (view.own_socket, view.failed_until) = (own_socket.clone(), Some(until)))
        };
        assert_eq!(failed(OwnSocket::None, s(11)), Step::GiveUp);
        let missing = OwnSocket::Served {
            name: "d",
            node: None,
            path_state: PathState::Missing { since: s(9) },
            kubelet_status: KubeletStatus::Pending,
        };
        assert_eq!(failed(missing.clone(), s(11)), Step::Wait(Some(s(11))));
        assert_eq!(failed(missing, s(10)), Step::Serve(SocketReason::Vanished));
    }

    /// sidecars.md 1.7 "API": NotifyRegistrationStatus(false) → exit 1; we re-create the socket instead.
    #[test]
    fn refused_registration_is_retried_with_new_socket() {
        assert_eq!(kubelet_status(KubeletStatus::Pending), Step::Wait(None));
        assert_eq!(kubelet_status(KubeletStatus::Registered), Step::Wait(None));
        assert_eq!(kubelet_status(KubeletStatus::Refused { retry_at: s(11) }), Step::Wait(Some(s(11))));
        assert_eq!(
            kubelet_status(KubeletStatus::Refused { retry_at: s(10) }),
            Step::Serve(SocketReason::Refused)
        );
        let both = |retry_at, call_at| {
            decided(|view| {
                view.driver = Driver::Named { name: "d", call_at };
                if let OwnSocket::Served { kubelet_status, .. } = &mut view.own_socket {
                    *kubelet_status = KubeletStatus::Refused { retry_at };
                }
            })
        };
        assert_eq!(both(s(12), s(11)), Step::Wait(Some(s(11))));
        assert_eq!(both(s(11), s(12)), Step::Wait(Some(s(11))));
        assert_eq!(both(s(11), s(9)), Step::GetNodeInfo);
        assert_eq!(both(s(9), s(9)), Step::Serve(SocketReason::Refused));
    }

    /// sidecars.md 1.7 "Health": does not watch the driver; we do.
    #[test]
    fn restarted_driver_is_registered_again_only_if_changed() {
        for (name, node, registered_node, step) in [
            ("d", N1, Some(N1), Step::Wait(None)),
            ("d", N2, Some(N1), Step::Serve(SocketReason::NodeChanged)),
            ("d", N1, None, Step::Serve(SocketReason::NodeChanged)),
            ("e", N1, Some(N1), Step::Serve(SocketReason::Renamed)),
        ] {
            let step_now = decided(|view| {
                view.driver = Driver::Known { name, node };
                view.own_socket = OwnSocket::Served {
                    name: "d",
                    node: registered_node,
                    path_state: PathState::Ours,
                    kubelet_status: KubeletStatus::Registered,
                };
            });
            assert_eq!(step_now, step, "{name} {node:?} {registered_node:?}");
        }
    }

    /// Dashboards depend on these names.
    #[test]
    fn reason_names_are_stable() {
        use SocketReason::{First, NodeChanged, Refused, Renamed, Stale, Vanished};
        let names = [First, Renamed, Vanished, Stale, NodeChanged, Refused].map(SocketReason::name);
        assert_eq!(names, ["first", "renamed", "vanished", "stale", "node-changed", "refused"]);
    }

    /// sidecars.md 1.7 "Health": /healthz
    #[test]
    fn health_status_codes() {
        let named = |name: &str| ProbeResult::Name(name.to_owned());
        for (found, problem, status, text) in [
            (named("d"), None, 200, "ok"),
            (ProbeResult::NoSocket, None, 404, "registration socket does not exist"),
            (ProbeResult::NoSocket, Some("t"), 404, "registration socket does not exist: t"),
            (ProbeResult::Failed("no response".into()), None, 500, "no response"),
            (named("e"), None, 500, "the socket is served for driver \"e\""),
            (named("d"), Some("kubelet refused"), 500, "kubelet refused"),
        ] {
            let expected = (StatusCode::from_u16(status).unwrap(), text.to_owned());
            assert_eq!(health(found.clone(), "d", problem), expected, "{found:?} {problem:?}");
        }
    }
}
