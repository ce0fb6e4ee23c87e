//! Adoption of PersistentVolumes that csi-driver-nfs created: writes the records that allow to delete them.
//!
//! A directory that a PersistentVolume uses which is not adopted in the same run is kept (see [`super::neighbours`]).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::errors::CallError;
use super::neighbours::{DirectoryUser, Place, neighbours, places_of_csi};
use super::{Controller, unexpected};
use crate::handle::{HandleError, Location, VolumeHandle};
use crate::options::combine;
use crate::parameters::{OnDelete, Transport, VolumeAttributes};
use crate::share::{Adopt, Request, Response};
use crate::template;

/// What a PersistentVolume says about its volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PersistentVolumeFacts {
    /// Its name.
    pub name: String,
    /// `spec.csi.volumeHandle`.
    pub handle: String,
    /// `spec.csi.volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// `spec.mountOptions`.
    pub mount_options: Vec<String>,
    /// `spec.capacity.storage` in bytes.
    pub capacity: u64,
    /// The handles of other volumes that have the same directory and are adopted in the same run.
    pub shared_with: BTreeSet<String>,
    /// The names of PersistentVolumes that use the directory, or one above or beneath it, and are not adopted with this one: the
    /// directory is never deleted.
    pub kept_for: BTreeSet<String>,
}

/// The part of a PersistentVolume that adoption reads.
#[derive(Deserialize)]
struct PersistentVolume {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    csi: Option<CsiSource>,
    nfs: Option<NfsSource>,
    #[serde(default)]
    mount_options: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CsiSource {
    driver: String,
    volume_handle: String,
    #[serde(default)]
    volume_attributes: BTreeMap<String, String>,
}

/// A volume that the kubelet mounts without a CSI driver.
#[derive(Deserialize)]
struct NfsSource {
    server: String,
    path: String,
}

#[derive(Deserialize)]
struct PersistentVolumeList {
    items: Vec<PersistentVolume>,
}

impl PersistentVolumeFacts {
    /// The volumes of a driver in the output of `kubectl get pv -o json`, which must have all PersistentVolumes of the cluster: the
    /// others can use the same directories. Sizes are recorded with the next expansion.
    pub fn from_list(json: &[u8], driver: &str) -> Result<Vec<Self>, serde_json::Error> {
        let list: PersistentVolumeList = serde_json::from_slice(json)?;
        let users: Vec<DirectoryUser> = list.items.iter().map(|volume| volume.user(driver)).collect();
        let facts = |(volume, user): (PersistentVolume, &DirectoryUser)| {
            let csi = volume.spec.csi.filter(|csi| csi.driver == driver)?;
            let found = neighbours(user, &users);
            Some(Self {
                name: volume.metadata.name,
                handle: csi.volume_handle,
                attributes: csi.volume_attributes,
                mount_options: volume.spec.mount_options,
                capacity: 0,
                shared_with: found.shared_with,
                kept_for: found.kept_for,
            })
        };
        Ok(list.items.into_iter().zip(&users).filter_map(facts).collect())
    }
}

impl PersistentVolume {
    /// What it uses, and whether it is adopted. Volumes of other CSI drivers count as well: csi-driver-nfs can run under another
    /// name, too.
    fn user(&self, driver: &str) -> DirectoryUser {
        let mut user = DirectoryUser { name: self.metadata.name.clone(), ..DirectoryUser::default() };
        if let Some(NfsSource { server, path }) = &self.spec.nfs {
            user.places.push(Place::new(server, path));
        }
        let Some(csi) = &self.spec.csi else { return user };
        user.places.extend(places_of_csi(&csi.volume_handle, &csi.volume_attributes));
        if csi.driver == driver {
            let adopted = adoptable(&csi.volume_handle, &csi.volume_attributes, &self.spec.mount_options);
            user.adopted = adopted.ok().map(|found| (csi.volume_handle.clone(), found.location));
        }
        user
    }
}

/// Why a PersistentVolume was not adopted. It can be used, but will not be deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdoptionError {
    /// The handle names no volume: a static volume, or a crafted one.
    #[error("volume {handle:?} has a handle that csi-driver-nfs did not write: {reason}")]
    Handle {
        /// The handle.
        handle: String,
        /// What is wrong with it.
        reason: HandleError,
    },
    /// The handle and the attributes name different directories.
    #[error("volume {0:?} has attributes that name another directory than its handle")]
    Differs(String),
    /// The mount options or attributes are invalid.
    #[error("volume {handle:?} has invalid attributes or mount options: {reason}")]
    Invalid {
        /// The handle.
        handle: String,
        /// What is wrong.
        reason: String,
    },
    /// The share refused it, or did not answer.
    #[error("{message}")]
    Share {
        /// What happened.
        message: String,
    },
}

