//! fsGroup: whether a volume's files are to belong to the pod's group, and making it so.

use std::time::Duration;

use wharf_model::AccessMode;
use wharf_model::csidriver::FsGroupPolicy;

use super::view::Driver;
use super::world::{Mode, Source, Want};
use crate::plugins::NodeCapabilities;

pub(super) mod walk;

/// When the user is first told that it takes long, and how often afterwards.
pub(super) const FIRST_REPORT: Duration = Duration::from_secs(30);
pub(super) const REPORT_AGAIN: Duration = Duration::from_secs(60);

/// The group that the pod's volumes get.
pub(super) fn group(want: &Want) -> Option<i64> {
    want.pod.spec.security_context.as_ref().and_then(|context| context.fs_group)
}

/// Whether files are left alone where their root is as it should be.
pub(super) fn on_root_mismatch(want: &Want) -> bool {
    let context = want.pod.spec.security_context.as_ref();
    context.is_some_and(|context| context.fs_group_change_policy == "OnRootMismatch")
}

/// Whether we change the files: there is a group, the driver does not do it itself, and the policy allows it.
pub(super) fn is_ours(driver: Driver<'_>, can: &NodeCapabilities, mode: Mode, want: &Want) -> bool {
    mode == Mode::Filesystem
        && group(want).is_some()
        && !can.volume_mount_group
        && allowed(driver.fs_group_policy(), want)
}

/// The policy's word.
fn allowed(policy: FsGroupPolicy, want: &Want) -> bool {
    if want.read_only {
        return false;
    }
    match policy {
        FsGroupPolicy::None => false,
        FsGroupPolicy::File => true,
        FsGroupPolicy::ReadWriteOnceWithFSType | FsGroupPolicy::Unknown => match &want.source {
            Source::Inline(inline) => !inline.fs_type.is_empty(),
            Source::Persistent { volume, .. } => {
                let single = |mode: &AccessMode| {
                    matches!(mode, AccessMode::ReadWriteOnce | AccessMode::ReadWriteOncePod)
                };
                volume.spec.csi.as_ref().is_some_and(|csi| !csi.fs_type.is_empty())
                    && volume.spec.access_modes.iter().any(single)
            }
        },
    }
}

/// What users are told while it takes long.
pub(super) fn report(path: &str, pod: &str, files: Option<u64>) -> String {
    let at = path.find(pod).map_or(path, |start| &path[start..]);
    match files {
        None => format!(
            "Setting volume ownership for {at} is taking longer than expected, consider using OnRootMismatch - \
             https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
             #configure-volume-permission-and-ownership-change-policy-for-pods"
        ),
        Some(files) => format!("Setting volume ownership for {at}, processed {files} files."),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use wharf_model::CSIDriver;
    use wharf_model::whole::Pod;

    use super::*;

    fn want(group: Option<i64>, read_only: bool, fs_type: &str, modes: &[&str]) -> Want {
        let pod = json!({"spec": {"securityContext": {"fsGroup": group}}});
        let volume = json!({"spec": {
            "accessModes": modes, "csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type},
        }});
        Want {
            pod: Arc::new(serde_json::from_value::<Pod>(pod).unwrap()),
            names: ["v".to_owned()].into(),
            source: Source::Persistent {
                volume: Arc::new(serde_json::from_value(volume).unwrap()),
                claim: Arc::default(),
            },
            read_only,
            se_linux: None,
        }
    }

    fn inline(fs_type: &str) -> Want {
        let source: Value = json!({"driver": "d", "fsType": fs_type});
        Want {
            source: Source::Inline(serde_json::from_value(source).unwrap()),
            ..want(Some(1), false, "", &[])
        }
    }

    /// kubernetes.md 1.8 "fsGroup": upstream's matrix (Test_csiMountMgr_supportsFSGroup).
    #[test]
    fn matrix() {
        let (default, file, none) =
            (FsGroupPolicy::ReadWriteOnceWithFSType, FsGroupPolicy::File, FsGroupPolicy::None);
        let rwo = &["ReadWriteOnce"][..];
        for (name, policy, want, expected) in [
            ("no group", default, want(None, false, "ext4", rwo), false),
            ("no group, File", file, want(None, false, "ext4", rwo), false),
            ("one writer and a file system", default, want(Some(1), false, "ext4", rwo), true),
            ("one pod", default, want(Some(1), false, "ext4", &["ReadWriteOncePod"]), true),
            (
                "one of several modes",
                default,
                want(Some(1), false, "ext4", &["ReadOnlyMany", "ReadWriteOnce"]),
                true,
            ),
            ("no file system", default, want(Some(1), false, "", rwo), false),
            ("no modes", default, want(Some(1), false, "ext4", &[]), false),
            ("many writers", default, want(Some(1), false, "ext4", &["ReadWriteMany"]), false),
            ("many readers", default, want(Some(1), false, "ext4", &["ReadOnlyMany"]), false),
            ("read-only", default, want(Some(1), true, "ext4", rwo), false),
            ("File, many writers, no file system", file, want(Some(1), false, "", &["ReadWriteMany"]), true),
            ("File, read-only", file, want(Some(1), true, "ext4", rwo), false),
            ("None", none, want(Some(1), false, "ext4", rwo), false),
            ("a word we do not know", FsGroupPolicy::Unknown, want(Some(1), false, "ext4", rwo), true),
            ("inline with a file system", default, inline("ext4"), true),
            ("inline without", default, inline(""), false),
            ("inline, File", file, inline(""), true),
        ] {
            let said = CSIDriver {
                spec: wharf_model::csidriver::CSIDriverSpec {
                    fs_group_policy: Some(policy),
                    ..Default::default()
                },
                ..CSIDriver::default()
            };
            let can = NodeCapabilities::default();
            assert_eq!(is_ours(Driver::Said(&said), &can, Mode::Filesystem, &want), expected, "{name}");
            assert!(!is_ours(Driver::Said(&said), &can, Mode::Block, &want), "{name}: a device has no files");
            let does_it = NodeCapabilities { volume_mount_group: true, ..can };
            assert!(
                !is_ours(Driver::Said(&said), &does_it, Mode::Filesystem, &want),
                "{name}: the driver does it"
            );
        }
    }

    /// kubernetes.md 1.8 "Ownership": what is told when it takes long.
    #[test]
    fn reports_name_the_place_from_the_pod_on() {
        let path = "/var/lib/kubelet/pods/uid/volumes/kubernetes.io~csi/pv1/mount";
        assert_eq!(
            report(path, "uid", Some(7)),
            "Setting volume ownership for uid/volumes/kubernetes.io~csi/pv1/mount, processed 7 files."
        );
        assert!(
            report(path, "uid", None).contains("uid/volumes/kubernetes.io~csi/pv1/mount is taking longer")
        );
        assert!(report(path, "other", Some(1)).contains(path));
    }
}
