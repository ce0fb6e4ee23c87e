//! Parameters of classes, volume contexts and secrets. Keys have any case, as in csi-driver-nfs.
//!
//! [`ClassParameters`] is strict: an unknown key of a StorageClass is an error, so that a typo does not become a volume
//! with other properties. [`VolumeAttributes`] is what a volume's context says to the node: other keys are ignored there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::handle::{absolute_share, check_server};
use crate::options::is_flavor;
use crate::template::TemplateValues;

/// What DeleteVolume does with the volume's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnDelete {
    /// Removes it.
    #[default]
    Delete,
    /// Leaves it.
    Retain,
    /// Renames it to `archived-…`.
    Archive,
}

impl OnDelete {
    /// The one that keeps more.
    pub fn more_careful(self, other: Self) -> Self {
        match (self, other) {
            (Self::Retain, _) | (_, Self::Retain) => Self::Retain,
            (Self::Archive, _) | (_, Self::Archive) => Self::Archive,
            (Self::Delete, Self::Delete) => Self::Delete,
        }
    }

    /// Parses the parameter `onDelete`, in any case. Empty means that the class does not say it.
    pub fn parse(text: &str) -> Result<Option<Self>, ParameterError> {
        match text.to_ascii_lowercase().as_str() {
            "" => Ok(None),
            "delete" => Ok(Some(Self::Delete)),
            "retain" => Ok(Some(Self::Retain)),
            "archive" => Ok(Some(Self::Archive)),
            _ => Err(ParameterError::value("onDelete", text, "delete, retain or archive")),
        }
    }
}

/// The class parameter `quota`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum QuotaMode {
    /// Volumes are limited to their size if the server's agent can do it.
    #[default]
    IfAvailable,
    /// Volumes that cannot be limited are not created.
    Required,
}

impl QuotaMode {
    fn parse(text: &str) -> Result<Self, ParameterError> {
        match text.to_ascii_lowercase().as_str() {
            "ifavailable" => Ok(Self::IfAvailable),
            "required" => Ok(Self::Required),
            _ => Err(ParameterError::value("quota", text, "required or ifAvailable")),
        }
    }
}

/// Why parameters are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// A key that the driver does not know.
    #[error("invalid parameter {0:?} in {1}")]
    Unknown(String, &'static str),
    /// The same key twice, in different case, or a key and its alias.
    #[error("parameters {0:?} and {1:?} contradict each other: keep one")]
    Twice(String, String),
    /// A required parameter is missing.
    #[error("{0} is a required parameter")]
    Missing(&'static str),
    /// A value that is not accepted.
    #[error("invalid value {value:?} of parameter {key}: use {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is accepted.
        expected: &'static str,
    },
}

impl ParameterError {
    fn value(key: &'static str, value: &str, expected: &'static str) -> Self {
        Self::Value { key, value: value.to_owned(), expected }
    }
}

/// Parameters that become mount options.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Transport {
    /// `nfsVersion`: 3, 4, 4.0, 4.1 or 4.2.
    pub version: Option<String>,
    /// `nconnect`: 1 to 16 connections.
    pub nconnect: Option<u8>,
    /// `tls`: `none`, `tls` or `mtls`.
    pub tls: Option<String>,
    /// `security`: `sys`, `krb5`, `krb5i` or `krb5p`.
    pub security: Option<String>,
}

impl Transport {
    /// Mount options, as name, parameter and value; without the version.
    pub fn options(&self) -> Vec<(&'static str, &'static str, String)> {
        let nconnect = self.nconnect.map(|count| ("nconnect", "nconnect", count.to_string()));
        let tls = self.tls.clone().map(|tls| ("xprtsec", "tls", tls));
        let security = self.security.clone().map(|flavor| ("sec", "security", flavor));
        [nconnect, tls, security].into_iter().flatten().collect()
    }
}

/// The parameters of a StorageClass, with the metadata that a provisioner adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassParameters {
    /// `server`.
    pub server: String,
    /// `share`, with a leading slash.
    pub share: String,
    /// `subDir` or `pathPattern`; empty for the volume's name.
    pub sub_dir: String,
    /// `onDelete` or `archiveOnDelete`; `None` for the driver's default.
    pub on_delete: Option<OnDelete>,
    /// The text of `onDelete`, which becomes part of the handle.
    pub on_delete_text: String,
    /// The mode of the volume's directory.
    pub mode: Option<u32>,
    /// `uid`: the owner of the volume's directory.
    pub uid: Option<u32>,
    /// `gid`: the group of the volume's directory.
    pub gid: Option<u32>,
    /// `quota`.
    pub quota: QuotaMode,
    /// Parameters that become mount options.
    pub transport: Transport,
    /// What templates in `subDir` can name.
    pub metadata: TemplateValues,
}

/// Keys that a provisioner adds with `--extra-create-metadata`.
const PVC_NAME: &str = "csi.storage.k8s.io/pvc/name";
const PVC_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const PV_NAME: &str = "csi.storage.k8s.io/pv/name";

