//! Plain volumes, which need no CSI driver: emptyDir, hostPath, and files from Secrets, ConfigMaps, service account
//! tokens and the downward API. Paths, permissions and the atomic update of files follow kubelet.
//!
//! - Projected files change as a whole: readers see all of the old files or all of the new ones.
//! - Secrets and tokens are in memory only, and in no error message.
//! - Repeating [`set_up`] updates the files and leaves the content of an emptyDir alone; the volume manager also
//!   calls it after a restart. [`tear_down`] removes nothing while something is mounted beneath.

mod atomic;
mod empty_dir;
mod host_path;
mod payload;
mod sources;
mod token;
pub mod usage;

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_cluster::{ApiError, Cluster, now};
use wharf_linux::{Kernel, MountRequest};
use wharf_model::Pod;
use wharf_model::pod::PodVolume;

use super::VolumePath;
use crate::paths::Root;
use crate::pods::fields::FieldError;

const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const SECRET: &str = "kubernetes.io~secret";
const CONFIG_MAP: &str = "kubernetes.io~configmap";
const PROJECTED: &str = "kubernetes.io~projected";
const DOWNWARD_API: &str = "kubernetes.io~downward-api";
const ALL: [&str; 5] = [EMPTY_DIR, SECRET, CONFIG_MAP, PROJECTED, DOWNWARD_API];

