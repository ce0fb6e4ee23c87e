//! Inputs of the health monitor's rules, and the choice of the RPC that reports health.

use wharf_csi::v1;
use wharf_csi::v1::VolumeHealthErrorType;
use wharf_model::{Monotonic, PersistentVolume, PersistentVolumeClaim};

use crate::driver::Capabilities;

/// The RPC that reports health. CSI 1.13 replaced volume conditions by volume health. One list for all volumes is
/// preferred to one call per volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HealthSource {
    /// ControllerListVolumeHealth.
    ListHealth,
    /// ControllerGetVolumeHealth.
    GetHealth,
    /// ListVolumes, with conditions.
    ListConditions,
    /// ControllerGetVolume, with conditions.
    GetConditions,
}

impl HealthSource {
    /// Chooses by the driver's capabilities; `None` if it does not report health.
    pub(crate) fn from_capabilities(capabilities: &Capabilities) -> Option<Self> {
        let conditions = capabilities.volume_condition;
        match () {
            () if !capabilities.controller_service => None,
            () if capabilities.list_volume_health => Some(Self::ListHealth),
            () if capabilities.get_volume_health => Some(Self::GetHealth),
            () if conditions && capabilities.list_volumes => Some(Self::ListConditions),
            () if conditions && capabilities.get_volume => Some(Self::GetConditions),
            () => None,
        }
    }

    /// Whether one call covers all volumes.
    pub(crate) fn is_list(self) -> bool {
        matches!(self, Self::ListHealth | Self::ListConditions)
    }

    /// The RPC's name.
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::ListHealth => "ControllerListVolumeHealth",
            Self::GetHealth => "ControllerGetVolumeHealth",
            Self::ListConditions => "ListVolumes",
            Self::GetConditions => "ControllerGetVolume",
        }
    }

    /// The report on a volume that the driver does not list. ControllerListVolumeHealth lists only volumes with
    /// problems. ListVolumes lists all, so that a missing one may be new or deleted.
    pub(crate) fn report_if_unlisted(self) -> Report {
        match self {
            Self::ListHealth => Report::Healthy,
            _ => Report::Unknown,
        }
    }
}

/// The driver's report on a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// No report: the driver was not called or the call failed.
    Unknown,
    /// No problem.
    Healthy,
    /// A problem.
    Abnormal {
        /// Severity.
        state: State,
        /// The driver's message.
        message: String,
    },
}

/// State of a volume, for the gauges, in order of severity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Not known.
    Unknown,
    /// No problem.
    Healthy,
    /// A problem of unspecified severity.
    Abnormal,
    /// Usable with reduced performance or redundancy.
    Degraded,
    /// Not usable.
    Inaccessible,
    /// Data is lost.
    DataLoss,
}

impl State {
    /// All states.
    pub(crate) const ALL: [Self; 6] =
        [Self::Unknown, Self::Healthy, Self::Abnormal, Self::Degraded, Self::Inaccessible, Self::DataLoss];

    /// The label value.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Abnormal => "abnormal",
            Self::Degraded => "degraded",
            Self::Inaccessible => "inaccessible",
            Self::DataLoss => "data_loss",
        }
    }
}

impl Report {
    /// From a volume condition. No condition means healthy, as upstream reads it.
    pub(crate) fn of_condition(condition: Option<v1::VolumeCondition>) -> Self {
        match condition {
            Some(v1::VolumeCondition { abnormal: true, message }) => {
                Self::Abnormal { state: State::Abnormal, message }
            }
            _ => Self::Healthy,
        }
    }

    /// From volume health: all problems, the worst first.
    pub(crate) fn of_health(health: &v1::VolumeHealth) -> Self {
        let mut entries: Vec<(State, String)> = health.health_statuses.iter().map(describe_entry).collect();
        entries.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
        let Some((state, _)) = entries.first() else { return Self::Healthy };
        let state = *state;
        let message = entries.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("; ");
        Self::Abnormal { state, message }
    }

    /// The state for the gauges.
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Unknown => State::Unknown,
            Self::Healthy => State::Healthy,
            Self::Abnormal { state, .. } => *state,
        }
    }
}

