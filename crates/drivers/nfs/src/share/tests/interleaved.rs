//! One controller is stopped before each of its file operations while another one runs a whole sequence of requests; then
//! the first one goes on, or is killed. This finds what a controller assumes to be unchanged since it read it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::snapshots::{copied_snapshot, create_snapshot, snapshot};
use super::support::{Fixture, create, delete, environment, purge, recover, volume};
use crate::parameters::OnDelete;
use crate::share::files::{Entry, LinuxFiles, RemovedEntries, ShareFiles};
use crate::share::record::{VolumeRecord, VolumeState};
use crate::share::snapshot_record::SnapshotFormat;
use crate::share::store::Swap;
use crate::share::{CapacityInfo, CreateSnapshot, CreateVolume, ErrorKind, Request, Share, ShareError};

type Hook = Box<dyn FnOnce() + Send>;

/// The real operations. Before call `at`, a hook runs; with `kill_after`, no call works from that many calls later on. Calls
/// count once `counting` is set: the first request of a process also checks that the records can be trusted.
struct HookedFiles {
    files: LinuxFiles,
    at: u64,
    kill_after: Option<u64>,
    counting: AtomicBool,
    calls: AtomicU64,
    hook: Mutex<Option<Hook>>,
    reached: AtomicBool,
}

impl HookedFiles {
    fn call<T>(&self, call: impl FnOnce(&LinuxFiles) -> io::Result<T>) -> io::Result<T> {
        if !self.counting.load(Ordering::Relaxed) {
            return call(&self.files);
        }
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if number == self.at {
            let hook = self.hook.lock().unwrap().take();
            self.reached.store(true, Ordering::Relaxed);
            hook.into_iter().for_each(|hook| hook());
        }
        if self.kill_after.is_some_and(|after| number >= self.at + after) {
            return Err(io::Error::other("killed"));
        }
        call(&self.files)
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl ShareFiles for HookedFiles {
            $(fn $name(&self, $($arg: $type),*) -> io::Result<$result> { self.call(|files| files.$name($($arg),*)) })*
        }
    };
}
forward! {
    read(file: &Path) -> Option<Vec<u8>>;
    create_file(file: &Path, bytes: &[u8]) -> ();
    sync(path: &Path) -> ();
    link(from: &Path, to: &Path) -> ();
    rename(from: &Path, to: &Path) -> ();
    create_dir(dir: &Path) -> ();
    set_owner(dir: &Path, uid: Option<u32>, gid: Option<u32>) -> ();
    set_mode(dir: &Path, mode: u32) -> ();
    set_mode_of(dir: &Path, file_id: u64, mode: u32) -> ();
    stat(path: &Path) -> Option<Entry>;
    list(dir: &Path) -> Option<Vec<OsString>>;
    remove_file(file: &Path) -> ();
    remove_dir(dir: &Path) -> ();
    remove_entries(dir: &Path, max: u64) -> RemovedEntries;
    set_id(dir: &Path, id: &str) -> bool;
    id(dir: &Path) -> Option<String>;
    open_dir(dir: &Path) -> OwnedFd;
    open_file(file: &Path) -> File;
    open_new_file(file: &Path) -> File;
    capacity() -> CapacityInfo;
}

struct Case {
    name: &'static str,
    prepare: fn(&Fixture),
    /// The first calls that are not interrupted: until then, the slow controller has decided nothing.
    undecided: u64,
    /// The controller that is stopped.
    slow: fn(&Share) -> Result<(), ShareError>,
    /// What the other controller does meanwhile. Writes files that must stay.
    meanwhile: fn(&Fixture),
    /// Files that must exist at the end, if `meanwhile` ran.
    keeps: &'static [&'static str],
}

fn again(fixture: &Fixture, handle: &str, path: &str) {
    let _ = fixture.delete(handle);
    // A deletion that the slow controller has begun may have to be finished first.
    for _ in 0..3 {
        if fixture.create(handle, path).is_ok() {
            fixture.write(&format!("{path}/new"), "precious");
            return;
        }
    }
    panic!("the fast controller is blocked by the slow one");
}

/// Another attempt to delete has begun and was killed.
fn begin_delete(fixture: &Fixture, handle: &str, on_delete: OnDelete) {
    let slot = fixture.share.read_record::<VolumeRecord>(handle).unwrap();
    let volume = slot.record.clone().unwrap();
    let deleting = VolumeRecord { state: VolumeState::Deleting { on_delete }, ..volume };
    assert!(matches!(fixture.share.swap_record(&slot, Some(deleting)).unwrap(), Swap::Done(_)));
}

