//! Compares upstream's sidecars with ours, scenario by scenario: `make differential`, with a fast slice in `make
//! test`. The YAML files in this directory hold the scenarios and the allowed differences; docs/differential.md
//! describes their format.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use wharf_testkit::differential::{
    AllowedDifference, ApiTarget, Comparison, Outcome, Outcomes, Scenario, Side, differing_after_rerun, load,
    parse_allowed, run_all,
};
use wharf_testkit::{ClusterOptions, TestCluster};

const FILES: [(&str, &str); 5] = [
    ("provisioner.yaml", include_str!("provisioner.yaml")),
    ("resizer.yaml", include_str!("resizer.yaml")),
    ("snapshots.yaml", include_str!("snapshots.yaml")),
    ("groups.yaml", include_str!("groups.yaml")),
    ("restore.yaml", include_str!("restore.yaml")),
];
type Results = BTreeMap<Side, Outcomes>;

#[test]
#[ignore = "needs a cluster and upstream's programs: make differential"]
fn differential_all() {
    differential(|_| true, true);
}

#[test]
#[ignore = "needs a cluster and upstream's programs: make test"]
fn differential_slice() {
    differential(|scenario| scenario.slice, false);
}

/// All files parse, scenario names are unique, and the list of allowed differences refers to existing scenarios.
#[test]
fn scenarios_parse_and_allow_list_matches_them() {
    let scenarios = scenarios();
    let names: Vec<&str> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(names.len(), once.len(), "two scenarios have the same name");
    assert!(names.len() >= 100, "{} scenarios", names.len());
    let page = include_str!("../../../../docs/differential.md");
    for it in parse_allowed(include_str!("allowed.yaml")).unwrap() {
        assert_eq!(it.orphans(&names), Vec::<&str>::new(), "{it}");
        let number = it.reference.trim_end_matches(')').rsplit('#').next().unwrap();
        assert!(page.contains(&format!("#{number} |")), "docs/differential.md does not list {it}");
    }
}

fn scenarios() -> Vec<Scenario> {
    let read = |(file, text): &(&str, &str)| load(text).unwrap_or_else(|error| panic!("{file}: {error}"));
    FILES.iter().flat_map(read).collect()
}

/// Runs the scenarios for both sides and compares the outcomes. `ONLY` selects scenarios whose names contain it.
fn differential(chosen: impl Fn(&Scenario) -> bool, all: bool) {
    let only = std::env::var("ONLY").unwrap_or_default();
    let scenarios: Vec<Scenario> =
        scenarios().into_iter().filter(|it| chosen(it) && it.name.contains(&only)).collect();
    assert!(!scenarios.is_empty(), "no scenario name contains {only:?}");
    let (started, total) = (Instant::now(), scenarios.len());
    let allowed = parse_allowed(include_str!("allowed.yaml")).unwrap();
    let mut occurred = vec![false; allowed.len()];
    let differ = differing_after_rerun("differential", scenarios, |name, scenarios| {
        differing(name, scenarios, &allowed, &mut occurred)
    });
    let (passed, mut failed) = (total - differ.len(), differ.len());
    let whole = all && only.is_empty();
    for (it, _) in
        allowed.iter().zip(&occurred).filter(|(it, occurred)| whole && it.must_occur() && !**occurred)
    {
        println!("\nno longer occurs: {it}");
        failed += 1;
    }
    let what = if all { "all" } else { "slice" };
    println!("differential: {what} in {:.0?}: {passed} passed, {failed} failed", started.elapsed());
    assert_eq!(failed, 0, "upstream and ours differ, see above");
}

/// The names of the scenarios that differ; prints the differences.
fn differing(
    what: &str,
    scenarios: &[Scenario],
    allowed: &[AllowedDifference],
    occurred: &mut [bool],
) -> BTreeSet<String> {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(what);
    let _ = std::fs::remove_dir_all(&logs);
    let started = Instant::now();
    let cluster = TestCluster::start_with(ClusterOptions { nodes: &[], ..ClusterOptions::default() });
    let target = ApiTarget::cluster(&cluster);
    let mut results = Results::new();
    for side in [Side::Upstream, Side::Ours] {
        results.insert(side, run_all(&target, &logs, scenarios, side).unwrap());
        println!("{side}: {} scenarios, {:.0?}", scenarios.len(), started.elapsed());
    }
    drop(cluster);
    let mut differ = BTreeSet::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        let complaint = verdict(&results, number, scenario, allowed, occurred);
        let kept = |side: &str| logs.join(format!("{number:03}-{side}"));
        let (upstream, ours) = (kept("upstream"), kept("ours"));
        if complaint.is_empty() {
            let _ = std::fs::remove_dir_all(upstream);
            let _ = std::fs::remove_dir_all(ours);
            continue;
        }
        differ.insert(scenario.name.clone());
        println!("\n{}\n{complaint}  logs: {} {}", scenario.name, upstream.display(), ours.display());
    }
    differ
}

/// The problems of a scenario as lines; empty if there are none.
fn verdict(
    results: &Results,
    number: usize,
    scenario: &Scenario,
    allowed: &[AllowedDifference],
    occurred: &mut [bool],
) -> String {
    let (upstream, ours) = (&results[&Side::Upstream][&number], &results[&Side::Ours][&number]);
    let (Ok(upstream), Ok(ours)) = (upstream, ours) else {
        let describe = |side: &str, result: &Result<Outcome, String>| {
            result.as_ref().err().map(|error| format!("  {side}: {error}\n")).unwrap_or_default()
        };
        return describe("upstream", upstream) + &describe("ours", ours);
    };
    let mut comparison = Comparison::new(&scenario.name, upstream, ours);
    let mut missing = Vec::new();
    for (it, occurred) in allowed.iter().zip(occurred) {
        match it.take(&mut comparison) {
            Ok(taken) => *occurred |= taken,
            Err(error) => missing.push(error),
        }
    }
    let differences = comparison.differences.iter().map(|it| it.to_string());
    differences.chain(missing).map(|line| format!("  {line}\n")).collect()
}