impl Controller {
    /// Writes the record of a volume that has none; one that has a record is success.
    pub async fn adopt(&self, volume: &PersistentVolumeFacts) -> Result<(), AdoptionError> {
        let Adoptable { location, on_delete, options } =
            adoptable(&volume.handle, &volume.attributes, &volume.mount_options)?;
        let export =
            crate::worker::Export::new(super::plain_server(&location.server), &location.share, &options);
        let request = Adopt {
            handle: volume.handle.clone(),
            name: volume.name.clone(),
            path: location.path,
            size: volume.capacity,
            context: volume.attributes.clone(),
            options,
            on_delete,
            shared_with: volume.shared_with.clone(),
            keep: !volume.kept_for.is_empty(),
        };
        let failed = |error: CallError| AdoptionError::Share { message: error.to_string() };
        match self.call(&export, Request::Adopt(request)).await.map_err(|error| failed(error.into()))? {
            Response::Adopt(adopted) => adopted.map(drop).map_err(|error| failed(error.into())),
            other => Err(failed(unexpected(&other).into())),
        }
    }
}

/// A volume that can be adopted, as far as its PersistentVolume tells.
#[derive(Debug)]
struct Adoptable {
    location: Location,
    on_delete: Option<OnDelete>,
    options: Vec<String>,
}

