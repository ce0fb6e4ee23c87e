//! Error messages of Go's JSON decoder, which upstream returns to clients.

/// Go's message for an error of serde_json at the same position.
pub(crate) fn go_message(raw: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".into();
    }
    let line = error.line().saturating_sub(1);
    let start: usize = raw.split_inclusive(|byte| *byte == b'\n').take(line).map(<[u8]>::len).sum();
    let at = start + error.column().saturating_sub(1);
    let text = error.to_string();
    let is = |words: &str| text.starts_with(words);
    let context = if is("expected `:`") {
        "after object key"
    } else if is("expected `,` or `}`") {
        "after object key:value pair"
    } else if is("expected `,` or `]`") {
        "after array element"
    } else if is("key must be a string") {
        "looking for beginning of object key string"
    } else if is("trailing characters") {
        "after top-level value"
    } else {
        "looking for beginning of value"
    };
    match raw.get(at) {
        Some(byte) => format!("invalid character {} {context}", quoted(*byte)),
        None => "unexpected end of JSON input".into(),
    }
}

/// Quotes a byte as Go does.
fn quoted(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".into(),
        b'"' => "'\"'".into(),
        b'\\' => r"'\\'".into(),
        b'\n' => r"'\n'".into(),
        b'\t' => r"'\t'".into(),
        b'\r' => r"'\r'".into(),
        0..0x20 | 0x7f => format!("'\\x{byte:02x}'"),
        0x80..=0x9f | 0xad => format!("'\\u{byte:04x}'"),
        byte => format!("'{}'", char::from(byte)),
    }
}

/// The beginning of a body, as upstream prints it: text if it looks like JSON, otherwise hexadecimal.
pub(crate) fn body_summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let start = &body[..body.len().min(SHOWN)];
    let more = if body.len() > SHOWN { " ..." } else { "" };
    match body.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(start)),
        Some(_) => {
            let hex = base16ct::lower::encode_string(start);
            format!("{hex}{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn messages_match_go() {
        for (raw, expected) in [
            ("{", "unexpected end of JSON input"),
            ("", "unexpected end of JSON input"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\": 1 2}", "invalid character '2' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("{a: 1}", "invalid character 'a' looking for beginning of object key string"),
            ("{} {", "invalid character '{' after top-level value"),
            ("\n\nx", "invalid character 'x' looking for beginning of value"),
        ] {
            let error = serde_json::from_str::<Value>(raw).unwrap_err();
            assert_eq!(go_message(raw.as_bytes(), &error), expected, "{raw}");
        }
        assert_eq!(quoted(0x9e), r"'\u009e'");
        assert_eq!(quoted(1), r"'\x01'");
    }

    #[test]
    fn summary_is_text_or_hexadecimal() {
        assert_eq!(body_summary(b""), "<empty>");
        assert_eq!(body_summary(b"{}"), "{}");
        assert_eq!(body_summary(b"[]"), "5b5d");
        assert_eq!(body_summary(&[b'x'; 31]), format!("{} ...", "78".repeat(30)));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_have_messages(raw: Vec<u8>) {
            if let Err(error) = serde_json::from_slice::<Value>(&raw) {
                prop_assert!(!go_message(&raw, &error).is_empty());
            }
            prop_assert!(!body_summary(&raw).is_empty());
        }
    }
}