const CASES: &[Case] = &[
    Case {
        name: "delete, meanwhile deleted and created again",
        prepare: |fixture| {
            fixture.create("h1", "a/pvc-1").unwrap();
            begin_delete(fixture, "h1", OnDelete::Delete);
        },
        undecided: 2,
        slow: |share| delete(share, "h1"),
        meanwhile: |fixture| again(fixture, "h1", "a/pvc-1"),
        keeps: &["a/pvc-1/new"],
    },
    Case {
        name: "delete, meanwhile deleted and another volume created there",
        prepare: |fixture| drop(fixture.create("h1", "pvc-1").unwrap()),
        undecided: 0,
        slow: |share| delete(share, "h1"),
        meanwhile: |fixture| {
            let _ = fixture.delete("h1");
            again(fixture, "h2", "pvc-1");
        },
        keeps: &["pvc-1/new"],
    },
    Case {
        name: "archive, meanwhile archived and created again",
        prepare: |fixture| {
            let archived = CreateVolume { on_delete: Some(OnDelete::Archive), ..volume("h1", "pvc-1") };
            create(&fixture.share, &archived).unwrap();
            begin_delete(fixture, "h1", OnDelete::Archive);
        },
        undecided: 2,
        slow: |share| delete(share, "h1"),
        meanwhile: |fixture| again(fixture, "h1", "pvc-1"),
        keeps: &["pvc-1/new"],
    },
    Case {
        name: "recover a deletion, meanwhile deleted and created again",
        prepare: |fixture| {
            fixture.create("h1", "a/pvc-1").unwrap();
            begin_delete(fixture, "h1", OnDelete::Delete);
        },
        undecided: 0,
        slow: |share| recover(share).map(drop),
        meanwhile: |fixture| again(fixture, "h1", "a/pvc-1"),
        keeps: &["a/pvc-1/new"],
    },
    Case {
        name: "recover a reference without volume, meanwhile created again",
        prepare: |fixture| {
            fixture.create("h1", "a/pvc-1").unwrap();
            std::fs::remove_dir_all(fixture.at(".wharf/volumes")).unwrap();
            std::fs::create_dir(fixture.at(".wharf/volumes")).unwrap();
        },
        undecided: 0,
        slow: |share| recover(share).map(drop),
        meanwhile: |fixture| again(fixture, "h1", "a/pvc-1"),
        keeps: &["a/pvc-1/new"],
    },
    Case {
        name: "recover a tombstone, meanwhile created again",
        prepare: |fixture| {
            fixture.create("h1", "a/pvc-1").unwrap();
            fixture.delete("h1").unwrap();
        },
        undecided: 0,
        slow: |share| recover(share).map(drop),
        meanwhile: |fixture| again(fixture, "h1", "a/pvc-1"),
        keeps: &["a/pvc-1/new"],
    },
    Case {
        name: "create, meanwhile deleted and created again",
        prepare: |_| {},
        undecided: 0,
        slow: |share| create(share, &volume("h1", "a/pvc-1")).map(drop),
        meanwhile: |fixture| again(fixture, "h1", "a/pvc-1"),
        keeps: &["a/pvc-1/new"],
    },
    Case {
        name: "purge, meanwhile created and deleted again",
        prepare: |fixture| {
            fixture.create("h1", "pvc-1").unwrap();
            fixture.write("pvc-1/d/old", "x");
            fixture.delete("h1").unwrap();
        },
        undecided: 0,
        slow: |share| purge(share, u64::MAX).map(drop),
        meanwhile: |fixture| {
            again(fixture, "h1", "pvc-1");
            fixture.delete("h1").unwrap();
            again(fixture, "h1", "pvc-1");
        },
        keeps: &["pvc-1/new"],
    },
];

/// A controller that is killed between a directory and its record leaves the empty directory in these cases.
const PARENT_CASES: &[Case] = &[
    Case {
        name: "create in parents, meanwhile another volume created there and deleted",
        prepare: |_| {},
        undecided: 0,
        slow: |share| create(share, &volume("h1", "a/b/pvc-1")).map(drop),
        meanwhile: |fixture| {
            fixture.create("h2", "a/b/pvc-2").unwrap();
            fixture.delete("h2").unwrap();
        },
        keeps: &[],
    },
    Case {
        name: "delete in a parent, meanwhile deleted and the parent created as a volume",
        prepare: |fixture| drop(fixture.create("h1", "a/b/pvc-1").unwrap()),
        undecided: 0,
        slow: |share| delete(share, "h1"),
        meanwhile: |fixture| {
            fixture.delete("h1").unwrap();
            if fixture.create("h2", "a/b").is_ok() || fixture.create("h2", "a").is_ok() {
                fixture.write("foreign/created", "");
            }
        },
        keeps: &[],
    },
];

