//! Parses flags as Go programs do: one dash or two, `--flag=value` or `--flag value`, booleans without a value. Each
//! upstream program has a table of its flags and their support in Wharf.
//!
//! An empty value counts as unset. If a flag is repeated, the last value wins; lists are concatenated.

use std::collections::BTreeMap;
use std::time::Duration;

/// A flag of an upstream program.
#[derive(Debug)]
pub(super) struct Flag {
    /// Without dashes.
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    /// Upstream's default.
    pub(super) default: &'static str,
    pub(super) support: Support,
}

/// The type of a flag's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// No value, `=true` or `=false`.
    Bool,
    /// A boolean, or one of these values, each of which means true.
    BoolOr(&'static [&'static str]),
    Text,
    /// Comma-separated items.
    List,
    Number,
    /// A non-negative integer.
    Count,
    /// A decimal number.
    Decimal,
    /// A duration in Go's format: `1m30s`.
    Duration,
}

/// Where parsing of flags ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParseUntil {
    /// At the first positional argument, as in Go's `flag` package.
    FirstPositional,
    /// At the end: positional arguments may appear between flags.
    End,
}

/// How Wharf supports a flag, with a note for `-help` and the documentation.
#[derive(Debug)]
pub(super) enum Support {
    /// It has upstream's meaning.
    Same(&'static str),
    /// It is ignored with a warning, for this reason.
    Ignored(&'static str),
}

/// The flags of a command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ParsedFlags {
    values: BTreeMap<&'static str, String>,
    /// Flags and arguments that were ignored.
    pub(super) warnings: Vec<String>,
    /// `-h` or `-help`.
    pub(super) help: bool,
}

/// An invalid command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FlagError(pub(super) String);

/// Parses a command line.
pub(super) fn parse(
    flags: &[&'static Flag],
    until: ParseUntil,
    args: &[String],
) -> Result<ParsedFlags, FlagError> {
    let mut parsed = ParsedFlags::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let first_positional = match arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) {
            // `--` always ends parsing of flags.
            Some("") if arg == "--" => None,
            Some("") | None if until == ParseUntil::End => {
                parsed.warnings.push(format!("positional argument {arg:?} is ignored"));
                continue;
            }
            Some("") | None => Some(arg),
            Some(bare) => {
                read_flag(flags, arg, bare, &mut args, &mut parsed)?;
                continue;
            }
        };
        let rest: Vec<&String> = first_positional.into_iter().chain(args.by_ref()).collect();
        if !rest.is_empty() {
            parsed
                .warnings
                .push(format!("positional arguments and everything after them are ignored: {rest:?}"));
        }
        break;
    }
    Ok(parsed)
}

fn read_flag<'a>(
    flags: &[&'static Flag],
    arg: &str,
    bare: &str,
    args: &mut impl Iterator<Item = &'a String>,
    parsed: &mut ParsedFlags,
) -> Result<(), FlagError> {
    let (name, value) = match bare.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (bare, None),
    };
    let Some(flag) = flags.iter().find(|flag| flag.name == name) else {
        if ["h", "help"].contains(&name) {
            parsed.help = true;
            return Ok(());
        }
        return Err(FlagError(format!("unknown flag {arg:?}; -help lists all flags")));
    };
    let value = match (value, flag.kind) {
        (Some(value), _) => value,
        (None, ValueKind::Bool | ValueKind::BoolOr(_)) => "true".to_owned(),
        (None, _) => args.next().cloned().ok_or_else(|| FlagError(format!("flag -{name} needs a value")))?,
    };
    let is_valid = match flag.kind {
        ValueKind::Bool => parse_bool(&value).is_some(),
        ValueKind::BoolOr(values) => parse_bool(&value).is_some() || values.contains(&&*value),
        ValueKind::Text | ValueKind::List => true,
        ValueKind::Number => value.parse::<i64>().is_ok(),
        ValueKind::Count => value.parse::<u32>().is_ok(),
        ValueKind::Decimal => value.parse::<f32>().is_ok_and(f32::is_finite),
        ValueKind::Duration => parse_duration(&value).is_some(),
    };
    if !is_valid {
        let kind = flag.kind.name();
        return Err(FlagError(format!("flag -{name}: {value:?} is not a {kind}")));
    }
    if let Support::Ignored(reason) = flag.support {
        parsed.warnings.push(format!("flag -{name} is ignored: {reason}"));
    }
    match parsed.values.get_mut(flag.name).filter(|items| flag.kind == ValueKind::List && !items.is_empty()) {
        Some(items) => items.extend([",", &value]),
        None => _ = parsed.values.insert(flag.name, value),
    }
    Ok(())
}

impl ValueKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bool | Self::BoolOr(_) => "boolean",
            Self::Text => "text",
            Self::List => "list",
            Self::Count => "non-negative number",
            Self::Decimal => "decimal number",
            Self::Number => "number",
            Self::Duration => "duration",
        }
    }
}

impl ParsedFlags {
    /// The value of a flag, if it is set and not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.is_set_or(name, false)
    }

    /// A boolean. Any other accepted value means true.
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

    /// A timeout. Zero is an error.
    pub(super) fn timeout(&self, name: &str, default: Duration) -> Result<Duration, FlagError> {
        match self.text(name).and_then(parse_duration) {
            None => Ok(default),
            Some(timeout) if timeout.is_zero() => {
                Err(FlagError(format!("flag -{name}: the duration must be greater than zero")))
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

/// The longest duration in Go: 292 years. It can be added to any present time.
const MAX_DURATION: Duration = Duration::from_nanos(i64::MAX as u64);

/// Parses a duration in Go's format, such as `1h15m30.5s`. A negative duration counts as zero.
pub fn parse_duration(text: &str) -> Option<Duration> {
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
    (total <= MAX_DURATION).then_some(if negative { Duration::ZERO } else { total })
}

#[cfg(test)]
mod tests;
