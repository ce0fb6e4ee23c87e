//! The sidecar as a process: the roles of a node ([`crate::registrar`], [`crate::liveness`]) and those of the
//! controller ([`crate::controller`]), each if it is asked for, and the pages they share. Runs until it is told to
//! stop; then the registration socket is gone and the leases are released.

use std::fmt;
use std::future::Future;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::{Cluster, ConnectError};
use wharf_csi::{Client, Endpoint, Page, serve_pages};

use crate::board::Board;
use crate::controller::{self, Controller};
use crate::liveness::Liveness;
use crate::metrics::Metrics;
use crate::registrar::{self, Registrar, RegistrarError};

/// What runs, for one driver or for all.
#[derive(Debug, Clone)]
pub struct Sidecar {
    /// The driver's socket; `None`: no role needs one.
    pub driver: Option<Endpoint>,
    /// Register the driver with kubelet.
    pub registrar: Option<registrar::Config>,
    /// Answer for the driver's health; how long a Probe may take.
    pub probe_timeout: Option<Duration>,
    /// Work for the driver on the cluster's objects.
    pub controller: Option<controller::Config>,
    /// Where pages are served.
    pub listen: Vec<Listen>,
}

/// An address with pages.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The address.
    pub address: Address,
    /// Whether the health pages are there.
    pub health: bool,
    /// The path of the metrics, if they are there.
    pub metrics: Option<String>,
}

/// A TCP address as Go's programs take it: `host:port`, and without a host all addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

/// What is wrong with an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address: write :port, host:port or [ipv6]:port")]
pub struct AddressError(String);

