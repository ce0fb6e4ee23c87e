//! Programs in a running container.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wharf_node::runtime::{ContainerId, ExecError, ExecSession, ExecSpec, Rights, TerminalSize, User};

use crate::home::{Home, eventually, runs, sh, within};

fn words(command: &[&str]) -> ExecSpec {
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

async fn sleeping(home: &Home) -> ContainerId {
    home.runtime.start(sh("a", "exec sleep 1000")).await.unwrap()
}

#[tokio::test]
async fn output_errors_and_code() {
    let home = Home::new();
    let id = sleeping(&home).await;
    let spec = words(&["sh", "-c", "echo out; echo err >&2; exit 5"]);
    let mut session = home.runtime.exec(&id, spec).await.unwrap();
    assert_eq!(read(&mut session).await, ("out\n".to_owned(), "err\n".to_owned()));
    assert_eq!(within(session.wait()).await.unwrap(), 5);
    assert_eq!(within(session.wait()).await.unwrap(), 5, "asked again");
    let mut session = home.runtime.exec(&id, words(&["sh", "-c", "kill -9 $$"])).await.unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 137);
}

#[tokio::test]
async fn input_goes_in_and_ends() {
    let home = Home::new();
    let id = sleeping(&home).await;
    let mut session = home.runtime.exec(&id, ExecSpec { stdin: true, ..words(&["cat"]) }).await.unwrap();
    let mut stdin = session.stdin.take().unwrap();
    let text = "line\n".repeat(100_000);
    let typed = text.clone();
    let writer = tokio::spawn(async move { stdin.write_all(typed.as_bytes()).await });
    assert!(read(&mut session).await.0 == text);
    writer.await.unwrap().unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 0);
    let mut session = home.runtime.exec(&id, words(&["cat"])).await.unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 0, "without input it is at its end");
}

#[tokio::test]
async fn it_is_in_the_same_place_as_the_same_user() {
    let home = Home::new();
    let mut spec = sh("a", "echo mine > /tmp/mine; exec sleep 1000");
    spec.user = User { uid: 1000, gid: 1001, groups: vec![1002], non_root: true };
    spec.rights = Rights { no_new_privileges: true, ..Rights::default() };
    spec.env = vec![("COLOUR".to_owned(), "blue".to_owned())];
    spec.working_dir = "/var/lib".into();
    let id = home.runtime.start(spec).await.unwrap();
    eventually("file", || std::path::Path::new(&format!("/proc/{}/root/tmp/mine", home.pid(&id))).exists());
    let script = "cat /tmp/mine; id -u; id -g; id -G; echo $COLOUR; pwd; hostname; \
                  grep -E 'NoNewPrivs|CapBnd' /proc/self/status; \
                  for n in mnt pid ipc uts; do test $(readlink /proc/self/ns/$n) = $(readlink /proc/1/ns/$n) && echo $n; done; \
                  ls /proc/self/fd | wc -l";
    let mut session = home.runtime.exec(&id, words(&["sh", "-c", script])).await.unwrap();
    let expected = "mine\n1000\n1001\n1001 1002\nblue\n/var/lib\npod\nCapBnd:\t00000000a80425fb\nNoNewPrivs:\t1\n\
                    mnt\npid\nipc\nuts\n4\n";
    let (mut out, err) = read(&mut session).await;
    // The two lines of the status come in the kernel's order.
    out = out.replace(
        "NoNewPrivs:\t1\nCapBnd:\t00000000a80425fb\n",
        "CapBnd:\t00000000a80425fb\nNoNewPrivs:\t1\n",
    );
    assert_eq!((out.as_str(), err.as_str()), (expected, ""));
}

#[tokio::test]
async fn what_cannot_be_run_is_told_as_a_shell_would() {
    let home = Home::new();
    let id = sleeping(&home).await;
    for (program, expected) in [("no-such-program", 127), ("/no/such", 127), ("/etc/passwd", 126), ("", 126)]
    {
        match home.runtime.exec(&id, words(&[program])).await {
            Err(ExecError::Program { code, .. }) => assert_eq!(code, expected, "{program}"),
            other => panic!("{program}: {other:?}"),
        }
    }
    assert!(matches!(home.runtime.exec(&id, words(&[])).await, Err(ExecError::Program { .. })));
}

#[tokio::test]
async fn a_terminal_with_a_size() {
    let home = Home::new();
    let id = sleeping(&home).await;
    let size = Some(TerminalSize { width: 81, height: 25 });
    let script = "tty; stty size; read word; echo got $word; while test \"$(stty size)\" != '43 132'; do sleep 0.05; done; echo resized";
    let spec = ExecSpec { tty: true, stdin: true, size, ..words(&["sh", "-c", script]) };
    let mut session = home.runtime.exec(&id, spec).await.unwrap();
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
async fn a_terminal_that_is_typed_at_and_prints_much_does_not_lock_up() {
    let home = Home::new();
    let id = sleeping(&home).await;
    let spec = ExecSpec { tty: true, stdin: true, ..words(&["sh", "-c", "stty raw -echo; echo ready; cat"]) };
    let mut session = home.runtime.exec(&id, spec).await.unwrap();
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
async fn dropped_it_is_killed() {
    let home = Home::new();
    let id = sleeping(&home).await;
    let session = home.runtime.exec(&id, words(&["sh", "-c", "sleep 987611 & wait"])).await.unwrap();
    eventually("beginning", || runs("987611"));
    let resizer = session.resizer();
    drop(session);
    eventually("end", || !runs("987611"));
    resizer.resize(TerminalSize { width: 1, height: 1 });
    assert!(home.pid(&id) > 0, "the container goes on");
}

#[tokio::test]
async fn it_ends_with_the_container() {
    let home = Home::new();
    let id = sleeping(&home).await;
    let mut session = home.runtime.exec(&id, words(&["sleep", "987612"])).await.unwrap();
    within(home.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    assert_eq!(within(session.wait()).await.unwrap(), 137);
    assert!(!runs("987612"));
    assert!(matches!(home.runtime.exec(&id, words(&["true"])).await, Err(ExecError::NotRunning(_))));
}

/// The agent may be spared by the kernel when memory is short; whoever its pods are, they are not.
#[tokio::test]
async fn containers_go_first_when_memory_is_short() {
    let home = Home::new();
    let score = "cat /proc/self/oom_score_adj";
    assert_eq!(home.output(sh("b", score)).await, "1000\n");
    let id = sleeping(&home).await;
    let mut session = home.runtime.exec(&id, words(&["sh", "-c", score])).await.unwrap();
    assert_eq!(read(&mut session).await.0, "1000\n");
}
