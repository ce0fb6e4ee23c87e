//! The driver and its authoritative state: which volumes exist and where they are attached, staged and published.
//!
//! Violations are recorded when a call arrives. The driver itself executes every call, as a careless driver would,
//! so that wrong calls have visible effects.

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
use wharf_csi::{Client, InProcessService, is_request_error, v1};

use crate::api::ProcessRun;
use crate::sim::Sim;

pub(crate) const DRIVER: &str = "sim.example.com";

/// Part of the violation if a volume is attached for writing to two nodes; the other node follows.
pub(crate) const ATTACHED_TWICE: &str = "while it is attached to";
/// Part of the violation if a volume is deleted while it is attached, staged or published.
pub(crate) const DELETED_IN_USE: &str = "is deleted while it is in use";
/// Part of the violation if a volume is detached from a node where it is staged or published.
pub(crate) const DETACHED_MOUNTED: &str = "while it is mounted there";
/// Part of the violation if a volume is published without being staged; the node follows.
pub(crate) const PUBLISHED_UNSTAGED: &str = "is published but not staged on";

/// The state of a volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct Volume {
    pub(crate) bytes: i64,
    /// Attachments: read-only or not, by node.
    pub(crate) attached: BTreeMap<String, bool>,
    /// Staging path, by node.
    pub(crate) staged: BTreeMap<String, String>,
    /// Node and target path.
    pub(crate) published: BTreeSet<(String, String)>,
    /// Device minor number for the mount table.
    pub(crate) minor: u32,
}

/// The state of the driver.
#[derive(Debug, Default)]
pub(crate) struct DriverState {
    pub(crate) volumes: BTreeMap<String, Volume>,
    /// Operations in progress: by node, or by an empty name for the controller.
    busy: BTreeSet<(String, String)>,
    /// Volumes that were not expanded with FailedPrecondition: not while they are in use.
    pub(crate) offline_expansion: BTreeSet<String>,
    minors: u32,
}

impl DriverState {
    /// CreateVolume does not refuse a request with which it has created the volume. The provisioner believes such an error,
    /// see [`is_request_error`], and a driver that returns it leaks the volume.
    fn possible_error(&self, method: &str, volume: &str, code: Code) -> Code {
        let contradicts = is_request_error(code) && code != Code::ResourceExhausted;
        match method == "CreateVolume" && contradicts && self.volumes.contains_key(volume) {
            true => Code::Internal,
            false => code,
        }
    }

    /// Descriptions of everything that is left.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        self.volumes.iter().map(|(id, volume)| format!("{id}: {volume:?}")).collect()
    }
}

/// The driver as one process reaches it: its Controller service, or its Node service on one node.
#[derive(Clone)]
pub(crate) struct Driver {
    sim: Arc<Sim>,
    driver_state: Arc<Mutex<DriverState>>,
    /// The calling process.
    process_run: Arc<ProcessRun>,
    /// The node of the Node service.
    node: String,
}

/// The fault of a call.
#[derive(Debug, Clone, Copy)]
struct CallFault {
    /// Delay before the effect.
    delay_before: Duration,
    /// Error without an effect.
    error_instead: Option<Code>,
    /// Error despite the effect.
    error_after: Option<Code>,
    /// Delay after the effect.
    delay_after: Duration,
}

/// Error codes of a call without an effect. Each of them is possible with some driver.
const NO_EFFECT_CODES: [Code; 12] = [
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
/// Error codes that do not exclude an effect. Other codes would be wrong.
const UNCERTAIN_CODES: [Code; 4] =
    [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::Aborted];

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Driver {
    pub(crate) fn new(
        sim: &Arc<Sim>,
        driver_state: &Arc<Mutex<DriverState>>,
        process_run: &Arc<ProcessRun>,
        node: &str,
    ) -> Self {
        Self {
            sim: Arc::clone(sim),
            driver_state: Arc::clone(driver_state),
            process_run: Arc::clone(process_run),
            node: node.to_owned(),
        }
    }

    /// A client for the driver.
    pub(crate) fn client(self) -> Client {
        let endpoint = "/sim/csi.sock".parse().unwrap();
        Client::in_process(InProcessService::new(move |request| self.clone().serve(request)), &endpoint)
    }

    async fn serve(self, request: HttpRequest<Body>) -> Result<HttpResponse<Body>, Status> {
        if self.process_run.is_dead() {
            return Err(Status::unavailable("the process was killed"));
        }
        let service = request.uri().path().split('/').nth(1).unwrap_or_default().to_owned();
        let reply = match service.as_str() {
            "csi.v1.Controller" => ControllerServer::new(self).oneshot(request).await,
            "csi.v1.Node" => NodeServer::new(self).oneshot(request).await,
            "csi.v1.Identity" => IdentityServer::new(self).oneshot(request).await,
            _ => return Ok(Status::unimplemented(service).into_http()),
        };
        Ok(reply.unwrap_or_else(|never| match never {}))
    }

    fn fault(&self) -> CallFault {
        let sim = &self.sim;
        let soon = |sim: &Sim| sim.duration_up_to(Duration::from_millis(30));
        let mut fault = CallFault {
            delay_before: soon(sim),
            error_instead: None,
            error_after: None,
            delay_after: soon(sim),
        };
        if !sim.driver_fails() {
            return fault;
        }
        match sim.below(10) {
            0..4 => fault.error_instead = Some(sim.pick(&NO_EFFECT_CODES)),
            4..7 => fault.error_after = Some(sim.pick(&UNCERTAIN_CODES)),
            7 => fault.delay_before = sim.duration_up_to(Duration::from_secs(30)),
            8 => fault.delay_after = sim.duration_up_to(Duration::from_secs(30)),
            _ => fault.delay_before = sim.duration_up_to(Duration::from_secs(200)),
        }
        fault
    }

    /// Runs a call to completion even if the caller is killed. A second call for the same volume is rejected
    /// meanwhile.
    async fn call<T: Send + 'static>(
        &self,
        method: &'static str,
        volume: &str,
        effect: impl FnOnce(&Driver, &mut DriverState) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let fault = self.fault();
        let busy = (self.node.clone(), volume.to_owned());
        let caller = &self.process_run.name;
        if !volume.is_empty() && !lock(&self.driver_state).busy.insert(busy.clone()) {
            self.sim.note(format_args!("{caller} {method} {volume} busy"));
            return Err(Status::aborted("an operation for this volume is in progress"));
        }
        let (driver, (reply, replied)) = (self.clone(), oneshot::channel());
        tokio::spawn(async move {
            sleep(fault.delay_before).await;
            let result = match fault.error_instead {
                Some(code) => {
                    let code = lock(&driver.driver_state).possible_error(method, &busy.1, code);
                    if code == Code::FailedPrecondition && method.ends_with("ExpandVolume") {
                        lock(&driver.driver_state).offline_expansion.insert(busy.1.clone());
                    }
                    Err(Status::new(code, "simulated fault without an effect"))
                }
                None => effect(&driver, &mut lock(&driver.driver_state)),
            };
            let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
            let (sim, caller, volume) = (&driver.sim, &driver.process_run.name, &busy.1);
            sim.note(format_args!("{caller} {method} {volume} {code:?} {:?}", fault.error_after));
            sleep(fault.delay_after).await;
            lock(&driver.driver_state).busy.remove(&busy);
            let result = match fault.error_after {
                Some(code) => Err(Status::new(code, "simulated fault")),
                None => result,
            };
            // The caller may have been killed.
            let _ = reply.send(result);
        });
        let result = replied.await.unwrap_or_else(|_| Err(Status::unavailable("the driver was stopped")));
        result.map(Response::new)
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
