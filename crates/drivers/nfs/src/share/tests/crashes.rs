//! Every operation is stopped before and after each file operation, and each reply is lost once. After that a new process
//! repeats the operation: it must succeed, nothing may be left over, and nothing foreign may be touched.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::faults::{Fault, FaultyFiles};
use super::support::{Fixture, create, delete, environment, purge, recover, volume};
use super::volumes::adopt;
use crate::parameters::OnDelete;
use crate::share::{CreateVolume, ErrorKind, ExpandVolume, Request, Response, Share, ShareError};

/// One operation under test.
struct Case {
    name: &'static str,
    /// Runs before, without faults.
    prepare: fn(&Fixture),
    /// The operation; repeated after the fault.
    run: fn(&Share) -> Result<(), ShareError>,
    /// The content of the share afterwards.
    expected: &'static [&'static str],
    /// Handles to delete at the end, so that nothing remains.
    handles: &'static [&'static str],
    /// What then remains.
    remains: &'static [&'static str],
}

fn expand(share: &Share, handle: &str) -> Result<(), ShareError> {
    match share.handle(Request::ExpandVolume(ExpandVolume { handle: handle.to_owned(), size: 4 << 30 })) {
        Response::ExpandVolume(result) => result.map(drop),
        other => panic!("{other:?}"),
    }
}

fn archived(handle: &str, path: &str) -> CreateVolume {
    CreateVolume { on_delete: Some(OnDelete::Archive), ..volume(handle, path) }
}

/// The calls at which creates stop before recovery is tested: with a record only, with a staged directory, and in place.
const CRASHED: [u64; 3] = [40, 80, 110];

const FOREIGN: &[&str] = &["foreign", "foreign/data"];

const CASES: &[Case] = &[
    Case {
        name: "first create",
        prepare: |_| {},
        run: |share| create(share, &volume("h1", "a/b/pvc-1")).map(drop),
        expected: &["a", "a/b", "a/b/pvc-1", "foreign", "foreign/data"],
        handles: &["h1"],
        remains: FOREIGN,
    },
    Case {
        name: "create in an existing directory",
        prepare: |_| {},
        run: |share| create(share, &volume("h1", "foreign")).map(drop),
        expected: FOREIGN,
        handles: &["h1"],
        remains: FOREIGN,
    },
    Case {
        name: "create beneath an existing directory",
        prepare: |fixture| drop(fixture.create("h0", "pvc-0").unwrap()),
        run: |share| create(share, &volume("h1", "foreign/pvc-1")).map(drop),
        expected: &["foreign", "foreign/data", "foreign/pvc-1", "pvc-0"],
        handles: &["h0", "h1"],
        remains: FOREIGN,
    },
    Case {
        name: "create a second volume in one directory",
        prepare: |fixture| drop(fixture.create("h0", "shared").unwrap()),
        run: |share| create(share, &volume("h1", "shared")).map(drop),
        expected: &["foreign", "foreign/data", "shared"],
        handles: &["h1", "h0"],
        remains: FOREIGN,
    },
    Case {
        name: "create again after delete",
        prepare: |fixture| {
            fixture.create("h1", "a/pvc-1").unwrap();
            fixture.write("a/pvc-1/data", "1");
            fixture.delete("h1").unwrap();
        },
        run: |share| create(share, &volume("h1", "a/pvc-1")).map(drop),
        expected: &["a", "a/pvc-1", "foreign", "foreign/data"],
        handles: &["h1"],
        remains: FOREIGN,
    },
    Case {
        name: "delete",
        prepare: |fixture| {
            fixture.create("h1", "a/b/pvc-1").unwrap();
            fixture.write("a/b/pvc-1/d/data", "1");
        },
        run: |share| delete(share, "h1"),
        expected: FOREIGN,
        handles: &[],
        remains: FOREIGN,
    },
    Case {
        name: "delete one of two volumes in a directory",
        prepare: |fixture| {
            fixture.create("h1", "shared").unwrap();
            fixture.create("h2", "shared").unwrap();
            fixture.write("shared/data", "1");
        },
        run: |share| delete(share, "h1"),
        expected: &["foreign", "foreign/data", "shared", "shared/data"],
        handles: &["h2"],
        remains: FOREIGN,
    },
    Case {
        name: "archive",
        prepare: |fixture| {
            create(&fixture.share, &archived("h1", "a/pvc-1")).unwrap();
            fixture.write("a/pvc-1/data", "1");
        },
        run: |share| delete(share, "h1"),
        expected: &["archived-a", "archived-a/pvc-1", "archived-a/pvc-1/data", "foreign", "foreign/data"],
        handles: &[],
        remains: &["archived-a", "archived-a/pvc-1", "archived-a/pvc-1/data", "foreign", "foreign/data"],
    },
    Case {
        name: "expand",
        prepare: |fixture| drop(fixture.create("h1", "pvc-1").unwrap()),
        run: |share| expand(share, "h1"),
        expected: &["foreign", "foreign/data", "pvc-1"],
        handles: &["h1"],
        remains: FOREIGN,
    },
    Case {
        name: "adopt",
        prepare: |fixture| fixture.write("old/pvc-1/data", "1"),
        run: |share| adopt(share, "h1", "old/pvc-1").map(drop),
        expected: &["foreign", "foreign/data", "old", "old/pvc-1", "old/pvc-1/data"],
        handles: &["h1"],
        remains: &["foreign", "foreign/data", "old"],
    },
    Case {
        name: "purge",
        prepare: |fixture| {
            fixture.create("h1", "pvc-1").unwrap();
            fixture.write("pvc-1/d/e/data", "1");
            fixture.delete("h1").unwrap();
        },
        run: |share| purge(share, u64::MAX).map(drop),
        expected: FOREIGN,
        handles: &[],
        remains: FOREIGN,
    },
    Case {
        name: "recover",
        prepare: |fixture| {
            for call in CRASHED {
                let handle = format!("crashed-{call}");
                let path = format!("crashed/{call}");
                let share = faulty(&fixture.root(), Fault::After, call).1;
                let _ = create(&share, &volume(&handle, &path));
            }
            fixture.create("h1", "a/pvc-1").unwrap();
            let share = faulty(&fixture.root(), Fault::After, 30).1;
            let _ = delete(&share, "h1");
        },
        run: |share| recover(share).map(drop),
        expected: &[],
        handles: &[],
        remains: &[],
    },
];

