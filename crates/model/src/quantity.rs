//! Quantities as Kubernetes writes them (`10Gi`, `1.5G`, `1e3`), compared by value and printed in canonical form. The
//! resolution is a billionth; smaller fractions are rounded away from zero. Nothing overflows: larger values saturate.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

const NANO: i128 = 1_000_000_000;

/// A resource quantity, such as a size.
#[derive(Clone, Copy)]
pub struct Quantity {
    /// The value in billionths.
    nano: i128,
    format: Format,
}

/// The format in which a quantity was written, which is also used to print it. It does not affect equality.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Powers of 1024: `Ki`.
    Binary,
    /// Powers of 1000: `k`.
    Decimal,
    /// `e3`.
    Exponent,
}

/// The error for a text that is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: write a number and a unit, such as 10Gi, 500M or 1.5Ti")]
pub struct ParseQuantityError {
    /// The text that could not be parsed.
    pub text: String,
}

impl Quantity {
    /// Zero.
    pub const ZERO: Self = Self { nano: 0, format: Format::Binary };

    /// A number of bytes, printed in powers of 1024 where that is exact.
    pub const fn from_bytes(bytes: i64) -> Self {
        // Cannot overflow: 2^63 billionths are less than 2^94.
        Self { nano: bytes as i128 * NANO, format: Format::Binary }
    }

    /// The value in thousandths, as used for CPUs, rounded away from zero.
    pub fn milli(self) -> i64 {
        let whole = away_from_zero(self.nano, NANO / 1000);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// The value in bytes, rounded up, so that a volume of this size is never too small. Saturates at the limits of the
    /// 64-bit integers that CSI uses.
    pub fn bytes(self) -> i64 {
        let whole = away_from_zero(self.nano, NANO);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// The value divided by `unit`, rounded up. A zero unit counts as one.
    pub fn divided_by(self, unit: Self) -> i64 {
        let unit = if unit.nano == 0 { NANO } else { unit.nano };
        let count = away_from_zero(self.nano, unit);
        i64::try_from(count).unwrap_or(if count < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Division rounded away from zero.
fn away_from_zero(value: i128, by: i128) -> i128 {
    value / by + (value % by).signum()
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nano == other.nano
    }
}

impl Eq for Quantity {}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nano.hash(state);
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nano.cmp(&other.nano)
    }
}

/// The factor of a suffix.
#[derive(Clone, Copy)]
enum Unit {
    /// A power of 1024.
    Binary(u32),
    /// A power of 10.
    Decimal(i32),
}

fn unit(suffix: &str) -> Option<(Unit, Format)> {
    let decimal = |power| Some((Unit::Decimal(power), Format::Decimal));
    let binary = |power| Some((Unit::Binary(power), Format::Binary));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            // The value saturates or rounds to one billionth long before these limits.
            let power = exponent.parse::<i32>().unwrap_or(if exponent.starts_with('-') { -999 } else { 999 });
            Some((Unit::Decimal(power.clamp(-999, 999)), Format::Exponent))
        }
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, ParseQuantityError> {
        let invalid = || ParseQuantityError { text: text.to_owned() };
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(invalid());
        }
        let (unit, mut format) = unit(suffix).ok_or_else(invalid)?;
        let nano = match unit {
            Unit::Decimal(power) => scaled(whole, fraction, power + 9, 1),
            Unit::Binary(power) => scaled(whole, fraction, 9, 1i128 << (10 * power)),
        };
        // Kubernetes caps values in powers of 1024, and only those, at the largest 64-bit number.
        let nano = match format {
            Format::Binary => nano.min(i128::from(i64::MAX) * NANO),
            Format::Decimal | Format::Exponent => nano,
        };
        // Values below one are printed with decimal suffixes.
        if format == Format::Binary && nano > 0 && nano < NANO {
            format = Format::Decimal;
        }
        Ok(Self { nano: if negative { -nano } else { nano }, format })
    }
}

/// `whole.fraction` × 10^`power` × `factor`, rounded up to a whole number, saturating.
fn scaled(whole: &str, fraction: &str, power: i32, factor: i128) -> i128 {
    let digits = || whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0'));
    let point = i64::from(power) - fraction.len() as i64;
    // Digits after the decimal point are a fraction of the factor and handled separately.
    let count = (whole.len() + fraction.len()) as i64;
    let whole_digits = (count + point.min(0)).clamp(0, count) as usize;
    let mut value = 0i128;
    for digit in digits().take(whole_digits) {
        value = value.saturating_mul(10).saturating_add(digit);
    }
    for _ in 0..point.max(0) {
        value = value.saturating_mul(10);
        if value == 0 || value == i128::MAX {
            break;
        }
    }
    // The fraction is rounded up. Eighteen digits are used, the most that fit together with the largest factor; any
    // non-zero digit after them adds one.
    let leading_zeros = (-(count + point)).clamp(0, 40) as usize;
    let fraction_digits: Vec<i128> =
        std::iter::repeat_n(0, leading_zeros).chain(digits().skip(whole_digits)).collect();
    let kept = fraction_digits.len().min(18);
    let fraction_value = fraction_digits[..kept].iter().fold(0i128, |sum, digit| sum * 10 + digit);
    let more = i128::from(fraction_digits[kept..].iter().any(|&digit| digit != 0));
    let one = 10i128.pow(kept as u32);
    // At most (10^18 + 1) × 2^60, which is less than 2^121.
    let part = ((fraction_value + more) * factor + one - 1) / one;
    value.saturating_mul(factor).saturating_add(part)
}

impl fmt::Debug for Quantity {
    /// The canonical form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest unit for which the number is an integer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nano == 0 {
            return f.write_str("0");
        }
        match self.format {
            Format::Binary if self.nano.abs() >= 1024 * NANO => {
                let mut value = away_from_zero(self.nano, NANO);
                let mut power = 0;
                while power < 6 && value % 1024 == 0 {
                    value /= 1024;
                    power += 1;
                }
                write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power])
            }
            Format::Binary | Format::Decimal => {
                let (value, power) = thousands(self.nano, 6);
                write!(
                    f,
                    "{value}{}",
                    ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][(power + 3) as usize]
                )
            }
            Format::Exponent => match thousands(self.nano, i32::MAX) {
                (value, 0) => write!(f, "{value}"),
                (value, power) => write!(f, "{value}e{}", power * 3),
            },
        }
    }
}

/// Divides by the largest power of 1000 that leaves an integer. Returns the quotient and the power, at most `limit`.
fn thousands(nano: i128, limit: i32) -> (i128, i32) {
    let (mut value, mut power) = (nano, -3);
    while power < limit && value % 1000 == 0 {
        value /= 1000;
        power += 1;
    }
    (value, power)
}

impl<'de> Deserialize<'de> for Quantity {
    /// Decodes strings, and also plain numbers, which occur in custom resources.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E>(self, number: i64) -> Result<Quantity, E> {
                Ok(Quantity { nano: i128::from(number) * NANO, format: Format::Decimal })
            }

            fn visit_u64<E>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity { nano: i128::from(number) * NANO, format: Format::Decimal })
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Quantity, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests;
