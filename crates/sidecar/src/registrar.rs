//! Makes a driver known to kubelet: a socket in kubelet's plugin directory, where kubelet asks for the
//! driver's name and where its socket is.
//!
//! - The socket is there as long as this runs and the driver has said its name; it is made anew when it
//!   vanishes, when kubelet says no (with growing pauses), and when the driver comes back as another one.
//! - A driver that restarts as it was stays registered without a break. One that tells other things of the
//!   node than before (id, topology, how many volumes) is registered anew, for kubelet asks only then.
//! - Nothing but a first socket that cannot be made ends it; the rest is told by [`Registrar::health`].
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
use wharf_csi::{Client, Endpoint, SocketIdentity, SocketWatch};

use crate::metrics::Metrics;
use act::{Socket, SocketError};
use decide::{Found, Step, Why, decide};
use service::Said;
use view::{Backoff, Driver, Held, NodeAnswer, Place, View, Word};

/// How often files are looked at without any news of them.
const LOOK: Duration = Duration::from_secs(10);
/// Between questions to a driver that does not answer: it may be starting.
const ASK: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(30) };
/// Between sockets that kubelet refuses, or that cannot be made. Kubelet tries again by itself, too.
const SERVE: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) };

/// What the registrar is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// Kubelet's plugin directory, as this process sees it.
    pub plugin_registration_path: PathBuf,
    /// The driver's socket, as kubelet sees it.
    pub kubelet_registration_path: String,
    /// How long the driver may take to say its name, and a health check.
    pub timeout: Duration,
}

/// Why the registrar ended.
#[derive(Debug, thiserror::Error)]
#[error("cannot register driver {driver} with kubelet: {reason}")]
pub struct RegistrarError {
    driver: String,
    reason: String,
}

/// What a health check needs to know.
#[derive(Clone, Default)]
struct Report {
    socket: Option<Endpoint>,
    driver: String,
    trouble: Option<String>,
}

/// The registrar's face to those who ask how it is; clones tell the same.
#[derive(Clone)]
pub struct Registrar {
    config: Config,
    report: Arc<Mutex<Report>>,
}

impl Registrar {
    pub(crate) fn new(config: Config) -> Self {
        Self { config, report: Arc::default() }
    }

    /// 200 if the socket is there, served for the driver, and kubelet has not said no; 404 if there is none;
    /// else 500.
    pub(crate) async fn health(&self) -> (StatusCode, String) {
        let Report { socket, driver, trouble } = self.report().clone();
        let found = match &socket {
            Some(endpoint) => act::look(endpoint, self.config.timeout).await,
            None => Found::NoSocket,
        };
        decide::health(found, &driver, trouble.as_deref())
    }

