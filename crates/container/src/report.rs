//! Messages between the helpers and the agent.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use crate::error::StartError;

/// Why a container did not start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Failure {
    /// See [`StartError::Config`].
    Config(String),
    /// See [`StartError::Program`].
    Program(String),
    /// See [`StartError::Machine`].
    Machine {
        /// The failed step.
        step: String,
        /// The system error.
        reason: String,
    },
}

impl Failure {
    /// A failed system call.
    pub(crate) fn machine(step: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self::Machine { step: step.to_string(), reason: reason.to_string() }
    }

    /// Converts it to the public error.
    pub(crate) fn into_error(self, container: &str) -> StartError {
        match self {
            Self::Config(message) => StartError::Config(message),
            Self::Program(message) => StartError::Program(message),
            Self::Machine { step, reason } => {
                StartError::Machine { container: container.to_owned(), step, reason }
            }
        }
    }
}

/// Adds the failed step to an error.
pub(crate) trait Step<T> {
    /// `step` is what was attempted.
    fn step(self, step: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::machine(step, error))
    }
}

/// The shim's one-line message to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Started {
    /// The program is running.
    Running,
    /// The start failed, and nothing is left of it.
    Failed(Failure),
}

/// Why a program could not be executed, in the wording of container runtimes, and the code that a shell would return.
pub(crate) fn cannot_execute(program: &str, error: &io::Error) -> (i32, String) {
    let missing = error.kind() == io::ErrorKind::NotFound;
    let message = match missing {
        true if !program.contains('/') => format!("exec: {program:?}: executable file not found in $PATH"),
        true => format!("exec: {program:?}: stat {program}: no such file or directory"),
        false => format!("exec: {program:?}: {error}"),
    };
    (if missing { 127 } else { 126 }, message)
}

/// A program's exit code: its own, or 128 plus the signal number; and the signal.
pub(crate) fn code_of(status: std::process::ExitStatus) -> (i32, Option<i32>) {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => (code, None),
        (None, Some(signal)) => (128 + signal, Some(signal)),
        // Not reachable for an exited process.
        (None, None) => (255, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_errors_use_container_runtime_wording() {
        let missing = io::Error::from_raw_os_error(2);
        let denied = io::Error::from_raw_os_error(13);
        let cases = [
            ("nope", &missing, 127, "exec: \"nope\": executable file not found in $PATH"),
            ("/nope", &missing, 127, "exec: \"/nope\": stat /nope: no such file or directory"),
            ("/etc", &denied, 126, "exec: \"/etc\": Permission denied (os error 13)"),
        ];
        for (program, error, code, message) in cases {
            assert_eq!(cannot_execute(program, error), (code, message.to_owned()));
        }
    }
}
