//! What failed last for each volume, and for each pod that has it: for `/debug/attempts`, in the form that sidecars have.
//!
//! What goes up is told in events too. What goes down is told in logs alone, as upstream has it, so here is the only
//! place to ask why a pod does not end.

use serde_json::{Value, json};

use super::failure::{Doing, Failure};
use super::world::World;

/// In attempts; `wharf explain` looks for it.
const ROLE: &str = "node";

/// All that failed last and was not done since. Of a pod's share the object is the pod, by its identity; of what is for
/// all of them, the PersistentVolume, by its name.
pub(super) fn page(world: &World) -> Value {
    let failures = world.volumes.values().flat_map(|volume| {
        volume.failures.iter().map(|((doing, pod), failure)| {
            let object = if pod.is_empty() { &volume.spec } else { pod };
            entry(*doing, object, failure)
        })
    });
    Value::Array(failures.collect())
}

fn entry(doing: Doing, object: &str, failure: &Failure) -> Value {
    json!({
        "role": ROLE, "object": object, "time": failure.at.to_string(), "step": step(doing),
        "error": failure.message, "failures": failure.count,
    })
}

fn step(doing: Doing) -> &'static str {
    match doing {
        Doing::Verify => "attachment",
        Doing::Stage => "NodeStageVolume",
        Doing::Publish => "NodePublishVolume",
        Doing::Own => "ownership",
        Doing::Expand => "NodeExpandVolume",
        Doing::Unpublish => "NodeUnpublishVolume",
        Doing::Unstage => "NodeUnstageVolume",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wharf_model::Time;

    use super::super::failure::Class;
    use super::super::world::{Mode, Volume};
    use super::*;

    #[test]
    fn what_failed_is_told_by_pod_or_volume() {
        let failure = |message: &str| Failure {
            class: Class::Final,
            message: message.to_owned(),
            at: Time(1000),
            pause: Duration::ZERO,
            count: 3,
        };
        let mut volume = Volume::new("d.csi", "h", "pv", Mode::Filesystem, false);
        volume.failures.insert((Doing::Unpublish, "uid".to_owned()), failure("target is busy"));
        volume.failures.insert((Doing::Unstage, String::new()), failure("device is busy"));
        let mut world = World::default();
        assert_eq!(page(&world), json!([]));
        world.volumes.insert("d.csi^h".to_owned(), volume);
        let told = |object: &str, step: &str, error: &str| {
            json!({"role": "node", "object": object, "time": "1970-01-01T00:00:01Z", "step": step,
                "error": error, "failures": 3})
        };
        let unpublish = told("uid", "NodeUnpublishVolume", "target is busy");
        let unstage = told("pv", "NodeUnstageVolume", "device is busy");
        assert_eq!(page(&world), json!([unpublish, unstage]));
    }
}
