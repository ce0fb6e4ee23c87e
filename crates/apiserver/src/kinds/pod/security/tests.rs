use serde_json::json;

use super::*;
use crate::kinds::testing::lines;

#[test]
fn pod_security_context_is_validated() {
    let errors = |context: Value| {
        let wrong = lines(pod(&json!({"hostNetwork": true, "hostPID": true, "securityContext": context})));
        wrong.into_iter().map(|line| line.replace("spec.securityContext", "")).collect::<Vec<_>>()
    };
    let good = json!({
        "fsGroup": 0, "runAsUser": MAX_ID, "fsGroupChangePolicy": "Always", "seLinuxChangePolicy": "Recursive",
        "seccompProfile": {"type": "Localhost", "localhostProfile": "a/b"}, "appArmorProfile": {"type": "Unconfined"},
        "sysctls": [{"name": "kernel.shm_rmid_forced"}, {"name": "vm/overcommit_memory"}],
    });
    assert_eq!(errors(good), Vec::<String>::new());
    for (context, expected) in [
        (
            json!({"fsGroup": -1, "supplementalGroups": [1, 2_147_483_648_i64]}),
            vec![
                ".fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                ".supplementalGroups[1]: Invalid value: 2147483648: must be between 0 and 2147483647, inclusive",
            ],
        ),
        (
            json!({"fsGroupChangePolicy": "Never", "supplementalGroupsPolicy": "x", "seLinuxChangePolicy": "MountOption"}),
            vec![
                ".fsGroupChangePolicy: Unsupported value: \"Never\": supported values: \"Always\", \"OnRootMismatch\"",
                ".supplementalGroupsPolicy: Unsupported value: \"x\": supported values: \"Merge\", \"Strict\"",
                ".seLinuxChangePolicy: Unsupported value: \"MountOption\": supported values: \"Recursive\"",
            ],
        ),
        (
            json!({"seccompProfile": {"type": "Localhost"}, "appArmorProfile": {"type": "Localhost", "localhostProfile": " a"}}),
            vec![
                ".seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
                ".appArmorProfile.localhostProfile: Invalid value: \" a\": must not be padded with whitespace",
            ],
        ),
        (
            json!({"seccompProfile": {"type": "x", "localhostProfile": "a"}, "appArmorProfile": {}}),
            vec![
                ".seccompProfile.type: Unsupported value: \"x\": supported values: \"Localhost\", \"RuntimeDefault\", \
                 \"Unconfined\"",
                ".seccompProfile.localhostProfile: Invalid value: {\"Type\":\"x\",\"LocalhostProfile\":\"a\"}: can only be \
                 set when seccomp type is Localhost",
                ".appArmorProfile.type: Required value: type is required when appArmorProfile is set",
            ],
        ),
        (
            json!({"sysctls": [{"name": "net.a"}, {"name": "A"}, {"name": "vm.a"}, {"name": "vm.a"}, {}]}),
            vec![
                ".sysctls[0].name: Invalid value: \"net.a\": may not be specified when 'hostNetwork' is true",
                ".sysctls[1].name: Invalid value: \"A\": must have at most 253 characters and match regex \
                 ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
                ".sysctls[3].name: Duplicate value: \"vm.a\"",
                ".sysctls[4].name: Required value",
            ],
        ),
    ] {
        assert_eq!(errors(context.clone()), expected, "{context}");
    }
}

#[test]
fn container_security_context_is_validated() {
    let errors = |context: Value| lines(container(&json!({"securityContext": context}), "c", true));
    assert!(errors(json!({"privileged": true, "procMount": "Default", "runAsUser": 0})).is_empty());
    assert_eq!(
        errors(json!({"procMount": "Unmasked", "runAsGroup": -1})),
        [
            "c.securityContext.runAsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive",
            "c.securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
        ]
    );
    let escalates = errors(json!({"privileged": true, "allowPrivilegeEscalation": false}));
    assert_eq!(escalates.len(), 1);
    assert!(
        escalates[0]
            .starts_with("c.securityContext: Invalid value: {\"Capabilities\":null,\"Privileged\":true,")
    );
    assert!(
        escalates[0].ends_with(": cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
    );
}

#[test]
fn host_namespaces_and_os_are_validated() {
    let spec =
        json!({"hostUsers": false, "hostIPC": true, "containers": [{"volumeDevices": [{"name": "v"}]}]});
    assert_eq!(
        lines(host_users(&spec)),
        [
            "spec.HostIPC: Forbidden: when `hostUsers` is false",
            "spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false",
        ]
    );
    for (sysctl, expected) in [
        ("net.core.somaxconn", Some("hostNetwork")),
        ("net/core/somaxconn", Some("hostNetwork")),
        ("net/ipv4.conf", Some("hostNetwork")),
        ("kernel.sem", Some("hostIPC")),
        ("fs.mqueue.msg_max", Some("hostIPC")),
        ("kernel.panic", None),
        ("network", None),
    ] {
        assert_eq!(namespace(sysctl), expected, "{sysctl}");
    }
    for (name, expected) in [
        ("", "spec.os.name: Required value"),
        ("plan9", "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""),
        (
            "linux",
            "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
        ),
    ] {
        let spec = json!({"os": {"name": name}, "securityContext": {"windowsOptions": {}}});
        assert_eq!(lines(os(&spec)), [expected]);
    }
}
