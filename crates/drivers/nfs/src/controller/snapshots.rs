//! Snapshots, and copies that run in the background.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;
use wharf_driver::backend::{
    BackendError, CreateError, DeleteError, DeleteSnapshot, GetSnapshot, ListPage, ListSnapshots,
    NewSnapshot, Snapshot, SnapshotError, Snapshots, VolumeContentSource,
};

use super::errors::CallError;
use super::plan::checked_name;
use super::{Controller, lock, plain_server, unexpected};
use crate::handle::{Location, SnapshotHandle, VolumeHandle};
use crate::options::combine;
use crate::parameters::{SnapshotParameters, Transport, secret_mount_options};
use crate::share::snapshot_record::SnapshotFormat;
use crate::share::{self, ErrorKind, Request, Response, RunJob, ShareError, SnapshotInfo};
use crate::worker::{Export, WorkerError};

/// The first and the longest wait between two looks at a copy.
const FIRST_LOOK: Duration = Duration::from_millis(50);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

#[async_trait]
impl Snapshots for Controller {
    async fn create_snapshot(&self, request: &NewSnapshot) -> Result<Snapshot, SnapshotError> {
        let parameters = SnapshotParameters::parse(&request.parameters)
            .map_err(|error| SnapshotError::Invalid(error.to_string()))?;
        let name = checked_name(&request.name).map_err(SnapshotError::Invalid)?;
        let missing = |_| SnapshotError::NotFound(format!("source volume {} does not exist", request.source));
        let source = VolumeHandle::parse(&request.source).map_err(missing)?;
        let location = source.location().map_err(missing)?;
        refuse_other_share(&parameters, &location).map_err(SnapshotError::Invalid)?;
        let export = match (&parameters.mount_options, secret_mount_options(&request.secrets)) {
            (Some(text), None) => combine([text.as_str()], &Transport::default())
                .map(|options| Export::new(plain_server(&location.server), &location.share, &options))
                .map_err(|error| error.to_string()),
            _ => self.export(&location, &request.secrets).await,
        };
        let export = export.map_err(SnapshotError::Invalid)?;
        let handle = SnapshotHandle::new(&location.server, &location.share, name, &source);
        handle.location().map_err(|error| SnapshotError::Invalid(error.to_string()))?;
        let format = SnapshotFormat::parse(parameters.format.as_deref())
            .ok_or_else(|| SnapshotError::Invalid("format must be tree, tar.zst or tar.gz".to_owned()))?;
        let create = share::CreateSnapshot {
            name: name.to_owned(),
            handle: handle.to_string(),
            source: request.source.clone(),
            format,
        };
        let response = self.call_with_job(&export, Request::CreateSnapshot(create)).await;
        match response.map_err(CallError::from)? {
            Response::CreateSnapshot(created) => {
                let created = created.map_err(CallError::from)?;
                let report = &created.report;
                tracing::info!(
                    snapshot_handle = created.handle,
                    entries = report.entries(),
                    bytes = report.bytes,
                    changed = report.changed,
                    vanished = report.vanished,
                    sockets = report.sockets,
                    devices = report.devices,
                    "created snapshot"
                );
                Ok(to_sdk_snapshot(created))
            }
            other => Err(CallError::from(unexpected(&other)).into()),
        }
    }

