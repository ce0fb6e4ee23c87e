//! Explains why a claim, pod, volume or snapshot is not ready: follows its steps through Kubernetes and names the
//! step that is pending, its reason, since when, and which component or user has to act.
//!
//! [`gather`](gather::gather) reads the objects once and records what it could not read. The walks ([`claim`],
//! [`changes`], [`attach`], [`pod`], [`volume`], [`snapshot`]) are pure functions over the result. Nothing is guessed:
//! a step that depends on something unread is reported as unknown.

mod attach;
mod attempts;
mod changes;
mod claim;
pub mod explanation;
pub mod facts;
pub mod gather;
mod pod;
mod snapshot;
pub mod subject;
#[cfg(test)]
mod tests;
mod volume;

use wharf_cluster::Cluster;
use wharf_model::Time;

pub use explanation::{Explanation, State, Step};
pub use facts::Facts;
pub use gather::GatherError;
pub use subject::{Subject, SubjectKind};

/// Reads the objects related to the subject and explains its state. `attempts` is the address of a sidecar's
/// `/debug/attempts` page.
pub async fn explain(
    cluster: &Cluster,
    subject: &Subject,
    attempts: Option<&str>,
    now: Time,
) -> Result<Explanation, GatherError> {
    let facts = gather::gather(cluster, subject, attempts).await?;
    let mut explanation = explain_facts(subject, &facts, now);
    if attempts.is_none() && explanation.pending_step().is_some() {
        explanation.missing.push("sidecar attempts unavailable; pass --attempts".to_owned());
    }
    Ok(explanation)
}

/// Explains the subject's state from the facts alone.
pub fn explain_facts(subject: &Subject, facts: &Facts, now: Time) -> Explanation {
    let steps = match subject.kind {
        SubjectKind::Claim => {
            facts.claims.iter().flat_map(|claim| claim::steps_to_nodes(claim, facts)).collect()
        }
        SubjectKind::Pod => pod::steps(facts),
        SubjectKind::Volume => volume::steps(facts),
        SubjectKind::Snapshot => snapshot::steps(facts),
    };
    Explanation { subject: subject.to_string(), steps, missing: facts.missing.clone(), now }
}
