//! Validation of security contexts. Windows options are not validated: Windows pods never run here.

use std::collections::BTreeSet;

use serde_json::Value;

use super::volumes::local_descending_path;
use crate::kinds::{go, json, meta};
use crate::status::Cause;

const MAX_ID: i64 = 2_147_483_647;
const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
const SYSCTL: &str = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
const SYSCTL_LENGTH: usize = 253;

/// Validates a pod's security context.
pub(super) fn pod(spec: &Value) -> Vec<Cause> {
    const AT: &str = "spec.securityContext";
    let context = &json::at(spec, "/securityContext");
    let mut causes = Vec::new();
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        causes.extend(id(context.get(field), &format!("{AT}.{field}")));
    }
    for (index, group) in json::list(context, "/supplementalGroups").iter().enumerate() {
        causes.extend(id(Some(group), &format!("{AT}.supplementalGroups[{index}]")));
    }
    if json::flag(spec, "/hostPID") && json::flag(spec, "/shareProcessNamespace") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        causes.push(Cause::invalid(&format!("{AT}.shareProcessNamespace"), &true.into(), detail));
    }
    causes.extend(sysctls(spec, context, &format!("{AT}.sysctls")));
    causes.extend(one_of(context, AT, "fsGroupChangePolicy", &["Always", "OnRootMismatch"]));
    causes.extend(seccomp(context, AT));
    causes.extend(app_armor(context, AT));
    causes.extend(one_of(context, AT, "supplementalGroupsPolicy", &["Merge", "Strict"]));
    // MountOption belongs to a feature gate that upstream has disabled.
    causes.extend(one_of(context, AT, "seLinuxChangePolicy", &["Recursive"]));
    causes
}

/// Validates a container's security context.
pub(super) fn container(container: &Value, at: &str, host_users: bool) -> Vec<Cause> {
    let Some(context) = container.get("securityContext") else { return Vec::new() };
    let at = &format!("{at}.securityContext");
    let mut causes = Vec::new();
    for field in ["runAsUser", "runAsGroup"] {
        causes.extend(id(context.get(field), &format!("{at}.{field}")));
    }
    causes.extend(one_of(context, at, "procMount", &["Default", "Unmasked"]));
    if host_users && json::text(context, "/procMount") == "Unmasked" {
        let detail = "`hostUsers` must be false to use `Unmasked`";
        causes.push(Cause::invalid(&format!("{at}.procMount"), &"Unmasked".into(), detail));
    }
    causes.extend(seccomp(context, at));
    if context.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)) {
        let escalates = |what: &str| {
            let detail = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
            meta::invalid_raw(at, &go::compact(context, "SecurityContext"), &detail)
        };
        if json::flag(context, "/privileged") {
            causes.push(escalates("`privileged` to true"));
        }
        for _ in json::list(context, "/capabilities/add")
            .iter()
            .filter(|capability| *capability == "CAP_SYS_ADMIN")
        {
            causes.push(escalates("`capabilities.Add` CAP_SYS_ADMIN"));
        }
    }
    causes.extend(app_armor(context, at));
    causes
}

/// A pod with its own user namespace cannot share other namespaces or devices of the host.
pub(super) fn host_users(spec: &Value) -> Vec<Cause> {
    if has_host_users(spec) {
        return Vec::new();
    }
    let detail = "when `hostUsers` is false";
    let mut causes = Vec::new();
    for (flag, named) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if json::flag(spec, &format!("/{flag}")) {
            causes.push(Cause::forbidden(&format!("spec.{named}"), detail));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in json::list(spec, &format!("/{list}")).iter().enumerate() {
            if !json::list(container, "/volumeDevices").is_empty() {
                causes.push(Cause::forbidden(&format!("spec.{list}[{index}].volumeDevices"), detail));
            }
        }
    }
    causes
}

/// Whether a pod uses the host's user namespace, which is the default.
pub(super) fn has_host_users(spec: &Value) -> bool {
    spec.get("hostUsers").and_then(Value::as_bool).unwrap_or(true)
}

/// Validates the operating system of a pod.
pub(super) fn os(spec: &Value) -> Vec<Cause> {
    let Some(os) = spec.get("os") else { return Vec::new() };
    match json::text(os, "/name") {
        "" => return vec![Cause::required("spec.os.name", "")],
        "linux" => (),
        "windows" => return Vec::new(),
        other => return vec![Cause::not_supported("spec.os", &other.into(), &["linux", "windows"])],
    }
    let mut errors = Vec::new();
    let mut check = |object: &Value, at: &str| {
        if json::has(object, "/securityContext/windowsOptions") {
            let field = format!("{at}.securityContext.windowsOptions");
            errors.push(Cause::forbidden(&field, "windows options cannot be set for a linux pod"));
        }
    };
    check(spec, "spec");
    for list in ["initContainers", "containers"] {
        for (index, container) in json::list(spec, &format!("/{list}")).iter().enumerate() {
            check(container, &format!("spec.{list}[{index}]"));
        }
    }
    errors
}

/// Validates a user or group ID.
fn id(id: Option<&Value>, field: &str) -> Option<Cause> {
    let number = id?.as_i64().filter(|number| !(0..=MAX_ID).contains(number))?;
    Some(Cause::invalid(field, &number.into(), &format!("must be between 0 and {MAX_ID}, inclusive")))
}

