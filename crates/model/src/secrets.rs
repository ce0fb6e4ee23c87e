//! Resolves the secrets of CSI calls: templates of a StorageClass, filled in from the claim and its volume. The secrets
//! are not read here and may not exist.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{annotation, is_dns_label, is_dns_subdomain};
use crate::parameters::SecretPurpose;
use crate::{Meta, PersistentVolume, SecretRef};

/// The secret templates of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretTemplates {
    /// For every purpose without its own template.
    pub default: Option<SecretTemplate>,
    /// For single purposes.
    pub by_purpose: BTreeMap<SecretPurpose, SecretTemplate>,
}

/// Name and namespace of a secret, with tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretTemplate {
    /// May use `${pv.name}`, `${pvc.namespace}`, `${pvc.name}` and `${pvc.annotations['key']}`.
    pub name: String,
    /// May use `${pv.name}` and `${pvc.namespace}`, which the claim's owner cannot choose.
    pub namespace: String,
}

/// Why a template cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template has tokens without a value.
    #[error("secret template {template:?} has tokens that cannot be resolved: {tokens:?}")]
    UnknownTokens {
        /// The template.
        template: String,
        /// The tokens.
        tokens: BTreeSet<String>,
    },
    /// The result is not a valid namespace name.
    #[error("secret template {template:?} resolves to {value:?}, which is not a valid namespace name")]
    Namespace {
        /// The template.
        template: String,
        /// The result.
        value: String,
    },
    /// The result is not a valid secret name.
    #[error("secret template {template:?} resolves to {value:?}, which is not a valid secret name")]
    Name {
        /// The template.
        template: String,
        /// The result.
        value: String,
    },
}

impl SecretTemplates {
    /// The template for a purpose.
    pub fn template(&self, purpose: SecretPurpose) -> Option<&SecretTemplate> {
        self.by_purpose.get(&purpose).or(self.default.as_ref())
    }

    /// The secret for a purpose. When a volume is deleted, its claim is gone: then only the claim's name and namespace
    /// from the volume's claimRef, or nothing of it, can be filled in.
    pub fn resolve(
        &self,
        purpose: SecretPurpose,
        volume: &str,
        claim: Option<&Meta>,
    ) -> Result<Option<SecretRef>, TemplateError> {
        self.template(purpose).map(|template| template.resolve(volume, claim)).transpose()
    }
}

/// The secret for deleting a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionSecret {
    /// The secret named by the volume's annotations.
    Named(SecretRef),
    /// No secret is needed.
    None,
    /// The volume has no annotations: use its class, with the purpose `Provisioner`.
    FromStorageClass,
}

/// The secret for DeleteVolume, from the annotations that the provisioner set on the volume.
pub fn deletion_secret(volume: &PersistentVolume) -> DeletionSecret {
    let noted = |key| volume.metadata.annotation(key);
    match (noted(annotation::DELETION_SECRET_NAME), noted(annotation::DELETION_SECRET_NAMESPACE)) {
        (None, _) | (_, None) => DeletionSecret::FromStorageClass,
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            DeletionSecret::Named(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
        }
        (Some(_), Some(_)) => DeletionSecret::None,
    }
}

impl SecretTemplate {
    /// Fills in the tokens and validates the result.
    pub fn resolve(&self, volume: &str, claim: Option<&Meta>) -> Result<SecretRef, TemplateError> {
        let for_namespace = |token: &str| match (token, claim) {
            ("pv.name", _) => Some(volume),
            ("pvc.namespace", Some(claim)) => claim.namespace.as_deref(),
            _ => None,
        };
        let for_name = |token: &str| match (for_namespace(token), claim) {
            (Some(value), _) => Some(value),
            (None, Some(claim)) if token == "pvc.name" => Some(claim.name.as_str()),
            (None, Some(claim)) => {
                let key = token.strip_prefix("pvc.annotations['")?.strip_suffix("']")?;
                claim.annotation(key)
            }
            (None, None) => None,
        };
        let namespace = resolved(&self.namespace, for_namespace)?;
        if !is_dns_label(&namespace) {
            return Err(TemplateError::Namespace { template: self.namespace.clone(), value: namespace });
        }
        let name = resolved(&self.name, for_name)?;
        if !is_dns_subdomain(&name) {
            return Err(TemplateError::Name { template: self.name.clone(), value: name });
        }
        Ok(SecretRef { name, namespace })
    }
}

