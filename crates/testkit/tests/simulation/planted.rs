//! Bugs that are planted into the scripted world, so that it is known that the simulation would find them.

use serde_json::json;
use wharf_cluster::{Cluster, Notice, Store, WatchOptions};
use wharf_csi::{Client, v1};
use wharf_model::volume::VolumePhase;
use wharf_model::whole::Pod;
use wharf_model::{Key, Kind as _, PersistentVolume, PersistentVolumeClaim, VolumeAttachment};
use wharf_node::paths::hash;

use crate::driver::DRIVER;

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A volume is attached where its pod is, wherever else it is.
    AttachBeforeDetach,
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
        Self::AttachBeforeDetach,
        Self::DeleteAtOnce,
        Self::PublishWithoutStage,
        Self::ForgottenUnstage,
        Self::AnotherNameEachTime,
    ];
}

/// Makes an attachment for each pod with a node and a bound claim.
pub(crate) async fn attach_at_once(cluster: Cluster) {
    let pods: Store<Pod> = cluster.store(WatchOptions::default());
    let claims: Store<PersistentVolumeClaim> = cluster.store(WatchOptions::default());
    let volumes: Store<PersistentVolume> = cluster.store(WatchOptions::default());
    let mut changes = pods.changes();
    while let Some(notice) = changes.next().await {
        let Notice::Change(change) = notice else { continue };
        let Some(pod) = change.new.filter(|pod| !pod.spec.node_name.is_empty()) else { continue };
        for claim in pod.claims() {
            let namespace = pod.metadata.namespace.clone().unwrap_or_default();
            let Some(claim) = claims.get(&Key::namespaced(namespace, claim)) else { continue };
            let Some(volume) = volumes.get(&Key::cluster(&claim.spec.volume_name)) else { continue };
            let Some(csi) = &volume.spec.csi else { continue };
            let node = &pod.spec.node_name;
            let name = format!("csi-{}", hash(&format!("{}{DRIVER}{node}", csi.volume_handle)));
            let attachment = json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
                "spec": {
                    "attacher": DRIVER, "nodeName": node,
                    "source": {"persistentVolumeName": volume.metadata.name},
                },
            });
            // If it is there, somebody else was right.
            let _ = cluster.create(&VolumeAttachment::API, None, &attachment).await;
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
