//! The call log: one line of JSON per call, written atomically even if several processes share the file.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::Call;

/// One call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Time of the response, in milliseconds since 1970.
    pub time_ms: u64,
    /// Duration in milliseconds.
    pub took_ms: u64,
    /// The ID of the node whose process served the call; `None` for a controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The CSI method.
    pub method: String,
    /// The gRPC code by its name in tonic, "died" if the driver crashed, or "abandoned" if the caller cancelled the
    /// call.
    pub code: String,
    /// The error message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The violation, if the caller must not have made this call.
    #[serde(default, rename = "VIOLATION", skip_serializing_if = "Option::is_none")]
    pub violation: Option<String>,
    /// Fields of the request: `volume`, `name`, `node`, `bytes`, `path` and so on, depending on the method.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Entry {
    /// A field of the request, if it is a string.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }
}

/// The calls in a log, oldest first. The last line may be incomplete if the driver crashed.
pub fn entries(log: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// All calls that violated the CSI contract.
pub fn violations(log: &Path) -> Vec<Entry> {
    entries(log).into_iter().filter(|entry| entry.violation.is_some()).collect()
}

/// The log file, open for appending.
pub(super) struct Log {
    file: Option<File>,
    at: Option<String>,
}

impl Log {
    pub(super) fn open(file: Option<&Path>, at: Option<&str>) -> io::Result<Self> {
        let file = file.map(|file| File::options().create(true).append(true).open(file)).transpose()?;
        Ok(Self { file, at: at.map(str::to_owned) })
    }

    pub(super) fn write(
        &self,
        call: &Call,
        started: Instant,
        code: &str,
        message: Option<&str>,
        violation: bool,
    ) {
        let Some(mut file) = self.file.as_ref() else {
            return;
        };
        let message = message.map(str::to_owned);
        let entry = Entry {
            time_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| millis(time.as_millis())),
            took_ms: millis(started.elapsed().as_millis()),
            at: self.at.clone(),
            method: call.method.to_owned(),
            code: code.to_owned(),
            violation: message.clone().filter(|_| violation),
            message,
            fields: call.fields.clone(),
        };
        // A single write: lines of several processes do not mix.
        let written = serde_json::to_vec(&entry).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)
        });
        if let Err(error) = written {
            eprintln!("scripted-driver: failed to write the call log: {error}");
        }
    }
}

fn millis(time: u128) -> u64 {
    u64::try_from(time).unwrap_or(u64::MAX)
}
