//! A node agent on the embedded API server, with drivers and plugins on real sockets. Drop removes everything.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower::Service as _;
use wharf_apiserver::access::{Access, User};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::store;
use wharf_cluster::Cluster;
use wharf_cluster::work::Gate;
use wharf_csi::registration::registration_server::{Registration, RegistrationServer};
use wharf_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use wharf_csi::v1::identity_server::{Identity, IdentityServer};
use wharf_csi::v1::node_server::{Node, NodeServer};
use wharf_csi::v1::node_service_capability::{self, Rpc, rpc};
use wharf_csi::{AnyAuthority, Endpoint, SocketFile, v1};
use wharf_model::Node as WholeNode;
use wharf_model::{ApiResource as Kind, CSINode, Key, Kind as _};
use wharf_node::machine::{self, Health};
use wharf_node::plugins::{self, Plugins};

pub(crate) const NODE: &str = "node-a";
pub(crate) const DRIVER: &str = "a.example.com";
const LONG: Duration = Duration::from_secs(30);

/// Polls until the check returns a value; `what` names the expected state.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let found = timeout(LONG, async {
        loop {
            match look().await {
                Some(found) => return found,
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// The API server, and the agent's components.
pub(crate) struct Agent {
    pub(crate) admin: Cluster,
    pub(crate) cluster: Cluster,
    /// An additional client with more permissions.
    pub(crate) privileged_client: Option<Cluster>,
    pub(crate) plugins: Plugins,
    pub(crate) health: Health,
    pub(crate) dir: TempDir,
    /// While set, the agent's writes to its CSINode fail.
    pub(crate) csi_node_writes_fail: Arc<AtomicBool>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    api_task: JoinHandle<()>,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
        self.api_task.abort();
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Agent {
    /// An empty API server with its garbage collector. The agent has a node's permissions.
    pub(crate) async fn new() -> Self {
        Self::with(User::node(NODE)).await
    }

    /// With all components running.
    pub(crate) async fn running(change: impl FnOnce(&mut plugins::Settings)) -> Self {
        let mut agent = Self::new().await;
        agent.run(change);
        agent
    }

    /// With another user for the agent.
    pub(crate) async fn with(user: User) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = store::Options { sync: false, ..store::Options::default() };
        let store = store::Store::open(&dir.path().join("api"), options).unwrap();
        let api = Api::new(store, Access::generate().unwrap(), rest::Options::default());
        api.prepare().await.unwrap();
        let csi_node_writes_fail = Arc::<AtomicBool>::default();
        let cluster = |user, csi_node_writes_fail: Arc<AtomicBool>| {
            let service = api.service(user);
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let writes =
                    request.method() != http::Method::GET && request.uri().path().contains("/csinodes");
                let breaks = writes && csi_node_writes_fail.load(Ordering::Relaxed);
                let mut service = service.clone();
                async move {
                    match breaks {
                        true => Ok(unavailable()),
                        false => service.call(request).await,
                    }
                }
            });
            Cluster::with_client(kube::Client::new(service, "default"))
        };
        let (admin, cluster) =
            (cluster(User::admin(), Arc::default()), cluster(user, Arc::clone(&csi_node_writes_fail)));
        let api_task = tokio::spawn({
            let api = api.clone();
            async move { api.run().await }
        });
        Self {
            admin,
            cluster,
            privileged_client: None,
            plugins: Plugins::new(),
            health: Health::new(),
            dir,
            csi_node_writes_fail,
            stop: CancellationToken::new(),
            tasks: Vec::new(),
            api_task,
        }
    }

    /// Aborts the agent's components like a crash; those started later share no state with them.
    pub(crate) async fn crash(&mut self) {
        for task in self.tasks.drain(..) {
            task.abort();
            task.await.unwrap_err();
        }
        (self.plugins, self.health) = (Plugins::new(), Health::new());
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.dir.path().join("registry")
    }

    fn gate(&self) -> Gate {
        Gate::new(None, self.stop.clone())
    }

    pub(crate) fn run_machine(&mut self, change: impl FnOnce(&mut machine::Settings)) {
        let mut settings = machine::Settings::new(NODE, self.dir.path());
        settings.address = Some([127, 0, 0, 1].into());
        change(&mut settings);
        let run = machine::run(self.cluster.clone(), self.gate(), self.health.clone(), settings);
        self.tasks.push(tokio::spawn(run));
    }

    pub(crate) fn run_plugins(&mut self, change: impl FnOnce(&mut plugins::Settings)) {
        let mut settings = plugins::Settings::new(NODE, self.registry());
        settings.socket_grace = Duration::from_millis(200);
        change(&mut settings);
        let run = plugins::run(
            self.plugins.clone(),
            self.cluster.clone(),
            self.privileged_client.clone(),
            self.gate(),
            self.health.clone(),
            settings,
        );
        self.tasks.push(tokio::spawn(run));
    }

    pub(crate) fn run(&mut self, change: impl FnOnce(&mut plugins::Settings)) {
        self.run_machine(|_| {});
        self.run_plugins(change);
    }

    /// Starts a driver and its plugin on their sockets.
    pub(crate) fn start_driver(&self, driver: &Driver) -> RunningDriver {
        let socket = self.dir.path().join("plugins/csi.sock");
        let registrar = Registrar::new(&driver.behavior().name, &socket);
        let path = self.registry().join("a.sock");
        RunningDriver {
            serving: driver.serve(&socket),
            plugin: registrar.serve(&path),
            driver: driver.clone(),
            registrar,
            socket,
            path,
        }
    }

    /// Like [`Self::plug`], but waits until the driver is registered.
    pub(crate) async fn running_driver(&self) -> RunningDriver {
        let running_driver = self.start_driver(&Driver::new(DRIVER));
        running_driver.registrar.accepted().await;
        self.registered(DRIVER).await;
        running_driver
    }

    pub(crate) async fn object(&self, api: &Kind, key: &Key) -> Option<Value> {
        self.admin.get_raw(api, key).await.unwrap()
    }

    pub(crate) async fn node(&self) -> Option<Value> {
        self.object(&WholeNode::API, &Key::cluster(NODE)).await
    }

    pub(crate) async fn csi_node(&self) -> Option<Value> {
        self.object(&CSINode::API, &Key::cluster(NODE)).await
    }

    /// The driver's entry in the CSINode.
    pub(crate) async fn entry(&self, driver: &str) -> Option<Value> {
        let csi_node = self.csi_node().await?;
        csi_node["spec"]["drivers"].as_array()?.iter().find(|entry| entry["name"] == driver).cloned()
    }

    /// The node ids in the Node's annotation, by driver.
    pub(crate) async fn node_ids(&self) -> Option<Value> {
        let node = self.node().await?;
        let text = node["metadata"]["annotations"]["csi.volume.kubernetes.io/nodeid"].as_str()?;
        Some(serde_json::from_str(text).unwrap())
    }

    /// Waits until the driver is registered: in the plugin set, in the CSINode and on the Node.
    pub(crate) async fn registered(&self, driver: &str) -> Value {
        let entry = until("an entry in the CSINode", || self.entry(driver)).await;
        until("the plugin", || async { self.plugins.get(driver) }).await;
        assert_eq!(self.node_ids().await.unwrap()[driver], entry["nodeID"]);
        entry
    }

    /// Waits until all its entries are removed.
    pub(crate) async fn deregistered(&self, driver: &str) {
        until("the entry to be removed", || async { self.entry(driver).await.is_none().then_some(()) }).await;
        until("the annotation to be removed", || async {
            self.node_ids().await.is_none_or(|ids| ids.get(driver).is_none()).then_some(())
        })
        .await;
        assert!(self.plugins.get(driver).is_none());
    }
}

