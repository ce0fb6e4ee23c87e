//! The server's end of an [`Endpoint`]: a socket that only its owner can connect to from the first moment
//! on, that takes the place of a dead driver's socket but never that of a living one's or of anything else,
//! and that is gone when the driver is.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tokio::net::{UnixListener, UnixSocket};

use crate::Endpoint;

/// Callers that may wait to be accepted.
const BACKLOG: u32 = 128;

/// Why no socket can be had at an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// A living process answers there.
    #[error("{}: another driver serves here; stop it first, or choose another endpoint", .0.display())]
    InUse(PathBuf),
    /// Something that is not a socket is there.
    #[error("{}: exists and is not a socket; it was left alone, choose another endpoint or remove it", .0.display())]
    NotASocket(PathBuf),
    /// The system refused a step.
    #[error("{}: cannot {step}: {source}", path.display())]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// What could not be done.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// The socket's name in the file system. Dropping it removes the socket, if it is still the same one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: SocketIdentity,
}

/// Which of the files that may have had this name it is. An inode's number alone is soon given to the next
/// one, hence the time of its birth, where the file system keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketIdentity {
    device: u64,
    inode: u64,
    born: Option<SystemTime>,
}

impl SocketIdentity {
    /// Of what is at `path` now; symlinks are not followed.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self { device: found.dev(), inode: found.ino(), born: found.created().ok() })
    }
}

/// Listens at an endpoint (mode 0600). Must be called within a tokio runtime.
pub fn bind(endpoint: &Endpoint) -> Result<(UnixListener, SocketFile), BindError> {
    let path = endpoint.path();
    let failed = |step| move |source| BindError::Io { path: path.to_owned(), step, source };

    clear(path)?;
    let socket = UnixSocket::new_stream().map_err(failed("create a socket"))?;
    // The kernel gives the name in the file system the mode of the socket itself. So it has that mode when
    // it appears; a chmod afterwards would leave a moment in which anybody may connect.
    let handle = socket.as_fd().try_clone_to_owned().map_err(failed("duplicate the socket"))?;
    File::from(handle)
        .set_permissions(Permissions::from_mode(0o600))
        .map_err(failed("set the mode of the socket"))?;
    socket.bind(path).map_err(failed("bind the socket (does its directory exist?)"))?;
    let identity = SocketIdentity::of(path).map_err(failed("look at the socket"))?;
    let file = SocketFile { path: path.to_owned(), identity };
    let listener = socket.listen(BACKLOG).map_err(failed("listen on the socket"))?;
    Ok((listener, file))
}

/// Makes room at `path`, if what is there is a socket that nobody serves any more.
fn clear(path: &Path) -> Result<(), BindError> {
    let failed = |step| move |source| BindError::Io { path: path.to_owned(), step, source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at the path")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(BindError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(BindError::InUse(path.to_owned())),
        // Only this answer proves that nobody listens.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("remove the socket of an earlier driver"))
        }
        Err(error) => Err(failed("find out whether a driver still serves here")(error)),
    }
}

impl SocketFile {
    /// Whether the name still stands for this socket.
    pub fn is_in_place(&self) -> bool {
        SocketIdentity::of(&self.path).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_in_place()
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "the socket could not be removed");
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
    async fn only_the_owner_and_gone_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        let (_listener, file) = bind(&endpoint).unwrap();
        assert_eq!(fs::metadata(endpoint.path()).unwrap().mode() & 0o7777, 0o600);
        drop(file);
        assert!(!endpoint.path().exists());
    }

    #[tokio::test]
    async fn a_dead_drivers_socket_is_replaced_and_a_living_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        let (living, file) = bind(&endpoint).unwrap();
        assert!(matches!(bind(&endpoint), Err(BindError::InUse(_))));

        drop(living);
        // Times of birth are as coarse as the kernel's tick.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let (_living, newer) = bind(&endpoint).unwrap();
        drop(file);
        assert!(endpoint.path().exists(), "the older driver must not take the newer one's socket away");
        drop(newer);
        assert!(!endpoint.path().exists());
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = endpoint(&dir);
        fs::write(endpoint.path(), "precious").unwrap();
        assert!(matches!(bind(&endpoint), Err(BindError::NotASocket(_))));
        assert_eq!(fs::read_to_string(endpoint.path()).unwrap(), "precious");

        fs::remove_file(endpoint.path()).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere.sock"), endpoint.path()).unwrap();
        assert!(matches!(bind(&endpoint), Err(BindError::NotASocket(_))), "symlinks are not followed");

        let nowhere: Endpoint = dir.path().join("no/csi.sock").to_str().unwrap().parse().unwrap();
        assert!(bind(&nowhere).unwrap_err().to_string().contains("does its directory exist?"));
    }
}
