//! Where our controllers do otherwise than Kubernetes', by name, so that upstream's way can be chosen for each.
//!
//! docs/kubernetes.md, "Departures", has the reasons.

use std::time::Duration;

use clap::ValueEnum;
use wharf_controllers::scheduler::{AssignedPods, CapacityCheck, DriverCheck, OwnChanges};
use wharf_controllers::{attach_detach, binder, scheduler};

/// A thing that is done otherwise than upstream does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Departure {
    /// Each of these
    All,
    /// Binder: a node that is gone is taken off the claim it was chosen for
    ClearSelectedNode,
    /// Attach/detach: the server is asked whether a volume is in use also after the time has passed
    VerifyAfterTimeout,
    /// Attach/detach: out-of-service is believed only of nodes that are not Ready
    OutOfServiceOnlyIfNotReady,
    /// Attach/detach: an attachment of unknown state stands in the way of another node
    UncertainBlocks,
    /// Attach/detach: attachments that were never begun and whose volume is gone are deleted
    ForgetOrphans,
    /// Attach/detach: a volume on its way from node to node is an event only after 30 s
    MultiAttachGrace,
    /// Scheduler: all claims of a pod together must fit
    Capacity,
    /// Scheduler: no node without the pod's driver
    Drivers,
    /// Scheduler: pods that were put on a node by hand get their volumes
    AssignedPods,
    /// Scheduler: a pod is tried again at once when its own claims change
    OwnChanges,
}

/// What the controllers are told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) binder: binder::Settings,
    pub(crate) attach_detach: attach_detach::Settings,
    pub(crate) scheduler: scheduler::Settings,
}

impl Settings {
    /// Ours, but for these, which are upstream's.
    pub(crate) fn with(as_upstream: &[Departure]) -> Self {
        let mut settings = Self::default();
        for departure in as_upstream {
            settings.revert(*departure);
        }
        settings
    }

    fn revert(&mut self, departure: Departure) {
        let Self { binder, attach_detach, scheduler } = self;
        match departure {
            Departure::All => {
                let others = Departure::value_variants().iter().filter(|one| **one != Departure::All);
                others.for_each(|one| self.revert(*one));
            }
            Departure::ClearSelectedNode => binder.clear_selected_node = false,
            Departure::VerifyAfterTimeout => attach_detach.verify_after_timeout = false,
            Departure::OutOfServiceOnlyIfNotReady => attach_detach.out_of_service_only_if_not_ready = false,
            Departure::UncertainBlocks => attach_detach.uncertain_blocks = false,
            Departure::ForgetOrphans => attach_detach.forget_orphans = false,
            Departure::MultiAttachGrace => attach_detach.multi_attach_grace = Duration::ZERO,
            Departure::Capacity => scheduler.capacity = CapacityCheck::PerClaim,
            Departure::Drivers => scheduler.drivers = DriverCheck::Upstream,
            Departure::AssignedPods => scheduler.assigned = AssignedPods::Leave,
            Departure::OwnChanges => scheduler.own_changes = OwnChanges::AfterPause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(settings: &Settings) -> String {
        format!("{settings:?}")
    }

    #[test]
    fn each_is_one_thing_and_all_are_all() {
        let ours = text(&Settings::with(&[]));
        let all = Settings::with(&[Departure::All]);
        assert_eq!(format!("{:?}", all.attach_detach), format!("{:?}", attach_detach::Settings::upstream()));
        let each: Vec<_> = Departure::value_variants().iter().filter(|one| **one != Departure::All).collect();
        let mut one_by_one = Settings::default();
        for departure in &each {
            assert_ne!(text(&Settings::with(&[**departure])), ours, "{departure:?}");
            one_by_one.revert(**departure);
        }
        assert_eq!(text(&one_by_one), text(&all));
    }
}
