//! Decodes PersistentVolumes. In-tree sources exist only here: decoding translates them.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use super::{
    ClaimRef, CsiVolumeSource, NodeAffinity, PersistentVolume, PersistentVolumeSpec, ReclaimPolicy,
    VolumeStatus,
};
use crate::Meta;
use crate::claim::{AccessMode, ResourceList, VolumeMode};
use crate::decode::null_as_default;
use crate::migration::source::{AzureDisk, AzureFile, Disk, GcePd, Vsphere};
use crate::migration::{self, InTreeSource, Migrated, Plugin, TranslationError};

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
        let translate = |source| match source {
            Ok(source) => migration::to_csi(&metadata, &spec, &source),
            Err((plugin, error)) => Migrated { plugin, spec: Err(error) },
        };
        spec.migrated = in_tree.map(translate).map(Box::new);
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
    aws_elastic_block_store: Option<Lenient<Disk>>,
    azure_disk: Option<Lenient<AzureDisk>>,
    azure_file: Option<Lenient<AzureFile>>,
    cinder: Option<Lenient<Disk>>,
    gce_persistent_disk: Option<Lenient<GcePd>>,
    portworx_volume: Option<Lenient<Disk>>,
    vsphere_volume: Option<Lenient<Vsphere>>,
}

/// An in-tree source, or why it cannot be decoded. The error is that of its translation, so that one such volume cannot
/// stop a watch.
struct Lenient<T>(Result<T, String>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(serde_json::from_value(value).map_err(|error| error.to_string())))
    }
}

/// A source to translate, or why it cannot be decoded.
type Decoded = Result<InTreeSource, (Plugin, TranslationError)>;

impl<T> Lenient<T> {
    fn decoded(self, plugin: Plugin, source: fn(T) -> InTreeSource) -> Decoded {
        let field = plugin.source_field();
        self.0.map(source).map_err(|error| (plugin, TranslationError::Source { field, error }))
    }
}

impl Spec {
    fn split(self) -> (PersistentVolumeSpec, Option<Decoded>) {
        let in_tree = None
            .or(self.aws_elastic_block_store.map(|of| of.decoded(Plugin::AwsEbs, InTreeSource::AwsEbs)))
            .or(self.azure_disk.map(|of| of.decoded(Plugin::AzureDisk, InTreeSource::AzureDisk)))
            .or(self.azure_file.map(|of| of.decoded(Plugin::AzureFile, InTreeSource::AzureFile)))
            .or(self.cinder.map(|of| of.decoded(Plugin::Cinder, InTreeSource::Cinder)))
            .or(self.gce_persistent_disk.map(|of| of.decoded(Plugin::GcePd, InTreeSource::GcePd)))
            .or(self.portworx_volume.map(|of| of.decoded(Plugin::Portworx, InTreeSource::Portworx)))
            .or(self.vsphere_volume.map(|of| of.decoded(Plugin::Vsphere, InTreeSource::Vsphere)));
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
