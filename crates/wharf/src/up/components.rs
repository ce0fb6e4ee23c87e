//! The components of `wharf up`: how they are connected, and the order in which they start and stop.
//!
//! The API server starts first, then the drivers, then the controllers and the node agent; they stop in reverse order. If
//! one component exits or panics, `wharf up` exits: it would otherwise keep running without that component, unnoticed.
//! Panics in single requests and reconciles are caught within the components.

use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Identity, Pki, write_private};
use wharf_apiserver::rest::{self, Api};
use wharf_apiserver::server::Server;
use wharf_apiserver::store::{self, Store};
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, WatchOptions};
use wharf_container::Runtime;
use wharf_csi::Endpoint;
use wharf_driver::ServeOptions;
use wharf_driver_local::{Config as LocalConfig, disk};
use wharf_driver_nfs::Config as NfsConfig;
use wharf_linux::{Files as _, Linux, PathBeneath};
use wharf_model::panics::catch;
use wharf_model::{CSINode, CSIStorageCapacity, Node, Pod};
use wharf_sidecar::health_registry::HealthRegistry;
use wharf_sidecar::process;
use wharf_upstream_flags::Environment;

use super::data_dir::NodeName;
use super::external_driver::{DriverOptions, ExternalDriver};
use super::pod_streams::ContainerStreams;
use super::served_driver::{self, ServedDriver};
use super::{DataDir, UpArgs};
use crate::agent::{self, NodeAgent};
use crate::apiserver::now;
use crate::controllers::{Controller, ControllerMetrics, Settings};
use crate::signal::stop_signal;
use crate::status_pages;

/// How long components may take to stop.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(15);
/// How long drivers may take to respond before they are reported as missing.
const DRIVER_GRACE: Duration = Duration::from_secs(2);

/// A group of tasks that run until `stop`.
#[derive(Default)]
struct Components {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Components {
    fn spawn<E: Into<anyhow::Error>>(
        &mut self,
        name: &'static str,
        component: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.tasks.spawn(async move {
            match catch(name, "component", component).await {
                Ok(ended) => (name, ended.map_err(Into::into)),
                Err(panic) => (name, Err(panic.into())),
            }
        });
    }

    /// Spawns a component that cannot fail.
    fn spawn_infallible(&mut self, name: &'static str, component: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async {
            component.await;
            anyhow::Ok(())
        });
    }

    /// Completes when a component exits. Before `stop`, any exit is an error.
    async fn first_exit(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok((name, Ok(())))) => anyhow::anyhow!("{name} exited unexpectedly"),
            Some(Ok((name, Err(error)))) => error.context(name),
            Some(Err(error)) => error.into(),
            None => std::future::pending().await,
        }
    }

    /// Stops all components and waits for them.
    async fn shut_down(mut self) {
        self.stop.cancel();
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok((name, Err(error))) = ended {
                    tracing::warn!(
                        component = name,
                        error = format!("{error:#}"),
                        "component failed while stopping"
                    );
                }
            }
        };
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, ended).await.is_err() {
            tracing::warn!("components did not stop in time; the next start resumes their work");
        }
    }
}

