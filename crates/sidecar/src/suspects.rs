//! The durable list of suspected orphans: volumes and snapshots that may exist in the driver although no object refers
//! to them, because the driver never said what an earlier call created ([`Doubt`](crate::doubt::Doubt)).
//!
//! Each suspect is a Lease without a holder in the sidecar's own namespace, the one kind that upstream's rules allow a
//! provisioner and a snapshotter to create there. Nothing waits for it and no sidecar acts on it: an operator looks for
//! the volume or snapshot in the storage, then deletes the Lease. The list is bounded, see [`MAX_SUSPECTS`].

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, WatchOptions};
use wharf_model::{Key, Kind, Lease};

use crate::context::Context;
use crate::lease_label::{fnv1a, label_value};

/// The event reason of a suspect, on the object that it was made for.
pub(crate) const EVENT_REASON: &str = "SuspectedOrphan";
/// How many suspects are stored per driver. Further ones are only logged and counted.
const MAX_SUSPECTS: usize = 100;
/// The label with the driver's name.
const DRIVER: &str = "suspects.wharf.dev/driver";
/// The label with the kind of the suspect.
const KIND: &str = "suspects.wharf.dev/kind";
/// The annotation that describes the suspect, as JSON.
const SUSPECT: &str = "suspects.wharf.dev/suspect";

/// What may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuspectKind {
    Volume,
    Snapshot,
    GroupSnapshot,
}

impl SuspectKind {
    fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::GroupSnapshot => "groupsnapshot",
        }
    }

    fn call(self) -> &'static str {
        match self {
            Self::Volume => "CreateVolume",
            Self::Snapshot => "CreateSnapshot",
            Self::GroupSnapshot => "CreateVolumeGroupSnapshot",
        }
    }
}

/// Something that may exist in the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) kind: SuspectKind,
    /// The name in the request to the driver.
    pub(crate) name: String,
    /// The claim, VolumeSnapshot or VolumeGroupSnapshot that it was to be created for.
    pub(crate) object: Key,
    pub(crate) uid: String,
    /// The volumes that the snapshot was to be taken of.
    pub(crate) sources: Vec<String>,
}

impl Suspect {
    /// The text of the event.
    pub(crate) fn note(&self, driver: &str) -> String {
        let (kind, name, call) = (self.kind.name(), &self.name, self.kind.call());
        format!(
            "{kind} {name:?} may exist in driver {driver} although no object refers to it: the driver never answered \
             conclusively whether an earlier {call} created it. Check the storage, and delete it there if it exists"
        )
    }

    fn lease_name(&self, driver: &str) -> String {
        let what = format!("{}/{}", self.kind.name(), self.name);
        format!("wharf-suspect-{:08x}-{:016x}", fnv1a(driver) as u32, fnv1a(&what))
    }

    fn lease(&self, driver: &str, node: Option<&str>) -> Value {
        let mut described = json!({
            "driver": driver, "kind": self.kind.name(), "name": self.name, "uid": self.uid,
            "object": self.object.to_string(),
        });
        if let Some(node) = node {
            described["node"] = json!(node);
        }
        if !self.sources.is_empty() {
            described["sources"] = json!(self.sources);
        }
        json!({
            "apiVersion": Lease::API.api_version(),
            "kind": Lease::API.kind,
            "metadata": {
                "name": self.lease_name(driver),
                "labels": {DRIVER: label_value(driver), KIND: self.kind.name()},
                "annotations": {SUSPECT: described.to_string()},
            },
            "spec": {},
        })
    }
}

/// Records a suspect in the log, the metrics and the list. Only after that the caller may forget the call. Fails if
/// the API server may accept the Lease later.
pub(crate) async fn record(context: &Context, suspect: &Suspect) -> Result<(), ApiError> {
    let driver = context.driver.name();
    let stored = match store(context, driver, suspect).await {
        Ok(stored) => stored,
        Err(error) if may_succeed_later(&error) => return Err(error),
        Err(error) => Stored::No(error.to_string()),
    };
    context.metrics.get_or_register(SuspectMetrics::register).count(driver, suspect.kind);
    let (kind, name, object) = (suspect.kind.name(), &suspect.name, suspect.object.to_string());
    match stored {
        Stored::Lease(lease) => {
            tracing::warn!(driver, kind, name, object, lease, "recorded suspected orphan");
        }
        Stored::No(error) => {
            tracing::warn!(driver, kind, name, object, error, "failed to store suspected orphan as a Lease");
        }
    }
    Ok(())
}

enum Stored {
    Lease(String),
    /// Only logged and counted, for this reason.
    No(String),
}

