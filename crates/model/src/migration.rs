//! CSI migration: volumes and classes of in-tree plugins, translated for the CSI drivers that replace these plugins.
//!
//! Start reading at [`Plugin`]. A decoded [`PersistentVolume`](crate::PersistentVolume) with an in-tree source has its
//! translation in `spec.migrated`; [`translate_class`](Plugin::translate_class) does the same for a class. The
//! provisioner creates the volumes of such a class with an in-tree source: [`to_in_tree`]. The rules are those of
//! `k8s.io/csi-translation-lib`, and `tests/translation` compares the results. Where that library's result would depend
//! on the order of a map, the last key in alphabetical order is used here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::volume::{CsiVolumeSource, NodeAffinity, PersistentVolumeSpec};
use crate::{Meta, StorageClass};

mod aws_ebs;
mod azure_disk;
mod azure_file;
mod cinder;
mod class;
mod gce_pd;
mod placement;
mod portworx;
pub(crate) mod source;
#[cfg(test)]
mod tests;
mod vsphere;

pub(crate) use source::InTreeSource;

use placement::Placement;

/// An in-tree plugin that a CSI driver replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    /// AWS Elastic Block Store.
    AwsEbs,
    /// Azure Disk.
    AzureDisk,
    /// Azure File.
    AzureFile,
    /// OpenStack Cinder.
    Cinder,
    /// Google Compute Engine Persistent Disk.
    GcePd,
    /// Portworx.
    Portworx,
    /// vSphere.
    Vsphere,
}

/// Why a volume or class cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TranslationError {
    /// No plugin was replaced by this driver.
    #[error("driver {0:?} replaces no in-tree plugin")]
    NoPlugin(String),
    /// The volume ID is none of EBS.
    #[error("invalid EBS volume ID {0:?}: expected vol-<id> or aws://<zone>/vol-<id>")]
    EbsVolume(String),
    /// Not a managed disk.
    #[error("Azure disks of kind {0:?} are not supported by the CSI driver, which supports only Managed")]
    AzureDiskKind(String),
    /// The URI has no disk name.
    #[error("cannot get the name of the disk from its URI {0:?}")]
    AzureDiskUri(String),
    /// Neither the source nor the claim has a namespace for the secret.
    #[error("cannot determine the namespace of the secret: set secretNamespace of the azureFile source")]
    NoSecretNamespace,
    /// The handle has no share name.
    #[error("cannot get the share from volume handle {0:?}: expected at least two #")]
    AzureFileHandle(String),
    /// The handle is not that of a persistent disk.
    #[error("volume handle {0:?} does not have the form projects/<project>/zones/<zone>/disks/<disk>")]
    GcePdHandle(String),
    /// The node ID is not that of an instance.
    #[error("node ID {0:?} does not have the form projects/<project>/zones/<zone>/instances/<instance>")]
    GceNode(String),
    /// The partition is not a number.
    #[error("partition {0:?} in the volume's attributes is not a number")]
    Partition(String),
    /// The region cannot be derived from a zone.
    #[error("cannot get the region from zone {0:?}")]
    Zone(String),
    /// There is no zone, or the zones are in several regions.
    #[error("the zones {0:?} are not in exactly one region")]
    Region(Vec<String>),
    /// The class has both.
    #[error("cannot simultaneously set allowed topologies and zone/zones parameters")]
    ZonesAndTopologies,
    /// The in-tree source does not have the fields of its plugin.
    #[error("cannot decode {field}: {error}")]
    Source {
        /// The field of the source.
        field: &'static str,
        /// What is wrong with it.
        error: String,
    },
    /// The volume that the driver created has no valid source.
    #[error("cannot decode the PersistentVolume to translate: {0}")]
    Volume(String),
}

/// A volume with an in-tree source, translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The plugin.
    pub plugin: Plugin,
    /// The spec with the CSI source that replaces the in-tree source.
    pub spec: Result<PersistentVolumeSpec, TranslationError>,
}

