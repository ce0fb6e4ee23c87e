//! The messages between driver and worker: one JSON value per line, in both directions.

use std::io::{self, BufRead};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agent::AgentAccess;
use crate::mount::{MountFailure, MountPlan, Version};
use crate::share;

/// The longest line that is accepted. Responses are bounded by the page size of lists.
pub(super) const MAX_LINE: u64 = 64 << 20;

/// What a share worker serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Root {
    /// Mount an export in a private mount namespace.
    Export(MountPlan),
    /// Use a directory of this machine, for tests without a kernel NFS client.
    Directory(PathBuf),
}

/// The driver to a share or job worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ToWorker {
    /// The first message: what to open, the directory to mount it in, and the agent of the server.
    Open { root: Root, mount_dir: PathBuf, agent: Option<AgentAccess> },
    /// A request with a number that its response repeats.
    Request { id: u64, request: share::Request },
}

/// A share or job worker to the driver.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum FromWorker {
    /// The export is open; with the version that was mounted.
    Ready(Option<Version>),
    /// The export cannot be mounted or opened; the worker ends.
    Failed(MountFailure),
    /// The response to the request with this number.
    Response { id: u64, response: share::Response },
    /// A job is still making progress.
    Progress,
}

/// One line with the message.
pub(super) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    // serde_json escapes line ends within strings.
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

pub(super) fn decode<T: DeserializeOwned>(line: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(line)?)
}

/// Reads the next message; `None` at the end of the input. A line that is cut off or too long is an error.
pub(super) fn read<T: DeserializeOwned>(input: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    let mut limited = io::Read::take(&mut *input, MAX_LINE);
    if limited.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    match line.last() {
        Some(b'\n') => decode(&line).map(Some),
        _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "message without an end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_lines_and_incomplete_ones_are_refused() {
        let message = FromWorker::Failed(MountFailure::invalid("a\nb"));
        let mut lines = encode(&message).unwrap();
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 1);
        lines.extend(encode(&FromWorker::Progress).unwrap());
        let mut input = lines.as_slice();
        assert!(
            matches!(read(&mut input).unwrap(), Some(FromWorker::Failed(failure)) if failure.message == "a\nb")
        );
        assert!(matches!(read(&mut input).unwrap(), Some(FromWorker::Progress)));
        assert!(read::<FromWorker>(&mut input).unwrap().is_none());
        for bad in ["\"progress\"", "{}\n", "\n", "\"progress\" x\n", "\u{0}\n"] {
            assert!(read::<FromWorker>(&mut bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    proptest::proptest! {
        /// Any bytes result in a message or an error, never in a panic.
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = read::<FromWorker>(&mut bytes.as_slice());
        }
    }
}
