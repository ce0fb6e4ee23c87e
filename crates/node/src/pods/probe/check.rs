//! One question of a probe, and its answer: by a program in the container, by HTTP, or by a connection.
//!
//! Containers share the machine's network, so a pod is at the loopback address. An answer that sends us elsewhere counts
//! as a good one and is not followed. HTTPS and gRPC are not asked.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use wharf_model::whole::container::{Container, HttpGet, HttpHeader, Probe};

use crate::containers::{Containers, Ran};
use crate::runtime::ContainerId;

/// Where pods are.
const HERE: &str = "127.0.0.1";
/// No first line of an answer is longer.
const FIRST_LINE: u64 = 8 << 10;

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Check {
    /// A program, for success.
    Program(Vec<String>),
    /// A page, for a status from 200 to 399.
    Page(Page),
    /// A port, for a connection.
    Connection { host: String, port: Port },
}

/// A page and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Page {
    host: String,
    port: Port,
    path: String,
    headers: Vec<HttpHeader>,
}

/// A port's number, or why there is none.
type Port = Result<u16, String>;

/// What came of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Well,
    Unwell(String),
    /// It says nothing about the container.
    Unknown(String),
}

impl Check {
    /// What a probe asks; an error says what is not asked here.
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

    /// Asks once.
    pub(super) async fn ask(&self, runtime: &dyn Containers, id: &ContainerId, limit: Duration) -> Answer {
        match self {
            Self::Program(command) => match runtime.run(id, command, limit).await {
                Ran::Ended { code: 0, .. } => Answer::Well,
                Ran::Ended { output, .. } => Answer::Unwell(output),
                Ran::TimedOut => Answer::Unwell(format!("command timed out after {}s", limit.as_secs())),
                Ran::Failed(why) => Answer::Unknown(why),
            },
            Self::Page(Page { port: Err(why), .. }) | Self::Connection { port: Err(why), .. } => {
                Answer::Unknown(why.clone())
            }
            Self::Page(Page { host, port: Ok(port), path, headers }) => {
                let asked = timeout(limit, status(host, *port, path, headers)).await;
                judge_page(&format!("http://{host}:{port}{path}"), asked.unwrap_or(Err(late())))
            }
            Self::Connection { host, port: Ok(port) } => {
                let connected = timeout(limit, TcpStream::connect((host.as_str(), *port))).await;
                match connected.unwrap_or(Err(late())) {
                    Ok(_) => Answer::Well,
                    Err(error) => Answer::Unwell(format!("dial tcp {host}:{port}: {error}")),
                }
            }
        }
    }
}

impl Page {
    /// What is asked for; an error says what is not asked here.
    fn of(get: &HttpGet, container: &Container) -> Result<Self, &'static str> {
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

/// Asks for a page whose answer counts for nothing, as long as there is one.
pub(in crate::pods) async fn knock(
    get: &HttpGet,
    container: &Container,
    limit: Duration,
) -> Result<(), String> {
    let page = Page::of(get, container).map_err(|what| format!("{what} is not asked here: use HTTP"))?;
    let Page { host, port, path, headers } = page;
    let port = port?;
    let asked = timeout(limit, status(&host, port, &path, &headers)).await.unwrap_or(Err(late()));
    asked.map(drop).map_err(|error| format!("Get \"http://{host}:{port}{path}\": {error}"))
}

fn host(host: &str) -> String {
    if host.is_empty() { HERE } else { host }.to_owned()
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}

/// By number, or by its name in the container.
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

fn judge_page(url: &str, status: io::Result<u16>) -> Answer {
    match status {
        Ok(200..400) => Answer::Well,
        Ok(status) => Answer::Unwell(format!("HTTP probe failed with statuscode: {status}")),
        Err(error) => Answer::Unwell(format!("Get \"{url}\": {error}")),
    }
}

/// The status of the page.
async fn status(host: &str, port: u16, path: &str, headers: &[HttpHeader]) -> io::Result<u16> {
    let mut stream = TcpStream::connect((host, port)).await?;
    stream.write_all(request(host, port, path, headers).as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream.take(FIRST_LINE)).read_line(&mut line).await?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)?.trim().parse().ok());
    status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no answer of HTTP: {line:?}")))
}

/// As kubelet asks; what the pod says comes in place of that.
fn request(host: &str, port: u16, path: &str, headers: &[HttpHeader]) -> String {
    let mut text = format!("GET {path} HTTP/1.1\r\n");
    let own = [
        ("Host", format!("{host}:{port}")),
        ("User-Agent", "kube-probe/1.34".to_owned()),
        ("Accept", "*/*".to_owned()),
    ];
    let said = |name: &str| headers.iter().any(|header| header.name.eq_ignore_ascii_case(name));
    for (name, value) in own.iter().filter(|(name, _)| !said(name)) {
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
    fn what_is_asked() {
        let page = |path: &str, port: Port| {
            Ok(Check::Page(Page { host: HERE.into(), port, path: path.into(), headers: Vec::new() }))
        };
        let socket = |port: Port| Ok(Check::Connection { host: HERE.into(), port });
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

    /// kubelet's rule: 200 to 399 is well.
    #[test]
    fn which_answers_are_good() {
        for (status, well) in
            [(199, false), (200, true), (302, true), (399, true), (400, false), (500, false)]
        {
            assert_eq!(judge_page("u", Ok(status)) == Answer::Well, well, "{status}");
        }
        let Answer::Unwell(note) = judge_page("http://h:1/", Err(late())) else { panic!("not well") };
        assert_eq!(note, "Get \"http://h:1/\": no answer in time");
    }

    #[test]
    fn how_a_page_is_asked_for() {
        let header = |name: &str, value: &str| HttpHeader { name: name.into(), value: value.into() };
        let asked = request("127.0.0.1", 80, "/x", &[header("host", "me"), header("X-A", "b")]);
        let lines: Vec<&str> = asked.split("\r\n").collect();
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
