//! Content negotiation: the representation of a response and the encoding of a request body.
//!
//! Every response is JSON. Bodies are JSON or protobuf, which kubectl and upstream's sidecars send when they create
//! objects. Unsupported types are rejected with the list of supported ones.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};

use super::query::Query;
use crate::status::StatusError;
use crate::table::IncludeObject;

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The representation of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// The object itself.
    Object,
    /// `Table` of `meta.k8s.io/v1`, with this part of the object in each row.
    Table(IncludeObject),
    /// `PartialObjectMetadata` of `meta.k8s.io/v1`, or a list of them.
    Partial,
    /// Aggregated discovery.
    Discovery,
}

/// The requested representation of an object: the first supported one in `Accept`.
pub(crate) fn shape(headers: &HeaderMap, query: &Query) -> Result<Shape, StatusError> {
    for clause in clauses(headers) {
        if !clause.is_json() {
            continue;
        }
        let of_meta = clause.parameter("g") == "meta.k8s.io" && clause.parameter("v") == "v1";
        match clause.parameter("as") {
            "" => return Ok(Shape::Object),
            "Table" if of_meta => return Ok(Shape::Table(include(query)?)),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if of_meta => return Ok(Shape::Partial),
            _ => {}
        }
    }
    Err(not_acceptable())
}

/// The requested representation of discovery.
pub(crate) fn discovery_shape(headers: &HeaderMap) -> Result<Shape, StatusError> {
    for clause in clauses(headers).iter().filter(|clause| clause.is_json()) {
        match (clause.parameter("as"), clause.parameter("g"), clause.parameter("v")) {
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Ok(Shape::Discovery),
            ("", ..) => return Ok(Shape::Object),
            _ => {}
        }
    }
    Err(not_acceptable())
}

/// Whether to indent the response: on request, or by default for curl, wget and browsers.
pub(crate) fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    query.flag("pretty").unwrap_or_else(|| {
        let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("");
        ["curl", "Wget", "Mozilla/5.0"].iter().any(|people| agent.starts_with(people))
    })
}

/// The media type of the body without its parameters; JSON by default.
pub(crate) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if media.is_empty() { JSON.into() } else { media }
}

/// The encoding of a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEncoding {
    Json,
    Protobuf,
}

/// The encoding of a body, or an error if it is not supported for this kind.
pub(crate) fn body_encoding(headers: &HeaderMap, custom: bool) -> Result<BodyEncoding, StatusError> {
    match content_type(headers).as_str() {
        JSON => Ok(BodyEncoding::Json),
        // Custom resources have no protobuf encoding.
        PROTOBUF if !custom => Ok(BodyEncoding::Protobuf),
        _ => {
            let more = if custom { String::new() } else { format!(", {PROTOBUF}") };
            let message = format!(
                "the body of the request was in an unknown format - accepted media types include: {JSON}{more}"
            );
            Err(StatusError::new(415, "UnsupportedMediaType", message))
        }
    }
}

fn not_acceptable() -> StatusError {
    let available = format!("{JSON}, {JSON};stream=watch");
    StatusError::generic(
        406,
        "NotAcceptable",
        format!("406: Not Acceptable\n\nAvailable representations: {available}"),
    )
}

fn include(query: &Query) -> Result<IncludeObject, StatusError> {
    let requested = query.text("includeObject");
    IncludeObject::parse(requested).ok_or_else(|| {
        StatusError::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {requested:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))
    })
}

struct AcceptClause {
    media: String,
    parameters: Vec<(String, String)>,
    quality: f32,
}

impl AcceptClause {
    fn parameter(&self, name: &str) -> &str {
        self.parameters.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
    }

    fn is_json(&self) -> bool {
        matches!(self.media.as_str(), JSON | "application/*" | "*/*")
    }
}

