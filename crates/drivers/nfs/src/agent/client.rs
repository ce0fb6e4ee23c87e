//! The driver's side of the protocol.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::message::{AgentError, AgentErrorKind, Answer, Call};
use super::{PORT, TlsFiles};

/// The deadline of a call. Shorter than the 60 s of a request to a share, during which the worker calls the agent.
const DEADLINE: Duration = Duration::from_secs(10);

/// The maximum size of a response in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// The calls that operations of a share make to the agent of the server.
pub trait ServerAgent: Send + Sync {
    /// Makes one call. It ends by a deadline, with [`AgentErrorKind::Unreachable`].
    fn call(&self, call: &Call) -> Result<Answer, AgentError>;
}

/// The address of an NFS server's agent, and the certificates for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAccess {
    /// The agent's host name or address; an IPv6 address without brackets. Its certificate must be for this name.
    pub host: String,
    /// The agent's port.
    pub port: u16,
    /// The certificates. They are read for each call, so they can be replaced at any time.
    pub tls: TlsFiles,
}

impl AgentAccess {
    /// Parses `https://HOST[:PORT]`.
    pub fn parse(url: &str, tls: TlsFiles) -> Result<Self, String> {
        let wrong = |problem: &str| format!("{url:?} is not the address of an agent: {problem}");
        let rest = url.strip_prefix("https://").ok_or_else(|| wrong("use https://HOST[:PORT]"))?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let parsed: http::uri::Authority =
            authority.parse().map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        if authority.contains(['/', '@', '?', '#']) {
            return Err(wrong("it has more than a host and a port"));
        }
        let host = parsed.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        ServerName::try_from(host.as_str()).map_err(|_| wrong("its host is not a name or an address"))?;
        let port = match parsed.port() {
            Some(port) => port.as_u16(),
            None if authority == parsed.host() => PORT,
            None => return Err(wrong("its port is not a number")),
        };
        Ok(Self { host, port, tls })
    }
}

/// A client of one agent. Each call has its own connection: calls are rare.
#[derive(Debug, Clone)]
pub struct AgentClient {
    access: AgentAccess,
}

impl AgentClient {
    /// Creates a client. Each call connects.
    pub fn new(access: AgentAccess) -> Self {
        Self { access }
    }

    /// Makes one call.
    pub async fn call(&self, call: &Call) -> Result<Answer, AgentError> {
        let exchanged = tokio::time::timeout(DEADLINE, self.exchange(call)).await;
        let late = || self.unreachable(&format!("no answer within {} s", DEADLINE.as_secs()));
        exchanged.map_err(|_| late())?
    }

    async fn exchange(&self, call: &Call) -> Result<Answer, AgentError> {
        let AgentAccess { host, port, tls } = &self.access;
        let config = tls.client().map_err(|error| self.unreachable(&error.to_string()))?;
        let name =
            ServerName::try_from(host.clone()).map_err(|error| self.unreachable(&error.to_string()))?;
        let stream = TcpStream::connect((host.as_str(), *port))
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?;
        let stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?;
        let http_error = |error: hyper::Error| self.unreachable(&with_causes(&error));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http_error)?;
        let body = serde_json::to_vec(call).map_err(|error| self.unreachable(&error.to_string()))?;
        let request = http::Request::post("/v1/call")
            .header(HOST, host.as_str())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.unreachable(&error.to_string()))?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(http_error)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_RESPONSE)
                .collect()
                .await
                .map_err(|error| self.unreachable(&error.to_string()))?;
            Ok((status, body.to_bytes()))
        };
        let (answered, ended) = {
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                biased;
                answered = answer => (Some(answered), None),
                ended = &mut connection => (None, Some(ended)),
            }
        };
        let (status, body) = match (answered, ended) {
            (Some(answered), _) => answered?,
            (None, Some(Err(error))) => return Err(http_error(error)),
            (None, _) => return Err(self.unreachable("the agent closed the connection")),
        };
        let unreadable = |error: serde_json::Error| {
            self.unreachable(&format!("its answer with status {status} cannot be read: {error}"))
        };
        match status.is_success() {
            true => serde_json::from_slice(&body).map_err(unreadable),
            false => Err(serde_json::from_slice(&body).map_err(unreadable)?),
        }
    }

    fn unreachable(&self, reason: &str) -> AgentError {
        let AgentAccess { host, port, .. } = &self.access;
        let message = format!("failed to call the NFS server agent {host}:{port}: {reason}");
        AgentError::new(AgentErrorKind::Unreachable, message)
    }
}

/// For a worker process, which has no runtime.
impl ServerAgent for AgentClient {
    fn call(&self, call: &Call) -> Result<Answer, AgentError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.unreachable(&error.to_string()))?;
        let answer = runtime.block_on(Self::call(self, call));
        // Otherwise a name resolution that does not end would delay the return.
        runtime.shutdown_background();
        answer
    }
}

/// The message of an error with all its causes: hyper's own message does not say why the connection failed.
fn with_causes(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_https_with_a_host() {
        let files = || TlsFiles { ca: "ca".into(), cert: "cert".into(), key: "key".into() };
        let parse = |url: &str| AgentAccess::parse(url, files()).map(|access| (access.host, access.port));
        let ok = |host: &str, port| Ok((host.to_owned(), port));
        assert_eq!(parse("https://nas"), ok("nas", PORT));
        assert_eq!(parse("https://nas.example.com:1234/"), ok("nas.example.com", 1234));
        assert_eq!(parse("https://10.0.0.1"), ok("10.0.0.1", PORT));
        assert_eq!(parse("https://[fd00::1]:99"), ok("fd00::1", 99));
        for url in
            ["", "nas", "http://nas", "https://", "https://a/b", "https://u:p@a", "https://a:x", "https://a:"]
        {
            assert!(parse(url).is_err(), "{url}");
        }
    }
}
