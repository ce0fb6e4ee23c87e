//! Data guarantees of the local pool, on the real kernel and through the CSI services: contents, sizes, restored
//! and cloned volumes, snapshots under load, groups, changed blocks, expansion.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Code;
use wharf_csi::v1::*;
use wharf_linux::FsType;
use wharf_testkit::{DriverOptions, MIB, Orchestrator, TestPool, check_image};

const DRIVER: &str = env!("CARGO_BIN_EXE_test-driver");
const FILE_SYSTEMS: [FsType; 3] = [FsType::Ext4, FsType::Xfs, FsType::Btrfs];

/// A pool, a driver on it and a work directory. All are removed at the end, whether the test passes or fails.
struct Bench {
    co: Orchestrator,
    pool: TestPool,
    _work: tempfile::TempDir,
}

fn bench(pool_fs: FsType) -> Bench {
    let pool = TestPool::new(pool_fs, 8 << 30);
    let work = tempfile::tempdir().unwrap();
    let co = Orchestrator::start(Path::new(DRIVER), pool.path(), work.path(), &DriverOptions::default());
    Bench { co, pool, _work: work }
}

/// A size that the file system accepts, also doubled, and that is fast to format.
fn size_for(fs: FsType) -> u64 {
    fs.minimum_size().max(fs.minimum_grown_size() / 2).max(32 * MIB)
}

fn fill(path: &Path, seed: u8, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    let mut file = File::create(path).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
}

fn same(a: &Path, b: &Path) -> bool {
    fs::read(a).unwrap() == fs::read(b).unwrap()
}

#[tokio::test]
async fn source_restored_and_cloned_volumes_mount_together() {
    for pool_fs in [FsType::Xfs, FsType::Btrfs] {
        let mut b = bench(pool_fs);
        for fs in FILE_SYSTEMS {
            let (size, fs) = (size_for(fs), fs.as_str());
            let (source, at) = b.co.create_and_mount(&format!("{fs}-source"), size, fs, None).await;
            fill(&at.join("kept"), 1, 300_000);
            let snapshot = b.co.snapshot(&format!("{fs}-snapshot"), &source).await;
            fill(&at.join("later"), 2, 1000);
            let (restored, restored_at) =
                b.co.create_and_mount(&format!("{fs}-restored"), size * 2, fs, Some(&snapshot)).await;
            let (clone, clone_at) =
                b.co.create_and_mount(&format!("{fs}-clone"), size, fs, Some(&source)).await;

            assert!(same(&at.join("kept"), &restored_at.join("kept")), "{fs} on {pool_fs}");
            assert!(!restored_at.join("later").exists(), "{fs} on {pool_fs}: the snapshot was taken before");
            assert!(same(&at.join("later"), &clone_at.join("later")), "{fs} on {pool_fs}");
            // A file system restored into a larger volume fills it.
            let (small, large) = (total_bytes(&at), total_bytes(&restored_at));
            assert!(large > small + size / 2, "{fs} on {pool_fs}: {small} and {large} bytes");
            for (i, place) in [&at, &restored_at, &clone_at].into_iter().enumerate() {
                fill(&place.join("own"), i as u8, 500_000);
            }
            assert!(!same(&at.join("own"), &clone_at.join("own")));
            for id in [&source, &restored, &clone] {
                b.co.unmount_and_delete(id).await;
            }
            b.co.delete_snapshot(&snapshot).await;
        }
    }
}

