//! Planted bugs, to verify that the simulation finds them: as settings of our own components where such a setting
//! exists, otherwise in the simulated environment.

use wharf_cluster::{Cluster, Store, StoreEvent, WatchOptions};
use wharf_csi::{Client, v1};
use wharf_explain::{Explanation, State, Step};
use wharf_model::PersistentVolume;
use wharf_model::volume::VolumePhase;

use crate::driver::{ATTACHED_TWICE, DELETED_IN_USE, DETACHED_MOUNTED, PUBLISHED_UNSTAGED};
use crate::judge::{LEFT_BEHIND, WRONG_EXPLANATION};

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// An attachment of unknown state does not prevent an attachment to another node, as in upstream's
    /// attach/detach controller.
    UncertainAttachmentIgnored,
    /// A volume whose claim is deleted is deleted without checking where it is attached.
    DeleteWhileAttached,
    /// NodeStageVolume is not called.
    PublishWithoutStage,
    /// After a restart, staged volumes that no pod uses are not found, as in upstream's kubelet.
    StagedVolumesNotFound,
    /// CreateVolume is called with another name at each attempt.
    UnstableVolumeName,
    /// `wharf explain` reports that every claim without a volume waits for the binder.
    BinderIsBlamed,
}

impl Bug {
    pub(crate) const ALL: [Self; 6] = [
        Self::UncertainAttachmentIgnored,
        Self::DeleteWhileAttached,
        Self::PublishWithoutStage,
        Self::StagedVolumesNotFound,
        Self::UnstableVolumeName,
        Self::BinderIsBlamed,
    ];

    /// Whether this bug causes the failure.
    pub(crate) fn causes(self, failure: &str) -> bool {
        match self {
            Self::UncertainAttachmentIgnored => failure.contains(ATTACHED_TWICE),
            Self::DeleteWhileAttached => failure.contains(DELETED_IN_USE),
            Self::PublishWithoutStage => failure.contains(PUBLISHED_UNSTAGED),
            // The node does not report a volume as in use that it did not find, so it may be detached while staged.
            Self::StagedVolumesNotFound => {
                failure.contains(DETACHED_MOUNTED) || failure.contains(LEFT_BEHIND)
            }
            Self::UnstableVolumeName => failure.contains(LEFT_BEHIND),
            Self::BinderIsBlamed => failure.contains(&format!("{WRONG_EXPLANATION} claim ")),
        }
    }
}

/// Deletes volumes as soon as their claims are deleted.
pub(crate) async fn delete_released_volumes(cluster: Cluster, driver: Client) {
    let volumes: Store<PersistentVolume> = cluster.store(WatchOptions::default());
    let mut changes = volumes.subscribe();
    while let Some(notice) = changes.next().await {
        let StoreEvent::Change(change) = notice else { continue };
        let released = |volume: &PersistentVolume| volume.status.phase == VolumePhase::Released;
        let Some(volume) = change.new.filter(|volume| released(volume)) else { continue };
        let Some(csi) = &volume.spec.csi else { continue };
        let request = v1::DeleteVolumeRequest { volume_id: csi.volume_handle.clone(), ..Default::default() };
        let _ = driver.controller().delete_volume(request).await;
    }
}

/// Changes the explanation so that every claim without a volume waits for the binder.
pub(crate) fn blame_the_binder(explanation: &mut Explanation) {
    let unbound = |step: &&mut Step| {
        let explained = step.message.contains("being deleted") || step.message.contains("capacity is ");
        step.object.starts_with("claim ") && step.state != State::Done && !explained
    };
    for step in explanation.steps.iter_mut().filter(unbound) {
        step.waiting_for = "the volume binder (persistentvolume-binder-controller)".to_owned();
    }
}
