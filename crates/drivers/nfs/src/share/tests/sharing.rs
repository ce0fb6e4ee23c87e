//! Directories that others use or have replaced, and mounts that do not show how a directory is identified.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::support::{Fixture, create, delete, environment, recover, volume};
use crate::parameters::OnDelete;
use crate::share::files::{Entry, LinuxFiles, RemovedEntries, ShareFiles};
use crate::share::record::{DirectoryRecord, DirectoryState, DirectoryUse, Origin};
use crate::share::{CapacityInfo, CreateVolume, ErrorKind, GetVolume, Request, Response, Share};

fn record(fixture: &Fixture, path: &str) -> DirectoryRecord {
    fixture.share.read_record::<DirectoryRecord>(path).unwrap().record.unwrap()
}

/// Someone removed the directory of a volume; then a second volume with the same `subDir` is created.
#[test]
fn second_volume_in_a_missing_directory_gets_a_new_one() {
    let fixture = Fixture::new();
    fixture.create("h1", "team").unwrap();
    std::fs::remove_dir(fixture.at("team")).unwrap();
    fixture.create("h2", "team").unwrap();
    assert!(fixture.at("team").is_dir());
    fixture.write("team/data", "1");
    // Both volumes use it now.
    fixture.delete("h1").unwrap();
    assert!(fixture.at("team/data").exists());
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.tree(), Vec::<String>::new());
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

/// A second volume began to create the directory again, and was undone.
#[test]
fn directory_whose_new_creation_was_undone_is_created_for_the_next_volume() {
    let fixture = Fixture::new();
    fixture.create("h1", "team").unwrap();
    std::fs::remove_dir(fixture.at("team")).unwrap();
    let slot = fixture.share.read_record::<DirectoryRecord>("team").unwrap();
    let usage = DirectoryUse::Volume {
        references: ["h1".to_owned()].into(),
        state: DirectoryState::Creating { staging: None },
    };
    let undone = DirectoryRecord { identity: None, usage, ..slot.record.clone().unwrap() };
    fixture.share.swap_record(&slot, Some(undone)).unwrap();
    fixture.create("h3", "team").unwrap();
    assert!(fixture.at("team").is_dir());
    for handle in ["h1", "h3"] {
        fixture.delete(handle).unwrap();
    }
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
    assert_eq!(fixture.tree(), Vec::<String>::new());
}

/// Someone replaced the directory: what is there now is not the driver's.
#[test]
fn second_volume_in_a_replaced_directory_never_deletes_it() {
    let fixture = Fixture::new();
    fixture.create("h1", "team").unwrap();
    // Both exist at the same time, so the inode number is another one.
    std::fs::create_dir(fixture.at("new")).unwrap();
    std::fs::remove_dir(fixture.at("team")).unwrap();
    std::fs::rename(fixture.at("new"), fixture.at("team")).unwrap();
    fixture.write("team/data", "precious");
    fixture.create("h2", "team").unwrap();
    assert_eq!(record(&fixture, "team").origin, Origin::Existing);
    fixture.delete("h2").unwrap();
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
    assert_eq!(fixture.tree(), ["team", "team/data"]);
}

/// A class has the directory of a volume as its share, with records and volumes of its own.
#[test]
fn directory_that_is_a_share_itself_is_neither_deleted_nor_archived() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let fixture = Fixture::new();
        let request = CreateVolume { on_delete: Some(policy), ..volume("outer", "team") };
        create(&fixture.share, &request).unwrap();
        let inner = Share::open(&fixture.at("team"), environment(Duration::ZERO)).unwrap();
        create(&inner, &volume("inner", "pvc-1")).unwrap();
        fixture.write("team/pvc-1/data", "precious");
        for _ in 0..2 {
            let error = fixture.delete("outer").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Precondition, "{error}");
            assert!(error.message.contains("team/.wharf"), "{error}");
        }
        recover(&fixture.share).unwrap();
        assert!(fixture.at("team/pvc-1/data").exists(), "{policy:?}");
        // The remedy that the error names.
        delete(&inner, "inner").unwrap();
        std::fs::remove_dir_all(fixture.at("team/.wharf")).unwrap();
        fixture.delete("outer").unwrap();
        assert!(!fixture.at("team").exists(), "{policy:?}");
    }
}

/// Pods can create anything in their volume.
#[test]
fn entry_named_like_the_records_of_a_share_does_not_prevent_a_deletion() {
    let fixture = Fixture::new();
    for (handle, make) in [
        ("h1", (|path| std::fs::write(path, "")) as fn(std::path::PathBuf) -> io::Result<()>),
        ("h2", |path| std::fs::create_dir(path)),
        ("h3", |path| std::os::unix::fs::symlink("/", path)),
    ] {
        fixture.create(handle, "team").unwrap();
        make(fixture.at("team/.wharf")).unwrap();
        fixture.delete(handle).unwrap();
        assert!(!fixture.at("team").exists(), "{handle}");
        assert_eq!(fixture.leftovers(), Vec::<String>::new());
    }
}

