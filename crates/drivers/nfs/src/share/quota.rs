//! Limits on the directories of volumes, through the agent beside the NFS server.
//!
//! The limit of a new volume is set while its directory is in the staging area and empty. So a volume that is in place has its
//! limit, whenever a process ends, and nothing has to be finished or undone.

use super::error::During as _;
use super::record::{DirectoryRecord, Envelope, Origin, ShareRecord, VolumeRecord};
use super::root::{SHARE_RECORD, own};
use super::{CapacityInfo, ErrorKind, Share, ShareError};
use crate::agent::{AgentError, AgentErrorKind, Answer, Call, Operation, ServerAgent, Tree, TreeId};
use crate::parameters::QuotaMode;
use crate::path::SharePath;

/// What a volume without limit means for its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unlimited {
    Accept,
    Refuse(ErrorKind),
}

/// Why a volume has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// It cannot have one, or its server has no agent.
    Setup,
    /// The agent cannot be used, before it was asked for a limit.
    Agent(AgentErrorKind),
    /// The agent was asked for a limit, and this was its answer.
    Answer(AgentErrorKind),
}

/// Whether a volume may be created without a limit, because of this. Never if it may have one all the same: expansion would
/// not raise it.
fn unlimited(mode: QuotaMode, cause: Cause) -> Unlimited {
    let (uncertain, kind) = match cause {
        Cause::Setup => (false, ErrorKind::Precondition),
        Cause::Agent(kind) => (false, error_kind(kind)),
        Cause::Answer(
            kind @ (AgentErrorKind::Unreachable | AgentErrorKind::Failed | AgentErrorKind::OutOfSpace),
        ) => (true, error_kind(kind)),
        Cause::Answer(
            kind @ (AgentErrorKind::UnknownShare | AgentErrorKind::Refused | AgentErrorKind::Unsupported),
        ) => (false, error_kind(kind)),
    };
    match mode {
        QuotaMode::IfAvailable if !uncertain => Unlimited::Accept,
        QuotaMode::IfAvailable | QuotaMode::Required => Unlimited::Refuse(kind),
    }
}

/// What an agent's error means for a volume that must be limited.
fn error_kind(kind: AgentErrorKind) -> ErrorKind {
    match kind {
        AgentErrorKind::Unreachable => ErrorKind::Unavailable,
        AgentErrorKind::Failed => ErrorKind::Internal,
        AgentErrorKind::OutOfSpace => ErrorKind::OutOfSpace,
        AgentErrorKind::UnknownShare | AgentErrorKind::Refused | AgentErrorKind::Unsupported => {
            ErrorKind::Precondition
        }
    }
}

const NO_AGENT: &str =
    "its server has no agent: run `wharf nfs-server` there, and the driver with --server-agent";

impl Share {
    /// Limits the new, empty directory of a volume in the staging area. Returns whether it has a limit.
    pub(super) fn limit_staged(&self, volume: &VolumeRecord, staging: &str) -> Result<bool, ShareError> {
        if volume.size == 0 {
            return self.without_limit(volume, Cause::Setup, "the request has no size");
        }
        let Some(agent) = self.agent() else { return self.without_limit(volume, Cause::Setup, NO_AGENT) };
        // A call that changes nothing shows whether the agent can be used. A limit whose answer is lost may be set.
        let probe = Call { share: self.uuid()?.unwrap_or_default(), operation: Operation::Capacity };
        if let Err(error) = agent.call(&probe) {
            return self.without_limit(volume, Cause::Agent(error.kind), &error.message);
        }
        let data = super::directory::staged(staging);
        let Some(entry) = self.stat(&data)? else {
            let message = format!("the new directory of volume {} is gone; try again", volume.handle);
            return Err(ShareError::new(ErrorKind::Unavailable, message));
        };
        let id = TreeId::try_from(staging.to_owned())
            .map_err(|error| ShareError::new(ErrorKind::Internal, error))?;
        match self.set_limit(&*agent, Tree::Staging(id), entry.file_id, volume.size)? {
            Ok(()) => Ok(true),
            Err(error) => self.without_limit(volume, Cause::Answer(error.kind), &error.message),
        }
    }

