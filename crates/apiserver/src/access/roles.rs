//! Who may do what: the built-in roles, as data.
//!
//! | Role | Who |
//! |---|---|
//! | all | group `system:masters` |
//! | sidecar | group `wharf:sidecar`; service accounts of the namespaces `kube-system` and `wharf`, where drivers run |
//! | node | group `system:nodes`, one by one in [`super::node`] |
//! | discovery, questions about oneself | everybody who is known |
//! | keys of service-account tokens | every service account |
//! | health and version | everybody |
//!
//! Service accounts of other namespaces have no role: a token in any pod would else open every secret.

use super::{AUTHENTICATED, Attributes, MASTERS, NODES, SIDECARS, UNAUTHENTICATED, User};

/// What may be done. Either about resources or about paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) verbs: &'static [&'static str],
    pub(super) groups: &'static [&'static str],
    /// As `pods` and `pods/status`.
    pub(super) resources: &'static [&'static str],
    /// With `*` at the end for all that begin so.
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

const ABOUT_ONESELF: &[Rule] = &[
    resources(
        &["authorization.k8s.io"],
        &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        &["create"],
    ),
    resources(&["authentication.k8s.io"], &["selfsubjectreviews"], &["create"]),
];

/// What is answered to anybody, known or not.
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

/// `deploy/sidecar-rbac.yaml`, the snapshot controller's and the snapshot-metadata service's together, in every
/// namespace.
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

/// What a node's agent may do whatever it is about; the rest is asked of [`super::node`].
const NODE: &[Rule] = &[
    resources(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
    resources(&["authorization.k8s.io"], &["subjectaccessreviews", "localsubjectaccessreviews"], &["create"]),
    resources(&["", "events.k8s.io"], &["events"], &["create", "update", "patch"]),
    resources(&["storage.k8s.io"], &["csidrivers"], READ),
];

/// Which group has which rules.
const ROLES: &[(&str, &[Rule])] = &[
    (MASTERS, ALL),
    (SIDECARS, SIDECAR),
    ("system:serviceaccounts:kube-system", SIDECAR),
    ("system:serviceaccounts:wharf", SIDECAR),
    (NODES, NODE),
    ("system:serviceaccounts", ISSUER_DISCOVERY),
    (AUTHENTICATED, DISCOVERY),
    (AUTHENTICATED, ABOUT_ONESELF),
    (AUTHENTICATED, PUBLIC_RULES),
    (UNAUTHENTICATED, PUBLIC_RULES),
];

/// The rules of all groups that the user is in.
pub(super) fn of(user: &User) -> impl Iterator<Item = &'static Rule> + '_ {
    let roles = ROLES.iter().filter(|(group, _)| user.is_in(group));
    roles.flat_map(|(_, rules)| *rules)
}

impl Rule {
    pub(super) fn allows(&self, asked: &Attributes<'_>) -> bool {
        let any = |of: &[&str], word: &str| of.iter().any(|&known| known == "*" || known == word);
        if !any(self.verbs, asked.verb) {
            return false;
        }
        if asked.is_resource() {
            any(self.groups, asked.group) && self.resources.iter().any(|of| is_resource(of, asked))
        } else {
            self.paths.iter().any(|&path| match path.strip_suffix('*') {
                Some(beginning) => asked.path.starts_with(beginning),
                None => asked.path == path,
            })
        }
    }
}

fn is_resource(rule: &str, asked: &Attributes<'_>) -> bool {
    match rule.split_once('/') {
        _ if rule == "*" => true,
        Some((resource, subresource)) => resource == asked.resource && subresource == asked.subresource,
        None => rule == asked.resource && asked.subresource.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn may(user: &User, asked: &Attributes<'_>) -> bool {
        of(user).any(|rule| rule.allows(asked))
    }

    #[test]
    fn paths_and_resources() {
        let known = User::new("somebody", &[]);
        let account = User::service_account("ns", "app", "");
        let driver = User::service_account("kube-system", "driver", "");
        let cases = [
            // (who, verb, group, resource, subresource, path, may)
            (&known, "get", "", "", "", "/api", true),
            (&known, "get", "", "", "", "/apis/storage.k8s.io/v1", true),
            (&known, "get", "", "", "", "/apisx", false),
            (&known, "post", "", "", "", "/api", false),
            (&known, "get", "", "", "", "/openid/v1/jwks", false),
            (&account, "get", "", "", "", "/openid/v1/jwks", true),
            (&known, "create", "authorization.k8s.io", "selfsubjectaccessreviews", "", "", true),
            (&known, "create", "authorization.k8s.io", "subjectaccessreviews", "", "", false),
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
            let asked = Attributes { verb, group, resource, subresource, path, ..Attributes::default() };
            assert_eq!(may(user, &asked), expected, "{} {asked:?}", user.name);
        }
    }

    #[derive(Deserialize)]
    struct Manifest {
        #[serde(default)]
        rules: Vec<Written>,
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Written {
        api_groups: Vec<String>,
        resources: Vec<String>,
        verbs: Vec<String>,
    }

    /// On this server a sidecar may do at least what our manifests ask for on a cluster, and what upstream's do.
    #[test]
    fn a_sidecar_may_do_what_the_manifests_say() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        let files = [
            "deploy/sidecar-rbac.yaml",
            "deploy/local.yaml",
            "deploy/digitalocean.yaml",
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
        let mut asked_for = 0;
        for file in files {
            let text = std::fs::read_to_string(format!("{root}{file}")).unwrap();
            for part in text.split("\n---\n").filter(|part| part.contains("\nrules:")) {
                let manifest: Manifest = serde_saphyr::from_str(part).unwrap();
                for rule in manifest.rules {
                    for (group, resource, verb) in every(&rule) {
                        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                        let asked =
                            Attributes { verb, group, resource, subresource, ..Attributes::default() };
                        assert!(may(&sidecar, &asked), "{file}: {asked:?}");
                        asked_for += 1;
                    }
                }
            }
        }
        assert!(asked_for > 100, "only {asked_for} rules were read");
    }

    fn every(rule: &Written) -> impl Iterator<Item = (&str, &str, &str)> {
        rule.api_groups.iter().flat_map(move |group| {
            rule.resources.iter().flat_map(move |resource| {
                rule.verbs.iter().map(move |verb| (group.as_str(), resource.as_str(), verb.as_str()))
            })
        })
    }
}
