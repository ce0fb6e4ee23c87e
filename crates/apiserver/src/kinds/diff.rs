//! Line diffs, as upstream appends them to errors about immutable fields.
//!
//! The algorithm takes the longest run of equal lines first, then recurses into both sides. Upstream's library does the
//! same, and the choice between equally good diffs must match.

use std::collections::HashMap;
use std::ops::Range;

/// Lines of context around a change.
const CONTEXT: usize = 3;
/// From this many lines on, upstream's library matches only rare lines.
const RARE_LINES_ONLY_FROM: usize = 200;
/// From this many lines on, only the common beginning and end count as equal: the search for runs is too expensive,
/// because it scans all remaining lines for each run.
const COMMON_ENDS_ONLY_FROM: usize = 2000;

/// A run of equal lines: its start in the old and the new text, and its length.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Run {
    old: usize,
    new: usize,
    lines: usize,
}

/// A part of both texts, equal or different.
#[derive(Clone)]
struct Part {
    equal: bool,
    old: Range<usize>,
    new: Range<usize>,
}

/// A unified diff without file names; empty for equal texts.
pub(super) fn unified(old: &str, new: &str) -> String {
    let old: Vec<&str> = old.split('\n').collect();
    let new: Vec<&str> = new.split('\n').collect();
    let mut text = String::new();
    for group in groups(parts(&old, &new)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let (of_old, of_new) = (first.old.start..last.old.end, first.new.start..last.new.end);
        text.push_str(&format!("@@ -{} +{} @@\n", hunk_range(of_old), hunk_range(of_new)));
        let mut put = |sign: char, lines: &[&str]| {
            for line in lines {
                text.extend([sign].into_iter().chain(line.chars()).chain(['\n']));
            }
        };
        for part in &group {
            if part.equal {
                put(' ', &old[part.old.clone()]);
            } else {
                put('-', &old[part.old.clone()]);
                put('+', &new[part.new.clone()]);
            }
        }
    }
    text
}

/// The range in a hunk header. Lines count from 1. A single line has no length, and an empty range names the line
/// before it.
fn hunk_range(range: Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => format!("{}", range.start + 1),
        length => format!("{},{length}", range.start + 1),
    }
}

fn parts(old: &[&str], new: &[&str]) -> Vec<Part> {
    if old.len().max(new.len()) >= COMMON_ENDS_ONLY_FROM {
        return common_ends(old, new);
    }
    let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, line) in new.iter().enumerate() {
        positions.entry(line).or_default().push(index);
    }
    if new.len() >= RARE_LINES_ONLY_FROM {
        positions.retain(|_, lines| lines.len() <= new.len() / 100 + 1);
    }
    let mut runs = Vec::new();
    find_runs(old, new, &positions, 0..old.len(), 0..new.len(), &mut runs);
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if last.old + last.lines == run.old && last.new + last.lines == run.new => {
                last.lines += run.lines
            }
            _ => joined.push(run),
        }
    }
    joined.push(Run { old: old.len(), new: new.len(), lines: 0 });
    let mut parts = Vec::new();
    let (mut i, mut j) = (0, 0);
    for Run { old, new, lines } in joined {
        if i < old || j < new {
            parts.push(Part { equal: false, old: i..old, new: j..new });
        }
        (i, j) = (old + lines, new + lines);
        if lines > 0 {
            parts.push(Part { equal: true, old: old..i, new: new..j });
        }
    }
    parts
}

/// Splits long texts: only the common beginning and end are equal.
fn common_ends(old: &[&str], new: &[&str]) -> Vec<Part> {
    let head = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[head..], &new[head..]);
    let tail = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let parts = [
        Part { equal: true, old: 0..head, new: 0..head },
        Part { equal: false, old: head..old_end, new: head..new_end },
        Part { equal: true, old: old_end..old.len(), new: new_end..new.len() },
    ];
    parts.into_iter().filter(|part| !part.old.is_empty() || !part.new.is_empty()).collect()
}

fn find_runs(
    old: &[&str],
    new: &[&str],
    positions: &HashMap<&str, Vec<usize>>,
    in_old: Range<usize>,
    in_new: Range<usize>,
    runs: &mut Vec<Run>,
) {
    let run = longest_run(old, new, positions, in_old.clone(), in_new.clone());
    if run.lines == 0 {
        return;
    }
    if in_old.start < run.old && in_new.start < run.new {
        find_runs(old, new, positions, in_old.start..run.old, in_new.start..run.new, runs);
    }
    runs.push(run);
    let (i, j) = (run.old + run.lines, run.new + run.lines);
    if i < in_old.end && j < in_new.end {
        find_runs(old, new, positions, i..in_old.end, j..in_new.end, runs);
    }
}

