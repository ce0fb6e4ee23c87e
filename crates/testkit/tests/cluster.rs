//! On a real cluster of two nodes: `make test-cluster`.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod cluster {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::{Duration, Instant};

    use wharf_linux::FsType;
    use wharf_testkit::{Beside, TestCluster, TestPool, leftovers};

    const MINUTE: Duration = Duration::from_secs(60);
    const DRIVER: &str = "local.csi.wharf.dev";

    #[test]
    #[ignore = "needs a cluster: make test-cluster"]
    fn runs_pods_on_both_nodes_and_leaves_no_trace() {
        let others = (cgroups_of_containers(), network_devices());
        let began = Instant::now();
        let cluster = TestCluster::start();
        println!("two nodes Ready in {:.1?}", began.elapsed());
        for node in cluster.nodes() {
            cluster.apply(&pod(node));
        }
        for node in cluster.nodes() {
            let name = format!("pod/on-{node}");
            cluster.wait_for(&name, "condition=Ready", MINUTE);
            assert_eq!(cluster.kubectl(&["logs", &name]), format!("I am on {node}\n"));
            assert_eq!(cluster.kubectl(&["exec", &name, "--", "hostname"]), format!("on-{node}\n"));
        }
        assert_ne!(others, (cgroups_of_containers(), network_devices()), "what is looked for below exists");

        let run = cluster.directory().to_owned();
        assert!(!processes(&run).is_empty());
        let ending = Instant::now();
        drop(cluster);
        println!("ended in {:.1?}", ending.elapsed());

        assert!(!run.exists(), "{} is still there", run.display());
        assert_eq!(processes(&run), BTreeSet::new());
        assert_eq!(mounts(&run), BTreeSet::new());
        assert_eq!(cgroups_of_containers(), others.0);
        // The kernel takes a network namespace apart in the background.
        let until = Instant::now() + Duration::from_secs(10);
        while network_devices() != others.1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(network_devices(), others.1);
    }

    #[test]
    #[ignore = "needs a cluster: make test-cluster"]
    fn programs_that_die_come_back_and_nodes_may_join_late() {
        let pool = TestPool::new(FsType::Ext4, 1 << 30);
        let cluster = TestCluster::start();
        let began = Instant::now();
        drop(pool);
        assert!(began.elapsed() < Duration::from_secs(1), "the cluster holds what others have mounted");

        cluster.signal("kube-apiserver", "KILL");
        cluster.signal("kubelet-node-b", "KILL");
        cluster.eventually("the API server is back", MINUTE, |cluster| {
            cluster.try_kubectl(&["get", "--raw", "/readyz"]).ok()
        });
        cluster.join("node-c");
        cluster.apply(&pod("node-b"));
        cluster.apply(&pod("node-c"));
        cluster.wait_for("pod/on-node-b", "condition=Ready", MINUTE);
        cluster.wait_for("pod/on-node-c", "condition=Ready", MINUTE);
    }

    /// A volume on each node, made and deleted by hand, used by pods through kubelet: what needs no provisioner.
    #[test]
    #[ignore = "needs a cluster: make test-cluster"]
    fn static_volumes_of_the_local_driver() {
        let pools = [TestPool::new(FsType::Xfs, 4 << 30), TestPool::new(FsType::Ext4, 4 << 30)];
        let cluster = TestCluster::start();
        cluster.apply(&csi_driver());
        let mut nodes: Vec<Node> = cluster
            .nodes()
            .iter()
            .zip(&pools)
            .map(|(name, pool)| Node::start(&cluster, name, pool))
            .collect();
        let mut volumes = Vec::new();
        for (node, fs) in nodes.iter().zip(["xfs", "ext4"]) {
            let registered = format!("jsonpath={{.spec.drivers[0].name}}={DRIVER}");
            cluster.wait_for(&format!("csinode/{}", node.name), &registered, MINUTE);
            let name = format!("by-hand-on-{}", node.name);
            let created = node.csi(&["volume", "create", &name, "--size", "1GiB", "--fs-type", fs]).unwrap();
            let id = field(&created, "volume_id");
            cluster.apply(&volume_and_claim(node.name, &id, fs));
            volumes.push(id);
        }
        for Node { name, .. } in &nodes {
            let (claim, pod) = (format!("pvc/on-{name}"), format!("pod/on-{name}"));
            cluster.wait_for(&claim, "jsonpath={.status.phase}=Bound", MINUTE);
            cluster.apply(&pod_with_claim(name));
            cluster.wait_for(&pod, "condition=Ready", MINUTE);
            // Nobody but the volume's own topology says where the pod has to be.
            let place = cluster.kubectl(&["get", &pod, "--output", "jsonpath={.spec.nodeName}"]);
            assert_eq!(place, *name);
            cluster.kubectl(&["exec", &pod, "--", "sh", "-c", "echo kept > /data/file && sync"]);
            let capacity = cluster.eventually("kubelet's statistics of the claim", MINUTE, |cluster| {
                statistic(&cluster.kubelet_metrics(name), "capacity_bytes", name)
            });
            assert!((0.8..=1.0).contains(&(capacity / f64::from(1 << 30))), "{capacity} bytes");

            cluster.kubectl(&["delete", &pod]);
            cluster.apply(&pod_with_claim(name));
            cluster.wait_for(&pod, "condition=Ready", MINUTE);
            assert_eq!(cluster.kubectl(&["exec", &pod, "--", "cat", "/data/file"]), "kept\n");
        }
        for ((node, pool), volume) in nodes.iter_mut().zip(&pools).zip(&volumes) {
            for kind in ["pod", "pvc", "pv"] {
                cluster.kubectl(&["delete", kind, &format!("on-{}", node.name), "--timeout=60s"]);
            }
            // Kubelet unstages after the pod is gone; until then the volume is in use, and the driver says so.
            let delete = ["volume", "delete", volume];
            cluster.eventually("the volume is deleted", MINUTE, |_| node.csi(&delete).ok());
            let staging = cluster.kubelet_root(node.name).join("plugins");
            cluster.eventually("the pool is empty", MINUTE, |_| {
                leftovers(pool.path(), &staging).is_empty().then_some(())
            });
            node.sidecar.stop();
            node.driver.stop();
        }
        let own = BTreeSet::from([cluster.directory().display().to_string()]);
        assert_eq!(mounts(cluster.directory()), own, "what the drivers mounted is gone");
    }

    /// A driver and its sidecar on a node.
    struct Node {
        name: &'static str,
        endpoint: String,
        sidecar: Beside,
        driver: Beside,
    }

    impl Node {
        fn start(cluster: &TestCluster, name: &'static str, pool: &TestPool) -> Self {
            let root = cluster.kubelet_root(name);
            let plugin = root.join("plugins").join(DRIVER);
            fs::create_dir_all(&plugin).unwrap();
            let socket = plugin.join("csi.sock").display().to_string();
            let registry = root.join("plugins_registry").display().to_string();
            let (pool, endpoint) = (pool.path().display().to_string(), format!("unix://{socket}"));
            let log = |of: &str| cluster.directory().join(format!("log/{of}-{name}.log"));
            let driver = Beside::start(
                &wharf(),
                &["driver", "local", "--node-id", name, "--pool", &pool, "--endpoint", &endpoint],
                &log("driver"),
            );
            let sidecar = Beside::start(
                &wharf(),
                &[
                    "sidecar",
                    "--node",
                    "--csi-address",
                    &socket,
                    "--kubelet-registration-path",
                    &socket,
                    "--plugin-registration-path",
                    &registry,
                    "--http-endpoint",
                    "127.0.0.1:0",
                ],
                &log("sidecar"),
            );
            Self { name, endpoint, sidecar, driver }
        }

        /// `wharf csi` on this node's driver: what it prints, or what it complains about.
        fn csi(&self, args: &[&str]) -> Result<String, String> {
            let global = ["csi", "--endpoint", &self.endpoint, "--output", "json"];
            let output = Command::new(wharf()).args(global).args(args).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
        }
    }

    /// The binary beside this test's own; `hack/test.sh cluster` has built it.
    fn wharf() -> PathBuf {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("wharf")
    }

    /// A string of a JSON object that is printed with a field a line.
    fn field(json: &str, name: &str) -> String {
        let start = format!("\"{name}\": \"");
        let (_, rest) = json.split_once(&start).unwrap_or_else(|| panic!("no {name} in {json}"));
        rest.split('"').next().unwrap().to_owned()
    }

    /// The value of one of kubelet's statistics for the claim on a node.
    fn statistic(metrics: &str, name: &str, node: &str) -> Option<f64> {
        let start = format!("kubelet_volume_stats_{name}{{");
        let claim = format!("persistentvolumeclaim=\"on-{node}\"");
        let line = metrics.lines().find(|line| line.starts_with(&start) && line.contains(&claim))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    fn csi_driver() -> String {
        format!(
            r#"
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: false, podInfoOnMount: false, fsGroupPolicy: File}}
"#
        )
    }

    fn volume_and_claim(node: &str, volume: &str, fs: &str) -> String {
        format!(
            r#"
apiVersion: v1
kind: PersistentVolume
metadata: {{name: on-{node}}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {{namespace: default, name: on-{node}}}
  csi: {{driver: {DRIVER}, volumeHandle: {volume}, fsType: {fs}}}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{{key: {DRIVER}/node, operator: In, values: [{node}]}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: on-{node}}}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  volumeName: on-{node}
  resources: {{requests: {{storage: 1Gi}}}}
"#
        )
    }

    fn pod_with_claim(node: &str) -> String {
        format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: on-{node}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: Never
    command: [sleep, "100000"]
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes:
  - name: data
    persistentVolumeClaim: {{claimName: on-{node}}}
"#
        )
    }

    fn pod(node: &str) -> String {
        format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: on-{node}}}
