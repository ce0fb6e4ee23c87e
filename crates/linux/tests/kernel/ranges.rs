//! Extents, sparse copies and shared blocks, on every supported file system.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use wharf_linux::{Extent, Files as _, FsType, Linux, PathBeneath};

use crate::bench::{ALL_FS_TYPES, Bench, MIB};

fn at<'a>(pool: &'a Path, name: &'a str) -> PathBeneath<'a> {
    PathBeneath::new(pool, Path::new(name))
}

fn write(path: &Path, offset: u64, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

/// Creates a file of 64 MiB with data at three offsets.
fn create_sparse_file(linux: &Linux, pool: &Path, name: &str) -> PathBuf {
    linux.set_size(&at(pool, name), 64 * MIB).unwrap();
    let path = pool.join(name);
    for (offset, byte) in [(0, 1), (10 * MIB, 2), (63 * MIB, 3)] {
        write(&path, offset, &vec![byte; 256 << 10]);
    }
    path
}

/// The extents as (offset, length), with adjacent extents merged.
fn merge_adjacent(extents: &[Extent]) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for extent in extents {
        match ranges.last_mut() {
            Some((offset, length)) if *offset + *length == extent.offset => *length += extent.length,
            _ => ranges.push((extent.offset, extent.length)),
        }
    }
    ranges
}

/// A mounted file system of each supported type, and a tmpfs.
fn pools(bench: &Bench) -> Vec<PathBuf> {
    let mut pools: Vec<_> = ALL_FS_TYPES
        .map(|fs| {
            let name = format!("pool-{fs}");
            let device = bench.device(&format!("{name}.img"), 320 * MIB);
            let uuid = crate::bench::new_uuid();
            let request = wharf_linux::MakeFsRequest { fs, uuid: &uuid, options: &[] };
            wharf_linux::Filesystems::make_fs(&bench.linux, &device, &request).unwrap();
            bench.mount(&device, fs.as_str(), &name)
        })
        .to_vec();
    pools.push(bench.mount_with("tmpfs", "tmpfs", "tmpfs", &[]));
    pools
}

#[test]
fn extents_cover_exactly_the_written_data() {
    let bench = Bench::new();
    for pool in pools(&bench) {
        let file = at(&pool, "file");
        assert!(bench.linux.extents(&file).is_err(), "missing");
        create_sparse_file(&bench.linux, &pool, "file");
        let expected = [(0, 256 << 10), (10 * MIB, 256 << 10), (63 * MIB, 256 << 10)];
        assert_eq!(merge_adjacent(&bench.linux.extents(&file).unwrap()), expected, "{}", pool.display());
        // Preallocated blocks read as zeroes and are not data.
        bench.linux.allocate(&file, 64 * MIB).unwrap();
        let allocated = merge_adjacent(&bench.linux.extents(&file).unwrap());
        if !pool.ends_with("tmpfs") {
            assert_eq!(allocated, expected, "{}", pool.display());
        }
        bench.linux.set_size(&at(&pool, "empty"), 0).unwrap();
        assert_eq!(bench.linux.extents(&at(&pool, "empty")).unwrap(), []);
        bench.linux.set_size(&at(&pool, "hole"), 100 * MIB).unwrap();
        assert_eq!(bench.linux.extents(&at(&pool, "hole")).unwrap(), []);
        // The last extent ends at the end of the file, even within a block.
        bench.linux.write_file(&at(&pool, "odd"), &[1; 10_000]).unwrap();
        assert_eq!(merge_adjacent(&bench.linux.extents(&at(&pool, "odd")).unwrap()), [(0, 10_000)]);
    }
}

#[test]
fn extents_beyond_one_fiemap_call_are_all_returned() {
    let bench = Bench::new();
    for pool in pools(&bench) {
        let file = at(&pool, "file");
        bench.linux.set_size(&file, 24 * MIB).unwrap();
        let path = pool.join("file");
        let expected: Vec<(u64, u64)> = (0..1500).map(|i| (i * 16384, 4096)).collect();
        let open = fs::OpenOptions::new().write(true).open(path).unwrap();
        for (offset, length) in &expected {
            open.write_all_at(&vec![9; *length as usize], *offset).unwrap();
        }
        assert_eq!(merge_adjacent(&bench.linux.extents(&file).unwrap()), expected, "{}", pool.display());
    }
}

