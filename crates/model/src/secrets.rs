//! Which secret a call gets: templates of a StorageClass, filled in from the claim and its volume. Nothing is
//! looked up here; the secret may or may not exist.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::{annotation, is_dns_label, is_dns_subdomain};
use crate::parameters::Purpose;
use crate::{Meta, PersistentVolume, SecretRef};

/// Where secrets are, as a class says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// For every purpose without its own.
    pub default: Option<SecretTemplate>,
    /// For one purpose.
    pub by_purpose: BTreeMap<Purpose, SecretTemplate>,
}

/// Name and namespace of a secret, with tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretTemplate {
    /// May use `${pv.name}`, `${pvc.namespace}`, `${pvc.name}` and `${pvc.annotations['key']}`.
    pub name: String,
    /// May use `${pv.name}` and `${pvc.namespace}`: what a claim's owner cannot choose.
    pub namespace: String,
}

/// A template that gives no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Tokens without a value.
    #[error("{template:?} has tokens that cannot be resolved: {tokens:?}")]
    UnknownTokens {
        /// The template.
        template: String,
        /// The tokens.
        tokens: BTreeSet<String>,
    },
    /// Not a namespace.
    #[error("{template:?} gives {value:?}, which is not a valid namespace name")]
    Namespace {
        /// The template.
        template: String,
        /// What came of it.
        value: String,
    },
    /// Not a secret's name.
    #[error("{template:?} gives {value:?}, which is not a valid secret name")]
    Name {
        /// The template.
        template: String,
        /// What came of it.
        value: String,
    },
}

impl Secrets {
    /// The template for this purpose.
    pub fn template(&self, purpose: Purpose) -> Option<&SecretTemplate> {
        self.by_purpose.get(&purpose).or(self.default.as_ref())
    }

    /// The secret for this purpose. When a volume is deleted its claim is gone: then only its name and namespace,
    /// as the volume remembers them, or nothing of it, can be filled in.
    pub fn reference(
        &self,
        purpose: Purpose,
        volume: &str,
        claim: Option<&Meta>,
    ) -> Result<Option<SecretRef>, TemplateError> {
        self.template(purpose).map(|template| template.resolve(volume, claim)).transpose()
    }
}

/// The secret for deleting a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionSecret {
    /// This one.
    Named(SecretRef),
    /// None is needed.
    None,
    /// The volume does not say: its class has to be asked, with [`Purpose::Provisioner`].
    AskClass,
}

/// The secret for deleting a volume, as its provisioner noted it there.
pub fn for_deletion(volume: &PersistentVolume) -> DeletionSecret {
    let noted = |key| volume.metadata.annotation(key);
    match (noted(annotation::DELETION_SECRET_NAME), noted(annotation::DELETION_SECRET_NAMESPACE)) {
        (None, _) | (_, None) => DeletionSecret::AskClass,
        (Some(name), Some(namespace)) if !name.is_empty() && !namespace.is_empty() => {
            DeletionSecret::Named(SecretRef { name: name.to_owned(), namespace: namespace.to_owned() })
        }
        (Some(_), Some(_)) => DeletionSecret::None,
    }
}

impl SecretTemplate {
    /// Fills in the tokens and checks what comes of it.
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

/// A template with its tokens filled in, as Go's `os.Expand` does it.
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

/// Shell variables as Go's `os.Expand` reads them: `${token}`, `$word`, and one character for the shell's special
/// ones. A `$` before anything else stays; `${}` and a `${` that nothing closes are eaten, the latter alone.
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

/// The token at the start, and how many bytes it takes with its braces. No token and no bytes: no variable here.
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
    use crate::Map;

    fn claim() -> Meta {
        Meta {
            name: "data".into(),
            namespace: Some("shop".into()),
            annotations: Map::from_iter([("example.com/secret", "mine")]),
            ..Meta::default()
        }
    }

    fn unknown(template: &str, tokens: &[&str]) -> TemplateError {
        let tokens = tokens.iter().map(|&token| token.to_owned()).collect();
        TemplateError::UnknownTokens { template: template.into(), tokens }
    }

    /// sidecars.md 1.1 "Secret templates": names.
    #[test]
    fn names() {
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

    /// sidecars.md 1.1 "Secret templates": namespaces take nothing that a claim's owner chooses.
    #[test]
    fn namespaces() {
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

    /// sidecars.md 1.1 "Delete": the claim is gone, so only what the volume tells can be filled in.
    #[test]
    fn without_a_claim() {
        let secrets = Secrets {
            default: Some(SecretTemplate { name: "${pv.name}".into(), namespace: "n".into() }),
            by_purpose: BTreeMap::from([(
                Purpose::NodeStage,
                SecretTemplate { name: "s".into(), namespace: "${pvc.namespace}".into() },
            )]),
        };
        let reference = SecretRef { name: "pv1".into(), namespace: "n".into() };
        assert_eq!(secrets.reference(Purpose::Provisioner, "pv1", None), Ok(Some(reference)));
        let error = unknown("${pvc.namespace}", &["pvc.namespace"]);
        assert_eq!(secrets.reference(Purpose::NodeStage, "pv1", None), Err(error));
        assert_eq!(Secrets::default().reference(Purpose::Provisioner, "pv1", None), Ok(None));
    }

    /// sidecars.md 1.1 "Delete": the secret from the volume's annotations, else from the class.
    #[test]
    fn the_secret_for_deleting() {
        let named = DeletionSecret::Named(SecretRef { name: "s".into(), namespace: "n".into() });
        for (name, namespace, expected) in [
            (None, None, DeletionSecret::AskClass),
            (Some("s"), None, DeletionSecret::AskClass),
            (None, Some("n"), DeletionSecret::AskClass),
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
            assert_eq!(for_deletion(&volume), expected, "{name:?} {namespace:?}");
        }
    }

    #[test]
    fn expands_as_go_does() {
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
        fn any_template_is_expanded(template in "[${}a-zä.'*]{0,20}") {
            let _ = expand(&template, |_| String::new());
        }

        #[test]
        fn without_a_dollar_nothing_changes(template in "[^$]{0,20}") {
            prop_assert_eq!(expand(&template, |_| "x".into()), template);
        }
    }
}
