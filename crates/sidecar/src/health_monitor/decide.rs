//! Rules: which event to record for a volume, and when to call the driver.

use std::time::Duration;

use wharf_model::volume::VolumePhase;
use wharf_model::{Monotonic, PersistentVolume};

use super::view::{Report, Reported, View};

/// Events expire, by default after an hour: problems that persist are reported again after this time.
pub(crate) const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Minimum interval between two driver calls or two events: 50 per second.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// The next step for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing to do.
    Idle(NoEventReason),
    /// Report a problem on the claim.
    Warn {
        /// The driver's message.
        message: String,
    },
    /// Report that the volume recovered.
    Recover,
}

/// Why no event is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoEventReason {
    /// The claim does not exist or is not bound to this volume.
    NoClaim,
    /// The driver reported nothing.
    Unknown,
    /// The volume is healthy and no problem was reported.
    Healthy,
    /// The volume is healthy, and it is not known yet what was reported before.
    HistoryNotLoaded,
    /// The problem was reported already.
    AlreadyReported,
}

/// Whether to check a volume: it is bound and not in deletion.
pub(crate) fn is_monitored(volume: &PersistentVolume, driver: &str) -> bool {
    volume.is_for_driver(driver)
        && volume.status.phase == VolumePhase::Bound
        && !volume.metadata.is_deleting()
        && volume.spec.csi.as_ref().is_some_and(|csi| !csi.volume_handle.is_empty())
}

/// Decides the next step.
pub(crate) fn decide(view: &View<'_>, now: Monotonic) -> Step {
    // By UID: another claim of that name is unrelated to this volume.
    if !view.claim.is_some_and(|claim| view.volume.is_bound_to(&claim.metadata)) {
        return Step::Idle(NoEventReason::NoClaim);
    }
    match (view.report, view.reported) {
        (Report::Unknown, _) => Step::Idle(NoEventReason::Unknown),
        (Report::Abnormal { message, .. }, Reported::Abnormal { message: reported, at })
            if message == reported && now < at.plus(REPEAT_AFTER) =>
        {
            Step::Idle(NoEventReason::AlreadyReported)
        }
        (Report::Abnormal { message, .. }, _) => Step::Warn { message: message.clone() },
        (Report::Healthy, Reported::Abnormal { .. }) => Step::Recover,
        (Report::Healthy, Reported::Nothing) => Step::Idle(NoEventReason::Healthy),
        // A recovery would be reported too early or never: load the history first.
        (Report::Healthy, Reported::Unknown) => Step::Idle(NoEventReason::HistoryNotLoaded),
    }
}

/// The interval between two volumes, so that a pass fills its interval without exceeding the rate limit.
pub(crate) fn volume_interval(interval: Duration, volumes: usize) -> Duration {
    let volumes = u32::try_from(volumes).unwrap_or(u32::MAX).max(1);
    (interval / volumes).max(MIN_INTERVAL)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wharf_model::PersistentVolumeClaim;

    use super::super::view::State;
    use super::*;

    fn volume(edit: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut volume = json!({
            "metadata": {"name": "pv1"},
            "spec": {
                "csi": {"driver": "d", "volumeHandle": "h"},
                "claimRef": {"namespace": "shop", "name": "data", "uid": "u"},
            },
            "status": {"phase": "Bound"},
        });
        edit(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    fn claim(uid: &str) -> PersistentVolumeClaim {
        let metadata = json!({"name": "data", "namespace": "shop", "uid": uid});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// sidecars.md 1.6 "Modes": bound volumes of this driver.
    #[test]
    fn only_bound_volumes_of_the_driver_are_monitored() {
        assert!(is_monitored(&volume(|_| {}), "d"));
        for (row, other) in [
            ("phase", volume(|v| v["status"]["phase"] = json!("Released"))),
            ("driver", volume(|v| v["spec"]["csi"]["driver"] = json!("e"))),
            ("no csi", volume(|v| v["spec"]["csi"] = json!(null))),
            ("no handle", volume(|v| v["spec"]["csi"]["volumeHandle"] = json!(""))),
            ("deleting", volume(|v| v["metadata"]["deletionTimestamp"] = json!("2026-11-15T10:20:30Z"))),
        ] {
            assert!(!is_monitored(&other, "d"), "{row}");
        }
    }

    /// sidecars.md 1.6 "Output": abnormal when it is new or old enough, normal once and only after abnormal, also
    /// if that was reported before this start.
    #[test]
    fn abnormal_repeats_after_a_while_and_recovery_is_reported_once() {
        let at = Monotonic(1_000_000);
        let abnormal = |message: &str| Report::Abnormal { state: State::Abnormal, message: message.into() };
        let reported = |message: &str| Reported::Abnormal { message: message.into(), at };
        let warn = |message: &str| Step::Warn { message: message.into() };
        let (soon, late) = (at.plus(REPEAT_AFTER - Duration::from_millis(1)), at.plus(REPEAT_AFTER));
        for (report, reported, now, expected) in [
            (Report::Unknown, Reported::Unknown, soon, Step::Idle(NoEventReason::Unknown)),
            (Report::Unknown, reported("m"), late, Step::Idle(NoEventReason::Unknown)),
            (abnormal("m"), Reported::Unknown, soon, warn("m")),
            (abnormal("m"), Reported::Nothing, soon, warn("m")),
            (abnormal("m"), reported("m"), soon, Step::Idle(NoEventReason::AlreadyReported)),
            (abnormal("m"), reported("m"), late, warn("m")),
            (abnormal("n"), reported("m"), soon, warn("n")),
            (Report::Healthy, Reported::Unknown, soon, Step::Idle(NoEventReason::HistoryNotLoaded)),
            (Report::Healthy, Reported::Nothing, late, Step::Idle(NoEventReason::Healthy)),
            (Report::Healthy, reported("m"), soon, Step::Recover),
        ] {
            let (volume, claim) = (volume(|_| {}), claim("u"));
            let view = View { volume: &volume, claim: Some(&claim), report: &report, reported: &reported };
            assert_eq!(decide(&view, now), expected, "{report:?} {reported:?}");
            for other in [None, Some(&super::tests::claim("another"))] {
                let view = View { claim: other, ..view };
                assert_eq!(decide(&view, now), Step::Idle(NoEventReason::NoClaim), "{report:?} {reported:?}");
            }
        }
    }

    /// sidecars.md 1.6 "Modes": a pass takes its interval, and regardless of the number of volumes there are at
    /// most 50 calls per second.
    #[test]
    fn calls_are_spread_over_interval() {
        let minute = Duration::from_secs(60);
        for (volumes, expected) in [
            (0, minute),
            (1, minute),
            (60, Duration::from_secs(1)),
            (3_000, MIN_INTERVAL),
            (100_000, MIN_INTERVAL),
            (usize::MAX, MIN_INTERVAL),
        ] {
            assert_eq!(volume_interval(minute, volumes), expected, "{volumes}");
        }
    }
}
