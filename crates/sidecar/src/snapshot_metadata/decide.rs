//! Rules: who may request which snapshot, and the error otherwise. Messages and codes are upstream's, since backup
//! programs depend on them.

use serde::Deserialize;
use tonic::{Code, Status};
use wharf_model::snapshot::secrets::SnapshotSecretError;
use wharf_model::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

/// A request of either kind.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct MetadataRequest {
    /// The caller's token. Never logged.
    pub(super) token: String,
    /// Namespace of the snapshot.
    pub(super) namespace: String,
    /// Name of the snapshot.
    pub(super) snapshot: String,
    /// Handle of the base snapshot, if the changes since it are requested.
    pub(super) base: Option<String>,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("securityToken is missing")]
    NoToken,
    #[error("namespace parameter cannot be empty")]
    NoNamespace,
    #[error("snapshotName cannot be empty")]
    NoSnapshotName,
    #[error("targetSnapshotName cannot be empty")]
    NoTargetName,
    #[error("baseSnapshotId cannot be empty")]
    NoBase,
    #[error("VolumeSnapshot '{snapshot}' does not belong to the CSI driver '{driver}'")]
    OtherDriver { snapshot: String, driver: String },
    #[error("failed to authenticate user: {0}")]
    Authentication(String),
    #[error("unauthenticated user")]
    Unauthenticated,
    #[error("failed to authorize the user: {0}")]
    Authorization(String),
    #[error("user does not have permissions to perform the operation: {0}")]
    Denied(String),
    #[error("the CSI driver is not yet ready")]
    DriverNotReady,
    #[error("failed to get VolumeSnapshot '{namespace}/{name}': {reason}")]
    Snapshot { namespace: String, name: String, reason: String },
    #[error("the VolumeSnapshot is not yet ready, name: {0}")]
    SnapshotNotReady(String),
    #[error("boundVolumeSnapshotContentName is not set in VolumeSnapshot status, name: {0}")]
    NotBound(String),
    #[error("failed to get VolumeSnapshotContent '{name}': {reason}")]
    Content { name: String, reason: String },
    #[error("the VolumeSnapshotContent is not yet ready, name: {0}")]
    ContentNotReady(String),
    #[error("snapshotHandle is not set in VolumeSnapshotContent status, name: {0}")]
    NoHandle(String),
    #[error("failed to get VolumeSnapshotClass '{name}': {reason}")]
    Class { name: String, reason: String },
    #[error("VolumeSnapshotClass '{class}' does not belong to the CSI driver '{driver}'")]
    ClassOfOtherDriver { class: String, driver: String },
    #[error("failed to list VolumeSnapshotClasses: {0}")]
    Classes(String),
    #[error("multiple default VolumeSnapshotClasses are set for the CSI driver '{0}'")]
    ManyDefaults(String),
    #[error("no default VolumeSnapshotClass is set for the CSI driver '{0}'")]
    NoDefault(String),
    #[error("invalid snapshotter secret parameters in VolumeSnapshotClass: {0}")]
    SecretParameters(#[from] SnapshotSecretError),
    #[error("failed to get credentials: {0}")]
    Credentials(String),
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::NoToken
            | Refusal::NoNamespace
            | Refusal::NoSnapshotName
            | Refusal::NoTargetName
            | Refusal::NoBase
            | Refusal::OtherDriver { .. }
            | Refusal::ClassOfOtherDriver { .. } => Code::InvalidArgument,
            Refusal::Authentication(_) | Refusal::Authorization(_) => Code::Internal,
            Refusal::Unauthenticated => Code::Unauthenticated,
            Refusal::Denied(_) => Code::PermissionDenied,
            Refusal::DriverNotReady
            | Refusal::Snapshot { .. }
            | Refusal::SnapshotNotReady(_)
            | Refusal::NotBound(_)
            | Refusal::Content { .. }
            | Refusal::ContentNotReady(_)
            | Refusal::NoHandle(_)
            | Refusal::Class { .. }
            | Refusal::Classes(_)
            | Refusal::ManyDefaults(_)
            | Refusal::NoDefault(_)
            | Refusal::SecretParameters(_)
            | Refusal::Credentials(_) => Code::Unavailable,
        };
        Self::new(code, refusal.to_string())
    }
}

