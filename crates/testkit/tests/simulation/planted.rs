//! Bugs that are planted, so that it is known that the simulation would find them: by settings of our own parts where there is
//! one that is as wrong, and else into the scripted world around them.

use wharf_cluster::{Cluster, Notice, Store, WatchOptions};
use wharf_csi::{Client, v1};
use wharf_explain::{State, Step, Story};
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
    /// `wharf explain` says of every claim without a volume that it is the binder's turn.
    BinderIsBlamed,
}

impl Bug {
    pub(crate) const ALL: [Self; 6] = [
        Self::UncertainBlocksNobody,
        Self::DeleteAtOnce,
        Self::PublishWithoutStage,
        Self::ForgottenUnstage,
        Self::AnotherNameEachTime,
        Self::BinderIsBlamed,
    ];

    /// What is said when it is found. Anything else that fails is not this bug's doing.
    pub(crate) fn shows(self) -> &'static str {
        match self {
            Self::UncertainBlocksNobody => "while it is attached to",
            Self::DeleteAtOnce => "is deleted while it is in use",
            Self::PublishWithoutStage => "where it is not staged",
            Self::ForgottenUnstage | Self::AnotherNameEachTime => "left behind",
            Self::BinderIsBlamed => "another reason is named for claim",
        }
    }
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

/// An explain that knows nobody else.
pub(crate) fn blame_the_binder(story: &mut Story) {
    let unbound = |step: &&mut Step| {
        let told = step.says.contains("being deleted") || step.says.contains(" and wants ");
        step.object.starts_with("claim ") && step.state != State::Done && !told
    };
    for step in story.steps.iter_mut().filter(unbound) {
        step.whose = "the volume binder (persistentvolume-binder-controller)".to_owned();
    }
}
