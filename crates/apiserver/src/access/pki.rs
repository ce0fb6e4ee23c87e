//! The server's own authority: made at the first start, kept in `DIR/pki`, and never told to anybody.
//!
//! | File | What |
//! |---|---|
//! | `ca.key`, `ca.crt` | the authority; clients trust `ca.crt` |
//! | `sa.key` | signs tokens of service accounts |
//! | `admin.token` | a bearer token of the administrator, for programs without certificates |
//!
//! The server's own certificate is made anew at each start and while it runs ([`crate::server`]), and is not kept.
//! What is missing is made, but for the key of an authority that is there: a new one would lock out every client.

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

const AUTHORITY: &str = "wharf";
const AUTHORITY_DAYS: i64 = 3650;
/// Of the server's certificate, which is renewed long before.
const SERVER_DAYS: i64 = 90;
const CLIENT_DAYS: i64 = 365;

/// The authority cannot be used, and what can be done.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others could read a key.
    #[error("{path} can be read by others than its owner; if nobody has, `chmod 600 {path}` and start again")]
    Open {
        /// Which.
        path: PathBuf,
    },
    /// The certificate is there and its key is not.
    #[error(
        "{path} is missing, but its certificate is there; restore the key, or remove the whole directory to begin with \
         a new authority, which no client knows"
    )]
    Lost {
        /// Which.
        path: PathBuf,
    },
    /// A file is not what it should be. Nothing of it is quoted.
    #[error("{path} cannot be used: {why}")]
    Unfit {
        /// Which.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A certificate cannot be made.
    #[error("a certificate cannot be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The system gives no randomness.
    #[error("the system gives no randomness: {0}")]
    Randomness(getrandom::Error),
    /// A made certificate cannot be used.
    #[error("a certificate cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// For whom certificates are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// May do all.
    Admin,
    /// What stands between drivers and the API.
    Sidecar,
    /// The agent of this node.
    Node(String),
}

impl Identity {
    /// The user that the certificate names.
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

/// The authority, its keys in memory.
pub struct Pki {
    authority: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    tokens: Vec<u8>,
    admin_token: String,
}

impl std::fmt::Debug for Pki {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pki").finish_non_exhaustive()
    }
}

