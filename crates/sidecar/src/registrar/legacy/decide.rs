//! The rules of the old modes: what to do next, and how one driver's id joins those of others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::view::{Leaving, View};

/// Attempts to take it away at the end: nobody waits for us for long.
const FAREWELLS: u32 = 3;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask the driver.
    Ask,
    /// Make sure that it is there.
    Put,
    /// Take it away.
    Remove,
    /// Nothing until then.
    Wait(Duration),
    /// That was all.
    End,
}

/// What to do next.
pub(super) fn decide(view: &View, now: Duration) -> Step {
    let due = |step| if now >= view.due { step } else { Step::Wait(view.due) };
    match view.leaving {
        Some(Leaving::Terminated) => Step::End,
        Some(Leaving::Interrupted) if view.known && !view.removed && view.failures < FAREWELLS => {
            match view.failures {
                0 => Step::Remove,
                _ => due(Step::Remove),
            }
        }
        Some(Leaving::Interrupted) => Step::End,
        None if view.known => due(Step::Put),
        None => due(Step::Ask),
    }
}

/// The annotation is not what it should be. It is left alone: other drivers' ids are in it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("its annotation of drivers' ids is not a map of texts: {0}; repair or remove it")]
pub(super) struct Malformed(String);

/// The annotation with a driver's id in it, or without (`None`); no answer if it is so already. The outer value of
/// the answer is `None` when nothing is left and the annotation goes.
pub(super) fn with_node_id(
    annotation: Option<&str>,
    driver: &str,
    id: Option<&str>,
) -> Result<Option<Option<String>>, Malformed> {
    let mut ids: BTreeMap<String, String> = match annotation.filter(|text| !text.is_empty()) {
        Some(text) => serde_json::from_str(text).map_err(|error| Malformed(error.to_string()))?,
        None => BTreeMap::new(),
    };
    if ids.get(driver).map(String::as_str) == id {
        return Ok(None);
    }
    match id {
        Some(id) => _ = ids.insert(driver.to_owned(), id.to_owned()),
        None => _ = ids.remove(driver),
    }
    Ok(Some((!ids.is_empty()).then(|| serde_json::json!(ids).to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// sidecars.md 1.7, legacy driver-registrar: `kubernetes-register` looks again and re-creates, deletes when
    /// interrupted.
    #[test]
    fn it_is_kept_until_the_end_and_taken_away_when_interrupted() {
        let view = View { known: true, due: s(10), failures: 0, removed: false, leaving: None };
        let interrupted = View { leaving: Some(Leaving::Interrupted), ..view };
        for (view, now, step) in [
            (View { known: false, ..view }, s(10), Step::Ask),
            (View { known: false, ..view }, s(9), Step::Wait(s(10))),
            (view, s(10), Step::Put),
            (view, s(9), Step::Wait(s(10))),
            (interrupted, s(9), Step::Remove),
            (View { removed: true, ..interrupted }, s(9), Step::End),
            // Nothing was made by us, or anybody we know of.
            (View { known: false, ..interrupted }, s(9), Step::End),
            (View { failures: 1, ..interrupted }, s(9), Step::Wait(s(10))),
            (View { failures: 1, ..interrupted }, s(10), Step::Remove),
            (View { failures: FAREWELLS, ..interrupted }, s(10), Step::End),
            (View { leaving: Some(Leaving::Terminated), ..view }, s(10), Step::End),
        ] {
            assert_eq!(decide(&view, now), step, "{view:?} at {now:?}");
        }
    }

    /// sidecars.md 1.7, legacy driver-registrar: `node-register` … writes the Node annotation itself.
    #[test]
    fn ids_of_other_drivers_stay() {
        let change = |annotation, id| with_node_id(annotation, "d", id).expect("a map");
        let text = |text: &str| Some(Some(text.to_owned()));
        for (annotation, id, expected) in [
            (None, Some("n1"), text(r#"{"d":"n1"}"#)),
            (Some(""), Some("n1"), text(r#"{"d":"n1"}"#)),
            (Some("{}"), Some("n1"), text(r#"{"d":"n1"}"#)),
            (Some(r#"{"d":"n1"}"#), Some("n1"), None),
            (Some(r#"{"d":"n1"}"#), Some("n2"), text(r#"{"d":"n2"}"#)),
            (Some(r#"{"e":"x","d":"n1"}"#), Some("n2"), text(r#"{"d":"n2","e":"x"}"#)),
            (Some(r#"{"e":"x"}"#), Some("n1"), text(r#"{"d":"n1","e":"x"}"#)),
            (Some(r#"{"e":"x","d":"n1"}"#), None, text(r#"{"e":"x"}"#)),
            (Some(r#"{"d":"n1"}"#), None, Some(None)),
            (Some(r#"{"e":"x"}"#), None, None),
            (None, None, None),
        ] {
            assert_eq!(change(annotation, id), expected, "{annotation:?} {id:?}");
        }
        for annotation in ["n1", "[]", r#"{"d":1}"#] {
            with_node_id(Some(annotation), "d", Some("n1")).expect_err(annotation);
        }
    }
}