    /// Whether a directory that the driver did not create has a limit: that of an earlier volume, whose class retained it.
    pub(super) fn has_limit(&self, path: &SharePath, file_id: u64) -> Result<bool, ShareError> {
        let Some(agent) = self.agent() else { return Ok(false) };
        let operation = Operation::GetUsage { tree: Tree::Volume(path.clone()), file_id };
        match agent.call(&Call { share: self.uuid()?.unwrap_or_default(), operation }) {
            Ok(Answer::Quota(quota)) => Ok(quota.limit > 0),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => match unlimited(QuotaMode::IfAvailable, Cause::Answer(error.kind)) {
                Unlimited::Accept => {
                    tracing::warn!(%path, %error, "using existing directory without a quota");
                    Ok(false)
                }
                // Expansion would not raise a limit that is not recorded.
                Unlimited::Refuse(kind) => Err(ShareError::new(
                    kind,
                    format!("failed to read the quota of the existing directory {path}; try again: {error}"),
                )),
            },
        }
    }

    /// Checks a directory that is in place. One that another volume uses or has used is limited to the larger size.
    pub(super) fn check_limit(
        &self,
        volume: &VolumeRecord,
        directory: &DirectoryRecord,
    ) -> Result<bool, ShareError> {
        match directory.limited {
            // Without a size, the limit stays as it is.
            true if volume.size > 0 && (directory.is_shared() || directory.origin != Origin::Created) => {
                self.raise_limit(volume, directory, volume.size).map(|()| true)
            }
            true => Ok(true),
            false if volume.quota == QuotaMode::Required => {
                self.without_limit(volume, Cause::Setup, "its directory existed before, and has no limit")
            }
            false => Ok(false),
        }
    }

    /// Raises the limit of a volume that has one.
    pub(super) fn raise_limit(
        &self,
        volume: &VolumeRecord,
        directory: &DirectoryRecord,
        size: u64,
    ) -> Result<(), ShareError> {
        let failed = |kind, reason: &str| {
            let message =
                format!("failed to set the quota of volume {} to {size} bytes: {reason}", volume.handle);
            ShareError::new(kind, message)
        };
        let Some(agent) = self.agent() else { return Err(failed(ErrorKind::Precondition, NO_AGENT)) };
        let Some(identity) = &directory.identity else {
            return Err(failed(ErrorKind::Internal, "its directory has no file ID"));
        };
        let limited = self.set_limit(&*agent, Tree::Volume(volume.path.clone()), identity.file_id, size)?;
        limited.map_err(|error| failed(error_kind(error.kind), &error.message))
    }

    /// The capacity of the share without what limits promise to volumes, if its agent answers.
    pub(super) fn unpromised_capacity(&self, share: CapacityInfo) -> Result<CapacityInfo, ShareError> {
        let Some(agent) = self.agent() else { return Ok(share) };
        let Some(uuid) = self.uuid()? else { return Ok(share) };
        match agent.call(&Call { share: uuid, operation: Operation::Capacity }) {
            Ok(Answer::Capacity { available, .. }) => {
                Ok(CapacityInfo { available: available.min(share.available), ..share })
            }
            Ok(other) => Err(unexpected(&other)),
            Err(error) => {
                tracing::warn!(%error, "failed to read what is promised to volumes; reporting all free space");
                Ok(share)
            }
        }
    }

    /// How much of its limit a directory uses; `None` if the agent does not say it.
    pub(super) fn usage(&self, volume: &VolumeRecord, directory: &DirectoryRecord) -> Option<u64> {
        let (agent, identity) = (self.agent()?, directory.identity.as_ref()?);
        let operation =
            Operation::GetUsage { tree: Tree::Volume(volume.path.clone()), file_id: identity.file_id };
        match agent.call(&Call { share: self.uuid().ok()??, operation }) {
            Ok(Answer::Quota(quota)) => Some(quota.used),
            Ok(_) | Err(_) => None,
        }
    }

