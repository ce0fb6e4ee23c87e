//! The inputs for deciding about one volume: the volume, its attachments, and the results of earlier attempts. Plain
//! data from the stores and from [`AttachState`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_csi::{ErrorClass, Operation, classify};
use wharf_model::{Monotonic, PersistentVolume, Time, VolumeAttachment};

use crate::driver::Capabilities;

/// The longest backoff for a driver that is busy or unreachable: it may recover at any moment.
const MAX_SOON_PAUSE: Duration = Duration::from_secs(30);

/// The queue's key: a volume, whatever nodes it is attached to. Two workers with two attachments of one volume could
/// publish it to one node before it is unpublished from the other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// A PersistentVolume, by name.
    Volume(String),
    /// An inline volume, by its handle.
    Inline(String),
    /// An attachment that names no volume, by its own name.
    Attachment(String),
    /// Not a volume: the pending reference checks of all volumes.
    References,
}

impl Subject {
    /// The subject of an attachment.
    pub(super) fn of(attachment: &VolumeAttachment) -> Self {
        let source = &attachment.spec.source;
        if let Some(name) = &source.persistent_volume_name {
            return Self::Volume(name.clone());
        }
        match source.inline_volume_spec.as_ref().and_then(|spec| spec.csi.as_ref()) {
            Some(csi) => Self::Inline(csi.volume_handle.clone()),
            None => Self::Attachment(attachment.metadata.name.clone()),
        }
    }

    /// The value in the index of attachments.
    pub(super) fn index(&self) -> String {
        match self {
            Self::Volume(name) => format!("volume/{name}"),
            Self::Inline(handle) => format!("inline/{handle}"),
            Self::Attachment(name) => format!("attachment/{name}"),
            Self::References => String::new(),
        }
    }
}

/// The configuration, which is the same for all volumes of the driver.
#[derive(Debug, Clone, Default)]
pub(super) struct AttacherConfig {
    /// The driver's name.
    pub(super) driver: String,
    /// Our finalizer on volumes and attachments.
    pub(super) finalizer: String,
    /// The driver's capabilities.
    pub(super) capabilities: Capabilities,
    /// The file system if the volume names none.
    pub(super) default_fstype: String,
    /// With node deployment, the node whose attachments this process handles.
    pub(super) node: Option<String>,
}

impl AttacherConfig {
    /// Whether this process handles an attachment.
    pub(super) fn owns(&self, attachment: &VolumeAttachment) -> bool {
        let spec = &attachment.spec;
        spec.attacher == self.driver && self.node.as_ref().is_none_or(|node| *node == spec.node_name)
    }
}

/// One volume and everything that its next step depends on.
#[derive(Debug, Clone)]
pub(super) struct VolumeView<'a> {
    pub(super) config: &'a AttacherConfig,
    /// The PersistentVolume, if the subject is one and it exists.
    pub(super) volume: Option<Arc<PersistentVolume>>,
    /// Its attachments that this process handles.
    pub(super) attachments: Vec<AttachmentInputs>,
    /// Whether it has attachments of other attachers.
    pub(super) has_foreign_attachments: bool,
    /// Whether the store has all attachments.
    pub(super) complete: bool,
    /// The UID of the volume for which the server confirmed, after its deletion was requested, that no attachment
    /// refers to it.
    pub(super) unreferenced: Option<String>,
}

/// One attachment and its state.
#[derive(Debug, Clone)]
pub(super) struct AttachmentInputs {
    pub(super) attachment: Arc<VolumeAttachment>,
    /// The driver's node ID, from the CSINode.
    pub(super) node_id: Option<String>,
    pub(super) state: AttachState,
}

/// The operation on an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttachOperation {
    /// ControllerPublishVolume and the steps before it.
    Attach,
    /// ControllerUnpublishVolume and the steps before it.
    Detach,
}

/// In-process state of an attachment. It may be lost at any time: then a call is repeated, or made sooner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AttachState {
    /// The UID of the attachment: the state is void for another one of the same name.
    pub(super) uid: String,
    /// The driver has published the volume; the status is not updated yet.
    pub(super) published: Option<Published>,
    /// The driver has unpublished the volume; the attachment is not updated yet.
    pub(super) unpublished: bool,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
    /// At this version the attachment differed from the driver's list: call the driver again.
    pub(super) forced: Option<String>,
}

/// The driver's response to ControllerPublishVolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) context: BTreeMap<String, String>,
    /// The attachment's version at that time. If it has changed, another leader may have published the volume since:
    /// then the driver is called again.
    pub(super) version: String,
}

