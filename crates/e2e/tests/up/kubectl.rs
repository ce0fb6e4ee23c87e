//! The real `kubectl logs` and `kubectl exec`.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::machine::Machine;

impl Machine {
    fn kubectl(&self, args: &[&str], input: &str) -> Output {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let mut command = Command::new(program);
        command.arg("--kubeconfig").arg(self.data().join("kubeconfig")).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // If kubectl exits early, its own error is reported by the caller.
        _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A pod without volumes that runs a script.
fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "none", "command": ["/bin/sh", "-c", script]}],
        },
    })
}

#[test]
#[ignore = "needs kubectl: in the PATH, or named by KUBECTL"]
fn kubectl_logs_and_exec_work() {
    let mut machine = Machine::new();
    machine.create(&pod("p", "echo hello; trap 'exit 0' TERM; while :; do sleep 0.1; done"));
    machine.wait_until_running("p");
    let logs = machine.kubectl(&["logs", "p"], "");
    assert_eq!(text(&logs.stdout), "hello\n", "{}", text(&logs.stderr));
    let script = "read a; echo got $a; echo err >&2; exit 3";
    let executed = machine.kubectl(&["exec", "-i", "p", "--", "/bin/sh", "-c", script], "it\n");
    assert_eq!(
        (text(&executed.stdout).as_str(), executed.status.code()),
        ("got it\n", Some(3)),
        "{}",
        text(&executed.stderr)
    );
    assert!(text(&executed.stderr).starts_with("err\n"), "{}", text(&executed.stderr));
    let large = "0123456789abcdef".repeat(40_000);
    let echoed = machine.kubectl(&["exec", "-i", "p", "--", "cat"], &large);
    assert!(echoed.status.success(), "{}", text(&echoed.stderr));
    assert_eq!(text(&echoed.stdout).len(), large.len(), "all input is echoed, up to its end");
    // Like a shell: a message on stderr and its exit code.
    let missing = machine.kubectl(&["exec", "p", "--", "/no/such"], "");
    assert!(text(&missing.stderr).contains("/no/such"), "{}", text(&missing.stderr));
    assert_eq!(missing.status.code(), Some(127));
    let none = machine.kubectl(&["exec", "p", "-c", "none", "--", "true"], "");
    assert!(text(&none.stderr).contains("container none is not valid for pod p"), "{}", text(&none.stderr));
    // `kubectl logs -f` ends when the container exits.
    machine.create(&pod("q", "echo first; sleep 3; echo last"));
    machine.wait_until_running("q");
    let followed = machine.kubectl(&["logs", "-f", "q"], "");
    assert_eq!(text(&followed.stdout), "first\nlast\n", "{}", text(&followed.stderr));
    machine.delete_everything();
}