/// Directories of nfs-subdir-external-provisioner are writable for everyone.
const NFS_SUBDIR_MODE: u32 = 0o777;

impl ClassParameters {
    /// Parses the parameters of CreateVolume.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut parsed = Self::default();
        let (mut mount_permissions, mut mode, mut pattern, mut archive) = (None, None, None, None);
        for (key, (original, value)) in lower_keys(parameters)? {
            let value = value.as_str();
            match key.as_str() {
                "server" => parsed.server = server(value)?,
                "share" => parsed.share = share(value)?,
                "subdir" => parsed.sub_dir = value.to_owned(),
                "pathpattern" => pattern = Some(value),
                "ondelete" => {
                    parsed.on_delete = OnDelete::parse(value)?;
                    parsed.on_delete_text = value.to_owned();
                }
                "archiveondelete" => archive = Some(boolean("archiveOnDelete", value)?),
                "mountpermissions" => mount_permissions = permissions(value)?,
                "mode" => mode = Some(octal("mode", value)?),
                "uid" => parsed.uid = Some(number("uid", value)?),
                "gid" => parsed.gid = Some(number("gid", value)?),
                "quota" => parsed.quota = QuotaMode::parse(value)?,
                PVC_NAME => parsed.metadata.pvc_name = Some(value.to_owned()),
                PVC_NAMESPACE => parsed.metadata.pvc_namespace = Some(value.to_owned()),
                PV_NAME => parsed.metadata.pv_name = Some(value.to_owned()),
                key if transport(&mut parsed.transport, key, value)? => {}
                _ => return Err(ParameterError::Unknown(original.clone(), "storage class")),
            }
        }
        if parsed.server.is_empty() {
            return Err(ParameterError::Missing("server"));
        }
        if parsed.share.is_empty() {
            parsed.share = "/".to_owned();
        }
        if let Some(pattern) = pattern {
            if !parsed.sub_dir.is_empty() {
                return Err(ParameterError::Twice("subDir".into(), "pathPattern".into()));
            }
            parsed.sub_dir = pattern.to_owned();
        }
        // As in nfs-subdir-external-provisioner, onDelete takes precedence.
        if let (None, Some(archive)) = (parsed.on_delete, archive) {
            parsed.on_delete = Some(if archive { OnDelete::Archive } else { OnDelete::Delete });
            parsed.on_delete_text = if archive { "archive" } else { "delete" }.to_owned();
        }
        parsed.mode = mode.or(mount_permissions).or(pattern.map(|_| NFS_SUBDIR_MODE));
        Ok(parsed)
    }
}

/// The parameters of a VolumeSnapshotClass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SnapshotParameters {
    /// `server`; `None` for the source's.
    pub server: Option<String>,
    /// `share`, with a leading slash; `None` for the source's.
    pub share: Option<String>,
    /// `mountOptions`, separated by commas.
    pub mount_options: Option<String>,
    /// `format` of the snapshot: `tree`, `tar.zst` or `tar.gz`; `None` for the driver's choice.
    pub format: Option<String>,
}

impl SnapshotParameters {
    /// Parses the parameters of CreateSnapshot.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut parsed = Self::default();
        for (key, (original, value)) in lower_keys(parameters)? {
            match key.as_str() {
                "server" => parsed.server = Some(server(value)?),
                "share" => parsed.share = Some(share(value)?),
                "mountoptions" => parsed.mount_options = Some(value.clone()),
                "format" if ["tree", "tar.zst", "tar.gz"].contains(&value.as_str()) => {
                    parsed.format = Some(value.clone());
                }
                "format" => return Err(ParameterError::value("format", value, "tree, tar.zst or tar.gz")),
                // The snapshotter's --extra-create-metadata.
                key if key.starts_with("csi.storage.k8s.io/") => {}
                _ => return Err(ParameterError::Unknown(original.clone(), "snapshot class")),
            }
        }
        Ok(parsed)
    }
}

/// What a volume's context says to the node: of CreateVolume, of a static PersistentVolume, or inline in a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeAttributes {
    /// `server`.
    pub server: String,
    /// `share`, with a leading slash.
    pub share: String,
    /// `subDir`, with its templates as they are; empty for the share itself.
    pub sub_dir: String,
    /// `mountOptions`, separated by commas.
    pub mount_options: String,
    /// `mountPermissions`; `None` to leave the mode as it is.
    pub mount_permissions: Option<u32>,
    /// Parameters that become mount options.
    pub transport: Transport,
    /// What templates in `subDir` can name.
    pub metadata: TemplateValues,
}

