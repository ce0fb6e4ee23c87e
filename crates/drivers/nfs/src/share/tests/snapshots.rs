//! Snapshots, restores and clones on a plain directory.

use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use wharf_driver::backend::VolumeContentSource;

use super::support::{Fixture, create, environment, volume};
use crate::copy::testing::assert_same;
use crate::copy::{CopyReport, Progress};
use crate::handle::tests::hostile_handles;
use crate::share::snapshot_record::{JobKey, JobRecord, JobResult, JobState, SnapshotFormat};
use crate::share::{
    CreateSnapshot, CreateVolume, DeleteSnapshot, ErrorKind, GetSnapshot, Request, Response, RunJob, Share,
    ShareError, SnapshotInfo,
};

pub(super) const FORMATS: [SnapshotFormat; 3] =
    [SnapshotFormat::Tree, SnapshotFormat::TarZst, SnapshotFormat::TarGz];

pub(super) fn snapshot(name: &str, source: &str, format: SnapshotFormat) -> CreateSnapshot {
    CreateSnapshot { name: name.to_owned(), handle: snapshot_handle(name), source: source.to_owned(), format }
}

pub(super) fn snapshot_handle(name: &str) -> String {
    format!("srv#share#{name}#{name}#pvc-1")
}

pub(super) fn restored(handle: &str, path: &str, snapshot: &str) -> CreateVolume {
    CreateVolume { source: Some(VolumeContentSource::Snapshot(snapshot.to_owned())), ..volume(handle, path) }
}

pub(super) fn cloned(handle: &str, path: &str, source: &str) -> CreateVolume {
    CreateVolume { source: Some(VolumeContentSource::Volume(source.to_owned())), ..volume(handle, path) }
}

pub(super) fn create_snapshot(share: &Share, request: &CreateSnapshot) -> Result<SnapshotInfo, ShareError> {
    match share.handle(Request::CreateSnapshot(request.clone())) {
        Response::CreateSnapshot(result) => result,
        other => panic!("{other:?}"),
    }
}

pub(super) fn delete_snapshot(share: &Share, handle: &str) -> Result<(), ShareError> {
    match share.handle(Request::DeleteSnapshot(DeleteSnapshot { handle: handle.to_owned() })) {
        Response::DeleteSnapshot(result) => result,
        other => panic!("{other:?}"),
    }
}

