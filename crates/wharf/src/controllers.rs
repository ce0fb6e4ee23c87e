//! `wharf controllers`: replaces Kubernetes' volume controllers, and optionally the scheduler, on any API server.

mod departures;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::{Args, ValueEnum};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use wharf_cluster::work::{Gate, restart};
use wharf_cluster::{ApiError, Backoff, Cluster, ConnectOptions, EventRecorder, Leadership, LeaseOptions};
use wharf_controllers::{
    Context, attach_detach, binder, ephemeral, expand, node_lifecycle, protection, scheduler,
};
use wharf_sidecar::health_registry::HealthRegistry;
use wharf_upstream_flags::Environment;

use crate::signal::stop_signal;
use crate::status_pages;
use departures::Departure;
pub(crate) use departures::Settings;

const AFTER_HELP: &str = "\
Replaces the controllers of the same names in kube-controller-manager. `protection` replaces its three protection \
controllers, `node-lifecycle` its node-lifecycle-controller, taint-eviction-controller and \
pod-garbage-collector-controller. Disable them there first:

  kube-controller-manager --controllers=*,-persistentvolume-binder-controller,...
  wharf controllers --kubeconfig controller-manager.conf

Of several replicas, the one that holds the lease wharf-controllers acts. Without permission to create and update that \
lease no replica acts: grant it, or set --leader-election=false and run one replica.

`scheduler` replaces kube-scheduler for pods with schedulerName default-scheduler. On `wharf apiserver` all controllers \
run by default. On any other API server `scheduler` and `node-lifecycle` run only if you name them, because a cluster has \
its own: two of them would evict pods by different rules. `wharf up` already includes all controllers.";

/// Name of the Lease for leader election.
const LEASE: &str = "wharf-controllers";

/// Run the volume controllers, in place of kube-controller-manager's
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct ControllersArgs {
    /// Kubeconfig file [default: the pod's service account, else KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Controllers to run [default: on `wharf apiserver` all, else all but scheduler and node-lifecycle]
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    controllers: Option<Vec<Controller>>,
    /// Deliberate differences from upstream to turn off
    #[arg(long, value_name = "NAMES", value_enum, value_delimiter = ',')]
    as_upstream: Vec<Departure>,
    /// Do not force-detach a volume when a node does not unmount it in time (same as kube-controller-manager's flag)
    #[arg(long)]
    disable_force_detach_on_timeout: bool,
    /// Run the controllers only while this replica holds the lease wharf-controllers
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value_t = true, action = clap::ArgAction::Set)]
    leader_election: bool,
    /// Namespace of the lease
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    leader_election_namespace: String,
    /// Serve metrics at this address, such as 127.0.0.1:10257
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
}

/// Metrics of the controllers. Clones share their counters.
#[derive(Debug, Clone, Default)]
pub(crate) struct ControllerMetrics {
    attach_detach: attach_detach::Metrics,
}

impl ControllerMetrics {
    /// Encodes the metrics in OpenMetrics format, with those of the API client if `cluster` is given.
    pub(crate) fn encode(&self, cluster: Option<&Cluster>) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        self.attach_detach.register(&mut registry);
        if let Some(cluster) = cluster {
            cluster.metrics().register(&mut registry);
        }
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// A controller, with its name in kube-controller-manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Controller {
    /// Binds claims to volumes
    #[value(name = "persistentvolume-binder-controller")]
    Binder,
    /// Attaches volumes to nodes
    #[value(name = "persistentvolume-attach-detach-controller")]
    AttachDetach,
    /// Records events on claims that wait for expansion
    #[value(name = "persistentvolume-expander-controller")]
    Expander,
    /// Prevents deletion of claims used by pods, volumes used by claims, and VolumeAttributesClasses in use
    #[value(name = "protection")]
    Protection,
    /// Creates claims for ephemeral volumes
    #[value(name = "ephemeral-volume-controller")]
    Ephemeral,
    /// Assigns pods to nodes
    #[value(name = "scheduler")]
    Scheduler,
    /// Taints nodes, evicts pods by taints, deletes pods of nodes that do not exist
    #[value(name = "node-lifecycle")]
    NodeLifecycle,
}

impl Controller {
    pub(crate) const ALL: [Self; 7] = [
        Self::Binder,
        Self::AttachDetach,
        Self::Expander,
        Self::Protection,
        Self::Ephemeral,
        Self::Scheduler,
        Self::NodeLifecycle,
    ];

    /// The name in logs and errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Binder => "volume binder",
            Self::AttachDetach => "attach/detach controller",
            Self::Expander => "expansion controller",
            Self::Protection => "protection controllers",
            Self::Ephemeral => "ephemeral volume controller",
            Self::Scheduler => "scheduler",
            Self::NodeLifecycle => "node lifecycle controller",
        }
    }

    /// Runs the controller until the gate stops it. If it panics outside of a reconcile, it is started again after a
    /// backoff: it rebuilds its state when it starts.
    pub(crate) async fn run(
        self,
        cluster: Cluster,
        gate: Gate,
        instance: String,
        settings: Settings,
        metrics: ControllerMetrics,
    ) {
        let run = || {
            self.run_once(cluster.clone(), gate.clone(), instance.clone(), settings.clone(), metrics.clone())
        };
        restart(self.name(), "controller", Some(&gate), run).await;
    }

    async fn run_once(
        self,
        cluster: Cluster,
        gate: Gate,
        instance: String,
        settings: Settings,
        metrics: ControllerMetrics,
    ) {
        let context = |component: &str| Context {
            events: EventRecorder::start(&cluster, component, instance.as_str()),
            cluster: cluster.fenced(gate.leadership()),
            gate: gate.clone(),
        };
        match self {
            Self::Binder => binder::run(context(binder::COMPONENT), settings.binder).await,
            Self::AttachDetach => {
                let context = context(attach_detach::COMPONENT);
                attach_detach::run(context, settings.attach_detach, metrics.attach_detach).await;
            }
            Self::Expander => expand::run(context(expand::COMPONENT)).await,
            Self::Protection => protection::run(context("protection")).await,
            Self::Ephemeral => ephemeral::run(context(ephemeral::COMPONENT)).await,
            Self::Scheduler => scheduler::run(context(scheduler::COMPONENT), settings.scheduler).await,
            Self::NodeLifecycle => {
                let evictions = context(node_lifecycle::EVICTION_COMPONENT).events;
                node_lifecycle::run(context(node_lifecycle::COMPONENT), evictions).await;
            }
        }
    }
}

