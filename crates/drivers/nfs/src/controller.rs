//! The SDK's controller traits, on top of share workers.
//!
//! A handle or the parameters of a class tell on which export a volume is; everything else is decided there, by
//! [`crate::share`]. Recovery and purge of exports run in the background (see [`maintenance`]).

mod adopt;
mod convert;
mod errors;
mod health;
mod maintenance;
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
use std::time::Duration;

use crate::handle::Location;
use crate::options::combine;
use crate::parameters::{OnDelete, Transport, secret_mount_options};
use crate::share::{Request, Response};
use crate::worker::{Export, ShareClient, WorkerError};
use maintenance::LastRecovery;
use objects::is_object_name;

pub use adopt::{AdoptionError, PersistentVolumeFacts};
pub use convert::{Conversion, ConvertOptions};
pub use objects::{ClaimMetadata, ClusterObjects, VolumeMount};

/// The mount options of an export.
type MountOptions = Vec<String>;

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
    /// The exports that are recovered, and when they were last.
    recovered: Mutex<BTreeMap<Export, LastRecovery>>,
    /// The mount options that worked for a server and share, the last ones at the end. Calls without a class (DeleteVolume) use them.
    known_options: Mutex<BTreeMap<(String, String), Vec<MountOptions>>>,
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

    /// Runs a request on an export.
    async fn call(&self, export: &Export, request: Request) -> Result<Response, WorkerError> {
        self.recover_if_due(export).await;
        let response = self.client.call(export, request, self.options.call_timeout).await?;
        let place = (export.server.clone(), export.share.clone());
        remember(lock(&self.known_options).entry(place).or_default(), &export.options);
        Ok(response)
    }

    /// The export of an existing volume or snapshot. Options of a secret take precedence over those that worked before. After a
    /// restart there are none, and a server can require options (`sec=`, `xprtsec=`). If classes of one share have different ones,
    /// only some of them may show how the volume's directory is identified (NFSv4.2). In both cases those of the PersistentVolume
    /// are used, which has the name of the CreateVolume request.
    async fn export(
        &self,
        location: &Location,
        secrets: &BTreeMap<String, String>,
    ) -> Result<Export, String> {
        let server = plain_server(&location.server);
        let place = (server.to_owned(), location.share.clone());
        let mut known = lock(&self.known_options).get(&place).cloned().unwrap_or_default();
        let last = known.pop();
        let options = match (secret_mount_options(secrets), last) {
            (Some(text), _) => combine([text], &Transport::default()).map_err(|error| error.to_string())?,
            (None, Some(last)) if known.is_empty() => last,
            (None, last) => self.options_of_volume(location).await.or(last).unwrap_or_default(),
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

/// Adds options to those that worked, at the end.
fn remember(known: &mut Vec<MountOptions>, options: &[String]) {
    /// Options of a secret can differ with each call.
    const MAX: usize = 8;
    known.retain(|known| known != options);
    if known.len() == MAX {
        known.remove(0);
    }
    known.push(options.to_vec());
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