/// Why the sidecar ended.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// No address for the pages.
    #[error("health and metrics cannot be served on {address}: {source}")]
    Listen {
        /// Where they should have been.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// A role without its driver.
    #[error("registration and health need the driver's socket: set --csi-address")]
    NoDriver,
    /// No registration.
    #[error(transparent)]
    Registrar(#[from] RegistrarError),
    /// No way to the cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Address {
    /// A port of all addresses.
    pub fn port(port: u16) -> Self {
        Self { host: String::new(), port }
    }

    pub(crate) async fn bind(&self) -> Result<TcpListener, SidecarError> {
        let failed = |source| SidecarError::Listen { address: self.clone(), source };
        if !self.host.is_empty() {
            return TcpListener::bind((self.host.as_str(), self.port)).await.map_err(failed);
        }
        match TcpListener::bind(("::", self.port)).await {
            // A machine without IPv6.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(("0.0.0.0", self.port)).await.map_err(failed)
            }
            bound => bound.map_err(failed),
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let malformed = || AddressError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
        let port = port.parse().map_err(|_| malformed())?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        match (bare, host) {
            (Some(host), _) if !host.is_empty() => Ok(Self { host: host.to_owned(), port }),
            (None, host) if !host.contains([':', '[', ']', '/']) => Ok(Self { host: host.to_owned(), port }),
            _ => Err(malformed()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Runs the roles until `stop` is ready.
pub async fn run(sidecar: Sidecar, stop: impl Future<Output = ()>) -> Result<(), SidecarError> {
    run_on(None, sidecar, stop).await
}

/// The same on a way to the API that is there already, such as one in this process; without, one is made as the
/// controller's options say.
pub async fn run_on(
    cluster: Option<Cluster>,
    sidecar: Sidecar,
    stop: impl Future<Output = ()>,
) -> Result<(), SidecarError> {
    run_with(cluster, sidecar, None, stop).await
}

/// The same, with what it counts and tries on a board that it shares with others, under this name.
pub async fn run_shown(
    cluster: Cluster,
    sidecar: Sidecar,
    (name, board): (String, Board),
    stop: impl Future<Output = ()>,
) -> Result<(), SidecarError> {
    run_with(Some(cluster), sidecar, Some((name, board)), stop).await
}

async fn run_with(
    cluster: Option<Cluster>,
    sidecar: Sidecar,
    shown: Option<(String, Board)>,
    stop: impl Future<Output = ()>,
) -> Result<(), SidecarError> {
    let Sidecar { driver, registrar, probe_timeout, controller, listen } = sidecar;
    let metrics = Metrics::new();
    let driver = driver.map(|socket| (Client::new(&socket), socket));
    let registrar = registrar.map(Registrar::new);
    if driver.is_none() && (registrar.is_some() || probe_timeout.is_some()) {
        return Err(SidecarError::NoDriver);
    }
    let client = driver.as_ref().map(|(client, _)| client);
    let liveness =
        probe_timeout.zip(client).map(|(timeout, client)| Liveness::new(client, timeout, metrics.clone()));
    let controller = match controller {
        Some(config) => {
            let socket = driver.as_ref().map(|(_, socket)| socket.clone());
            Some(match cluster {
                Some(cluster) => Controller::on(cluster, config, socket, metrics.clone()),
                None => Controller::connect(config, socket, metrics.clone()).await?,
            })
        }
        None => None,
    };
    let pages = Pages {
        registrar: registrar.clone(),
        liveness,
        controller: controller.clone(),
        metrics: metrics.clone(),
    };
    if let Some((name, board)) = shown {
        let metrics = metrics.clone();
        match controller.clone() {
            Some(controller) => {
                board.show_with_attempts(name, move || metrics.text(), move || controller.attempts());
            }
            None => board.show(name, move || metrics.text()),
        }
    }
    let mut servers = Vec::new();
    for place in listen {
        let listener = place.address.bind().await?;
        // The port may have been the system's choice.
        let address = listener.local_addr().map_or_else(|_| place.address.to_string(), |at| at.to_string());
        tracing::info!(address, health = place.health, metrics = place.metrics, "serving pages");
        let pages = pages.clone();
        let server = serve_pages(listener, move |path| {
            let (pages, place) = (pages.clone(), place.clone());
            async move { pages.page(&path, &place).await }
        });
        servers.push(AbortOnDropHandle::new(tokio::spawn(server)));
    }
    let stopping = CancellationToken::new();
    let registered = async {
        match (&registrar, &driver) {
            (Some(registrar), Some((client, socket))) => {
                Err(registrar.run(socket, client, metrics).await.into())
            }
            (None, _) | (_, None) => {
                stopping.cancelled().await;
                Ok(())
            }
        }
    };
    let node = async {
        tokio::select! {
            () = stop => Ok(()),
            ended = registered => ended,
        }
    };
    let controlled = async {
        if let Some(controller) = &controller {
            controller.run(stopping.clone()).await;
        }
    };
    // The controller is told to stop when the node's half has, and ends in its own time.
    let node = async {
        let ended = node.await;
        stopping.cancel();
        ended
    };
    let (ended, ()) = tokio::join!(node, controlled);
    ended
}

/// The roles, as their pages see them.
#[derive(Clone)]
struct Pages {
    registrar: Option<Registrar>,
    liveness: Option<Liveness>,
    controller: Option<Controller>,
    metrics: Metrics,
}

impl Pages {
    async fn page(&self, path: &str, place: &Listen) -> Page {
        match path {
            "/healthz" if place.health => match &self.liveness {
                Some(_) => self.alive().await,
                None => self.registered().await,
            },
            "/healthz/leader-election" if place.health => match &self.controller {
                Some(controller) => Page::text(StatusCode::OK, controller.leases()),
                None => ok(),
            },
            "/debug/attempts" if place.health => match &self.controller {
                Some(controller) => Page::text(StatusCode::OK, format!("{:#}\n", controller.attempts())),
                None => Page::text(StatusCode::NOT_FOUND, "no role here works on objects\n"),
            },
            "/healthz/registration" if place.health && self.registrar.is_some() => self.registered().await,
            "/readyz" if place.health => {
                let (registered, alive) = tokio::join!(self.registered(), self.alive());
                let pages = [registered, alive, self.controlled()];
                pages.into_iter().find(|page| *page != ok()).unwrap_or_else(ok)
            }
            path if Some(path) == place.metrics.as_deref() => Page::metrics(self.metrics.text()),
            _ => Page::text(StatusCode::NOT_FOUND, "there is no such page here\n"),
        }
    }

    /// Whether the driver answers. The registration has no part in it: kubelet restarts the driver's own
    /// container by this page, and that helps only if it is the driver that is ill.
    async fn alive(&self) -> Page {
        match &self.liveness {
            Some(liveness) => match liveness.check().await {
                Ok(()) => ok(),
                Err(reason) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, reason),
            },
            None => ok(),
        }
    }

    /// Whether the controller's roles run.
    fn controlled(&self) -> Page {
        match self.controller.as_ref().map(Controller::ready) {
            None | Some(Ok(())) => ok(),
            Some(Err(reason)) => Page::text(StatusCode::INTERNAL_SERVER_ERROR, reason),
        }
    }

    /// Whether the driver can be registered.
    async fn registered(&self) -> Page {
        match &self.registrar {
            Some(registrar) => {
                let (status, text) = registrar.health().await;
                Page::text(status, text)
            }
            None => ok(),
        }
    }
}

fn ok() -> Page {
    Page::text(StatusCode::OK, "ok")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_go_takes_them() {
        for (text, host, port) in [
            (":9808", "", 9808),
            ("127.0.0.1:80", "127.0.0.1", 80),
            ("localhost:1", "localhost", 1),
            ("[::1]:65535", "::1", 65535),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address, Address { host: host.to_owned(), port });
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "9808", ":", ":x", ":65536", "::1:80", "[]:80", "http://x:80", "[::1:80"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError(text.to_owned())));
        }
    }
}
