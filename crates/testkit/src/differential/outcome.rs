//! The outcome of a scenario on one side, and the comparison of two sides. Pure functions.

use std::fmt;

use super::Side;

/// The outcome of a scenario, as lines that another run can reproduce.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The remaining API objects.
    pub objects: Vec<String>,
    /// The events.
    pub events: Vec<String>,
    /// The calls to the driver and their results.
    pub calls: Vec<String>,
}

impl Outcome {
    fn sections(&self) -> [(&'static str, &[String]); 3] {
        [("object", &self.objects), ("event", &self.events), ("call", &self.calls)]
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (section, lines) in self.sections() {
            for line in lines {
                writeln!(out, "{section} {line}")?;
            }
        }
        Ok(())
    }
}

/// A line that only one side has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The side that has it.
    pub side: Side,
    /// `object`, `event` or `call`, and the line.
    pub line: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = match self.side {
            Side::Upstream => '-',
            Side::Ours => '+',
        };
        write!(out, "{sign} {}", self.line)
    }
}

/// The differences between the two sides in one scenario.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// The scenario's name.
    pub scenario: String,
    /// In the order of the outcome.
    pub differences: Vec<Difference>,
}

impl Comparison {
    /// Compares the outcomes of one scenario.
    pub fn new(scenario: &str, upstream: &Outcome, ours: &Outcome) -> Self {
        let mut differences = Vec::new();
        for ((section, theirs), (_, ours)) in upstream.sections().into_iter().zip(ours.sections()) {
            compare(section, theirs, ours, &mut differences);
        }
        Self { scenario: scenario.to_owned(), differences }
    }
}

/// Compares by longest common subsequence, so that one additional call does not make all following calls differ.
fn compare(section: &str, upstream: &[String], ours: &[String], differences: &mut Vec<Difference>) {
    let mut longest = vec![vec![0_usize; ours.len() + 1]; upstream.len() + 1];
    for (i, theirs) in upstream.iter().enumerate().rev() {
        for (j, own) in ours.iter().enumerate().rev() {
            longest[i][j] = match theirs == own {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let mut only =
        |side, line: &str| differences.push(Difference { side, line: format!("{section} {line}") });
    let (mut i, mut j) = (0, 0);
    while i < upstream.len() || j < ours.len() {
        if i < upstream.len() && j < ours.len() && upstream[i] == ours[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == ours.len() || (i < upstream.len() && longest[i + 1][j] >= longest[i][j + 1]) {
            only(Side::Upstream, &upstream[i]);
            i += 1;
        } else {
            only(Side::Ours, &ours[j]);
            j += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparison_reports_only_differing_lines_in_order() {
        let outcome = |calls: &[&str]| Outcome {
            objects: vec!["PersistentVolume/a".to_owned()],
            calls: calls.iter().map(|call| (*call).to_owned()).collect(),
            ..Default::default()
        };
        let compared = |upstream: &[&str], ours: &[&str]| {
            let it = Comparison::new("it", &outcome(upstream), &outcome(ours));
            it.differences.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(compared(&["create", "delete"], &["create", "delete"]), Vec::<String>::new());
        assert_eq!(compared(&["create", "delete"], &["create", "create", "delete"]), ["+ call create"]);
        assert_eq!(
            compared(&["create", "x", "delete"], &["create", "y"]),
            ["- call x", "- call delete", "+ call y"]
        );
    }
}
