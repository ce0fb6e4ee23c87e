//! Query parameters, parsed as upstream does.

use std::borrow::Cow;
use std::num::{IntErrorKind, ParseIntError};

use percent_encoding::percent_decode_str;

use crate::status::StatusError;

/// The decoded parameters of a request, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. Invalid percent-encoding is kept literally.
    pub(crate) fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name, true), decode(value, true))
                })
                .collect(),
        )
    }

    /// The first value of a parameter; empty if it is missing.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
    }

    /// All values of a parameter.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// A boolean parameter. As in upstream, anything but `false` and `0` is true. None if it is missing.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        let value = self.all(name).next()?;
        Some(!(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    /// An integer parameter; none if it is missing or empty.
    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, StatusError> {
        match self.text(name) {
            "" => Ok(None),
            text => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(error) => Err(StatusError::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: {}",
                    go_reason(&error)
                ))),
            },
        }
    }
}

/// Why Go's parser rejects a decimal integer.
pub(super) fn go_reason(error: &ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    }
}

/// Decodes percent-encoding. A plus is a space in a query and literal in a path.
pub(crate) fn decode(text: &str, query: bool) -> String {
    let spaced = if query { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) };
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded() {
        let query =
            Query::parse("watch&limit=5&labelSelector=a%20in+(b)&dryRun=All&dryRun=x&bad=%zz&f=False&n=0");
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.flag("f"), Some(false));
        assert_eq!(query.flag("n"), Some(false));
        assert_eq!(query.flag("absent"), None);
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.number("absent").unwrap(), None);
        assert_eq!(query.text("labelSelector"), "a in (b)");
        assert_eq!(query.all("dryRun").collect::<Vec<_>>(), ["All", "x"]);
        assert_eq!(query.text("bad"), "%zz");
        let status_error = query.number("dryRun").unwrap_err();
        assert_eq!(
            (status_error.code, status_error.message.as_str()),
            (400, "strconv.ParseInt: parsing \"All\": invalid syntax")
        );
    }

    /// As in Go: the whole range of a 64-bit integer, and nothing else.
    #[test]
    fn numbers_are_parsed_as_in_go() {
        for (text, expected) in [
            ("9223372036854775807", Ok(i64::MAX)),
            ("-9223372036854775808", Ok(i64::MIN)),
            ("%2B5", Ok(5)),
            ("-0", Ok(0)),
            ("007", Ok(7)),
            ("9223372036854775808", Err("value out of range")),
            ("-9223372036854775809", Err("value out of range")),
            ("18446744073709551616", Err("value out of range")),
            ("1e3", Err("invalid syntax")),
            ("1.5", Err("invalid syntax")),
            ("0x7f", Err("invalid syntax")),
            ("1_000", Err("invalid syntax")),
            ("NaN", Err("invalid syntax")),
            ("-", Err("invalid syntax")),
            ("%20", Err("invalid syntax")),
            ("%D9%A3", Err("invalid syntax")),
        ] {
            let query = Query::parse(&format!("limit={text}"));
            let found = query.number("limit").map(Option::unwrap).map_err(|refused| refused.message);
            let shown = query.text("limit");
            let expected =
                expected.map_err(|reason| format!("strconv.ParseInt: parsing {shown:?}: {reason}"));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn plus_in_a_path_is_literal() {
        assert_eq!(decode("a+b%2Fc", false), "a+b/c");
        assert_eq!(decode("%", false), "%");
        assert_eq!(decode("%4", false), "%4");
    }
}
