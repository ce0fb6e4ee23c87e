//! Decodes PersistentVolumes. In-tree sources exist only here: decoding translates them.

use serde::Deserialize;

use super::{
    ClaimRef, CsiVolumeSource, NodeAffinity, PersistentVolume, PersistentVolumeSpec, ReclaimPolicy,
    VolumeStatus,
};
use crate::Meta;
use crate::claim::{AccessMode, ResourceList, VolumeMode};
use crate::decode::null_as_default;
use crate::migration::{self, InTreeSource};

/// A PersistentVolume in the API's format.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Volume {
    metadata: Meta,
    spec: Spec,
    status: VolumeStatus,
}

impl From<Volume> for PersistentVolume {
    fn from(volume: Volume) -> Self {
        let Volume { metadata, spec, status } = volume;
        let (mut spec, in_tree) = spec.split();
        spec.migrated = in_tree.map(|source| Box::new(migration::to_csi(&metadata, &spec, &source)));
        Self { metadata, spec, status }
    }
}

/// A spec in the API's format.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Spec {
    capacity: ResourceList,
    #[serde(deserialize_with = "null_as_default")]
    access_modes: Vec<AccessMode>,
    csi: Option<CsiVolumeSource>,
    claim_ref: Option<ClaimRef>,
    persistent_volume_reclaim_policy: ReclaimPolicy,
    #[serde(deserialize_with = "null_as_default")]
    storage_class_name: String,
    #[serde(deserialize_with = "null_as_default")]
    mount_options: Vec<String>,
    volume_mode: Option<VolumeMode>,
    node_affinity: Option<NodeAffinity>,
    volume_attributes_class_name: Option<String>,
    aws_elastic_block_store: Option<migration::source::Disk>,
    azure_disk: Option<migration::source::AzureDisk>,
    azure_file: Option<migration::source::AzureFile>,
    cinder: Option<migration::source::Disk>,
    gce_persistent_disk: Option<migration::source::GcePd>,
    portworx_volume: Option<migration::source::Disk>,
    vsphere_volume: Option<migration::source::Vsphere>,
}

impl Spec {
    fn split(self) -> (PersistentVolumeSpec, Option<InTreeSource>) {
        let in_tree = None
            .or(self.aws_elastic_block_store.map(InTreeSource::AwsEbs))
            .or(self.azure_disk.map(InTreeSource::AzureDisk))
            .or(self.azure_file.map(InTreeSource::AzureFile))
            .or(self.cinder.map(InTreeSource::Cinder))
            .or(self.gce_persistent_disk.map(InTreeSource::GcePd))
            .or(self.portworx_volume.map(InTreeSource::Portworx))
            .or(self.vsphere_volume.map(InTreeSource::Vsphere));
        let spec = PersistentVolumeSpec {
            capacity: self.capacity,
            access_modes: self.access_modes,
            csi: self.csi,
            migrated: None,
            claim_ref: self.claim_ref,
            persistent_volume_reclaim_policy: self.persistent_volume_reclaim_policy,
            storage_class_name: self.storage_class_name,
            mount_options: self.mount_options,
            volume_mode: self.volume_mode,
            node_affinity: self.node_affinity,
            volume_attributes_class_name: self.volume_attributes_class_name,
        };
        (spec, in_tree)
    }
}

impl From<Spec> for PersistentVolumeSpec {
    fn from(spec: Spec) -> Self {
        spec.split().0
    }
}
