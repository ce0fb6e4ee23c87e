//! Intended differences: a short list, each entry with its reason, matched line by line. An entry that no longer
//! occurs is an error. Pure functions.

use std::fmt;

use serde::Deserialize;

use super::{Comparison, Side};

/// The list must stay short.
const MAX_ALLOWED: usize = 15;

/// An allowed difference.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedDifference {
    /// Why the difference is allowed.
    pub class: Class,
    /// The changelog line of a newer upstream release, or the issue of the upstream bug.
    pub reference: String,
    /// Description for the reader.
    pub what: String,
    /// The scenarios in which the difference always occurs; `*` matches any text.
    pub scenarios: Vec<String>,
    /// Additional scenarios in which the difference depends on a race in upstream.
    #[serde(default)]
    pub maybe: Vec<String>,
    /// Lines that only upstream has; each occurs in each of the scenarios.
    #[serde(default)]
    pub upstream: Vec<String>,
    /// Lines that only ours has; each occurs in each of the scenarios.
    #[serde(default)]
    pub ours: Vec<String>,
    /// Lines that depend on a race in upstream, each prefixed with the sign of the side that may have it: `-` or
    /// `+`, as in the report. What upstream sometimes leaves behind, ours must not.
    #[serde(default)]
    pub sometimes: Vec<String>,
}

/// The class of an allowed difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A newer upstream release behaves as we do.
    NewerUpstream,
    /// A bug in upstream.
    FixedUpstreamBug,
}

/// Parses and checks the list.
pub fn parse_allowed(yaml: &str) -> Result<Vec<AllowedDifference>, String> {
    let list: Vec<AllowedDifference> = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    if list.len() > MAX_ALLOWED {
        return Err(format!("{} allowed differences exceed the limit of {MAX_ALLOWED}", list.len()));
    }
    for it in &list {
        let wrong = |what: &str| Err(format!("{:?}: {what}", it.what));
        match it.class {
            Class::NewerUpstream if !it.reference.contains("CHANGELOG") => {
                return wrong("the changelog line is missing");
            }
            Class::FixedUpstreamBug if !it.reference.contains('#') => return wrong("the issue is missing"),
            _ if [&it.upstream, &it.ours, &it.sometimes].iter().all(|lines| lines.is_empty()) => {
                return wrong("the entry has no lines");
            }
            _ if !it.sometimes.iter().all(|line| line.starts_with("- ") || line.starts_with("+ ")) => {
                return wrong("a `sometimes` line must start with \"- \" or \"+ \"");
            }
            _ => {}
        }
    }
    Ok(list)
}

impl AllowedDifference {
    /// The scenario patterns that match none of these names: their scenarios no longer exist.
    pub fn orphans(&self, scenarios: &[&str]) -> Vec<&str> {
        let orphan = |pattern: &&String| !scenarios.iter().any(|scenario| matches(pattern, scenario));
        self.scenarios.iter().chain(&self.maybe).filter(orphan).map(String::as_str).collect()
    }

    /// Whether it must occur somewhere in a run of all scenarios: always, unless all its lines are `sometimes`
    /// lines in `maybe` scenarios.
    pub fn must_occur(&self) -> bool {
        !self.upstream.is_empty() || !self.ours.is_empty() || !self.scenarios.is_empty()
    }

    /// Removes its differences from a comparison and returns whether there were any. If a line that must always
    /// occur is missing, that is an error.
    pub fn take(&self, comparison: &mut Comparison) -> Result<bool, String> {
        let all = comparison.differences.len();
        let among = |list: &[String]| list.iter().any(|pattern| matches(pattern, &comparison.scenario));
        let (always, maybe) = (among(&self.scenarios), among(&self.maybe));
        if !always && !maybe {
            return Ok(false);
        }
        for (side, patterns) in [(Side::Upstream, &self.upstream), (Side::Ours, &self.ours)] {
            for pattern in patterns {
                let before = comparison.differences.len();
                comparison.differences.retain(|it| it.side != side || !matches(pattern, &it.line));
                if always && comparison.differences.len() == before {
                    return Err(format!("does not occur any more: {self}: only {side} has {pattern:?}"));
                }
            }
        }
        let sometimes = |line: &str| self.sometimes.iter().any(|pattern| matches(pattern, line));
        comparison.differences.retain(|it| !sometimes(&it.to_string()));
        Ok(comparison.differences.len() < all)
    }
}

impl fmt::Display for AllowedDifference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.what, self.reference)
    }
}

