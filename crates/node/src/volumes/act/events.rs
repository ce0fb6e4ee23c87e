//! Events on pods, with upstream's reasons and messages.

use wharf_cluster::EventType;
use wharf_model::Pod;

use super::super::failure::Operation;
use super::super::manager::Manager;
use super::super::world::{Mode, Progress, Volume};

impl Manager {
    /// Records a failure. Unpublish and unstage failures are only logged, as upstream does.
    pub(super) fn record_failure_event(
        &self,
        volume: &Volume,
        operation: Operation,
        pod: &str,
        message: &str,
    ) {
        for (uid, desired) in volume.desired.iter().filter(|(uid, _)| pod.is_empty() || *uid == pod) {
            let mounted = volume.mounts.get(uid).is_some_and(|mount| mount.progress == Progress::Mounted);
            if let Some((reason, what)) = event_text(operation, volume.mode, mounted) {
                let note = format!("{what} for volume \"{}\" : {message}", volume.spec);
                self.parts.events.record_for(&*desired.pod, EventType::Warning, reason, note);
            }
        }
    }

    /// Records that a pod's volume could not be resolved.
    pub(in super::super) fn record_unresolved_event(&self, pod: &Pod, volume: &str, reason: &str) {
        let note = format!(
            "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
             failed to process volumes=[{volume}]: {reason}"
        );
        self.parts.events.record_for(pod, EventType::Warning, "FailedMount", note);
    }

    /// Block volumes get a success event, file systems do not, as upstream does.
    pub(super) fn record_ready_event(&self, volume: &Volume, pod: &str) {
        let Some(desired) = volume.desired.get(pod).filter(|_| volume.mode == Mode::Block) else { return };
        let root = &self.parts.root;
        let global = root.devices().join(&volume.spec).join("dev");
        let own = root.pod(pod).join("volumeDevices/kubernetes.io~csi");
        for (what, path) in [("globalMapPath", global), ("volumeMapPath", own)] {
            let note = format!(
                "MapVolume.MapPodDevice succeeded for volume \"{}\" {what} \"{}\"",
                volume.spec,
                path.display()
            );
            self.parts.events.record_for(&*desired.pod, EventType::Normal, "SuccessfulMountVolume", note);
        }
    }
}

/// Reason and message prefix of a failure event.
fn event_text(operation: Operation, mode: Mode, mounted: bool) -> Option<(&'static str, &'static str)> {
    let (files, device) = ("FailedMount", "FailedMapVolume");
    Some(match (operation, mode) {
        (Operation::Verify, Mode::Filesystem) => (files, "MountVolume.WaitForAttach failed"),
        (Operation::Verify, Mode::Block) => (device, "MapVolume.WaitForAttach failed"),
        (Operation::Stage, Mode::Filesystem) => (files, "MountVolume.MountDevice failed"),
        (Operation::Stage, Mode::Block) => (device, "MapVolume.SetUpDevice failed"),
        (Operation::Publish | Operation::SetOwnership, Mode::Filesystem) => {
            (files, "MountVolume.SetUp failed")
        }
        (Operation::Publish | Operation::SetOwnership, Mode::Block) => {
            (device, "MapVolume.MapPodDevice failed")
        }
        (Operation::Expand, _) if mounted => {
            ("VolumeResizeFailed", "NodeExpandVolume.NodeExpandVolume failed")
        }
        (Operation::Expand, Mode::Filesystem) => (files, "MountVolume.Setup failed while expanding volume"),
        (Operation::Expand, Mode::Block) => {
            (device, "MapVolume.MarkVolumeAsMounted failed while expanding volume")
        }
        (Operation::Unpublish | Operation::Unstage, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Mount events".
    #[test]
    fn event_reasons_match_upstream() {
        let reason =
            |operation, mode, mounted| event_text(operation, mode, mounted).map(|(reason, _)| reason);
        for operation in [
            Operation::Verify,
            Operation::Stage,
            Operation::Publish,
            Operation::SetOwnership,
            Operation::Expand,
        ] {
            assert_eq!(reason(operation, Mode::Filesystem, false), Some("FailedMount"), "{operation:?}");
            assert_eq!(reason(operation, Mode::Block, false), Some("FailedMapVolume"), "{operation:?}");
        }
        assert_eq!(reason(Operation::Expand, Mode::Filesystem, true), Some("VolumeResizeFailed"));
        assert_eq!(reason(Operation::Unpublish, Mode::Filesystem, true), None);
        assert_eq!(reason(Operation::Unstage, Mode::Block, false), None);
    }
}
