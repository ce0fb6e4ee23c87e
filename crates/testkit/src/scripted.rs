//! A CSI driver for tests of everything around drivers. Its volumes are directories in a state directory that
//! several of its processes share (one controller, one process per node), so a pod can move with its data. The
//! driver
//!
//! - is durable across kill -9: every successful response is on disk, and calls are idempotent;
//! - fails as a fault file instructs it; the file is read at each call ([`Fault`]);
//! - logs each call as a line of JSON ([`Entry`]), never the value of a secret;
//! - marks as a violation what an orchestrator must not do: publish a single-node volume to two nodes, delete a
//!   published volume, publish again with other arguments, stage where nothing was published, create one name with
//!   two different requests, delete a single member of a group, omit required secrets.

mod controller;
mod faults;
mod groups;
mod health;
mod identity;
mod log;
mod node;
mod snapshots;
mod state;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::{Code, Response, Status};
use tower::ServiceExt as _;
use wharf_csi::v1::controller_server::ControllerServer;
use wharf_csi::v1::group_controller_server::GroupControllerServer;
use wharf_csi::v1::identity_server::IdentityServer;
use wharf_csi::v1::node_server::NodeServer;
use wharf_csi::{AnyAuthority, Endpoint};

pub use faults::{Fault, When};
pub use log::{Entry, entries, violations};

use faults::Faults;
use log::Log;
use state::{LockedState, State};

/// Command-line options of the driver.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "scripted-driver", about = "A CSI driver for tests")]
pub struct Options {
    /// The socket to serve.
    #[arg(long)]
    pub endpoint: Endpoint,
    /// The driver's name.
    #[arg(long, default_value = "scripted.test.wharf.dev")]
    pub name: String,
    /// State directory. Processes with the same directory are the same driver.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// Node ID. Without it the driver has no Node service.
    #[arg(long, value_name = "ID")]
    pub node_id: Option<String>,
    /// Controller capabilities. An empty list removes the Controller service.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        num_args = 0..,
        default_value = "CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,LIST_VOLUMES,LIST_VOLUMES_PUBLISHED_NODES,GET_CAPACITY,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,CLONE_VOLUME,EXPAND_VOLUME,MODIFY_VOLUME,SINGLE_NODE_MULTI_WRITER"
    )]
    pub capabilities: Vec<String>,
    /// Node capabilities.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        num_args = 0..,
        default_value = "STAGE_UNSTAGE_VOLUME,GET_VOLUME_STATS,EXPAND_VOLUME,SINGLE_NODE_MULTI_WRITER"
    )]
    pub node_capabilities: Vec<String>,
    /// Group controller capabilities. An empty list removes the GroupController service.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        num_args = 0..,
        default_value = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
    )]
    pub group_capabilities: Vec<String>,
    /// Time until a snapshot becomes ready, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub snapshot_ready_after: u64,
    /// Number of requests for a snapshot before it becomes ready.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub snapshot_ready_looks: u32,
    /// Topology key; each volume belongs to one segment of it.
    #[arg(long, value_name = "KEY")]
    pub topology_key: Option<String>,
    /// Topology segment of this node [default: the node ID].
    #[arg(long, value_name = "VALUE")]
    pub topology_value: Option<String>,
    /// Maximum number of volumes per node [0: unlimited].
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub max_volumes: i64,
    /// Capacity of a segment, or of the driver without topology, in bytes [default: unlimited].
    #[arg(long, value_name = "BYTES")]
    pub capacity: Option<i64>,
    /// Duration of each Controller and Node call, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub delay: u64,
    /// Fault file: a JSON object from method to fault, read at each call.
    #[arg(long, value_name = "FILE")]
    pub fault_file: Option<PathBuf>,
    /// Call log, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Secret that every call which can carry secrets must carry.
    #[arg(long, value_name = "KEY=VALUE")]
    pub require_secrets: Option<String>,
    /// Do not sync to disk: state survives kill -9, but not a power cut.
    #[arg(long)]
    pub no_sync: bool,
}

impl Options {
    fn segment(&self) -> Option<(String, String)> {
        let key = self.topology_key.clone()?;
        Some((key, self.topology_value.clone().or_else(|| self.node_id.clone()).unwrap_or_default()))
    }

    fn has(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|name| name == capability)
    }
}

