//! Expansion at the next stage and while in use.

use std::path::PathBuf;
use std::process::Command;

use tonic::{Code, Status};
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_driver::backend::FormatState;
use wharf_linux::{Filesystems as _, FsType, Linux};

use crate::support::{Bench, MIB, block, mount, text};

async fn expand(bench: &Bench, id: &str, path: PathBuf, required: u64) -> Result<u64, Status> {
    let request = v1::NodeExpandVolumeRequest {
        volume_id: id.into(),
        volume_path: text(&path),
        capacity_range: Some(v1::CapacityRange { required_bytes: required as i64, limit_bytes: 0 }),
        ..Default::default()
    };
    Ok(bench.call(request).await?.capacity_bytes as u64)
}

fn total(bench: &Bench, id: &str) -> u64 {
    Linux::new().usage(&bench.staging(id)).unwrap().total_bytes
}

#[tokio::test]
async fn volume_expanded_while_unstaged_grows_at_the_next_stage() {
    let bench = Bench::new().await;
    for (fs, small, large) in
        [("ext4", 64 * MIB, 256 * MIB), ("xfs", 300 * MIB, 600 * MIB), ("btrfs", 128 * MIB, 256 * MIB)]
    {
        bench.images.create(fs, small, FormatState::Blank);
        bench.stage(fs, &mount(fs)).await.unwrap();
        std::fs::write(bench.staging(fs).join("file"), fs).unwrap();
        let before = total(&bench, fs);
        bench.unstage(fs).await.unwrap();
        bench.images.grow(fs, large);
        bench.stage(fs, &mount(fs)).await.unwrap();
        let after = total(&bench, fs);
        assert!(after > before + (large - small) * 9 / 10, "{fs}: {before} -> {after}");
        assert_eq!(std::fs::read_to_string(bench.staging(fs).join("file")).unwrap(), fs);
        // There is nothing left to grow, so this succeeds even where ext4 cannot grow while mounted.
        assert_eq!(expand(&bench, fs, bench.staging(fs), large).await.unwrap(), large);
    }
}

/// As after a power cut: damage that `e2fsck -p` does not repair, in a volume that was expanded.
#[tokio::test]
async fn only_a_recorded_offline_growth_permits_a_repair() {
    let bench = Bench::new().await;
    for (id, state, growing) in
        [("marked", 0, false), ("marked-error", 3, false), ("clean", 1, false), ("growing", 3, true)]
    {
        bench.images.create(id, 64 * MIB, FormatState::Blank);
        bench.stage(id, &mount("ext4")).await.unwrap();
        std::fs::write(bench.staging(id).join("file"), "kept").unwrap();
        bench.unstage(id).await.unwrap();
        let image = bench.images.image(id);
        for request in [
            "set_inode_field <7> block[DIND] 4294967295",
            &format!("set_super_value state {state}"),
            "set_super_value error_count 0",
        ] {
            let done = Command::new("debugfs").args(["-w", "-R", request]).arg(&image).status().unwrap();
            assert!(done.success());
        }
        bench.images.grow(id, 256 * MIB);
        bench.images.change(id, |entry| entry.growing_offline = growing);
        // A retry has the same result: no check of ours may create evidence.
        for _ in 0..2 {
            let staged = bench.stage(id, &mount("ext4")).await;
            if growing {
                staged.unwrap();
                assert_eq!(std::fs::read_to_string(bench.staging(id).join("file")).unwrap(), "kept");
            } else if state != 1 || Linux::new().can_grow_online(FsType::Ext4).is_err() {
                let refused = staged.unwrap_err();
                assert_eq!(refused.code(), Code::FailedPrecondition, "{id}: {refused}");
                assert!(refused.message().contains("damaged"), "{id}: {refused}");
            }
            assert!(!bench.images.is_recorded_as_growing(id), "{id}");
        }
    }
}

/// A raw volume's content belongs to the user, so later damage can be theirs.
#[tokio::test]
async fn raw_use_ends_a_recorded_growth() {
    let bench = Bench::new().await;
    bench.images.create("v", 32 * MIB, FormatState::Blank);
    bench.images.change("v", |entry| entry.growing_offline = true);
    bench.stage("v", &block(Mode::SingleNodeWriter)).await.unwrap();
    assert!(!bench.images.is_recorded_as_growing("v"));
}

