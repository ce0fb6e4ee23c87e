//! The SDK's controller traits, on top of share workers.
//!
//! A handle or the parameters of a class tell on which export a volume is; everything else is decided there, by
//! [`crate::share`]. The first call for an export after the start, and every hour, starts its recovery and purge in the
//! background.

mod adopt;
mod convert;
mod errors;
mod health;
mod neighbours;
mod objects;
mod plan;
mod snapshots;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::handle::Location;
use crate::options::combine;
use crate::parameters::{OnDelete, Transport, secret_mount_options};
use crate::share::{PurgeTrash, Request, Response};
use crate::worker::{Export, ShareClient, WorkerError};
use objects::is_object_name;

pub use adopt::{AdoptionError, PersistentVolumeFacts};
pub use convert::{Conversion, ConvertOptions};
pub use objects::{ClaimMetadata, ClusterObjects, VolumeMount};

/// How often an export is recovered.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(3600);

/// Settings of the controller.
#[derive(Debug, Clone)]
pub struct ControllerOptions {
    /// What DeleteVolume does with volumes whose class does not say it.
    pub default_on_delete: OnDelete,
    /// The deadline of one request to a share.
    pub call_timeout: Duration,
    /// A background job without progress for this long is killed.
    pub job_stall: Duration,
    /// How long a request waits for a copy before it answers that the copy is in progress.
    pub job_wait: Duration,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            default_on_delete: OnDelete::Delete,
            call_timeout: Duration::from_secs(60),
            job_stall: Duration::from_secs(120),
            job_wait: Duration::from_secs(10),
        }
    }
}

/// The controller service of the driver.
pub struct Controller {
    client: Arc<dyn ShareClient>,
    objects: Option<Arc<dyn ClusterObjects>>,
    options: ControllerOptions,
    /// When each export was last recovered.
    recovered: Mutex<BTreeMap<Export, Instant>>,
    /// The mount options that last worked for a server and share. Calls without a class (DeleteVolume) use them.
    known_options: Mutex<BTreeMap<(String, String), Vec<String>>>,
    /// How many deletions succeeded without effect.
    deletes_without_record: AtomicU64,
}

impl Controller {
    /// A controller on these workers. Without `objects`, templates with labels and annotations are rejected, and calls without a
    /// class use the mount options of earlier calls only.
    pub fn new(
        client: Arc<dyn ShareClient>,
        objects: Option<Arc<dyn ClusterObjects>>,
        options: ControllerOptions,
    ) -> Self {
        Self {
            client,
            objects,
            options,
            recovered: Mutex::default(),
            known_options: Mutex::default(),
            deletes_without_record: AtomicU64::new(0),
        }
    }

    /// How many deletions succeeded without effect since the start, because the volume has no record.
    pub fn deletes_without_record(&self) -> u64 {
        self.deletes_without_record.load(Ordering::Relaxed)
    }

    /// Recovers and purges every export that was used, each hour. Never returns.
    pub async fn maintain(&self) {
        loop {
            tokio::time::sleep(RECOVERY_INTERVAL).await;
            let exports: Vec<Export> = lock(&self.recovered).keys().cloned().collect();
            for export in exports {
                self.recover_if_due(&export).await;
            }
        }
    }

    /// Runs a request on an export.
    async fn call(&self, export: &Export, request: Request) -> Result<Response, WorkerError> {
        self.recover_if_due(export).await;
        let response = self.client.call(export, request, self.options.call_timeout).await?;
        let place = (export.server.clone(), export.share.clone());
        lock(&self.known_options).insert(place, export.options.clone());
        Ok(response)
    }

    /// Starts recovery and purge in the background. A failure must not fail the call that needs the export.
    async fn recover_if_due(&self, export: &Export) {
        let now = Instant::now();
        {
            let mut recovered = lock(&self.recovered);
            let due = recovered.get(export).is_none_or(|last| now.duration_since(*last) >= RECOVERY_INTERVAL);
            if !due {
                return;
            }
            recovered.insert(export.clone(), now);
        }
        self.start("recover", export, Request::Recover).await;
        self.purge(export).await;
    }

    /// Purges the trash of an export in the background.
    async fn purge(&self, export: &Export) {
        self.start("purge", export, Request::PurgeTrash(PurgeTrash { max_entries: u64::MAX })).await;
    }

    async fn start(&self, what: &str, export: &Export, request: Request) {
        let key = format!("{what} {export}");
        if let Err(error) = self.client.start_job(export, &key, request, self.options.job_stall).await {
            tracing::warn!(job = what, %export, %error, "failed to start job");
        }
    }

    /// The export of an existing volume or snapshot. Options of a secret take precedence over those that worked before. After a
    /// restart there are none, and a server can require options (`sec=`, `xprtsec=`): then those of the PersistentVolume, which
    /// has the name of the CreateVolume request.
    async fn export(
        &self,
        location: &Location,
        secrets: &BTreeMap<String, String>,
    ) -> Result<Export, String> {
        let server = plain_server(&location.server);
        let place = (server.to_owned(), location.share.clone());
        let known = lock(&self.known_options).get(&place).cloned();
        let options = match (secret_mount_options(secrets), known) {
            (Some(text), _) => combine([text], &Transport::default()).map_err(|error| error.to_string())?,
            (None, Some(known)) => known,
            (None, None) => self.options_of_volume(location).await.unwrap_or_default(),
        };
        Ok(Export::new(server, &location.share, &options))
    }

    /// The mount options in the PersistentVolume of this name, if it is on the share.
    async fn options_of_volume(&self, location: &Location) -> Option<Vec<String>> {
        let volume = location.volume.as_str();
        let objects = self.objects.as_ref().filter(|_| is_object_name(volume))?;
        let options = match objects.volume(volume).await {
            Ok(found) => found?.options_for(location).map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        options.unwrap_or_else(|error| {
            tracing::warn!(pv = volume, error, "failed to read mount options; mounting with defaults");
            None
        })
    }
}

/// A server as workers take it: an IPv6 address without brackets.
fn plain_server(server: &str) -> &str {
    server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(server)
}

/// A response that belongs to another request.
fn unexpected(response: &Response) -> WorkerError {
    WorkerError::Internal(format!("unexpected response {response:?}"))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
