//! Routing: what a request addresses, from its method, path and query.

use http::Method;

use super::query::{Query, decode};
use crate::kinds::{self, Kind};
use crate::status::StatusError;

/// The destination of a request.
#[derive(Debug)]
pub(crate) enum Route {
    /// Objects of a kind.
    Resource(Target),
    /// A non-resource URL.
    NonResource(NonResourceUrl),
}

/// The addressed objects and the verb.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) verb: Verb,
    pub(crate) kind: &'static Kind,
    /// Empty for cluster scope, and for all namespaces.
    pub(crate) namespace: String,
    /// Empty for the collection.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) subresource: String,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, kind, namespace, name, subresource } = self;
        write!(f, "{verb:?} {} {namespace}/{name}/{subresource}", kind.resource())
    }
}

/// The API verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    /// The name in discovery and roles.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// A non-resource URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NonResourceUrl {
    Root,
    Version,
    /// `healthz`, `livez` or `readyz`.
    Health(&'static str),
    Metrics,
    CoreVersions,
    Groups,
    Group(String),
    Resources {
        group: String,
        version: String,
    },
    OpenApiV2,
    OpenApiIndex,
    /// One group and version, such as `apis/storage.k8s.io/v1`.
    OpenApi(String),
    OpenId,
    Jwks,
}

/// Routes a request. An unknown path is 404, a known path with the wrong method 405.
pub(crate) fn route(method: &Method, path: &str, query: &Query) -> Result<Route, StatusError> {
    let segments: Vec<String> =
        path.split('/').filter(|segment| !segment.is_empty()).map(|segment| decode(segment, false)).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if let ["api", version, rest @ ..] | ["apis", version, rest @ ..] = segments.as_slice() {
        let (group, version, rest) = match (segments[0], rest) {
            ("api", rest) => ("", *version, rest),
            (_, [group_version, rest @ ..]) => (*version, *group_version, rest),
            (_, []) => return non_resource(method, NonResourceUrl::Group((*version).into())),
        };
        return match rest {
            [] => non_resource(
                method,
                NonResourceUrl::Resources { group: group.into(), version: version.into() },
            ),
            rest => target(method, group, version, rest, query).map(Route::Resource),
        };
    }
    let found = match segments.as_slice() {
        [] => NonResourceUrl::Root,
        ["api"] => NonResourceUrl::CoreVersions,
        ["apis"] => NonResourceUrl::Groups,
        ["version"] => NonResourceUrl::Version,
        ["healthz", ..] => NonResourceUrl::Health("healthz"),
        ["livez", ..] => NonResourceUrl::Health("livez"),
        ["readyz", ..] => NonResourceUrl::Health("readyz"),
        ["metrics"] => NonResourceUrl::Metrics,
        ["openapi", "v2"] => NonResourceUrl::OpenApiV2,
        ["openapi", "v3"] => NonResourceUrl::OpenApiIndex,
        ["openapi", "v3", of @ ..] => NonResourceUrl::OpenApi(of.join("/")),
        [".well-known", "openid-configuration"] => NonResourceUrl::OpenId,
        ["openid", "v1", "jwks"] => NonResourceUrl::Jwks,
        _ => return Err(page_not_found()),
    };
    non_resource(method, found)
}

fn non_resource(method: &Method, url: NonResourceUrl) -> Result<Route, StatusError> {
    if method == Method::GET || method == Method::HEAD {
        Ok(Route::NonResource(url))
    } else {
        Err(not_allowed())
    }
}

