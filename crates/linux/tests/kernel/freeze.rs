//! Frozen file systems, and every way a freeze can end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use wharf_linux::{Filesystems as _, FsType, Linux};

use crate::bench::{ALL_FS_TYPES, Bench, run};

/// Writes a file in a thread and sends the time when the write is done.
fn writer(target: &Path) -> mpsc::Receiver<Instant> {
    let (sender, receiver) = mpsc::channel();
    let path = target.join("written");
    std::thread::spawn(move || {
        fs::write(path, "x").unwrap();
        let _ = sender.send(Instant::now());
    });
    receiver
}

fn blocked(writer: &mpsc::Receiver<Instant>) -> bool {
    writer.recv_timeout(Duration::from_millis(300)).is_err()
}

fn continues(writer: &mpsc::Receiver<Instant>) {
    writer.recv_timeout(Duration::from_secs(3)).expect("the writer must continue");
}

#[test]
fn writer_blocks_until_the_thaw() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let target = bench.pool(fs);
        let frozen = bench.linux.freeze(&[&target], Duration::from_secs(20)).unwrap();
        let waiting = writer(&target);
        assert!(blocked(&waiting), "{fs}");
        frozen.thaw().unwrap();
        continues(&waiting);

        let frozen = bench.linux.freeze(&[&target], Duration::from_secs(20)).unwrap();
        let waiting = writer(&target);
        assert!(blocked(&waiting), "{fs}");
        drop(frozen);
        continues(&waiting);
    }
}

#[test]
fn expired_freeze_is_reported_by_the_guard() {
    let bench = Bench::new();
    let target = bench.pool(FsType::Ext4);
    let frozen = bench.linux.freeze(&[&target], Duration::from_millis(600)).unwrap();
    let waiting = writer(&target);
    assert!(blocked(&waiting));
    continues(&waiting);
    let error = frozen.thaw().unwrap_err();
    assert!(error.to_string().contains("time was up"), "{error}");
}

#[test]
fn freeze_of_several_file_systems_is_all_or_none() {
    let bench = Bench::new();
    let (one, two) = (bench.pool(FsType::Ext4), bench.pool(FsType::Xfs));
    let frozen = bench.linux.freeze(&[&one, &two], Duration::from_secs(20)).unwrap();
    let (first, second) = (writer(&one), writer(&two));
    assert!(blocked(&first) && blocked(&second));
    frozen.thaw().unwrap();
    continues(&first);
    continues(&second);

    // The second file system cannot be frozen: it is frozen already.
    run("fsfreeze", &["-f", two.to_str().unwrap()]);
    let Err(error) = bench.linux.freeze(&[&one, &two], Duration::from_secs(20)) else {
        panic!("frozen twice")
    };
    assert_eq!(error.errno(), Some(libc::EBUSY));
    assert!(error.to_string().contains(two.to_str().unwrap()), "{error}");
    continues(&writer(&one));
    let waiting = writer(&two);
    assert!(blocked(&waiting), "the earlier freeze must not be ended");
    bench.linux.thaw(&two).unwrap();
    continues(&waiting);
    bench.linux.thaw(&two).unwrap();
    assert!(bench.linux.freeze(&[&bench.path("missing")], Duration::from_secs(1)).is_err());
    bench.linux.freeze(&[], Duration::from_secs(1)).unwrap().thaw().unwrap();
}

#[test]
fn thaw_by_another_process_is_reported() {
    let bench = Bench::new();
    let target = bench.pool(FsType::Ext4);
    let frozen = bench.linux.freeze(&[&target], Duration::from_secs(20)).unwrap();
    run("fsfreeze", &["-u", target.to_str().unwrap()]);
    let error = frozen.thaw().unwrap_err();
    assert!(error.to_string().contains("another process thawed it"), "{error}");
}

/// Runs this test binary in another process that holds a freeze and can be killed.
struct Holder(Child);

impl Holder {
    fn start(target: &Path, what: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "freeze::holder", "--nocapture"])
            .env("HOLD", target)
            .env("HOLD_WHAT", what)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn helper(&self) -> Option<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id())).ok()?;
        tasks.flatten().find_map(|task| {
            fs::read_to_string(task.path().join("children")).ok()?.split_whitespace().next()?.parse().ok()
        })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for<T>(mut check: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < end, "timed out");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Does nothing as a test: it is the process that [`Holder`] starts.
#[test]
fn holder() {
    let Some(target) = std::env::var_os("HOLD").map(PathBuf::from) else { return };
    let pool = target.parent().unwrap().to_owned();
    let lock = fs::File::create(pool.join("lock")).unwrap();
    lock.lock().unwrap();
    let frozen = Linux::new().freeze(&[&target], Duration::from_secs(30)).unwrap();
    fs::write(pool.join("frozen"), "").unwrap();
    if std::env::var("HOLD_WHAT").unwrap() == "thaw" {
        wait_for(|| pool.join("go").exists().then_some(()));
        let error = frozen.thaw().unwrap_err().to_string();
        fs::write(pool.join("error"), error).unwrap();
        return;
    }
    std::thread::sleep(Duration::from_secs(60));
    drop(frozen);
}

#[test]
fn killed_parent_unblocks_writers_and_releases_locks() {
    let bench = Bench::new();
    for fs in ALL_FS_TYPES {
        let target = bench.pool(fs);
        let mut holder = Holder::start(&target, "sleep");
        wait_for(|| bench.path("frozen").exists().then_some(()));
        let waiting = writer(&target);
        assert!(blocked(&waiting), "{fs}");
        // The child holds its two pipes and the file system, and no descriptor of the driver.
        let helper = wait_for(|| holder.helper());
        assert_eq!(fs::read_dir(format!("/proc/{helper}/fd")).unwrap().count(), 3, "{fs}");

        let killed = Instant::now();
        holder.0.kill().unwrap();
        holder.0.wait().unwrap();
        let written = waiting.recv_timeout(Duration::from_secs(3)).expect("the writer must continue");
        assert!(written.duration_since(killed) < Duration::from_secs(1));
        fs::File::open(bench.path("lock")).unwrap().try_lock().expect("the lock must be free");
        wait_for(|| (!Path::new(&format!("/proc/{helper}")).exists()).then_some(()));
        fs::remove_file(bench.path("frozen")).unwrap();
    }
}

#[test]
fn killed_freeze_child_is_reported_and_the_parent_thaws() {
    let bench = Bench::new();
    let target = bench.pool(FsType::Xfs);
    let mut holder = Holder::start(&target, "thaw");
    wait_for(|| bench.path("frozen").exists().then_some(()));
    let waiting = writer(&target);
    assert!(blocked(&waiting));
    run("kill", &["-KILL", &wait_for(|| holder.helper()).to_string()]);
    assert!(blocked(&waiting), "no process is left to thaw it");
    fs::write(bench.path("go"), "").unwrap();
    continues(&waiting);
    holder.0.wait().unwrap();
    let error = fs::read_to_string(bench.path("error")).unwrap();
    assert!(error.contains("was killed"), "{error}");
}
