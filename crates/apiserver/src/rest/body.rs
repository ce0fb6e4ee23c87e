//! Request bodies: read up to a limit and decoded to an object of the expected kind.

use std::pin::Pin;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use serde_json::Value;

use super::negotiate::{self, BodyEncoding};
use super::options::FieldValidation;
use super::{Body, BoxError, encode, meta};
use crate::bounds::{self, ParseError};
use crate::json_error;
use crate::kinds::{self, Kind};
use crate::schema::{self, ProtobufError};
use crate::status::StatusError;

/// The limit of kube-apiserver.
pub(crate) const MAX_BODY: usize = 3 << 20;

type Reading = Pin<Box<dyn Future<Output = Result<Collected<Bytes>, BoxError>> + Send>>;

/// Reads the whole body.
pub(crate) async fn read(body: Body) -> Result<Bytes, StatusError> {
    let reading: Reading = collect(body);
    match reading.await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {MAX_BODY}");
            Err(StatusError::new(413, "RequestEntityTooLarge", message))
        }
        Err(error) => Err(StatusError::bad_request(format!("failed to read the request body: {error}"))),
    }
}

fn collect(body: Body) -> Reading {
    Box::pin(Limited::new(body, MAX_BODY).collect())
}

/// The body as JSON, converted from protobuf if necessary.
pub(crate) fn json(headers: &HeaderMap, kind: &Kind, body: &Bytes) -> Result<Bytes, StatusError> {
    match negotiate::body_encoding(headers, encode::is_custom(kind))? {
        BodyEncoding::Json => Ok(body.clone()),
        BodyEncoding::Protobuf => match schema::from_protobuf(body) {
            Ok(object) => Ok(object.to_string().into()),
            Err(ProtobufError::TooMany(error)) => Err(error.into()),
            Err(error) => Err(unrecognized(kind.kind, &error.to_string(), body)),
        },
    }
}

/// Decodes the object in a body. Unknown fields are dropped and reported according to `fields`.
pub(crate) fn object(
    kind: &Kind,
    raw: &[u8],
    fields: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, StatusError> {
    typed(kind.group, kind.version, kind.kind, raw, fields, warnings)
}

/// As [`object`], for types that are sent to a subresource and are not a kind of their own.
pub(crate) fn typed(
    group: &str,
    version: &str,
    kind: &str,
    raw: &[u8],
    fields: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, StatusError> {
    let mut value = bounds::parse(raw).map_err(|error| match error {
        ParseError::TooMany(error) => error.into(),
        ParseError::Syntax(error) => {
            unrecognized(kind, &json_parse_error(&json_error::go_message(raw, &error)), raw)
        }
    })?;
    if !value.is_object() {
        let json_type = match &value {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            _ => "bool",
        };
        let reason = format!("json: cannot unmarshal {json_type} into Go value of type {GO_TYPE_META}");
        return Err(unrecognized(kind, &json_parse_error(&reason), raw));
    }
    let (given_version, given_kind) =
        (meta::text(&value, "/apiVersion").to_owned(), meta::text(&value, "/kind").to_owned());
    let expected = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    check_type(group, &expected, kind, &given_version, &given_kind)?;
    value["apiVersion"] = expected.into();
    value["kind"] = kind.into();
    let schema = schema::find(group, kind).ok_or_else(|| no_schema(kind))?;
    let name = meta::name(&value).to_owned();
    let conformed = schema.conform(value).map_err(|error| error.to_status_error(schema, &name))?;
    let mut field_problems = conformed.unknown;
    if fields != FieldValidation::Ignore {
        field_problems.extend(schema::duplicate_fields(raw));
    }
    match fields {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => warnings.extend(field_problems),
        FieldValidation::Strict if field_problems.is_empty() => {}
        FieldValidation::Strict => {
            return Err(cannot_handle(
                kind,
                version,
                &format!("strict decoding error: {}", field_problems.join(", ")),
            ));
        }
    }
    Ok(conformed.object)
}

/// The Go type into which upstream first decodes a body, as its error message names it.
const GO_TYPE_META: &str = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// Checks that the body has the expected type, or none.
fn check_type(
    group: &str,
    expected: &str,
    kind: &str,
    given_version: &str,
    given_kind: &str,
) -> Result<(), StatusError> {
    if (given_kind.is_empty() || given_kind == kind)
        && (given_version.is_empty() || given_version == expected)
    {
        return Ok(());
    }
    let given_kind = if given_kind.is_empty() { kind } else { given_kind };
    let given_version = if given_version.is_empty() { expected } else { given_version };
    let (given_group, given_kind_version) = given_version.split_once('/').unwrap_or(("", given_version));
    let served = kinds::KINDS.iter().find(|known| known.group == given_group && known.kind == given_kind);
    let reject = |reason: String| {
        Err(StatusError::bad_request(format!(
            "{given_kind} in version {given_kind_version:?} cannot be handled as a {kind}: {reason}"
        )))
    };
    match served {
        Some(known) if known.version == given_kind_version && given_kind == kind => {
            Err(StatusError::bad_request(format!(
                "the API version in the data ({given_version}) does not match the expected API version ({expected})"
            )))
        }
        Some(known) if known.version == given_kind_version => {
            // Upstream names its internal types by package.
            let package = match group {
                "" | "events.k8s.io" => "core",
                group => group.split('.').next().unwrap_or(group),
            };
            reject(format!(
                "converting ({given_kind_version}.{given_kind}) to ({package}.{kind}): unknown conversion"
            ))
        }
        _ => reject(format!(
            "no kind {given_kind:?} is registered for version {given_version:?} in scheme \"pkg/runtime/scheme.go:110\""
        )),
    }
}

fn cannot_handle(kind: &str, version: &str, reason: &str) -> StatusError {
    StatusError::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {reason}"))
}

pub(crate) fn no_schema(kind: &str) -> StatusError {
    StatusError::new(500, "InternalError", format!("Internal error occurred: no schema for {kind}"))
}

fn json_parse_error(reason: &str) -> String {
    format!("couldn't get version/kind; json parse error: {reason}")
}

fn unrecognized(kind: &str, reason: &str, raw: &[u8]) -> StatusError {
    StatusError::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {reason} ({})",
        json_error::body_summary(raw)
    ))
}