fn get_snapshot(share: &Share, handle: &str) -> Option<SnapshotInfo> {
    match share.handle(Request::GetSnapshot(GetSnapshot { handle: handle.to_owned() })) {
        Response::GetSnapshot(result) => result.unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn run_job(share: &Share, job: JobKey) -> Result<(), ShareError> {
    match share.handle(Request::RunJob(RunJob { job })) {
        Response::RunJob(result) => result,
        other => panic!("{other:?}"),
    }
}

/// Calls until the answer is not "in progress", and runs the job in between, as the controller does.
pub(super) fn complete<T>(
    share: &Share,
    job: &JobKey,
    call: impl Fn() -> Result<T, ShareError>,
) -> Result<T, ShareError> {
    for _ in 0..5 {
        match call() {
            Err(ShareError { kind: ErrorKind::InProgress { .. }, .. }) => run_job(share, job.clone())?,
            result => return result,
        }
    }
    call()
}

pub(super) fn make_snapshot(share: &Share, request: &CreateSnapshot) -> Result<SnapshotInfo, ShareError> {
    let job = JobKey::Snapshot(request.name.clone());
    complete(share, &job, || create_snapshot(share, request))
}

pub(super) fn make_volume(share: &Share, request: &CreateVolume) -> Result<(), ShareError> {
    let job = JobKey::Volume(request.handle.clone());
    complete(share, &job, || create(share, request)).map(drop)
}

/// A volume `h1` at `pvc-1` with everything that a snapshot must keep.
pub(super) fn with_volume(fixture: &Fixture) {
    fixture.create("h1", "pvc-1").unwrap();
    fixture.write("pvc-1/dir/file", "content");
    std::fs::hard_link(fixture.at("pvc-1/dir/file"), fixture.at("pvc-1/link")).unwrap();
    symlink("dir/file", fixture.at("pvc-1/symlink")).unwrap();
    std::os::unix::fs::chown(fixture.at("pvc-1/dir"), Some(7), Some(8)).unwrap();
}

#[test]
fn snapshot_is_in_progress_until_its_job_ends_and_restores_exactly() {
    for format in FORMATS {
        let fixture = Fixture::new();
        with_volume(&fixture);
        let request = snapshot("snap-1", "h1", format);
        let error = create_snapshot(&fixture.share, &request).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InProgress { percent: None }, "{format:?}");
        assert_eq!(get_snapshot(&fixture.share, &request.handle), None);
        let info = make_snapshot(&fixture.share, &request).unwrap();
        assert_eq!((info.handle.as_str(), info.size), (request.handle.as_str(), 7));
        assert_eq!(create_snapshot(&fixture.share, &request).unwrap(), info, "repeat");
        assert_eq!(get_snapshot(&fixture.share, &request.handle), Some(info.clone()));
        match fixture.share.handle(Request::ListSnapshots) {
            Response::ListSnapshots(Ok(list)) => assert_eq!(list, [info]),
            other => panic!("{other:?}"),
        }
        // The snapshot does not change with its source.
        std::fs::rename(fixture.at("pvc-1"), fixture.at("before")).unwrap();
        let request2 = restored("h2", "pvc-2", &request.handle);
        let error = create(&fixture.share, &request2).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::InProgress { .. }), "{error}");
        assert!(!fixture.at("pvc-2").exists());
        make_volume(&fixture.share, &request2).unwrap();
        assert_same(&fixture.at("before"), &fixture.at("pvc-2"));
        std::fs::rename(fixture.at("before"), fixture.at("pvc-1")).unwrap();
        delete_snapshot(&fixture.share, &request.handle).unwrap();
        delete_snapshot(&fixture.share, &request.handle).unwrap();
        assert_eq!(get_snapshot(&fixture.share, &request.handle), None);
        fixture.delete("h2").unwrap();
        assert!(!fixture.at("snap-1").exists());
        assert!(fixture.at("pvc-1/dir/file").exists());
    }
}

/// A claim that restores the snapshot must have its size at least, and holes need no space.
#[test]
fn size_of_a_snapshot_is_without_holes_and_at_most_that_of_its_volume() {
    for format in FORMATS {
        let fixture = Fixture::new();
        with_volume(&fixture);
        let sparse = std::fs::File::create(fixture.at("pvc-1/sparse")).unwrap();
        sparse.set_len(100 << 30).unwrap();
        let info = make_snapshot(&fixture.share, &snapshot("snap-1", "h1", format)).unwrap();
        assert!((7..1 << 20).contains(&info.size), "{format:?}: {}", info.size);
        assert_eq!(info.report.bytes, (100 << 30) + 7, "{format:?}");
        // More than the size that is recorded for the volume: without the agent nothing enforces it.
        std::fs::create_dir(fixture.at("small")).unwrap();
        create(&fixture.share, &CreateVolume { size: 5, ..volume("h2", "small") }).unwrap();
        std::fs::write(fixture.at("small/file"), "content").unwrap();
        let info = make_snapshot(&fixture.share, &snapshot("snap-2", "h2", format)).unwrap();
        assert_eq!(info.size, 5, "{format:?}");
        // The volume is not needed to know it.
        fixture.delete("h2").unwrap();
        assert_eq!(get_snapshot(&fixture.share, &snapshot_handle("snap-2")), Some(info), "{format:?}");
    }
}

