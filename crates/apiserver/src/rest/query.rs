//! Query parameters, parsed as upstream does.

use std::borrow::Cow;

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
                Err(_) => Err(StatusError::bad_request(format!(
                    "strconv.ParseInt: parsing {text:?}: invalid syntax"
                ))),
            },
        }
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

    #[test]
    fn plus_in_a_path_is_literal() {
        assert_eq!(decode("a+b%2Fc", false), "a+b/c");
        assert_eq!(decode("%", false), "%");
        assert_eq!(decode("%4", false), "%4");
    }
}
