//! Service account tokens: JWTs signed with ES256, bound to a service account and optionally to a pod, Secret or node.
//!
//! A token is valid only while the objects it names exist: if the service account or the bound object is deleted or
//! replaced by another of the same name, the token is invalid.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use wharf_model::Time;

use super::{Objects, User, text};

/// The issuer of tokens and the audience of the API itself. Not the server's address, because tokens outlive it.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// No token that this server issues is longer.
const MAX_LENGTH: usize = 16 << 10;
/// Tolerates clock skew and pods that are just terminating.
const LEEWAY: Duration = Duration::from_secs(60);

/// Why a token was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// This server did not issue the token.
    #[error("invalid bearer token")]
    Invalid,
    /// The token is for other audiences.
    #[error("token audiences {} is invalid for the target audiences {}", go_quoted(.in_token), go_quoted(.requested))]
    Audience {
        /// The audiences of the token.
        in_token: Vec<String>,
        /// The requested audiences.
        requested: Vec<String>,
    },
    /// The token has expired.
    #[error("service account token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("service account token is not valid yet")]
    NotYetValid,
    /// An object that the token is bound to was deleted or replaced.
    #[error("{0}")]
    Invalidated(String),
}

/// A list in the format of upstream's messages: `["a" "b"]`.
fn go_quoted(values: &[String]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    format!("[{}]", values.join(" "))
}

/// The message for deleted bound objects; it reveals nothing else.
const INVALIDATED: &str = "service account token has been invalidated";

/// The claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claims {
    pub(super) aud: Vec<String>,
    pub(super) exp: i64,
    pub(super) iat: i64,
    pub(super) iss: String,
    pub(super) jti: String,
    #[serde(rename = "kubernetes.io")]
    pub(super) kubernetes: Bound,
    pub(super) nbf: i64,
    pub(super) sub: String,
}

/// The service account, and the objects that the token is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bound {
    pub(super) namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) secret: Option<Reference>,
    pub(super) serviceaccount: Reference,
}

/// One object, identified by name and UID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Reference {
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
}

impl Reference {
    pub(super) fn to(object: &Value) -> Self {
        Self { name: text(object, "/metadata/name").into(), uid: text(object, "/metadata/uid").into() }
    }
}

/// The key that signs tokens.
pub struct Signer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    kid: String,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// The key is unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a P-256 key in PKCS #8")]
pub struct KeyError;

impl Signer {
    /// Loads a P-256 key in PKCS #8 DER.
    pub fn new(pkcs8: &[u8]) -> Result<Self, KeyError> {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &random)
            .map_err(|_| KeyError)?;
        let kid = BASE64.encode(Sha256::digest(key.public_key().as_ref()));
        Ok(Self { key, random, kid })
    }

    /// Generates a key, for a server that stores no keys.
    pub fn generate() -> Result<Self, KeyError> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Self::new(pkcs8.map_err(|_| KeyError)?.as_ref())
    }

    pub(super) fn sign(&self, claims: &Claims) -> Result<String, KeyError> {
        let header = json!({"alg": "ES256", "kid": self.kid});
        let claims = serde_json::to_vec(claims).map_err(|_| KeyError)?;
        let mut token = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims));
        let signature = self.key.sign(&self.random, token.as_bytes()).map_err(|_| KeyError)?;
        token.push('.');
        BASE64.encode_string(signature, &mut token);
        Ok(token)
    }

    /// The claims of a token that this key signed.
    pub(super) fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        #[derive(Deserialize)]
        struct Header {
            alg: String,
            kid: String,
        }
        let read = || {
            if token.len() > MAX_LENGTH {
                return None;
            }
            let (signed, signature) = token.rsplit_once('.')?;
            let (header, claims) = signed.split_once('.')?;
            let header: Header = serde_json::from_slice(&BASE64.decode(header).ok()?).ok()?;
            if header.alg != "ES256" || header.kid != self.kid {
                return None;
            }
            let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.key.public_key().as_ref());
            public.verify(signed.as_bytes(), &BASE64.decode(signature).ok()?).ok()?;
            let claims: Claims = serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()?;
            (claims.iss == ISSUER).then_some(claims)
        };
        read().ok_or(TokenError::Invalid)
    }

    /// The public key, for clients that verify tokens themselves.
    pub fn jwks(&self) -> Value {
        // Uncompressed point: a tag byte, then two coordinates of 32 bytes.
        let point = self.key.public_key().as_ref();
        let coordinate = |range: std::ops::Range<usize>| point.get(range).map(|bytes| BASE64.encode(bytes));
        json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": self.kid, "crv": "P-256", "alg": "ES256",
            "x": coordinate(1..33), "y": coordinate(33..65),
        }]})
    }
}

