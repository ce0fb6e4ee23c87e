//! Where our node agent does otherwise than kubelet, by name, so that kubelet's way can be chosen for each.
//!
//! docs/kubernetes.md, "Departures", has the reasons.

use std::time::Duration;

use clap::ValueEnum;
use wharf_node::{plugins, volumes};

/// How often kubelet writes `volumesInUse`.
const STATUS_PERIOD: Duration = Duration::from_secs(10);

/// A thing that is done otherwise than kubelet does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Departure {
    /// Each of these
    All,
    /// Drivers: a registration that failed is tried again without a new socket
    Retry,
    /// Drivers: a socket made anew takes over, without a moment in which the driver is not there
    Handover,
    /// Drivers: what somebody else takes from Node or CSINode is put back
    Restore,
    /// Drivers: one that gives another name than its registration is refused
    VerifyName,
    /// Drivers: limits are asked for again as often as the CSIDriver says
    RefreshLimits,
    /// Volumes: those that are staged and that no pod has are found at the start
    FindStaged,
    /// Volumes: volumesInUse is written at once, and not every 10 s
    InUseAtOnce,
}

/// Chooses kubelet's way in these.
pub(crate) fn revert(
    as_upstream: &[Departure],
    plugins: &mut plugins::Settings,
    volumes: &mut volumes::Settings,
) {
    for departure in as_upstream {
        match departure {
            Departure::All => {
                let others = Departure::value_variants().iter().copied();
                let others: Vec<_> = others.filter(|one| *one != Departure::All).collect();
                revert(&others, plugins, volumes);
            }
            Departure::Retry => plugins.retry = false,
            Departure::Handover => plugins.handover = false,
            Departure::Restore => plugins.restore = false,
            Departure::VerifyName => plugins.verify_name = false,
            Departure::RefreshLimits => plugins.refresh_limits = false,
            Departure::FindStaged => volumes.find_staged = false,
            Departure::InUseAtOnce => volumes.in_use_period = STATUS_PERIOD,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(as_upstream: &[Departure]) -> String {
        let (mut plugins, mut volumes) = (plugins::Settings::new("n", "/r"), volumes::Settings::default());
        revert(as_upstream, &mut plugins, &mut volumes);
        format!("{plugins:?} {volumes:?}")
    }

    #[test]
    fn each_is_one_thing_and_all_are_all() {
        let (ours, all) = (text(&[]), text(&[Departure::All]));
        let each: Vec<_> =
            Departure::value_variants().iter().copied().filter(|one| *one != Departure::All).collect();
        for departure in &each {
            let one = text(&[*departure]);
            assert!(one != ours && one != all, "{departure:?}");
        }
        assert_eq!(text(&each), all);
    }
}
