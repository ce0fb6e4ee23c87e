//! Bugs that are planted, so that it is known that the simulation would find them: by settings of our own parts where there is
//! one that is as wrong, and else into the scripted world around them.

use wharf_cluster::{Cluster, Notice, Store, WatchOptions};
use wharf_csi::{Client, v1};
use wharf_model::PersistentVolume;
use wharf_model::volume::VolumePhase;

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// An attachment of unknown state stands in the way of no other node; upstream's attach/detach controller does so.
    UncertainBlocksNobody,
    /// A volume whose claim is gone is deleted without a look at where it is attached.
    DeleteAtOnce,
    /// The driver is not asked to stage.
    PublishWithoutStage,
    /// After a restart volumes that are staged and no pod has are not looked for; upstream's kubelet does so.
    ForgottenUnstage,
    /// CreateVolume is called with another name at each attempt.
    AnotherNameEachTime,
}

impl Bug {
    pub(crate) const ALL: [Self; 5] = [
        Self::UncertainBlocksNobody,
        Self::DeleteAtOnce,
        Self::PublishWithoutStage,
        Self::ForgottenUnstage,
        Self::AnotherNameEachTime,
    ];
}

/// Deletes volumes as soon as their claims are gone.
pub(crate) async fn delete_at_once(cluster: Cluster, driver: Client) {
    let volumes: Store<PersistentVolume> = cluster.store(WatchOptions::default());
    let mut changes = volumes.changes();
    while let Some(notice) = changes.next().await {
        let Notice::Change(change) = notice else { continue };
        let released = |volume: &PersistentVolume| volume.status.phase == VolumePhase::Released;
        let Some(volume) = change.new.filter(|volume| released(volume)) else { continue };
        let Some(csi) = &volume.spec.csi else { continue };
        let request = v1::DeleteVolumeRequest { volume_id: csi.volume_handle.clone(), ..Default::default() };
        let _ = driver.controller().delete_volume(request).await;
    }
}
