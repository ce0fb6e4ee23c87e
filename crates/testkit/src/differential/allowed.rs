//! Differences that are as they should be: a short list, each with its reason, matched line by line, and wrong as soon as
//! one of them does not occur any more. Pure.

use std::fmt;

use serde::Deserialize;

use super::{Comparison, Side};

/// More than this would not be a short list.
const MOST: usize = 15;

/// A difference that is allowed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// What kind of difference.
    pub class: Class,
    /// The line of a newer upstream's changelog, or the issue of the bug.
    pub reference: String,
    /// What it comes to, for a reader.
    pub what: String,
    /// In which scenarios; `*` stands for anything.
    pub scenarios: Vec<String>,
    /// In which further scenarios a race of upstream decides whether it occurs.
    #[serde(default)]
    pub maybe: Vec<String>,
    /// Lines that only upstream has; each occurs in each of the scenarios.
    #[serde(default)]
    pub upstream: Vec<String>,
    /// Lines that only ours has; each occurs in each of the scenarios.
    #[serde(default)]
    pub ours: Vec<String>,
    /// Lines that come and go with a race of upstream, each after the sign of the side that may have it: `-` or `+`, as
    /// in the report. What upstream leaves behind at times, ours must not.
    #[serde(default)]
    pub sometimes: Vec<String>,
}

/// Why a difference is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Upstream does it as we do, in a newer release than the one here.
    NewerUpstream,
    /// It is a bug of upstream.
    FixedUpstreamBug,
}

/// Reads the list.
pub fn allowed(yaml: &str) -> Result<Vec<Allowed>, String> {
    let list: Vec<Allowed> = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    if list.len() > MOST {
        return Err(format!("{} differences are allowed; {MOST} are the most", list.len()));
    }
    for it in &list {
        let wrong = |what: &str| Err(format!("{:?}: {what}", it.what));
        match it.class {
            Class::NewerUpstream if !it.reference.contains("CHANGELOG") => {
                return wrong("the changelog's line is missing");
            }
            Class::FixedUpstreamBug if !it.reference.contains('#') => return wrong("the issue is missing"),
            _ if [&it.upstream, &it.ours, &it.sometimes].iter().all(|lines| lines.is_empty()) => {
                return wrong("it allows nothing");
            }
            _ if !it.sometimes.iter().all(|line| line.starts_with("- ") || line.starts_with("+ ")) => {
                return wrong("a line that comes and goes does not say whose it is, by - or +");
            }
            _ => {}
        }
    }
    Ok(list)
}

impl Allowed {
    /// The patterns of the scenarios that fit none of these names: of scenarios that are not there any more.
    pub fn orphans(&self, scenarios: &[&str]) -> Vec<&str> {
        let orphan = |pattern: &&String| !scenarios.iter().any(|scenario| fits(pattern, scenario));
        self.scenarios.iter().chain(&self.maybe).filter(orphan).map(String::as_str).collect()
    }

    /// Whether it has to occur somewhere, in a run of all scenarios: always, unless all of its lines come and go in
    /// scenarios in which it may not occur at all.
    pub fn is_due(&self) -> bool {
        !self.upstream.is_empty() || !self.ours.is_empty() || !self.scenarios.is_empty()
    }

    /// Takes its differences out of a comparison and says whether there were any; one that does not occur where it always
    /// does is an error.
    pub fn take(&self, comparison: &mut Comparison) -> Result<bool, String> {
        let all = comparison.differences.len();
        let among = |list: &[String]| list.iter().any(|pattern| fits(pattern, &comparison.scenario));
        let (always, maybe) = (among(&self.scenarios), among(&self.maybe));
        if !always && !maybe {
            return Ok(false);
        }
        for (side, patterns) in [(Side::Upstream, &self.upstream), (Side::Ours, &self.ours)] {
            for pattern in patterns {
                let before = comparison.differences.len();
                comparison.differences.retain(|it| it.side != side || !fits(pattern, &it.line));
                if always && comparison.differences.len() == before {
                    return Err(format!("does not occur any more: {self}: only {side} has {pattern:?}"));
                }
            }
        }
        let sometimes = |line: &str| self.sometimes.iter().any(|pattern| fits(pattern, line));
        comparison.differences.retain(|it| !sometimes(&it.to_string()));
        Ok(comparison.differences.len() < all)
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.what, self.reference)
    }
}