/// The first of the longest runs of equal lines.
fn longest_run(
    old: &[&str],
    new: &[&str],
    positions: &HashMap<&str, Vec<usize>>,
    in_old: Range<usize>,
    in_new: Range<usize>,
) -> Run {
    let mut best = Run { old: in_old.start, new: in_new.start, lines: 0 };
    // The length of the run that ends at each line of the new text and at the previous line of the old text.
    let mut ending: HashMap<usize, usize> = HashMap::new();
    for i in in_old.clone() {
        let mut next = HashMap::new();
        for &j in positions.get(old[i]).into_iter().flatten().filter(|j| in_new.contains(j)) {
            let lines =
                j.checked_sub(1).and_then(|before| ending.get(&before)).copied().unwrap_or_default() + 1;
            next.insert(j, lines);
            if lines > best.lines {
                best = Run { old: i + 1 - lines, new: j + 1 - lines, lines };
            }
        }
        ending = next;
    }
    // The search above skips lines that are not rare: extend the run over them.
    while best.old > in_old.start && best.new > in_new.start && old[best.old - 1] == new[best.new - 1] {
        best = Run { old: best.old - 1, new: best.new - 1, lines: best.lines + 1 };
    }
    while best.old + best.lines < in_old.end
        && best.new + best.lines < in_new.end
        && old[best.old + best.lines] == new[best.new + best.lines]
    {
        best.lines += 1;
    }
    best
}

/// Groups nearby changes into hunks, with lines of context.
fn groups(mut parts: Vec<Part>) -> Vec<Vec<Part>> {
    if let Some(first) = parts.first_mut().filter(|part| part.equal) {
        first.old.start = first.old.start.max(first.old.end.saturating_sub(CONTEXT));
        first.new.start = first.new.start.max(first.new.end.saturating_sub(CONTEXT));
    }
    if let Some(last) = parts.last_mut().filter(|part| part.equal) {
        last.old.end = last.old.end.min(last.old.start + CONTEXT);
        last.new.end = last.new.end.min(last.new.start + CONTEXT);
    }
    let mut groups = Vec::new();
    let mut group: Vec<Part> = Vec::new();
    for mut part in parts {
        if part.equal && part.old.len() > 2 * CONTEXT {
            let (old, new) = (part.old.clone(), part.new.clone());
            group.push(Part {
                equal: true,
                old: old.start..old.start + CONTEXT,
                new: new.start..new.start + CONTEXT,
            });
            groups.push(std::mem::take(&mut group));
            part.old.start = old.end - CONTEXT;
            part.new.start = new.end - CONTEXT;
        }
        group.push(part);
    }
    if group.iter().any(|part| !part.equal) {
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_empty_diff() {
        assert_eq!(unified("a\nb", "a\nb"), "");
    }

    #[test]
    fn changes_have_context() {
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14";
        let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15";
        assert_eq!(
            unified(old, new),
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n@@ -12,3 +12,4 @@\n 12\n 13\n 14\n+15\n"
        );
    }

    #[test]
    fn added_and_removed_lines() {
        assert_eq!(unified("a", "a\nb"), "@@ -1 +1,2 @@\n a\n+b\n");
        assert_eq!(unified("a\nb\nc", "c"), "@@ -1,3 +1 @@\n-a\n-b\n c\n");
    }

    #[test]
    fn nearby_changes_share_a_hunk() {
        assert_eq!(
            unified("a\n1\n2\n3\n4\n5\n6\nb", "x\n1\n2\n3\n4\n5\n6\ny"),
            "@@ -1,8 +1,8 @@\n-a\n+x\n 1\n 2\n 3\n 4\n 5\n 6\n-b\n+y\n"
        );
    }

    #[test]
    fn long_texts_match_only_common_beginning_and_end() {
        let old: Vec<String> = (0..200_000).map(|line| line.to_string()).collect();
        let mut new = old.clone();
        (new[100_000], new[100_002]) = ("a".into(), "b".into());
        assert_eq!(
            unified(&old.join("\n"), &new.join("\n")),
            "@@ -99998,9 +99998,9 @@\n 99997\n 99998\n 99999\n-100000\n-100001\n-100002\n+a\n+100001\n+b\n 100003\n 100004\n 100005\n"
        );
        assert_eq!(unified(&old.join("\n"), &old.join("\n")), "");
        // No line in common: a search for runs would take too long.
        let other: Vec<String> = (0..200_000).map(|line| format!("{line}.")).collect();
        assert_eq!(unified(&old.join("\n"), &other.join("\n")).lines().count(), 400_001);
    }

    #[test]
    fn longest_run_is_matched_first() {
        assert_eq!(unified("a\nb", "a\nc\na\nb"), "@@ -1,2 +1,4 @@\n+a\n+c\n a\n b\n");
    }
}
