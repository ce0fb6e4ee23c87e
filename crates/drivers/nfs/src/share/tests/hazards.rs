//! Sequences that would lose data, leak or block, found by a review.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::snapshots::{FORMATS, make_snapshot, snapshot};
use super::support::{Fixture, create, delete, environment, purge, recover, tree, volume};
use super::volumes::adopt;
use crate::parameters::OnDelete;
use crate::path::SharePath;
use crate::share::files::{Entry, LinuxFiles, RemovedEntries, ShareFiles};
use crate::share::record::{DirectoryRecord, DirectoryUse, Origin};
use crate::share::{CapacityInfo, CreateVolume, ErrorKind, Share};

/// What the class of a deleted volume promised to keep is not deleted with another volume in the same directory.
#[test]
fn most_careful_policy_of_all_volumes_in_a_directory_counts() {
    use OnDelete::{Archive, Delete, Retain};
    for (first, last, expected) in [
        (Retain, Delete, "pvc/data"),
        (Retain, Archive, "pvc/data"),
        (Archive, Delete, "archived-pvc/data"),
        (Delete, Archive, "archived-pvc/data"),
        (Archive, Retain, "pvc/data"),
    ] {
        let fixture = Fixture::new();
        for (handle, policy) in [("h1", first), ("h2", last)] {
            create(&fixture.share, &CreateVolume { on_delete: Some(policy), ..volume(handle, "pvc") })
                .unwrap();
        }
        fixture.write("pvc/data", "precious");
        fixture.delete("h1").unwrap();
        fixture.delete("h2").unwrap();
        fixture.leftovers();
        assert!(fixture.at(expected).exists(), "{first:?}, then {last:?}: {:?}", fixture.tree());
    }
}

/// The volume inside cannot be adopted, so nothing protects it but the volume outside.
#[test]
fn adopted_volume_that_contains_another_one_is_never_deleted() {
    let fixture = Fixture::new();
    fixture.write("a/b/data", "precious");
    adopt(&fixture.share, "outer", "a").unwrap();
    assert!(adopt(&fixture.share, "inner", "a/b").is_err());
    fixture.delete("outer").unwrap();
    fixture.delete("inner").unwrap();
    fixture.leftovers();
    assert_eq!(fixture.tree(), ["a", "a/b", "a/b/data"]);
}