fn target(
    method: &Method,
    group: &str,
    version: &str,
    rest: &[&str],
    query: &Query,
) -> Result<Target, StatusError> {
    let (namespace, plural, name, subresource) = match rest {
        // A subresource of the namespace object, not an object in the namespace.
        ["namespaces", name, below @ ("status" | "finalize")] if group.is_empty() => {
            ("", "namespaces", *name, *below)
        }
        ["namespaces", namespace, plural] => (*namespace, *plural, "", ""),
        ["namespaces", namespace, plural, name] => (*namespace, *plural, *name, ""),
        ["namespaces", namespace, plural, name, subresource] => (*namespace, *plural, *name, *subresource),
        [plural] => ("", *plural, "", ""),
        [plural, name] => ("", *plural, *name, ""),
        [plural, name, subresource] => ("", *plural, *name, *subresource),
        _ => return Err(resource_not_found()),
    };
    let Some(kind) = kinds::find(group, version, plural) else {
        if !kinds::KINDS.iter().any(|kind| kind.group == group) {
            return Err(page_not_found());
        }
        let mut status_error =
            kinds::unserved_version_error(group, version, plural).unwrap_or_else(resource_not_found);
        status_error.details.send_empty = true;
        return Err(status_error);
    };
    let scope_matches = kind.namespaced != namespace.is_empty();
    // Names become part of keys, so they must not contain a slash and the like.
    if [namespace, name].iter().any(|part| !is_segment(part))
        || !(scope_matches || kind.namespaced && name.is_empty())
    {
        return Err(resource_not_found());
    }
    let verbs = match subresource {
        "" => kind.verbs,
        below => kind.subresource(below).ok_or_else(resource_not_found)?.verbs,
    };
    let collection = name.is_empty();
    let verb = match method.as_str() {
        "GET" | "HEAD" if collection && query.flag("watch") == Some(true) => Verb::Watch,
        "GET" | "HEAD" if collection => Verb::List,
        "GET" | "HEAD" => Verb::Get,
        // POST creates in a collection, or on a subresource of an object.
        "POST" if scope_matches && (collection || !subresource.is_empty()) => Verb::Create,
        "PUT" if !collection => Verb::Update,
        "PATCH" if !collection => Verb::Patch,
        "DELETE" if !collection => Verb::Delete,
        "DELETE" if scope_matches => Verb::DeleteCollection,
        _ => return Err(not_allowed()),
    };
    if !verbs.contains(&verb.as_str()) {
        return Err(not_allowed());
    }
    Ok(Target { verb, kind, namespace: namespace.into(), name: name.into(), subresource: subresource.into() })
}

/// Whether a decoded segment can be part of a key. An empty segment can.
fn is_segment(text: &str) -> bool {
    !matches!(text, "." | "..") && !text.bytes().any(|byte| byte == b'/' || byte == b'%' || byte < b' ')
}

/// An unknown resource in a served group.
fn resource_not_found() -> StatusError {
    StatusError::generic(404, "NotFound", "the server could not find the requested resource")
}

/// A path outside all groups: upstream's response has no reason and is plain text.
fn page_not_found() -> StatusError {
    StatusError::new(404, "", "404 page not found")
}