spec:
  nodeName: {node}
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: busybox:1.36
    imagePullPolicy: Never
    command: [sh, -c, "echo I am on {node}; exec sleep 100000"]
"#
        )
    }

    /// Processes that were started for this cluster: all of them inherit its directory's name.
    fn processes(run: &Path) -> BTreeSet<String> {
        let mark = format!("RUN={}", run.display());
        let of_cluster = |process: &Path| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let ours = all.filter(|path| of_cluster(path));
        ours.map(|path| fs::read_to_string(path.join("comm")).unwrap_or_default()).collect()
    }

    fn mounts(run: &Path) -> BTreeSet<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| Path::new(point).starts_with(run)).map(str::to_owned).collect()
    }

    fn cgroups_of_containers() -> BTreeSet<String> {
        fn below(dir: &Path, depth: u8, found: &mut BTreeSet<String>) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if depth > 0 && path.is_dir() {
                    if path.components().any(|part| part.as_os_str() == "k8s.io") {
                        found.insert(path.display().to_string());
                    }
                    below(&path, depth - 1, found);
                }
            }
        }
        let mut found = BTreeSet::new();
        below(Path::new("/sys/fs/cgroup"), 3, &mut found);
        found
    }

    fn network_devices() -> BTreeSet<String> {
        let devices = fs::read_dir("/sys/class/net").unwrap().flatten();
        devices.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}
