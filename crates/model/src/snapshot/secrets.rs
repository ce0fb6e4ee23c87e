//! Resolves the secrets of snapshot calls: templates of a snapshot class, filled in from the snapshot and its content.
//! The secrets are not read here and may not exist. Errors have upstream's wording, since they are written to the
//! status of snapshots.

use std::collections::BTreeMap;

use crate::names::{is_dns_label, is_dns_subdomain};
use crate::secrets::{TemplateError, resolved};
use crate::{Meta, SecretRef};

const PREFIX: &str = "csi.storage.k8s.io/";

/// The purpose of a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotSecret {
    /// CreateSnapshot and DeleteSnapshot.
    Snapshotter,
    /// ListSnapshots.
    SnapshotterList,
    /// CreateVolumeGroupSnapshot and DeleteVolumeGroupSnapshot.
    GroupSnapshotter,
    /// GetVolumeGroupSnapshot.
    GroupSnapshotterGet,
}

/// Why a class's parameters do not name a valid secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotSecretError {
    /// Only one of name and namespace is set.
    #[error(
        "failed to get name and namespace template from params: either name and namespace for {0} secrets specified, Both must be specified"
    )]
    Incomplete(&'static str),
    /// Name or namespace is empty.
    #[error(
        "failed to get name and namespace template from params: {0} secrets specified in parameters but value of either namespace or name is empty"
    )]
    Empty(&'static str),
    /// The template has unknown tokens.
    #[error("error resolving value {template:?}: invalid tokens: [{tokens}]")]
    UnknownTokens {
        /// The template.
        template: String,
        /// The tokens, formatted like a Go slice.
        tokens: String,
    },
    /// The result is not a valid name.
    #[error("{resolved} is not a valid {what} name")]
    InvalidName {
        /// The template and its result.
        resolved: String,
        /// "namespace" or "secret".
        what: &'static str,
    },
}

impl SnapshotSecret {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Snapshotter, Self::SnapshotterList, Self::GroupSnapshotter, Self::GroupSnapshotterGet];

    /// The name used in errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Snapshotter => "Snapshotter",
            Self::SnapshotterList => "SnapshotterList",
            Self::GroupSnapshotter => "GroupSnapshotter",
            Self::GroupSnapshotterGet => "GroupSnapshotterGet",
        }
    }

    /// The class's parameter keys for the secret's name and namespace.
    pub fn keys(self) -> [String; 2] {
        let stem = match self {
            Self::Snapshotter => "snapshotter",
            Self::SnapshotterList => "snapshotter-list",
            Self::GroupSnapshotter => "group-snapshotter",
            Self::GroupSnapshotterGet => "group-snapshotter-get",
        };
        ["name", "namespace"].map(|part| format!("{PREFIX}{stem}-secret-{part}"))
    }

    /// The prefixes of the tokens of the content and of the snapshot.
    const fn tokens(self) -> (&'static str, &'static str) {
        match self {
            Self::Snapshotter | Self::SnapshotterList => ("volumesnapshotcontent", "volumesnapshot"),
            Self::GroupSnapshotter | Self::GroupSnapshotterGet => {
                ("volumegroupsnapshotcontent", "volumegroupsnapshot")
            }
        }
    }

    /// The secret that a class names for this purpose; `None` if it names none. Without a snapshot only the content's
    /// name can be filled in.
    pub fn resolve(
        self,
        parameters: &BTreeMap<String, String>,
        content: &str,
        snapshot: Option<&Meta>,
    ) -> Result<Option<SecretRef>, SnapshotSecretError> {
        let [name, namespace] = self.keys().map(|key| parameters.get(&key));
        let (name, namespace) = match (name, namespace) {
            (None, None) => return Ok(None),
            (Some(name), Some(namespace)) if name.is_empty() || namespace.is_empty() => {
                return Err(SnapshotSecretError::Empty(self.name()));
            }
            (Some(name), Some(namespace)) => (name, namespace),
            (Some(_), None) | (None, Some(_)) => return Err(SnapshotSecretError::Incomplete(self.name())),
        };
        let (of_content, of_snapshot) = self.tokens();
        let for_namespace = |token: &str| match token.split_once('.')? {
            (object, "name") if object == of_content => Some(content),
            (object, "namespace") if object == of_snapshot => snapshot?.namespace.as_deref(),
            _ => None,
        };
        let for_name = |token: &str| match (for_namespace(token), token.split_once('.')) {
            (Some(value), _) => Some(value),
            (None, Some((object, "name"))) if object == of_snapshot => Some(snapshot?.name.as_str()),
            (None, _) => None,
        };
        Ok(Some(SecretRef {
            namespace: checked(namespace, for_namespace, is_dns_label, "namespace")?,
            name: checked(name, for_name, is_dns_subdomain, "secret")?,
        }))
    }
}

