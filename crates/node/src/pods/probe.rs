//! Probes: a program in the container, a page or a port of it says again and again how it is.
//!
//! The rule ([`Verdict`]) is pure: so many in a row, and only a change counts. The loop around it lives as long as the
//! container's life. `check` is one question.

mod check;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, sleep_until};
use wharf_cluster::jitter;
use wharf_model::whole::container::{Container, Probe};

pub(super) use check::knock;
use check::{Answer, Check};

use crate::containers::Containers;
use crate::runtime::ContainerId;

/// What a probe is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Startup,
    Liveness,
    Readiness,
}

impl Purpose {
    /// As events begin.
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

/// How a probe is done.
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
    /// Whether a container has a probe for this that we ask.
    pub(super) fn is_there(purpose: Purpose, container: &Container) -> bool {
        matches!(Self::of(purpose, container), Some(Ok(_)))
    }

    /// None if the container has no such probe; an error says what is not asked here.
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

/// What is known by a probe's answers so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    known: Option<bool>,
    last: Option<bool>,
    in_a_row: u32,
}

impl Verdict {
    /// Takes an answer; gives the verdict if it is a new one.
    pub(super) fn take(&mut self, well: bool, plan: &Plan) -> Option<bool> {
        self.in_a_row = if self.last == Some(well) { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = Some(well);
        let enough = if well { plan.successes } else { plan.failures };
        if self.in_a_row < enough || self.known == Some(well) {
            return None;
        }
        self.known = Some(well);
        Some(well)
    }
}

/// What a probe has to tell.
#[derive(Debug)]
pub(super) enum Said {
    /// It is well, or not, for so many times in a row.
    Verdict(bool),
    /// It was not well this time.
    Unhealthy(String),
}

/// Asks until this is dropped, or until `tell` says that it is enough.
pub(super) async fn ask(
    runtime: Arc<dyn Containers>,
    id: ContainerId,
    plan: Plan,
    running_for: Duration,
    tell: impl Fn(Said) -> bool,
) {
    // Not all probes of a node at the same moment, above all after a restart.
    let spread = plan.period.mul_f64(jitter() * 0.1);
    sleep(plan.delay.saturating_sub(running_for).max(spread.min(plan.delay))).await;
    let mut verdict = Verdict::default();
    loop {
        let next = tokio::time::Instant::now() + plan.period;
        let (well, note) = match plan.check.ask(&*runtime, &id, plan.timeout).await {
            Answer::Well => (true, None),
            Answer::Unwell(why) => (false, Some(format!("failed: {why}"))),
            // No answer is no verdict.
            Answer::Unknown(why) => {
                if !tell(Said::Unhealthy(format!("errored and resulted in unknown state: {why}"))) {
                    return;
                }
                sleep_until(next).await;
                continue;
            }
        };
        if let Some(note) = note
            && !tell(Said::Unhealthy(note))
        {
            return;
        }
        if let Some(well) = verdict.take(well, &plan)
            && !tell(Said::Verdict(well))
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

    /// kubelet's thresholds: in a row, and only changes are told.
    #[test]
    fn verdicts() {
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
            let told: String = answers
                .chars()
                .map(|answer| match verdict.take(answer == '+', &plan) {
                    Some(true) => '+',
                    Some(false) => '-',
                    None => '.',
                })
                .collect();
            assert_eq!(told, expected, "{successes} {failures} {answers}");
        }
    }

    #[test]
    fn plans() {
        assert_eq!(of(json!(null)), None);
        assert_eq!(of(json!({"grpc": {"port": 80}})), Some(Err("gRPC")));
        let usual = of(json!({"exec": {"command": ["x"]}})).unwrap().unwrap();
        let seconds = Duration::from_secs;
        assert_eq!((usual.delay, usual.timeout, usual.period), (seconds(0), seconds(1), seconds(10)));
        assert_eq!((usual.successes, usual.failures), (1, 3));
    }
}