async fn store(context: &Context, driver: &str, suspect: &Suspect) -> Result<Stored, ApiError> {
    let (cluster, namespace) = (&context.cluster, &context.namespace);
    if count(cluster, namespace, driver).await? >= MAX_SUSPECTS {
        return Ok(Stored::No(format!(
            "the list has {MAX_SUSPECTS} entries: check them and delete their Leases ({DRIVER}={driver})"
        )));
    }
    let node = context.node.as_ref().map(|node| node.name.as_str());
    let lease = suspect.lease_name(driver);
    match cluster.create(&Lease::API, Some(namespace), &suspect.lease(driver, node)).await {
        // The same name was suspected before.
        Ok(_) | Err(ApiError::AlreadyExists(_)) => Ok(Stored::Lease(lease)),
        Err(error) => Err(error),
    }
}

async fn count(cluster: &Cluster, namespace: &str, driver: &str) -> Result<usize, ApiError> {
    let options = WatchOptions {
        namespace: Some(namespace.to_owned()),
        label_selector: Some(format!("{DRIVER}={}", label_value(driver))),
        ..WatchOptions::default()
    };
    let list = cluster.list::<Lease>(&options).await?;
    Ok(list.items.len() + list.undecodable.len())
}

/// Whether the request may succeed later. If not, waiting for it would block what the suspect was made for.
fn may_succeed_later(error: &ApiError) -> bool {
    match error {
        ApiError::TooManyRequests { .. } | ApiError::Unavailable(_) | ApiError::Gone(_) => true,
        ApiError::Other { status, .. } => matches!(status, 0 | 401 | 500..=599),
        ApiError::NotFound(_)
        | ApiError::NotServed(_)
        | ApiError::Conflict(_)
        | ApiError::AlreadyExists(_)
        | ApiError::Forbidden(_)
        | ApiError::Terminating(_)
        | ApiError::Invalid(_) => false,
    }
}

#[derive(Clone)]
struct SuspectMetrics {
    suspects: Family<[(&'static str, String); 2], Counter>,
}

impl SuspectMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self { suspects: Family::default() };
        registry.register(
            "wharf_suspected_orphans",
            "Volumes and snapshots that may exist in the driver although no object refers to them",
            metrics.suspects.clone(),
        );
        metrics
    }

    fn count(&self, driver: &str, kind: SuspectKind) {
        let labels = [("driver_name", driver.to_owned()), ("kind", kind.name().to_owned())];
        self.suspects.get_or_create(&labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::provisioner::testing::context;

    fn suspect() -> Suspect {
        Suspect {
            kind: SuspectKind::Volume,
            name: "pvc-u1".into(),
            object: Key::namespaced("shop", "data"),
            uid: "u1".into(),
            sources: Vec::new(),
        }
    }

    /// Records a suspect while the list has this many entries and creating another one gets this response.
    async fn recorded(entries: usize, response: (u16, &'static str)) -> (bool, Vec<Value>, bool) {
        let created = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&created);
        let context = context(move |method, _, body| match method {
            "GET" => {
                let item = |index: usize| json!({"metadata": {"name": format!("s{index}")}, "spec": {}});
                let items: Vec<_> = (0..entries).map(item).collect();
                (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}))
            }
            _ => {
                seen.lock().unwrap().push(body.clone());
                let (status, reason) = response;
                (status, json!({"kind": "Status", "reason": reason, "message": "no", "metadata": {}}))
            }
        });
        let done = record(&context, &suspect()).await.is_ok();
        let line = r#"wharf_suspected_orphans_total{driver_name="d.test",kind="volume"} 1"#;
        let counted = context.metrics.encode().contains(line);
        let created = created.lock().unwrap().clone();
        (done, created, counted)
    }

    #[tokio::test]
    async fn suspect_is_stored_as_lease_without_holder() {
        let (done, created, counted) = recorded(0, (201, "")).await;
        assert!(done && counted);
        let [lease] = created.as_slice() else { panic!("{created:?}") };
        let name = lease["metadata"]["name"].as_str().unwrap();
        assert!(wharf_model::names::is_dns_label(name), "{name}");
        assert_eq!(lease["spec"], json!({}));
        assert_eq!(lease["metadata"]["labels"], json!({DRIVER: "d.test", KIND: "volume"}));
        let described = lease["metadata"]["annotations"][SUSPECT].as_str().unwrap();
        let described: Value = serde_json::from_str(described).unwrap();
        assert_eq!((&described["name"], &described["object"]), (&json!("pvc-u1"), &json!("shop/data")));
    }

    #[tokio::test]
    async fn suspect_that_cannot_be_stored_blocks_nothing() {
        for (entries, response, done, requests) in [
            (MAX_SUSPECTS, (201, ""), true, 0),
            (MAX_SUSPECTS - 1, (201, ""), true, 1),
            (0, (409, "AlreadyExists"), true, 1),
            (0, (403, "Forbidden"), true, 1),
            (0, (422, "Invalid"), true, 1),
            // The server may accept it later.
            (0, (503, "ServiceUnavailable"), false, 1),
            (0, (500, "InternalError"), false, 1),
        ] {
            let (is_done, created, counted) = recorded(entries, response).await;
            assert_eq!((is_done, created.len(), counted), (done, requests, done), "{entries} {response:?}");
        }
    }
}