/// A failed attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The operation that failed.
    pub(super) operation: AttachOperation,
    /// The error message for the status.
    pub(super) message: String,
    /// The gRPC code of the driver's error.
    pub(super) code: Option<i32>,
    /// Wall time of the failure, for the status.
    pub(super) time: Time,
    /// When it failed.
    pub(super) at: Monotonic,
    /// The backoff before the next attempt.
    pub(super) pause: Duration,
    /// Consecutive failures.
    pub(super) count: u32,
    /// Whether the status has the error, or need not.
    pub(super) reported: bool,
}

impl Failure {
    /// The rest of the backoff.
    pub(super) fn remaining(&self, now: Monotonic) -> Option<Duration> {
        self.pause.checked_sub(now.since(self.at)).filter(|left| !left.is_zero())
    }
}

/// How soon a failed attempt is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPace {
    /// It may succeed at any moment: the driver is busy or unreachable, or an object changed.
    Soon,
    /// Something has to change first, and that change most likely wakes the volume.
    Slowly,
}

impl RetryPace {
    /// After an error of the driver. sidecars.md 1.2 "Errors": with a non-final error the call may still run.
    pub(super) fn after(code: tonic::Code) -> Self {
        match classify(Operation::Attach, code) {
            ErrorClass::StillRunning => Self::Soon,
            ErrorClass::Final | ErrorClass::Infeasible => Self::Slowly,
        }
    }
}

impl AttachState {
    /// Records that the driver published the volume.
    pub(super) fn record_published(&mut self, published: Published) {
        *self = Self { uid: std::mem::take(&mut self.uid), published: Some(published), ..Self::default() };
    }

    /// Records that the driver unpublished the volume.
    pub(super) fn record_unpublished(&mut self) {
        *self = Self { uid: std::mem::take(&mut self.uid), unpublished: true, ..Self::default() };
    }

    /// Records that the status is updated.
    pub(super) fn record_written(&mut self) {
        *self = Self { uid: std::mem::take(&mut self.uid), ..Self::default() };
    }

    /// Records a failed attempt.
    pub(super) fn record_failure(
        &mut self,
        failed: AttemptError,
        backoff: Backoff,
        time: Time,
        now: Monotonic,
    ) {
        let AttemptError { operation, message, code, retry } = failed;
        let earlier =
            self.failure.as_ref().filter(|before| before.operation == operation).map_or(0, |f| f.count);
        let max = match retry {
            RetryPace::Soon => backoff.max.min(MAX_SOON_PAUSE),
            RetryPace::Slowly => backoff.max,
        };
        let pause = Backoff { max, ..backoff }.delay(earlier);
        let count = earlier.saturating_add(1);
        self.failure =
            Some(Failure { operation, message, code, time, at: now, pause, count, reported: false });
        self.forced = None;
    }

    /// Clears the failure after a change that may let the next attempt succeed.
    pub(super) fn clear_failure(&mut self) {
        self.failure = None;
    }
}

