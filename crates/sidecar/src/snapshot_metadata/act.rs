//! Questions to the API server on behalf of who asks. Nothing is cached: a right that was taken away, or a secret that
//! was rotated, counts at once.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_model::snapshot::secrets::SnapshotSecret;
use wharf_model::{Api, Key, Kind, Scope, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

use super::decide::{
    AccessStatus, Question, Refusal, TokenStatus, User, allowed, authenticated, content_name, default_class,
    handle, named_class,
};
use crate::secret;

const TOKEN_REVIEW: Api = Api {
    group: "authentication.k8s.io",
    version: "v1",
    kind: "TokenReview",
    plural: "tokenreviews",
    scope: Scope::Cluster,
};
const SUBJECT_ACCESS_REVIEW: Api = Api {
    group: "authorization.k8s.io",
    version: "v1",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    scope: Scope::Cluster,
};
/// Where the driver's service is announced, newest version first. Older clusters have only the older one.
const SERVICES: [Api; 2] = [service("v1beta1"), service("v1alpha1")];

const fn service(version: &'static str) -> Api {
    Api {
        group: "cbt.storage.k8s.io",
        version,
        kind: "SnapshotMetadataService",
        plural: "snapshotmetadataservices",
        scope: Scope::Cluster,
    }
}

/// What the driver is asked about, once it is clear that the question may be asked.
pub(super) struct Answerable {
    /// The driver's name of the snapshot.
    pub(super) handle: String,
    /// Of the class. Never printed.
    pub(super) secrets: BTreeMap<String, String>,
}

/// Finds out who asks, whether they may, and what the driver calls the snapshot.
pub(super) async fn resolve(
    cluster: &Cluster,
    driver: &str,
    audience: Option<&str>,
    question: &Question,
) -> Result<Answerable, Refusal> {
    let audience = match audience {
        Some(audience) => audience.to_owned(),
        None => announced_audience(cluster, driver).await?,
    };
    let user = authenticate(cluster, &question.token, &audience).await?;
    authorize(cluster, user, &question.namespace).await?;
    let snapshot =
        get::<VolumeSnapshot>(cluster, Key::namespaced(&question.namespace, &question.snapshot), |why| {
            Refusal::Snapshot { namespace: question.namespace.clone(), name: question.snapshot.clone(), why }
        })
        .await?;
    let bound = content_name(&snapshot)?;
    let content = get::<VolumeSnapshotContent>(cluster, Key::cluster(bound), |why| Refusal::Content {
        name: bound.to_owned(),
        why,
    })
    .await?;
    let handle = handle(&snapshot, &content, driver)?.to_owned();
    let secrets = secrets(cluster, driver, &snapshot, &content.metadata.name).await?;
    Ok(Answerable { handle, secrets })
}

async fn announced_audience(cluster: &Cluster, driver: &str) -> Result<String, Refusal> {
    let missing = |why: String| {
        let what = "failed to find the SnapshotMetadataService CR for driver";
        Refusal::Authentication(format!("{what} '{driver}': {why}"))
    };
    let mut found = Err(missing("the kind is not served".to_owned()));
    for api in &SERVICES {
        match cluster.get_raw(api, &Key::cluster(driver)).await {
            Ok(Some(service)) => {
                let audience = service.pointer("/spec/audience").and_then(Value::as_str);
                return audience
                    .filter(|audience| !audience.is_empty())
                    .map(str::to_owned)
                    .ok_or_else(|| missing("it names no audience".to_owned()));
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
    let failed = |why: String| Refusal::Authentication(why);
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
    let failed = |why: String| Refusal::Authorization(why);
    let created = cluster.create(&SUBJECT_ACCESS_REVIEW, None, &body).await;
    let review = created.map_err(|error| failed(error.to_string()))?;
    allowed(status::<AccessStatus>(&review).map_err(failed)?)
}

/// The status of a review. What cannot be read allows nothing.
fn status<T: for<'de> Deserialize<'de>>(review: &Value) -> Result<T, String> {
    T::deserialize(&review["status"]).map_err(|_| "the server's review cannot be read".to_owned())
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
            let refusal = |why| Refusal::Class { name: name.to_owned(), why };
            named_class(get::<VolumeSnapshotClass>(cluster, Key::cluster(name), refusal).await?, driver)?
        }
        None => {
            let listed = cluster.list::<VolumeSnapshotClass>(&WatchOptions::default()).await;
            let classes = listed.map_err(|error| Refusal::Classes(error.to_string()))?.items;
            default_class(&classes, driver)?.clone()
        }
    };
    let reference =
        SnapshotSecret::Snapshotter.reference(&class.parameters, content, Some(&snapshot.metadata))?;
    secret::read(cluster, reference.as_ref()).await.map_err(|error| Refusal::Credentials(error.to_string()))
}
