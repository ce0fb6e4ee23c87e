//! The HTTP server: serves responses and applies faults. Resets are real TCP resets.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::cloud::Cloud;
use crate::control;
use crate::faults::FaultEffect;
use crate::limits::RateLimit;
use crate::metadata::{self, Found};
use crate::request::Request;
use crate::requests::LoggedRequest;
use crate::response::{ApiResponse, default_message};

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The API and the control API.
    Api,
    /// The metadata service of one droplet.
    Metadata(u64),
}

/// Serves until `stop`.
pub(crate) async fn serve(listener: TcpListener, cloud: Arc<Cloud>, side: Side, stop: CancellationToken) {
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: wait, or this would spin.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        tokio::spawn(connection(stream, cloud.clone(), side, stop.clone()));
    }
}

async fn connection(stream: TcpStream, cloud: Arc<Cloud>, side: Side, stop: CancellationToken) {
    let reset = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Resettable { stream, reset: reset.clone() });
    let service = service_fn(move |request: http::Request<Incoming>| {
        let (cloud, reset) = (cloud.clone(), reset.clone());
        async move {
            let outgoing = handle(&cloud, side, request).await;
            outgoing.ok_or_else(|| {
                reset.store(true, Ordering::Relaxed);
                io::Error::from(io::ErrorKind::ConnectionReset)
            })
        }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
    tokio::select! {
        () = stop.cancelled() => {}
        served = serving => if let Err(error) = served {
            tracing::debug!(%error, "connection ended with an error");
        },
    }
}

/// Handles one request: faults, rules, log. `None` resets the connection.
async fn handle(cloud: &Cloud, side: Side, incoming: http::Request<Incoming>) -> Option<Response<Text>> {
    let token = bearer(&incoming);
    let request = read(incoming).await?;
    if side == Side::Api && request.path.starts_with(control::ROOT) {
        return Some(plain(&control::response(cloud, &request)));
    }
    let at = cloud.clock.now();
    let action = request.action();
    let matched = cloud.lock().faults.apply(&request.method, &request.path, action.as_deref());
    if !matched.latency.is_zero() {
        tokio::time::sleep(matched.latency).await;
    }
    let response = match side {
        Side::Api => api(cloud, &request, token.as_deref(), matched.effect.as_ref()).await,
        Side::Metadata(droplet) => metadata_service(cloud, droplet, &request, matched.effect.as_ref()),
    };
    cloud.lock().log.push(LoggedRequest {
        at,
        method: request.method,
        path: request.path,
        query: request.query,
        action,
        status: response.as_ref().map(|response| response.status().as_u16()),
        faulted: matched.effect.is_some(),
        droplet: match side {
            Side::Api => None,
            Side::Metadata(droplet) => Some(droplet),
        },
    });
    response
}

fn bearer(request: &http::Request<Incoming>) -> Option<String> {
    let header = request.headers().get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty()).then(|| token.trim().to_owned())
}