#[test]
fn clone_is_exact_and_gets_owner_and_mode_of_the_class() {
    use std::os::unix::fs::MetadataExt as _;
    let fixture = Fixture::new();
    with_volume(&fixture);
    make_volume(&fixture.share, &cloned("h2", "pvc-2", "h1")).unwrap();
    assert_same(&fixture.at("pvc-1"), &fixture.at("pvc-2"));
    let request = CreateVolume { uid: Some(5), mode: Some(0o2770), ..cloned("h3", "a/pvc-3", "h2") };
    make_volume(&fixture.share, &request).unwrap();
    let root = std::fs::metadata(fixture.at("a/pvc-3")).unwrap();
    assert_eq!((root.uid(), root.mode() & 0o7777), (5, 0o2770));
    for handle in ["h1", "h2", "h3"] {
        fixture.delete(handle).unwrap();
    }
    assert_eq!(fixture.tree(), Vec::<String>::new());
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

// B19
#[test]
fn missing_source_is_not_found_and_nothing_is_created() {
    let fixture = Fixture::new();
    fixture.create("h0", "pvc-0").unwrap();
    let before = fixture.tree();
    let missing = ["srv#share#pvc-9#pvc-9#", "h9", "srv#share#../root#x#", "srv#share#.wharf##"];
    for handle in missing {
        let error =
            create_snapshot(&fixture.share, &snapshot("snap-1", handle, SnapshotFormat::Tree)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{handle}");
        let error = create(&fixture.share, &cloned("h1", "pvc-1", handle)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{handle}");
    }
    for handle in ["srv#share#snap-9#snap-9#pvc-1", "text", "srv#share#..#..#pvc-1", "srv#share#a#a#../b"] {
        let error = create(&fixture.share, &restored("h1", "pvc-1", handle)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{handle}");
    }
    assert_eq!(fixture.tree(), before);
    fixture.delete("h0").unwrap();
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn same_name_of_another_source_already_exists() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    fixture.create("h2", "pvc-2").unwrap();
    make_snapshot(&fixture.share, &snapshot("snap-1", "h1", SnapshotFormat::Tree)).unwrap();
    let error = create_snapshot(&fixture.share, &snapshot("snap-1", "h2", SnapshotFormat::Tree)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::AlreadyExists);
}

// B14
#[test]
fn second_process_does_not_touch_a_running_copy() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    let share = Share::open(&fixture.root(), environment(Duration::from_secs(3600))).unwrap();
    let request = snapshot("snap-1", "h1", SnapshotFormat::TarGz);
    create_snapshot(&share, &request).unwrap_err();
    let job = JobKey::Snapshot("snap-1".to_owned());
    let owned = share.claim_job(&job, Some(100)).unwrap().unwrap();
    fixture.write(&format!(".wharf/staging/{}/data.tar.gz", owned.attempt), "half");
    let error = run_job(&share, job.clone()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InProgress { percent: Some(0) });
    let half = std::fs::read(fixture.at(&format!(".wharf/staging/{}/data.tar.gz", owned.attempt))).unwrap();
    assert_eq!(half, b"half");
    assert!(!fixture.at("snap-1").exists(), "nothing at the final name before it is complete");
    // Recovery leaves it alone too.
    super::support::recover(&share).unwrap();
    assert!(fixture.at(&format!(".wharf/staging/{}/data.tar.gz", owned.attempt)).exists());
}

// B18
#[test]
fn copy_of_a_dead_process_is_taken_over_in_a_fresh_directory() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    make_snapshot(&fixture.share, &snapshot("snap-1", "h1", SnapshotFormat::TarGz)).unwrap();
    let request = restored("h2", "pvc-2", &snapshot_handle("snap-1"));
    create(&fixture.share, &request).unwrap_err();
    let job = JobKey::Volume("h2".to_owned());
    let dead = fixture.share.claim_job(&job, None).unwrap().unwrap();
    let data = format!(".wharf/staging/{}/data", dead.attempt);
    fixture.write(&format!("{data}/dir/file"), "half");
    symlink("dir/file", fixture.at(&format!("{data}/symlink"))).unwrap();
    make_volume(&fixture.share, &request).unwrap();
    assert_same(&fixture.at("pvc-1"), &fixture.at("pvc-2"));
    // The dead one was not dead: it notices that it has lost the job, and changes nothing.
    assert_eq!(fixture.share.heartbeat(&dead, Progress::default()), ControlFlow::Break(()));
    assert!(!fixture.at(&data).exists());
}

#[test]
fn deletion_cancels_the_copy() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    let request = snapshot("snap-1", "h1", SnapshotFormat::Tree);
    create_snapshot(&fixture.share, &request).unwrap_err();
    let owned = fixture.share.claim_job(&JobKey::Snapshot("snap-1".to_owned()), None).unwrap().unwrap();
    delete_snapshot(&fixture.share, &request.handle).unwrap();
    assert_eq!(fixture.share.heartbeat(&owned, Progress::default()), ControlFlow::Break(()));
    create(&fixture.share, &cloned("h2", "pvc-2", "h1")).unwrap_err();
    let owned = fixture.share.claim_job(&JobKey::Volume("h2".to_owned()), None).unwrap().unwrap();
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.share.heartbeat(&owned, Progress::default()), ControlFlow::Break(()));
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.tree(), Vec::<String>::new());
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn source_that_is_deleted_while_it_is_copied_fails_the_copy() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    let request = snapshot("snap-1", "h1", SnapshotFormat::Tree);
    create_snapshot(&fixture.share, &request).unwrap_err();
    fixture.delete("h1").unwrap();
    let error = run_job(&fixture.share, JobKey::Snapshot("snap-1".to_owned())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound);
    // The next request says why, and drops the snapshot.
    let error = create_snapshot(&fixture.share, &request).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn changed_snapshot_is_not_restored() {
    for format in [SnapshotFormat::Tree, SnapshotFormat::TarZst] {
        let fixture = Fixture::new();
        with_volume(&fixture);
        make_snapshot(&fixture.share, &snapshot("snap-1", "h1", format)).unwrap();
        let content =
            std::fs::read_dir(fixture.at(".wharf/content")).unwrap().next().unwrap().unwrap().path();
        match format {
            SnapshotFormat::Tree => std::fs::remove_file(content.join("data/symlink")).unwrap(),
            _ => {
                let archive = content.join("data.tar.zst");
                let mut bytes = std::fs::read(&archive).unwrap();
                bytes.extend(b"x");
                std::fs::write(&archive, bytes).unwrap();
            }
        }
        let error =
            make_volume(&fixture.share, &restored("h2", "pvc-2", &snapshot_handle("snap-1"))).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal, "{error}");
        assert!(!fixture.at("pvc-2").exists());
    }
}