impl MetadataRequest {
    /// Checks that all required fields are set.
    pub(super) fn validate(self) -> Result<Self, Refusal> {
        match &self {
            Self { token, .. } if token.is_empty() => Err(Refusal::NoToken),
            Self { namespace, .. } if namespace.is_empty() => Err(Refusal::NoNamespace),
            Self { base: Some(base), .. } if base.is_empty() => Err(Refusal::NoBase),
            Self { snapshot, base: Some(_), .. } if snapshot.is_empty() => Err(Refusal::NoTargetName),
            Self { snapshot, base: None, .. } if snapshot.is_empty() => Err(Refusal::NoSnapshotName),
            _ => Ok(self),
        }
    }
}

/// A user from a TokenReview, passed on unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct User {
    pub(super) username: String,
    pub(super) uid: String,
    pub(super) groups: Option<Vec<String>>,
    pub(super) extra: Option<serde_json::Value>,
}

/// The status of a TokenReview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct TokenStatus {
    pub(super) authenticated: bool,
    pub(super) audiences: Option<Vec<String>>,
    pub(super) user: User,
}

/// The user of a token that is valid for this audience. A server that returns no audience has not checked it.
pub(super) fn authenticated(status: TokenStatus, audience: &str) -> Result<User, Refusal> {
    let meant = status.audiences.iter().flatten().any(|named| named == audience);
    match status.authenticated && meant && !audience.is_empty() {
        true => Ok(status.user),
        false => Err(Refusal::Unauthenticated),
    }
}

/// The status of a SubjectAccessReview.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct AccessStatus {
    pub(super) allowed: bool,
    pub(super) denied: bool,
    pub(super) reason: String,
}

/// Whether the user is allowed.
pub(super) fn allowed(status: AccessStatus) -> Result<(), Refusal> {
    match status.allowed && !status.denied {
        true => Ok(()),
        false => Err(Refusal::Denied(status.reason)),
    }
}

/// The content of a ready snapshot.
pub(super) fn content_name(snapshot: &VolumeSnapshot) -> Result<&str, Refusal> {
    let name = || snapshot.metadata.name.clone();
    if !snapshot.is_ready() {
        return Err(Refusal::SnapshotNotReady(name()));
    }
    snapshot.bound_content().ok_or_else(|| Refusal::NotBound(name()))
}

/// The snapshot handle. A content that does not reference the snapshot belongs to another one, whatever the
/// snapshot says.
pub(super) fn handle<'a>(
    snapshot: &VolumeSnapshot,
    content: &'a VolumeSnapshotContent,
    driver: &str,
) -> Result<&'a str, Refusal> {
    let name = || content.metadata.name.clone();
    let status = content.status.as_ref().filter(|status| status.ready_to_use == Some(true));
    let status = status.ok_or_else(|| Refusal::ContentNotReady(name()))?;
    let handle = status.snapshot_handle.as_deref().filter(|handle| !handle.is_empty());
    let handle = handle.ok_or_else(|| Refusal::NoHandle(name()))?;
    if content.spec.driver != driver {
        let snapshot = snapshot.metadata.name.clone();
        return Err(Refusal::OtherDriver { snapshot, driver: driver.to_owned() });
    }
    match content.is_bound_to(&snapshot.metadata) {
        true => Ok(handle),
        false => Err(Refusal::NotBound(snapshot.metadata.name.clone())),
    }
}

/// The class that a snapshot names. Users choose it and may choose the class of another driver, whose secrets must
/// not be sent to this driver.
pub(super) fn named_class(class: VolumeSnapshotClass, driver: &str) -> Result<VolumeSnapshotClass, Refusal> {
    match class.driver == driver {
        true => Ok(class),
        false => Err(Refusal::ClassOfOtherDriver { class: class.metadata.name, driver: driver.to_owned() }),
    }
}

/// The driver's default class, for a snapshot that names none.
pub(super) fn default_class<'a>(
    classes: &'a [VolumeSnapshotClass],
    driver: &str,
) -> Result<&'a VolumeSnapshotClass, Refusal> {
    let mut defaults = classes.iter().filter(|class| class.driver == driver && class.is_default());
    match (defaults.next(), defaults.next()) {
        (Some(class), None) => Ok(class),
        (None, _) => Err(Refusal::NoDefault(driver.to_owned())),
        (Some(_), Some(_)) => Err(Refusal::ManyDefaults(driver.to_owned())),
    }
}

#[cfg(test)]
mod tests;
