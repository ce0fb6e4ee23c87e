//! Volumes that need no driver: empty directories, paths of the node, and files made of secrets, config maps, tokens
//! and fields of the pod. Places, permissions and the way files change are kubelet's.
//!
//! - What is made of objects changes as a whole: readers see all of the old files or all of the new ones.
//! - Secrets and tokens are in memory only, and in no error.
//! - [`set_up`] done again brings files up to date and leaves an empty directory's content alone; it is what the volume
//!   manager calls after a restart too. [`tear_down`] removes nothing while something is mounted beneath.

mod atomic;
mod empty_dir;
mod host_path;
mod payload;
mod sources;
mod token;

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_cluster::{ApiError, Cluster, now};
use wharf_linux::{Kernel, MountRequest};
use wharf_model::whole::Pod;
use wharf_model::whole::pod::PodVolume;

use super::Place;
use crate::paths::Root;
use crate::pods::fields::FieldError;

const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const SECRET: &str = "kubernetes.io~secret";
const CONFIG_MAP: &str = "kubernetes.io~configmap";
const PROJECTED: &str = "kubernetes.io~projected";
const DOWNWARD_API: &str = "kubernetes.io~downward-api";
const ALL: [&str; 5] = [EMPTY_DIR, SECRET, CONFIG_MAP, PROJECTED, DOWNWARD_API];

/// Why a plain volume is not there, or does not go.
#[derive(Debug, thiserror::Error)]
pub enum PlainError {
    /// The object is not there.
    #[error("{kind} {name:?} not found")]
    NoObject {
        /// `secret` or `configmap`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The object has no such value.
    #[error("references non-existent {kind} key: {key}")]
    NoKey {
        /// `secret` or `config`.
        kind: &'static str,
        /// The key.
        key: String,
    },
    /// The server did not answer as it should.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The server gave no token.
    #[error("the answer to the request for a token of service account {account:?} has no token")]
    NoToken {
        /// The account.
        account: String,
    },
    /// A field that a pod does not have.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A file outside the volume.
    #[error("{path:?} is no path of a file in a volume: it must be relative, and without \"..\"")]
    Path {
        /// As it was given.
        path: String,
    },
    /// Not what was asked for.
    #[error("hostPath type check failed: {path} is not {expected}")]
    HostPath {
        /// Where.
        path: String,
        /// `a directory`, `a file` and so on.
        expected: &'static str,
    },
    /// A path that no pod may have.
    #[error(transparent)]
    Refused(#[from] crate::hidden::Refusal),
    /// What no node of ours has.
    #[error("{what} is not supported here")]
    Unsupported {
        /// Of which volume, and what.
        what: String,
    },
    /// Something is mounted in it that we did not mount.
    #[error("{path:?} is not removed: something is mounted at {mount:?}; unmount it first")]
    Busy {
        /// The volume.
        path: PathBuf,
        /// What is in the way.
        mount: PathBuf,
    },
    /// The kernel said no.
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// A file could not be made or removed.
    #[error("{step} {path:?}: {source}")]
    Files {
        /// What was tried.
        step: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The thread that did it is gone.
    #[error("the work on the volume was broken off; it is tried again")]
    BrokenOff,
}

impl PlainError {
    fn files(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Files { step, path, source }
    }
}

/// Whether a volume is one of these.
pub fn is_plain(volume: &PodVolume) -> bool {
    volume.host_path.is_some() || plugin(volume).is_some()
}

/// The name of the directory beneath the pod's `volumes` in which a plain volume is; none for paths of the node, which
/// are where they are, and for volumes that are not plain.
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

/// Makes the volume, or brings it up to date. `hidden` is where no hostPath may lead.
pub async fn set_up(
    cluster: &Cluster,
    root: &Root,
    kernel: &Arc<dyn Kernel>,
    pod: &Pod,
    volume: &PodVolume,
    hidden: &[PathBuf],
) -> Result<Place, PlainError> {
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
            Ok(Place::Directory { path, read_only: false })
        })
        .await;
    }
    let found = sources::gather(cluster, pod, volume, &path).await?;
    let files = payload::payload(pod, &found, payload::default_mode(volume))?;
    let gid = payload::fs_group(pod);
    blocking(move || {
        make_parents(&path)?;
        // A config map is no secret, and the disk's own.
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
        Ok(Place::Directory { path, read_only: true })
    })
    .await
}

/// Takes the volume down; gone is success. `plugin` and `volume` are as [`found`] gives them.
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

/// What there is of a pod on disk: plugin and name of each plain volume.
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

/// All that touches files may take long.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PlainError> + Send + 'static,
) -> Result<T, PlainError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(PlainError::BrokenOff))
}

/// As kubelet makes them: nobody else looks in.
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

/// A file system in memory at `path`, unless there is one.
fn mount_memory(kernel: &dyn Kernel, path: &Path, options: &[String]) -> Result<(), PlainError> {
    make_dir(path)?;
    let path = kernel.resolve(path)?;
    if kernel.mount_table()?.at(&path).is_some_and(|mount| mount.fs_type == "tmpfs") {
        return Ok(());
    }
    // What is secret is not written to swap, where the kernel can be told so (6.4 and later).
    let mut dry = options.to_vec();
    dry.push("noswap".to_owned());
    let request = |options| MountRequest {
        source: "tmpfs",
        target: &path,
        fs_type: "tmpfs",
        options,
        read_only: false,
    };
    match kernel.mount(&request(&dry)) {
        Ok(()) => Ok(()),
        Err(_) => Ok(kernel.mount(&request(options))?),
    }
}

/// Removes a directory and all that is in it, if nothing is mounted there.
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
