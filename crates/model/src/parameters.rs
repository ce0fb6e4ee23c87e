//! What a StorageClass's parameters say to us, and what is left of them for the driver.

use std::collections::BTreeMap;

use crate::secrets::{SecretTemplate, Secrets};

/// Keys that begin so are for us; the driver does not see them.
pub const PREFIX: &str = "csi.storage.k8s.io/";

const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// As classes spelled it before there was the prefix, in any case.
const DEPRECATED_FSTYPE: &str = "fstype";

/// What a secret is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
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

impl Purpose {
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

    /// The words of its keys: with the prefix, and before there was the prefix.
    const fn words(self) -> (&'static str, Option<&'static str>) {
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

/// What a class's parameters mean.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// What the driver gets: everything without the prefix. The old spellings of secrets are left in, as they
    /// always were.
    pub driver: BTreeMap<String, String>,
    /// The file system asked for.
    pub fs_type: Option<String>,
    /// Where secrets are.
    pub secrets: Secrets,
}

/// Parameters that mean nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// A key of ours that we do not know.
    #[error(
        "unknown parameter {key:?}: keys that begin with {PREFIX} are reserved; correct it in the StorageClass"
    )]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// The file system twice.
    #[error(
        "the file system is named by more than one of the parameters {FSTYPE} and {DEPRECATED_FSTYPE}: keep one"
    )]
    FsTypeTwice,
    /// A secret by its old and its new key.
    #[error("a secret is named by both {old} and {new}: keep {new}")]
    SecretTwice {
        /// The old key.
        old: String,
        /// The new key.
        new: String,
    },
    /// Only half of a secret's name, or an empty one.
    #[error("{name} and {namespace} belong together: set both, neither empty, or none")]
    HalfASecret {
        /// The key of the name.
        name: String,
        /// The key of the namespace.
        namespace: String,
    },
}

impl Parameters {
    /// Reads a class's parameters.
    pub fn read(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut driver = BTreeMap::new();
        let mut fs_types = Vec::new();
        for (key, value) in parameters {
            if key == FSTYPE || key.eq_ignore_ascii_case(DEPRECATED_FSTYPE) {
                fs_types.push(value);
            }
            match key.strip_prefix(PREFIX) {
                None => drop(driver.insert(key.clone(), value.clone())),
                Some(word) if is_known(word) => {}
                Some(_) => return Err(ParameterError::UnknownKey { key: key.clone() }),
            }
        }
        let fs_type = match fs_types[..] {
            [] => None,
            [one] => Some(one.clone()),
            _ => return Err(ParameterError::FsTypeTwice),
        };
        Ok(Self {
            driver,
            fs_type: fs_type.filter(|fs_type| !fs_type.is_empty()),
            secrets: secrets(parameters)?,
        })
    }
}

/// The secret for making and deleting volumes, whatever else the parameters say: a class that has been spoiled
/// since must not keep its volumes from being deleted.
pub fn provisioner_secret(
    parameters: &BTreeMap<String, String>,
) -> Result<Option<SecretTemplate>, ParameterError> {
    let (new, old) = Purpose::Provisioner.words();
    match secret(parameters, new, old)? {
        Some(template) => Ok(Some(template)),
        None => secret(parameters, "", None),
    }
}

/// Whether a key, without the prefix, is one of ours.
fn is_known(word: &str) -> bool {
    let secret = |rest: &str| matches!(rest, "secret-name" | "secret-namespace");
    word == "fstype"
        || secret(word)
        || Purpose::ALL.iter().any(|purpose| word.strip_prefix(purpose.words().0).is_some_and(secret))
}