/// The error of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttemptError {
    /// The operation that failed.
    pub(super) operation: AttachOperation,
    /// The error message for the status.
    pub(super) message: String,
    /// The gRPC code of the driver's error.
    pub(super) code: Option<i32>,
    /// How soon to retry.
    pub(super) retry: RetryPace,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attachment(attacher: &str, node: &str, source: serde_json::Value) -> VolumeAttachment {
        serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"attacher": attacher, "nodeName": node, "source": source},
        }))
        .unwrap()
    }

    /// Different volumes have different keys, and all attachments of one volume have the same.
    #[test]
    fn subject_identifies_volume_of_attachment() {
        let inline = json!({"csi": {"driver": "d", "volumeHandle": "x"}});
        for (source, subject, index, volume) in [
            (json!({"persistentVolumeName": "x"}), Subject::Volume("x".into()), "volume/x", Some("x")),
            (json!({"inlineVolumeSpec": inline}), Subject::Inline("x".into()), "inline/x", None),
            (json!({"inlineVolumeSpec": {}}), Subject::Attachment("a".into()), "attachment/a", None),
            (json!({}), Subject::Attachment("a".into()), "attachment/a", None),
        ] {
            let found = Subject::of(&attachment("d", "n", source));
            assert_eq!((found.index().as_str(), found.volume()), (index, volume));
            assert_eq!(found, subject);
        }
        assert_eq!((Subject::References.index().as_str(), Subject::References.volume()), ("", None));
    }

    /// sidecars.md 1.2 "Handler choice": attachments of the driver and, with node deployment, of the node.
    #[test]
    fn config_owns_attachments_of_driver_and_node() {
        for (node, attacher, on, ours) in [
            (None, "d", "n", true),
            (None, "e", "n", false),
            (Some("n"), "d", "n", true),
            (Some("n"), "d", "m", false),
            (Some("n"), "e", "n", false),
        ] {
            let config = AttacherConfig {
                driver: "d".into(),
                node: node.map(str::to_owned),
                ..AttacherConfig::default()
            };
            assert_eq!(config.owns(&attachment(attacher, on, json!({}))), ours, "{node:?} {attacher} {on}");
        }
    }

    /// A success replaces all earlier state except the UID.
    #[test]
    fn success_replaces_earlier_state() {
        let published = Published { context: BTreeMap::new(), version: "7".into() };
        let uid = || "u".to_owned();
        let mut state = AttachState { uid: uid(), forced: Some("1".into()), ..AttachState::default() };
        state.record_published(published.clone());
        assert_eq!(state, AttachState { uid: uid(), published: Some(published), ..AttachState::default() });
        state.record_unpublished();
        assert_eq!(state, AttachState { uid: uid(), unpublished: true, ..AttachState::default() });
        state.record_written();
        assert_eq!(state, AttachState { uid: uid(), ..AttachState::default() });
        let failed = AttemptError {
            operation: AttachOperation::Attach,
            message: "no".into(),
            code: None,
            retry: RetryPace::Soon,
        };
        state.record_failure(failed, Backoff::default(), Time(0), Monotonic(0));
        assert!(state.failure.is_some());
        state.clear_failure();
        assert_eq!(state, AttachState { uid: uid(), ..AttachState::default() });
    }

    /// No volume that has become ready waits for minutes, and no call that cannot succeed is repeated every few seconds.
    #[test]
    fn backoff_depends_on_error_code() {
        use tonic::Code;

        let backoff = Backoff { jitter: || 0.0, ..Backoff::default() };
        for (code, seconds) in [
            (Code::Unavailable, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]),
            (Code::Aborted, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]),
            (Code::DeadlineExceeded, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]),
            (Code::Cancelled, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]),
            (Code::ResourceExhausted, [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]),
            (Code::Internal, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]),
            (Code::InvalidArgument, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]),
            (Code::NotFound, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]),
            (Code::FailedPrecondition, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]),
        ] {
            let mut state = AttachState::default();
            let got = std::array::from_fn(|_| {
                let failed = AttemptError {
                    operation: AttachOperation::Attach,
                    message: String::new(),
                    code: None,
                    retry: RetryPace::after(code),
                };
                state.record_failure(failed, backoff, Time(0), Monotonic(0));
                state.failure.as_ref().unwrap().pause.as_secs()
            });
            assert_eq!(got, seconds, "{code:?}");
        }
        // A shorter maximum applies to all codes.
        let backoff = Backoff { max: Duration::from_secs(5), ..backoff };
        let mut state = AttachState::default();
        for _ in 0..9 {
            let failed = AttemptError {
                operation: AttachOperation::Attach,
                message: String::new(),
                code: None,
                retry: RetryPace::Soon,
            };
            state.record_failure(failed, backoff, Time(0), Monotonic(0));
        }
        assert_eq!(state.failure.unwrap().pause, Duration::from_secs(5));
    }

    #[test]
    fn failures_are_counted_per_operation() {
        let backoff = Backoff { jitter: || 0.0, ..Backoff::default() };
        let failed = |operation| AttemptError {
            operation,
            message: "no".into(),
            code: Some(13),
            retry: RetryPace::Slowly,
        };
        let mut state = AttachState { forced: Some("1".into()), ..AttachState::default() };
        for (operation, count) in [
            (AttachOperation::Attach, 1),
            (AttachOperation::Attach, 2),
            (AttachOperation::Detach, 1),
            (AttachOperation::Detach, 2),
        ] {
            state.record_failure(failed(operation), backoff, Time(0), Monotonic(0));
            assert_eq!(state.failure.as_ref().unwrap().count, count);
            assert_eq!(state.forced, None, "a forced call is for one attempt");
        }
    }

    #[test]
    fn backoff_ends_after_pause() {
        let failure = Failure {
            operation: AttachOperation::Attach,
            message: String::new(),
            code: None,
            time: Time(7),
            at: Monotonic(10_000),
            pause: Duration::from_secs(2),
            count: 1,
            reported: false,
        };
        let left = [10_000, 11_999, 12_000].map(|now| failure.remaining(Monotonic(now)));
        assert_eq!(left, [2000, 1, 0].map(|left| (left > 0).then_some(Duration::from_millis(left))));
    }
}
