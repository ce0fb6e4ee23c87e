//! Trees for tests: random ones, and a comparable description of what is in a directory.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::Index;
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use super::{attributes, data};

/// An access ACL: `u::rw-,u:1000:r--,g::r--,m::r--,o::---`, in the kernel's binary form.
pub(crate) const ACL: [u8; 44] = {
    let mut acl = [0; 44];
    let entries: [(u8, u8, u32); 5] =
        [(1, 6, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 0, u32::MAX)];
    acl[0] = 2;
    let mut i = 0;
    while i < entries.len() {
        let at = 4 + 8 * i;
        acl[at] = entries[i].0;
        acl[at + 2] = entries[i].1;
        let id = entries[i].2.to_le_bytes();
        let mut byte = 0;
        while byte < 4 {
            acl[at + 4 + byte] = id[byte];
            byte += 1;
        }
        i += 1;
    }
    acl
};

/// One entry of a random tree.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    parent: Index,
    name: Vec<u8>,
    kind: ItemKind,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    xattr: Option<Vec<u8>>,
    acl: bool,
}

#[derive(Debug, Clone)]
enum ItemKind {
    Dir,
    /// Pieces of data: hole before it in units of 64 KiB, length, byte; then a hole at the end.
    File(Vec<(u64, usize, u8)>, u64),
    Symlink(Vec<u8>),
    Fifo,
    /// A further name of an earlier file, symlink or FIFO.
    Link(Index),
}

fn bytes(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>().prop_filter("not in names", |b| *b != 0 && *b != b'/'), length)
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => "[a-z]{1,8}".prop_map(String::into_bytes),
        2 => bytes(1..30),
        1 => bytes(200..240),
    ]
}

fn item() -> impl Strategy<Value = Item> {
    let file = proptest::collection::vec((0..20u64, 1..200_000usize, any::<u8>()), 0..4);
    let kind = prop_oneof![
        3 => Just(ItemKind::Dir),
        5 => (file, 0..20u64).prop_map(|(pieces, end)| ItemKind::File(pieces, end)),
        1 => bytes(1..300).prop_map(ItemKind::Symlink),
        1 => Just(ItemKind::Fifo),
        2 => any::<Index>().prop_map(ItemKind::Link),
    ];
    let mtime = (-10_000_000_000i64..10_000_000_000, 0..1_000_000_000i64);
    let xattr = proptest::option::weighted(0.3, proptest::collection::vec(any::<u8>(), 0..600));
    (any::<Index>(), name(), kind, 0..0o10000u32, (0..3u32, 0..3u32), mtime, xattr, any::<bool>()).prop_map(
        |(parent, name, kind, mode, owner, mtime, xattr, acl)| Item {
            parent,
            name,
            kind,
            mode,
            owner,
            mtime,
            xattr,
            acl,
        },
    )
}

/// Random trees.
pub(crate) fn tree() -> impl Strategy<Value = Vec<Item>> {
    proptest::collection::vec(item(), 0..40)
}

/// Creates a random tree in an empty directory. Needs root, for the owners.
pub(crate) fn build(root: &Path, items: &[Item]) {
    let mut dirs = vec![root.to_owned()];
    let mut others: Vec<PathBuf> = Vec::new();
    let mut made: Vec<(PathBuf, &Item)> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        // A number makes names unique.
        let name = [&item.name[..], format!(".{i}").as_bytes()].concat();
        let path = item.parent.get(&dirs).join(std::ffi::OsStr::from_bytes(&name));
        match &item.kind {
            ItemKind::Dir => {
                fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            ItemKind::File(pieces, end) => write_pieces(&path, pieces, *end),
            ItemKind::Symlink(target) => {
                std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), &path).unwrap();
            }
            ItemKind::Fifo => {
                rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap();
            }
            ItemKind::Link(_) if others.is_empty() => continue,
            ItemKind::Link(first) => {
                rustix::fs::linkat(CWD, first.get(&others), CWD, &path, AtFlags::empty()).unwrap();
            }
        }
        if !matches!(item.kind, ItemKind::Dir) {
            others.push(path.clone());
        }
        made.push((path, item));
    }
    for (path, item) in made.iter().rev() {
        set_attributes(path, item);
    }
    for (path, item) in made.iter().rev() {
        let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time((7, 7)), last_modification: time(item.mtime) };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn write_pieces(path: &Path, pieces: &[(u64, usize, u8)], end: u64) {
    let file = File::create_new(path).unwrap();
    let mut at = 0;
    for (hole, length, byte) in pieces {
        at += hole << 16;
        file.write_all_at(&vec![*byte; *length], at).unwrap();
        at += *length as u64;
    }
    file.set_len(at + (end << 16)).unwrap();
}