fn secrets(parameters: &BTreeMap<String, String>) -> Result<Secrets, ParameterError> {
    let mut secrets = Secrets { default: secret(parameters, "", None)?, ..Secrets::default() };
    for purpose in Purpose::ALL {
        let (new, old) = purpose.words();
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
            (Some(_), Some((old, _))) => Err(ParameterError::SecretTwice { old, new: new.to_owned() }),
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
        _ => Err(ParameterError::HalfASecret { name: name_key, namespace: namespace_key }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: &[(&str, &str)]) -> Result<Parameters, ParameterError> {
        Parameters::read(&map(parameters))
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn template(name: &str, namespace: &str) -> SecretTemplate {
        SecretTemplate { name: name.into(), namespace: namespace.into() }
    }

    /// sidecars.md 1.1 "Delete": secret from SC params.
    #[test]
    fn the_secret_for_deleting() {
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
        assert!(matches!(of(&[(name, "s")]), Err(ParameterError::HalfASecret { .. })));
        assert!(matches!(of(&[default[0]]), Err(ParameterError::HalfASecret { .. })));
    }

    /// sidecars.md 1.1 "fsType". A new key in another case than its own is in the reserved namespace, and unknown.
    #[test]
    fn file_system() {
        for (parameters, expected) in [
            (&[][..], Ok(None)),
            (&[("csi.storage.k8s.io/fstype", "xfs")], Ok(Some("xfs"))),
            (&[("fstype", "xfs")], Ok(Some("xfs"))),
            (&[("fsType", "xfs")], Ok(Some("xfs"))),
            (&[("FSTYPE", "xfs")], Ok(Some("xfs"))),
            (&[("fstype", "")], Ok(None)),
            (&[("fstype", "xfs"), ("csi.storage.k8s.io/fstype", "xfs")], Err(ParameterError::FsTypeTwice)),
            (&[("fstype", "xfs"), ("fsType", "ext4")], Err(ParameterError::FsTypeTwice)),
            (
                &[("csi.storage.k8s.io/fsType", "xfs")],
                Err(ParameterError::UnknownKey { key: "csi.storage.k8s.io/fsType".into() }),
            ),
        ] {
            let fs_type = read(parameters).map(|read| read.fs_type);
            assert_eq!(fs_type, expected.map(|fs_type| fs_type.map(str::to_owned)), "{parameters:?}");
        }
    }

    /// sidecars.md 1.1 "SC params": what the driver gets.
    #[test]
    fn prefixed_keys_are_stripped_and_old_ones_are_not() {
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
        for (purpose, word) in [
            (Purpose::Provisioner, "provisioner"),
            (Purpose::ControllerPublish, "controller-publish"),
            (Purpose::NodeStage, "node-stage"),
            (Purpose::NodePublish, "node-publish"),
            (Purpose::ControllerExpand, "controller-expand"),
            (Purpose::NodeExpand, "node-expand"),
            (Purpose::ControllerModify, "controller-modify"),
        ] {
            let name = format!("csi.storage.k8s.io/{word}-secret-name");
            let namespace = format!("csi.storage.k8s.io/{word}-secret-namespace");
            let only = read(&[(&name, "s"), (&namespace, "n")]).unwrap();
            assert_eq!(only.secrets.by_purpose, BTreeMap::from([(purpose, template("s", "n"))]));
            assert!(only.driver.is_empty());
            let half = Err(ParameterError::HalfASecret { name: name.clone(), namespace: namespace.clone() });
            assert_eq!(read(&[(&name, "s")]), half);
            assert_eq!(read(&[(&namespace, "n")]), half);
            assert_eq!(read(&[(&name, "s"), (&namespace, "")]), half);
            assert_eq!(read(&[(&name, ""), (&namespace, "n")]), half);
        }
    }

    /// sidecars.md 1.1 "SC params": the default for all.
    #[test]
    fn a_default_is_there_for_all_without_their_own() {
        let read = read(&[
            ("csi.storage.k8s.io/secret-name", "all"),
            ("csi.storage.k8s.io/secret-namespace", "n"),
            ("csi.storage.k8s.io/node-stage-secret-name", "own"),
            ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
        ])
        .unwrap();
        for purpose in Purpose::ALL {
            let name = if purpose == Purpose::NodeStage { "own" } else { "all" };
            assert_eq!(read.secrets.template(purpose), Some(&template(name, "n")));
        }
    }

    /// sidecars.md 1.1 "SC params": deprecated keys, both spellings, unknown keys.
    #[test]
    fn old_spellings() {
        for (purpose, old) in [
            (Purpose::Provisioner, "csiProvisioner"),
            (Purpose::ControllerPublish, "csiControllerPublish"),
            (Purpose::NodeStage, "csiNodeStage"),
            (Purpose::NodePublish, "csiNodePublish"),
        ] {
            let (name, namespace) = (format!("{old}SecretName"), format!("{old}SecretNamespace"));
            let only = read(&[(&name, "s"), (&namespace, "n")]).unwrap();
            assert_eq!(only.secrets.template(purpose), Some(&template("s", "n")));
            let new = format!("{PREFIX}{}secret-name", purpose.words().0);
            let twice = read(&[(&name, "s"), (&namespace, "n"), (&new, "s")]);
            assert_eq!(twice, Err(ParameterError::SecretTwice { old: name, new }));
        }
        for key in
            ["csi.storage.k8s.io/oops", "csi.storage.k8s.io/", "csi.storage.k8s.io/node-expand-secret-key"]
        {
            assert_eq!(read(&[(key, "v")]), Err(ParameterError::UnknownKey { key: key.into() }));
        }
    }
}
