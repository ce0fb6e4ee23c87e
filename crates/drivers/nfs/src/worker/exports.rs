//! Where exports are: on NFS servers, or, for tests without a kernel NFS client, in directories of this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::protocol::Root;
use super::{WorkerError, WorkerErrorKind};
use crate::mount::{self, MountFailure, ParsedOptions};
use crate::server::{ServerHealth, Servers};

/// Finds out what a worker has to mount or open.
#[derive(Debug, Clone)]
pub enum Exports {
    /// Exports of NFS servers.
    Servers(Arc<Servers>),
    /// The exports of each server are this directory and those beneath it.
    Directories(BTreeMap<String, PathBuf>),
}

impl Exports {
    /// What to mount for a path of a server. Fails by the deadline if the server does not answer.
    pub(crate) async fn root(
        &self,
        server: &str,
        path: &str,
        options: &[String],
        read_only: bool,
        deadline: Duration,
    ) -> Result<Root, WorkerError> {
        match self {
            Self::Servers(servers) => {
                let parsed = ParsedOptions::parse(options)?;
                let facts = servers.check(server, &parsed, deadline).await?;
                let source = mount::source(server, path);
                Ok(Root::Export(mount::plan(source, &parsed, read_only, &facts)?))
            }
            Self::Directories(directories) => {
                let unknown = || WorkerError::Unreachable {
                    server: server.to_owned(),
                    reason: "there is no --export for it".to_owned(),
                };
                let directory = directories.get(server).ok_or_else(unknown)?;
                // Exported paths are checked by the callers; this is for tests, so it only has to be safe.
                let relative = Path::new(path.trim_matches('/'));
                let normal = |part| matches!(part, std::path::Component::Normal(_));
                if !relative.components().all(normal) {
                    let kind = WorkerErrorKind::Invalid;
                    return Err(MountFailure {
                        kind,
                        message: format!("{path:?} is not a path of an export"),
                    }
                    .into());
                }
                Ok(Root::Directory(directory.join(relative)))
            }
        }
    }

    /// The directory of a path of a server; `None` if it is an NFS export.
    pub(crate) fn directory(&self, server: &str, path: &str) -> Option<PathBuf> {
        match self {
            Self::Servers(_) => None,
            Self::Directories(directories) => {
                Some(directories.get(server)?.join(path.trim_matches('/')).components().collect())
            }
        }
    }

    /// The servers; `None` for directories, which always answer.
    pub(crate) fn servers(&self) -> Option<&Arc<Servers>> {
        match self {
            Self::Servers(servers) => Some(servers),
            Self::Directories(_) => None,
        }
    }

    /// When the server last answered, if it has answered since it last failed.
    pub(super) fn answered(&self, server: &str) -> Option<std::time::SystemTime> {
        match self.servers()?.health(server)? {
            ServerHealth::Answered(at) => Some(at),
            ServerHealth::Unreachable(_) => None,
        }
    }
}