fn unavailable() -> http::Response<rest::Body> {
    let body = Full::new(Bytes::from_static(b"{}")).map_err(|never| match never {}).boxed_unsync();
    http::Response::builder().status(503).body(body).unwrap()
}

/// A driver's responses, which tests can change.
#[derive(Debug, Clone)]
pub(crate) struct DriverBehavior {
    pub(crate) name: String,
    pub(crate) node_id: String,
    pub(crate) max_volumes: i64,
    pub(crate) topology: BTreeMap<String, String>,
    pub(crate) capabilities: Vec<rpc::Type>,
    /// NodeGetInfo fails with this message.
    pub(crate) error: Option<String>,
    /// Number of NodeGetInfo calls.
    pub(crate) node_info_calls: usize,
}

/// A driver with identity and node info only.
#[derive(Clone)]
pub(crate) struct Driver(Arc<Mutex<DriverBehavior>>);

impl Driver {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(DriverBehavior {
            name: name.into(),
            node_id: "id-of-a".into(),
            max_volumes: 5,
            topology: BTreeMap::from([("topology.example.com/rack".into(), "r1".into())]),
            capabilities: vec![rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats],
            error: None,
            node_info_calls: 0,
        })))
    }

    pub(crate) fn behavior(&self) -> MutexGuard<'_, DriverBehavior> {
        self.0.lock().unwrap()
    }

    /// Serves at a path; creates its directory.
    pub(crate) fn serve(&self, path: &Path) -> Served {
        Served::at(path, None, Some(self.clone()))
    }
}

