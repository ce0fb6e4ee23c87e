//! fsGroup: whether a volume's files get the pod's group, and applying it.

use std::time::Duration;

use wharf_model::AccessMode;
use wharf_model::csidriver::FsGroupPolicy;

use super::view::Driver;
use super::world::{DesiredMount, Mode, Source};
use crate::plugins::NodeCapabilities;

pub(super) mod walk;

/// Delay of the first progress event, and interval of the following ones.
pub(super) const FIRST_REPORT: Duration = Duration::from_secs(30);
pub(super) const REPORT_AGAIN: Duration = Duration::from_secs(60);

/// The pod's fsGroup.
pub(super) fn group(desired: &DesiredMount) -> Option<i64> {
    desired.pod.spec.security_context.as_ref().and_then(|context| context.fs_group)
}

/// Whether files are left alone if the root directory already matches.
pub(super) fn on_root_mismatch(desired: &DesiredMount) -> bool {
    let context = desired.pod.spec.security_context.as_ref();
    context.is_some_and(|context| context.fs_group_change_policy == "OnRootMismatch")
}

/// Whether the agent changes the files: there is a group, the driver does not apply it, and the policy allows it.
pub(super) fn applies_to(
    driver: Driver<'_>,
    capabilities: &NodeCapabilities,
    mode: Mode,
    desired: &DesiredMount,
) -> bool {
    mode == Mode::Filesystem
        && group(desired).is_some()
        && !capabilities.volume_mount_group
        && permitted(driver.fs_group_policy(), desired)
}

/// Whether the driver's fsGroupPolicy allows it.
fn permitted(policy: FsGroupPolicy, desired: &DesiredMount) -> bool {
    if desired.read_only {
        return false;
    }
    match policy {
        FsGroupPolicy::None => false,
        FsGroupPolicy::File => true,
        FsGroupPolicy::ReadWriteOnceWithFSType | FsGroupPolicy::Unknown => match &desired.source {
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

/// The progress event's message.
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
    use wharf_model::{CSIDriver, Pod};

    use super::*;

    fn desired(group: Option<i64>, read_only: bool, fs_type: &str, modes: &[&str]) -> DesiredMount {
        let pod = json!({"spec": {"securityContext": {"fsGroup": group}}});
        let volume = json!({"spec": {
            "accessModes": modes, "csi": {"driver": "d", "volumeHandle": "h", "fsType": fs_type},
        }});
        DesiredMount {
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

    fn inline(fs_type: &str) -> DesiredMount {
        let source: Value = json!({"driver": "d", "fsType": fs_type});
        DesiredMount {
            source: Source::Inline(serde_json::from_value(source).unwrap()),
            ..desired(Some(1), false, "", &[])
        }
    }

    /// kubernetes.md 1.8 "fsGroup": upstream's matrix (Test_csiMountMgr_supportsFSGroup).
    #[test]
    fn fs_group_policy_matrix() {
        let (default, file, none) =
            (FsGroupPolicy::ReadWriteOnceWithFSType, FsGroupPolicy::File, FsGroupPolicy::None);
        let rwo = &["ReadWriteOnce"][..];
        for (name, policy, desired, expected) in [
            ("no group", default, desired(None, false, "ext4", rwo), false),
            ("no group, File", file, desired(None, false, "ext4", rwo), false),
            ("one writer and a file system", default, desired(Some(1), false, "ext4", rwo), true),
            ("one pod", default, desired(Some(1), false, "ext4", &["ReadWriteOncePod"]), true),
            (
                "one of several modes",
                default,
                desired(Some(1), false, "ext4", &["ReadOnlyMany", "ReadWriteOnce"]),
                true,
            ),
            ("no file system", default, desired(Some(1), false, "", rwo), false),
            ("no modes", default, desired(Some(1), false, "ext4", &[]), false),
            ("many writers", default, desired(Some(1), false, "ext4", &["ReadWriteMany"]), false),
            ("many readers", default, desired(Some(1), false, "ext4", &["ReadOnlyMany"]), false),
            ("read-only", default, desired(Some(1), true, "ext4", rwo), false),
            (
                "File, many writers, no file system",
                file,
                desired(Some(1), false, "", &["ReadWriteMany"]),
                true,
            ),
            ("File, read-only", file, desired(Some(1), true, "ext4", rwo), false),
            ("None", none, desired(Some(1), false, "ext4", rwo), false),
            ("unknown policy", FsGroupPolicy::Unknown, desired(Some(1), false, "ext4", rwo), true),
            ("inline with a file system", default, inline("ext4"), true),
            ("inline without", default, inline(""), false),
            ("inline, File", file, inline(""), true),
        ] {
            let driver_object = CSIDriver {
                spec: wharf_model::csidriver::CSIDriverSpec {
                    fs_group_policy: Some(policy),
                    ..Default::default()
                },
                ..CSIDriver::default()
            };
            let capabilities = NodeCapabilities::default();
            assert_eq!(
                applies_to(Driver::Object(&driver_object), &capabilities, Mode::Filesystem, &desired),
                expected,
                "{name}"
            );
            assert!(
                !applies_to(Driver::Object(&driver_object), &capabilities, Mode::Block, &desired),
                "{name}: block volumes have no files"
            );
            let driver_applies = NodeCapabilities { volume_mount_group: true, ..capabilities };
            assert!(
                !applies_to(Driver::Object(&driver_object), &driver_applies, Mode::Filesystem, &desired),
                "{name}: the driver applies it"
            );
        }
    }

    /// kubernetes.md 1.8 "Ownership": when checking the root is enough.
    #[test]
    fn on_root_mismatch_is_the_only_policy_that_checks_the_root() {
        for (policy, root_alone) in [("OnRootMismatch", true), ("Always", false), ("", false)] {
            let pod = json!({"spec": {"securityContext": {"fsGroupChangePolicy": policy}}});
            let pod = Arc::new(serde_json::from_value::<Pod>(pod).unwrap());
            assert_eq!(on_root_mismatch(&DesiredMount { pod, ..inline("") }), root_alone, "{policy}");
        }
        assert!(!on_root_mismatch(&DesiredMount { pod: Arc::default(), ..inline("") }));
    }

    /// kubernetes.md 1.8 "Ownership": the progress events.
    #[test]
    fn progress_events_show_the_path_from_the_pod_on() {
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
