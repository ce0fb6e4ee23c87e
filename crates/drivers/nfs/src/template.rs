//! Templates in the parameter `subDir`.
//!
//! `${pvc.metadata.name}`, `${pvc.metadata.namespace}`, `${pv.metadata.name}`, `${pvc.metadata.labels['key']}` and
//! `${pvc.metadata.annotations['key']}`; also the forms of nfs-subdir-external-provisioner: `${.PVC.name}`,
//! `${.PVC.namespace}`, `${.PVC.labels.key}` and `${.PVC.annotations.key}`.
//!
//! A template that cannot be resolved is an error: left as text, it would give all volumes of a class one directory (B5). A
//! value comes from a user of the cluster, so it is always one component of the path.

use std::collections::BTreeMap;

use crate::path::MAX_COMPONENT;

/// The values that templates can name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TemplateValues {
    /// The claim's name, if the provisioner passes it.
    pub pvc_name: Option<String>,
    /// The claim's namespace, if the provisioner passes it.
    pub pvc_namespace: Option<String>,
    /// The name of the PersistentVolume, if the provisioner passes it.
    pub pv_name: Option<String>,
    /// The claim's labels, if they are known.
    pub labels: Option<BTreeMap<String, String>>,
    /// The claim's annotations, if they are known.
    pub annotations: Option<BTreeMap<String, String>>,
}

/// Why a template was not resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `${` without `}`.
    #[error("template {0:?} has no closing brace")]
    Open(String),
    /// Not one of the known templates.
    #[error(
        "template {0} is not known: use ${{pvc.metadata.name}}, ${{pvc.metadata.namespace}}, ${{pv.metadata.name}}, ${{pvc.metadata.labels['KEY']}} or ${{pvc.metadata.annotations['KEY']}}"
    )]
    Unknown(String),
    /// The provisioner does not pass the value.
    #[error("template {0} has no value: run the provisioner with --extra-create-metadata")]
    NoMetadata(String),
    /// The claim's labels or annotations are not known.
    #[error("template {0} has no value: the driver cannot read the claim's labels and annotations")]
    NoClaim(String),
    /// The claim does not have the label or annotation.
    #[error("template {0} has no value: add the label or annotation to the claim")]
    Missing(String),
    /// The value cannot be a component of a path.
    #[error("the value of template {template} cannot be the name of a directory: it {problem}")]
    Value {
        /// The template.
        template: String,
        /// What is wrong with the value.
        problem: &'static str,
    },
}

/// A value that a template names.
#[derive(Debug, PartialEq, Eq)]
enum Field<'a> {
    PvcName,
    PvcNamespace,
    PvName,
    Label(&'a str),
    Annotation(&'a str),
}

/// Whether a `subDir` names labels or annotations, so that the claim must be read.
pub fn needs_claim(sub_dir: &str) -> bool {
    let parts = split(sub_dir).unwrap_or_default();
    parts.iter().any(|part| {
        matches!(part, Part::Template(name) if matches!(field(name), Some(Field::Label(_) | Field::Annotation(_))))
    })
}

/// Replaces all templates. Values are not searched for templates.
pub fn resolve(sub_dir: &str, values: &TemplateValues) -> Result<String, TemplateError> {
    let mut resolved = String::new();
    for part in split(sub_dir)? {
        match part {
            Part::Text(text) => resolved.push_str(text),
            Part::Template(name) => {
                let template = format!("${{{name}}}");
                let field = field(name).ok_or_else(|| TemplateError::Unknown(template.clone()))?;
                let value = lookup(&field, values, &template)?;
                if let Err(problem) = check_value(value) {
                    return Err(TemplateError::Value { template, problem });
                }
                resolved.push_str(value);
            }
        }
    }
    Ok(resolved)
}

/// Replaces the templates of a volume that exists. csi-driver-nfs left what it could not replace, so the volume's directory then
/// has the template's text as its name.
pub fn resolve_existing(sub_dir: &str, values: &TemplateValues) -> Result<String, TemplateError> {
    match resolve(sub_dir, values) {
        Err(
            TemplateError::Open(_)
            | TemplateError::Unknown(_)
            | TemplateError::NoMetadata(_)
            | TemplateError::NoClaim(_),
        ) => Ok(sub_dir.to_owned()),
        resolved => resolved,
    }
}

enum Part<'a> {
    Text(&'a str),
    Template(&'a str),
}

fn split(text: &str) -> Result<Vec<Part<'_>>, TemplateError> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or_else(|| TemplateError::Open(text.to_owned()))?;
        parts.extend([Part::Text(before), Part::Template(name)]);
        rest = after;
    }
    parts.push(Part::Text(rest));
    Ok(parts)
}

