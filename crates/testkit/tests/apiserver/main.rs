//! The embedded API and a real kube-apiserver, asked the same things (`make test-cluster`). What is asked and which
//! differences are allowed are the YAML files here.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod kubectl;
mod normal;
mod patches;
mod requests;
mod servers;

use std::collections::BTreeSet;

use serde::Deserialize;

/// A difference that is there on purpose.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allowed {
    /// The name of the case; several of them with a `*` at the end.
    case: String,
    /// The lines of the difference: all of these are there, and no others. One that begins so with a `*` at the end.
    lines: Vec<String>,
    /// Why.
    #[allow(dead_code, reason = "for readers")]
    reason: String,
}

/// A file of this directory.
fn read(file: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/apiserver");
    std::fs::read_to_string(format!("{directory}/{file}")).unwrap()
}

/// Whether a text is as a pattern says: the same, or with a `*` at the end one that begins so.
fn matches(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

/// More would be another API.
const MOST: usize = 15;

/// Judges the differences of all cases: prints what is not allowed, and what is allowed and does not occur.
fn judge(what: &str, allowed: &str, cases: Vec<(String, Vec<String>)>) {
    let allowed: Vec<Allowed> = serde_saphyr::from_str(allowed).unwrap();
    assert!(allowed.len() <= MOST, "{} differences are allowed", allowed.len());
    let (all, mut failed, mut occurred) = (cases.len(), 0, BTreeSet::new());
    for (case, lines) in cases {
        let fits = |it: &Allowed| {
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
        println!("\ndoes not occur any more: {} {:?}", it.case, it.lines);
    }
    println!("conformance: {what}: {} passed, {failed} failed", all.saturating_sub(failed));
    assert_eq!(failed, 0, "the servers differ, see above");
}
