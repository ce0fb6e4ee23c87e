use wharf_model::Time;

use super::*;
use crate::kinds::Operation;
use crate::kinds::testing::{FakeLookup, admit, invalid, invalid_update, lines, with};

fn valid() -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "containers": [{
                "name": "c", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            }],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "claim"}}],
        },
    })
}

/// A patch of the pod that changes its only container.
fn container(patch: Value) -> Value {
    json!({"spec": {"containers": [with(&valid()["spec"]["containers"][0], &patch)]}})
}

fn accounts() -> FakeLookup {
    let account = |name: &str, more: Value| {
        ("serviceaccounts", with(&json!({"metadata": {"name": name, "namespace": "ns"}}), &more))
    };
    FakeLookup(vec![
        account("default", json!({})),
        account("quiet", json!({"automountServiceAccountToken": false, "imagePullSecrets": [{"name": "s"}]})),
    ])
}

#[test]
fn create_sets_defaults_and_pending_phase() {
    let mut pod = valid();
    (POD.default)(&mut pod);
    POD.prepare_create(&mut pod, Time(0));
    assert_eq!(pod["metadata"]["generation"], 1);
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    let spec = &pod["spec"];
    assert_eq!((&spec["dnsPolicy"], &spec["restartPolicy"]), (&json!("ClusterFirst"), &json!("Always")));
    assert_eq!(spec["terminationGracePeriodSeconds"], 30);
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(spec["containers"][0]["resources"], json!({}));
}

#[test]
fn fields_of_disabled_feature_gates_are_dropped() {
    let mut pod = with(&valid(), &container(json!({"restartPolicy": "Always"})));
    let kept = pod.clone();
    POD.prepare_create(&mut pod, Time(0));
    assert_eq!(pod["spec"]["containers"][0].get("restartPolicy"), None);
    let mut changed = kept.clone();
    POD.prepare_update(&mut changed, &kept, Time(0));
    assert_eq!(changed["spec"], kept["spec"]);

    let hidden = container(json!({
        "lifecycle": {"stopSignal": "SIGUSR1"}, "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "k"}}}],
    }));
    let kept = with(&with(&valid(), &hidden), &json!({"spec": {"hostnameOverride": "h"}}));
    let mut pod = kept.clone();
    POD.prepare_create(&mut pod, Time(0));
    let first = &pod["spec"]["containers"][0];
    assert_eq!((first.get("lifecycle"), &first["env"][0]["valueFrom"]), (None, &json!({})));
    assert_eq!(pod["spec"].get("hostnameOverride"), None);
    let mut changed = kept.clone();
    POD.prepare_update(&mut changed, &kept, Time(0));
    assert_eq!(changed["spec"], kept["spec"]);
}

#[test]
fn create_with_scheduling_gates_sets_condition() {
    let mut pod = with(&valid(), &json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}));
    POD.prepare_create(&mut pod, Time(1_000));
    let condition = &pod["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("PodScheduled"), &json!("SchedulingGated"))
    );
    assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:01Z");
}

#[test]
fn qos_class_follows_requests_and_limits() {
    let class = |resources: Value| {
        super::resources::qos_class(&json!({"spec": {"containers": [{"resources": resources}]}}))
    };
    assert_eq!(class(json!({})), "BestEffort");
    assert_eq!(class(json!({"requests": {"cpu": "1"}})), "Burstable");
    let all = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(class(json!({"requests": all, "limits": all})), "Guaranteed");
    assert_eq!(class(json!({"requests": {"cpu": "1"}, "limits": all})), "Burstable");
}

