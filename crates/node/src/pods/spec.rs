//! Converts a pod's container to the runtime's container spec: pure functions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use wharf_container::{ContainerDevice, ContainerMount, ContainerSpec, Rights, User};
use wharf_model::Pod;
use wharf_model::container::Container;

use super::env::expand;
use crate::volumes::{Mounted, VolumePath};

/// Why a container cannot be run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SpecError {
    /// The container has no command, and there is no image to provide one.
    #[error(
        "container {0:?} has no command: images are not pulled, so the pod must name the host program to run"
    )]
    NoCommand(String),
    /// The volume is not mounted.
    #[error("volume {0:?} is not mounted")]
    NoVolume(String),
    /// A file system volume in volumeDevices, or a block volume in volumeMounts.
    #[error("volume {0:?} is not {1}")]
    WrongVolume(String, &'static str),
    /// subPathExpr references an unset variable.
    #[error("failed to expand subPathExpr of volumeMount {0:?}: {1:?} has variables that are not set")]
    SubPath(String, String),
    /// Mounts of the host or of the container would have to appear in the other.
    #[error(
        "container {container:?}: mountPropagation {wanted} of volumeMount {mount_path:?} is not supported: mounts do not propagate between the node and a container; use None, or run the pod on a node with a kubelet"
    )]
    MountPropagation {
        /// The container.
        container: String,
        /// The mount path.
        mount_path: String,
        /// The value of the field.
        wanted: String,
    },
    /// Not a valid user or group id.
    #[error("{0} is not a valid user or group id")]
    Number(i64),
}

/// The kernel's maximum length.
const HOSTNAME: usize = 63;

