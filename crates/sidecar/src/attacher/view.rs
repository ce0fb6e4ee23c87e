//! What the attacher sees of one volume: its attachments, the volume itself, and what was tried before. Plain
//! data, taken from the stores and from [`Memory`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use wharf_cluster::Backoff;
use wharf_csi::{ErrorClass, Operation, classify};
use wharf_model::{PersistentVolume, Time, VolumeAttachment};

use crate::driver::Capabilities;

/// Waits for a driver that is busy or away are never longer: it may be ready any moment.
const SOON: Duration = Duration::from_secs(30);

/// What is worked on at once by one worker only: a volume, whatever nodes it is on. Two workers with two
/// attachments of one volume could publish it to one node before it is off the other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Subject {
    /// A PersistentVolume, by name.
    Volume(String),
    /// A volume that attachments spell out themselves, by its handle.
    Inline(String),
    /// An attachment that names no volume, by its own name.
    Attachment(String),
    /// Not a volume: the question which volumes attachments refer to, for those that wait for the answer.
    References,
}

impl Subject {
    /// What an attachment is about.
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

    /// Its name in the index of attachments.
    pub(super) fn index(&self) -> String {
        match self {
            Self::Volume(name) => format!("volume/{name}"),
            Self::Inline(handle) => format!("inline/{handle}"),
            Self::Attachment(name) => format!("attachment/{name}"),
            Self::References => String::new(),
        }
    }
}

/// What holds for every volume of the driver.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// The driver's name.
    pub(super) driver: String,
    /// The finalizer that we put on volumes and attachments.
    pub(super) finalizer: String,
    /// What the driver can do.
    pub(super) can: Capabilities,
    /// The file system where the volume names none.
    pub(super) default_fstype: String,
    /// The node whose attachments alone are ours.
    pub(super) node: Option<String>,
}

impl Rules {
    /// Whether an attachment is ours to see to.
    pub(super) fn owns(&self, attachment: &VolumeAttachment) -> bool {
        let spec = &attachment.spec;
        spec.attacher == self.driver && self.node.as_ref().is_none_or(|node| *node == spec.node_name)
    }
}

/// One volume.
#[derive(Debug, Clone)]
pub(super) struct View<'a> {
    /// What holds for all.
    pub(super) rules: &'a Rules,
    /// The volume, if it is a PersistentVolume and known.
    pub(super) volume: Option<Arc<PersistentVolume>>,
    /// Its attachments that are ours.
    pub(super) attachments: Vec<Seen>,
    /// Whether others than we have attachments of it.
    pub(super) elsewhere: bool,
    /// Whether we are shown all attachments there are.
    pub(super) complete: bool,
    /// The server said of the volume with this uid, after its deletion was asked for, that no attachment refers
    /// to it.
    pub(super) unreferenced: Option<String>,
}

/// One attachment.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    /// The attachment.
    pub(super) attachment: Arc<VolumeAttachment>,
    /// What the driver calls its node, by the CSINode.
    pub(super) node_id: Option<String>,
    /// What was tried.
    pub(super) memory: Memory,
}

/// What is being done to an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// ControllerPublishVolume, and what has to be before it.
    Attach,
    /// ControllerUnpublishVolume, likewise.
    Detach,
}

/// What we remember of an attachment, and may forget at any time: a call would be repeated, or made sooner.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Of this attachment, not of another of its name.
    pub(super) uid: String,
    /// The driver has published; the attachment does not say so yet.
    pub(super) published: Option<Published>,
    /// The driver has unpublished; the attachment does not say so yet.
    pub(super) unpublished: bool,
    /// The last attempt, if it failed.
    pub(super) failure: Option<Failure>,
    /// At this version the attachment said another thing than the driver did: call once more.
    pub(super) forced: Option<String>,
}

/// What the driver answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Published {
    /// The publish context.
    pub(super) context: BTreeMap<String, String>,
    /// The attachment's version then. At any other, somebody may have published since, as when the lease was
    /// another's for a while: then the driver is asked again.
    pub(super) version: String,
}

/// An attempt that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// What was tried.
    pub(super) doing: Doing,
    /// What went wrong, for people.
    pub(super) message: String,
    /// The driver's code.
    pub(super) code: Option<i32>,
    /// When.
    pub(super) at: Time,
    /// No new attempt sooner than this.
    pub(super) pause: Duration,
    /// How often in a row.
    pub(super) count: u32,
    /// Whether the attachment was told, or need not be.
    pub(super) reported: bool,
}

impl Failure {
    /// Whether it is time for another attempt. A clock that went back does not make anybody wait.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now < self.at || now >= self.at.plus(self.pause)
    }
}

/// How soon a failed attempt is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// It may work any moment: the driver is busy or away, or an object changed.
    Soon,
    /// Somebody has to change something, and we shall most likely be woken when they do.
    Slowly,
}

impl Again {
    /// After an answer of the driver. sidecars.md 1.2 "Errors": non-final ones say that the call may still run.
    pub(super) fn after(code: tonic::Code) -> Self {
        match classify(Operation::Attach, code) {
            ErrorClass::StillRunning => Self::Soon,
            ErrorClass::Final | ErrorClass::Infeasible => Self::Slowly,
        }
    }
}

impl Memory {
    /// The driver has published.
    pub(super) fn has_published(&mut self, published: Published) {
        *self = Self { uid: std::mem::take(&mut self.uid), published: Some(published), ..Self::default() };
    }