/// The OpenID discovery document. `base` is the server's URL, such as `https://127.0.0.1:6443`.
pub(super) fn openid_configuration(base: &str) -> Value {
    json!({
        "issuer": ISSUER,
        "jwks_uri": format!("{base}/openid/v1/jwks"),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The user of the token, and the requested audiences it is valid for, if the token is valid now.
pub(super) fn validate(
    claims: &Claims,
    requested: &[String],
    objects: &dyn Objects,
    now: Time,
) -> Result<(User, Vec<String>), TokenError> {
    let audiences: Vec<String> =
        requested.iter().filter(|audience| claims.aud.contains(audience)).cloned().collect();
    if audiences.is_empty() {
        return Err(TokenError::Audience { in_token: claims.aud.clone(), requested: requested.to_vec() });
    }
    let seconds = now.0.div_euclid(1000);
    if seconds >= claims.exp {
        return Err(TokenError::Expired);
    }
    if now.plus(LEEWAY) < Time(claims.nbf.saturating_mul(1000)) {
        return Err(TokenError::NotYetValid);
    }
    let Bound { namespace, node, pod, secret, serviceaccount } = &claims.kubernetes;
    let references = [
        ("serviceaccounts", "service account", namespace.as_str(), Some(serviceaccount)),
        ("pods", "pod", namespace, pod.as_ref()),
        ("secrets", "secret", namespace, secret.as_ref()),
        // A pod's token names its node for information only; the node may be deleted and recreated.
        ("nodes", "node", "", node.as_ref().filter(|_| pod.is_none())),
    ];
    for (plural, what, namespace, reference) in references {
        if let Some(reference) = reference {
            check_reference(plural, what, namespace, reference, objects, now)?;
        }
    }
    let mut user = User::service_account(namespace, &serviceaccount.name, &serviceaccount.uid);
    let mut extra = |key: &str, value: String| {
        user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value]);
    };
    extra("credential-id", format!("JTI={}", claims.jti));
    for (kind, reference) in [("pod", pod), ("node", node)] {
        if let Some(Reference { name, uid }) = reference {
            extra(&format!("{kind}-name"), name.clone());
            if !uid.is_empty() {
                extra(&format!("{kind}-uid"), uid.clone());
            }
        }
    }
    Ok((user, audiences))
}

fn check_reference(
    plural: &str,
    what: &str,
    namespace: &str,
    reference: &Reference,
    objects: &dyn Objects,
    now: Time,
) -> Result<(), TokenError> {
    let Reference { name, uid } = reference;
    let invalid = |reason: String| Err(TokenError::Invalidated(reason));
    let is_account = plural == "serviceaccounts";
    let Some(object) = objects.get("", plural, namespace, name) else {
        return invalid(if is_account { format!("{plural} {name:?} not found") } else { INVALIDATED.into() });
    };
    let found_uid = text(&object, "/metadata/uid");
    if found_uid != uid {
        let claim = if is_account { String::new() } else { format!("service account {what} ref ") };
        return invalid(format!("{what} UID ({found_uid}) does not match {claim}claim ({uid})"));
    }
    let ends = object.pointer("/metadata/deletionTimestamp").and_then(Value::as_str);
    let ended = ends.is_some_and(|at| {
        // An unreadable timestamp counts as past.
        let at: Option<Time> = serde_json::from_value(at.into()).ok();
        at.is_none_or(|at| at.plus(LEEWAY) < now)
    });
    if ended { invalid(INVALIDATED.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access::testing::FakeObjects;

    const NOW: Time = Time(1_800_000_000_000);

    fn reference(name: &str, uid: &str) -> Reference {
        Reference { name: name.into(), uid: uid.into() }
    }

    fn claims() -> Claims {
        Claims {
            aud: vec![ISSUER.into(), "vault".into()],
            exp: 1_800_003_600,
            iat: 1_800_000_000,
            iss: ISSUER.into(),
            jti: "j".into(),
            kubernetes: Bound {
                namespace: "ns".into(),
                node: Some(reference("n1", "node-1")),
                pod: Some(reference("p", "pod-1")),
                secret: None,
                serviceaccount: reference("app", "sa-1"),
            },
            nbf: 1_800_000_000,
            sub: "system:serviceaccount:ns:app".into(),
        }
    }

    fn objects_fixture() -> FakeObjects {
        let object = |uid: &str| json!({"metadata": {"uid": uid}});
        FakeObjects::default()
            .with("/serviceaccounts/ns/app", object("sa-1"))
            .with("/pods/ns/p", object("pod-1"))
    }

    #[test]
    fn only_signed_tokens_are_accepted() {
        let signer = Signer::generate().unwrap();
        let token = signer.sign(&claims()).unwrap();
        assert_eq!(signer.verify(&token), Ok(claims()));
        assert_eq!(Signer::generate().unwrap().verify(&token), Err(TokenError::Invalid), "another key");

        let mut parts = token.split('.');
        let (header, body, signature) = (parts.next().unwrap(), parts.next().unwrap(), parts.next().unwrap());
        let other = Claims { sub: "system:serviceaccount:kube-system:root".into(), ..claims() };
        let other = BASE64.encode(serde_json::to_vec(&other).unwrap());
        let none = BASE64.encode(json!({"alg": "none", "kid": signer.kid}).to_string());
        let hmac = BASE64.encode(json!({"alg": "HS256", "kid": signer.kid}).to_string());
        for forged in [
            String::new(),
            "x".into(),
            format!("{header}.{body}"),
            format!("{header}.{body}."),
            format!("{header}.{other}.{signature}"),
            format!("{none}.{body}."),
            format!("{hmac}.{body}.{signature}"),
            format!("{header}.{body}.{signature}.{signature}"),
            format!("{token}{}", "A".repeat(MAX_LENGTH)),
        ] {
            assert_eq!(signer.verify(&forged), Err(TokenError::Invalid), "{forged}");
        }
        let foreign = signer.sign(&Claims { iss: "https://elsewhere".into(), ..claims() }).unwrap();
        assert_eq!(signer.verify(&foreign), Err(TokenError::Invalid));
    }

    #[test]
    fn token_is_valid_only_with_its_bound_objects() {
        let with = |change: fn(&mut Claims)| {
            let mut claims = claims();
            change(&mut claims);
            claims
        };
        let gone = |key: &str| {
            let mut objects_fixture = objects_fixture();
            objects_fixture.0.remove(key);
            objects_fixture
        };
        let ending = |at: &str| {
            objects_fixture()
                .with("/pods/ns/p", json!({"metadata": {"uid": "pod-1", "deletionTimestamp": at}}))
        };
        let invalid = |reason: &str| Some(TokenError::Invalidated(reason.into()));
        let cases = [
            ("good", claims(), objects_fixture(), None),
            (
                "expired",
                with(|claims| claims.exp = 1_800_000_000),
                objects_fixture(),
                Some(TokenError::Expired),
            ),
            ("clock skew", with(|claims| claims.nbf += 60), objects_fixture(), None),
            ("early", with(|claims| claims.nbf += 61), objects_fixture(), Some(TokenError::NotYetValid)),
            (
                "no account",
                claims(),
                gone("/serviceaccounts/ns/app"),
                invalid(r#"serviceaccounts "app" not found"#),
            ),
            (
                "another account",
                with(|claims| claims.kubernetes.serviceaccount.uid = "sa-0".into()),
                objects_fixture(),
                invalid("service account UID (sa-1) does not match claim (sa-0)"),
            ),
            ("no pod", claims(), gone("/pods/ns/p"), invalid(INVALIDATED)),
            (
                "another pod",
                with(|claims| {
                    claims.kubernetes.pod = Some(Reference { name: "p".into(), uid: "pod-0".into() })
                }),
                objects_fixture(),
                invalid("pod UID (pod-1) does not match service account pod ref claim (pod-0)"),
            ),
            ("ending", claims(), ending("2027-01-15T08:00:00Z"), None),
            ("ended", claims(), ending("2027-01-15T07:58:59Z"), invalid(INVALIDATED)),
            ("unreadable", claims(), ending("yesterday"), invalid(INVALIDATED)),
            (
                "no secret",
                with(|claims| {
                    claims.kubernetes.secret = Some(Reference { name: "s".into(), uid: "x".into() })
                }),
                objects_fixture(),
                invalid(INVALIDATED),
            ),
            ("no node", with(|claims| claims.kubernetes.pod = None), objects_fixture(), invalid(INVALIDATED)),
            (
                "for others",
                with(|claims| claims.aud = vec!["vault".into()]),
                objects_fixture(),
                Some(TokenError::Audience { in_token: vec!["vault".into()], requested: vec![ISSUER.into()] }),
            ),
        ];
        for (case, claims, objects, error) in cases {
            assert_eq!(validate(&claims, &[ISSUER.into()], &objects, NOW).err(), error, "{case}");
        }
    }

    #[test]
    fn token_identifies_user_and_extra_attributes() {
        let (user, audiences) =
            validate(&claims(), &["vault".into(), "other".into()], &objects_fixture(), NOW).unwrap();
        assert_eq!(audiences, ["vault"]);
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:ns:app", "sa-1"));
        let extra: Vec<(&str, &str)> = user
            .extra
            .iter()
            .map(|(key, values)| {
                (key.strip_prefix("authentication.kubernetes.io/").unwrap(), values[0].as_str())
            })
            .collect();
        let expected = [
            ("credential-id", "JTI=j"),
            ("node-name", "n1"),
            ("node-uid", "node-1"),
            ("pod-name", "p"),
            ("pod-uid", "pod-1"),
        ];
        assert_eq!(extra, expected);
    }

    #[test]
    fn jwks_key_verifies_tokens() {
        let signer = Signer::generate().unwrap();
        let token = signer.sign(&claims()).unwrap();
        let key = &signer.jwks()["keys"][0];
        let mut point = vec![4];
        for coordinate in ["x", "y"] {
            point.extend(BASE64.decode(key[coordinate].as_str().unwrap()).unwrap());
        }
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let signature = BASE64.decode(signature).unwrap();
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
            .verify(signed.as_bytes(), &signature)
            .unwrap();
        assert!(!format!("{signer:?}").contains("key"), "{signer:?}");
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_not_a_token(token in "\\PC{0,120}") {
            let signer = Signer::generate().unwrap();
            prop_assert_eq!(signer.verify(&token), Err(TokenError::Invalid));
        }
    }
}
