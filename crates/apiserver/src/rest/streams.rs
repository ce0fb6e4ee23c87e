//! Logs of containers and commands in them: what is asked is read and checked here, and served by the pod's node.
//!
//! The node's agent is in this process and answers through [`PodStreams`]; what goes over the wire is ours. A log is a
//! body that may have no end; a command is a WebSocket with kubectl's channels on it ([`session`]). Both hold the place
//! of their connection for as long as they last, and end when the server does.

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

use super::answer::Answer;
use super::query::Query;
use super::route::Target;
use super::{Api, Body};
use crate::kinds::Lookup;
use crate::server::Lasting;
use crate::status::Refusal;
pub use options::{Command, LogOptions, Stream};
use websocket::Handshake;

/// What a node's agent is asked for. Containers go by the ID that stands in the pod's status, without its scheme.
pub trait PodStreams: Send + Sync {
    /// A container's log, in pieces of any size. It ends with the log, or when the receiver is dropped.
    fn log(&self, container: &str, options: LogOptions) -> Promised<mpsc::Receiver<Bytes>>;
    /// Starts a command in a container that runs.
    fn exec(&self, container: &str, command: Command) -> Promised<Session>;
}

/// What is there a little later, or refused.
pub type Promised<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;

/// A command that runs. Whoever drops it wants it no longer: it is killed.
pub struct Session {
    /// What it reads, if it was asked to.
    pub stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// What it writes; with a terminal, all of it.
    pub stdout: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Its other output.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Of its terminal.
    pub resize: Option<Box<dyn Fn(Size) + Send + Sync>>,
    /// Its exit code, 128 and the signal's number if that ended it; or why nobody knows.
    pub ended: Pin<Box<dyn Future<Output = Result<i32, String>> + Send>>,
}

/// Of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Across.
    pub width: u16,
    /// Down.
    pub height: u16,
}

impl Api {
    /// Logs of containers, and commands in them: the node's to serve.
    pub(crate) async fn streams(
        &self,
        target: &Target,
        query: &Query,
        parts: Parts,
    ) -> Result<Answer, Refusal> {
        let pod = Lookup::get(&self.objects(), target.kind, &target.namespace, &target.name)
            .ok_or_else(|| Refusal::not_found(target.kind.resource(), &target.name))?;
        let Some(streams) = self.options().streams.clone() else {
            return Err(Refusal::new(
                501,
                "NotImplemented",
                format!(
                    "pods/{} of {:?} cannot be served: no node agent is connected to this server",
                    target.subresource, target.name
                ),
            ));
        };
        if target.subresource == "log" {
            let options = options::log(&pod, query, self.now())?;
            return match options::log_of(&pod, query)? {
                Some(container) => {
                    let lines = streams.log(&container, options).await?;
                    Ok(Answer::Whole(log::response(lines)))
                }
                // It is nowhere yet, so it has said nothing.
                None => Ok(Answer::Raw("text/plain", Bytes::new())),
            };
        }
        let command = options::command(query)?;
        let container = options::running(&pod, query)?;
        let lasting = parts.extensions.get::<Lasting>().cloned();
        let (handshake, upgrade) = upgrade(parts)?;
        let channels = session::Channels::of(&command, handshake.protocol);
        let session = streams.exec(&container, command).await?;
        let stop = lasting.as_ref().map(|lasting| lasting.stop.clone()).unwrap_or_default();
        let served = async move {
            match upgrade.await {
                Ok(connection) => session::serve(TokioIo::new(connection), session, channels, stop).await,
                Err(error) => tracing::debug!(%error, "a client left before its command began"),
            }
        };
        match lasting {
            Some(lasting) => lasting.spawn(served),
            None => drop(tokio::spawn(served)),
        }
        Ok(Answer::Whole(switching(&handshake)))
    }
}

/// That the client speaks a protocol of ours, and the connection that it becomes.
fn upgrade(mut parts: Parts) -> Result<(Handshake, OnUpgrade), Refusal> {
    if !asks_for(&parts.headers, "websocket") {
        let message = if asks_for(&parts.headers, "SPDY/3.1") {
            "SPDY is not served here, only WebSocket: use kubectl 1.31 or later"
        } else {
            "Upgrade request required"
        };
        return Err(Refusal::bad_request(message));
    }
    let handshake = websocket::handshake(&parts.headers).map_err(Refusal::bad_request)?;
    match parts.extensions.remove::<OnUpgrade>() {
        Some(upgrade) => Ok((handshake, upgrade)),
        None => Err(Refusal::bad_request("this connection cannot be upgraded: WebSocket needs HTTP/1.1")),
    }
}

fn asks_for(headers: &HeaderMap, protocol: &str) -> bool {
    websocket::has_token(headers, &CONNECTION, "upgrade") && websocket::has_token(headers, &UPGRADE, protocol)
}

fn switching(handshake: &Handshake) -> Response<Body> {
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(handshake.protocol.name()));
    // Base64 is always a header's value.
    if let Ok(accept) = HeaderValue::from_str(&handshake.accept) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

/// The ID in a status, without its scheme.
fn bare_id(id: &str) -> Option<&str> {
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
    (!bare.is_empty()).then_some(bare)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

#[cfg(test)]
mod tests;
