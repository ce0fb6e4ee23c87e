//! Exec in a running container.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wharf_container::{ContainerId, ExecError, ExecSession, ExecSpec, Rights, TerminalSize, User};

use crate::harness::{TestRuntime, eventually, runs, sh, within};

fn exec_spec(command: &[&str]) -> ExecSpec {
    ExecSpec { command: command.iter().map(|word| (*word).to_owned()).collect(), ..ExecSpec::default() }
}

async fn read(session: &mut ExecSession) -> (String, String) {
    let (mut out, mut err) = (String::new(), String::new());
    if let Some(mut stdout) = session.stdout.take() {
        within(stdout.read_to_string(&mut out)).await.unwrap();
    }
    if let Some(mut stderr) = session.stderr.take() {
        within(stderr.read_to_string(&mut err)).await.unwrap();
    }
    (out, err)
}

async fn sleeping(test: &TestRuntime) -> ContainerId {
    test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap()
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    let spec = exec_spec(&["sh", "-c", "echo out; echo err >&2; exit 5"]);
    let mut session = test.runtime.exec(&id, spec).await.unwrap();
    assert_eq!(read(&mut session).await, ("out\n".to_owned(), "err\n".to_owned()));
    assert_eq!(within(session.wait()).await.unwrap(), 5);
    assert_eq!(within(session.wait()).await.unwrap(), 5, "waited again");
    let mut session = test.runtime.exec(&id, exec_spec(&["sh", "-c", "kill -9 $$"])).await.unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 137);
}

#[tokio::test]
async fn exec_input_is_passed_and_closed() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    let mut session = test.runtime.exec(&id, ExecSpec { stdin: true, ..exec_spec(&["cat"]) }).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let text = "line\n".repeat(100_000);
    let typed = text.clone();
    let writer = tokio::spawn(async move { stdin.write_all(typed.as_bytes()).await });
    assert!(read(&mut session).await.0 == text);
    writer.await.unwrap().unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 0);
    let mut session = test.runtime.exec(&id, exec_spec(&["cat"])).await.unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 0, "without input, stdin is at its end");
}

#[tokio::test]
async fn exec_joins_namespaces_and_user_of_the_container() {
    let test = TestRuntime::new();
    let mut spec = sh("a", "echo mine > /tmp/mine; exec sleep 1000");
    spec.user = User { uid: 1000, gid: 1001, groups: vec![1002], non_root: true };
    spec.rights = Rights { no_new_privileges: true, ..Rights::default() };
    spec.env = vec![("COLOUR".to_owned(), "blue".to_owned())];
    spec.working_dir = "/var/lib".into();
    let id = test.runtime.start(spec).await.unwrap();
    eventually("file", || std::path::Path::new(&format!("/proc/{}/root/tmp/mine", test.pid(&id))).exists());
    let script = "cat /tmp/mine; id -u; id -g; id -G; echo $COLOUR; pwd; hostname; \
                  grep -E 'NoNewPrivs|CapBnd' /proc/self/status; \
                  for n in mnt pid ipc uts; do test $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) && echo $n; done; \
                  ls /proc/self/fd | wc -l";
    let mut session = test.runtime.exec(&id, exec_spec(&["sh", "-c", script])).await.unwrap();
    let expected = "mine\n1000\n1001\n1001 1002\nblue\n/var/lib\npod\nCapBnd:\t00000000a80405fb\nNoNewPrivs:\t1\n\
                    mnt\npid\nipc\nuts\n4\n";
    let (mut out, err) = read(&mut session).await;
    // The order of the two status lines depends on the kernel.
    out = out.replace(
        "NoNewPrivs:\t1\nCapBnd:\t00000000a80405fb\n",
        "CapBnd:\t00000000a80405fb\nNoNewPrivs:\t1\n",
    );
    assert_eq!((out.as_str(), err.as_str()), (expected, ""));
}

