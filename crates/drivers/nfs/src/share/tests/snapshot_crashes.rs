//! Snapshots, restores and clones are stopped before and after each file operation, and each reply is lost once. A new
//! process then repeats the operation: it must succeed, the copy must be exact, and nothing may be left over.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::faults::{Fault, FaultyFiles};
use super::snapshots::{
    FORMATS, cloned, delete_snapshot, make_snapshot, make_volume, restored, run_job, snapshot,
    snapshot_handle, with_volume,
};
use super::support::{Fixture, create, environment};
use crate::copy::testing::assert_same;
use crate::share::snapshot_record::{JobKey, JobRecord, JobState, SnapshotFormat};
use crate::share::{Share, ShareError};

fn faulty(root: &Path, fault: Fault, at: u64) -> (Arc<FaultyFiles>, Share) {
    let files = Arc::new(FaultyFiles::new(root, fault, at));
    (files.clone(), Share::with_files(files, environment(Duration::ZERO)))
}

/// Runs an operation with a fault at each call in turn. Returns the number of calls.
fn crash(
    name: &str,
    fault: Fault,
    prepare: impl Fn(&Fixture),
    operation: impl Fn(&Share) -> Result<(), ShareError>,
    check: impl Fn(&Fixture),
) -> u64 {
    for at in 0.. {
        let fixture = Fixture::new();
        with_volume(&fixture);
        fixture.write("foreign/data", "precious");
        prepare(&fixture);
        let (files, share) = faulty(&fixture.root(), fault, at);
        let context = format!("{name}, {fault:?} call {at}");
        let result = operation(&share);
        if fault == Fault::LostReply {
            result.unwrap_or_else(|error| panic!("{context}: {error}"));
        } else if files.reached() {
            assert!(result.is_err(), "{context}");
        }
        operation(&fixture.share).unwrap_or_else(|error| panic!("{context}: repeat: {error}"));
        check(&fixture);
        for name in ["snap-1", "snap-0"] {
            delete_snapshot(&fixture.share, &snapshot_handle(name))
                .unwrap_or_else(|error| panic!("{context}: delete: {error}"));
        }
        for handle in ["h2", "h1"] {
            fixture.delete(handle).unwrap_or_else(|error| panic!("{context}: delete {handle}: {error}"));
        }
        assert_eq!(fixture.leftovers(), Vec::<String>::new(), "{context}");
        assert_eq!(fixture.tree(), ["foreign", "foreign/data"], "{context}");
        fixture.assert_canary();
        if !files.reached() {
            return at;
        }
    }
    0
}

const FAULTS: [Fault; 3] = [Fault::Before, Fault::After, Fault::LostReply];

// B14, B15, B18
#[test]
fn snapshot_survives_a_crash_at_every_call() {
    for format in FORMATS {
        for fault in FAULTS {
            let calls = crash(
                &format!("snapshot {format:?}"),
                fault,
                |_| {},
                |share| make_snapshot(share, &snapshot("snap-1", "h1", format)).map(drop),
                |fixture| {
                    make_volume(&fixture.share, &restored("h2", "pvc-2", &snapshot_handle("snap-1")))
                        .unwrap();
                    assert_same(&fixture.at("pvc-1"), &fixture.at("pvc-2"));
                },
            );
            assert!(calls > 30, "{calls}");
        }
    }
}

// B18
#[test]
fn restore_survives_a_crash_at_every_call() {
    for format in [SnapshotFormat::Tree, SnapshotFormat::TarGz] {
        for fault in FAULTS {
            let calls = crash(
                &format!("restore {format:?}"),
                fault,
                |fixture| drop(make_snapshot(&fixture.share, &snapshot("snap-0", "h1", format)).unwrap()),
                |share| make_volume(share, &restored("h2", "a/pvc-2", &snapshot_handle("snap-0"))),
                |fixture| assert_same(&fixture.at("pvc-1"), &fixture.at("a/pvc-2")),
            );
            assert!(calls > 30, "{calls}");
        }
    }
}

#[test]
fn clone_survives_a_crash_at_every_call() {
    for fault in FAULTS {
        let calls = crash(
            "clone",
            fault,
            |_| {},
            |share| make_volume(share, &cloned("h2", "pvc-2", "h1")),
            |fixture| assert_same(&fixture.at("pvc-1"), &fixture.at("pvc-2")),
        );
        assert!(calls > 30, "{calls}");
    }
}

#[test]
fn delete_snapshot_survives_a_crash_at_every_call() {
    for format in FORMATS {
        for fault in FAULTS {
            let calls = crash(
                &format!("delete snapshot {format:?}"),
                fault,
                |fixture| drop(make_snapshot(&fixture.share, &snapshot("snap-0", "h1", format)).unwrap()),
                |share| delete_snapshot(share, &snapshot_handle("snap-0")),
                |fixture| assert!(fixture.at("pvc-1/dir/file").exists() && !fixture.at("snap-0").exists()),
            );
            assert!(calls > 5, "{calls}");
        }
    }
}

/// The server reports that the share is full after a call that took effect: a copy that is recorded as complete stays.
#[test]
fn complete_copy_stays_if_the_share_is_full_at_any_call() {
    let job = JobKey::Volume("h2".to_owned());
    let mut complete = 0;
    for at in 0.. {
        let fixture = Fixture::new();
        with_volume(&fixture);
        create(&fixture.share, &cloned("h2", "pvc-2", "h1")).unwrap_err();
        let (files, share) = faulty(&fixture.root(), Fault::Full, at);
        let result = run_job(&share, job.clone());
        let record = fixture.share.read_record::<JobRecord>(&job.to_string()).unwrap().record;
        if let Some(JobState::Done { attempt, .. }) = record.map(|record| record.state) {
            let data = fixture.at(&format!(".wharf/staging/{attempt}/data"));
            assert!(data.exists(), "call {at}: {result:?}");
            assert_same(&fixture.at("pvc-1"), &data);
            complete += 1;
        }
        if !files.reached() {
            break;
        }
    }
    assert!(complete > 10, "{complete}");
}

/// A crash, and the request is not repeated: recovery leaves nothing.
#[test]
fn recovery_drops_what_a_crash_left_and_nobody_repeats() {
    for at in 0.. {
        let fixture = Fixture::new();
        with_volume(&fixture);
        let (files, share) = faulty(&fixture.root(), Fault::After, at);
        let _ = make_snapshot(&share, &snapshot("snap-1", "h1", SnapshotFormat::TarGz));
        let _ = make_volume(&share, &cloned("h2", "pvc-2", "h1"));
        if !files.reached() {
            break;
        }
        fixture.leftovers();
        delete_snapshot(&fixture.share, &snapshot_handle("snap-1")).unwrap();
        fixture.delete("h2").unwrap();
        fixture.delete("h1").unwrap();
        assert_eq!(fixture.leftovers(), Vec::<String>::new(), "call {at}");
        assert_eq!(fixture.tree(), Vec::<String>::new(), "call {at}");
    }
}
