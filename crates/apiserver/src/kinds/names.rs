//! Validation of names, labels and keys. Each function returns upstream's error messages; none for a valid text.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// An error with examples and upstream's regular expression (upstream's `RegexError`).
fn regex_error(rule: &str, examples: &[&str], expression: &str) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{expression}')", examples.join(" or "))
}

fn max_length_error(length: usize) -> String {
    format!("must be no more than {length} characters")
}

/// Whether a text begins and ends with `outer` characters and has only `outer` and `inner` characters between.
fn is_delimited(text: &str, outer: fn(u8) -> bool, inner: &[u8]) -> bool {
    let (Some(first), Some(last)) = (text.bytes().next(), text.bytes().last()) else { return false };
    outer(first) && outer(last) && text.bytes().all(|byte| outer(byte) || inner.contains(&byte))
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn is_label(text: &str) -> bool {
    is_delimited(text, is_lower_alphanumeric, b"-")
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_qualified(text: &str) -> bool {
    is_delimited(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// A prefix is followed by other characters, so it may end with a dash. Like upstream, this replaces the last two
/// characters with a letter.
fn mask_trailing_dash(name: &str, is_prefix: bool) -> String {
    match name.strip_suffix('-') {
        Some(rest) if is_prefix && !rest.is_empty() => {
            let mut rest = rest.to_owned();
            rest.pop();
            rest + "a"
        }
        _ => name.into(),
    }
}

/// A DNS subdomain: labels separated by dots.
pub(super) fn subdomain(name: &str, is_prefix: bool) -> Vec<String> {
    let name = mask_trailing_dash(name, is_prefix);
    let mut errors = Vec::new();
    if name.len() > 253 {
        errors.push(max_length_error(253));
    }
    if !is_subdomain(&name) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                    must start and end with an alphanumeric character";
        errors.push(regex_error(rule, &["example.com"], &format!("{LABEL}(\\.{LABEL})*")));
    }
    errors
}

/// A DNS search path. Its labels may contain `_`, as in SRV records.
pub(super) fn dns_search_path(path: &str) -> Vec<String> {
    const PART: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let mut errors = Vec::new();
    if path.len() > 253 {
        errors.push(max_length_error(253));
    }
    if !path
        .split('.')
        .all(|part| is_delimited(part.strip_prefix('_').unwrap_or(part), is_lower_alphanumeric, b"-_"))
    {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', \
                    and must start and end with an alphanumeric character";
        errors.push(regex_error(rule, &["example.com"], &format!("{PART}(\\.{PART})*")));
    }
    errors
}

/// The name of an HTTP header.
pub(super) fn http_header_name(name: &str) -> Vec<String> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Vec::new();
    }
    let rule = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![regex_error(rule, &["X-Header-Name"], "[-A-Za-z0-9]+")]
}

/// A DNS label.
pub(super) fn label(name: &str, is_prefix: bool) -> Vec<String> {
    let name = mask_trailing_dash(name, is_prefix);
    let mut errors = Vec::new();
    if name.len() > 63 {
        errors.push(max_length_error(63));
    }
    if !is_label(&name) {
        let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                    start and end with an alphanumeric character";
        errors.push(if is_subdomain(&name) {
            "must not contain dots".into()
        } else {
            regex_error(rule, &["my-name", "123-abc"], LABEL)
        });
    }
    errors
}

/// A segment of a URL path.
pub(super) fn path_segment(name: &str, is_prefix: bool) -> Vec<String> {
    if !is_prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    let mut errors: Vec<String> = ["/", "%"]
        .iter()
        .filter(|part| name.contains(**part))
        .map(|part| format!("may not contain '{part}'"))
        .collect();
    // Not in upstream. The router rejects such a segment, so no request could read or delete the object by its name.
    if name.bytes().any(|byte| byte < b' ') {
        errors.push("may not contain control characters".into());
    }
    errors
}

/// A name with an optional DNS prefix and a slash: label keys, annotation keys, finalizers.
pub(super) fn qualified_name(name: &str) -> Vec<String> {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
                character";
    let rule = regex_error(rule, &["MyName", "my.name", "123-abc"], QUALIFIED);
    let parts: Vec<&str> = name.split('/').collect();
    let (prefix, name) = match parts.as_slice() {
        [name] => (None, *name),
        [prefix, name] => (Some(*prefix), *name),
        _ => {
            let with = "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a qualified name {rule} {with}")];
        }
    };
    let mut errors = Vec::new();
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".into()),
        Some(prefix) => {
            errors.extend(subdomain(prefix, false).into_iter().map(|error| format!("prefix part {error}")))
        }
        None => (),
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", max_length_error(63)));
    }
    if !is_qualified(name) {
        errors.push(format!("name part {rule}"));
    }
    errors
}

