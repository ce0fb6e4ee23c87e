//! The sidecar process: the configured node roles ([`crate::registrar`], [`crate::liveness`]), the controller roles
//! ([`crate::controller`]) and the HTTP pages that they share. On return, the registration socket is removed and the
//! leases are released.

use std::fmt;
use std::future::Future;
use std::io;
use std::str::FromStr;
use std::time::Duration;

use http::StatusCode;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use wharf_cluster::work::restart;
use wharf_cluster::{Cluster, ConnectError};
use wharf_csi::{Client, Endpoint, HttpPage, serve_pages};
use wharf_model::attempt;

use crate::controller::{self, Controller};
use crate::health_registry::HealthRegistry;
use crate::liveness::Liveness;
use crate::metrics::Metrics;
use crate::registrar::{self, Registrar, RegistrarError};

/// Configuration of a sidecar process.
#[derive(Debug, Clone)]
pub struct Sidecar {
    /// The driver's socket. `None`: no role needs one.
    pub driver: Option<Endpoint>,
    /// Register the driver with kubelet.
    pub registrar: Option<registrar::Config>,
    /// Serve the driver's health, with this timeout for Probe.
    pub probe_timeout: Option<Duration>,
    /// Run controller roles.
    pub controller: Option<controller::Config>,
    /// Addresses that serve HTTP pages.
    pub listen: Vec<Listen>,
}

/// An address and the pages that it serves.
#[derive(Debug, Clone)]
pub struct Listen {
    /// The address to listen on.
    pub address: Address,
    /// Whether to serve the health pages.
    pub health: bool,
    /// The path of the metrics. `None`: no metrics here.
    pub metrics: Option<String>,
}

/// A TCP address in Go's format: `host:port`. An empty host means all addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
}

/// A malformed address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address: write :port, host:port or [ipv6]:port")]
pub struct AddressError(String);

