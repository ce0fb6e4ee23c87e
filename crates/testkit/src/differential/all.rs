//! Runs many scenarios against one API for one side: first those that can run in parallel, then those that must run
//! alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{ApiTarget, Outcome, Scenario, ScenarioRunner, Side, SnapshotController};

/// How many scenarios run in parallel. They spend most of their time waiting.
const WORKERS: usize = 16;

/// If more scenarios differ than this, they are not repeated: so many differences are not caused by timing.
const MAX_RERUNS: usize = 60;

/// The outcome or the error of each scenario, by its index.
pub type Outcomes = BTreeMap<usize, Result<Outcome, String>>;

/// Runs all scenarios and writes logs to `logs`.
pub fn run_all(
    target: &ApiTarget,
    logs: &Path,
    scenarios: &[Scenario],
    side: Side,
) -> Result<Outcomes, String> {
    let mut controller = SnapshotController::new(target, logs, side);
    if scenarios.iter().any(|scenario| scenario.controller) {
        controller.start()?;
    }
    let controller = Mutex::new(controller);
    let numbers = |alone: bool| -> Vec<usize> {
        scenarios.iter().enumerate().filter(|(_, it)| it.alone == alone).map(|(number, _)| number).collect()
    };
    let together = numbers(false);
    let (next, outcomes) = (Mutex::new(together.iter()), Mutex::new(Outcomes::new()));
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = |runner: &Result<ScenarioRunner<'_>, String>, number: usize| {
        let outcome = runner.as_ref().map_err(Clone::clone);
        let outcome = outcome.and_then(|runner| runner.run(number, &scenarios[number], side));
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(number, outcome);
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(together.len()) {
            scope.spawn(|| {
                let runner = ScenarioRunner::new(target, logs, &controller);
                while let Some(number) = take() {
                    work(&runner, *number);
                }
            });
        }
    });
    // In this thread: processes that it restarts must not end with a worker thread.
    let runner = ScenarioRunner::new(target, logs, &controller);
    numbers(true).into_iter().for_each(|number| work(&runner, number));
    Ok(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The names of the scenarios that differ. Scenarios that differ in a parallel run are repeated one by one, and
/// only that result counts: a timing difference is not a difference. `differing` runs scenarios, with their logs
/// below a name.
pub fn differing_after_rerun(
    name: &str,
    mut scenarios: Vec<Scenario>,
    mut differing: impl FnMut(&str, &[Scenario]) -> BTreeSet<String>,
) -> BTreeSet<String> {
    let differ = differing(name, &scenarios);
    if !(1..=MAX_RERUNS).contains(&differ.len()) {
        return differ;
    }
    println!("\n{} scenarios differ; repeating them one by one", differ.len());
    scenarios.retain(|scenario| differ.contains(&scenario.name));
    scenarios.iter_mut().for_each(|scenario| scenario.alone = true);
    differing(&format!("{name}-again"), &scenarios)
}
