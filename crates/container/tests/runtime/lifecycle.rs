//! Container lifecycle: start, exit, signals, environment and cleanup.

use std::path::PathBuf;
use std::time::Duration;

use wharf_container::{Cause, LogOptions, RemoveError, SignalError, StartError, State};

use crate::harness::{TestRuntime, runs, sh, within};

#[tokio::test]
async fn exit_code_and_output_are_recorded() {
    let test = TestRuntime::new();
    let (exit, log) = test.run(sh("a", "echo out; echo err >&2; exit 3")).await;
    assert_eq!((exit.code, exit.signal, exit.cause), (3, None, Cause::Ended));
    assert!(exit.started <= exit.finished);
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "out"]);
    let found = test.runtime.list().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].state, State::Exited(exit));
    assert_eq!((found[0].pod.as_str(), found[0].container.as_str()), ("pod", "a"));
}

#[tokio::test]
async fn program_is_pid_1_in_its_own_session() {
    let test = TestRuntime::new();
    // Pid, process group and session, from `/proc`.
    let log = test.output(sh("a", "echo $$; cut -d' ' -f1,5,6 /proc/1/stat")).await;
    assert_eq!(log, "1\n1 1 1\n");
}

#[tokio::test]
async fn exit_code_of_a_signal_is_128_plus_its_number() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    test.runtime.signal(&id, 9).unwrap();
    let exit = within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    assert!(matches!(test.runtime.signal(&id, 15), Err(SignalError::NotRunning(_))));
    assert!(matches!(test.runtime.signal(&id, 0), Err(SignalError::NoSuchSignal(0))));
}

#[tokio::test]
async fn stop_sends_sigterm_then_sigkill() {
    let test = TestRuntime::new();
    let polite = sh("polite", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    let polite = test.runtime.start(polite).await.unwrap();
    let mut logs =
        test.runtime.logs(&polite, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(within(logs.next()).await.unwrap().unwrap(), b"ready\n");
    let exit = within(test.runtime.stop(&polite, Duration::from_secs(50))).await.unwrap();
    assert_eq!(exit.code, 7);

    let deaf = test.runtime.start(sh("deaf", "trap '' TERM; exec sleep 1000")).await.unwrap();
    let exit = within(test.runtime.stop(&deaf, Duration::from_millis(100))).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    let again = within(test.runtime.stop(&deaf, Duration::from_secs(50))).await.unwrap();
    assert_eq!(again, exit, "stop is idempotent");
}

#[tokio::test]
async fn all_processes_are_killed_when_the_program_exits() {
    let test = TestRuntime::new();
    let script = "(setsid sleep 987601 &); (trap '' TERM HUP; sleep 987602) & sleep 0.2; exit 0";
    let (exit, _) = test.run(sh("a", script)).await;
    assert_eq!(exit.code, 0);
    assert!(!runs("987601") && !runs("987602"));
}

#[tokio::test]
async fn orphans_are_reparented_to_the_program() {
    let test = TestRuntime::new();
    // The shell's `wait` covers only its own children; what counts is that no zombie is left afterwards.
    let script = "for i in 1 2 3; do (sh -c 'sleep 0.1 &' ); done; sleep 0.5; \
                  for i in 1 2 3; do sh -c true; done; wait; cat /proc/[0-9]*/stat | grep -c ') Z' || true";
    assert_eq!(test.output(sh("a", script)).await, "0\n");
}

#[tokio::test]
async fn same_attempt_is_started_once() {
    let test = TestRuntime::new();
    let spec = sh("a", "echo once; exec sleep 1000");
    let first = test.runtime.start(spec.clone()).await.unwrap();
    let pid = test.pid(&first);
    assert_eq!(test.runtime.start(spec).await.unwrap(), first);
    assert_eq!(test.pid(&first), pid);
    assert_eq!(test.runtime.list().unwrap().len(), 1);
}

#[tokio::test]
async fn failed_start_leaves_nothing_and_can_be_retried() {
    let test = TestRuntime::new();
    let mut spec = sh("a", "");
    for (program, message) in [
        ("no-such-program", "exec: \"no-such-program\": executable file not found in $PATH"),
        ("/no/such", "exec: \"/no/such\": stat /no/such: no such file or directory"),
        ("/etc/passwd", "exec: \"/etc/passwd\": Permission denied (os error 13)"),
    ] {
        spec.command = vec![program.to_owned()];
        let error = test.runtime.start(spec.clone()).await.unwrap_err();
        assert!(matches!(&error, StartError::Program(_)), "{error:?}");
        assert_eq!(error.to_string(), message);
        assert!(test.runtime.list().unwrap().is_empty());
        for directory in ["containers", "logs"] {
            let left = std::fs::read_dir(test.directory.path().join(directory)).unwrap().count();
            assert_eq!(left, 0, "{directory}");
        }
    }
    spec.command = vec!["true".to_owned()];
    assert_eq!(test.run(spec).await.0.code, 0);
}

#[tokio::test]
async fn environment_is_exactly_as_given() {
    let test = TestRuntime::new();
    let mut spec = sh("a", "");
    spec.command = vec!["env".to_owned()];
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    spec.env = vec![pair("A", "1"), pair("B", "two words"), pair("A", "3")];
    let log = test.output(spec.clone()).await;
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(lines, ["A=3", "B=two words", path]);

    spec.container = "b".to_owned();
    spec.command = vec!["mine".to_owned()];
    spec.env = vec![pair("PATH", "/no/such/place")];
    let error = test.runtime.start(spec).await.unwrap_err();
    assert!(error.to_string().contains("not found in $PATH"), "the container's PATH is used: {error}");
}

#[tokio::test]
async fn working_directory_is_created() {
    let test = TestRuntime::new();
    let mut spec = sh("a", "pwd");
    spec.working_dir = PathBuf::from("/not/there/yet");
    assert_eq!(test.output(spec).await, "/not/there/yet\n");
    assert!(!std::path::Path::new("/not").exists());
    assert_eq!(test.output(sh("b", "pwd")).await, "/\n");
}

#[tokio::test]
async fn stdin_is_closed_or_held_open() {
    let test = TestRuntime::new();
    let mut spec = sh("closed", "");
    spec.command = vec!["cat".to_owned()];
    assert_eq!(test.run(spec.clone()).await.0.code, 0);
    spec.container = "open".to_owned();
    spec.stdin = true;
    let id = test.runtime.start(spec).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(300), test.runtime.exited(&id)).await;
    assert!(waited.is_err(), "stdin is open");
}

#[tokio::test]
async fn run_as_non_root_refuses_root() {
    let test = TestRuntime::new();
    let mut spec = sh("a", "id -u");
    spec.user.non_root = true;
    let error = test.runtime.start(spec.clone()).await.unwrap_err();
    assert!(matches!(&error, StartError::Config(message) if message.contains("non-root policy")), "{error}");
    spec.user.uid = 1000;
    assert_eq!(test.output(spec).await, "1000\n");
}

#[tokio::test]
async fn remove_refuses_running_containers_and_is_idempotent() {
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "echo x; exec sleep 1000")).await.unwrap();
    assert!(matches!(test.runtime.remove(&id).await, Err(RemoveError::Running(_))));
    within(test.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    test.runtime.remove(&id).await.unwrap();
    assert_eq!(test.runtime.state(&id), State::Unknown);
    assert!(test.runtime.exited(&id).await.is_none());
    assert!(test.runtime.list().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(test.directory.path().join("logs")).unwrap().count(), 0);
    test.runtime.remove(&id).await.unwrap();
}
