//! What the plugin manager counts.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// What came of a socket.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    /// Its driver is registered.
    Registered,
    /// It does not say who it is.
    Silent,
    /// It is no driver for this node, or its driver has no answer.
    Refused,
    /// Its driver is not registered any more.
    Deregistered,
}

/// Counters; clones count together.
#[derive(Clone, Default)]
pub(super) struct Metrics {
    outcomes: Family<[(&'static str, &'static str); 1], Counter>,
    registered: Gauge,
}

impl Metrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "wharf_plugin_registrations",
            "What came of registration sockets, by outcome",
            self.outcomes.clone(),
        );
        registry.register(
            "wharf_plugins_registered",
            "Drivers that are registered on this node",
            self.registered.clone(),
        );
    }

    pub(super) fn count(&self, outcome: Outcome) {
        let outcome = match outcome {
            Outcome::Registered => "registered",
            Outcome::Silent => "silent",
            Outcome::Refused => "refused",
            Outcome::Deregistered => "deregistered",
        };
        self.outcomes.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(super) fn registered(&self, count: usize) {
        self.registered.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}
