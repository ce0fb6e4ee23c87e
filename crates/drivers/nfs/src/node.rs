//! The node service: mounts volumes at pods' targets, unmounts them, and reports usage and health.
//!
//! The mount table, which never contacts a server, decides about everything: what is mounted where, from which server, and
//! whether an unmount succeeded. No path of a mount is touched before an unmount. All other operations run in node workers
//! with deadlines. Start at [`NodeMounts`].

mod health;
mod unmount_sequence;
mod unpublish;
mod usage;
mod wanted;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use wharf_driver::backend::{
    AccessMode, BackendError, FsUsage, GetStorageHealth, GetUsage, GetVolumeHealth, HealthIssue, NodeVolume,
    StorageIssue, TargetError, TargetMounts, UnpublishTarget,
};
use wharf_linux::{Linux, Mount, MountTable, Mounts as _};

use crate::mount::{self, ParsedOptions};
use crate::worker::{
    MountPermissions, NodeRequest, NodeResponse, Root, WorkerError, WorkerErrorKind, Workers,
};
use health::DetachedMount;
use usage::UsageCache;
use wanted::{Wanted, WantedRules};

pub use wanted::InlineVolumes;

/// Settings of the node service.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// The mode of volumes whose context has none; `None` to leave it as it is.
    pub mount_permissions: Option<u32>,
    /// Which inline volumes are allowed.
    pub inline: InlineVolumes,
    /// Whether an unmount may use MNT_FORCE, which breaks other mounts of the same export.
    pub force_unmount: bool,
    /// How long usage numbers are served from memory.
    pub usage_cache: Duration,
    /// The deadline of a mount.
    pub mount_timeout: Duration,
    /// The deadline of one unmount attempt.
    pub unmount_timeout: Duration,
    /// The deadline of statistics and checks.
    pub stats_timeout: Duration,
    /// The deadline of a NULL call.
    pub probe_timeout: Duration,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            mount_permissions: None,
            inline: InlineVolumes::default(),
            force_unmount: false,
            usage_cache: Duration::from_secs(600),
            mount_timeout: Duration::from_secs(30),
            unmount_timeout: Duration::from_secs(10),
            stats_timeout: Duration::from_secs(5),
            probe_timeout: crate::server::PROBE_DEADLINE,
        }
    }
}

/// The node service of the driver.
pub struct NodeMounts {
    workers: Workers,
    kernel: Linux,
    options: NodeOptions,
    rules: WantedRules,
    usage: UsageCache,
    detached: Mutex<Vec<DetachedMount>>,
    lazy_unmounts: AtomicU64,
}

impl NodeMounts {
    /// A node service on these workers.
    pub fn new(workers: Workers, options: NodeOptions) -> Self {
        let rules =
            WantedRules { mount_permissions: options.mount_permissions, inline: options.inline.clone() };
        Self {
            workers,
            kernel: Linux::new(),
            usage: UsageCache::new(options.usage_cache),
            options,
            rules,
            detached: Mutex::default(),
            lazy_unmounts: AtomicU64::new(0),
        }
    }

    /// Number of lazy unmounts since the driver started.
    pub fn lazy_unmounts(&self) -> u64 {
        self.lazy_unmounts.load(Ordering::Relaxed)
    }

    /// Reads the mount table. It is in memory of the kernel, so this does not block.
    fn table(&self) -> Result<MountTable, TargetError> {
        self.kernel
            .mount_table()
            .map_err(|error| internal(format!("failed to read the mount table: {error}")))
    }

    async fn resolve(&self, path: &Path) -> Result<PathBuf, TargetError> {
        let request = NodeRequest::Resolve(path.to_owned());
        match self.workers.node(None, request, self.options.stats_timeout).await.map_err(target_error)? {
            NodeResponse::Resolved(path) => Ok(path),
            other => Err(unexpected(&other)),
        }
    }

