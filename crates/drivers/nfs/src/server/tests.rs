use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use super::*;

/// A server that reads one call and answers with what `answer` makes of its transaction ID; `None` to answer nothing and keep
/// the connection open.
fn server(answer: impl Fn(u32) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut call = [0; 44];
            if stream.read_exact(&mut call).is_err() {
                continue;
            }
            let xid = u32::from_be_bytes([call[4], call[5], call[6], call[7]]);
            match answer(xid) {
                Some(bytes) => drop(stream.write_all(&bytes)),
                None => open.push(stream),
            }
        }
    });
    address
}

fn reply(words: &[u32]) -> Vec<u8> {
    let mut bytes = ((words.len() * 4) as u32 | 1 << 31).to_be_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    bytes
}

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn any_rpc_response_is_an_answer() {
    let accepted = server(|xid| Some(reply(&[xid, 1, 0, 0, 0, 0])));
    null_call(accepted, SHORT).await.unwrap();
    let other_version = server(|xid| Some(reply(&[xid, 1, 0, 0, 0, 2, 3, 3])));
    null_call(other_version, SHORT).await.unwrap();
}

#[tokio::test]
async fn silence_refusal_and_garbage_are_told_apart_within_the_deadline() {
    let started = Instant::now();
    let silent = null_call(server(|_| None), SHORT).await.unwrap_err();
    assert!(matches!(silent, ProbeError::Silent(..)), "{silent}");
    let garbage = null_call(server(|_| Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())), SHORT).await;
    assert!(matches!(garbage, Err(ProbeError::NotRpc(..))), "{garbage:?}");
    let foreign = null_call(server(|xid| Some(reply(&[xid ^ 1, 1, 0, 0, 0, 0]))), SHORT).await;
    assert!(matches!(foreign, Err(ProbeError::NotRpc(..))), "{foreign:?}");
    let closed = null_call(server(|_| Some(Vec::new())), SHORT).await;
    assert!(matches!(closed, Err(ProbeError::Broken(..))), "{closed:?}");
    let cut_off = null_call(server(|xid| Some(reply(&[xid, 1, 0])[..14].to_vec())), SHORT).await;
    assert!(matches!(cut_off, Err(ProbeError::Broken(..))), "{cut_off:?}");
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = null_call(gone, SHORT).await.unwrap_err();
    assert!(matches!(refused, ProbeError::Connect(..)), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn check_returns_the_facts_of_a_mount_and_records_failures() {
    let servers = Servers::default();
    let address = server(|xid| Some(reply(&[xid, 1, 0, 0, 0, 0])));
    let options = |port: u16| ParsedOptions::parse(&[format!("port={port},nolock")]).unwrap();
    let facts = servers.check("127.0.0.1", &options(address.port()), PROBE_DEADLINE).await.unwrap();
    assert_eq!(facts.address, address.ip());
    assert_eq!(facts.client_address, Some(address.ip()));
    assert_eq!(facts.known_version, None);
    servers.mounted("127.0.0.1", Some(Version::V41));
    servers.mounted("127.0.0.1", None);
    let facts = servers.check("127.0.0.1", &options(address.port()), PROBE_DEADLINE).await.unwrap();
    assert_eq!(facts.known_version, Some(Version::V41));

    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = servers.check("127.0.0.1", &options(gone.port()), PROBE_DEADLINE).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1 is not reachable"), "{error}");
    assert_eq!(servers.unreachable().len(), 1);
    assert!(servers.answers("127.0.0.1", address.port(), PROBE_DEADLINE).await);
    assert!(servers.unreachable().is_empty());
}

/// B11: a server that does not answer is found out before anything is mounted, within the deadline.
#[tokio::test]
async fn silent_server_fails_by_the_deadline() {
    let servers = Servers::default();
    let options = ParsedOptions::parse(&[format!("port={}", server(|_| None).port())]).unwrap();
    let started = Instant::now();
    let error = servers.check("127.0.0.1", &options, SHORT).await.unwrap_err();
    assert!(matches!(error, WorkerError::Unreachable { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));
}

/// The name may not be resolvable at the moment, which says nothing about the server.
#[tokio::test]
async fn server_of_a_mount_is_asked_at_its_address() {
    let servers = Servers::default();
    let address = server(|xid| Some(reply(&[xid, 1, 0, 0, 0, 0])));
    let mount = |port| SourceServer {
        server: "does-not-exist.invalid".to_owned(),
        address: Some(address.ip()),
        port,
    };
    assert!(servers.mount_answers(&mount(Some(address.port())), SHORT).await);
    assert!(servers.mount_answers(&mount(None), SHORT).await);
    let silent = server(|_| None);
    assert!(!servers.mount_answers(&mount(Some(silent.port())), SHORT).await);
    assert_eq!(servers.unreachable()[0].server, "does-not-exist.invalid");
}
