//! Defaults of pods.

use serde_json::{Map, Value, json};

use crate::kinds::{json, legacy};

/// Sets the defaults of a pod.
pub(super) fn default(pod: &mut Value) {
    let spec = json::object_mut(pod, "spec");
    json::set_default(spec, "containers", Value::Null);
    for (field, value) in [
        ("dnsPolicy", json!("ClusterFirst")),
        ("restartPolicy", json!("Always")),
        ("securityContext", json!({})),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
    ] {
        json::set_default(spec, field, value);
    }
    // serviceAccount is the deprecated alias of serviceAccountName.
    if let Some(account) = spec.get("serviceAccountName").or_else(|| spec.get("serviceAccount")).cloned() {
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
    let is_host = spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default();
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for one in objects(spec.get_mut(list)) {
            container(one, is_host);
        }
    }
    for one in objects(spec.get_mut("volumes")) {
        volume(one);
    }
    json::object_mut(pod, "status");
    json::null_missing_times(pod, "/status/conditions", &["lastProbeTime", "lastTransitionTime"]);
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for status in objects(pod.get_mut("status").and_then(|status| status.get_mut(list))) {
            for state in ["state", "lastState"] {
                json::set_default(status, state, json!({}));
                let Some(state) = status.get_mut(state) else { continue };
                for (detail, times) in
                    [("running", &["startedAt"][..]), ("terminated", &["startedAt", "finishedAt"])]
                {
                    if let Some(Value::Object(detail)) = state.get_mut(detail) {
                        for time in times {
                            detail.entry(*time).or_insert(Value::Null);
                        }
                    }
                }
            }
        }
    }
}

fn objects(list: Option<&mut Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    list.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn container(container: &mut Map<String, Value>, is_host: bool) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = if uses_latest_tag(image) { "Always" } else { "IfNotPresent" };
    json::set_default(container, "imagePullPolicy", policy);
    json::set_default(container, "terminationMessagePath", "/dev/termination-log");
    json::set_default(container, "terminationMessagePolicy", "File");
    json::set_default(container, "resources", json!({}));
    if let Some(resources) = container.get_mut("resources") {
        default_requests(resources);
    }
    for port in objects(container.get_mut("ports")) {
        json::set_default(port, "protocol", "TCP");
        if let (true, Some(number)) = (is_host, port.get("containerPort").cloned()) {
            json::set_default(port, "hostPort", number);
        }
    }
    for variable in objects(container.get_mut("env")) {
        if let Some(Value::Object(field)) =
            variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef"))
        {
            json::set_default(field, "apiVersion", "v1");
        }
        if let Some(Value::Object(field)) =
            variable.get_mut("valueFrom").and_then(|from| from.get_mut("resourceFieldRef"))
        {
            json::set_default(field, "divisor", "0");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(Value::Object(probe)) = container.get_mut(probe) {
            for (field, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                json::set_default(probe, field, value);
            }
            http_get(probe.get_mut("httpGet"));
            if let Some(Value::Object(grpc)) = probe.get_mut("grpc") {
                json::set_default(grpc, "service", "");
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        http_get(
            container
                .get_mut("lifecycle")
                .and_then(|lifecycle| lifecycle.get_mut(hook))
                .and_then(|hook| hook.get_mut("httpGet")),
        );
    }
}

fn http_get(action: Option<&mut Value>) {
    if let Some(Value::Object(action)) = action {
        json::set_default(action, "path", "/");
        json::set_default(action, "scheme", "HTTP");
    }
}

/// A missing resource request defaults to the limit.
fn default_requests(resources: &mut Value) {
    let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned() else { return };
    let requests = json::object_mut(resources, "requests");
    for (resource, limit) in limits {
        json::set_default(requests, &resource, limit);
    }
}

/// Whether an image has the tag `latest`, explicitly or by default.
fn uses_latest_tag(image: &str) -> bool {
    if image.is_empty() {
        return false;
    }
    if image.contains('@') {
        let name = image.split('@').next().unwrap_or_default();
        return name.rsplit('/').next().is_some_and(|last| last.ends_with(":latest"));
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn volume(volume: &mut Map<String, Value>) {
    if volume.keys().all(|key| key == "name") {
        volume.insert("emptyDir".into(), json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(Value::Object(source)) = volume.get_mut(source) {
            json::set_default(source, "defaultMode", 0o644);
        }
    }
    legacy::default(volume);
    for item in objects(volume.get_mut("downwardAPI").and_then(|source| source.get_mut("items"))) {
        field_ref(item);
    }
    for source in objects(volume.get_mut("projected").and_then(|projected| projected.get_mut("sources"))) {
        if let Some(Value::Object(token)) = source.get_mut("serviceAccountToken") {
            json::set_default(token, "expirationSeconds", 3600);
        }
        for item in objects(source.get_mut("downwardAPI").and_then(|source| source.get_mut("items"))) {
            field_ref(item);
        }
    }
    if let Some(template) =
        volume.get_mut("ephemeral").and_then(|source| source.get_mut("volumeClaimTemplate"))
    {
        json::set_default(json::object_mut(template, "spec"), "volumeMode", "Filesystem");
        json::object_mut(template, "metadata");
    }
}

fn field_ref(item: &mut Map<String, Value>) {
    if let Some(Value::Object(field)) = item.get_mut("fieldRef") {
        json::set_default(field, "apiVersion", "v1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_tag_is_detected() {
        for (image, expected) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1", false),
            ("host:5000/nginx", true),
            ("host:5000/nginx:1", false),
            ("nginx@sha256:aa", false),
            ("nginx:latest@sha256:aa", true),
            ("", false),
        ] {
            assert_eq!(uses_latest_tag(image), expected, "{image}");
        }
    }

    #[test]
    fn unset_volume_fields_get_defaults() {
        let mut pod = json!({"spec": {"volumes": [
            {"name": "a"}, {"name": "b", "secret": {"secretName": "s"}}, {"name": "c", "hostPath": {"path": "/"}},
            {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        ]}});
        default(&mut pod);
        let volumes = &pod["spec"]["volumes"];
        assert_eq!(volumes[0], json!({"name": "a", "emptyDir": {}}));
        assert_eq!(volumes[1]["secret"]["defaultMode"], 420);
        assert_eq!(volumes[2]["hostPath"]["type"], "");
        assert_eq!(volumes[3]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3600);
        assert_eq!(volumes[4]["ephemeral"]["volumeClaimTemplate"]["spec"]["volumeMode"], "Filesystem");
    }

    #[test]
    fn unset_container_fields_get_defaults() {
        let mut pod = json!({"spec": {"hostNetwork": true, "serviceAccount": "a", "containers": [{
            "name": "c", "image": "i:1", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 5},
        }]}});
        default(&mut pod);
        let spec = &pod["spec"];
        assert_eq!(spec["serviceAccountName"], "a");
        let container = &spec["containers"][0];
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["ports"], json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"}]));
        assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        let probe = &container["livenessProbe"];
        assert_eq!((&probe["periodSeconds"], &probe["timeoutSeconds"]), (&json!(5), &json!(1)));
        assert_eq!(probe["httpGet"], json!({"port": 80, "path": "/", "scheme": "HTTP"}));
    }
}
