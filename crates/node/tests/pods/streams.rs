//! Logs and exec, as the API server uses them.

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use wharf_apiserver::rest::{Command, LogOptions, PodStreams as _};

use crate::harness::TestNode;

fn bare(id: &str) -> &str {
    id.strip_prefix("wharf://").unwrap()
}

impl TestNode {
    /// Runs a script in a container and returns its output.
    pub(crate) async fn exec(&self, id: &str, script: &str) -> String {
        let command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let command = Command { command, stdout: true, ..Command::default() };
        let mut session = self.streams.exec(bare(id), command).await.unwrap();
        let mut text = String::new();
        session.stdout.take().unwrap().read_to_string(&mut text).await.unwrap();
        session.exit_code.await.unwrap();
        text
    }

    pub(crate) async fn log(&self, id: &str) -> String {
        let mut lines = self.streams.log(bare(id), LogOptions::default()).await.unwrap();
        let mut text = Vec::new();
        while let Some(piece) = lines.recv().await {
            text.extend_from_slice(&piece);
        }
        String::from_utf8(text).unwrap()
    }
}

#[tokio::test]
async fn logs_and_exec_stream_input_and_output() {
    let node = TestNode::new().await;
    node.pod("p", "echo one; echo two >&2; sleep 0.5; echo three; sleep 1000", |_| {}).await;
    let pod = node.phase("p", "Running").await;
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap();

    let follow = LogOptions { follow: true, ..LogOptions::default() };
    let mut lines = node.streams.log(bare(id), follow).await.unwrap();
    let mut text = String::new();
    while text.lines().count() < 3 {
        let piece: Bytes = lines.recv().await.unwrap();
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    let mut lines_seen: Vec<&str> = text.lines().collect();
    lines_seen.sort_unstable();
    assert_eq!(lines_seen, ["one", "three", "two"]);

    let command = Command {
        command: ["/bin/sh", "-c", "read a; echo got $a; echo bad >&2; exit 4"].map(str::to_owned).to_vec(),
        stdin: true,
        stdout: true,
        stderr: true,
        tty: false,
    };
    let mut session = node.streams.exec(bare(id), command).await.unwrap();
    session.stdin.as_mut().unwrap().write_all(b"it\n").await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    session.stdout.take().unwrap().read_to_string(&mut out).await.unwrap();
    session.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("got it\n", "bad\n"));
    assert_eq!(session.exit_code.await.unwrap(), 4);

    let none = Command { command: vec!["/no/such".to_owned()], stdout: true, ..Command::default() };
    let mut session = node.streams.exec(bare(id), none).await.unwrap();
    let mut err = String::new();
    session.stderr.take().unwrap().read_to_string(&mut err).await.unwrap();
    assert!(err.contains("/no/such"), "{err}");
    assert_eq!(session.exit_code.await.unwrap(), 127);
    let refusal = node.streams.exec("unknown", Command::default()).await.map(|_| ()).unwrap_err();
    assert_eq!(refusal.code, 404);
}