    /// The driver has unpublished.
    pub(super) fn has_unpublished(&mut self) {
        *self = Self { uid: std::mem::take(&mut self.uid), unpublished: true, ..Self::default() };
    }

    /// The attachment says what is so.
    pub(super) fn is_written(&mut self) {
        *self = Self { uid: std::mem::take(&mut self.uid), ..Self::default() };
    }

    /// An attempt has failed.
    pub(super) fn has_failed(&mut self, failed: Failed, backoff: Backoff, now: Time) {
        let Failed { doing, message, code, again } = failed;
        let earlier = self.failure.as_ref().filter(|before| before.doing == doing).map_or(0, |f| f.count);
        let max = match again {
            Again::Soon => backoff.max.min(SOON),
            Again::Slowly => backoff.max,
        };
        let pause = Backoff { max, ..backoff }.after(earlier);
        let count = earlier.saturating_add(1);
        self.failure = Some(Failure { doing, message, code, at: now, pause, count, reported: false });
        self.forced = None;
    }

    /// Something changed that may let it work now.
    pub(super) fn wake(&mut self) {
        self.failure = None;
    }
}

/// How an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    /// What was tried.
    pub(super) doing: Doing,
    /// What went wrong, for people.
    pub(super) message: String,
    /// The driver's code.
    pub(super) code: Option<i32>,
    /// How soon to try again.
    pub(super) again: Again,
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

    /// Nobody waits for another volume, whatever the names; and all attachments of one volume are found.
    #[test]
    fn what_an_attachment_is_about() {
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

    /// sidecars.md 1.2 "Handler choice": the driver's own, and with node deployment those of the node.
    #[test]
    fn whose_an_attachment_is() {
        for (node, attacher, on, ours) in [
            (None, "d", "n", true),
            (None, "e", "n", false),
            (Some("n"), "d", "n", true),
            (Some("n"), "d", "m", false),
            (Some("n"), "e", "n", false),
        ] {
            let rules = Rules { driver: "d".into(), node: node.map(str::to_owned), ..Rules::default() };
            assert_eq!(rules.owns(&attachment(attacher, on, json!({}))), ours, "{node:?} {attacher} {on}");
        }
    }

    /// What was done is remembered of the same attachment, and what it makes void is forgotten.
    #[test]
    fn a_success_is_all_that_is_remembered() {
        let published = Published { context: BTreeMap::new(), version: "7".into() };
        let uid = || "u".to_owned();
        let mut memory = Memory { uid: uid(), forced: Some("1".into()), ..Memory::default() };
        memory.has_published(published.clone());
        assert_eq!(memory, Memory { uid: uid(), published: Some(published), ..Memory::default() });
        memory.has_unpublished();
        assert_eq!(memory, Memory { uid: uid(), unpublished: true, ..Memory::default() });
        memory.is_written();
        assert_eq!(memory, Memory { uid: uid(), ..Memory::default() });
        let failed = Failed { doing: Doing::Attach, message: "no".into(), code: None, again: Again::Soon };
        memory.has_failed(failed, Backoff::default(), Time(0));
        assert!(memory.failure.is_some());
        memory.wake();
        assert_eq!(memory, Memory { uid: uid(), ..Memory::default() });
    }

    /// User pain 14: no volume that has become ready waits minutes, and no hopeless call is made every few
    /// seconds.
    #[test]
    fn pauses_by_code() {
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
            let mut memory = Memory::default();
            let got = std::array::from_fn(|_| {
                let failed = Failed {
                    doing: Doing::Attach,
                    message: String::new(),
                    code: None,
                    again: Again::after(code),
                };
                memory.has_failed(failed, backoff, Time(0));
                memory.failure.as_ref().unwrap().pause.as_secs()
            });
            assert_eq!(got, seconds, "{code:?}");
        }
        // A shorter longest pause holds for all.
        let backoff = Backoff { max: Duration::from_secs(5), ..backoff };
        let mut memory = Memory::default();
        for _ in 0..9 {
            let failed =
                Failed { doing: Doing::Attach, message: String::new(), code: None, again: Again::Soon };
            memory.has_failed(failed, backoff, Time(0));
        }
        assert_eq!(memory.failure.unwrap().pause, Duration::from_secs(5));
    }

    #[test]
    fn another_operation_begins_anew() {
        let backoff = Backoff { jitter: || 0.0, ..Backoff::default() };
        let failed = |doing| Failed { doing, message: "no".into(), code: Some(13), again: Again::Slowly };
        let mut memory = Memory { forced: Some("1".into()), ..Memory::default() };
        for (doing, count) in [(Doing::Attach, 1), (Doing::Attach, 2), (Doing::Detach, 1), (Doing::Detach, 2)]
        {
            memory.has_failed(failed(doing), backoff, Time(0));
            assert_eq!(memory.failure.as_ref().unwrap().count, count);
            assert_eq!(memory.forced, None, "a force is for one attempt");
        }
    }

    #[test]
    fn a_pause_ends() {
        let failure = Failure {
            doing: Doing::Attach,
            message: String::new(),
            code: None,
            at: Time(10_000),
            pause: Duration::from_secs(2),
            count: 1,
            reported: false,
        };
        let over = [9_999, 10_000, 11_999, 12_000].map(|now| failure.is_over(Time(now)));
        assert_eq!(over, [true, false, false, true], "and a clock that went back makes nobody wait");
    }
}