/// Builds the container spec.
pub(super) fn spec(
    pod: &Pod,
    container: &Container,
    attempt: u32,
    mut env: BTreeMap<String, String>,
    mounted: &Mounted,
) -> Result<ContainerSpec, SpecError> {
    let known = env.clone();
    let value = |name: &str| known.get(name).map(String::as_str);
    let command: Vec<String> =
        container.command.iter().chain(&container.args).map(|word| expand(word, value)).collect();
    if container.command.is_empty() {
        return Err(SpecError::NoCommand(container.name.clone()));
    }
    let user = user(pod, container)?;
    let hostname = hostname(pod);
    for (name, value) in [
        ("HOSTNAME", hostname.as_str()),
        ("HOME", if user.uid == 0 { "/root" } else { "/" }),
        ("TERM", if container.tty { "xterm" } else { "" }),
    ] {
        if !value.is_empty() {
            env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    Ok(ContainerSpec {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pod: pod.metadata.name.clone(),
        pod_uid: pod.metadata.uid.clone(),
        container: container.name.clone(),
        attempt,
        labels: BTreeMap::new(),
        hostname,
        command,
        env: env.into_iter().collect(),
        working_dir: PathBuf::from(&container.working_dir),
        stdin: container.stdin,
        user,
        rights: rights(container),
        mounts: mounts(container, mounted, value)?,
        devices: devices(container, mounted)?,
    })
}

fn hostname(pod: &Pod) -> String {
    let mut name =
        if pod.spec.hostname.is_empty() { pod.metadata.name.clone() } else { pod.spec.hostname.clone() };
    name.truncate(HOSTNAME);
    name.trim_end_matches(['-', '.']).to_owned()
}

fn number(number: i64) -> Result<u32, SpecError> {
    u32::try_from(number).map_err(|_| SpecError::Number(number))
}

/// The container's security context takes precedence over the pod's.
fn user(pod: &Pod, container: &Container) -> Result<User, SpecError> {
    let (of_pod, own) = (pod.spec.security_context.as_deref(), container.security_context.as_deref());
    let uid = own.and_then(|own| own.run_as_user).or(of_pod.and_then(|of_pod| of_pod.run_as_user));
    let gid = own.and_then(|own| own.run_as_group).or(of_pod.and_then(|of_pod| of_pod.run_as_group));
    let non_root =
        own.and_then(|own| own.run_as_non_root).or(of_pod.and_then(|of_pod| of_pod.run_as_non_root));
    let groups = of_pod.iter().flat_map(|of_pod| of_pod.supplemental_groups.iter().chain(&of_pod.fs_group));
    Ok(User {
        uid: number(uid.unwrap_or(0))?,
        gid: number(gid.unwrap_or(0))?,
        groups: groups.map(|group| number(*group)).collect::<Result<_, _>>()?,
        non_root: non_root.unwrap_or(false),
    })
}

/// No privilege escalation unless the pod requests it: containers run host programs, so no image depends on its
/// set-user-ID programs.
fn rights(container: &Container) -> Rights {
    let own = container.security_context.as_deref().cloned().unwrap_or_default();
    let privileged = own.privileged == Some(true);
    let capabilities = own.capabilities.unwrap_or_default();
    Rights {
        privileged,
        add: capabilities.add,
        drop: capabilities.drop,
        no_new_privileges: !privileged && own.allow_privilege_escalation != Some(true),
        read_only_root: own.read_only_root_filesystem == Some(true),
    }
}

fn mounts<'a>(
    container: &Container,
    mounted: &Mounted,
    value: impl Fn(&str) -> Option<&'a str>,
) -> Result<Vec<ContainerMount>, SpecError> {
    let one = |wanted: &wharf_model::container::VolumeMount| {
        if !matches!(wanted.mount_propagation.as_str(), "" | "None") {
            return Err(SpecError::MountPropagation {
                container: container.name.clone(),
                mount_path: wanted.mount_path.clone(),
                wanted: wanted.mount_propagation.clone(),
            });
        }
        let no = || SpecError::NoVolume(wanted.name.clone());
        let (source, read_only, host) = match mounted.volumes.get(&wanted.name).ok_or_else(no)? {
            VolumePath::Host { path } => (path.clone(), false, true),
            VolumePath::Directory { path, read_only } => (path.clone(), *read_only, false),
            VolumePath::Device { .. } => {
                return Err(SpecError::WrongVolume(wanted.name.clone(), "a file system"));
            }
        };
        let sub_path = match (wanted.sub_path.as_str(), wanted.sub_path_expr.as_str()) {
            ("", "") => None,
            ("", expression) => {
                let unset = std::cell::Cell::new(false);
                let expanded = expand(expression, |name| {
                    let found = value(name);
                    unset.set(unset.get() || found.is_none());
                    found
                });
                if unset.get() {
                    return Err(SpecError::SubPath(wanted.mount_path.clone(), expression.to_owned()));
                }
                Some(PathBuf::from(expanded))
            }
            (plain, _) => Some(PathBuf::from(plain)),
        };
        Ok(ContainerMount {
            source,
            sub_path,
            target: PathBuf::from(&wanted.mount_path),
            read_only: read_only || wanted.read_only,
            host,
        })
    };
    container.volume_mounts.iter().map(one).collect()
}

fn devices(container: &Container, mounted: &Mounted) -> Result<Vec<ContainerDevice>, SpecError> {
    let one = |wanted: &wharf_model::container::VolumeDevice| match mounted.volumes.get(&wanted.name) {
        Some(VolumePath::Device { path, read_only }) => Ok(ContainerDevice {
            source: path.clone(),
            target: PathBuf::from(&wanted.device_path),
            read_only: *read_only,
        }),
        Some(VolumePath::Directory { .. } | VolumePath::Host { .. }) => {
            Err(SpecError::WrongVolume(wanted.name.clone(), "a device"))
        }
        None => Err(SpecError::NoVolume(wanted.name.clone())),
    };
    container.volume_devices.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn mounted() -> Mounted {
        let directory = |path: &str, read_only| VolumePath::Directory { path: path.into(), read_only };
        Mounted {
            volumes: BTreeMap::from([
                ("data".to_owned(), directory("/v/data", false)),
                ("config".to_owned(), directory("/v/config", true)),
                ("host".to_owned(), VolumePath::Host { path: "/srv".into() }),
                ("raw".to_owned(), VolumePath::Device { path: "/v/raw".into(), read_only: false }),
                ("fixed".to_owned(), VolumePath::Device { path: "/v/fixed".into(), read_only: true }),
            ]),
        }
    }

    fn made(pod: Value, container: Value) -> Result<ContainerSpec, SpecError> {
        let mut spec_of = pod;
        spec_of["containers"] = json!([container]);
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec_of}),
        )
        .unwrap();
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        spec(&pod, &pod.spec.containers[0], 3, env, &mounted())
    }

    #[test]
    fn spec_has_command_env_mounts_and_devices() {
        let container = json!({
            "name": "c", "command": ["sh", "-c"], "args": ["echo $(A) $(B)"], "workingDir": "/w", "tty": true,
            "volumeMounts": [
                {"name": "data", "mountPath": "/data", "subPathExpr": "x/$(A)"},
                {"name": "data", "mountPath": "/ro", "readOnly": true, "subPath": "y"},
                {"name": "config", "mountPath": "/config"},
                {"name": "host", "mountPath": "/host"},
            ],
            "volumeDevices": [
                {"name": "raw", "devicePath": "/dev/raw"},
                {"name": "fixed", "devicePath": "/dev/fixed"},
            ],
        });
        let spec = made(json!({"hostname": "host"}), container).unwrap();
        assert_eq!(spec.command, ["sh", "-c", "echo 1 $(B)"]);
        assert_eq!((spec.attempt, spec.hostname.as_str()), (3, "host"));
        let env: Vec<String> = spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(env, ["A=1", "HOME=/root", "HOSTNAME=host", "TERM=xterm"]);
        let mount = |source: &str, sub_path: Option<&str>, target: &str, read_only| ContainerMount {
            source: source.into(),
            sub_path: sub_path.map(PathBuf::from),
            target: target.into(),
            read_only,
            host: source == "/srv",
        };
        assert_eq!(
            spec.mounts,
            [
                mount("/v/data", Some("x/1"), "/data", false),
                mount("/v/data", Some("y"), "/ro", true),
                mount("/v/config", None, "/config", true),
                mount("/srv", None, "/host", false),
            ]
        );
        let device = |source: &str, target: &str, read_only| ContainerDevice {
            source: source.into(),
            target: target.into(),
            read_only,
        };
        assert_eq!(
            spec.devices,
            [device("/v/raw", "/dev/raw", false), device("/v/fixed", "/dev/fixed", true)]
        );
    }

    #[test]
    fn container_security_context_overrides_the_pods() {
        let all = json!({"securityContext": {
            "runAsUser": 7, "runAsGroup": 8, "runAsNonRoot": true, "supplementalGroups": [9], "fsGroup": 10,
        }});
        let spec = made(all.clone(), json!({"name": "c", "command": ["x"]})).unwrap();
        assert_eq!(spec.user, User { uid: 7, gid: 8, groups: vec![9, 10], non_root: true });
        assert!(spec.rights.no_new_privileges);
        let own = json!({"name": "c", "command": ["x"], "securityContext": {
            "runAsUser": 0, "runAsNonRoot": false, "allowPrivilegeEscalation": true, "readOnlyRootFilesystem": true,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
        }});
        let spec = made(all, own).unwrap();
        assert_eq!((spec.user.uid, spec.user.gid, spec.user.non_root), (0, 8, false));
        assert_eq!(
            spec.rights,
            Rights {
                privileged: false,
                add: vec!["NET_ADMIN".into()],
                drop: vec!["ALL".into()],
                no_new_privileges: false,
                read_only_root: true,
            }
        );
    }

    #[test]
    fn invalid_containers_are_refused() {
        let c = |more: Value| {
            let mut container = json!({"name": "c", "command": ["x"]});
            container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            made(json!({}), container).unwrap_err()
        };
        assert_eq!(c(json!({"command": [], "args": ["y"]})), SpecError::NoCommand("c".into()));
        let mount = |name: &str| json!({"volumeMounts": [{"name": name, "mountPath": "/x"}]});
        assert_eq!(c(mount("none")), SpecError::NoVolume("none".into()));
        assert_eq!(c(mount("raw")), SpecError::WrongVolume("raw".into(), "a file system"));
        let device = json!({"volumeDevices": [{"name": "data", "devicePath": "/x"}]});
        assert_eq!(c(device), SpecError::WrongVolume("data".into(), "a device"));
        let unset = json!({"volumeMounts": [{"name": "data", "mountPath": "/x", "subPathExpr": "$(NO)"}]});
        assert_eq!(c(unset), SpecError::SubPath("/x".into(), "$(NO)".into()));
        assert_eq!(c(json!({"securityContext": {"runAsUser": -1}})), SpecError::Number(-1));
        for wanted in ["HostToContainer", "Bidirectional"] {
            let mount = json!({"name": "data", "mountPath": "/x", "mountPropagation": wanted});
            let error = c(json!({"volumeMounts": [mount]}));
            let expected = SpecError::MountPropagation {
                container: "c".into(),
                mount_path: "/x".into(),
                wanted: wanted.into(),
            };
            assert_eq!(error, expected);
            assert!(error.to_string().contains(&format!("\"c\": mountPropagation {wanted}")), "{error}");
        }
    }

    #[test]
    fn mount_propagation_none_is_accepted() {
        for wanted in [Value::Null, json!(""), json!("None")] {
            let mount = json!({"name": "data", "mountPath": "/x", "mountPropagation": wanted});
            let container = json!({"name": "c", "command": ["x"], "volumeMounts": [mount]});
            assert_eq!(made(json!({}), container).unwrap().mounts.len(), 1, "{wanted}");
        }
    }
}
