//! A container's life: start, end, signals, what it gets and what is left of it.

use std::path::PathBuf;
use std::time::Duration;

use wharf_node::runtime::{Cause, LogOptions, RemoveError, SignalError, StartError, State};

use crate::home::{Home, runs, sh, within};

#[tokio::test]
async fn a_program_runs_and_its_end_is_known() {
    let home = Home::new();
    let (exit, log) = home.run(sh("a", "echo out; echo err >&2; exit 3")).await;
    assert_eq!((exit.code, exit.signal, exit.cause), (3, None, Cause::Ended));
    assert!(exit.started <= exit.finished);
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["err", "out"]);
    let found = home.runtime.list().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].state, State::Exited(exit));
    assert_eq!((found[0].pod.as_str(), found[0].container.as_str()), ("pod", "a"));
}

#[tokio::test]
async fn the_program_is_the_first_process_in_a_session_of_its_own() {
    let home = Home::new();
    // Process, group, session, as `/proc` has them.
    let log = home.output(sh("a", "echo $$; cut -d' ' -f1,5,6 /proc/1/stat")).await;
    assert_eq!(log, "1\n1 1 1\n");
}

#[tokio::test]
async fn a_signal_is_128_and_its_number() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    home.runtime.signal(&id, 9).unwrap();
    let exit = within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    assert!(matches!(home.runtime.signal(&id, 15), Err(SignalError::NotRunning(_))));
    assert!(matches!(home.runtime.signal(&id, 0), Err(SignalError::NoSuchSignal(0))));
}