/// Fills in the tokens of a template like Go's `os.Expand`.
pub(crate) fn resolved<'a>(
    template: &str,
    value: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, TemplateError> {
    let mut unknown = BTreeSet::new();
    let text = expand(template, |token| match value(token) {
        Some(value) => value.to_owned(),
        None => {
            unknown.insert(token.to_owned());
            String::new()
        }
    });
    match unknown.is_empty() {
        true => Ok(text),
        false => Err(TemplateError::UnknownTokens { template: template.to_owned(), tokens: unknown }),
    }
}

/// Expands shell variables like Go's `os.Expand`: `${token}`, `$word`, and one character for the shell's special
/// variables. A `$` before anything else is kept. `${}` is removed, and of an unclosed `${` only these two characters.
fn expand(template: &str, mut value: impl FnMut(&str) -> String) -> String {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(dollar) = rest.find('$').filter(|dollar| dollar + 1 < rest.len()) {
        text.push_str(&rest[..dollar]);
        let behind = &rest[dollar + 1..];
        let (token, length) = token(behind);
        match (token, length) {
            ("", 0) => text.push('$'),
            ("", _) => {}
            (token, _) => text.push_str(&value(token)),
        }
        rest = &behind[length..];
    }
    text.push_str(rest);
    text
}

/// The token at the start, and its length in bytes with braces. An empty token of length 0 is not a variable.
fn token(text: &str) -> (&str, usize) {
    let special = |c: char| matches!(c, '*' | '#' | '$' | '@' | '!' | '?' | '-' | '0'..='9');
    let Some(first) = text.chars().next() else { return ("", 0) };
    if first == '{' {
        let inner = &text[1..];
        let mut characters = inner.chars();
        if let (Some(one), Some('}')) = (characters.next(), characters.next())
            && special(one)
        {
            return (&inner[..1], 3);
        }
        return match inner.find('}') {
            Some(0) => ("", 2),
            Some(end) => (&inner[..end], end + 2),
            None => ("", 1),
        };
    }
    if special(first) {
        return (&text[..1], 1);
    }
    let end = text.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(text.len());
    (&text[..end], end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::StringMap;

    fn claim() -> Meta {
        Meta {
            name: "data".into(),
            namespace: Some("shop".into()),
            annotations: StringMap::from_iter([("example.com/secret", "mine")]),
            ..Meta::default()
        }
    }

    fn unknown(template: &str, tokens: &[&str]) -> TemplateError {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        TemplateError::UnknownTokens { template: template.into(), tokens }
    }

    /// sidecars.md 1.1 "Secret templates": names.
    #[test]
    fn name_templates_are_resolved() {
        for (template, expected) in [
            ("static", Ok("static")),
            ("${pv.name}", Ok("pv1")),
            ("${pvc.name}-${pvc.namespace}.${pv.name}", Ok("data-shop.pv1")),
            ("${pvc.annotations['example.com/secret']}", Ok("mine")),
            (
                "${pvc.annotations['none']}",
                Err(unknown("${pvc.annotations['none']}", &["pvc.annotations['none']"])),
            ),
            ("${pvc.uid}-${pv.name}-${x}", Err(unknown("${pvc.uid}-${pv.name}-${x}", &["pvc.uid", "x"]))),
            // `$pv.name` is the token `pv` with `.name` behind it.
            ("$pv.name", Err(unknown("$pv.name", &["pv"]))),
            ("$x", Err(unknown("$x", &["x"]))),
            ("a$$b", Err(unknown("a$$b", &["$"]))),
            ("Bad", Err(TemplateError::Name { template: "Bad".into(), value: "Bad".into() })),
            (
                "${pv.name}_",
                Err(TemplateError::Name { template: "${pv.name}_".into(), value: "pv1_".into() }),
            ),
        ] {
            let secret = SecretTemplate { name: template.into(), namespace: "n".into() };
            assert_eq!(
                secret.resolve("pv1", Some(&claim())).map(|secret| secret.name),
                expected.map(str::to_owned)
            );
        }
    }

    /// sidecars.md 1.1 "Secret templates": namespaces do not use anything that a claim's owner chooses.
    #[test]
    fn namespace_templates_are_resolved() {
        for (template, expected) in [
            ("static", Ok("static")),
            ("${pvc.namespace}", Ok("shop")),
            ("${pv.name}", Ok("pv1")),
            ("${pvc.name}", Err(unknown("${pvc.name}", &["pvc.name"]))),
            (
                "${pvc.annotations['example.com/secret']}",
                Err(unknown(
                    "${pvc.annotations['example.com/secret']}",
                    &["pvc.annotations['example.com/secret']"],
                )),
            ),
            ("a.b", Err(TemplateError::Namespace { template: "a.b".into(), value: "a.b".into() })),
        ] {
            let secret = SecretTemplate { name: "s".into(), namespace: template.into() };
            let namespace = secret.resolve("pv1", Some(&claim())).map(|secret| secret.namespace);
            assert_eq!(namespace, expected.map(str::to_owned));
        }
    }

    /// sidecars.md 1.1 "Delete": the claim is gone, so only the volume's data can be filled in.
    #[test]
    fn templates_without_a_claim() {
        let secrets = SecretTemplates {
            default: Some(SecretTemplate { name: "${pv.name}".into(), namespace: "n".into() }),
            by_purpose: BTreeMap::from([(
                SecretPurpose::NodeStage,
                SecretTemplate { name: "s".into(), namespace: "${pvc.namespace}".into() },
            )]),
        };
        let reference = SecretRef { name: "pv1".into(), namespace: "n".into() };
        assert_eq!(secrets.resolve(SecretPurpose::Provisioner, "pv1", None), Ok(Some(reference)));
        let error = unknown("${pvc.namespace}", &["pvc.namespace"]);
        assert_eq!(secrets.resolve(SecretPurpose::NodeStage, "pv1", None), Err(error));
        assert_eq!(SecretTemplates::default().resolve(SecretPurpose::Provisioner, "pv1", None), Ok(None));
    }

    /// sidecars.md 1.1 "Delete": the secret from the volume's annotations, else from the class.
    #[test]
    fn deletion_secret_is_read_from_annotations() {
        let named = DeletionSecret::Named(SecretRef { name: "s".into(), namespace: "n".into() });
        for (name, namespace, expected) in [
            (None, None, DeletionSecret::FromStorageClass),
            (Some("s"), None, DeletionSecret::FromStorageClass),
            (None, Some("n"), DeletionSecret::FromStorageClass),
            (Some("s"), Some("n"), named),
            (Some(""), Some(""), DeletionSecret::None),
            (Some("s"), Some(""), DeletionSecret::None),
        ] {
            let mut volume = PersistentVolume::default();
            for (key, value) in
                [(annotation::DELETION_SECRET_NAME, name), (annotation::DELETION_SECRET_NAMESPACE, namespace)]
            {
                if let Some(value) = value {
                    volume.metadata.annotations.insert(key, value);
                }
            }
            assert_eq!(deletion_secret(&volume), expected, "{name:?} {namespace:?}");
        }
    }

    #[test]
    fn expansion_matches_go() {
        for (template, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$", "$"),
            ("a$", "a$"),
            ("$word.rest", "<word>.rest"),
            ("${word}rest", "<word>rest"),
            ("${a b}", "<a b>"),
            ("$1x", "<1>x"),
            ("${1}x", "<1>x"),
            ("$$x", "<$>x"),
            ("${*}", "<*>"),
            ("$.x", "$.x"),
            ("${}x", "x"),
            ("${x", "x"),
            ("$ä", "$ä"),
            ("ä${ö}ü", "ä<ö>ü"),
        ] {
            assert_eq!(expand(template, |token| format!("<{token}>")), expected, "{template:?}");
        }
    }

    proptest! {
        #[test]
        fn any_template_expands_without_panic(template in "[${}a-zä.'*]{0,20}") {
            let _ = expand(&template, |_| String::new());
        }

        #[test]
        fn text_without_dollar_is_unchanged(template in "[^$]{0,20}") {
            prop_assert_eq!(expand(&template, |_| "x".into()), template);
        }
    }
}
