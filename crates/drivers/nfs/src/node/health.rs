//! Health of volumes and servers, as this node sees them.

use std::sync::PoisonError;
use std::time::SystemTime;

use jiff::Timestamp;
use wharf_driver::backend::{
    BackendError, GetVolumeHealth, HealthIssue, HealthStatus, StorageIssue, StorageStatus, TargetError,
};

use super::NodeMounts;
use crate::mount::{self, SourceServer};
use crate::server::{ServerHealth, Unreachable};
use crate::worker::{WorkerError, WorkerErrorKind};

/// A mount that was removed while its server did not answer. The kernel keeps its unwritten data until the server does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DetachedMount {
    pub(super) server: String,
    pub(super) source: String,
    pub(super) at: SystemTime,
}

impl NodeMounts {
    /// The issues of the volume at the path where the orchestrator has it.
    pub(super) async fn mount_issues(
        &self,
        request: &GetVolumeHealth,
    ) -> Result<Option<Vec<HealthIssue>>, BackendError> {
        let Some(path) = request.publish_path.as_ref().or(request.staging_path.as_ref()) else {
            return Ok(None);
        };
        let path = self.resolve(path).await.map_err(backend_error)?;
        let Some(mount) = self.table().map_err(backend_error)?.at(&path).cloned() else { return Ok(None) };
        let server = mount::server_of(&mount);
        if let Some(issue) = self.unreachable_issue(server.as_ref()).await {
            return Ok(Some(vec![issue]));
        }
        let name = server.as_ref().map(|server| server.server.as_str());
        let stale = self.is_stale(name, &path).await;
        Ok(Some(check_issue(&mount.source, &stale).into_iter().collect()))
    }

    async fn unreachable_issue(&self, server: Option<&SourceServer>) -> Option<HealthIssue> {
        let (server, servers) = (server?, self.workers.exports().servers()?);
        if servers.mount_answers(server, self.options.probe_timeout).await {
            return None;
        }
        match servers.health(&server.server)? {
            ServerHealth::Answered(_) => None,
            ServerHealth::Unreachable(unreachable) => Some(HealthIssue {
                status: HealthStatus::Inaccessible,
                reason: "ServerUnreachable".to_owned(),
                message: describe(&unreachable),
            }),
        }
    }

    /// The issues of all servers that this node has used.
    pub(super) async fn server_issues(&self) -> Vec<StorageIssue> {
        let Some(servers) = self.workers.exports().servers() else { return Vec::new() };
        if let Ok(table) = self.table() {
            let detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
            let mounted = table.mounts().iter().filter_map(mount::server_of).map(|server| server.server);
            let detached = detached.iter().map(|mount| mount.server.clone());
            servers.forget_unused(&mounted.chain(detached).collect());
        }
        let mut checks = tokio::task::JoinSet::new();
        for server in servers.names() {
            let (servers, probe) = (servers.clone(), self.options.probe_timeout);
            checks.spawn(async move { servers.recheck(&server, probe).await });
        }
        checks.join_all().await;
        let unreachable = servers.unreachable();
        let mut detached = self.detached.lock().unwrap_or_else(PoisonError::into_inner);
        // A server that answers again gets the data that the kernel kept.
        detached.retain(|mount| unreachable.iter().any(|server| server.server == mount.server));
        let blocked = |server: &str| self.workers.blocked_on(server);
        storage_issues(&unreachable, &detached, blocked)
    }
}

fn check_issue(source: &str, stale: &Result<bool, WorkerError>) -> Option<HealthIssue> {
    let issue = |reason: &str, message: String| {
        Some(HealthIssue { status: HealthStatus::Inaccessible, reason: reason.to_owned(), message })
    };
    match stale {
        Ok(false) => None,
        Ok(true) => issue(
            "StaleHandle",
            format!(
                "the server no longer knows the directory of {source}: it was removed, or its file system was created again; \
                 restart the pods, which mounts it again"
            ),
        ),
        Err(error) if error.kind() == WorkerErrorKind::Unavailable => {
            issue("ServerNotResponding", error.to_string())
        }
        Err(error) => issue("MountFailed", error.to_string()),
    }
}

fn storage_issues(
    unreachable: &[Unreachable],
    detached: &[DetachedMount],
    blocked: impl Fn(&str) -> usize,
) -> Vec<StorageIssue> {
    let of_server = |server: &Unreachable| {
        let mut message = describe(server);
        match detached.iter().filter(|mount| mount.server == server.server).count() {
            0 => {}
            count => message = format!("{message}; {count} mounts were detached lazily"),
        }
        match blocked(&server.server) {
            0 => message,
            count => format!("{message}; {count} processes of the driver are blocked on it"),
        }
    };
    let messages: Vec<String> = unreachable.iter().map(of_server).collect();
    // One issue for all servers: CSI reports a status and reason once.
    match messages.is_empty() {
        true => Vec::new(),
        false => vec![StorageIssue {
            status: StorageStatus::Unreachable,
            reason: "ServerUnreachable".to_owned(),
            message: messages.join(". "),
        }],
    }
}

fn describe(server: &Unreachable) -> String {
    let since = Timestamp::try_from(server.since).map_or_else(
        |_| "an unknown time".to_owned(),
        |since| since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    );
    format!("the NFS server {} has not answered since {since}: {}", server.server, server.reason)
}

fn backend_error(error: TargetError) -> BackendError {
    match error {
        TargetError::Backend(error) => error,
        TargetError::NotFound(message)
        | TargetError::Invalid(message)
        | TargetError::Incompatible(message)
        | TargetError::Precondition(message) => BackendError::Internal(message),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn issues_say_which_server_and_since_when() {
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let down = |server: &str| Unreachable { server: server.into(), since, reason: "refused".into() };
        let detached = DetachedMount { server: "nas".into(), source: "nas:/x".into(), at: since };
        let issues = storage_issues(&[down("nas"), down("10.0.0.1")], &[detached.clone(), detached], |_| 3);
        assert_eq!((issues.len(), issues[0].reason.as_str()), (1, "ServerUnreachable"));
        assert_eq!(
            issues[0].message,
            "the NFS server nas has not answered since 2023-11-14T22:13:20Z: refused; 2 mounts were detached lazily; 3 \
             processes of the driver are blocked on it. the NFS server 10.0.0.1 has not answered since \
             2023-11-14T22:13:20Z: refused; 3 processes of the driver are blocked on it"
        );
        assert!(storage_issues(&[], &[], |_| 0).is_empty());
    }

    #[test]
    fn stale_and_hanging_mounts_are_told_apart() {
        let timeout = WorkerError::TimedOut {
            server: "nas".into(),
            subject: "checking".into(),
            deadline: Duration::from_secs(5),
        };
        for (stale, reason) in [
            (Ok(false), None),
            (Ok(true), Some("StaleHandle")),
            (Err(timeout), Some("ServerNotResponding")),
            (Err(WorkerError::Internal("x".into())), Some("MountFailed")),
        ] {
            let issue = check_issue("nas:/x", &stale);
            assert_eq!(issue.map(|issue| issue.reason).as_deref(), reason);
        }
    }
}
