//! Bodies: read up to a bound, and made objects of the kind that is expected.

use std::pin::Pin;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Collected, LengthLimitError, Limited};
use serde_json::Value;

use super::negotiate::{self, Written};
use super::options::FieldValidation;
use super::{Body, BoxError, encode, meta};
use crate::bounds::{self, ReadError};
use crate::json_error;
use crate::kinds::{self, Kind};
use crate::schema::{self, ProtobufError};
use crate::status::Refusal;

/// As upstream's.
pub(crate) const LIMIT: usize = 3 << 20;

type Reading = Pin<Box<dyn Future<Output = Result<Collected<Bytes>, BoxError>> + Send>>;

/// The whole body.
pub(crate) async fn read(body: Body) -> Result<Bytes, Refusal> {
    let reading: Reading = collect(body);
    match reading.await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {LIMIT}");
            Err(Refusal::new(413, "RequestEntityTooLarge", message))
        }
        Err(error) => Err(Refusal::bad_request(format!("the body broke off: {error}"))),
    }
}

fn collect(body: Body) -> Reading {
    Box::pin(Limited::new(body, LIMIT).collect())
}

/// The body as JSON, however it is written.
pub(crate) fn json(headers: &HeaderMap, kind: &Kind, body: &Bytes) -> Result<Bytes, Refusal> {
    match negotiate::written(headers, encode::is_custom(kind))? {
        Written::Json => Ok(body.clone()),
        Written::Protobuf => match schema::from_protobuf(body) {
            Ok(object) => Ok(object.to_string().into()),
            Err(ProtobufError::TooMany(error)) => Err(error.into()),
            Err(error) => Err(unrecognized(kind.kind, &error.to_string(), body)),
        },
    }
}

/// The object in a body. Fields that the kind does not have are dropped, and reported as was asked.
pub(crate) fn object(
    kind: &Kind,
    raw: &[u8],
    fields: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    typed(kind.group, kind.version, kind.kind, raw, fields, warnings)
}

/// The same for what is no kind of its own, but is sent to a subresource.
pub(crate) fn typed(
    group: &str,
    version: &str,
    kind: &str,
    raw: &[u8],
    fields: FieldValidation,
    warnings: &mut Vec<String>,
) -> Result<Value, Refusal> {
    let mut value = bounds::read(raw).map_err(|error| match error {
        ReadError::TooMany(error) => error.into(),
        ReadError::NoJson(error) => unrecognized(kind, &not_json(&json_error::words(raw, &error)), raw),
    })?;
    if !value.is_object() {
        let of = match &value {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            _ => "bool",
        };
        let why = format!("json: cannot unmarshal {of} into Go value of type {HEAD}");
        return Err(unrecognized(kind, &not_json(&why), raw));
    }
    let (said, of) = (meta::text(&value, "/apiVersion").to_owned(), meta::text(&value, "/kind").to_owned());
    let expected = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    check_type(group, &expected, kind, &said, &of)?;
    value["apiVersion"] = expected.into();
    value["kind"] = kind.into();
    let schema = schema::of(group, kind).ok_or_else(|| no_schema(kind))?;
    let name = meta::name(&value).to_owned();
    let conformed = schema.conform(value).map_err(|error| error.refusal(schema, &name))?;
    let mut strange = conformed.unknown;
    if fields != FieldValidation::Ignore {
        strange.extend(schema::duplicates(raw));
    }
    match fields {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => warnings.extend(strange),
        FieldValidation::Strict if strange.is_empty() => {}
        FieldValidation::Strict => {
            return Err(unfit(kind, version, &format!("strict decoding error: {}", strange.join(", "))));
        }
    }
    Ok(conformed.object)
}

/// What upstream reads first of a body, in the words of its language.
const HEAD: &str = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";

/// That the body says to be what is expected at its place, or says nothing.
fn check_type(group: &str, expected: &str, kind: &str, said: &str, of: &str) -> Result<(), Refusal> {
    if (of.is_empty() || of == kind) && (said.is_empty() || said == expected) {
        return Ok(());
    }
    let of = if of.is_empty() { kind } else { of };
    let said = if said.is_empty() { expected } else { said };
    let (of_group, of_version) = said.split_once('/').unwrap_or(("", said));
    let served = kinds::KINDS.iter().find(|known| known.group == of_group && known.kind == of);
    let refuse = |why: String| {
        Err(Refusal::bad_request(format!(
            "{of} in version {of_version:?} cannot be handled as a {kind}: {why}"
        )))
    };
    match served {
        Some(known) if known.version == of_version && of == kind => Err(Refusal::bad_request(format!(
            "the API version in the data ({said}) does not match the expected API version ({expected})"
        ))),
        Some(known) if known.version == of_version => {
            // Upstream's inner types, by their packages.
            let package = match group {
                "" | "events.k8s.io" => "core",
                group => group.split('.').next().unwrap_or(group),
            };
            refuse(format!("converting ({of_version}.{of}) to ({package}.{kind}): unknown conversion"))
        }
        _ => refuse(format!(
            "no kind {of:?} is registered for version {said:?} in scheme \"pkg/runtime/scheme.go:110\""
        )),
    }
}

fn unfit(kind: &str, version: &str, why: &str) -> Refusal {
    Refusal::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}

pub(crate) fn no_schema(kind: &str) -> Refusal {
    Refusal::new(500, "InternalError", format!("Internal error occurred: there is no schema of {kind}"))
}

fn not_json(why: &str) -> String {
    format!("couldn't get version/kind; json parse error: {why}")
}

fn unrecognized(kind: &str, why: &str, raw: &[u8]) -> Refusal {
    Refusal::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({})",
        json_error::summary(raw)
    ))
}