#[tokio::test]
async fn volume_in_use_grows_if_the_kernel_allows_it() {
    let bench = Bench::new().await;
    for (fs, small, large) in [
        (FsType::Ext4, 64 * MIB, 256 * MIB),
        (FsType::Xfs, 300 * MIB, 600 * MIB),
        (FsType::Btrfs, 128 * MIB, 256 * MIB),
    ] {
        let id = fs.as_str();
        bench.images.create(id, small, FormatState::Blank);
        bench.stage(id, &mount(id)).await.unwrap();
        bench.publish(id, id, &mount(id), false).await.unwrap();
        let before = total(&bench, id);
        bench.images.grow(id, large);
        let result = expand(&bench, id, bench.target(id), large).await;
        if Linux::new().can_grow_online(fs).is_ok() {
            assert_eq!(result.unwrap(), large, "{fs}");
        } else {
            let status = result.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("next staged"), "{status}");
            assert_eq!(total(&bench, id), before);
            bench.unpublish(id, id).await.unwrap();
            bench.unstage(id).await.unwrap();
            bench.stage(id, &mount(id)).await.unwrap();
        }
        assert!(total(&bench, id) > before + (large - small) * 9 / 10, "{fs}");
        assert_eq!(expand(&bench, id, bench.staging(id), large).await.unwrap(), large, "{fs}: again");
    }
}

#[tokio::test]
async fn raw_volume_has_its_new_size() {
    let bench = Bench::new().await;
    bench.images.create("v", 32 * MIB, FormatState::Blank);
    let writer = block(Mode::SingleNodeWriter);
    bench.stage("v", &writer).await.unwrap();
    bench.publish("v", "a", &writer, false).await.unwrap();
    bench.images.grow("v", 48 * MIB);
    assert_eq!(expand(&bench, "v", bench.target("a"), 48 * MIB).await.unwrap(), 48 * MIB);
    assert_eq!(bench.stats("v", &bench.target("a")).await.unwrap()[0].total, 48 * MIB as i64);
}

#[tokio::test]
async fn invalid_expansions_are_rejected() {
    let bench = Bench::new().await;
    bench.images.create("v", 32 * MIB, FormatState::Blank);
    let code = async |id: &str, path: PathBuf, size| expand(&bench, id, path, size).await.unwrap_err().code();
    assert_eq!(code("v", bench.staging("v"), 0).await, Code::NotFound, "not staged");
    bench.stage("v", &mount("ext4")).await.unwrap();
    assert_eq!(code("none", "some/path".into(), 0).await, Code::NotFound);
    assert_eq!(code("v", "some/path".into(), 0).await, Code::NotFound);
    assert_eq!(code("v", bench.target("a"), 0).await, Code::NotFound);
    assert_eq!(code("v", "".into(), 0).await, Code::InvalidArgument);
    assert_eq!(code("", bench.staging("v"), 0).await, Code::InvalidArgument);
    assert_eq!(code("v", bench.staging("v"), 64 * MIB).await, Code::OutOfRange);
    assert_eq!(code("v", bench.staging("v"), u64::MAX).await, Code::InvalidArgument, "-1");
}

#[tokio::test]
async fn expansion_has_a_limit_and_its_paths() {
    let bench = Bench::new().await;
    bench.images.create("v", 32 * MIB, FormatState::Blank);
    bench.stage("v", &mount("ext4")).await.unwrap();
    let with_limit = |limit: u64| v1::NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: text(&bench.staging("v")),
        staging_target_path: text(&bench.staging("v")),
        capacity_range: Some(v1::CapacityRange { required_bytes: 0, limit_bytes: limit as i64 }),
        ..Default::default()
    };
    assert_eq!(bench.call(with_limit(32 * MIB)).await.unwrap().capacity_bytes as u64, 32 * MIB);
    let refreshed = bench.images.refreshed.lock().unwrap().take().unwrap();
    assert_eq!(refreshed.limit, Some(32 * MIB));
    assert_eq!(refreshed.volume_path, Some(bench.staging("v")));
    assert_eq!(refreshed.staging_path, Some(bench.staging("v")));
    assert_eq!(bench.call(with_limit(32 * MIB - 1)).await.unwrap_err().code(), Code::OutOfRange);
    let relative = v1::NodeExpandVolumeRequest { staging_target_path: "x".into(), ..with_limit(0) };
    assert_eq!(bench.call(relative).await.unwrap_err().code(), Code::InvalidArgument);
}
