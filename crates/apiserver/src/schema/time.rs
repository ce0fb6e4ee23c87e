//! Timestamps as Go parses and formats them.

use std::fmt::Write as _;

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Normalizes an RFC 3339 time to UTC and whole seconds. `None` for Go's zero time, which is serialized as null. Errors
/// have Go's message.
pub(super) fn seconds(text: &str) -> Result<Option<String>, String> {
    let written = write(parse(text, SECONDS, None)?);
    Ok(written.map(|(seconds, _)| format!("{seconds}Z")))
}

/// Normalizes an RFC 3339 time to UTC and six fractional digits, which are required. `None` for Go's zero time, which is
/// serialized as null. Errors have Go's message.
pub(super) fn micros(text: &str) -> Result<Option<String>, String> {
    let written = write(parse(text, MICROS, Some(6))?);
    Ok(written.map(|(seconds, nanos)| format!("{seconds}.{:06}Z", nanos / 1000)))
}

/// Whether a text is an RFC 3339 time.
pub(super) fn is_rfc3339(text: &str) -> bool {
    parse(text, SECONDS, None).is_ok()
}

/// Whole seconds without a zone, and nanoseconds; `None` for Go's zero time.
fn write(moment: jiff::Timestamp) -> Option<(String, i32)> {
    // Go truncates towards the past; jiff truncates towards zero.
    let nanos = moment.as_nanosecond().rem_euclid(1_000_000_000);
    let whole = jiff::Timestamp::from_nanosecond(moment.as_nanosecond() - nanos).ok()?;
    let mut text = String::new();
    write!(text, "{whole}").ok()?;
    let text = text.strip_suffix('Z').filter(|text| *text != "0001-01-01T00:00:00")?;
    Some((text.to_owned(), i32::try_from(nanos).ok()?))
}

/// Parses an RFC 3339 time with exactly `digits` fractional digits; with any number of them for `None`.
fn parse(text: &str, layout: &str, digits: Option<usize>) -> Result<jiff::Timestamp, String> {
    let fail = |rest: &str, part: &str| {
        format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {part:?}")
    };
    let mut rest = text;
    for part in ["2006", "-", "01", "-", "02", "T", "15", ":", "04", ":", "05"] {
        let head = rest.get(..part.len()).ok_or_else(|| fail(rest, part))?;
        let number = part.as_bytes()[0].is_ascii_digit();
        let fits = if number { head.bytes().all(|byte| byte.is_ascii_digit()) } else { head == part };
        if !fits {
            return Err(fail(rest, part));
        }
        rest = &rest[part.len()..];
    }
    let fraction =
        rest.strip_prefix(['.', ',']).map_or(0, |rest| rest.bytes().take_while(u8::is_ascii_digit).count());
    match digits {
        Some(expected) if fraction < expected => return Err(fail(rest, ".000000")),
        Some(expected) => rest = &rest[expected + 1..],
        None if fraction > 0 => rest = &rest[fraction + 1..],
        None => {}
    }
    let zone = rest.as_bytes();
    let offset = zone.len() == 6
        && matches!(zone[0], b'+' | b'-')
        && zone[3] == b':'
        && [1, 2, 4, 5].iter().all(|&at| zone[at].is_ascii_digit());
    if rest != "Z" && !offset {
        return Err(fail(rest, "Z07:00"));
    }
    let out_of_range = |what: &str| format!("parsing time {text:?}: {what} out of range");
    if &text[17..19] >= "60" {
        return Err(out_of_range("second"));
    }
    // Go and jiff both ignore digits beyond nanoseconds.
    let plain = match fraction {
        0 => text.to_owned(),
        _ => format!("{}.{}{}", &text[..19], &text[20..20 + fraction.min(9)], &text[20 + fraction..]),
    };
    plain.parse().map_err(|_| match (&text[5..7], &text[11..13], &text[14..16]) {
        (month, ..) if !("01"..="12").contains(&month) => out_of_range("month"),
        (_, hour, _) if hour >= "24" => out_of_range("hour"),
        (.., minute) if minute >= "60" => out_of_range("minute"),
        _ => out_of_range("day"),
    })
}
