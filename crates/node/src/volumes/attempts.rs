//! The last failure of each volume, and of each pod that uses it: served at `/debug/attempts`.
//!
//! Mount failures are also recorded as events. Unmount failures are otherwise only logged, as upstream does, so this
//! is the only place that explains why a pod does not terminate.

use wharf_model::Attempt;
use wharf_model::attempt::NODE_ROLE;

use super::failure::{Failure, Operation};
use super::world::World;

/// All unresolved failures. The object of a pod's mount is the pod's uid; the object of staging is the
/// PersistentVolume's name.
pub(super) fn list(world: &World) -> Vec<Attempt> {
    let failures = world.volumes.values().flat_map(|volume| {
        volume.failures.iter().map(|((operation, pod), failure)| {
            let object = if pod.is_empty() { &volume.spec } else { pod };
            entry(*operation, object, failure)
        })
    });
    failures.collect()
}

fn entry(operation: Operation, object: &str, failure: &Failure) -> Attempt {
    Attempt {
        role: NODE_ROLE.to_owned(),
        object: object.to_owned(),
        time: Some(failure.time),
        step: step(operation).to_owned(),
        error: Some(failure.message.clone()),
        failures: failure.count,
    }
}

fn step(operation: Operation) -> &'static str {
    match operation {
        Operation::Verify => "attachment",
        Operation::Stage => "NodeStageVolume",
        Operation::Publish => "NodePublishVolume",
        Operation::SetOwnership => "ownership",
        Operation::Expand => "NodeExpandVolume",
        Operation::Unpublish => "NodeUnpublishVolume",
        Operation::Unstage => "NodeUnstageVolume",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use wharf_model::{Monotonic, Time};

    use super::super::failure::Class;
    use super::super::world::{Mode, Volume};
    use super::*;

    #[test]
    fn attempts_name_pod_or_volume() {
        let failure = |message: &str| Failure {
            class: Class::Final,
            message: message.to_owned(),
            time: Time(1000),
            at: Monotonic(0),
            pause: Duration::ZERO,
            count: 3,
        };
        let mut volume = Volume::new("d.csi", "h", "pv", Mode::Filesystem, false);
        volume.failures.insert((Operation::Unpublish, "uid".to_owned()), failure("target is busy"));
        volume.failures.insert((Operation::Unstage, String::new()), failure("device is busy"));
        let mut world = World::default();
        assert_eq!(list(&world), []);
        world.volumes.insert("d.csi^h".to_owned(), volume);
        let attempt = |object: &str, step: &str, error: &str| Attempt {
            role: "node".into(),
            object: object.into(),
            time: Some(Time(1000)),
            step: step.into(),
            error: Some(error.into()),
            failures: 3,
        };
        let unpublish = attempt("uid", "NodeUnpublishVolume", "target is busy");
        let unstage = attempt("pv", "NodeUnstageVolume", "device is busy");
        assert_eq!(list(&world), [unpublish, unstage]);
    }
}
