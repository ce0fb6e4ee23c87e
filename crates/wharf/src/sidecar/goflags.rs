//! Flags as Go's programs take them: one dash or two, `--flag=value` or `--flag value`, booleans without a
//! value. Each flag of a program stands in a table, which says what becomes of it here.
//!
//! An empty value means the same as none everywhere. Of several the last one wins, but lists grow.

use std::collections::BTreeMap;
use std::time::Duration;

/// A flag of an upstream program.
#[derive(Debug)]
pub(super) struct Flag {
    /// Without dashes.
    pub(super) name: &'static str,
    pub(super) takes: Takes,
    /// Upstream's default.
    pub(super) default: &'static str,
    pub(super) becomes: Becomes,
}

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// Nothing, or `=true` and `=false`.
    Bool,
    /// The same, or one of these words, each of which is a yes.
    BoolOr(&'static [&'static str]),
    Text,
    /// Items with commas between them.
    List,
    Number,
    /// A number that is not negative.
    Count,
    /// A number that need not be whole.
    Decimal,
    /// As Go writes them: `1m30s`.
    Duration,
}

/// What ends the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// The first word that is no flag, as with Go's own package.
    AtFirstWord,
    /// Nothing: other words may stand between flags.
    Never,
}

/// What becomes of a flag here; in words, for the documentation.
#[derive(Debug)]
pub(super) enum Becomes {
    /// It means what it means upstream.
    Same(&'static str),
    /// It is accepted with a warning and means nothing, for this reason.
    Ignored(&'static str),
}

/// What was on the command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Given {
    values: BTreeMap<&'static str, String>,
    /// What was accepted and means nothing.
    pub(super) warnings: Vec<String>,
    /// `-h` or `-help`.
    pub(super) help: bool,
}

/// What is wrong with a command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FlagError(pub(super) String);

/// Reads a command line.
pub(super) fn parse(flags: &[&'static Flag], ends: Ends, words: &[String]) -> Result<Given, FlagError> {
    let mut given = Given::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bare = match word.strip_prefix("--").or_else(|| word.strip_prefix('-')) {
            // `--` always ends the flags.
            Some("") if word == "--" => None,
            Some("") | None if ends == Ends::Never => {
                given.warnings.push(format!("not a flag, ignored: {word:?}"));
                continue;
            }
            Some("") | None => Some(word),
            Some(bare) => {
                read(flags, word, bare, &mut words, &mut given)?;
                continue;
            }
        };
        let rest: Vec<&String> = bare.into_iter().chain(words.by_ref()).collect();
        if !rest.is_empty() {
            given.warnings.push(format!("not flags, ignored with all that follows: {rest:?}"));
        }
        break;
    }
    Ok(given)
}

fn read<'a>(
    flags: &[&'static Flag],
    word: &str,
    bare: &str,
    words: &mut impl Iterator<Item = &'a String>,
    given: &mut Given,
) -> Result<(), FlagError> {
    let (name, value) = match bare.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (bare, None),
    };
    let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
        if ["h", "help"].contains(&name) {
            given.help = true;
            return Ok(());
        }
        return Err(FlagError(format!("there is no flag {word:?}; -help lists them all")));
    };
    let value = match (value, flag.takes) {
        (Some(value), _) => value,
        (None, Takes::Bool | Takes::BoolOr(_)) => "true".to_owned(),
        (None, _) => words.next().cloned().ok_or_else(|| FlagError(format!("flag -{name} needs a value")))?,
    };
    let fits = match flag.takes {
        Takes::Bool => parse_bool(&value).is_some(),
        Takes::BoolOr(words) => parse_bool(&value).is_some() || words.contains(&&*value),
        Takes::Text | Takes::List => true,
        Takes::Number => value.parse::<i64>().is_ok(),
        Takes::Count => value.parse::<u32>().is_ok(),
        Takes::Decimal => value.parse::<f32>().is_ok_and(f32::is_finite),
        Takes::Duration => parse_duration(&value).is_some(),
    };
    if !fits {
        let kind = flag.takes.name();
        return Err(FlagError(format!("flag -{name}: {value:?} is not a {kind}")));
    }
    if let Becomes::Ignored(reason) = flag.becomes {
        given.warnings.push(format!("flag -{name} is ignored: {reason}"));
    }
    match given.values.get_mut(flag.name).filter(|items| flag.takes == Takes::List && !items.is_empty()) {
        Some(items) => items.extend([",", &value]),
        None => _ = given.values.insert(flag.name, value),
    }
    Ok(())
}

impl Takes {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bool | Self::BoolOr(_) => "boolean",
            Self::Text => "text",
            Self::List => "list",
            Self::Count => "number of at least 0",
            Self::Decimal => "decimal number",
            Self::Number => "number",
            Self::Duration => "duration",
        }
    }
}

impl Given {
    /// A flag's value, if it was given and is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.is_set_or(name, false)
    }

    /// A boolean; a word instead of one is a yes.
    pub(super) fn is_set_or(&self, name: &str, default: bool) -> bool {
        self.text(name).map_or(default, |value| parse_bool(value).unwrap_or(true))
    }

    /// The items of a list.
    pub(super) fn items(&self, name: &str) -> impl Iterator<Item = &str> {
        self.text(name)
            .into_iter()
            .flat_map(|items| items.split(','))
            .map(str::trim)
            .filter(|item| !item.is_empty())
    }

    pub(super) fn decimal(&self, name: &str) -> Option<f32> {
        self.text(name)?.parse().ok()
    }

    pub(super) fn duration(&self, name: &str, default: Duration) -> Duration {
        self.text(name).and_then(parse_duration).unwrap_or(default)
    }

    pub(super) fn number(&self, name: &str) -> Option<i64> {
        self.text(name)?.parse().ok()
    }

    /// A timeout; it has to leave some time.
    pub(super) fn timeout(&self, name: &str, default: Duration) -> Result<Duration, FlagError> {
        match self.text(name).and_then(parse_duration) {
            None => Ok(default),
            Some(timeout) if timeout.is_zero() => {
                Err(FlagError(format!("flag -{name}: a call needs more time than none")))
            }
            Some(timeout) => Ok(timeout),
        }
    }
}

pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A duration as Go writes it, such as `1h15m30.5s`. A negative one is none at all.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() || total.is_zero() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.')?);
        let (unit, after) =
            after.split_at(after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len()));
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        total = total.checked_add(Duration::try_from_secs_f64(number * seconds).ok()?)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    Some(if negative { Duration::ZERO } else { total })
}

#[cfg(test)]
mod tests;
