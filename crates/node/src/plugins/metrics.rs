//! Metrics of the plugin manager.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Result of processing a socket.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// The driver was registered.
    Registered,
    /// GetInfo failed.
    GetInfoFailed,
    /// The plugin was refused, or its driver could not be queried.
    Refused,
    /// The driver was deregistered.
    Deregistered,
}

/// Metrics; clones share their values.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    outcomes: Family<[(&'static str, &'static str); 1], Counter>,
    registered: Gauge,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "wharf_plugin_registrations",
            "Registration attempts, by outcome",
            self.outcomes.clone(),
        );
        registry.register(
            "wharf_plugins_registered",
            "Drivers registered on this node",
            self.registered.clone(),
        );
    }

    pub(super) fn count(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Registered => "registered",
            Outcome::GetInfoFailed => "silent",
            Outcome::Refused => "refused",
            Outcome::Deregistered => "deregistered",
        };
        self.outcomes.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(super) fn registered(&self, count: usize) {
        self.registered.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
