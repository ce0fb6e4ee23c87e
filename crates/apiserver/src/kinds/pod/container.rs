//! Validation of a pod's containers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::volumes::local_descending_path;
use super::{environment, handlers, ports, resources, security};
use crate::kinds::volume::source;
use crate::kinds::{json, meta, names};
use crate::status::Cause;

/// Validates all containers. `volumes` are the volumes that a container can mount.
pub(super) fn validate_all(spec: &Value, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let containers = json::list(spec, "/containers");
    let mut causes = Vec::new();
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let grace = json::number(spec, "/terminationGracePeriodSeconds");
    let mut seen = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let at = format!("spec.containers[{index}]");
        causes.extend(validate(container, &at, spec, volumes));
        let name = json::text(container, "/name");
        if !seen.insert(name) {
            causes.push(Cause::duplicate(&format!("{at}.name"), &name.into()));
        }
        causes.extend(handlers::validate(container, &at, grace));
    }
    causes.extend(ports::conflicts(containers, "spec.containers"));
    for (index, container) in json::list(spec, "/initContainers").iter().enumerate() {
        let at = format!("spec.initContainers[{index}]");
        causes.extend(validate(container, &at, spec, volumes));
        let policy = json::text(container, "/restartPolicy");
        if !matches!(policy, "" | "Always") {
            causes.push(Cause::not_supported(&format!("{at}.restartPolicy"), &policy.into(), &["Always"]));
        }
        let name = json::text(container, "/name");
        if !seen.insert(name) {
            causes.push(Cause::duplicate(&format!("{at}.name"), &name.into()));
        }
        // Init containers run one after the other. Upstream reports each with index 0.
        causes.extend(ports::conflicts(std::slice::from_ref(container), "spec.initContainers"));
        if policy == "Always" {
            causes.extend(handlers::validate(container, &at, grace));
            continue;
        }
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if json::has(container, &format!("/{field}")) {
                let detail = "may not be set for init containers without restartPolicy=Always";
                causes.push(Cause::forbidden(&format!("{at}.{field}"), detail));
            }
        }
    }
    causes
}

fn validate(container: &Value, at: &str, spec: &Value, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let text = |field: &str| json::text(container, &format!("/{field}"));
    let mut causes = Vec::new();
    match text("name") {
        "" => causes.push(Cause::required(&format!("{at}.name"), "")),
        name => causes.extend(meta::invalid_causes(&format!("{at}.name"), name, names::label(name, false))),
    }
    if text("image").is_empty() {
        causes.push(Cause::required(&format!("{at}.image"), ""));
    }
    causes.extend(one_of(
        text("terminationMessagePolicy"),
        &format!("{at}.terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    ));
    causes.extend(ports::validate(container, at));
    causes.extend(environment::validate(container, at));
    causes.extend(mounts(container, at, volumes));
    causes.extend(devices(container, at, volumes));
    let policies = ["Always", "IfNotPresent", "Never"];
    causes.extend(one_of(text("imagePullPolicy"), &format!("{at}.imagePullPolicy"), &policies));
    causes.extend(resources::validate(container, at));
    causes.extend(resources::resize_policies(container, at, json::text(spec, "/restartPolicy")));
    causes.extend(security::container(container, at, security::has_host_users(spec)));
    causes
}

/// Validates a required enum value.
pub(super) fn one_of(value: &str, field: &str, known: &[&str]) -> Option<Cause> {
    match value {
        "" => Some(Cause::required(field, "")),
        value if known.contains(&value) => None,
        value => Some(Cause::not_supported(field, &value.into(), known)),
    }
}

fn mounts(container: &Value, at: &str, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let devices = texts_of(container, "/volumeDevices", "/name");
    let device_paths = texts_of(container, "/volumeDevices", "/devicePath");
    let at = format!("{at}.volumeMounts");
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, mount) in json::list(container, "/volumeMounts").iter().enumerate() {
        let text = |field: &str| json::text(mount, &format!("/{field}"));
        let field = |field: &str| format!("{at}[{index}].{field}");
        let (name, path) = (text("name"), text("mountPath"));
        if name.is_empty() {
            causes.push(Cause::required(&field("name"), ""));
        }
        if !volumes.contains_key(name) {
            causes.push(Cause::not_found(&field("name"), &name.into()));
        }
        if path.is_empty() {
            causes.push(Cause::required(&field("mountPath"), ""));
        }
        if !seen.insert(path) {
            causes.push(Cause::invalid(&field("mountPath"), &path.into(), "must be unique"));
        }
        if devices.contains(name) {
            causes.push(Cause::invalid(
                &field("name"),
                &name.into(),
                "must not already exist in volumeDevices",
            ));
        }
        if device_paths.contains(path) {
            let detail = "must not already exist as a path in volumeDevices";
            causes.push(Cause::invalid(&field("mountPath"), &path.into(), detail));
        }
        if !text("subPath").is_empty() {
            causes.extend(local_descending_path(text("subPath"), &format!("{at}.subPath")));
        }
        if !text("subPathExpr").is_empty() {
            if !text("subPath").is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                causes.push(Cause::invalid(&field("subPathExpr"), &text("subPathExpr").into(), detail));
            }
            causes.extend(local_descending_path(text("subPathExpr"), &format!("{at}.subPathExpr")));
        }
        let propagation = text("mountPropagation");
        let known = ["Bidirectional", "HostToContainer", "None"];
        if !propagation.is_empty() && !known.contains(&propagation) {
            causes.push(Cause::not_supported(&format!("{at}.mountPropagation"), &propagation.into(), &known));
        }
        if propagation == "Bidirectional" && !json::flag(container, "/securityContext/privileged") {
            let detail = "Bidirectional mount propagation is available only to privileged containers";
            causes.push(Cause::forbidden(&format!("{at}.mountPropagation"), detail));
        }
    }
    causes
}

/// The strings at a pointer in each item of a list.
fn texts_of<'a>(container: &'a Value, list: &str, at: &str) -> BTreeSet<&'a str> {
    json::list(container, list).iter().map(|member| json::text(member, at)).collect()
}

