//! Examples of each plugin. `tests/translation` compares many more with upstream's library.

use serde_json::{Value, json};

use super::*;
use crate::PersistentVolume;

fn volume(spec: Value) -> PersistentVolume {
    let object = json!({"metadata": {"name": "v", "labels": {"topology.kubernetes.io/zone": "us-east1-b"}}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

/// sidecars.md 1.0 "In-tree migration".
#[test]
fn in_tree_source_is_decoded_as_source_of_its_driver() {
    for (spec, driver, handle) in [
        (json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}), "ebs.csi.aws.com", "vol-1"),
        (json!({"azureDisk": {"diskName": "d", "diskURI": "/d"}}), "disk.csi.azure.com", "/d"),
        (
            json!({"azureFile": {"secretName": "s", "shareName": "f", "secretNamespace": "n"}}),
            "file.csi.azure.com",
            "#s#f#v#n",
        ),
        (json!({"cinder": {"volumeID": "c"}}), "cinder.csi.openstack.org", "c"),
        (
            json!({"gcePersistentDisk": {"pdName": "d"}}),
            "pd.csi.storage.gke.io",
            "projects/UNSPECIFIED/zones/us-east1-b/disks/d",
        ),
        (json!({"portworxVolume": {"volumeID": "p"}}), "pxd.portworx.com", "p"),
        (json!({"vsphereVolume": {"volumePath": "[ds] d"}}), "csi.vsphere.vmware.com", "[ds] d"),
    ] {
        let volume = volume(spec.clone());
        let csi = volume.csi_source().unwrap();
        assert_eq!((&csi.driver[..], &csi.volume_handle[..]), (driver, handle), "{spec}");
        assert!(volume.is_migrated_to(driver) && !volume.is_for_driver(driver), "{spec}");
        assert_eq!(Plugin::of_source(&spec), Plugin::replaced_by(driver), "{spec}");
        assert!(volume.spec.csi.is_none(), "{spec}");
    }
}

#[test]
fn source_that_cannot_be_translated_has_error_and_no_csi_source() {
    for (spec, driver) in [
        (json!({"awsElasticBlockStore": {"volumeID": "aws://z/disk"}}), "ebs.csi.aws.com"),
        // Upstream's library decodes the URL; no volume ID needs that.
        (json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-%31"}}), "ebs.csi.aws.com"),
        (json!({"azureDisk": {"diskURI": "/d", "kind": "Dedicated"}}), "disk.csi.azure.com"),
        (json!({"azureFile": {"secretName": "s", "shareName": "f"}}), "file.csi.azure.com"),
    ] {
        let volume = volume(spec.clone());
        assert!(volume.translation_error().is_some() && volume.csi_source().is_none(), "{spec}");
        assert!(volume.is_migrated_to(driver), "{spec}");
    }
}

#[test]
fn other_volumes_are_not_translated() {
    for spec in [json!({"nfs": {"server": "s", "path": "/"}}), json!({"csi": {"driver": "ebs.csi.aws.com"}})]
    {
        let volume = volume(spec.clone());
        assert!(volume.spec.migrated.is_none() && volume.translation_error().is_none(), "{spec}");
        assert_eq!(volume.csi_spec(), &volume.spec, "{spec}");
    }
}

/// An inline volume of a VolumeAttachment has been translated by the attach/detach controller, or is refused.
#[test]
fn inline_in_tree_volume_is_not_translated() {
    let spec: PersistentVolumeSpec =
        serde_json::from_value(json!({"awsElasticBlockStore": {"volumeID": "vol-1"}})).unwrap();
    assert!(spec.csi.is_none() && spec.migrated.is_none());
}

#[test]
fn created_volume_becomes_in_tree_volume_with_zone_labels() {
    let mut object = json!({
        "metadata": {"name": "v"},
        "spec": {
            "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "ext4"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.ebs.csi.aws.com/zone", "operator": "In", "values": ["us-east-1a"]},
            ]}]}},
        },
    });
    to_in_tree(&mut object).unwrap();
    assert_eq!(
        object,
        json!({
            "metadata": {"name": "v", "labels": {
                "topology.kubernetes.io/region": "us-east-1", "topology.kubernetes.io/zone": "us-east-1a",
            }},
            "spec": {
                "awsElasticBlockStore": {"volumeID": "vol-1", "fsType": "ext4"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
                    {"key": "topology.kubernetes.io/region", "operator": "In", "values": ["us-east-1"]},
                ]}]}},
            },
        })
    );
}

#[test]
fn volume_of_driver_without_in_tree_plugin_is_not_translated_back() {
    let mut object = json!({"spec": {"csi": {"driver": "d.test", "volumeHandle": "h"}}});
    assert_eq!(to_in_tree(&mut object), Err(TranslationError::NoPlugin("d.test".into())));
}

