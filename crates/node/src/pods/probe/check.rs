//! A single probe check: exec, HTTP GET or TCP connect.
//!
//! Containers share the host's network, so a pod is reached at the loopback address. Redirects count as success and
//! are not followed. HTTPS and gRPC are not supported.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wharf_container::{ContainerId, Containers, RunResult};
use wharf_model::container::{Container, HttpGetAction, HttpHeader, Probe};

/// Default host of a check.
const LOOPBACK: &str = "127.0.0.1";
/// Maximum length of an HTTP status line.
const FIRST_LINE: u64 = 8 << 10;

/// A check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Check {
    /// Exec: success is exit code 0.
    Program(Vec<String>),
    /// HTTP GET: success is a status from 200 to 399.
    Page(Page),
    /// TCP: success is a connection.
    Connection { host: String, port: Port },
}

/// An HTTP GET target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    host: String,
    port: Port,
    path: String,
    headers: Vec<HttpHeader>,
}

/// A port number, or why it could not be resolved.
type Port = Result<u16, String>;

/// Result of a check.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    Healthy,
    Unhealthy(String),
    /// No statement about the container.
    Unknown(String),
}

impl Check {
    /// The check of a probe; an error names the unsupported kind.
    pub(super) fn of(probe: &Probe, container: &Container) -> Result<Self, &'static str> {
        let Probe { exec, http_get, tcp_socket, grpc, .. } = probe;
        if let Some(exec) = exec {
            return Ok(Self::Program(exec.command.clone()));
        }
        if let Some(get) = http_get {
            return Page::of(get, container).map(Self::Page);
        }
        if let Some(socket) = tcp_socket {
            return Ok(Self::Connection { host: host(&socket.host), port: port(&socket.port, container) });
        }
        Err(if grpc.is_some() { "gRPC" } else { "a probe of this kind" })
    }

    /// Runs the check once.
    pub(super) async fn run(
        &self,
        runtime: &dyn Containers,
        id: &ContainerId,
        limit: Duration,
    ) -> CheckResult {
        match self {
            Self::Program(command) => match runtime.run(id, command, limit).await {
                RunResult::Ended { code: 0, .. } => CheckResult::Healthy,
                RunResult::Ended { output, .. } => CheckResult::Unhealthy(output),
                RunResult::TimedOut => {
                    CheckResult::Unhealthy(format!("command timed out after {}s", limit.as_secs()))
                }
                RunResult::Failed(reason) => CheckResult::Unknown(reason),
            },
            Self::Page(Page { port: Err(reason), .. }) | Self::Connection { port: Err(reason), .. } => {
                CheckResult::Unknown(reason.clone())
            }
            Self::Page(Page { host, port: Ok(port), path, headers }) => {
                let response = timeout(limit, status(host, *port, path, headers)).await;
                judge_status(&format!("http://{host}:{port}{path}"), response.unwrap_or(Err(late())))
            }
            Self::Connection { host, port: Ok(port) } => {
                let connected = timeout(limit, TcpStream::connect((host.as_str(), *port))).await;
                match connected.unwrap_or(Err(late())) {
                    Ok(_) => CheckResult::Healthy,
                    Err(error) => CheckResult::Unhealthy(format!("dial tcp {host}:{port}: {error}")),
                }
            }
        }
    }
}

impl Page {
    /// The target of an httpGet; an error names the unsupported scheme.
    fn of(get: &HttpGetAction, container: &Container) -> Result<Self, &'static str> {
        if get.scheme == "HTTPS" {
            return Err("HTTPS");
        }
        let slash = if get.path.starts_with('/') { "" } else { "/" };
        Ok(Self {
            host: host(&get.host),
            port: port(&get.port, container),
            path: format!("{slash}{}", get.path),
            headers: get.http_headers.clone(),
        })
    }
}

/// Sends a GET and ignores the status: any response is success.
pub(in crate::pods) async fn http_hook(
    get: &HttpGetAction,
    container: &Container,
    limit: Duration,
) -> Result<(), String> {
    let page = Page::of(get, container).map_err(|what| format!("{what} is not supported: use HTTP"))?;
    let Page { host, port, path, headers } = page;
    let port = port?;
    let response = timeout(limit, status(&host, port, &path, &headers)).await.unwrap_or(Err(late()));
    response.map(drop).map_err(|error| format!("Get \"http://{host}:{port}{path}\": {error}"))
}

fn host(host: &str) -> String {
    if host.is_empty() { LOOPBACK } else { host }.to_owned()
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "timed out waiting for a response")
}

