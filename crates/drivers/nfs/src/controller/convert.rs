//! PersistentVolumes of nfs-subdir-external-provisioner as PersistentVolumes of this driver. Pure.
//!
//! Those are in-tree `nfs` volumes, whose source is immutable: they are created again, with the same name, for the same claim
//! and directory. What that provisioner would do when the volume is deleted is in its class, and becomes part of the handle.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::adopt::AdoptionError;
use crate::handle::{Location, VolumeHandle};
use crate::parameters::{ClassParameters, OnDelete};

/// The annotation that says which provisioner deletes a PersistentVolume.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Parts of a PersistentVolume's spec that do not depend on its source.
const KEPT: [&str; 6] = [
    "accessModes",
    "capacity",
    "mountOptions",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeMode",
];

/// What to convert.
#[derive(Debug, Clone, Copy)]
pub struct ConvertOptions<'a> {
    /// The name under which nfs-subdir-external-provisioner runs: its PROVISIONER_NAME.
    pub provisioner: &'a str,
    /// The directory that it uses: its NFS_PATH.
    pub share: &'a str,
    /// The name of this driver.
    pub driver: &'a str,
}

/// The converted PersistentVolumes, and those that are not converted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversion {
    /// To be created, after the old ones were deleted.
    pub volumes: Vec<Value>,
    /// Name and reason.
    pub refused: Vec<(String, AdoptionError)>,
}

impl Conversion {
    /// Converts the PersistentVolumes of a provisioner in the output of `kubectl get pv,storageclass -o json`. Others are
    /// ignored.
    pub fn of_nfs_subdir(json: &[u8], options: ConvertOptions<'_>) -> Result<Self, serde_json::Error> {
        #[derive(serde::Deserialize)]
        struct List {
            items: Vec<Value>,
        }

        let List { items } = serde_json::from_slice(json)?;
        let classes: BTreeMap<&str, &Value> = items
            .iter()
            .filter(|item| item["kind"] == "StorageClass")
            .filter_map(|class| Some((class["metadata"]["name"].as_str()?, &class["parameters"])))
            .collect();
        let mut conversion = Self::default();
        for volume in items.iter().filter(|item| item["kind"] == "PersistentVolume") {
            let by_provisioner = volume["metadata"]["annotations"][PROVISIONED_BY] == options.provisioner;
            if !by_provisioner || !volume["spec"]["nfs"].is_object() {
                continue;
            }
            let class = volume["spec"]["storageClassName"].as_str().and_then(|name| classes.get(name));
            match converted(volume, on_delete(class.copied()), options) {
                Ok(converted) => conversion.volumes.push(converted),
                Err(error) => {
                    let name = volume["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    conversion.refused.push((name, error));
                }
            }
        }
        Ok(conversion)
    }

    /// The converted PersistentVolumes as a list for `kubectl create -f -`.
    pub fn list(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "List", "items": self.volumes})
    }
}

/// What nfs-subdir-external-provisioner does with a directory: it archives it, unless the class says otherwise. A class that is
/// not known, or not understood, can say anything, so the directory is archived.
fn on_delete(parameters: Option<&Value>) -> OnDelete {
    let text = |key: &str| parameters.and_then(|parameters| parameters[key].as_str()).map(str::to_owned);
    let keys = ["onDelete", "archiveOnDelete"];
    let mut known: BTreeMap<String, String> =
        keys.into_iter().filter_map(|key| Some((key.to_owned(), text(key)?))).collect();
    known.insert("server".to_owned(), "any".to_owned());
    ClassParameters::parse(&known).ok().and_then(|parsed| parsed.on_delete).unwrap_or(OnDelete::Archive)
}

