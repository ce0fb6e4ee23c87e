//! Snapshots, and the copies behind snapshots and cloned volumes.
//!
//! A copy is a job of its own process. A request that needs one starts it and waits for a while, so that small copies end
//! within one call; after that the caller gets ABORTED and repeats the call.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use wharf_driver::backend::{
    BackendError, DeleteError, DeleteSnapshot, GetSnapshot, ListPage, ListSnapshots, NewSnapshot, Snapshot,
    SnapshotError, Snapshots,
};

use super::errors::CallError;
use super::{Controller, lock, plain_server, unexpected};
use crate::handle::{Location, SnapshotHandle, VolumeHandle};
use crate::options::combine;
use crate::parameters::{SnapshotParameters, Transport};
use crate::share::snapshot_record::SnapshotFormat;
use crate::share::{self, ErrorKind, Request, Response, RunJob, SnapshotInfo};
use crate::worker::{Export, WorkerError};

/// The first and the longest pause between two looks at a copy.
const POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

#[async_trait]
impl Snapshots for Controller {
    async fn create_snapshot(&self, requested: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        let source =
            VolumeHandle::parse(&requested.source).and_then(|handle| Ok((handle.location()?, handle)));
        let (location, source) = source.map_err(|error| {
            SnapshotError::NotFound(format!("there is no volume {}: {error}", requested.source))
        })?;
        let parameters = SnapshotParameters::parse(&requested.parameters)
            .map_err(|error| SnapshotError::Invalid(error.to_string()))?;
        let handle = snapshot_handle(&requested.name, &location, &source, &parameters)
            .map_err(SnapshotError::Invalid)?;
        let export = match &parameters.mount_options {
            None => self.export(&location, &requested.secrets).map_err(BackendError::Internal)?,
            Some(text) => {
                let options = combine([text.as_str()], &Transport::default())
                    .map_err(|error| SnapshotError::Invalid(error.to_string()))?;
                Export::new(plain_server(&location.server), &location.share, &options)
            }
        };
        let request = Request::CreateSnapshot(share::CreateSnapshot {
            name: requested.name.clone(),
            handle: handle.to_string(),
            source: requested.source.clone(),
            format: format(&parameters),
        });
        match self.call_with_job(&export, request).await.map_err(CallError::from)? {
            Response::CreateSnapshot(created) => {
                Ok(to_sdk_snapshot(&created.map_err(CallError::from)?, &handle))
            }
            other => Err(CallError::from(unexpected(&other)).into()),
        }
    }

    async fn delete_snapshot(&self, request: &DeleteSnapshot) -> Result<(), DeleteError> {
        let Ok(location) = SnapshotHandle::parse(&request.id).and_then(|handle| handle.location()) else {
            tracing::info!(snapshot = request.id, "nothing to delete: handle names no snapshot");
            return Ok(());
        };
        let export = self.export(&location, &request.secrets).map_err(BackendError::Internal)?;
        let delete = share::DeleteSnapshot { handle: request.id.clone() };
        let response = self.call(&export, Request::DeleteSnapshot(delete)).await.map_err(CallError::from)?;
        match response {
            Response::DeleteSnapshot(deleted) => deleted.map_err(CallError::from)?,
            other => return Err(CallError::from(unexpected(&other)).into()),
        }
        self.purge(&export).await;
        Ok(())
    }

    async fn get_snapshot(&self, request: &GetSnapshot) -> Result<Option<Snapshot>, BackendError> {
        let Ok(handle) = SnapshotHandle::parse(&request.id) else { return Ok(None) };
        let Ok(location) = handle.location() else { return Ok(None) };
        let export = self.export(&location, &request.secrets).map_err(BackendError::Internal)?;
        let get = share::GetSnapshot { handle: request.id.clone() };
        match self.call(&export, Request::GetSnapshot(get)).await? {
            Response::GetSnapshot(found) => {
                Ok(found.map_err(CallError::from)?.map(|found| to_sdk_snapshot(&found, &handle)))
            }
            other => Err(unexpected(&other).into()),
        }
    }

