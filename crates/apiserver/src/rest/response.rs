//! Responses: objects, lists and errors in the requested format.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use wharf_model::Time;

use super::negotiate::Shape;
use super::{Body, encode};
use crate::kinds::Kind;
use crate::memory_budget::MemoryShare;
use crate::status::StatusError;
use crate::store::Revision;
use crate::{schema, table};

/// The result of a request.
pub(crate) enum ApiResponse {
    /// One stored object.
    Object(u16, Bytes),
    /// A list of objects.
    List(List),
    /// Any JSON that has only one representation.
    Json(u16, Value),
    /// Bytes with another content type.
    Raw(&'static str, Bytes),
    /// A complete HTTP response: a watch, a log.
    Http(Response<Body>),
}

/// Stored objects of one revision.
pub(crate) struct List {
    pub(crate) objects: Vec<Bytes>,
    pub(crate) revision: Revision,
    /// The continue token of the next page; empty for the last page.
    pub(crate) token: String,
    pub(crate) remaining: Option<usize>,
    /// The memory reserved for the response.
    pub(crate) budget: Option<MemoryShare>,
}

/// The format of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputFormat {
    pub(crate) shape: Shape,
    pub(crate) pretty: bool,
    pub(crate) now: Time,
}

/// Encodes the response. `kind` is the kind of its objects.
pub(crate) fn build(
    response: ApiResponse,
    kind: Option<&Kind>,
    format: OutputFormat,
    warnings: &[String],
) -> Result<Response<Body>, StatusError> {
    let mut budget = None;
    let (code, bytes) = match (response, kind) {
        (ApiResponse::Http(response), _) => return Ok(response),
        (ApiResponse::Raw(content_type, bytes), _) => return Ok(full(200, content_type, bytes)),
        (ApiResponse::Object(code, stored), Some(kind)) => (code, object(kind, &stored, format)?),
        (ApiResponse::List(mut objects), Some(kind)) => {
            budget = objects.budget.take();
            (200, list(kind, &objects, format)?)
        }
        (ApiResponse::Json(code, value), _) => (code, value.to_string().into_bytes()),
        (ApiResponse::Object(..) | ApiResponse::List(_), None) => {
            return Err(StatusError::new(
                500,
                "InternalError",
                "Internal error occurred: an object without a kind",
            ));
        }
    };
    let mut response = json_response(code, bytes, format.pretty, budget);
    for warning in warnings {
        if let Some(value) = warning_header(warning) {
            response.headers_mut().append(WARNING, value);
        }
    }
    Ok(response)
}

