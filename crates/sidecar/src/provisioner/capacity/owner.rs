//! Finds the owner of the CSIStorageCapacity objects, so that they are garbage-collected with the driver's deployment:
//! the sidecar's pod, its controller, or the controller's controller.

use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{ApiError, Cluster};
use wharf_model::{ApiResource, Key, Kind, Meta, OwnerRef, Pod, Scope};

use crate::provisioner::CapacitySettings;

/// Interval between requests while the API server is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Why no owner was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerError {
    /// The name of the sidecar's pod is not configured.
    #[error("the sidecar's pod name is unknown: set POD_NAME, or --capacity-ownerref-level=-1 for no owner")]
    NoPod,
    /// The chain of controllers is shorter than the level.
    #[error("{kind} {name} has no controller: lower --capacity-ownerref-level")]
    NoController { kind: String, name: String },
    /// The controller has a kind that the sidecar cannot read.
    #[error("the controller of {kind} {name} cannot be looked up: lower --capacity-ownerref-level")]
    UnknownKind { kind: String, name: String },
    /// An object of the chain does not exist.
    #[error("{kind} {key} does not exist: check that POD_NAME and NAMESPACE name the sidecar's pod")]
    Missing { kind: &'static str, key: Key },
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// The kinds that can control the sidecar's pod, directly or through another controller.
const CONTROLLERS: [ApiResource; 4] = [
    apps("ReplicaSet", "replicasets"),
    apps("Deployment", "deployments"),
    apps("StatefulSet", "statefulsets"),
    apps("DaemonSet", "daemonsets"),
];

const fn apps(kind: &'static str, plural: &'static str) -> ApiResource {
    ApiResource { group: "apps", version: "v1", kind, plural, scope: Scope::Namespaced }
}

/// Finds the owner. Retries while the server is unavailable; other errors are returned.
pub(super) async fn owner(
    cluster: &Cluster,
    namespace: &str,
    settings: &CapacitySettings,
) -> Result<Option<OwnerRef>, OwnerError> {
    let Ok(levels) = u32::try_from(settings.owner_level) else { return Ok(None) };
    let Some(pod) = &settings.pod else { return Err(OwnerError::NoPod) };
    loop {
        match find_owner(cluster, namespace, pod, levels).await {
            Err(OwnerError::Api(error @ (ApiError::Unavailable(_) | ApiError::TooManyRequests { .. }))) => {
                tracing::warn!(%error, "failed to find owner for CSIStorageCapacity objects; retrying");
                sleep(RETRY_INTERVAL).await;
            }
            found => return found.map(Some),
        }
    }
}

async fn find_owner(
    cluster: &Cluster,
    namespace: &str,
    pod: &str,
    levels: u32,
) -> Result<OwnerRef, OwnerError> {
    let (mut api, mut name, mut left) = (Pod::API, pod.to_owned(), levels);
    loop {
        let key = Key::namespaced(namespace, &name);
        let object = cluster.get_raw(&api, &key).await?;
        let meta = object.and_then(|mut object| serde_json::from_value(object["metadata"].take()).ok());
        let Some(meta): Option<Meta> = meta else { return Err(OwnerError::Missing { kind: api.kind, key }) };
        match next(&api, meta, left)? {
            OwnerLookup::Found(owner) => return Ok(owner),
            OwnerLookup::Parent(parent, parent_name) => (api, name, left) = (parent, parent_name, left - 1),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum OwnerLookup {
    /// The owner is found.
    Found(OwnerRef),
    /// Continue with this object.
    Parent(ApiResource, String),
}

/// The next lookup from an object that is `left` levels below the owner.
fn next(api: &ApiResource, meta: Meta, left: u32) -> Result<OwnerLookup, OwnerError> {
    let (kind, name) = (api.kind.to_owned(), meta.name);
    if left == 0 {
        let (api_version, uid) = (api.api_version(), meta.uid);
        return Ok(OwnerLookup::Found(OwnerRef {
            api_version,
            kind,
            name,
            uid,
            controller: Some(true),
            block_owner_deletion: None,
        }));
    }
    let controller = meta.owner_references.into_iter().find(|owner| owner.controller == Some(true));
    let owner = controller.ok_or(OwnerError::NoController { kind, name })?;
    // The owner itself need not be read: the reference is sufficient, and that needs fewer permissions.
    if left == 1 {
        return Ok(OwnerLookup::Found(owner));
    }
    let is_owner_kind = |api: &ApiResource| api.kind == owner.kind && api.api_version() == owner.api_version;
    match CONTROLLERS.into_iter().find(is_owner_kind) {
        Some(api) => Ok(OwnerLookup::Parent(api, owner.name)),
        None => Err(OwnerError::UnknownKind { kind: owner.kind, name: owner.name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(api_version: &str, kind: &str, controller: Option<bool>) -> OwnerRef {
        let (name, uid) = ("parent".to_owned(), "u-parent".to_owned());
        OwnerRef {
            api_version: api_version.into(),
            kind: kind.into(),
            name,
            uid,
            controller,
            block_owner_deletion: None,
        }
    }

    /// sidecars.md 1.1 "Capacity": ownerRef level.
    #[test]
    fn owner_is_found_at_configured_level() {
        let pod = |owners: Vec<OwnerRef>| Meta {
            name: "pod".into(),
            uid: "u".into(),
            owner_references: owners,
            ..Meta::default()
        };
        let replica_set = || reference("apps/v1", "ReplicaSet", Some(true));
        let own = OwnerRef {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: "pod".into(),
            uid: "u".into(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        assert_eq!(next(&Pod::API, pod(vec![replica_set()]), 0).unwrap(), OwnerLookup::Found(own));
        let other = reference("v1", "ConfigMap", None);
        assert_eq!(
            next(&Pod::API, pod(vec![other.clone(), replica_set()]), 1).unwrap(),
            OwnerLookup::Found(replica_set())
        );
        assert_eq!(
            next(&Pod::API, pod(vec![replica_set()]), 2).unwrap(),
            OwnerLookup::Parent(apps("ReplicaSet", "replicasets"), "parent".into())
        );
        for (owners, left, text) in [
            (vec![], 1, "Pod pod has no controller: lower --capacity-ownerref-level"),
            (vec![other], 1, "Pod pod has no controller: lower --capacity-ownerref-level"),
            (
                vec![reference("x.dev/v1", "ReplicaSet", Some(true))],
                2,
                "the controller of ReplicaSet parent cannot be looked up: lower --capacity-ownerref-level",
            ),
        ] {
            assert_eq!(next(&Pod::API, pod(owners), left).unwrap_err().to_string(), text);
        }
    }
}