#[tokio::test]
async fn pool_without_reflink_copies_only_unused_volumes() {
    let mut b = bench(FsType::Ext4);
    for fs in FILE_SYSTEMS {
        let (size, fs) = (size_for(fs), fs.as_str());
        let (source, at) = b.co.create_and_mount(&format!("{fs}-source"), size, fs, None).await;
        fill(&at.join("kept"), 1, 300_000);
        let request = CreateSnapshotRequest {
            name: format!("{fs}-snapshot"),
            source_volume_id: source.clone(),
            ..Default::default()
        };
        let refused = b.co.client().controller().create_snapshot(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");

        b.co.unpublish(&source, "pod").await;
        b.co.unstage(&source).await;
        let snapshot = b.co.snapshot(&format!("{fs}-snapshot"), &source).await;
        let (restored, restored_at) =
            b.co.create_and_mount(&format!("{fs}-restored"), size, fs, Some(&snapshot)).await;
        b.co.stage(&source, fs).await;
        let at = b.co.publish(&source, fs, "pod").await;
        assert!(same(&at.join("kept"), &restored_at.join("kept")), "{fs}");
        b.co.unmount_and_delete(&source).await;
        b.co.unmount_and_delete(&restored).await;
        b.co.delete_snapshot(&snapshot).await;
    }
}

#[tokio::test]
async fn volume_rejects_writes_beyond_its_size() {
    let mut b = bench(FsType::Xfs);
    for fs in FILE_SYSTEMS {
        let (id, at) = b.co.create_and_mount(fs.as_str(), size_for(fs), fs.as_str(), None).await;
        let mut file = File::create(at.join("big")).unwrap();
        let (chunk, mut written) = (vec![1; MIB as usize], 0);
        let error = loop {
            assert!(written <= size_for(fs), "{fs}: the volume holds more than its size");
            match file.write_all(&chunk).and_then(|()| file.sync_data()) {
                Ok(()) => written += MIB,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{fs}");
        drop(file);
        b.co.unmount_and_delete(&id).await;
    }
    let id = b.co.create("raw", 8 * MIB, "", None).await;
    b.co.stage(&id, "").await;
    let device = b.co.publish(&id, "", "pod").await;
    let mut file = File::options().write(true).open(device).unwrap();
    assert_eq!(file.seek(SeekFrom::End(0)).unwrap(), 8 * MIB);
    drop(file);
    b.co.unmount_and_delete(&id).await;
}

#[tokio::test]
async fn online_expansion_works_where_kernel_supports_it() {
    let mut b = bench(FsType::Xfs);
    for fs in FILE_SYSTEMS {
        let (size, name) = (size_for(fs), fs.as_str());
        let (id, at) = b.co.create_and_mount(name, size, name, None).await;
        fill(&at.join("kept"), 3, 100_000);
        let before = total_bytes(&at);
        assert!(b.co.expand(&id, size * 2).await);
        let request = b.co.node_expand_request(&id, name, size * 2);
        let response = b.co.client().node().node_expand_volume(request).await;
        match wharf_linux::Filesystems::can_grow_online(&wharf_linux::Linux::new(), fs) {
            Ok(()) => assert_eq!(response.unwrap().into_inner().capacity_bytes as u64, size * 2, "{fs}"),
            Err(_) => {
                let refused = response.unwrap_err();
                assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
                assert!(
                    refused.message().contains("next"),
                    "the error must say when the expansion happens: {refused}"
                );
                b.co.unpublish(&id, "pod").await;
                b.co.unstage(&id).await;
                b.co.stage(&id, name).await;
                b.co.publish(&id, name, "pod").await;
            }
        }
        assert!(total_bytes(&at) > before + size / 2, "{fs}: {before} bytes, then {}", total_bytes(&at));
        assert_eq!(fs::metadata(at.join("kept")).unwrap().len(), 100_000);
        b.co.unmount_and_delete(&id).await;
    }
}

#[tokio::test]
async fn changed_blocks_match_written_blocks() {
    for pool_fs in [FsType::Xfs, FsType::Btrfs] {
        let mut b = bench(pool_fs);
        let id = b.co.create("raw", 64 * MIB, "", None).await;
        b.co.stage(&id, "").await;
        let device = b.co.publish(&id, "", "pod").await;
        let first = [(0, 8192), (MIB, 65536), (63 * MIB, 4096)];
        let second = [(4096, 4096), (MIB + 4096, 8192), (20 * MIB, 1 << 20)];
        write_blocks(&device, &first, 1);
        let base = b.co.snapshot("base", &id).await;
        write_blocks(&device, &second, 2);
        let target = b.co.snapshot("target", &id).await;
        write_blocks(&device, &[(30 * MIB, 4096)], 3);

        assert_eq!(allocated(&b.co, &base, 0).await, blocks(&first), "{pool_fs}");
        assert_eq!(changed(&b.co, &base, &target, 0).await, blocks(&second), "{pool_fs}");
        assert_eq!(changed(&b.co, &base, &target, 2 * MIB).await, blocks(&second[2..]), "{pool_fs}");
        assert!(changed(&b.co, &target, &target, 0).await.is_empty());

        // The changed blocks are complete: base plus changed blocks gives the target.
        let restored = b.co.create("restored", 64 * MIB, "", Some(&base)).await;
        b.co.stage(&restored, "").await;
        let copy = b.co.publish(&restored, "", "pod").await;
        let whole = b.co.create("whole", 64 * MIB, "", Some(&target)).await;
        b.co.stage(&whole, "").await;
        let whole_device = b.co.publish(&whole, "", "pod").await;
        let (from, to) =
            (File::open(&whole_device).unwrap(), File::options().write(true).open(&copy).unwrap());
        for (offset, length) in second {
            let mut buffer = vec![0; length as usize];
            from.read_exact_at(&mut buffer, offset).unwrap();
            to.write_all_at(&buffer, offset).unwrap();
        }
        to.sync_all().unwrap();
        assert!(contents(&copy) == contents(&whole_device), "{pool_fs}: bit by bit");
        drop((from, to));
        for id in [&id, &restored, &whole] {
            b.co.unmount_and_delete(id).await;
        }
        b.co.delete_snapshot(&base).await;
        b.co.delete_snapshot(&target).await;
    }
}

#[tokio::test]
async fn snapshot_under_load_is_clean() {
    let mut b = bench(FsType::Xfs);
    for fs in FILE_SYSTEMS {
        let (size, name) = (size_for(fs).max(128 * MIB), fs.as_str());
        let (id, at) = b.co.create_and_mount(name, size, name, None).await;
        let load = Load::start(vec![at.clone()]);
        for round in 0..3 {
            let snapshot = b.co.snapshot(&format!("{name}-{round}"), &id).await;
            // A frozen xfs leaves its log open on purpose, and xfs_repair refuses it until a mount has replayed the
            // log. So the check runs on a volume restored from the snapshot, after its first stage.
            let restored =
                b.co.create(&format!("{name}-restored-{round}"), size, name, Some(&snapshot)).await;
            let (place, id_of_image) = match fs {
                FsType::Xfs => ("volumes", &restored),
                FsType::Ext4 | FsType::Btrfs => ("snapshots", &snapshot),
            };
            b.co.stage(&restored, name).await;
            b.co.unstage(&restored).await;
            check_image(fs, &b.pool.path().join(place).join(id_of_image).join("image"));
            b.co.delete(&restored).await;
            b.co.delete_snapshot(&snapshot).await;
        }
        load.stop();
        b.co.unmount_and_delete(&id).await;
    }
}

#[tokio::test]
async fn group_snapshot_members_are_consistent() {
    let mut b = bench(FsType::Xfs);
    let (first, first_at) = b.co.create_and_mount("first", 32 * MIB, "ext4", None).await;
    let (second, second_at) = b.co.create_and_mount("second", 32 * MIB, "ext4", None).await;
    // Writes increasing numbers, each into the first volume and then into the second: at any moment they are equal,
    // or the first is one ahead.
    let load = Load::start(vec![first_at, second_at]);
    for round in 0..4 {
        let request = CreateVolumeGroupSnapshotRequest {
            name: format!("group-{round}"),
            source_volume_ids: vec![first.clone(), second.clone()],
            ..Default::default()
        };
        std::thread::sleep(std::time::Duration::from_millis(50));
        let group = b.co.client().group_controller().create_volume_group_snapshot(request).await.unwrap();
        let group = group.into_inner().group_snapshot.unwrap();
        assert!(group.ready_to_use && group.snapshots.len() == 2);
        let mut counts = Vec::new();
        for (i, source) in [&first, &second].into_iter().enumerate() {
            let member = group.snapshots.iter().find(|s| &s.source_volume_id == source).unwrap();
            assert_eq!(member.group_snapshot_id, group.group_snapshot_id);
            let name = format!("restored-{round}-{i}");
            let (restored, at) =
                b.co.create_and_mount(&name, 32 * MIB, "ext4", Some(&member.snapshot_id)).await;
            counts.push(fs::read_to_string(at.join("count")).unwrap().trim().parse::<u64>().unwrap());
            b.co.unmount_and_delete(&restored).await;
        }
        assert!(counts[0] == counts[1] || counts[0] == counts[1] + 1, "round {round}: {counts:?}");
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.group_snapshot_id.clone(),
            snapshot_ids: group.snapshots.iter().map(|s| s.snapshot_id.clone()).collect(),
            ..Default::default()
        };
        b.co.client().group_controller().delete_volume_group_snapshot(request).await.unwrap();
    }
    load.stop();
    b.co.unmount_and_delete(&first).await;
    b.co.unmount_and_delete(&second).await;
    assert!(b.co.listed().await.is_empty());
}

/// Writers that run until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Load {
    fn start(places: Vec<PathBuf>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let write_count = |place: &Path, count: u64| {
            let (new, file) = (place.join("count.new"), place.join("count"));
            let mut out = File::create(&new).unwrap();
            out.write_all(count.to_string().as_bytes()).unwrap();
            out.sync_all().unwrap();
            fs::rename(new, file).unwrap();
            File::open(place).unwrap().sync_all().unwrap();
        };
        places.iter().for_each(|place| write_count(place, 0));
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while !stopping.load(Ordering::Relaxed) {
                count += 1;
                for place in &places {
                    fs::write(place.join(format!("junk-{}", count % 50)), vec![count as u8; 20_000]).unwrap();
                    write_count(place, count);
                }
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn total_bytes(path: &Path) -> u64 {
    wharf_linux::Filesystems::usage(&wharf_linux::Linux::new(), path).unwrap().total_bytes
}

fn write_blocks(device: &Path, ranges: &[(u64, u64)], byte: u8) {
    let file = File::options().write(true).open(device).unwrap();
    for (offset, length) in ranges {
        file.write_all_at(&vec![byte; *length as usize], *offset).unwrap();
    }
    file.sync_all().unwrap();
}

fn contents(device: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(device).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

/// Ranges as a list of 4 KiB blocks, so that it does not matter how they are split.
fn blocks(ranges: &[(u64, u64)]) -> Vec<u64> {
    ranges.iter().flat_map(|(offset, length)| (offset / 4096)..((offset + length) / 4096)).collect()
}

fn blocks_of(metadata: Vec<BlockMetadata>) -> Vec<u64> {
    blocks(&metadata.iter().map(|m| (m.byte_offset as u64, m.size_bytes as u64)).collect::<Vec<_>>())
}

async fn allocated(co: &Orchestrator, snapshot: &str, from: u64) -> Vec<u64> {
    let request = GetMetadataAllocatedRequest {
        snapshot_id: snapshot.to_owned(),
        starting_offset: from as i64,
        max_results: 2,
        ..Default::default()
    };
    let mut stream =
        co.client().snapshot_metadata().get_metadata_allocated(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(page) = stream.message().await.unwrap() {
        assert!(page.block_metadata.len() <= 2 && page.volume_capacity_bytes as u64 == 64 * MIB);
        all.extend(page.block_metadata);
    }
    blocks_of(all)
}

async fn changed(co: &Orchestrator, base: &str, target: &str, from: u64) -> Vec<u64> {
    let request = GetMetadataDeltaRequest {
        base_snapshot_id: base.to_owned(),
        target_snapshot_id: target.to_owned(),
        starting_offset: from as i64,
        max_results: 2,
        ..Default::default()
    };
    let mut stream = co.client().snapshot_metadata().get_metadata_delta(request).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(page) = stream.message().await.unwrap() {
        all.extend(page.block_metadata);
    }
    blocks_of(all)
}
