//! The client against a server that starts, stops and hangs.

#![allow(clippy::unwrap_used)] // test helpers may panic

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};
use wharf_csi::v1::identity_server::{Identity, IdentityServer};
use wharf_csi::{Client, Endpoint, v1};

/// Responds to GetPluginInfo at once, with a manifest of the given size. Never responds to Probe.
struct Driver {
    manifest_bytes: usize,
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        request: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout").and_then(|value| value.to_str().ok());
        let manifest = [("filler".to_owned(), "x".repeat(self.manifest_bytes))].into();
        let vendor_version = timeout.unwrap_or_default().to_owned();
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: "test.wharf.dev".to_owned(),
            vendor_version,
            manifest,
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        Err(Status::failed_precondition("the driver's own message"))
    }

    async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
        std::future::pending().await
    }
}

/// A server that can be stopped like a killed process: at once, with all its connections.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(endpoint: &Endpoint, manifest_bytes: usize) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (started, has_started) = std::sync::mpsc::channel();
        let endpoint = endpoint.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (listener, _file) = wharf_csi::bind(&endpoint).unwrap();
                started.send(()).unwrap();
                let service = IdentityServer::new(Driver { manifest_bytes });
                let _server: JoinHandle<_> = tokio::spawn(
                    Server::builder().serve_with_incoming(service, UnixListenerStream::new(listener)),
                );
                let _ = stopped.await;
            });
        });
        has_started.recv().unwrap();
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn endpoint(dir: &tempfile::TempDir) -> Endpoint {
    dir.path().join("csi.sock").to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn client_reconnects_after_driver_restart() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&dir);
    let client = Client::new(&endpoint);
    let info = || async { client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await };

    let absent = info().await.unwrap_err();
    assert_eq!(absent.code(), Code::Unavailable, "{absent}");
    assert!(absent.message().contains("csi.sock") && absent.message().contains("No such file"), "{absent}");

    for _ in 0..3 {
        let driver = Running::start(&endpoint, 0);
        // A call on the closing connection may fail, but only with UNAVAILABLE, and the next one reconnects.
        let mut tries = 0;
        let response = loop {
            tries += 1;
            match info().await {
                Ok(response) => break response.into_inner(),
                Err(status) => assert!(status.code() == Code::Unavailable && tries < 5, "{status}"),
            }
        };
        assert_eq!(response.name, "test.wharf.dev");
        drop(driver);
        assert_eq!(info().await.unwrap_err().code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn driver_crash_during_a_call_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&dir);
    let driver = Running::start(&endpoint, 0);
    let client = Client::new(&endpoint);
    let call = tokio::spawn(async move { client.identity().probe(v1::ProbeRequest {}).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(driver);
    assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn every_call_has_a_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&dir);
    let _driver = Running::start(&endpoint, 0);
    let client = Client::new(&endpoint).with_deadline(Duration::from_millis(200));
    let status = client.identity().probe(v1::ProbeRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");

    let info = client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.vendor_version, "200000u", "the driver receives the deadline");
    client
        .with_deadline(Duration::MAX)
        .identity()
        .get_plugin_info(v1::GetPluginInfoRequest {})
        .await
        .unwrap();
}

#[tokio::test]
async fn socket_without_accept_exceeds_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&dir);
    let (_listener, _file) = wharf_csi::bind(&endpoint).unwrap();
    let client = Client::new(&endpoint).with_deadline(Duration::from_millis(100));
    let status = client.identity().probe(v1::ProbeRequest {}).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
}

#[tokio::test]
async fn driver_errors_and_large_responses_pass_through() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = endpoint(&dir);
    let _driver = Running::start(&endpoint, 12 << 20);
    let client = Client::new(&endpoint);
    let status =
        client.identity().get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "the driver's own message"));
    let info = client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.manifest["filler"].len(), 12 << 20);
}
