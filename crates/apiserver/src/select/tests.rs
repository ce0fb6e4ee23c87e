use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

#[test]
fn label_selectors_match_labels() {
    let object =
        json!({"metadata": {"labels": {"app": "web", "tier": "a", "empty": "", "size": "7", "in": "in"}}});
    let cases = [
        ("", true),
        ("  ", true),
        ("app", true),
        ("!app", false),
        ("!gone", true),
        ("gone", false),
        ("app=web", true),
        ("app==web", true),
        ("app = web , tier = a", true),
        ("app=web,tier=b", false),
        ("app!=web", false),
        ("gone!=web", true),
        ("app in (web,db)", true),
        ("app in (db)", false),
        ("app notin (db)", true),
        ("app notin (web)", false),
        ("gone notin (web)", true),
        ("gone in (web)", false),
        ("empty=", true),
        ("empty=,app", true),
        ("empty in ()", true),
        ("empty in (,)", true),
        ("app in (,web)", true),
        ("in in (in)", true),
        ("in=notin", false),
        ("size>6", true),
        ("size>7", false),
        ("size<8", true),
        ("app>1", false),
        ("gone<8", false),
        ("example.com/x!=y", true),
    ];
    for (text, expected) in cases {
        let selector = LabelSelector::parse(text).unwrap();
        assert_eq!(selector.matches(&object), expected, "{text}");
    }
    assert!(LabelSelector::parse("").unwrap().is_empty());
    assert!(LabelSelector::parse("!a").unwrap().matches(&json!({"metadata": {}})));
    assert!(!LabelSelector::parse("a").unwrap().matches(&Value::Null));
}

#[test]
fn malformed_label_selectors_are_rejected() {
    let cases = [
        ("a,", "found '', expected: identifier after ','"),
        (",a", "found ',', expected: !, identifier, or 'end of string'"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("!=b", "found '!=', expected: !, identifier, or 'end of string'"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
        ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
        ("a==!b", "unable to parse requirement: found '!', expected: identifier"),
        (
            "a>b",
            "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        (
            "-a",
            "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric characters",
        ),
        (
            "a/b/c",
            "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a qualified name must consist of",
        ),
        ("/b", "unable to parse requirement: <nil>: Invalid value: \"/b\": prefix part must be non-empty"),
        (
            "B_/b",
            "unable to parse requirement: <nil>: Invalid value: \"B_/b\": prefix part a lowercase RFC 1123 subdomain",
        ),
        (
            "a=-",
            "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must be an empty string or consist",
        ),
    ];
    for (text, message) in cases {
        let error = LabelSelector::parse(text).unwrap_err();
        assert_eq!((error.code, error.reason), (400, "BadRequest"), "{text}");
        assert!(error.message.starts_with(message), "{text}: {}", error.message);
    }
    let long = "x".repeat(64);
    assert!(
        LabelSelector::parse(&long)
            .unwrap_err()
            .message
            .ends_with("name part must be no more than 63 characters")
    );
    assert!(LabelSelector::parse(&format!("a={long}")).is_err());
}

#[test]
fn field_selectors_match_fields() {
    let value = |field: &str| match field {
        "metadata.name" => Some("a".to_owned()),
        "spec.nodeName" => Some("n,1=\\".to_owned()),
        "spec.unschedulable" => Some("false".to_owned()),
        _ => None,
    };
    let cases = [
        ("", true),
        ("metadata.name=a", true),
        ("metadata.name==a", true),
        ("metadata.name!=a", false),
        ("metadata.name=b", false),
        ("metadata.name=a,spec.nodeName=", false),
        ("spec.nodeName=n\\,1\\=\\\\", true),
        (",metadata.name=a,", true),
        ("metadata.name=a,spec.unschedulable!=true", true),
    ];
    for (text, expected) in cases {
        assert_eq!(FieldSelector::parse(text).unwrap().matches(value), expected, "{text}");
    }
    let bad = [
        ("metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
        ("a=b\\c", "invalid field selector: invalid escape sequence: \\c"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
    ];
    for (text, message) in bad {
        let error = FieldSelector::parse(text).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (400, message));
    }
}

#[test]
fn unsupported_fields_are_rejected() {
    let selector = FieldSelector::parse("metadata.name=a,spec.x=b").unwrap();
    assert_eq!(selector.requires_exact_match("metadata.name"), Some("a"));
    assert_eq!(selector.requires_exact_match("metadata.namespace"), None);
    assert_eq!(FieldSelector::parse("metadata.name!=a").unwrap().requires_exact_match("metadata.name"), None);
    assert!(selector.check_supported(["spec.x"], false).is_ok());
    let message =
        |known: &[&str], custom| selector.check_supported(known.iter().copied(), custom).unwrap_err().message;
    assert_eq!(message(&["spec.nodeName"], false), "field label not supported: spec.x");
    assert_eq!(message(&[], true), "field label not supported: spec.x");
    assert_eq!(
        message(&["metadata.name"], false),
        "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    );
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "[a-c=!<>(), \\\\/.\u{e4}\u{0}-]{0,20}|.{0,20}") {
        let object = json!({"metadata": {"labels": {"a": "b"}}});
        if let Ok(selector) = LabelSelector::parse(&text) {
            selector.matches(&object);
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            selector.matches(|_| None);
        }
    }

    /// A value matches either `in` or `notin`.
    #[test]
    fn in_and_notin_are_opposites(value in "[a-c]{0,1}", values in prop::collection::vec("[a-c]{0,1}", 0..4)) {
        let object = json!({"metadata": {"labels": {"k": value}}});
        let list = values.join(",");
        let holds = |operator: &str| LabelSelector::parse(&format!("k {operator} ({list})")).unwrap().matches(&object);
        prop_assert_ne!(holds("in"), holds("notin"));
    }
}
