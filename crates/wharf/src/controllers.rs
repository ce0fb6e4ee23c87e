//! `wharf controllers`: Kubernetes' own volume controllers and a scheduler, on any API server.

mod departures;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::Gate;
use wharf_cluster::{Cluster, ConnectOptions, Events, Leadership, LeaseOptions};
use wharf_controllers::{Context, attach_detach, binder, ephemeral, expand, protection, scheduler};
use wharf_sidecar::board::Board;

use crate::pages;
use crate::sidecar::Environment;
use crate::signal::stop_signal;
use departures::Departure;
pub(crate) use departures::Settings;

const EXPLANATION: &str = "\
In place of kube-controller-manager's controllers of these names (protection: all three of them), which are switched off there:
  kube-controller-manager --controllers=*,-persistentvolume-binder-controller,-persistentvolume-attach-detach-controller,...
  wharf controllers --kubeconfig controller-manager.conf

The scheduler takes the place of kube-scheduler for pods of default-scheduler; it runs only where it is named. `wharf up`
has all of them in it.";

/// The lease of those who compete.
const LEASE: &str = "wharf-controllers";

/// Run Kubernetes' volume controllers, in place of kube-controller-manager's
#[derive(Debug, Args)]
#[command(after_help = EXPLANATION)]
pub(crate) struct ControllersArgs {
    /// Credentials for the cluster [default: the pod's service account, or else your own kubeconfig]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Which of them [default: all but the scheduler]
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    controllers: Option<Vec<Controller>>,
    /// Do these things as upstream does them, and not better
    #[arg(long, value_name = "THINGS", value_enum, value_delimiter = ',')]
    as_upstream: Vec<Departure>,
    /// Never detach by force because a node did not unmount in time, as kube-controller-manager's flag
    #[arg(long)]
    disable_force_detach_on_timeout: bool,
    /// Act only while no other replica does
    #[arg(long)]
    leader_election: bool,
    /// Namespace of the lease
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    leader_election_namespace: String,
    /// Serve metrics at this address, such as 127.0.0.1:10257
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

/// What the controllers count; clones count together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counted {
    attach_detach: attach_detach::Metrics,
}

impl Counted {
    /// In the format of OpenMetrics, with what is counted of the way to the cluster if nobody else shows that.
    pub(crate) fn text(&self, cluster: Option<&Cluster>) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.attach_detach.register(&mut registry);
        if let Some(cluster) = cluster {
            cluster.metrics().register(&mut registry);
        }
        // Writing to a String does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// A controller, by the name that it has in kube-controller-manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Controller {
    /// Binds claims to volumes
    #[value(name = "persistentvolume-binder-controller")]
    Binder,
    /// Attaches volumes to nodes
    #[value(name = "persistentvolume-attach-detach-controller")]
    AttachDetach,
    /// Tells of claims that wait to be expanded
    #[value(name = "persistentvolume-expander-controller")]
    Expander,
    /// Keeps claims that pods use, volumes that claims use, and attribute classes that volumes use
    #[value(name = "protection")]
    Protection,
    /// Makes claims for ephemeral volumes
    #[value(name = "ephemeral-volume-controller")]
    Ephemeral,
    /// Places pods on nodes
    #[value(name = "scheduler")]
    Scheduler,
}

impl Controller {
    pub(crate) const ALL: [Self; 6] = [
        Self::Binder,
        Self::AttachDetach,
        Self::Expander,
        Self::Protection,
        Self::Ephemeral,
        Self::Scheduler,
    ];

    /// Its name for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Binder => "the volume binder",
            Self::AttachDetach => "the attach/detach controller",
            Self::Expander => "the expansion controller",
            Self::Protection => "protection",
            Self::Ephemeral => "the ephemeral claims' controller",
            Self::Scheduler => "the scheduler",
        }
    }

    /// Runs it until the gate's stop.
    pub(crate) async fn run(
        self,
        cluster: Cluster,
        gate: Gate,
        instance: String,
        settings: Settings,
        counted: Counted,
    ) {
        let with = |component: &str| Context {
            events: Events::start(&cluster, component, instance.as_str()),
            cluster: cluster.clone(),
            gate: gate.clone(),
        };
        match self {
            Self::Binder => binder::run(with(binder::COMPONENT), settings.binder).await,
            Self::AttachDetach => {
                let context = with(attach_detach::COMPONENT);
                attach_detach::run(context, settings.attach_detach, counted.attach_detach).await;
            }
            Self::Expander => expand::run(with(expand::COMPONENT)).await,
            Self::Protection => protection::run(with("protection")).await,
            Self::Ephemeral => ephemeral::run(with(ephemeral::COMPONENT)).await,
            Self::Scheduler => scheduler::run(with(scheduler::COMPONENT), settings.scheduler).await,
        }
    }
}

pub(crate) async fn run(args: ControllersArgs) -> anyhow::Result<()> {
    let ControllersArgs {
        kubeconfig,
        controllers,
        as_upstream,
        disable_force_detach_on_timeout,
        leader_election,
        leader_election_namespace,
        metrics,
    } = args;
    let mut settings = Settings::with(&as_upstream);
    settings.attach_detach.disable_force_detach_on_timeout = disable_force_detach_on_timeout;
    let stopped = stop_signal()?;
    let identity = Environment::read().identity();
    let cluster = Cluster::connect(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?;
    let (board, counted) = (Board::default(), Counted::default());
    let serving = pages::serve(board.clone(), metrics).await?;
    let (shown, way) = (counted.clone(), cluster.clone());
    board.show("controllers", move || shown.text(Some(&way)));
    let stop = CancellationToken::new();
    let leadership = leader_election.then(|| {
        let options = LeaseOptions::new(leader_election_namespace, LEASE, identity.as_str());
        Leadership::start(&cluster, options)
    });
    let gate = Gate::new(leadership.clone(), stop.clone());
    let wanted = controllers
        .unwrap_or_else(|| Controller::ALL.into_iter().filter(|one| *one != Controller::Scheduler).collect());
    let mut running = JoinSet::new();
    for controller in wanted {
        tracing::info!(controller = controller.name(), "starting");
        let (settings, counted) = (settings.clone(), counted.clone());
        running.spawn(controller.run(cluster.clone(), gate.clone(), identity.clone(), settings, counted));
    }
    tokio::select! {
        () = stopped => {}
        () = serving => {}
    }
    stop.cancel();
    while running.join_next().await.is_some() {}
    if let Some(leadership) = leadership
        && !gate.was_cut()
    {
        leadership.release(Duration::from_secs(2)).await;
    }
    Ok(())
}
