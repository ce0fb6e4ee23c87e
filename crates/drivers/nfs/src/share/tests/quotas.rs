//! Limits of volumes, with an agent in the same process and quotas in memory.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wharf_linux::ProjectQuotaState;

use super::faults::{Fault, FaultyFiles};
use super::snapshots::{FORMATS, cloned, complete, create_snapshot, restored, snapshot, snapshot_handle};
use super::support::{Fixture, create, delete, environment, volume};
use crate::agent::testing::FakeQuotas;
use crate::agent::{Agent, AgentError, AgentErrorKind, Answer, Call, CopyStatus, Operation, ServerAgent};
use crate::copy::Progress;
use crate::copy::testing::assert_same;
use crate::parameters::{OnDelete, QuotaMode};
use crate::path::SharePath;
use crate::share::snapshot_record::{JobKey, SnapshotFormat};
use crate::share::{
    Adopt, CreateVolume, ErrorKind, ExpandVolume, Request, Response, Share, ShareEnvironment, ShareError,
    VolumeInfo,
};

const GIB: u64 = 1 << 30;

struct LocalAgent {
    agent: Agent,
    reachable: AtomicBool,
    copies: AtomicU64,
    /// What calls that set a limit return, after they have set it.
    lost: Mutex<Option<AgentErrorKind>>,
    /// What the next calls for copies return instead.
    scripted: Mutex<VecDeque<Result<Answer, AgentError>>>,
}

impl ServerAgent for LocalAgent {
    fn call(&self, call: &Call) -> Result<Answer, AgentError> {
        if !self.reachable.load(Ordering::Relaxed) {
            return Err(unreachable());
        }
        if let Operation::Copy { .. } = call.operation {
            self.copies.fetch_add(1, Ordering::Relaxed);
            if let Some(answer) = self.scripted.lock().unwrap().pop_front() {
                return answer;
            }
        }
        let answer = self.agent.handle(call);
        match (&call.operation, *self.lost.lock().unwrap()) {
            (Operation::SetQuota { .. }, Some(kind)) => Err(AgentError::new(kind, "no answer")),
            _ => answer,
        }
    }
}

fn unreachable() -> AgentError {
    AgentError::new(AgentErrorKind::Unreachable, "connection refused")
}

struct Limited {
    fixture: Fixture,
    quotas: Arc<FakeQuotas>,
    agent: Arc<LocalAgent>,
}

impl Limited {
    fn new() -> Self {
        let fixture = Fixture::new();
        let quotas = Arc::new(FakeQuotas::new(ProjectQuotaState::Enforced));
        let agent = Agent::new(vec![fixture.root()], quotas.clone());
        let agent = Arc::new(LocalAgent {
            agent,
            reachable: AtomicBool::new(true),
            copies: AtomicU64::new(0),
            lost: Mutex::default(),
            scripted: Mutex::default(),
        });
        Self { fixture, quotas, agent }
    }

    fn environment(&self) -> ShareEnvironment {
        ShareEnvironment { agent: Some(self.agent.clone()), ..environment(Duration::ZERO) }
    }

    fn share(&self) -> Share {
        Share::open(&self.fixture.root(), self.environment()).unwrap()
    }

    fn limit(&self, path: &str) -> u64 {
        self.quotas.limit_of(&self.fixture.at(path))
    }
}

fn required(handle: &str, path: &str) -> CreateVolume {
    CreateVolume { quota: QuotaMode::Required, ..volume(handle, path) }
}