impl Plugin {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::AwsEbs,
        Self::AzureDisk,
        Self::AzureFile,
        Self::Cinder,
        Self::GcePd,
        Self::Portworx,
        Self::Vsphere,
    ];

    /// The name of the plugin, which classes have as provisioner.
    pub const fn in_tree_name(self) -> &'static str {
        match self {
            Self::AwsEbs => "kubernetes.io/aws-ebs",
            Self::AzureDisk => "kubernetes.io/azure-disk",
            Self::AzureFile => "kubernetes.io/azure-file",
            Self::Cinder => "kubernetes.io/cinder",
            Self::GcePd => "kubernetes.io/gce-pd",
            Self::Portworx => "kubernetes.io/portworx-volume",
            Self::Vsphere => "kubernetes.io/vsphere-volume",
        }
    }

    /// The CSI driver that replaces it.
    pub const fn driver(self) -> &'static str {
        match self {
            Self::AwsEbs => "ebs.csi.aws.com",
            Self::AzureDisk => "disk.csi.azure.com",
            Self::AzureFile => "file.csi.azure.com",
            Self::Cinder => "cinder.csi.openstack.org",
            Self::GcePd => "pd.csi.storage.gke.io",
            Self::Portworx => "pxd.portworx.com",
            Self::Vsphere => "csi.vsphere.vmware.com",
        }
    }

    /// The field of a volume that has its source.
    pub const fn source_field(self) -> &'static str {
        match self {
            Self::AwsEbs => "awsElasticBlockStore",
            Self::AzureDisk => "azureDisk",
            Self::AzureFile => "azureFile",
            Self::Cinder => "cinder",
            Self::GcePd => "gcePersistentDisk",
            Self::Portworx => "portworxVolume",
            Self::Vsphere => "vsphereVolume",
        }
    }

    /// The plugin with this name.
    pub fn named(in_tree_name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.in_tree_name() == in_tree_name)
    }

    /// The plugin of the in-tree source that a volume of a pod or the spec of a PersistentVolume has.
    pub fn of_source(volume: &Value) -> Option<Self> {
        let is_set = |field: &str| volume.get(field).is_some_and(|source| !source.is_null());
        Self::ALL.into_iter().find(|plugin| is_set(plugin.source_field()))
    }

    /// The plugin that a driver replaces.
    pub fn replaced_by(driver: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.driver() == driver)
    }

    /// The class as its CSI driver expects it: parameters and allowed topologies.
    pub fn translate_class(self, class: &StorageClass) -> Result<StorageClass, TranslationError> {
        class::translate(self, class)
    }

    /// The part of a handle that all handles of the same volume have in common: a translated handle may lack the project,
    /// have the name of its PersistentVolume, or be spelled differently. Different volumes may have the same.
    pub fn identity(self, handle: &str) -> Cow<'_, str> {
        match self {
            Self::GcePd => gce_pd::disk_of(handle).into(),
            Self::AzureFile => azure_file::share_of(handle),
            Self::AzureDisk => handle.to_lowercase().into(),
            Self::AwsEbs | Self::Cinder | Self::Portworx | Self::Vsphere => handle.into(),
        }
    }

    /// Whether two handles can be of the same volume.
    pub fn may_be_same_volume(self, one: &str, other: &str) -> bool {
        let same_place = self != Self::GcePd || gce_pd::may_be_same_place(one, other);
        same_place && self.identity(one) == self.identity(other)
    }

    /// The handle that the driver itself reports for a volume whose translated handle is incomplete. The rest is taken
    /// from the ID of the node that it is attached to.
    pub fn repair_handle(self, handle: &str, node_id: &str) -> Result<String, TranslationError> {
        match self {
            Self::GcePd => gce_pd::repair_handle(handle, node_id),
            _ => Ok(handle.to_owned()),
        }
    }
}

/// The class as the driver is to see it: translated, if its provisioner is the in-tree plugin that the driver replaces.
pub fn class_for_driver<'a>(
    class: &'a StorageClass,
    driver: &str,
) -> Result<Cow<'a, StorageClass>, TranslationError> {
    match Plugin::replaced_by(driver).filter(|plugin| plugin.in_tree_name() == class.provisioner) {
        Some(plugin) => plugin.translate_class(class).map(Cow::Owned),
        None => Ok(Cow::Borrowed(class)),
    }
}

/// Whether the driver provisions volumes of a class with this provisioner: its own name, or that of the in-tree plugin
/// that it replaces.
pub fn provisions(driver: &str, provisioner: &str) -> bool {
    provisioner == driver
        || Plugin::replaced_by(driver).is_some_and(|plugin| plugin.in_tree_name() == provisioner)
}

