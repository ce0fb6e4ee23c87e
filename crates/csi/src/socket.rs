//! The server's side of an [`Endpoint`]. Only the socket's owner can connect, from the moment the socket exists. [`bind`]
//! replaces the socket of a driver that exited, but neither a socket that is in use nor a file of another type. The
//! socket is removed when the driver stops.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio::net::{UnixListener, UnixSocket};

use crate::Endpoint;

/// The maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// Why [`bind`] failed.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens on the socket.
    #[error("{}: another driver listens on this socket; stop it first, or choose another endpoint", .0.display())]
    InUse(PathBuf),
    /// The path exists and is not a socket.
    #[error("{}: exists and is not a socket; choose another endpoint or remove the file", .0.display())]
    NotASocket(PathBuf),
    /// A system call failed.
    #[error("{}: cannot {step}: {source}", path.display())]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

/// The socket's file. Dropping it removes the file, unless another socket has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: SocketIdentity,
}

/// Distinguishes a socket from others that had the same path before. The kernel soon reuses inode numbers, so the identity
/// includes the creation time where the file system records it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    created_at: Option<SystemTime>,
}

impl SocketIdentity {
    /// The identity of the file that is at `path` now; does not follow symlinks.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino(), created_at: found.created().ok() })
    }
}

/// Listens at an endpoint (mode 0600). Must be called within a tokio runtime.
pub fn bind(endpoint: &Endpoint) -> Result<(UnixListener, SocketFile), BindError> {
    let path = endpoint.path();
    let failed = |step| move |source| BindError::Io { path: path.to_owned(), step, source };

    // Two drivers that start at the same time would each take the other's socket for a stale one.
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let lock = File::open(dir).map_err(failed("open the directory of the socket (does it exist?)"))?;
    lock.lock().map_err(failed("lock the directory of the socket"))?;
    remove_stale_socket(path)?;
    let socket = UnixSocket::new_stream().map_err(failed("create a socket"))?;
    // The kernel creates the file with the mode of the socket itself, so the mode is right from the start. A chmod
    // afterwards would leave a moment in which any user can connect.
    let handle = socket.as_fd().try_clone_to_owned().map_err(failed("duplicate the socket"))?;
    File::from(handle)
        .set_permissions(Permissions::from_mode(0o600))
        .map_err(failed("set the mode of the socket"))?;
    socket.bind(path).map_err(failed("bind the socket (does its directory exist?)"))?;
    let identity = SocketIdentity::of_path(path).map_err(failed("stat the socket"))?;
    let file = SocketFile { path: path.to_owned(), identity };
    let listener = socket.listen(BACKLOG).map_err(failed("listen on the socket"))?;
    Ok((listener, file))
}

/// Removes the socket at `path` if no process listens on it.
fn remove_stale_socket(path: &Path) -> Result<(), BindError> {
    let failed = |step| move |source| BindError::Io { path: path.to_owned(), step, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("stat the path")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(BindError::InUse(path.to_owned())),
        // Only this error proves that no process listens.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("remove the socket of an earlier driver"))
        }
        Err(error) => Err(failed("check whether a driver listens on the socket")(error)),
    }
}

impl SocketFile {
    /// Whether the path still refers to this socket.
    pub fn is_in_place(&self) -> bool {
        SocketIdentity::of_path(&self.path).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(socket = %self.path.display(), %error, "failed to remove socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(dir: &tempfile::TempDir) -> Endpoint {
        dir.path().join("csi.sock").to_str().unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn socket_has_mode_0600_and_is_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        let (_listener, file) = bind(&endpoint).unwrap();
        assert_eq!(fs::metadata(endpoint.path()).unwrap().mode() & 0o7777, 0o600);
        drop(file);
        assert!(!endpoint.path().exists());
    }

    #[tokio::test]
    async fn stale_socket_is_replaced_and_socket_in_use_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        let (listener, file) = bind(&endpoint).unwrap();
        assert!(matches!(bind(&endpoint), Err(BindError::InUse(_))));

        drop(listener);
        // Creation times have the resolution of the kernel's tick.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let (_listener, newer) = bind(&endpoint).unwrap();
        drop(file);
        assert!(endpoint.path().exists(), "the older driver must not remove the newer driver's socket");
        drop(newer);
        assert!(!endpoint.path().exists());
    }

    #[tokio::test]
    async fn file_that_is_not_a_socket_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        fs::write(endpoint.path(), "precious").unwrap();
        assert!(matches!(bind(&endpoint), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read_to_string(endpoint.path()).unwrap(), "precious");

        fs::remove_file(endpoint.path()).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere.sock"), endpoint.path()).unwrap();
        assert!(matches!(bind(&endpoint), Err(BindError::NotASocket(_))), "symlinks are not followed");

        let missing_dir: Endpoint = dir.path().join("no/csi.sock").to_str().unwrap().parse().unwrap();
        assert!(bind(&missing_dir).unwrap_err().to_string().contains("does it exist?"));
    }

    #[test]
    fn of_drivers_that_start_together_one_gets_the_socket() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        for _ in 0..200 {
            let _runtime = runtime.enter();
            // A driver that was killed left its socket.
            drop(std::os::unix::net::UnixListener::bind(endpoint.path()).unwrap());
            let together = std::sync::Barrier::new(3);
            let start = || {
                let _runtime = runtime.enter();
                together.wait();
                bind(&endpoint)
            };
            let bound: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3).map(|_| scope.spawn(start)).collect();
                threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
            });
            assert_eq!(bound.len(), 1);
            assert!(bound[0].1.is_in_place());
        }
    }
}