fn checked<'a>(
    template: &str,
    value: impl Fn(&str) -> Option<&'a str>,
    is_name: impl Fn(&str) -> bool,
    what: &'static str,
) -> Result<String, SnapshotSecretError> {
    let text = resolved(template, value).map_err(|error| {
        let tokens = match error {
            TemplateError::UnknownTokens { tokens, .. } => tokens,
            TemplateError::Namespace { value, .. } | TemplateError::Name { value, .. } => [value].into(),
        };
        let tokens = tokens.iter().map(|token| format!("{token:?}")).collect::<Vec<_>>().join(" ");
        SnapshotSecretError::UnknownTokens { template: template.to_owned(), tokens }
    })?;
    match is_name(&text) {
        true => Ok(text),
        false if text == template => {
            Err(SnapshotSecretError::InvalidName { resolved: format!("{template:?}"), what })
        }
        false => {
            let resolved = format!("{template:?} resolved to {text:?} which");
            Err(SnapshotSecretError::InvalidName { resolved, what })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(name: Option<&str>, namespace: Option<&str>) -> Result<Option<SecretRef>, String> {
        let [name_key, namespace_key] = SnapshotSecret::Snapshotter.keys();
        let pairs = [(name_key, name), (namespace_key, namespace)];
        let parameters =
            pairs.into_iter().filter_map(|(key, value)| Some((key, value?.to_owned()))).collect();
        let snapshot = Meta { name: "daily".into(), namespace: Some("shop".into()), ..Meta::default() };
        let found = SnapshotSecret::Snapshotter.resolve(&parameters, "snapcontent-u", Some(&snapshot));
        found.map_err(|error| error.to_string())
    }

    /// sidecars.md 1.4 "Create": the secret annotated on the content is resolved from the class.
    #[test]
    fn snapshot_templates_are_resolved() {
        let found = |name: &str, namespace: &str| {
            Ok(Some(SecretRef { name: name.into(), namespace: namespace.into() }))
        };
        let half = "failed to get name and namespace template from params: either name and namespace for Snapshotter secrets specified, Both must be specified";
        let empty = "failed to get name and namespace template from params: Snapshotter secrets specified in parameters but value of either namespace or name is empty";
        for (name, namespace, expected) in [
            (None, None, Ok(None)),
            (Some("s"), Some("n"), found("s", "n")),
            (
                Some("${volumesnapshot.name}-${volumesnapshotcontent.name}"),
                Some("${volumesnapshot.namespace}"),
                found("daily-snapcontent-u", "shop"),
            ),
            (Some("s"), None, Err(half.to_owned())),
            (None, Some("n"), Err(half.to_owned())),
            (Some("s"), Some(""), Err(empty.to_owned())),
            (
                Some("s"),
                Some("${volumesnapshot.name}"),
                Err("error resolving value \"${volumesnapshot.name}\": invalid tokens: [\"volumesnapshot.name\"]"
                    .to_owned()),
            ),
            (Some("s"), Some("A"), Err("\"A\" is not a valid namespace name".to_owned())),
            (
                Some("-${volumesnapshot.name}"),
                Some("n"),
                Err("\"-${volumesnapshot.name}\" resolved to \"-daily\" which is not a valid secret name"
                    .to_owned()),
            ),
        ] {
            assert_eq!(reference(name, namespace), expected, "{name:?} {namespace:?}");
        }
    }

    /// sidecars.md 1.4 "Group": groups have their own tokens.
    #[test]
    fn group_templates_are_resolved() {
        let [name, namespace] = SnapshotSecret::GroupSnapshotter.keys();
        let parameters = [
            (name, "${volumegroupsnapshot.name}".to_owned()),
            (namespace, "${volumegroupsnapshot.namespace}".to_owned()),
        ];
        let group = Meta { name: "g".into(), namespace: Some("shop".into()), ..Meta::default() };
        let of = |group| SnapshotSecret::GroupSnapshotter.resolve(&parameters.clone().into(), "c", group);
        assert_eq!(of(Some(&group)), Ok(Some(SecretRef { name: "g".into(), namespace: "shop".into() })));
        assert!(matches!(of(None), Err(SnapshotSecretError::UnknownTokens { .. })));
    }
}
