//! A CSI driver for tests of everything around drivers. Its volumes are directories in a state directory that
//! several processes of it share (a controller, a node each), so a pod can really move with its data. It
//!
//! - keeps its promises across kill -9: what was answered is on disk, calls are idempotent;
//! - fails as a file tells it, read anew at each call ([`Fault`]);
//! - logs each call as a line of JSON ([`Entry`]), never the value of a secret;
//! - marks as a violation what an orchestrator must not do: publish a volume of one node to two, delete a
//!   published volume, publish again with other arguments, stage where nothing was published, create one name
//!   with two different requests, delete a member of a group alone, leave out secrets.

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
use state::{Held, State};

/// How the driver behaves.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "scripted-driver", about = "A CSI driver for tests")]
pub struct Options {
    /// Its socket.
    #[arg(long)]
    pub endpoint: Endpoint,
    /// The driver's name.
    #[arg(long, default_value = "scripted.test.wharf.dev")]
    pub name: String,
    /// The directory of its volumes; processes with the same one are the same driver.
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
    /// This node's id; without it there is no Node service.
    #[arg(long, value_name = "ID")]
    pub node_id: Option<String>,
    /// The controller's capabilities; none at all makes a driver without a Controller service.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        num_args = 0..,
        default_value = "CREATE_DELETE_VOLUME,PUBLISH_UNPUBLISH_VOLUME,LIST_VOLUMES,LIST_VOLUMES_PUBLISHED_NODES,GET_CAPACITY,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,CLONE_VOLUME,EXPAND_VOLUME,MODIFY_VOLUME,SINGLE_NODE_MULTI_WRITER"
    )]
    pub capabilities: Vec<String>,
    /// The node's capabilities.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        num_args = 0..,
        default_value = "STAGE_UNSTAGE_VOLUME,GET_VOLUME_STATS,EXPAND_VOLUME,SINGLE_NODE_MULTI_WRITER"
    )]
    pub node_capabilities: Vec<String>,
    /// The group controller's capabilities; none at all makes a driver without a GroupController service.
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        num_args = 0..,
        default_value = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
    )]
    pub group_capabilities: Vec<String>,
    /// A snapshot is ready so long after it was cut, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub snapshot_ready_after: u64,
    /// A snapshot is ready once it was asked for so often after it was cut.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub snapshot_ready_looks: u32,
    /// Volumes belong to one segment of this topology key.
    #[arg(long, value_name = "KEY")]
    pub topology_key: Option<String>,
    /// The segment of this node; its id by default.
    #[arg(long, value_name = "VALUE")]
    pub topology_value: Option<String>,
    /// How many volumes a node takes; boundless by default.
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub max_volumes: i64,
    /// How many bytes a segment (or the whole) has room for; boundless by default.
    #[arg(long, value_name = "BYTES")]
    pub capacity: Option<i64>,
    /// How long each call of Controller and Node takes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub delay: u64,
    /// Which calls fail and how: a JSON object of method to fault, read anew at each call.
    #[arg(long, value_name = "FILE")]
    pub fault_file: Option<PathBuf>,
    /// Where each call is written down, as lines of JSON.
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// A call that can carry secrets must carry this key with this value.
    #[arg(long, value_name = "KEY=VALUE")]
    pub require_secrets: Option<String>,
    /// Do not sync to disk: answers survive kill -9 still, but not a power cut.
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
    let script = Arc::new(Script::new(options)?);
    let routes = tower::service_fn(move |request: http::Request<Body>| {
        let script = script.clone();
        async move {
            let path = request.uri().path();
            if path.starts_with("/csi.v1.Identity/") {
                IdentityServer::from_arc(script).oneshot(request).await
            } else if has_controller && path.starts_with("/csi.v1.Controller/") {
                ControllerServer::from_arc(script).oneshot(request).await
            } else if has_groups && path.starts_with("/csi.v1.GroupController/") {
                GroupControllerServer::from_arc(script).oneshot(request).await
            } else if has_node && path.starts_with("/csi.v1.Node/") {
                NodeServer::from_arc(script).oneshot(request).await
            } else {
                Ok(Status::unimplemented("the script does not have this service").into_http())
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

/// The driver: all of its services.
struct Script {
    options: Options,
    state: State,
    faults: Faults,
    log: Log,
}

/// A call as it is logged.
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

/// A call that is under way. One that its caller does not wait for any more is logged as abandoned: the server drops it
/// then, wherever it is.
struct Pending<'a> {
    log: &'a Log,
    call: &'a Call,
    began: Instant,
    answered: bool,
}

impl Pending<'_> {
    fn answer(&mut self, code: &str, message: Option<&str>, violation: bool) {
        self.answered = true;
        self.log.write(self.call, self.began, code, message, violation);
    }

    /// What the fault does to it.
    fn failed(&mut self, fault: &Fault) -> Option<Status> {
        if fault.die {
            self.answer("died", None, false);
            // What kill -9 does: no destructor runs, nothing is flushed.
            std::process::abort();
        }
        fault.status()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.answer("abandoned", None, false);
        }
    }
}

/// Why an effect did not happen.
struct Refusal {
    status: Status,
    /// The caller must not have asked.
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

impl Script {
    fn new(options: Options) -> std::io::Result<Self> {
        let state = State::open(&options.state, !options.no_sync)?;
        let log = Log::open(options.log.as_deref(), options.node_id.as_deref())?;
        Ok(Self { state, faults: Faults::new(options.fault_file.clone()), log, options })
    }

    /// A call: delay, fault, the effect under the state's lock, fault, a line in the log.
    async fn call<T>(
        &self,
        call: Call,
        effect: impl FnOnce(&Held<'_>) -> Result<T, Refusal>,
    ) -> Result<Response<T>, Status> {
        let mut pending = Pending { log: &self.log, call: &call, began: Instant::now(), answered: false };
        let fault = self.faults.draw(call.method);
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
            None => self.state.hold().map_err(Refusal::from).and_then(|held| effect(&held)),
        };
        if due(When::After).is_some_and(|fault| fault.hold) {
            self.faults.hold(call.method).await;
        }
        let result = match due(When::After).and_then(|fault| pending.failed(fault)) {
            Some(status) if result.is_ok() => Err(status.into()),
            _ => result,
        };
        match result {
            Ok(answer) => {
                pending.answer("Ok", None, false);
                Ok(Response::new(answer))
            }
            Err(Refusal { status, violation }) => {
                pending.answer(&format!("{:?}", status.code()), Some(status.message()), violation);
                Err(status)
            }
        }
    }

    /// Whether the secrets are what this driver demands.
    fn check_secrets(&self, secrets: &BTreeMap<String, String>) -> Result<(), Refusal> {
        let Some((key, value)) =
            self.options.require_secrets.as_deref().and_then(|text| text.split_once('='))
        else {
            return Ok(());
        };
        match secrets.get(key) {
            // Rotated under the caller: not the caller's fault.
            Some(given) if given != value => {
                Err(Status::unauthenticated(format!("the secret {key} is wrong")).into())
            }
            Some(_) => Ok(()),
            None => Err(violation(Code::InvalidArgument, format!("the secret {key} is missing"))),
        }
    }
}
