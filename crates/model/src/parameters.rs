//! Parses a StorageClass's parameters: those for the sidecars, and those that are passed to the driver.

use std::collections::BTreeMap;

use crate::secrets::{SecretTemplate, SecretTemplates};

/// The prefix of keys for the sidecars, which are not passed to the driver.
pub const PREFIX: &str = "csi.storage.k8s.io/";

const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// The deprecated key without a prefix, in any upper or lower case.
const DEPRECATED_FSTYPE: &str = "fstype";

/// The purpose of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SecretPurpose {
    /// CreateVolume and DeleteVolume.
    Provisioner,
    /// ControllerPublishVolume and ControllerUnpublishVolume.
    ControllerPublish,
    /// NodeStageVolume.
    NodeStage,
    /// NodePublishVolume.
    NodePublish,
    /// ControllerExpandVolume.
    ControllerExpand,
    /// NodeExpandVolume.
    NodeExpand,
    /// ControllerModifyVolume.
    ControllerModify,
}

impl SecretPurpose {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Provisioner,
        Self::ControllerPublish,
        Self::NodeStage,
        Self::NodePublish,
        Self::ControllerExpand,
        Self::NodeExpand,
        Self::ControllerModify,
    ];

    /// The stems of its keys: with the prefix, and the deprecated ones without.
    const fn key_stems(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Provisioner => ("provisioner-", Some("csiProvisioner")),
            Self::ControllerPublish => ("controller-publish-", Some("csiControllerPublish")),
            Self::NodeStage => ("node-stage-", Some("csiNodeStage")),
            Self::NodePublish => ("node-publish-", Some("csiNodePublish")),
            Self::ControllerExpand => ("controller-expand-", None),
            Self::NodeExpand => ("node-expand-", None),
            Self::ControllerModify => ("controller-modify-", None),
        }
    }
}

/// The parsed parameters of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The parameters for the driver: all without the prefix, including the deprecated keys of secrets, as upstream
    /// does.
    pub driver: BTreeMap<String, String>,
    /// The requested file system.
    pub fs_type: Option<String>,
    /// The secret templates.
    pub secrets: SecretTemplates,
}

/// Why parameters are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// An unknown key with the reserved prefix.
    #[error(
        "unknown parameter {key:?}: keys with prefix {PREFIX} are reserved; correct it in the StorageClass"
    )]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// The file system is set more than once.
    #[error(
        "the file system is set by more than one of the parameters {FSTYPE} and {DEPRECATED_FSTYPE}: keep one"
    )]
    DuplicateFsType,
    /// A secret is set by its deprecated and by its current key.
    #[error("a secret is set by both {old} and {new}: keep {new}")]
    DuplicateSecret {
        /// The deprecated key.
        old: String,
        /// The current key.
        new: String,
    },
    /// Only one of a secret's name and namespace is set, or one of them is empty.
    #[error("{name} and {namespace} must be set together and not be empty: set both or neither")]
    IncompleteSecret {
        /// The key of the name.
        name: String,
        /// The key of the namespace.
        namespace: String,
    },
}

impl Parameters {
    /// Parses a class's parameters.
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut driver = BTreeMap::new();
        let mut fs_types = Vec::new();
        for (key, value) in parameters {
            if key == FSTYPE || key.eq_ignore_ascii_case(DEPRECATED_FSTYPE) {
                fs_types.push(value);
            }
            match key.strip_prefix(PREFIX) {
                None => drop(driver.insert(key.clone(), value.clone())),
                Some(key) if is_known(key) => {}
                Some(_) => return Err(ParameterError::UnknownKey { key: key.clone() }),
            }
        }
        let fs_type = match fs_types[..] {
            [] => None,
            [one] => Some(one.clone()),
            _ => return Err(ParameterError::DuplicateFsType),
        };
        Ok(Self {
            driver,
            fs_type: fs_type.filter(|fs_type| !fs_type.is_empty()),
            secrets: secrets(parameters)?,
        })
    }
}

/// The secret for CreateVolume and DeleteVolume, ignoring other parameters: a class that has become invalid must not
/// prevent the deletion of its volumes.
pub fn provisioner_secret(
    parameters: &BTreeMap<String, String>,
) -> Result<Option<SecretTemplate>, ParameterError> {
    let (new, old) = SecretPurpose::Provisioner.key_stems();
    match secret(parameters, new, old)? {
        Some(template) => Ok(Some(template)),
        None => secret(parameters, "", None),
    }
}

