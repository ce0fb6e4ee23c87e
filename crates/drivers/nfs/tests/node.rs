//! The node service on directories instead of exports: what a repeated, interrupted or hanging operation leaves.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use wharf_driver::backend::{
    AccessMode, BackendError, Capability, NodeVolume, PublishTarget, TargetError, TargetMounts as _,
    UnpublishTarget,
};
use wharf_driver_nfs::node::{NodeMounts, NodeOptions};
use wharf_driver_nfs::worker::{Exports, NodeRequest, WorkerOptions, WorkerProgram, Workers};
use wharf_linux::{Linux, Mounts as _};

const PROGRAM: &str = env!("CARGO_BIN_EXE_nfs-test-driver");

/// A directory with the export `/x` of server `nas`, whose mounts are removed at the end.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::Builder::new().prefix("wharf-nfs-node-").tempdir().unwrap());
        std::fs::create_dir_all(place.path("export/x/v1")).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn workers(&self, program: WorkerProgram) -> Workers {
        let exports = BTreeMap::from([("nas".to_owned(), self.path("export"))]);
        Workers::new(program, Exports::Directories(exports), WorkerOptions::default())
    }

    fn mounts_at(&self, target: &Path) -> usize {
        let table = Linux::new().mount_table().unwrap();
        table.mounts().iter().filter(|mount| mount.mount_point == target).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (kernel, root) = (Linux::new(), self.path(""));
        for mount in kernel.mount_table().unwrap().mounts().iter().rev() {
            if mount.mount_point.starts_with(&root) {
                let _ = kernel.unmount(&mount.mount_point);
            }
        }
    }
}

fn real() -> WorkerProgram {
    WorkerProgram::new(PROGRAM, &["nfs-worker"])
}

/// A worker that hangs if its request contains the word, and is the real one otherwise.
fn hanging_on(word: &str) -> WorkerProgram {
    let script = format!(
        r#"read -r line; case "$line" in *{word}*) exec sleep 1000;; *) echo "$line" | {PROGRAM} nfs-worker "$1";; esac"#
    );
    WorkerProgram::new("/bin/sh", &["-c", &script, "worker"])
}

fn volume(target: &Path, context: &[(&str, &str)]) -> NodeVolume {
    let all = [("server", "nas"), ("share", "/x"), ("subDir", "v1")];
    let context: BTreeMap<String, String> =
        all.iter().chain(context).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    NodeVolume::new("v1", Capability::mount("", AccessMode::MultiNodeMultiWriter))
        .volume_context(context)
        .target(PublishTarget::new(target))
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The first call mounts and is killed before it sets the mode; the second one finds the mount.
#[tokio::test]
async fn repeated_publish_sets_the_mode_that_an_interrupted_one_did_not() {
    let place = Place::new();
    let node = NodeMounts::new(place.workers(real()), NodeOptions::default());
    let target = place.path("t");
    node.publish(&volume(&target, &[])).await.unwrap();
    node.publish(&volume(&target, &[("mountPermissions", "0751")])).await.unwrap();
    assert_eq!((mode(&place.path("export/x/v1")), place.mounts_at(&target)), (0o751, 1));
    node.unpublish(&UnpublishTarget::new("v1", &target)).await.unwrap();
    assert!(!target.exists());
}

/// Each layer of a stack of mounts has its deadlines; the call as a whole must end nevertheless, and the next one goes on.
#[tokio::test]
async fn unpublish_of_many_hanging_layers_ends_in_time() {
    let place = Place::new();
    let (kernel, target) = (Linux::new(), place.path("t"));
    std::fs::create_dir(&target).unwrap();
    for _ in 0..12 {
        kernel.bind(&place.path("export/x/v1"), &target, false).unwrap();
    }
    // An unmount that succeeds but does not return.
    let script = format!(
        r#"read -r line; echo "$line" | {PROGRAM} nfs-worker "$1" > "$0.out"; case "$line" in *nmount*) exec sleep 1000;; *) cat "$0.out";; esac"#
    );
    let scratch = place.path("worker");
    let slow = WorkerProgram::new("/bin/sh", &["-c", &script, scratch.to_str().unwrap()]);
    let timeout = Duration::from_millis(700);
    let options = NodeOptions { unmount_timeout: timeout, ..NodeOptions::default() };
    let node = NodeMounts::new(place.workers(slow), options);
    let started = Instant::now();
    let first = node.unpublish(&UnpublishTarget::new("v1", &target)).await;
    assert!(started.elapsed() < 7 * timeout, "{:?}", started.elapsed());
    assert!(matches!(first, Err(TargetError::Backend(BackendError::Unavailable(_)))), "{first:?}");
    let left = place.mounts_at(&target);
    assert!((1..12).contains(&left), "{left}");
    let node = NodeMounts::new(place.workers(real()), NodeOptions::default());
    node.unpublish(&UnpublishTarget::new("v1", &target)).await.unwrap();
    assert!(!target.exists());
}

/// Whatever hangs, each call ends by its deadline.
#[tokio::test]
async fn calls_end_when_any_step_hangs() {
    let place = Place::new();
    let target = place.path("t");
    let short = Duration::from_millis(500);
    let options = || NodeOptions {
        mount_timeout: short,
        unmount_timeout: short,
        stats_timeout: short,
        ..NodeOptions::default()
    };
    let good = NodeMounts::new(place.workers(real()), NodeOptions::default());
    for word in ["resolve", "\\\"mount\\\"", "check", "etPermissions", "nmount", "emoveTarget"] {
        let node = NodeMounts::new(place.workers(hanging_on(word)), options());
        let started = Instant::now();
        let with_mode = volume(&target, &[("mountPermissions", "0755")]);
        let _ = node.publish(&with_mode).await;
        let _ = node.publish(&with_mode).await;
        let _ = node.unpublish(&UnpublishTarget::new("v1", &target)).await;
        assert!(started.elapsed() < Duration::from_secs(8), "{word}: {:?}", started.elapsed());
        good.unpublish(&UnpublishTarget::new("v1", &target)).await.unwrap();
        assert!(!target.exists(), "{word}");
    }
}

/// Killed workers leave neither a zombie nor a descriptor.
#[tokio::test]
async fn killed_workers_leave_nothing() {
    let place = Place::new();
    let workers = place.workers(WorkerProgram::new("/bin/sh", &["-c", "exec sleep 4711", "worker"]));
    let own = || {
        let mut count = 0;
        for entry in std::fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
            let parent = rest.split(' ').nth(1) == Some(&std::process::id().to_string());
            // In any state: a process that was killed runs for a moment before it is a zombie.
            count += usize::from(parent && name.ends_with("(sleep"));
        }
        count
    };
    let pipes = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
        fds.filter(|fd| {
            std::fs::read_link(fd.path())
                .is_ok_and(|to| to.starts_with("pipe:") || to.to_string_lossy().contains("pipe:"))
        })
        .count()
    };
    let before = pipes();
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let workers = workers.clone();
            let request = NodeRequest::Resolve(PathBuf::from("/tmp/x"));
            tokio::spawn(async move { workers.node(Some("nas"), request, Duration::from_millis(200)).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap_err();
    }
    let end = Instant::now() + Duration::from_secs(20);
    let (processes, open) = loop {
        let left = (own(), pipes());
        if left.0 == 0 && left.1 <= before || Instant::now() > end {
            break left;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Other tests of this process run workers, too.
    assert_eq!(processes, 0);
    assert!(open <= before + 12, "{open} pipes, {before} before");
    assert_eq!(workers.blocked(), 0);
}
