//! Why is my volume not there yet: walks from a claim, pod, volume or snapshot along the way that it takes through
//! Kubernetes, and says which step waits, for what, since when, and whose turn it is.
//!
//! [`gather`](gather::gather) reads the objects once and notes what it could not read; the walks ([`claim`], [`changes`],
//! [`attach`], [`pod`], [`volume`], [`snapshot`]) are pure functions over that. Nothing is guessed: what is not known is said to be so.

mod attach;
mod attempts;
mod changes;
mod claim;
pub mod facts;
pub mod gather;
mod pod;
mod snapshot;
pub mod story;
pub mod subject;
#[cfg(test)]
mod tests;
mod volume;

use wharf_cluster::Cluster;
use wharf_model::Time;

pub use attempts::Attempt;
pub use facts::Facts;
pub use gather::GatherError;
pub use story::{State, Step, Story};
pub use subject::{Subject, What};

/// Reads what there is to know about the subject, and tells its story.
pub async fn explain(
    cluster: &Cluster,
    subject: &Subject,
    attempts: Option<&str>,
    now: Time,
) -> Result<Story, GatherError> {
    let facts = gather::gather(cluster, subject, attempts).await?;
    let mut story = walk(subject, &facts, now);
    if attempts.is_none() && story.waits_for().is_some() {
        story.missing.push("what the sidecars tried: nobody said where one tells".to_owned());
    }
    Ok(story)
}

/// The story, from the facts alone.
pub fn walk(subject: &Subject, facts: &Facts, now: Time) -> Story {
    let steps = match subject.what {
        What::Claim => facts.claims.iter().flat_map(|claim| claim::walk_on(claim, facts, now)).collect(),
        What::Pod => pod::walk(facts, now),
        What::Volume => volume::walk(facts, now),
        What::Snapshot => snapshot::walk(facts),
    };
    Story { subject: subject.to_string(), steps, missing: facts.missing.clone(), now }
}