/// A second volume created the missing directory again; its controller ended before it recorded that the directory is in place.
#[test]
fn directory_in_place_is_kept_for_its_other_volume_after_an_interrupted_creation() {
    for (policy, remaining) in [(OnDelete::Retain, "team/data"), (OnDelete::Archive, "archived-team/data")] {
        let fixture = Fixture::new();
        create(&fixture.share, &CreateVolume { on_delete: Some(policy), ..volume("h1", "team") }).unwrap();
        fixture.create("h2", "team").unwrap();
        fixture.write("team/data", "precious");
        let slot = fixture.share.read_record::<DirectoryRecord>("team").unwrap();
        let usage = DirectoryUse::Volume {
            references: ["h1".to_owned(), "h2".to_owned()].into(),
            state: DirectoryState::Creating { staging: Some("0-id".to_owned()) },
        };
        let interrupted = DirectoryRecord { usage, ..slot.record.clone().unwrap() };
        fixture.share.swap_record(&slot, Some(interrupted)).unwrap();
        for handle in ["h2", "h1"] {
            fixture.delete(handle).unwrap();
        }
        assert!(fixture.tree().contains(&remaining.to_owned()), "{policy:?}: {:?}", fixture.tree());
    }
}

/// A mount without extended attributes, such as NFSv4.1.
struct WithoutXattrs(LinuxFiles);

macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl ShareFiles for WithoutXattrs {
            $(fn $name(&self, $($arg: $type),*) -> io::Result<$result> { self.0.$name($($arg),*) })*
            fn set_id(&self, _: &Path, _: &str) -> io::Result<bool> {
                Ok(false)
            }
            fn id(&self, _: &Path) -> io::Result<Option<String>> {
                Err(rustix::io::Errno::OPNOTSUPP.into())
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
    set_owner(dir: &Path, uid: Option<u32>, gid: Option<u32>) -> ();
    set_mode(dir: &Path, mode: u32) -> ();
    set_mode_of(dir: &Path, file_id: u64, mode: u32) -> ();
    stat(path: &Path) -> Option<Entry>;
    list(dir: &Path) -> Option<Vec<OsString>>;
    remove_file(file: &Path) -> ();
    remove_dir(dir: &Path) -> ();
    remove_entries(dir: &Path, max: u64) -> RemovedEntries;
    open_dir(dir: &Path) -> OwnedFd;
    open_file(file: &Path) -> File;
    open_new_file(file: &Path) -> File;
    capacity() -> CapacityInfo;
}

/// One class mounts with NFSv4.2, another one with 4.1: the same share shows extended attributes only sometimes.
#[test]
fn volume_with_an_id_is_found_and_deleted_over_a_mount_without_xattrs() {
    let fixture = Fixture::on_disk();
    fixture.create("h1", "pvc-1").unwrap();
    let identity = record(&fixture, "pvc-1").identity.unwrap();
    assert!(identity.xattr.is_some(), "the file system of the test has no user xattrs");
    fixture.write("pvc-1/data", "1");
    let without = || {
        let files = WithoutXattrs(LinuxFiles::open(&fixture.root()).unwrap());
        Share::with_files(Arc::new(files), environment(Duration::ZERO))
    };
    let get = GetVolume { handle: "h1".to_owned(), path: None };
    match without().handle(Request::GetVolume(get)) {
        Response::GetVolume(Ok(Some(found))) => assert!(found.present),
        other => panic!("{other:?}"),
    }
    // Another directory is another one, with and without the attribute.
    std::fs::create_dir(fixture.at("other")).unwrap();
    std::fs::rename(fixture.at("pvc-1"), fixture.at("moved")).unwrap();
    std::fs::rename(fixture.at("other"), fixture.at("pvc-1")).unwrap();
    assert_eq!(delete(&without(), "h1").unwrap_err().kind, ErrorKind::Internal);
    std::fs::remove_dir(fixture.at("pvc-1")).unwrap();
    std::fs::rename(fixture.at("moved"), fixture.at("pvc-1")).unwrap();
    delete(&without(), "h1").unwrap();
    assert_eq!(fixture.tree(), Vec::<String>::new());
}

/// Users of a volume can write the attribute of its root, and rsync -X copies it from another volume.
#[test]
fn changed_id_of_a_directory_is_refused_with_its_remedy() {
    let fixture = Fixture::on_disk();
    fixture.create("h1", "pvc-1").unwrap();
    fixture.write("pvc-1/data", "1");
    let id = record(&fixture, "pvc-1").identity.unwrap().xattr.unwrap();
    let set = |id: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(fixture.at("pvc-1"), "user.wharf.id", id.as_bytes(), flags).unwrap();
    };
    set("of another volume");
    let error = fixture.delete("h1").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal);
    let remedy = format!("setfattr -n user.wharf.id -v {id}`");
    assert!(error.message.contains(&remedy), "{error}");
    assert!(fixture.at("pvc-1/data").exists());
    set(&id);
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.tree(), Vec::<String>::new());
}

/// ENODATA is "no such attribute", EOPNOTSUPP is "no attributes": only the first one says something about the directory.
#[test]
fn id_of_a_file_system_without_xattrs_is_an_error_and_a_missing_one_is_not() {
    let fixture = Fixture::on_disk();
    let files = LinuxFiles::open(&fixture.root()).unwrap();
    assert_eq!(files.id(Path::new(".")).unwrap(), None);
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "ramfs", "none"]).arg(dir.path()).status().unwrap();
    assert!(mounted.success());
    let found = LinuxFiles::open(dir.path()).and_then(|files| files.id(Path::new(".")));
    assert!(Command::new("umount").arg(dir.path()).status().unwrap().success());
    let error = found.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()), "{error}");
}