/// Serves until SIGTERM.
pub async fn serve(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let (listener, socket) = wharf_csi::bind(&options.endpoint)?;
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let has_node = options.node_id.is_some();
    let has_controller = options.capabilities.iter().any(|name| !name.is_empty());
    let has_groups = options.group_capabilities.iter().any(|name| !name.is_empty());
    let service = Arc::new(ScriptedService::new(options)?);
    let routes = tower::service_fn(move |request: http::Request<Body>| {
        let service = service.clone();
        async move {
            let path = request.uri().path();
            if path.starts_with("/csi.v1.Identity/") {
                IdentityServer::from_arc(service).oneshot(request).await
            } else if has_controller && path.starts_with("/csi.v1.Controller/") {
                ControllerServer::from_arc(service).oneshot(request).await
            } else if has_groups && path.starts_with("/csi.v1.GroupController/") {
                GroupControllerServer::from_arc(service).oneshot(request).await
            } else if has_node && path.starts_with("/csi.v1.Node/") {
                NodeServer::from_arc(service).oneshot(request).await
            } else {
                Ok(Status::unimplemented("the scripted driver does not serve this service").into_http())
            }
        }
    });
    tonic::transport::Server::builder()
        .serve_with_incoming_shutdown(
            routes,
            UnixListenerStream::new(listener).map(|accepted| accepted.map(AnyAuthority::new)),
            async move {
                term.recv().await;
            },
        )
        .await?;
    drop(socket);
    Ok(())
}

/// The driver: implements all its services.
struct ScriptedService {
    options: Options,
    state: State,
    faults: Faults,
    log: Log,
}

/// A call, as logged.
struct Call {
    method: &'static str,
    fields: Map<String, Value>,
}

impl Call {
    fn new(method: &'static str) -> Self {
        Self { method, fields: Map::new() }
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }
}

/// A call in progress. If the caller cancels it, the server drops it at its current await point, and it is logged
/// as abandoned.
struct Pending<'a> {
    log: &'a Log,
    call: &'a Call,
    started: Instant,
    logged: bool,
}

impl Pending<'_> {
    fn finish(&mut self, code: &str, message: Option<&str>, violation: bool) {
        self.logged = true;
        self.log.write(self.call, self.started, code, message, violation);
    }

    /// Applies the fault: exits the process, or returns the error.
    fn failed(&mut self, fault: &Fault) -> Option<Status> {
        if fault.die {
            self.finish("died", None, false);
            // As with kill -9, no destructor runs and nothing is flushed.
            std::process::abort();
        }
        fault.status()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.logged {
            self.finish("abandoned", None, false);
        }
    }
}

/// Why a call was rejected.
struct Refusal {
    status: Status,
    /// The caller violated the CSI contract.
    violation: bool,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, violation: false }
    }
}

impl From<std::io::Error> for Refusal {
    fn from(error: std::io::Error) -> Self {
        Status::internal(error.to_string()).into()
    }
}

fn violation(code: Code, text: impl Into<String>) -> Refusal {
    Refusal { status: Status::new(code, text), violation: true }
}

impl ScriptedService {
    fn new(options: Options) -> std::io::Result<Self> {
        let state = State::open(&options.state, !options.no_sync)?;
        let log = Log::open(options.log.as_deref(), options.node_id.as_deref())?;
        Ok(Self { state, faults: Faults::new(options.fault_file.clone()), log, options })
    }

    /// Runs a call: delay, fault before the effect, the effect under the state lock, fault after the effect, log
    /// line.
    async fn call<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&LockedState<'_>) -> Result<T, Refusal>,
    ) -> Result<Response<T>, Status> {
        let mut pending = Pending { log: &self.log, call: &call, started: Instant::now(), logged: false };
        let fault = self.faults.next_fault(call.method);
        let delay = self.options.delay + fault.as_ref().map_or(0, |fault| fault.delay_ms);
        if delay > 0 {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        let due = |when: When| fault.as_ref().filter(|fault| fault.when == when);
        if due(When::Before).is_some_and(|fault| fault.hold) {
            self.faults.hold(call.method).await;
        }
        let result = match due(When::Before).and_then(|fault| pending.failed(fault)) {
            Some(status) => Err(status.into()),
            None => self.state.lock().map_err(Refusal::from).and_then(|held| effect(&held)),
        };
        if due(When::After).is_some_and(|fault| fault.hold) {
            self.faults.hold(call.method).await;
        }
        let result = match due(When::After).and_then(|fault| pending.failed(fault)) {
            Some(status) if result.is_ok() => Err(status.into()),
            _ => result,
        };
        match result {
            Ok(response) => {
                pending.finish("Ok", None, false);
                Ok(Response::new(response))
            }
            Err(Refusal { status, violation }) => {
                pending.finish(&format!("{:?}", status.code()), Some(status.message()), violation);
                Err(status)
            }
        }
    }

    /// Checks that the request carries the required secret.
    fn check_secrets(&self, secrets: &BTreeMap<String, String>) -> Result<(), Refusal> {
        let Some((key, value)) =
            self.options.require_secrets.as_deref().and_then(|text| text.split_once('='))
        else {
            return Ok(());
        };
        match secrets.get(key) {
            // The secret was rotated: not a violation by the caller.
            Some(given) if given != value => {
                Err(Status::unauthenticated(format!("the secret {key} is wrong")).into())
            }
            Some(_) => Ok(()),
            None => Err(violation(Code::InvalidArgument, format!("the secret {key} is missing"))),
        }
    }
}
