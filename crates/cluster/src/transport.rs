//! Sends requests: paths, timeouts, limits, and responses as bytes or [`ApiError`].
//!
//! Guarantees: a name that is not one path segment never reaches the server (an empty name would turn a GET of one
//! object into a LIST of all), every request has a timeout, and every response a size limit.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use wharf_model::{ApiResource, Key, Scope};

use crate::error::{ApiError, Subject, classify};
use crate::limit::Limit;
use crate::{Fence, Metrics};

/// The timeout of a request. The API server's own limit for most is 60 s, but controllers prefer an earlier retry.
const DEADLINE: Duration = Duration::from_secs(30);
/// The size limit of a response; a page of a list has up to 500 objects.
const MAX_RESPONSE: usize = 128 << 20;
/// HTTP/1.1 uses one connection per request in flight, and each costs memory on both sides.
const IN_FLIGHT: usize = 64;
/// All but RFC 3986's unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Sends requests to the API server; cheap to clone, clones share limits.
#[derive(Clone)]
pub(crate) struct Transport {
    client: kube::Client,
    limit: Option<Arc<Limit>>,
    in_flight: Arc<Semaphore>,
    metrics: Metrics,
    /// Writes go out only while this is open.
    fence: Option<Fence>,
}

/// The server's version and its list of API groups, as subjects of errors and metrics.
const VERSION: ApiResource =
    ApiResource { group: "", version: "v1", kind: "Info", plural: "version", scope: Scope::Cluster };
const API_GROUPS: ApiResource =
    ApiResource { group: "", version: "v1", kind: "APIGroupList", plural: "apis", scope: Scope::Cluster };

/// One request. `subject` describes it in errors; the rest is sent.
pub(crate) struct Call<'a> {
    pub(crate) subject: Subject<'a>,
    /// The path, if it is not that of the subject.
    fixed_path: Option<&'static str>,
    pub(crate) subresource: Option<&'a str>,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) content_type: &'static str,
    pub(crate) body: Vec<u8>,
}

impl<'a> Call<'a> {
    /// A request on one object.
    pub(crate) fn object(method: &'static str, api: &'a ApiResource, key: &'a Key) -> Self {
        Self::new(Subject {
            method,
            api,
            namespace: key.namespace.as_deref(),
            name: Some(&key.name),
            creating: None,
        })
    }

    /// A request on a collection.
    pub(crate) fn collection(method: &'static str, api: &'a ApiResource, namespace: Option<&'a str>) -> Self {
        Self::new(Subject { method, api, namespace, name: None, creating: None })
    }

    /// The list of API groups.
    pub(crate) fn api_groups() -> Call<'static> {
        Self::fixed(&API_GROUPS, "/apis")
    }

    /// A request for the server's version.
    pub(crate) fn version() -> Call<'static> {
        Self::fixed(&VERSION, "/version")
    }

    fn fixed(api: &'static ApiResource, path: &'static str) -> Call<'static> {
        Call { fixed_path: Some(path), ..Call::collection("GET", api, None) }
    }

    fn new(subject: Subject<'a>) -> Self {
        Self {
            subject,
            fixed_path: None,
            subresource: None,
            query: Vec::new(),
            content_type: "",
            body: Vec::new(),
        }
    }

    /// The object to be created, for errors.
    pub(crate) fn creating(mut self, name: Option<&'a str>) -> Self {
        self.subject.creating = name;
        self
    }

    pub(crate) fn subresource(mut self, subresource: Option<&'a str>) -> Self {
        self.subresource = subresource;
        self
    }

    pub(crate) fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    pub(crate) fn body(mut self, content_type: &'static str, body: Vec<u8>) -> Self {
        self.content_type = content_type;
        self.body = body;
        self
    }

    fn path(&self) -> Result<String, ApiError> {
        if let Some(path) = self.fixed_path {
            return Ok(path.to_owned());
        }
        let Subject { api, namespace, name, .. } = self.subject;
        for part in [namespace, name, self.subresource].into_iter().flatten() {
            if !is_segment(part) {
                let message = format!("{part:?} is not a valid name");
                return Err(ApiError::Invalid(self.subject.refusal(message)));
            }
        }
        let mut path = api.collection_path(namespace);
        for part in [name, self.subresource].into_iter().flatten() {
            path.push('/');
            path.push_str(part);
        }
        for (position, (name, value)) in self.query.iter().enumerate() {
            path.push(if position == 0 { '?' } else { '&' });
            path.push_str(name);
            path.push('=');
            path.extend(utf8_percent_encode(value, RESERVED));
        }
        Ok(path)
    }

    fn request(&mut self) -> Result<Request<Body>, ApiError> {
        let method = match self.subject.method {
            "GET" | "LIST" | "WATCH" => Method::GET,
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            "DELETE" => Method::DELETE,
            other => {
                let message = format!("unknown method {other}");
                return Err(ApiError::Invalid(self.subject.refusal(message)));
            }
        };
        let mut request = Request::builder().method(method).uri(self.path()?);
        if !self.body.is_empty() {
            request = request.header(CONTENT_TYPE, self.content_type);
        }
        request
            .body(Body::from(std::mem::take(&mut self.body)))
            .map_err(|error| ApiError::Invalid(self.subject.refusal(error.to_string())))
    }
}

