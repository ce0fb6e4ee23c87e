//! Our sidecars, scenario by scenario, on three APIs: the embedded one within this process, the same over HTTPS, and a
//! real kube-apiserver. What is left at the end, what was said and what the driver was asked must be the same.
//!
//! The scenarios are those of the differential tests, and for the sidecars that those leave out, `others.yaml`. Claims are
//! bound, protected and so on by our own controllers at all three: what is compared is the API. What differs while many run
//! at once runs once more, one by one, and that counts.

#![allow(clippy::unwrap_used, reason = "a failed expectation ends a test")]

mod controllers;
mod local;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use controllers::Controllers;
use wharf_apiserver::access::Access;
use wharf_apiserver::rest::{Api, Options};
use wharf_apiserver::store::{self, Store};
use wharf_testkit::differential::{
    Comparison, Outcomes, Place, Scenario, Side, differing_alone, load, run_all,
};
use wharf_testkit::{ClusterOptions, Embedded, TestCluster};

const FILES: [&str; 6] = [
    include_str!("../differential/provisioner.yaml"),
    include_str!("../differential/resizer.yaml"),
    include_str!("../differential/snapshots.yaml"),
    include_str!("../differential/groups.yaml"),
    include_str!("../differential/restore.yaml"),
    include_str!("others.yaml"),
];
/// Of Kubernetes' own only those that the embedded API has too.
const UPSTREAMS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller";

/// An API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Within,
    Https,
    Cluster,
}

/// Without anything that is not ours.
#[test]
fn the_same_within_and_over_https() {
    compare("slice", &[Way::Within, Way::Https], |scenario| scenario.slice);
}

#[test]
#[ignore = "needs a real API server, and takes half an hour: make test-all"]
fn three_ways_all() {
    compare("all", &[Way::Within, Way::Https, Way::Cluster], |_| true);
}

/// Runs the scenarios at each API and compares with the first. `ONLY` takes those whose names contain it.
fn compare(what: &str, ways: &[Way], chosen: impl Fn(&Scenario) -> bool) {
    let only = std::env::var("ONLY").unwrap_or_default();
    let all = FILES.iter().flat_map(|file| load(file).unwrap());
    let scenarios: Vec<Scenario> = all.filter(|it| chosen(it) && it.name.contains(&only)).collect();
    assert!(!scenarios.is_empty(), "no scenario's name has {only:?} in it");
    let (began, total) = (Instant::now(), scenarios.len());
    let differ = differing_alone(what, scenarios, |what, scenarios| differing(what, ways, scenarios));
    let (passed, failed) = (total - differ.len(), differ.len());
    println!("three-ways: {what} in {:.0?}: {passed} passed, {failed} failed", began.elapsed());
    assert_eq!(failed, 0, "the APIs differ, see above");
}

/// The names of those that do not end alike. It tells how.
fn differing(what: &str, ways: &[Way], scenarios: &[Scenario]) -> BTreeSet<String> {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("three-ways-{what}"));
    let _ = std::fs::remove_dir_all(&logs);
    let began = Instant::now();
    let mut results: Vec<(Way, PathBuf, Outcomes)> = Vec::new();
    for &way in ways {
        let logs = logs.join(format!("{way:?}").to_lowercase());
        results.push((way, logs.clone(), run(way, &logs, scenarios)));
        println!("{way:?}: {} scenarios, {:.0?}", scenarios.len(), began.elapsed());
    }
    let mut differ = BTreeSet::new();
    for (number, scenario) in scenarios.iter().enumerate() {
        let complaints = complaints(number, scenario, &results);
        let kept = results.iter().map(|(_, logs, _)| logs.join(format!("{number:03}-ours")));
        if complaints.is_empty() {
            kept.for_each(|logs| drop(std::fs::remove_dir_all(logs)));
            continue;
        }
        differ.insert(scenario.name.clone());
        let kept: Vec<String> = kept.map(|logs| logs.display().to_string()).collect();
        println!("\n{}\n{complaints}  logs: {}", scenario.name, kept.join(" "));
    }
    differ
}

/// What is wrong with a scenario, as lines; nothing if all is well.
fn complaints(number: usize, scenario: &Scenario, results: &[(Way, PathBuf, Outcomes)]) -> String {
    let mut lines = String::new();
    let (first, _, outcomes) = &results[0];
    for (way, _, others) in results {
        match (&outcomes[&number], &others[&number]) {
            (_, Err(error)) => lines.push_str(&format!("  {way:?}: {error}\n")),
            (Ok(outcome), Ok(other)) => {
                let comparison = Comparison::new(&scenario.name, outcome, other);
                if !comparison.differences.is_empty() {
                    lines.push_str(&format!("  - {first:?}, + {way:?}\n"));
                }
                comparison.differences.iter().for_each(|line| lines.push_str(&format!("  {line}\n")));
            }
            (Err(_), Ok(_)) => {}
        }
    }
    lines
}

fn run(way: Way, logs: &Path, scenarios: &[Scenario]) -> Outcomes {
    match way {
        Way::Within => {
            let directory = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let store = Store::open(&directory.path().join("data"), store::Options::default()).unwrap();
            let api = Api::new(store, Access::generate().unwrap(), Options::default());
            runtime.block_on(api.prepare()).unwrap();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let beside = api.clone();
            let thread = std::thread::spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = beside.run() => {}
                        _ = stopped => {}
                    }
                });
            });
            let outcomes = run_at(&Place::within(api, directory.path()), logs, scenarios);
            drop(stop);
            thread.join().unwrap();
            outcomes
        }
        Way::Https => run_at(&Place::embedded(&Embedded::start()), logs, scenarios),
        Way::Cluster => {
            let cluster = TestCluster::start_with(ClusterOptions {
                nodes: &[],
                controllers: UPSTREAMS,
                ..ClusterOptions::default()
            });
            run_at(&Place::cluster(&cluster), logs, scenarios)
        }
    }
}

fn run_at(place: &Place, logs: &Path, scenarios: &[Scenario]) -> Outcomes {
    let _controllers = Controllers::start(place);
    run_all(place, logs, scenarios, Side::Ours).unwrap()
}
