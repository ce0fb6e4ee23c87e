//! What may be a name, a label, a key: each function says what is wrong, in upstream's words, or nothing.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// A rule's sentence, with examples and the expression that upstream checks by.
fn sentence(rule: &str, examples: &[&str], expression: &str) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{expression}')", examples.join(" or "))
}

fn at_most(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// Letters or digits at both ends, and within also what `inner` allows.
fn framed(text: &str, outer: fn(u8) -> bool, inner: &[u8]) -> bool {
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().last()) else { return false };
    outer(first) && outer(last) && text.bytes().all(|byte| outer(byte) || inner.contains(&byte))
}

fn lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    framed(text, lower, b"-")
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified(text: &str) -> bool {
    framed(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// A prefix is followed by other characters, so its last dash is no fault. Like upstream, which puts one character
/// where the last two were.
fn unmasked(name: &str, is_prefix: bool) -> String {
    match name.strip_suffix('-') {
        Some(rest) if is_prefix && !rest.is_empty() => {
            let mut rest = rest.to_owned();
            rest.pop();
            rest + "a"
        }
        _ => name.into(),
    }
}

/// A DNS subdomain: labels with dots between them.
pub(super) fn subdomain(name: &str, is_prefix: bool) -> Vec<String> {
    let name = unmasked(name, is_prefix);
    let mut wrong = Vec::new();
    if name.len() > 253 {
        wrong.push(at_most(253));
    }
    if !is_subdomain(&name) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                    must start and end with an alphanumeric character";
        wrong.push(sentence(rule, &["example.com"], &format!("{LABEL}(\\.{LABEL})*")));
    }
    wrong
}

/// Where a resolver looks for names: labels as those of services too, with `_` in them.
pub(super) fn search_path(path: &str) -> Vec<String> {
    const PART: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let mut wrong = Vec::new();
    if path.len() > 253 {
        wrong.push(at_most(253));
    }
    if !path.split('.').all(|part| framed(part.strip_prefix('_').unwrap_or(part), lower, b"-_")) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
                    and must start and end with an alphanumeric character";
        wrong.push(sentence(rule, &["example.com"], &format!("{PART}(\\.{PART})*")));
    }
    wrong
}

/// The name of a header of HTTP.
pub(super) fn header(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Vec::new();
    }
    let rule = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![sentence(rule, &["X-Header-Name"], "[-A-Za-z0-9]+")]
}

/// A DNS label.
pub(super) fn label(name: &str, is_prefix: bool) -> Vec<String> {
    let name = unmasked(name, is_prefix);
    let mut wrong = Vec::new();
    if name.len() > 63 {
        wrong.push(at_most(63));
    }
    if !is_label(&name) {
        let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                    start and end with an alphanumeric character";
        wrong.push(if is_subdomain(&name) {
            "must not contain dots".into()
        } else {
            sentence(rule, &["my-name", "123-abc"], LABEL)
        });
    }
    wrong
}

/// Anything that can stand between two slashes of a path.
pub(super) fn path_segment(name: &str, is_prefix: bool) -> Vec<String> {
    if !is_prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|part| name.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect()
}

/// A name with an optional DNS prefix before a slash: keys of labels and annotations, finalizers.
pub(super) fn qualified(name: &str) -> Vec<String> {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                character";
    let rule = sentence(rule, &["MyName", "my.name", "123-abc"], QUALIFIED);
    let parts: Vec<&str> = name.split('/').collect();
    let (prefix, name) = match parts.as_slice() {
        [name] => (None, *name),
        [prefix, name] => (Some(*prefix), *name),
        _ => {
            let with = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a qualified name {rule} {with}")];
        }
    };
    let mut wrong = Vec::new();
    match prefix {
        Some("") => wrong.push("prefix part must be non-empty".into()),
        Some(prefix) => {
            wrong.extend(subdomain(prefix, false).into_iter().map(|what| format!("prefix part {what}")))
        }
        None => (),
    }
    if name.is_empty() {
        wrong.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        wrong.push(format!("name part {}", at_most(63)));
    }
    if !is_qualified(name) {
        wrong.push(format!("name part {rule}"));
    }
    wrong
}

