//! Liveness of the driver: one Probe per request, with a deadline.
//!
//! All requests share one connection, which reconnects by itself. Requests that arrive during a Probe share its
//! result. So a hanging driver is called once per deadline, no matter how many requests there are, and a caller
//! that disconnects does not affect the others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};
use wharf_csi::{Client, v1};

use crate::metrics::Metrics;

/// The driver's health for kubelet's liveness probe. Clones share their Probes.
#[derive(Clone)]
pub struct Liveness {
    client: Client,
    metrics: Metrics,
    in_flight: Arc<Mutex<Option<watch::Receiver<Option<ProbeResult>>>>>,
}

/// Healthy, or the reason why not.
pub(crate) type ProbeResult = Result<(), String>;

impl Liveness {
    pub(crate) fn new(client: &Client, probe_timeout: Duration, metrics: Metrics) -> Self {
        Self { client: client.with_deadline(probe_timeout), metrics, in_flight: Arc::default() }
    }

    /// Calls the driver, or waits for the result of the Probe in flight.
    pub(crate) async fn check(&self) -> ProbeResult {
        let mut response = self.join();
        match response.wait_for(Option::is_some).await {
            Ok(probe_result) => probe_result.clone().unwrap_or_else(|| Err(ABORTED.to_owned())),
            Err(_) => Err(ABORTED.to_owned()),
        }
    }

    /// The Probe in flight, or a new one. It runs in its own task: the caller that started it may disconnect.
    fn join(&self) -> watch::Receiver<Option<ProbeResult>> {
        let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        // A Probe that has ended, or was dropped, says nothing about the present.
        if let Some(response) = in_flight.as_ref()
            && response.borrow().is_none()
            && response.has_changed().is_ok()
        {
            return response.clone();
        }
        let (sender, response) = watch::channel(None);
        *in_flight = Some(response.clone());
        let liveness = self.clone();
        tokio::spawn(async move {
            let probe_result = liveness.probe().await;
            if let Err(reason) = &probe_result {
                tracing::warn!(error = reason, "driver is not healthy");
            }
            sender.send_replace(Some(probe_result));
        });
        response
    }

    async fn probe(&self) -> ProbeResult {
        let started = Instant::now();
        let response = self.client.identity().probe(v1::ProbeRequest {}).await;
        let took = started.elapsed();
        let code = response.as_ref().map_or_else(Status::code, |_| Code::Ok);
        if code == Code::Ok && !self.metrics.has_driver_name() {
            let info = self.client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
            // Needed only as a metric label, so it is retried with the next Probe.
            if let Ok(info) = info {
                self.metrics.set_driver_name(&info.get_ref().name);
            }
        }
        self.metrics.record_call("/csi.v1.Identity/Probe", code, took);
        probe_result(response.map(|response| response.into_inner().ready))
    }
}

const ABORTED: &str = "the probe was aborted";

/// Interprets the response to Probe. By the CSI spec a driver that does not report readiness is ready.
fn probe_result(response: Result<Option<bool>, Status>) -> ProbeResult {
    match response {
        Ok(None | Some(true)) => Ok(()),
        Ok(Some(false)) => Err("driver responded but is not ready".to_owned()),
        Err(status) => Err(format!("{:?}: {}", status.code(), status.message())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio_stream::wrappers::UnixListenerStream;
    use tokio_util::task::AbortOnDropHandle;
    use tonic::transport::Server;
    use tonic::{Request, Response};
    use v1::identity_server::{Identity, IdentityServer};
    use wharf_csi::{Endpoint, SocketFile};

    use super::*;

    /// A driver that responds slowly and counts the calls.
    struct Slow(Arc<AtomicUsize>);

    #[tonic::async_trait]
    impl Identity for Slow {
        async fn get_plugin_info(
            &self,
            _: Request<v1::GetPluginInfoRequest>,
        ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
            Err(Status::internal("has forgotten its name"))
        }

        async fn get_plugin_capabilities(
            &self,
            _: Request<v1::GetPluginCapabilitiesRequest>,
        ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
            Err(Status::unimplemented(""))
        }

        async fn probe(&self, _: Request<v1::ProbeRequest>) -> Result<Response<v1::ProbeResponse>, Status> {
            let started = self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(Response::new(v1::ProbeResponse { ready: Some(started == 0) }))
        }
    }

    fn serve(endpoint: &Endpoint, started: &Arc<AtomicUsize>) -> (SocketFile, AbortOnDropHandle<()>) {
        let (listener, file) = wharf_csi::bind(endpoint).unwrap();
        let server = Server::builder().serve_with_incoming(
            IdentityServer::new(Slow(started.clone())),
            UnixListenerStream::new(listener),
        );
        (file, AbortOnDropHandle::new(tokio::spawn(async { server.await.unwrap() })))
    }

    #[tokio::test]
    async fn concurrent_requests_share_one_probe() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint: Endpoint = dir.path().join("csi.sock").to_str().unwrap().parse().unwrap();
        let liveness = Liveness::new(&Client::new(&endpoint), Duration::from_secs(5), Metrics::new());
        assert!(liveness.check().await.unwrap_err().starts_with("Unavailable"));

        let started = Arc::new(AtomicUsize::new(0));
        let _driver = serve(&endpoint, &started);
        let first = tokio::time::timeout(Duration::from_millis(50), liveness.check()).await;
        assert!(first.is_err(), "hangs up");
        let results = tokio::join!(liveness.check(), liveness.check(), liveness.check());
        assert_eq!(results, (Ok(()), Ok(()), Ok(())));
        assert_eq!(started.load(Ordering::Relaxed), 1);
        // Results are not cached: the next request calls again.
        assert_eq!(liveness.check().await, Err("driver responded but is not ready".to_owned()));
        assert_eq!(started.load(Ordering::Relaxed), 2);
    }

    /// sidecars.md 1.8 "/healthz"
    #[test]
    fn probe_response_decides_health() {
        let late = Status::deadline_exceeded("late");
        for (response, expected) in [
            (Ok(None), Ok(())),
            (Ok(Some(true)), Ok(())),
            (Ok(Some(false)), Err("driver responded but is not ready".to_owned())),
            (Err(late), Err("DeadlineExceeded: late".to_owned())),
        ] {
            assert_eq!(probe_result(response), expected);
        }
    }
}
