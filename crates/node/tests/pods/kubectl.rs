//! The real `kubectl logs` and `kubectl exec`, over TLS.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use tokio_util::sync::CancellationToken;
use wharf_apiserver::access::Identity;
use wharf_apiserver::server::Server;

use crate::harness::TestNode;

#[tokio::test]
#[ignore = "needs kubectl: in the PATH, or named by KUBECTL"]
async fn kubectl_logs_and_exec_work() {
    let node = TestNode::new().await;
    let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = node.pki.kubeconfig(&Identity::Admin, &server.url(), wharf_cluster::now()).unwrap();
    std::fs::write(config.path(), text).unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn({
        let (api, pki, stop) = (node.api.clone(), node.pki.clone(), stop.clone());
        async move { server.run(api, pki, &[], stop).await }
    });
    let path = config.path().to_owned();
    let kubectl = async |args: &[&str], input: &str| -> Output {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(&path).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let input = input.to_owned();
        let run = move || {
            let mut child = command.spawn().unwrap();
            _ = child.stdin.take().unwrap().write_all(input.as_bytes());
            child.wait_with_output().unwrap()
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();

    node.pod("p", "echo hello; trap 'exit 0' TERM; while :; do sleep 0.1; done", |_| {}).await;
    node.phase("p", "Running").await;
    let logs = kubectl(&["logs", "p"], "").await;
    assert_eq!(text(&logs.stdout), "hello\n", "{}", text(&logs.stderr));
    let executed = kubectl(&["exec", "p", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 3"], "").await;
    assert_eq!(
        (text(&executed.stdout).as_str(), executed.status.code()),
        ("out\n", Some(3)),
        "{}",
        text(&executed.stderr)
    );
    assert!(text(&executed.stderr).starts_with("err\n"), "{}", text(&executed.stderr));
    let large = "0123456789abcdef".repeat(40_000);
    let echoed = kubectl(&["exec", "-i", "p", "--", "cat"], &large).await;
    assert!(echoed.status.success(), "{}", text(&echoed.stderr));
    assert_eq!(text(&echoed.stdout).len(), large.len(), "all input is echoed, up to its end");
    let none = kubectl(&["exec", "p", "-c", "none", "--", "true"], "").await;
    assert!(text(&none.stderr).contains("container none is not valid for pod p"), "{}", text(&none.stderr));
    // `kubectl logs -f` ends when the container exits.
    node.pod("q", "echo first; sleep 3; echo last", |pod| pod["spec"]["restartPolicy"] = "Never".into())
        .await;
    node.phase("q", "Running").await;
    let followed = kubectl(&["logs", "-f", "q"], "").await;
    assert_eq!(text(&followed.stdout), "first\nlast\n", "{}", text(&followed.stderr));
    stop.cancel();
    serving.await.unwrap().unwrap();
}
