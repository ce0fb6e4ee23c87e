//! To act as somebody else (`kubectl --as`). Who may not is refused: to ignore the headers would let people do as
//! themselves what they meant to do as another.

use http::HeaderMap;
use std::collections::BTreeMap;

use super::{AUTHENTICATED, Attributes, Objects, SERVICE_ACCOUNT_PREFIX, UNAUTHENTICATED, User, authorize};
use crate::status::Refusal;

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// The user that the headers name, if `user` may act as them; else `user`.
pub(super) fn as_asked(user: User, headers: &HeaderMap, objects: &dyn Objects) -> Result<User, Refusal> {
    let Some(asked) = Asked::read(headers)? else { return Ok(user) };
    let may = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let attributes = Attributes {
            verb: "impersonate",
            group,
            resource,
            subresource,
            namespace,
            name,
            ..Attributes::default()
        };
        authorize(&user, &attributes, objects).map_err(|why| attributes.forbidden(&why))
    };
    let account = asked.name.strip_prefix(SERVICE_ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':'));
    match account {
        Some((namespace, name)) => may("", "serviceaccounts", "", namespace, name)?,
        None => may("", "users", "", "", &asked.name)?,
    }
    for group in &asked.groups {
        may("", "groups", "", "", group)?;
    }
    if !asked.uid.is_empty() {
        may("authentication.k8s.io", "uids", "", "", &asked.uid)?;
    }
    for (key, values) in &asked.extra {
        for value in values {
            may("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    let mut other = match account {
        Some((namespace, name)) if asked.groups.is_empty() => User::service_account(namespace, name, ""),
        _ => User { name: asked.name, groups: asked.groups, ..User::default() },
    };
    let everybody = if other.name == "system:anonymous" { UNAUTHENTICATED } else { AUTHENTICATED };
    if !other.is_in(AUTHENTICATED) && !other.is_in(UNAUTHENTICATED) {
        other.groups.push(everybody.into());
    }
    (other.uid, other.extra) = (asked.uid, asked.extra);
    Ok(other)
}

struct Asked {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Asked {
    fn read(headers: &HeaderMap) -> Result<Option<Self>, Refusal> {
        let unreadable = || Refusal::bad_request("impersonation headers have to be text");
        let mut asked =
            Self { name: String::new(), uid: String::new(), groups: Vec::new(), extra: BTreeMap::new() };
        for (header, value) in headers {
            let header = header.as_str();
            if !header.starts_with("impersonate-") {
                continue;
            }
            let value = value.to_str().map_err(|_| unreadable())?.to_owned();
            match header {
                USER => asked.name = value,
                UID => asked.uid = value,
                GROUP => asked.groups.push(value),
                _ => match header.strip_prefix(EXTRA) {
                    Some(key) => {
                        asked.extra.entry(decoded(key).ok_or_else(unreadable)?).or_default().push(value);
                    }
                    None => {
                        return Err(Refusal::bad_request(format!("unknown impersonation header {header:?}")));
                    }
                },
            }
        }
        let more = !asked.uid.is_empty() || !asked.groups.is_empty() || !asked.extra.is_empty();
        match (asked.name.is_empty(), more) {
            (false, _) => Ok(Some(asked)),
            (true, false) => Ok(None),
            (true, true) => Err(Refusal::bad_request("requested impersonation without impersonating a user")),
        }
    }
}

/// Percent signs undone; a key may have what a header's name may not.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::access::testing::Fixed;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn an_administrator_may_be_anybody() {
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
            assert_eq!(as_asked(User::admin(), &headers, &Fixed::default()), Ok(expected), "{headers:?}");
        }
    }

    #[test]
    fn others_may_not_and_are_told() {
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
            let refusal = as_asked(User::sidecar(), &headers, &Fixed::default()).unwrap_err();
            assert_eq!((refusal.code, refusal.message.as_str()), (code, message));
        }
        assert!(
            as_asked(
                User::sidecar(),
                &headers(&[("impersonate-extra-a%2", "x"), (USER, "j")]),
                &Fixed::default()
            )
            .is_err()
        );
    }
}