/// What csi-driver-nfs leaves: an archive by its Go code or by tar, without any record.
fn upstream_snapshot(fixture: &Fixture, name: &str, file: &str, flag: &str) {
    std::fs::create_dir(fixture.at(name)).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(fixture.at("pvc-1")).arg(flag).arg(fixture.at(name).join(file)).arg(".");
    assert!(tar.status().unwrap().success());
}

#[test]
fn snapshots_of_csi_driver_nfs_are_restored_and_deleted() {
    for (file, flag) in [("pvc-1.tar.gz", "-czf"), ("pvc-1.tar", "-cf")] {
        let fixture = Fixture::new();
        fixture.write("pvc-1/dir/file", "content");
        upstream_snapshot(&fixture, "snapshot-1", file, flag);
        let handle = "srv#share#snapshot-1#snapshot-1#pvc-1";
        assert!(get_snapshot(&fixture.share, handle).unwrap().size > 0);
        make_volume(&fixture.share, &restored("h2", "pvc-2", handle)).unwrap();
        assert_eq!(std::fs::read(fixture.at("pvc-2/dir/file")).unwrap(), b"content");
        fixture.delete("h2").unwrap();
        for _ in 0..2 {
            delete_snapshot(&fixture.share, handle).unwrap();
        }
        assert_eq!(fixture.tree(), ["pvc-1", "pvc-1/dir", "pvc-1/dir/file"]);
        assert_eq!(fixture.leftovers(), Vec::<String>::new());
    }
}