#[tokio::test]
async fn a_stop_asks_first_and_kills_later() {
    let home = Home::new();
    let polite = sh("polite", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    let polite = home.runtime.start(polite).await.unwrap();
    let mut logs =
        home.runtime.logs(&polite, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(within(logs.next()).await.unwrap().unwrap(), b"ready\n");
    let exit = within(home.runtime.stop(&polite, Duration::from_secs(50))).await.unwrap();
    assert_eq!(exit.code, 7);

    let deaf = home.runtime.start(sh("deaf", "trap '' TERM; exec sleep 1000")).await.unwrap();
    let exit = within(home.runtime.stop(&deaf, Duration::from_millis(100))).await.unwrap();
    assert_eq!((exit.code, exit.signal), (137, Some(9)));
    let again = within(home.runtime.stop(&deaf, Duration::from_secs(50))).await.unwrap();
    assert_eq!(again, exit, "stopped twice is stopped");
}

#[tokio::test]
async fn everything_in_the_container_ends_with_its_program() {
    let home = Home::new();
    let script = "(setsid sleep 987601 &); (trap '' TERM HUP; sleep 987602) & sleep 0.2; exit 0";
    let (exit, _) = home.run(sh("a", script)).await;
    assert_eq!(exit.code, 0);
    assert!(!runs("987601") && !runs("987602"));
}

#[tokio::test]
async fn orphans_are_the_programs_own_children_and_it_reaps_them() {
    let home = Home::new();
    // The shell's `wait` sees only its own; what counts is that nobody is left as a zombie when it has waited.
    let script = "for i in 1 2 3; do (sh -c 'sleep 0.1 &' ); done; sleep 0.5; \
                  for i in 1 2 3; do sh -c true; done; wait; cat /proc/[0-9]*/stat | grep -c ') Z' || true";
    assert_eq!(home.output(sh("a", script)).await, "0\n");
}

#[tokio::test]
async fn the_same_attempt_is_started_once() {
    let home = Home::new();
    let spec = sh("a", "echo once; exec sleep 1000");
    let first = home.runtime.start(spec.clone()).await.unwrap();
    let pid = home.pid(&first);
    assert_eq!(home.runtime.start(spec).await.unwrap(), first);
    assert_eq!(home.pid(&first), pid);
    assert_eq!(home.runtime.list().unwrap().len(), 1);
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing_and_can_be_repeated() {
    let home = Home::new();
    let mut spec = sh("a", "");
    for (program, message) in [
        ("no-such-program", "exec: \"no-such-program\": executable file not found in $PATH"),
        ("/no/such", "exec: \"/no/such\": stat /no/such: no such file or directory"),
        ("/etc/passwd", "exec: \"/etc/passwd\": Permission denied (os error 13)"),
    ] {
        spec.command = vec![program.to_owned()];
        let error = home.runtime.start(spec.clone()).await.unwrap_err();
        assert!(matches!(&error, StartError::Program(_)), "{error:?}");
        assert_eq!(error.to_string(), message);
        assert!(home.runtime.list().unwrap().is_empty());
        for directory in ["containers", "logs"] {
            let left = std::fs::read_dir(home.directory.path().join(directory)).unwrap().count();
            assert_eq!(left, 0, "{directory}");
        }
    }
    spec.command = vec!["true".to_owned()];
    assert_eq!(home.run(spec).await.0.code, 0);
}

#[tokio::test]
async fn the_environment_is_what_was_given() {
    let home = Home::new();
    let mut spec = sh("a", "");
    spec.command = vec!["env".to_owned()];
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    spec.env = vec![pair("A", "1"), pair("B", "two words"), pair("A", "3")];
    let log = home.output(spec.clone()).await;
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    assert_eq!(lines, ["A=3", "B=two words", path]);

    spec.container = "b".to_owned();
    spec.command = vec!["mine".to_owned()];
    spec.env = vec![pair("PATH", "/no/such/place")];
    let error = home.runtime.start(spec).await.unwrap_err();
    assert!(error.to_string().contains("not found in $PATH"), "its own PATH counts: {error}");
}

#[tokio::test]
async fn the_working_directory_is_made() {
    let home = Home::new();
    let mut spec = sh("a", "pwd");
    spec.working_dir = PathBuf::from("/not/there/yet");
    assert_eq!(home.output(spec).await, "/not/there/yet\n");
    assert!(!std::path::Path::new("/not").exists());
    assert_eq!(home.output(sh("b", "pwd")).await, "/\n");
}

#[tokio::test]
async fn input_is_at_its_end_or_stays_open() {
    let home = Home::new();
    let mut spec = sh("closed", "");
    spec.command = vec!["cat".to_owned()];
    assert_eq!(home.run(spec.clone()).await.0.code, 0);
    spec.container = "open".to_owned();
    spec.stdin = true;
    let id = home.runtime.start(spec).await.unwrap();
    let waited = tokio::time::timeout(Duration::from_millis(300), home.runtime.exited(&id)).await;
    assert!(waited.is_err(), "somebody might still write");
}

#[tokio::test]
async fn root_is_refused_where_nobody_may_be_root() {
    let home = Home::new();
    let mut spec = sh("a", "id -u");
    spec.user.non_root = true;
    let error = home.runtime.start(spec.clone()).await.unwrap_err();
    assert!(matches!(&error, StartError::Config(message) if message.contains("non-root policy")), "{error}");
    spec.user.uid = 1000;
    assert_eq!(home.output(spec).await, "1000\n");
}

#[tokio::test]
async fn removed_is_gone_and_running_is_not_removed() {
    let home = Home::new();
    let id = home.runtime.start(sh("a", "echo x; exec sleep 1000")).await.unwrap();
    assert!(matches!(home.runtime.remove(&id).await, Err(RemoveError::Running(_))));
    within(home.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    home.runtime.remove(&id).await.unwrap();
    assert_eq!(home.runtime.state(&id), State::Unknown);
    assert!(home.runtime.exited(&id).await.is_none());
    assert!(home.runtime.list().unwrap().is_empty());
    assert_eq!(std::fs::read_dir(home.directory.path().join("logs")).unwrap().count(), 0);
    home.runtime.remove(&id).await.unwrap();
}