fn set_attributes(path: &Path, item: &Item) {
    std::os::unix::fs::lchown(path, Some(item.owner.0), Some(item.owner.1)).unwrap();
    if path.is_symlink() {
        return;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(item.mode)).unwrap();
    if path.is_dir() || path.is_file() {
        if let Some(value) = &item.xattr {
            rustix::fs::setxattr(path, "user.test", value, XattrFlags::empty()).unwrap();
        }
        if item.acl {
            rustix::fs::setxattr(path, "system.posix_acl_access", &ACL, XattrFlags::empty()).unwrap();
            if path.is_dir() {
                rustix::fs::setxattr(path, "system.posix_acl_default", &ACL, XattrFlags::empty()).unwrap();
            }
        }
    }
}

/// Everything about an entry that a copy keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: FileType,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    contents: Vec<u8>,
    /// Where a file has data.
    data: Vec<(u64, u64)>,
    /// The first path with the same inode.
    first: PathBuf,
}

/// Describes a tree, with its root as the empty path.
pub(crate) fn describe(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut inodes = HashMap::new();
    describe_entry(root, Path::new(""), &mut seen, &mut inodes);
    seen
}

fn describe_entry(
    root: &Path,
    path: &Path,
    seen: &mut BTreeMap<PathBuf, Seen>,
    inodes: &mut HashMap<u64, PathBuf>,
) {
    let full = root.join(path);
    let stat = fs::symlink_metadata(&full).unwrap();
    let kind = FileType::from_raw_mode(stat.mode());
    let (mut xattrs, mut contents, mut data) = (Vec::new(), Vec::new(), Vec::new());
    match kind {
        FileType::RegularFile => {
            let file = File::open(&full).unwrap();
            xattrs = attributes::read_xattrs(file.as_fd()).unwrap();
            // The page cache knows holes only after a sync.
            file.sync_all().unwrap();
            data = data::data_ranges(&file, stat.len()).unwrap();
            contents = fs::read(&full).unwrap();
        }
        FileType::Directory => xattrs = attributes::read_xattrs(open_dir(&full).as_fd()).unwrap(),
        FileType::Symlink => contents = fs::read_link(&full).unwrap().as_os_str().as_bytes().to_vec(),
        _ => {}
    }
    let first = inodes.entry(stat.ino()).or_insert_with(|| path.to_owned()).clone();
    let mode = stat.mode() & 0o7777;
    let (owner, mtime) = ((stat.uid(), stat.gid()), (stat.mtime(), stat.mtime_nsec()));
    seen.insert(path.to_owned(), Seen { kind, mode, owner, mtime, xattrs, contents, data, first });
    if kind == FileType::Directory {
        let mut names: Vec<_> =
            fs::read_dir(&full).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names {
            describe_entry(root, &path.join(name), seen, inodes);
        }
    }
}

/// Opens a directory.
pub(crate) fn open_dir(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

/// Asserts that two trees are equal, and names the first entries that differ.
pub(crate) fn assert_same(expected: &Path, found: &Path) {
    let (expected, found) = (describe(expected), describe(found));
    let short = |seen: Option<&Seen>| {
        seen.map(|seen| {
            format!(
                "{:?}",
                Seen { contents: seen.contents.iter().take(20).copied().collect(), ..seen.clone() }
            )
        })
    };
    let paths = expected.keys().chain(found.keys());
    let different: Vec<_> = paths
        .filter(|path| expected.get(*path) != found.get(*path))
        .map(|path| {
            format!("{path:?}: expected {:?}, found {:?}", short(expected.get(path)), short(found.get(path)))
        })
        .take(5)
        .collect();
    assert!(different.is_empty(), "{different:#?}");
}
