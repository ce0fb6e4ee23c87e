//! Rules of the legacy modes: the next step, and how to merge one driver's node ID with those of other drivers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::view::{StopReason, View};

/// Attempts to remove the entry on exit: the process must not delay its exit for long.
const REMOVE_ATTEMPTS: u32 = 3;

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Read the driver's name and capabilities.
    Discover,
    /// Create the entry if it is missing.
    Ensure,
    /// Remove the entry.
    Remove,
    /// Wait until this time.
    Wait(Duration),
    /// Exit.
    End,
}

/// Decides the next step.
pub(super) fn decide(view: &View, now: Duration) -> Step {
    let due = |step| if now >= view.due { step } else { Step::Wait(view.due) };
    match view.stop_reason {
        Some(StopReason::Terminated) => Step::End,
        Some(StopReason::Interrupted)
            if view.discovered && !view.removed && view.failures < REMOVE_ATTEMPTS =>
        {
            match view.failures {
                0 => Step::Remove,
                _ => due(Step::Remove),
            }
        }
        Some(StopReason::Interrupted) => Step::End,
        None if view.discovered => due(Step::Ensure),
        None => due(Step::Discover),
    }
}

/// The annotation is malformed. It is not overwritten, because it holds other drivers' IDs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation with the drivers' node IDs is not a JSON map of strings: {0}; repair or remove it")]
pub(super) struct MalformedAnnotation(String);

/// The annotation with a driver's ID set, or removed (`None`). Returns `None` if nothing changes, and `Some(None)`
/// if the annotation is to be removed because nothing is left.
pub(super) fn with_node_id(
    annotation: Option<&str>,
    driver: &str,
    id: Option<&str>,
) -> Result<Option<Option<String>>, MalformedAnnotation> {
    let mut ids: BTreeMap<String, String> = match annotation.filter(|text| !text.is_empty()) {
        Some(text) => serde_json::from_str(text).map_err(|error| MalformedAnnotation(error.to_string()))?,
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
    fn entry_is_maintained_and_removed_on_interrupt() {
        let view = View { discovered: true, due: s(10), failures: 0, removed: false, stop_reason: None };
        let interrupted = View { stop_reason: Some(StopReason::Interrupted), ..view };
        for (view, now, step) in [
            (View { discovered: false, ..view }, s(10), Step::Discover),
            (View { discovered: false, ..view }, s(9), Step::Wait(s(10))),
            (view, s(10), Step::Ensure),
            (view, s(9), Step::Wait(s(10))),
            (interrupted, s(9), Step::Remove),
            (View { removed: true, ..interrupted }, s(9), Step::End),
            // The driver was never discovered: nothing was created.
            (View { discovered: false, ..interrupted }, s(9), Step::End),
            (View { failures: 1, ..interrupted }, s(9), Step::Wait(s(10))),
            (View { failures: 1, ..interrupted }, s(10), Step::Remove),
            (View { failures: REMOVE_ATTEMPTS, ..interrupted }, s(10), Step::End),
            (View { stop_reason: Some(StopReason::Terminated), ..view }, s(10), Step::End),
        ] {
            assert_eq!(decide(&view, now), step, "{view:?} at {now:?}");
        }
    }

    /// sidecars.md 1.7, legacy driver-registrar: `node-register` … writes the Node annotation itself.
    #[test]
    fn node_ids_of_other_drivers_are_preserved() {
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
