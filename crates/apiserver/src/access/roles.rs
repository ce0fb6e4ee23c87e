//! The built-in roles, as data.
//!
//! | Role | Subjects |
//! |---|---|
//! | all | group `system:masters` |
//! | sidecar | group `wharf:sidecar`; service accounts of the namespaces `kube-system` and `wharf`, where drivers run |
//! | node | group `system:nodes`, with per-object rules in [`super::node`] |
//! | discovery, self reviews | all authenticated users |
//! | issuer discovery: the public keys of service account tokens | all service accounts |
//! | health and version | everyone |
//!
//! Service accounts of other namespaces do not have the sidecar role: with it, the token in any pod would give access
//! to every Secret.

use super::{AUTHENTICATED, Attributes, MASTERS, NODES, SIDECARS, UNAUTHENTICATED, User};

/// A permission, for either resources or paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) verbs: &'static [&'static str],
    pub(super) groups: &'static [&'static str],
    /// For example `pods` and `pods/status`.
    pub(super) resources: &'static [&'static str],
    /// A trailing `*` matches any suffix.
    pub(super) paths: &'static [&'static str],
}

const fn resources(
    groups: &'static [&'static str],
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
) -> Rule {
    Rule { verbs, groups, resources, paths: &[] }
}

const fn paths(paths: &'static [&'static str], verbs: &'static [&'static str]) -> Rule {
    Rule { verbs, groups: &[], resources: &[], paths }
}

const READ: &[&str] = &["get", "list", "watch"];
const ALL: &[Rule] = &[resources(&["*"], &["*"], &["*"]), paths(&["*"], &["*"])];

const DISCOVERY: &[Rule] = &[paths(
    &[
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ],
    &["get"],
)];

