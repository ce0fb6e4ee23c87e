//! `vol_data.json`: what is known of a volume beside its mount, in kubelet's own words, so that either of us can take
//! down what the other has put up. Reading it guesses nothing: half a file is none.

use std::collections::BTreeMap;

use wharf_model::csidriver::LifecycleMode;

use super::names;

/// Its name.
pub(super) const FILE: &str = "vol_data.json";

const SPEC: &str = "specVolID";
const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const NODE: &str = "nodeName";
const ATTACHMENT: &str = "attachmentID";
const LIFECYCLE: &str = "volumeLifecycleMode";
const SE_LINUX: &str = "seLinuxMountContext";

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Data {
    /// The driver.
    pub(super) driver: String,
    /// The volume's handle.
    pub(super) handle: String,
    /// The PersistentVolume's name, or the inline volume's. A staged volume's file does not have it.
    pub(super) spec: Option<String>,
    /// How long the volume lives; block volumes and staged ones do not say, and live as their claim.
    pub(super) lifecycle: Option<LifecycleMode>,
    /// The SELinux label it was mounted with.
    pub(super) se_linux: Option<String>,
}

/// A file that says nothing that could be acted on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// Not a flat map of words.
    #[error("it is torn or not JSON (line {line}, column {column})")]
    Torn {
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// A map without what matters.
    #[error("it has no {0}")]
    Lacks(&'static str),
}

impl Data {
    /// The file beside a staged volume's `globalmount`.
    pub(super) fn staged(&self) -> Vec<u8> {
        let mut words = BTreeMap::from([(DRIVER, self.driver.as_str()), (HANDLE, &self.handle)]);
        words.extend(self.se_linux.as_deref().map(|label| (SE_LINUX, label)));
        encode(&words)
    }

    /// The file beside a published volume's `mount`, or in a block volume's `data`.
    pub(super) fn published(&self, node: &str) -> Vec<u8> {
        let attachment = names::attachment(&self.handle, &self.driver, node);
        let mut words = BTreeMap::from([
            (DRIVER, self.driver.as_str()),
            (HANDLE, &self.handle),
            (NODE, node),
            (ATTACHMENT, &attachment),
        ]);
        words.extend(self.spec.as_deref().map(|spec| (SPEC, spec)));
        words.extend(self.lifecycle.map(|mode| (LIFECYCLE, mode.as_str())));
        words.extend(self.se_linux.as_deref().map(|label| (SE_LINUX, label)));
        encode(&words)
    }

    /// Reads either. What it does not know it ignores.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let words: BTreeMap<String, String> = serde_json::from_slice(bytes)
            .map_err(|error| Unreadable::Torn { line: error.line(), column: error.column() })?;
        let word = |key: &str| words.get(key).filter(|word| !word.is_empty()).cloned();
        Ok(Self {
            driver: word(DRIVER).ok_or(Unreadable::Lacks(DRIVER))?,
            handle: word(HANDLE).ok_or(Unreadable::Lacks(HANDLE))?,
            spec: word(SPEC),
            lifecycle: match word(LIFECYCLE).as_deref() {
                Some("Ephemeral") => Some(LifecycleMode::Ephemeral),
                Some(_) => Some(LifecycleMode::Persistent),
                None => None,
            },
            se_linux: word(SE_LINUX),
        })
    }
}

/// As Go's encoder has it: keys in order, a line feed at the end.
fn encode(words: &BTreeMap<&str, &str>) -> Vec<u8> {
    let mut text = serde_json::Value::from_iter(words.iter().map(|(&key, &word)| (key, word))).to_string();
    text.push('\n');
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Data {
        Data {
            driver: "d".into(),
            handle: "h".into(),
            spec: Some("pv1".into()),
            lifecycle: Some(LifecycleMode::Persistent),
            se_linux: None,
        }
    }

    /// kubernetes.md 1.8 "Record": the keys of both files.
    #[test]
    fn files_are_kubelets() {
        assert_eq!(data().staged(), b"{\"driverName\":\"d\",\"volumeHandle\":\"h\"}\n");
        let attachment = names::attachment("h", "d", "n");
        let expected = format!(
            "{{\"attachmentID\":\"{attachment}\",\"driverName\":\"d\",\"nodeName\":\"n\",\"specVolID\":\"pv1\",\
             \"volumeHandle\":\"h\",\"volumeLifecycleMode\":\"Persistent\"}}\n"
        );
        assert_eq!(String::from_utf8(data().published("n")).unwrap(), expected);
        let labelled = Data { se_linux: Some("u:r:t:s0".into()), ..data() };
        assert!(
            String::from_utf8(labelled.staged()).unwrap().contains("\"seLinuxMountContext\":\"u:r:t:s0\"")
        );
    }

    #[test]
    fn what_is_written_is_read() {
        for data in [
            data(),
            Data { lifecycle: Some(LifecycleMode::Ephemeral), ..data() },
            Data { lifecycle: None, ..data() },
            Data { se_linux: Some("label".into()), handle: "a\"b\n^".into(), ..data() },
        ] {
            assert_eq!(Data::read(&data.published("n")), Ok(data.clone()));
            let staged = Data { spec: None, lifecycle: None, ..data };
            assert_eq!(Data::read(&staged.staged()), Ok(staged));
        }
    }

    /// kubernetes#85280: a torn file says nothing, rather than something wrong.
    #[test]
    fn half_a_file_is_none() {
        let whole = data().published("n");
        for end in 0..whole.len() - 2 {
            assert!(Data::read(&whole[..end]).is_err(), "{end}");
        }
        for (text, lacks) in [
            ("{}", DRIVER),
            (r#"{"driverName":"d"}"#, HANDLE),
            (r#"{"driverName":"d","volumeHandle":""}"#, HANDLE),
            (r#"{"driverName":"","volumeHandle":"h"}"#, DRIVER),
        ] {
            assert_eq!(Data::read(text.as_bytes()), Err(Unreadable::Lacks(lacks)), "{text}");
        }
        assert!(matches!(Data::read(b"{\"driverName\":1}"), Err(Unreadable::Torn { .. })));
        assert!(matches!(Data::read(&[0; 64]), Err(Unreadable::Torn { .. })));
    }
}