/// The response for an error.
pub(crate) fn error(status_error: &StatusError, pretty: bool) -> Response<Body> {
    if status_error.code == 404 && status_error.reason.is_empty() {
        return full(404, "text/plain; charset=utf-8", format!("{}\n", status_error.message));
    }
    let mut response =
        json_response(status_error.code, status_error.to_json().to_string().into_bytes(), pretty, None);
    if let Some(seconds) = status_error.details.retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// A response with a complete body.
pub(crate) fn full(code: u16, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn json_response(code: u16, mut bytes: Vec<u8>, pretty: bool, budget: Option<MemoryShare>) -> Response<Body> {
    if pretty
        && let Ok(value) = serde_json::from_slice::<Value>(&bytes)
        && let Ok(text) = serde_json::to_string_pretty(&value)
    {
        bytes = text.into_bytes();
    }
    bytes.push(b'\n');
    let bytes = match budget {
        Some(budget) => budget.hold(bytes),
        None => bytes.into(),
    };
    full(code, "application/json", bytes)
}

fn object(kind: &Kind, stored: &[u8], format: OutputFormat) -> Result<Vec<u8>, StatusError> {
    let shaped = match format.shape {
        Shape::Object | Shape::Discovery => {
            let mut bytes = Vec::with_capacity(stored.len() + 64);
            encode::write(kind, stored, &mut bytes)?;
            return Ok(bytes);
        }
        Shape::Table(include) => {
            table::single_object_table(kind, &encode::decode(kind, stored)?, include, true, format.now)
        }
        Shape::Partial => table::partial_metadata(&encode::decode(kind, stored)?),
    };
    Ok(shaped.to_string().into_bytes())
}

fn list(kind: &Kind, list: &List, format: OutputFormat) -> Result<Vec<u8>, StatusError> {
    let mut metadata = json!({"resourceVersion": list.revision.to_string()});
    // Upstream keeps lists of custom resources as maps, which retain the empty `continue`. As tables they are like
    // others.
    let is_map = matches!(format.shape, Shape::Object | Shape::Discovery)
        && schema::find(kind.group, kind.kind).is_some_and(schema::Schema::is_custom);
    if is_map || !list.token.is_empty() {
        metadata["continue"] = list.token.as_str().into();
    }
    if let Some(remaining) = list.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let decode = || -> Result<Vec<Value>, StatusError> {
        list.objects.iter().map(|stored| encode::decode(kind, stored)).collect()
    };
    let shaped = match format.shape {
        Shape::Object | Shape::Discovery => {
            let size: usize = list.objects.iter().map(Bytes::len).sum();
            let mut bytes = Vec::with_capacity(size + list.objects.len() * 64 + 256);
            let head = format!(
                "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
                kind.kind,
                kind.api_version()
            );
            bytes.extend_from_slice(head.as_bytes());
            for (position, stored) in list.objects.iter().enumerate() {
                if position > 0 {
                    bytes.push(b',');
                }
                encode::write_item(kind, stored, &mut bytes)?;
            }
            bytes.extend_from_slice(b"]}");
            return Ok(bytes);
        }
        Shape::Table(include) => table::table(kind, &decode()?, metadata, include, true, format.now),
        Shape::Partial => table::partial_metadata_list(&decode()?, metadata),
    };
    Ok(shaped.to_string().into_bytes())
}

/// A warning in the format of RFC 7234: `299 - "text"`.
fn warning_header(text: &str) -> Option<HeaderValue> {
    let mut quoted = String::with_capacity(text.len());
    for character in text.chars().filter(|character| !character.is_control()).take(256) {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    HeaderValue::from_str(&format!("299 - \"{quoted}\"")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    const FORMAT: OutputFormat = OutputFormat { shape: Shape::Object, pretty: false, now: Time(0) };

    #[test]
    fn warnings_are_quoted() {
        let value = warning_header("unknown field \"spec.foo\"\n").unwrap();
        assert_eq!(value.to_str().unwrap(), r#"299 - "unknown field \"spec.foo\"""#);
    }

    #[test]
    fn list_concatenates_its_items() {
        let kind = kinds::find("", "v1", "configmaps").unwrap();
        let object = |name: &str| Bytes::from(json!({"metadata": {"name": name}}).to_string());
        let list = |token: &str, remaining| List {
            objects: vec![object("a"), object("b")],
            revision: 7,
            token: token.into(),
            remaining,
            budget: None,
        };
        let read = |list: List| -> Value {
            serde_json::from_slice(&super::list(kind, &list, FORMAT).unwrap()).unwrap()
        };
        assert_eq!(
            read(list("", None)),
            json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"},
                   "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]})
        );
        let page = read(list("t", Some(3)));
        assert_eq!(
            page["metadata"],
            json!({"resourceVersion": "7", "continue": "t", "remainingItemCount": 3})
        );
    }

    #[test]
    fn custom_resource_list_has_an_empty_continue() {
        let kind = kinds::find("snapshot.storage.k8s.io", "v1", "volumesnapshots").unwrap();
        let list =
            List { objects: Vec::new(), revision: 7, token: String::new(), remaining: None, budget: None };
        for (shape, expected) in [
            (Shape::Object, json!({"resourceVersion": "7", "continue": ""})),
            (Shape::Partial, json!({"resourceVersion": "7"})),
        ] {
            let bytes = super::list(kind, &list, OutputFormat { shape, ..FORMAT }).unwrap();
            let read: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(read["metadata"], expected);
        }
    }
}