/// By number, or by name in the container's ports.
fn port(port: &Value, container: &Container) -> Port {
    let named = |name: &str| {
        let found = container.ports.iter().find(|port| port.name == name).map(|port| port.container_port);
        found.or_else(|| name.parse().ok())
    };
    let number = match port {
        Value::Number(number) => number.as_u64().and_then(|number| u16::try_from(number).ok()),
        Value::String(name) => named(name),
        _ => None,
    };
    number.filter(|number| *number > 0).ok_or_else(|| format!("couldn't find port: {port}"))
}

fn judge_status(url: &str, status: io::Result<u16>) -> CheckResult {
    match status {
        Ok(200..400) => CheckResult::Healthy,
        Ok(status) => CheckResult::Unhealthy(format!("HTTP probe failed with statuscode: {status}")),
        Err(error) => CheckResult::Unhealthy(format!("Get \"{url}\": {error}")),
    }
}

/// The HTTP status of a GET.
async fn status(host: &str, port: u16, path: &str, headers: &[HttpHeader]) -> io::Result<u16> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(request(host, port, path, headers).as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream.take(FIRST_LINE)).read_line(&mut line).await?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.trim().parse().ok());
    status
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP response: {line:?}")))
}

/// Like kubelet's request; headers from the pod replace the defaults.
fn request(host: &str, port: u16, path: &str, headers: &[HttpHeader]) -> String {
    let mut text = format!("GET {path} HTTP/1.1\r\n");
    let own = [
        ("Host", format!("{host}:{port}")),
        ("User-Agent", "kube-probe/1.34".to_owned()),
        ("Accept", "*/*".to_owned()),
    ];
    let is_set = |name: &str| headers.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    for (name, value) in own.iter().filter(|(name, _)| !is_set(name)) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name}: {value}\r\n");
    }
    for HttpHeader { name, value } in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    text.push_str("Connection: close\r\n\r\n");
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(probe: Value) -> Result<Check, &'static str> {
        let container = json!({"ports": [{"name": "web", "containerPort": 8080}]});
        Check::of(&serde_json::from_value(probe).unwrap(), &serde_json::from_value(container).unwrap())
    }

    #[test]
    fn check_follows_the_probe_spec() {
        let page = |path: &str, port: Port| {
            Ok(Check::Page(Page { host: LOOPBACK.into(), port, path: path.into(), headers: Vec::new() }))
        };
        let socket = |port: Port| Ok(Check::Connection { host: LOOPBACK.into(), port });
        for (probe, expected) in [
            (json!({"exec": {"command": ["x"]}}), Ok(Check::Program(vec!["x".into()]))),
            (json!({"httpGet": {"port": 80}}), page("/", Ok(80))),
            (json!({"httpGet": {"port": "web", "path": "healthz?a=b"}}), page("/healthz?a=b", Ok(8080))),
            (json!({"httpGet": {"port": 80, "path": "/x", "scheme": "HTTP"}}), page("/x", Ok(80))),
            (json!({"httpGet": {"port": 80, "scheme": "HTTPS"}}), Err("HTTPS")),
            (json!({"tcpSocket": {"port": "81"}}), socket(Ok(81))),
            (json!({"tcpSocket": {"port": "none"}}), socket(Err("couldn't find port: \"none\"".into()))),
            (json!({"tcpSocket": {"port": 0}}), socket(Err("couldn't find port: 0".into()))),
            (json!({"grpc": {"port": 80}}), Err("gRPC")),
        ] {
            assert_eq!(check(probe.clone()), expected, "{probe}");
        }
        let elsewhere = check(json!({"tcpSocket": {"port": 1, "host": "10.0.0.1"}}));
        assert_eq!(elsewhere, Ok(Check::Connection { host: "10.0.0.1".into(), port: Ok(1) }));
    }

    /// kubelet's rule: 200 to 399 is success.
    #[test]
    fn http_status_200_to_399_is_success() {
        for (status, healthy) in
            [(199, false), (200, true), (302, true), (399, true), (400, false), (500, false)]
        {
            assert_eq!(judge_status("u", Ok(status)) == CheckResult::Healthy, healthy, "{status}");
        }
        let CheckResult::Unhealthy(note) = judge_status("http://h:1/", Err(late())) else {
            panic!("not healthy")
        };
        assert_eq!(note, "Get \"http://h:1/\": timed out waiting for a response");
    }

    #[test]
    fn request_headers_match_kubelet() {
        let header = |name: &str, value: &str| HttpHeader { name: name.into(), value: value.into() };
        let response = request("127.0.0.1", 80, "/x", &[header("host", "me"), header("X-A", "b")]);
        let lines: Vec<&str> = response.split("\r\n").collect();
        assert_eq!(
            lines,
            [
                "GET /x HTTP/1.1",
                "User-Agent: kube-probe/1.34",
                "Accept: */*",
                "host: me",
                "X-A: b",
                "Connection: close",
                "",
                "",
            ]
        );
    }
}
