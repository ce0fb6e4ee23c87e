//! The manifests in deploy/: they parse, their objects match, and they request no more permissions than needed. And the
//! systemd unit, which must match the binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    std::fs::read_to_string(&path).expect(name)
}

fn objects(name: &str) -> Vec<Value> {
    let text = text(name);
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = of_kind(objects, kind);
    assert_eq!(found.len(), 1, "{kind}");
    found[0]
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// All rules of the roles, as `group/resource: verb`.
fn rights(objects: &[Value]) -> Vec<String> {
    let roles = objects.iter().filter(|object| object["kind"] == "ClusterRole" || object["kind"] == "Role");
    let rules = roles.flat_map(|role| role["rules"].as_array().expect("rules"));
    rules
        .flat_map(|rule| {
            assert!(rule["nonResourceURLs"].is_null(), "{rule}");
            let (groups, resources, verbs) =
                (texts(&rule["apiGroups"]), texts(&rule["resources"]), texts(&rule["verbs"]));
            assert!(!groups.is_empty() && !resources.is_empty() && !verbs.is_empty(), "{rule}");
            let pairs = groups
                .into_iter()
                .flat_map(move |group| resources.clone().into_iter().map(move |of| (group, of)));
            pairs.flat_map(move |(group, of)| {
                verbs.clone().into_iter().map(move |verb| format!("{group}/{of}: {verb}"))
            })
        })
        .collect()
}

#[test]
fn rules_have_no_wildcards_and_bindings_match() {
    for name in
        ["local.yaml", "digitalocean.yaml", "nfs.yaml", "sidecar-rbac.yaml", "snapshot-controller.yaml"]
    {
        let objects = objects(name);
        let rights = rights(&objects);
        assert!(rights.len() >= 20, "{name}: {rights:?}");
        for right in &rights {
            assert!(!right.contains('*'), "{name}: {right}");
            for risky in ["escalate", "bind", "impersonate", "deletecollection"] {
                assert!(!right.ends_with(risky), "{name}: {right}");
            }
        }
        let accounts = of_kind(&objects, "ServiceAccount");
        for (binding, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
            let (binding, role) = (one(&objects, binding), one(&objects, role));
            assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"], "{name}");
            let subject = &binding["subjects"][0];
            let exists = accounts.iter().any(|account| {
                let metadata = &account["metadata"];
                metadata["name"] == subject["name"] && metadata["namespace"] == subject["namespace"]
            });
            assert!(exists, "{name}: {subject}");
        }
    }
}

/// The snapshot metadata service only reads; the only objects that it creates are reviews.
#[test]
fn snapshot_metadata_rules_are_read_only() {
    let objects = objects("snapshot-metadata.yaml");
    let rights = rights(&objects);
    assert!(rights.len() >= 10, "{rights:?}");
    for right in &rights {
        let reads = [": get", ": list", ": watch"].iter().any(|verb| right.ends_with(verb));
        assert!(reads || right.ends_with("reviews: create"), "{right}");
        assert!(!right.contains('*'), "{right}");
    }
    let binding = one(&objects, "ClusterRoleBinding");
    assert_eq!(binding["roleRef"]["name"], of_kind(&objects, "ClusterRole")[0]["metadata"]["name"]);
}

/// The local driver needs no secrets and no attachments, and its process knows its own node.
#[test]
fn local_driver_rules_are_a_subset_of_the_sidecar_rules() {
    let (local, all) = (rights(&objects("local.yaml")), rights(&objects("sidecar-rbac.yaml")));
    for right in &local {
        assert!(all.contains(right), "{right} is not in sidecar-rbac.yaml");
    }
    for of in [
        "/secrets",
        "/nodes",
        "storage.k8s.io/csinodes",
        "storage.k8s.io/volumeattachments",
        "apps/replicasets",
    ] {
        assert!(!local.iter().any(|right| right.starts_with(of)), "{of}");
    }
}

/// Upstream's rules do not allow its sidecars to patch claims or leases; neither do ours.
#[test]
fn sidecar_rules_do_not_allow_patching_claims_or_leases() {
    for name in ["local.yaml", "digitalocean.yaml", "nfs.yaml", "sidecar-rbac.yaml"] {
        let rights = rights(&objects(name));
        for right in ["/persistentvolumeclaims: patch", "coordination.k8s.io/leases: patch"] {
            assert!(!rights.iter().any(|of| of == right), "{name}: {right}");
        }
    }
}

#[test]
fn local_daemon_set_matches_the_binary() {
    let objects = objects("local.yaml");
    let driver = &one(&objects, "CSIDriver")["metadata"]["name"];
    let class = one(&objects, "StorageClass");
    assert_eq!(&class["provisioner"], driver);
    assert_eq!(class["volumeBindingMode"], "WaitForFirstConsumer");
    let pod = &one(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(pod["containers"].as_array().map(Vec::len), Some(2), "the driver with its sidecar, and thaw");
    let container = &pod["containers"][0];
    let thaw = &pod["containers"][1];
    assert_eq!(texts(&thaw["args"]), ["local", "thaw", "--watch", "--pool=/srv/pool"]);
    for mount in thaw["volumeMounts"].as_array().expect("mounts") {
        let same = |of: &&Value| (&of["name"], &of["mountPath"]) == (&mount["name"], &mount["mountPath"]);
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        assert!(
            mounts.iter().any(|of| same(&of)),
            "the paths in the freeze record are the driver's: {mount}"
        );
    }
    let arguments = texts(&container["args"]);
    let socket = format!("plugins/{}/csi.sock", driver.as_str().expect("a name"));
    assert!(arguments.iter().any(|argument| argument.ends_with(&socket)), "{arguments:?}");
    let environment: Vec<_> =
        container["env"].as_array().expect("env").iter().map(|of| &of["name"]).collect();
    assert_eq!(environment, ["NODE_NAME", "POD_NAME", "NAMESPACE"]);
    for mount in container["volumeMounts"].as_array().expect("mounts") {
        let named =
            pod["volumes"].as_array().expect("volumes").iter().any(|volume| volume["name"] == mount["name"]);
        assert!(named, "{mount}");
    }
    // The binary accepts the flags: the first error is the missing pool.
    let dir = tempfile::tempdir().expect("failed to create a directory");
    let arguments: Vec<String> = arguments
        .into_iter()
        .map(|argument| match argument.split_once('=') {
            Some(("--pool", _)) => format!("--pool={}/none", dir.path().display()),
            Some(("--endpoint", _)) => format!("--endpoint={}/csi.sock", dir.path().display()),
            _ => argument.replace("$(NODE_NAME)", "n1"),
        })
        .collect();
    let output =
        Command::new(env!("CARGO_BIN_EXE_wharf")).args(&arguments).output().expect("failed to start wharf");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("/none"), "{stderr}");
}

/// A container's path as the path on its node, as its mounts say. Kubelet creates only the directories that ask for it.
fn on_node(root: &Path, pod: &Value, container: &Value, path: &str) -> PathBuf {
    let mounts = container["volumeMounts"].as_array().expect("mounts");
    let below = |mount: &Value| Path::new(path).strip_prefix(mount["mountPath"].as_str()?).ok();
    let mount = mounts.iter().filter(|mount| below(mount).is_some());
    let mount = mount.max_by_key(|mount| mount["mountPath"].as_str().map(str::len)).expect(path);
    let volumes = pod["volumes"].as_array().expect("volumes");
    let volume = &volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("volume")["hostPath"];
    let dir = root.join(volume["path"].as_str().expect("path").trim_start_matches('/'));
    if volume["type"] == "DirectoryOrCreate" {
        std::fs::create_dir_all(&dir).expect("failed to create a directory");
    }
    dir.join(below(mount).expect(path))
}

/// On a node whose kubelet has never had a CSI driver, each driver has a directory for its socket, and kubelet finds the
/// socket where the registration says.
#[test]
fn sockets_are_in_directories_that_exist_on_a_new_node() {
    for name in ["local.yaml", "digitalocean.yaml", "nfs.yaml"] {
        let objects = objects(name);
        let pod = &one(&objects, "DaemonSet")["spec"]["template"]["spec"];
        let node = tempfile::tempdir().expect("failed to create a directory");
        std::fs::create_dir_all(node.path().join("var/lib/kubelet")).expect("failed to create a directory");
        let mut sockets = Vec::new();
        for container in pod["containers"].as_array().expect("containers") {
            for argument in texts(&container["args"]) {
                let socket = match argument.split_once('=') {
                    Some(("--endpoint", address)) => address.strip_prefix("unix://").expect(argument),
                    Some(("--csi-address", path)) => path,
                    Some(("--kubelet-registration-path", path)) => {
                        sockets.push(node.path().join(path.trim_start_matches('/')));
                        continue;
                    }
                    _ => continue,
                };
                let socket = on_node(node.path(), pod, container, socket);
                assert!(socket.parent().expect("parent").is_dir(), "{name}: {argument}");
                sockets.push(socket);
            }
            // A mount below one that propagates would stay on the node at each restart.
            for mount in container["volumeMounts"].as_array().expect("mounts") {
                let path = mount["mountPath"].as_str().expect("path");
                assert!(
                    path == "/var/lib/kubelet" || !path.starts_with("/var/lib/kubelet"),
                    "{name}: {path}"
                );
            }
        }
        assert!(
            sockets.len() >= 2 && sockets.windows(2).all(|pair| pair[0] == pair[1]),
            "{name}: {sockets:?}"
        );
    }
}

/// Needs root and a file system for the pool.
#[test]
fn local_driver_starts_on_a_new_node_with_an_initialised_pool() {
    let objects = objects("local.yaml");
    let pod = &one(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let node = tempfile::tempdir().expect("failed to create a directory");
    for dir in ["var/lib/kubelet", "srv/pool"] {
        std::fs::create_dir_all(node.path().join(dir)).expect("failed to create a directory");
    }
    let wharf = || Command::new(env!("CARGO_BIN_EXE_wharf"));
    let pool = node.path().join("srv/pool");
    let done = wharf().args(["local", "init", "--pool"]).arg(&pool).output().expect("failed to start wharf");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // The roles of the sidecar need an API server.
    let of_sidecar = ["--with-sidecar", "--kubelet-registration-path", "--plugin-registration-path"];
    let arguments: Vec<String> = texts(&container["args"])
        .into_iter()
        .filter(|argument| !of_sidecar.iter().any(|flag| argument.starts_with(flag)))
        .map(|argument| match argument.split_once("=unix://").or_else(|| argument.split_once('=')) {
            Some((flag, path)) if path.starts_with('/') => {
                format!("{flag}={}", on_node(node.path(), pod, container, path).display())
            }
            _ => argument.replace("$(NODE_NAME)", "n1"),
        })
        .collect();
    let socket = on_node(node.path(), pod, container, "/csi/csi.sock");
    let mut driver = wharf().args(&arguments).spawn().expect("failed to start wharf");
    let end = Instant::now() + Duration::from_secs(30);
    while !socket.exists() && Instant::now() < end && driver.try_wait().expect("wait").is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let appeared = socket.exists();
    let _ = driver.kill();
    let status = driver.wait();
    assert!(appeared, "{arguments:?}: {status:?}");
    assert!(node.path().join("var/lib/kubelet/plugins/local.csi.wharf.dev/pool-id").exists());
}

/// Disks may be mounted after the pod has started.
#[test]
fn mounts_of_the_pools_disk_propagate_to_all_containers() {
    let objects = objects("local.yaml");
    let pod = &one(&objects, "DaemonSet")["spec"]["template"]["spec"];
    for container in pod["containers"].as_array().expect("containers") {
        let mounts = container["volumeMounts"].as_array().expect("mounts");
        let pool = mounts.iter().find(|mount| mount["name"] == "pool").expect("pool");
        assert_eq!(pool["mountPropagation"], "HostToContainer", "{}", container["name"]);
    }
}

/// A node has neither DigitalOcean's token nor a service account token, and no rule allows reading Secrets.
#[test]
fn digitalocean_manifest_has_csi_digitaloceans_names_and_minimal_permissions() {
    let objects = objects("digitalocean.yaml");
    let driver = "dobs.csi.digitalocean.com";
    assert_eq!(one(&objects, "CSIDriver")["metadata"]["name"], driver);
    let classes = of_kind(&objects, "StorageClass");
    let names: Vec<_> = classes.iter().map(|class| &class["metadata"]["name"]).collect();
    let expected = [
        "do-block-storage",
        "do-block-storage-retain",
        "do-block-storage-xfs",
        "do-block-storage-xfs-retain",
    ];
    assert_eq!(names, expected);
    assert!(classes.iter().all(|class| class["provisioner"] == driver));
    let snapshots = one(&objects, "VolumeSnapshotClass");
    assert_eq!(
        (&snapshots["metadata"]["name"], &snapshots["driver"]),
        (&"do-block-storage".into(), &driver.into())
    );
    let (ours, all) = (rights(&objects), rights(&self::objects("sidecar-rbac.yaml")));
    for right in &ours {
        assert!(all.contains(right), "{right} is not in sidecar-rbac.yaml");
    }
    // After a restart, the health monitor reads earlier events.
    assert!(ours.iter().any(|right| right == "/events: list"), "{ours:?}");
    for of in ["/secrets", "apps/replicasets", "storage.k8s.io/csistoragecapacities", "groupsnapshot"] {
        assert!(!ours.iter().any(|right| right.starts_with(of)), "{of}");
    }
    let node = &one(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_eq!(node["automountServiceAccountToken"], false);
    assert!(!node.to_string().contains("access-token"), "the node has no token");
    let controller = &one(&objects, "StatefulSet")["spec"]["template"]["spec"];
    for pod in [node, controller] {
        for container in pod["containers"].as_array().expect("containers") {
            for mount in container["volumeMounts"].as_array().expect("mounts") {
                let volumes = pod["volumes"].as_array().expect("volumes");
                assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
            }
        }
    }
}

/// The binary accepts the flags of the manifest: the first errors are the missing token and the missing metadata service.
#[test]
fn digitalocean_manifest_flags_are_accepted() {
    let objects = objects("digitalocean.yaml");
    let dir = tempfile::tempdir().expect("failed to create a directory");
    for (kind, expected) in [("StatefulSet", "/none"), ("DaemonSet", "metadata service")] {
        let container = &one(&objects, kind)["spec"]["template"]["spec"]["containers"][0];
        let mut arguments: Vec<String> = texts(&container["args"])
            .into_iter()
            .map(|argument| match argument.split_once('=') {
                Some(("--token-file", _)) => format!("--token-file={}/none", dir.path().display()),
                Some(("--endpoint", _)) => format!("--endpoint=unix://{}/csi.sock", dir.path().display()),
                _ => argument.to_owned(),
            })
            .collect();
        arguments.push("--metadata-url=http://127.0.0.1:9".to_owned());
        let output = Command::new(env!("CARGO_BIN_EXE_wharf"))
            .args(&arguments)
            .output()
            .expect("failed to start wharf");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

/// A node has no service account token and is the only privileged container; no rule allows reading Secrets.
#[test]
fn nfs_manifest_has_csi_driver_nfss_names_and_minimal_permissions() {
    let objects = objects("nfs.yaml");
    let driver = one(&objects, "CSIDriver");
    assert_eq!(driver["metadata"]["name"], "nfs.csi.k8s.io");
    assert_eq!(driver["spec"]["attachRequired"], false);
    assert_eq!(driver["spec"]["volumeLifecycleModes"], serde_json::json!(["Persistent"]));
    let (ours, all) = (rights(&objects), rights(&self::objects("sidecar-rbac.yaml")));
    for right in &ours {
        assert!(all.contains(right), "{right} is not in sidecar-rbac.yaml");
    }
    for of in ["/secrets", "/nodes", "/pods", "storage.k8s.io/csinodes", "storage.k8s.io/volumeattachments"] {
        assert!(!ours.iter().any(|right| right.starts_with(of)), "{of}");
    }
    let (controller, node) = (one(&objects, "Deployment"), one(&objects, "DaemonSet"));
    assert_eq!(controller["metadata"]["name"], "csi-nfs-controller");
    assert_eq!(node["metadata"]["name"], "csi-nfs-node");
    let (controller, node) = (&controller["spec"]["template"]["spec"], &node["spec"]["template"]["spec"]);
    assert_eq!(controller["serviceAccountName"], "csi-nfs-controller-sa");
    assert_eq!(node["serviceAccountName"], "csi-nfs-node-sa");
    assert_eq!(node["automountServiceAccountToken"], false);
    for (pod, privileged) in [(controller, 0), (node, 1)] {
        assert_eq!(pod["hostNetwork"], true);
        let containers = pod["containers"].as_array().expect("containers");
        let is_privileged = |of: &&Value| of["securityContext"]["privileged"] == true;
        assert_eq!(containers.iter().filter(is_privileged).count(), privileged);
        for mount in containers.iter().flat_map(|of| of["volumeMounts"].as_array().expect("mounts")) {
            let volumes = pod["volumes"].as_array().expect("volumes");
            assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
        }
    }
}

/// B26: two pods of csi-driver-nfs in the network of one host fight for its health port. B27: without the host's network, mounts
/// hang when the pod is replaced; the driver compares the two addresses.
#[test]
fn nfs_pods_use_the_network_of_the_host_and_none_of_its_ports() {
    let objects = objects("nfs.yaml");
    for kind in ["Deployment", "DaemonSet"] {
        let pod = &one(&objects, kind)["spec"]["template"]["spec"];
        assert_eq!(pod["hostNetwork"], true, "{kind}");
        for container in pod["containers"].as_array().expect("containers") {
            assert!(container["ports"].is_null(), "{kind}: {container}");
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                assert!(
                    container[probe]["httpGet"].is_null() && container[probe]["grpc"].is_null(),
                    "{kind}"
                );
            }
            for argument in texts(&container["args"]) {
                let listens = ["--http-endpoint", "--metrics-listen", "--health-port", "--metrics-address"];
                assert!(!listens.iter().any(|flag| argument.starts_with(flag)), "{kind}: {argument}");
            }
        }
        let probe = texts(&pod["containers"][0]["livenessProbe"]["exec"]["command"]);
        assert_eq!(probe[0], "/usr/local/bin/wharf", "{kind}: as in docs/install.md");
        let output = Command::new(env!("CARGO_BIN_EXE_wharf")).args(&probe[1..]).arg("--help").output();
        let output = output.expect("failed to start wharf");
        assert_eq!(output.status.code(), Some(0), "{probe:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let node = &one(&objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0];
    for (name, field) in [("POD_IP", "status.podIP"), ("HOST_IP", "status.hostIP")] {
        let variable = node["env"].as_array().expect("env").iter().find(|variable| variable["name"] == name);
        assert_eq!(variable.expect(name)["valueFrom"]["fieldRef"]["fieldPath"], field);
    }
}

/// Help is printed only if the arguments before it are valid.
#[test]
fn nfs_manifest_flags_are_accepted() {
    let objects = objects("nfs.yaml");
    for kind in ["Deployment", "DaemonSet"] {
        for container in one(&objects, kind)["spec"]["template"]["spec"]["containers"].as_array().expect(kind)
        {
            let arguments = texts(&container["args"]);
            let output = Command::new(env!("CARGO_BIN_EXE_wharf"))
                .args(&arguments)
                .arg("--help")
                .output()
                .expect("start");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        }
    }
}

/// The value of a key that the unit must set exactly once.
fn setting(unit: &str, key: &str) -> String {
    let value = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.trim().to_owned());
    let all: Vec<String> = unit.lines().filter_map(value).collect();
    assert_eq!(all.len(), 1, "{key}: {all:?}");
    all[0].clone()
}

/// Pods outlive the unit's main process, and the data directory is systemd's state directory.
#[test]
fn systemd_unit_matches_the_binary_and_keeps_pods_running() {
    let unit = text("wharf.service");
    assert_eq!(setting(&unit, "KillMode"), "process");
    let start = setting(&unit, "ExecStart");
    let mut words = start.split_whitespace();
    assert_eq!(words.next(), Some("/usr/local/bin/wharf"));
    // Help is printed only if the arguments before it are valid.
    let output = Command::new(env!("CARGO_BIN_EXE_wharf"))
        .args(words)
        .arg("--help")
        .output()
        .expect("failed to start");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{start}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(help.contains("Usage: wharf up"), "{help}");
    assert!(!start.contains("--data-dir"), "the data directory differs from the compared default");
    let directory = format!("[default: /var/lib/{}]", setting(&unit, "StateDirectory"));
    let option = help.split("--data-dir").nth(1).and_then(|rest| rest.split("\n      --").next());
    assert!(option.is_some_and(|option| option.contains(&directory)), "{directory} in {help}");
    assert_eq!(setting(&unit, "StateDirectoryMode"), "0700", "the directory contains keys and data");
}
