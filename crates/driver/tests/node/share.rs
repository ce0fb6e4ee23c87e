//! Shares: a mount source instead of a device.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tonic::Code;
use wharf_csi::v1;
use wharf_csi::v1::volume_capability::{AccessType, access_mode::Mode};
use wharf_driver::backend::{DeviceError, MountAccess, MountSource, NodeVolume, Shares, VolumeAccess};

use crate::support::{Bench, MIB, block, mount, mount_with, refused, run, text};

/// `memory-…` is a separate tmpfs, `directory` is a bound directory.
struct Backend(PathBuf);

#[async_trait]
impl Shares for Backend {
    async fn source(&self, volume: &NodeVolume) -> Result<MountSource, DeviceError> {
        match volume.id.as_str() {
            id if id.starts_with("memory-") => {
                let mut options = vec!["size=1m".to_owned()];
                if let VolumeAccess::Mount(MountAccess { mount_group: Some(group), .. }) =
                    &volume.capability.access
                {
                    options.extend([format!("gid={group}"), "mode=2770".to_owned()]);
                }
                Ok(MountSource { source: id.to_owned(), fs_type: "tmpfs".into(), options })
            }
            "directory" => {
                Ok(MountSource { source: text(&self.0), fs_type: String::new(), options: Vec::new() })
            }
            id => Err(DeviceError::NotFound(format!("no share {id}"))),
        }
    }

    fn mount_group(&self) -> bool {
        true
    }
}

async fn bench() -> (Bench, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("file"), "shared").unwrap();
    let backend = Backend(directory.path().canonicalize().unwrap());
    (Bench::with_shares(Arc::new(backend)).await, directory)
}

#[tokio::test]
async fn share_is_staged_published_unpublished_and_unstaged() {
    let (mut bench, _directory) = bench().await;
    for id in ["memory-1", "directory"] {
        refused(bench.publish(id, id, &mount(""), false).await, Code::FailedPrecondition, "not staged");
        for _ in 0..2 {
            bench.stage(id, &mount("")).await.unwrap();
            bench.publish(id, id, &mount(""), false).await.unwrap();
        }
        refused(bench.publish(id, id, &mount(""), true).await, Code::AlreadyExists, "read-only");
        std::fs::write(bench.target(id).join("new"), "x").unwrap();
        let read_only = format!("{id}-ro");
        bench.publish(id, &read_only, &mount(""), true).await.unwrap();
        assert!(std::fs::write(bench.target(&read_only).join("new"), "y").is_err());
        bench.restart().await;
        bench.publish(id, id, &mount(""), false).await.unwrap();
        assert!(bench.stats(id, &bench.target(id)).await.unwrap()[0].total > 0);
        for target in [id, read_only.as_str(), id] {
            bench.unpublish(id, target).await.unwrap();
            assert!(!bench.target(target).exists());
        }
        for _ in 0..2 {
            bench.unstage(id).await.unwrap();
        }
        assert_eq!(bench.mount_at(&bench.staging(id)), None);
    }
}

#[tokio::test]
async fn share_applies_options_size_and_access_modes() {
    let (bench, _directory) = bench().await;
    bench.stage("memory-1", &mount_with("", &["noexec"], Mode::SingleNodeSingleWriter)).await.unwrap();
    assert!(bench.mount_at(&bench.staging("memory-1")).unwrap().options.contains(&"noexec".to_owned()));
    assert!(std::fs::write(bench.staging("memory-1").join("large"), vec![1; 2 * MIB as usize]).is_err());

    let one_pod = mount_with("", &[], Mode::SingleNodeSingleWriter);
    bench.publish("memory-1", "a", &one_pod, false).await.unwrap();
    refused(bench.publish("memory-1", "b", &one_pod, false).await, Code::FailedPrecondition, "one pod");

    let reader = mount_with("", &[], Mode::MultiNodeReaderOnly);
    bench.stage("directory", &reader).await.unwrap();
    bench.publish("directory", "d", &reader, false).await.unwrap();
    assert_eq!(std::fs::read_to_string(bench.target("d").join("file")).unwrap(), "shared");
    assert!(std::fs::write(bench.target("d").join("file"), "").is_err());
}

#[tokio::test]
async fn share_refuses_unsupported_requests() {
    let (bench, _directory) = bench().await;
    refused(bench.stage("none", &mount("")).await, Code::NotFound, "none");
    refused(bench.stage("memory-1", &block(Mode::SingleNodeWriter)).await, Code::InvalidArgument, "raw");
    let options = mount_with("", &["noexec"], Mode::SingleNodeWriter);
    refused(bench.stage("directory", &options).await, Code::InvalidArgument, "bound");
    std::fs::create_dir(bench.staging("memory-1")).unwrap();
    run("mount", &["-t", "tmpfs", "foreign", &text(&bench.staging("memory-1"))]);
    refused(bench.stage("memory-1", &mount("")).await, Code::FailedPrecondition, "foreign");
    refused(bench.publish("memory-1", "a", &mount(""), false).await, Code::FailedPrecondition, "foreign");
    let path = bench.target("a");
    assert_eq!(bench.stats("memory-1", &path).await.unwrap_err().code(), Code::NotFound);
    let expand = v1::NodeExpandVolumeRequest {
        volume_id: "memory-1".into(),
        volume_path: text(&bench.staging("memory-1")),
        ..Default::default()
    };
    assert_eq!(bench.call(expand).await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn mount_group_owns_the_share() {
    use std::os::unix::fs::MetadataExt as _;

    let (bench, _directory) = bench().await;
    let capabilities = bench.call(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
    let declared = format!("{capabilities:?}");
    assert!(declared.contains("VolumeMountGroup"), "{declared}");
    let of = |group: &str| {
        let mut capability = mount("");
        if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
            mount.volume_mount_group = group.to_owned();
        }
        capability
    };
    for _ in 0..2 {
        bench.stage("memory-1", &of("1000")).await.unwrap();
        bench.publish("memory-1", "a", &of("1000"), false).await.unwrap();
    }
    assert_eq!(bench.target("a").metadata().unwrap().gid(), 1000);
    refused(bench.stage("memory-1", &of("7")).await, Code::AlreadyExists, "for group 1000");
    let other_pod = bench.publish("memory-1", "b", &of("7"), false).await;
    refused(other_pod, Code::FailedPrecondition, "for group 1000");
    refused(bench.stage("memory-2", &of("staff")).await, Code::InvalidArgument, "volume_mount_group");

    let mut with_option = of("1000");
    if let Some(AccessType::Mount(mount)) = &mut with_option.access_type {
        mount.mount_flags = vec!["gid=5".to_owned()];
    }
    refused(bench.stage("memory-2", &with_option).await, Code::InvalidArgument, "mount_flags");
    assert_eq!(bench.mount_at(&bench.staging("memory-2")), None);

    // A tmpfs shows no gid= for group 0.
    for _ in 0..2 {
        bench.stage("memory-3", &of("0")).await.unwrap();
        bench.publish("memory-3", "c", &of("0"), false).await.unwrap();
    }
    let other_pod = bench.publish("memory-3", "d", &of("7"), false).await;
    refused(other_pod, Code::FailedPrecondition, "for group 0");
}