fn field(name: &str) -> Option<Field<'_>> {
    let quoted = |text: &'static str| -> Option<&str> {
        let key = name.strip_prefix(text)?.strip_prefix('[')?.strip_suffix(']')?;
        let unquoted = |quote| key.strip_prefix(quote)?.strip_suffix(quote);
        unquoted('\'').or_else(|| unquoted('"'))
    };
    match name {
        "pvc.metadata.name" | ".PVC.name" => return Some(Field::PvcName),
        "pvc.metadata.namespace" | ".PVC.namespace" => return Some(Field::PvcNamespace),
        "pv.metadata.name" => return Some(Field::PvName),
        _ => {}
    }
    quoted("pvc.metadata.labels").or_else(|| name.strip_prefix(".PVC.labels.")).map(Field::Label).or_else(
        || {
            quoted("pvc.metadata.annotations")
                .or_else(|| name.strip_prefix(".PVC.annotations."))
                .map(Field::Annotation)
        },
    )
}

fn lookup<'a>(
    field: &Field<'_>,
    values: &'a TemplateValues,
    template: &str,
) -> Result<&'a str, TemplateError> {
    let metadata = |value: &'a Option<String>| {
        value.as_deref().ok_or_else(|| TemplateError::NoMetadata(template.to_owned()))
    };
    let claim = |map: &'a Option<BTreeMap<String, String>>, key: &str| {
        let map = map.as_ref().ok_or_else(|| TemplateError::NoClaim(template.to_owned()))?;
        map.get(key).map(String::as_str).ok_or_else(|| TemplateError::Missing(template.to_owned()))
    };
    match field {
        Field::PvcName => metadata(&values.pvc_name),
        Field::PvcNamespace => metadata(&values.pvc_namespace),
        Field::PvName => metadata(&values.pv_name),
        Field::Label(key) => claim(&values.labels, key),
        Field::Annotation(key) => claim(&values.annotations, key),
    }
}

/// Whether a value can be a component of a path, and nothing else.
fn check_value(value: &str) -> Result<(), &'static str> {
    match value {
        "" => Err("is empty"),
        _ if value.len() > MAX_COMPONENT => Err("is longer than 255 bytes"),
        _ if value.starts_with('.') => Err("begins with a dot"),
        _ if value.contains(['/', '\\', '#', '$']) => Err("has one of the characters / \\ # $"),
        _ if value.chars().any(char::is_control) => Err("has a control character"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> TemplateValues {
        let map = |pairs: &[(&str, &str)]| {
            Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
        };
        TemplateValues {
            pvc_name: Some("data".into()),
            pvc_namespace: Some("ns".into()),
            pv_name: Some("pvc-1".into()),
            labels: map(&[("app", "db"), ("example.com/team", "blue"), ("empty", "")]),
            annotations: map(&[("nfs.io/storage-path", "shared"), ("up", ".."), ("deep", "a/b")]),
        }
    }

    // B30
    #[test]
    fn templates_are_replaced() {
        for (text, expected) in [
            ("plain", "plain"),
            ("${pvc.metadata.namespace}/${pvc.metadata.name}", "ns/data"),
            ("${pv.metadata.name}", "pvc-1"),
            ("a-${pvc.metadata.labels['app']}-b", "a-db-b"),
            ("${pvc.metadata.labels[\"example.com/team\"]}", "blue"),
            ("${pvc.metadata.annotations['nfs.io/storage-path']}", "shared"),
            ("${.PVC.namespace}/${.PVC.annotations.nfs.io/storage-path}", "ns/shared"),
            ("${.PVC.labels.app}-${.PVC.name}", "db-data"),
            ("$plain{}", "$plain{}"),
        ] {
            assert_eq!(resolve(text, &values()).as_deref(), Ok(expected), "{text}");
        }
        assert!(needs_claim("x/${.PVC.labels.app}") && !needs_claim("${pvc.metadata.name}"));
    }

    // B5
    #[test]
    fn unresolved_templates_are_refused() {
        let refused = |text: &str, values: &TemplateValues| resolve(text, values).unwrap_err();
        let none = TemplateValues::default();
        assert!(matches!(refused("${pvc.metadata.name}", &none), TemplateError::NoMetadata(_)));
        assert!(matches!(refused("${pvc.metadata.labels['app']}", &none), TemplateError::NoClaim(_)));
        for text in [
            "${pvc.metadata.uid}",
            "${}",
            "${pvc.metadata.labels[app]}",
            "${PVC.name}",
            "${pvc.metadata.labels['a'}",
        ] {
            assert!(matches!(refused(text, &values()), TemplateError::Unknown(_)), "{text}");
        }
        assert!(matches!(refused("a/${pvc.metadata.name", &values()), TemplateError::Open(_)));
        assert!(matches!(refused("${.PVC.labels.none}", &values()), TemplateError::Missing(_)));
        for text in ["${.PVC.labels.empty}", "${.PVC.annotations.up}", "${.PVC.annotations.deep}"] {
            assert!(matches!(refused(text, &values()), TemplateError::Value { .. }), "{text}");
        }
    }
}
