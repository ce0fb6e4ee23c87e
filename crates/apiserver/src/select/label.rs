//! Label selectors: a list of requirements, all of which must match.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::status::StatusError;

/// Selects objects by their labels. The empty selector matches all objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    Exists,
    DoesNotExist,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    GreaterThan(i64),
    LessThan(i64),
}

impl LabelSelector {
    /// Parses a selector.
    pub fn parse(text: &str) -> Result<Self, StatusError> {
        let mut parser = Parser { tokens: tokenize(text), at: 0 };
        parser.selector().map(|requirements| Self { requirements }).map_err(StatusError::bad_request)
    }

    /// Whether the selector matches all objects.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether an object matches, by its `metadata.labels`.
    pub fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|Requirement { key, operator }| {
            let value =
                object.get("metadata").and_then(|metadata| metadata.get("labels")?.get(key)?.as_str());
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match operator {
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
                Operator::LessThan(bound) => number().is_some_and(|number| number < *bound),
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenKind {
    Identifier,
    OpenParen,
    CloseParen,
    Comma,
    Not,
    Equals,
    NotEquals,
    GreaterThan,
    LessThan,
    End,
}

/// A token's kind, and its text for error messages.
type Token = (TokenKind, String);

const SPECIAL_CHARACTERS: &str = "=!(),><";

fn tokenize(text: &str) -> Vec<Token> {
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(blank);
    while let Some(first) = rest.chars().next() {
        // Like upstream, a NUL character ends the text.
        if first == '\0' {
            break;
        }
        let length = if SPECIAL_CHARACTERS.contains(first) {
            let (kind, length) = match () {
                () if rest.starts_with("==") => (TokenKind::Equals, 2),
                () if rest.starts_with("!=") => (TokenKind::NotEquals, 2),
                () => match first {
                    '=' => (TokenKind::Equals, 1),
                    '!' => (TokenKind::Not, 1),
                    '(' => (TokenKind::OpenParen, 1),
                    ')' => (TokenKind::CloseParen, 1),
                    ',' => (TokenKind::Comma, 1),
                    '>' => (TokenKind::GreaterThan, 1),
                    _ => (TokenKind::LessThan, 1),
                },
            };
            tokens.push((kind, rest[..length].to_owned()));
            length
        } else {
            let length =
                rest.find(|c| SPECIAL_CHARACTERS.contains(c) || blank(c) || c == '\0').unwrap_or(rest.len());
            tokens.push((TokenKind::Identifier, rest[..length].to_owned()));
            length
        };
        rest = rest[length..].trim_start_matches(blank);
    }
    tokens.push((TokenKind::End, String::new()));
    tokens
}

struct Parser {
    /// The last token is [`TokenKind::End`].
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> (TokenKind, &str) {
        self.tokens.get(self.at).map_or((TokenKind::End, ""), |(kind, text)| (*kind, text.as_str()))
    }

    fn next(&mut self) -> (TokenKind, String) {
        let (kind, text) = self.peek();
        let token = (kind, text.to_owned());
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (TokenKind::Identifier | TokenKind::Not, _) => {}
                (TokenKind::End, _) => return Ok(requirements),
                (_, found) => {
                    return Err(format!("found '{found}', expected: !, identifier, or 'end of string'"));
                }
            }
            let requirement =
                self.requirement().map_err(|error| format!("unable to parse requirement: {error}"))?;
            requirements.push(requirement);
            match self.next() {
                (TokenKind::End, _) => return Ok(requirements),
                (TokenKind::Comma, _) => match self.peek() {
                    (TokenKind::Identifier | TokenKind::Not, _) => {}
                    (_, found) => return Err(format!("found '{found}', expected: identifier after ','")),
                },
                (_, found) => return Err(format!("found '{found}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek().0 == TokenKind::Not;
        if absent {
            self.at += 1;
        }
        let (kind, key) = self.next();
        if kind != TokenKind::Identifier {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check_key(&key)?;
        let operator = match self.peek().0 {
            _ if absent => Operator::DoesNotExist,
            TokenKind::End | TokenKind::Comma => Operator::Exists,
            _ => self.operator(&key)?,
        };
        Ok(Requirement { key, operator })
    }

    fn operator(&mut self, key: &str) -> Result<Operator, String> {
        let (kind, operator) = self.next();
        let number = |value: &str| {
            value.parse::<i64>().map_err(|_| {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                format!("values[0]: Invalid value: {value:?}: {detail}")
            })
        };
        match (kind, operator.as_str()) {
            (TokenKind::Equals, _) => Ok(Operator::In([self.value(key)?].into())),
            (TokenKind::NotEquals, _) => Ok(Operator::NotIn([self.value(key)?].into())),
            (TokenKind::GreaterThan, _) => number(&self.value(key)?).map(Operator::GreaterThan),
            (TokenKind::LessThan, _) => number(&self.value(key)?).map(Operator::LessThan),
            (TokenKind::Identifier, "in") => Ok(Operator::In(self.values(key)?)),
            (TokenKind::Identifier, "notin") => Ok(Operator::NotIn(self.values(key)?)),
            (_, found) => Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// Parses one value, which may be empty.
    fn value(&mut self, key: &str) -> Result<String, String> {
        if matches!(self.peek().0, TokenKind::End | TokenKind::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (TokenKind::Identifier, value) => check_value(key, 0, &value).map(|()| value),
            (_, found) => Err(format!("found '{found}', expected: identifier")),
        }
    }

    /// Parses `(a,b)`. Nothing between two separators is an empty value.
    fn values(&mut self, key: &str) -> Result<BTreeSet<String>, String> {
        let (kind, found) = self.next();
        if kind != TokenKind::OpenParen {
            return Err(format!("found '{found}' expected: '('"));
        }
        if !matches!(self.peek().0, TokenKind::Identifier | TokenKind::Comma | TokenKind::CloseParen) {
            return Err(format!("found '{}', expected: ',', ')' or identifier", self.peek().1));
        }
        let mut values = BTreeSet::new();
        let mut expect_value = true;
        loop {
            match self.next() {
                (TokenKind::Identifier, value) if expect_value => {
                    values.insert(value);
                    expect_value = false;
                }
                (TokenKind::Comma, _) => {
                    if expect_value {
                        values.insert(String::new());
                    }
                    expect_value = true;
                }
                (TokenKind::CloseParen, _) => {
                    if expect_value {
                        values.insert(String::new());
                    }
                    break;
                }
                (_, found) if expect_value => {
                    return Err(format!("found '{found}', expected: ',', or identifier"));
                }
                (_, found) => return Err(format!("found '{found}', expected: ',' or ')'")),
            }
        }
        for (at, value) in values.iter().enumerate() {
            check_value(key, at, value)?;
        }
        Ok(values)
    }
}

const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
     alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
     '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
     and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
     for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
     '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn check_key(key: &str) -> Result<(), String> {
    let mut errors = Vec::new();
    let (prefix, name) = match key.split_once('/') {
        None => (None, key),
        Some((prefix, name)) => (Some(prefix), name),
    };
    if name.contains('/') {
        let detail = format!(
            "a qualified name {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        );
        return Err(format!("<nil>: Invalid value: {key:?}: {detail}"));
    }
    match prefix {
        Some("") => errors.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                errors.push("prefix part must be no more than 253 characters".to_owned());
            }
            if !prefix.split('.').all(is_dns_label) {
                errors.push(format!("prefix part {SUBDOMAIN_RULE}"));
            }
        }
        None => {}
    }
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        errors.push("name part must be no more than 63 characters".to_owned());
    }
    if !is_name(name) {
        errors.push(format!("name part {NAME_RULE}"));
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(format!("<nil>: Invalid value: {key:?}: {}", errors.join("; ")))
    }
}

fn check_value(key: &str, at: usize, value: &str) -> Result<(), String> {
    let mut errors = Vec::new();
    if value.len() > 63 {
        errors.push("must be no more than 63 characters");
    }
    if !value.is_empty() && !is_name(value) {
        errors.push(VALUE_RULE);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(format!("values[{at}][{key}]: Invalid value: {value:?}: {}", errors.join("; ")))
    }
}

fn is_name(name: &str) -> bool {
    let ends = [name.bytes().next(), name.bytes().next_back()];
    ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_dns_label(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [label.bytes().next(), label.bytes().next_back()];
    ends.iter().all(|end| end.is_some_and(plain)) && label.bytes().all(|byte| plain(byte) || byte == b'-')
}
