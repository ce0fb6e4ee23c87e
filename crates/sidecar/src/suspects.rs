//! The durable list of suspected orphans: volumes and snapshots that may exist in the driver, because the driver never
//! said what an earlier call created ([`Doubt`](crate::doubt::Doubt)). An object may refer to one of them by now: a claim
//! that starts again sends the same name, and may get exactly that volume.
//!
//! Each suspect is a Lease without a holder in the sidecar's own namespace, the one kind that upstream's rules allow a
//! provisioner and a snapshotter to create there. Nothing waits for it: an operator looks for the volume or snapshot in
//! the storage, then deletes the Lease. The process that created the Lease deletes it if it knows that a later call
//! returned the suspect. The list is bounded, see [`MAX_SUSPECTS`].

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, Preconditions, WatchOptions};
use wharf_model::{Key, Kind, Lease};

use crate::context::Context;
use crate::lease_label::{fnv1a, label_value};

/// The event reason of a suspect, on the object that it was made for.
pub(crate) const EVENT_REASON: &str = "SuspectedOrphan";
/// How many suspects are stored per driver. Further ones are only logged and counted.
pub(crate) const MAX_SUSPECTS: usize = 100;
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

    /// The object that refers to what was created.
    fn object(self) -> &'static str {
        match self {
            Self::Volume => "PersistentVolume",
            Self::Snapshot => "VolumeSnapshotContent",
            Self::GroupSnapshot => "VolumeGroupSnapshotContent",
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
        let (kind, name, object, call) = (self.kind.name(), &self.name, self.kind.object(), self.kind.call());
        let in_use = match self.kind {
            SuspectKind::Volume => format!(". {object} {name} may refer to it by now"),
            SuspectKind::Snapshot | SuspectKind::GroupSnapshot => String::new(),
        };
        format!(
            "{kind} {name:?} may exist in driver {driver}: the driver never answered conclusively whether an earlier \
             {call} created it{in_use}. Check the storage, and delete it there only if no {object} has its handle"
        )
    }

    /// With node deployment, each node may have a volume of this name.
    fn lease_name(&self, driver: &str, node: Option<&str>) -> String {
        let mut what = format!("{}/{}", self.kind.name(), self.name);
        if let Some(node) = node {
            what.push('/');
            what.push_str(node);
        }
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
                "name": self.lease_name(driver, node),
                "labels": {DRIVER: label_value(driver), KIND: self.kind.name()},
                "annotations": {SUSPECT: described.to_string()},
            },
            "spec": {},
        })
    }
}

/// The result of recording a suspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// As a new Lease, which has this UID.
    New { uid: String },
    /// It was suspected before: its Lease exists.
    Before,
    /// Only in the log and the metrics.
    NotStored,
}

impl Recorded {
    /// Whether it is to be reported. A suspect that has a Lease was reported when that was created.
    pub(crate) fn is_news(&self) -> bool {
        *self != Self::Before
    }
}

/// Records a suspect in the log, the metrics and the list. Only after that the caller may forget the call. Fails if
/// the API server may accept the Lease later.
pub(crate) async fn record(context: &Context, suspect: &Suspect) -> Result<Recorded, ApiError> {
    let driver = context.driver.name();
    let (kind, name, object) = (suspect.kind.name(), &suspect.name, suspect.object.to_string());
    let lease = suspect.lease_name(driver, node(context));
    let recorded = match store(context, driver, suspect).await {
        Ok(Ok(recorded)) => {
            tracing::warn!(driver, kind, name, object, lease, ?recorded, "recorded suspected orphan");
            recorded
        }
        Err(error) if may_succeed_later(&error) => return Err(error),
        Ok(Err(error)) => not_stored(driver, suspect, &error),
        Err(error) => not_stored(driver, suspect, &error.to_string()),
    };
    if recorded.is_news() {
        context.metrics.get_or_register(SuspectMetrics::register).count(driver, suspect.kind);
    }
    Ok(recorded)
}

fn not_stored(driver: &str, suspect: &Suspect, error: &str) -> Recorded {
    let (kind, name, object) = (suspect.kind.name(), &suspect.name, suspect.object.to_string());
    tracing::warn!(driver, kind, name, object, error, "failed to store suspected orphan as a Lease");
    Recorded::NotStored
}

