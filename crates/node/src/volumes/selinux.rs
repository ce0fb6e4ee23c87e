//! SELinux labels of whole mounts (seLinuxMount), where the node has SELinux: files need not be relabelled one by one.

use std::fs;
use std::path::Path;

use wharf_model::pod::SeLinuxOptions;
use wharf_model::{AccessMode, CSIDriver, Pod};

/// Exists if the kernel has SELinux.
const KERNEL: &str = "/sys/fs/selinux/enforce";
/// The policy's file with the label of containers' files.
const CONTEXTS: &str = "contexts/lxc_contexts";

/// Containers of a pod that use the same volume with different labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "multiple SELinux labels found: containers of the pod use volume {volume} with {first} and {second}: give them \
     the same seLinuxOptions"
)]
pub(super) struct Conflict {
    volume: String,
    first: String,
    second: String,
}

/// The label of containers' files from the node's policy; `None` without SELinux.
pub(super) fn base_label() -> Option<String> {
    fs::metadata(KERNEL).ok()?;
    let config = fs::read_to_string("/etc/selinux/config").ok()?;
    let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE="))?;
    let contexts = fs::read_to_string(Path::new("/etc/selinux").join(policy.trim()).join(CONTEXTS)).ok()?;
    file_label(&contexts)
}

fn file_label(contexts: &str) -> Option<String> {
    let line = contexts.lines().find_map(|line| line.trim().strip_prefix("file"))?;
    let label = line.trim().strip_prefix('=')?.trim().trim_matches('"');
    (!label.is_empty()).then(|| label.to_owned())
}

/// The label that all containers using the volume agree on; `None` if they set none.
pub(super) fn wanted(pod: &Pod, volume: &str, base: &str) -> Result<Option<String>, Conflict> {
    let pods = pod.spec.security_context.as_ref();
    if pods.is_some_and(|context| context.se_linux_change_policy == "Recursive") {
        return Ok(None);
    }
    let pods = pods.and_then(|context| context.se_linux_options.as_ref());
    let mut found: Option<String> = None;
    for container in pod.spec.init_containers.iter().chain(&pod.spec.containers) {
        if !container.volume_mounts.iter().any(|mount| mount.name == volume) {
            continue;
        }
        let own = container.security_context.as_ref();
        if own.is_some_and(|context| context.privileged == Some(true)) {
            continue;
        }
        let own = own.and_then(|context| context.se_linux_options.as_ref());
        let Some(options) = own.or(pods) else { continue };
        let label = label(base, options);
        match found {
            Some(first) if first != label => {
                return Err(Conflict { volume: volume.to_owned(), first, second: label });
            }
            _ => found = Some(label),
        }
    }
    Ok(found)
}

/// The policy's label with the pod's user and level.
fn label(base: &str, options: &SeLinuxOptions) -> String {
    let mut parts = base.splitn(4, ':');
    let mut next = || parts.next().unwrap_or_default();
    let (user, role, kind, level) = (next(), next(), next(), next());
    let or = |option: &str, default: &str| match option.is_empty() {
        true => default.to_owned(),
        false => option.to_owned(),
    };
    let label = format!("{}:{role}:{kind}:{}", or(&options.user, user), or(&options.level, level));
    label.trim_end_matches(':').to_owned()
}

/// Whether a volume is mounted with a label at all: its driver supports it, and only one pod can use it.
pub(super) fn applies(driver: Option<&CSIDriver>, modes: &[AccessMode]) -> bool {
    driver.is_some_and(|driver| driver.spec.se_linux_mount == Some(true))
        && modes == [AccessMode::ReadWriteOncePod]
}

/// The mount option for a label.
pub(super) fn option(label: &str) -> String {
    format!("context=\"{label}\"")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const BASE: &str = "system_u:object_r:container_file_t:s0";

    fn pod(context: Value, containers: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"securityContext": context, "containers": containers}}))
            .unwrap()
    }

    fn with(context: Value) -> Value {
        json!({"volumeMounts": [{"name": "v"}], "securityContext": context})
    }

    /// kubernetes.md 1.8 "SELinux": one label across containers; Recursive opts out.
    #[test]
    fn containers_must_agree_on_one_label() {
        let level = |level: &str| json!({"seLinuxOptions": {"level": level}});
        let both = json!([with(json!({})), with(json!({}))]);
        let label = Some("system_u:object_r:container_file_t:s0:c1,c2".to_owned());
        assert_eq!(wanted(&pod(json!({}), both.clone()), "v", BASE), Ok(None));
        assert_eq!(wanted(&pod(level("s0:c1,c2"), both.clone()), "v", BASE), Ok(label.clone()));
        let recursive = json!({"seLinuxOptions": {"level": "s0:c1,c2"}, "seLinuxChangePolicy": "Recursive"});
        assert_eq!(wanted(&pod(recursive, both), "v", BASE), Ok(None));
        let differing = json!([with(level("s0:c1,c2")), with(level("s0:c3"))]);
        assert!(wanted(&pod(json!({}), differing.clone()), "v", BASE).is_err());
        assert_eq!(wanted(&pod(json!({}), differing), "other", BASE), Ok(None));
        let privileged = json!([with(level("s0:c1,c2")), with(json!({"privileged": true}))]);
        assert_eq!(wanted(&pod(level("s0:c9"), privileged), "v", BASE), Ok(label));
    }

    /// kubernetes.md 1.8 "SELinux": CSIDriver.seLinuxMount, and ReadWriteOncePod alone.
    #[test]
    fn label_applies_to_read_write_once_pod_only() {
        use AccessMode::{ReadWriteOnce, ReadWriteOncePod};
        let driver = |value: Value| {
            serde_json::from_value::<CSIDriver>(json!({"spec": {"seLinuxMount": value}})).unwrap()
        };
        let capabilities = driver(json!(true));
        assert!(applies(Some(&capabilities), &[ReadWriteOncePod]));
        assert!(!applies(Some(&capabilities), &[ReadWriteOnce]));
        assert!(!applies(Some(&capabilities), &[ReadWriteOncePod, ReadWriteOnce]));
        assert!(!applies(Some(&driver(json!(false))), &[ReadWriteOncePod]));
        assert!(!applies(Some(&driver(json!(null))), &[ReadWriteOncePod]));
        assert!(!applies(None, &[ReadWriteOncePod]));
    }

    #[test]
    fn file_label_is_read_from_the_policy() {
        let contexts = "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";
        assert_eq!(file_label(contexts).as_deref(), Some(BASE));
        assert_eq!(file_label("process = \"x\"\n"), None);
        assert_eq!(option("a:b:c:s0:c1,c2"), "context=\"a:b:c:s0:c1,c2\"");
    }
}
