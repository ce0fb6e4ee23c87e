//! The parts of `wharf up`, how they are joined, and the order in which they start and stop.
//!
//! API first, then the drivers, then all who act on objects; and back again. A part that ends by itself ends the whole: it
//! would be missing, and nobody would know.

use std::future::Future;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Identity, Pki, write_private};
use wharf_apiserver::rest::{self, Api, PodStreams};
use wharf_apiserver::server::Server;
use wharf_apiserver::store::{self, Store};
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, ConnectOptions};
use wharf_csi::{Client, Endpoint};
use wharf_driver::ServeOptions;
use wharf_driver_local::{Config as LocalConfig, DRIVER_NAME, disk};
use wharf_linux::{Beneath, Files as _, Linux};
use wharf_node::pods::Streams;
use wharf_node::runtime::Runtime;
use wharf_sidecar::controller::{self, Role};
use wharf_sidecar::driver::{DriverInfo, describe};
use wharf_sidecar::process::{self, Sidecar};
use wharf_sidecar::provisioner::{self, CapacitySettings};
use wharf_sidecar::{attacher, health_monitor, registrar, resizer, snapshot_controller, snapshotter};

use super::drivers::Described;
use super::{Place, UpArgs, objects};
use crate::agent::{self, Node};
use crate::apiserver::now;
use crate::controllers::Controller;
use crate::sidecar::Environment;
use crate::signal::stop_signal;

/// For parts to end in, once they were told to.
const ENDING: Duration = Duration::from_secs(15);

/// Tasks that run until they are told to end.
#[derive(Default)]
struct Parts {
    tasks: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Parts {
    fn start<E: Into<anyhow::Error>>(
        &mut self,
        name: &'static str,
        part: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.tasks.spawn(async move { (name, part.await.map_err(Into::into)) });
    }

    /// One that has nothing to say at its end.
    fn keep(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        self.start(name, async {
            part.await;
            anyhow::Ok(())
        });
    }

    /// Ready when one of them has ended, which none does unless it is told to.
    async fn failed(&mut self) -> anyhow::Error {
        match self.tasks.join_next().await {
            Some(Ok((name, Ok(())))) => anyhow::anyhow!("{name} has ended by itself"),
            Some(Ok((name, Err(error)))) => error.context(name),
            Some(Err(error)) => error.into(),
            None => std::future::pending().await,
        }
    }

    /// Tells all to end, and waits for them.
    async fn end(mut self) {
        self.stop.cancel();
        let ended = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Ok((name, Err(error))) = ended {
                    tracing::warn!(part = name, error = format!("{error:#}"), "ended badly");
                }
            }
        };
        if tokio::time::timeout(ENDING, ended).await.is_err() {
            tracing::warn!("not all parts have ended in time; the next start goes on where they were");
        }
    }
}

