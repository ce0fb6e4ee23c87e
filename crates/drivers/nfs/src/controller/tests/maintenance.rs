//! Recovery and purge without a call for the export.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wharf_driver::backend::{DeleteVolume, Volumes as _};

use super::{Controller, ControllerOptions, Objects, controller, requested};
use crate::parameters::OnDelete;
use crate::share::Request;

/// The driver was restarted before the purge.
#[tokio::test]
async fn trash_is_purged_after_a_restart_without_a_call_for_the_share() {
    let (directories, before) = controller(OnDelete::Delete);
    let volume = before.create(&requested("pvc-1", &[])).await.unwrap();
    std::fs::write(directories.at("pvc-1/data"), "1").unwrap();
    directories.ignore_jobs();
    before.delete(&DeleteVolume::new(volume.id)).await.unwrap();
    let trash = || std::fs::read_dir(directories.at(".wharf/trash")).unwrap().count();
    assert_eq!(trash(), 1);
    directories.jobs_ignored.store(false, Ordering::Relaxed);
    let after = Controller::new(directories.clone(), Some(Arc::new(Objects)), ControllerOptions::default());
    after.recover_exports_of_the_cluster().await.unwrap();
    assert_eq!(trash(), 0);
}

#[tokio::test]
async fn share_that_is_read_from_the_cluster_is_recovered_once() {
    let (directories, controller) = controller(OnDelete::Delete);
    for _ in 0..2 {
        controller.recover_exports_of_the_cluster().await.unwrap();
    }
    let calls = directories.calls.lock().unwrap();
    assert_eq!(calls.iter().filter(|(_, request)| *request == Request::Recover).count(), 1);
}