const SELF_REVIEW: &[Rule] = &[
    resources(
        &["authorization.k8s.io"],
        &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        &["create"],
    ),
    resources(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
];

/// Paths that are also open to anonymous users.
pub(super) const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version", "/version/"];
const PUBLIC_RULES: &[Rule] = &[paths(PUBLIC, &["get"])];

const ISSUER_DISCOVERY: &[Rule] = &[paths(
    &[
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/",
        "/openid/v1/jwks",
        "/openid/v1/jwks/",
    ],
    &["get"],
)];

/// The combined rules of `deploy/sidecar-rbac.yaml`, `deploy/snapshot-controller.yaml` and
/// `deploy/snapshot-metadata.yaml`, in every namespace.
const SIDECAR: &[Rule] = &[
    resources(
        &[""],
        &["persistentvolumes"],
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    resources(&[""], &["persistentvolumeclaims"], &["get", "list", "watch", "update", "patch"]),
    resources(&[""], &["persistentvolumeclaims/status", "persistentvolumes/status"], &["update", "patch"]),
    resources(&[""], &["pods", "nodes"], READ),
    resources(&[""], &["secrets"], &["get"]),
    resources(&["", "events.k8s.io"], &["events"], &["get", "list", "watch", "create", "update", "patch"]),
    resources(
        &["storage.k8s.io"],
        &["storageclasses", "csinodes", "csidrivers", "volumeattributesclasses"],
        READ,
    ),
    resources(&["storage.k8s.io"], &["volumeattachments"], &["get", "list", "watch", "update", "patch"]),
    resources(&["storage.k8s.io"], &["volumeattachments/status"], &["update", "patch"]),
    resources(
        &["storage.k8s.io"],
        &["csistoragecapacities"],
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    resources(
        &["snapshot.storage.k8s.io"],
        &["volumesnapshots", "volumesnapshotcontents"],
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    resources(
        &["snapshot.storage.k8s.io"],
        &["volumesnapshots/status", "volumesnapshotcontents/status"],
        &["update", "patch"],
    ),
    resources(&["snapshot.storage.k8s.io"], &["volumesnapshotclasses"], READ),
    resources(
        &["groupsnapshot.storage.k8s.io"],
        &["volumegroupsnapshots", "volumegroupsnapshotcontents"],
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    resources(
        &["groupsnapshot.storage.k8s.io"],
        &["volumegroupsnapshots/status", "volumegroupsnapshotcontents/status"],
        &["update", "patch"],
    ),
    resources(&["groupsnapshot.storage.k8s.io"], &["volumegroupsnapshotclasses"], READ),
    resources(&["cbt.storage.k8s.io"], &["snapshotmetadataservices"], READ),
    resources(
        &["coordination.k8s.io"],
        &["leases"],
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    resources(&["apps"], &["replicasets"], &["get"]),
    resources(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
    resources(&["authorization.k8s.io"], &["subjectaccessreviews"], &["create"]),
];

/// Permissions that do not depend on the object; [`super::node`] authorizes all other requests of a node agent.
const NODE: &[Rule] = &[
    resources(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
    resources(&["authorization.k8s.io"], &["subjectaccessreviews", "localsubjectaccessreviews"], &["create"]),
    resources(&["", "events.k8s.io"], &["events"], &["create", "update", "patch"]),
    resources(&["storage.k8s.io"], &["csidrivers"], READ),
];

/// The rules of each group.
const ROLES: &[(&str, &[Rule])] = &[
    (MASTERS, ALL),
    (SIDECARS, SIDECAR),
    ("system:serviceaccounts:kube-system", SIDECAR),
    ("system:serviceaccounts:wharf", SIDECAR),
    (NODES, NODE),
    ("system:serviceaccounts", ISSUER_DISCOVERY),
    (AUTHENTICATED, DISCOVERY),
    (AUTHENTICATED, SELF_REVIEW),
    (AUTHENTICATED, PUBLIC_RULES),
    (UNAUTHENTICATED, PUBLIC_RULES),
];

/// The rules of all groups of the user.
pub(super) fn rules_for(user: &User) -> impl Iterator<Item = &'static Rule> + '_ {
    let roles = ROLES.iter().filter(|(group, _)| user.is_in(group));
    roles.flat_map(|(_, rules)| *rules)
}

impl Rule {
    pub(super) fn allows(&self, attrs: &Attributes<'_>) -> bool {
        let any = |allowed: &[&str], value: &str| allowed.iter().any(|&entry| entry == "*" || entry == value);
        if !any(self.verbs, attrs.verb) {
            return false;
        }
        if attrs.is_resource() {
            any(self.groups, attrs.group) && self.resources.iter().any(|rule| is_resource(rule, attrs))
        } else {
            self.paths.iter().any(|&path| match path.strip_suffix('*') {
                Some(prefix) => attrs.path.starts_with(prefix),
                None => attrs.path == path,
            })
        }
    }
}

fn is_resource(rule: &str, attrs: &Attributes<'_>) -> bool {
    match rule.split_once('/') {
        _ if rule == "*" => true,
        Some((resource, subresource)) => resource == attrs.resource && subresource == attrs.subresource,
        None => rule == attrs.resource && attrs.subresource.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn allows(user: &User, attrs: &Attributes<'_>) -> bool {
        rules_for(user).any(|rule| rule.allows(attrs))
    }

    #[test]
    fn rules_match_paths_and_resources() {
        let jane = User::new("jane", &[]);
        let account = User::service_account("ns", "app", "");
        let driver = User::service_account("kube-system", "driver", "");
        let cases = [
            // (user, verb, group, resource, subresource, path, allowed)
            (&jane, "get", "", "", "", "/api", true),
            (&jane, "get", "", "", "", "/apis/storage.k8s.io/v1", true),
            (&jane, "get", "", "", "", "/apisx", false),
            (&jane, "post", "", "", "", "/api", false),
            (&jane, "get", "", "", "", "/openid/v1/jwks", false),
            (&account, "get", "", "", "", "/openid/v1/jwks", true),
            (&jane, "create", "authorization.k8s.io", "selfsubjectaccessreviews", "", "", true),
            (&jane, "create", "authorization.k8s.io", "subjectaccessreviews", "", "", false),
            (&account, "get", "", "secrets", "", "", false),
            (&driver, "get", "", "secrets", "", "", true),
            (&driver, "list", "", "secrets", "", "", false),
            (&driver, "patch", "", "persistentvolumeclaims", "status", "", true),
            (&driver, "patch", "", "pods", "", "", false),
            (&driver, "get", "", "pods", "log", "", false),
            (&User::anonymous(), "get", "", "", "", "/readyz", true),
            (&User::anonymous(), "get", "", "", "", "/api", false),
            (&User::admin(), "anything", "any", "thing", "whatever", "", true),
            (&User::admin(), "delete", "", "", "", "/logs", true),
        ];
        for (user, verb, group, resource, subresource, path, expected) in cases {
            let attrs = Attributes { verb, group, resource, subresource, path, ..Attributes::default() };
            assert_eq!(allows(user, &attrs), expected, "{} {attrs:?}", user.name);
        }
    }

    #[derive(Deserialize)]
    struct Manifest {
        #[serde(default)]
        rules: Vec<ManifestRule>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ManifestRule {
        api_groups: Vec<String>,
        resources: Vec<String>,
        verbs: Vec<String>,
    }

    /// On this server a sidecar has at least the permissions that Wharf's and upstream's manifests grant in a cluster.
    #[test]
    fn sidecar_has_all_permissions_of_the_manifests() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        let files = [
            "deploy/sidecar-rbac.yaml",
            "deploy/local.yaml",
            "deploy/digitalocean.yaml",
            "deploy/nfs.yaml",
            "deploy/snapshot-controller.yaml",
            "deploy/snapshot-metadata.yaml",
            "test/rbac/attacher.yaml",
            "test/rbac/health-monitor.yaml",
            "test/rbac/provisioner.yaml",
            "test/rbac/resizer.yaml",
            "test/rbac/snapshot-controller.yaml",
            "test/rbac/snapshotter.yaml",
        ];
        let sidecar = User::sidecar();
        let mut checked = 0;
        for file in files {
            let text = std::fs::read_to_string(format!("{root}{file}")).unwrap();
            for part in text.split("\n---\n").filter(|part| part.contains("\nrules:")) {
                let manifest: Manifest = serde_saphyr::from_str(part).unwrap();
                for rule in manifest.rules {
                    for (group, resource, verb) in expand(&rule) {
                        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                        let attrs =
                            Attributes { verb, group, resource, subresource, ..Attributes::default() };
                        assert!(allows(&sidecar, &attrs), "{file}: {attrs:?}");
                        checked += 1;
                    }
                }
            }
        }
        assert!(checked > 100, "only {checked} rules were read");
    }

    fn expand(rule: &ManifestRule) -> impl Iterator<Item = (&str, &str, &str)> {
        rule.api_groups.iter().flat_map(move |group| {
            rule.resources.iter().flat_map(move |resource| {
                rule.verbs.iter().map(move |verb| (group.as_str(), resource.as_str(), verb.as_str()))
            })
        })
    }
}
