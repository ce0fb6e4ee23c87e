//! kill -9 at every boundary: after each effect on the node, and around each effect in the API. The driver is a
//! separate process; when it is killed, a new one is started, and the interrupted call is retried. In the end
//! every call has succeeded, and nothing is left over.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Status;
use wharf_driver::ServeOptions;
use wharf_driver_digitalocean::driver;
use wharf_linux::Linux;
use wharf_testkit::CrashKernel;

use crate::support::{Bench, GIB, HERE, cloud, config, endpoint, mount, restored, run, text};

const ROOT: &str = "WHARF_TEST_ROOT";
const URL: &str = "WHARF_TEST_URL";
const DIE_AFTER: &str = "WHARF_TEST_DIE_AFTER";

#[test]
#[ignore = "not a test: the driver process that other tests start and kill"]
fn driver_process() {
    let root = PathBuf::from(std::env::var_os(ROOT).expect("started by a test"));
    let url = std::env::var(URL).unwrap();
    let die_after = std::env::var(DIE_AFTER).ok().map(|number| number.parse().unwrap());
    let mut trace = File::options().create(true).append(true).open(root.join("trace")).unwrap();
    let kernel = CrashKernel::new(Arc::new(Linux::new()), die_after, move |effect| {
        writeln!(trace, "{effect}").unwrap();
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let driver = driver(Arc::new(kernel), Some(cloud(&url)), config(&root)).unwrap();
        driver.serve(&endpoint(&root), ServeOptions::default(), std::future::pending()).await.unwrap();
    });
}

/// A driver process that is restarted after it was killed.
struct KillableDriver<'a> {
    bench: &'a Bench,
    child: Child,
    crashes: u32,
}

impl<'a> KillableDriver<'a> {
    async fn start(bench: &'a Bench, die_after: Option<u64>) -> Self {
        let child = spawn(bench, die_after);
        let mut this = Self { bench, child, crashes: 0 };
        this.listening().await;
        this
    }

    async fn listening(&mut self) {
        let until = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(self.bench.root().join("csi.sock")).is_err() {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            assert!(Instant::now() < until, "the driver does not accept connections");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Retries a call until it succeeds, restarting the driver if it was killed.
    async fn retry<T>(&mut self, what: &str, mut call: impl AsyncFnMut(&Bench) -> Result<T, Status>) -> T {
        let mut last = None;
        for _ in 0..40 {
            match call(self.bench).await {
                Ok(response) => return response,
                Err(status) => last = Some(status),
            }
            // The connection breaks before the process has exited.
            tokio::time::sleep(Duration::from_millis(30)).await;
            if self.child.try_wait().unwrap().is_some() {
                self.crashes += 1;
                self.child = spawn(self.bench, None);
                self.listening().await;
            }
        }
        panic!("{what} never succeeds after {} crashes: {last:?}", self.crashes);
    }
}

impl Drop for KillableDriver<'_> {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn spawn(bench: &Bench, die_after: Option<u64>) -> Child {
    let log = File::options().create(true).append(true).open(bench.root().join("driver.log")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "crash::driver_process", "--ignored", "--nocapture"]);
    command.env(ROOT, bench.root()).env(URL, bench.fake.url());
    if let Some(number) = die_after {
        command.env(DIE_AFTER, number.to_string());
    }
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
}

#[tokio::test]
async fn driver_survives_a_kill_after_every_node_effect() {
    let bench = Bench::without_driver().await;
    bench.fake.change_settings(|settings| (settings.action_delay_ms, settings.device_delay_ms) = (10, 10));
    let mut died_at = BTreeSet::new();
    for die_after in 0.. {
        let mut co = KillableDriver::start(&bench, Some(die_after)).await;
        node_lifecycle(&mut co).await;
        bench.assert_empty();
        if co.crashes == 0 {
            break;
        }
        let trace = std::fs::read_to_string(bench.root().join("trace")).unwrap();
        died_at.extend(trace.lines().nth(die_after.saturating_sub(1) as usize).map(str::to_owned));
        drop(co);
        // None if it crashed before its first effect.
        _ = std::fs::remove_file(bench.root().join("trace"));
    }
    // Ensures that the kernel seam was used; otherwise the test would prove nothing.
    let met = [
        "write_file",
        "rename",
        "sync",
        "make_fs",
        "check_fs",
        "create_target_dir",
        "mount",
        "bind",
        "unmount",
        "remove_target",
        "remove_file",
    ];
    for effect in met {
        assert!(died_at.contains(effect), "no crash after {effect}: {died_at:?}");
    }
}

