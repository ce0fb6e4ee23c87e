//! Ours and upstream's sidecars on the same cluster with the same driver, one after the other: how fast, how much
//! memory, processor time and how many requests, how soon again after an end. Prints a table in Markdown.
//!
//! By environment: `CLAIMS` (1000), `VOLUMES` (10000, the most that are seeded), `PODS` (5000), `ATTACHMENTS` (500).

mod load;
mod report;
mod sides;
mod stories;

use std::process::ExitCode;

use wharf_testkit::{ClusterOptions, TestCluster};

use report::Report;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let mut report = Report::default();
    match runtime {
        Ok(runtime) => runtime.block_on(run(&mut report)),
        Err(error) => {
            eprintln!("sidecar-bench: {error}");
            return ExitCode::FAILURE;
        }
    }
    report.print();
    ExitCode::SUCCESS
}

async fn run(report: &mut Report) {
    let claims = number("CLAIMS", 1000);
    {
        let cluster = TestCluster::start_with(ClusterOptions { nodes: &[], tuned: true });
        stories::claims(&cluster, report, "controller manager tuned", claims).await;
        stories::hand_over(&cluster, report).await;
        stories::attachments(&cluster, report, number("ATTACHMENTS", 500)).await;
    }
    {
        let cluster = TestCluster::start_with(ClusterOptions { nodes: &[], tuned: false });
        stories::claims(&cluster, report, "controller manager at its defaults", claims / 5).await;
    }
    let cluster = TestCluster::start_with(ClusterOptions { nodes: &[], tuned: true });
    stories::memory(&cluster, report, number("VOLUMES", 10_000), number("PODS", 5000)).await;
}

/// A number from the environment.
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
