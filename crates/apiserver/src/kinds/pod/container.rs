//! The containers of a pod.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use wharf_model::Quantity;

use super::volumes::descending;
use crate::kinds::volume::source;
use crate::kinds::{json, meta, names, node};
use crate::status::Cause;

/// What is wrong with all containers. `volumes` are those that a container can name.
pub(super) fn validate_all(spec: &Value, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let containers = json::list(spec, "/containers");
    let mut causes = Vec::new();
    if containers.is_empty() {
        causes.push(Cause::required("spec.containers", ""));
    }
    let mut seen = BTreeSet::new();
    for (index, container) in containers.iter().enumerate() {
        let at = format!("spec.containers[{index}]");
        causes.extend(validate(container, &at, volumes));
        let name = json::text(container, "/name");
        if !seen.insert(name) {
            causes.push(Cause::duplicate(&format!("{at}.name"), &name.into()));
        }
    }
    for (index, container) in json::list(spec, "/initContainers").iter().enumerate() {
        let at = format!("spec.initContainers[{index}]");
        causes.extend(validate(container, &at, volumes));
        let policy = json::text(container, "/restartPolicy");
        if !matches!(policy, "" | "Always") {
            causes.push(Cause::not_supported(&format!("{at}.restartPolicy"), &policy.into(), &["Always"]));
        }
        let name = json::text(container, "/name");
        if !seen.insert(name) {
            causes.push(Cause::duplicate(&format!("{at}.name"), &name.into()));
        }
        if policy == "Always" {
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

fn validate(container: &Value, at: &str, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let of = |field: &str| json::text(container, &format!("/{field}"));
    let mut causes = Vec::new();
    match of("name") {
        "" => causes.push(Cause::required(&format!("{at}.name"), "")),
        name => causes.extend(meta::each(&format!("{at}.name"), name, names::label(name, false))),
    }
    if of("image").is_empty() {
        causes.push(Cause::required(&format!("{at}.image"), ""));
    }
    causes.extend(one_of(
        of("terminationMessagePolicy"),
        &format!("{at}.terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    ));
    causes.extend(ports(container, at));
    causes.extend(environment(container, at));
    causes.extend(mounts(container, at, volumes));
    causes.extend(devices(container, at, volumes));
    let policies = ["Always", "IfNotPresent", "Never"];
    causes.extend(one_of(of("imagePullPolicy"), &format!("{at}.imagePullPolicy"), &policies));
    causes.extend(resources(container, at));
    causes
}

fn one_of(value: &str, field: &str, known: &[&str]) -> Option<Cause> {
    match value {
        "" => Some(Cause::required(field, "")),
        value if known.contains(&value) => None,
        value => Some(Cause::not_supported(field, &value.into(), known)),
    }
}

fn port_name(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 15 {
        wrong.push("must be no more than 15 characters".into());
    }
    if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        wrong.push("must not contain consecutive hyphens".into());
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".into());
    }
    wrong
}

fn ports(container: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in json::list(container, "/ports").iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        let name = json::text(port, "/name");
        if !name.is_empty() {
            let wrong = port_name(name);
            if wrong.is_empty() && !seen.insert(name) {
                causes.push(Cause::duplicate(&format!("{at}.name"), &name.into()));
            }
            causes.extend(meta::each(&format!("{at}.name"), name, wrong));
        }
        for (field, is_required) in [("containerPort", true), ("hostPort", false)] {
            match json::number(port, &format!("/{field}")).unwrap_or_default() {
                0 if is_required => causes.push(Cause::required(&format!("{at}.{field}"), "")),
                0..=65535 => (),
                number => {
                    let detail = "must be between 1 and 65535, inclusive";
                    causes.push(Cause::invalid(&format!("{at}.{field}"), &number.into(), detail));
                }
            }
        }
        causes.extend(one_of(
            json::text(port, "/protocol"),
            &format!("{at}.protocol"),
            &["SCTP", "TCP", "UDP"],
        ));
    }
    causes
}

/// In the network of the host, ports are the host's.
pub(super) fn host_ports(spec: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (i, container) in json::list(spec, "/containers").iter().enumerate() {
        for (j, port) in json::list(container, "/ports").iter().enumerate() {
            let host = json::number(port, "/hostPort").unwrap_or_default();
            if host != json::number(port, "/containerPort").unwrap_or_default() {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                causes.push(Cause::invalid(
                    &format!("spec.containers[{i}].ports[{j}].hostPort"),
                    &host.into(),
                    detail,
                ));
            }
        }
    }
    causes
}

fn variable_name(name: &str) -> Vec<String> {
    if name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=') {
        return Vec::new();
    }
    vec![
        "a valid environment variable name must consist only of printable ASCII characters other than '='"
            .into(),
    ]
}

fn environment(container: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for (index, variable) in json::list(container, "/env").iter().enumerate() {
        let at = format!("{at}.env[{index}]");
        match json::text(variable, "/name") {
            "" => causes.push(Cause::required(&format!("{at}.name"), "")),
            name => causes.extend(meta::each(&format!("{at}.name"), name, variable_name(name))),
        }
        let Some(Value::Object(from)) = variable.get("valueFrom") else { continue };
        let at = format!("{at}.valueFrom");
        for reference in ["configMapKeyRef", "secretKeyRef"] {
            let Some(of) = from.get(reference) else { continue };
            let at = format!("{at}.{reference}");
            let name = json::text(of, "/name");
            causes.extend(meta::each(&format!("{at}.name"), name, names::subdomain(name, false)));
            match json::text(of, "/key") {
                "" => causes.push(Cause::required(&format!("{at}.key"), "")),
                key => causes.extend(meta::each(&format!("{at}.key"), key, names::key(key))),
            }
        }
        let wrong = if from.is_empty() {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        } else if !json::text(variable, "/value").is_empty() {
            "may not be specified when `value` is not empty"
        } else if from.len() > 1 {
            "may not have more than one field specified at a time"
        } else {
            continue;
        };
        causes.push(Cause::invalid(&at, &"".into(), wrong));
    }
    for (index, source) in json::list(container, "/envFrom").iter().enumerate() {
        let prefix = json::text(source, "/prefix");
        causes.extend(meta::each(&format!("{at}.envFrom[{index}].prefix"), prefix, variable_name(prefix)));
        let mut found = 0;
        for reference in ["configMapRef", "secretRef"] {
            let Some(of) = source.get(reference) else { continue };
            found += 1;
            let name = json::text(of, "/name");
            let field = format!("{at}.envFrom[{index}].{reference}.name");
            causes.extend(meta::each(&field, name, names::subdomain(name, false)));
        }
        let wrong = match found {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        causes.push(Cause::invalid(&format!("{at}.envFrom"), &"".into(), wrong));
    }
    causes
}

fn mounts(container: &Value, at: &str, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let devices = texts(container, "/volumeDevices", "/name");
    let device_paths = texts(container, "/volumeDevices", "/devicePath");
    let at = format!("{at}.volumeMounts");
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, mount) in json::list(container, "/volumeMounts").iter().enumerate() {
        let of = |field: &str| json::text(mount, &format!("/{field}"));
        let field = |field: &str| format!("{at}[{index}].{field}");
        let (name, path) = (of("name"), of("mountPath"));
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
        if !of("subPath").is_empty() {
            causes.extend(descending(of("subPath"), &format!("{at}.subPath")));
        }
        if !of("subPathExpr").is_empty() {
            if !of("subPath").is_empty() {
                let detail = "subPathExpr and subPath are mutually exclusive";
                causes.push(Cause::invalid(&field("subPathExpr"), &of("subPathExpr").into(), detail));
            }
            causes.extend(descending(of("subPathExpr"), &format!("{at}.subPathExpr")));
        }
        let propagation = of("mountPropagation");
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

/// What the members of a list have at a place.
fn texts<'a>(container: &'a Value, list: &str, at: &str) -> BTreeSet<&'a str> {
    json::list(container, list).iter().map(|member| json::text(member, at)).collect()
}

fn devices(container: &Value, at: &str, volumes: &BTreeMap<&str, &Value>) -> Vec<Cause> {
    let mounts = texts(container, "/volumeMounts", "/name");
    let mount_paths = texts(container, "/volumeMounts", "/mountPath");
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

/// Whether more of it can be asked for than there is.
fn is_shareable(resource: &str) -> bool {
    (!resource.contains('/') || resource.contains("kubernetes.io/")) && !resource.starts_with("hugepages-")
}

fn resources(container: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    for part in ["limits", "requests"] {
        for (resource, value) in json::entries(container, &format!("/resources/{part}")) {
            let field = format!("{at}.resources.{part}[{resource}]");
            let wrong = names::qualified(resource);
            let is_native = !resource.contains('/');
            let known = ["cpu", "memory", "ephemeral-storage"].contains(&resource)
                || resource.starts_with("hugepages-");
            if !wrong.is_empty() {
                causes.extend(meta::each(&field, resource, wrong));
            } else if is_native && !known {
                let standard =
                    ["storage", "pods", "services", "secrets", "configmaps", "persistentvolumeclaims"];
                if !standard.contains(&resource) {
                    let detail = "must be a standard resource type or fully qualified";
                    causes.push(Cause::invalid(&field, &resource.into(), detail));
                }
                let detail = "must be a standard resource for containers";
                causes.push(Cause::invalid(&field, &resource.into(), detail));
            }
            causes.extend(node::resource_value(resource, value, &field));
            if part == "limits" {
                continue;
            }
            let all = format!("{at}.resources.requests");
            let limit = container.pointer("/resources/limits").and_then(|limits| limits.get(resource));
            match (limit, json::quantity(value, "")) {
                (Some(limit), Some(request)) => {
                    let most = json::quantity(limit, "").unwrap_or(Quantity::ZERO);
                    let words = limit.as_str().unwrap_or_default();
                    if request != most && !is_shareable(resource) {
                        let detail = format!("must be equal to {resource} limit of {words}");
                        causes.push(Cause::invalid(&all, value, &detail));
                    } else if request > most {
                        let detail = format!("must be less than or equal to {resource} limit of {words}");
                        causes.push(Cause::invalid(&all, value, &detail));
                    }
                }
                (None, _) if !is_shareable(resource) => {
                    let detail = "Limit must be set for non overcommitable resources";
                    causes.push(Cause::required(&format!("{at}.resources.limits"), detail));
                }
                _ => (),
            }
        }
    }
    causes
}

/// What is wrong with images, in pods alone.
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

/// How well a pod is served when there is not enough.
pub(super) fn quality(pod: &Value) -> &'static str {
    let mut is_any = false;
    let mut is_guaranteed = true;
    for list in ["/spec/containers", "/spec/initContainers"] {
        for container in json::list(pod, list) {
            let of = |part: &str, resource: &str| {
                json::quantity(container, &format!("/resources/{part}/{resource}"))
                    .filter(|size| *size > Quantity::ZERO)
            };
            for resource in ["cpu", "memory"] {
                let (request, limit) = (of("requests", resource), of("limits", resource));
                is_any |= request.is_some() || limit.is_some();
                is_guaranteed &= limit.is_some() && request == limit;
            }
        }
    }
    match (is_any, is_guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}
