//! The server's own certificate authority (CA): created at the first start and stored in `DIR/pki`.
//!
//! | File | Content |
//! |---|---|
//! | `ca.key`, `ca.crt` | the CA; clients trust `ca.crt` |
//! | `sa.key` | the key that signs service account tokens |
//! | `admin.token` | a bearer token of the administrator, for programs without certificates |
//!
//! The server certificate is issued at each start, renewed while the server runs ([`crate::server`]) and never stored.
//! Missing files are created, except the key of an existing CA: a new key would lock out every client.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use wharf_model::Time;

use super::token::KeyError;
use super::{Access, MASTERS, NODES, SIDECARS, Signer, User};

const CA_NAME: &str = "wharf";
const CA_DAYS: i64 = 3650;
/// Validity of the server certificate, which is renewed long before it expires.
const SERVER_DAYS: i64 = 90;
const CLIENT_DAYS: i64 = 365;

/// Why the CA cannot be used, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Other users can read a key.
    #[error(
        "{path} is readable by users other than its owner; if it was not read, run `chmod 600 {path}` and start again"
    )]
    Exposed {
        /// The path.
        path: PathBuf,
    },
    /// The CA certificate exists, but its key does not.
    #[error(
        "{path} is missing, but its certificate exists; restore the key, or remove the whole directory to start with \
         a new CA, which no client trusts"
    )]
    KeyMissing {
        /// The path.
        path: PathBuf,
    },
    /// The content of a file is invalid. The message does not quote it.
    #[error("{path} is unusable: {reason}")]
    Unusable {
        /// The path.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// A certificate or key cannot be generated.
    #[error("failed to generate a certificate or key: {0}")]
    Generate(#[from] rcgen::Error),
    /// The operating system returned no random bytes.
    #[error("failed to read random bytes: {0}")]
    Randomness(getrandom::Error),
    /// TLS rejects a generated certificate or key.
    #[error("failed to use a certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// The identity that a client certificate is issued for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The administrator, with all permissions.
    Admin,
    /// A CSI sidecar.
    Sidecar,
    /// The agent of the named node.
    Node(String),
}

impl Identity {
    /// The user that the certificate identifies.
    pub fn user(&self) -> User {
        match self {
            Self::Admin => User::admin(),
            Self::Sidecar => User::sidecar(),
            Self::Node(name) => User::node(name),
        }
    }

    fn group(&self) -> &'static str {
        match self {
            Self::Admin => MASTERS,
            Self::Sidecar => SIDECARS,
            Self::Node(_) => NODES,
        }
    }
}

