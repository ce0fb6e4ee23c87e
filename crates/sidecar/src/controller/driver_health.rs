//! Gives up the leases of a driver that does not answer, so that another replica can act, and competes for them again
//! when it answers.
//!
//! Running calls are cancelled first. The leases are released at once if none was running and the driver's process has
//! ended. Otherwise they expire: a cancelled call, or one that timed out, may still be running in the driver, and has that time
//! to end.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};
use wharf_cluster::work::Gate;
use wharf_cluster::{Leadership, Standing};

use crate::driver::Driver;

/// How long cancelled work gets to be recorded as such.
const SETTLE: Duration = Duration::from_secs(1);

/// What is known about the driver and the leases.
#[derive(Debug, Clone, Copy)]
struct View {
    /// The last good answer to Probe.
    answered: Instant,
    /// Since when this replica does not compete for the leases.
    aside_since: Option<Instant>,
    released: bool,
    /// Whether cancelled calls may still be running.
    dropped_work: bool,
    /// Whether the last Probe could not connect to the driver.
    gone: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Wait,
    /// Stop working and renewing.
    StandAside,
    /// Let another replica take over at once.
    Release,
    Compete,
}

fn decide(view: &View, limit: Duration, now: Instant) -> Step {
    let since = |time: Instant| now.saturating_duration_since(time);
    match view.aside_since {
        None if since(view.answered) >= limit => Step::StandAside,
        None => Step::Wait,
        Some(aside) if view.answered > aside => Step::Compete,
        Some(aside) if !view.released && !view.dropped_work && view.gone && since(aside) >= SETTLE => {
            Step::Release
        }
        Some(_) => Step::Wait,
    }
}

/// Whether the driver answers.
#[derive(Debug, Clone, Default)]
pub(super) struct HealthMetrics {
    answering: Gauge,
}

impl HealthMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "1 while the driver answers Probe, 0 after the leases were given up because it does not";
        registry.register("wharf_sidecar_driver_answering", help, metrics.answering.clone());
        metrics
    }
}

/// Calls Probe until it is dropped. `limit` is the time without a good answer after which the leases are given up.
pub(super) async fn watch(
    driver: &Driver,
    limit: Duration,
    leases: &[(Leadership, Gate)],
    metrics: &HealthMetrics,
) {
    let interval = limit / 5;
    let set = |standing| leases.iter().for_each(|(leadership, _)| leadership.set_standing(standing));
    // The roles run because the driver answered just now.
    let mut view = View {
        answered: Instant::now(),
        aside_since: None,
        released: false,
        dropped_work: false,
        gone: false,
    };
    set(Standing::Compete);
    metrics.answering.set(1);
    loop {
        sleep(interval).await;
        // A slow answer within the limit is good: the driver may be busy with the calls of the roles.
        let probed = driver.probe(limit).await;
        if probed.is_ok() {
            view.answered = Instant::now();
        }
        // Errors of the connection have a source; what the driver answers has none.
        view.gone = probed.as_ref().is_err_and(|status| std::error::Error::source(status).is_some());
        view.dropped_work = leases.iter().any(|(_, gate)| gate.dropped_work());
        match decide(&view, limit, Instant::now()) {
            Step::Wait => {}
            Step::StandAside => {
                let error = probed.err().map(|status| format!("{:?}: {}", status.code(), status.message()));
                tracing::warn!(
                    driver = driver.name(),
                    unanswered = ?view.answered.elapsed(),
                    error,
                    "driver does not answer; cancelled its work and no longer renewing its leases"
                );
                set(Standing::Expire);
                metrics.answering.set(0);
                (view.aside_since, view.released) = (Some(Instant::now()), false);
            }
            Step::Release => {
                set(Standing::Release);
                view.released = true;
            }
            Step::Compete => {
                tracing::info!(driver = driver.name(), "driver answers again; competing for its leases");
                set(Standing::Compete);
                metrics.answering.set(1);
                view.aside_since = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn leases_follow_the_answers_of_the_driver() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let table = [
            ("answers", (10, None, false, false), 24, Step::Wait),
            ("silent too long", (10, None, false, false), 25, Step::StandAside),
            ("silent with a call in flight", (10, None, false, true), 25, Step::StandAside),
            ("just stood aside", (10, Some(25), false, false), 25, Step::Wait),
            ("no call was cancelled", (10, Some(25), false, false), 26, Step::Release),
            ("a cancelled call may still run", (10, Some(25), false, true), 30, Step::Wait),
            ("released", (10, Some(25), true, false), 100, Step::Wait),
            ("answers again", (40, Some(25), true, false), 40, Step::Compete),
            ("answers again before the release", (26, Some(25), false, true), 26, Step::Compete),
            ("an answer from before", (24, Some(25), true, false), 40, Step::Wait),
        ];
        for (what, (answered, aside, released, dropped_work), now, expected) in table {
            let (answered, aside_since) = (at(answered), aside.map(at));
            let view = View { answered, aside_since, released, dropped_work, gone: true };
            assert_eq!(decide(&view, Duration::from_secs(15), at(now)), expected, "{what}");
            // A call that timed out may still run in a driver that hangs.
            let expected = if expected == Step::Release { Step::Wait } else { expected };
            let view = View { gone: false, ..view };
            assert_eq!(decide(&view, Duration::from_secs(15), at(now)), expected, "{what}, not gone");
        }
    }

    /// S-H2, with a driver whose process ends and is started again.
    #[tokio::test]
    async fn leases_of_a_silent_driver_are_given_up_until_it_answers() {
        use crate::driver::tests::{lease_server, serve};
        use crate::metrics::Metrics;
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("csi.sock");
        let served = serve(&socket, "d.test", &[]);
        let client = wharf_csi::Client::new(&socket.to_str().unwrap().parse().unwrap());
        let driver = Driver::discover(&client, &Metrics::new(), false).await;
        let cluster = lease_server(std::sync::Arc::default());
        let leadership = Leadership::start(&cluster, wharf_cluster::LeaseOptions::new("ns", "role", "one"));
        leadership.wait_acquired().await;
        let gate = Gate::new(Some(leadership.clone()), tokio_util::sync::CancellationToken::new());
        let (metrics, leases) = (HealthMetrics::default(), [(leadership.clone(), gate)]);
        let story = async {
            let within = |wait| tokio::time::timeout(Duration::from_secs(20), wait);
            assert!(tokio::time::timeout(Duration::from_secs(2), leadership.wait_lost()).await.is_err());
            drop(served);
            within(leadership.wait_lost()).await.unwrap();
            assert_eq!(metrics.answering.get(), 0);
            let _served = serve(&socket, "d.test", &[]);
            tokio::time::timeout(Duration::from_secs(20), leadership.wait_acquired()).await.unwrap();
            assert_eq!(metrics.answering.get(), 1);
        };
        tokio::select! {
            () = watch(&driver, Duration::from_millis(500), &leases, &metrics) => {}
            () = story => {}
        }
    }
}