    /// Whether the server no longer knows the directory that is mounted here.
    async fn is_stale(&self, server: Option<&str>, path: &Path) -> Result<bool, WorkerError> {
        let request = NodeRequest::Check(path.to_owned());
        match self.workers.node(server, request, self.options.stats_timeout).await? {
            NodeResponse::Checked { stale } => Ok(stale),
            other => Err(WorkerError::Internal(format!("unexpected response {other:?}"))),
        }
    }

    async fn mount(&self, wanted: &Wanted, target: &Path, root: Root) -> Result<(), TargetError> {
        let plan = match &root {
            Root::Export(plan) => Some(plan.clone()),
            Root::Directory(_) => None,
        };
        let request = NodeRequest::Mount {
            root,
            target: target.to_owned(),
            read_only: wanted.read_only,
            permissions: wanted.permissions,
        };
        let mounted = self.workers.node(Some(&wanted.server), request, self.options.mount_timeout).await;
        let servers = self.workers.exports().servers();
        if let (Err(WorkerError::TimedOut { .. }), Some(servers)) = (&mounted, servers) {
            servers.timed_out(&wanted.server, "a mount did not finish in time");
        }
        let NodeResponse::Mounted { version, permissions } = mounted.map_err(target_error)? else {
            return Err(internal("unexpected response to a mount".to_owned()));
        };
        if let (Some(version), Some(plan), Some(servers)) = (version, plan, servers) {
            servers.mounted(&wanted.server, plan.negotiated(version));
        }
        log_permissions(wanted, &permissions);
        Ok(())
    }

