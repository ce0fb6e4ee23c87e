//! Authentication: by the client certificate that TLS has verified, or by a bearer token. Requests without credentials
//! are anonymous and limited to health and version. The reason for rejecting a token is logged, not returned.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wharf_model::Time;

use super::token::{self, ISSUER, KeyError, Signer, TokenError};
use super::{Objects, User, certificate, impersonate, roles};
use crate::status::StatusError;

/// Authenticates requests and signs tokens.
pub struct Access {
    pub(super) signer: Signer,
    /// SHA-256 of the administrator's token. Comparing hashes leaks nothing about the token through timing.
    admin: Option<[u8; 32]>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("signer", &self.signer).finish_non_exhaustive()
    }
}

/// The result of authenticating a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    /// The user.
    pub user: User,
    /// The requested audiences that the token is valid for.
    pub audiences: Vec<String>,
}

impl Access {
    /// Uses this token key, and the administrator's token if there is one.
    pub fn new(signer: Signer, admin_token: Option<&str>) -> Self {
        Self { signer, admin: admin_token.map(|token| Sha256::digest(token).into()) }
    }

    /// Uses a new token key, for a server that stores no keys.
    pub fn generate() -> Result<Self, KeyError> {
        Ok(Self::new(Signer::generate()?, None))
    }

    /// The user of a request. `peer` is the verified client certificate in DER.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        peer: Option<&[u8]>,
        path: &str,
        objects: &dyn Objects,
        now: Time,
    ) -> Result<User, StatusError> {
        let user = match (peer.and_then(user_from_certificate), bearer(headers)) {
            (Some(user), _) => user,
            (None, Some(token)) => match self.authenticate_token(token, &[ISSUER.into()], objects, now) {
                Ok(Authenticated { user, .. }) => user,
                Err(error) => {
                    tracing::debug!(%error, "rejected bearer token");
                    return Err(unauthorized());
                }
            },
            (None, None) if roles::PUBLIC.contains(&path) && !headers.contains_key(AUTHORIZATION) => {
                User::anonymous()
            }
            (None, None) => return Err(unauthorized()),
        };
        impersonate::resolve(user, headers, objects)
    }

    /// Authenticates a token for any of the audiences.
    pub fn authenticate_token(
        &self,
        token: &str,
        audiences: &[String],
        objects: &dyn Objects,
        now: Time,
    ) -> Result<Authenticated, TokenError> {
        if self.admin.is_some_and(|admin| <[u8; 32]>::from(Sha256::digest(token)) == admin) {
            // The administrator's token is valid for this API only.
            let audiences: Vec<String> =
                audiences.iter().filter(|audience| *audience == ISSUER).cloned().collect();
            return if audiences.is_empty() {
                Err(TokenError::Invalid)
            } else {
                Ok(Authenticated { user: User::admin(), audiences })
            };
        }
        let (user, audiences) = token::validate(&self.signer.verify(token)?, audiences, objects, now)?;
        Ok(Authenticated { user, audiences })
    }

    /// The content of `/openid/v1/jwks`. Its media type is `application/jwk-set+json`.
    pub fn jwks(&self) -> Value {
        self.signer.jwks()
    }

    /// The content of `/.well-known/openid-configuration`. `base` is the URL of this server, such as
    /// `https://127.0.0.1:6443`.
    pub fn openid_configuration(&self, base: &str) -> Value {
        token::openid_configuration(base)
    }
}

/// The error for unauthenticated requests.
pub(crate) fn unauthorized() -> StatusError {
    StatusError::new(401, "Unauthorized", "Unauthorized")
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn user_from_certificate(der: &[u8]) -> Option<User> {
    let subject = certificate::subject(der)?;
    let groups: Vec<&str> = subject.organizations.iter().map(String::as_str).collect();
    let mut user = User::new(subject.common_name, &groups);
    let fingerprint = base16ct::lower::encode_string(&Sha256::digest(der));
    user.extra.insert(
        "authentication.kubernetes.io/credential-id".into(),
        vec![format!("X509SHA256={fingerprint}")],
    );
    Some(user)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;
    use crate::access::testing::FakeObjects;

    const NOW: Time = Time(1_800_000_000_000);

    fn certificate(name: &str, group: &str) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.distinguished_name.push(DnType::CommonName, name);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn credentials_identify_the_user() {
        let access = Access::new(Signer::generate().unwrap(), Some("the-admin-token"));
        let jane = certificate("jane", "devs");
        let unnamed = certificate("", "system:masters");
        let cases = [
            // (case, authorization, certificate, path, name or none for 401)
            ("nothing", None, None, "/api", None),
            ("nothing, health", None, None, "/healthz", Some("system:anonymous")),
            ("nothing, below health", None, None, "/healthz/", None),
            ("a bad token, health", Some("Bearer x"), None, "/healthz", None),
            ("no scheme, health", Some("x"), None, "/healthz", None),
            ("admin's token", Some("Bearer the-admin-token"), None, "/api", Some("wharf:admin")),
            ("in lower case", Some("bearer the-admin-token"), None, "/api", Some("wharf:admin")),
            ("half of it", Some("Bearer the-admin"), None, "/api", None),
            ("as a password", Some("Basic the-admin-token"), None, "/api", None),
            ("empty", Some("Bearer "), None, "/api", None),
            ("a certificate", None, Some(&jane), "/api", Some("jane")),
            ("a certificate and a token", Some("Bearer the-admin-token"), Some(&jane), "/api", Some("jane")),
            ("a certificate without a name", None, Some(&unnamed), "/api", None),
        ];
        for (case, authorization, peer, path, name) in cases {
            let mut headers = HeaderMap::new();
            if let Some(value) = authorization {
                headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            }
            let user =
                access.authenticate(&headers, peer.map(Vec::as_slice), path, &FakeObjects::default(), NOW);
            match name {
                Some(name) => assert_eq!(user.unwrap().name, name, "{case}"),
                None => assert_eq!(user.unwrap_err(), unauthorized(), "{case}"),
            }
        }
        let user = user_from_certificate(&jane).unwrap();
        assert_eq!(user.groups, ["devs", "system:authenticated"]);
        assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("X509SHA256="));
        assert!(!format!("{access:?}").contains("the-admin-token"));
    }

    #[test]
    fn admin_token_is_invalid_for_other_audiences() {
        let access = Access::new(Signer::generate().unwrap(), Some("the-admin-token"));
        let elsewhere =
            access.authenticate_token("the-admin-token", &["vault".into()], &FakeObjects::default(), NOW);
        assert_eq!(elsewhere, Err(TokenError::Invalid));
    }
}
