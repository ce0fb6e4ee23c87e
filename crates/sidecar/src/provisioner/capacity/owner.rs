//! Who owns the objects, so that they go when the driver's deployment does: our pod, or what controls it, or what
//! controls that.

use std::time::Duration;

use tokio::time::sleep;
use wharf_cluster::{ApiError, Cluster};
use wharf_model::{Api, Key, Kind, Meta, OwnerRef, Pod, Scope};

use crate::provisioner::CapacitySettings;

/// Between questions to a server that does not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no owner.
#[derive(Debug, thiserror::Error)]
pub(super) enum OwnerError {
    /// Nobody said which pod we are.
    #[error("the name of our pod is not known: set POD_NAME, or --capacity-ownerref-level=-1 for no owner")]
    NoPod,
    /// The chain ends too early.
    #[error("{kind} {name} is controlled by nothing: lower --capacity-ownerref-level")]
    NoController { kind: String, name: String },
    /// What kind that is we do not know.
    #[error(
        "{kind} {name} is of a kind whose controller cannot be looked up: lower --capacity-ownerref-level"
    )]
    UnknownKind { kind: String, name: String },
    /// It is not there.
    #[error("{kind} {key} does not exist: do POD_NAME and NAMESPACE name our pod?")]
    Missing { kind: &'static str, key: Key },
    /// The server did not tell.
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Kinds that control pods, and those that control these.
const CONTROLLERS: [Api; 4] = [
    apps("ReplicaSet", "replicasets"),
    apps("Deployment", "deployments"),
    apps("StatefulSet", "statefulsets"),
    apps("DaemonSet", "daemonsets"),
];

const fn apps(kind: &'static str, plural: &'static str) -> Api {
    Api { group: "apps", version: "v1", kind, plural, scope: Scope::Namespaced }
}

/// Finds the owner. A server that does not answer is asked again; for other reasons there is none.
pub(super) async fn owner(
    cluster: &Cluster,
    namespace: &str,
    settings: &CapacitySettings,
) -> Result<Option<OwnerRef>, OwnerError> {
    let Ok(levels) = u32::try_from(settings.owner_level) else { return Ok(None) };
    let Some(pod) = &settings.pod else { return Err(OwnerError::NoPod) };
    loop {
        match climb(cluster, namespace, pod, levels).await {
            Err(OwnerError::Api(error @ (ApiError::Unavailable(_) | ApiError::TooManyRequests { .. }))) => {
                tracing::warn!(%error, "cannot find the owner for capacities yet, asking on");
                sleep(PAUSE).await;
            }
            found => return found.map(Some),
        }
    }
}

async fn climb(cluster: &Cluster, namespace: &str, pod: &str, levels: u32) -> Result<OwnerRef, OwnerError> {
    let (mut api, mut name, mut left) = (Pod::API, pod.to_owned(), levels);
    loop {
        let key = Key::namespaced(namespace, &name);
        let object = cluster.get_raw(&api, &key).await?;
        let meta = object.and_then(|mut object| serde_json::from_value(object["metadata"].take()).ok());
        let Some(meta): Option<Meta> = meta else { return Err(OwnerError::Missing { kind: api.kind, key }) };
        match next(&api, meta, left)? {
            Climb::Found(owner) => return Ok(owner),
            Climb::Up(above, above_name) => (api, name, left) = (above, above_name, left - 1),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Climb {
    /// This is it.
    Found(OwnerRef),
    /// Look at this one.
    Up(Api, String),
}

/// Where an object leads that is so many levels below the owner.
fn next(api: &Api, meta: Meta, left: u32) -> Result<Climb, OwnerError> {
    let (kind, name) = (api.kind.to_owned(), meta.name);
    if left == 0 {
        let (api_version, uid) = (api.api_version(), meta.uid);
        return Ok(Climb::Found(OwnerRef { api_version, kind, name, uid, controller: Some(true) }));
    }
    let controller = meta.owner_references.into_iter().find(|owner| owner.controller == Some(true));
    let owner = controller.ok_or(OwnerError::NoController { kind, name })?;
    // The last one need not be read: its reference says it all, and fewer permissions are needed.
    if left == 1 {
        return Ok(Climb::Found(owner));
    }
    let is_its = |api: &Api| api.kind == owner.kind && api.api_version() == owner.api_version;
    match CONTROLLERS.into_iter().find(is_its) {
        Some(api) => Ok(Climb::Up(api, owner.name)),
        None => Err(OwnerError::UnknownKind { kind: owner.kind, name: owner.name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(api_version: &str, kind: &str, controller: Option<bool>) -> OwnerRef {
        let (name, uid) = ("above".to_owned(), "u-above".to_owned());
        OwnerRef { api_version: api_version.into(), kind: kind.into(), name, uid, controller }
    }

    /// sidecars.md 1.1 "Capacity": ownerRef level.
    #[test]
    fn up_the_chain() {
        let pod = |owners: Vec<OwnerRef>| Meta {
            name: "pod".into(),
            uid: "u".into(),
            owner_references: owners,
            ..Meta::default()
        };
        let set = || reference("apps/v1", "ReplicaSet", Some(true));
        let own = OwnerRef {
            api_version: "v1".into(),
            kind: "Pod".into(),
            name: "pod".into(),
            uid: "u".into(),
            controller: Some(true),
        };
        assert_eq!(next(&Pod::API, pod(vec![set()]), 0).unwrap(), Climb::Found(own));
        let other = reference("v1", "ConfigMap", None);
        assert_eq!(next(&Pod::API, pod(vec![other.clone(), set()]), 1).unwrap(), Climb::Found(set()));
        assert_eq!(
            next(&Pod::API, pod(vec![set()]), 2).unwrap(),
            Climb::Up(apps("ReplicaSet", "replicasets"), "above".into())
        );
        for (owners, left, text) in [
            (vec![], 1, "Pod pod is controlled by nothing: lower --capacity-ownerref-level"),
            (vec![other], 1, "Pod pod is controlled by nothing: lower --capacity-ownerref-level"),
            (
                vec![reference("x.dev/v1", "ReplicaSet", Some(true))],
                2,
                "ReplicaSet above is of a kind whose controller cannot be looked up: lower --capacity-ownerref-level",
            ),
        ] {
            assert_eq!(next(&Pod::API, pod(owners), left).unwrap_err().to_string(), text);
        }
    }
}
