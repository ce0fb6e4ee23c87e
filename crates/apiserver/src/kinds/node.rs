//! Node: a machine.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wharf_model::Quantity;

use super::{AGE, BASE, Column, Kind, NAME, Operation, Subresource, age, go, json, meta, names};
use crate::status::Cause;

pub(super) static NODE: Kind = Kind {
    kind: "Node",
    plural: "nodes",
    singular: "node",
    short_names: &["no"],
    subresources: &[Subresource::status("", "Node")],
    default,
    on_create: |node, _| {
        json::object_mut(node, "spec").remove("configSource");
        json::object_mut(node, "status").remove("config");
    },
    on_update: |node, old, _| {
        json::restore(node, old, "status");
        if !json::has(old, "/spec/configSource") {
            json::object_mut(node, "spec").remove("configSource");
        }
    },
    // A status update can also change labels and annotations: nodes report their topology this way.
    on_status: |node, old, _| {
        json::restore(node, old, "spec");
        if !json::has(old, "/status/config") {
            json::object_mut(node, "status").remove("config");
        }
    },
    validate,
    validate_update: |node, old| {
        let mut causes = validate(node);
        causes.extend(validate_change(node, old));
        causes
    },
    validate_status: validate_change,
    warnings: |node, _| {
        let warning = "spec.externalID: this field is deprecated, and is unused by Kubernetes";
        if json::text(node, "/spec/externalID").is_empty() { Vec::new() } else { vec![warning.into()] }
    },
    admit: |node, admission| {
        if admission.operation == Operation::Create && admission.subresource.is_empty() {
            add_not_ready_taint(node);
        }
        Ok(())
    },
    fields: &[("spec.unschedulable", |node| json::flag(node, "/spec/unschedulable").to_string())],
    columns: &[
        NAME,
        Column::text("Status", "Whether the node is ready and schedulable."),
        Column::text("Roles", "The roles of the node."),
        AGE,
        Column::text("Version", "The version of the kubelet."),
        Column::text("Internal-IP", "The address of the node within the cluster.").wide(),
        Column::text("External-IP", "The address of the node outside the cluster.").wide(),
        Column::text("OS-Image", "The operating system of the node.").wide(),
        Column::text("Kernel-Version", "The kernel of the node.").wide(),
        Column::text("Container-Runtime", "The container runtime of the node.").wide(),
    ],
    row,
    ..BASE
};

/// Fields of `nodeInfo` that Go serializes even if they are empty.
const NODE_INFO_FIELDS: [&str; 10] = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
];

