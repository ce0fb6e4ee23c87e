//! An embedded API server, a local driver on its own pool, and a volume manager between them. The test itself
//! attaches: it writes the VolumeAttachment and the Node's `volumesAttached`.

use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Response;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, EventRecorder, Patch};
use wharf_csi::v1::volume_capability::access_mode::Mode;
use wharf_csi::{Client, Endpoint, InProcessService, v1};
use wharf_driver::ServeOptions;
use wharf_driver_local::{Config, DRIVER_NAME};
use wharf_linux::{FsType, Linux, Mounts as _};
use wharf_model::{
    CSIDriver, Key, Kind, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment,
};
use wharf_node::paths::{Root, hash};
use wharf_node::plugins::{NodeCapabilities, Plugin, Plugins};
use wharf_node::volumes::{self, COMPONENT, Mounted, Settings, VolumeManagerDeps, VolumePath, Volumes};
use wharf_testkit::{TestPool, capability};

pub(crate) const NODE: &str = "node-1";
pub(crate) const MIB: i64 = 1 << 20;
/// A timeout far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// The environment in which managers are started and killed.
pub(crate) struct Fixture {
    pub(crate) api: Api,
    pub(crate) cluster: Cluster,
    pub(crate) plugins: Plugins,
    pub(crate) driver: Client,
    pub(crate) root: Root,
    stop: CancellationToken,
    serving: Option<std::thread::JoinHandle<()>>,
    /// Managers get an additional client with more permissions.
    pub(crate) privileged_client: bool,
    /// Its mounts and devices must be removed before the directory that contains them.
    _pool: TestPool,
    _dir: TempDir,
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // The driver keeps its pool open until it stops.
        self.stop.cancel();
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

/// A running manager; dropping it is like kill -9: its mounts stay.
pub(crate) struct Agent {
    pub(crate) volumes: Volumes,
    task: JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Agent {
    /// Kills it, including all tasks.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub(crate) async fn mounted(&self, pod: &Pod) -> Mounted {
        let uid = &pod.metadata.uid;
        let all = async {
            loop {
                match self.volumes.wait_mounted(uid).await {
                    Ok(mounted) => return mounted,
                    Err(error) => eprintln!("not yet: {error}"),
                }
            }
        };
        timeout(LONG, all).await.expect("timed out waiting for the pod's volumes")
    }

    pub(crate) async fn released(&self, pod: &Pod) {
        timeout(LONG, self.volumes.wait_released(&pod.metadata.uid))
            .await
            .expect("timed out waiting for the pod's volumes to be unmounted");
    }
}

/// A bound volume.
pub(crate) struct Volume {
    pub(crate) handle: String,
    pub(crate) name: String,
}

impl Volume {
    /// The name of its VolumeAttachment.
    pub(crate) fn attachment(&self) -> String {
        format!("csi-{}", hash(&format!("{}{DRIVER_NAME}{NODE}", self.handle)))
    }

    pub(crate) fn unique(&self) -> String {
        format!("kubernetes.io/csi/{DRIVER_NAME}^{}", self.handle)
    }
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(&dir.path().join("api"), options).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let pool = TestPool::new(FsType::Xfs, 2 << 30);
        let stop = CancellationToken::new();
        let (endpoint, serving) = serve(dir.path(), pool.path(), stop.clone());
        let cluster = client(&api);
        let root = Root::new(dir.path().join("kubelet"));
        let driver = Client::new(&endpoint);
        let (plugins, serving) = (Plugins::new(), Some(serving));
        let fixture = Self {
            api,
            cluster,
            plugins,
            driver,
            root,
            stop,
            serving,
            privileged_client: true,
            _pool: pool,
            _dir: dir,
        };
        fixture.create::<Node>(None, json!({"metadata": {"name": NODE}})).await;
        fixture.register(&endpoint).await;
        fixture
    }

    /// Registers the driver like the plugin manager.
    pub(crate) async fn register(&self, endpoint: &Endpoint) {
        let request = v1::NodeGetCapabilitiesRequest::default();
        let response = until("the driver to respond", async || {
            self.driver.node().node_get_capabilities(request).await.ok()
        });
        let capabilities = NodeCapabilities::from_response(response.await.get_ref());
        let mut plugin = Plugin::new(DRIVER_NAME, endpoint.clone());
        plugin.capabilities = capabilities;
        self.plugins.insert(plugin);
    }

    /// Starts a new manager.
    pub(crate) fn agent(&self) -> Agent {
        self.agent_with(Settings::default())
    }

