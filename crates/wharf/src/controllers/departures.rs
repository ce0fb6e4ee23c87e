//! Departures: the behaviours in which the controllers differ from upstream. Each has a name, so that `--as-upstream` can
//! select upstream's behaviour.
//!
//! docs/kubernetes.md, "Departures", has the reasons.

use std::time::Duration;

use clap::ValueEnum;
use wharf_controllers::scheduler::{AssignedPods, CapacityCheck, DriverCheck, OwnChanges};
use wharf_controllers::{attach_detach, binder, scheduler};

/// A behaviour that differs from upstream. The help describes Wharf's behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Departure {
    /// All of these
    All,
    /// Binder: removes a selected node that no longer exists from the claim
    ClearSelectedNode,
    /// Attach/detach: checks with the API server whether a volume is in use, also after the unmount timeout
    VerifyAfterTimeout,
    /// Attach/detach: accepts the out-of-service taint only on nodes that are not Ready
    OutOfServiceOnlyIfNotReady,
    /// Attach/detach: an attachment in an uncertain state blocks attaching to another node
    UncertainBlocks,
    /// Attach/detach: deletes attachments that were never started and whose volume is gone
    ForgetOrphans,
    /// Attach/detach: records the Multi-Attach event only after 30 s
    MultiAttachGrace,
    /// Scheduler: sums the capacity of all claims of a pod
    Capacity,
    /// Scheduler: excludes nodes without the pod's driver
    Drivers,
    /// Scheduler: provisions volumes for pods that were assigned to a node by hand
    AssignedPods,
    /// Scheduler: retries a pod at once when it or its claims change
    OwnChanges,
}

/// Settings of the controllers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub(crate) binder: binder::Settings,
    pub(crate) attach_detach: attach_detach::Settings,
    pub(crate) scheduler: scheduler::Settings,
}

impl Settings {
    /// The default settings, with upstream's behaviour for these departures.
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
            Departure::Capacity => scheduler.capacity_check = CapacityCheck::PerClaim,
            Departure::Drivers => scheduler.driver_check = DriverCheck::Upstream,
            Departure::AssignedPods => scheduler.assigned_pods = AssignedPods::Ignore,
            Departure::OwnChanges => scheduler.own_changes = OwnChanges::AfterBackoff,
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
    fn each_departure_changes_settings_and_all_equals_their_sum() {
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
