//! Unmounts a target by the ladder.

use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use wharf_driver::backend::{BackendError, TargetError};
use wharf_linux::Mount;

use super::health::DetachedMount;
use super::unmount_sequence::{UnmountState, UnmountStep, next_step};
use super::{NodeMounts, target_error};
use crate::mount::{self, SourceServer};
use crate::worker::{NodeRequest, UnmountMode, WorkerError};

/// How many mounts on top of each other are removed from one target.
const MAX_STACKED: usize = 16;

impl NodeMounts {
    /// Unmounts everything at the target. Success means that the mount table no longer has it. Each mount has its deadlines;
    /// with several of them that hang, the call fails before its caller gives up, and the next call goes on.
    pub(super) async fn unmount(&self, target: &Path) -> Result<(), TargetError> {
        let end = Instant::now() + 4 * self.options.unmount_timeout;
        for _ in 0..MAX_STACKED {
            let Some(mount) = self.table()?.at(target).cloned() else { return Ok(()) };
            if Instant::now() > end {
                return Err(TargetError::Backend(BackendError::Unavailable(format!(
                    "several mounts are at {}, and unmounting them takes long: {} is still there; the request can be repeated",
                    target.display(),
                    mount.source
                ))));
            }
            self.unmount_topmost(target, &mount).await?;
        }
        match self.table()?.at(target) {
            None => Ok(()),
            Some(_) => Err(TargetError::Precondition(format!(
                "more than {MAX_STACKED} mounts are at {}: unmount them by hand",
                target.display()
            ))),
        }
    }

    async fn unmount_topmost(&self, target: &Path, mount: &Mount) -> Result<(), TargetError> {
        let server = mount::server_of(mount);
        let before = self.mounts_at(target)?;
        let mut state = UnmountState {
            mounted: true,
            tried: None,
            // Nothing but an NFS server can be gone.
            answers: server.is_none().then_some(true),
            force: self.options.force_unmount,
        };
        let mut last_error = None;
        loop {
            match next_step(&state) {
                UnmountStep::RemoveTarget => return Ok(()),
                UnmountStep::Probe => state.answers = Some(self.server_answers(server.as_ref()).await),
                UnmountStep::Unmount(mode) => {
                    let name = server.as_ref().map(|server| server.server.as_str());
                    let request = NodeRequest::Unmount { target: target.to_owned(), mode };
                    let result = self.workers.node(name, request, self.options.unmount_timeout).await;
                    if matches!(result, Err(WorkerError::ShuttingDown)) {
                        return Err(target_error(WorkerError::ShuttingDown));
                    }
                    state.tried = Some(mode);
                    // What the call returned does not matter: a killed unmount may have succeeded.
                    state.mounted = self.mounts_at(target)? >= before;
                    if let Err(error) = result {
                        tracing::warn!(target = %target.display(), source = mount.source, %mode, %error, mounted = state.mounted, "failed to unmount volume");
                        last_error = Some(error);
                    }
                    if mode != UnmountMode::Plain && !state.mounted {
                        self.record_detached(mount, server.as_ref(), target, mode);
                    }
                }
                UnmountStep::Fail => {
                    let reason = last_error
                        .map_or_else(|| "it is still mounted".to_owned(), |error| error.to_string());
                    return Err(TargetError::Precondition(format!(
                        "failed to unmount {} from {}: {reason}",
                        mount.source,
                        target.display()
                    )));
                }
            }
        }
    }

    fn mounts_at(&self, target: &Path) -> Result<usize, TargetError> {
        Ok(self.table()?.mounts().iter().filter(|mount| mount.mount_point == target).count())
    }

    async fn server_answers(&self, server: Option<&SourceServer>) -> bool {
        match (server, self.workers.exports().servers()) {
            (Some(server), Some(servers)) => servers.mount_answers(server, self.options.probe_timeout).await,
            _ => true,
        }
    }

    fn record_detached(
        &self,
        mount: &Mount,
        server: Option<&SourceServer>,
        target: &Path,
        mode: UnmountMode,
    ) {
        self.lazy_unmounts.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            source = mount.source,
            target = %target.display(),
            %mode,
            "detached mount lazily: the server does not answer; the kernel keeps unwritten data until it does"
        );
        let Some(server) = server else { return };
        let detached = DetachedMount {
            server: server.server.clone(),
            source: mount.source.clone(),
            at: SystemTime::now(),
        };
        self.detached.lock().unwrap_or_else(PoisonError::into_inner).push(detached);
    }
}