/// A share whose call `at` waits for what another controller does meanwhile.
fn hooked(
    fixture: &Arc<Fixture>,
    at: u64,
    kill_after: Option<u64>,
    meanwhile: fn(&Fixture),
    grace: Duration,
) -> (Arc<HookedFiles>, Share) {
    let fast = fixture.clone();
    let files = Arc::new(HookedFiles {
        files: LinuxFiles::open(&fixture.root()).unwrap(),
        at,
        kill_after,
        counting: AtomicBool::new(false),
        calls: AtomicU64::new(0),
        hook: Mutex::new(Some(Box::new(move || meanwhile(&fast)))),
        reached: AtomicBool::new(false),
    });
    let slow = Share::with_files(files.clone(), environment(grace));
    slow.handle(Request::ListSnapshots);
    files.counting.store(true, Ordering::Relaxed);
    (files, slow)
}

/// What is meanwhile created stays, and its deletion removes it without a trace.
fn run(case: &Case, kill_after: Option<u64>) {
    for at in case.undecided.. {
        let fixture = Arc::new(Fixture::new());
        fixture.write("foreign/data", "precious");
        (case.prepare)(&fixture);
        let (files, slow) = hooked(&fixture, at, kill_after, case.meanwhile, Duration::ZERO);
        let result = (case.slow)(&slow);
        if !files.reached.load(Ordering::Relaxed) {
            assert!(at > 5, "{}: {at} calls", case.name);
            return;
        }
        let context = format!("{}, call {at}, kill after {kill_after:?}: {result:?}", case.name);
        recover(&fixture.share).unwrap_or_else(|error| panic!("{context}: {error}"));
        purge(&fixture.share, u64::MAX).unwrap_or_else(|error| panic!("{context}: {error}"));
        if kill_after.is_none()
            && let Err(error) = &result
        {
            let expected = !matches!(error.kind, ErrorKind::Internal | ErrorKind::Precondition);
            assert!(expected, "{context}: another controller is no reason for this error");
        }
        if fixture.at("foreign/created").exists() {
            assert!(fixture.at("a").exists(), "{context}: the volume h2 lost its directory");
        }
        for path in case.keeps {
            let tree = fixture.tree();
            assert!(fixture.at(path).exists(), "{context}: {path} is lost: {tree:?}");
        }
        for handle in ["h1", "h2"] {
            fixture.delete(handle).unwrap_or_else(|error| panic!("{context}: {handle}: {error}"));
        }
        let left = fixture.leftovers();
        let tree = fixture.tree();
        let unexpected: Vec<_> = tree
            .iter()
            .filter(|path| !path.starts_with("archived-") && !path.starts_with("foreign"))
            .collect();
        assert!(unexpected.is_empty(), "{context}: {unexpected:?}");
        let records: Vec<_> = left.iter().filter(|path| !path.starts_with("directories")).collect();
        assert!(records.is_empty(), "{context}: {records:?}");
        assert_eq!(std::fs::read_to_string(fixture.at("foreign/data")).unwrap(), "precious");
    }
}

#[test]
fn slow_controller_does_not_undo_what_another_one_did() {
    for case in CASES.iter().chain(PARENT_CASES) {
        run(case, None);
    }
}

#[test]
fn slow_controller_that_is_killed_does_not_undo_what_another_one_did() {
    for case in CASES {
        for after in [0, 1, 2, 3] {
            run(case, Some(after));
        }
    }
}

/// A copy keeps the modification time of its source.
#[test]
fn slow_recovery_keeps_the_content_of_a_snapshot_that_becomes_ready() {
    fn request() -> CreateSnapshot {
        snapshot("snap-1", "h1", SnapshotFormat::Tree)
    }
    for at in 0.. {
        let fixture = Arc::new(Fixture::new());
        fixture.create("h1", "pvc-1").unwrap();
        let attempt = copied_snapshot(&fixture, &request());
        assert!(fixture.share.keep_content(&attempt).unwrap());
        fixture.age(".wharf/content");
        let finish = |fixture: &Fixture| drop(create_snapshot(&fixture.share, &request()).unwrap());
        let (files, slow) = hooked(&fixture, at, None, finish, Duration::from_secs(3600));
        recover(&slow).unwrap();
        if !files.reached.load(Ordering::Relaxed) {
            assert!(at > 5, "{at}");
            return;
        }
        let content = fixture.at(&format!(".wharf/content/{attempt}/data/file"));
        assert!(content.exists(), "call {at}");
    }
}