fn node(context: &Context) -> Option<&str> {
    context.node.as_ref().map(|node| node.name.as_str())
}

/// Stores a suspect. The inner error is the reason why it is only logged and counted.
async fn store(
    context: &Context,
    driver: &str,
    suspect: &Suspect,
) -> Result<Result<Recorded, String>, ApiError> {
    let (cluster, namespace) = (&context.cluster, &context.namespace);
    if count(cluster, namespace, driver).await? >= MAX_SUSPECTS {
        return Ok(Err(format!(
            "the list has {MAX_SUSPECTS} entries: check them and delete their Leases ({DRIVER}={driver})"
        )));
    }
    match cluster.create(&Lease::API, Some(namespace), &suspect.lease(driver, node(context))).await {
        Ok(lease) => {
            let uid = lease.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
            Ok(Ok(Recorded::New { uid: uid.to_owned() }))
        }
        Err(ApiError::AlreadyExists(_)) => Ok(Ok(Recorded::Before)),
        Err(error) => Err(error),
    }
}

/// Deletes the Lease of a suspect that an object refers to, if it is the one with this UID. Not retried: a Lease that
/// stays asks an operator to look, no more.
pub(crate) async fn withdraw(context: &Context, suspect: &Suspect, uid: &str) {
    let driver = context.driver.name();
    let lease = suspect.lease_name(driver, node(context));
    let key = Key::namespaced(&context.namespace, &lease);
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let (kind, name) = (suspect.kind.name(), &suspect.name);
    match context.cluster.delete(&Lease::API, &key, preconditions).await {
        Ok(()) => tracing::info!(driver, kind, name, lease, "suspected orphan is in use; deleted its Lease"),
        Err(error) => {
            tracing::warn!(driver, kind, name, lease, %error, "failed to delete Lease of suspected orphan")
        }
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
            "Volumes and snapshots that may exist in the driver after a call that was given up",
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
    async fn recorded(entries: usize, response: (u16, &'static str)) -> (Option<Recorded>, Vec<Value>, bool) {
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
                (
                    status,
                    json!({"kind": "Status", "reason": reason, "message": "no", "metadata": {"uid": "l1"}}),
                )
            }
        });
        let done = record(&context, &suspect()).await;
        let line = r#"wharf_suspected_orphans_total{driver_name="d.test",kind="volume"} 1"#;
        let counted = context.metrics.encode().contains(line);
        let created = created.lock().unwrap().clone();
        (done.ok(), created, counted)
    }

    #[tokio::test]
    async fn suspect_is_stored_as_lease_without_holder() {
        let (done, created, counted) = recorded(0, (201, "")).await;
        assert!(done == Some(Recorded::New { uid: "l1".into() }) && counted);
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
        let new = || Some(Recorded::New { uid: "l1".into() });
        for (entries, response, expected, requests, news) in [
            (MAX_SUSPECTS, (201, ""), Some(Recorded::NotStored), 0, true),
            (MAX_SUSPECTS - 1, (201, ""), new(), 1, true),
            // The same name was suspected and counted before.
            (0, (409, "AlreadyExists"), Some(Recorded::Before), 1, false),
            (0, (403, "Forbidden"), Some(Recorded::NotStored), 1, true),
            (0, (422, "Invalid"), Some(Recorded::NotStored), 1, true),
            // The server may accept it later.
            (0, (503, "ServiceUnavailable"), None, 1, false),
            (0, (500, "InternalError"), None, 1, false),
        ] {
            let (done, created, counted) = recorded(entries, response).await;
            assert_eq!((done, created.len(), counted), (expected, requests, news), "{entries} {response:?}");
        }
    }

    /// With node deployment, each node calls its own driver with the same name.
    #[test]
    fn suspects_of_two_nodes_have_two_leases() {
        let names = [None, Some("node-a"), Some("node-b")].map(|node| suspect().lease_name("d.test", node));
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2], "{names:?}");
    }

    /// A claim that starts again sends the same name: its PersistentVolume may refer to exactly this volume.
    #[test]
    fn note_of_volume_warns_that_persistent_volume_may_refer_to_it() {
        let note = suspect().note("d.test");
        assert!(note.contains("PersistentVolume pvc-u1 may refer to it by now"), "{note}");
        assert!(note.ends_with("delete it there only if no PersistentVolume has its handle"), "{note}");
    }
}
