//! Whether the driver answers: a Probe for each request, under a deadline.
//!
//! One connection serves all requests and repairs itself, and requests that come while a Probe runs share its
//! answer. So a driver that hangs is asked once in each deadline however many ask, and a caller that hangs up
//! takes nothing from the others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};
use wharf_csi::{Client, v1};

use crate::metrics::Metrics;

/// The driver's health, as kubelet asks for it. Clones share their Probes.
#[derive(Clone)]
pub struct Liveness {
    client: Client,
    metrics: Metrics,
    running: Arc<Mutex<Option<watch::Receiver<Option<Verdict>>>>>,
}

/// Alive, or why not.
pub(crate) type Verdict = Result<(), String>;

impl Liveness {
    pub(crate) fn new(client: &Client, probe_timeout: Duration, metrics: Metrics) -> Self {
        Self { client: client.with_deadline(probe_timeout), metrics, running: Arc::default() }
    }

    /// Asks the driver, or waits for the answer if it is being asked.
    pub(crate) async fn check(&self) -> Verdict {
        let mut answer = self.join();
        match answer.wait_for(Option::is_some).await {
            Ok(verdict) => verdict.clone().unwrap_or_else(|| Err(UNFINISHED.to_owned())),
            Err(_) => Err(UNFINISHED.to_owned()),
        }
    }

    /// The Probe that runs, or a new one. It is a task of its own: who asked first may hang up.
    fn join(&self) -> watch::Receiver<Option<Verdict>> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // A Probe that has ended, or that was dropped with its answer, says nothing of now.
        if let Some(answer) = running.as_ref()
            && answer.borrow().is_none()
            && answer.has_changed().is_ok()
        {
            return answer.clone();
        }
        let (sender, answer) = watch::channel(None);
        *running = Some(answer.clone());
        let liveness = self.clone();
        tokio::spawn(async move {
            let verdict = liveness.probe().await;
            if let Err(reason) = &verdict {
                tracing::warn!(reason, "the driver is not healthy");
            }
            sender.send_replace(Some(verdict));
        });
        answer
    }

    async fn probe(&self) -> Verdict {
        let asked = Instant::now();
        let answer = self.client.identity().probe(v1::ProbeRequest {}).await;
        let took = asked.elapsed();
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        if code == Code::Ok && !self.metrics.knows_driver() {
            let info = self.client.identity().get_plugin_info(v1::GetPluginInfoRequest {}).await;
            // Only a label wants it, so it is asked for again at the next Probe.
            if let Ok(info) = info {
                self.metrics.name_driver(&info.get_ref().name);
            }
        }
        self.metrics.called("/csi.v1.Identity/Probe", code, took);
        verdict(answer.map(|answer| answer.into_inner().ready))
    }
}

const UNFINISHED: &str = "the probe was broken off";

/// What an answer to Probe means. A driver that says nothing of its readiness is ready, by the CSI spec.
fn verdict(answer: Result<Option<bool>, Status>) -> Verdict {
    match answer {
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

    /// A driver that takes its time to answer, and counts how often it was asked.
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
            let asked = self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(200)).await;
            Ok(Response::new(v1::ProbeResponse { ready: Some(asked == 0) }))
        }
    }

    fn serve(endpoint: &Endpoint, asked: &Arc<AtomicUsize>) -> (SocketFile, AbortOnDropHandle<()>) {
        let (listener, file) = wharf_csi::bind(endpoint).unwrap();
        let server = Server::builder()
            .serve_with_incoming(IdentityServer::new(Slow(asked.clone())), UnixListenerStream::new(listener));
        (file, AbortOnDropHandle::new(tokio::spawn(async { server.await.unwrap() })))
    }

    #[tokio::test]
    async fn requests_share_a_probe_and_one_that_hangs_up_takes_nothing_away() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint: Endpoint = dir.path().join("csi.sock").to_str().unwrap().parse().unwrap();
        let liveness = Liveness::new(&Client::new(&endpoint), Duration::from_secs(5), Metrics::new());
        assert!(liveness.check().await.unwrap_err().starts_with("Unavailable"));

        let asked = Arc::new(AtomicUsize::new(0));
        let _driver = serve(&endpoint, &asked);
        let first = tokio::time::timeout(Duration::from_millis(50), liveness.check()).await;
        assert!(first.is_err(), "hangs up");
        let answers = tokio::join!(liveness.check(), liveness.check(), liveness.check());
        assert_eq!(answers, (Ok(()), Ok(()), Ok(())));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        // An answer is not kept: the next one asks again.
        assert_eq!(liveness.check().await, Err("driver responded but is not ready".to_owned()));
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    /// sidecars.md 1.8 "/healthz"
    #[test]
    fn what_an_answer_means() {
        let late = Status::deadline_exceeded("late");
        for (answer, expected) in [
            (Ok(None), Ok(())),
            (Ok(Some(true)), Ok(())),
            (Ok(Some(false)), Err("driver responded but is not ready".to_owned())),
            (Err(late), Err("DeadlineExceeded: late".to_owned())),
        ] {
            assert_eq!(verdict(answer), expected);
        }
    }
}