/// Why the sidecar failed.
#[derive(Debug, thiserror::Error)]
pub enum SidecarError {
    /// Listening on an address failed.
    #[error("failed to serve health and metrics on {address}: {source}")]
    Listen {
        /// The configured address.
        address: Address,
        /// The error of the system call.
        source: io::Error,
    },
    /// A node role has no driver socket.
    #[error("registration and health need the driver's socket: set --csi-address")]
    NoDriver,
    /// Registration failed.
    #[error(transparent)]
    Registrar(#[from] RegistrarError),
    /// The Kubernetes client could not be created.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl Address {
    /// A port on all addresses.
    pub fn port(port: u16) -> Self {
        Self { host: String::new(), port }
    }

    pub(crate) async fn bind(&self) -> Result<TcpListener, SidecarError> {
        let failed = |source| SidecarError::Listen { address: self.clone(), source };
        if !self.host.is_empty() {
            return TcpListener::bind((self.host.as_str(), self.port)).await.map_err(failed);
        }
        match TcpListener::bind(("::", self.port)).await {
            // The machine has no IPv6.
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
    run_on_cluster(None, sidecar, stop).await
}

/// Like [`run`], on an existing API client, such as that of an in-process API server. `None`: a client is created from
/// the controller's options.
pub async fn run_on_cluster(
    cluster: Option<Cluster>,
    sidecar: Sidecar,
    stop: impl Future<Output = ()>,
) -> Result<(), SidecarError> {
    run_with(cluster, sidecar, None, stop).await
}

/// Like `run_on_cluster`, and registers the sidecar's metrics and attempts under this name in a shared registry.
pub async fn run_with_registry(
    cluster: Cluster,
    sidecar: Sidecar,
    (name, registry): (String, HealthRegistry),
    stop: impl Future<Output = ()>,
) -> Result<(), SidecarError> {
    run_with(Some(cluster), sidecar, Some((name, registry)), stop).await
}

async fn run_with(
    cluster: Option<Cluster>,
    sidecar: Sidecar,
    registration: Option<(String, HealthRegistry)>,
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
                Some(cluster) => Controller::with_cluster(cluster, config, socket, metrics.clone()),
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
    if let Some((name, registry)) = registration {
        let metrics = metrics.clone();
        match controller.clone() {
            Some(controller) => {
                registry.register_with_attempts(
                    name,
                    move || metrics.encode(),
                    move || controller.attempts(),
                );
            }
            None => registry.register(name, move || metrics.encode()),
        }
    }
    let mut servers = Vec::new();
    for listen in listen {
        let listener = listen.address.bind().await?;
        // Port 0 lets the system choose: log the actual port.
        let address = listener.local_addr().map_or_else(|_| listen.address.to_string(), |at| at.to_string());
        tracing::info!(address, health = listen.health, metrics = listen.metrics, "serving HTTP endpoints");
        let pages = pages.clone();
        let server = serve_pages(listener, move |path| {
            let (pages, listen) = (pages.clone(), listen.clone());
            async move { pages.page(&path, &listen).await }
        });
        servers.push(AbortOnDropHandle::new(tokio::spawn(server)));
    }
    let stopping = CancellationToken::new();
    let registration = async {
        match (&registrar, &driver) {
            (Some(registrar), Some((client, socket))) => {
                let run = || registrar.run(socket, client, metrics.clone());
                match restart("registrar", socket, None, run).await {
                    Some(error) => Err(error.into()),
                    None => Ok(()),
                }
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
            result = registration => result,
        }
    };
    let controller_roles = async {
        if let Some(controller) = &controller {
            controller.run(stopping.clone()).await;
        }
    };
    // The controller starts to stop when the node roles have stopped, and may finish its work.
    let node = async {
        let result = node.await;
        stopping.cancel();
        result
    };
    let (result, ()) = tokio::join!(node, controller_roles);
    result
}

/// The roles that the pages report on.
#[derive(Clone)]
struct Pages {
    registrar: Option<Registrar>,
    liveness: Option<Liveness>,
    controller: Option<Controller>,
    metrics: Metrics,
}

impl Pages {
    async fn page(&self, path: &str, listen: &Listen) -> HttpPage {
        match path {
            "/healthz" if listen.health => match &self.liveness {
                Some(_) => self.liveness_page().await,
                None => self.registration_page().await,
            },
            "/healthz/leader-election" if listen.health => match &self.controller {
                Some(controller) => match controller.lease_status() {
                    Ok(text) => HttpPage::text(StatusCode::OK, text),
                    Err(text) => HttpPage::text(StatusCode::INTERNAL_SERVER_ERROR, text),
                },
                None => ok(),
            },
            attempt::PATH if listen.health => match &self.controller {
                Some(controller) => HttpPage::text(StatusCode::OK, attempt::page(&controller.attempts())),
                None => HttpPage::text(StatusCode::NOT_FOUND, "no controller role runs in this process\n"),
            },
            "/healthz/registration" if listen.health && self.registrar.is_some() => {
                self.registration_page().await
            }
            "/readyz" if listen.health => {
                let (registration, liveness) = tokio::join!(self.registration_page(), self.liveness_page());
                let pages = [registration, liveness, self.controller_page()];
                pages.into_iter().find(|page| *page != ok()).unwrap_or_else(ok)
            }
            path if Some(path) == listen.metrics.as_deref() => {
                HttpPage::metrics(self.metrics.encode_with_panics())
            }
            _ => HttpPage::text(StatusCode::NOT_FOUND, "page not found\n"),
        }
    }

    /// Whether the driver responds. Registration is not part of it: kubelet restarts the driver's container based on
    /// this page, which helps only if the driver itself is unhealthy.
    async fn liveness_page(&self) -> HttpPage {
        match &self.liveness {
            Some(liveness) => match liveness.check().await {
                Ok(()) => ok(),
                Err(reason) => HttpPage::text(StatusCode::INTERNAL_SERVER_ERROR, reason),
            },
            None => ok(),
        }
    }

    /// Whether the controller's roles were started.
    fn controller_page(&self) -> HttpPage {
        match self.controller.as_ref().map(Controller::ready) {
            None | Some(Ok(())) => ok(),
            Some(Err(reason)) => HttpPage::text(StatusCode::INTERNAL_SERVER_ERROR, reason),
        }
    }

    /// Whether the driver is registered or can be.
    async fn registration_page(&self) -> HttpPage {
        match &self.registrar {
            Some(registrar) => {
                let (status, text) = registrar.health().await;
                HttpPage::text(status, text)
            }
            None => ok(),
        }
    }
}

fn ok() -> HttpPage {
    HttpPage::text(StatusCode::OK, "ok")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_like_gos() {
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