#[tokio::test]
async fn exec_errors_have_shell_exit_codes() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    for (program, expected) in [("no-such-program", 127), ("/no/such", 127), ("/etc/passwd", 126), ("", 126)]
    {
        match test.runtime.exec(&id, exec_spec(&[program])).await {
            Err(ExecError::Program { code, .. }) => assert_eq!(code, expected, "{program}"),
            other => panic!("{program}: {other:?}"),
        }
    }
    assert!(matches!(test.runtime.exec(&id, exec_spec(&[])).await, Err(ExecError::Program { .. })));
}

#[tokio::test]
async fn terminal_has_size_and_is_resized() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    let size = Some(TerminalSize { width: 81, height: 25 });
    let script = "tty; stty size; read word; echo got $word; while test \"$(stty size)\" != '43 132'; do sleep 0.05; done; echo resized";
    let spec = ExecSpec { tty: true, stdin: true, size, ..exec_spec(&["sh", "-c", script]) };
    let mut session = test.runtime.exec(&id, spec).await.unwrap();
    assert!(session.stderr.is_none());
    session.stdin.as_mut().unwrap().write_all(b"hello\n").await.unwrap();
    session.resizer().resize(TerminalSize { width: 132, height: 43 });
    let (out, _) = read(&mut session).await;
    for part in ["/dev/pts/0\r\n", "got hello\r\n", "resized\r\n"] {
        assert!(out.contains(part), "{out:?}");
    }
    assert!(out.contains("25 81\r\n") || out.contains("43 132\r\n"), "{out:?}");
    assert_eq!(within(session.wait()).await.unwrap(), 0);
}

#[tokio::test]
async fn terminal_with_large_input_and_output_does_not_deadlock() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    let spec =
        ExecSpec { tty: true, stdin: true, ..exec_spec(&["sh", "-c", "stty raw -echo; echo ready; cat"]) };
    let mut session = test.runtime.exec(&id, spec).await.unwrap();
    let (mut stdin, mut stdout) = (session.stdin.take().unwrap(), session.stdout.take().unwrap());
    let mut ready = [0; 6];
    within(stdout.read_exact(&mut ready)).await.unwrap();
    let writer = tokio::spawn(async move {
        stdin.write_all(&[b'x'; 500_000]).await.unwrap();
        stdin
    });
    let mut out = vec![0; 500_000];
    within(stdout.read_exact(&mut out)).await.unwrap();
    drop(writer.await.unwrap());
}

#[tokio::test]
async fn dropped_session_kills_the_program() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    let session = test.runtime.exec(&id, exec_spec(&["sh", "-c", "sleep 987611 & wait"])).await.unwrap();
    eventually("start of the program", || runs("987611"));
    let resizer = session.resizer();
    drop(session);
    eventually("exit of the program", || !runs("987611"));
    resizer.resize(TerminalSize { width: 1, height: 1 });
    assert!(test.pid(&id) > 0, "the container keeps running");
}

#[tokio::test]
async fn exec_ends_with_the_container() {
    let test = TestRuntime::new();
    let id = sleeping(&test).await;
    let mut session = test.runtime.exec(&id, exec_spec(&["sleep", "987612"])).await.unwrap();
    within(test.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 137);
    assert!(!runs("987612"));
    assert!(matches!(test.runtime.exec(&id, exec_spec(&["true"])).await, Err(ExecError::NotRunning(_))));
}

/// The agent may have a lower OOM score; its containers must not inherit it.
#[tokio::test]
async fn containers_have_the_highest_oom_score() {
    let test = TestRuntime::new();
    let score = "cat /proc/self/oom_score_adj";
    assert_eq!(test.output(sh("b", score)).await, "1000\n");
    let id = sleeping(&test).await;
    let mut session = test.runtime.exec(&id, exec_spec(&["sh", "-c", score])).await.unwrap();
    assert_eq!(read(&mut session).await.0, "1000\n");
}