/// A socket that is served until it is dropped.
pub(crate) struct Served {
    _file: SocketFile,
    task: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Served {
    fn at(path: &Path, registrar: Option<Registrar>, driver: Option<Driver>) -> Self {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let endpoint: Endpoint = path.to_str().unwrap().parse().unwrap();
        let (listener, file) = wharf_csi::bind(&endpoint).unwrap();
        let callers = UnixListenerStream::new(listener).map(|accepted| accepted.map(AnyAuthority::new));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (registrar, driver) = (registrar.clone(), driver.clone());
            async move {
                let name = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
                match (name.as_str(), registrar, driver) {
                    ("pluginregistration.Registration", Some(registrar), _) => {
                        RegistrationServer::new(registrar).call(request).await
                    }
                    ("csi.v1.Identity", _, Some(driver)) => IdentityServer::new(driver).call(request).await,
                    ("csi.v1.Node", _, Some(driver)) => NodeServer::new(driver).call(request).await,
                    _ => Ok(Status::unimplemented(name).into_http()),
                }
            }
        });
        let server = Server::builder().serve_with_incoming(service, callers);
        let task = tokio::spawn(async move { server.await.unwrap() });
        Self { _file: file, task }
    }
}

/// A driver and its plugin on their sockets.
pub(crate) struct RunningDriver {
    pub(crate) driver: Driver,
    pub(crate) registrar: Registrar,
    /// The driver's socket.
    pub(crate) socket: PathBuf,
    pub(crate) serving: Served,
    /// The plugin's socket.
    pub(crate) path: PathBuf,
    pub(crate) plugin: Served,
}

/// A plugin's registration service with a configurable response; records the notifications.
#[derive(Clone)]
pub(crate) struct Registrar {
    pub(crate) info: PluginInfo,
    notifications: Arc<Mutex<Vec<RegistrationStatus>>>,
    /// GetInfo fails.
    pub(crate) get_info_fails: Arc<AtomicBool>,
}

impl Registrar {
    pub(crate) fn new(name: &str, endpoint: &Path) -> Self {
        let info = PluginInfo {
            r#type: "CSIPlugin".into(),
            name: name.into(),
            endpoint: endpoint.to_str().unwrap().into(),
            supported_versions: vec!["1.0.0".into()],
        };
        Self { info, notifications: Arc::default(), get_info_fails: Arc::default() }
    }

    pub(crate) fn serve(&self, path: &Path) -> Served {
        Served::at(path, Some(self.clone()), None)
    }

    /// Registration and driver on one socket.
    pub(crate) fn serve_with(&self, path: &Path, driver: &Driver) -> Served {
        Served::at(path, Some(self.clone()), Some(driver.clone()))
    }

    pub(crate) fn notifications(&self) -> Vec<RegistrationStatus> {
        self.notifications.lock().unwrap().clone()
    }

    /// Waits for a successful notification.
    pub(crate) async fn accepted(&self) {
        until("a successful registration", || async {
            self.notifications().iter().any(|status| status.plugin_registered).then_some(())
        })
        .await;
    }

    /// Waits for a failed notification, and returns its error.
    pub(crate) async fn refused(&self) -> String {
        until("a failed registration", || async {
            self.notifications()
                .into_iter()
                .find(|status| !status.plugin_registered)
                .map(|status| status.error)
        })
        .await
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        match self.get_info_fails.load(Ordering::Relaxed) {
            true => Err(Status::internal("not yet")),
            false => Ok(Response::new(self.info.clone())),
        }
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.notifications.lock().unwrap().push(request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let name = self.behavior().name.clone();
        let vendor_version = "7".into();
        Ok(Response::new(v1::GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(v1::GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        Ok(Response::new(v1::ProbeResponse::default()))
    }
}

/// The Node service; most calls are unimplemented.
macro_rules! node_service {
    ($($name:ident($request:ident) -> $response:ident;)*) => {
        #[tonic::async_trait]
        impl Node for Driver {
            async fn node_get_info(
                &self,
                _: Request<v1::NodeGetInfoRequest>,
            ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
                let mut behavior = self.behavior();
                behavior.node_info_calls += 1;
                match &behavior.error {
                    Some(error) => Err(Status::internal(error.clone())),
                    None => Ok(Response::new(v1::NodeGetInfoResponse {
                        node_id: behavior.node_id.clone(),
                        max_volumes_per_node: behavior.max_volumes,
                        accessible_topology: Some(v1::Topology {
                            segments: behavior.topology.clone().into_iter().collect(),
                        }),
                    })),
                }
            }

            async fn node_get_capabilities(
                &self,
                _: Request<v1::NodeGetCapabilitiesRequest>,
            ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
                let capability = |capabilities: &rpc::Type| v1::NodeServiceCapability {
                    r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: *capabilities as i32 })),
                };
                let capabilities = self.behavior().capabilities.iter().map(capability).collect();
                Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities }))
            }

            $(async fn $name(&self, _: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                Err(Status::unimplemented(stringify!($name)))
            })*
        }
    };
}

node_service! {
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
    node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
}
