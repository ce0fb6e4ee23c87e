//! The agent on a directory with quotas in memory, called directly and over TLS.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use wharf_linux::{Project, ProjectQuotaState};

use super::testing::{Authority, FakeQuotas};
use super::*;
use crate::path::SharePath;

const SHARE: &str = "8f6f1a52-0000-4000-8000-000000000001";

/// Makes a directory the root of a share.
fn write_share(root: &Path, uuid: &str) {
    std::fs::create_dir_all(root.join(".wharf")).unwrap();
    std::fs::set_permissions(root.join(".wharf"), Permissions::from_mode(0o700)).unwrap();
    let record = format!(r#"{{"version":1,"write":"w","key":"share","record":{{"uuid":"{uuid}"}}}}"#);
    std::fs::write(root.join(".wharf/share.json"), record).unwrap();
}

struct Fixture {
    dir: tempfile::TempDir,
    quotas: Arc<FakeQuotas>,
    agent: Arc<Agent>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("export");
        std::fs::create_dir_all(root.join(".wharf/staging/new/data")).unwrap();
        std::fs::create_dir_all(root.join("team/pvc-1")).unwrap();
        std::fs::create_dir_all(dir.path().join("outside")).unwrap();
        std::fs::create_dir_all(dir.path().join("empty")).unwrap();
        write_share(&root, SHARE);
        let quotas = Arc::new(FakeQuotas::new(ProjectQuotaState::Enforced));
        let agent = Arc::new(Agent::new(vec![dir.path().join("empty"), root], quotas.clone()));
        Self { dir, quotas, agent }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("export").join(path)
    }

    fn inode(&self, path: &str) -> u64 {
        std::fs::metadata(self.at(path)).unwrap().ino()
    }

    fn limit(&self, path: &str, bytes: u64) -> Result<QuotaInfo, AgentError> {
        let tree = Tree::Volume(SharePath::new(path).unwrap());
        self.set(tree, self.inode(path), bytes)
    }

    fn set(&self, tree: Tree, file_id: u64, bytes: u64) -> Result<QuotaInfo, AgentError> {
        let operation = Operation::SetQuota { tree, file_id, bytes };
        match self.agent.handle(&Call { share: SHARE.to_owned(), operation })? {
            Answer::Quota(info) => Ok(info),
            other => panic!("{other:?}"),
        }
    }
}

fn kind<T: std::fmt::Debug>(result: Result<T, AgentError>) -> AgentErrorKind {
    result.unwrap_err().kind
}

#[test]
fn limit_is_set_once_raised_and_never_lowered() {
    let fixture = Fixture::new();
    let limit = |bytes| fixture.limit("team/pvc-1", bytes).unwrap().limit;
    assert_eq!(limit(1 << 20), 1 << 20);
    std::fs::write(fixture.at("team/pvc-1/file"), "data").unwrap();
    assert_eq!(limit(1 << 20), 1 << 20);
    assert_eq!(limit(1 << 30), 1 << 30);
    assert_eq!(limit(1 << 20), 1 << 30);
    assert_eq!(fixture.quotas.projects.lock().unwrap().len(), 1);
    assert_eq!(fixture.quotas.limits.lock().unwrap().len(), 1);
    let tree = Tree::Staging("new".to_owned().try_into().unwrap());
    assert_eq!(fixture.set(tree, fixture.inode(".wharf/staging/new/data"), 5000).unwrap().limit, 8192);
    assert_eq!(fixture.quotas.limits.lock().unwrap().len(), 2);
}

#[test]
fn file_system_may_round_a_limit_up_to_its_blocks() {
    for bytes in [1_000_000_000_u64, 10_000_000_000, 1] {
        let fixture = Fixture::new();
        let rounded = bytes.next_multiple_of(4096);
        assert_eq!(fixture.limit("team/pvc-1", bytes).unwrap().limit, rounded);
        assert_eq!(fixture.limit("team/pvc-1", bytes).unwrap().limit, rounded);
    }
}

