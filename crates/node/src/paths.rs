//! Where things are on the node's disk: kubelet's own places beneath its root directory, so that drivers, and whoever
//! looks for a volume, find them where they always were.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// The root directory, `/var/lib/kubelet` on a cluster's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// Everything is beneath `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// The root itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where drivers put their registration sockets.
    pub fn registry(&self) -> PathBuf {
        self.0.join("plugins_registry")
    }

    /// Where drivers have their own sockets, and staged volumes are.
    pub fn plugins(&self) -> PathBuf {
        self.0.join("plugins")
    }

    /// Where pods are.
    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// All of one pod.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.pods().join(uid)
    }

    /// What CSI staged and published, other than a pod's own directory.
    pub fn csi(&self) -> PathBuf {
        self.plugins().join("kubernetes.io/csi")
    }

    /// Directory of a staged volume: `globalmount` and `vol_data.json` are in it.
    pub fn stage(&self, driver: &str, handle: &str) -> PathBuf {
        self.csi().join(driver).join(hash(handle))
    }

    /// Directory of a volume published for a pod: `mount` and `vol_data.json` are in it. `volume` is the
    /// PersistentVolume's name, or the inline volume's.
    pub fn publish(&self, pod: &str, volume: &str) -> PathBuf {
        self.pod(pod).join("volumes/kubernetes.io~csi").join(volume)
    }

    /// Directory of all block volumes.
    pub fn devices(&self) -> PathBuf {
        self.csi().join("volumeDevices")
    }

    /// Where a block volume is staged.
    pub fn device_stage(&self, volume: &str) -> PathBuf {
        self.devices().join("staging").join(volume)
    }

    /// The file on which a block volume is published for a pod.
    pub fn device_publish(&self, volume: &str, pod: &str) -> PathBuf {
        self.devices().join("publish").join(volume).join(pod)
    }

    /// Directory of what is known of a block volume.
    pub fn device_data(&self, volume: &str) -> PathBuf {
        self.devices().join(volume).join("data")
    }

    /// A plain volume of a pod, such as `kubernetes.io~empty-dir`.
    pub fn plain(&self, pod: &str, plugin: &str, volume: &str) -> PathBuf {
        self.pod(pod).join("volumes").join(plugin).join(volume)
    }
}

/// SHA-256 in hexadecimal, as kubelet names what has long or odd names.
pub fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
