//! Adoption next to PersistentVolumes that use the same directories and are not adopted.

use serde_json::{Value, json};
use wharf_driver::backend::{DeleteVolume, Volumes as _};

use super::{Directories, controller};
use crate::controller::{Controller, PersistentVolumeFacts};
use crate::parameters::OnDelete;

fn csi(name: &str, handle: &str, share: &str, sub_dir: &str) -> Value {
    let attributes = json!({"server": "srv", "share": share, "subDir": sub_dir});
    let csi = json!({"driver": "nfs.csi.k8s.io", "volumeHandle": handle, "volumeAttributes": attributes});
    json!({"metadata": {"name": name}, "spec": {"csi": csi}})
}

fn in_tree(name: &str, server: &str, path: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"nfs": {"server": server, "path": path}}})
}

/// Adopts what can be adopted, and returns how many were.
async fn adopt(controller: &Controller, volumes: &[Value]) -> usize {
    let list = json!({ "items": volumes }).to_string();
    let mut adopted = 0;
    for volume in PersistentVolumeFacts::from_list(list.as_bytes(), "nfs.csi.k8s.io").unwrap() {
        adopted += usize::from(controller.adopt(&volume).await.is_ok());
    }
    adopted
}

fn write(directories: &Directories, path: &str) {
    let file = directories.at(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "precious").unwrap();
}

/// The guide moves one PersistentVolume of nfs-subdir-external-provisioner at a time, and a constant pathPattern makes them share
/// a directory.
#[tokio::test]
async fn adopted_directory_that_another_persistent_volume_uses_is_never_deleted() {
    let handle = "srv#share#shared#a#";
    let own = csi("a", handle, "/share", "shared");
    for (other, kept) in [
        (in_tree("b", "srv", "/share/shared"), true),
        (in_tree("b", "srv", "/share/shared/"), true),
        (in_tree("b", "SRV.", "/share//shared/./x"), true),
        (in_tree("b", "srv", "/share/shared/b"), true),
        (in_tree("b", "srv", "/share"), true),
        (in_tree("b", "srv", "/"), true),
        (in_tree("b", "10.0.0.1", "/share/shared"), true),
        (csi("b", "any text", "/share", "shared"), true),
        (csi("b", "any text", "/share/shared", ""), true),
        (csi("b", "srv#share/shared#deep##", "/share/shared", "deep"), true),
        // Its attributes say one directory, its handle another one: refused, and it may use either.
        (csi("b", "srv#share#shared##", "/share", "elsewhere"), true),
        // Both have one handle: deleting one deletes the other.
        (csi("b", handle, "/share", "shared"), true),
        (in_tree("b", "srv", "/share/shared2"), false),
        (in_tree("b", "srv", "/share/other"), false),
        (in_tree("b", "other", "/share/shared"), false),
        (csi("b", "srv#share#other##", "/share", "other"), false),
    ] {
        for order in [[&own, &other], [&other, &own]] {
            let (directories, controller) = controller(OnDelete::Delete);
            write(&directories, "shared/data");
            write(&directories, "other/data");
            write(&directories, "shared/deep/data");
            assert!(adopt(&controller, &order.map(Clone::clone)).await >= 1, "{other}");
            controller.delete(&DeleteVolume::new(handle)).await.unwrap();
            assert_eq!(directories.at("shared/data").exists(), kept, "{other}");
        }
    }
}

/// The first adoption stops before the second volume.
#[tokio::test]
async fn interrupted_adoption_of_a_shared_directory_deletes_nothing() {
    let (directories, controller) = controller(OnDelete::Delete);
    write(&directories, "shared/data");
    let volumes = ["a", "b"].map(|name| csi(name, &format!("srv#share#shared#{name}#"), "/share", "shared"));
    let list = json!({ "items": volumes }).to_string();
    let facts = PersistentVolumeFacts::from_list(list.as_bytes(), "nfs.csi.k8s.io").unwrap();
    controller.adopt(&facts[0]).await.unwrap();
    controller.delete(&DeleteVolume::new(&facts[0].handle)).await.unwrap();
    assert!(directories.at("shared/data").exists());
    // The next attempt finishes it: the last volume deletes the directory.
    assert_eq!(adopt(&controller, &volumes[1..]).await, 1);
    controller.delete(&DeleteVolume::new(&facts[1].handle)).await.unwrap();
    assert!(!directories.at("shared").exists());
}

/// A volume that was adopted by a release which did not look at the others.
#[tokio::test]
async fn repeated_adoption_keeps_a_directory_that_another_persistent_volume_uses() {
    let (directories, controller) = controller(OnDelete::Delete);
    write(&directories, "shared/data");
    let own = csi("a", "srv#share#shared#a#", "/share", "shared");
    assert_eq!(adopt(&controller, std::slice::from_ref(&own)).await, 1);
    assert_eq!(adopt(&controller, &[own, in_tree("b", "srv", "/share/shared")]).await, 1);
    controller.delete(&DeleteVolume::new("srv#share#shared#a#")).await.unwrap();
    assert!(directories.at("shared/data").exists());
}

#[tokio::test]
async fn deletion_without_a_record_is_counted_and_a_repeat_is_not() {
    let (directories, controller) = controller(OnDelete::Delete);
    write(&directories, "old/data");
    let own = controller.create(&super::requested("pvc-1", &[])).await.unwrap().id;
    for (handle, counted) in [
        (own.as_str(), 0),
        (own.as_str(), 0),
        ("srv#share#old##", 1),
        ("any text", 2),
        ("srv#share#../x##", 3),
    ] {
        controller.delete(&DeleteVolume::new(handle)).await.unwrap();
        assert_eq!(controller.deletes_without_record(), counted, "{handle}");
    }
    assert!(directories.at("old/data").exists());
}