/// The CA with its keys in memory.
pub struct Pki {
    ca: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    token_key: Vec<u8>,
    admin_token: String,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens the CA in `data/pki`, creating it if there is none. The caller must hold the lock of the data directory.
    pub fn open_or_create(data: &Path, now: Time) -> Result<Self, PkiError> {
        let dir = Dir(data.join("pki"));
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir.0);
        created.map_err(|source| PkiError::File { path: dir.0.clone(), source })?;
        if dir.read("sa.key")?.is_none() {
            dir.write("sa.key", KeyPair::generate()?.serialize_pem().as_bytes())?;
        }
        if dir.read("admin.token")?.is_none() {
            let mut secret = [0; 32];
            getrandom::fill(&mut secret).map_err(PkiError::Randomness)?;
            dir.write("admin.token", BASE64_URL_SAFE_NO_PAD.encode(secret).as_bytes())?;
        }
        match (dir.read("ca.key")?, dir.read("ca.crt")?) {
            (Some(_), Some(_)) => {}
            (None, Some(_)) => return Err(PkiError::KeyMissing { path: dir.path("ca.key") }),
            // The certificate is written last: if the process crashed before, no client has seen this CA.
            (key, None) => {
                let key = match key {
                    Some(pem) => dir.key("ca.key", &pem)?,
                    None => {
                        let key = KeyPair::generate()?;
                        dir.write("ca.key", key.serialize_pem().as_bytes())?;
                        key
                    }
                };
                let mut params = ca_params();
                set_validity(&mut params, now, CA_DAYS);
                dir.write("ca.crt", params.self_signed(&key)?.pem().as_bytes())?;
            }
        }
        Self::open(data)
    }

    /// Opens the CA in `data/pki`.
    pub fn open(data: &Path) -> Result<Self, PkiError> {
        let dir = Dir(data.join("pki"));
        let require = |name: &str| {
            let missing = || PkiError::File { path: dir.path(name), source: io::ErrorKind::NotFound.into() };
            dir.read(name)?.ok_or_else(missing)
        };
        let unusable = |name: &str, reason: &dyn std::fmt::Display| PkiError::Unusable {
            path: dir.path(name),
            reason: reason.to_string(),
        };
        let certificate_pem = require("ca.crt")?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|error| unusable("ca.crt", &error))?;
        let key = dir.key("ca.key", &require("ca.key")?)?;
        let both = certified_key(certificate.clone(), &key)?;
        both.keys_match().map_err(|_| unusable("ca.crt", &"it does not belong to ca.key"))?;
        let token_key = dir.key("sa.key", &require("sa.key")?)?.serialize_der();
        Signer::new(&token_key).map_err(|error| unusable("sa.key", &error))?;
        let admin_token = require("admin.token")?.trim().to_owned();
        if admin_token.len() < 32 {
            return Err(unusable(
                "admin.token",
                &"it is too short to be a secret; remove it to generate a new one",
            ));
        }
        Ok(Self { ca: Issuer::new(ca_params(), key), certificate, certificate_pem, token_key, admin_token })
    }

    /// The authenticator for this CA's tokens.
    pub fn access(&self) -> Result<Access, KeyError> {
        Ok(Access::new(Signer::new(&self.token_key)?, Some(&self.admin_token)))
    }

    /// The CA certificate in PEM, for clients that verify the server.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The CA certificate, which also signs client certificates.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues a server certificate for these names and addresses.
    pub fn server_certificate(&self, names: &[String], now: Time) -> Result<CertifiedKey, PkiError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "wharf-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = self.sign(params, now, SERVER_DAYS)?;
        certified_key(certificate.der().clone(), &key)
    }

    /// A kubeconfig with a client certificate for `identity`. `server` is a URL such as `https://127.0.0.1:6443`. The
    /// result contains a private key.
    pub fn kubeconfig(&self, identity: &Identity, server: &str, now: Time) -> Result<String, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, identity.group());
        params.distinguished_name.push(DnType::CommonName, identity.user().name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = self.sign(params, now, CLIENT_DAYS)?;
        let name = identity.user().name;
        let ca = BASE64_STANDARD.encode(&self.certificate_pem);
        let certificate = BASE64_STANDARD.encode(certificate.pem());
        let key = BASE64_STANDARD.encode(key.serialize_pem());
        Ok(format!(
            "\
apiVersion: v1
kind: Config
clusters:
- name: wharf
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {name:?}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: wharf
  context:
    cluster: wharf
    user: {name:?}
current-context: wharf
"
        ))
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        now: Time,
        days: i64,
    ) -> Result<(rcgen::Certificate, KeyPair), PkiError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, now, days);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.ca)?, key))
    }
}

