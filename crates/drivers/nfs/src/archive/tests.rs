//! Tests of archives on real file systems. Owners need root.

use std::fs::{self, File};
use std::io::Seek as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use tempfile::TempDir;

use super::header::{BLOCK, Header, push_pax};
use super::*;
use crate::copy::testing::{assert_same, build, describe, open_dir, tree};

const FORMATS: [ArchiveFormat; 3] = [ArchiveFormat::Tar, ArchiveFormat::TarGz, ArchiveFormat::TarZst];

fn go_on(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn packed(from: &Path, format: ArchiveFormat) -> (File, PackedArchive) {
    let mut out = tempfile::tempfile().unwrap();
    let archive = pack(open_dir(from).as_fd(), &out, format, &go_on).unwrap();
    out.rewind().unwrap();
    (out, archive)
}

fn unpacked(
    input: File,
    format: ArchiveFormat,
    options: &UnpackOptions,
) -> Result<(TempDir, CopyReport), CopyError> {
    let to = TempDir::new().unwrap();
    unpack(input, format, open_dir(to.path()).as_fd(), options, &go_on).map(|report| (to, report))
}

fn from_bytes(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

fn bytes_of(mut file: File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Header, PAX records and data.
type RawEntry<'a> = (Header, &'a [(&'a str, &'a str)], &'a [u8]);

/// An archive of single headers without data, as Go and others write them.
fn raw(entries: &[RawEntry<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let data = |bytes: &mut Vec<u8>, data: &[u8]| {
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    };
    for (header, pax, content) in entries {
        if !pax.is_empty() {
            let mut records = Vec::new();
            pax.iter().for_each(|(key, value)| push_pax(&mut records, key.as_bytes(), value.as_bytes()));
            let extended = Header { kind: b'x', size: records.len() as u64, ..Header::default() };
            bytes.extend(extended.encode());
            data(&mut bytes, &records);
        }
        bytes.extend(header.encode());
        data(&mut bytes, content);
    }
    bytes.extend([0; 2 * BLOCK]);
    bytes
}

fn header(kind: u8, name: &str, link: &str) -> Header {
    Header { name: name.into(), link: link.into(), kind, mode: 0o644, ..Header::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    // B16 and B17
    #[test]
    fn random_tree_is_packed_and_unpacked_exactly(items in tree(), format in 0..3usize) {
        let from = TempDir::new().unwrap();
        build(from.path(), &items);
        let format = FORMATS[format];
        let (archive, info) = packed(from.path(), format);
        prop_assert_eq!(archive.metadata().unwrap().len(), info.size);
        let options = UnpackOptions { sha256: Some(info.sha256), ..UnpackOptions::default() };
        let (to, report) = unpacked(archive, format, &options).unwrap();
        if has_linked_symlink(from.path()) && format != ArchiveFormat::TarZst {
            // csi-driver-nfs knows no hard links: a symlink with several names is stored several times.
            prop_assert_eq!(describe(from.path()).len(), describe(to.path()).len());
        } else {
            assert_same(from.path(), to.path());
            // An archive does not tell how the files are stored.
            let packed = CopyReport { allocated: None, ..info.report.clone() };
            prop_assert_eq!(&report, &packed);
        }
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096), fix: bool) {
        let mut bytes = bytes;
        if fix && bytes.len() >= BLOCK {
            // A correct checksum, so that the rest is looked at.
            bytes[100..136].fill(b'1');
            let sum: u32 = (0..BLOCK).map(|i| if (148..156).contains(&i) { 32 } else { u32::from(bytes[i]) }).sum();
            bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        for format in FORMATS {
            let _ = unpacked(from_bytes(&bytes), format, &UnpackOptions::default());
        }
    }
}

fn has_linked_symlink(root: &Path) -> bool {
    let linked = |path: std::path::PathBuf| {
        let stat = fs::symlink_metadata(root.join(path)).unwrap();
        stat.is_symlink() && stat.nlink() > 1
    };
    describe(root).into_keys().any(linked)
}

/// A small tree without what GNU tar's default format cannot keep.
fn plain_tree() -> TempDir {
    let dir = TempDir::new().unwrap();
    let long = "l".repeat(150);
    fs::create_dir_all(dir.path().join(format!("sub/{long}"))).unwrap();
    fs::write(dir.path().join(format!("sub/{long}/{long}")), "long").unwrap();
    fs::write(dir.path().join("file"), vec![7; 100_000]).unwrap();
    fs::hard_link(dir.path().join("file"), dir.path().join("sub/link")).unwrap();
    symlink(format!("sub/{long}/{long}"), dir.path().join("symlink")).unwrap();
    fs::set_permissions(dir.path().join("file"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(dir.path().join("sub"), Some(12), Some(3_000_000)).unwrap();
    let now = rustix::fs::Timespec { tv_sec: 1_700_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    for path in describe(dir.path()).into_keys() {
        let path = dir.path().join(path);
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    dir
}

#[test]
fn archive_of_gnu_tar_is_unpacked_exactly() {
    let from = plain_tree();
    for (flag, format) in [("-czf", ArchiveFormat::TarGz), ("-cf", ArchiveFormat::Tar)] {
        let archive = tempfile::NamedTempFile::new().unwrap();
        // The command of csi-driver-nfs.
        let mut tar = Command::new("tar");
        assert!(
            tar.arg("-C").arg(from.path()).arg(flag).arg(archive.path()).arg(".").status().unwrap().success()
        );
        let (to, _) = unpacked(archive.reopen().unwrap(), format, &UnpackOptions::default()).unwrap();
        assert_same(from.path(), to.path());
    }
}

#[test]
fn gnu_tar_unpacks_our_archives() {
    let from = plain_tree();
    let sparse = File::create(from.path().join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"data", 5 << 20).unwrap();
    for (format, flag) in [(ArchiveFormat::TarGz, "-xzf"), (ArchiveFormat::Tar, "-xf")] {
        let archive = tempfile::NamedTempFile::new().unwrap();
        pack(open_dir(from.path()).as_fd(), archive.as_file(), format, &go_on).unwrap();
        let to = TempDir::new().unwrap();
        let mut tar = Command::new("tar");
        assert!(
            tar.arg("-C").arg(to.path()).arg(flag).arg(archive.path()).output().unwrap().status.success()
        );
        let (expected, found) = (describe(from.path()), describe(to.path()));
        assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
        for path in expected.keys().filter(|path| from.path().join(path).is_file()) {
            let read = |dir: &TempDir| fs::read(dir.path().join(path)).unwrap();
            assert!(read(&from) == read(&to), "{path:?}");
        }
    }
}

#[test]
fn compatible_archive_has_only_types_that_csi_driver_nfs_restores() {
    let from = plain_tree();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let bytes = bytes_of(packed(from.path(), ArchiveFormat::Tar).0);
    let mut at = 0;
    let mut names = Vec::new();
    while let Some(header) = Header::decode(bytes[at..at + BLOCK].try_into().unwrap()).unwrap() {
        assert!([b'x', b'0', b'2', b'5'].contains(&header.kind), "{header:?}");
        if header.kind == b'0' && (header.name == b"file" || header.name == b"sub/link") {
            assert_eq!(header.size, 100_000);
        }
        if header.kind != b'x' {
            names.push(String::from_utf8(header.name).unwrap());
        }
        at += BLOCK + usize::try_from(header.size).unwrap().next_multiple_of(BLOCK);
    }
    assert_eq!(names[0], ".");
    assert!(names.contains(&"sub/link".to_owned()), "{names:?}");
}

// B16
#[test]
fn sockets_and_devices_are_left_out_and_counted() {
    let from = TempDir::new().unwrap();
    let _listener = UnixListener::bind(from.path().join("socket")).unwrap();
    fs::write(from.path().join("file"), "x").unwrap();
    let (_, info) = packed(from.path(), ArchiveFormat::TarZst);
    assert_eq!(
        info.report,
        CopyReport { files: 1, bytes: 1, allocated: Some(1), sockets: 1, ..CopyReport::default() }
    );
}

// B15
#[test]
fn archive_that_is_cut_off_anywhere_is_refused() {
    let from = TempDir::new().unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/file"), "data").unwrap();
    symlink("dir/file", from.path().join("symlink")).unwrap();
    // In memory: every attempt ends with a sync.
    let to = || TempDir::new_in("/dev/shm").unwrap();
    for format in FORMATS {
        let bytes = bytes_of(packed(from.path(), format).0);
        let step = (bytes.len() / 100).max(1);
        // Tar ends with two zero blocks, of which one is enough.
        let end = if format == ArchiveFormat::Tar { bytes.len() - BLOCK } else { bytes.len() };
        for length in (0..end).step_by(step).chain((0..end).step_by(BLOCK)) {
            let (to, input) = (to(), from_bytes(&bytes[..length]));
            let result =
                unpack(input, format, open_dir(to.path()).as_fd(), &UnpackOptions::default(), &go_on);
            assert!(result.is_err(), "{format:?} cut at {length} of {}", bytes.len());
        }
    }
}

// B15
#[test]
fn archive_with_another_checksum_is_refused() {
    let from = plain_tree();
    let (archive, info) = packed(from.path(), ArchiveFormat::Tar);
    let mut bytes = bytes_of(archive);
    let at = bytes.windows(8).position(|window| window == [7; 8]).unwrap();
    bytes[at] ^= 1;
    let options = UnpackOptions { sha256: Some(info.sha256), ..UnpackOptions::default() };
    let error = unpacked(from_bytes(&bytes), ArchiveFormat::Tar, &options).unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
}

// B15
#[test]
fn full_file_system_fails_the_archive_at_every_size() {
    let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    // Not compressible, so that the gzip trailer is what does not fit at some size.
    let mut seed = 1_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    let noise: Vec<u8> = (0..60_000).map(|_| random()).collect();
    fs::write(from.path().join("file"), noise).unwrap();
    let run = |program: &str, args: &[&str]| {
        assert!(Command::new(program).args(args).arg(to.path()).status().unwrap().success());
    };
    let mut failures = 0;
    for pages in 1..24 {
        run("mount", &["-t", "tmpfs", "-o", &format!("size={}k", 4 * pages), "none"]);
        let out = File::create_new(to.path().join("out")).unwrap();
        let result = pack(open_dir(from.path()).as_fd(), &out, ArchiveFormat::TarGz, &go_on);
        match result {
            Ok(_) => {
                let input = File::open(to.path().join("out")).unwrap();
                unpacked(input, ArchiveFormat::TarGz, &UnpackOptions::default()).unwrap();
            }
            Err(error) => {
                failures += 1;
                assert_eq!(error.io().unwrap().kind(), io::ErrorKind::StorageFull, "{error}");
            }
        }
        drop(out);
        // Lazily: a process that another test has forked may hold a copy of the descriptor until its exec.
        run("umount", &["--lazy"]);
    }
    assert!((1..23).contains(&failures), "{failures}");
}

#[test]
fn malicious_archives_never_touch_anything_outside() {
    let link = |kind, name: &str, target: &str| (header(kind, name, target), &[][..], &[][..]);
    let file = |name: &str| {
        let header = Header { size: 4, ..header(b'0', name, "") };
        (header, &[][..], &b"evil"[..])
    };
    let huge = |size| (Header { size, ..header(b'0', "huge", "") }, &[][..], &[][..]);
    let parent = TempDir::new().unwrap();
    let canary = parent.path().join("canary");
    let absolute = canary.to_str().unwrap().to_owned();
    let table: Vec<(&str, Vec<u8>)> = vec![
        ("parent", raw(&[file("../canary")])),
        ("parent within", raw(&[file("a/../../canary")])),
        ("absolute", raw(&[file(&absolute)])),
        ("symlink, then a file through it", raw(&[link(b'2', "a", ".."), file("a/canary")])),
        ("file, then its parent as a symlink", raw(&[file("a/canary"), link(b'2', "a", "..")])),
        ("symlink, then a file in its place", raw(&[link(b'2', "a", "../canary"), file("a")])),
        ("symlink, then a hard link through it", raw(&[link(b'2', "a", ".."), link(b'1', "b", "a/canary")])),
        ("hard link to outside", raw(&[link(b'1', "b", "../canary")])),
        ("hard link to an absolute name", raw(&[link(b'1', "b", &absolute)])),
        ("directory in place of a symlink", raw(&[link(b'2', "a", ".."), link(b'5', "a", "")])),
        ("own hard link record", raw(&[(header(b'0', "b", ""), &[("WHARF.hardlink", "../canary")], &[])])),
        ("PAX path", raw(&[(header(b'0', "b", ""), &[("path", "../canary")], &[])])),
        ("PAX sparse name", raw(&[(header(b'0', "b", ""), &[("GNU.sparse.name", "../canary")], &[])])),
        ("character device", raw(&[link(b'3', "null", "")])),
        ("block device", raw(&[link(b'4', "disk", "")])),
        ("root as a file", raw(&[file("./.")])),
        ("root as a symlink", raw(&[link(b'2', ".", "/etc")])),
        ("duplicate file", raw(&[file("a"), file("a")])),
        ("huge size", raw(&[huge(1 << 32)])),
        ("huge PAX size", raw(&[(header(b'0', "a", ""), &[("size", "9223372036854775807")], &[])])),
        ("too large PAX size", raw(&[(header(b'0', "a", ""), &[("size", "18446744073709551615")], &[])])),
        ("huge PAX header", raw(&[(Header { size: 1 << 40, ..header(b'x', "a", "") }, &[], &[])])),
        ("huge long name", raw(&[(Header { size: 1 << 40, ..header(b'L', "a", "") }, &[], &[])])),
        (
            "announced entry that is missing",
            raw(&[(Header { size: 3, ..header(b'L', "a", "") }, &[], b"abc")]),
        ),
        (
            "long name with NUL",
            raw(&[(Header { size: 3, ..header(b'L', "a", "") }, &[], b"a\0b"), file("x")]),
        ),
    ];
    for (what, archive) in table {
        let to = parent.path().join("to");
        fs::create_dir(&to).unwrap();
        fs::write(&canary, "precious").unwrap();
        let before = fs::metadata(&canary).unwrap();
        let (dir, input) = (open_dir(&to), from_bytes(&archive));
        let result = unpack(input, ArchiveFormat::Tar, dir.as_fd(), &UnpackOptions::default(), &go_on);
        assert!(result.is_err(), "{what}");
        let after = fs::metadata(&canary).unwrap();
        assert_eq!(fs::read(&canary).unwrap(), b"precious", "{what}");
        assert_eq!(
            (before.ino(), before.nlink(), before.mode()),
            (after.ino(), after.nlink(), after.mode()),
            "{what}"
        );
        let mut names: Vec<_> =
            fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["canary", "to"], "{what}");
        fs::remove_dir_all(&to).unwrap();
    }
}

// B18
#[test]
fn existing_content_is_refused() {
    let (from, to) = (plain_tree(), TempDir::new().unwrap());
    fs::write(to.path().join("file"), "precious").unwrap();
    let (archive, _) = packed(from.path(), ArchiveFormat::TarGz);
    let result =
        unpack(archive, ArchiveFormat::TarGz, open_dir(to.path()).as_fd(), &UnpackOptions::default(), &go_on);
    assert!(result.is_err());
    assert_eq!(fs::read(to.path().join("file")).unwrap(), b"precious");
}

/// The layout that csi-driver-nfs's own packer writes: names relative to the volume, directories without a slash.
#[test]
fn archive_of_csi_driver_nfs_is_restored() {
    let dir = |name: &str, mode| (Header { mode, ..header(b'5', name, "") }, &[][..], &[][..]);
    let file = Header {
        uid: 999,
        gid: 998,
        mode: 0o4640,
        mtime: 1_700_000_000,
        size: 5,
        ..header(b'0', "sub/data", "")
    };
    let bytes = raw(&[
        dir(".", 0o2770),
        dir("sub", 0o1777),
        (file, &[("mtime", "1700000000.123456789")], b"hello"),
        (header(b'2', "sub/link", "data"), &[], &[]),
    ]);
    let (to, report) = unpacked(from_bytes(&bytes), ArchiveFormat::Tar, &UnpackOptions::default()).unwrap();
    assert_eq!((report.directories, report.files, report.symlinks), (1, 1, 1));
    let stat = |path: &str| fs::symlink_metadata(to.path().join(path)).unwrap();
    assert_eq!(stat("").mode() & 0o7777, 0o2770);
    assert_eq!(stat("sub").mode() & 0o7777, 0o1777);
    let data = stat("sub/data");
    assert_eq!((data.uid(), data.gid(), data.mode() & 0o7777), (999, 998, 0o4640));
    assert_eq!((data.mtime(), data.mtime_nsec()), (1_700_000_000, 123_456_789));
    assert_eq!(fs::read(to.path().join("sub/data")).unwrap(), b"hello");
}