#[test]
fn used_project_numbers_are_not_assigned_again() {
    let fixture = Fixture::new();
    let first = rules::candidates(SHARE, fixture.inode("team/pvc-1")).next().unwrap();
    fixture.quotas.projects.lock().unwrap().insert(u64::MAX, Project { id: first, inherit: true });
    fixture.limit("team/pvc-1", 1 << 20).unwrap();
    let assigned = fixture.quotas.projects.lock().unwrap()[&fixture.inode("team/pvc-1")];
    assert_eq!(assigned, Project { id: first + 1, inherit: true });
}

#[test]
fn unsafe_directories_are_refused_and_nothing_changes() {
    let fixture = Fixture::new();
    symlink(fixture.dir.path().join("outside"), fixture.at("link")).unwrap();
    symlink("team/pvc-1", fixture.at("inside")).unwrap();
    std::fs::create_dir(fixture.at("full")).unwrap();
    std::fs::write(fixture.at("full/file"), "data").unwrap();
    std::fs::create_dir(fixture.at("foreign")).unwrap();
    let foreign = Project { id: 42, inherit: true };
    fixture.quotas.projects.lock().unwrap().insert(fixture.inode("foreign"), foreign);
    for path in ["link", "inside", "link/deep", "missing", "full", "full/file", "foreign"] {
        let tree = Tree::Volume(SharePath::new(path).unwrap());
        let file_id = std::fs::metadata(fixture.at(path)).map_or(1, |metadata| metadata.ino());
        assert_eq!(kind(fixture.set(tree, file_id, 1 << 20)), AgentErrorKind::Refused, "{path}");
    }
    // The right path, but not the directory that the driver recorded.
    let tree = Tree::Volume(SharePath::new("team/pvc-1").unwrap());
    let error = fixture.set(tree, fixture.inode("full"), 1 << 20).unwrap_err();
    assert!(error.kind == AgentErrorKind::Refused && error.message.contains("file ID"), "{error}");
    for bytes in [0, u64::MAX] {
        assert_eq!(kind(fixture.limit("team/pvc-1", bytes)), AgentErrorKind::Refused);
    }
    assert!(fixture.quotas.limits.lock().unwrap().is_empty());
}

#[test]
fn file_systems_without_quotas_are_named_as_such() {
    let fixture = Fixture::new();
    for state in [ProjectQuotaState::Counted, ProjectQuotaState::Off] {
        *fixture.quotas.state.lock().unwrap() = state;
        let error = fixture.limit("team/pvc-1", 1 << 20).unwrap_err();
        assert!(error.kind == AgentErrorKind::Unsupported && error.message.contains("prjquota"), "{error}");
        assert_eq!(fixture.agent.describe()[1].quota, QuotaSupport::NotEnforced);
    }
    assert!(fixture.quotas.projects.lock().unwrap().is_empty());
}

#[test]
fn share_is_found_by_its_uuid_only() {
    let fixture = Fixture::new();
    for share in ["", "export", "8f6f1a52-0000-4000-8000-000000000002"] {
        let call = Call { share: share.to_owned(), operation: Operation::Capacity };
        assert_eq!(kind(fixture.agent.handle(&call)), AgentErrorKind::UnknownShare, "{share}");
    }
    let described = fixture.agent.describe();
    assert!(described[0].problem.is_none() && described[0].share.is_none());
    assert_eq!(described[1].share.as_deref(), Some(SHARE));
}