#[test]
fn reflinked_blocks_share_an_address_until_one_side_is_written() {
    let bench = Bench::new();
    for pool in pools(&bench) {
        let (from, to) = (at(&pool, "from"), at(&pool, "to"));
        create_sparse_file(&bench.linux, &pool, "from");
        if !bench.linux.can_reflink(&pool).unwrap() {
            assert!(bench.linux.reflink(&from, &to).is_err());
            continue;
        }
        bench.linux.write_file(&to, &[9; 100_000]).unwrap();
        bench.linux.reflink(&from, &to).unwrap();
        assert!(fs::read(pool.join("from")).unwrap() == fs::read(pool.join("to")).unwrap());
        assert_eq!(bench.linux.stat(&to).unwrap().unwrap().size, 64 * MIB);
        let before = bench.linux.extents(&from).unwrap();
        assert_eq!(before, bench.linux.extents(&to).unwrap());
        assert!(before.iter().all(|extent| extent.physical.is_some()));

        write(&pool.join("to"), 10 * MIB, &[7; 4096]);
        let after = bench.linux.extents(&to).unwrap();
        assert_eq!(bench.linux.extents(&from).unwrap(), before);
        let address = |extents: &[Extent], at: u64| {
            let extent =
                extents.iter().find(|extent| (extent.offset..extent.offset + extent.length).contains(&at));
            extent.and_then(|extent| Some(extent.physical? + (at - extent.offset)))
        };
        assert_ne!(address(&before, 10 * MIB), address(&after, 10 * MIB));
        for same in [0, 4096, 10 * MIB + 4096, 63 * MIB] {
            assert_eq!(address(&before, same), address(&after, same), "{}", pool.display());
        }
        assert_eq!(fs::read(pool.join("from")).unwrap()[10 << 20], 2);
    }
}

#[test]
fn sparse_copy_is_equal_stays_sparse_and_is_repeatable() {
    let bench = Bench::new();
    let pools = pools(&bench);
    // Copies within each pool, and between pools of different types, where the kernel does not support copy_file_range.
    let last = pools.len() - 1;
    let pairs = (0..pools.len()).map(|i| (i, i)).chain([(0, last), (last, 0), (1, 2)]);
    for (from_pool, to_pool) in pairs {
        let (from_pool, to_pool) = (&pools[from_pool], &pools[to_pool]);
        let (from, to) = (at(from_pool, "source"), at(to_pool, "target"));
        let source = create_sparse_file(&bench.linux, from_pool, "source");
        bench.linux.set_size(&to, 32 * MIB).unwrap();
        assert!(bench.linux.copy_range(&from, &to, 0, 64 * MIB).is_err(), "the target is too small");
        bench.linux.set_size(&to, 64 * MIB).unwrap();
        let mut copied = 0;
        for part in 0..8 {
            copied += bench.linux.copy_range(&from, &to, part * 8 * MIB, 8 * MIB).unwrap();
        }
        assert_eq!(copied, 768 << 10);
        let target = to_pool.join("target");
        let equal = || fs::read(&source).unwrap() == fs::read(&target).unwrap();
        assert!(equal());
        // A repeated copy has the same result. A range beyond the end of the source copies nothing.
        assert_eq!(bench.linux.copy_range(&from, &to, 0, 64 * MIB).unwrap(), 768 << 10);
        assert_eq!(bench.linux.copy_range(&from, &to, 64 * MIB, 8 * MIB).unwrap(), 0);
        assert_eq!(bench.linux.copy_range(&from, &to, 0, u64::MAX).unwrap(), 768 << 10);
        assert!(equal());
        bench.linux.sync(&to).unwrap();
        assert!(bench.linux.stat(&to).unwrap().unwrap().allocated < 2 * MIB);
        // Only the requested range is written.
        bench.linux.write_file(&to, &[]).unwrap();
        bench.linux.set_size(&to, 64 * MIB).unwrap();
        assert_eq!(bench.linux.copy_range(&from, &to, 10 * MIB + 100, 1000).unwrap(), 1000);
        let content = fs::read(&target).unwrap();
        assert!(content[10 * MIB as usize + 100..][..1000].iter().all(|byte| *byte == 2));
        assert_eq!(content.iter().filter(|byte| **byte != 0).count(), 1000);
        bench.linux.remove_file(&to).unwrap();
    }
}

#[test]
fn writes_through_a_loop_device_appear_in_the_image_extents() {
    let bench = Bench::new();
    for fs in [FsType::Xfs, FsType::Btrfs] {
        let pool = bench.pool(fs);
        let image = at(&pool, "image");
        bench.linux.set_size(&image, 8 * MIB).unwrap();
        let options = wharf_linux::LoopOptions::default();
        let device = wharf_linux::BlockDevices::loop_attach(&bench.linux, &image, &options).unwrap().path;
        bench.detach_on_drop(&device);
        let open = fs::OpenOptions::new().write(true).open(&device).unwrap();
        open.write_all_at(&vec![5; 128 << 10], 4 * MIB).unwrap();
        open.sync_all().unwrap();
        assert_eq!(merge_adjacent(&bench.linux.extents(&image).unwrap()), [(4 * MIB, 128 << 10)], "{fs}");
    }
}
