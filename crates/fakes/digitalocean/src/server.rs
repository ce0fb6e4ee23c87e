//! The thin server: HTTP in, answers and faults out. Resets are real ones, not polite ends.

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

use crate::answer::{Answer, usual_message};
use crate::cloud::Cloud;
use crate::control;
use crate::faults::What;
use crate::limits::Verdict;
use crate::metadata::{self, Found};
use crate::request::Request;
use crate::requests::Logged;

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The API, and the control path beside it.
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
                    tracing::warn!(%error, "a connection was not accepted");
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
            tracing::debug!(%error, "a connection broke off");
        },
    }
}

/// One request through faults, rules and log. None is a reset.
async fn handle(cloud: &Cloud, side: Side, incoming: http::Request<Incoming>) -> Option<Response<Text>> {
    let token = bearer(&incoming);
    let request = read(incoming).await?;
    if side == Side::Api && request.path.starts_with(control::ROOT) {
        return Some(plain(&control::answer(cloud, &request)));
    }
    let at = cloud.clock.now();
    let action = request.action();
    let struck = cloud.lock().faults.strike(&request.method, &request.path, action.as_deref());
    if !struck.latency.is_zero() {
        tokio::time::sleep(struck.latency).await;
    }
    let response = match side {
        Side::Api => api(cloud, &request, token.as_deref(), struck.what.as_ref()).await,
        Side::Metadata(droplet) => about(cloud, droplet, &request, struck.what.as_ref()),
    };
    cloud.lock().log.push(Logged {
        at,
        method: request.method,
        path: request.path,
        query: request.query,
        action,
        status: response.as_ref().map(|response| response.status().as_u16()),
        faulted: struck.what.is_some(),
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

/// None if the client went away in the middle of its request.
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

/// A fault that comes before any effect, as the answer it gives; the outer none is no such fault.
fn before(fault: Option<&What>) -> Option<Option<Response<Text>>> {
    match fault? {
        What::ResetBefore => Some(None),
        What::Status { code, message, retry_after } => {
            let mut answer = Answer::error(*code, message.as_deref().unwrap_or_else(|| usual_message(*code)));
            answer.retry_after = *retry_after;
            Some(Some(plain(&answer)))
        }
        What::Html(code) => Some(Some(html(*code))),
        _ => None,
    }
}

/// A fault that spoils an answer whose effect has happened.
fn after(fault: Option<&What>, response: Response<Text>) -> Option<Response<Text>> {
    match fault {
        Some(What::ResetAfter) => None,
        Some(What::StatusAfter(code)) => Some(plain(&Answer::error(*code, usual_message(*code)))),
        Some(What::Truncated) => Some(response.map(|text| Text::whole(text.first_half()))),
        Some(What::CutOff) => Some(response.map(|text| Text { cut: true, ..text })),
        _ => Some(response),
    }
}

async fn api(
    cloud: &Cloud,
    request: &Request,
    token: Option<&str>,
    fault: Option<&What>,
) -> Option<Response<Text>> {
    if let Some(struck) = before(fault) {
        return struck;
    }
    let (answer, verdict) = cloud.serve(request, token, fault).await;
    let mut response = plain(&answer);
    if let Some(verdict) = verdict {
        rate_headers(&mut response, verdict);
    }
    after(fault, response)
}

fn about(cloud: &Cloud, droplet: u64, request: &Request, fault: Option<&What>) -> Option<Response<Text>> {
    if let Some(struck) = before(fault) {
        return struck;
    }
    let found = match (request.method.as_str(), cloud.lock().state.droplets.get(&droplet)) {
        ("GET", Some(droplet)) => metadata::look(droplet, &request.path),
        _ => Found::Nothing,
    };
    let response = match found {
        Found::Text(text) => texts(200, "text/plain; charset=utf-8", text),
        Found::Json(value) => plain(&Answer::ok(value)),
        Found::Moved(path) => {
            let mut response = texts(301, "text/plain; charset=utf-8", String::new());
            if let Ok(path) = HeaderValue::from_str(&path) {
                response.headers_mut().insert(LOCATION, path);
            }
            response
        }
        Found::Nothing => texts(404, "text/plain; charset=utf-8", "not found".to_owned()),
    };
    after(fault, response)
}

fn plain(answer: &Answer) -> Response<Text> {
    let text = answer.body.as_ref().map(ToString::to_string).unwrap_or_default();
    let mut response = texts(answer.status, "application/json; charset=utf-8", text);
    if let Some(seconds) = answer.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
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

fn rate_headers(response: &mut Response<Text>, verdict: Verdict) {
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("ratelimit-limit"), HeaderValue::from(verdict.limit));
    headers.insert(HeaderName::from_static("ratelimit-remaining"), HeaderValue::from(verdict.remaining));
    headers.insert(HeaderName::from_static("ratelimit-reset"), HeaderValue::from(verdict.reset));
}

/// A body; one that is cut announces all of itself and breaks off in the middle.
#[derive(Debug)]
struct Text {
    bytes: Bytes,
    sent: bool,
    cut: bool,
}

impl Text {
    fn whole(bytes: Bytes) -> Self {
        Self { bytes, sent: false, cut: false }
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
        Poll::Ready(match (self.sent, self.cut) {
            (true, false) => None,
            (true, true) => Some(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
            (false, cut) => {
                self.sent = true;
                Some(Ok(Frame::data(if cut { self.first_half() } else { self.bytes.clone() })))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.cut && (self.sent || self.bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

/// A connection that ends with a reset if it is told to.
struct Resettable {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Drop for Resettable {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Relaxed) {
            // If this fails the connection is closed all the same, only politely.
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