/// `None` if the client disconnected during its request.
async fn read(incoming: http::Request<Incoming>) -> Option<Request> {
    let (parts, body) = incoming.into_parts();
    let host =
        parts.headers.get(http::header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    Some(Request {
        method: parts.method.as_str().to_ascii_uppercase(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        base: format!("http://{host}"),
        body: body.collect().await.ok()?.to_bytes().to_vec(),
    })
}

/// The response of a fault that prevents the effect; the outer `None` means that there is no such fault.
fn fault_before_effect(fault: Option<&FaultEffect>) -> Option<Option<Response<Text>>> {
    match fault? {
        FaultEffect::ResetBefore => Some(None),
        FaultEffect::Status { code, message, retry_after } => {
            let mut response =
                ApiResponse::error(*code, message.as_deref().unwrap_or_else(|| default_message(*code)));
            response.retry_after = *retry_after;
            Some(Some(plain(&response)))
        }
        FaultEffect::Html(code) => Some(Some(html(*code))),
        _ => None,
    }
}

/// Applies a fault to the response after the request took effect.
fn fault_after_effect(fault: Option<&FaultEffect>, response: Response<Text>) -> Option<Response<Text>> {
    match fault {
        Some(FaultEffect::ResetAfter) => None,
        Some(FaultEffect::StatusAfter(code)) => {
            Some(plain(&ApiResponse::error(*code, default_message(*code))))
        }
        Some(FaultEffect::Truncated) => Some(response.map(|text| Text::whole(text.first_half()))),
        Some(FaultEffect::CutOff) => Some(response.map(|text| Text { truncated: true, ..text })),
        _ => Some(response),
    }
}

async fn api(
    cloud: &Cloud,
    request: &Request,
    token: Option<&str>,
    fault: Option<&FaultEffect>,
) -> Option<Response<Text>> {
    if let Some(matched) = fault_before_effect(fault) {
        return matched;
    }
    let (response, rate_limit) = cloud.serve(request, token, fault).await;
    let mut response = plain(&response);
    if let Some(rate_limit) = rate_limit {
        rate_headers(&mut response, rate_limit);
    }
    fault_after_effect(fault, response)
}

fn metadata_service(
    cloud: &Cloud,
    droplet: u64,
    request: &Request,
    fault: Option<&FaultEffect>,
) -> Option<Response<Text>> {
    if let Some(matched) = fault_before_effect(fault) {
        return matched;
    }
    let found = match (request.method.as_str(), cloud.lock().state.droplets.get(&droplet)) {
        ("GET", Some(droplet)) => metadata::lookup(droplet, &request.path),
        _ => Found::Nothing,
    };
    let response = match found {
        Found::Text(text) => texts(200, "text/plain; charset=utf-8", text),
        Found::Json(value) => plain(&ApiResponse::ok(value)),
        Found::Moved(path) => {
            let mut response = texts(301, "text/plain; charset=utf-8", String::new());
            if let Ok(path) = HeaderValue::from_str(&path) {
                response.headers_mut().insert(LOCATION, path);
            }
            response
        }
        Found::Nothing => texts(404, "text/plain; charset=utf-8", "not found".to_owned()),
    };
    fault_after_effect(fault, response)
}

fn plain(response: &ApiResponse) -> Response<Text> {
    let text = response.body.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut http_response = texts(response.status, "application/json; charset=utf-8", text);
    if let Some(seconds) = response.retry_after {
        http_response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    http_response
}

fn html(status: u16) -> Response<Text> {
    let name = status_of(status).canonical_reason().unwrap_or("Error");
    let page = format!(
        "<html>\r\n<head><title>{status} {name}</title></head>\r\n<body>\r\n<center><h1>{status} {name}</h1>\
         </center>\r\n</body>\r\n</html>\r\n"
    );
    texts(status, "text/html", page)
}

fn texts(status: u16, content_type: &'static str, text: String) -> Response<Text> {
    let mut response = Response::new(Text::whole(Bytes::from(text)));
    *response.status_mut() = status_of(status);
    if status != 204 {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    response
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn rate_headers(response: &mut Response<Text>, rate_limit: RateLimit) {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("ratelimit-limit"), HeaderValue::from(rate_limit.limit));
    headers.insert(HeaderName::from_static("ratelimit-remaining"), HeaderValue::from(rate_limit.remaining));
    headers.insert(HeaderName::from_static("ratelimit-reset"), HeaderValue::from(rate_limit.reset));
}

/// A body. If `truncated`, it announces its full length and ends in the middle.
#[derive(Debug)]
struct Text {
    bytes: Bytes,
    sent: bool,
    truncated: bool,
}

impl Text {
    fn whole(bytes: Bytes) -> Self {
        Self { bytes, sent: false, truncated: false }
    }

    fn first_half(&self) -> Bytes {
        self.bytes.slice(..self.bytes.len() / 2)
    }
}

impl Body for Text {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        Poll::Ready(match (self.sent, self.truncated) {
            (true, false) => None,
            (true, true) => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
            (false, truncated) => {
                self.sent = true;
                Some(Ok(Frame::data(if truncated { self.first_half() } else { self.bytes.clone() })))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.truncated && (self.sent || self.bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// A connection that is reset on drop if `reset` is set.
struct Resettable {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Resettable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // If this fails, the connection is closed normally.
            _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Resettable {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Resettable {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