fn faulty(root: &Path, fault: Fault, at: u64) -> (Arc<FaultyFiles>, Share) {
    let files = Arc::new(FaultyFiles::new(root, fault, at));
    (files.clone(), Share::with_files(files, environment(Duration::ZERO)))
}

/// Records that remain by design: of archives, and of parents that were there before.
fn keeps_records(case: &Case) -> bool {
    ["archive", "adopt", "create beneath an existing directory"].contains(&case.name)
}

fn run(case: &Case, fault: Fault) -> u64 {
    for at in 0.. {
        let fixture = Fixture::new();
        fixture.write("foreign/data", "precious");
        (case.prepare)(&fixture);
        let (files, share) = faulty(&fixture.root(), fault, at);
        let context = format!("{}, {fault:?} call {at}", case.name);
        let result = (case.run)(&share);
        if fault == Fault::LostReply {
            // No repeat: the operation itself must see that it succeeded.
            result.unwrap_or_else(|error| panic!("{context}: {error}"));
        } else if files.reached() {
            // Recovery and purge log errors of single objects.
            assert!(result.is_err() || ["recover", "purge"].contains(&case.name), "{context}");
        }
        (case.run)(&fixture.share).unwrap_or_else(|error| panic!("{context}: repeat: {error}"));
        if case.name != "recover" {
            assert_eq!(fixture.tree(), case.expected, "{context}");
        }
        for handle in case.handles {
            fixture.delete(handle).unwrap_or_else(|error| panic!("{context}: delete {handle}: {error}"));
        }
        let left = fixture.leftovers();
        if case.name != "recover" {
            assert_eq!(fixture.tree(), case.remains, "{context}");
            assert!(
                left.is_empty()
                    || keeps_records(case) && left.iter().all(|path| path.starts_with("directories")),
                "{context}: {left:?}"
            );
        } else {
            assert_eq!(std::fs::read_to_string(fixture.at("foreign/data")).unwrap(), "precious");
            check_recovered(&fixture, &context);
        }
        fixture.assert_canary();
        if !files.reached() {
            return at;
        }
    }
    unreachable!()
}

