//! Label selectors: a list of requirements, all of which have to hold.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::status::Refusal;

/// Objects by their labels. The empty one takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    relation: Relation,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Relation {
    Exists,
    DoesNotExist,
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Reads a selector.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        parser.selector().map(|requirements| Self { requirements }).map_err(Refusal::bad_request)
    }

    /// Whether it takes all.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether it takes an object, by its `metadata.labels`.
    pub fn matches(&self, object: &Value) -> bool {
        self.requirements.iter().all(|Requirement { key, relation }| {
            let value =
                object.get("metadata").and_then(|metadata| metadata.get("labels")?.get(key)?.as_str());
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match relation {
                Relation::Exists => value.is_some(),
                Relation::DoesNotExist => value.is_none(),
                Relation::In(values) => value.is_some_and(|value| values.contains(value)),
                Relation::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Relation::Above(bound) => number().is_some_and(|number| number > *bound),
                Relation::Below(bound) => number().is_some_and(|number| number < *bound),
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Word,
    Open,
    Close,
    Comma,
    Not,
    Equals,
    NotEquals,
    Above,
    Below,
    End,
}

/// A sign, and as what it stands in a message.
type Token = (Sign, String);

const SIGNS: &str = "=!(),><";

fn tokens(text: &str) -> Vec<Token> {
    let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(blank);
    while let Some(first) = rest.chars().next() {
        // A zero ends the text, as it does upstream.
        if first == '\0' {
            break;
        }
        let length = if SIGNS.contains(first) {
            let (sign, length) = match () {
                () if rest.starts_with("==") => (Sign::Equals, 2),
                () if rest.starts_with("!=") => (Sign::NotEquals, 2),
                () => match first {
                    '=' => (Sign::Equals, 1),
                    '!' => (Sign::Not, 1),
                    '(' => (Sign::Open, 1),
                    ')' => (Sign::Close, 1),
                    ',' => (Sign::Comma, 1),
                    '>' => (Sign::Above, 1),
                    _ => (Sign::Below, 1),
                },
            };
            tokens.push((sign, rest[..length].to_owned()));
            length
        } else {
            let length = rest.find(|c| SIGNS.contains(c) || blank(c) || c == '\0').unwrap_or(rest.len());
            tokens.push((Sign::Word, rest[..length].to_owned()));
            length
        };
        rest = rest[length..].trim_start_matches(blank);
    }
    tokens.push((Sign::End, String::new()));
    tokens
}

struct Parser {
    /// The last one is the end.
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> (Sign, &str) {
        self.tokens.get(self.at).map_or((Sign::End, ""), |(sign, text)| (*sign, text.as_str()))
    }

    fn next(&mut self) -> (Sign, String) {
        let (sign, text) = self.peek();
        let token = (sign, text.to_owned());
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Sign::Word | Sign::Not, _) => {}
                (Sign::End, _) => return Ok(requirements),
                (_, found) => {
                    return Err(format!("found '{found}', expected: !, identifier, or 'end of string'"));
                }
            }
            let requirement =
                self.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?;
            requirements.push(requirement);
            match self.next() {
                (Sign::End, _) => return Ok(requirements),
                (Sign::Comma, _) => match self.peek() {
                    (Sign::Word | Sign::Not, _) => {}
                    (_, found) => return Err(format!("found '{found}', expected: identifier after ','")),
                },
                (_, found) => return Err(format!("found '{found}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek().0 == Sign::Not;
        if absent {
            self.at += 1;
        }
        let (sign, key) = self.next();
        if sign != Sign::Word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        check_key(&key)?;
        let relation = match self.peek().0 {
            _ if absent => Relation::DoesNotExist,
            Sign::End | Sign::Comma => Relation::Exists,
            _ => self.relation(&key)?,
        };
        Ok(Requirement { key, relation })
    }

    fn relation(&mut self, key: &str) -> Result<Relation, String> {
        let (sign, operator) = self.next();
        let number = |value: &str| {
            value.parse::<i64>().map_err(|_| {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                format!("values[0]: Invalid value: {value:?}: {detail}")
            })
        };
        match (sign, operator.as_str()) {
            (Sign::Equals, _) => Ok(Relation::In([self.value(key)?].into())),
            (Sign::NotEquals, _) => Ok(Relation::NotIn([self.value(key)?].into())),
            (Sign::Above, _) => number(&self.value(key)?).map(Relation::Above),
            (Sign::Below, _) => number(&self.value(key)?).map(Relation::Below),
            (Sign::Word, "in") => Ok(Relation::In(self.values(key)?)),
            (Sign::Word, "notin") => Ok(Relation::NotIn(self.values(key)?)),
            (_, found) => Err(format!("found '{found}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// One value, or the empty one.
    fn value(&mut self, key: &str) -> Result<String, String> {
        if matches!(self.peek().0, Sign::End | Sign::Comma) {
            return Ok(String::new());
        }
        match self.next() {
            (Sign::Word, value) => check_value(key, 0, &value).map(|()| value),
            (_, found) => Err(format!("found '{found}', expected: identifier")),
        }
    }

    /// `(a,b)`; where nothing stands between two signs, the empty value is meant.
    fn values(&mut self, key: &str) -> Result<BTreeSet<String>, String> {
        let (sign, found) = self.next();
        if sign != Sign::Open {
            return Err(format!("found '{found}' expected: '('"));
        }
        if !matches!(self.peek().0, Sign::Word | Sign::Comma | Sign::Close) {
            return Err(format!("found '{}', expected: ',', ')' or identifier", self.peek().1));
        }
        let mut values = BTreeSet::new();
        let mut expect_value = true;
        loop {
            match self.next() {
                (Sign::Word, value) if expect_value => {
                    values.insert(value);
                    expect_value = false;
                }
                (Sign::Comma, _) => {
                    if expect_value {
                        values.insert(String::new());
                    }
                    expect_value = true;
                }
                (Sign::Close, _) => {
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
    let mut wrong = Vec::new();
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
        Some("") => wrong.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            if prefix.len() > 253 {
                wrong.push("prefix part must be no more than 253 characters".to_owned());
            }
            if !prefix.split('.').all(is_dns_label) {
                wrong.push(format!("prefix part {SUBDOMAIN_RULE}"));
            }
        }
        None => {}
    }
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        wrong.push("name part must be no more than 63 characters".to_owned());
    }
    if !is_name(name) {
        wrong.push(format!("name part {NAME_RULE}"));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("<nil>: Invalid value: {key:?}: {}", wrong.join("; ")))
    }
}

fn check_value(key: &str, at: usize, value: &str) -> Result<(), String> {
    let mut wrong = Vec::new();
    if value.len() > 63 {
        wrong.push("must be no more than 63 characters");
    }
    if !value.is_empty() && !is_name(value) {
        wrong.push(VALUE_RULE);
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("values[{at}][{key}]: Invalid value: {value:?}: {}", wrong.join("; ")))
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
