//! Answers on their way out: objects, lists and words in the shape that was asked for.

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use wharf_model::Time;

use super::negotiate::Shape;
use super::room::Share;
use super::{Body, encode};
use crate::kinds::Kind;
use crate::status::Refusal;
use crate::store::Revision;
use crate::{schema, table};

/// What a request comes to.
pub(crate) enum Answer {
    /// One object, as it is stored.
    Object(u16, Bytes),
    /// Many of them.
    List(List),
    /// Any JSON, which has one shape only.
    Json(u16, Value),
    /// Bytes of another type.
    Raw(&'static str, Bytes),
    /// A response of its own making: a watch, a log.
    Whole(Response<Body>),
}

/// Objects, as they are stored, all of one state.
pub(crate) struct List {
    pub(crate) objects: Vec<Bytes>,
    pub(crate) revision: Revision,
    /// Where the next page begins; empty if this was the last.
    pub(crate) token: String,
    pub(crate) remaining: Option<usize>,
    /// For the answer to be made in.
    pub(crate) room: Option<Share>,
}

/// How an answer is to look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) shape: Shape,
    pub(crate) pretty: bool,
    pub(crate) now: Time,
}

/// The response. `kind` is that of the objects in it.
pub(crate) fn response(
    answer: Answer,
    kind: Option<&Kind>,
    look: Look,
    warnings: &[String],
) -> Result<Response<Body>, Refusal> {
    let mut room = None;
    let (code, bytes) = match (answer, kind) {
        (Answer::Whole(response), _) => return Ok(response),
        (Answer::Raw(content_type, bytes), _) => return Ok(full(200, content_type, bytes)),
        (Answer::Object(code, stored), Some(kind)) => (code, object(kind, &stored, look)?),
        (Answer::List(mut of), Some(kind)) => {
            room = of.room.take();
            (200, list(kind, &of, look)?)
        }
        (Answer::Json(code, value), _) => (code, value.to_string().into_bytes()),
        (Answer::Object(..) | Answer::List(_), None) => {
            return Err(Refusal::new(500, "InternalError", "Internal error occurred: an object of no kind"));
        }
    };
    let mut response = json_response(code, bytes, look.pretty, room);
    for warning in warnings {
        if let Some(value) = warning_header(warning) {
            response.headers_mut().append(WARNING, value);
        }
    }
    Ok(response)
}

/// The response to what is not done.
pub(crate) fn refusal(refusal: &Refusal, pretty: bool) -> Response<Body> {
    if refusal.code == 404 && refusal.reason.is_empty() {
        return full(404, "text/plain; charset=utf-8", format!("{}\n", refusal.message));
    }
    let mut response = json_response(refusal.code, refusal.to_json().to_string().into_bytes(), pretty, None);
    if let Some(seconds) = refusal.details.retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// A response that is there as a whole.
pub(crate) fn full(code: u16, content_type: &'static str, bytes: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn json_response(code: u16, mut bytes: Vec<u8>, pretty: bool, room: Option<Share>) -> Response<Body> {
    if pretty
        && let Ok(value) = serde_json::from_slice::<Value>(&bytes)
        && let Ok(text) = serde_json::to_string_pretty(&value)
    {
        bytes = text.into_bytes();
    }
    bytes.push(b'\n');
    let bytes = match room {
        Some(room) => room.hold(bytes),
        None => bytes.into(),
    };
    full(code, "application/json", bytes)
}

fn object(kind: &Kind, stored: &[u8], look: Look) -> Result<Vec<u8>, Refusal> {
    let shaped = match look.shape {
        Shape::Object | Shape::Discovery => {
            let mut bytes = Vec::with_capacity(stored.len() + 64);
            encode::write(kind, stored, &mut bytes)?;
            return Ok(bytes);
        }
        Shape::Table(include) => {
            table::table_of_one(kind, &encode::decode(kind, stored)?, include, true, look.now)
        }
        Shape::Partial => table::partial(&encode::decode(kind, stored)?),
    };
    Ok(shaped.to_string().into_bytes())
}

fn list(kind: &Kind, list: &List, look: Look) -> Result<Vec<u8>, Refusal> {
    let mut metadata = json!({"resourceVersion": list.revision.to_string()});
    // Upstream holds lists of custom kinds as maps, which keep what is empty; as tables they are what others are.
    let is_map = matches!(look.shape, Shape::Object | Shape::Discovery)
        && schema::of(kind.group, kind.kind).is_some_and(schema::Schema::is_custom);
    if is_map || !list.token.is_empty() {
        metadata["continue"] = list.token.as_str().into();
    }
    if let Some(remaining) = list.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let decode = || -> Result<Vec<Value>, Refusal> {
        list.objects.iter().map(|stored| encode::decode(kind, stored)).collect()
    };
    let shaped = match look.shape {
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
        Shape::Table(include) => table::table(kind, &decode()?, metadata, include, true, look.now),
        Shape::Partial => table::partial_list(&decode()?, metadata),
    };
    Ok(shaped.to_string().into_bytes())
}

/// As RFC 7234 has it: `299 - "text"`.
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

    const LOOK: Look = Look { shape: Shape::Object, pretty: false, now: Time(0) };

    #[test]
    fn warnings_are_quoted() {
        let value = warning_header("unknown field \"spec.foo\"\n").unwrap();
        assert_eq!(value.to_str().unwrap(), r#"299 - "unknown field \"spec.foo\"""#);
    }

    #[test]
    fn a_list_is_its_entries_side_by_side() {
        let kind = kinds::find("", "v1", "configmaps").unwrap();
        let of = |name: &str| Bytes::from(json!({"metadata": {"name": name}}).to_string());
        let list = |token: &str, remaining| List {
            objects: vec![of("a"), of("b")],
            revision: 7,
            token: token.into(),
            remaining,
            room: None,
        };
        let read = |list: List| -> Value {
            serde_json::from_slice(&super::list(kind, &list, LOOK).unwrap()).unwrap()
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
    fn a_list_of_a_custom_kind_says_that_it_does_not_go_on() {
        let kind = kinds::find("snapshot.storage.k8s.io", "v1", "volumesnapshots").unwrap();
        let list =
            List { objects: Vec::new(), revision: 7, token: String::new(), remaining: None, room: None };
        for (shape, expected) in [
            (Shape::Object, json!({"resourceVersion": "7", "continue": ""})),
            (Shape::Partial, json!({"resourceVersion": "7"})),
        ] {
            let bytes = super::list(kind, &list, Look { shape, ..LOOK }).unwrap();
            let read: Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(read["metadata"], expected);
        }
    }
}
