//! What the health monitor sees of one volume, and how a driver is asked.

use wharf_csi::v1;
use wharf_csi::v1::VolumeHealthErrorType;
use wharf_model::{PersistentVolume, PersistentVolumeClaim, Time};

use crate::driver::Capabilities;

/// Which question the driver answers. Health is CSI 1.13's, conditions are what it took the place of; one question
/// for all volumes is better than one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// ControllerListVolumeHealth.
    ListHealth,
    /// ControllerGetVolumeHealth.
    GetHealth,
    /// ListVolumes, with conditions.
    ListConditions,
    /// ControllerGetVolume, with conditions.
    GetConditions,
}

impl Asks {
    /// As the driver says; `None` if it says nothing of its volumes' health.
    pub(crate) fn of(can: &Capabilities) -> Option<Self> {
        let conditions = can.volume_condition;
        match () {
            () if !can.controller_service => None,
            () if can.list_volume_health => Some(Self::ListHealth),
            () if can.get_volume_health => Some(Self::GetHealth),
            () if conditions && can.list_volumes => Some(Self::ListConditions),
            () if conditions && can.get_volume => Some(Self::GetConditions),
            () => None,
        }
    }

    /// Whether one question is for all volumes.
    pub(crate) fn lists(self) -> bool {
        matches!(self, Self::ListHealth | Self::ListConditions)
    }

    /// The RPC, for those who read about it.
    pub(crate) fn method(self) -> &'static str {
        match self {
            Self::ListHealth => "ControllerListVolumeHealth",
            Self::GetHealth => "ControllerGetVolumeHealth",
            Self::ListConditions => "ListVolumes",
            Self::GetConditions => "ControllerGetVolume",
        }
    }

    /// What follows for a volume that the driver does not list. Of health it lists only what is not well; of volumes
    /// all, so that one which is missing may be new, or gone.
    pub(crate) fn unlisted(self) -> Report {
        match self {
            Self::ListHealth => Report::Healthy,
            _ => Report::Unknown,
        }
    }
}

/// What the driver says of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Report {
    /// Nothing: it was not asked, or could not answer.
    Unknown,
    /// Nothing is wrong.
    Healthy,
    /// Something is wrong.
    Abnormal {
        /// How bad it is.
        state: State,
        /// The driver's words.
        message: String,
    },
}

/// How a volume is, for the gauges; the later, the worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// Nobody knows.
    Unknown,
    /// Nothing is wrong.
    Healthy,
    /// Something is wrong; the driver cannot say it better.
    Abnormal,
    /// It works, but not as well as it should.
    Degraded,
    /// It cannot be used.
    Inaccessible,
    /// Data is lost.
    DataLoss,
}

impl State {
    /// All of them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Unknown, Self::Healthy, Self::Abnormal, Self::Degraded, Self::Inaccessible, Self::DataLoss];

    /// The value of a label.
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
    /// Of a condition. A driver that says none says that nothing is wrong, as upstream reads it.
    pub(crate) fn of_condition(condition: Option<v1::VolumeCondition>) -> Self {
        match condition {
            Some(v1::VolumeCondition { abnormal: true, message }) => {
                Self::Abnormal { state: State::Abnormal, message }
            }
            _ => Self::Healthy,
        }
    }

    /// Of health: everything that is wrong, the worst first.
    pub(crate) fn of_health(health: &v1::VolumeHealth) -> Self {
        let mut entries: Vec<(State, String)> = health.health_statuses.iter().map(told).collect();
        entries.sort_by_key(|(state, _)| std::cmp::Reverse(*state));
        let Some((state, _)) = entries.first() else { return Self::Healthy };
        let state = *state;
        let message = entries.into_iter().map(|(_, words)| words).collect::<Vec<_>>().join("; ");
        Self::Abnormal { state, message }
    }

    /// For the gauges.
    pub(crate) fn state(&self) -> State {
        match self {
            Self::Unknown => State::Unknown,
            Self::Healthy => State::Healthy,
            Self::Abnormal { state, .. } => *state,
        }
    }
}

/// One thing that is wrong, in words.
fn told(entry: &v1::volume_health::VolumeHealthEntry) -> (State, String) {
    let (state, word) = match entry.status() {
        VolumeHealthErrorType::UnknownVolumeHealthType => (State::Abnormal, "ABNORMAL"),
        VolumeHealthErrorType::Degraded => (State::Degraded, "DEGRADED"),
        VolumeHealthErrorType::Inaccessible => (State::Inaccessible, "INACCESSIBLE"),
        VolumeHealthErrorType::DataLoss => (State::DataLoss, "DATA_LOSS"),
    };
    let parts = [word, &entry.reason, &entry.message];
    (state, parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "))
}

/// What users were last told of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    /// Nobody has looked yet what was told before we started.
    Unknown,
    /// That it is well, or nothing.
    Nothing,
    /// That something is wrong.
    Abnormal {
        /// In which words.
        message: String,
        /// When last.
        at: Time,
    },
}

/// One volume and what belongs to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    /// The volume.
    pub(crate) volume: &'a PersistentVolume,
    /// The claim that it names, if there is one of that name.
    pub(crate) claim: Option<&'a PersistentVolumeClaim>,
    /// What the driver says.
    pub(crate) report: &'a Report,
    /// What users were told.
    pub(crate) told: &'a Told,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// sidecars.md 1.6 "Needs", "Modes".
    #[test]
    fn how_drivers_are_asked() {
        let controller = Capabilities { controller_service: true, ..Capabilities::default() };
        let lists = Capabilities { list_volumes: true, ..controller };
        let gets = Capabilities { get_volume: true, ..controller };
        let both = Capabilities { volume_condition: true, get_volume: true, ..lists };
        let newer = Capabilities { get_volume_health: true, ..both };
        for (can, expected) in [
            (controller, None),
            (lists, None),
            (gets, None),
            (Capabilities { volume_condition: true, ..controller }, None),
            (Capabilities { volume_condition: true, ..gets }, Some(Asks::GetConditions)),
            (both, Some(Asks::ListConditions)),
            (newer, Some(Asks::GetHealth)),
            (Capabilities { list_volume_health: true, ..newer }, Some(Asks::ListHealth)),
            (Capabilities { controller_service: false, ..both }, None),
        ] {
            assert_eq!(Asks::of(&can), expected, "{can:?}");
        }
    }

    /// sidecars.md 1.6 "Output": the driver's words, and those of CSI 1.13 in one sentence.
    #[test]
    fn what_drivers_say() {
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
    fn absence_says_something_of_one_list_only() {
        assert_eq!(Asks::ListHealth.unlisted(), Report::Healthy);
        assert_eq!(Asks::ListConditions.unlisted(), Report::Unknown);
    }
}
