//! Event, in both of its groups.

use super::{BASE, Kind};

/// What happened, as the core group has it.
pub(super) static EVENT: Kind = Kind {
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    namespaced: true,
    create_on_update: true,
    ..BASE
};

/// What happened, as events.k8s.io has it. Both are one store: the core group's.
pub(super) static NEW_EVENT: Kind = Kind {
    group: "events.k8s.io",
    kind: "Event",
    plural: "events",
    singular: "event",
    short_names: &["ev"],
    namespaced: true,
    create_on_update: true,
    ..BASE
};
