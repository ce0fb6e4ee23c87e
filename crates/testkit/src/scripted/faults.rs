//! Which calls fail: a file that a test may replace at any time.
//!
//! ```json
//! {"CreateVolume": {"code": "Unavailable", "count": 3, "when": "after"}, "*": {"delay_ms": 50}}
//! ```
//!
//! A list in the place of a fault is drawn from in its order: the next one when the count of one is reached.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

/// What happens to calls of one method.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The gRPC code, by its name in tonic ("Unavailable"), or none: then only the delay.
    pub code: Option<String>,
    /// After so many calls it is over; counted anew when the file changes.
    pub count: Option<u64>,
    /// How many of the calls, from 0 to 1; all of them by default.
    pub probability: Option<f64>,
    /// Before the effect, or after it.
    pub when: When,
    /// How much longer the call takes.
    pub delay_ms: u64,
    /// The whole driver dies, as by kill -9.
    pub die: bool,
    /// The call stands still, before its effect or after it, until the file changes. A line with its method in the file
    /// of the same name with `.held` says that it came so far.
    pub hold: bool,
}

/// What the file has for one method.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Script {
    One(Fault),
    List(Vec<Fault>),
}

/// On which side of the effect a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// The effect does not happen.
    #[default]
    Before,
    /// It happens, and the caller does not learn of it.
    After,
}

impl Fault {
    /// What the caller is told.
    pub(super) fn status(&self) -> Option<Status> {
        let code = self.code.as_deref()?;
        let known = (1..=16).map(Code::from).find(|known| format!("{known:?}") == code);
        let text = format!("told to fail {:?} the effect", self.when).to_lowercase();
        Some(known.map_or_else(
            || Status::internal(format!("the fault file names the unknown code {code}")),
            |known| Status::new(known, text),
        ))
    }
}

/// The file, and how often each fault was drawn from what it says now.
pub(super) struct Faults {
    file: Option<PathBuf>,
    drawn: Mutex<Drawn>,
}

#[derive(Default)]
struct Drawn {
    text: Vec<u8>,
    /// By the method, or the star, and the place in its list.
    counts: BTreeMap<(String, usize), u64>,
}

impl Faults {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { file, drawn: Mutex::default() }
    }

    /// The fault of this call, if it has one. A file that is missing or does not parse has none.
    pub(super) fn draw(&self, method: &str) -> Option<Fault> {
        let text = std::fs::read(self.file.as_deref()?).ok()?;
        let faults: BTreeMap<String, Script> = serde_json::from_slice(&text)
            .inspect_err(|error| eprintln!("the fault file is ignored: {error}"))
            .ok()?;
        let (name, script) = faults.get_key_value(method).or_else(|| faults.get_key_value("*"))?;
        let list = match script {
            Script::One(fault) => std::slice::from_ref(fault),
            Script::List(list) => list,
        };
        let mut drawn = self.drawn.lock().ok()?;
        if drawn.text != text {
            *drawn = Drawn { text, counts: BTreeMap::new() };
        }
        let count = |place: usize| drawn.counts.get(&(name.clone(), place)).copied().unwrap_or(0);
        let (place, fault) = list
            .iter()
            .enumerate()
            .find(|(place, fault)| fault.count.is_none_or(|most| count(*place) < most))?;
        if fault.probability.is_some_and(|probability| random() >= probability) {
            return None;
        }
        *drawn.counts.entry((name.clone(), place)).or_default() += 1;
        Some(fault.clone())
    }

    /// Tells that the call stands still, and waits until the file says something else.
    pub(super) async fn hold(&self, method: &str) {
        let Some(file) = self.file.as_deref() else { return };
        let now = || std::fs::read(file).unwrap_or_default();
        let text = now();
        let mark = file.with_extension("held");
        let marked = File::options().create(true).append(true).open(mark);
        if let Err(error) = marked.and_then(|mut mark| mark.write_all(format!("{method}\n").as_bytes())) {
            eprintln!("nobody learns that {method} stands still: {error}");
        }
        while now() == text {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// From 0 to 1.
fn random() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_over_after_its_count_and_counted_anew_when_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults");
        let faults = Faults::new(Some(file.clone()));
        assert_eq!(faults.draw("CreateVolume"), None, "no file, no fault");

        std::fs::write(&file, r#"{"CreateVolume": {"code": "Aborted", "count": 2, "when": "after"}}"#)
            .unwrap();
        let fault = faults.draw("CreateVolume").unwrap();
        assert_eq!((fault.when, fault.status().unwrap().code()), (When::After, Code::Aborted));
        assert_eq!(faults.draw("DeleteVolume"), None);
        assert!(faults.draw("CreateVolume").is_some());
        assert_eq!(faults.draw("CreateVolume"), None);

        std::fs::write(&file, r#"{"*": {"delay_ms": 5, "probability": 1.0, "count": 1}}"#).unwrap();
        let fault = faults.draw("CreateVolume").unwrap();
        assert!(fault.status().is_none());
        assert_eq!(fault.delay_ms, 5);
        assert_eq!(faults.draw("DeleteVolume"), None, "the star counts all methods together");

        std::fs::write(&file, r#"{"CreateVolume": [{"code": "Aborted", "count": 1}, {"code": "Internal"}]}"#)
            .unwrap();
        let codes: Vec<_> = (0..3).map(|_| faults.draw("CreateVolume").unwrap().code.unwrap()).collect();
        assert_eq!(codes, ["Aborted", "Internal", "Internal"], "a list is drawn from in its order");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_call_that_stands_still_says_so_and_goes_on_when_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults");
        std::fs::write(&file, r#"{"CreateVolume": {"hold": true}}"#).unwrap();
        let faults = Faults::new(Some(file.clone()));
        assert!(faults.draw("CreateVolume").unwrap().hold);
        let held = faults.hold("CreateVolume");
        tokio::pin!(held);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut held).await.is_err());
        assert_eq!(std::fs::read_to_string(dir.path().join("faults.held")).unwrap(), "CreateVolume\n");
        std::fs::write(&file, "{}").unwrap();
        held.await;
    }
}