/// The clauses of `Accept`, best first. A missing header accepts everything.
fn clauses(headers: &HeaderMap) -> Vec<AcceptClause> {
    let values: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let all = values.join(",");
    let all = if all.trim().is_empty() { "*/*" } else { &all };
    let mut clauses: Vec<AcceptClause> = all
        .split(',')
        .filter(|clause| !clause.trim().is_empty())
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or("").to_ascii_lowercase();
            let parameters: Vec<(String, String)> = parts
                .filter_map(|part| part.split_once('='))
                .map(|(name, value)| {
                    (name.trim().to_ascii_lowercase(), value.trim().trim_matches('"').to_owned())
                })
                .collect();
            let quality = parameters.iter().find(|(name, _)| name == "q");
            let quality = quality.and_then(|(_, value)| value.parse().ok()).unwrap_or(1.0);
            AcceptClause { media, parameters, quality }
        })
        .filter(|clause| clause.quality > 0.0)
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: http::header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn accept_header_selects_the_representation() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        for (accept, expected) in [
            ("", Some(Shape::Object)),
            ("*/*", Some(Shape::Object)),
            ("application/json", Some(Shape::Object)),
            ("application/json;stream=watch", Some(Shape::Object)),
            (table, Some(Shape::Table(IncludeObject::Metadata))),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Some(Shape::Partial)),
            ("application/json;as=Unicorn;g=meta.k8s.io;v=v1,application/json", Some(Shape::Object)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(Shape::Object)),
            (
                "application/json;q=0.1,application/json;as=Table;g=meta.k8s.io;v=v1;q=0.9",
                Some(Shape::Table(IncludeObject::Metadata)),
            ),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/yaml", None),
            ("application/json;as=Table;g=other;v=v1", None),
            ("application/json;q=0", None),
        ] {
            let shape = shape(&headers(ACCEPT, accept), &Query::default());
            assert_eq!(shape.as_ref().ok(), expected.as_ref(), "{accept}");
            if let Err(status_error) = shape {
                assert_eq!((status_error.code, status_error.reason), (406, "NotAcceptable"), "{accept}");
            }
        }
    }

    #[test]
    fn include_object_selects_the_row_content() {
        let headers = headers(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io");
        for (requested, expected) in
            [("None", IncludeObject::None), ("Object", IncludeObject::Object), ("", IncludeObject::Metadata)]
        {
            let query = Query::parse(&format!("includeObject={requested}"));
            assert_eq!(shape(&headers, &query).unwrap(), Shape::Table(expected));
        }
        assert_eq!(shape(&headers, &Query::parse("includeObject=x")).unwrap_err().code, 400);
    }

    #[test]
    fn kubectl_gets_aggregated_discovery() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery_shape(&headers(ACCEPT, kubectl)).unwrap(), Shape::Discovery);
        assert_eq!(discovery_shape(&headers(ACCEPT, "application/json, */*")).unwrap(), Shape::Object);
    }

    #[test]
    fn content_type_selects_the_body_encoding() {
        use BodyEncoding::{Json, Protobuf};
        for (media, custom, expected) in [
            ("application/json", false, Some(Json)),
            ("application/json; charset=utf-8", true, Some(Json)),
            ("application/vnd.kubernetes.protobuf", false, Some(Protobuf)),
            ("application/vnd.kubernetes.protobuf", true, None),
            ("application/yaml", false, None),
            ("text/plain", false, None),
        ] {
            let body_encoding = body_encoding(&headers(CONTENT_TYPE, media), custom);
            assert_eq!(body_encoding.as_ref().ok(), expected.as_ref(), "{media}");
            if let Err(status_error) = body_encoding {
                assert_eq!((status_error.code, status_error.reason), (415, "UnsupportedMediaType"));
            }
        }
        assert_eq!(body_encoding(&HeaderMap::new(), false).unwrap(), Json);
    }

    #[test]
    fn browsers_and_curl_get_indented_json() {
        let curl = headers(USER_AGENT, "curl/8.1");
        assert!(pretty(&curl, &Query::default()));
        assert!(!pretty(&curl, &Query::parse("pretty=false")));
        assert!(!pretty(&headers(USER_AGENT, "kubectl/v1.34"), &Query::default()));
        assert!(pretty(&HeaderMap::new(), &Query::parse("pretty=true")));
    }
}
