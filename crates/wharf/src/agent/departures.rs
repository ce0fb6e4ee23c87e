//! Departures: the behaviours in which the node agent differs from kubelet. Each has a name, so that `--as-upstream` can
//! select kubelet's behaviour.
//!
//! docs/kubernetes.md, "Departures", has the reasons.

use std::time::Duration;

use clap::ValueEnum;
use wharf_node::{plugins, volumes};

/// How often kubelet writes `volumesInUse`.
const STATUS_PERIOD: Duration = Duration::from_secs(10);

/// A behaviour that differs from kubelet. The help describes Wharf's behaviour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Departure {
    /// All of these
    All,
    /// Drivers: retries a failed registration without waiting for a new socket
    Retry,
    /// Drivers: a new socket replaces the old one without deregistering the driver in between
    Handover,
    /// Drivers: restores entries of Node and CSINode that another client removed
    Restore,
    /// Drivers: refuses a driver that reports another name than its registration
    VerifyName,
    /// Drivers: refreshes volume limits at the interval of the CSIDriver object
    RefreshLimits,
    /// Volumes: at start, finds staged volumes that no pod uses
    FindStaged,
    /// Volumes: updates volumesInUse at once instead of every 10 s
    InUseAtOnce,
}

/// Selects kubelet's behaviour for these departures.
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
            Departure::Restore => plugins.restore_entries = false,
            Departure::VerifyName => plugins.verify_name = false,
            Departure::RefreshLimits => plugins.refresh_limits = false,
            Departure::FindStaged => volumes.recover_staged = false,
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
    fn each_departure_changes_settings_and_all_equals_their_sum() {
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