/// What a user of the export could have put there does not make it a share, and an export that cannot be read may be any share.
#[test]
fn untrusted_records_do_not_name_a_share() {
    type Break = fn(&Fixture);
    let table: [(Break, &str); 6] = [
        (
            |fixture| std::fs::set_permissions(fixture.at(".wharf"), Permissions::from_mode(0o755)).unwrap(),
            "mode 755",
        ),
        (
            |fixture| {
                std::fs::rename(fixture.at(".wharf"), fixture.at("real")).unwrap();
                symlink("real", fixture.at(".wharf")).unwrap();
            },
            "not a directory",
        ),
        (
            |fixture| {
                let mut record = std::fs::read(fixture.at(".wharf/share.json")).unwrap();
                record.resize(64 * 1024 + 1, b' ');
                std::fs::write(fixture.at(".wharf/share.json"), record).unwrap();
            },
            "64 KiB",
        ),
        (|fixture| std::fs::write(fixture.at(".wharf/share.json"), "{").unwrap(), "share.json"),
        (
            |fixture| {
                std::fs::remove_file(fixture.at(".wharf/share.json")).unwrap();
                symlink("/dev/zero", fixture.at(".wharf/share.json")).unwrap();
            },
            "share.json",
        ),
        (|fixture| std::fs::rename(fixture.at(""), fixture.dir.path().join("moved")).unwrap(), "export"),
    ];
    for (case, (break_it, expected)) in table.into_iter().enumerate() {
        let fixture = Fixture::new();
        break_it(&fixture);
        let call = Call { share: SHARE.to_owned(), operation: Operation::Capacity };
        let error = fixture.agent.handle(&call).unwrap_err();
        assert_eq!(error.kind, AgentErrorKind::Failed, "{case}: {error}");
        assert!(error.message.contains(expected), "{case}: {error}");
        assert!(fixture.agent.describe()[1].problem.is_some(), "{case}");
    }
}

#[test]
fn two_exports_with_one_uuid_are_refused() {
    let fixture = Fixture::new();
    write_share(&fixture.dir.path().join("empty"), SHARE);
    let error = fixture.limit("team/pvc-1", 1 << 20).unwrap_err();
    assert_eq!(error.kind, AgentErrorKind::Refused, "{error}");
    for export in ["empty", "export"] {
        let path = fixture.dir.path().join(export).display().to_string();
        assert!(error.message.contains(&path), "{error}");
    }
    assert!(fixture.quotas.limits.lock().unwrap().is_empty());
}

#[test]
fn capacity_is_what_no_limit_promises() {
    let fixture = Fixture::new();
    let capacity =
        || match fixture.agent.handle(&Call { share: SHARE.to_owned(), operation: Operation::Capacity }) {
            Ok(Answer::Capacity { available, .. }) => available,
            other => panic!("{other:?}"),
        };
    let free = capacity();
    fixture.limit("team/pvc-1", 1 << 20).unwrap();
    // Others write to the same file system.
    assert!(free.abs_diff(capacity() + (1 << 20)) < 1 << 30);
    fixture.limit("team/pvc-1", 1 << 60).unwrap();
    assert_eq!(capacity(), 0);
}

#[test]
fn limits_of_removed_directories_are_removed() {
    let fixture = Fixture::new();
    fixture.limit("team/pvc-1", 1 << 20).unwrap();
    fixture.quotas.limits.lock().unwrap().insert(42, 1 << 20);
    assert_eq!(fixture.agent.remove_left_over_limits(), 0);
    fixture.quotas.projects.lock().unwrap().clear();
    assert_eq!(fixture.agent.remove_left_over_limits(), 1);
    assert_eq!(fixture.agent.remove_left_over_limits(), 0);
    // That of the administrator stays.
    assert_eq!(fixture.quotas.limits.lock().unwrap()[&42], 1 << 20);
}

/// Wherever the numbers are in the quota file of ext4: see [`super::quota::projects`].
#[test]
fn one_sweep_removes_all_limits_of_removed_directories() {
    let fixture = Fixture::new();
    for seed in 0..200 {
        let ids = (0..5).filter_map(|more| super::rules::candidates("share", 5 * seed + more).next());
        let limits: BTreeMap<u32, u64> = ids.map(|id| (id, 4096)).collect();
        let count = limits.len() as u64;
        *fixture.quotas.limits.lock().unwrap() = limits;
        assert_eq!(fixture.agent.remove_left_over_limits(), count, "{seed}");
        assert!(fixture.quotas.limits.lock().unwrap().values().all(|limit| *limit == 0));
    }
}