pub(super) async fn run(args: UpArgs) -> anyhow::Result<()> {
    // First, so that a signal during startup is not lost.
    let stopped = stop_signal()?;
    let data_dir = DataDir::create(&args.data_dir)?;
    let environment = Environment::read();
    let _lock = lock(&data_dir)?;
    let node_name = data_dir.node_name(args.node_name.as_deref(), environment.host_name.as_deref())?;

    // All components share the watches of one in-process API client.
    let (mut api_server, mut drivers, mut controllers) =
        (Components::default(), Components::default(), Components::default());
    let runtime = open_runtime(&data_dir, &args)?;
    let (api, address) = start_api_server(&args, &data_dir, &node_name, &runtime, &mut api_server).await?;
    let node = node_name.name;
    let cluster = Cluster::with_client(in_process_client(&api, &Identity::Admin));
    watch_shared_kinds(&cluster);
    let health_registry = HealthRegistry::default();
    serve_status_pages(&args, &data_dir, &health_registry, &mut api_server).await?;

    let served = |endpoint: &Endpoint, options: &DriverOptions| ServedDriver {
        endpoint: endpoint.clone(),
        options: options.clone(),
        cluster: cluster.clone(),
        data_dir: data_dir.clone(),
        node: node.clone(),
        health_registry: health_registry.clone(),
    };
    let (mut local, mut waiting) = (None, Vec::new());
    if !args.no_local {
        let endpoint = start_local_driver(&args, &data_dir, &node, &mut drivers).await?;
        local = Some(start_sidecar(served(&endpoint, &DriverOptions::default()), &mut controllers));
    }
    if let Some(export) = &args.nfs {
        let endpoint = start_nfs_driver(&data_dir, &node, &mut drivers)?;
        let sidecar = start_sidecar(served(&endpoint, &export.driver_options()), &mut controllers);
        waiting.push((endpoint, sidecar));
    }
    for ExternalDriver { endpoint, options } in &args.csi {
        waiting.push((endpoint.clone(), start_sidecar(served(endpoint, options), &mut controllers)));
    }
    let snapshots = served_driver::snapshot_controller(&node);
    let stop = controllers.stop.clone().cancelled_owned();
    let registered_as = ("snapshot-controller".to_owned(), health_registry.clone());
    controllers.spawn(
        "snapshot controller",
        process::run_with_registry(cluster.clone(), snapshots, registered_as, stop),
    );
    start_controllers(&cluster, &node, &health_registry, &mut controllers);
    let agent = NodeAgent {
        cluster: cluster.with_user(in_process_client(&api, &Identity::Node(node.clone()))),
        privileged_client: Some(cluster.clone()),
        name: node,
        root: data_dir.kubelet_root(),
        runtime,
        server: Some((address.ip().to_string(), address.port())),
        recreate_node: true,
        as_upstream: Vec::new(),
    };
    agent.start(&Gate::new(None, controllers.stop.clone()), &health_registry, |name, component| {
        controllers.spawn_infallible(name, component)
    });

    let ready = async {
        // The local driver becomes ready, or its exit ends `wharf up`.
        if let Some(local) = local {
            let _ = local.await;
        }
        let missing = missing_drivers(waiting).await;
        print_ready(&data_dir, &missing)?;
        std::future::pending::<anyhow::Result<()>>().await
    };
    let result = tokio::select! {
        error = api_server.first_exit() => Err(error),
        error = drivers.first_exit() => Err(error),
        error = controllers.first_exit() => Err(error),
        result = ready => result,
        () = stopped => Ok(()),
    };
    controllers.shut_down().await;
    drivers.shut_down().await;
    api_server.shut_down().await;
    result
}

/// Prevents a second `wharf up` in the same directory, and records the process ID for `wharf down`.
fn lock(data_dir: &DataDir) -> anyhow::Result<Box<dyn Send + Sync>> {
    let dir = data_dir.run();
    let file = PathBeneath::new(&dir, Path::new("pid"));
    let kernel = Linux::new();
    let locked = kernel.try_lock(&file)?;
    let locked =
        locked.with_context(|| format!("another `wharf up` is running in {}", data_dir.path().display()))?;
    std::fs::write(data_dir.pid_file(), format!("{}\n", std::process::id()))
        .with_context(|| format!("failed to write {}", data_dir.pid_file().display()))?;
    Ok(locked)
}

/// Opens the container runtime. The data directory and the drivers' storage are hidden from containers.
fn open_runtime(data_dir: &DataDir, args: &UpArgs) -> anyhow::Result<Runtime> {
    // Hidden explicitly: the pool in the data directory may be a mount of a directory elsewhere, which must be hidden too.
    let pool = args.pool.clone().unwrap_or_else(|| data_dir.path().join("pool"));
    let hidden = [data_dir.path().to_owned(), pool].into_iter().chain(args.hide.clone()).collect();
    agent::open_runtime(data_dir.path().join("containers"), data_dir.path().join("logs"), hidden)
}

