//! Recovery after the agent or a shim is killed.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use wharf_container::{Cause, ContainerId, ContainerMount, LogOptions, Runtime, State};
use wharf_linux::{Filesystems as _, FsType, Linux};
use wharf_testkit::TestPool;

use crate::harness::{Mounted, TestRuntime, command, eventually, runs, settings, sh, within};

const DIRECTORY: &str = "WHARF_TEST_AGENT_DIRECTORY";
const SCRIPT: &str = "WHARF_TEST_AGENT_SCRIPT";

/// Not a test: the process that other tests run as their agent. It starts a container and waits to be killed.
#[tokio::test]
async fn agent() {
    let (Some(directory), Ok(script)) = (std::env::var_os(DIRECTORY), std::env::var(SCRIPT)) else { return };
    let runtime = Runtime::open(settings(Path::new(&directory))).unwrap();
    let id = runtime.start(sh("a", &script)).await.unwrap();
    println!("\nstarted {id}");
    std::future::pending::<()>().await;
}

/// Starts a container with a separate agent process, and kills the agent.
fn orphan(test: &TestRuntime, script: &str) -> ContainerId {
    let mut agent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::agent", "--nocapture"])
        .env(DIRECTORY, test.directory.path())
        .env(SCRIPT, script)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let id = lines.map_while(Result::ok).find_map(|line| ContainerId::parse(line.strip_prefix("started ")?));
    agent.kill().unwrap();
    agent.wait().unwrap();
    id.expect("the agent started a container")
}

#[tokio::test]
async fn container_keeps_running_without_its_agent_and_is_found() {
    let test = TestRuntime::new();
    let id = orphan(&test, "while test ! -e /tmp/go; do sleep 0.05; done; echo went on; exit 6");
    let found = test.runtime.list().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, id);
    assert!(matches!(found[0].state, State::Running { pid, .. } if pid > 0), "{found:?}");
    let mut exec = test
        .runtime
        .exec(
            &id,
            wharf_container::ExecSpec {
                command: ["touch", "/tmp/go"].map(str::to_owned).to_vec(),
                ..Default::default()
            },
        )
        .await
        .unwrap();
    assert_eq!(within(exec.wait()).await.unwrap(), 0);
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.cause), (6, Cause::Ended));
    assert_eq!(test.log(&id, LogOptions::default()).await, "went on\n");
    test.runtime.remove(&id).await.unwrap();
}

#[tokio::test]
async fn exit_without_an_agent_is_recorded() {
    let test = TestRuntime::new();
    let id = orphan(&test, "sleep 0.3; exit 9");
    eventually("exit record", || test.record(&id).join("exit.json").exists());
    match test.runtime.state(&id) {
        State::Exited(exit) => assert_eq!((exit.code, exit.cause), (9, Cause::Ended)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_adopted_container_can_be_stopped() {
    let test = TestRuntime::new();
    let id = orphan(&test, "exec sleep 987621");
    let exit = within(test.runtime.stop(&id, Duration::from_millis(50))).await.unwrap();
    assert_eq!(exit.code, 137);
    assert!(!runs("987621"));
}

fn running(test: &TestRuntime, id: &ContainerId) -> Value {
    serde_json::from_slice(&fs::read(test.record(id).join("running.json")).unwrap()).unwrap()
}

fn kill(pid: &Value) {
    command("kill", &["-9", &pid.to_string()]);
}

/// Starts a container and waits until its signal handlers are installed.
async fn ready(test: &TestRuntime, script: &str) -> ContainerId {
    let id = test.runtime.start(sh("a", script)).await.unwrap();
    let mut logs =
        test.runtime.logs(&id, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(within(logs.next()).await.unwrap().unwrap(), b"ready\n");
    id
}

/// A system shutdown sends SIGTERM to every process, including shims.
#[tokio::test]
async fn shim_ignores_sigterm_until_its_container_exits() {
    let test = TestRuntime::new();
    let script = "trap 'sleep 0.3; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let id = ready(&test, script).await;
    let record = running(&test, &id);
    let (shim, program) = (record["shim"]["pid"].to_string(), record["program"]["pid"].to_string());
    for signal in ["-TERM", "-INT", "-HUP"] {
        command("kill", &[signal, &shim]);
    }
    command("kill", &["-TERM", &program]);
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.cause), (7, Cause::Ended));
}

/// The exit is recorded as soon as there is disk space: a pod that succeeded must not be reported as failed.
#[tokio::test]
async fn exit_on_a_full_disk_is_recorded_later() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let _small = Mounted::tmpfs(place.path());
    command("mount", &["-o", "remount,size=1m", place.path().to_str().unwrap()]);
    let test = TestRuntime::with(|settings| settings.directory = place.path().join("containers"));
    let id = ready(&test, "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done").await;
    let program = format!("/proc/{}", test.pid(&id));
    fs::write(place.path().join("fill"), vec![0; 2 << 20]).unwrap_err();
    test.runtime.signal(&id, 15).unwrap();
    eventually("exit of the program", || !Path::new(&program).exists());
    let exited = tokio::time::timeout(Duration::from_millis(300), test.runtime.exited(&id));
    assert!(exited.await.is_err(), "nothing was recorded");
    fs::remove_file(place.path().join("fill")).unwrap();
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.cause), (0, Cause::Ended));
}

