//! Faults: a file that selects which calls fail. A test may replace it at any time.
//!
//! ```json
//! {"CreateVolume": {"code": "Unavailable", "count": 3, "when": "after"}, "*": {"delay_ms": 50}}
//! ```
//!
//! A method may have a list of faults: they apply in order, each until its count is reached.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

/// The fault of one method.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// The gRPC code by its name in tonic ("Unavailable"). Without it the fault only delays or holds the call.
    pub code: Option<String>,
    /// The number of calls that the fault applies to; counting restarts when the file changes.
    pub count: Option<u64>,
    /// The fraction of calls that fail, from 0 to 1 [default: all].
    pub probability: Option<f64>,
    /// Whether the call fails before or after its effect.
    pub when: When,
    /// Additional delay.
    pub delay_ms: u64,
    /// The driver process exits, as with kill -9.
    pub die: bool,
    /// The call blocks, before or after its effect, until the file changes. A line with its method in the file of
    /// the same name with the extension `.held` marks that the call has reached this point.
    pub hold: bool,
}

/// The faults of one method in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum FaultSpec {
    One(Fault),
    List(Vec<Fault>),
}

/// When a fault applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Before the effect, which does not happen.
    #[default]
    Before,
    /// After the effect: it happens, but the caller receives an error.
    After,
}

impl Fault {
    /// The error that the caller receives.
    pub(super) fn status(&self) -> Option<Status> {
        let code = self.code.as_deref()?;
        let known = (1..=16).map(Code::from).find(|known| format!("{known:?}") == code);
        let text = format!("scripted failure {:?} the effect", self.when).to_lowercase();
        Some(known.map_or_else(
            || Status::internal(format!("the fault file names the unknown code {code}")),
            |known| Status::new(known, text),
        ))
    }
}

/// The fault file, and how often each fault of its current content was applied.
pub(super) struct Faults {
    file: Option<PathBuf>,
    counted: Mutex<FaultCounts>,
}

#[derive(Default)]
struct FaultCounts {
    text: Vec<u8>,
    /// By method (or `*`) and index in its list.
    counts: BTreeMap<(String, usize), u64>,
}

impl Faults {
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { file, counted: Mutex::default() }
    }

    /// The fault of this call, if any. A missing or invalid file has no faults.
    pub(super) fn next_fault(&self, method: &str) -> Option<Fault> {
        let text = std::fs::read(self.file.as_deref()?).ok()?;
        let faults: BTreeMap<String, FaultSpec> = serde_json::from_slice(&text)
            .inspect_err(|error| eprintln!("scripted-driver: ignoring the invalid fault file: {error}"))
            .ok()?;
        let (name, script) = faults.get_key_value(method).or_else(|| faults.get_key_value("*"))?;
        let list = match script {
            FaultSpec::One(fault) => std::slice::from_ref(fault),
            FaultSpec::List(list) => list,
        };
        let mut counted = self.counted.lock().ok()?;
        if counted.text != text {
            *counted = FaultCounts { text, counts: BTreeMap::new() };
        }
        let count = |place: usize| counted.counts.get(&(name.clone(), place)).copied().unwrap_or(0);
        let (place, fault) = list
            .iter()
            .enumerate()
            .find(|(place, fault)| fault.count.is_none_or(|most| count(*place) < most))?;
        if fault.probability.is_some_and(|probability| random() >= probability) {
            return None;
        }
        *counted.counts.entry((name.clone(), place)).or_default() += 1;
        Some(fault.clone())
    }

    /// Marks the call as held and waits until the file changes.
    pub(super) async fn hold(&self, method: &str) {
        let Some(file) = self.file.as_deref() else { return };
        let now = || std::fs::read(file).unwrap_or_default();
        let text = now();
        let mark = file.with_extension("held");
        let marked = File::options().create(true).append(true).open(mark);
        if let Err(error) = marked.and_then(|mut mark| mark.write_all(format!("{method}\n").as_bytes())) {
            eprintln!("scripted-driver: failed to mark {method} as held: {error}");
        }
        while now() == text {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A random number from 0 to 1.
fn random() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_stops_after_count_and_restarts_when_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults");
        let faults = Faults::new(Some(file.clone()));
        assert_eq!(faults.next_fault("CreateVolume"), None, "there is no fault file");

        std::fs::write(&file, r#"{"CreateVolume": {"code": "Aborted", "count": 2, "when": "after"}}"#)
            .unwrap();
        let fault = faults.next_fault("CreateVolume").unwrap();
        assert_eq!((fault.when, fault.status().unwrap().code()), (When::After, Code::Aborted));
        assert_eq!(faults.next_fault("DeleteVolume"), None);
        assert!(faults.next_fault("CreateVolume").is_some());
        assert_eq!(faults.next_fault("CreateVolume"), None);

        std::fs::write(&file, r#"{"*": {"delay_ms": 5, "probability": 1.0, "count": 1}}"#).unwrap();
        let fault = faults.next_fault("CreateVolume").unwrap();
        assert!(fault.status().is_none());
        assert_eq!(fault.delay_ms, 5);
        assert_eq!(faults.next_fault("DeleteVolume"), None, "the count of * covers all methods");

        std::fs::write(&file, r#"{"CreateVolume": [{"code": "Aborted", "count": 1}, {"code": "Internal"}]}"#)
            .unwrap();
        let codes: Vec<_> =
            (0..3).map(|_| faults.next_fault("CreateVolume").unwrap().code.unwrap()).collect();
        assert_eq!(codes, ["Aborted", "Internal", "Internal"], "a list applies in order");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn held_call_is_marked_and_resumes_when_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("faults");
        std::fs::write(&file, r#"{"CreateVolume": {"hold": true}}"#).unwrap();
        let faults = Faults::new(Some(file.clone()));
        assert!(faults.next_fault("CreateVolume").unwrap().hold);
        let held = faults.hold("CreateVolume");
        tokio::pin!(held);
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut held).await.is_err());
        assert_eq!(std::fs::read_to_string(dir.path().join("faults.held")).unwrap(), "CreateVolume\n");
        std::fs::write(&file, "{}").unwrap();
        held.await;
    }
}
