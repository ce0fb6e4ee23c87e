//! Names of a volume in the API: in `volumesInUse` and `volumesAttached`, and of its VolumeAttachment.

use wharf_model::UniqueVolumeName;

use crate::paths::hash;

/// The unique name of a volume, as used in a Node's status.
pub(super) fn unique(driver: &str, handle: &str) -> String {
    of(driver, handle).to_string()
}

/// The volume handle of an inline volume.
pub(super) fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", hash(&format!("{pod_uid}{volume}")))
}

/// The name of the VolumeAttachment of a volume on a node: a hash of the three, concatenated without separators.
pub(super) fn attachment(handle: &str, driver: &str, node: &str) -> String {
    of(driver, handle).attachment_name(node)
}

fn of(driver: &str, handle: &str) -> UniqueVolumeName {
    UniqueVolumeName { driver: driver.to_owned(), handle: handle.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kubernetes.md 1.3 "Attachment", 1.8 "Inline".
    #[test]
    fn names_match_upstream() {
        assert_eq!(unique("d.example", "h^1"), "kubernetes.io/csi/d.example^h^1");
        // printf 'vol-1hostpath.csi.k8s.ionode-1' | sha256sum
        assert_eq!(
            attachment("vol-1", "hostpath.csi.k8s.io", "node-1"),
            format!("csi-{}", hash("vol-1hostpath.csi.k8s.ionode-1"))
        );
        assert_eq!(inline_handle("uid", "data"), format!("csi-{}", hash("uiddata")));
        // printf abc | sha256sum
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(attachment("a", "b", "c"), format!("csi-{abc}"));
        assert_eq!(inline_handle("a", "bc"), format!("csi-{abc}"));
    }
}