fn default(node: &mut Value) {
    let spec = json::object_mut(node, "spec");
    // The older field, podCIDR, is the first item of podCIDRs.
    match (spec.get("podCIDR").cloned(), spec.get("podCIDRs").and_then(|all| all.get(0)).cloned()) {
        (Some(one), first) if first.as_ref() != Some(&one) => {
            spec.insert("podCIDRs".into(), json!([one]));
        }
        (None, Some(first)) => {
            spec.insert("podCIDR".into(), first);
        }
        _ => (),
    }
    let status = json::object_mut(node, "status");
    if let (None, Some(capacity)) = (status.get("allocatable"), status.get("capacity").cloned()) {
        status.insert("allocatable".into(), capacity);
    }
    json::set_default(status, "daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
    json::set_default(status, "nodeInfo", json!({}));
    if let Some(Value::Object(info)) = status.get_mut("nodeInfo") {
        for field in NODE_INFO_FIELDS {
            json::set_default(info, field, "");
        }
    }
    json::null_missing_times(node, "/status/conditions", &["lastHeartbeatTime", "lastTransitionTime"]);
}

/// Taints a new node, so that it receives no pods before it is ready.
fn add_not_ready_taint(node: &mut Value) {
    const KEY: &str = "node.kubernetes.io/not-ready";
    let is = |taint: &Value| json::text(taint, "/key") == KEY && json::text(taint, "/effect") == "NoSchedule";
    let taints = json::object_mut(node, "spec").entry("taints").or_insert_with(|| json!([]));
    if let Value::Array(taints) = taints
        && !taints.iter().any(is)
    {
        taints.push(json!({"key": KEY, "effect": "NoSchedule"}));
    }
}

fn validate(node: &Value) -> Vec<Cause> {
    let mut causes = meta::validate(node, false, names::subdomain);
    causes.extend(taints(node));
    causes.extend(resources(node));
    if let Some(swap @ ..=0) = json::number(node, "/status/nodeInfo/swap/capacity") {
        causes.push(Cause::invalid(
            "metadata.nodeSwapStatus.capacity",
            &swap.into(),
            "must be greater than zero",
        ));
    }
    let cidrs = json::list(node, "/spec/podCIDRs");
    for (index, cidr) in cidrs.iter().enumerate() {
        if is_ipv6_cidr(cidr).is_none() {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            causes.push(Cause::invalid(&format!("spec.podCIDRs[{index}]"), cidr, detail));
        }
    }
    if cidrs.len() > 1 && (cidrs.len() > 2 || is_ipv6_cidr(&cidrs[0]) == is_ipv6_cidr(&cidrs[1])) {
        let detail = "may specify no more than one CIDR for each IP family";
        causes.push(Cause::invalid("spec.podCIDRs", &cidrs.to_vec().into(), detail));
    }
    causes
}

/// Whether a CIDR is IPv6; `None` if it is not a valid CIDR.
fn is_ipv6_cidr(cidr: &Value) -> Option<bool> {
    let (address, length) = cidr.as_str()?.split_once('/')?;
    let address: std::net::IpAddr = address.parse().ok()?;
    let max_length = if address.is_ipv6() { 128 } else { 32 };
    length.parse::<u8>().is_ok_and(|length| length <= max_length).then_some(address.is_ipv6())
}

/// Validates the effect of a taint or a toleration.
pub(super) fn taint_effect(effect: &str, field: &str, may_be_empty: bool) -> Option<Cause> {
    match effect {
        "" if !may_be_empty => Some(Cause::required(field, "")),
        "NoSchedule" | "PreferNoSchedule" | "NoExecute" => None,
        other => {
            Some(Cause::not_supported(field, &other.into(), &["NoSchedule", "PreferNoSchedule", "NoExecute"]))
        }
    }
}

fn taints(node: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, taint) in json::list(node, "/spec/taints").iter().enumerate() {
        let field = format!("metadata.taints[{index}]");
        let text = |name: &str| json::text(taint, &format!("/{name}"));
        causes.extend(meta::invalid_causes(
            &format!("{field}.key"),
            text("key"),
            names::qualified_name(text("key")),
        ));
        let errors = names::label_value(text("value"));
        if !errors.is_empty() {
            causes.push(Cause::invalid(&format!("{field}.value"), &text("value").into(), &errors.join(";")));
        }
        causes.extend(taint_effect(text("effect"), &format!("{field}.effect"), false));
        if !seen.insert((text("key"), text("effect"))) {
            let message = format!(
                "Duplicate value: {}: taints must be unique by key and effect pair",
                go::compact(taint, "Taint")
            );
            causes.push(Cause { reason: "FieldValueDuplicate", field, message });
        }
    }
    causes
}

fn resources(node: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for part in ["capacity", "allocatable"] {
        for (resource, value) in json::entries(node, &format!("/status/{part}")) {
            causes.extend(resource_value(resource, value, &format!("status.{part}.{resource}")));
        }
    }
    causes
}

/// Validates the quantity of a resource.
pub(super) fn resource_value(resource: &str, value: &Value, field: &str) -> Vec<Cause> {
    const INTEGER_RESOURCES: [&str; 9] = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    let Some(quantity) = json::quantity(value, "") else { return Vec::new() };
    let mut causes = Vec::new();
    if quantity < Quantity::ZERO {
        causes.push(Cause::invalid(field, value, "must be greater than or equal to 0"));
    }
    let is_extended =
        resource.contains('/') && !resource.contains("kubernetes.io/") && !resource.starts_with("requests.");
    if (is_extended || INTEGER_RESOURCES.contains(&resource))
        && Quantity::from_bytes(quantity.bytes()) != quantity
    {
        causes.push(Cause::invalid(field, value, "must be an integer"));
    }
    causes
}