// B20
#[test]
fn archive_of_a_nested_source_without_uuid_has_its_parents() {
    let fixture = Fixture::new();
    fixture.create("srv#share#a/b##", "a/b").unwrap();
    fixture.write("a/b/file", "1");
    let handle = "srv#share#snap-1#snap-1#a/b".to_owned();
    let request = CreateSnapshot {
        handle: handle.clone(),
        ..snapshot("snap-1", "srv#share#a/b##", SnapshotFormat::TarGz)
    };
    make_snapshot(&fixture.share, &request).unwrap();
    assert!(fixture.at("snap-1/a/b.tar.gz").is_file());
    make_volume(&fixture.share, &restored("h2", "pvc-2", &handle)).unwrap();
    assert!(fixture.at("pvc-2/file").is_file());
    delete_snapshot(&fixture.share, &handle).unwrap();
    assert!(!fixture.at("snap-1").exists());
}

// B2, B31
#[test]
fn handles_that_name_something_else_delete_nothing() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    fixture.write("pvc-1/x.tar.gz", "mine");
    fixture.write("foreign/x.tar.gz", "1");
    fixture.write("foreign/other", "1");
    fixture.write("snap-2/x", "1");
    make_snapshot(&fixture.share, &snapshot("snap-1", "h1", SnapshotFormat::TarGz)).unwrap();
    let before = fixture.tree();
    let crafted = [
        "srv#share#pvc-1#pvc-1#x",
        "srv#share#foreign#foreign#x",
        "srv#share#snap-1#snap-1#other",
        "srv#share#snap-2#snap-2#x",
        "srv#share#.wharf#.wharf#share",
        "srv#share#..#..#canary",
        "srv#share#a/../b#a/../b#x",
        "srv#share##",
        "",
    ];
    for handle in hostile_handles().iter().map(String::as_str).chain(crafted) {
        delete_snapshot(&fixture.share, handle).unwrap();
    }
    assert_eq!(fixture.tree(), before);
    fixture.assert_canary();
}

#[test]
fn place_of_an_archive_that_is_taken_is_refused() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    fixture.write("snap-1/precious", "1");
    let request = snapshot("snap-1", "h1", SnapshotFormat::TarGz);
    assert_eq!(create_snapshot(&fixture.share, &request).unwrap_err().kind, ErrorKind::AlreadyExists);
    // Also if it is taken later.
    let request = snapshot("snap-2", "h1", SnapshotFormat::TarGz);
    create_snapshot(&fixture.share, &request).unwrap_err();
    fixture.write("snap-2/precious", "1");
    let result = make_snapshot(&fixture.share, &request);
    assert_eq!(result.unwrap_err().kind, ErrorKind::AlreadyExists);
    assert!(fixture.at("snap-1/precious").exists() && fixture.at("snap-2/precious").exists());
}

/// The job of a snapshot, complete, but not yet finished. Returns its attempt.
pub(super) fn copied_snapshot(fixture: &Fixture, request: &CreateSnapshot) -> String {
    create_snapshot(&fixture.share, request).unwrap_err();
    let job = JobKey::Snapshot(request.name.clone());
    let owned = fixture.share.claim_job(&job, None).unwrap().unwrap();
    fixture.write(&format!(".wharf/staging/{}/data/file", owned.attempt), "content");
    let result = JobResult {
        report: CopyReport::default(),
        sha256: None,
        finished: 1,
        limited: false,
        by_agent: false,
    };
    fixture.share.end_job(&owned, Ok(result)).unwrap();
    owned.attempt
}

