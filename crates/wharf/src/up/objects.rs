//! API objects that `wharf up` creates for a driver: CSIDriver and classes. Existing objects of the same name are kept.

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster};
use wharf_model::{ApiResource, CSIDriver, Kind as _, StorageClass, VolumeSnapshotClass};
use wharf_sidecar::driver::Capabilities;

use super::external_driver::DriverOptions;

/// The file system of the default StorageClass.
const DEFAULT_FS: &str = "ext4";

/// An object to create unless one of that name exists.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InitialObject {
    pub(super) api: ApiResource,
    pub(super) object: Value,
}

/// The CSIDriver object, from the driver's capabilities and the options of `--csi`.
pub(super) fn csi_driver(name: &str, capabilities: &Capabilities, options: &DriverOptions) -> InitialObject {
    let mut modes = vec!["Persistent"];
    if options.ephemeral {
        modes.push("Ephemeral");
    }
    let mut spec = json!({
        "attachRequired": capabilities.publish_unpublish_volume,
        "podInfoOnMount": options.pod_info,
        "storageCapacity": capabilities.get_capacity && capabilities.topology,
        "volumeLifecycleModes": modes,
    });
    if let Some(policy) = &options.fs_group_policy {
        spec["fsGroupPolicy"] = json!(policy);
    }
    InitialObject { api: CSIDriver::API, object: json!({"metadata": {"name": name}, "spec": spec}) }
}

/// The local driver's StorageClasses: one per file system.
pub(super) fn local_classes(driver: &str) -> Vec<InitialObject> {
    let class = |fs: &str| {
        let mut metadata = json!({"name": local_class(fs)});
        if fs == DEFAULT_FS {
            metadata["annotations"] = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        }
        let object = json!({
            "metadata": metadata,
            "provisioner": driver,
            "parameters": {"csi.storage.k8s.io/fstype": fs},
            "allowVolumeExpansion": true,
            // There is only one node, so waiting for a pod has no benefit.
            "volumeBindingMode": "Immediate",
        });
        InitialObject { api: StorageClass::API, object }
    };
    [DEFAULT_FS, "xfs", "btrfs"].map(class).into()
}

fn local_class(fs: &str) -> String {
    match fs == DEFAULT_FS {
        true => "local".to_owned(),
        false => format!("local-{fs}"),
    }
}

/// The StorageClass of a driver other than the local one; by default it has the driver's name.
pub(super) fn class(driver: &str, capabilities: &Capabilities, options: &DriverOptions) -> InitialObject {
    let parameters = options.class.as_ref().map(|class| &class.parameters);
    let object = json!({
        "metadata": {"name": class_name(driver, options)},
        "provisioner": driver,
        "parameters": parameters,
        "allowVolumeExpansion": capabilities.expand_volume || capabilities.node_expand_volume,
        "volumeBindingMode": if capabilities.topology { "WaitForFirstConsumer" } else { "Immediate" },
    });
    InitialObject { api: StorageClass::API, object }
}

/// The name of the classes of a driver other than the local one.
pub(super) fn class_name<'a>(driver: &'a str, options: &'a DriverOptions) -> &'a str {
    options.class.as_ref().map_or(driver, |class| &class.name)
}

/// The default VolumeSnapshotClass of a driver.
pub(super) fn snapshot_class(name: &str, driver: &str) -> InitialObject {
    let object = json!({
        "metadata": {
            "name": name,
            "annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"},
        },
        "driver": driver,
        "deletionPolicy": "Delete",
    });
    InitialObject { api: VolumeSnapshotClass::API, object }
}

/// Creates the objects that do not exist.
pub(super) async fn create_missing(cluster: &Cluster, objects: Vec<InitialObject>) -> Result<(), ApiError> {
    for InitialObject { api, object } in objects {
        match cluster.create(&api, None, &object).await {
            Ok(_) | Err(ApiError::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::external_driver::ClassOptions;
    use super::*;

    #[test]
    fn csi_driver_object_follows_capabilities_and_options() {
        let capabilities = Capabilities {
            publish_unpublish_volume: true,
            get_capacity: true,
            topology: true,
            ..Capabilities::default()
        };
        let plain = csi_driver("d", &capabilities, &DriverOptions::default()).object;
        assert_eq!(plain["spec"]["attachRequired"], true);
        assert_eq!(plain["spec"]["storageCapacity"], true);
        assert_eq!(plain["spec"]["volumeLifecycleModes"], json!(["Persistent"]));
        assert_eq!(plain["spec"].get("fsGroupPolicy"), None);
        let with_options = DriverOptions {
            pod_info: true,
            ephemeral: true,
            fs_group_policy: Some("File".to_owned()),
            class: None,
        };
        let with_options = csi_driver("d", &Capabilities::default(), &with_options).object;
        assert_eq!(with_options["spec"]["attachRequired"], false);
        assert_eq!(with_options["spec"]["podInfoOnMount"], true);
        assert_eq!(with_options["spec"]["volumeLifecycleModes"], json!(["Persistent", "Ephemeral"]));
        assert_eq!(with_options["spec"]["fsGroupPolicy"], "File");
    }

    #[test]
    fn class_of_another_driver_has_its_name_or_the_options() {
        let capabilities = Capabilities { expand_volume: true, ..Capabilities::default() };
        let plain = class("d", &capabilities, &DriverOptions::default()).object;
        assert_eq!((&plain["metadata"]["name"], &plain["parameters"]), (&json!("d"), &Value::Null));
        let parameters = [("server".to_owned(), "nas".to_owned())].into();
        let options = DriverOptions {
            class: Some(ClassOptions { name: "nfs".to_owned(), parameters }),
            ..DriverOptions::default()
        };
        let named = class("d", &capabilities, &options).object;
        assert_eq!((&named["metadata"]["name"], &named["provisioner"]), (&json!("nfs"), &json!("d")));
        assert_eq!(named["parameters"], json!({"server": "nas"}));
        assert_eq!(named["allowVolumeExpansion"], true);
    }

    #[test]
    fn exactly_one_local_class_is_the_default() {
        let classes = local_classes("d");
        let names: Vec<_> = classes.iter().map(|class| class.object["metadata"]["name"].clone()).collect();
        assert_eq!(names, ["local", "local-xfs", "local-btrfs"]);
        let defaults = classes.iter().filter(|class| class.object["metadata"].get("annotations").is_some());
        assert_eq!(defaults.count(), 1);
    }
}
