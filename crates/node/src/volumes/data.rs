//! `vol_data.json`: the record of a volume next to its mount, in kubelet's format, so that a kubelet can clean up
//! after this agent and vice versa. A truncated file is rejected, never guessed at.

use std::collections::BTreeMap;

use wharf_model::csidriver::VolumeLifecycleMode;

use super::names;

/// The file's name.
pub(super) const FILE: &str = "vol_data.json";

const SPEC: &str = "specVolID";
const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const NODE: &str = "nodeName";
const ATTACHMENT: &str = "attachmentID";
const LIFECYCLE: &str = "volumeLifecycleMode";
const SE_LINUX: &str = "seLinuxMountContext";

/// The file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Data {
    /// The driver.
    pub(super) driver: String,
    /// The volume's handle.
    pub(super) handle: String,
    /// Name of the PersistentVolume or of the inline volume. Not in the record of a staged volume.
    pub(super) spec: Option<String>,
    /// The volume's lifecycle mode; absent for block and staged volumes, which are persistent.
    pub(super) lifecycle: Option<VolumeLifecycleMode>,
    /// The SELinux label it was mounted with.
    pub(super) se_linux: Option<String>,
}

/// A record that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    /// Not a flat map of strings.
    #[error("the file is truncated or not JSON (line {line}, column {column})")]
    Truncated {
        /// Position of the error.
        line: usize,
        /// Position of the error.
        column: usize,
    },
    /// A required key is missing.
    #[error("key {0} is missing")]
    MissingKey(&'static str),
}

impl Data {
    /// The file next to a staged volume's `globalmount`.
    pub(super) fn staged(&self) -> Vec<u8> {
        let mut event_text = BTreeMap::from([(DRIVER, self.driver.as_str()), (HANDLE, &self.handle)]);
        event_text.extend(self.se_linux.as_deref().map(|label| (SE_LINUX, label)));
        encode(&event_text)
    }

    /// The file next to a published volume's `mount`, or in a block volume's `data` directory.
    pub(super) fn published(&self, node: &str) -> Vec<u8> {
        let attachment = names::attachment(&self.handle, &self.driver, node);
        let mut event_text = BTreeMap::from([
            (DRIVER, self.driver.as_str()),
            (HANDLE, &self.handle),
            (NODE, node),
            (ATTACHMENT, &attachment),
        ]);
        event_text.extend(self.spec.as_deref().map(|spec| (SPEC, spec)));
        event_text.extend(self.lifecycle.map(|mode| (LIFECYCLE, mode.as_str())));
        event_text.extend(self.se_linux.as_deref().map(|label| (SE_LINUX, label)));
        encode(&event_text)
    }

    /// Parses either file; unknown keys are ignored.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let event_text: BTreeMap<String, String> = serde_json::from_slice(bytes)
            .map_err(|error| Unreadable::Truncated { line: error.line(), column: error.column() })?;
        let word = |key: &str| event_text.get(key).filter(|word| !word.is_empty()).cloned();
        Ok(Self {
            driver: word(DRIVER).ok_or(Unreadable::MissingKey(DRIVER))?,
            handle: word(HANDLE).ok_or(Unreadable::MissingKey(HANDLE))?,
            spec: word(SPEC),
            lifecycle: match word(LIFECYCLE).as_deref() {
                Some("Ephemeral") => Some(VolumeLifecycleMode::Ephemeral),
                Some(_) => Some(VolumeLifecycleMode::Persistent),
                None => None,
            },
            se_linux: word(SE_LINUX),
        })
    }
}

/// Like Go's encoder: sorted keys, trailing newline.
fn encode(event_text: &BTreeMap<&str, &str>) -> Vec<u8> {
    let mut text =
        serde_json::Value::from_iter(event_text.iter().map(|(&key, &word)| (key, word))).to_string();
    text.push('\n');
    text.into_bytes()
}

/// Reads a `vol_data.json` and writes it again, as that of a staged and of a published volume, for the fuzz targets.
#[cfg(feature = "fuzzing")]
pub fn rewrite_volume_data(bytes: &[u8]) -> Option<[Vec<u8>; 2]> {
    Data::read(bytes).ok().map(|data| [data.staged(), data.published("n1")])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data() -> Data {
        Data {
            driver: "d".into(),
            handle: "h".into(),
            spec: Some("pv1".into()),
            lifecycle: Some(VolumeLifecycleMode::Persistent),
            se_linux: None,
        }
    }

    /// kubernetes.md 1.8 "Record": the keys of both files.
    #[test]
    fn file_format_matches_kubelet() {
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
    fn encode_then_decode_round_trips() {
        for data in [
            data(),
            Data { lifecycle: Some(VolumeLifecycleMode::Ephemeral), ..data() },
            Data { lifecycle: None, ..data() },
            Data { se_linux: Some("label".into()), handle: "a\"b\n^".into(), ..data() },
        ] {
            assert_eq!(Data::read(&data.published("n")), Ok(data.clone()));
            let staged = Data { spec: None, lifecycle: None, ..data };
            assert_eq!(Data::read(&staged.staged()), Ok(staged));
        }
    }

    /// kubernetes#85280: a truncated file is rejected rather than misread.
    #[test]
    fn truncated_file_is_rejected() {
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
            assert_eq!(Data::read(text.as_bytes()), Err(Unreadable::MissingKey(lacks)), "{text}");
        }
        assert!(matches!(Data::read(b"{\"driverName\":1}"), Err(Unreadable::Truncated { .. })));
        assert!(matches!(Data::read(&[0; 64]), Err(Unreadable::Truncated { .. })));
    }
}