/// The value of a label.
pub(super) fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push(max_length_error(63));
    }
    if !value.is_empty() && !is_qualified(value) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                    must start and end with an alphanumeric character";
        errors.push(regex_error(rule, &["MyValue", "my_value", "12345"], &format!("({QUALIFIED})?")));
    }
    errors
}

/// A key of a ConfigMap or a Secret, which is also a file name.
pub(super) fn config_key(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > 253 {
        errors.push(max_length_error(253));
    }
    if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        errors.push(regex_error(rule, &["key.name", "KEY_NAME", "key-name"], "[-._a-zA-Z0-9]+"));
    }
    match key {
        "." => errors.push("must not be '.'".into()),
        ".." => errors.push("must not be '..'".into()),
        key if key.starts_with("..") => errors.push("must not start with '..'".into()),
        _ => (),
    }
    errors
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

    fn check(rule: impl Fn(&str) -> Vec<String>, name: &str, expected: &[&str]) {
        assert_eq!(rule(name), expected, "{name}");
    }

    #[test]
    fn subdomains_are_validated() {
        let rule = |name: &str| subdomain(name, false);
        for good in ["a", "a-b.c", "1.2", &"a".repeat(253)] {
            check(rule, good, &[]);
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a.-b", "ä"] {
            check(rule, bad, &[SUBDOMAIN]);
        }
        check(rule, &"a".repeat(254), &["must be no more than 253 characters"]);
    }

    #[test]
    fn prefix_may_end_with_dash() {
        assert!(subdomain("pvc-", true).is_empty());
        assert_eq!(subdomain("-", true), [SUBDOMAIN]);
        assert_eq!(subdomain("pvc-", false), [SUBDOMAIN]);
        assert_eq!(subdomain("Pvc-", true), [SUBDOMAIN]);
    }

    #[test]
    fn labels_are_validated() {
        let rule = |name: &str| label(name, false);
        check(rule, "a-1", &[]);
        check(rule, "a.b", &["must not contain dots"]);
        check(rule, "A", &[DNS_LABEL]);
        check(rule, &"a".repeat(64), &["must be no more than 63 characters"]);
    }

    #[test]
    fn path_segments_are_validated() {
        let rule = |name: &str| path_segment(name, false);
        check(rule, "A_b", &[]);
        check(rule, "..", &["may not be '..'"]);
        check(rule, "a/b%", &["may not contain '/'", "may not contain '%'"]);
        check(rule, "a\u{8}", &["may not contain control characters"]);
        check(rule, "ü `", &[]);
    }

    #[test]
    fn qualified_names_are_validated() {
        for good in ["a", "A_b.c", "example.com/A", &format!("x/{}", "a".repeat(63))] {
            check(qualified_name, good, &[]);
        }
        check(qualified_name, "", &["name part must be non-empty", NAME_PART]);
        check(qualified_name, "/a", &["prefix part must be non-empty"]);
        check(qualified_name, "A/a", &[&format!("prefix part {SUBDOMAIN}")]);
        check(qualified_name, "a b", &[NAME_PART]);
        check(qualified_name, &"a".repeat(64), &["name part must be no more than 63 characters"]);
        let many = &qualified_name("a/b/c")[0];
        assert!(many.starts_with("a qualified name must consist of"), "{many}");
        assert!(
            many.ends_with("with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"),
            "{many}"
        );
    }

    #[test]
    fn label_values_are_validated() {
        for good in ["", "a", "A_b.c-1"] {
            check(label_value, good, &[]);
        }
        check(label_value, &"a".repeat(64), &["must be no more than 63 characters"]);
        assert_eq!(label_value("a b").len(), 1);
        assert!(label_value("-")[0].starts_with("a valid label must be an empty string or consist of"));
    }

    #[test]
    fn config_keys_are_validated() {
        for good in ["a", ".a", "A_b.c-1", "...a_"] {
            assert_eq!(config_key(good).is_empty(), !good.starts_with(".."), "{good}");
        }
        check(config_key, "..", &["must not be '..'"]);
        check(config_key, "..a", &["must not start with '..'"]);
        assert!(
            config_key("a/b")[0].starts_with("a valid config key must consist of alphanumeric characters")
        );
        assert!(config_key("")[0].starts_with("a valid config key"));
    }
}
