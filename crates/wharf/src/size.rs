//! Parses and prints sizes and durations such as `10GiB`, `500Mi`, `1G` and `30s`. Pure functions. A size that is not a
//! whole number of bytes, or exceeds CSI's signed 64 bits, is an error.

use std::time::Duration;

const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1_000),
    ("kb", 1_000),
    ("m", 1_000_000),
    ("mb", 1_000_000),
    ("g", 1_000_000_000),
    ("gb", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("tb", 1_000_000_000_000),
    ("p", 1_000_000_000_000_000),
    ("pb", 1_000_000_000_000_000),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("pi", 1 << 50),
    ("pib", 1 << 50),
];

/// Parses `10GiB`, `500Mi`, `1G`, `1.5Ti` or a plain number of bytes. Units ending in `i` or `iB` are powers of 1024, the
/// others powers of 1000, as in Kubernetes quantities. Unlike there, case is ignored: `m` is mega, not milli.
pub(crate) fn parse_size(text: &str) -> Result<i64, String> {
    let invalid = || format!("{text:?} is not a size: write a number and a unit, such as 10GiB, 500Mi or 1G");
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor =
        UNITS.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor).ok_or_else(invalid)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) || fraction.len() > 9 {
        return Err(invalid());
    }
    let too_large = || format!("{text:?} is too large: CSI's limit is {} bytes", i64::MAX);
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    // At most nine digits, so this cannot overflow.
    let digits: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| invalid())? };
    let scale = 10u128.pow(fraction.len() as u32);
    let scaled_fraction = digits * u128::from(factor);
    if !scaled_fraction.is_multiple_of(scale) {
        return Err(format!("{text:?} is not a whole number of bytes"));
    }
    whole
        .checked_mul(u128::from(factor))
        .and_then(|bytes| bytes.checked_add(scaled_fraction / scale))
        .and_then(|bytes| i64::try_from(bytes).ok())
        .ok_or_else(too_large)
}

/// Formats bytes in the largest binary unit, with one decimal unless the value is exact.
pub(crate) fn human_size(bytes: i64) -> String {
    let mut unit = 1u64;
    let mut name = "B";
    for (candidate, suffix) in
        [(1u64 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"), (1 << 50, "PiB")]
    {
        if bytes.unsigned_abs() >= candidate {
            (unit, name) = (candidate, suffix);
        }
    }
    let sign = if bytes < 0 { "-" } else { "" };
    let magnitude = bytes.unsigned_abs();
    if magnitude.is_multiple_of(unit) {
        format!("{sign}{}{name}", magnitude / unit)
    } else {
        format!("{sign}{:.1}{name}", magnitude as f64 / unit as f64)
    }
}

/// Parses `500ms`, `30s`, `2m` or `1h`. Zero is an error.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid =
        || format!("{text:?} is not a duration: write a number and a unit, such as 500ms, 30s or 2m");
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(invalid()),
    };
    match number.checked_mul(milliseconds) {
        Some(0) | None => Err(invalid()),
        Some(total) => Ok(Duration::from_millis(total)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_sizes_are_parsed() {
        const GIB: i64 = 1 << 30;
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("4096B", 4096),
            ("1k", 1000),
            ("1K", 1000),
            ("1Ki", 1024),
            ("500Mi", 500 << 20),
            ("500MiB", 500 << 20),
            ("1G", 1_000_000_000),
            ("1GB", 1_000_000_000),
            ("10GiB", 10 * GIB),
            ("10gib", 10 * GIB),
            (" 10 GiB ", 10 * GIB),
            ("1.5Gi", GIB + GIB / 2),
            ("0.5Ti", 512 * GIB),
            ("1.25k", 1250),
            ("8191Pi", 8191 << 50),
            ("9223372036854775807", i64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text:?}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in [
            "",
            " ",
            "GiB",
            "-1",
            "+1",
            "1 0",
            "1e9",
            "1.2.3Gi",
            "1.",
            ".5Gi",
            "10Gib/s",
            "10Xi",
            "0x10",
            "1.0005k",
            "8192Pi",
            "9223372036854775808",
            "99999999999999999999999999999999999999999999",
            "1.0000000001Pi",
            "１Gi",
        ] {
            assert!(parse_size(text).is_err(), "{text:?} gave {:?}", parse_size(text));
        }
    }

    #[test]
    fn sizes_are_printed_in_binary_units() {
        for (bytes, text) in [
            (0, "0B"),
            (1, "1B"),
            (1023, "1023B"),
            (1024, "1KiB"),
            (1536, "1.5KiB"),
            (1 << 30, "1GiB"),
            ((1 << 30) + 1, "1.0GiB"),
            (i64::MAX, "8192.0PiB"),
            (-2048, "-2KiB"),
            (i64::MIN, "-8192PiB"),
        ] {
            assert_eq!(human_size(bytes), text);
        }
    }

    #[test]
    fn printed_sizes_can_be_parsed() {
        for bytes in [0, 1, 512, 1 << 20, 300 << 20, 10 << 30, 3 << 40] {
            assert_eq!(parse_size(&human_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn durations_are_parsed_or_refused() {
        for (text, millis) in [("500ms", 500), ("30s", 30_000), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "0s", "5", "s", "-1s", "1.5s", "1d", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }
}