    pub(crate) fn agent_with(&self, settings: Settings) -> Agent {
        // With node permissions, as in `wharf up`.
        let cluster = Cluster::with_client(kube::Client::new(self.api.service(User::node(NODE)), "default"));
        let parts = VolumeManagerDeps {
            events: EventRecorder::start(&cluster, COMPONENT, NODE),
            cluster,
            privileged_client: self.privileged_client.then(|| client(&self.api)),
            plugins: self.plugins.clone(),
            kernel: Arc::new(Linux::new()),
            root: self.root.clone(),
            node: NODE.to_owned(),
        };
        let volumes = Volumes::new(parts, settings);
        let gate = Gate::new(None, CancellationToken::new());
        Agent { task: tokio::spawn(volumes::run(volumes.clone(), gate)), volumes }
    }

    pub(crate) async fn create<K: Kind>(&self, namespace: Option<&str>, mut body: Value) -> Value {
        body["apiVersion"] = json!(K::API.api_version());
        body["kind"] = json!(K::API.kind);
        self.cluster.create(&K::API, namespace, &body).await.unwrap()
    }

    pub(crate) async fn status<K: Kind>(&self, key: &Key, status: Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.cluster.patch(&K::API, key, Some("status"), patch).await.unwrap();
    }

    /// The driver does not require attaching.
    pub(crate) async fn without_attach(&self) {
        self.without_attach_of(DRIVER_NAME).await;
    }

    /// Like [`Self::without_attach`], for another driver name.
    pub(crate) async fn without_attach_of(&self, driver: &str) {
        let spec =
            json!({"attachRequired": false, "volumeLifecycleModes": ["Persistent"], "fsGroupPolicy": "File"});
        self.create::<CSIDriver>(None, json!({"metadata": {"name": driver}, "spec": spec})).await;
    }

    /// Creates a volume, a PersistentVolume and a bound claim. `fs` empty: a block volume.
    pub(crate) async fn volume(&self, name: &str, mib: i64, fs: &str) -> Volume {
        self.volume_of(DRIVER_NAME, name, mib, fs).await
    }

    /// Like [`Self::volume`], for another driver name.
    pub(crate) async fn volume_of(&self, driver: &str, name: &str, mib: i64, fs: &str) -> Volume {
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(v1::CapacityRange { required_bytes: mib * MIB, limit_bytes: 0 }),
            volume_capabilities: vec![capability(fs, Mode::SingleNodeWriter)],
            ..Default::default()
        };
        let created =
            self.driver.controller().create_volume(request).await.unwrap().into_inner().volume.unwrap();
        let attributes: Value = created.volume_context.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        let (mode, size) = (if fs.is_empty() { "Block" } else { "Filesystem" }, format!("{mib}Mi"));
        let modes = json!(["ReadWriteOnce"]);
        let claim = json!({"metadata": {"name": name}, "spec": {
            "accessModes": modes, "volumeName": name, "volumeMode": mode, "storageClassName": "",
            "resources": {"requests": {"storage": size}},
        }});
        let claim = self.create::<PersistentVolumeClaim>(Some("default"), claim).await;
        let volume = json!({"metadata": {"name": name}, "spec": {
            "accessModes": modes, "volumeMode": mode, "capacity": {"storage": size},
            "csi": {
                "driver": driver, "volumeHandle": created.volume_id, "fsType": fs, "volumeAttributes": attributes,
            },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name,
                "uid": claim["metadata"]["uid"],
            },
        }});
        self.create::<PersistentVolume>(None, volume).await;
        let bound = json!({"phase": "Bound", "accessModes": modes, "capacity": {"storage": size}});
        self.status::<PersistentVolumeClaim>(&Key::namespaced("default", name), bound).await;
        Volume { handle: created.volume_id, name: name.to_owned() }
    }

    /// Creates a pod with volumes; each is mounted by a container, or a device in it.
    pub(crate) async fn pod(&self, name: &str, volumes: Value, devices: &[&str], context: Value) -> Arc<Pod> {
        let names: Vec<&str> =
            volumes.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
        let mounts: Vec<Value> = names
            .iter()
            .filter(|name| !devices.contains(name))
            .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
            .collect();
        let devices: Vec<Value> =
            devices.iter().map(|name| json!({"name": name, "devicePath": format!("/dev/{name}")})).collect();
        let spec = json!({
            "nodeName": NODE, "securityContext": context, "volumes": volumes, "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "i", "volumeMounts": mounts, "volumeDevices": devices}],
        });
        let pod =
            self.create::<Pod>(Some("default"), json!({"metadata": {"name": name}, "spec": spec})).await;
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    /// Creates a pod with one claim, as `data`.
    pub(crate) async fn pod_of(&self, name: &str, volume: &Volume) -> Arc<Pod> {
        self.pod(name, json!([claim("data", volume)]), &[], json!({})).await
    }

    /// What the attach/detach controller and the attacher would do.
    pub(crate) async fn attach(&self, volume: &Volume) {
        let name = volume.attachment();
        let spec = json!({
            "attacher": DRIVER_NAME, "nodeName": NODE, "source": {"persistentVolumeName": volume.name},
        });
        self.create::<VolumeAttachment>(None, json!({"metadata": {"name": name}, "spec": spec})).await;
        self.status::<VolumeAttachment>(&Key::cluster(name), json!({"attached": true})).await;
        self.attached(&[volume]).await;
    }

    /// Sets the Node's `volumesAttached` to exactly these.
    pub(crate) async fn attached(&self, volumes: &[&Volume]) {
        let attached: Vec<Value> =
            volumes.iter().map(|volume| json!({"name": volume.unique(), "devicePath": ""})).collect();
        self.status::<Node>(&Key::cluster(NODE), json!({"volumesAttached": attached})).await;
    }

    /// Waits until the Node's `volumesInUse` is exactly these.
    pub(crate) async fn in_use(&self, volumes: &[String]) {
        until("volumesInUse", async || {
            let node = self.cluster.get::<Node>(&Key::cluster(NODE)).await.unwrap().unwrap();
            (node.status.volumes_in_use == volumes).then_some(())
        })
        .await;
    }

    /// Mount points beneath the root.
    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let table = Linux::new().mount_table().unwrap();
        let mounts = table.mounts().iter().filter(|mount| mount.mount_point.starts_with(self.root.path()));
        mounts.map(|mount| mount.mount_point.clone()).collect()
    }

    /// Waits until nothing is mounted or recorded any more.
    pub(crate) async fn gone(&self) {
        until("all volumes to be unmounted", async || self.mounts().is_empty().then_some(())).await;
        until("all records to be removed", async || records(self.root.path()).is_empty().then_some(())).await;
    }

    pub(crate) async fn claim(&self, volume: &Volume) -> PersistentVolumeClaim {
        self.cluster.get(&Key::namespaced("default", &volume.name)).await.unwrap().unwrap()
    }
}