#[test]
fn copy_that_took_longer_than_the_grace_is_used() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    let share = Share::open(&fixture.root(), environment(Duration::from_secs(3600))).unwrap();
    let (volume, request) = (cloned("h2", "pvc-2", "h1"), snapshot("snap-1", "h1", SnapshotFormat::Tree));
    create(&share, &volume).unwrap_err();
    fixture.age(".wharf/volumes");
    run_job(&share, JobKey::Volume("h2".to_owned())).unwrap();
    copied_snapshot(&fixture, &request);
    fixture.age(".wharf/snapshots");
    super::support::recover(&share).unwrap();
    create(&share, &volume).unwrap();
    assert_same(&fixture.at("pvc-1"), &fixture.at("pvc-2"));
    create_snapshot(&share, &request).unwrap();
    // One that no request uses is dropped all the same.
    create(&share, &cloned("h3", "pvc-3", "h1")).unwrap_err();
    run_job(&share, JobKey::Volume("h3".to_owned())).unwrap();
    for store in [".wharf/volumes", ".wharf/jobs", ".wharf/staging"] {
        fixture.age(store);
    }
    super::support::recover(&share).unwrap();
    assert!(create(&share, &cloned("h3", "pvc-3", "h1")).is_err());
}

#[test]
fn heartbeat_records_progress() {
    let fixture = Fixture::new();
    with_volume(&fixture);
    make_snapshot(&fixture.share, &snapshot("snap-1", "h1", SnapshotFormat::Tree)).unwrap();
    create(&fixture.share, &restored("h2", "pvc-2", &snapshot_handle("snap-1"))).unwrap_err();
    let job = JobKey::Volume("h2".to_owned());
    let owned = fixture.share.claim_job(&job, Some(200)).unwrap().unwrap();
    let progress = Progress { entries: 1, bytes: 100 };
    assert_eq!(fixture.share.heartbeat(&owned, progress), ControlFlow::Continue(()));
    let record = fixture.share.read_record::<JobRecord>(&job.to_string()).unwrap().record.unwrap();
    assert!(matches!(record.state, JobState::Running { .. }));
    let error = create(&fixture.share, &restored("h2", "pvc-2", &snapshot_handle("snap-1"))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InProgress { percent: Some(50) });
}

// B14
#[test]
fn racing_controllers_make_one_snapshot_and_one_volume() {
    for format in FORMATS {
        let fixture = Fixture::new();
        with_volume(&fixture);
        let (request, volume) =
            (snapshot("snap-1", "h1", format), restored("h2", "pvc-2", &snapshot_handle("snap-1")));
        let until = |share: &Share, job: JobKey, call: &dyn Fn() -> Result<(), ShareError>| {
            for _ in 0..2000 {
                match call() {
                    Ok(()) => return,
                    Err(ShareError {
                        kind: ErrorKind::InProgress { .. } | ErrorKind::Unavailable, ..
                    }) => {}
                    Err(error) => panic!("{error}"),
                }
                // Another controller may run it.
                let _ = run_job(share, job.clone());
                std::thread::sleep(Duration::from_millis(1));
            }
            panic!("no end");
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let share = Share::open(&fixture.root(), environment(Duration::from_secs(3600))).unwrap();
                    let job = JobKey::Snapshot("snap-1".to_owned());
                    until(&share, job, &|| create_snapshot(&share, &request).map(drop));
                    until(&share, JobKey::Volume("h2".to_owned()), &|| create(&share, &volume).map(drop));
                });
            }
        });
        assert_same(&fixture.at("pvc-1"), &fixture.at("pvc-2"));
        delete_snapshot(&fixture.share, &request.handle).unwrap();
        fixture.delete("h2").unwrap();
        fixture.delete("h1").unwrap();
        assert_eq!(fixture.tree(), Vec::<String>::new());
        assert_eq!(fixture.leftovers(), Vec::<String>::new());
    }
}