#[test]
fn tree_with_long_names_is_purged() {
    let fixture = Fixture::new();
    fixture.create("h1", "pvc-1").unwrap();
    // Deeper than a path can name: each level is made relative to the one above.
    let mut dir =
        rustix::fs::open(fixture.at("pvc-1"), rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    let name = "n".repeat(255);
    for _ in 0..40 {
        rustix::fs::mkdirat(&dir, &name, rustix::fs::Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, &name, rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
    }
    // A name that is not UTF-8.
    let other = std::os::unix::ffi::OsStringExt::from_vec(vec![0xff; 255]);
    let other: OsString = other;
    rustix::fs::mkdirat(&dir, &other, rustix::fs::Mode::RWXU).unwrap();
    fixture.delete("h1").unwrap();
    for _ in 0..8 {
        if purge(&fixture.share, u64::MAX).unwrap() {
            break;
        }
    }
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

fn record_files(fixture: &Fixture, store: &str) -> Vec<String> {
    let files = tree(&fixture.at(&format!(".wharf/{store}")));
    files
        .into_iter()
        .filter(|path| path.ends_with(".json"))
        .map(|path| format!(".wharf/{store}/{path}"))
        .collect()
}

#[test]
fn damaged_record_does_not_block_the_recovery_of_others() {
    for store in ["volumes", "directories"] {
        let fixture = Fixture::new();
        fixture.create("h1", "pvc-1").unwrap();
        let damaged = record_files(&fixture, store).pop().unwrap();
        std::fs::write(fixture.at(&damaged), "").unwrap();
        fixture.create("h2", "pvc-2").unwrap();
        fixture.write("pvc-1/data", "precious");
        fixture.delete("h2").unwrap();
        let error = fixture.delete("h1").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.message.contains("damaged") && error.message.contains("adopt"), "{error}");
        recover(&fixture.share).unwrap();
        purge(&fixture.share, u64::MAX).unwrap();
        // Only the damaged record and the other record of its volume are left: no tombstone.
        assert_eq!(
            record_files(&fixture, "volumes").len() + record_files(&fixture, "directories").len(),
            2,
            "{store}"
        );
        assert_eq!(fixture.tree(), ["pvc-1", "pvc-1/data"]);
    }
}

/// A crash left the intent to create a parent; then someone else created the directory, for own files.
#[test]
fn directory_of_someone_else_does_not_become_a_parent_of_the_driver() {
    let fixture = Fixture::new();
    fixture.create("h0", "other").unwrap();
    let slot = fixture.share.read_record::<DirectoryRecord>("team").unwrap();
    let intent: DirectoryRecord = serde_json::from_value(serde_json::json!({
        "path": "team", "origin": "created", "identity": null, "use": "parent"
    }))
    .unwrap();
    assert_eq!((intent.origin, &intent.usage), (Origin::Created, &DirectoryUse::Parent));
    assert_eq!(intent.path, SharePath::new("team").unwrap());
    fixture.share.swap_record(&slot, Some(intent)).unwrap();
    fixture.write("team/private", "secret");
    std::fs::set_permissions(fixture.at("team"), std::fs::Permissions::from_mode(0o700)).unwrap();
    fixture.create("h1", "team/pvc-1").unwrap();
    let mode = std::fs::metadata(fixture.at("team")).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o700);
    std::fs::remove_file(fixture.at("team/private")).unwrap();
    fixture.delete("h1").unwrap();
    fixture.leftovers();
    assert!(fixture.at("team").is_dir());
}

/// A share without free space: nothing can be created, until a file of the driver is removed.
struct FullFiles(LinuxFiles);

impl FullFiles {
    fn room(&self) -> io::Result<()> {
        match self.0.stat(Path::new(".wharf/reserve"))? {
            Some(_) => Err(io::ErrorKind::StorageFull.into()),
            None => Ok(()),
        }
    }
}

macro_rules! forward {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        impl ShareFiles for FullFiles {
            $(fn $name(&self, $($arg: $type),*) -> io::Result<$result> { self.0.$name($($arg),*) })*
            fn create_file(&self, file: &Path, bytes: &[u8]) -> io::Result<()> {
                self.room().and_then(|()| self.0.create_file(file, bytes))
            }
            fn create_dir(&self, dir: &Path) -> io::Result<()> {
                self.room().and_then(|()| self.0.create_dir(dir))
            }
        }
    };
}
forward! {
    read(file: &Path) -> Option<Vec<u8>>;
    sync(path: &Path) -> ();
    link(from: &Path, to: &Path) -> ();
    rename(from: &Path, to: &Path) -> ();
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

#[test]
fn volume_can_be_deleted_on_a_full_share() {
    let fixture = Fixture::new();
    fixture.create("h1", "a/pvc-1").unwrap();
    let files = FullFiles(LinuxFiles::open(&fixture.root()).unwrap());
    let full = Share::with_files(Arc::new(files), environment(Duration::ZERO));
    assert_eq!(create(&full, &volume("h2", "pvc-2")).unwrap_err().kind, ErrorKind::OutOfSpace);
    delete(&full, "h1").unwrap();
    assert!(purge(&full, u64::MAX).unwrap());
    assert_eq!(fixture.tree(), Vec::<String>::new());
    // The next recovery reserves the space again.
    recover(&fixture.share).unwrap();
    assert!(fixture.at(".wharf/reserve").exists());
}

/// A file system in memory, with this much space.
struct SmallShare(tempfile::TempDir);

impl SmallShare {
    fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", options, "none"];
        assert!(Command::new("mount").args(mount).arg(dir.path()).status().unwrap().success());
        Self(dir)
    }
}

impl Drop for SmallShare {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Nothing could be recorded on a full share, also not that the copy failed, and no other volume could write.
#[test]
fn copy_that_does_not_fit_leaves_no_full_share() {
    for format in FORMATS {
        let place = SmallShare::new("size=2m");
        let root = place.0.path();
        let share = Share::open(root, environment(Duration::ZERO)).unwrap();
        create(&share, &volume("h1", "pvc-1")).unwrap();
        let mut state = 1_u32;
        for file in 0..12 {
            let next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let content: Vec<u8> = std::iter::repeat_with(next).take(100 << 10).collect();
            std::fs::write(root.join(format!("pvc-1/{file}")), content).unwrap();
        }
        let request = snapshot("snap-1", "h1", format);
        for attempt in 0..4 {
            let error = make_snapshot(&share, &request).unwrap_err();
            assert_eq!(error.kind, ErrorKind::OutOfSpace, "{format:?} {attempt}: {error}");
            let staged = std::fs::read_dir(root.join(".wharf/staging")).unwrap().count();
            assert_eq!(staged, 0, "{format:?} {attempt}");
            std::fs::write(root.join("other"), vec![1; 256 << 10]).unwrap();
            std::fs::remove_file(root.join("other")).unwrap();
        }
        for file in 0..8 {
            std::fs::remove_file(root.join(format!("pvc-1/{file}"))).unwrap();
        }
        let made = (0..2).find_map(|_| make_snapshot(&share, &request).ok());
        assert!(made.is_some(), "{format:?}");
    }
}
