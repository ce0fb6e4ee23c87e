//! Probes: exec, HTTP and TCP checks, repeated while the container runs.
//!
//! The threshold rule ([`Verdict`]) is pure: a number of equal results in a row, and only changes are reported. The
//! loop around it runs as long as the container. `check` performs a single check.

mod check;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until};
use wharf_cluster::jitter;
use wharf_container::{ContainerId, Containers};
use wharf_model::container::{Container, Probe};

pub(super) use check::http_hook;
use check::{Check, CheckResult};

/// The kind of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Startup,
    Liveness,
    Readiness,
}

impl Purpose {
    /// The kind in event messages.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }

    pub(super) fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_deref(),
            Self::Liveness => container.liveness_probe.as_deref(),
            Self::Readiness => container.readiness_probe.as_deref(),
        }
    }
}

/// How to run a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    check: Check,
    delay: Duration,
    timeout: Duration,
    period: Duration,
    successes: u32,
    failures: u32,
}

impl Plan {
    /// Whether a container has a supported probe of this kind.
    pub(super) fn is_there(purpose: Purpose, container: &Container) -> bool {
        matches!(Self::of(purpose, container), Some(Ok(_)))
    }

    /// `None` if the container has no such probe; an error names the unsupported check.
    pub(super) fn of(purpose: Purpose, container: &Container) -> Option<Result<Self, &'static str>> {
        let probe = purpose.of(container)?;
        Some(Check::of(probe, container).map(|check| Self::new(check, probe)))
    }

    fn new(check: Check, probe: &Probe) -> Self {
        let at_least = |number: Option<i32>, default: u32, least: u32| {
            number.and_then(|number| u32::try_from(number).ok()).unwrap_or(default).max(least)
        };
        let seconds = |number, default, least| Duration::from_secs(at_least(number, default, least).into());
        Self {
            check,
            delay: seconds(probe.initial_delay_seconds, 0, 0),
            timeout: seconds(probe.timeout_seconds, 1, 1),
            period: seconds(probe.period_seconds, 10, 1),
            successes: at_least(probe.success_threshold, 1, 1),
            failures: at_least(probe.failure_threshold, 3, 1),
        }
    }
}

/// State of a probe's thresholds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    known: Option<bool>,
    last: Option<bool>,
    in_a_row: u32,
}

impl Verdict {
    /// Counts a result; returns the verdict if it changed.
    pub(super) fn take(&mut self, healthy: bool, plan: &Plan) -> Option<bool> {
        self.in_a_row = if self.last == Some(healthy) { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = Some(healthy);
        let enough = if healthy { plan.successes } else { plan.failures };
        if self.in_a_row < enough || self.known == Some(healthy) {
            return None;
        }
        self.known = Some(healthy);
        Some(healthy)
    }
}

/// What a probe reports.
#[derive(Debug)]
pub(super) enum ProbeReport {
    /// A threshold was reached: success or failure.
    Verdict(bool),
    /// A single check failed.
    Unhealthy(String),
}

/// Probes until this is dropped, or until `report` returns false.
pub(super) async fn run(
    runtime: Arc<dyn Containers>,
    id: ContainerId,
    plan: Plan,
    running_for: Duration,
    report: impl Fn(ProbeReport) -> bool,
) {
    // Spread the probes of a node over time, above all after a restart.
    let spread = plan.period.mul_f64(jitter() * 0.1);
    sleep(plan.delay.saturating_sub(running_for).max(spread.min(plan.delay))).await;
    let mut verdict = Verdict::default();
    loop {
        let next = tokio::time::Instant::now() + plan.period;
        let (healthy, note) = match plan.check.run(&*runtime, &id, plan.timeout).await {
            CheckResult::Healthy => (true, None),
            CheckResult::Unhealthy(reason) => (false, Some(format!("failed: {reason}"))),
            // A check without a result does not count.
            CheckResult::Unknown(reason) => {
                if !report(ProbeReport::Unhealthy(format!("errored and resulted in unknown state: {reason}")))
                {
                    return;
                }
                sleep_until(next).await;
                continue;
            }
        };
        if let Some(note) = note
            && !report(ProbeReport::Unhealthy(note))
        {
            return;
        }
        if let Some(healthy) = verdict.take(healthy, &plan)
            && !report(ProbeReport::Verdict(healthy))
        {
            return;
        }
        sleep_until(next).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(probe: serde_json::Value) -> Option<Result<Plan, &'static str>> {
        let container = serde_json::from_value(json!({"readinessProbe": probe})).unwrap();
        Plan::of(Purpose::Readiness, &container)
    }

    fn plan(successes: i32, failures: i32) -> Plan {
        let probe = json!({
            "exec": {"command": ["true"]}, "successThreshold": successes, "failureThreshold": failures,
        });
        of(probe).unwrap().unwrap()
    }

    /// kubelet's thresholds: in a row, and only changes are reported.
    #[test]
    fn verdict_changes_after_threshold_in_a_row() {
        for (successes, failures, answers, expected) in [
            (1, 3, "+", "+"),
            (1, 3, "+++", "+.."),
            (1, 3, "--+--+", "..+..."),
            (1, 3, "---", "..-"),
            (1, 3, "----", "..-."),
            (1, 3, "+---+", "+..-+"),
            (2, 1, "-+-++", "-...+"),
            (2, 1, "++-", ".+-"),
        ] {
            let (plan, mut verdict) = (plan(successes, failures), Verdict::default());
            let reported: String = answers
                .chars()
                .map(|answer| match verdict.take(answer == '+', &plan) {
                    Some(true) => '+',
                    Some(false) => '-',
                    None => '.',
                })
                .collect();
            assert_eq!(reported, expected, "{successes} {failures} {answers}");
        }
    }

    #[test]
    fn defaults_match_kubelet() {
        assert_eq!(of(json!(null)), None);
        assert_eq!(of(json!({"grpc": {"port": 80}})), Some(Err("gRPC")));
        let usual = of(json!({"exec": {"command": ["x"]}})).unwrap().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((usual.delay, usual.timeout, usual.period), (seconds(0), seconds(1), seconds(10)));
        assert_eq!((usual.successes, usual.failures), (1, 3));
    }
}
