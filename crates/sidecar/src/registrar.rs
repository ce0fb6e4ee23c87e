//! Registers a driver with kubelet, through a socket in kubelet's plugin directory on which kubelet asks for the
//! driver's name and endpoint.
//!
//! - The socket exists while this runs and the driver's name is known. It is re-created when it vanishes, when
//!   kubelet reports a failed registration (with backoff), and when the driver comes back with another name.
//! - A driver that restarts unchanged stays registered without interruption. If its NodeGetInfo response changed
//!   (node ID, topology, maximum number of volumes), it is registered again, because kubelet reads that only then.
//! - The registrar ends only if the first socket cannot be created. All other problems are reported by
//!   [`Registrar::health`].
//!
//! The rules are in `decide`.

mod act;
mod decide;
pub mod legacy;
mod service;
mod view;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, sleep_until};
use wharf_cluster::Backoff;
use wharf_csi::{Client, Endpoint, SocketIdentity, SocketWatch};

use crate::metrics::Metrics;
use act::{Socket, SocketError};
use decide::{ProbeResult, SocketReason, Step, decide};
use service::Notification;
use view::{Driver, KubeletStatus, NodeInfo, OwnSocket, PathState, View};

/// How often to check the sockets without a file system event.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Backoff while the driver does not respond: it may be starting.
const CALL_BACKOFF: Backoff = Backoff::without_jitter(Duration::from_millis(100), Duration::from_secs(30));
/// Backoff after kubelet refused the registration or the socket could not be created. Kubelet retries, too.
const SOCKET_BACKOFF: Backoff = Backoff::without_jitter(Duration::from_secs(1), Duration::from_secs(60));

/// Configuration of the registrar.
#[derive(Debug, Clone)]
pub struct Config {
    /// Kubelet's plugin directory, as a path in this process.
    pub plugin_registration_path: PathBuf,
    /// The driver's socket, as a path in kubelet's mount namespace.
    pub kubelet_registration_path: String,
    /// Timeout of GetPluginInfo and of a health check.
    pub timeout: Duration,
}

/// Why the registrar ended.
#[derive(Debug, thiserror::Error)]
#[error("failed to register driver {driver} with kubelet: {reason}")]
pub struct RegistrarError {
    driver: String,
    reason: String,
}

/// The data for a health check.
#[derive(Clone, Default)]
struct Report {
    socket: Option<Endpoint>,
    driver: String,
    problem: Option<String>,
}

/// The registrar, for running it and for health checks; clones share its state.
#[derive(Clone)]
pub struct Registrar {
    config: Config,
    report: Arc<Mutex<Report>>,
}

impl Registrar {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, report: Arc::default() }
    }

    /// 200 if the socket exists, is served for the driver, and kubelet has not reported a failure; 404 if it does
    /// not exist; otherwise 500.
    pub(crate) async fn health(&self) -> (StatusCode, String) {
        let Report { socket, driver, problem } = self.report().clone();
        let found = match &socket {
            Some(endpoint) => act::probe_socket(endpoint, self.config.timeout).await,
            None => ProbeResult::NoSocket,
        };
        decide::health(found, &driver, problem.as_deref())
    }

    /// Keeps the driver registered. Returns only with an error. Dropping the future removes the socket.
    pub(crate) async fn run(&self, driver: &Endpoint, client: &Client, metrics: Metrics) -> RegistrarError {
        let mut state = State {
            client: client.with_deadline(self.config.timeout),
            registrar: self,
            driver_socket: driver,
            metrics,
            watch: SocketWatch::new(),
            started: Instant::now(),
            driver: None,
            own_socket: None,
            refusals: 0,
            failures: 0,
            failed_until: None,
        };
        state.run().await
    }

    fn report(&self) -> std::sync::MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The driver behind its socket, and its responses since that socket appeared.
struct ObservedDriver {
    identity: SocketIdentity,
    name: Option<String>,
    node: Option<NodeInfo>,
    failures: u32,
    call_at: Duration,
}

/// The socket that was created last.
struct ServedSocket {
    socket: Socket,
    name: String,
    node: Option<NodeInfo>,
    /// The driver that it was created for.
    driver: SocketIdentity,
    path_state: PathState,
    kubelet_status: KubeletStatus,
}