/// Whether a text fits a pattern in which `*` stands for anything.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(first) else {
        return false;
    };
    (0..=text.len()).any(|at| text.is_char_boundary(at) && fits(rest, &text[at..]))
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
    fn an_allowed_difference_goes_and_nothing_else() {
        let list = allowed(LIST).unwrap();
        let mut it = comparison("create/Aborted", &["Create x -> Ok", "Delete x -> Ok"]);
        list[0].take(&mut it).unwrap();
        assert_eq!(it.differences.len(), 1);
        let mut other = comparison("delete/Aborted", &["Create x -> Ok"]);
        list[0].take(&mut other).unwrap();
        assert_eq!(other.differences.len(), 1, "it is allowed in other scenarios only");
        assert_eq!(list[0].orphans(&["delete/Aborted"]), ["create/*"]);
    }

    #[test]
    fn what_a_race_decides_may_be_there_or_not() {
        let list = allowed(&LIST.replace("upstream:", "sometimes: ['- call Delete*'], upstream:")).unwrap();
        for calls in [&["Create x -> Ok", "Delete x -> Ok"][..], &["Create x -> Ok"]] {
            let mut it = comparison("create/Aborted", calls);
            list[0].take(&mut it).unwrap();
            assert_eq!(it.differences, []);
        }
        let unsigned = LIST.replace("upstream:", "sometimes: ['call Delete*'], upstream:");
        assert!(allowed(&unsigned).unwrap_err().contains("does not say whose it is"));
    }

    #[test]
    fn what_upstream_leaves_at_times_ours_must_not() {
        let list = allowed(&LIST.replace("upstream:", "sometimes: ['- object Volume*'], upstream:")).unwrap();
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
    fn one_whose_lines_all_come_and_go_has_to_occur_once_unless_a_race_decides() {
        let is_due = |list: &str| allowed(list).unwrap()[0].is_due();
        assert!(is_due(LIST));
        let comes_and_goes = LIST.replace("upstream: [\"", "sometimes: [\"- ");
        assert!(is_due(&comes_and_goes));
        assert!(!is_due(&comes_and_goes.replace("scenarios:", "scenarios: [], maybe:")));
        assert!(
            is_due(&LIST.replace("scenarios:", "scenarios: [], maybe:")),
            "it has lines that belong together"
        );
    }

    #[test]
    fn where_a_race_decides_it_may_occur_or_not() {
        let list = allowed(&LIST.replace("upstream:", "maybe: [restore/*], upstream:")).unwrap();
        for calls in [&["Create x -> Ok"][..], &[]] {
            let mut it = comparison("restore/Aborted", calls);
            assert_eq!(list[0].take(&mut it), Ok(!calls.is_empty()));
            assert_eq!(it.differences, []);
        }
        assert_eq!(list[0].orphans(&["create/Aborted"]), ["restore/*"]);
    }

    #[test]
    fn one_that_does_not_occur_any_more_is_an_error() {
        let error = allowed(LIST).unwrap()[0].take(&mut comparison("create/Aborted", &[])).unwrap_err();
        assert!(error.starts_with("does not occur any more: it leaks (external-x#1)"), "{error}");
    }

    #[test]
    fn the_list_is_short_and_each_has_its_reference() {
        assert!(allowed(&LIST.replace("#1", "")).unwrap_err().contains("the issue is missing"));
        assert!(allowed(&LIST.replace("fixed-upstream-bug", "newer-upstream")).is_err());
        assert!(allowed(&LIST.repeat(16)).unwrap_err().contains("15 are the most"));
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab", true),
            ("*b", "ab", true),
            ("a*c*e", "abcde", true),
            ("a*c", "abcd", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}
