//! Applies the pod's fsGroup to a volume's files, and reports progress as events when it takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::sleep;
use wharf_cluster::EventType;

use super::super::failure::Class;
use super::super::manager::{Inputs, Manager};
use super::super::ownership::walk::{Wanted, apply, root_matches};
use super::super::ownership::{self, FIRST_REPORT, REPORT_AGAIN};
use super::super::world::{DesiredMount, Progress};
use super::StepError;

impl Manager {
    pub(super) async fn set_ownership(
        &self,
        unique: &str,
        inputs: &Inputs,
        pod: &str,
    ) -> Result<(), StepError> {
        let desired = self.wanted(inputs, pod)?;
        let group = ownership::group(desired).and_then(|group| u32::try_from(group).ok());
        let refused = |reason: String| {
            // The volume is mounted but unusable: it is unmounted with the pod.
            StepError::new(
                Class::Uncertain,
                format!("applyFSGroup failed for vol {}: {reason}", inputs.volume.handle),
            )
        };
        let Some(group) = group.filter(|group| *group != u32::MAX) else {
            return Err(refused("fsGroup is not a valid group id".to_owned()));
        };
        let path = inputs.volume.target(&self.parts.root, pod);
        let (wanted, only_root) =
            (Wanted { group, read_only: desired.read_only }, ownership::on_root_mismatch(desired));
        let files = Arc::new(AtomicU64::new(0));
        let (at, count) = (path.clone(), Arc::clone(&files));
        let changing = tokio::task::spawn_blocking(move || match only_root && root_matches(&at, wanted)? {
            true => Ok(None),
            false => apply(&at, wanted, &count),
        });
        let shown = path.display().to_string();
        let changed = tokio::select! {
            biased;
            changed = changing => changed,
            () = self.report(desired, &shown, pod, &files) => return Ok(()),
        };
        match changed {
            Ok(Ok(maintained)) => {
                if let Some(error) = maintained {
                    tracing::warn!(
                        driver = inputs.volume.driver,
                        volume_handle = inputs.volume.handle,
                        pod_uid = pod,
                        %error,
                        "failed to change group or mode of some files"
                    );
                }
                self.change(unique, |volume| {
                    if let Some(mount) = volume.mounts.get_mut(pod) {
                        mount.progress = mount.progress.max(Progress::Owned);
                    }
                });
                Ok(())
            }
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused("the ownership change was aborted".to_owned())),
        }
    }

    /// Records a progress event periodically; never returns.
    async fn report(&self, desired: &DesiredMount, path: &str, pod: &str, files: &AtomicU64) {
        let record = |note: String| {
            let reason = "VolumePermissionChangeInProgress";
            self.parts.events.record_for(&*desired.pod, EventType::Warning, reason, note);
        };
        sleep(FIRST_REPORT).await;
        record(ownership::report(path, pod, None));
        loop {
            sleep(REPORT_AGAIN).await;
            record(ownership::report(path, pod, Some(files.load(Ordering::Relaxed))));
        }
    }
}