fn not_allowed() -> StatusError {
    StatusError::generic(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route_to(method: &str, path: &str) -> String {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        match route(&method, path, &Query::parse(query)) {
            Ok(Route::Resource(target)) => format!("{target:?}"),
            Ok(Route::NonResource(url)) => format!("{url:?}"),
            Err(status_error) => status_error.code.to_string(),
        }
    }

    #[test]
    fn requests_are_routed() {
        for (method, path, expected) in [
            ("GET", "/api/v1/pods", "List pods //"),
            ("GET", "/api/v1/pods?watch=true", "Watch pods //"),
            ("GET", "/api/v1/pods?watch=0", "List pods //"),
            ("GET", "/api/v1/namespaces/a/pods/x", "Get pods a/x/"),
            // A GET of one object is never a watch.
            ("GET", "/api/v1/namespaces/a/pods/x?watch=1", "Get pods a/x/"),
            ("POST", "/api/v1/namespaces/a/pods", "Create pods a//"),
            ("POST", "/api/v1/namespaces/a/pods/x/binding", "Create pods a/x/binding"),
            ("POST", "/api/v1/namespaces/a/pods/x/eviction", "Create pods a/x/eviction"),
            ("GET", "/api/v1/namespaces/a/pods/x/log", "Get pods a/x/log"),
            ("PUT", "/api/v1/namespaces/a/pods/x/status", "Update pods a/x/status"),
            ("PATCH", "/api/v1/nodes/n/status", "Patch nodes /n/status"),
            ("DELETE", "/api/v1/namespaces/a/pods", "DeleteCollection pods a//"),
            ("GET", "/api/v1/namespaces", "List namespaces //"),
            ("GET", "/api/v1/namespaces/a", "Get namespaces /a/"),
            ("GET", "/api/v1/namespaces/a/status", "Get namespaces /a/status"),
            ("PUT", "/api/v1/namespaces/a/finalize", "Update namespaces /a/finalize"),
            (
                "GET",
                "/apis/storage.k8s.io/v1/storageclasses/fast",
                "Get storageclasses.storage.k8s.io /fast/",
            ),
            (
                "PATCH",
                "/apis/storage.k8s.io/v1/volumeattachments/x/status",
                "Patch volumeattachments.storage.k8s.io /x/status",
            ),
            ("POST", "/api/v1/namespaces/a/serviceaccounts/b/token", "Create serviceaccounts a/b/token"),
            (
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
                "Create selfsubjectaccessreviews.authorization.k8s.io //",
            ),
            ("GET", "/api", "CoreVersions"),
            ("GET", "/apis/", "Groups"),
            ("GET", "/apis/storage.k8s.io", "Group(\"storage.k8s.io\")"),
            ("GET", "/api/v1", "Resources { group: \"\", version: \"v1\" }"),
            ("GET", "/openapi/v3/apis/storage.k8s.io/v1", "OpenApi(\"apis/storage.k8s.io/v1\")"),
            ("GET", "/readyz/ping", "Health(\"readyz\")"),
            ("GET", "/metrics", "Metrics"),
            ("GET", "/", "Root"),
        ] {
            assert_eq!(route_to(method, path), expected, "{method} {path}");
        }
    }

    #[test]
    fn unknown_paths_and_methods_are_rejected() {
        for (method, path, expected) in [
            ("GET", "/api/v1/unicorns", "404"),
            ("GET", "/api/v2/pods", "404"),
            ("GET", "/apis/storage.k8s.io/v1beta1/storageclasses", "404"),
            ("GET", "/api/v1/pods/x", "404"),
            ("GET", "/api/v1/namespaces/a/nodes/n", "404"),
            ("GET", "/api/v1/namespaces/a/pods/x/unicorn", "404"),
            ("GET", "/api/v1/namespaces/a/pods/x/log/y", "404"),
            ("GET", "/api/v1/namespaces/a/pods/x%2Fy", "404"),
            ("GET", "/api/v1/namespaces/../pods/x", "404"),
            ("GET", "/nowhere", "404"),
            ("POST", "/api/v1/pods", "405"),
            ("DELETE", "/api/v1/pods", "405"),
            ("POST", "/api/v1/namespaces/a/pods/x", "405"),
            ("PUT", "/api/v1/namespaces/a/pods", "405"),
            ("DELETE", "/api/v1/namespaces", "405"),
            ("DELETE", "/api/v1/namespaces/a/pods/x/status", "405"),
            ("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "405"),
            ("POST", "/version", "405"),
        ] {
            assert_eq!(route_to(method, path), expected, "{method} {path}");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_path_does_not_panic_or_escape_its_key(path in "(/[a-z0-9%.]{0,6}|/api/v1|/namespaces|/pods){0,7}") {
            for method in [Method::GET, Method::POST, Method::DELETE] {
                if let Ok(Route::Resource(target)) = route(&method, &path, &Query::default()) {
                    for part in [&target.namespace, &target.name] {
                        proptest::prop_assert!(!part.contains('/') && part != "..", "{target:?}");
                    }
                }
            }
        }
    }
}
