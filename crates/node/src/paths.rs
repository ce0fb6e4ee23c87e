//! Layout of the node's disk: kubelet's own paths beneath its root directory, so that drivers and operators find
//! volumes where kubelet puts them.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The root directory, `/var/lib/kubelet` on a cluster's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// A root at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Directory of the drivers' registration sockets.
    pub fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }

    /// Directory of the drivers' own sockets and of staged volumes.
    pub fn plugins(&self) -> PathBuf {
        self.0.join("plugins")
    }

    /// Directory of all pods.
    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Directory of one pod.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// Directory of CSI staging data and block volumes; published file systems are in the pod's own directory.
    pub fn csi(&self) -> PathBuf {
        self.plugins().join("kubernetes.io/csi")
    }

    /// Directory of a staged volume; contains `globalmount` and `vol_data.json`.
    pub fn stage(&self, driver: &str, handle: &str) -> PathBuf {
        self.csi().join(driver).join(hash(handle))
    }

    /// Directory of a volume published for a pod; contains `mount` and `vol_data.json`. `volume` is the name of the
    /// PersistentVolume or of the inline volume.
    pub fn publish(&self, pod: &str, volume: &str) -> PathBuf {
        self.pod(pod).join("volumes/kubernetes.io~csi").join(volume)
    }

    /// Directory of all block volumes.
    pub fn devices(&self) -> PathBuf {
        self.csi().join("volumeDevices")
    }

    /// Directory where a block volume is staged.
    pub fn device_stage(&self, volume: &str) -> PathBuf {
        self.devices().join("staging").join(volume)
    }

    /// The file on which a block volume is published for a pod.
    pub fn device_publish(&self, volume: &str, pod: &str) -> PathBuf {
        self.devices().join("publish").join(volume).join(pod)
    }

    /// Directory of a block volume's `vol_data.json`.
    pub fn device_data(&self, volume: &str) -> PathBuf {
        self.devices().join(volume).join("data")
    }

    /// Directory of a pod's non-CSI volume, such as `kubernetes.io~empty-dir`.
    pub fn plain(&self, pod: &str, plugin: &str, volume: &str) -> PathBuf {
        self.pod(pod).join("volumes").join(plugin).join(volume)
    }
}

/// SHA-256 in hexadecimal: kubelet's directory name for volume handles and other arbitrary strings.
pub fn hash(text: &str) -> String {
    base16ct::lower::encode_string(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    /// Existing directories must be found again.
    #[test]
    fn hash_is_sha256_in_lower_case() {
        assert_eq!(super::hash("vol-1"), "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49");
    }
}