fn converted(
    volume: &Value,
    on_delete: OnDelete,
    options: ConvertOptions<'_>,
) -> Result<Value, AdoptionError> {
    let (metadata, spec) = (&volume["metadata"], &volume["spec"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&metadata["name"]);
    let (handle, location) =
        handle(&name, &text(&spec["nfs"]["server"]), options.share, &text(&spec["nfs"]["path"]), on_delete)?;
    let mut new_spec: Map<String, Value> = KEPT
        .into_iter()
        .filter(|key| !spec[key].is_null())
        .map(|key| (key.to_owned(), spec[key].clone()))
        .collect();
    if let Some(claim) = spec["claimRef"].as_object() {
        // Without the UID, the claim can be created again.
        let keys = ["apiVersion", "kind", "namespace", "name"];
        let kept: Map<String, Value> =
            keys.into_iter().filter_map(|key| Some((key.to_owned(), claim.get(key)?.clone()))).collect();
        new_spec.insert("claimRef".to_owned(), Value::Object(kept));
    }
    new_spec.insert(
        "csi".to_owned(),
        json!({
            "driver": options.driver,
            "volumeHandle": handle,
            "volumeAttributes": {
                "server": location.server, "share": location.share, "subdir": location.path.as_str(),
            },
        }),
    );
    let mut new_metadata = json!({"name": name, "annotations": {PROVISIONED_BY: options.driver}});
    if metadata["labels"].is_object() {
        new_metadata["labels"] = metadata["labels"].clone();
    }
    Ok(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": new_metadata, "spec": new_spec}))
}

/// The handle of a volume whose `spec.nfs.path` is beneath the provisioner's share.
fn handle(
    name: &str,
    server: &str,
    share: &str,
    path: &str,
    on_delete: OnDelete,
) -> Result<(String, Location), AdoptionError> {
    let (share, path) = (share.trim_matches('/'), path.trim_matches('/'));
    let beneath = match share {
        "" => Some(path),
        share => path.strip_prefix(share).and_then(|rest| rest.strip_prefix('/')),
    };
    let handle = VolumeHandle {
        server: server.to_owned(),
        share: share.to_owned(),
        sub_dir: beneath.unwrap_or_default().to_owned(),
        uuid: name.to_owned(),
        on_delete: match on_delete {
            OnDelete::Delete => String::new(),
            OnDelete::Retain => "retain".to_owned(),
            OnDelete::Archive => "archive".to_owned(),
        },
    };
    let text = handle.to_string();
    match handle.location() {
        Ok(location) => Ok((text, location)),
        Err(reason) => Err(AdoptionError::Handle { handle: text, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::PersistentVolumeFacts;

    const OPTIONS: ConvertOptions<'static> =
        ConvertOptions { provisioner: "p", share: "/export", driver: "nfs.csi.k8s.io" };

    fn volume(path: &str) -> Value {
        json!({
            "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-1", "uid": "u", "resourceVersion": "7", "annotations": {PROVISIONED_BY: "p"},
                "finalizers": ["kubernetes.io/pv-protection"], "labels": {"a": "b"},
            },
            "spec": {
                "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "nfs-client",
                "persistentVolumeReclaimPolicy": "Delete", "mountOptions": ["nfsvers=4.1"], "volumeMode": "Filesystem",
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data", "uid": "old"},
                "nfs": {"server": "srv", "path": path},
            },
            "status": {"phase": "Bound"},
        })
    }

    fn convert(items: &[Value]) -> Conversion {
        Conversion::of_nfs_subdir(json!({"items": items}).to_string().as_bytes(), OPTIONS).unwrap()
    }

    #[test]
    fn converted_volume_has_the_same_name_claim_and_directory() {
        let foreign = [
            json!({"kind": "PersistentVolume", "metadata": {"name": "x"}, "spec": {"nfs": {"server": "srv", "path": "/export/x"}}}),
            json!({"kind": "PersistentVolume", "metadata": {"name": "y", "annotations": {PROVISIONED_BY: "p"}}, "spec": {"csi": {}}}),
        ];
        let mut items = vec![volume("/export/ns-data-pvc-1")];
        items.extend(foreign);
        let conversion = convert(&items);
        assert_eq!((conversion.volumes.len(), conversion.refused.len()), (1, 0));
        let expected = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": "pvc-1", "annotations": {PROVISIONED_BY: "nfs.csi.k8s.io"}, "labels": {"a": "b"}},
            "spec": {
                "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}, "storageClassName": "nfs-client",
                "persistentVolumeReclaimPolicy": "Delete", "mountOptions": ["nfsvers=4.1"], "volumeMode": "Filesystem",
                "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "ns", "name": "data"},
                "csi": {
                    "driver": "nfs.csi.k8s.io", "volumeHandle": "srv#export#ns-data-pvc-1#pvc-1#archive",
                    "volumeAttributes": {"server": "srv", "share": "/export", "subdir": "ns-data-pvc-1"},
                },
            },
        });
        assert_eq!(conversion.volumes[0], expected);
        // What is converted can be adopted.
        let list = conversion.list().to_string();
        let facts = PersistentVolumeFacts::from_list(list.as_bytes(), "nfs.csi.k8s.io").unwrap();
        assert_eq!((facts.len(), facts[0].handle.as_str()), (1, "srv#export#ns-data-pvc-1#pvc-1#archive"));
    }

    #[test]
    fn class_decides_what_a_deletion_does() {
        for (parameters, policy) in [
            (json!({}), "archive"),
            (json!({"archiveOnDelete": "true"}), "archive"),
            (json!({"archiveOnDelete": "false"}), ""),
            (json!({"onDelete": "delete", "archiveOnDelete": "true"}), ""),
            (json!({"onDelete": "retain"}), "retain"),
            (json!({"onDelete": "other"}), "archive"),
            (json!({"archiveOnDelete": "perhaps"}), "archive"),
        ] {
            let class =
                json!({"kind": "StorageClass", "metadata": {"name": "nfs-client"}, "parameters": parameters});
            let conversion = convert(&[volume("/export/x"), class]);
            let handle = &conversion.volumes[0]["spec"]["csi"]["volumeHandle"];
            assert_eq!(handle, &json!(format!("srv#export#x#pvc-1#{policy}")), "{parameters}");
        }
    }

    #[test]
    fn volume_outside_of_the_share_is_refused() {
        for path in [
            "/exported/x",
            "/export",
            "/export/",
            "/export/../x",
            "/export/.wharf",
            "/other/x",
            "/export/a#b",
            "",
        ] {
            let conversion = convert(&[volume(path)]);
            assert!(conversion.volumes.is_empty(), "{path}");
            assert_eq!(conversion.refused[0].0, "pvc-1", "{path}");
        }
        let (root, _) = handle("pvc-1", "srv", "/", "/a/b", OnDelete::Retain).unwrap();
        assert_eq!(root, "srv##a/b#pvc-1#retain");
    }
}
