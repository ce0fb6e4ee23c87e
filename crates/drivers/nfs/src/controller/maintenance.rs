//! Recovery and purge of exports in the background: when each is due, and which exports there are.
//!
//! An export is recovered with its first call, and every hour. Volumes can have been deleted before a restart, and no call comes for
//! their share: so the cluster's objects name the exports at the start.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Controller, VolumeMount, lock, plain_server};
use crate::handle::VolumeHandle;
use crate::options::combine;
use crate::parameters::VolumeAttributes;
use crate::share::{PurgeTrash, Request};
use crate::worker::Export;

/// How often an export is recovered.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(3600);

/// When an export is recovered again if that failed, and how often the driver looks for exports that are due.
const RETRY_INTERVAL: Duration = Duration::from_secs(300);

/// The pause between two exports that no call has used: each starts a process and a mount.
const PACE: Duration = Duration::from_millis(200);

/// The last recovery of an export.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastRecovery {
    started: Instant,
    /// Whether a job could not be started.
    refused: bool,
}

/// Whether an export is recovered now.
fn is_due(age: Option<Duration>, failed: bool) -> bool {
    age.is_none_or(|age| age >= if failed { RETRY_INTERVAL } else { RECOVERY_INTERVAL })
}

fn job_key(what: &str, export: &Export) -> String {
    format!("{what} {export}")
}

impl Controller {
    /// Recovers and purges every export of the cluster at the start, and each hour those that are known. Never returns.
    pub async fn maintain(&self) {
        let (mut listed, mut reported) = (false, false);
        loop {
            if !listed {
                match self.recover_exports_of_the_cluster().await {
                    Ok(()) => listed = true,
                    // Once: node services have no permission to read anything.
                    Err(error) if !reported => {
                        reported = true;
                        tracing::info!(
                            error,
                            "failed to read StorageClasses and PersistentVolumes; exports are recovered when they are used"
                        );
                    }
                    Err(error) => {
                        tracing::debug!(error, "failed to read StorageClasses and PersistentVolumes")
                    }
                }
            }
            let exports: Vec<Export> = lock(&self.recovered).keys().cloned().collect();
            for export in exports {
                self.recover_if_due(&export).await;
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Starts the recovery of the exports that the cluster's objects name. The error is why they cannot be read.
    pub(super) async fn recover_exports_of_the_cluster(&self) -> Result<(), String> {
        let Some(objects) = &self.objects else { return Ok(()) };
        let users = objects.users().await?;
        for export in exports_of(&users) {
            let known = |used: &Export| (&used.server, &used.share) == (&export.server, &export.share);
            if lock(&self.recovered).keys().any(known) {
                continue;
            }
            self.recover_if_due(&export).await;
            tokio::time::sleep(PACE).await;
        }
        Ok(())
    }

    /// Starts recovery and purge in the background. A failure must not fail the call that needs the export.
    pub(super) async fn recover_if_due(&self, export: &Export) {
        let now = Instant::now();
        {
            let mut recovered = lock(&self.recovered);
            let last = recovered.get(export).copied();
            let has_failed = |what: &str| {
                let key = job_key(what, export);
                !self.client.job_runs(&key) && self.client.job_failed(&key)
            };
            let failed =
                last.is_some_and(|last| last.refused || has_failed("recover") || has_failed("purge"));
            if !is_due(last.map(|last| now.duration_since(last.started)), failed) {
                return;
            }
            recovered.insert(export.clone(), LastRecovery { started: now, refused: false });
        }
        let started = self.start("recover", export, Request::Recover).await & self.purge(export).await;
        if !started && let Some(last) = lock(&self.recovered).get_mut(export) {
            last.refused = true;
        }
    }

    /// Purges the trash of an export in the background; false if that could not be started.
    pub(super) async fn purge(&self, export: &Export) -> bool {
        self.start("purge", export, Request::PurgeTrash(PurgeTrash { max_entries: u64::MAX })).await
    }

    async fn start(&self, what: &str, export: &Export, request: Request) -> bool {
        let started =
            self.client.start_job(export, &job_key(what, export), request, self.options.job_stall).await;
        if let Err(error) = &started {
            tracing::warn!(job = what, %export, %error, "failed to start job");
        }
        started.is_ok()
    }
}

/// The exports that can have records, each once. Static volumes have none; their handles can be any text.
fn exports_of(users: &[VolumeMount]) -> Vec<Export> {
    let mut exports = BTreeMap::new();
    for user in users {
        let Ok(attributes) = VolumeAttributes::parse(&user.attributes) else { continue };
        let (server, share) = match user.handle.is_empty() {
            true => (attributes.server.clone(), attributes.share.clone()),
            // Old releases of csi-driver-nfs wrote the volume's whole path as the share in the attributes.
            false => match VolumeHandle::parse(&user.handle).and_then(|handle| handle.location()) {
                Ok(location) => (location.server, location.share),
                Err(_) => continue,
            },
        };
        let texts = user.mount_options.iter().map(String::as_str).chain([attributes.mount_options.as_str()]);
        let Ok(options) = combine(texts, &attributes.transport) else { continue };
        let export = Export::new(plain_server(&server), &share, &options);
        exports.entry((export.server.clone(), export.share.clone())).or_insert(export);
    }
    exports.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_recovery_is_repeated_sooner() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (age, failed, due) in [
            (None, false, true),
            (None, true, true),
            (seconds(0), true, false),
            (seconds(299), true, false),
            (seconds(300), true, true),
            (seconds(300), false, false),
            (seconds(3599), false, false),
            (seconds(3600), false, true),
        ] {
            assert_eq!(is_due(age, failed), due, "{age:?} {failed}");
        }
    }

    #[test]
    fn exports_are_those_of_classes_and_of_volumes_with_a_handle_of_the_driver() {
        let user = |handle: &str, share: &str, options: &[&str]| VolumeMount {
            handle: handle.to_owned(),
            attributes: [("server", "srv"), ("share", share), ("security", "krb5")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            mount_options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        let found = exports_of(&[
            user("", "/a", &["nfsvers=4.1"]),
            // The same share.
            user("srv#a#pvc-1##", "/a", &["nfsvers=4.2"]),
            user("srv/b/pvc-2", "/b/pvc-2", &[]),
            user("any text", "/static", &[]),
            user("srv#c#pvc-3##", "/c", &["bad\noption"]),
            VolumeMount { handle: "srv#d#pvc-4##".to_owned(), ..VolumeMount::default() },
        ]);
        let options =
            |options: &[&str]| options.iter().map(|option| (*option).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            found,
            [
                Export::new("srv", "/a", &options(&["vers=4.1", "sec=krb5"])),
                Export::new("srv", "/b", &options(&["sec=krb5"])),
            ]
        );
    }
}
