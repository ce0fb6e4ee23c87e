//! kubectl, with an administrator's credentials: how tests ask and change what a cluster has, whoever serves it.

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

    /// The one that a test cluster has, with these credentials.
    pub fn with(kubeconfig: PathBuf) -> Self {
        let output = Command::new(SCRIPT).arg("kubectl").output().expect("cluster.sh");
        let program = printed("cluster.sh kubectl", &output).unwrap_or_else(|error| panic!("{error}"));
        Self::new(program.trim().into(), kubeconfig)
    }

    /// Runs kubectl and returns what it prints.
    pub fn kubectl(&self, args: &[&str]) -> String {
        self.try_kubectl(args).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs kubectl; the error is what it complains about.
    pub fn try_kubectl(&self, args: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command(args).stdin(Stdio::null()).output().expect("kubectl");
        printed(&format!("kubectl {}", args.join(" ")), &output)
    }

    /// Creates or changes the objects that a YAML text holds.
    pub fn apply(&self, yaml: &str) {
        self.try_apply(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    }

    /// The same; the error is what kubectl complains about.
    pub fn try_apply(&self, yaml: &str) -> Result<String, String> {
        let mut child = self
            .kubectl_command(&["apply", "--filename", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl");
        let mut stdin = child.stdin.take().expect("a piped stdin");
        // One that ends early tells why.
        let _ = stdin.write_all(yaml.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().expect("kubectl");
        printed("kubectl apply", &output)
    }

    /// Waits until an object (`pod/name`) is as `kubectl wait --for` says: `condition=Ready`, `delete`,
    /// `create`, `jsonpath={.status.phase}=Bound`. Tells about the object if it does not come to that.
    pub fn wait_for(&self, object: &str, state: &str, timeout: Duration) {
        let (state, time) = (format!("--for={state}"), format!("--timeout={}s", timeout.as_secs()));
        if let Err(error) = self.try_kubectl(&["wait", object, &state, &time]) {
            let story = self.try_kubectl(&["describe", object]).unwrap_or_else(|error| error);
            panic!("{error}\n{story}");
        }
    }

    /// Asks every 200 ms until there is an answer.
    pub fn until<T>(&self, what: &str, timeout: Duration, mut ask: impl FnMut(&Self) -> Option<T>) -> T {
        let until = Instant::now() + timeout;
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            assert!(Instant::now() < until, "not within {timeout:?}: {what}");
            sleep(Duration::from_millis(200));
        }
    }

    /// A field of an object, by kubectl's jsonpath without the braces (`.status.phase`); empty if it has none, or if
    /// there is no such object.
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

/// What a program prints, or why it failed.
pub(crate) fn printed(what: &str, output: &Output) -> Result<String, String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{what}: {}: {}", output.status, stderr.trim()))
}
