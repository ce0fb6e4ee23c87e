//! Objects for tables: a driver with everything, a class, a claim that waits for a volume, and their parts.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharf_cluster::{Cluster, Events};
use wharf_model::{CSINode, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, Time};

use super::Settings;
use super::intent::Intent;
use super::request::{self, Ask};
use super::view::{Made, Memory, Nodes, Own, View, WrittenNodes};
use crate::attempts::Attempts;
use crate::context::Context;
use crate::driver::{Capabilities, Driver, DriverInfo};
use crate::metrics::Metrics;
use wharf_cluster::work::Gate;

pub(crate) const DRIVER: &str = "d.test";
/// The volume of [`claim`].
pub(crate) const VOLUME: &str = "pvc-u1";
pub(crate) const GI: i64 = 1 << 30;
pub(crate) const NOW: Time = Time(1_000_000);

pub(crate) fn own() -> Own {
    Own {
        driver: DRIVER.into(),
        can: Capabilities { controller_service: true, create_delete_volume: true, ..Capabilities::default() },
        settings: Settings::default(),
        node: None,
        identity: "1-2-d.test".into(),
    }
}

/// A value with some of its fields replaced, as a merge patch would.
pub(crate) fn with(mut base: Value, patch: &Value) -> Value {
    match patch.as_object() {
        None => patch.clone(),
        Some(fields) => {
            if !base.is_object() {
                base = json!({});
            }
            for (key, value) in fields {
                match value {
                    Value::Null => drop(base.as_object_mut().unwrap().remove(key)),
                    value => base[key.as_str()] = with(base[key.as_str()].take(), value),
                }
            }
            base
        }
    }
}

/// A claim for 1 GiB of class `fast`, changed by the patch.
pub(crate) fn claim(patch: Value) -> PersistentVolumeClaim {
    let claim = json!({
        "metadata": {
            "namespace": "shop", "name": "data", "uid": "u1", "resourceVersion": "7",
            "annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    });
    serde_json::from_value(with(claim, &patch)).unwrap()
}

/// The class `fast`, changed by the patch.
pub(crate) fn class(patch: Value) -> StorageClass {
    let class = json!({
        "metadata": {"name": "fast", "uid": "class-1"}, "provisioner": DRIVER, "reclaimPolicy": "Delete",
    });
    serde_json::from_value(with(class, &patch)).unwrap()
}

/// The volume that is written for [`claim`], changed by the patch.
pub(crate) fn volume(patch: Value) -> PersistentVolume {
    let object = super::volume::complete(&intent(), &made(), &own(), false);
    let object = with(object, &json!({"metadata": {"uid": "pv-1"}, "status": {"phase": "Bound"}}));
    serde_json::from_value(with(object, &patch)).unwrap()
}

/// What is written down for [`claim`].
pub(crate) fn intent() -> Intent {
    intent_of(&own(), &claim(json!({})), &class(json!({})))
}

pub(crate) fn intent_of(own: &Own, claim: &PersistentVolumeClaim, class: &StorageClass) -> Intent {
    let ask = Ask { volume: VOLUME, own, claim, class, source: None, places: None, attributes: None };
    request::intent(ask, NOW).unwrap()
}

/// What the driver answers to it.
pub(crate) fn made() -> Made {
    Made { handle: "h1".into(), capacity_bytes: GI, ..Made::default() }
}

/// Nodes with the driver on them, each with its zone.
pub(crate) fn nodes(zones: &[(&str, &str)]) -> WrittenNodes {
    let csi_node = |name: &str| -> CSINode {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": ["zone"]}]},
        }))
        .unwrap()
    };
    let node = |name: &str, zone: &str| -> Node {
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"zone": zone}}})).unwrap()
    };
    WrittenNodes {
        csi_nodes: zones.iter().map(|(name, _)| Arc::new(csi_node(name))).collect(),
        nodes: zones.iter().map(|(name, zone)| Arc::new(node(name, zone))).collect(),
    }
}

/// What a role is handed, with an API server that answers as this function says (method, path, body) and a driver
/// that is not there.
pub(crate) fn context(
    answers: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> Context {
    let answers = Arc::new(answers);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let answers = Arc::clone(&answers);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, answer) = answers(parts.method.as_str(), parts.uri.path(), &body);
            let body = Full::<Bytes>::from(answer.to_string());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(status).body(body).unwrap())
        }
    });
    let cluster = Cluster::with_client(kube::Client::new(service, "default"));
    let Own { driver, can, node, .. } = own();
    Context {
        events: Events::start(&cluster, "test", "test"),
        driver: Driver::absent(DriverInfo { name: driver, can, ..DriverInfo::default() }),
        gate: Gate::new(None, CancellationToken::new()),
        attempts: Attempts::default(),
        metrics: Metrics::new(),
        namespace: "ns".into(),
        cluster,
        node,
    }
}

/// Owns what a view borrows. Begins with the claim and its class and nothing else.
pub(crate) struct Scene {
    pub(crate) own: Own,
    pub(crate) present: Option<PersistentVolume>,
    pub(crate) claim: Option<PersistentVolumeClaim>,
    pub(crate) class: Option<StorageClass>,
    pub(crate) intent: Option<Arc<Intent>>,
    pub(crate) holder: Option<String>,
    pub(crate) memory: Memory,
    pub(crate) source_claim: Option<PersistentVolumeClaim>,
    pub(crate) source_volume: Option<PersistentVolume>,
    pub(crate) nodes: WrittenNodes,
}

impl Default for Scene {
    fn default() -> Self {
        Self {
            own: own(),
            present: None,
            claim: Some(claim(json!({}))),
            class: Some(class(json!({}))),
            intent: None,
            holder: None,
            memory: Memory::default(),
            source_claim: None,
            source_volume: None,
            nodes: WrittenNodes::default(),
        }
    }
}

impl Scene {
    pub(crate) fn view(&self) -> View<'_> {
        View {
            volume: VOLUME,
            own: &self.own,
            present: self.present.as_ref(),
            claim: self.claim.as_ref(),
            class: self.class.as_ref(),
            intent: self.intent.as_ref(),
            holder: self.holder.as_deref(),
            memory: &self.memory,
            source_claim: self.source_claim.as_ref(),
            source_volume: self.source_volume.as_ref(),
            nodes: &self.nodes as &dyn Nodes,
            present_class: self.class.as_ref(),
            attached: &[],
            siblings: &[],
        }
    }
}