impl Pki {
    /// Opens the authority in `data/pki`, and makes it if there is none. One process at a time: who calls holds the
    /// lock of the data directory.
    pub fn open_or_make(data: &Path, now: Time) -> Result<Self, PkiError> {
        let dir = Dir(data.join("pki"));
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir.0);
        made.map_err(|source| PkiError::File { path: dir.0.clone(), source })?;
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
            (None, Some(_)) => return Err(PkiError::Lost { path: dir.path("ca.key") }),
            // The certificate comes last: if we died before it, nobody has seen this authority.
            (key, None) => {
                let key = match key {
                    Some(pem) => dir.key("ca.key", &pem)?,
                    None => {
                        let key = KeyPair::generate()?;
                        dir.write("ca.key", key.serialize_pem().as_bytes())?;
                        key
                    }
                };
                let mut params = authority();
                validity(&mut params, now, AUTHORITY_DAYS);
                dir.write("ca.crt", params.self_signed(&key)?.pem().as_bytes())?;
            }
        }
        Self::open(data)
    }

    /// Opens the authority in `data/pki`.
    pub fn open(data: &Path) -> Result<Self, PkiError> {
        let dir = Dir(data.join("pki"));
        let there = |name: &str| {
            let missing = || PkiError::File { path: dir.path(name), source: io::ErrorKind::NotFound.into() };
            dir.read(name)?.ok_or_else(missing)
        };
        let unfit = |name: &str, why: &dyn std::fmt::Display| PkiError::Unfit {
            path: dir.path(name),
            why: why.to_string(),
        };
        let certificate_pem = there("ca.crt")?;
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|error| unfit("ca.crt", &error))?;
        let key = dir.key("ca.key", &there("ca.key")?)?;
        let both = certified(certificate.clone(), &key)?;
        both.keys_match().map_err(|_| unfit("ca.crt", &"it is not the certificate of ca.key"))?;
        let tokens = dir.key("sa.key", &there("sa.key")?)?.serialize_der();
        Signer::new(&tokens).map_err(|error| unfit("sa.key", &error))?;
        let admin_token = there("admin.token")?.trim().to_owned();
        if admin_token.len() < 32 {
            return Err(unfit(
                "admin.token",
                &"it is too short to be a secret; remove it, and a new one is made",
            ));
        }
        Ok(Self {
            authority: Issuer::new(authority(), key),
            certificate,
            certificate_pem,
            tokens,
            admin_token,
        })
    }

    /// Who knows whose a token is.
    pub fn access(&self) -> Result<Access, KeyError> {
        Ok(Access::new(Signer::new(&self.tokens)?, Some(&self.admin_token)))
    }

    /// The authority's certificate as text, for those who are to know the server by it.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// The authority's certificate, which signs those of clients.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A certificate for the server under these names and addresses.
    pub fn server(&self, names: &[String], now: Time) -> Result<CertifiedKey, PkiError> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "wharf-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let (certificate, key) = self.sign(params, now, SERVER_DAYS)?;
        certified(certificate.der().clone(), &key)
    }

    /// A kubeconfig with a certificate for `identity`, and `server` as `https://127.0.0.1:6443`. It holds a key.
    pub fn kubeconfig(&self, identity: &Identity, server: &str, now: Time) -> Result<String, PkiError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, identity.group());
        params.distinguished_name.push(DnType::CommonName, identity.user().name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let (certificate, key) = self.sign(params, now, CLIENT_DAYS)?;
        let name = identity.user().name;
        let authority = BASE64_STANDARD.encode(&self.certificate_pem);
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
    certificate-authority-data: {authority}
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
        validity(&mut params, now, days);
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.authority)?, key))
    }
}

/// What the authority's certificate says, but for its time: the same at every start.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

/// From yesterday, for clocks that go after.
fn validity(params: &mut CertificateParams, now: Time, days: i64) {
    let today = jiff::Timestamp::from_millisecond(now.0).unwrap_or_default().to_zoned(TimeZone::UTC).date();
    let day = |days: i64| {
        let date: Date = today.saturating_add(jiff::Span::new().days(days));
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = day(-1);
    params.not_after = day(days);
}

fn certified(certificate: CertificateDer<'static>, key: &KeyPair) -> Result<CertifiedKey, PkiError> {
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(CertifiedKey::new(vec![certificate], rustls::crypto::ring::sign::any_ecdsa_type(&key)?))
}

struct Dir(PathBuf);

impl Dir {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// None if there is none. A secret that others can read is none any more.
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
            return Err(PkiError::Open { path });
        }
        Ok(Some(text))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), PkiError> {
        let path = self.path(name);
        write_private(&path, bytes).map_err(|source| PkiError::File { path, source })
    }

    fn key(&self, name: &str, pem: &str) -> Result<KeyPair, PkiError> {
        let unfit =
            |_| PkiError::Unfit { path: self.path(name), why: "it has to be a P-256 key in PEM".into() };
        KeyPair::from_pem(pem).map_err(unfit)
    }
}