#[test]
fn class_zones_become_allowed_topologies() {
    let class = serde_json::from_value(json!({
        "provisioner": "kubernetes.io/gce-pd",
        "parameters": {"fsType": "xfs", "zones": "a,b", "type": "pd-ssd"},
    }));
    let class = Plugin::GcePd.translate_class(&class.unwrap()).unwrap();
    let expected: StorageClass = serde_json::from_value(json!({
        "provisioner": "kubernetes.io/gce-pd",
        "parameters": {"csi.storage.k8s.io/fstype": "xfs", "type": "pd-ssd"},
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "topology.gke.io/zone", "values": ["a", "b"]}]}],
    }))
    .unwrap();
    assert_eq!(class, expected);
    assert_eq!(
        Plugin::GcePd.translate_class(&StorageClass {
            parameters: [("zone".to_owned(), "a".to_owned())].into(),
            ..expected
        }),
        Err(TranslationError::ZonesAndTopologies)
    );
}

#[test]
fn incomplete_handle_is_completed_from_node_id() {
    let node = "projects/p/zones/us-east1-b/instances/i";
    let repaired = |plugin: Plugin, handle| plugin.repair_handle(handle, node);
    let incomplete = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
    assert_eq!(repaired(Plugin::GcePd, incomplete).unwrap(), "projects/p/zones/us-east1-b/disks/d");
    assert_eq!(repaired(Plugin::AwsEbs, "vol-1").unwrap(), "vol-1");
    assert!(repaired(Plugin::GcePd, "vol-1").is_err());
}

/// Otherwise the disk of one PersistentVolume would be deleted with another.
#[test]
fn handles_of_one_volume_have_the_same_identity() {
    const GCE: &str = "projects/p/zones/us-east1-b/disks/d";
    const URI: &str = "/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/disks/d";
    for (plugin, one, other, expected) in [
        (Plugin::GcePd, GCE, GCE, true),
        (Plugin::GcePd, GCE, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", true),
        (Plugin::GcePd, GCE, "projects/UNSPECIFIED/zones/us-east1-b/disks/d", true),
        (Plugin::GcePd, GCE, "projects/UNSPECIFIED/zones/us-east1-c/disks/d", false),
        (Plugin::GcePd, GCE, "projects/p/regions/us-east1/disks/d", false),
        (Plugin::GcePd, GCE, "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/e", false),
        (Plugin::GcePd, GCE, "d", true),
        (Plugin::AzureFile, "g#Account#share#pv#ns", "#account#share#other#default", true),
        (Plugin::AzureFile, "g#account#share#pv#ns", "g#account#share", true),
        (Plugin::AzureFile, "g#account#share#pv#ns", "g#account#other#pv#ns", false),
        (Plugin::AzureFile, "unique", "unique", true),
        (Plugin::AzureFile, "unique", "other", false),
        (Plugin::AzureDisk, URI, &URI.to_lowercase(), true),
        (Plugin::AzureDisk, URI, &URI.replace("disks/d", "disks/e"), false),
        (Plugin::AwsEbs, "vol-1", "vol-1", true),
        (Plugin::AwsEbs, "vol-1", "vol-2", false),
        // A path and the UUID of the same disk cannot be compared.
        (Plugin::Vsphere, "[ds] d", "uuid", false),
    ] {
        assert_eq!(plugin.may_be_same_volume(one, other), expected, "{one} {other}");
        assert_eq!(plugin.may_be_same_volume(other, one), expected, "{other} {one}");
        assert!(!expected || plugin.identity(one) == plugin.identity(other), "{one} {other}");
    }
}

/// A PersistentVolume that cannot be decoded would be missing for all roles, of all drivers.
#[test]
fn in_tree_source_of_wrong_type_is_a_translation_error() {
    for (spec, driver) in [
        (json!({"awsElasticBlockStore": {"volumeID": 7}}), "ebs.csi.aws.com"),
        (json!({"gcePersistentDisk": "disk"}), "pd.csi.storage.gke.io"),
        (json!({"cinder": {"volumeID": "c", "readOnly": "yes"}}), "cinder.csi.openstack.org"),
        (json!({"vsphereVolume": {"volumePath": null}}), "csi.vsphere.vmware.com"),
    ] {
        let field = spec.as_object().unwrap().keys().next().unwrap().clone();
        let volume = volume(spec.clone());
        assert!(volume.is_migrated_to(driver) && volume.csi_source().is_none(), "{spec}");
        let error = volume.translation_error().unwrap().to_string();
        assert!(error.starts_with(&format!("cannot decode {field}: ")), "{error}");
    }
    let none = volume(json!({"awsElasticBlockStore": null, "cinder": {"volumeID": "c"}}));
    assert_eq!(none.csi_source().unwrap().volume_handle, "c");
}