async fn start_api_server(
    args: &UpArgs,
    data_dir: &DataDir,
    node: &NodeName,
    runtime: &Runtime,
    components: &mut Components,
) -> anyhow::Result<(Api, SocketAddr)> {
    let dir = data_dir.api();
    let store = Store::open(&dir, store::Options::default())
        .with_context(|| format!("failed to open {}", dir.display()))?;
    let pki = Arc::new(Pki::open_or_create(&dir, now())?);
    let server = Server::bind(args.listen).await?;
    let (url, address) = (server.url(), server.local_address());
    let authority = pki.certificate_pem().to_owned();
    let options = rest::Options {
        base_url: url.clone(),
        streams: Some(Arc::new(ContainerStreams::new(&node.name, runtime.clone()))),
        ca_certificate: authority,
        ..rest::Options::default()
    };
    let api = Api::new(store, pki.access()?, options);
    api.prepare().await.context("failed to create the initial namespaces")?;
    // Before anything creates a Node.
    data_dir.record_node_name(node, &node_names(&api).await?)?;
    let kubeconfig = pki.kubeconfig(&Identity::Admin, &url, now())?;
    write_private(&data_dir.kubeconfig(), kubeconfig.as_bytes()).context("failed to write the kubeconfig")?;
    let (serving, stop) = (api.clone(), components.stop.clone());
    components.spawn("API server", async move { server.run(serving, pki, &[], stop).await });
    let (background, stop) = (api.clone(), components.stop.clone());
    components.spawn_infallible("API server", async move {
        tokio::select! {
            () = background.run() => {}
            () = stop.cancelled() => {}
        }
    });
    Ok((api, address))
}

/// The names of all Nodes.
async fn node_names(api: &Api) -> anyhow::Result<Vec<String>> {
    let cluster = Cluster::with_client(in_process_client(api, &Identity::Admin));
    let nodes = cluster.list::<Node>(&WatchOptions::default()).await.context("failed to list Nodes")?;
    let undecodable = nodes.undecodable.into_iter().flatten().map(|key| key.name);
    Ok(nodes.items.into_iter().map(|node| node.metadata.name).chain(undecodable).collect())
}

