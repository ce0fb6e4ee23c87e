//! Comparing resource versions.

use std::cmp::Ordering;

/// Which of two versions of one kind came later. The API calls versions opaque, but every server we meet counts
/// upwards, and Kubernetes now says so itself; `None` if one of the two is not a number.
pub fn compare_versions(a: &str, b: &str) -> Option<Ordering> {
    Some(number(a)?.cmp(&number(b)?))
}

/// Whether `candidate` should replace `known`: numerically greater or, where one is not a number, different.
pub fn newer_than(candidate: &str, known: &str) -> bool {
    match compare_versions(candidate, known) {
        Some(ordering) => ordering == Ordering::Greater,
        None => candidate != known,
    }
}

fn number(version: &str) -> Option<u128> {
    // `parse` would take a leading plus.
    if version.bytes().all(|byte| byte.is_ascii_digit()) { version.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_else_different() {
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
            assert_eq!(newer_than(candidate, known), expected, "{candidate:?} over {known:?}");
        }
        assert_eq!(compare_versions("+8", "7"), None);
    }
}
