//! emptyDir volumes: on the node's disk, or in memory with a size limit.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, chown};
use std::path::Path;

use wharf_linux::Kernel;
use wharf_model::pod::EmptyDir;
use wharf_model::{Pod, Quantity};

use super::{PlainError, make_parents, mount_memory};

/// World-writable, as in kubelet.
const MODE: u32 = 0o777;
/// Setgid: new files inherit the directory's group.
const SET_GID: u32 = 0o2000;

/// How to create the directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// In memory, with an optional size limit in bytes.
    pub(super) memory: Option<Option<i64>>,
    /// Its group.
    pub(super) gid: Option<u32>,
}

/// Plans the volume. In memory, its size is limited by `sizeLimit` and by the sum of the containers' memory limits,
/// if all of them have one.
pub(super) fn plan(pod: &Pod, wanted: &EmptyDir) -> Result<Plan, PlainError> {
    let gid = super::payload::fs_group(pod);
    match wanted.medium.as_str() {
        "" => Ok(Plan { memory: None, gid }),
        "Memory" => {
            let limits = pod.spec.containers.iter().map(|container| container.resources.limits.get("memory"));
            let of_pod = limits.map(|limit| limit.map(|limit| limit.bytes())).sum::<Option<i64>>();
            let size = wanted.size_limit.filter(|limit| *limit > Quantity::ZERO).map(Quantity::bytes);
            Ok(Plan { memory: Some(size.into_iter().chain(of_pod).min()), gid })
        }
        other => Err(PlainError::Unsupported { what: format!("an emptyDir of medium {other:?}") }),
    }
}

/// Creates the directory. If it exists, content and permissions belong to the pod and are left alone.
pub(super) fn set_up(kernel: &dyn Kernel, path: &Path, plan: &Plan) -> Result<(), PlainError> {
    make_parents(path)?;
    let mode = if plan.gid.is_some() { MODE | SET_GID } else { MODE };
    if let Some(size) = plan.memory {
        let mut options = vec![format!("mode={mode:o}")];
        options.extend(plan.gid.map(|gid| format!("gid={gid}")));
        options.extend(size.map(|bytes| format!("size={bytes}")));
        return mount_memory(kernel, path, &options);
    }
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    // Created under a temporary name and renamed when complete.
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let unfinished = path.with_file_name(format!(".{name}.new"));
    let failed = |step| PlainError::files(step, &unfinished);
    match fs::DirBuilder::new().mode(0o700).create(&unfinished) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(failed("mkdir"))?,
    }
    if let Some(gid) = plan.gid {
        chown(&unfinished, None, Some(gid)).map_err(failed("chown"))?;
    }
    fs::set_permissions(&unfinished, fs::Permissions::from_mode(mode)).map_err(failed("chmod"))?;
    fs::rename(&unfinished, path).map_err(failed("rename"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plan_follows_medium_and_limits() {
        let pod = |limits: &[&str], group: Option<i64>| -> Pod {
            let container = |limit: &&str| match *limit {
                "" => json!({"name": "c"}),
                limit => json!({"name": "c", "resources": {"limits": {"memory": limit}}}),
            };
            serde_json::from_value(json!({"spec": {
                "containers": limits.iter().map(container).collect::<Vec<_>>(),
                "securityContext": {"fsGroup": group},
            }}))
            .unwrap()
        };
        for (limits, group, medium, size, expected) in [
            (&[""][..], None, "", None, Some(Plan { memory: None, gid: None })),
            (&[""], Some(7), "", Some("1Ki"), Some(Plan { memory: None, gid: Some(7) })),
            (&[""], None, "Memory", None, Some(Plan { memory: Some(None), gid: None })),
            (&[""], None, "Memory", Some("4Ki"), Some(Plan { memory: Some(Some(4096)), gid: None })),
            (
                &["1Ki", "1Ki"],
                None,
                "Memory",
                Some("4Ki"),
                Some(Plan { memory: Some(Some(2048)), gid: None }),
            ),
            (&["1Ki", ""], None, "Memory", Some("4Ki"), Some(Plan { memory: Some(Some(4096)), gid: None })),
            (&["8Ki"], None, "Memory", Some("0"), Some(Plan { memory: Some(Some(8192)), gid: None })),
            (&[""], None, "HugePages", None, None),
        ] {
            let size_limit = size.map(|size| size.parse().unwrap());
            let wanted = EmptyDir { medium: medium.into(), size_limit };
            assert_eq!(plan(&pod(limits, group), &wanted).ok(), expected, "{limits:?} {medium} {size:?}");
        }
    }
}