/// Serves metrics and attempts on a socket that only root can use, and at the address of `--metrics`.
async fn serve_status_pages(
    args: &UpArgs,
    data_dir: &DataDir,
    health_registry: &HealthRegistry,
    components: &mut Components,
) -> anyhow::Result<()> {
    let endpoint: Endpoint = format!("unix://{}", data_dir.status_socket().display()).parse()?;
    let (listener, file) = wharf_csi::bind(&endpoint).context("failed to serve metrics")?;
    let (on_socket, on_address) = (
        health_registry.clone().serve(listener),
        status_pages::serve(health_registry.clone(), args.metrics).await?,
    );
    let stop = components.stop.clone();
    components.spawn_infallible("metrics", async move {
        // Removes the socket when dropped.
        let _file = file;
        tokio::select! {
            () = on_socket => {}
            _ = on_address => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(())
}

/// A client that calls the API within this process, as this identity.
fn in_process_client(api: &Api, identity: &Identity) -> kube::Client {
    kube::Client::new(api.service(identity.user()), "default")
}

/// Watches all objects of the kinds of which some components need only a selection, such as the node agent its own pods.
/// These components would otherwise start watches of their own if they start first.
fn watch_shared_kinds(cluster: &Cluster) {
    cluster.store::<Pod>(WatchOptions::default());
    cluster.store::<Node>(WatchOptions::default());
    cluster.store::<CSINode>(WatchOptions::default());
    cluster.store::<CSIStorageCapacity>(WatchOptions::default());
}

/// Starts the sidecar of a driver. The receiver completes when the driver has responded and its objects exist.
fn start_sidecar(driver: ServedDriver, components: &mut Components) -> oneshot::Receiver<()> {
    let (ready, became_ready) = oneshot::channel();
    let stop = components.stop.clone();
    components.spawn("sidecar", driver.run(ready, stop));
    became_ready
}

/// The drivers that are not ready after a grace period. Running drivers are thus ready before `wharf up` reports so.
async fn missing_drivers(waiting: Vec<(Endpoint, oneshot::Receiver<()>)>) -> Vec<Endpoint> {
    let until = Instant::now() + DRIVER_GRACE;
    let mut missing = Vec::new();
    for (endpoint, became_ready) in waiting {
        if timeout_at(until, became_ready).await.is_err() {
            missing.push(endpoint);
        }
    }
    missing
}

async fn start_local_driver(
    args: &UpArgs,
    data_dir: &DataDir,
    node: &str,
    components: &mut Components,
) -> anyhow::Result<Endpoint> {
    let endpoint: Endpoint = format!("unix://{}", data_dir.local_driver_socket().display()).parse()?;
    let (dir, pool, node) = (data_dir.path().to_owned(), args.pool.clone(), node.to_owned());
    let (size, overcommit) = (args.pool_size.map(i64::cast_unsigned), args.overcommit);
    // Opening the pool also recovers it, which blocks and may take a while.
    let opened = tokio::task::spawn_blocking(move || {
        let kernel = Arc::new(Linux::new());
        // Once this file exists, the driver serves no other pool, and creates none in place of a lost one.
        let pool_id_file = dir.join("pool-id");
        let pool = match pool {
            Some(pool) => pool,
            None => {
                let known = pool_id_file.exists();
                disk::prepare(&*kernel, &dir, size, !known).context("failed to open or create the pool")?.0
            }
        };
        let config = LocalConfig {
            attach: true,
            create_pool: true,
            pool_id_file: Some(pool_id_file),
            overcommit,
            ..LocalConfig::new(node, pool)
        };
        anyhow::Ok(wharf_driver_local::driver(kernel, config)?)
    });
    let driver = opened.await.context("failed to open the pool")??;
    let (socket, stop) = (endpoint.clone(), components.stop.clone());
    components.spawn("local driver", async move {
        driver.serve(&socket, ServeOptions::default(), stop.cancelled()).await
    });
    Ok(endpoint)
}

/// Starts the NFS driver. It needs no server to start: calls fail until the server answers.
fn start_nfs_driver(data_dir: &DataDir, node: &str, components: &mut Components) -> anyhow::Result<Endpoint> {
    let endpoint: Endpoint = format!("unix://{}", data_dir.nfs_driver_socket().display()).parse()?;
    let driver = wharf_driver_nfs::driver(NfsConfig::new(node))?;
    let (socket, stop) = (endpoint.clone(), components.stop.clone());
    components.spawn("NFS driver", async move {
        driver.serve(&socket, ServeOptions::default(), stop.cancelled()).await
    });
    Ok(endpoint)
}

fn start_controllers(
    cluster: &Cluster,
    node: &str,
    health_registry: &HealthRegistry,
    components: &mut Components,
) {
    let gate = Gate::new(None, components.stop.clone());
    let metrics = ControllerMetrics::default();
    for controller in Controller::ALL {
        let (settings, metrics) = (Settings::default(), metrics.clone());
        let run = controller.run(cluster.clone(), gate.clone(), node.to_owned(), settings, metrics);
        components.spawn_infallible(controller.name(), run);
    }
    // The API client's metrics are left out: the snapshot controller's page has them.
    health_registry.register("controllers", move || metrics.encode(None));
}

/// Prints that `wharf up` is ready, the missing drivers, and the next commands.
fn print_ready(data_dir: &DataDir, missing: &[Endpoint]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for endpoint in missing {
        writeln!(stdout, "waiting for a driver at {endpoint}: no response yet")?;
    }
    writeln!(stdout, "wharf is up. Next:")?;
    writeln!(stdout, "  export KUBECONFIG={}", data_dir.kubeconfig().display())?;
    writeln!(stdout, "  kubectl get storageclasses")?;
    writeln!(stdout, "  kubectl apply -f examples/claim-and-pod.yaml")?;
    stdout.flush()?;
    Ok(())
}