struct State<'a> {
    registrar: &'a Registrar,
    client: Client,
    driver_socket: &'a Endpoint,
    metrics: Metrics,
    watch: SocketWatch,
    started: Instant,
    driver: Option<ObservedDriver>,
    own_socket: Option<ServedSocket>,
    refusals: u32,
    failures: u32,
    failed_until: Option<Duration>,
}

impl State<'_> {
    async fn run(&mut self) -> RegistrarError {
        loop {
            self.observe().await;
            match decide(&self.view(), self.now()) {
                Step::GetPluginInfo => self.get_plugin_name().await,
                Step::GetNodeInfo => self.get_node_info().await,
                Step::Serve(reason) => self.serve(reason),
                Step::GiveUp => {
                    let Report { driver, problem, .. } = self.registrar.report().clone();
                    return RegistrarError { driver, reason: problem.unwrap_or_default() };
                }
                Step::Wait(until) => self.wait(until).await,
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn view(&self) -> View<'_> {
        let driver = match &self.driver {
            None => Driver::NoSocket,
            Some(ObservedDriver { name: None, call_at, .. }) => Driver::Unknown { call_at: *call_at },
            Some(ObservedDriver { name: Some(name), node: None, call_at, .. }) => {
                Driver::Named { name, call_at: *call_at }
            }
            Some(ObservedDriver { name: Some(name), node: Some(node), .. }) => Driver::Known { name, node },
        };
        let own_socket = match &self.own_socket {
            None => OwnSocket::None,
            Some(ServedSocket { name, node, path_state, kubelet_status, .. }) => OwnSocket::Served {
                name,
                node: node.as_ref(),
                path_state: *path_state,
                kubelet_status: *kubelet_status,
            },
        };
        View { driver, own_socket, failed_until: self.failed_until }
    }

    /// Checks both sockets and kubelet's last notification.
    async fn observe(&mut self) {
        let now = self.now();
        let identity = SocketIdentity::of_path(self.driver_socket.path()).ok();
        if identity.as_ref() != self.driver.as_ref().map(|driver| &driver.identity) {
            match &identity {
                Some(_) => tracing::info!(socket = %self.driver_socket, "driver socket appeared"),
                None => tracing::info!(socket = %self.driver_socket, "driver socket is gone"),
            }
            self.driver = identity.map(|identity| ObservedDriver {
                identity,
                name: None,
                node: None,
                failures: 0,
                call_at: now,
            });
            // The refusal may have been caused by the previous driver.
            self.refusals = 0;
            if let Some(ServedSocket { kubelet_status: KubeletStatus::Refused { retry_at }, .. }) =
                &mut self.own_socket
            {
                *retry_at = now;
            }
        }
        if self.driver.is_none() && self.own_socket.is_none() {
            let problem = format!("driver socket {} does not exist", self.driver_socket);
            self.registrar.report().problem = Some(problem);
        }
        let Some(served) = &mut self.own_socket else { return };
        served.path_state = match (served.path_state, served.socket.path_state(now).await) {
            (since @ PathState::Missing { .. }, PathState::Missing { .. }) => since,
            (since @ PathState::Stale { .. }, PathState::Stale { .. }) => since,
            (_, found) => found,
        };
        if !served.socket.notification.has_changed().unwrap_or(false) {
            return;
        }
        let notification = served.socket.notification.borrow_and_update().clone();
        match notification {
            Notification::None => {}
            Notification::Registered => {
                tracing::info!(driver = served.name, "kubelet registered the driver");
                self.metrics.record_registration(true);
                served.kubelet_status = KubeletStatus::Registered;
                self.refusals = 0;
                self.registrar.report().problem = None;
            }
            Notification::Failed(error) => {
                self.metrics.record_registration(false);
                self.refusals = self.refusals.saturating_add(1);
                let pause = SOCKET_BACKOFF.after(self.refusals);
                tracing::error!(
                    driver = served.name,
                    error,
                    retry_in = ?pause,
                    "kubelet refused to register the driver"
                );
                served.kubelet_status = KubeletStatus::Refused { retry_at: now + pause };
                let problem = format!("kubelet refused to register driver {}: {error}", served.name);
                self.registrar.report().problem = Some(problem);
            }
        }
    }

    async fn get_plugin_name(&mut self) {
        let response = act::get_plugin_name(&self.client, &self.metrics).await;
        let now = self.now();
        let Some(driver) = &mut self.driver else { return };
        match response {
            Ok(name) => {
                tracing::info!(driver = name, "discovered driver");
                if self.own_socket.is_none() {
                    let mut report = self.registrar.report();
                    report.driver.clone_from(&name);
                    report.problem = None;
                }
                (driver.name, driver.failures, driver.call_at) = (Some(name), 0, now);
            }
            Err(error) => {
                driver.failures = driver.failures.saturating_add(1);
                let pause = CALL_BACKOFF.after(driver.failures);
                driver.call_at = now + pause;
                tracing::warn!(
                    socket = %self.driver_socket,
                    %error,
                    retry_in = ?pause,
                    "failed to get driver name"
                );
                if self.own_socket.is_none() {
                    self.registrar.report().problem = Some(error.to_string());
                }
            }
        }
    }

    async fn get_node_info(&mut self) {
        let response = act::get_node_info(&self.client, self.registrar.config.timeout, &self.metrics).await;
        let now = self.now();
        let Some(driver) = &mut self.driver else { return };
        match response {
            Ok(node) => {
                // Kubelet calls the same driver, unless it has restarted since.
                if let Some(served) = &mut self.own_socket
                    && served.node.is_none()
                    && served.driver == driver.identity
                {
                    served.node = Some(node.clone());
                }
                driver.node = Some(node);
            }
            Err(status) => {
                driver.failures = driver.failures.saturating_add(1);
                driver.call_at = now + CALL_BACKOFF.after(driver.failures);
                tracing::debug!(error = status.message(), "failed to get node info from driver");
            }
        }
    }

    fn serve(&mut self, reason: SocketReason) {
        let Some(ObservedDriver { identity, name: Some(name), node, .. }) = &self.driver else { return };
        let Config { plugin_registration_path, kubelet_registration_path, .. } = &self.registrar.config;
        // Otherwise a socket of another name would stay behind.
        let before = self.own_socket.take_if(|served| served.name != *name);
        let mut report = self.registrar.report();
        match act::serve(plugin_registration_path, name, kubelet_registration_path) {
            Ok(socket) => {
                drop(before);
                tracing::info!(
                    driver = name,
                    socket = %socket.endpoint,
                    reason = reason.name(),
                    "created registration socket; waiting for kubelet"
                );
                self.metrics.record_socket(reason.name());
                (report.socket, report.driver) = (Some(socket.endpoint.clone()), name.clone());
                if reason != SocketReason::Refused {
                    report.problem = None;
                }
                self.own_socket = Some(ServedSocket {
                    socket,
                    name: name.clone(),
                    node: node.clone(),
                    driver: identity.clone(),
                    path_state: PathState::Ours,
                    kubelet_status: KubeletStatus::Pending,
                });
                (self.failures, self.failed_until) = (0, None);
            }
            Err(error) => {
                self.failed(&error, &mut report);
                if before.is_some() {
                    self.own_socket = before;
                }
            }
        }
    }

    fn failed(&mut self, error: &SocketError, report: &mut Report) {
        self.failures = self.failures.saturating_add(1);
        let pause = SOCKET_BACKOFF.after(self.failures);
        self.failed_until = Some(self.started.elapsed() + pause);
        tracing::error!(%error, retry_in = ?pause, "failed to create registration socket");
        report.problem = Some(error.to_string());
    }

    /// Waits until something may have changed.
    async fn wait(&mut self, until: Option<Duration>) {
        // Added every time: a re-created directory is not the one that was watched.
        let driver_directory = self.driver_socket.path().parent();
        let directories = [driver_directory, Some(&*self.registrar.config.plugin_registration_path)];
        directories.into_iter().flatten().for_each(|directory| self.watch.add(directory));
        let sockets =
            [Some(self.driver_socket), self.own_socket.as_ref().map(|served| &served.socket.endpoint)];
        let names: Vec<OsString> = sockets
            .into_iter()
            .flatten()
            .filter_map(|socket| Some(socket.path().file_name()?.to_owned()))
            .collect();
        let look_at = self.now() + RECHECK_INTERVAL;
        let wake_at = self.started + until.map_or(look_at, |until| until.min(look_at));
        let notification = async {
            match &mut self.own_socket {
                // The sender exists as long as the server. Without one there are no more notifications.
                Some(served) => match served.socket.notification.changed().await {
                    Ok(()) => served.socket.notification.mark_changed(),
                    Err(_) => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(wake_at) => {}
            () = self.watch.changed(|name| names.iter().any(|known| known == name)) => {}
            () = notification => {}
        }
    }
}
