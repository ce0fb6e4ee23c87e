//! Validation of container ports and host ports.

use std::collections::BTreeSet;

use serde_json::Value;

use super::container::one_of;
use crate::kinds::{json, meta};
use crate::status::Cause;

/// Validates the name of a port.
pub(super) fn name(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > 15 {
        errors.push("must be no more than 15 characters".into());
    }
    let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || !name.bytes().all(is_known) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !name.bytes().any(|byte| byte.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        errors.push("must not contain consecutive hyphens".into());
    }
    if name.starts_with('-') || name.ends_with('-') {
        errors.push("must not begin or end with a hyphen".into());
    }
    errors
}

/// Validates the ports of a container.
pub(super) fn validate(container: &Value, at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, port) in json::list(container, "/ports").iter().enumerate() {
        let at = format!("{at}.ports[{index}]");
        let name = json::text(port, "/name");
        if !name.is_empty() {
            let errors = self::name(name);
            if errors.is_empty() && !seen.insert(name) {
                causes.push(Cause::duplicate(&format!("{at}.name"), &name.into()));
            }
            causes.extend(meta::invalid_causes(&format!("{at}.name"), name, errors));
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

/// Rejects host ports that two containers use.
pub(super) fn conflicts(containers: &[Value], at: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        for (j, port) in json::list(container, "/ports").iter().enumerate() {
            let host = json::number(port, "/hostPort").unwrap_or_default();
            let text = |field: &str| json::text(port, &format!("/{field}"));
            let taken = format!("{}/{}/{host}", text("protocol"), text("hostIP"));
            if host != 0 && !seen.insert(taken.clone()) {
                let field = format!("{at}[{i}].ports[{j}].hostPort");
                causes.push(Cause::duplicate(&field, &taken.into()));
            }
        }
    }
    causes
}

/// With `hostNetwork`, each container port must equal its host port.
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