    /// Sets the mode of a volume that is mounted already: an earlier call may have ended between the mount and the mode.
    async fn set_permissions(
        &self,
        wanted: &Wanted,
        target: &Path,
        server: Option<&str>,
    ) -> Result<(), TargetError> {
        let Some(mode) = wanted.permissions.filter(|_| !wanted.read_only) else { return Ok(()) };
        let request = NodeRequest::SetPermissions { target: target.to_owned(), mode, nfs: server.is_some() };
        match self.workers.node(server, request, self.options.stats_timeout).await.map_err(target_error)? {
            NodeResponse::Permissions(permissions) => {
                log_permissions(wanted, &permissions);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
}

fn log_permissions(wanted: &Wanted, permissions: &MountPermissions) {
    match permissions {
        MountPermissions::AsRequested => {}
        MountPermissions::SkippedReadOnly => {
            tracing::info!(source = wanted.source, "mountPermissions ignored: the mount is read-only");
        }
        MountPermissions::Refused(error) => tracing::warn!(
            source = wanted.source,
            error,
            "failed to set mountPermissions: the server refuses it (root_squash?); set the mode on the server"
        ),
    }
}

#[async_trait]
impl TargetMounts for NodeMounts {
    async fn publish(&self, volume: &NodeVolume) -> Result<(), TargetError> {
        let wanted = Wanted::of(volume, &self.rules)?;
        let Some(target) = &volume.target else {
            return Err(internal("NodePublishVolume without a target".to_owned()));
        };
        let target = self.resolve(&target.path).await?;
        let found = self.table()?.at(&target).cloned();
        let probe = self.options.probe_timeout;
        let exports = self.workers.exports();
        if let Some(found) = found {
            // The mount table is enough to compare: a dead server must not keep a mount that exists from being seen.
            let server = mount::server_of(&found).map(|found| found.server);
            self.check_existing(&found, &wanted, &target)?;
            if !self.is_stale(server.as_deref(), &target).await.map_err(target_error)? {
                return self.set_permissions(&wanted, &target, server.as_deref()).await;
            }
            tracing::warn!(volume_handle = volume.id, target = %target.display(), source = found.source, "mount is stale; mounting again");
            self.unmount(&target).await?;
        } else if volume.capability.mode == AccessMode::SingleNodeSingleWriter {
            self.check_single(&wanted, &target)?;
        }
        let root = exports.root(&wanted.server, &wanted.path, &wanted.options, wanted.read_only, probe).await;
        self.mount(&wanted, &target, root.map_err(target_error)?).await
    }

    async fn unpublish(&self, request: &UnpublishTarget) -> Result<(), TargetError> {
        let target = self.resolve(&request.path).await?;
        self.unmount(&target).await?;
        self.usage.forget(&request.id);
        let remove = NodeRequest::RemoveTarget(target);
        self.workers.node(None, remove, self.options.unmount_timeout).await.map_err(target_error)?;
        Ok(())
    }

    async fn usage(&self, request: &GetUsage) -> Result<FsUsage, TargetError> {
        self.read_usage(request).await
    }

    async fn volume_health(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        self.mount_issues(request).await
    }

    async fn storage_health(&self, _: &GetStorageHealth) -> Result<Vec<StorageIssue>, BackendError> {
        Ok(self.server_issues().await)
    }
}

impl NodeMounts {
    /// Whether what is mounted at the target is the volume, as requested.
    fn check_existing(&self, found: &Mount, wanted: &Wanted, target: &Path) -> Result<(), TargetError> {
        let at = target.display();
        if !self.is_mount_of(found, wanted)? {
            return Err(TargetError::Incompatible(format!(
                "{} is mounted at {at}, not {}: unpublish it first",
                found.source, wanted.source
            )));
        }
        let parsed =
            ParsedOptions::parse(&wanted.options).map_err(|error| TargetError::Invalid(error.message))?;
        match mount::difference(found, &parsed, &wanted.options, wanted.read_only) {
            None => Ok(()),
            Some(difference) => Err(TargetError::Incompatible(format!(
                "{} is mounted at {at} with other options: {difference}; unpublish it first",
                wanted.source
            ))),
        }
    }

    /// SINGLE_NODE_SINGLE_WRITER (ReadWriteOncePod) allows one target at a time.
    fn check_single(&self, wanted: &Wanted, target: &Path) -> Result<(), TargetError> {
        for mount in self.table()?.mounts() {
            if mount.mount_point != target && self.is_mount_of(mount, wanted)? {
                return Err(TargetError::Precondition(format!(
                    "the access mode allows one pod, but the volume is published at {}; unpublish it there first",
                    mount.mount_point.display()
                )));
            }
        }
        Ok(())
    }

    fn is_mount_of(&self, found: &Mount, wanted: &Wanted) -> Result<bool, TargetError> {
        match self.workers.exports().directory(&wanted.server, &wanted.path) {
            None => {
                Ok(mount::server_of(found).is_some() && mount::same_source(&found.source, &wanted.source))
            }
            Some(directory) => Ok(is_bind_of(&self.table()?, found, &directory)),
        }
    }
}

/// Whether a mount is a bind of this directory, for tests with directories instead of exports.
fn is_bind_of(table: &MountTable, found: &Mount, directory: &Path) -> bool {
    let holds = table
        .mounts()
        .iter()
        .filter(|mount| directory.starts_with(&mount.mount_point) && mount.mount_point != found.mount_point)
        .max_by_key(|mount| mount.mount_point.components().count());
    holds.is_some_and(|mount| {
        let rest = directory.strip_prefix(&mount.mount_point).unwrap_or(Path::new(""));
        let root: PathBuf = mount.root.join(rest).components().collect();
        found.device == mount.device && found.root == root
    })
}

fn internal(message: String) -> TargetError {
    TargetError::Backend(BackendError::Internal(message))
}

fn unexpected(response: &NodeResponse) -> TargetError {
    internal(format!("unexpected response of a worker: {response:?}"))
}

/// The gRPC code of a worker's error in a node call.
fn target_error(error: WorkerError) -> TargetError {
    let message = error.to_string();
    match error.kind() {
        WorkerErrorKind::Unavailable => TargetError::Backend(BackendError::Unavailable(message)),
        WorkerErrorKind::Denied => TargetError::Backend(BackendError::Forbidden(message)),
        WorkerErrorKind::NotFound => TargetError::NotFound(message),
        WorkerErrorKind::Invalid => TargetError::Invalid(message),
        WorkerErrorKind::Precondition => TargetError::Precondition(message),
        WorkerErrorKind::Internal => internal(message),
    }
}