fn validate_change(node: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = meta::validate_update(node, old);
    causes.extend(resources(node));
    let mut seen = BTreeSet::new();
    for (index, address) in json::list(node, "/status/addresses").iter().enumerate() {
        if !seen.insert((json::text(address, "/type"), json::text(address, "/address"))) {
            let message = format!("Duplicate value: {}", go::compact(address, "NodeAddress"));
            causes.push(Cause {
                reason: "FieldValueDuplicate",
                field: format!("status.addresses[{index}]"),
                message,
            });
        }
    }
    let (cidrs, before) = (json::list(node, "/spec/podCIDRs"), json::list(old, "/spec/podCIDRs"));
    let changed = if cidrs.len() == before.len() {
        cidrs.iter().zip(before).filter(|(new, old)| new != old).count()
    } else {
        usize::from(!before.is_empty())
    };
    let detail = "node updates may not change podCIDR except from \"\" to valid";
    causes.extend((0..changed).map(|_| Cause::forbidden("spec.podCIDRs", detail)));
    let provider = json::text(old, "/spec/providerID");
    if !provider.is_empty() && provider != json::text(node, "/spec/providerID") {
        let detail = "node updates may not change providerID except from \"\" to valid";
        causes.push(Cause::forbidden("spec.providerID", detail));
    }
    causes.extend(taints(node));
    if json::text(node, "/spec/externalID") != json::text(old, "/spec/externalID") {
        causes.push(Cause::forbidden("spec.externalID", "may not be updated"));
    }
    causes
}

