//! Compares the embedded API with a real kube-apiserver on the same requests (`make test-cluster`). The YAML files
//! in this directory hold the requests and the allowed differences.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod kubectl;
mod normalize;
mod patches;
mod requests;
mod servers;

use std::collections::BTreeSet;

use serde::Deserialize;

/// An intended difference.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowedDifference {
    /// The name of the case, or a prefix of several names with a `*` at the end.
    case: String,
    /// All lines of the difference, and no others. A line with a `*` at the end is a prefix.
    lines: Vec<String>,
    /// The reason.
    #[allow(dead_code, reason = "for readers")]
    reason: String,
}

/// Reads a file of this directory.
fn read(file: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apiserver");
    std::fs::read_to_string(format!("{directory}/{file}")).unwrap()
}

/// Whether a text equals a pattern, or starts with it if the pattern ends with `*`.
fn matches(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

/// With more differences it would be a different API.
const MAX_ALLOWED: usize = 15;

/// Evaluates the differences of all cases: prints those that are not allowed, and allowed ones that do not occur.
fn judge(what: &str, allowed: &str, cases: Vec<(String, Vec<String>)>) {
    let allowed: Vec<AllowedDifference> = serde_saphyr::from_str(allowed).unwrap();
    assert!(allowed.len() <= MAX_ALLOWED, "too many allowed differences: {}", allowed.len());
    let (all, mut failed, mut occurred) = (cases.len(), 0, BTreeSet::new());
    for (case, lines) in cases {
        let fits = |it: &AllowedDifference| {
            matches(&it.case, &case)
                && lines.iter().all(|line| it.lines.iter().any(|pattern| matches(pattern, line)))
                && it.lines.iter().all(|pattern| lines.iter().any(|line| matches(pattern, line)))
        };
        match allowed.iter().position(fits) {
            _ if lines.is_empty() => {}
            Some(number) => drop(occurred.insert(number)),
            None => {
                failed += 1;
                println!("\n{case}");
                lines.iter().for_each(|line| println!("  {line}"));
            }
        }
    }
    for (_, it) in allowed.iter().enumerate().filter(|(number, _)| !occurred.contains(number)) {
        failed += 1;
        println!("\nno longer occurs: {} {:?}", it.case, it.lines);
    }
    println!("conformance: {what}: {} passed, {failed} failed", all.saturating_sub(failed));
    assert_eq!(failed, 0, "the servers differ, see above");
}
