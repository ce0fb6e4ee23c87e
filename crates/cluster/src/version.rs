//! Comparing resource versions.

use std::cmp::Ordering;

/// Which of two versions of one kind is later. The API calls versions opaque, but every known server uses increasing
/// numbers, and Kubernetes now guarantees it. `None` if one of the two is not a number.
pub fn compare_versions(a: &str, b: &str) -> Option<Ordering> {
    Some(number(a)?.cmp(&number(b)?))
}

/// Whether `candidate` should replace `known`: it is numerically greater or, if one is not a number, different.
pub fn is_newer_version(candidate: &str, known: &str) -> bool {
    match compare_versions(candidate, known) {
        Some(ordering) => ordering == Ordering::Greater,
        None => candidate != known,
    }
}

fn number(version: &str) -> Option<u128> {
    // `parse` would accept a leading plus.
    if version.bytes().all(|byte| byte.is_ascii_digit()) { version.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers_or_by_difference() {
        let table = [
            ("2", "1", true),
            ("10", "9", true),
            ("9", "10", false),
            ("5", "5", false),
            ("18446744073709551616", "18446744073709551615", true),
            ("a", "b", true),
            ("a", "a", false),
            ("", "", false),
            ("7", "", true),
            ("+8", "7", true),
        ];
        for (candidate, known, expected) in table {
            assert_eq!(is_newer_version(candidate, known), expected, "{candidate:?} over {known:?}");
        }
        assert_eq!(compare_versions("+8", "7"), None);
    }
}