    async fn delete_snapshot(&self, request: &DeleteSnapshot) -> Result<(), DeleteError> {
        let location = match SnapshotHandle::parse(&request.id).and_then(|handle| handle.location()) {
            Ok(location) => location,
            Err(error) => {
                tracing::info!(snapshot_handle = request.id, %error, "deleted nothing: the snapshot handle is not one of this driver");
                return Ok(());
            }
        };
        let export = self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?;
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
        let Ok(location) = SnapshotHandle::parse(&request.id).and_then(|handle| handle.location()) else {
            return Ok(None);
        };
        let export = self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?;
        let get = share::GetSnapshot { handle: request.id.clone() };
        match self.call(&export, Request::GetSnapshot(get)).await? {
            Response::GetSnapshot(found) => Ok(found.map_err(CallError::from)?.map(to_sdk_snapshot)),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Lists the export of `source`, or all exports that this process has used.
    async fn list_snapshots(&self, request: &ListSnapshots) -> Result<ListPage<Snapshot>, BackendError> {
        let exports = match &request.source {
            Some(source) => match VolumeHandle::parse(source).and_then(|handle| handle.location()) {
                Ok(location) => {
                    vec![self.export(&location, &request.secrets).await.map_err(BackendError::Internal)?]
                }
                Err(_) => Vec::new(),
            },
            None => lock(&self.known_options)
                .iter()
                .filter_map(|((server, share), known)| Some(Export::new(server, share, known.last()?)))
                .collect(),
        };
        let mut found = Vec::new();
        for export in exports {
            match self.call(&export, Request::ListSnapshots).await? {
                Response::ListSnapshots(list) => found.extend(list.map_err(CallError::from)?),
                other => return Err(unexpected(&other).into()),
            }
        }
        let wanted = |info: &SnapshotInfo| request.source.is_none() || info.source == request.source;
        Ok(page(found.into_iter().filter(wanted).collect(), request.after.as_deref(), request.max))
    }
}

impl Controller {
    /// Runs a request whose answer may need a copy first. Starts the copy, and waits a moment for it: small ones are complete
    /// at once. After that the answer is "in progress", and the caller repeats the request.
    pub(super) async fn call_with_job(
        &self,
        export: &Export,
        request: Request,
    ) -> Result<Response, WorkerError> {
        let end = Instant::now() + self.options.job_wait;
        let mut pause = FIRST_LOOK;
        loop {
            let response = self.call(export, request.clone()).await?;
            let (true, Some(job)) = (is_in_progress(&response), request.job()) else { return Ok(response) };
            let key = format!("{export} {job}");
            if !self.client.job_runs(&key) {
                let run = Request::RunJob(RunJob { job });
                self.client.start_job(export, &key, run, self.options.job_stall).await?;
            }
            if Instant::now() + pause > end {
                return Ok(response);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK);
        }
    }
}

fn is_in_progress(response: &Response) -> bool {
    let error = match response {
        Response::CreateVolume(Err(error)) | Response::CreateSnapshot(Err(error)) => error,
        _ => return false,
    };
    matches!(error, ShareError { kind: ErrorKind::InProgress { .. }, .. })
}

/// A worker has one export: content is copied within one share only.
pub(super) fn check_source(source: &VolumeContentSource, export: &Export) -> Result<(), CreateError> {
    let (kind, id, location) = match source {
        VolumeContentSource::Volume(id) => {
            ("volume", id, VolumeHandle::parse(id).and_then(|handle| handle.location()))
        }
        VolumeContentSource::Snapshot(id) => {
            ("snapshot", id, SnapshotHandle::parse(id).and_then(|handle| handle.location()))
        }
    };
    let location =
        location.map_err(|_| CreateError::NotFound(format!("source {kind} {id} does not exist")))?;
    if (plain_server(&location.server), &location.share) == (export.server.as_str(), &export.share) {
        return Ok(());
    }
    Err(CreateError::Invalid(format!(
        "source {kind} {id} is on {}:{}, but the class has {export}: content is copied within one share only",
        location.server, location.share
    )))
}

fn refuse_other_share(parameters: &SnapshotParameters, source: &Location) -> Result<(), String> {
    let server = parameters
        .server
        .as_deref()
        .is_none_or(|server| plain_server(server) == plain_server(&source.server));
    let share = parameters
        .share
        .as_deref()
        .is_none_or(|share| share.trim_matches('/') == source.share.trim_matches('/'));
    if server && share {
        return Ok(());
    }
    Err(format!(
        "the snapshot class has another server or share than the volume, {}:{}: snapshots are kept in the share of their \
         volume",
        source.server, source.share
    ))
}

/// One page of a list that is not sorted yet.
fn page(mut found: Vec<SnapshotInfo>, after: Option<&str>, max: usize) -> ListPage<Snapshot> {
    found.sort_by(|one, other| one.handle.cmp(&other.handle));
    // Exports with different options can be the same share.
    found.dedup_by(|one, other| one.handle == other.handle);
    let mut rest = found.into_iter().filter(|info| after.is_none_or(|after| info.handle.as_str() > after));
    let entries = rest.by_ref().take(max).map(to_sdk_snapshot).collect();
    ListPage { entries, more: rest.next().is_some() }
}

fn to_sdk_snapshot(info: SnapshotInfo) -> Snapshot {
    let source = info.source.unwrap_or_else(|| {
        // A snapshot of csi-driver-nfs: all that is known of its volume.
        let parsed = SnapshotHandle::parse(&info.handle).ok();
        parsed.map_or_else(String::new, |handle| {
            format!("{}#{}#{}##", handle.server, handle.share, handle.source)
        })
    });
    Snapshot {
        id: info.handle,
        source,
        size: info.size,
        created: SystemTime::UNIX_EPOCH + Duration::from_secs(info.created),
        ready_to_use: true,
        group: None,
        topology: Vec::new(),
    }
}
