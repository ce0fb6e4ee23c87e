//! In-tree plugins whose volumes CSI drivers have taken over, and what is annotated because of that.
//!
//! We have no in-tree plugins. So the finalizer that stands for an in-tree plugin's deletion is never put on a volume
//! here, since nobody would take it off; it is taken off where upstream does.

use wharf_model::names::{annotation, finalizer};
use wharf_model::volume::ReclaimPolicy;
use wharf_model::{Meta, PersistentVolume, PersistentVolumeClaim};

/// What the names of in-tree plugins begin with.
pub(super) const IN_TREE: &str = "kubernetes.io/";

/// The driver that has taken over from an in-tree plugin.
pub(crate) fn driver_of(plugin: &str) -> Option<&'static str> {
    Some(match plugin.strip_prefix(IN_TREE)? {
        "aws-ebs" => "ebs.csi.aws.com",
        "azure-disk" => "disk.csi.azure.com",
        "azure-file" => "file.csi.azure.com",
        "cinder" => "cinder.csi.openstack.org",
        "gce-pd" => "pd.csi.storage.gke.io",
        "portworx-volume" => "pxd.portworx.com",
        "vsphere-volume" => "csi.vsphere.vmware.com",
        _ => return None,
    })
}

/// Who makes volumes for a class; `None` if it names an in-tree plugin from which no driver has taken over.
pub fn provisioner(named: &str) -> Option<&str> {
    driver_of(named).or_else(|| (!named.starts_with(IN_TREE)).then_some(named))
}

/// What `migrated-to` is to become: `None` if it is right, `Some(None)` if it is to go.
pub(super) type Change = Option<Option<&'static str>>;

/// For a claim.
pub(super) fn of_claim(claim: &PersistentVolumeClaim) -> Change {
    change(&claim.metadata, claim.provisioner())
}

/// For a volume.
pub(super) fn of_volume(volume: &PersistentVolume) -> Change {
    change(&volume.metadata, volume.metadata.annotation(annotation::PROVISIONED_BY))
}

fn change(meta: &Meta, provisioner: Option<&str>) -> Change {
    // Nobody was asked to provision: nothing follows.
    let wanted = driver_of(provisioner?);
    let present = meta.annotation(annotation::MIGRATED_TO).filter(|driver| !driver.is_empty());
    (wanted != present).then_some(wanted)
}

/// Whether the finalizer of an in-tree plugin is to be taken off: a driver has taken over, or the volume is to stay.
pub(super) fn frees(volume: &PersistentVolume) -> bool {
    let Some(provisioner) = volume.metadata.annotation(annotation::PROVISIONED_BY) else { return false };
    let stays = matches!(
        volume.spec.persistent_volume_reclaim_policy,
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle
    );
    let over = driver_of(provisioner).is_some() || (provisioner.starts_with(IN_TREE) && stays);
    over && volume.metadata.has_finalizer(finalizer::IN_TREE_DELETION)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// kubernetes.md 1.1 "Migration".
    #[test]
    fn annotations() {
        let provisioner = "volume.kubernetes.io/storage-provisioner";
        let beta = "volume.beta.kubernetes.io/storage-provisioner";
        let to = "pv.kubernetes.io/migrated-to";
        let ebs = "kubernetes.io/aws-ebs";
        for (annotations, expected) in [
            (json!({}), None),
            (json!({to: "x"}), None),
            (json!({provisioner: "d.test"}), None),
            (json!({provisioner: "d.test", to: "x"}), Some(None)),
            (json!({provisioner: "d.test", to: ""}), None),
            (json!({provisioner: ebs}), Some(Some("ebs.csi.aws.com"))),
            (json!({beta: ebs}), Some(Some("ebs.csi.aws.com"))),
            (json!({provisioner: ebs, to: "ebs.csi.aws.com"}), None),
            (json!({provisioner: "kubernetes.io/nfs", to: "x"}), Some(None)),
        ] {
            let claim = json!({"metadata": {"annotations": annotations.clone()}});
            assert_eq!(of_claim(&serde_json::from_value(claim).unwrap()), expected, "{annotations}");
        }
        let volume =
            json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/gce-pd"}}});
        assert_eq!(of_volume(&serde_json::from_value(volume).unwrap()), Some(Some("pd.csi.storage.gke.io")));
    }

    /// kubernetes.md 1.1 "Migration": who took over from whom.
    #[test]
    fn drivers() {
        for (plugin, driver) in [
            ("kubernetes.io/aws-ebs", Some("ebs.csi.aws.com")),
            ("kubernetes.io/azure-disk", Some("disk.csi.azure.com")),
            ("kubernetes.io/azure-file", Some("file.csi.azure.com")),
            ("kubernetes.io/cinder", Some("cinder.csi.openstack.org")),
            ("kubernetes.io/gce-pd", Some("pd.csi.storage.gke.io")),
            ("kubernetes.io/portworx-volume", Some("pxd.portworx.com")),
            ("kubernetes.io/vsphere-volume", Some("csi.vsphere.vmware.com")),
            ("kubernetes.io/nfs", None),
            ("aws-ebs", None),
            ("d.test", None),
        ] {
            assert_eq!(driver_of(plugin), driver, "{plugin}");
            let other = (!plugin.starts_with("kubernetes.io/")).then_some(plugin);
            assert_eq!(provisioner(plugin), driver.or(other), "{plugin}");
        }
    }

    /// kubernetes.md 1.1 "In-tree finalizer"; upstream's scenarios 13-1 to 13-15, as far as volumes are not ours to
    /// delete.
    #[test]
    fn finalizers() {
        let ours = "kubernetes.io/pv-controller";
        for (provisioner, policy, finalizers, expected) in [
            (json!("kubernetes.io/aws-ebs"), "Delete", json!([ours]), true),
            (json!("kubernetes.io/aws-ebs"), "Delete", json!(["other"]), false),
            (json!("kubernetes.io/nfs"), "Delete", json!([ours]), false),
            (json!("kubernetes.io/nfs"), "Retain", json!([ours]), true),
            (json!("kubernetes.io/nfs"), "Recycle", json!(["other", ours]), true),
            (json!("kubernetes.io/nfs"), "Retain", json!([]), false),
            (json!("d.test"), "Retain", json!([ours]), false),
            (Value::Null, "Retain", json!([ours]), false),
        ] {
            let row = format!("{provisioner} {policy} {finalizers}");
            let mut volume = json!({
                "metadata": {"finalizers": finalizers},
                "spec": {"persistentVolumeReclaimPolicy": policy},
            });
            if !provisioner.is_null() {
                volume["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": provisioner});
            }
            assert_eq!(frees(&serde_json::from_value(volume).unwrap()), expected, "{row}");
        }
    }
}