/// The value of a label.
pub(super) fn label_value(value: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push(at_most(63));
    }
    if !value.is_empty() && !is_qualified(value) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                    must start and end with an alphanumeric character";
        wrong.push(sentence(rule, &["MyValue", "my_value", "12345"], &format!("({QUALIFIED})?")));
    }
    wrong
}

/// A key of a ConfigMap or a Secret: the name of a file.
pub(super) fn key(key: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if key.len() > 253 {
        wrong.push(at_most(253));
    }
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        wrong.push(sentence(rule, &["key.name", "KEY_NAME", "key-name"], "[-._a-zA-Z0-9]+"));
    }
    match key {
        "." => wrong.push("must not be '.'".into()),
        ".." => wrong.push("must not be '..'".into()),
        key if key.starts_with("..") => wrong.push("must not start with '..'".into()),
        _ => (),
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
        '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
        must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
        with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
        '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

    fn check(of: impl Fn(&str) -> Vec<String>, name: &str, expected: &[&str]) {
        assert_eq!(of(name), expected, "{name}");
    }

    #[test]
    fn subdomains() {
        let of = |name: &str| subdomain(name, false);
        for good in ["a", "a-b.c", "1.2", &"a".repeat(253)] {
            check(of, good, &[]);
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a.-b", "ä"] {
            check(of, bad, &[SUBDOMAIN]);
        }
        check(of, &"a".repeat(254), &["must be no more than 253 characters"]);
    }

    #[test]
    fn a_prefix_may_end_in_a_dash() {
        assert!(subdomain("pvc-", true).is_empty());
        assert_eq!(subdomain("-", true), [SUBDOMAIN]);
        assert_eq!(subdomain("pvc-", false), [SUBDOMAIN]);
        assert_eq!(subdomain("Pvc-", true), [SUBDOMAIN]);
    }

    #[test]
    fn labels() {
        let of = |name: &str| label(name, false);
        check(of, "a-1", &[]);
        check(of, "a.b", &["must not contain dots"]);
        check(of, "A", &[DNS_LABEL]);
        check(of, &"a".repeat(64), &["must be no more than 63 characters"]);
    }

    #[test]
    fn path_segments() {
        let of = |name: &str| path_segment(name, false);
        check(of, "A_b", &[]);
        check(of, "..", &["may not be '..'"]);
        check(of, "a/b%", &["may not contain '/'", "may not contain '%'"]);
    }

    #[test]
    fn qualified_names() {
        for good in ["a", "A_b.c", "example.com/A", &format!("x/{}", "a".repeat(63))] {
            check(qualified, good, &[]);
        }
        check(qualified, "", &["name part must be non-empty", NAME_PART]);
        check(qualified, "/a", &["prefix part must be non-empty"]);
        check(qualified, "A/a", &[&format!("prefix part {SUBDOMAIN}")]);
        check(qualified, "a b", &[NAME_PART]);
        check(qualified, &"a".repeat(64), &["name part must be no more than 63 characters"]);
        let many = &qualified("a/b/c")[0];
        assert!(many.starts_with("a qualified name must consist of"), "{many}");
        assert!(
            many.ends_with("with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"),
            "{many}"
        );
    }

    #[test]
    fn label_values() {
        for good in ["", "a", "A_b.c-1"] {
            check(label_value, good, &[]);
        }
        check(label_value, &"a".repeat(64), &["must be no more than 63 characters"]);
        assert_eq!(label_value("a b").len(), 1);
        assert!(label_value("-")[0].starts_with("a valid label must be an empty string or consist of"));
    }

    #[test]
    fn keys() {
        for good in ["a", ".a", "A_b.c-1", "...a_"] {
            assert_eq!(key(good).is_empty(), !good.starts_with(".."), "{good}");
        }
        check(key, "..", &["must not be '..'"]);
        check(key, "..a", &["must not start with '..'"]);
        assert!(key("a/b")[0].starts_with("a valid config key must consist of alphanumeric characters"));
        assert!(key("")[0].starts_with("a valid config key"));
    }
}