pub(super) async fn run(args: UpArgs) -> anyhow::Result<()> {
    // Before anything else: a signal that comes meanwhile must not be lost.
    let stopped = stop_signal()?;
    let place = Place::make(&args.data_dir)?;
    let environment = Environment::read();
    let node = args.node_name.clone().or(environment.host_name).context("name the node with --node-name")?;
    let node = node.to_ascii_lowercase();
    let _alone = lock(&place)?;

    // The API, and the way to it within this process, which all share: one watch for each kind.
    let (mut serving, mut driving, mut acting) = (Parts::default(), Parts::default(), Parts::default());
    let runtime = containers(&place, args.pool.as_deref())?;
    let (api, address) = serve_api(&args, &place, &runtime, &mut serving).await?;
    let cluster = here(&api);

    // Drivers, so that it is known what they are.
    let mut drivers = Vec::new();
    if !args.no_local {
        let endpoint = serve_local(&args, &place, &node, &mut driving).await?;
        drivers.push((endpoint, Described::default()));
    }
    drivers.extend(args.csi.iter().map(|foreign| (foreign.endpoint.clone(), foreign.described.clone())));

    let ready = async {
        for (endpoint, described) in drivers {
            let info = describe(&Client::new(&endpoint)).await;
            objects::make(&cluster, what_is_made(&info, &described))
                .await
                .context("make the first objects")?;
            let sidecar = sidecar_of(&place, &endpoint, &info, &node);
            let stop = acting.stop.clone().cancelled_owned();
            acting.start("sidecar", process::run_on(Some(cluster.clone()), sidecar, stop));
        }
        anyhow::Ok(())
    };
    tokio::pin!(stopped);
    tokio::select! {
        done = ready => done?,
        error = serving.failed() => return Err(error),
        error = driving.failed() => return Err(error),
        () = &mut stopped => {
            driving.end().await;
            serving.end().await;
            return Ok(());
        }
    }
    start_controllers(&cluster, &node, &mut acting);
    let agent = Node {
        cluster: cluster.clone(),
        name: node,
        root: place.kubelet(),
        runtime,
        server: Some((address.ip().to_string(), address.port())),
        alone: true,
    };
    agent.start(&Gate::new(None, acting.stop.clone()), |name, part| acting.keep(name, part));
    tell(&place)?;
    let ended = tokio::select! {
        error = serving.failed() => Err(error),
        error = driving.failed() => Err(error),
        error = acting.failed() => Err(error),
        () = stopped => Ok(()),
    };
    acting.end().await;
    driving.end().await;
    serving.end().await;
    ended
}

/// Keeps a second one out, and says who the first one is.
fn lock(place: &Place) -> anyhow::Result<Box<dyn Send + Sync>> {
    let dir = place.sockets();
    let file = Beneath::new(&dir, Path::new("pid"));
    let kernel = Linux::new();
    let locked = kernel.try_lock(&file)?;
    let locked = locked.with_context(|| format!("another `wharf up` runs in {}", place.path().display()))?;
    std::fs::write(place.pid(), format!("{}\n", std::process::id()))
        .with_context(|| format!("write {}", place.pid().display()))?;
    Ok(locked)
}

/// Containers see nothing of what is ours.
fn containers(place: &Place, pool: Option<&Path>) -> anyhow::Result<Runtime> {
    let hidden = [Some(place.path()), pool].into_iter().flatten().map(Path::to_owned).collect();
    agent::containers(place.path().join("containers"), place.path().join("logs"), hidden)
}

async fn serve_api(
    args: &UpArgs,
    place: &Place,
    runtime: &Runtime,
    parts: &mut Parts,
) -> anyhow::Result<(Api, SocketAddr)> {
    let dir = place.api();
    let store =
        Store::open(&dir, store::Options::default()).with_context(|| format!("open {}", dir.display()))?;
    let pki = Arc::new(Pki::open_or_make(&dir, now())?);
    let server = Server::bind(args.listen).await?;
    let (url, address) = (server.url(), server.address());
    let streams: Arc<dyn PodStreams> = Arc::new(Streams::new(runtime.clone()));
    let authority = pki.certificate_pem().to_owned();
    let options =
        rest::Options { base: url.clone(), streams: Some(streams), authority, ..rest::Options::default() };
    let api = Api::new(store, pki.access()?, options);
    api.prepare().await.context("make the first namespaces")?;
    let kubeconfig = pki.kubeconfig(&Identity::Admin, &url, now())?;
    write_private(&place.kubeconfig(), kubeconfig.as_bytes()).context("write the kubeconfig")?;
    let (serving, stop) = (api.clone(), parts.stop.clone());
    parts.start("the API server", async move { server.run(serving, pki, &[], stop).await });
    let (beside, stop) = (api.clone(), parts.stop.clone());
    parts.keep("the API server", async move {
        tokio::select! {
            () = beside.run() => {}
            () = stop.cancelled() => {}
        }
    });
    Ok((api, address))
}

/// The API in this process.
fn here(api: &Api) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(Identity::Admin.user()), "default"))
}