impl Transport {
    pub(crate) fn new(client: kube::Client, limit: Option<Limit>, metrics: Metrics) -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        Self { client, limit: limit.map(Arc::new), in_flight, metrics, fence: None }
    }

    /// The same client, which sends writes only while the fence is open and cancels them when it closes.
    pub(crate) fn fenced(&self, fence: Fence) -> Self {
        Self { fence: Some(fence), ..self.clone() }
    }

    /// The same client without the shared limits: a lease must be renewed however busy its holder is.
    pub(crate) fn unlimited(&self) -> Self {
        self.limited(None)
    }

    /// The same client with another limit instead of the shared ones.
    pub(crate) fn limited(&self, limit: Option<Limit>) -> Self {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
        Self { limit: limit.map(Arc::new), in_flight, ..self.clone() }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn default_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn send(&self, call: Call<'_>) -> Result<Vec<u8>, ApiError> {
        self.send_within(call, DEADLINE).await
    }

    /// Sends a request with another timeout. Time spent waiting for the limits does not count.
    pub(crate) async fn send_within(
        &self,
        mut call: Call<'_>,
        within: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let request = call.request()?;
        let subject = call.subject;
        let response = async {
            // The semaphore is never closed, so this does not fail; if it did, one more request is harmless.
            let _permit = self.in_flight.acquire().await.ok();
            if let Some(limit) = &self.limit {
                limit.wait().await;
            }
            let exchange = timeout(within, self.exchange(subject, request));
            let response = match &self.fence {
                Some(fence) if subject.is_write() => fence.run(exchange).await,
                _ => Some(exchange.await),
            };
            match response {
                Some(Ok(response)) => response,
                Some(Err(_)) => {
                    let message = format!("no response within {} s", within.as_secs_f32());
                    Err(ApiError::Unavailable(subject.refusal(message)))
                }
                None => Err(ApiError::Unavailable(subject.refusal("this process lost its lease"))),
            }
        }
        .await;
        self.metrics.request(subject.method, subject.api.plural, response.as_ref().err());
        response
    }

    async fn exchange(&self, subject: Subject<'_>, request: Request<Body>) -> Result<Vec<u8>, ApiError> {
        let (retry_after, http, body) = self.send_request(subject, request).await?;
        let bytes = Limited::new(body, MAX_RESPONSE)
            .collect()
            .await
            .map_err(|error| {
                ApiError::Unavailable(subject.refusal(format!("response was interrupted: {error}")))
            })?
            .to_bytes();
        if (200..300).contains(&http) {
            Ok(bytes.into())
        } else {
            Err(classify(subject, http, retry_after, &bytes))
        }
    }

    /// Sends a request and returns the response's body as a stream. `within` applies to the response's headers only.
    pub(crate) async fn open(&self, mut call: Call<'_>, within: Duration) -> Result<Body, ApiError> {
        let request = call.request()?;
        let subject = call.subject;
        let response = match timeout(within, self.send_request(subject, request)).await {
            Ok(Ok((_, http, body))) if (200..300).contains(&http) => Ok(body),
            Ok(Ok((retry_after, http, body))) => {
                let bytes = timeout(within, Limited::new(body, 1 << 20).collect()).await;
                let bytes = bytes.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
                Err(classify(subject, http, retry_after, &bytes))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ApiError::Unavailable(subject.refusal("no response in time"))),
        };
        self.metrics.request(subject.method, subject.api.plural, response.as_ref().err());
        response
    }

    async fn send_request(
        &self,
        subject: Subject<'_>,
        request: Request<Body>,
    ) -> Result<(Option<Duration>, u16, Body), ApiError> {
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| ApiError::Unavailable(subject.refusal(chain(&error))))?;
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(|seconds: u64| Duration::from_secs(seconds.min(60)));
        Ok((retry_after, response.status().as_u16(), response.into_body()))
    }
}

/// An error with its causes: hyper's own message is only "error sending request".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

/// Whether the text is exactly one path segment. Kubernetes allows more than DNS names (a colon, for example), so this
/// rejects only what would change the meaning of the path.
fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"/%?#\\\"<>[]^`{|}".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_model::Scope;

    const PVCS: ApiResource = ApiResource {
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        scope: Scope::Namespaced,
    };

    #[test]
    fn call_paths_include_subresource_and_query() {
        let key = Key::namespaced("ns", "a");
        let call = Call::object("PATCH", &PVCS, &key).subresource(Some("status"));
        assert_eq!(call.path().unwrap(), "/api/v1/namespaces/ns/persistentvolumeclaims/a/status");
        let call =
            Call::collection("LIST", &PVCS, None).query("limit", "5").query("labelSelector", "a in (b)");
        assert_eq!(
            call.path().unwrap(),
            "/api/v1/persistentvolumeclaims?limit=5&labelSelector=a%20in%20%28b%29"
        );
    }

    #[test]
    fn invalid_path_segments_are_rejected() {
        for name in ["", ".", "..", "a/b", "a?b", "a#b", "a%2fb", "a b", "ä", "a\n"] {
            let key = Key::namespaced("ns", name);
            let error = Call::object("GET", &PVCS, &key).path().unwrap_err();
            assert_eq!(error.reason(), "Invalid", "{name:?}");
            let key = Key::namespaced(name, "a");
            assert!(Call::object("GET", &PVCS, &key).path().is_err(), "{name:?}");
        }
        for name in ["a", "system:node", "a.b-c", "pvc-0000"] {
            let key = Key::namespaced("ns", name);
            assert!(Call::object("GET", &PVCS, &key).path().is_ok(), "{name:?}");
        }
    }
}