/// Why a plain volume could not be set up or torn down.
#[derive(Debug, thiserror::Error)]
pub enum PlainError {
    /// The object does not exist.
    #[error("{kind} {name:?} not found")]
    NoObject {
        /// `secret` or `configmap`.
        kind: &'static str,
        /// The object's name.
        name: String,
    },
    /// The object has no such key.
    #[error("references non-existent {kind} key: {key}")]
    NoKey {
        /// `secret` or `config`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// An API request failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The API server returned no token.
    #[error("the TokenRequest response for service account {account:?} contains no token")]
    NoToken {
        /// The account.
        account: String,
    },
    /// An unsupported downward API field.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The file's path is outside the volume.
    #[error("{path:?} is not a valid file path in a volume: it must be relative and must not contain \"..\"")]
    Path {
        /// The path as given.
        path: String,
    },
    /// The path is not of the requested type.
    #[error("hostPath type check failed: {path} is not {expected}")]
    HostPath {
        /// The path.
        path: String,
        /// `a directory`, `a file` and so on.
        expected: &'static str,
    },
    /// A path that pods may not access.
    #[error(transparent)]
    ExpandFailure(#[from] wharf_container::hidden::Refusal),
    /// Not supported on this node.
    #[error("{what} is not supported here")]
    Unsupported {
        /// The volume and the unsupported feature.
        what: String,
    },
    /// Something else is mounted in it.
    #[error("{path:?} is not removed: something is mounted at {mount:?}; unmount it first")]
    Busy {
        /// The volume's path.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// A system call failed.
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// A file could not be created or removed.
    #[error("{step} {path:?}: {source}")]
    Files {
        /// The failed operation.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The blocking task panicked or was cancelled.
    #[error("the volume operation was aborted; retrying")]
    Aborted,
}

impl PlainError {
    fn files(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Files { step, path, source }
    }
}

/// Whether a volume is a plain one.
pub fn is_plain(volume: &PodVolume) -> bool {
    volume.host_path.is_some() || plugin(volume).is_some()
}

/// Name of a plain volume's directory beneath the pod's `volumes`; `None` for hostPath, which has none, and for
/// volumes that are not plain.
pub fn plugin(volume: &PodVolume) -> Option<&'static str> {
    let PodVolume { empty_dir, secret, config_map, projected, downward_api, .. } = volume;
    match () {
        () if empty_dir.is_some() => Some(EMPTY_DIR),
        () if secret.is_some() => Some(SECRET),
        () if config_map.is_some() => Some(CONFIG_MAP),
        () if projected.is_some() => Some(PROJECTED),
        () if downward_api.is_some() => Some(DOWNWARD_API),
        () => None,
    }
}

/// Creates the volume or updates it. No hostPath may lead into `hidden`.
pub async fn set_up(
    cluster: &Cluster,
    root: &Root,
    kernel: &Arc<dyn Kernel>,
    pod: &Pod,
    volume: &PodVolume,
    hidden: &[PathBuf],
) -> Result<VolumePath, PlainError> {
    if let Some(wanted) = &volume.host_path {
        let (wanted, hidden) = (wanted.clone(), hidden.to_vec());
        return blocking(move || host_path::check(&wanted, &hidden)).await;
    }
    let Some(plugin) = plugin(volume) else {
        return Err(PlainError::Unsupported { what: format!("the kind of volume {:?}", volume.name) });
    };
    let path = root.plain(&pod.metadata.uid, plugin, &volume.name);
    let kernel = Arc::clone(kernel);
    if let Some(wanted) = &volume.empty_dir {
        let plan = empty_dir::plan(pod, wanted)?;
        return blocking(move || {
            empty_dir::set_up(&*kernel, &path, &plan)?;
            Ok(VolumePath::Directory { path, read_only: false })
        })
        .await;
    }
    let found = sources::gather(cluster, pod, volume, &path).await?;
    let files = payload::payload(pod, &found, payload::default_mode(volume))?;
    let gid = payload::fs_group(pod);
    blocking(move || {
        make_parents(&path)?;
        // A ConfigMap is not secret and lives on disk.
        if plugin == CONFIG_MAP {
            make_dir(&path)?;
        } else {
            mount_memory(
                &*kernel,
                &path,
                &["mode=0755".to_owned(), "nosuid".to_owned(), "nodev".to_owned()],
            )?;
        }
        atomic::write(&path, &files, gid, now())?;
        Ok(VolumePath::Directory { path, read_only: true })
    })
    .await
}

/// Tears the volume down; a missing one is success. `plugin` and `volume` are as returned by [`found`].
pub async fn tear_down(
    root: &Root,
    kernel: &Arc<dyn Kernel>,
    pod_uid: &str,
    plugin: &str,
    volume: &str,
) -> Result<(), PlainError> {
    let path = root.plain(pod_uid, plugin, volume);
    let kernel = Arc::clone(kernel);
    blocking(move || {
        let path = kernel.resolve(&path)?;
        kernel.unmount(&path)?;
        remove(&*kernel, &path)
    })
    .await
}

/// Lists a pod's plain volumes on disk: plugin and name of each.
pub fn found(root: &Root, pod_uid: &str) -> Result<Vec<(String, String)>, PlainError> {
    let mut found = Vec::new();
    for plugin in ALL {
        let directory = root.plain(pod_uid, plugin, "");
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(PlainError::files("read", &directory)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(PlainError::files("read", &directory))?;
            found.push((plugin.to_owned(), entry.file_name().to_string_lossy().into_owned()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Runs file operations, which may take long, on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PlainError> + Send + 'static,
) -> Result<T, PlainError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PlainError::Aborted))
}

/// With kubelet's mode: not accessible to others.
fn make_parents(path: &Path) -> Result<(), PlainError> {
    let Some(parent) = path.parent() else { return Ok(()) };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(parent)
        .map_err(PlainError::files("mkdir", parent))
}

fn make_dir(path: &Path) -> Result<(), PlainError> {
    match std::fs::DirBuilder::new().mode(0o755).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map_err(PlainError::files("mkdir", path)),
    }
}

/// Mounts a tmpfs at `path`, unless there is one.
fn mount_memory(kernel: &dyn Kernel, path: &Path, options: &[String]) -> Result<(), PlainError> {
    make_dir(path)?;
    let path = kernel.resolve(path)?;
    if kernel.mount_table()?.at(&path).is_some_and(|mount| mount.fs_type == "tmpfs") {
        return Ok(());
    }
    // Prevent secrets from being swapped out, where the kernel supports it (6.4 and later).
    let mut without_swap = options.to_vec();
    without_swap.push("noswap".to_owned());
    let request = |options| MountRequest {
        source: "tmpfs",
        target: &path,
        fs_type: "tmpfs",
        options,
        read_only: false,
    };
    match kernel.mount(&request(&without_swap)) {
        Ok(()) => Ok(()),
        Err(_) => Ok(kernel.mount(&request(options))?),
    }
}

/// Removes a directory and its content, if nothing is mounted there.
fn remove(kernel: &dyn Kernel, path: &Path) -> Result<(), PlainError> {
    let table = kernel.mount_table()?;
    if let Some(mount) = table.mounts().iter().find(|mount| mount.mount_point.starts_with(path)) {
        return Err(PlainError::Busy { path: path.to_owned(), mount: mount.mount_point.clone() });
    }
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(PlainError::files("remove", path)),
    }
}

#[cfg(test)]
mod tests;
