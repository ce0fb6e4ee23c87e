//! What is in the API before the first user comes: drivers, classes. Somebody's own version of any of them is left as it is.

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster};
use wharf_model::{Api, CSIDriver, Kind as _, StorageClass, VolumeSnapshotClass};
use wharf_sidecar::driver::Capabilities;

use super::drivers::Described;

/// The class of file systems that is taken where a claim names none.
const DEFAULT: &str = "ext4";

/// An object to make, if there is none of its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Made {
    pub(super) api: Api,
    pub(super) object: Value,
}

/// Tells Kubernetes about a driver what the driver tells of itself, and what was said of it on the command line.
pub(super) fn csi_driver(name: &str, can: &Capabilities, described: &Described) -> Made {
    let mut modes = vec!["Persistent"];
    if described.ephemeral {
        modes.push("Ephemeral");
    }
    let mut spec = json!({
        "attachRequired": can.publish_unpublish_volume,
        "podInfoOnMount": described.pod_info,
        "storageCapacity": can.get_capacity && can.topology,
        "volumeLifecycleModes": modes,
    });
    if let Some(policy) = &described.fs_group_policy {
        spec["fsGroupPolicy"] = json!(policy);
    }
    Made { api: CSIDriver::API, object: json!({"metadata": {"name": name}, "spec": spec}) }
}

/// The local driver's classes: one for each file system.
pub(super) fn local_classes(driver: &str) -> Vec<Made> {
    let class = |fs: &str| {
        let mut metadata = json!({"name": local_class(fs)});
        if fs == DEFAULT {
            metadata["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        }
        let object = json!({
            "metadata": metadata,
            "provisioner": driver,
            "parameters": {"csi.storage.k8s.io/fstype": fs},
            "allowVolumeExpansion": true,
            // There is one node: nothing is gained by waiting for a pod.
            "volumeBindingMode": "Immediate",
        });
        Made { api: StorageClass::API, object }
    };
    [DEFAULT, "xfs", "btrfs"].map(class).into()
}

fn local_class(fs: &str) -> String {
    match fs == DEFAULT {
        true => "local".to_owned(),
        false => format!("local-{fs}"),
    }
}

/// The class of somebody else's driver, by its name.
pub(super) fn class(driver: &str, can: &Capabilities) -> Made {
    let object = json!({
        "metadata": {"name": driver},
        "provisioner": driver,
        "allowVolumeExpansion": can.expand_volume || can.node_expand_volume,
        "volumeBindingMode": if can.topology { "WaitForFirstConsumer" } else { "Immediate" },
    });
    Made { api: StorageClass::API, object }
}

/// How snapshots of a driver's volumes are taken, where they name no class.
pub(super) fn snapshot_class(name: &str, driver: &str) -> Made {
    let object = json!({
        "metadata": {
            "name": name,
            "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"},
        },
        "driver": driver,
        "deletionPolicy": "Delete",
    });
    Made { api: VolumeSnapshotClass::API, object }
}

/// Makes those that are not there.
pub(super) async fn make(cluster: &Cluster, objects: Vec<Made>) -> Result<(), ApiError> {
    for Made { api, object } in objects {
        match cluster.create(&api, None, &object).await {
            Ok(_) | Err(ApiError::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_described_by_what_it_can_do() {
        let can = Capabilities {
            publish_unpublish_volume: true,
            get_capacity: true,
            topology: true,
            ..Capabilities::default()
        };
        let plain = csi_driver("d", &can, &Described::default()).object;
        assert_eq!(plain["spec"]["attachRequired"], true);
        assert_eq!(plain["spec"]["storageCapacity"], true);
        assert_eq!(plain["spec"]["volumeLifecycleModes"], json!(["Persistent"]));
        assert_eq!(plain["spec"].get("fsGroupPolicy"), None);
        let told = Described { pod_info: true, ephemeral: true, fs_group_policy: Some("File".to_owned()) };
        let told = csi_driver("d", &Capabilities::default(), &told).object;
        assert_eq!(told["spec"]["attachRequired"], false);
        assert_eq!(told["spec"]["podInfoOnMount"], true);
        assert_eq!(told["spec"]["volumeLifecycleModes"], json!(["Persistent", "Ephemeral"]));
        assert_eq!(told["spec"]["fsGroupPolicy"], "File");
    }

    #[test]
    fn one_class_is_the_default() {
        let classes = local_classes("d");
        let names: Vec<_> = classes.iter().map(|class| class.object["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["local", "local-xfs", "local-btrfs"]);
        let defaults = classes.iter().filter(|class| class.object["metadata"].get("annotations").is_some());
        assert_eq!(defaults.count(), 1);
    }
}
