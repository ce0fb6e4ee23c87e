//! Container logs and exec: requests are parsed and validated here, and served by the node agent of the pod.
//!
//! The node agent runs in this process and is called through [`PodStreams`]; the wire protocol is implemented here. A
//! log is a body that may be endless. An exec session is a WebSocket with kubectl's channels ([`session`]). Both keep
//! the slot of their connection while they last, and end when the server shuts down.

mod log;
mod options;
mod session;
mod websocket;

use std::pin::Pin;

use bytes::Bytes;
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use wharf_model::panics::catch;

use super::query::Query;
use super::response::ApiResponse;
use super::route::Target;
use super::{Api, Body, PANIC_COMPONENT};
use crate::kinds::Lookup;
use crate::server::UpgradedConnection;
use crate::status::StatusError;
pub use options::{Command, LogOptions, Stream};
use websocket::Handshake;

/// The interface to the node agent. Containers are identified by the ID in the pod's status, without its scheme.
pub trait PodStreams: Send + Sync {
    /// The node whose containers it serves.
    fn node(&self) -> &str;
    /// A container's log, in chunks of any size. It ends with the log, or when the receiver is dropped.
    fn log(&self, container: &str, options: LogOptions) -> StreamFuture<mpsc::Receiver<Bytes>>;
    /// Starts a command in a running container.
    fn exec(&self, container: &str, command: Command) -> StreamFuture<Session>;
}

/// The future result of a [`PodStreams`] call.
pub type StreamFuture<T> = Pin<Box<dyn Future<Output = Result<T, StatusError>> + Send>>;

/// A running command. Dropping the session kills it.
pub struct Session {
    /// Its standard input, if requested.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// Its standard output; with a terminal, all of its output.
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Its standard error.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Resizes its terminal.
    pub resize: Option<Box<dyn Fn(Size) + Send + Sync>>,
    /// Its exit code (128 plus the signal number if a signal ended it), or why it is unknown.
    pub exit_code: Pin<Box<dyn Future<Output = Result<i32, String>> + Send>>,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

impl Api {
    /// Serves `pods/log` and `pods/exec`.
    pub(crate) async fn streams(
        &self,
        target: &Target,
        query: &Query,
        parts: Parts,
    ) -> Result<ApiResponse, StatusError> {
        let pod = Lookup::get(&self.objects(), target.kind, &target.namespace, &target.name)
            .ok_or_else(|| StatusError::not_found(target.kind.resource(), &target.name))?;
        let Some(streams) = self.options().streams.clone() else {
            return Err(StatusError::new(
                501,
                "NotImplemented",
                format!(
                    "pods/{} of {:?} cannot be served: no node agent is connected to this server",
                    target.subresource, target.name
                ),
            ));
        };
        // Before the protocol: kubectl tries SPDY after any failure, and would show only that SPDY is not served.
        let (node, served) = (text(&pod, "/spec/nodeName"), streams.node());
        if !node.is_empty() && node != served {
            let message = format!(
                "pod {:?} is on node {node:?}: this server serves logs and exec only for pods of its own node, {served:?}",
                target.name
            );
            return Err(StatusError::bad_request(message));
        }
        if target.subresource == "log" {
            let options = options::log(&pod, query, self.now())?;
            return match options::log_container_id(&pod, query)? {
                Some(container) => {
                    let lines = streams.log(&container, options).await?;
                    Ok(ApiResponse::Http(log::response(lines)))
                }
                // The pod is not scheduled yet, so its log is empty.
                None => Ok(ApiResponse::Raw("text/plain", Bytes::new())),
            };
        }
        let command = options::command(query)?;
        let container = options::running_container_id(&pod, query)?;
        let upgraded = parts.extensions.get::<UpgradedConnection>().cloned();
        let (handshake, upgrade) = upgrade(parts)?;
        let channels = session::Channels::for_command(&command, handshake.protocol);
        let session = streams.exec(&container, command).await?;
        let stop = upgraded.as_ref().map(|upgraded| upgraded.stop.clone()).unwrap_or_default();
        let serve = async move {
            let serving = async {
                match upgrade.await {
                    Ok(connection) => session::serve(TokioIo::new(connection), session, channels, stop).await,
                    Err(error) => tracing::debug!(%error, "client disconnected before the WebSocket upgrade"),
                }
            };
            // A panic closes the connection.
            let _ = catch(PANIC_COMPONENT, container, serving).await;
        };
        match upgraded {
            Some(upgraded) => upgraded.spawn(serve),
            None => drop(tokio::spawn(serve)),
        }
        Ok(ApiResponse::Http(switching_protocols(&handshake)))
    }
}

/// Checks that the client speaks a supported protocol, and returns the upgraded connection.
fn upgrade(mut parts: Parts) -> Result<(Handshake, OnUpgrade), StatusError> {
    if !requests_upgrade(&parts.headers, "websocket") {
        let message = if requests_upgrade(&parts.headers, "SPDY/3.1") {
            "SPDY is not supported, only WebSocket: use kubectl 1.31 or later"
        } else {
            "Upgrade request required"
        };
        return Err(StatusError::bad_request(message));
    }
    let handshake = websocket::handshake(&parts.headers).map_err(StatusError::bad_request)?;
    match parts.extensions.remove::<OnUpgrade>() {
        Some(upgrade) => Ok((handshake, upgrade)),
        None => Err(StatusError::bad_request("this connection cannot be upgraded: WebSocket needs HTTP/1.1")),
    }
}

fn requests_upgrade(headers: &HeaderMap, protocol: &str) -> bool {
    websocket::has_token(headers, &CONNECTION, "upgrade") && websocket::has_token(headers, &UPGRADE, protocol)
}

fn switching_protocols(handshake: &Handshake) -> Response<Body> {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(handshake.protocol.name()));
    // Base64 is always a valid header value.
    if let Ok(accept) = HeaderValue::from_str(&handshake.accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// A container ID without its scheme.
fn bare_id(id: &str) -> Option<&str> {
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
    (!bare.is_empty()).then_some(bare)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests;