/// In the version of the embedded API server, after the version of Kubernetes.
const EMBEDDED: &str = "+wharf-";
/// The backoff while the API server does not respond.
const RETRY: Backoff = Backoff::without_jitter(Duration::from_millis(200), Duration::from_secs(7));

/// The controllers that run unless the user names some: on the embedded API all, since nothing else does their work.
fn default_controllers(server_version: &str) -> Vec<Controller> {
    let embedded = server_version.contains(EMBEDDED);
    let everywhere =
        |controller: &Controller| !matches!(controller, Controller::Scheduler | Controller::NodeLifecycle);
    Controller::ALL.into_iter().filter(|controller| embedded || everywhere(controller)).collect()
}

/// Waits until the API server responds. Empty if it does not tell its version: the embedded API tells it to every user.
async fn server_version(cluster: &Cluster) -> String {
    let mut failures = 0_u32;
    loop {
        match cluster.server_version().await {
            Ok(version) => return version,
            Err(error @ (ApiError::Forbidden(_) | ApiError::NotServed(_) | ApiError::NotFound(_))) => {
                tracing::info!(%error, "failed to read the API server's version: access is denied or it is not served; starting the default controllers of a cluster");
                return String::new();
            }
            Err(error) => {
                let pause = RETRY.delay(failures);
                failures = failures.saturating_add(1);
                tracing::warn!(%error, retry_in = ?pause, "failed to read the API server's version; retrying");
                tokio::time::sleep(pause).await;
            }
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
    let mut stop_signal = pin!(stop_signal()?);
    let identity = Environment::read().identity();
    let cluster = Cluster::connect(&ConnectOptions { kubeconfig, ..ConnectOptions::default() }).await?;
    let (health_registry, controller_metrics) = (HealthRegistry::default(), ControllerMetrics::default());
    let mut server = pin!(status_pages::serve(health_registry.clone(), metrics).await?);
    let (page_metrics, page_cluster) = (controller_metrics.clone(), cluster.clone());
    health_registry.register("controllers", move || page_metrics.encode(Some(&page_cluster)));
    let selected = match controllers {
        Some(selected) => selected,
        None => tokio::select! {
            biased;
            () = &mut stop_signal => return Ok(()),
            error = &mut server => return Err(error),
            version = server_version(&cluster) => default_controllers(&version),
        },
    };
    let stop = CancellationToken::new();
    let leadership = leader_election.then(|| {
        let options = LeaseOptions::new(leader_election_namespace, LEASE, identity.as_str());
        Leadership::start(&cluster, options)
    });
    let gate = Gate::new(leadership.clone(), stop.clone());
    let mut running = JoinSet::new();
    // One of each, even if the user names a controller twice.
    for controller in Controller::ALL.into_iter().filter(|controller| selected.contains(controller)) {
        tracing::info!(controller = controller.name(), "starting controller");
        let (settings, metrics) = (settings.clone(), controller_metrics.clone());
        running.spawn(controller.run(cluster.clone(), gate.clone(), identity.clone(), settings, metrics));
    }
    let result = tokio::select! {
        () = stop_signal => Ok(()),
        error = server => Err(error),
    };
    stop.cancel();
    while running.join_next().await.is_some() {}
    if let Some(leadership) = leadership
        && !gate.dropped_work()
    {
        leadership.release(Duration::from_secs(2)).await;
    }
    result
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// A hardened cluster may refuse `/version`, or a proxy may not serve it.
    #[tokio::test]
    async fn server_that_refuses_its_version_is_a_cluster() {
        for code in [403, 404] {
            let server = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
                let body = serde_json::json!({"kind": "Status", "code": code, "message": "no"}).to_string();
                let response = http::Response::builder().status(code);
                Ok::<_, Infallible>(response.body(kube::client::Body::from(body.into_bytes())).unwrap())
            });
            let cluster = Cluster::with_client(kube::Client::new(server, "default"));
            let version = tokio::time::timeout(Duration::from_secs(5), server_version(&cluster)).await;
            assert_eq!(default_controllers(&version.unwrap()).len(), 5, "{code}");
        }
    }

    /// U-6: nothing else schedules pods or removes taints on the embedded API; a cluster has its own controllers.
    #[test]
    fn scheduler_and_node_lifecycle_run_by_default_on_the_embedded_api_only() {
        let only_embedded = [Controller::Scheduler, Controller::NodeLifecycle];
        for (version, embedded) in
            [("v1.34.2+wharf-0.1.0", true), ("v1.34.2", false), ("v1.34.2+k3s1", false), ("", false)]
        {
            let selected = default_controllers(version);
            assert!(selected.contains(&Controller::Binder), "{version}");
            for controller in only_embedded {
                assert_eq!(selected.contains(&controller), embedded, "{version} {controller:?}");
            }
            assert_eq!(selected.len(), if embedded { 7 } else { 5 }, "{version}");
        }
    }
}