#[tokio::test]
async fn container_is_killed_with_its_shim_and_reported_lost() {
    let test = TestRuntime::new();
    // The container runs as another user: changing the user clears the parent death signal, so it must be set
    // again.
    let mut spec = sh("a", "setsid sleep 987631 & exec sleep 987632");
    spec.user.uid = 1000;
    let id = test.runtime.start(spec).await.unwrap();
    eventually("container", || runs("987631") && runs("987632"));
    kill(&running(&test, &id)["shim"]["pid"]);
    // The test does not query the state: the kernel kills the container.
    eventually("kill of the container", || !runs("987631") && !runs("987632"));
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.signal, exit.cause), (137, Some(9), Cause::Lost));
    assert_eq!(test.runtime.state(&id), State::Exited(exit), "permanently");
    test.runtime.remove(&id).await.unwrap();
}

#[tokio::test]
async fn program_that_outlives_its_shim_is_killed_on_state_query() {
    let test = TestRuntime::new();
    // The program changes its own user, which clears the parent death signal, so the kernel does not kill it.
    let id = test.runtime.start(sh("a", "exec setpriv --reuid 1000 sleep 987641")).await.unwrap();
    eventually("container", || runs("987641") && !runs("--reuid"));
    kill(&running(&test, &id)["shim"]["pid"]);
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!(exit.cause, Cause::Lost);
    assert!(!runs("987641"), "no process is left");
}

/// The process state in /proc: `D` is uninterruptible sleep, `Z` is a zombie; `None` if the process does not exist.
fn doing(pid: &Value) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A process blocked in a write to a hanging disk cannot be killed. `state` must not wait for it: its callers hold
/// locks.
#[tokio::test]
async fn unkillable_program_does_not_block_state_queries() {
    let pool = TestPool::new(FsType::Ext4, 64 << 20);
    let test = TestRuntime::new();
    let mut spec = sh("a", "while :; do : > /data/file; done");
    let (source, target) = (pool.path().to_owned(), "/data".into());
    spec.mounts.push(ContainerMount { source, target, ..ContainerMount::default() });
    let id = test.runtime.start(spec).await.unwrap();
    let record = running(&test, &id);
    let (shim, program) = (&record["shim"]["pid"], &record["program"]["pid"]);
    let hangs = Linux::new().freeze(&[pool.path()], Duration::from_secs(60)).unwrap();
    eventually("write that hangs", || doing(program) == Some('D'));
    kill(shim);
    eventually("exit of the shim", || matches!(doing(shim), None | Some('Z')));
    let queried = Instant::now();
    assert!(matches!(test.runtime.state(&id), State::Running { .. }), "it counts as running");
    assert!(queried.elapsed() < Duration::from_secs(2), "{:?}", queried.elapsed());
    let exited = tokio::time::timeout(Duration::from_millis(100), test.runtime.exited(&id));
    assert!(exited.await.is_err(), "it has not exited");
    hangs.thaw().unwrap();
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!(exit.cause, Cause::Lost);
    assert!(matches!(doing(program), None | Some('Z')), "no process is left");
}