/// Every volume of the crashed creates exists completely or not at all, and can be deleted.
fn check_recovered(fixture: &Fixture, context: &str) {
    for call in CRASHED {
        let (handle, path) = (format!("crashed-{call}"), format!("crashed/{call}"));
        fixture.create(&handle, &path).unwrap_or_else(|error| panic!("{context}: {handle}: {error}"));
        fixture.delete(&handle).unwrap();
    }
    assert_eq!(fixture.leftovers(), Vec::<String>::new(), "{context}");
    assert_eq!(fixture.tree(), FOREIGN, "{context}");
}

fn run_all(fault: Fault) {
    for case in CASES {
        let calls = run(case, fault);
        assert!(calls > 5, "{}: {calls} calls", case.name);
    }
}

#[test]
fn operations_survive_a_crash_before_each_call() {
    run_all(Fault::Before);
}

#[test]
fn operations_survive_a_crash_after_each_call() {
    run_all(Fault::After);
}

#[test]
fn operations_survive_a_lost_reply_of_each_call() {
    run_all(Fault::LostReply);
}

/// A create that is not repeated is undone by recovery, or is complete.
#[test]
fn abandoned_create_leaves_nothing_or_a_volume() {
    for at in 0.. {
        let fixture = Fixture::new();
        let (files, share) = faulty(&fixture.root(), Fault::After, at);
        let _ = create(&share, &volume("h1", "a/pvc-1"));
        let left = fixture.leftovers();
        let get = crate::share::GetVolume { handle: "h1".to_owned(), path: None };
        let Response::GetVolume(Ok(found)) = fixture.share.handle(Request::GetVolume(get)) else { panic!() };
        match found {
            None => {
                assert_eq!(fixture.tree(), Vec::<String>::new(), "call {at}");
                assert_eq!(left, Vec::<String>::new(), "call {at}");
            }
            Some(info) => assert!(info.present && fixture.tree() == ["a", "a/pvc-1"], "call {at}"),
        }
        if !files.reached() {
            break;
        }
    }
}

#[test]
fn failed_owner_change_is_undone() {
    let fixture = Fixture::new();
    // As an unprivileged user of a squashing server.
    struct Squashed(crate::share::files::LinuxFiles);
    macro_rules! forward {
        ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
            impl crate::share::files::ShareFiles for Squashed {
                $(fn $name(&self, $($arg: $type),*) -> std::io::Result<$result> { self.0.$name($($arg),*) })*
                fn set_owner(&self, _: &Path, _: Option<u32>, _: Option<u32>) -> std::io::Result<()> {
                    Err(std::io::ErrorKind::PermissionDenied.into())
                }
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
        set_mode(dir: &Path, mode: u32) -> ();
        set_mode_of(dir: &Path, file_id: u64, mode: u32) -> ();
        stat(path: &Path) -> Option<crate::share::files::Entry>;
        list(dir: &Path) -> Option<Vec<std::ffi::OsString>>;
        remove_file(file: &Path) -> ();
        remove_dir(dir: &Path) -> ();
        remove_entries(dir: &Path, max: u64) -> crate::share::files::RemovedEntries;
        set_id(dir: &Path, id: &str) -> bool;
        id(dir: &Path) -> Option<String>;
        open_dir(dir: &Path) -> std::os::fd::OwnedFd;
        open_file(file: &Path) -> std::fs::File;
        open_new_file(file: &Path) -> std::fs::File;
        capacity() -> crate::share::CapacityInfo;
    }
    let files = crate::share::files::LinuxFiles::open(&fixture.root()).unwrap();
    let share = Share::with_files(Arc::new(Squashed(files)), environment(Duration::ZERO));
    let error = create(&share, &CreateVolume { uid: Some(1), ..volume("h1", "a/pvc-1") }).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Forbidden);
    assert!(error.message.contains("no_root_squash"), "{error}");
    assert_eq!(fixture.tree(), Vec::<String>::new());
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}
