//! Each call as a line of JSON, whole even when several processes write to one file.

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
    /// When it was answered, in milliseconds since 1970.
    pub time_ms: u64,
    /// How long it took.
    pub took_ms: u64,
    /// The id of the node whose process answered; none for a controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The method, as in the contract.
    pub method: String,
    /// The gRPC code by its name in tonic, or "died", or "abandoned" by the caller before there was one.
    pub code: String,
    /// What the caller was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What the caller must not have done.
    #[serde(default, rename = "VIOLATION", skip_serializing_if = "Option::is_none")]
    pub violation: Option<String>,
    /// What was asked: `volume`, `name`, `node`, `bytes`, `path` and so on, as the method has them.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

impl Entry {
    /// A field of the request, if it is a text.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }
}

/// The calls in a log, oldest first. The last line may be half a line, of a driver that died.
pub fn entries(log: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What callers must not have done: empty, if all is well.
pub fn violations(log: &Path) -> Vec<Entry> {
    entries(log).into_iter().filter(|entry| entry.violation.is_some()).collect()
}

/// The file, open for appending.
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
        began: Instant,
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
            took_ms: millis(began.elapsed().as_millis()),
            at: self.at.clone(),
            method: call.method.to_owned(),
            code: code.to_owned(),
            violation: message.clone().filter(|_| violation),
            message,
            fields: call.fields.clone(),
        };
        // In one write: lines of other processes come before it or after it.
        let written = serde_json::to_vec(&entry).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)
        });
        if let Err(error) = written {
            eprintln!("the log cannot be written: {error}");
        }
    }
}

fn millis(time: u128) -> u64 {
    u64::try_from(time).unwrap_or(u64::MAX)
}
