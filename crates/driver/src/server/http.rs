//! `/metrics` for Prometheus and `/healthz` for whoever watches the process, over plain HTTP/1.

use http::StatusCode;
use tokio::net::TcpListener;
use wharf_csi::{Page, serve_pages};

use crate::identity::{Ready, ask};
use crate::metrics::Metrics;

/// Serves both until it is aborted.
pub(super) async fn serve(listener: TcpListener, metrics: Metrics, ready: Ready) {
    let pages = move |path: String| {
        let (metrics, ready) = (metrics.clone(), ready.clone());
        async move { page(&path, &metrics, &ready).await }
    };
    serve_pages(listener, pages).await;
}

async fn page(path: &str, metrics: &Metrics, ready: &Ready) -> Page {
    match path {
        "/metrics" => Page::metrics(metrics.text()),
        "/healthz" => match ask(ready).await {
            Ok(()) => Page::text(StatusCode::OK, "ok\n"),
            Err(reason) => Page::text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        _ => Page::text(StatusCode::NOT_FOUND, "there are /metrics and /healthz\n"),
    }
}