/// Writes a file that its owner alone can read, whole and durably or not at all.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let temporary = PathBuf::from(temporary);
    // One that stayed behind may be open to others; its mode would stay.
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
    use crate::access::testing::Fixed;

    const NOW: Time = Time(1_800_000_000_000);

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open_or_make(dir.path(), NOW).unwrap();
        let again = Pki::open_or_make(dir.path(), NOW.plus(std::time::Duration::from_secs(1))).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        assert_eq!(first.tokens, again.tokens);
        assert_eq!(first.admin_token, again.admin_token);
        let pki = dir.path().join("pki");
        assert_eq!(mode(&pki), 0o700);
        let mut names: Vec<_> = fs::read_dir(&pki).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["admin.token", "ca.crt", "ca.key", "sa.key"]);
        for name in names {
            assert_eq!(mode(&pki.join(name)), 0o600);
        }
        let shown = format!("{first:?}");
        assert!(!shown.contains(&first.admin_token) && !shown.contains("PRIVATE"), "{shown}");
        let mut headers = http::HeaderMap::new();
        let value = format!("Bearer {}", first.admin_token);
        headers.insert(http::header::AUTHORIZATION, value.parse().unwrap());
        let user = again.access().unwrap().authenticate(&headers, None, "/api", &Fixed::default(), NOW);
        assert_eq!(user, Ok(User::admin()));
    }

    #[test]
    fn a_start_that_died_is_finished() {
        // After each file that was written.
        let order = ["sa.key", "admin.token", "ca.key"];
        let whole = tempfile::tempdir().unwrap();
        Pki::open_or_make(whole.path(), NOW).unwrap();
        for died_after in 0..=order.len() {
            let dir = tempfile::tempdir().unwrap();
            fs::DirBuilder::new().mode(0o700).create(dir.path().join("pki")).unwrap();
            for name in &order[..died_after] {
                fs::copy(whole.path().join("pki").join(name), dir.path().join("pki").join(name)).unwrap();
            }
            fs::write(dir.path().join("pki/ca.crt.tmp"), "half").unwrap();
            let made = Pki::open_or_make(dir.path(), NOW).unwrap();
            assert_eq!(made.certificate(), Pki::open(dir.path()).unwrap().certificate(), "{died_after}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let other = tempfile::tempdir().unwrap();
        Pki::open_or_make(other.path(), NOW).unwrap();
        let broken = |name: &str, how: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            Pki::open_or_make(dir.path(), NOW).unwrap();
            how(&dir.path().join("pki").join(name));
            Pki::open_or_make(dir.path(), NOW).unwrap_err()
        };
        let lost = broken("ca.key", &|path| fs::remove_file(path).unwrap());
        assert!(matches!(lost, PkiError::Lost { .. }), "{lost}");
        for name in ["ca.key", "sa.key", "admin.token"] {
            let open =
                broken(name, &|path| fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap());
            assert!(matches!(open, PkiError::Open { .. }), "{open}");
            let unfit = broken(name, &|path| write_private(path, b"nonsense").unwrap());
            assert!(matches!(unfit, PkiError::Unfit { .. }), "{unfit}");
            assert!(!unfit.to_string().contains("nonsense"), "{unfit}");
        }
        let foreign = broken("ca.crt", &|path| {
            fs::copy(other.path().join("pki/ca.crt"), path).unwrap();
        });
        assert!(matches!(foreign, PkiError::Unfit { .. }), "{foreign}");
        let none = Pki::open(Path::new("/nonexistent")).unwrap_err();
        assert!(matches!(none, PkiError::File { .. }), "{none}");
    }

    #[test]
    fn kubeconfigs_name_whom_they_are_for() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open_or_make(dir.path(), NOW).unwrap();
        let access = pki.access().unwrap();
        for identity in [Identity::Admin, Identity::Sidecar, Identity::Node("n1".into())] {
            let text = pki.kubeconfig(&identity, "https://127.0.0.1:6443", NOW).unwrap();
            let config: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
            assert_eq!(config["clusters"][0]["cluster"]["server"], "https://127.0.0.1:6443");
            let encoded = config["users"][0]["user"]["client-certificate-data"].as_str().unwrap();
            let pem = BASE64_STANDARD.decode(encoded).unwrap();
            let der = CertificateDer::from_pem_slice(&pem).unwrap();
            let headers = http::HeaderMap::new();
            let user = access.authenticate(&headers, Some(&der), "/api", &Fixed::default(), NOW).unwrap();
            assert_eq!((user.name, user.groups), (identity.user().name, identity.user().groups));
        }
    }
}