#[test]
fn create_is_validated() {
    let volume = |volume: Value| json!({"spec": {"volumes": [with(&json!({"name": "v"}), &volume)]}});
    for (patch, expected) in [
        (json!({}), vec![]),
        (json!({"spec": {"containers": null}}), vec!["spec.containers: Required value"]),
        (container(json!({"name": null})), vec!["spec.containers[0].name: Required value"]),
        (container(json!({"image": null})), vec!["spec.containers[0].image: Required value"]),
        (
            container(json!({"image": " i"})),
            vec![
                "spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace",
            ],
        ),
        (
            container(json!({"imagePullPolicy": "Soon"})),
            vec![
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Soon\": supported values: \"Always\", \
             \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            container(json!({"volumeMounts": [{"name": "w", "mountPath": "/w"}]})),
            vec!["spec.containers[0].volumeMounts[0].name: Not found: \"w\""],
        ),
        (
            container(
                json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/v"}]}),
            ),
            vec!["spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/v\": must be unique"],
        ),
        (
            container(json!({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "../x"}]})),
            vec!["spec.containers[0].volumeMounts.subPath: Invalid value: \"../x\": must not contain '..'"],
        ),
        (
            container(json!({"volumeMounts": null, "volumeDevices": [{"name": "v", "devicePath": ""}]})),
            vec!["spec.containers[0].volumeDevices[0].devicePath: Required value"],
        ),
        (
            container(json!({"ports": [{"containerPort": 70000}]})),
            vec![
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            container(json!({"env": [{"name": "a=b"}]})),
            vec![
                "spec.containers[0].env[0].name: Invalid value: \"a=b\": a valid environment variable name must consist only \
             of printable ASCII characters other than '='",
            ],
        ),
        (
            container(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            vec![
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        ),
        (
            json!({"spec": {"initContainers": [{"name": "c", "image": "i"}]}}),
            vec!["spec.initContainers[0].name: Duplicate value: \"c\""],
        ),
        (
            volume(json!({"persistentVolumeClaim": {"claimName": ""}})),
            vec![
                "spec.volumes[0].persistentVolumeClaim.claimName: Required value",
                "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            ],
        ),
        (
            volume(json!({"emptyDir": {}, "secret": {"secretName": "s"}})),
            vec![
                "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type",
                "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            ],
        ),
        (volume(json!({"csi": {"driver": "d"}})), vec![]),
        (
            volume(
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}),
            ),
            vec![
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
                "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
            ],
        ),
        (
            json!({"spec": {"restartPolicy": "Once"}}),
            vec![
                "spec.restartPolicy: Unsupported value: \"Once\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            json!({"spec": {"tolerations": [{"effect": "NoExecute"}]}}),
            vec![
                "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \
             \"match all values and all keys\"",
            ],
        ),
        (
            json!({"spec": {"activeDeadlineSeconds": 0}}),
            vec!["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        (
            container(
                json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]}),
            ),
            vec!["spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\""],
        ),
        (
            with(
                &container(
                    json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]}),
                ),
                &json!({"spec": {"restartPolicy": "Never", "preemptionPolicy": "Sometimes"}}),
            ),
            vec![
                "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when \
                 `restartPolicy` is 'Never'",
                "spec.preemptionPolicy: Unsupported value: \"Sometimes\": supported values: \"PreemptLowerPriority\", \
                 \"Never\"",
            ],
        ),
        // One error from each module, in upstream's order.
        (
            with(
                &container(
                    json!({"livenessProbe": {}, "securityContext": {"runAsUser": -1}, "env": [{"valueFrom": {}}]}),
                ),
                &json!({"spec": {
                    "dnsPolicy": "None", "securityContext": {"fsGroup": -1}, "hostAliases": [{"ip": "::1", "hostnames": [""]}],
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
                    "topologySpreadConstraints": [{"topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}],
                    "hostUsers": false, "hostPID": true, "os": {},
                }}),
            ),
            vec![
                "spec.containers[0].env[0].name: Required value",
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, \
                 `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
                "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "spec.containers[0].livenessProbe: Required value: must specify a handler type",
                "spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required \
                 value: must have at least one node selector term",
                "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.HostPID: Forbidden: when `hostUsers` is false",
                "spec.hostAliases[0].hostnames[0]: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower \
                 case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
                 'example.com', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                "spec.os.name: Required value",
            ],
        ),
        (
            json!({"spec": {"nodeName": "n", "schedulingGates": [{"name": "a/b"}]}}),
            vec!["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"],
        ),
    ] {
        assert_eq!(invalid(&POD, &valid(), &patch), expected, "{patch}");
    }
}

#[test]
fn update_is_validated() {
    let with_more = |more: Value| with(&valid(), &json!({"spec": more}));
    assert!(invalid_update(&POD, &valid(), &container(json!({"image": "i:latest"}))).is_empty());
    assert!(
        invalid_update(&POD, &valid(), &json!({"spec": {"tolerations": [{"operator": "Exists"}]}}))
            .is_empty()
    );
    assert_eq!(
        invalid_update(&POD, &valid(), &json!({"spec": {"containers": []}}))[1..],
        ["spec.containers: Forbidden: pod updates may not add or remove containers"]
    );
    let tolerant = with_more(json!({"tolerations": [{"key": "a", "operator": "Exists"}]}));
    assert_eq!(
        invalid_update(&POD, &tolerant, &json!({"spec": {"tolerations": []}})),
        ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",]
    );
    let late = with_more(json!({"activeDeadlineSeconds": 5}));
    assert_eq!(
        invalid_update(&POD, &late, &json!({"spec": {"activeDeadlineSeconds": 6}})),
        ["spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value",]
    );
    let name = invalid_update(&POD, &valid(), &json!({"spec": {"nodeName": "n1"}}));
    let start = "spec: Forbidden: pod updates may not change fields other than \
                 `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` \
                 (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if \
                 it was previously negative)\n@@ ";
    assert!(name[0].starts_with(start), "{name:?}");
    let end = "\n  \"NodeSelector\": null,\n  \"ServiceAccountName\": \"\",\n  \"AutomountServiceAccountToken\": null,\n- \
               \"NodeName\": \"\",\n+ \"NodeName\": \"n1\",\n  \"SecurityContext\": {\n   \"HostNetwork\": false,\n   \
               \"HostPID\": false,\n";
    assert!(name[0].ends_with(end), "{name:?}");
}

#[test]
fn status_update_changes_only_status() {
    let mut old = with(
        &valid(),
        &json!({
            "metadata": {"resourceVersion": "1", "uid": "u", "ownerReferences": []},
            "status": {"phase": "Running", "qosClass": "BestEffort", "containerStatuses": [
                {"name": "c", "state": {"terminated": {"exitCode": 0}}},
            ]},
            "spec": {"restartPolicy": "Never"},
        }),
    );
    (POD.default)(&mut old);
    let mut new = with(
        &old,
        &json!({
            "spec": {"nodeName": "n"}, "metadata": {"labels": {"a": "b"}},
            "status": {"qosClass": null, "containerStatuses": [{"name": "c", "state": {"running": {}}}]},
        }),
    );
    POD.prepare_status(&mut new, &old, Time(0));
    assert_eq!(new["spec"], old["spec"]);
    assert_eq!(new["metadata"]["labels"]["a"], "b");
    assert_eq!(new["status"]["qosClass"], "BestEffort");
    assert_eq!(
        lines(POD.invalid_on_status(&new, &old)),
        ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",]
    );
}

#[test]
fn admission_adds_service_account_token_and_tolerations() {
    let mut pod = valid();
    (POD.default)(&mut pod);
    admit(&POD, &mut pod, Operation::Create, None, &accounts()).unwrap();
    let spec = &pod["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    assert_eq!((&spec["priority"], &spec["preemptionPolicy"]), (&json!(0), &json!("PreemptLowerPriority")));
    assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(spec["tolerations"][0]["tolerationSeconds"], 300);
    let volume = &spec["volumes"][1];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
    assert_eq!(
        spec["containers"][0]["volumeMounts"][1],
        json!({"name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"})
    );
    let before = pod.clone();
    admit(&POD, &mut pod, Operation::Update, Some(&before), &accounts()).unwrap();
    assert_eq!(pod, before);
    assert!(lines(POD.invalid_on_create(&pod)).is_empty());
}

#[test]
fn admission_follows_service_account_and_priority() {
    let mut pod = with(&valid(), &json!({"spec": {"serviceAccountName": "quiet"}}));
    admit(&POD, &mut pod, Operation::Create, None, &accounts()).unwrap();
    assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "s"}]));
    for (patch, expected) in [
        (
            json!({"spec": {"serviceAccountName": "missing"}}),
            "pods \"p\" is forbidden: error looking up service account ns/missing: serviceaccount \"missing\" not found",
        ),
        (
            json!({"spec": {"priorityClassName": "high"}}),
            "pods \"p\" is forbidden: no PriorityClass with name high was found",
        ),
        (
            json!({"spec": {"priority": 7}}),
            "pods \"p\" is forbidden: the integer value of priority (7) must not be provided in pod spec; priority \
             admission controller computed 0 from the given PriorityClass name",
        ),
    ] {
        let mut pod = with(&valid(), &patch);
        let error = admit(&POD, &mut pod, Operation::Create, None, &accounts()).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (403, expected));
    }
}

#[test]
fn field_selectors_read_supported_fields() {
    let pod = with(&valid(), &json!({"spec": {"nodeName": "n"}, "status": {"phase": "Running"}}));
    let value = |field: &str| POD.field(field).map(|value| value(&pod));
    assert_eq!(value("spec.nodeName").as_deref(), Some("n"));
    assert_eq!(value("status.phase").as_deref(), Some("Running"));
    assert_eq!(value("spec.hostNetwork").as_deref(), Some("false"));
    assert_eq!(value("metadata.namespace").as_deref(), Some("ns"));
    assert_eq!(value("spec.image"), None);
}

#[test]
fn name_that_is_not_dns_label_causes_warning() {
    let pod = json!({"metadata": {"name": "a.b"}});
    assert_eq!(
        (POD.warnings)(&pod, None),
        [
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
         recommended: [must not contain dots]",
        ]
    );
    assert!((POD.warnings)(&pod, Some(&pod)).is_empty());
}