/// Where an adoptable volume is: its handle and its attributes must agree, since either can be crafted.
fn adoptable(
    handle: &str,
    attributes: &BTreeMap<String, String>,
    mount_options: &[String],
) -> Result<Adoptable, AdoptionError> {
    let wrong = |reason| AdoptionError::Handle { handle: handle.to_owned(), reason };
    let parsed = VolumeHandle::parse(handle).map_err(wrong)?;
    let location = parsed.location().map_err(wrong)?;
    let invalid = |reason: String| AdoptionError::Invalid { handle: handle.to_owned(), reason };
    let attributes = VolumeAttributes::parse(attributes).map_err(|error| invalid(error.to_string()))?;
    let sub_dir = template::resolve_existing(&attributes.sub_dir, &attributes.metadata)
        .map_err(|error| invalid(error.to_string()))?;
    let flags = mount_options.iter().map(String::as_str);
    let options = combine(flags, &Transport::default()).map_err(|error| invalid(error.to_string()))?;
    // Up to v4.0, csi-driver-nfs wrote the volume's whole path as its share, and no subDir.
    let directory = |share: &str, path: &str| format!("{}/{path}", share.trim_end_matches('/'));
    let named = match sub_dir.trim_matches('/') {
        "" => attributes.share.clone(),
        path => directory(&attributes.share, path),
    };
    let same =
        attributes.server == location.server && named == directory(&location.share, location.path.as_str());
    match same {
        true => Ok(Adoptable { location, on_delete: parsed.on_delete(), options }),
        false => Err(AdoptionError::Differs(handle.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adoptable(volume: &PersistentVolumeFacts) -> Result<(Location, Option<OnDelete>), AdoptionError> {
        let found = super::adoptable(&volume.handle, &volume.attributes, &volume.mount_options)?;
        Ok((found.location, found.on_delete))
    }

    fn facts(handle: &str, pairs: &[(&str, &str)]) -> PersistentVolumeFacts {
        PersistentVolumeFacts {
            name: "pv".into(),
            handle: handle.into(),
            attributes: pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..PersistentVolumeFacts::default()
        }
    }

    #[test]
    fn volumes_of_the_driver_are_read_from_kubectl() {
        let json = br#"{"apiVersion": "v1", "kind": "List", "items": [
            {"metadata": {"name": "pvc-1"}, "spec": {"capacity": {"storage": "1Gi"}, "mountOptions": ["nfsvers=4.1"],
              "csi": {"driver": "nfs.csi.k8s.io", "volumeHandle": "srv#share#pvc-1##",
                "volumeAttributes": {"server": "srv", "share": "/share", "subdir": "pvc-1"}}}},
            {"metadata": {"name": "pvc-2"}, "spec": {"csi": {"driver": "other", "volumeHandle": "x"}}},
            {"metadata": {"name": "pvc-3"}, "spec": {"nfs": {"server": "srv", "path": "/share"}}}]}"#;
        let volumes = PersistentVolumeFacts::from_list(json, "nfs.csi.k8s.io").unwrap();
        assert_eq!(volumes.len(), 1);
        assert_eq!(
            (volumes[0].name.as_str(), volumes[0].mount_options.as_slice()),
            ("pvc-1", &["nfsvers=4.1".to_owned()][..])
        );
        assert!(adoptable(&volumes[0]).is_ok());
        assert!(PersistentVolumeFacts::from_list(b"{}", "x").is_err());
    }

    #[test]
    fn handle_and_attributes_must_name_the_same_directory() {
        let at = |sub_dir| [("server", "srv"), ("share", "/share"), ("subdir", sub_dir)];
        for (handle, sub_dir, on_delete) in [
            ("srv#share#pvc-1##", "pvc-1", None),
            ("srv#share#ns/data#pvc-1#archive", "ns/data", Some(OnDelete::Archive)),
            ("srv#share#pvc-1#", "pvc-1", None),
            ("srv/share/pvc-1", "pvc-1", None),
        ] {
            let (location, policy) = adoptable(&facts(handle, &at(sub_dir))).unwrap();
            assert_eq!((location.path.as_str(), policy), (sub_dir, on_delete), "{handle}");
        }
        // v3.0, v3.1 and v4.0 wrote the whole path as the share.
        for handle in ["srv#share#a/pvc-1", "srv/share/a/pvc-1"] {
            let whole = [("server", "srv"), ("share", "/share/a/pvc-1")];
            let (location, _) = adoptable(&facts(handle, &whole)).unwrap();
            assert!(["a/pvc-1", "pvc-1"].contains(&location.path.as_str()), "{handle}");
        }
        // A template that csi-driver-nfs left as it was.
        assert!(adoptable(&facts("srv#share#${pvc.metadata.name}#u#", &at("${pvc.metadata.name}"))).is_ok());
        assert!(matches!(
            adoptable(&facts("srv#share#y##", &[("server", "srv"), ("share", "/share")])),
            Err(AdoptionError::Differs(_))
        ));
        assert!(matches!(adoptable(&facts("srv#share#x##", &at("y"))), Err(AdoptionError::Differs(_))));
        assert!(matches!(adoptable(&facts("other#share#y##", &at("y"))), Err(AdoptionError::Differs(_))));
        assert!(matches!(adoptable(&facts("srv#share#", &at(""))), Err(AdoptionError::Handle { .. })));
        assert!(matches!(
            adoptable(&facts("srv#share#../x##", &at("../x"))),
            Err(AdoptionError::Handle { .. })
        ));
        assert!(matches!(adoptable(&facts("any", &at("y"))), Err(AdoptionError::Handle { .. })));
        assert!(matches!(adoptable(&facts("srv#share#y##", &[])), Err(AdoptionError::Invalid { .. })));
    }
}