#[test]
fn trees_are_copied_once_to_an_empty_staging_directory() {
    let fixture = Fixture::new();
    std::fs::write(fixture.at("team/pvc-1/file"), "data").unwrap();
    std::fs::create_dir_all(fixture.at(".wharf/staging/full/data/x")).unwrap();
    let copy = |to: &str, from_file_id: u64, to_file_id: u64| {
        let from = Tree::Volume(SharePath::new("team/pvc-1").unwrap());
        let to = TreeId::try_from(to.to_owned()).unwrap();
        let operation = Operation::Copy { from, from_file_id, to, to_file_id };
        match fixture.agent.handle(&Call { share: SHARE.to_owned(), operation })? {
            Answer::Copy(status) => Ok(status),
            other => panic!("{other:?}"),
        }
    };
    let (source, new) = (fixture.inode("team/pvc-1"), fixture.inode(".wharf/staging/new/data"));
    assert_eq!(kind(copy("new", source + 1000, new)), AgentErrorKind::Refused);
    assert_eq!(kind(copy("new", source, new + 1000)), AgentErrorKind::Refused);
    assert_eq!(kind(copy("missing", source, new)), AgentErrorKind::Refused);
    assert_eq!(
        kind(copy("full", source, fixture.inode(".wharf/staging/full/data"))),
        AgentErrorKind::Refused
    );
    let report = loop {
        match copy("new", source, new).unwrap() {
            CopyStatus::Running(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
            CopyStatus::Done(report) => break report,
        }
    };
    assert_eq!((report.files, report.bytes), (1, 4));
    assert_eq!(std::fs::read(fixture.at(".wharf/staging/new/data/file")).unwrap(), b"data");
    assert_eq!(copy("new", source, new), Ok(CopyStatus::Done(report)));
    // After a restart, the agent does not know how far the copy was.
    let restarted = Agent::new(vec![fixture.at("")], fixture.quotas.clone());
    let from = Tree::Volume(SharePath::new("team/pvc-1").unwrap());
    let to = TreeId::try_from("new".to_owned()).unwrap();
    let operation = Operation::Copy { from, from_file_id: source, to, to_file_id: new };
    let error = restarted.handle(&Call { share: SHARE.to_owned(), operation }).unwrap_err();
    assert!(error.message.contains("not empty"), "{error}");
}

/// An agent on loopback.
async fn serving(fixture: &Fixture, tls: TlsFiles) -> (u16, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = oneshot::channel::<()>();
    let agent = fixture.agent.clone();
    tokio::spawn(async move {
        let shutdown = async { drop(stopped.await) };
        serve(agent, ServeAgentOptions { listener, tls }, shutdown).await.unwrap();
    });
    (port, stop)
}

fn client(port: u16, tls: TlsFiles) -> AgentClient {
    AgentClient::new(AgentAccess { host: "localhost".to_owned(), port, tls })
}

#[tokio::test]
async fn calls_over_tls_need_certificates_of_the_right_authorities() {
    let fixture = Fixture::new();
    let (ours, theirs) =
        (Authority::new(fixture.dir.path(), "ours"), Authority::new(fixture.dir.path(), "theirs"));
    let (port, _stop) = serving(&fixture, ours.files("agent", &ours)).await;
    let tree = Tree::Volume(SharePath::new("team/pvc-1").unwrap());
    let operation = Operation::SetQuota { tree, file_id: fixture.inode("team/pvc-1"), bytes: 1 << 20 };
    let call = Call { share: SHARE.to_owned(), operation };

    let strangers = [
        ("the agent's certificate is of another authority", ours.files("client", &theirs)),
        ("the client's certificate is of another authority", theirs.files("client", &ours)),
        (
            "the client's key is missing",
            TlsFiles { key: "/nonexistent".into(), ..ours.files("client", &ours) },
        ),
    ];
    for (what, files) in strangers {
        let error = client(port, files).call(&call).await.unwrap_err();
        assert_eq!(error.kind, AgentErrorKind::Unreachable, "{what}: {error}");
    }
    let other_name = AgentAccess { host: "127.0.0.1".to_owned(), port, tls: ours.files("client", &ours) };
    let error = AgentClient::new(other_name).call(&call).await.unwrap_err();
    assert!(error.message.contains("not valid for name"), "{error}");
    assert!(fixture.quotas.limits.lock().unwrap().is_empty());

    let friend = client(port, ours.files("client", &ours));
    assert_eq!(friend.call(&call).await, Ok(Answer::Quota(QuotaInfo { limit: 1 << 20, used: 0 })));
    let other = Call { share: "other".to_owned(), ..call.clone() };
    assert_eq!(friend.call(&other).await.unwrap_err().kind, AgentErrorKind::UnknownShare);
    // As a worker process calls it.
    let answer = tokio::task::spawn_blocking(move || ServerAgent::call(&friend, &call)).await.unwrap();
    assert!(answer.is_ok(), "{answer:?}");
}

/// A client without a certificate, and one that does not speak TLS at all.
#[tokio::test]
async fn clients_without_certificate_get_no_answer() {
    let fixture = Fixture::new();
    let ours = Authority::new(fixture.dir.path(), "ours");
    let (port, _stop) = serving(&fixture, ours.files("agent", &ours)).await;
    let request = b"GET /v1/exports HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    let mut plain = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    plain.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject as _;
    let ca = rustls::pki_types::CertificateDer::from_pem_file(&ours.files("client", &ours).ca).unwrap();
    roots.add(ca).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connected = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    // With TLS 1.3 the client learns of its refusal after the handshake.
    let answer = match connected {
        Err(_) => Vec::new(),
        Ok(mut stream) => {
            let mut answer = Vec::new();
            let _ = stream.write_all(request).await;
            let _ = stream.read_to_end(&mut answer).await;
            answer
        }
    };
    assert!(answer.is_empty(), "{answer:?}");
}

/// A certificate of the agent does not make its owner a client, nor the other way round.
#[tokio::test]
async fn certificates_are_for_one_side_only() {
    let fixture = Fixture::new();
    let ours = Authority::new(fixture.dir.path(), "ours");
    let capacity = Call { share: SHARE.to_owned(), operation: Operation::Capacity };
    for (server, role) in [("agent", "agent"), ("client", "client")] {
        let (port, _stop) = serving(&fixture, ours.files(server, &ours)).await;
        let refused = client(port, ours.files(role, &ours)).call(&capacity).await;
        assert_eq!(kind(refused), AgentErrorKind::Unreachable, "{server} {role}");
    }
}

/// Connections without a handshake would keep 64 slots for 10 s each.
#[tokio::test]
async fn idle_connections_do_not_keep_clients_out() {
    let fixture = Fixture::new();
    let ours = Authority::new(fixture.dir.path(), "ours");
    let (port, _stop) = serving(&fixture, ours.files("agent", &ours)).await;
    let mut idle = Vec::new();
    for number in 0..400_u16 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 2 + u8::from(number >= 200)], 0).into()).unwrap();
        idle.push(socket.connect(([127, 0, 0, 1], port).into()).await.unwrap());
    }
    let capacity = Call { share: SHARE.to_owned(), operation: Operation::Capacity };
    client(port, ours.files("client", &ours)).call(&capacity).await.unwrap();
}

