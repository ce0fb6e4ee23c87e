//! In which shape an answer is wanted, and what a body is.
//!
//! Every answer is JSON. Bodies are too, or protobuf, which kubectl and upstream's sidecars send for what they make.
//! What cannot be is refused with the types that can.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};

use super::query::Query;
use crate::status::Refusal;
use crate::table::Include;

const ACCEPTED: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The shape of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As it is.
    Object,
    /// `Table` of `meta.k8s.io/v1`, with that much of the object in each row.
    Table(Include),
    /// `PartialObjectMetadata` of `meta.k8s.io/v1`, or a list of them.
    Partial,
    /// Aggregated discovery.
    Discovery,
}

/// Which shape of an object is wanted; the first in `Accept` that we have.
pub(crate) fn shape(headers: &HeaderMap, query: &Query) -> Result<Shape, Refusal> {
    for clause in clauses(headers) {
        if !clause.is_json() {
            continue;
        }
        let of_meta = clause.of("g") == "meta.k8s.io" && clause.of("v") == "v1";
        match clause.of("as") {
            "" => return Ok(Shape::Object),
            "Table" if of_meta => return Ok(Shape::Table(include(query)?)),
            "PartialObjectMetadata" | "PartialObjectMetadataList" if of_meta => return Ok(Shape::Partial),
            _ => {}
        }
    }
    Err(not_acceptable())
}

/// Which shape of discovery is wanted.
pub(crate) fn discovery_shape(headers: &HeaderMap) -> Result<Shape, Refusal> {
    for clause in clauses(headers).iter().filter(|clause| clause.is_json()) {
        match (clause.of("as"), clause.of("g"), clause.of("v")) {
            ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => return Ok(Shape::Discovery),
            ("", ..) => return Ok(Shape::Object),
            _ => {}
        }
    }
    Err(not_acceptable())
}

/// Whether the answer is for eyes: asked for, or a tool that people look at by itself.
pub(crate) fn pretty(headers: &HeaderMap, query: &Query) -> bool {
    query.flag("pretty").unwrap_or_else(|| {
        let agent = headers.get(USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or("");
        ["curl", "Wget", "Mozilla/5.0"].iter().any(|people| agent.starts_with(people))
    })
}

/// The media type of the body without its parameters; JSON if it is not said.
pub(crate) fn content_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media = value.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if media.is_empty() { ACCEPTED.into() } else { media }
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    Json,
    Protobuf,
}

/// How the body of a kind is written; refused if we do not read that.
pub(crate) fn written(headers: &HeaderMap, custom: bool) -> Result<Written, Refusal> {
    match content_type(headers).as_str() {
        ACCEPTED => Ok(Written::Json),
        // Kinds that are defined by whoever installs them have no numbers for their fields.
        PROTOBUF if !custom => Ok(Written::Protobuf),
        _ => {
            let more = if custom { String::new() } else { format!(", {PROTOBUF}") };
            let message = format!(
                "the body of the request was in an unknown format - accepted media types include: {ACCEPTED}{more}"
            );
            Err(Refusal::new(415, "UnsupportedMediaType", message))
        }
    }
}

fn not_acceptable() -> Refusal {
    let there = format!("{ACCEPTED}, {ACCEPTED};stream=watch");
    Refusal::generic(
        406,
        "NotAcceptable",
        format!("406: Not Acceptable\n\nAvailable representations: {there}"),
    )
}

fn include(query: &Query) -> Result<Include, Refusal> {
    let asked = query.text("includeObject");
    Include::parse(asked).ok_or_else(|| {
        Refusal::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {asked:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))
    })
}

struct Clause {
    media: String,
    parameters: Vec<(String, String)>,
    quality: f32,
}

impl Clause {
    fn of(&self, name: &str) -> &str {
        self.parameters.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
    }

    fn is_json(&self) -> bool {
        matches!(self.media.as_str(), ACCEPTED | "application/*" | "*/*")
    }
}

/// The clauses of `Accept`, best first. None at all is everything.
fn clauses(headers: &HeaderMap) -> Vec<Clause> {
    let values: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let all = values.join(",");
    let all = if all.trim().is_empty() { "*/*" } else { &all };
    let mut clauses: Vec<Clause> = all
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
            Clause { media, parameters, quality }
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
    fn shapes() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        for (accept, expected) in [
            ("", Some(Shape::Object)),
            ("*/*", Some(Shape::Object)),
            ("application/json", Some(Shape::Object)),
            ("application/json;stream=watch", Some(Shape::Object)),
            (table, Some(Shape::Table(Include::Metadata))),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", Some(Shape::Partial)),
            ("application/json;as=Unicorn;g=meta.k8s.io;v=v1,application/json", Some(Shape::Object)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(Shape::Object)),
            (
                "application/json;q=0.1,application/json;as=Table;g=meta.k8s.io;v=v1;q=0.9",
                Some(Shape::Table(Include::Metadata)),
            ),
            ("application/vnd.kubernetes.protobuf", None),
            ("application/yaml", None),
            ("application/json;as=Table;g=other;v=v1", None),
            ("application/json;q=0", None),
        ] {
            let shape = shape(&headers(ACCEPT, accept), &Query::default());
            assert_eq!(shape.as_ref().ok(), expected.as_ref(), "{accept}");
            if let Err(refusal) = shape {
                assert_eq!((refusal.code, refusal.reason), (406, "NotAcceptable"), "{accept}");
            }
        }
    }

    #[test]
    fn rows_bring_what_is_asked() {
        let headers = headers(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io");
        for (asked, expected) in
            [("None", Include::None), ("Object", Include::Object), ("", Include::Metadata)]
        {
            let query = Query::parse(&format!("includeObject={asked}"));
            assert_eq!(shape(&headers, &query).unwrap(), Shape::Table(expected));
        }
        assert_eq!(shape(&headers, &Query::parse("includeObject=x")).unwrap_err().code, 400);
    }

    #[test]
    fn discovery_of_kubectl() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery_shape(&headers(ACCEPT, kubectl)).unwrap(), Shape::Discovery);
        assert_eq!(discovery_shape(&headers(ACCEPT, "application/json, */*")).unwrap(), Shape::Object);
    }

    #[test]
    fn bodies() {
        use Written::{Json, Protobuf};
        for (media, custom, expected) in [
            ("application/json", false, Some(Json)),
            ("application/json; charset=utf-8", true, Some(Json)),
            ("application/vnd.kubernetes.protobuf", false, Some(Protobuf)),
            ("application/vnd.kubernetes.protobuf", true, None),
            ("application/yaml", false, None),
            ("text/plain", false, None),
        ] {
            let written = written(&headers(CONTENT_TYPE, media), custom);
            assert_eq!(written.as_ref().ok(), expected.as_ref(), "{media}");
            if let Err(refusal) = written {
                assert_eq!((refusal.code, refusal.reason), (415, "UnsupportedMediaType"));
            }
        }
        assert_eq!(written(&HeaderMap::new(), false).unwrap(), Json);
    }

    #[test]
    fn pretty_for_people() {
        let curl = headers(USER_AGENT, "curl/8.1");
        assert!(pretty(&curl, &Query::default()));
        assert!(!pretty(&curl, &Query::parse("pretty=false")));
        assert!(!pretty(&headers(USER_AGENT, "kubectl/v1.34"), &Query::default()));
        assert!(pretty(&HeaderMap::new(), &Query::parse("pretty=true")));
    }
}