    /// Whether the directory of a volume has a limit.
    pub(super) fn is_limited(&self, volume: &VolumeRecord) -> Result<bool, ShareError> {
        let directory = self.read_record::<DirectoryRecord>(volume.path.as_str())?.record;
        Ok(directory.is_some_and(|directory| directory.limited))
    }

    fn agent(&self) -> Option<std::sync::Arc<dyn ServerAgent>> {
        self.environment.agent.clone()
    }

    fn set_limit(
        &self,
        agent: &dyn ServerAgent,
        tree: Tree,
        file_id: u64,
        bytes: u64,
    ) -> Result<Result<(), AgentError>, ShareError> {
        let share = self.uuid()?.unwrap_or_default();
        match agent.call(&Call { share, operation: Operation::SetQuota { tree, file_id, bytes } }) {
            Ok(Answer::Quota(_)) => Ok(Ok(())),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Ok(Err(error)),
        }
    }

    fn without_limit(&self, volume: &VolumeRecord, cause: Cause, reason: &str) -> Result<bool, ShareError> {
        match (unlimited(volume.quota, cause), volume.quota) {
            (Unlimited::Accept, _) => {
                // Most servers have no agent, which is not worth a warning.
                if cause != Cause::Setup {
                    tracing::warn!(volume_handle = volume.handle, reason, "created volume without a quota");
                }
                Ok(false)
            }
            (Unlimited::Refuse(kind), QuotaMode::Required) => {
                let message = format!(
                    "failed to limit volume {}, and its class has quota: required: {reason}",
                    volume.handle
                );
                Err(ShareError::new(kind, message))
            }
            (Unlimited::Refuse(kind), QuotaMode::IfAvailable) => {
                let message = format!(
                    "failed to limit volume {}, which may have a limit now and is not used so; try again: {reason}",
                    volume.handle
                );
                Err(ShareError::new(kind, message))
            }
        }
    }

    /// The UUID of the share; `None` before its first volume.
    pub(super) fn uuid(&self) -> Result<Option<String>, ShareError> {
        let object = "the share's record";
        let bytes = self.files.read(&own([SHARE_RECORD])).during("read", object)?;
        let Some(bytes) = bytes else { return Ok(None) };
        let envelope: Envelope<ShareRecord> = serde_json::from_slice(&bytes).map_err(|error| {
            ShareError::new(ErrorKind::Internal, format!("failed to read {object}: {error}"))
        })?;
        Ok(envelope.record.map(|record| record.uuid))
    }
}

fn unexpected(answer: &Answer) -> ShareError {
    ShareError::new(ErrorKind::Internal, format!("unexpected answer of the NFS server agent: {answer:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_decides_whether_a_volume_may_be_unlimited() {
        use AgentErrorKind as Agent;
        use Unlimited::{Accept, Refuse};
        assert_eq!(unlimited(QuotaMode::Required, Cause::Setup), Refuse(ErrorKind::Precondition));
        assert_eq!(unlimited(QuotaMode::IfAvailable, Cause::Setup), Accept);
        for (error, required, uncertain) in [
            (Agent::Unreachable, ErrorKind::Unavailable, true),
            (Agent::UnknownShare, ErrorKind::Precondition, false),
            (Agent::Refused, ErrorKind::Precondition, false),
            (Agent::Unsupported, ErrorKind::Precondition, false),
            (Agent::OutOfSpace, ErrorKind::OutOfSpace, true),
            (Agent::Failed, ErrorKind::Internal, true),
        ] {
            for cause in [Cause::Agent(error), Cause::Answer(error)] {
                assert_eq!(unlimited(QuotaMode::Required, cause), Refuse(required), "{cause:?}");
            }
            assert_eq!(unlimited(QuotaMode::IfAvailable, Cause::Agent(error)), Accept, "{error:?}");
            let answered = if uncertain { Refuse(required) } else { Accept };
            assert_eq!(unlimited(QuotaMode::IfAvailable, Cause::Answer(error)), answered, "{error:?}");
        }
    }
}