fn one_of(context: &Value, at: &str, field: &str, known: &[&str]) -> Option<Cause> {
    let value = context.get(field).filter(|value| !known.iter().any(|known| *value == known))?;
    Some(Cause::not_supported(&format!("{at}.{field}"), value, known))
}

fn seccomp(context: &Value, at: &str) -> Vec<Cause> {
    let Some(profile) = context.get("seccompProfile") else { return Vec::new() };
    let at = format!("{at}.seccompProfile");
    let mut causes = Vec::new();
    let kind = json::text(profile, "/type");
    if kind.is_empty() {
        let detail = "type is required when seccompProfile is set";
        causes.push(Cause::required(&format!("{at}.type"), detail));
    } else if !PROFILES.contains(&kind) {
        causes.push(Cause::not_supported(&format!("{at}.type"), &kind.into(), &PROFILES));
    }
    let field = format!("{at}.localhostProfile");
    match (kind, profile.get("localhostProfile").and_then(Value::as_str)) {
        ("Localhost", Some(path)) => causes.extend(local_descending_path(path, &field)),
        ("Localhost", None) => {
            causes.push(Cause::required(&field, "must be set when seccomp type is Localhost"));
        }
        (_, Some(_)) => {
            let detail = "can only be set when seccomp type is Localhost";
            causes.push(meta::invalid_raw(&field, &go::compact(profile, "SeccompProfile"), detail));
        }
        (_, None) => (),
    }
    causes
}

fn app_armor(context: &Value, at: &str) -> Vec<Cause> {
    const MAX_PATH_BYTES: usize = 4095;
    let Some(profile) = context.get("appArmorProfile") else { return Vec::new() };
    let (at, field) = (format!("{at}.appArmorProfile"), format!("{at}.appArmorProfile.localhostProfile"));
    let mut causes = Vec::new();
    match (json::text(profile, "/type"), profile.get("localhostProfile").and_then(Value::as_str)) {
        ("Localhost", path) => {
            let path = path.unwrap_or_default();
            if path.trim() != path {
                let detail = "must not be padded with whitespace";
                causes.push(Cause::invalid(&field, &path.into(), detail));
            } else if path.is_empty() {
                causes.push(Cause::required(&field, "must be set when AppArmor type is Localhost"));
            }
            if path.len() > MAX_PATH_BYTES {
                causes.push(Cause::too_long(&field, MAX_PATH_BYTES));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(path)) => {
            let detail = "can only be set when AppArmor type is Localhost";
            causes.push(Cause::invalid(&field, &path.into(), detail));
        }
        ("RuntimeDefault" | "Unconfined", None) => (),
        ("", _) => {
            let detail = "type is required when appArmorProfile is set";
            causes.push(Cause::required(&format!("{at}.type"), detail));
        }
        (other, _) => causes.push(Cause::not_supported(&format!("{at}.type"), &other.into(), &PROFILES)),
    }
    causes
}

fn sysctls(spec: &Value, context: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, sysctl) in json::list(context, "/sysctls").iter().enumerate() {
        let (field, name) = (format!("{at}[{index}].name"), json::text(sysctl, "/name"));
        let is_new = seen.insert(name);
        if name.is_empty() {
            causes.push(Cause::required(&field, ""));
        } else if name.len() > SYSCTL_LENGTH || !name.split(['.', '/']).all(is_segment) {
            let detail = format!(
                "must have at most {SYSCTL_LENGTH} characters and match regex ^({SYSCTL}[\\./])*{SYSCTL}$"
            );
            causes.push(Cause::invalid(&field, &name.into(), &detail));
        } else if !is_new {
            causes.push(Cause::duplicate(&field, &name.into()));
        }
        // A pod cannot set sysctls of a namespace that it shares with the host.
        if let Some(field_name) =
            namespace(name).filter(|field_name| json::flag(spec, &format!("/{field_name}")))
        {
            let detail = format!("may not be specified when '{field_name}' is true");
            causes.push(Cause::invalid(&field, &name.into(), &detail));
        }
    }
    causes
}

fn is_segment(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().next().is_some_and(inner)
        && text.bytes().last().is_some_and(inner)
        && text.bytes().all(|byte| inner(byte) || b"-_".contains(&byte))
}

/// The field that makes a pod share the namespace of a sysctl with the host. The first separator in the name determines
/// whether `.` or `/` separates its parts.
fn namespace(sysctl: &str) -> Option<&'static str> {
    let dotted = match sysctl.find(['.', '/']) {
        Some(at) if sysctl[at..].starts_with('/') => sysctl
            .chars()
            .map(|character| {
                if character == '/' {
                    '.'
                } else if character == '.' {
                    '/'
                } else {
                    character
                }
            })
            .collect(),
        _ => sysctl.to_owned(),
    };
    let is_ipc = matches!(
        dotted.strip_prefix("kernel.").unwrap_or_default(),
        "sem"
            | "shmall"
            | "shmmax"
            | "shmmni"
            | "shm_rmid_forced"
            | "shm"
            | "msgmax"
            | "msgmnb"
            | "msgmni"
            | "msg"
    );
    match () {
        () if dotted.starts_with("net.") => Some("hostNetwork"),
        () if is_ipc || dotted.starts_with("fs.mqueue.") => Some("hostIPC"),
        () => None,
    }
}

#[cfg(test)]
mod tests;
