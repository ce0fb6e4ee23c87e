//! Programs that run beside a cluster: drivers, sidecars, ours or upstream's. Killed when the value is dropped, or
//! when their test dies.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// So many lines of its log are told if the test fails.
const LAST_WORDS: usize = 5000;

/// A program beside the cluster.
pub struct Beside {
    child: Child,
    program: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
    log: PathBuf,
}

/// What a process has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Memory that is in use now, in KiB.
    pub rss_kib: u64,
    /// The most that it had.
    pub peak_kib: u64,
    /// Processor time, user and system.
    pub cpu: Duration,
}

impl Beside {
    /// Starts a program; it logs to a file.
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

    /// What it has logged so far, in all its lives.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("asking for its status").is_none()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        // Dead already is for others to find out.
        let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
    }

    /// kill -9, and waits until it is gone.
    pub fn kill(&mut self) {
        // Dead already is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits for a clean end.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait().expect("waiting for it");
        assert!(status.success(), "it ended with {status}:\n{}", self.log());
    }

    /// SIGTERM, and waits for an end of any kind: upstream's sidecars do not end cleanly.
    pub fn end(&mut self) {
        self.signal(Signal::TERM);
        let _ = self.child.wait();
    }

    /// Kills it if it still runs, and starts it as it was started.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.args, &self.env, &self.log);
    }

    /// What it has used so far in this life.
    pub fn usage(&self) -> Usage {
        let process = PathBuf::from(format!("/proc/{}", self.pid()));
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        let kib = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        // After the name, which ends with the last parenthesis: user and system ticks are fields 14 and 15.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        Usage {
            rss_kib: kib("VmRSS"),
            peak_kib: kib("VmHWM"),
            // The kernel's clock of processes has a hundred ticks a second.
            cpu: Duration::from_millis((ticks(11) + ticks(12)) * 10),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n");
            eprintln!("== {}\n{end}", self.log.display());
        }
    }
}

fn spawn(program: &Path, args: &[String], env: &[(String, String)], log: &Path) -> Child {
    let file = fs::File::options().create(true).append(true).open(log).expect("opening the log");
    let same = file.try_clone().expect("the same log");
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(program)
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(same)
        .stderr(file)
        .spawn()
        .expect("setpriv")
}

/// A program of this project: `wharf`, `scripted-driver`. It is beside the test's own; `hack/test.sh cluster` has
/// built it.
pub fn built(program: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let directory = test.ancestors().skip(1).find(|directory| directory.join("wharf").exists());
    directory.expect("wharf is built").join(program)
}

/// An upstream program, as `test/upstream` pins it: `csi-provisioner`, `csi-resizer`, `hostpathplugin`.
pub fn upstream(program: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").expect("HOME says where the home directory is")).join(".cache")
    });
    let file = cache.join("wharf/upstream").join(program);
    assert!(file.exists(), "{} is missing: please run test/upstream/build.sh", file.display());
    file
}

/// An address that nobody listens on.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("binding a port");
    listener.local_addr().expect("the port").to_string()
}

/// The page that is served there, or why there is none.
pub fn page(address: &str, path: &str) -> Result<String, String> {
    let get = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let answer = get().map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("no whole answer")?;
    let status = head.lines().next().unwrap_or_default();
    if status.contains(" 200 ") { Ok(body.to_owned()) } else { Err(format!("{status}: {body}")) }
}