async fn node_lifecycle(co: &mut KillableDriver<'_>) {
    let (here, ext4) = (HERE.to_string(), mount("ext4"));
    let id = co.retry("create", async |co| co.create("pvc-1", GIB).await).await.volume_id;
    let context = co.retry("attach", async |co| co.attach(&id, &here).await).await;
    co.retry("stage", async |co| co.stage(&id, &ext4, context.clone()).await).await;
    co.retry("publish", async |co| co.publish(&id, "pod", &ext4, context.clone()).await).await;
    let file = co.bench.target("pod").join("file");
    std::fs::write(&file, "data").unwrap();
    run("sync", &["-f", &text(&co.bench.target("pod"))]);
    co.retry("unpublish", async |co| co.unpublish(&id, "pod").await).await;
    co.retry("unstage", async |co| co.unstage(&id).await).await;
    co.retry("stage", async |co| co.stage(&id, &ext4, context.clone()).await).await;
    assert_eq!(std::fs::read_to_string(co.bench.staging(&id).join("file")).unwrap(), "data");
    co.retry("unstage", async |co| co.unstage(&id).await).await;
    co.retry("detach", async |co| co.detach(&id, &here).await).await;
    co.retry("delete", async |co| co.delete(&id).await).await;
}

#[tokio::test]
async fn driver_survives_a_kill_around_every_api_effect() {
    let bench = Bench::without_driver().await;
    bench.fake.change_settings(|settings| settings.action_delay_ms = 50);
    let effects = || bench.fake.requests().iter().filter(|seen| seen.method != "GET").count();
    cloud_lifecycle(&mut KillableDriver::start(&bench, None).await).await;
    let whole = effects();
    assert!(whole >= 10, "too few effects in the lifecycle: {whole}");
    for number in 1..=whole {
        bench.fake.forget_requests();
        let mut co = KillableDriver::start(&bench, None).await;
        let pid = rustix::process::Pid::from_child(&co.child);
        let killer = async {
            while effects() < number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = cloud_lifecycle(&mut co) => {}
            () = killer => {}
        }
        let state = bench.fake.state();
        assert!(
            state.volumes.is_empty() && state.snapshots.is_empty(),
            "crash at effect {number}: {state:?}"
        );
        assert!(co.crashes == 1 || number == whole, "no crash at effect {number} of {whole}");
    }
}

async fn cloud_lifecycle(co: &mut KillableDriver<'_>) {
    let here = HERE.to_string();
    let id = co.retry("create", async |co| co.create("pvc-1", GIB).await).await.volume_id;
    assert_eq!(co.bench.fake.state().volumes.len(), 1, "one volume per name");
    co.retry("attach", async |co| co.attach(&id, &here).await).await;
    co.retry("expand", async |co| co.expand(&id, 2 * GIB).await).await;
    let snapshot = co.retry("snapshot", async |co| co.snapshot("snapshot-1", &id).await).await.snapshot_id;
    assert_eq!(co.bench.fake.state().snapshots.len(), 1, "one snapshot per name");
    let copy = co.retry("restore", async |co| co.call(restored("pvc-2", 3 * GIB, &snapshot)).await).await;
    let copy = copy.volume.unwrap();
    assert_eq!(copy.capacity_bytes, 3 * GIB);
    assert_eq!(co.bench.fake.state().volumes.len(), 2, "one volume per name");
    co.retry("detach", async |co| co.detach(&id, &here).await).await;
    co.retry("delete", async |co| co.delete(&id).await).await;
    co.retry("delete", async |co| co.delete(&copy.volume_id).await).await;
    co.retry("delete snapshot", async |co| co.delete_snapshot(&snapshot).await).await;
}

/// An interrupted mkfs leaves unrecognizable data. It is known to be ours only while the disk was not detached.
#[tokio::test]
async fn interrupted_format_is_repeated_only_on_the_same_attachment() {
    let bench = Bench::without_driver().await;
    let here = HERE.to_string();
    for comes_back in [false, true] {
        // Two records with four effects each: the volume's name, and the format in progress.
        let mut co = KillableDriver::start(&bench, Some(8)).await;
        let id = co.retry("create", async |co| co.create("pvc-1", GIB).await).await.volume_id;
        let context = co.retry("attach", async |co| co.attach(&id, &here).await).await;
        assert!(
            bench.stage(&id, &mount("ext4"), context.clone()).await.is_err(),
            "the driver must crash before mkfs"
        );
        let device = bench.device("pvc-1").await;
        let onto = format!("of={}", text(&device));
        run("dd", &["if=/dev/urandom", &onto, "bs=4k", "count=1", "conv=fsync"]);
        if comes_back {
            co.retry("detach", async |co| co.detach(&id, &here).await).await;
            co.retry("attach", async |co| co.attach(&id, &here).await).await;
            let refused = async |co: &Bench| match co.stage(&id, &mount("ext4"), context.clone()).await {
                Err(status) if status.message().contains("not zero") => Ok(()),
                Err(status) => Err(status),
                Ok(()) => panic!("the disk was detached, but was formatted anyway"),
            };
            co.retry("stage", refused).await;
        } else {
            co.retry("stage", async |co| co.stage(&id, &mount("ext4"), context.clone()).await).await;
        }
        assert_eq!(co.crashes, 1);
        co.retry("unstage", async |co| co.unstage(&id).await).await;
        co.retry("detach", async |co| co.detach(&id, &here).await).await;
        co.retry("delete", async |co| co.delete(&id).await).await;
        drop(co);
        bench.assert_empty();
    }
}
