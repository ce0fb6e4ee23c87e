//! Gives a volume's files to the pod's group, and says so when it takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::sleep;
use wharf_cluster::EventType;

use super::super::failure::Class;
use super::super::manager::{Manager, Seen};
use super::super::ownership::walk::{Wanted, apply, root_matches};
use super::super::ownership::{self, FIRST_REPORT, REPORT_AGAIN};
use super::super::world::{Progress, Want};
use super::Trouble;

impl Manager {
    pub(super) async fn own(&self, unique: &str, seen: &Seen, pod: &str) -> Result<(), Trouble> {
        let want = self.wanted(seen, pod)?;
        let group = ownership::group(want).and_then(|group| u32::try_from(group).ok());
        let refused = |why: String| {
            // It is mounted, and cannot be used as it is: it goes with the pod.
            Trouble::new(
                Class::Uncertain,
                format!("applyFSGroup failed for vol {}: {why}", seen.volume.handle),
            )
        };
        let Some(group) = group.filter(|group| *group != u32::MAX) else {
            return Err(refused("fsGroup is no group's number".to_owned()));
        };
        let path = seen.volume.target(&self.parts.root, pod);
        let (wanted, only_root) =
            (Wanted { group, read_only: want.read_only }, ownership::on_root_mismatch(want));
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
            () = self.report(want, &shown, pod, &files) => return Ok(()),
        };
        match changed {
            Ok(Ok(kept)) => {
                if let Some(error) = kept {
                    tracing::warn!(volume = unique, pod, %error, "some files keep their group or mode");
                }
                self.change(unique, |volume| {
                    if let Some(mount) = volume.mounts.get_mut(pod) {
                        mount.progress = mount.progress.max(Progress::Owned);
                    }
                });
                Ok(())
            }
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused("it was broken off".to_owned())),
        }
    }

    /// Tells the user from time to time how far it has come; never ends.
    async fn report(&self, want: &Want, path: &str, pod: &str, files: &AtomicU64) {
        let tell = |note: String| {
            let reason = "VolumePermissionChangeInProgress";
            self.parts.events.tell(&*want.pod, EventType::Warning, reason, note);
        };
        sleep(FIRST_REPORT).await;
        tell(ownership::report(path, pod, None));
        loop {
            sleep(REPORT_AGAIN).await;
            tell(ownership::report(path, pod, Some(files.load(Ordering::Relaxed))));
        }
    }
}