/// Records of volumes beneath a directory.
pub(crate) fn records(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name() == "vol_data.json" {
            found.push(path);
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(records(&path));
        }
    }
    found
}

/// A claim as a pod's volume.
pub(crate) fn claim(name: &str, volume: &Volume) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": volume.name}})
}

/// The path of a file system volume.
pub(crate) fn directory(mounted: &Mounted, name: &str) -> PathBuf {
    match &mounted.volumes[name] {
        VolumePath::Directory { path, .. } | VolumePath::Host { path } => path.clone(),
        volume_path => panic!("{volume_path:?}"),
    }
}

/// Polls until the check returns a value.
pub(crate) async fn until<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let polling = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(LONG, polling).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

pub(crate) fn client(api: &Api) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(User::admin()), "default"))
}

/// A driver that accepts all calls and does nothing, and the list of its calls.
pub(crate) fn accepting_driver() -> (Plugin, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&calls);
    let here = InProcessService::new(move |request| {
        recorded.lock().unwrap().push(request.uri().path().to_owned());
        // A message without fields, and the status of success.
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from(0))]);
        let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(ready(Some(Ok(trailers))));
        let response = Response::builder().header("content-type", "application/grpc");
        ready(Ok(response.body(tonic::body::Body::new(body)).unwrap()))
    });
    let endpoint: Endpoint = "unix:///nowhere".parse().unwrap();
    let client = Client::in_process(here, &endpoint);
    (Plugin::new(DRIVER_NAME, endpoint).with_client(client), calls)
}

/// Runs the driver on its own thread: it stops when `stop` is cancelled, whatever the test's own runtime does.
fn serve(dir: &Path, pool: &Path, stop: CancellationToken) -> (Endpoint, std::thread::JoinHandle<()>) {
    let endpoint: Endpoint = format!("unix://{}", dir.join("csi.sock").display()).parse().unwrap();
    let driver = {
        let config = Config { create_pool: true, ..Config::new(NODE, pool) };
        wharf_driver_local::driver(Arc::new(Linux::new()), config).unwrap()
    };
    let at = endpoint.clone();
    let serving = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(driver.serve(&at, ServeOptions::default(), stop.cancelled_owned())).unwrap();
    });
    (endpoint, serving)
}
