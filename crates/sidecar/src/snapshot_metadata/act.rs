//! Calls to the API server on behalf of the caller. Nothing is cached: a revoked permission or a rotated secret
//! takes effect at once.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_model::snapshot::secrets::SnapshotSecret;
use wharf_model::{
    ApiResource, Key, Kind, Scope, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};

use super::decide::{
    AccessStatus, MetadataRequest, Refusal, TokenStatus, User, allowed, authenticated, content_name,
    default_class, handle, named_class,
};
use crate::secret;

const TOKEN_REVIEW: ApiResource = ApiResource {
    group: "authentication.k8s.io",
    version: "v1",
    kind: "TokenReview",
    plural: "tokenreviews",
    scope: Scope::Cluster,
};
const SUBJECT_ACCESS_REVIEW: ApiResource = ApiResource {
    group: "authorization.k8s.io",
    version: "v1",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    scope: Scope::Cluster,
};
/// The resource that announces the driver's service, newest version first. Older clusters have only the older one.
const SERVICES: [ApiResource; 2] = [service("v1beta1"), service("v1alpha1")];

const fn service(version: &'static str) -> ApiResource {
    ApiResource {
        group: "cbt.storage.k8s.io",
        version,
        kind: "SnapshotMetadataService",
        plural: "snapshotmetadataservices",
        scope: Scope::Cluster,
    }
}

/// The snapshot to request from the driver, after authentication and authorization.
pub(super) struct ResolvedSnapshot {
    /// Snapshot handle.
    pub(super) handle: String,
    /// The secret of the class. Never logged.
    pub(super) secrets: BTreeMap<String, String>,
}

/// Authenticates and authorizes the caller, and resolves the snapshot handle.
pub(super) async fn resolve(
    cluster: &Cluster,
    driver: &str,
    audience: Option<&str>,
    request: &MetadataRequest,
) -> Result<ResolvedSnapshot, Refusal> {
    let audience = match audience {
        Some(audience) => audience.to_owned(),
        None => announced_audience(cluster, driver).await?,
    };
    let user = authenticate(cluster, &request.token, &audience).await?;
    authorize(cluster, user, &request.namespace).await?;
    let snapshot =
        get::<VolumeSnapshot>(cluster, Key::namespaced(&request.namespace, &request.snapshot), |reason| {
            Refusal::Snapshot { namespace: request.namespace.clone(), name: request.snapshot.clone(), reason }
        })
        .await?;
    let bound = content_name(&snapshot)?;
    let content = get::<VolumeSnapshotContent>(cluster, Key::cluster(bound), |reason| Refusal::Content {
        name: bound.to_owned(),
        reason,
    })
    .await?;
    let handle = handle(&snapshot, &content, driver)?.to_owned();
    let secrets = secrets(cluster, driver, &snapshot, &content.metadata.name).await?;
    Ok(ResolvedSnapshot { handle, secrets })
}

async fn announced_audience(cluster: &Cluster, driver: &str) -> Result<String, Refusal> {
    let missing = |reason: String| {
        let what = "failed to find the SnapshotMetadataService CR for driver";
        Refusal::Authentication(format!("{what} '{driver}': {reason}"))
    };
    let mut found = Err(missing("the kind is not served".to_owned()));
    for api in &SERVICES {
        match cluster.get_raw(api, &Key::cluster(driver)).await {
            Ok(Some(service)) => {
                let audience = service.pointer("/spec/audience").and_then(Value::as_str);
                return audience
                    .filter(|audience| !audience.is_empty())
                    .map(str::to_owned)
                    .ok_or_else(|| missing("spec.audience is empty".to_owned()));
            }
            Ok(None) => return Err(missing("not found".to_owned())),
            Err(ApiError::NotServed(refusal)) => found = Err(missing(refusal.to_string())),
            Err(error) => return Err(missing(error.to_string())),
        }
    }
    found
}

async fn authenticate(cluster: &Cluster, token: &str, audience: &str) -> Result<User, Refusal> {
    let body = json!({
        "apiVersion": TOKEN_REVIEW.api_version(), "kind": TOKEN_REVIEW.kind, "metadata": {},
        "spec": {"token": token, "audiences": [audience]},
    });
    let failed = |reason: String| Refusal::Authentication(reason);
    let review =
        cluster.create(&TOKEN_REVIEW, None, &body).await.map_err(|error| failed(error.to_string()))?;
    authenticated(status::<TokenStatus>(&review).map_err(failed)?, audience)
}

async fn authorize(cluster: &Cluster, user: User, namespace: &str) -> Result<(), Refusal> {
    let User { username, uid, groups, extra } = user;
    let body = json!({
        "apiVersion": SUBJECT_ACCESS_REVIEW.api_version(), "kind": SUBJECT_ACCESS_REVIEW.kind, "metadata": {},
        "spec": {
            "user": username, "uid": uid, "groups": groups, "extra": extra,
            "resourceAttributes": {
                "verb": "get", "namespace": namespace,
                "group": VolumeSnapshot::API.group, "version": VolumeSnapshot::API.version,
                "resource": VolumeSnapshot::API.plural,
            },
        },
    });
    let failed = |reason: String| Refusal::Authorization(reason);
    let created = cluster.create(&SUBJECT_ACCESS_REVIEW, None, &body).await;
    let review = created.map_err(|error| failed(error.to_string()))?;
    allowed(status::<AccessStatus>(&review).map_err(failed)?)
}

/// The status of a review. One that cannot be parsed allows nothing.
fn status<T: for<'de> Deserialize<'de>>(review: &Value) -> Result<T, String> {
    T::deserialize(&review["status"]).map_err(|_| "failed to parse the review's status".to_owned())
}

async fn get<K: Kind>(
    cluster: &Cluster,
    key: Key,
    refusal: impl Fn(String) -> Refusal,
) -> Result<K, Refusal> {
    match cluster.get::<K>(&key).await {
        Ok(Some(object)) => Ok(object),
        Ok(None) => Err(refusal("not found".to_owned())),
        Err(error) => Err(refusal(error.to_string())),
    }
}

async fn secrets(
    cluster: &Cluster,
    driver: &str,
    snapshot: &VolumeSnapshot,
    content: &str,
) -> Result<BTreeMap<String, String>, Refusal> {
    let class = match snapshot.spec.volume_snapshot_class_name.as_deref() {
        Some(name) => {
            let refusal = |reason| Refusal::Class { name: name.to_owned(), reason };
            named_class(get::<VolumeSnapshotClass>(cluster, Key::cluster(name), refusal).await?, driver)?
        }
        None => {
            let listed = cluster.list::<VolumeSnapshotClass>(&WatchOptions::default()).await;
            let classes = listed.map_err(|error| Refusal::Classes(error.to_string()))?.items;
            default_class(&classes, driver)?.clone()
        }
    };
    let reference =
        SnapshotSecret::Snapshotter.resolve(&class.parameters, content, Some(&snapshot.metadata))?;
    secret::read(cluster, reference.as_ref()).await.map_err(|error| Refusal::Credentials(error.to_string()))
}