async fn serve_local(
    args: &UpArgs,
    place: &Place,
    node: &str,
    parts: &mut Parts,
) -> anyhow::Result<Endpoint> {
    let endpoint: Endpoint = format!("unix://{}", place.driver().display()).parse()?;
    let (dir, pool, node) = (place.path().to_owned(), args.pool.clone(), node.to_owned());
    let size = args.pool_size.map(i64::cast_unsigned);
    // Opening recovers, which may take a while and blocks.
    let opened = tokio::task::spawn_blocking(move || {
        let kernel = Arc::new(Linux::new());
        let pool = match pool {
            Some(pool) => pool,
            None => disk::prepare(&*kernel, &dir, size).context("make a place for volumes")?.0,
        };
        let config = LocalConfig { attach: true, ..LocalConfig::new(node, pool) };
        anyhow::Ok(wharf_driver_local::driver(kernel, config)?)
    });
    let driver = opened.await.context("open the pool")??;
    let (socket, stop) = (endpoint.clone(), parts.stop.clone());
    parts.start("the local driver", async move {
        driver.serve(&socket, ServeOptions::default(), stop.cancelled()).await
    });
    Ok(endpoint)
}

fn what_is_made(info: &DriverInfo, described: &Described) -> Vec<objects::Made> {
    let mut made = vec![objects::csi_driver(&info.name, &info.can, described)];
    let local = info.name == DRIVER_NAME;
    match local {
        true => made.extend(objects::local_classes(&info.name)),
        false if info.can.create_delete_volume => made.push(objects::class(&info.name, &info.can)),
        false => {}
    }
    if info.can.create_delete_snapshot {
        made.push(objects::snapshot_class(if local { "local" } else { &info.name }, &info.name));
    }
    made
}

/// What stands between a driver and the API: as on a cluster, with no lease, since nobody else is here.
fn sidecar_of(place: &Place, endpoint: &Endpoint, info: &DriverInfo, node: &str) -> Sidecar {
    let mut roles = controller::called_for(&info.can);
    // One is enough for all drivers.
    if info.name == DRIVER_NAME {
        roles.insert(Role::SnapshotController);
    }
    let capacity = (info.can.get_capacity && info.can.topology).then(|| CapacitySettings {
        immediate_binding: false,
        poll_interval: Duration::from_secs(60),
        owner_level: -1,
        pod: None,
    });
    Sidecar {
        driver: Some(endpoint.clone()),
        registrar: Some(registrar::Config {
            plugin_registration_path: place.kubelet().join("plugins_registry"),
            kubelet_registration_path: endpoint.path().display().to_string(),
            timeout: Duration::from_secs(10),
        }),
        probe_timeout: None,
        controller: Some(controller::Config {
            // It is handed the cluster of this process.
            connect: ConnectOptions::default(),
            roles: Some(roles),
            identity: node.to_owned(),
            namespace: Some("kube-system".to_owned()),
            election: None,
            topology: true,
            node: None,
            provisioner: provisioner::Settings { capacity, ..provisioner::Settings::default() },
            attacher: attacher::Settings::default(),
            resizer: resizer::Settings::default(),
            snapshotter: snapshotter::Settings::default(),
            health_monitor: health_monitor::Settings::default(),
            snapshot_controller: snapshot_controller::Settings::default(),
        }),
        listen: Vec::new(),
    }
}

fn start_controllers(cluster: &Cluster, node: &str, parts: &mut Parts) {
    let gate = Gate::new(None, parts.stop.clone());
    for controller in Controller::ALL {
        parts.keep(controller.name(), controller.run(cluster.clone(), gate.clone(), node.to_owned()));
    }
}

/// Says that it is up, and what to type next.
fn tell(place: &Place) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "wharf is up. Next:")?;
    writeln!(stdout, "  export KUBECONFIG={}", place.kubeconfig().display())?;
    writeln!(stdout, "  kubectl get storageclasses")?;
    writeln!(stdout, "  kubectl apply -f examples/claim-and-pod.yaml")?;
    stdout.flush()?;
    Ok(())
}
