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
    let (mut api, mut name) = (Pod::API, pod.to_owned());
    let mut left = levels;
    loop {
        let key = Key::namespaced(namespace, &name);
        let object = cluster.get_raw(&api, &key).await?;
        let meta = object.and_then(|mut object| serde_json::from_value(object["metadata"].take()).ok());
        let Some(meta): Option<Meta> = meta else { return Err(OwnerError::Missing { kind: api.kind, key }) };
        if left == 0 {
            return Ok(OwnerRef {
                api_version: api.api_version(),
                kind: api.kind.to_owned(),
                name,
                uid: meta.uid,
                controller: Some(true),
            });
        }
        let kind = api.kind.to_owned();
        let controller = meta.owner_references.into_iter().find(|owner| owner.controller == Some(true));
        let owner = controller.ok_or(OwnerError::NoController { kind, name })?;
        // The last one need not be read: its reference says it all, and fewer permissions are needed.
        if left == 1 {
            return Ok(owner);
        }
        let known = CONTROLLERS
            .into_iter()
            .find(|api| api.kind == owner.kind && api.api_version() == owner.api_version);
        (api, name) = match known {
            Some(api) => (api, owner.name),
            None => return Err(OwnerError::UnknownKind { kind: owner.kind, name: owner.name }),
        };
        left -= 1;
    }
}