    async fn list_snapshots(&self, request: &ListSnapshots) -> Result<ListPage<Snapshot>, BackendError> {
        // There is no list of all exports: snapshots are listed on the export of the source, or on all exports in use.
        let exports = match &request.source {
            Some(source) => match VolumeHandle::parse(source).and_then(|handle| handle.location()) {
                Ok(location) => {
                    vec![self.export(&location, &request.secrets).map_err(BackendError::Internal)?]
                }
                Err(_) => Vec::new(),
            },
            None => lock(&self.recovered).keys().cloned().collect(),
        };
        let mut found = Vec::new();
        for export in exports {
            match self.call(&export, Request::ListSnapshots).await? {
                Response::ListSnapshots(listed) => found.extend(listed.map_err(CallError::from)?),
                other => return Err(unexpected(&other).into()),
            }
        }
        Ok(page(found, request))
    }
}

impl Controller {
    /// Runs a request that may need a copy: starts the copy and waits for it.
    pub(super) async fn call_with_job(
        &self,
        export: &Export,
        request: Request,
    ) -> Result<Response, WorkerError> {
        let mut pause = POLL.0;
        let mut waited = Duration::ZERO;
        loop {
            let response = self.call(export, request.clone()).await?;
            let Some(job) = request.job().filter(|_| is_in_progress(&response)) else { return Ok(response) };
            let key = format!("copy {export} {job}");
            let run = Request::RunJob(RunJob { job });
            self.client.start_job(export, &key, run, self.options.job_stall).await?;
            if waited >= self.options.copy_wait {
                return Ok(response);
            }
            tokio::time::sleep(pause).await;
            waited += pause;
            pause = (pause * 2).min(POLL.1);
        }
    }
}

fn is_in_progress(response: &Response) -> bool {
    let error = match response {
        Response::CreateVolume(Err(error)) | Response::CreateSnapshot(Err(error)) => error,
        _ => return false,
    };
    matches!(error.kind, ErrorKind::InProgress { .. })
}

/// The handle of a new snapshot. It is on the share of its source: a copy works on one export.
fn snapshot_handle(
    name: &str,
    location: &Location,
    source: &VolumeHandle,
    parameters: &SnapshotParameters,
) -> Result<SnapshotHandle, String> {
    let server = parameters.server.as_deref().filter(|server| !server.is_empty());
    let share = parameters.share.as_deref().filter(|share| !share.is_empty());
    if server.is_some_and(|server| server != location.server)
        || share.is_some_and(|share| share != location.share)
    {
        return Err(format!(
            "snapshots on another share than the volume's are not supported: remove server and share from the \
             VolumeSnapshotClass, or set them to {} and {}",
            location.server, location.share
        ));
    }
    let handle = SnapshotHandle::new(&location.server, &location.share, name, source);
    let parsed = SnapshotHandle::parse(&handle.to_string()).and_then(|handle| handle.location());
    parsed
        .map(|_| handle)
        .map_err(|error| format!("name {name:?} cannot be part of a snapshot handle: {error}"))
}

fn format(parameters: &SnapshotParameters) -> SnapshotFormat {
    match parameters.format.as_deref() {
        Some("tar.zst") => SnapshotFormat::TarZst,
        Some("tar.gz") => SnapshotFormat::TarGz,
        _ => SnapshotFormat::Tree,
    }
}

fn page(mut found: Vec<SnapshotInfo>, request: &ListSnapshots) -> ListPage<Snapshot> {
    found.sort_by(|one, other| one.handle.cmp(&other.handle));
    found.dedup_by(|one, other| one.handle == other.handle);
    let mut entries: Vec<Snapshot> = found
        .iter()
        .filter(|info| request.after.as_ref().is_none_or(|after| info.handle > *after))
        .filter_map(|info| Some(to_sdk_snapshot(info, &SnapshotHandle::parse(&info.handle).ok()?)))
        .filter(|snapshot| request.source.as_ref().is_none_or(|source| snapshot.source == *source))
        .collect();
    let more = entries.len() > request.max;
    entries.truncate(request.max);
    ListPage { entries, more }
}

fn to_sdk_snapshot(info: &SnapshotInfo, handle: &SnapshotHandle) -> Snapshot {
    // A snapshot of csi-driver-nfs names its source by a part of its handle: this is the usual one.
    let usual = || VolumeHandle {
        server: handle.server.clone(),
        share: handle.share.clone(),
        sub_dir: handle.source.clone(),
        ..VolumeHandle::default()
    };
    Snapshot {
        id: info.handle.clone(),
        source: info.source.clone().unwrap_or_else(|| usual().to_string()),
        size: info.size,
        created: SystemTime::UNIX_EPOCH + Duration::from_secs(info.created),
        ready_to_use: true,
        group: None,
        topology: Vec::new(),
    }
}
