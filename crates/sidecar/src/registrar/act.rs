//! The registrar's effects: two questions to the driver, and a socket for kubelet. Each has a deadline or does
//! not wait.

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

use super::decide::Found;
use super::service::{Said, Service};
use super::view::{NodeAnswer, Place};
use crate::metrics::Metrics;

/// A driver's name is a domain name, by the CSI spec.
const LONGEST_NAME: usize = 63;

/// The least time for NodeGetInfo: drivers ask a cloud for the answer, and nobody waits for ours.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a driver's name is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum NameError {
    #[error("GetPluginInfo: {:?}: {}", .0.code(), .0.message())]
    Call(#[from] Status),
    #[error("the driver calls itself {0:?}, which is no driver name (a domain name of at most 63 bytes)")]
    Malformed(String),
}

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    #[error(transparent)]
    Path(#[from] EndpointError),
    #[error("{}: exists and is not a socket; it was left alone, remove it if nobody needs it", .0.display())]
    NotASocket(PathBuf),
    #[error("{}: cannot {step}: {source}", path.display())]
    Io { path: PathBuf, step: &'static str, source: io::Error },
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// A socket that is served. Dropped, it is gone, unless somebody else's has taken its place.
pub(super) struct Socket {
    pub(super) endpoint: Endpoint,
    pub(super) said: watch::Receiver<Said>,
    file: SocketFile,
    _server: AbortOnDropHandle<()>,
}

/// The driver's name.
pub(super) async fn ask_name(client: &Client, metrics: &Metrics) -> Result<String, NameError> {
    let asked = Instant::now();
    let answer = client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
    metrics.called("/csi.v1.Identity/GetPluginInfo", code(&answer), asked.elapsed());
    let name = answer?.into_inner().name;
    // It becomes a part of a path.
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || name.starts_with('.') || !name.bytes().all(fits) {
        return Err(NameError::Malformed(name.chars().take(2 * LONGEST_NAME).collect()));
    }
    metrics.name_driver(&name);
    Ok(name)
}

/// What the driver tells of this node; nothing, if it has no such call.
pub(super) async fn ask_node(
    client: &Client,
    deadline: Duration,
    metrics: &Metrics,
) -> Result<NodeAnswer, Status> {
    let asked = Instant::now();
    let client = client.with_deadline(deadline.max(NODE_TIMEOUT));
    let answer = client.node().node_get_info(v1::NodeGetInfoRequest {}).await;
    metrics.called("/csi.v1.Node/NodeGetInfo", code(&answer), asked.elapsed());
    match answer {
        Ok(answer) => {
            let answer = answer.into_inner();
            Ok(NodeAnswer {
                node_id: answer.node_id,
                max_volumes: answer.max_volumes_per_node,
                topology: answer
                    .accessible_topology
                    .map(|topology| topology.segments.into_iter().collect())
                    .unwrap_or_default(),
            })
        }
        Err(status) if status.code() == Code::Unimplemented => Ok(NodeAnswer::default()),
        Err(status) => Err(status),
    }
}

fn code<T>(answer: &Result<Response<T>, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

/// Where the socket for a driver is.
pub(super) fn socket_path(directory: &Path, driver: &str) -> PathBuf {
    directory.join(format!("{driver}-reg.sock"))
}

/// Makes and serves the socket. A socket that is there goes, served or not: who comes last has the newer
/// driver, and who was there sees it and does not come back.
pub(super) fn serve(directory: &Path, name: &str, kubelet_path: &str) -> Result<Socket, SocketError> {
    let path = socket_path(directory, name);
    let failed = |step| {
        let path = path.clone();
        move |source| SocketError::Io { path, step, source }
    };
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("look at the path")(error)),
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
    let (sender, said) = watch::channel(Said::Nothing);
    let service = Service { name: name.to_owned(), endpoint: kubelet_path.to_owned(), said: sender };
    // Kubelet names the socket's path as the authority.
    let callers = UnixListenerStream::new(listener).map(|accepted| accepted.map(AnyAuthority::new));
    let server = Server::builder().serve_with_incoming(RegistrationServer::new(service), callers);
    let server = tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the registration server ended");
        }
    });
    Ok(Socket { endpoint, said, file, _server: AbortOnDropHandle::new(server) })
}

impl Socket {
    /// What is at its path now.
    pub(super) async fn place(&self, now: Duration) -> Place {
        if self.file.is_in_place() {
            return Place::Ours;
        }
        let path = self.endpoint.path();
        match fs::symlink_metadata(path) {
            Err(_) => Place::Missing { since: now },
            Ok(found) if !found.file_type().is_socket() => Place::NotASocket,
            // Only a refusal proves that nobody serves it; one that does not accept is full.
            Ok(_) => match timeout(Duration::from_secs(1), UnixStream::connect(path)).await {
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    Place::Stale { since: now }
                }
                Ok(_) | Err(_) => Place::Others,
            },
        }
    }
}

/// Asks who serves a socket, as kubelet would: by its path, over a new connection.
pub(super) async fn look(endpoint: &Endpoint, deadline: Duration) -> Found {
    match fs::symlink_metadata(endpoint.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::NoSocket,
        Err(error) => return Found::NoAnswer(format!("{endpoint}: {error}")),
        Ok(found) if !found.file_type().is_socket() => {
            return Found::NoAnswer(format!("{endpoint}: is not a socket"));
        }
        Ok(_) => {}
    }
    let client = Client::new(endpoint).with_deadline(deadline);
    match client.registration().get_info(InfoRequest {}).await {
        Ok(info) => Found::Name(info.into_inner().name),
        Err(status) => Found::NoAnswer(format!(
            "the registration socket does not answer: {:?}: {}",
            status.code(),
            status.message()
        )),
    }
}
