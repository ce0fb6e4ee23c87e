//! The rules: whether users are told something of a volume, and when the driver is asked.

use std::collections::HashSet;
use std::time::Duration;

use wharf_model::volume::VolumePhase;
use wharf_model::{PersistentVolume, Time};

use super::view::{Report, Told, View};

/// Events are thrown away after a while (an hour, if nobody chose another time): what is still wrong is said again.
pub(crate) const REPEAT: Duration = Duration::from_secs(600);
/// The shortest pause between two questions to the driver, or two events: fifty a second.
pub(crate) const GAP: Duration = Duration::from_millis(20);

/// A list that is longer never ends: of pages of a hundred, it has a million volumes.
const MOST_PAGES: usize = 10_000;

/// The way through a driver's list.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    seen: HashSet<String>,
}

/// Why a list does not end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Endless {
    /// The driver goes round in a circle.
    #[error("gives the same pages for ever: next_token is {0:?} again")]
    Again(String),
    /// It goes on and on.
    #[error("has more than {MOST_PAGES} pages")]
    TooMany,
}

impl Pages {
    /// The token of the page after this one, if there is one.
    pub(crate) fn after(&mut self, next_token: String) -> Result<Option<String>, Endless> {
        match next_token {
            token if token.is_empty() => Ok(None),
            token if self.seen.contains(&token) => Err(Endless::Again(token)),
            _ if self.seen.len() + 1 >= MOST_PAGES => Err(Endless::TooMany),
            token => {
                self.seen.insert(token.clone());
                Ok(Some(token))
            }
        }
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    Leave(Why),
    /// Tell the claim's users what is wrong.
    Warn {
        /// In the driver's words.
        message: String,
    },
    /// Tell them that nothing is wrong any more.
    Recover,
}

/// Why nothing is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// There is no claim to tell it on, or it is not this volume's.
    NoClaim,
    /// The driver did not say anything.
    NothingSaid,
    /// Nothing is wrong, and nothing else was told.
    Well,
    /// Nothing is wrong, and nobody knows yet what was told before.
    UnknownPast,
    /// It was told already.
    ToldAlready,
}

/// Whether the driver is asked about a volume: it is a claim's, and stays one's.
pub(crate) fn is_watched(volume: &PersistentVolume, driver: &str) -> bool {
    volume.is_of(driver)
        && volume.status.phase == VolumePhase::Bound
        && !volume.metadata.is_deleting()
        && volume.spec.csi.as_ref().is_some_and(|csi| !csi.volume_handle.is_empty())
}

/// Decides.
pub(crate) fn decide(view: &View<'_>, now: Time) -> Step {
    // By its identity: another claim of that name has nothing to do with this volume.
    if !view.claim.is_some_and(|claim| view.volume.is_bound_to(&claim.metadata)) {
        return Step::Leave(Why::NoClaim);
    }
    match (view.report, view.told) {
        (Report::Unknown, _) => Step::Leave(Why::NothingSaid),
        (Report::Abnormal { message, .. }, Told::Abnormal { message: told, at })
            if message == told && now < at.plus(REPEAT) =>
        {
            Step::Leave(Why::ToldAlready)
        }
        (Report::Abnormal { message, .. }, _) => Step::Warn { message: message.clone() },
        (Report::Healthy, Told::Abnormal { .. }) => Step::Recover,
        (Report::Healthy, Told::Nothing) => Step::Leave(Why::Well),
        // Had something been told, we would take it back too early or never: first look.
        (Report::Healthy, Told::Unknown) => Step::Leave(Why::UnknownPast),
    }
}

/// The pause between two volumes, so that a pass fills its interval and never outruns the driver.
pub(crate) fn gap(interval: Duration, volumes: usize) -> Duration {
    let volumes = u32::try_from(volumes).unwrap_or(u32::MAX).max(1);
    (interval / volumes).max(GAP)
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
    fn volumes_that_are_asked_about() {
        assert!(is_watched(&volume(|_| {}), "d"));
        for (row, other) in [
            ("phase", volume(|v| v["status"]["phase"] = json!("Released"))),
            ("driver", volume(|v| v["spec"]["csi"]["driver"] = json!("e"))),
            ("no csi", volume(|v| v["spec"]["csi"] = json!(null))),
            ("no handle", volume(|v| v["spec"]["csi"]["volumeHandle"] = json!(""))),
            ("deleting", volume(|v| v["metadata"]["deletionTimestamp"] = json!("2026-11-15T10:20:30Z"))),
        ] {
            assert!(!is_watched(&other, "d"), "{row}");
        }
    }

    /// sidecars.md 1.6 "Output": abnormal again when it is new or old enough, normal once and only after abnormal,
    /// also if that was told before we started.
    #[test]
    fn what_is_told() {
        let at = Time(1_000_000);
        let abnormal = |message: &str| Report::Abnormal { state: State::Abnormal, message: message.into() };
        let told = |message: &str| Told::Abnormal { message: message.into(), at };
        let warn = |message: &str| Step::Warn { message: message.into() };
        let (soon, late) = (at.plus(REPEAT - Duration::from_millis(1)), at.plus(REPEAT));
        for (report, told, now, expected) in [
            (Report::Unknown, Told::Unknown, soon, Step::Leave(Why::NothingSaid)),
            (Report::Unknown, told("m"), late, Step::Leave(Why::NothingSaid)),
            (abnormal("m"), Told::Unknown, soon, warn("m")),
            (abnormal("m"), Told::Nothing, soon, warn("m")),
            (abnormal("m"), told("m"), soon, Step::Leave(Why::ToldAlready)),
            (abnormal("m"), told("m"), late, warn("m")),
            (abnormal("n"), told("m"), soon, warn("n")),
            (Report::Healthy, Told::Unknown, soon, Step::Leave(Why::UnknownPast)),
            (Report::Healthy, Told::Nothing, late, Step::Leave(Why::Well)),
            (Report::Healthy, told("m"), soon, Step::Recover),
        ] {
            let (volume, claim) = (volume(|_| {}), claim("u"));
            let view = View { volume: &volume, claim: Some(&claim), report: &report, told: &told };
            assert_eq!(decide(&view, now), expected, "{report:?} {told:?}");
            for nobody in [None, Some(&super::tests::claim("another"))] {
                let view = View { claim: nobody, ..view };
                assert_eq!(decide(&view, now), Step::Leave(Why::NoClaim), "{report:?} {told:?}");
            }
        }
    }

    #[test]
    fn a_list_ends() {
        let mut pages = Pages::default();
        for token in ["a", "b"] {
            assert_eq!(pages.after(token.to_owned()), Ok(Some(token.to_owned())));
        }
        // In turns, not only at once.
        for token in ["a", "b"] {
            assert_eq!(pages.after(token.to_owned()), Err(Endless::Again(token.to_owned())));
        }
        assert_eq!(pages.after(String::new()), Ok(None));
        let mut pages = Pages::default();
        let asked = (1..).find_map(|page| pages.after(page.to_string()).err().map(|why| (page, why)));
        assert_eq!(asked, Some((MOST_PAGES, Endless::TooMany)));
    }

    /// sidecars.md 1.6 "Modes": a pass takes its interval, and however many volumes there are, no more than fifty
    /// questions a second are asked.
    #[test]
    fn questions_are_spread() {
        let minute = Duration::from_secs(60);
        for (volumes, expected) in [
            (0, minute),
            (1, minute),
            (60, Duration::from_secs(1)),
            (3_000, GAP),
            (100_000, GAP),
            (usize::MAX, GAP),
        ] {
            assert_eq!(gap(minute, volumes), expected, "{volumes}");
        }
    }
}
