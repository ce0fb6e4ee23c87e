//! The driver as a process: shutdown and death.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use wharf_csi::{Client, Endpoint, v1};

use crate::support::{ENOUGH, PROGRAM, Place, children, eventually, runs, signal};

pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) endpoint: Endpoint,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// A driver whose server `nas` exports `/` as the directory `export`.
    pub(crate) async fn start(place: &Place) -> Self {
        Self::start_logging(place, Stdio::inherit()).await
    }

    /// The same, with its standard error there.
    pub(crate) async fn start_logging(place: &Place, stderr: Stdio) -> Self {
        let (socket, directory) = (place.path("csi.sock"), place.path("export"));
        std::fs::create_dir_all(&directory).unwrap();
        let endpoint: Endpoint = format!("unix://{}", socket.display()).parse().unwrap();
        let child = Command::new(PROGRAM)
            .args(["--endpoint", &endpoint.to_string(), "--node-id", "n1"])
            .args(["--export", &format!("nas={}", directory.display())])
            .stdin(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let running = Self { child, endpoint };
        let end = Instant::now() + ENOUGH;
        while running.client().node().node_get_info(v1::NodeGetInfoRequest {}).await.is_err() {
            assert!(Instant::now() < end);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        running
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.endpoint)
    }

    /// Makes calls until one of their workers was stopped, so that the call hangs; returns the worker.
    async fn call_and_stop_worker(&self) -> u32 {
        let client = self.client();
        let request = crate::publish::stats("v", "/no/volume/here");
        tokio::spawn(async move {
            loop {
                let _ = client.node().node_get_volume_stats(request.clone()).await;
            }
        });
        let end = Instant::now() + ENOUGH;
        loop {
            for worker in children(self.child.id(), &["nfs-worker"]) {
                let stop =
                    Command::new("kill").args(["-STOP", &worker.to_string()]).stderr(Stdio::null()).status();
                if stop.unwrap().success() && is_stopped(worker) {
                    return worker;
                }
            }
            assert!(Instant::now() < end, "no worker was stopped");
            tokio::task::yield_now().await;
        }
    }
}

fn is_stopped(pid: u32) -> bool {
    let end = Instant::now() + Duration::from_millis(200);
    while Instant::now() < end {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')) {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_hanging_worker() {
    let place = Place::new();
    let mut driver = Running::start(&place).await;
    let worker = driver.call_and_stop_worker().await;
    let started = Instant::now();
    signal(driver.child.id(), "TERM");
    let status = loop {
        if let Some(status) = driver.child.try_wait().unwrap() {
            break status;
        }
        assert!(started.elapsed() < ENOUGH);
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(status.success(), "{status}");
    // 0.9 s on an idle machine: 0.4 s for running calls, 0.5 s of the SDK for the last responses.
    assert!(started.elapsed() < ENOUGH / 2, "{:?}", started.elapsed());
    eventually("the worker is gone", || !runs(worker)).await;
}

/// kill -9 of the driver leaves no process behind, not even one that hangs.
#[tokio::test]
async fn killed_driver_leaves_no_worker() {
    let place = Place::new();
    let mut driver = Running::start(&place).await;
    let worker = driver.call_and_stop_worker().await;
    driver.child.kill().unwrap();
    driver.child.wait().unwrap();
    eventually("the worker is gone", || !runs(worker)).await;
}