/// Whether a key, without the prefix, is known.
fn is_known(key: &str) -> bool {
    let secret = |rest: &str| matches!(rest, "secret-name" | "secret-namespace");
    key == "fstype"
        || secret(key)
        || SecretPurpose::ALL
            .iter()
            .any(|purpose| key.strip_prefix(purpose.key_stems().0).is_some_and(secret))
}

fn secrets(parameters: &BTreeMap<String, String>) -> Result<SecretTemplates, ParameterError> {
    let mut secrets =
        SecretTemplates { default: secret(parameters, "", None)?, ..SecretTemplates::default() };
    for purpose in SecretPurpose::ALL {
        let (new, old) = purpose.key_stems();
        if let Some(template) = secret(parameters, new, old)? {
            secrets.by_purpose.insert(purpose, template);
        }
    }
    Ok(secrets)
}

/// The secret of one purpose.
fn secret(
    parameters: &BTreeMap<String, String>,
    new: &str,
    old: Option<&str>,
) -> Result<Option<SecretTemplate>, ParameterError> {
    let name_key = format!("{PREFIX}{new}secret-name");
    let namespace_key = format!("{PREFIX}{new}secret-namespace");
    let either = |new: &str, old: Option<String>| {
        let old = old.and_then(|old| parameters.get(&old).map(|value| (old, value)));
        match (parameters.get(new), old) {
            (Some(_), Some((old, _))) => Err(ParameterError::DuplicateSecret { old, new: new.to_owned() }),
            (Some(value), None) | (None, Some((_, value))) => Ok(Some(value)),
            (None, None) => Ok(None),
        }
    };
    let name = either(&name_key, old.map(|old| format!("{old}SecretName")))?;
    let namespace = either(&namespace_key, old.map(|old| format!("{old}SecretNamespace")))?;
    match (name, namespace) {
        (None, None) => Ok(None),
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            Ok(Some(SecretTemplate { name: name.clone(), namespace: namespace.clone() }))
        }
        _ => Err(ParameterError::IncompleteSecret { name: name_key, namespace: namespace_key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Parameters, ParameterError> {
        Parameters::parse(&map(parameters))
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn template(name: &str, namespace: &str) -> SecretTemplate {
        SecretTemplate { name: name.into(), namespace: namespace.into() }
    }

    /// sidecars.md 1.1 "Delete": secret from SC params.
    #[test]
    fn provisioner_secret_ignores_other_parameters() {
        let [name, namespace] =
            ["csi.storage.k8s.io/provisioner-secret-name", "csi.storage.k8s.io/provisioner-secret-namespace"];
        let default = [("csi.storage.k8s.io/secret-name", "d"), ("csi.storage.k8s.io/secret-namespace", "n")];
        let of = |parameters: &[(&str, &str)]| provisioner_secret(&map(parameters));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&default), Ok(Some(template("d", "n"))));
        assert_eq!(
            of(&[default[0], default[1], (name, "s"), (namespace, "x")]),
            Ok(Some(template("s", "x")))
        );
        assert_eq!(of(&[("csi.storage.k8s.io/nonsense", "1")]), Ok(None));
        assert!(matches!(of(&[(name, "s")]), Err(ParameterError::IncompleteSecret { .. })));
        assert!(matches!(of(&[default[0]]), Err(ParameterError::IncompleteSecret { .. })));
    }

    /// sidecars.md 1.1 "fsType". The prefixed key in another case is reserved and unknown.
    #[test]
    fn file_system_is_parsed() {
        for (parameters, expected) in [
            (&[][..], Ok(None)),
            (&[("csi.storage.k8s.io/fstype", "xfs")], Ok(Some("xfs"))),
            (&[("fstype", "xfs")], Ok(Some("xfs"))),
            (&[("fsType", "xfs")], Ok(Some("xfs"))),
            (&[("FSTYPE", "xfs")], Ok(Some("xfs"))),
            (&[("fstype", "")], Ok(None)),
            (
                &[("fstype", "xfs"), ("csi.storage.k8s.io/fstype", "xfs")],
                Err(ParameterError::DuplicateFsType),
            ),
            (&[("fstype", "xfs"), ("fsType", "ext4")], Err(ParameterError::DuplicateFsType)),
            (
                &[("csi.storage.k8s.io/fsType", "xfs")],
                Err(ParameterError::UnknownKey { key: "csi.storage.k8s.io/fsType".into() }),
            ),
        ] {
            let fs_type = read(parameters).map(|read| read.fs_type);
            assert_eq!(fs_type, expected.map(|fs_type| fs_type.map(str::to_owned)), "{parameters:?}");
        }
    }

    /// sidecars.md 1.1 "SC params": the driver's parameters.
    #[test]
    fn prefixed_keys_are_stripped_and_deprecated_ones_are_not() {
        let read = read(&[
            ("pool", "a"),
            ("fsType", "xfs"),
            ("csiProvisionerSecretName", "s"),
            ("csiProvisionerSecretNamespace", "n"),
            ("csi.storage.k8s.io/node-stage-secret-name", "s"),
            ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
        ])
        .unwrap();
        let expected = [
            ("pool", "a"),
            ("fsType", "xfs"),
            ("csiProvisionerSecretName", "s"),
            ("csiProvisionerSecretNamespace", "n"),
        ];
        assert_eq!(read.driver, map(&expected));
    }

    /// sidecars.md 1.1 "SC params": every key of every purpose.
    #[test]
    fn every_purpose_has_its_keys() {
        for (purpose, stem) in [
            (SecretPurpose::Provisioner, "provisioner"),
            (SecretPurpose::ControllerPublish, "controller-publish"),
            (SecretPurpose::NodeStage, "node-stage"),
            (SecretPurpose::NodePublish, "node-publish"),
            (SecretPurpose::ControllerExpand, "controller-expand"),
            (SecretPurpose::NodeExpand, "node-expand"),
            (SecretPurpose::ControllerModify, "controller-modify"),
        ] {
            let name = format!("csi.storage.k8s.io/{stem}-secret-name");
            let namespace = format!("csi.storage.k8s.io/{stem}-secret-namespace");
            let only = read(&[(&name, "s"), (&namespace, "n")]).unwrap();
            assert_eq!(only.secrets.by_purpose, BTreeMap::from([(purpose, template("s", "n"))]));
            assert!(only.driver.is_empty());
            let half =
                Err(ParameterError::IncompleteSecret { name: name.clone(), namespace: namespace.clone() });
            assert_eq!(read(&[(&name, "s")]), half);
            assert_eq!(read(&[(&namespace, "n")]), half);
            assert_eq!(read(&[(&name, "s"), (&namespace, "")]), half);
            assert_eq!(read(&[(&name, ""), (&namespace, "n")]), half);
        }
    }

    /// sidecars.md 1.1 "SC params": the default for all.
    #[test]
    fn default_secret_applies_to_purposes_without_their_own() {
        let read = read(&[
            ("csi.storage.k8s.io/secret-name", "all"),
            ("csi.storage.k8s.io/secret-namespace", "n"),
            ("csi.storage.k8s.io/node-stage-secret-name", "own"),
            ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
        ])
        .unwrap();
        for purpose in SecretPurpose::ALL {
            let name = if purpose == SecretPurpose::NodeStage { "own" } else { "all" };
            assert_eq!(read.secrets.template(purpose), Some(&template(name, "n")));
        }
    }

    /// sidecars.md 1.1 "SC params": deprecated keys, both spellings, unknown keys.
    #[test]
    fn deprecated_keys_are_accepted() {
        for (purpose, old) in [
            (SecretPurpose::Provisioner, "csiProvisioner"),
            (SecretPurpose::ControllerPublish, "csiControllerPublish"),
            (SecretPurpose::NodeStage, "csiNodeStage"),
            (SecretPurpose::NodePublish, "csiNodePublish"),
        ] {
            let (name, namespace) = (format!("{old}SecretName"), format!("{old}SecretNamespace"));
            let only = read(&[(&name, "s"), (&namespace, "n")]).unwrap();
            assert_eq!(only.secrets.template(purpose), Some(&template("s", "n")));
            let new = format!("{PREFIX}{}secret-name", purpose.key_stems().0);
            let twice = read(&[(&name, "s"), (&namespace, "n"), (&new, "s")]);
            assert_eq!(twice, Err(ParameterError::DuplicateSecret { old: name, new }));
        }
        for key in
            ["csi.storage.k8s.io/oops", "csi.storage.k8s.io/", "csi.storage.k8s.io/node-expand-secret-key"]
        {
            assert_eq!(read(&[(key, "v")]), Err(ParameterError::UnknownKey { key: key.into() }));
        }
    }
}