impl VolumeAttributes {
    /// Parses a volume context. Server and share are required.
    pub fn parse(context: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut parsed = Self::default();
        for (key, (_, value)) in lower_keys(context)? {
            match key.as_str() {
                "server" => parsed.server = server(value)?,
                "share" => parsed.share = share(value)?,
                "subdir" => parsed.sub_dir = value.clone(),
                "mountoptions" => parsed.mount_options = value.clone(),
                "mountpermissions" => parsed.mount_permissions = permissions(value)?,
                PVC_NAME => parsed.metadata.pvc_name = Some(value.clone()),
                PVC_NAMESPACE => parsed.metadata.pvc_namespace = Some(value.clone()),
                PV_NAME => parsed.metadata.pv_name = Some(value.clone()),
                key => {
                    transport(&mut parsed.transport, key, value)?;
                }
            }
        }
        match (parsed.server.as_str(), parsed.share.as_str()) {
            ("", _) => Err(ParameterError::Missing("server")),
            (_, "") => Err(ParameterError::Missing("share")),
            _ => Ok(parsed),
        }
    }
}

/// The context of a new volume, as csi-driver-nfs returns it: all parameters, with `subDir` set to the directory.
pub fn volume_context(parameters: &BTreeMap<String, String>, sub_dir: &str) -> BTreeMap<String, String> {
    let is = |key: &str, name: &str| key.eq_ignore_ascii_case(name);
    let mut context: BTreeMap<String, String> = parameters
        .iter()
        .filter(|(key, _)| !is(key, "pathPattern"))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    match context.iter_mut().find(|(key, _)| is(key, "subDir")) {
        Some((_, value)) => *value = sub_dir.to_owned(),
        None => drop(context.insert("subdir".to_owned(), sub_dir.to_owned())),
    }
    context
}

/// The key `mountOptions` of a secret, in any case.
pub fn secret_mount_options(secrets: &BTreeMap<String, String>) -> Option<&str> {
    secrets.iter().find(|(key, _)| key.eq_ignore_ascii_case("mountOptions")).map(|(_, value)| value.as_str())
}

/// Parameters by their key in lower case, with the original key.
fn lower_keys(
    parameters: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, (&String, &String)>, ParameterError> {
    let mut lower = BTreeMap::new();
    for (key, value) in parameters {
        if let Some((other, _)) = lower.insert(key.to_ascii_lowercase(), (key, value)) {
            return Err(ParameterError::Twice(other.clone(), key.clone()));
        }
    }
    Ok(lower)
}

fn server(value: &str) -> Result<String, ParameterError> {
    let server = value.trim_matches('/');
    match server.is_empty() || check_server(server).is_ok() {
        true => Ok(server.to_owned()),
        false => Err(ParameterError::value("server", value, "a host name or an address")),
    }
}

/// The share with a leading slash; empty stays empty.
fn share(value: &str) -> Result<String, ParameterError> {
    match value.is_empty() {
        true => Ok(String::new()),
        false => absolute_share(value)
            .map_err(|_| ParameterError::value("share", value, "an absolute path without \"..\" and #")),
    }
}

/// Parses a parameter that becomes a mount option; false if the key is another one.
fn transport(transport: &mut Transport, key: &str, value: &str) -> Result<bool, ParameterError> {
    match key {
        "nfsversion" if ["3", "4", "4.0", "4.1", "4.2"].contains(&value) => {
            transport.version = Some(value.to_owned());
        }
        "nfsversion" => return Err(ParameterError::value("nfsVersion", value, "3, 4, 4.0, 4.1 or 4.2")),
        "nconnect" => match value.parse() {
            Ok(count @ 1..=16) => transport.nconnect = Some(count),
            _ => return Err(ParameterError::value("nconnect", value, "1 to 16")),
        },
        "tls" if ["none", "tls", "mtls"].contains(&value) => transport.tls = Some(value.to_owned()),
        "tls" => return Err(ParameterError::value("tls", value, "none, tls or mtls")),
        "security" if is_flavor(value) => transport.security = Some(value.to_owned()),
        "security" => return Err(ParameterError::value("security", value, "sys, krb5, krb5i or krb5p")),
        _ => return Ok(false),
    }
    Ok(true)
}

/// `mountPermissions`: octal; empty or 0 leaves the mode as it is.
fn permissions(value: &str) -> Result<Option<u32>, ParameterError> {
    match value.is_empty() {
        true => Ok(None),
        false => octal("mountPermissions", value).map(|mode| Some(mode).filter(|mode| *mode != 0)),
    }
}

fn octal(key: &'static str, value: &str) -> Result<u32, ParameterError> {
    let digits = value.strip_prefix("0o").unwrap_or(value);
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if mode <= 0o7777 && !value.starts_with('+') => Ok(mode),
        _ => Err(ParameterError::value(key, value, "an octal mode up to 7777")),
    }
}

fn number(key: &'static str, value: &str) -> Result<u32, ParameterError> {
    // The largest number means "unchanged" to chown.
    let parsed = value.parse().ok().filter(|number| *number != u32::MAX && !value.starts_with('+'));
    parsed.ok_or_else(|| ParameterError::value(key, value, "a number"))
}

fn boolean(key: &'static str, value: &str) -> Result<bool, ParameterError> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "t" => Ok(true),
        "false" | "0" | "f" => Ok(false),
        _ => Err(ParameterError::value(key, value, "true or false")),
    }
}

#[cfg(test)]
mod tests;
