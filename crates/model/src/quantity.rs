//! Quantities: sizes as Kubernetes writes them (`10Gi`, `1.5G`, `1e3`), compared by value and printed in
//! Kubernetes' canonical form. The finest step is a billionth, and what is finer is rounded up, away from zero;
//! nothing overflows: what is too large is the largest there is.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

const NANO: i128 = 1_000_000_000;

/// A size.
#[derive(Clone, Copy)]
pub struct Quantity {
    /// Billionths.
    nano: i128,
    format: Format,
}

/// How a quantity was written, and so how it is printed. Two quantities of the same value are equal all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Powers of 1024: `Ki`.
    Binary,
    /// Powers of 1000: `k`.
    Decimal,
    /// `e3`.
    Exponent,
}

/// Text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a quantity: write a number and a unit, such as 10Gi, 500M or 1.5Ti")]
pub struct NotAQuantity {
    /// The text.
    pub text: String,
}

impl Quantity {
    /// Nothing.
    pub const ZERO: Self = Self { nano: 0, format: Format::Binary };

    /// So many bytes, printed in powers of 1024 where that is exact.
    pub const fn from_bytes(bytes: i64) -> Self {
        // Cannot overflow: 2^63 billionths are less than 2^94.
        Self { nano: bytes as i128 * NANO, format: Format::Binary }
    }

    /// Whole thousandths, as of a CPU; a part of one counts as one.
    pub fn milli(self) -> i64 {
        let whole = away_from_zero(self.nano, NANO / 1000);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// Whole bytes: a part of a byte counts as one, so that a volume of this size is never too small. What is
    /// too large for CSI's 64 bits is the largest they hold.
    pub fn bytes(self) -> i64 {
        let whole = away_from_zero(self.nano, NANO);
        i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
    }

    /// How often `unit` goes into it; a part counts as once more. With nothing for a unit, whole ones are counted.
    pub fn count(self, unit: Self) -> i64 {
        let unit = if unit.nano == 0 { NANO } else { unit.nano };
        let count = away_from_zero(self.nano, unit);
        i64::try_from(count).unwrap_or(if count < 0 { i64::MIN } else { i64::MAX })
    }
}

/// Division that leaves no part behind.
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

/// A unit: what one of it is worth, as a power.
#[derive(Clone, Copy)]
enum Unit {
    /// 2 to the power of ten times this.
    Binary(u32),
    /// 10 to the power of this.
    Ten(i32),
}

fn unit(suffix: &str) -> Option<(Unit, Format)> {
    let decimal = |power| Some((Unit::Ten(power), Format::Decimal));
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
            // Beyond a few hundred every exponent means the same: too large, or the finest step.
            let power = exponent.parse::<i32>().unwrap_or(if exponent.starts_with('-') { -999 } else { 999 });
            Some((Unit::Ten(power.clamp(-999, 999)), Format::Exponent))
        }
    }
}

impl FromStr for Quantity {
    type Err = NotAQuantity;

    fn from_str(text: &str) -> Result<Self, NotAQuantity> {
        let no = || NotAQuantity { text: text.to_owned() };
        let (negative, unsigned) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let number_end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(no());
        }
        let (unit, mut format) = unit(suffix).ok_or_else(no)?;
        let nano = match unit {
            Unit::Ten(power) => scaled(whole, fraction, power + 9, 1),
            Unit::Binary(power) => scaled(whole, fraction, 9, 1i128 << (10 * power)),
        };
        // Kubernetes caps what is written in powers of 1024, and only that, at the largest 64-bit number.
        let nano = match format {
            Format::Binary => nano.min(i128::from(i64::MAX) * NANO),
            Format::Decimal | Format::Exponent => nano,
        };
        // Less than one has no form in powers of 1024.
        if format == Format::Binary && nano > 0 && nano < NANO {
            format = Format::Decimal;
        }
        Ok(Self { nano: if negative { -nano } else { nano }, format })
    }
}

/// `whole.fraction` × 10^`power` × `factor`, rounded up to a whole number, at most the largest there is.
fn scaled(whole: &str, fraction: &str, power: i32, factor: i128) -> i128 {
    let digits = || whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0'));
    let point = i64::from(power) - fraction.len() as i64;
    // Digits that end up behind the point are a fraction of the factor: keep them apart.
    let count = (whole.len() + fraction.len()) as i64;
    let ahead = (count + point.min(0)).clamp(0, count) as usize;
    let mut value = 0i128;
    for digit in digits().take(ahead) {
        value = value.saturating_mul(10).saturating_add(digit);
    }
    for _ in 0..point.max(0) {
        value = value.saturating_mul(10);
        if value == 0 || value == i128::MAX {
            break;
        }
    }
    // The rest is rounded up, so of what is very fine it only matters whether it is there: eighteen digits are
    // kept, which is what fits beside the largest factor, and anything behind them counts as one more.
    let leading_zeros = (-(count + point)).clamp(0, 40) as usize;
    let behind: Vec<i128> = std::iter::repeat_n(0, leading_zeros).chain(digits().skip(ahead)).collect();
    let kept = behind.len().min(18);
    let rest = behind[..kept].iter().fold(0i128, |rest, digit| rest * 10 + digit);
    let more = i128::from(behind[kept..].iter().any(|&digit| digit != 0));
    let one = 10i128.pow(kept as u32);
    // At most (10^18 + 1) × 2^60, which is less than 2^121.
    let part = ((rest + more) * factor + one - 1) / one;
    value.saturating_mul(factor).saturating_add(part)
}

impl fmt::Debug for Quantity {
    /// As people write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Quantity {
    /// The canonical form: the largest unit with which the number is whole.
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

/// The number without its trailing thousands, and the power of 1000 it is worth; at most `limit`.
fn thousands(nano: i128, limit: i32) -> (i128, i32) {
    let (mut value, mut power) = (nano, -3);
    while power < limit && value % 1000 == 0 {
        value /= 1000;
        power += 1;
    }
    (value, power)
}

impl<'de> Deserialize<'de> for Quantity {
    /// Text; and bare numbers, as some write them in objects of their own kinds.
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