fn devices(container: &Value, at: &str, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let mounts = texts_of(container, "/volumeMounts", "/name");
    let mount_paths = texts_of(container, "/volumeMounts", "/mountPath");
    let mut causes = Vec::new();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in json::list(container, "/volumeDevices").iter().enumerate() {
        let field = |field: &str| format!("{at}.volumeDevices[{index}].{field}");
        let (name, path) = (json::text(device, "/name"), json::text(device, "/devicePath"));
        if name.is_empty() {
            causes.push(Cause::required(&field("name"), ""));
        }
        if names.contains(name) {
            causes.push(Cause::invalid(&field("name"), &name.into(), "must be unique"));
        }
        match volumes.get(name) {
            None => causes.push(Cause::not_found(&field("name"), &name.into())),
            Some(volume)
                if volume.get("persistentVolumeClaim").or_else(|| volume.get("ephemeral")).is_none() =>
            {
                let detail =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                causes.push(Cause::invalid(&field("name"), &name.into(), detail));
            }
            Some(_) => (),
        }
        if path.is_empty() {
            causes.push(Cause::required(&field("devicePath"), ""));
        }
        if paths.contains(path) {
            causes.push(Cause::invalid(&field("devicePath"), &path.into(), "must be unique"));
        }
        if source::no_backsteps(path, "").is_some() {
            causes.push(Cause::invalid(
                &field("devicePath"),
                &path.into(),
                "can not contain backsteps ('..')",
            ));
        } else {
            paths.insert(path);
        }
        if mounts.contains(name) {
            causes.push(Cause::invalid(
                &field("name"),
                &name.into(),
                "must not already exist in volumeMounts",
            ));
        }
        if mount_paths.contains(path) {
            let detail = "must not already exist as a path in volumeMounts";
            causes.push(Cause::invalid(&field("devicePath"), &path.into(), detail));
        }
        names.insert(name);
    }
    causes
}

/// Validates images, as upstream does for pods but not for pod templates.
pub(super) fn images(spec: &Value, list: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, container) in json::list(spec, &format!("/{list}")).iter().enumerate() {
        let image = json::text(container, "/image");
        if image.trim() != image {
            let detail = "must not have leading or trailing whitespace";
            causes.push(Cause::invalid(&format!("spec.{list}[{index}].image"), &image.into(), detail));
        }
    }
    causes
}
