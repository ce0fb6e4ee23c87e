//! HTTP transport: HTTP/1.1, with TLS for `https://`, bounded in time and size.

use std::fmt;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;

use super::ClientError;

type Body = Full<std::io::Cursor<Vec<u8>>>;

/// Timeout of one attempt; the API responds to most calls in well under a second.
const ONE_TRY: Duration = Duration::from_secs(15);
/// 200 volumes are 200 KB.
const MAX_RESPONSE: usize = 16 << 20;
/// Shorter than the idle time of any load balancer: a connection that is closed as we write to it leaves a POST
/// uncertain.
const IDLE: Duration = Duration::from_secs(15);

/// The HTTP connections to one server.
pub(crate) struct Wire {
    http: Connections,
    base: String,
    user_agent: HeaderValue,
}

// A fake on `http://` must work on a machine without root certificates.
enum Connections {
    Plain(Http<HttpConnector, Body>),
    Tls(Http<HttpsConnector<HttpConnector>, Body>),
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({})", self.base)
    }
}

/// A response with any status.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

/// No response.
#[derive(Debug)]
pub(crate) struct WireError {
    /// Whether the server may have received the request.
    pub(crate) sent: bool,
    pub(crate) message: String,
}

impl Wire {
    pub(crate) fn new(url: &str, user_agent: &str) -> Result<Self, ClientError> {
        let wrong = |reason: &str| ClientError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?;
        // A password in the URL would appear in every log line.
        if authority.as_str().contains('@') {
            return Err(ClientError::Url {
                url: "(with a user name)".to_owned(),
                reason: "it contains credentials; pass the token separately".to_owned(),
            });
        }
        if uri.query().is_some() {
            return Err(wrong("it has a query"));
        }
        let http = match uri.scheme_str() {
            Some("http") => Connections::Plain(builder().build(connector())),
            Some("https") => {
                let tls = HttpsConnectorBuilder::new().with_native_roots().map_err(ClientError::Roots)?;
                let mut tcp = connector();
                tcp.enforce_http(false);
                Connections::Tls(builder().build(tls.https_only().enable_http1().wrap_connector(tcp)))
            }
            _ => return Err(wrong("it starts with neither https:// nor http://")),
        };
        let user_agent = HeaderValue::try_from(user_agent)
            .map_err(|_| wrong("the user agent is not a valid header value"))?;
        Ok(Self { http, base: url.trim_end_matches('/').to_owned(), user_agent })
    }

    /// Sends one request once and reads the whole response.
    pub(crate) async fn send(
        &self,
        method: &Method,
        target: &str,
        token: &HeaderValue,
        body: Option<&[u8]>,
        within: Duration,
    ) -> Result<Response, WireError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{target}", self.base))
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, &self.user_agent)
            .header(AUTHORIZATION, token);
        if method != Method::GET {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = Full::new(std::io::Cursor::new(body.unwrap_or_default().to_vec()));
        let request =
            request.body(body).map_err(|error| WireError { sent: false, message: error.to_string() })?;
        self.http.exchange(request, within.min(ONE_TRY)).await
    }
}

impl Connections {
    async fn exchange(&self, request: Request<Body>, within: Duration) -> Result<Response, WireError> {
        let response = match self {
            Self::Plain(http) => http.request(request),
            Self::Tls(http) => http.request(request),
        };
        let exchange = async {
            let response = response
                .await
                .map_err(|error| WireError { sent: !error.is_connect(), message: chain(&error) })?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_RESPONSE).collect().await;
            let body = body.map_err(|error| WireError {
                sent: true,
                message: format!("the response broke off: {}", chain(&*error)),
            })?;
            Ok(Response { status: head.status.as_u16(), headers: head.headers, body: body.to_bytes().into() })
        };
        match timeout(within, exchange).await {
            Ok(response) => response,
            Err(_) => {
                let message = format!("no response within {:.1} s", within.as_secs_f32());
                Err(WireError { sent: true, message })
            }
        }
    }
}

/// Gets a text without a token, in one attempt: for the metadata service.
pub(crate) async fn get_text(uri: Uri, within: Duration) -> Result<Response, WireError> {
    let request = Request::get(uri).body(Body::default());
    let request = request.map_err(|error| WireError { sent: false, message: error.to_string() })?;
    Connections::Plain(builder().build(connector())).exchange(request, within).await
}

fn builder() -> hyper_util::client::legacy::Builder {
    let mut builder = Http::builder(TokioExecutor::new());
    builder.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
    builder
}

fn connector() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(Some(Duration::from_secs(5)));
    tcp.set_nodelay(true);
    tcp
}

/// An error with its causes: hyper alone would only say "client error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loading certificates must not panic, whether or not the machine has any.
    #[test]
    fn tls_client_is_created_or_reports_missing_roots() {
        let wire = Wire::new("https://api.digitalocean.com/", "wharf/test");
        assert!(matches!(wire, Ok(_) | Err(ClientError::Roots(_))), "{wire:?}");
    }

    #[test]
    fn invalid_urls_are_refused_without_leaking_credentials() {
        for (url, good) in [
            ("http://127.0.0.1:8080", true),
            ("http://127.0.0.1:8080/", true),
            ("http://localhost/under/", true),
            ("ftp://api", false),
            ("api.digitalocean.com", false),
            ("", false),
            ("http://", false),
            ("http://a/?b=c", false),
            ("http://me:hunter2@api/", false),
        ] {
            let wire = Wire::new(url, "wharf/test");
            assert_eq!(wire.is_ok(), good, "{url}");
            if let Err(error) = wire {
                assert!(!error.to_string().contains("hunter2"), "{error}");
            }
        }
    }
}
