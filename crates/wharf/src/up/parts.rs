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
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::{Identity, Pki, write_private};
use wharf_apiserver::rest::{self, Api, PodStreams};
use wharf_apiserver::server::Server;
use wharf_apiserver::store::{self, Store};
use wharf_cluster::Cluster;
use wharf_cluster::work::Gate;
use wharf_csi::Endpoint;
use wharf_driver::ServeOptions;
use wharf_driver_local::{Config as LocalConfig, disk};
use wharf_linux::{Beneath, Files as _, Linux};
use wharf_node::pods::Streams;
use wharf_node::runtime::Runtime;
use wharf_sidecar::board::Board;
use wharf_sidecar::process;

use super::drivers::{Described, Foreign};
use super::served::{self, Served};
use super::{Place, UpArgs};
use crate::agent::{self, Node};
use crate::apiserver::now;
use crate::controllers::{Controller, Counted, Settings};
use crate::pages;
use crate::sidecar::Environment;
use crate::signal::stop_signal;

/// For parts to end in, once they were told to.
const ENDING: Duration = Duration::from_secs(15);
/// For drivers that are there to answer, before it is said who is absent.
const FIRST_LOOK: Duration = Duration::from_secs(2);

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
    let runtime = containers(&place, &args)?;
    let (api, address) = serve_api(&args, &place, &runtime, &mut serving).await?;
    let cluster = as_user(&api, &Identity::Admin);
    let board = Board::default();
    serve_board(&args, &place, &board, &mut serving).await?;

    let served = |endpoint: &Endpoint, described: &Described| Served {
        endpoint: endpoint.clone(),
        described: described.clone(),
        cluster: cluster.clone(),
        place: place.clone(),
        node: node.clone(),
        board: board.clone(),
    };
    let (mut local, mut waiting) = (None, Vec::new());
    if !args.no_local {
        let endpoint = serve_local(&args, &place, &node, &mut driving).await?;
        local = Some(serve(served(&endpoint, &Described::default()), &mut acting));
    }
    for Foreign { endpoint, described } in &args.csi {
        waiting.push((endpoint.clone(), serve(served(endpoint, described), &mut acting)));
    }
    let snapshots = served::snapshot_controller(&node);
    let stop = acting.stop.clone().cancelled_owned();
    let shown = ("snapshot-controller".to_owned(), board.clone());
    acting.start("the snapshot controller", process::run_shown(cluster.clone(), snapshots, shown, stop));
    start_controllers(&cluster, &node, &board, &mut acting);
    let agent = Node {
        cluster: as_user(&api, &Identity::Node(node.clone())),
        wide: Some(cluster.clone()),
        name: node,
        root: place.kubelet(),
        runtime,
        server: Some((address.ip().to_string(), address.port())),
        alone: true,
        as_upstream: Vec::new(),
    };
    agent.start(&Gate::new(None, acting.stop.clone()), &board, |name, part| acting.keep(name, part));

    let ready = async {
        // Ours comes, or all ends.
        if let Some(local) = local {
            let _ = local.await;
        }
        let absent = absent(waiting).await;
        tell(&place, &absent)?;
        std::future::pending::<anyhow::Result<()>>().await
    };
    let ended = tokio::select! {
        error = serving.failed() => Err(error),
        error = driving.failed() => Err(error),
        error = acting.failed() => Err(error),
        told = ready => told,
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

/// Containers see nothing of what is ours, or of what a driver keeps.
fn containers(place: &Place, args: &UpArgs) -> anyhow::Result<Runtime> {
    // A pool in the data directory may be a mount from elsewhere, and is hidden there by being named.
    let pool = args.pool.clone().unwrap_or_else(|| place.path().join("pool"));
    let hidden = [place.path().to_owned(), pool].into_iter().chain(args.hide.clone()).collect();
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
    let (url, address) = (server.url(), server.reached_at());
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

/// Metrics and attempts, for root on this machine, and for whom the user names an address.
async fn serve_board(args: &UpArgs, place: &Place, board: &Board, parts: &mut Parts) -> anyhow::Result<()> {
    let endpoint: Endpoint = format!("unix://{}", place.pages().display()).parse()?;
    let (listener, file) = wharf_csi::bind(&endpoint).context("serve metrics")?;
    let (here, there) = (board.clone().serve(listener), pages::serve(board.clone(), args.metrics).await?);
    let stop = parts.stop.clone();
    parts.keep("metrics", async move {
        // The socket goes with it.
        let _file = file;
        tokio::select! {
            () = here => {}
            () = there => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(())
}

/// The API in this process, under this name.
fn as_user(api: &Api, identity: &Identity) -> Cluster {
    Cluster::with_client(kube::Client::new(api.service(identity.user()), "default"))
}

/// Serves a driver; the answer is the word that it has come.
fn serve(served: Served, parts: &mut Parts) -> oneshot::Receiver<()> {
    let (known, comes) = oneshot::channel();
    let stop = parts.stop.clone();
    parts.start("sidecar", served.run(known, stop));
    comes
}

/// Drivers that have not come. They get a moment, so that all that is there is ready when it is said to be.
async fn absent(waiting: Vec<(Endpoint, oneshot::Receiver<()>)>) -> Vec<Endpoint> {
    let until = Instant::now() + FIRST_LOOK;
    let mut absent = Vec::new();
    for (endpoint, comes) in waiting {
        if timeout_at(until, comes).await.is_err() {
            absent.push(endpoint);
        }
    }
    absent
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

fn start_controllers(cluster: &Cluster, node: &str, board: &Board, parts: &mut Parts) {
    let gate = Gate::new(None, parts.stop.clone());
    let counted = Counted::default();
    for controller in Controller::ALL {
        let (settings, counted) = (Settings::default(), counted.clone());
        let run = controller.run(cluster.clone(), gate.clone(), node.to_owned(), settings, counted);
        parts.keep(controller.name(), run);
    }
    // What they count together with others is shown by those.
    board.show("controllers", move || counted.text(None));
}

/// Says that it is up, and what to type next.
fn tell(place: &Place, absent: &[Endpoint]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for endpoint in absent {
        writeln!(stdout, "no driver answers at {endpoint} yet: it is served as soon as it does")?;
    }
    writeln!(stdout, "wharf is up. Next:")?;
    writeln!(stdout, "  export KUBECONFIG={}", place.kubeconfig().display())?;
    writeln!(stdout, "  kubectl get storageclasses")?;
    writeln!(stdout, "  kubectl apply -f examples/claim-and-pod.yaml")?;
    stdout.flush()?;
    Ok(())
}
