//! The registrar's I/O: two calls to the driver, and a socket for kubelet. Each has a deadline or does not block.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Code, Response, Status};
use wharf_csi::registration::InfoRequest;
use wharf_csi::registration::registration_server::RegistrationServer;
use wharf_csi::{AnyAuthority, BindError, Client, Endpoint, EndpointError, SocketFile, v1};

use super::decide::ProbeResult;
use super::service::{Notification, Service};
use super::view::{NodeInfo, PathState};
use crate::metrics::Metrics;

/// The CSI spec requires a driver name to be a domain name.
const MAX_NAME_LENGTH: usize = 63;

/// Minimum timeout of NodeGetInfo: drivers may call a cloud API for it, and no user waits for ours.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the driver's name is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameError {
    #[error("GetPluginInfo: {:?}: {}", .0.code(), .0.message())]
    Call(#[from] Status),
    #[error("driver name {0:?} is invalid: it must be a domain name of at most 63 bytes")]
    Malformed(String),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error(transparent)]
    Path(#[from] EndpointError),
    #[error("{} exists and is not a socket; remove it if it is not needed", .0.display())]
    NotASocket(PathBuf),
    #[error("{}: cannot {step}: {source}", path.display())]
    Io { path: PathBuf, step: &'static str, source: io::Error },
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// A served socket. Dropping it removes the file, unless another registrar has replaced it.
pub(super) struct Socket {
    pub(super) endpoint: Endpoint,
    pub(super) notification: watch::Receiver<Notification>,
    file: SocketFile,
    _server: AbortOnDropHandle<()>,
}

/// Calls GetPluginInfo and validates the name.
pub(super) async fn get_plugin_name(client: &Client, metrics: &Metrics) -> Result<String, NameError> {
    let called_at = Instant::now();
    let response = client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
    metrics.record_call("/csi.v1.Identity/GetPluginInfo", code(&response), called_at.elapsed());
    let name = response?.into_inner().name;
    // The name becomes part of a path.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME_LENGTH || name.starts_with('.') || !name.bytes().all(fits) {
        return Err(NameError::Malformed(name.chars().take(2 * MAX_NAME_LENGTH).collect()));
    }
    metrics.set_driver_name(&name);
    Ok(name)
}

/// Calls NodeGetInfo; empty if the driver does not implement it.
pub(super) async fn get_node_info(
    client: &Client,
    deadline: Duration,
    metrics: &Metrics,
) -> Result<NodeInfo, Status> {
    let called_at = Instant::now();
    let client = client.with_deadline(deadline.max(NODE_TIMEOUT));
    let response = client.node().node_get_info(v1::NodeGetInfoRequest {}).await;
    metrics.record_call("/csi.v1.Node/NodeGetInfo", code(&response), called_at.elapsed());
    match response {
        Ok(response) => {
            let response = response.into_inner();
            Ok(NodeInfo {
                node_id: response.node_id,
                max_volumes: response.max_volumes_per_node,
                topology: response
                    .accessible_topology
                    .map(|topology| topology.segments.into_iter().collect())
                    .unwrap_or_default(),
            })
        }
        Err(status) if status.code() == Code::Unimplemented => Ok(NodeInfo::default()),
        Err(status) => Err(status),
    }
}

fn code<T>(response: &Result<Response<T>, Status>) -> Code {
    response.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

/// The path of a driver's registration socket.
pub(super) fn socket_path(directory: &Path, driver: &str) -> PathBuf {
    directory.join(format!("{driver}-reg.sock"))
}

/// Creates and serves the socket. Replaces an existing socket, whether served or not: the last registrar belongs to
/// the newest driver, and the earlier one notices and does not take it back.
pub(super) fn serve(directory: &Path, name: &str, kubelet_path: &str) -> Result<Socket, SocketError> {
    let path = socket_path(directory, name);
    let failed = |step| {
        let path = path.clone();
        move |source| SocketError::Io { path, step, source }
    };
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("read the file type")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(SocketError::NotASocket(path)),
        Ok(_) => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove the socket of an earlier registrar")(error));
            }
            Ok(()) | Err(_) => {}
        },
    }
    let endpoint: Endpoint = format!("unix:{}", path.display()).parse()?;
    let (listener, file) = wharf_csi::bind(&endpoint)?;
    let (sender, notification) = watch::channel(Notification::None);
    let service = Service { name: name.to_owned(), endpoint: kubelet_path.to_owned(), notification: sender };
    // Kubelet sends the socket's path as the authority.
    let callers = UnixListenerStream::new(listener).map(|accepted| accepted.map(AnyAuthority::new));
    let server = Server::builder().serve_with_incoming(RegistrationServer::new(service), callers);
    let server = tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "registration server failed");
        }
    });
    Ok(Socket { endpoint, notification, file, _server: AbortOnDropHandle::new(server) })
}

impl Socket {
    /// The current state of the path.
    pub(super) async fn path_state(&self, now: Duration) -> PathState {
        if self.file.is_in_place() {
            return PathState::Ours;
        }
        let path = self.endpoint.path();
        match fs::symlink_metadata(path) {
            Err(_) => PathState::Missing { since: now },
            Ok(found) if !found.file_type().is_socket() => PathState::NotSocket,
            // Only a refused connection proves that it is not served. A timeout means a full backlog.
            Ok(_) => match timeout(Duration::from_secs(1), UnixStream::connect(path)).await {
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    PathState::Stale { since: now }
                }
                Ok(_) | Err(_) => PathState::Foreign,
            },
        }
    }
}

/// Calls GetInfo on a socket as kubelet would: by its path, over a new connection.
pub(super) async fn probe_socket(endpoint: &Endpoint, deadline: Duration) -> ProbeResult {
    match fs::symlink_metadata(endpoint.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return ProbeResult::NoSocket,
        Err(error) => return ProbeResult::Failed(format!("{endpoint}: {error}")),
        Ok(found) if !found.file_type().is_socket() => {
            return ProbeResult::Failed(format!("{endpoint}: is not a socket"));
        }
        Ok(_) => {}
    }
    let client = Client::new(endpoint).with_deadline(deadline);
    match client.registration().get_info(InfoRequest {}).await {
        Ok(info) => ProbeResult::Name(info.into_inner().name),
        Err(status) => ProbeResult::Failed(format!(
            "registration socket does not respond: {:?}: {}",
            status.code(),
            status.message()
        )),
    }
}