/// Requests that no client of ours sends: they are refused by the protocol, before the agent looks at a directory.
#[tokio::test]
async fn hostile_requests_are_refused() {
    let fixture = Fixture::new();
    let ours = Authority::new(fixture.dir.path(), "ours");
    let (port, _stop) = serving(&fixture, ours.files("agent", &ours)).await;
    let config = ours.files("client", &ours).client().unwrap();
    for (path, operation) in [
        ("/v1/call", r#"{"setQuota":{"tree":{"volume":"../outside"},"fileId":1,"bytes":4096}}"#),
        ("/v1/call", r#"{"setQuota":{"tree":{"volume":"/etc/../.wharf"},"fileId":1,"bytes":4096}}"#),
        ("/v1/call", r#"{"setQuota":{"tree":{"staging":"../../team"},"fileId":1,"bytes":4096}}"#),
        ("/v1/call", r#"{"setQuota":{"tree":{"volume":"team/pvc-1"},"fileId":1,"bytes":-1}}"#),
        ("/v1/call", r#""purge""#),
        ("/v2/call", r#""capacity""#),
    ] {
        let body = format!(r#"{{"share":"{SHARE}","operation":{operation}}}"#);
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut stream =
            tokio_rustls::TlsConnector::from(config.clone()).connect(name, stream).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 40") && answer.contains(r#""kind":"refused""#), "{answer}");
    }
    assert!(fixture.quotas.limits.lock().unwrap().is_empty());
    assert!(fixture.quotas.projects.lock().unwrap().is_empty());
}
