//! Runs our sidecars, scenario by scenario, on three APIs: the embedded one in this process, the same over HTTPS,
//! and a real kube-apiserver. The remaining objects, the events and the driver calls must be the same.
//!
//! The scenarios are those of the differential tests, plus `others.yaml` for the sidecars that those do not cover.
//! On all three APIs our own controllers bind and protect claims, so only the API differs. Scenarios that differ in
//! a parallel run are repeated one by one, and only that result counts.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

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
    ApiTarget, Comparison, Outcomes, Scenario, Side, differing_after_rerun, load, run_all,
};
use wharf_testkit::{ClusterOptions, EmbeddedServer, TestCluster};

const FILES: [&str; 6] = [
    include_str!("../differential/provisioner.yaml"),
    include_str!("../differential/resizer.yaml"),
    include_str!("../differential/snapshots.yaml"),
    include_str!("../differential/groups.yaml"),
    include_str!("../differential/restore.yaml"),
    include_str!("others.yaml"),
];
/// Only those upstream controllers that the embedded API includes.
const UPSTREAMS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller";

/// An API under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApiAccess {
    InProcess,
    Https,
    Cluster,
}

/// Needs no upstream programs.
#[test]
fn in_process_and_https_apis_give_same_outcomes() {
    compare("slice", &[ApiAccess::InProcess, ApiAccess::Https], |scenario| scenario.slice);
}

#[test]
#[ignore = "needs a real API server, and takes half an hour: make test-all"]
fn three_ways_all() {
    compare("all", &[ApiAccess::InProcess, ApiAccess::Https, ApiAccess::Cluster], |_| true);
}

/// Runs the scenarios on each API and compares with the first. `ONLY` selects scenarios whose names contain it.
fn compare(what: &str, accesses: &[ApiAccess], chosen: impl Fn(&Scenario) -> bool) {
    let only = std::env::var("ONLY").unwrap_or_default();
    let all = FILES.iter().flat_map(|file| load(file).unwrap());
    let scenarios: Vec<Scenario> = all.filter(|it| chosen(it) && it.name.contains(&only)).collect();
    assert!(!scenarios.is_empty(), "no scenario name contains {only:?}");
    let (started, total) = (Instant::now(), scenarios.len());
    let differ =
        differing_after_rerun(what, scenarios, |what, scenarios| differing(what, accesses, scenarios));
    let (passed, failed) = (total - differ.len(), differ.len());
    println!("three-ways: {what} in {:.0?}: {passed} passed, {failed} failed", started.elapsed());
    assert_eq!(failed, 0, "outcomes on the APIs differ, see above");
}

/// The names of the scenarios that differ; prints the differences.
fn differing(what: &str, accesses: &[ApiAccess], scenarios: &[Scenario]) -> BTreeSet<String> {
    let logs = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("three-ways-{what}"));
    let _ = std::fs::remove_dir_all(&logs);
    let started = Instant::now();
    let mut results: Vec<(ApiAccess, PathBuf, Outcomes)> = Vec::new();
    for &access in accesses {
        let logs = logs.join(format!("{access:?}").to_lowercase());
        results.push((access, logs.clone(), run(access, &logs, scenarios)));
        println!("{access:?}: {} scenarios, {:.0?}", scenarios.len(), started.elapsed());
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

/// The problems of a scenario as lines; empty if there are none.
fn complaints(number: usize, scenario: &Scenario, results: &[(ApiAccess, PathBuf, Outcomes)]) -> String {
    let mut lines = String::new();
    let (first, _, outcomes) = &results[0];
    for (access, _, others) in results {
        match (&outcomes[&number], &others[&number]) {
            (_, Err(error)) => lines.push_str(&format!("  {access:?}: {error}\n")),
            (Ok(outcome), Ok(other)) => {
                let comparison = Comparison::new(&scenario.name, outcome, other);
                if !comparison.differences.is_empty() {
                    lines.push_str(&format!("  - {first:?}, + {access:?}\n"));
                }
                comparison.differences.iter().for_each(|line| lines.push_str(&format!("  {line}\n")));
            }
            (Err(_), Ok(_)) => {}
        }
    }
    lines
}

fn run(access: ApiAccess, logs: &Path, scenarios: &[Scenario]) -> Outcomes {
    match access {
        ApiAccess::InProcess => {
            let directory = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let store = Store::open(&directory.path().join("data"), store::Options::default()).unwrap();
            let api = Api::new(store, Access::generate().unwrap(), Options::default());
            runtime.block_on(api.prepare()).unwrap();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let background = api.clone();
            let thread = std::thread::spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = background.run() => {}
                        _ = stopped => {}
                    }
                });
            });
            let outcomes = run_at(&ApiTarget::in_process(api, directory.path()), logs, scenarios);
            drop(stop);
            thread.join().unwrap();
            outcomes
        }
        ApiAccess::Https => run_at(&ApiTarget::embedded(&EmbeddedServer::start()), logs, scenarios),
        ApiAccess::Cluster => {
            let cluster = TestCluster::start_with(ClusterOptions {
                nodes: &[],
                controllers: UPSTREAMS,
                ..ClusterOptions::default()
            });
            run_at(&ApiTarget::cluster(&cluster), logs, scenarios)
        }
    }
}

fn run_at(target: &ApiTarget, logs: &Path, scenarios: &[Scenario]) -> Outcomes {
    let _controllers = Controllers::start(target);
    run_all(target, logs, scenarios, Side::Ours).unwrap()
}
