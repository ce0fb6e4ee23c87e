//! What users are told: events on the pod, with upstream's reasons and words.

use wharf_cluster::EventType;

use super::super::failure::Doing;
use super::super::manager::Manager;
use super::super::world::{Mode, Progress, Volume};

impl Manager {
    /// Tells what failed. What goes down is told in logs alone, as upstream has it.
    pub(super) fn tell_failure(&self, volume: &Volume, doing: Doing, pod: &str, message: &str) {
        for (uid, want) in volume.wants.iter().filter(|(uid, _)| pod.is_empty() || *uid == pod) {
            let mounted = volume.mounts.get(uid).is_some_and(|mount| mount.progress == Progress::Mounted);
            if let Some((reason, what)) = words(doing, volume.mode, mounted) {
                let note = format!("{what} for volume \"{}\" : {message}", volume.spec);
                self.parts.events.tell(&*want.pod, EventType::Warning, reason, note);
            }
        }
    }

    /// A device is told of; files are not, as upstream has it.
    pub(super) fn tell_ready(&self, volume: &Volume, pod: &str) {
        let Some(want) = volume.wants.get(pod).filter(|_| volume.mode == Mode::Block) else { return };
        let root = &self.parts.root;
        let global = root.devices().join(&volume.spec).join("dev");
        let own = root.pod(pod).join("volumeDevices/kubernetes.io~csi");
        for (what, path) in [("globalMapPath", global), ("volumeMapPath", own)] {
            let note = format!(
                "MapVolume.MapPodDevice succeeded for volume \"{}\" {what} \"{}\"",
                volume.spec,
                path.display()
            );
            self.parts.events.tell(&*want.pod, EventType::Normal, "SuccessfulMountVolume", note);
        }
    }
}

/// Reason and first words of a failure.
fn words(doing: Doing, mode: Mode, mounted: bool) -> Option<(&'static str, &'static str)> {
    let (files, device) = ("FailedMount", "FailedMapVolume");
    Some(match (doing, mode) {
        (Doing::Verify, Mode::Filesystem) => (files, "MountVolume.WaitForAttach failed"),
        (Doing::Verify, Mode::Block) => (device, "MapVolume.WaitForAttach failed"),
        (Doing::Stage, Mode::Filesystem) => (files, "MountVolume.MountDevice failed"),
        (Doing::Stage, Mode::Block) => (device, "MapVolume.SetUpDevice failed"),
        (Doing::Publish | Doing::Own, Mode::Filesystem) => (files, "MountVolume.SetUp failed"),
        (Doing::Publish | Doing::Own, Mode::Block) => (device, "MapVolume.MapPodDevice failed"),
        (Doing::Expand, _) if mounted => ("VolumeResizeFailed", "NodeExpandVolume.NodeExpandVolume failed"),
        (Doing::Expand, Mode::Filesystem) => (files, "MountVolume.Setup failed while expanding volume"),
        (Doing::Expand, Mode::Block) => {
            (device, "MapVolume.MarkVolumeAsMounted failed while expanding volume")
        }
        (Doing::Unpublish | Doing::Unstage, _) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.8 "Mount events".
    #[test]
    fn reasons_are_upstreams() {
        let reason = |doing, mode, mounted| words(doing, mode, mounted).map(|(reason, _)| reason);
        for doing in [Doing::Verify, Doing::Stage, Doing::Publish, Doing::Own, Doing::Expand] {
            assert_eq!(reason(doing, Mode::Filesystem, false), Some("FailedMount"), "{doing:?}");
            assert_eq!(reason(doing, Mode::Block, false), Some("FailedMapVolume"), "{doing:?}");
        }
        assert_eq!(reason(Doing::Expand, Mode::Filesystem, true), Some("VolumeResizeFailed"));
        assert_eq!(reason(Doing::Unpublish, Mode::Filesystem, true), None);
        assert_eq!(reason(Doing::Unstage, Mode::Block, false), None);
    }
}
