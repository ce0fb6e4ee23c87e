//! `/metrics` for Prometheus and `/healthz` for liveness probes, over plain HTTP/1.

use http::StatusCode;
use tokio::net::TcpListener;
use wharf_csi::{HttpPage, serve_pages};

use crate::identity::{ReadinessCheck, check_ready};
use crate::metrics::Metrics;

/// Serves both pages until the future is dropped.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics, ready: ReadinessCheck) {
    let pages = move |path: String| {
        let (metrics, ready) = (metrics.clone(), ready.clone());
        async move { page(&path, &metrics, &ready).await }
    };
    serve_pages(listener, pages).await;
}

async fn page(path: &str, metrics: &Metrics, ready: &ReadinessCheck) -> HttpPage {
    match path {
        "/metrics" => {
            // Gauges of the backend may read the disk.
            let metrics = metrics.clone();
            match tokio::task::spawn_blocking(move || metrics.text()).await {
                Ok(text) => HttpPage::metrics(text),
                Err(error) => HttpPage::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
            }
        }
        "/healthz" => match check_ready(ready).await {
            Ok(()) => HttpPage::text(StatusCode::OK, "ok\n"),
            Err(reason) => HttpPage::text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => HttpPage::text(StatusCode::NOT_FOUND, "not found: the pages are /metrics and /healthz\n"),
    }
}