/// The parameters of the CA certificate, without its validity: the same at every start.
fn ca_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// Valid from yesterday, to tolerate clock skew.
fn set_validity(params: &mut CertificateParams, now: Time, days: i64) {
    let today = jiff::Timestamp::from_millisecond(now.0).unwrap_or_default().to_zoned(TimeZone::UTC).date();
    let day = |days: i64| {
        let date: Date = today.saturating_add(jiff::Span::new().days(days));
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}

fn certified_key(certificate: CertificateDer<'static>, key: &KeyPair) -> Result<CertifiedKey, PkiError> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(CertifiedKey::new(vec![certificate], rustls::crypto::ring::sign::any_ecdsa_type(&key)?))
}

struct Dir(PathBuf);

impl Dir {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Reads a file; none if it does not exist. A secret that other users can read is rejected.
    fn read(&self, name: &str) -> Result<Option<String>, PkiError> {
        let path = self.path(name);
        let failed = |source| PkiError::File { path: path.clone(), source };
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mode = fs::metadata(&path).map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 && name != "ca.crt" {
            return Err(PkiError::Exposed { path });
        }
        Ok(Some(text))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PkiError> {
        let path = self.path(name);
        write_private(&path, bytes).map_err(|source| PkiError::File { path, source })
    }

    fn key(&self, name: &str, pem: &str) -> Result<KeyPair, PkiError> {
        let unusable =
            |_| PkiError::Unusable { path: self.path(name), reason: "not a P-256 key in PEM".into() };
        KeyPair::from_pem(pem).map_err(unusable)
    }
}

/// Writes a file that only its owner can read, completely and durably or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    // A leftover file may be readable by others, and would keep its mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::testing::FakeObjects;

    const NOW: Time = Time(1_800_000_000_000);

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn ca_is_created_once_and_reused() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open_or_create(dir.path(), NOW).unwrap();
        let again = Pki::open_or_create(dir.path(), NOW.plus(std::time::Duration::from_secs(1))).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        assert_eq!(first.token_key, again.token_key);
        assert_eq!(first.admin_token, again.admin_token);
        let pki = dir.path().join("pki");
        assert_eq!(mode(&pki), 0o700);
        let mut names: Vec<_> = fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["admin.token", "ca.crt", "ca.key", "sa.key"]);
        for name in names {
            assert_eq!(mode(&pki.join(name)), 0o600);
        }
        let debug_output = format!("{first:?}");
        assert!(
            !debug_output.contains(&first.admin_token) && !debug_output.contains("PRIVATE"),
            "{debug_output}"
        );
        let mut headers = http::HeaderMap::new();
        let value = format!("Bearer {}", first.admin_token);
        headers.insert(http::header::AUTHORIZATION, value.parse().unwrap());
        let user = again.access().unwrap().authenticate(&headers, None, "/api", &FakeObjects::default(), NOW);
        assert_eq!(user, Ok(User::admin()));
    }

    #[test]
    fn interrupted_creation_is_completed() {
        // The files in the order in which they are written.
        let order = ["sa.key", "admin.token", "ca.key"];
        let whole = tempfile::tempdir().unwrap();
        Pki::open_or_create(whole.path(), NOW).unwrap();
        for crashed_after in 0..=order.len() {
            let dir = tempfile::tempdir().unwrap();
            fs::DirBuilder::new().mode(0o700).create(dir.path().join("pki")).unwrap();
            for name in &order[..crashed_after] {
                fs::copy(whole.path().join("pki").join(name), dir.path().join("pki").join(name)).unwrap();
            }
            fs::write(dir.path().join("pki/ca.crt.tmp"), "half").unwrap();
            let created = Pki::open_or_create(dir.path(), NOW).unwrap();
            assert_eq!(
                created.certificate(),
                Pki::open(dir.path()).unwrap().certificate(),
                "{crashed_after}"
            );
        }
    }

    #[test]
    fn unusable_files_are_rejected() {
        let other = tempfile::tempdir().unwrap();
        Pki::open_or_create(other.path(), NOW).unwrap();
        let broken = |name: &str, how: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            Pki::open_or_create(dir.path(), NOW).unwrap();
            how(&dir.path().join("pki").join(name));
            Pki::open_or_create(dir.path(), NOW).unwrap_err()
        };
        let lost = broken("ca.key", &|path| fs::remove_file(path).unwrap());
        assert!(matches!(lost, PkiError::KeyMissing { .. }), "{lost}");
        for name in ["ca.key", "sa.key", "admin.token"] {
            let open =
                broken(name, &|path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap());
            assert!(matches!(open, PkiError::Exposed { .. }), "{open}");
            let unusable = broken(name, &|path| write_private(path, b"nonsense").unwrap());
            assert!(matches!(unusable, PkiError::Unusable { .. }), "{unusable}");
            assert!(!unusable.to_string().contains("nonsense"), "{unusable}");
        }
        let foreign = broken("ca.crt", &|path| {
            fs::copy(other.path().join("pki/ca.crt"), path).unwrap();
        });
        assert!(matches!(foreign, PkiError::Unusable { .. }), "{foreign}");
        let none = Pki::open(Path::new("/nonexistent")).unwrap_err();
        assert!(matches!(none, PkiError::File { .. }), "{none}");
    }

    #[test]
    fn kubeconfig_authenticates_its_identity() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open_or_create(dir.path(), NOW).unwrap();
        let access = pki.access().unwrap();
        for identity in [Identity::Admin, Identity::Sidecar, Identity::Node("n1".into())] {
            let text = pki.kubeconfig(&identity, "https://127.0.0.1:6443", NOW).unwrap();
            let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
            let encoded = config["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
            let pem = BASE64_STANDARD.decode(encoded).unwrap();
            let der = CertificateDer::from_pem_slice(&pem).unwrap();
            let headers = http::HeaderMap::new();
            let user =
                access.authenticate(&headers, Some(&der), "/api", &FakeObjects::default(), NOW).unwrap();
            assert_eq!((user.name, user.groups), (identity.user().name, identity.user().groups));
        }
    }
}
