//! Copies by the agent beside the NFS server: on its own file system, without the network, and with all attributes.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::During as _;
use super::{ErrorKind, Share, ShareError};
use crate::agent::{AgentError, AgentErrorKind, Answer, Call, CopyStatus, Operation, Tree};
use crate::copy::{CopyReport, Progress};

/// The first and the longest wait between two questions.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long an agent may not answer while it copies. A little less than the time after which it stops.
const PATIENCE: Duration = Duration::from_secs(45);

impl Share {
    /// Lets the agent copy a directory to an empty one in the staging area. `None` if there is no agent that can.
    pub(super) fn copy_by_agent(
        &self,
        from: &Path,
        to: &Path,
        object: &str,
        progress: &dyn Fn(Progress) -> ControlFlow<()>,
    ) -> Result<Option<CopyReport>, ShareError> {
        let Some(agent) = self.environment.agent.clone() else { return Ok(None) };
        let (Some(source), Some(Tree::Staging(target))) = (Tree::of(from), Tree::of(to)) else {
            return Ok(None);
        };
        let file_id = |path: &Path| -> Result<u64, ShareError> {
            let entry = self.files.stat(path).during("read", &path.display().to_string())?;
            entry.map(|entry| entry.file_id).ok_or_else(|| {
                ShareError::new(ErrorKind::NotFound, format!("{} does not exist", path.display()))
            })
        };
        let operation = Operation::Copy {
            from: source,
            from_file_id: file_id(from)?,
            to: target,
            to_file_id: file_id(to)?,
        };
        let call = Call { share: self.uuid()?.unwrap_or_default(), operation };
        // A call that changes nothing shows whether the agent can be used. A copy whose answer is lost may have begun.
        let probe = Call { share: call.share.clone(), operation: Operation::Capacity };
        if let Err(error) = agent.call(&probe) {
            tracing::warn!(object, %error, "copying over NFS: the server's agent does not answer");
            return Ok(None);
        }
        let failed = |error: AgentError| {
            ShareError::new(
                copy_error_kind(error.kind),
                format!("failed to copy the content of {object}: {error}"),
            )
        };
        let (mut pause, mut answered, mut begun) = (FIRST_PAUSE, Instant::now(), false);
        loop {
            match agent.call(&call) {
                Ok(Answer::Copy(CopyStatus::Done(report))) => return Ok(Some(report)),
                Ok(Answer::Copy(CopyStatus::Running(done))) => {
                    (answered, begun) = (Instant::now(), true);
                    if progress(done).is_break() {
                        let message = format!("the copy of the content of {object} was cancelled");
                        return Err(ShareError::new(ErrorKind::Unavailable, message));
                    }
                }
                Ok(other) => {
                    let message = format!("unexpected answer of the NFS server agent: {other:?}");
                    return Err(ShareError::new(ErrorKind::Internal, message));
                }
                Err(error) if !begun && can_copy_here(error.kind) => {
                    tracing::warn!(object, %error, "copying over NFS: the server's agent cannot copy");
                    return Ok(None);
                }
                Err(error) if error.kind == AgentErrorKind::Unreachable && answered.elapsed() < PATIENCE => {
                    begun = true;
                }
                Err(error) => return Err(failed(error)),
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Whether the agent has not begun the copy, so that it may be made over NFS instead.
fn can_copy_here(kind: AgentErrorKind) -> bool {
    match kind {
        AgentErrorKind::Unreachable | AgentErrorKind::OutOfSpace | AgentErrorKind::Failed => false,
        AgentErrorKind::UnknownShare | AgentErrorKind::Refused | AgentErrorKind::Unsupported => true,
    }
}

fn copy_error_kind(kind: AgentErrorKind) -> ErrorKind {
    match kind {
        AgentErrorKind::Unreachable => ErrorKind::Unavailable,
        AgentErrorKind::OutOfSpace => ErrorKind::OutOfSpace,
        AgentErrorKind::UnknownShare
        | AgentErrorKind::Refused
        | AgentErrorKind::Unsupported
        | AgentErrorKind::Failed => ErrorKind::Internal,
    }
}