/// Whether a text matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(first) else {
        return false;
    };
    (0..=text.len()).any(|at| text.is_char_boundary(at) && matches(rest, &text[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differential::Outcome;

    const LIST: &str = r##"
- {class: fixed-upstream-bug, reference: "external-x#1", what: it leaks, scenarios: [create/*], upstream: ["call Create* -> Ok"]}
"##;

    fn comparison(scenario: &str, upstream: &[&str]) -> Comparison {
        let calls = upstream.iter().map(|call| (*call).to_owned()).collect();
        Comparison::new(scenario, &Outcome { calls, ..Default::default() }, &Outcome::default())
    }

    #[test]
    fn allowed_difference_is_removed_and_others_remain() {
        let list = parse_allowed(LIST).unwrap();
        let mut it = comparison("create/Aborted", &["Create x -> Ok", "Delete x -> Ok"]);
        list[0].take(&mut it).unwrap();
        assert_eq!(it.differences.len(), 1);
        let mut other = comparison("delete/Aborted", &["Create x -> Ok"]);
        list[0].take(&mut other).unwrap();
        assert_eq!(other.differences.len(), 1, "the entry is for other scenarios");
        assert_eq!(list[0].orphans(&["delete/Aborted"]), ["create/*"]);
    }

    #[test]
    fn sometimes_line_is_optional() {
        let list =
            parse_allowed(&LIST.replace("upstream:", "sometimes: ['- call Delete*'], upstream:")).unwrap();
        for calls in [&["Create x -> Ok", "Delete x -> Ok"][..], &["Create x -> Ok"]] {
            let mut it = comparison("create/Aborted", calls);
            list[0].take(&mut it).unwrap();
            assert_eq!(it.differences, []);
        }
        let unsigned = LIST.replace("upstream:", "sometimes: ['call Delete*'], upstream:");
        assert!(parse_allowed(&unsigned).unwrap_err().contains("must start with"));
    }

    #[test]
    fn sometimes_line_of_upstream_is_not_allowed_for_ours() {
        let list =
            parse_allowed(&LIST.replace("upstream:", "sometimes: ['- object Volume*'], upstream:")).unwrap();
        let outcome = |objects: &[&str], calls: &[&str]| Outcome {
            objects: objects.iter().map(|&it| it.to_owned()).collect(),
            calls: calls.iter().map(|&it| it.to_owned()).collect(),
            ..Default::default()
        };
        let (theirs, ours) = (outcome(&[], &["Create x -> Ok"]), outcome(&["Volume/a"], &[]));
        let mut it = Comparison::new("create/Aborted", &theirs, &ours);
        list[0].take(&mut it).unwrap();
        assert_eq!(it.differences.iter().map(ToString::to_string).collect::<Vec<_>>(), ["+ object Volume/a"]);
    }

    #[test]
    fn entry_of_sometimes_lines_must_occur_unless_all_its_scenarios_are_maybe() {
        let must_occur = |list: &str| parse_allowed(list).unwrap()[0].must_occur();
        assert!(must_occur(LIST));
        let comes_and_goes = LIST.replace("upstream: [\"", "sometimes: [\"- ");
        assert!(must_occur(&comes_and_goes));
        assert!(!must_occur(&comes_and_goes.replace("scenarios:", "scenarios: [], maybe:")));
        assert!(
            must_occur(&LIST.replace("scenarios:", "scenarios: [], maybe:")),
            "its lines always occur together"
        );
    }

    #[test]
    fn difference_in_maybe_scenario_is_optional() {
        let list = parse_allowed(&LIST.replace("upstream:", "maybe: [restore/*], upstream:")).unwrap();
        for calls in [&["Create x -> Ok"][..], &[]] {
            let mut it = comparison("restore/Aborted", calls);
            assert_eq!(list[0].take(&mut it), Ok(!calls.is_empty()));
            assert_eq!(it.differences, []);
        }
        assert_eq!(list[0].orphans(&["create/Aborted"]), ["restore/*"]);
    }

    #[test]
    fn allowed_difference_that_no_longer_occurs_is_an_error() {
        let error = parse_allowed(LIST).unwrap()[0].take(&mut comparison("create/Aborted", &[])).unwrap_err();
        assert!(error.starts_with("does not occur any more: it leaks (external-x#1)"), "{error}");
    }

    #[test]
    fn list_without_reference_or_with_too_many_entries_is_rejected() {
        assert!(parse_allowed(&LIST.replace("#1", "")).unwrap_err().contains("the issue is missing"));
        assert!(parse_allowed(&LIST.replace("fixed-upstream-bug", "newer-upstream")).is_err());
        assert!(parse_allowed(&LIST.repeat(16)).unwrap_err().contains("exceed the limit of 15"));
    }

    #[test]
    fn star_matches_any_text() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c", "abcd", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
