//! Pod: what runs on a node and uses volumes.

use super::{BASE, Kind, Subresource};

/// What runs on a node and uses volumes.
pub(super) static POD: Kind = Kind {
    kind: "Pod",
    plural: "pods",
    singular: "pod",
    short_names: &["po"],
    namespaced: true,
    categories: &["all"],
    subresources: &[
        Subresource { name: "binding", group: "", version: "v1", kind: "Binding", verbs: &["create"] },
        Subresource {
            name: "eviction",
            group: "policy",
            version: "v1",
            kind: "Eviction",
            verbs: &["create"],
        },
        Subresource {
            name: "exec",
            group: "",
            version: "v1",
            kind: "PodExecOptions",
            verbs: &["create", "get"],
        },
        Subresource { name: "log", group: "", version: "v1", kind: "Pod", verbs: &["get"] },
        Subresource::status("", "Pod"),
    ],
    graceful: true,
    ..BASE
};