fn row(node: &Value, now: wharf_model::Time) -> Vec<Value> {
    let conditions = json::list(node, "/status/conditions");
    let ready = conditions.iter().rfind(|condition| json::text(condition, "/type") == "Ready");
    let mut status = match ready.map(|condition| json::text(condition, "/status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if json::flag(node, "/spec/unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let roles: BTreeSet<&str> = json::entries(node, "/metadata/labels")
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    let roles: Vec<&str> = roles.into_iter().collect();
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    let info = |field: &str| json::text(node, &format!("/status/nodeInfo/{field}"));
    let address = |kind: &str| {
        let mut all = json::list(node, "/status/addresses").iter();
        let found = all.find(|address| json::text(address, "/type") == kind);
        Value::from(found.map_or("<none>", |address| json::text(address, "/address")))
    };
    vec![
        json::text(node, "/metadata/name").into(),
        status.into(),
        or(&roles.join(","), "<none>").into(),
        age(node, now).into(),
        info("kubeletVersion").into(),
        address("InternalIP"),
        address("ExternalIP"),
        or(info("osImage"), "<unknown>").into(),
        or(info("kernelVersion"), "<unknown>").into(),
        or(info("containerRuntimeVersion"), "<unknown>").into(),
    ]
}

#[cfg(test)]
mod tests {
    use wharf_model::Time;

    use super::*;
    use crate::kinds::testing::{FakeLookup, admit, invalid, invalid_update, lines, with};

    fn valid() -> Value {
        json!({"metadata": {"name": "n1"}, "spec": {}, "status": {}})
    }

    #[test]
    fn unset_fields_get_defaults() {
        let mut node = json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"}, "status": {
            "capacity": {"cpu": "1"}, "nodeInfo": {"osImage": "x"}, "conditions": [{"type": "Ready", "status": "True"}],
        }});
        (NODE.default)(&mut node);
        assert_eq!(node["spec"], json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}));
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "1"}));
        assert_eq!(node["status"]["daemonEndpoints"], json!({"kubeletEndpoint": {"Port": 0}}));
        assert_eq!(node["status"]["nodeInfo"]["osImage"], "x");
        assert_eq!(node["status"]["nodeInfo"]["bootID"], "");
        assert_eq!(node["status"]["conditions"][0]["lastHeartbeatTime"], Value::Null);
    }

    #[test]
    fn create_adds_not_ready_taint() {
        let mut node = valid();
        admit(&NODE, &mut node, Operation::Create, None, &FakeLookup(vec![])).unwrap();
        assert_eq!(
            node["spec"]["taints"],
            json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
        );
        let before = node.clone();
        admit(&NODE, &mut node, Operation::Create, None, &FakeLookup(vec![])).unwrap();
        assert_eq!(node, before);
    }

    #[test]
    fn create_is_validated() {
        let taint = |taint: Value| json!({"spec": {"taints": [taint]}});
        let twice = json!({"spec": {"taints": [
            {"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule", "value": "x"},
        ]}});
        for (patch, expected) in [
            (json!({}), vec![]),
            (taint(json!({"key": "a", "effect": "NoSchedule"})), vec![]),
            (taint(json!({"key": "a"})), vec!["metadata.taints[0].effect: Required value"]),
            (
                taint(json!({"key": "a", "effect": "No"})),
                vec![
                    "metadata.taints[0].effect: Unsupported value: \"No\": supported values: \"NoSchedule\", \
                 \"PreferNoSchedule\", \"NoExecute\"",
                ],
            ),
            (
                twice,
                vec![
                    "metadata.taints[1]: Duplicate value: {\"Key\":\"a\",\"Value\":\"x\",\"Effect\":\"NoSchedule\",\
                 \"TimeAdded\":null}: taints must be unique by key and effect pair",
                ],
            ),
            (
                json!({"status": {"capacity": {"cpu": "-1"}, "allocatable": {}}}),
                vec!["status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0"],
            ),
            (
                json!({"status": {"capacity": {"x.io/gpu": "500m"}, "allocatable": {}}}),
                vec!["status.capacity.x.io/gpu: Invalid value: \"500m\": must be an integer"],
            ),
            (
                json!({"spec": {"podCIDRs": ["10.0.0.0"]}}),
                vec![
                    "spec.podCIDRs[0]: Invalid value: \"10.0.0.0\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or \
                 2001:db8::/64)",
                ],
            ),
        ] {
            assert_eq!(invalid(&NODE, &valid(), &patch), expected, "{patch}");
        }
    }

    #[test]
    fn update_is_validated() {
        let old =
            json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.0.0.0/24", "providerID": "p://1"}});
        for (patch, expected) in [
            (json!({"spec": {"unschedulable": true}}), vec![]),
            (
                json!({"spec": {"podCIDR": "10.0.1.0/24"}}),
                vec![
                    "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
                ],
            ),
            (
                json!({"spec": {"providerID": "p://2"}}),
                vec![
                    "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
                ],
            ),
        ] {
            assert_eq!(invalid_update(&NODE, &old, &patch), expected, "{patch}");
        }
    }

    #[test]
    fn status_update_can_change_labels() {
        let old = with(&valid(), &json!({"metadata": {"resourceVersion": "1", "uid": "u"}}));
        let change = json!({
            "metadata": {"labels": {"zone": "a"}, "annotations": {"csi": "x"}}, "spec": {"unschedulable": true},
            "status": {"addresses": [{"type": "InternalIP", "address": "1"}, {"type": "InternalIP", "address": "1"}]},
        });
        let mut status = with(&old, &change);
        NODE.prepare_status(&mut status, &old, Time(0));
        assert_eq!(status["metadata"]["labels"]["zone"], "a");
        assert_eq!(status["spec"], old["spec"]);
        assert_eq!(
            lines(NODE.invalid_on_status(&status, &old)),
            ["status.addresses[1]: Duplicate value: {\"Type\":\"InternalIP\",\"Address\":\"1\"}",]
        );
        let mut update = with(&old, &change);
        NODE.prepare_update(&mut update, &old, Time(0));
        assert_eq!(update["status"], old["status"]);
        assert_eq!(update["spec"]["unschedulable"], true);
    }

    #[test]
    fn table_rows_and_field_selectors_match_upstream() {
        let row = |node: &Value| Value::from((NODE.row)(node, Time(0)));
        assert_eq!(
            row(&valid()),
            json!([
                "n1",
                "Unknown",
                "<none>",
                "<unknown>",
                "",
                "<none>",
                "<none>",
                "<unknown>",
                "<unknown>",
                "<unknown>",
            ])
        );
        let node = json!({
            "metadata": {"name": "n1", "labels": {
                "node-role.kubernetes.io/worker": "", "node-role.kubernetes.io/control-plane": "",
                "kubernetes.io/role": "x",
            }},
            "spec": {"unschedulable": true},
            "status": {
                "conditions": [{"type": "Ready", "status": "False"}], "nodeInfo": {"kubeletVersion": "v1"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            },
        });
        let cells = row(&node);
        assert_eq!(cells[1], "NotReady,SchedulingDisabled");
        assert_eq!(cells[2], "control-plane,worker,x");
        assert_eq!(cells[4], "v1");
        assert_eq!(cells[5], "10.0.0.1");
        let value = |node: &Value| NODE.field("spec.unschedulable").map(|value| value(node)).unwrap();
        assert_eq!((value(&node), value(&valid())), ("true".into(), "false".into()));
    }
}