fn expand(share: &Share, handle: &str, size: u64) -> Result<VolumeInfo, ShareError> {
    match share.handle(Request::ExpandVolume(ExpandVolume { handle: handle.to_owned(), size })) {
        Response::ExpandVolume(result) => result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn volume_is_limited_to_its_size_and_expansion_raises_the_limit() {
    let limited = Limited::new();
    let share = limited.share();
    let created = create(&share, &volume("h1", "a/pvc-1")).unwrap();
    assert!(created.limited);
    assert_eq!(limited.limit("a/pvc-1"), GIB);
    assert!(create(&share, &volume("h1", "a/pvc-1")).unwrap().limited);
    limited.fixture.write("a/pvc-1/data", "1");
    assert!(expand(&share, "h1", 4 * GIB).unwrap().limited);
    assert_eq!(limited.limit("a/pvc-1"), 4 * GIB);
    assert_eq!(expand(&share, "h1", GIB).unwrap().size, 4 * GIB);
    assert_eq!(limited.limit("a/pvc-1"), 4 * GIB);

    // A limit that cannot be raised is not recorded.
    limited.agent.reachable.store(false, Ordering::Relaxed);
    assert_eq!(expand(&share, "h1", 8 * GIB).unwrap_err().kind, ErrorKind::Unavailable);
    let without_agent = &limited.fixture.share;
    assert_eq!(expand(without_agent, "h1", 8 * GIB).unwrap_err().kind, ErrorKind::Precondition);
    assert_eq!(expand(without_agent, "h1", GIB).unwrap().size, 4 * GIB);
    delete(&share, "h1").unwrap();
    assert_eq!(limited.fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn restores_and_clones_are_limited_before_they_are_filled() {
    let limited = Limited::new();
    let share = limited.share();
    create(&share, &volume("h1", "pvc-1")).unwrap();
    limited.fixture.write("pvc-1/data", "1");
    let mut sources = vec![cloned("clone", "clone", "h1")];
    for (index, format) in FORMATS.into_iter().enumerate() {
        let name = format!("snap-{index}");
        let request = snapshot(&name, "h1", format);
        complete(&share, &JobKey::Snapshot(name.clone()), || create_snapshot(&share, &request)).unwrap();
        sources.push(restored(&name, &format!("restored-{index}"), &snapshot_handle(&name)));
    }
    for request in sources {
        let request = CreateVolume { size: 2 * GIB, quota: QuotaMode::Required, ..request };
        let created =
            complete(&share, &JobKey::Volume(request.handle.clone()), || create(&share, &request)).unwrap();
        assert!(created.limited);
        assert_eq!(limited.limit(request.path.as_str()), 2 * GIB, "{}", request.path);
        assert!(limited.fixture.at(request.path.as_str()).join("data").is_file());
    }
}

/// (what is wrong, the error with `quota: required`)
#[test]
fn class_decides_what_happens_without_limit() {
    type Break = fn(&Limited);
    let table: [(Break, ErrorKind); 3] = [
        (|limited| limited.agent.reachable.store(false, Ordering::Relaxed), ErrorKind::Unavailable),
        (
            |limited| *limited.quotas.state.lock().unwrap() = ProjectQuotaState::Counted,
            ErrorKind::Precondition,
        ),
        (|limited| limited.fixture.write("pvc-1/data", "existed before"), ErrorKind::Precondition),
    ];
    for (case, (break_it, kind)) in table.into_iter().enumerate() {
        let limited = Limited::new();
        let share = limited.share();
        break_it(&limited);
        let error = create(&share, &required("h1", "pvc-1")).unwrap_err();
        assert_eq!(error.kind, kind, "{case}: {error}");
        assert!(error.message.contains("quota: required"), "{case}: {error}");
        let staged = std::fs::read_dir(limited.fixture.at(".wharf/staging")).unwrap().count();
        assert_eq!(staged, 0, "{case}");
        delete(&share, "h1").unwrap();
        let created = create(&share, &volume("h1", "pvc-1")).unwrap();
        assert!(!created.limited, "{case}");
        assert_eq!(limited.limit("pvc-1"), 0, "{case}");
        assert_eq!(expand(&share, "h1", 2 * GIB).unwrap().size, 2 * GIB, "{case}");
    }
    let fixture = Fixture::new();
    let error = create(&fixture.share, &required("h1", "pvc-1")).unwrap_err();
    assert!(error.kind == ErrorKind::Precondition && error.message.contains("--server-agent"), "{error}");
    assert_eq!(fixture.tree(), Vec::<String>::new());
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

/// A directory that may have a limit is not used as one without: expansion would not raise it.
#[test]
fn volume_is_not_created_if_nobody_knows_whether_it_is_limited() {
    for (kind, expected) in
        [(AgentErrorKind::Unreachable, ErrorKind::Unavailable), (AgentErrorKind::Failed, ErrorKind::Internal)]
    {
        let limited = Limited::new();
        let share = limited.share();
        create(&share, &volume("h0", "pvc-0")).unwrap();
        limited.fixture.write("pvc-0/data", "1");
        let clone = cloned("h2", "pvc-2", "h0");
        *limited.agent.lost.lock().unwrap() = Some(kind);
        let create_clone = || complete(&share, &JobKey::Volume("h2".to_owned()), || create(&share, &clone));
        for quota in [QuotaMode::IfAvailable, QuotaMode::Required] {
            let error = create(&share, &CreateVolume { quota, ..volume("h1", "pvc-1") }).unwrap_err();
            assert_eq!(error.kind, expected, "{error}");
        }
        let error = create_clone().unwrap_err();
        assert_eq!(error.kind, expected, "{error}");
        assert_eq!(std::fs::read_dir(limited.fixture.at(".wharf/staging")).unwrap().count(), 0);

        *limited.agent.lost.lock().unwrap() = None;
        assert!(create(&share, &volume("h1", "pvc-1")).unwrap().limited);
        // The failed job's error is returned once more, by the request that waited for it.
        let _ = create(&share, &clone);
        assert!(create_clone().unwrap().limited);
        expand(&share, "h1", 2 * GIB).unwrap();
        assert_eq!(limited.limit("pvc-1"), 2 * GIB);
    }
}

/// A directory keeps its project and its limit when its volume is gone.
#[test]
fn limit_of_an_existing_directory_is_that_of_its_next_volume() {
    for (quota, size, expected) in [
        (QuotaMode::IfAvailable, 2 * GIB, 2 * GIB),
        (QuotaMode::Required, 2 * GIB, 2 * GIB),
        (QuotaMode::Required, GIB / 2, GIB),
        (QuotaMode::IfAvailable, 0, GIB),
    ] {
        let limited = Limited::new();
        let share = limited.share();
        let retained = CreateVolume { on_delete: Some(OnDelete::Retain), ..volume("h1", "a/pvc-1") };
        create(&share, &retained).unwrap();
        limited.fixture.write("a/pvc-1/data", "1");
        delete(&share, "h1").unwrap();
        let next = CreateVolume { quota, size, ..volume("h2", "a/pvc-1") };
        limited.agent.reachable.store(false, Ordering::Relaxed);
        assert_eq!(create(&share, &next).unwrap_err().kind, ErrorKind::Unavailable);
        limited.agent.reachable.store(true, Ordering::Relaxed);
        assert!(create(&share, &next).unwrap().limited);
        assert_eq!(limited.limit("a/pvc-1"), expected);
        expand(&share, "h2", 4 * GIB).unwrap();
        assert_eq!(limited.limit("a/pvc-1"), 4 * GIB);
        delete(&share, "h2").unwrap();
        assert!(limited.fixture.at("a/pvc-1/data").is_file());
    }
}

#[test]
fn limit_of_an_adopted_directory_is_that_of_its_volume() {
    let limited = Limited::new();
    let share = limited.share();
    let retained = CreateVolume { on_delete: Some(OnDelete::Retain), ..volume("h1", "pvc-1") };
    create(&share, &retained).unwrap();
    limited.fixture.write("pvc-1/data", "1");
    limited.fixture.write("free/data", "1");
    delete(&share, "h1").unwrap();
    let adopt = |handle: &str, path: &str| {
        let request = Adopt {
            handle: handle.to_owned(),
            name: handle.to_owned(),
            path: SharePath::new(path).unwrap(),
            size: 2 * GIB,
            context: Default::default(),
            options: Vec::new(),
            on_delete: None,
            shared_with: Default::default(),
            keep: false,
        };
        match share.handle(Request::Adopt(request)) {
            Response::Adopt(result) => result,
            other => panic!("{other:?}"),
        }
    };
    limited.agent.reachable.store(false, Ordering::Relaxed);
    assert_eq!(adopt("h2", "pvc-1").unwrap_err().kind, ErrorKind::Unavailable);
    limited.agent.reachable.store(true, Ordering::Relaxed);
    assert!(adopt("h2", "pvc-1").unwrap().limited);
    assert_eq!(limited.limit("pvc-1"), 2 * GIB);
    assert!(!adopt("h3", "free").unwrap().limited);
    assert_eq!(limited.limit("free"), 0);
}

/// Each of them would have a limit, which counts as promised.
#[test]
fn failed_creates_leave_no_staged_directory() {
    for call in ["set_owner", "set_id"] {
        let limited = Limited::new();
        let files = Arc::new(FaultyFiles::refusing(&limited.fixture.root(), &[call, call]));
        let share = Share::with_files(files, limited.environment());
        let request = CreateVolume { uid: Some(rustix::process::getuid().as_raw()), ..volume("h1", "pvc-1") };
        for _ in 0..2 {
            let error = create(&share, &request).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Internal, "{call}: {error}");
            assert_eq!(std::fs::read_dir(limited.fixture.at(".wharf/staging")).unwrap().count(), 0, "{call}");
        }
        assert!(create(&share, &request).unwrap().limited);
    }
}

#[test]
fn directory_of_two_volumes_has_the_larger_limit() {
    let limited = Limited::new();
    let share = limited.share();
    create(&share, &volume("h1", "shared")).unwrap();
    create(&share, &CreateVolume { size: 3 * GIB, ..volume("h2", "shared") }).unwrap();
    assert_eq!(limited.limit("shared"), 3 * GIB);
    create(&share, &CreateVolume { size: 2 * GIB, ..volume("h3", "shared") }).unwrap();
    assert_eq!(limited.limit("shared"), 3 * GIB);
    create(&share, &CreateVolume { size: 0, ..volume("h4", "shared") }).unwrap();
    assert_eq!(limited.limit("shared"), 3 * GIB);
}

#[test]
fn capacity_leaves_out_what_is_promised() {
    let limited = Limited::new();
    let share = limited.share();
    let available = || match share.handle(Request::Capacity) {
        Response::Capacity(capacity) => capacity.unwrap().available,
        other => panic!("{other:?}"),
    };
    assert!(available() > 0);
    create(&share, &CreateVolume { size: 1 << 60, ..volume("h1", "pvc-1") }).unwrap();
    assert_eq!(available(), 0);
    limited.agent.reachable.store(false, Ordering::Relaxed);
    assert!(available() > 0);
}

/// A volume that is in place has its limit, whatever was interrupted.
#[test]
fn volume_has_its_limit_after_a_crash_at_each_call() {
    for fault in [Fault::Before, Fault::After] {
        for at in 0.. {
            let limited = Limited::new();
            let files = Arc::new(FaultyFiles::new(&limited.fixture.root(), fault, at));
            let faulty = Share::with_files(files.clone(), limited.environment());
            let _ = create(&faulty, &required("h1", "a/pvc-1"));
            if limited.fixture.at("a/pvc-1").exists() {
                assert_eq!(limited.limit("a/pvc-1"), GIB, "{fault:?} {at}");
            }
            assert!(create(&limited.share(), &required("h1", "a/pvc-1")).unwrap().limited, "{fault:?} {at}");
            assert_eq!(limited.limit("a/pvc-1"), GIB, "{fault:?} {at}");
            delete(&limited.share(), "h1").unwrap();
            assert_eq!(limited.fixture.leftovers(), Vec::<String>::new(), "{fault:?} {at}");
            if !files.reached() {
                break;
            }
        }
    }
}

/// A volume with some content, and the clone of it.
fn clone(limited: &Limited, share: &Share) -> Result<VolumeInfo, ShareError> {
    create(share, &volume("h1", "pvc-1")).unwrap();
    limited.fixture.write("pvc-1/deep/data", "content");
    complete(share, &JobKey::Volume("clone".to_owned()), || create(share, &cloned("clone", "clone", "h1")))
}

#[test]
fn agent_copies_what_it_can_and_otherwise_the_worker_does() {
    let refused = || Err(AgentError::new(AgentErrorKind::Refused, "other file ID"));
    let running = || Ok(Answer::Copy(CopyStatus::Running(Progress::default())));
    type Script = Vec<Result<Answer, AgentError>>;
    let table: [(&str, bool, Script, bool); 5] = [
        ("by the agent", true, vec![], true),
        ("waiting for other copies", true, vec![running(), running()], true),
        ("an answer is lost", true, vec![Err(unreachable()), running()], true),
        ("refused", true, vec![refused()], true),
        ("no agent", false, vec![], false),
    ];
    for (what, reachable, script, asked) in table {
        let limited = Limited::new();
        let share = limited.share();
        limited.agent.reachable.store(reachable, Ordering::Relaxed);
        *limited.agent.scripted.lock().unwrap() = script.into();
        clone(&limited, &share).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_same(&limited.fixture.at("pvc-1"), &limited.fixture.at("clone"));
        assert_eq!(limited.agent.copies.load(Ordering::Relaxed) > 0, asked, "{what}");
    }
}

/// Over NFS, ACLs and attributes that the agent has copied would be lost.
#[test]
fn snapshot_of_the_agent_is_restored_by_the_agent_only() {
    let limited = Limited::new();
    let share = limited.share();
    create(&share, &volume("h1", "pvc-1")).unwrap();
    limited.fixture.write("pvc-1/data", "1");
    let reachable = |reachable| limited.agent.reachable.store(reachable, Ordering::Relaxed);
    let take = |name: &str| {
        let request = snapshot(name, "h1", SnapshotFormat::Tree);
        complete(&share, &JobKey::Snapshot(name.to_owned()), || create_snapshot(&share, &request)).unwrap();
    };
    let restore = |share: &Share, name: &str| {
        let request = restored(&format!("from-{name}"), &format!("from-{name}"), &snapshot_handle(name));
        let restored =
            || complete(share, &JobKey::Volume(request.handle.clone()), || create(share, &request));
        let first = restored();
        // The failed job's error is returned once more, by the request that waited for it.
        if first.is_err() {
            let _ = create(share, &request);
        }
        first
    };
    take("agent");
    reachable(false);
    take("nfs");
    restore(&share, "nfs").unwrap();
    for share in [&share, &limited.fixture.share] {
        let error = restore(share, "agent").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(error.message.contains("agent"), "{error}");
    }
    assert!(!limited.fixture.at("from-agent").exists());
    reachable(true);
    restore(&share, "agent").unwrap();
    assert_same(&limited.fixture.at("pvc-1"), &limited.fixture.at("from-agent"));
}

/// A copy that the agent has begun is never continued by somebody else: the next attempt starts in a new directory.
#[test]
fn lost_copy_fails_and_starts_again_elsewhere() {
    let running = || Ok(Answer::Copy(CopyStatus::Running(Progress::default())));
    let failed = |kind| Err(AgentError::new(kind, "failed"));
    for (kind, expected) in [
        (AgentErrorKind::Refused, ErrorKind::Internal),
        (AgentErrorKind::Failed, ErrorKind::Internal),
        (AgentErrorKind::OutOfSpace, ErrorKind::OutOfSpace),
    ] {
        let limited = Limited::new();
        let share = limited.share();
        *limited.agent.scripted.lock().unwrap() = VecDeque::from([running(), failed(kind)]);
        let error = clone(&limited, &share).unwrap_err();
        assert_eq!(error.kind, expected, "{error}");
        let request = cloned("clone", "clone", "h1");
        // The failed job's error is returned once more, by the request that waited for it.
        let _ = create(&share, &request);
        complete(&share, &JobKey::Volume("clone".to_owned()), || create(&share, &request)).unwrap();
        assert_same(&limited.fixture.at("pvc-1"), &limited.fixture.at("clone"));
        delete(&share, "clone").unwrap();
        delete(&share, "h1").unwrap();
        assert_eq!(limited.fixture.leftovers(), Vec::<String>::new());
    }
}

#[test]
fn health_reads_the_usage_of_limited_volumes() {
    let limited = Limited::new();
    let share = limited.share();
    create(&share, &volume("h1", "pvc-1")).unwrap();
    let used = |share: &Share| {
        let get = crate::share::GetVolume { handle: "h1".to_owned(), path: None };
        match share.handle(Request::GetVolume(get)) {
            Response::GetVolume(Ok(Some(info))) => info.used,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(used(&share), Some(0));
    assert_eq!(used(&limited.fixture.share), None);
}