/// Translates a volume for the driver that replaces its in-tree plugin.
pub(crate) fn to_csi(meta: &Meta, spec: &PersistentVolumeSpec, source: &InTreeSource) -> Migrated {
    let plugin = source.plugin();
    let mut placement =
        Placement { labels: BTreeMap::from(&meta.labels), affinity: spec.node_affinity.clone() };
    let csi = match source {
        InTreeSource::AwsEbs(source) => aws_ebs::to_csi(source, &mut placement),
        InTreeSource::AzureDisk(source) => azure_disk::to_csi(source),
        InTreeSource::AzureFile(source) => azure_file::to_csi(source, meta, spec.claim_ref.as_ref()),
        InTreeSource::Cinder(source) => Ok(cinder::to_csi(source, &mut placement)),
        InTreeSource::GcePd(source) => gce_pd::to_csi(source, &mut placement),
        InTreeSource::Portworx(source) => Ok(portworx::to_csi(source, meta)),
        InTreeSource::Vsphere(source) => Ok(vsphere::to_csi(source, &mut placement)),
    };
    let access_modes = match plugin {
        Plugin::GcePd => gce_pd::access_modes(&spec.access_modes),
        _ => spec.access_modes.clone(),
    };
    let spec = csi.map(|csi| PersistentVolumeSpec {
        csi: Some(csi),
        access_modes,
        node_affinity: placement.affinity,
        ..spec.clone()
    });
    Migrated { plugin, spec }
}

/// Replaces the CSI source of a PersistentVolume with the in-tree source of the plugin that its driver replaces, and its
/// topology with the plugin's. For volumes of a class of that plugin.
pub fn to_in_tree(object: &mut Value) -> Result<(), TranslationError> {
    let decode_error = |error: serde_json::Error| TranslationError::Volume(error.to_string());
    let csi: CsiVolumeSource = serde_json::from_value(object["spec"]["csi"].clone()).map_err(decode_error)?;
    let plugin =
        Plugin::replaced_by(&csi.driver).ok_or_else(|| TranslationError::NoPlugin(csi.driver.clone()))?;
    let decode = |value: &Value| serde_json::from_value(value.clone()).map_err(decode_error);
    let affinity: Option<NodeAffinity> =
        serde_json::from_value(object["spec"]["nodeAffinity"].clone()).map_err(decode_error)?;
    let had_affinity = affinity.is_some();
    let labels: Option<BTreeMap<String, String>> = decode(&object["metadata"]["labels"])?;
    let mut placement = Placement { labels: labels.unwrap_or_default(), affinity };
    let source = match plugin {
        Plugin::AwsEbs => aws_ebs::to_in_tree(&csi, &mut placement)?,
        Plugin::AzureDisk => azure_disk::to_in_tree(&csi)?,
        Plugin::AzureFile => {
            let (source, resource_group) = azure_file::to_in_tree(&csi)?;
            if let Some(resource_group) = resource_group {
                object["metadata"]["annotations"][azure_file::RESOURCE_GROUP] = json!(resource_group);
            }
            source
        }
        Plugin::Cinder => cinder::to_in_tree(&csi, &mut placement)?,
        Plugin::GcePd => gce_pd::to_in_tree(&csi, &mut placement)?,
        Plugin::Portworx => portworx::to_in_tree(&csi),
        Plugin::Vsphere => vsphere::to_in_tree(&csi, &mut placement),
    };
    if !placement.labels.is_empty() {
        object["metadata"]["labels"] = json!(placement.labels);
    }
    if had_affinity && let Some(affinity) = &placement.affinity {
        object["spec"]["nodeAffinity"] = placement::to_json(affinity);
    }
    if let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("csi");
        spec.insert(plugin.source_field().to_owned(), source);
    }
    Ok(())
}

/// A JSON object without the empty optional fields.
fn source_json(required: &[(&str, &str)], fs_type: &str, partition: i32, read_only: bool) -> Value {
    let mut source: Value = required.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect();
    if !fs_type.is_empty() {
        source["fsType"] = json!(fs_type);
    }
    if partition != 0 {
        source["partition"] = json!(partition);
    }
    if read_only {
        source["readOnly"] = json!(true);
    }
    source
}

/// The partition of a volume that was migrated, or 0.
fn partition(csi: &CsiVolumeSource) -> Result<i32, TranslationError> {
    match csi.volume_attributes.get("partition") {
        None => Ok(0),
        Some(text) => text.parse().map_err(|_| TranslationError::Partition(text.to_owned())),
    }
}