/// The severity and text of one problem.
fn describe_entry(entry: &v1::volume_health::VolumeHealthEntry) -> (State, String) {
    let (state, label) = match entry.status() {
        VolumeHealthErrorType::UnknownVolumeHealthType => (State::Abnormal, "ABNORMAL"),
        VolumeHealthErrorType::Degraded => (State::Degraded, "DEGRADED"),
        VolumeHealthErrorType::Inaccessible => (State::Inaccessible, "INACCESSIBLE"),
        VolumeHealthErrorType::DataLoss => (State::DataLoss, "DATA_LOSS"),
    };
    let parts = [label, &entry.reason, &entry.message];
    (state, parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "))
}

/// What was last reported for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reported {
    /// Earlier events are not loaded yet.
    Unknown,
    /// Nothing, or that it is healthy.
    Nothing,
    /// A problem.
    Abnormal {
        /// The reported message.
        message: String,
        /// Time of the last report.
        at: Monotonic,
    },
}

/// One volume and the objects related to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The volume.
    pub(crate) volume: &'a PersistentVolume,
    /// The claim that it names, if one of that name exists.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// The driver's report.
    pub(crate) report: &'a Report,
    /// What was last reported.
    pub(crate) reported: &'a Reported,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.6 "Needs", "Modes".
    #[test]
    fn health_source_follows_capabilities() {
        let controller = Capabilities { controller_service: true, ..Capabilities::default() };
        let lists = Capabilities { list_volumes: true, ..controller };
        let gets = Capabilities { get_volume: true, ..controller };
        let both = Capabilities { volume_condition: true, get_volume: true, ..lists };
        let newer = Capabilities { get_volume_health: true, ..both };
        for (capabilities, expected) in [
            (controller, None),
            (lists, None),
            (gets, None),
            (Capabilities { volume_condition: true, ..controller }, None),
            (Capabilities { volume_condition: true, ..gets }, Some(HealthSource::GetConditions)),
            (both, Some(HealthSource::ListConditions)),
            (newer, Some(HealthSource::GetHealth)),
            (Capabilities { list_volume_health: true, ..newer }, Some(HealthSource::ListHealth)),
            (Capabilities { controller_service: false, ..both }, None),
        ] {
            assert_eq!(HealthSource::from_capabilities(&capabilities), expected, "{capabilities:?}");
        }
    }

    /// sidecars.md 1.6 "Output": the driver's message, and several CSI 1.13 entries joined into one.
    #[test]
    fn conditions_and_health_entries_become_reports() {
        let condition =
            |abnormal| Report::of_condition(Some(v1::VolumeCondition { abnormal, message: "m".into() }));
        assert_eq!(condition(true), Report::Abnormal { state: State::Abnormal, message: "m".into() });
        assert_eq!(condition(false), Report::Healthy);
        assert_eq!(Report::of_condition(None), Report::Healthy);

        let entry = |status: VolumeHealthErrorType, reason: &str, message: &str| {
            let (reason, message) = (reason.to_owned(), message.to_owned());
            v1::volume_health::VolumeHealthEntry { status: status.into(), reason, message }
        };
        let health =
            |health_statuses| Report::of_health(&v1::VolumeHealth { volume_id: "v".into(), health_statuses });
        use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible, UnknownVolumeHealthType};
        assert_eq!(health(vec![]), Report::Healthy);
        for (entries, state, message) in [
            (vec![entry(Degraded, "Rebuild", "slow")], State::Degraded, "DEGRADED: Rebuild: slow"),
            (vec![entry(UnknownVolumeHealthType, "", "odd")], State::Abnormal, "ABNORMAL: odd"),
            (
                vec![entry(Degraded, "A", ""), entry(DataLoss, "B", "b"), entry(Inaccessible, "", "")],
                State::DataLoss,
                "DATA_LOSS: B: b; INACCESSIBLE; DEGRADED: A",
            ),
        ] {
            assert_eq!(health(entries), Report::Abnormal { state, message: message.into() });
        }
    }

    #[test]
    fn unlisted_volume_is_healthy_only_in_health_list() {
        assert_eq!(HealthSource::ListHealth.report_if_unlisted(), Report::Healthy);
        assert_eq!(HealthSource::ListConditions.report_if_unlisted(), Report::Unknown);
    }
}