#[tokio::test]
async fn reused_pid_is_not_killed() {
    let test = TestRuntime::new();
    let mut stranger = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    for (attempt, change) in ["start", "boot"].iter().enumerate() {
        let mut spec = sh("a", "exec sleep 1000");
        spec.attempt = u32::try_from(attempt).unwrap();
        let id = test.runtime.start(spec).await.unwrap();
        let mut record = running(&test, &id);
        kill(&record["shim"]["pid"]);
        let program = record["program"]["pid"].to_string();
        eventually("exit of the program", || !Path::new("/proc").join(&program).exists());
        record["program"]["pid"] = stranger.id().into();
        let stat = fs::read_to_string(format!("/proc/{}/stat", stranger.id())).unwrap();
        let start: u64 =
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        // One tick earlier, because both processes may have started in the same tick.
        record["program"]["start"] = (if *change == "start" { start - 1 } else { start }).into();
        if *change == "boot" {
            record["boot"] = "another".into();
        }
        fs::write(test.record(&id).join("running.json"), record.to_string()).unwrap();
        assert!(
            matches!(test.runtime.state(&id), State::Exited(exit) if exit.cause == Cause::Lost),
            "{change}"
        );
        assert!(stranger.try_wait().unwrap().is_none(), "{change}: the other process is alive");
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
async fn interrupted_start_is_reported_as_never_ran() {
    let test = TestRuntime::new();
    let spec = sh("a", "echo once");
    let id = test.runtime.start(spec.clone()).await.unwrap();
    within(test.runtime.exited(&id)).await.unwrap();
    // As if the agent crashed before the shim existed.
    for file in ["running.json", "exit.json"] {
        fs::remove_file(test.record(&id).join(file)).unwrap();
    }
    let found = test.runtime.list().unwrap();
    assert!(matches!(&found[0].state, State::Exited(exit) if exit.cause == Cause::NeverRan), "{found:?}");
    test.runtime.remove(&id).await.unwrap();

    // As if the agent crashed before order.json was written.
    fs::create_dir(test.record(&id)).unwrap();
    assert!(test.runtime.list().unwrap().is_empty());
    test.runtime.start(spec).await.unwrap();
    let mut log = String::new();
    within(test.runtime.exited(&id)).await.unwrap();
    let path = test.directory.path().join("logs/default_pod_11111111-2222-3333-4444-555555555555/a/0.log");
    fs::File::open(path).unwrap().read_to_string(&mut log).unwrap();
    assert!(log.ends_with("once\n") && log.lines().count() == 1, "{log}");
}

#[tokio::test]
async fn exited_shim_is_reaped() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let shim = running(&test, &id)["shim"]["pid"].to_string();
    within(test.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    // Not even a zombie may remain: this process is the shim's parent and has to reap it.
    within(async {
        while Path::new("/proc").join(&shim).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// After a power failure, files that are not written durably may exist but be empty.
#[tokio::test]
async fn truncated_records_are_handled_after_power_failure() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let shim = running(&test, &id)["shim"]["pid"].clone();
    let whole = fs::read(test.record(&id).join("running.json")).unwrap();
    fs::write(test.record(&id).join("running.json"), b"").unwrap();
    assert!(matches!(test.runtime.state(&id), State::Running { .. }), "the lock is held");
    fs::write(test.record(&id).join("running.json"), &whole).unwrap();
    kill(&shim);
    within(test.runtime.exited(&id)).await.unwrap();
    for torn in [&whole[..whole.len() / 2], b""] {
        fs::remove_file(test.record(&id).join("exit.json")).unwrap();
        fs::write(test.record(&id).join("running.json"), torn).unwrap();
        assert!(matches!(test.runtime.state(&id), State::Exited(_)), "no process can be left");
    }
    fs::write(test.record(&id).join("order.json"), b"").unwrap();
    assert_eq!(test.runtime.list().unwrap(), []);
    assert!(!test.record(&id).exists(), "the record is removed");
}

/// If the list omitted a running container, the agent would start a second one on the same volumes.
#[tokio::test]
async fn unreadable_record_fails_the_list() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let (order, aside) = (test.record(&id).join("order.json"), test.directory.path().join("aside"));
    fs::rename(&order, &aside).unwrap();
    fs::create_dir(&order).unwrap();
    let error = test.runtime.list().unwrap_err();
    assert!(error.path.starts_with(test.record(&id)), "{error}");
    fs::remove_dir(&order).unwrap();
    // Truncated, but the container is running.
    fs::write(&order, b"").unwrap();
    test.runtime.list().unwrap_err();
    fs::rename(&aside, &order).unwrap();
    assert_eq!(test.runtime.list().unwrap().len(), 1);
}

/// The agent is killed while it removes a container's files: a later list completes the removal.
#[tokio::test]
async fn interrupted_removal_is_completed() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "true")).await.unwrap();
    within(test.runtime.exited(&id)).await.unwrap();
    fs::remove_file(test.record(&id).join("order.json")).unwrap();
    // The shim holds the lock of the record for a moment after it has recorded the exit. A later list removes it then.
    eventually("the record is removed", || {
        assert_eq!(test.runtime.list().unwrap(), []);
        !test.record(&id).exists()
    });
}
