//! Child processes of a test: drivers and sidecars of Wharf and upstream. A process is killed when its
//! [`ChildProcess`] is dropped, or when the test process exits.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// How many log lines are printed if the test fails.
const LOG_TAIL_LINES: usize = 5000;

/// A program that runs as a child process.
pub struct ChildProcess {
    child: Child,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: PathBuf,
}

/// Resource usage of a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Resident memory, in KiB.
    pub rss_kib: u64,
    /// Peak resident memory, in KiB.
    pub peak_kib: u64,
    /// CPU time, user and system.
    pub cpu: Duration,
}

impl ChildProcess {
    /// Starts a program that logs to a file.
    pub fn start(program: &Path, args: &[&str], log: &Path) -> Self {
        Self::start_with(program, args, &[], log)
    }

    /// Starts a program with additional environment variables.
    pub fn start_with(program: &Path, args: &[&str], env: &[(&str, &str)], log: &Path) -> Self {
        let program = program.to_owned();
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let child = spawn(&program, &args, &env, log);
        Self { child, program, args, env, log: log.to_owned() }
    }

    /// The log so far, including that of earlier starts.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("failed to query the process status").is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // An error means that the process has exited, which the caller notices.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
    }

    /// Kills the process with SIGKILL and waits until it has exited.
    pub fn kill(&mut self) {
        // Both calls fail if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for a clean exit.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait().expect("failed to wait for the process");
        assert!(status.success(), "the process exited with {status}:\n{}", self.log());
    }

    /// Sends SIGTERM and waits for an exit with any status: upstream's sidecars do not exit cleanly.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
        let _ = self.child.wait();
    }

    /// Kills the process if it is still running, and starts it again with the same arguments.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.args, &self.env, &self.log);
    }

    /// Resource usage of the current process.
    pub fn usage(&self) -> Usage {
        let process = PathBuf::from(format!("/proc/{}", self.pid()));
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        // Skip the process name, which may contain spaces and ends with the last parenthesis. User and system ticks are
        // fields 14 and 15 of the line, 11 and 12 of the rest.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        Usage {
            rss_kib: kib("VmRSS"),
            peak_kib: kib("VmHWM"),
            // The kernel counts 100 ticks per second.
            cpu: Duration::from_millis((ticks(11) + ticks(12)) * 10),
        }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n");
            eprintln!("== {}\n{tail}", self.log.display());
        }
    }
}

fn spawn(program: &Path, args: &[String], env: &[(String, String)], log: &Path) -> Child {
    let file = fs::File::options().create(true).append(true).open(log).expect("failed to open the log");
    let stdout = file.try_clone().expect("failed to duplicate the log's file descriptor");
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(file)
        .spawn()
        .expect("failed to start setpriv")
}

/// The path of a program of this project (`wharf`, `scripted-driver`) in the build directory of the test.
/// `hack/test.sh cluster` builds it.
///
/// `WHARF_PROGRAM` overrides the path of `wharf`, for example with a binary of the profile `dist`.
pub fn built_program(program: &str) -> PathBuf {
    if let Some(path) = std::env::var_os("WHARF_PROGRAM").filter(|_| program == "wharf") {
        return path.into();
    }
    let test = std::env::current_exe().expect("failed to get the path of the test executable");
    let directory = test.ancestors().skip(1).find(|directory| directory.join("wharf").exists());
    directory.expect("wharf is not built: run hack/test.sh, or cargo build").join(program)
}

/// The path of an upstream program, in the version that `test/upstream` pins: `csi-provisioner`, `csi-resizer`,
/// `hostpathplugin`.
pub fn upstream_program(program: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME is not set")).join(".cache"));
    let file = cache.join("wharf/upstream").join(program);
    assert!(file.exists(), "{} is missing: run test/upstream/build.sh", file.display());
    file
}

/// A loopback address with a free port.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("failed to bind a port");
    listener.local_addr().expect("failed to get the bound port").to_string()
}

/// Sends an HTTP GET. Returns the body of a 200 response, or an error message.
pub fn http_get(address: &str, path: &str) -> Result<String, String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut response = String::new();
        stream.read_to_string(&mut response)?;
        Ok(response)
    };
    let response = get().map_err(|error| error.to_string())?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("incomplete HTTP response")?;
    let status = head.lines().next().unwrap_or_default();
    if status.contains(" 200 ") { Ok(body.to_owned()) } else { Err(format!("{status}: {body}")) }
}
