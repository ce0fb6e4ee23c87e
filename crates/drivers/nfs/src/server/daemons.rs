//! Which helper programs run on this node. Absence needs evidence: in a container that does not see the host's processes,
//! nothing is known about rpc.gssd and tlshd.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::timeout;

use super::{ProbeError, rpc, rpc_call};
use crate::mount::{Daemons, ParsedOptions, Version, VersionChoice};

/// The deadline of the question to the local rpcbind.
const LOCAL_DEADLINE: Duration = Duration::from_secs(1);

/// Where to look for helper programs.
#[derive(Debug, Clone)]
pub struct Seen {
    proc: PathBuf,
    rpcbind: SocketAddr,
}

impl Default for Seen {
    fn default() -> Self {
        Self { proc: PathBuf::from("/proc"), rpcbind: SocketAddr::from(([127, 0, 0, 1], 111)) }
    }
}

impl Seen {
    /// Looks only for what the options need.
    pub(super) async fn daemons(&self, options: &ParsedOptions) -> Daemons {
        let v3 = matches!(options.version, VersionChoice::Any | VersionChoice::Only(Version::V3));
        let statd = if v3 && !options.local_locks { self.statd().await } else { None };
        let gssd = if options.kerberos { process_runs(&self.proc, "rpc.gssd") } else { None };
        let tlshd = if options.tls { process_runs(&self.proc, "tlshd") } else { None };
        Daemons { statd, gssd, tlshd }
    }

    /// rpc.statd registers with rpcbind, which answers on the node's network also to a container on it.
    async fn statd(&self) -> Option<bool> {
        let call = rpc::Call::get_port(rpc::STATD_PROGRAM, 1);
        match timeout(LOCAL_DEADLINE, rpc_call(self.rpcbind, &call)).await {
            Ok(Ok(port)) => Some(port.iter().any(|byte| *byte != 0)),
            Ok(Err(ProbeError::Connect(_, error)))
                if error.kind() == std::io::ErrorKind::ConnectionRefused =>
            {
                Some(false)
            }
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// Whether a program with this name runs; `None` if not all processes of the host are visible. Only reads procfs, which
/// never blocks.
fn process_runs(proc: &Path, name: &str) -> Option<bool> {
    let comm = |pid: &Path| std::fs::read_to_string(pid.join("comm")).ok();
    let entries = std::fs::read_dir(proc).ok()?;
    let found = entries.filter_map(Result::ok).any(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
        is_process && comm(&entry.path()).is_some_and(|comm| comm.trim_end() == name)
    });
    // Only the host's PID namespace has the kernel's threads.
    let sees_host = comm(&proc.join("2")).is_some_and(|comm| comm.trim_end() == "kthreadd");
    (found || sees_host).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_process_is_known_only_with_a_view_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let add = |pid: &str, comm: &str| {
            std::fs::create_dir(dir.path().join(pid)).unwrap();
            std::fs::write(dir.path().join(pid).join("comm"), format!("{comm}\n")).unwrap();
        };
        add("1", "wharf");
        assert_eq!(process_runs(dir.path(), "tlshd"), None);
        add("2", "kthreadd");
        assert_eq!(process_runs(dir.path(), "tlshd"), Some(false));
        add("77", "tlshd");
        assert_eq!(process_runs(dir.path(), "tlshd"), Some(true));
    }

    #[tokio::test]
    async fn refused_rpcbind_means_that_statd_does_not_run() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let rpcbind = listener.local_addr().unwrap();
        drop(listener);
        let seen = Seen { rpcbind, ..Seen::default() };
        assert_eq!(seen.statd().await, Some(false));
    }
}
