//! The driver, and with it the truth: which volumes there are, where they are attached, staged and published.
//!
//! What must never be is written down at the moment when it is asked for. The driver itself does as it is told, as far as a
//! careless one would: so what is asked of it shows.

mod controller;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use http::{Request as HttpRequest, Response as HttpResponse};
use tokio::sync::oneshot;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};
use tower::ServiceExt as _;
use wharf_csi::v1::controller_server::ControllerServer;
use wharf_csi::v1::identity_server::{Identity, IdentityServer};
use wharf_csi::v1::node_server::NodeServer;
use wharf_csi::v1::plugin_capability::service::Type as ServiceType;
use wharf_csi::v1::plugin_capability::{Service, Type};
use wharf_csi::{Client, Here, v1};

use crate::api::Life;
use crate::sim::Sim;

pub(crate) const DRIVER: &str = "sim.example.com";

/// A volume as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volume {
    pub(crate) bytes: i64,
    /// By node: whether for reading only.
    pub(crate) attached: BTreeMap<String, bool>,
    /// By node: where.
    pub(crate) staged: BTreeMap<String, String>,
    /// Node and where.
    pub(crate) published: BTreeSet<(String, String)>,
    /// A number for the mount table.
    pub(crate) minor: u32,
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) volumes: BTreeMap<String, Volume>,
    /// What is being worked on: by node, or by none for the controller.
    busy: BTreeSet<(String, String)>,
    minors: u32,
}

impl Truth {
    /// Everything that is left, in words.
    pub(crate) fn left(&self) -> Vec<String> {
        self.volumes.iter().map(|(id, volume)| format!("{id}: {volume:?}")).collect()
    }
}

/// The driver as one process reaches it: its controller, or its half on a node.
#[derive(Clone)]
pub(crate) struct Driver {
    sim: Arc<Sim>,
    truth: Arc<Mutex<Truth>>,
    /// Whose calls these are.
    life: Arc<Life>,
    /// The node it is on.
    node: String,
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// Before anything is done.
    before: Duration,
    /// It is not done, and this is the answer.
    instead: Option<Code>,
    /// It is done, and this is the answer.
    after: Option<Code>,
    /// How long it goes on when it is done.
    lasts: Duration,
}

/// Answers of a call that has not been done, whatever it is: each is true of some driver.
const NOT_DONE: [Code; 12] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];
/// Answers that do not say that it was not done: others would be lies.
const PERHAPS_DONE: [Code; 4] = [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::Aborted];

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Driver {
    pub(crate) fn new(sim: &Arc<Sim>, truth: &Arc<Mutex<Truth>>, life: &Arc<Life>, node: &str) -> Self {
        Self { sim: Arc::clone(sim), truth: Arc::clone(truth), life: Arc::clone(life), node: node.to_owned() }
    }

    /// The way to it.
    pub(crate) fn client(self) -> Client {
        let endpoint = "/sim/csi.sock".parse().unwrap();
        Client::here(Here::new(move |request| self.clone().serve(request)), &endpoint)
    }

    async fn serve(self, request: HttpRequest<Body>) -> Result<HttpResponse<Body>, Status> {
        if self.life.is_dead() {
            return Err(Status::unavailable("the process is dead"));
        }
        let service = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
        let answer = match service.as_str() {
            "csi.v1.Controller" => ControllerServer::new(self).oneshot(request).await,
            "csi.v1.Node" => NodeServer::new(self).oneshot(request).await,
            "csi.v1.Identity" => IdentityServer::new(self).oneshot(request).await,
            _ => return Ok(Status::unimplemented(service).into_http()),
        };
        Ok(answer.unwrap_or_else(|never| match never {}))
    }

    fn fate(&self) -> Fate {
        let sim = &self.sim;
        let soon = |sim: &Sim| sim.within(Duration::from_millis(30));
        let mut fate = Fate { before: soon(sim), instead: None, after: None, lasts: soon(sim) };
        if !sim.driver_fails() {
            return fate;
        }
        match sim.roll(10) {
            0..4 => fate.instead = Some(sim.pick(&NOT_DONE)),
            4..7 => fate.after = Some(sim.pick(&PERHAPS_DONE)),
            7 => fate.before = sim.within(Duration::from_secs(30)),
            8 => fate.lasts = sim.within(Duration::from_secs(30)),
            _ => fate.before = sim.within(Duration::from_secs(200)),
        }
        fate
    }

    /// A call: it runs to its end, whatever becomes of the caller, and a second one for the same volume is refused
    /// meanwhile.
    async fn call<T: Send + 'static>(
        &self,
        method: &'static str,
        volume: &str,
        does: impl FnOnce(&Driver, &mut Truth) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let fate = self.fate();
        let busy = (self.node.clone(), volume.to_owned());
        let who = &self.life.name;
        if !volume.is_empty() && !lock(&self.truth).busy.insert(busy.clone()) {
            self.sim.note(format_args!("{who} {method} {volume} busy"));
            return Err(Status::aborted("an operation for this volume goes on"));
        }
        let (driver, (answer, answered)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            sleep(fate.before).await;
            let said = match fate.instead {
                Some(code) => Err(Status::new(code, "the story has it so; nothing was done")),
                None => does(&driver, &mut lock(&driver.truth)),
            };
            let code = said.as_ref().map_or_else(Status::code, |_| Code::Ok);
            let (sim, who, volume) = (&driver.sim, &driver.life.name, &busy.1);
            sim.note(format_args!("{who} {method} {volume} {code:?} {:?}", fate.after));
            sleep(fate.lasts).await;
            lock(&driver.truth).busy.remove(&busy);
            let said = match fate.after {
                Some(code) => Err(Status::new(code, "the story has it so")),
                None => said,
            };
            // Who is gone does not want to know.
            let _ = answer.send(said);
        });
        let said = answered.await.unwrap_or_else(|_| Err(Status::unavailable("the driver is gone")));
        said.map(Response::new)
    }
}

#[async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        self.call("GetPluginInfo", "", |_, _| {
            Ok(v1::GetPluginInfoResponse { name: DRIVER.to_owned(), ..Default::default() })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        let service = Type::Service(Service { r#type: ServiceType::ControllerService.into() });
        let capabilities = vec![v1::PluginCapability { r#type: Some(service) }];
        self.call("GetPluginCapabilities", "", |_, _| Ok(v1::GetPluginCapabilitiesResponse { capabilities }))
            .await
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        self.call("Probe", "", |_, _| Ok(v1::ProbeResponse { ready: Some(true) })).await
    }
}
