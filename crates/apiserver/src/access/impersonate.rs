//! Impersonation (`kubectl --as`). The request of a user without the permission is rejected. If the headers were
//! ignored instead, the request would run with the user's own identity.

use std::collections::BTreeMap;

use http::HeaderMap;
use percent_encoding::percent_decode_str;

use super::{AUTHENTICATED, Attributes, Objects, SERVICE_ACCOUNT_PREFIX, UNAUTHENTICATED, User, authorize};
use crate::status::StatusError;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// The user that the headers name, or `user` if there are no such headers. Fails if `user` is not allowed to
/// impersonate.
pub(super) fn resolve(user: User, headers: &HeaderMap, objects: &dyn Objects) -> Result<User, StatusError> {
    let Some(requested) = ImpersonationHeaders::read(headers)? else { return Ok(user) };
    let check = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let attributes = Attributes {
            verb: "impersonate",
            group,
            resource,
            subresource,
            namespace,
            name,
            ..Attributes::default()
        };
        authorize(&user, &attributes, objects).map_err(|reason| attributes.forbidden(&reason))
    };
    let account = requested.name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, name)) => check("", "serviceaccounts", "", namespace, name)?,
        None => check("", "users", "", "", &requested.name)?,
    }
    for group in &requested.groups {
        check("", "groups", "", "", group)?;
    }
    if !requested.uid.is_empty() {
        check("authentication.k8s.io", "uids", "", "", &requested.uid)?;
    }
    for (key, values) in &requested.extra {
        for value in values {
            check("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    let mut other = match account {
        Some((namespace, name)) if requested.groups.is_empty() => User::service_account(namespace, name, ""),
        _ => User { name: requested.name, groups: requested.groups, ..User::default() },
    };
    let implied_group = if other.name == "system:anonymous" { UNAUTHENTICATED } else { AUTHENTICATED };
    if !other.is_in(AUTHENTICATED) && !other.is_in(UNAUTHENTICATED) {
        other.groups.push(implied_group.into());
    }
    (other.uid, other.extra) = (requested.uid, requested.extra);
    Ok(other)
}

struct ImpersonationHeaders {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl ImpersonationHeaders {
    fn read(headers: &HeaderMap) -> Result<Option<Self>, StatusError> {
        let unreadable = || StatusError::bad_request("impersonation headers must be text");
        let mut requested =
            Self { name: String::new(), uid: String::new(), groups: Vec::new(), extra: BTreeMap::new() };
        for (header, value) in headers {
            let header = header.as_str();
            if !header.starts_with("impersonate-") {
                continue;
            }
            let value = value.to_str().map_err(|_| unreadable())?.to_owned();
            match header {
                USER => requested.name = value,
                UID => requested.uid = value,
                GROUP => requested.groups.push(value),
                _ => match header.strip_prefix(EXTRA) {
                    Some(key) => {
                        requested
                            .extra
                            .entry(percent_decode(key).ok_or_else(unreadable)?)
                            .or_default()
                            .push(value);
                    }
                    None => {
                        return Err(StatusError::bad_request(format!(
                            "unknown impersonation header {header:?}"
                        )));
                    }
                },
            }
        }
        let more = !requested.uid.is_empty() || !requested.groups.is_empty() || !requested.extra.is_empty();
        match (requested.name.is_empty(), more) {
            (false, _) => Ok(Some(requested)),
            (true, false) => Ok(None),
            (true, true) => {
                Err(StatusError::bad_request("requested impersonation without impersonating a user"))
            }
        }
    }
}

/// Decodes percent-encoding: an extra key may contain characters that are not allowed in header names. `None` if an
/// escape is malformed.
fn percent_decode(text: &str) -> Option<String> {
    let is_escape = |after: &str| {
        after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::access::testing::FakeObjects;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn administrator_may_impersonate_anyone() {
        let extra = BTreeMap::from([("example.com/team".to_owned(), vec!["a".to_owned()])]);
        let cases = [
            (headers(&[]), User::admin()),
            (headers(&[(USER, "jane")]), User::new("jane", &[])),
            (
                headers(&[(USER, "jane"), (GROUP, "devs"), (GROUP, "ops")]),
                User::new("jane", &["devs", "ops"]),
            ),
            (headers(&[(USER, "system:serviceaccount:ns:app")]), User::service_account("ns", "app", "")),
            (headers(&[(USER, "system:anonymous")]), User::anonymous()),
            (
                headers(&[(USER, "jane"), (UID, "u"), ("impersonate-extra-example.com%2fteam", "a")]),
                User { uid: "u".into(), extra, ..User::new("jane", &[]) },
            ),
        ];
        for (headers, expected) in cases {
            assert_eq!(
                resolve(User::admin(), &headers, &FakeObjects::default()),
                Ok(expected),
                "{headers:?}"
            );
        }
    }

    #[test]
    fn impersonation_without_permission_is_rejected() {
        let cases = [
            (
                headers(&[(USER, "jane")]),
                403,
                r#"users "jane" is forbidden: User "wharf:sidecar" cannot impersonate resource "users" in API group "" at the cluster scope"#,
            ),
            (
                headers(&[(USER, "system:serviceaccount:ns:app")]),
                403,
                r#"serviceaccounts "app" is forbidden: User "wharf:sidecar" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "ns""#,
            ),
            (
                headers(&[(GROUP, "system:masters")]),
                400,
                "requested impersonation without impersonating a user",
            ),
            (headers(&[("impersonate-me", "x")]), 400, r#"unknown impersonation header "impersonate-me""#),
        ];
        for (headers, code, message) in cases {
            let status_error = resolve(User::sidecar(), &headers, &FakeObjects::default()).unwrap_err();
            assert_eq!((status_error.code, status_error.message.as_str()), (code, message));
        }
        assert!(
            resolve(
                User::sidecar(),
                &headers(&[("impersonate-extra-a%2", "x"), (USER, "j")]),
                &FakeObjects::default()
            )
            .is_err()
        );
    }
}
