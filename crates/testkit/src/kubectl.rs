//! kubectl with administrator credentials: how tests read and change objects of any cluster, real or embedded.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test/cluster/cluster.sh");

/// kubectl for one cluster.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { program, kubeconfig }
    }

    /// The kubectl binary of the test cluster, with these credentials.
    pub fn with_kubeconfig(kubeconfig: PathBuf) -> Self {
        let output = Command::new(SCRIPT).arg("kubectl").output().expect("failed to run cluster.sh");
        let program =
            stdout_or_error("cluster.sh kubectl", &output).unwrap_or_else(|error| panic!("{error}"));
        Self::new(program.trim().into(), kubeconfig)
    }

    /// Runs kubectl and returns its output.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs kubectl; the error is its stderr.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command(args).stdin(Stdio::null()).output().expect("failed to run kubectl");
        stdout_or_error(&format!("kubectl {}", args.join(" ")), &output)
    }

    /// Applies the objects of a YAML text.
    pub fn apply(&self, yaml: &str) {
        self.try_apply(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    }

    /// Applies the objects of a YAML text; the error is kubectl's stderr.
    pub fn try_apply(&self, yaml: &str) -> Result<String, String> {
        let mut child = self
            .kubectl_command(&["apply", "--filename", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("failed to run kubectl");
        let mut stdin = child.stdin.take().expect("stdin is piped");
        // If kubectl exits early, its own error is reported below.
        let _ = stdin.write_all(yaml.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("failed to run kubectl");
        stdout_or_error("kubectl apply", &output)
    }

    /// Waits until an object (`pod/name`) reaches a state, in the syntax of `kubectl wait --for`:
    /// `condition=Ready`, `delete`, `create`, `jsonpath={.status.phase}=Bound`. On timeout it panics with `kubectl
    /// describe` of the object.
    pub fn wait_for(&self, object: &str, state: &str, timeout: Duration) {
        let (state, time) = (format!("--for={state}"), format!("--timeout={}s", timeout.as_secs()));
        if let Err(error) = self.try_kubectl(&["wait", object, &state, &time]) {
            let description = self.try_kubectl(&["describe", object]).unwrap_or_else(|error| error);
            panic!("{error}\n{description}");
        }
    }

    /// Calls `check` every 200 ms until it returns a value.
    pub fn wait_until<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut check: impl FnMut(&Self) -> Option<T>,
    ) -> T {
        let until = Instant::now() + timeout;
        loop {
            if let Some(value) = check(self) {
                return value;
            }
            assert!(Instant::now() < until, "timed out after {timeout:?}: {what}");
            sleep(Duration::from_millis(200));
        }
    }

    /// A field of an object, as kubectl's jsonpath without the braces (`.status.phase`). Empty if the field or the
    /// object does not exist.
    pub fn field(&self, object: &str, path: &str) -> String {
        let output = format!("jsonpath={{{path}}}");
        self.try_kubectl(&["get", object, "--ignore-not-found", "--output", &output]).unwrap_or_default()
    }

    /// The names of all objects of a kind, in all namespaces.
    pub fn names(&self, kind: &str) -> Vec<String> {
        let path = "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}";
        let output = self.kubectl(&["get", kind, "--all-namespaces", "--output", path]);
        output.lines().map(str::to_owned).collect()
    }

    fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(args);
        command
    }
}

/// The stdout of a program, or its exit status and stderr.
pub(crate) fn stdout_or_error(what: &str, output: &Output) -> Result<String, String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{what}: {}: {}", output.status, stderr.trim()))
}
