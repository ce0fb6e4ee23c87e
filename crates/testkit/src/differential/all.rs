//! Many scenarios at a place, by one side: as many at once as wait well together, then those that must be alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{Controller, Ground, Outcome, Place, Scenario, Side};

/// How many scenarios run at once. They wait for most of their time.
const WORKERS: usize = 16;

/// More than so many that differ are not bad luck.
const AGAIN: usize = 60;

/// How each scenario ended, or why it did not, by its number.
pub type Outcomes = BTreeMap<usize, Result<Outcome, String>>;

/// Runs them all. Logs go to a directory of one's choice.
pub fn run_all(place: &Place, logs: &Path, scenarios: &[Scenario], side: Side) -> Result<Outcomes, String> {
    let mut controller = Controller::new(place, logs, side);
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
    let work = |ground: &Result<Ground<'_>, String>, number: usize| {
        let outcome = ground.as_ref().map_err(Clone::clone);
        let outcome = outcome.and_then(|ground| ground.run(number, &scenarios[number], side));
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(number, outcome);
    };
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(together.len()) {
            scope.spawn(|| {
                let ground = Ground::new(place, logs, &controller);
                while let Some(number) = take() {
                    work(&ground, *number);
                }
            });
        }
    });
    // In this thread: what is started again by it must not end with it.
    let ground = Ground::new(place, logs, &controller);
    numbers(true).into_iter().for_each(|number| work(&ground, number));
    Ok(outcomes.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The names of those that differ. What differs while many run at once runs once more, one by one, on a ground of its own,
/// and that counts: what is only late then is no difference. `differing` runs scenarios, with their logs under a name.
pub fn differing_alone(
    name: &str,
    mut scenarios: Vec<Scenario>,
    mut differing: impl FnMut(&str, &[Scenario]) -> BTreeSet<String>,
) -> BTreeSet<String> {
    let differ = differing(name, &scenarios);
    if !(1..=AGAIN).contains(&differ.len()) {
        return differ;
    }
    println!("\n{} once more, one by one", differ.len());
    scenarios.retain(|scenario| differ.contains(&scenario.name));
    scenarios.iter_mut().for_each(|scenario| scenario.alone = true);
    differing(&format!("{name}-again"), &scenarios)
}
