//! CSI migration: the in-tree plugins that CSI drivers replace, and the annotations and finalizers that follow.
//!
//! There are no in-tree plugins here. So the finalizer for deletion by an in-tree plugin is never added, since nothing
//! would remove it; it is removed where upstream removes it.

use wharf_model::migration::Plugin;
use wharf_model::names::{annotation, finalizer};
use wharf_model::volume::ReclaimPolicy;
use wharf_model::{Meta, PersistentVolume, PersistentVolumeClaim};

/// The prefix of the names of in-tree plugins.
pub(super) const IN_TREE_PREFIX: &str = "kubernetes.io/";

/// The CSI driver that replaces an in-tree plugin.
pub(crate) fn csi_driver_for(plugin: &str) -> Option<&'static str> {
    Plugin::named(plugin).map(Plugin::driver)
}

/// The CSI provisioner for a class's `provisioner`; `None` if that is an in-tree plugin that no driver replaces.
pub fn csi_provisioner(named: &str) -> Option<&str> {
    csi_driver_for(named).or_else(|| (!named.starts_with(IN_TREE_PREFIX)).then_some(named))
}

/// The change of the `migrated-to` annotation: `None` if it is right, `Some(None)` to remove it.
pub(super) type MigratedToChange = Option<Option<&'static str>>;

/// The change for a claim.
pub(super) fn claim_change(claim: &PersistentVolumeClaim) -> MigratedToChange {
    change(&claim.metadata, claim.provisioner())
}

/// The change for a volume.
pub(super) fn volume_change(volume: &PersistentVolume) -> MigratedToChange {
    change(&volume.metadata, volume.metadata.annotation(annotation::PROVISIONED_BY))
}

fn change(meta: &Meta, provisioner: Option<&str>) -> MigratedToChange {
    // Without a provisioner annotation the claim or volume is not migrated.
    let wanted = csi_driver_for(provisioner?);
    let present = meta.annotation(annotation::MIGRATED_TO).filter(|driver| !driver.is_empty());
    (wanted != present).then_some(wanted)
}

/// Whether the in-tree finalizer has to be removed: a driver replaces the plugin, or the volume is retained.
pub(super) fn has_stale_in_tree_finalizer(volume: &PersistentVolume) -> bool {
    let Some(provisioner) = volume.metadata.annotation(annotation::PROVISIONED_BY) else { return false };
    let retained = matches!(
        volume.spec.persistent_volume_reclaim_policy,
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle
    );
    let migrated =
        csi_driver_for(provisioner).is_some() || (provisioner.starts_with(IN_TREE_PREFIX) && retained);
    migrated && volume.metadata.has_finalizer(finalizer::IN_TREE_DELETION)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// kubernetes.md 1.1 "Migration".
    #[test]
    fn migrated_to_follows_provisioner_annotation() {
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
            assert_eq!(claim_change(&serde_json::from_value(claim).unwrap()), expected, "{annotations}");
        }
        let volume =
            json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/gce-pd"}}});
        assert_eq!(
            volume_change(&serde_json::from_value(volume).unwrap()),
            Some(Some("pd.csi.storage.gke.io"))
        );
    }

    /// kubernetes.md 1.1 "Migration": which driver replaces which plugin.
    #[test]
    fn in_tree_plugins_map_to_csi_drivers() {
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
            assert_eq!(csi_driver_for(plugin), driver, "{plugin}");
            let other = (!plugin.starts_with("kubernetes.io/")).then_some(plugin);
            assert_eq!(csi_provisioner(plugin), driver.or(other), "{plugin}");
        }
    }

    /// kubernetes.md 1.1 "In-tree finalizer"; upstream's scenarios 13-1 to 13-15, except those in which the binder
    /// itself deletes volumes.
    #[test]
    fn in_tree_finalizer_removed_when_migrated_or_retained() {
        let in_tree = "kubernetes.io/pv-controller";
        for (provisioner, policy, finalizers, expected) in [
            (json!("kubernetes.io/aws-ebs"), "Delete", json!([in_tree]), true),
            (json!("kubernetes.io/aws-ebs"), "Delete", json!(["other"]), false),
            (json!("kubernetes.io/nfs"), "Delete", json!([in_tree]), false),
            (json!("kubernetes.io/nfs"), "Retain", json!([in_tree]), true),
            (json!("kubernetes.io/nfs"), "Recycle", json!(["other", in_tree]), true),
            (json!("kubernetes.io/nfs"), "Retain", json!([]), false),
            (json!("d.test"), "Retain", json!([in_tree]), false),
            (Value::Null, "Retain", json!([in_tree]), false),
        ] {
            let row = format!("{provisioner} {policy} {finalizers}");
            let mut volume = json!({
                "metadata": {"finalizers": finalizers},
                "spec": {"persistentVolumeReclaimPolicy": policy},
            });
            if !provisioner.is_null() {
                volume["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": provisioner});
            }
            assert_eq!(
                has_stale_in_tree_finalizer(&serde_json::from_value(volume).unwrap()),
                expected,
                "{row}"
            );
        }
    }
}