    /// Keeps the driver registered, and does not end by itself but with an error. Dropped, it takes its
    /// socket away.
    pub(crate) async fn run(&self, driver: &Endpoint, client: &Client, metrics: Metrics) -> RegistrarError {
        let mut state = State {
            client: client.with_deadline(self.config.timeout),
            registrar: self,
            driver_socket: driver,
            metrics,
            watch: SocketWatch::new(),
            started: Instant::now(),
            driver: None,
            held: None,
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

/// The driver behind its socket, and what it has said since that socket appeared.
struct Seen {
    identity: SocketIdentity,
    name: Option<String>,
    node: Option<NodeAnswer>,
    failures: u32,
    ask_at: Duration,
}

/// The socket that was made last.
struct Made {
    socket: Socket,
    name: String,
    node: Option<NodeAnswer>,
    /// The driver that it was made for.
    driver: SocketIdentity,
    place: Place,
    word: Word,
}

struct State<'a> {
    registrar: &'a Registrar,
    client: Client,
    driver_socket: &'a Endpoint,
    metrics: Metrics,
    watch: SocketWatch,
    started: Instant,
    driver: Option<Seen>,
    held: Option<Made>,
    refusals: u32,
    failures: u32,
    failed_until: Option<Duration>,
}

impl State<'_> {
    async fn run(&mut self) -> RegistrarError {
        loop {
            self.look().await;
            match decide(&self.view(), self.now()) {
                Step::AskName => self.ask_name().await,
                Step::AskNode => self.ask_node().await,
                Step::Serve(why) => self.serve(why),
                Step::GiveUp => {
                    let Report { driver, trouble, .. } = self.registrar.report().clone();
                    return RegistrarError { driver, reason: trouble.unwrap_or_default() };
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
            None => Driver::Away,
            Some(Seen { name: None, ask_at, .. }) => Driver::Unasked { ask_at: *ask_at },
            Some(Seen { name: Some(name), node: None, ask_at, .. }) => {
                Driver::Named { name, ask_at: *ask_at }
            }
            Some(Seen { name: Some(name), node: Some(node), .. }) => Driver::Known { name, node },
        };
        let held = match &self.held {
            None => Held::Nothing,
            Some(Made { name, node, place, word, .. }) => {
                Held::Socket { name, node: node.as_ref(), place: *place, word: *word }
            }
        };
        View { driver, held, failed_until: self.failed_until }
    }

    /// Looks at both sockets, and at what kubelet has said.
    async fn look(&mut self) {
        let now = self.now();
        let identity = SocketIdentity::of(self.driver_socket.path()).ok();
        if identity.as_ref() != self.driver.as_ref().map(|seen| &seen.identity) {
            match &identity {
                Some(_) => tracing::info!(socket = %self.driver_socket, "a driver is there"),
                None => tracing::info!(socket = %self.driver_socket, "the driver's socket is not there"),
            }
            self.driver =
                identity.map(|identity| Seen { identity, name: None, node: None, failures: 0, ask_at: now });
            // Kubelet may have said no because of the driver that is gone.
            self.refusals = 0;
            if let Some(Made { word: Word::Refused { again_at }, .. }) = &mut self.held {
                *again_at = now;
            }
        }
        if self.driver.is_none() && self.held.is_none() {
            let trouble = format!("the driver's socket {} is not there", self.driver_socket);
            self.registrar.report().trouble = Some(trouble);
        }
        let Some(made) = &mut self.held else { return };
        made.place = match (made.place, made.socket.place(now).await) {
            (since @ Place::Missing { .. }, Place::Missing { .. }) => since,
            (since @ Place::Stale { .. }, Place::Stale { .. }) => since,
            (_, found) => found,
        };
        if !made.socket.said.has_changed().unwrap_or(false) {
            return;
        }
        let said = made.socket.said.borrow_and_update().clone();
        match said {
            Said::Nothing => {}
            Said::Yes => {
                tracing::info!(driver = made.name, "kubelet has registered the driver");
                self.metrics.registration(true);
                made.word = Word::Registered;
                self.refusals = 0;
                self.registrar.report().trouble = None;
            }
            Said::No(error) => {
                self.metrics.registration(false);
                self.refusals = self.refusals.saturating_add(1);
                let pause = SERVE.after(self.refusals);
                tracing::error!(driver = made.name, error, again_in = ?pause, "kubelet refused the driver");
                made.word = Word::Refused { again_at: now + pause };
                let trouble = format!("kubelet refused to register driver {}: {error}", made.name);
                self.registrar.report().trouble = Some(trouble);
            }
        }
    }

    async fn ask_name(&mut self) {
        let answer = act::ask_name(&self.client, &self.metrics).await;
        let now = self.now();
        let Some(seen) = &mut self.driver else { return };
        match answer {
            Ok(name) => {
                tracing::info!(driver = name, "the driver has said its name");
                if self.held.is_none() {
                    let mut report = self.registrar.report();
                    report.driver.clone_from(&name);
                    report.trouble = None;
                }
                (seen.name, seen.failures, seen.ask_at) = (Some(name), 0, now);
            }
            Err(error) => {
                seen.failures = seen.failures.saturating_add(1);
                let pause = ASK.after(seen.failures);
                seen.ask_at = now + pause;
                tracing::warn!(socket = %self.driver_socket, %error, again_in = ?pause, "the driver does not say its name");
                if self.held.is_none() {
                    self.registrar.report().trouble = Some(error.to_string());
                }
            }
        }
    }

    async fn ask_node(&mut self) {
        let answer = act::ask_node(&self.client, self.registrar.config.timeout, &self.metrics).await;
        let now = self.now();
        let Some(seen) = &mut self.driver else { return };
        match answer {
            Ok(node) => {
                // This is the driver that kubelet asks, too, if it has not restarted since.
                if let Some(made) = &mut self.held
                    && made.node.is_none()
                    && made.driver == seen.identity
                {
                    made.node = Some(node.clone());
                }
                seen.node = Some(node);
            }
            Err(status) => {
                seen.failures = seen.failures.saturating_add(1);
                seen.ask_at = now + ASK.after(seen.failures);
                tracing::debug!(error = status.message(), "the driver says nothing of this node");
            }
        }
    }

    fn serve(&mut self, why: Why) {
        let Some(Seen { identity, name: Some(name), node, .. }) = &self.driver else { return };
        let Config { plugin_registration_path, kubelet_registration_path, .. } = &self.registrar.config;
        // A socket of another name would stay behind otherwise.
        let before = self.held.take_if(|made| made.name != *name);
        let mut report = self.registrar.report();
        match act::serve(plugin_registration_path, name, kubelet_registration_path) {
            Ok(socket) => {
                drop(before);
                tracing::info!(driver = name, socket = %socket.endpoint, why = why.name(), "waiting for kubelet");
                self.metrics.socket(why.name());
                (report.socket, report.driver) = (Some(socket.endpoint.clone()), name.clone());
                if why != Why::Refused {
                    report.trouble = None;
                }
                self.held = Some(Made {
                    socket,
                    name: name.clone(),
                    node: node.clone(),
                    driver: identity.clone(),
                    place: Place::Ours,
                    word: Word::Silent,
                });
                (self.failures, self.failed_until) = (0, None);
            }
            Err(error) => {
                self.failed(&error, &mut report);
                if before.is_some() {
                    self.held = before;
                }
            }
        }
    }

    fn failed(&mut self, error: &SocketError, report: &mut Report) {
        self.failures = self.failures.saturating_add(1);
        let pause = SERVE.after(self.failures);
        self.failed_until = Some(self.started.elapsed() + pause);
        tracing::error!(%error, again_in = ?pause, "the registration socket cannot be made");
        report.trouble = Some(error.to_string());
    }

    /// Until something may have changed.
    async fn wait(&mut self, until: Option<Duration>) {
        // Added again each time: a directory that was made anew is not the one that was watched.
        let driver_directory = self.driver_socket.path().parent();
        let directories = [driver_directory, Some(&*self.registrar.config.plugin_registration_path)];
        directories.into_iter().flatten().for_each(|directory| self.watch.add(directory));
        let sockets = [Some(self.driver_socket), self.held.as_ref().map(|made| &made.socket.endpoint)];
        let names: Vec<OsString> = sockets
            .into_iter()
            .flatten()
            .filter_map(|socket| Some(socket.path().file_name()?.to_owned()))
            .collect();
        let look_at = self.now() + LOOK;
        let wake_at = self.started + until.map_or(look_at, |until| until.min(look_at));
        let said = async {
            match &mut self.held {
                // The sender lives as long as the server; without one there is no more news.
                Some(made) => match made.socket.said.changed().await {
                    Ok(()) => made.socket.said.mark_changed(),
                    Err(_) => std::future::pending().await,
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(wake_at) => {}
            () = self.watch.changed(|name| names.iter().any(|known| known == name)) => {}
            () = said => {}
        }
    }
}
