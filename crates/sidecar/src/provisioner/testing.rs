//! Test objects: a driver, a class, a pending claim, and what belongs to them.

use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use wharf_cluster::{Attempts, Cluster, EventRecorder};
use wharf_model::{CSINode, Monotonic, Node, PersistentVolume, PersistentVolumeClaim, StorageClass, Time};

use super::Settings;
use super::intent::Intent;
use super::request::{self, CreateRequest};
use super::view::{CreatedVolume, FixedNodes, Nodes, Now, ProvisionState, ProvisionView, ProvisionerConfig};
use crate::context::Context;
use crate::driver::{Capabilities, Driver, DriverInfo};
use crate::metrics::Metrics;
use wharf_cluster::work::Gate;

pub(crate) const DRIVER: &str = "d.test";
/// The volume of [`claim`].
pub(crate) const VOLUME: &str = "pvc-u1";
pub(crate) const GI: i64 = 1 << 30;
pub(crate) const NOW: Time = Time(1_000_000);
/// The wall clock has nothing to do with the monotonic clock.
pub(crate) const AT: Now = Now { wall: NOW, monotonic: Monotonic(5_000_000) };

pub(crate) fn config() -> ProvisionerConfig {
    ProvisionerConfig {
        driver: DRIVER.into(),
        capabilities: Capabilities {
            controller_service: true,
            create_delete_volume: true,
            ..Capabilities::default()
        },
        settings: Settings::default(),
        node: None,
        identity: "1-2-d.test".into(),
    }
}

/// A value after a merge patch.
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

/// The PersistentVolume of [`claim`], changed by the patch.
pub(crate) fn volume(patch: Value) -> PersistentVolume {
    let object = super::volume::build_pv(&intent(), &created(), &config(), false).unwrap();
    let object = with(object, &json!({"metadata": {"uid": "pv-1"}, "status": {"phase": "Bound"}}));
    serde_json::from_value(with(object, &patch)).unwrap()
}

/// The intent of [`claim`].
pub(crate) fn intent() -> Intent {
    intent_of(&config(), &claim(json!({})), &class(json!({})))
}

pub(crate) fn intent_of(
    config: &ProvisionerConfig,
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
) -> Intent {
    let inputs = CreateRequest {
        volume: VOLUME,
        config,
        claim,
        class,
        provisioned_by: &class.provisioner,
        source: None,
        topology: None,
        attributes: None,
    };
    request::build_intent(inputs, NOW).unwrap()
}

/// The driver's response to it.
pub(crate) fn created() -> CreatedVolume {
    CreatedVolume { handle: "h1".into(), capacity_bytes: GI, ..CreatedVolume::default() }
}

/// Nodes that run the driver, each with its zone.
pub(crate) fn nodes(zones: &[(&str, &str)]) -> FixedNodes {
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
    FixedNodes {
        csi_nodes: zones.iter().map(|(name, _)| Arc::new(csi_node(name))).collect(),
        nodes: zones.iter().map(|(name, zone)| Arc::new(node(name, zone))).collect(),
    }
}

/// A context with an API server whose responses come from this function (method, path, body) and an absent driver.
pub(crate) fn context(
    respond: impl Fn(&str, &str, &Value) -> (u16, Value) + Send + Sync + 'static,
) -> Context {
    let respond = Arc::new(respond);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let respond = Arc::clone(&respond);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (status, response) = respond(parts.method.as_str(), parts.uri.path(), &body);
            let body = Full::<Bytes>::from(response.to_string());
            Ok::<_, std::convert::Infallible>(http::Response::builder().status(status).body(body).unwrap())
        }
    });
    let cluster = Cluster::with_client(kube::Client::new(service, "default"));
    let ProvisionerConfig { driver, capabilities, node, .. } = config();
    Context {
        events: EventRecorder::start(&cluster, "test", "test"),
        driver: Driver::unreachable(DriverInfo { name: driver, capabilities, ..DriverInfo::default() }),
        gate: Gate::new(None, CancellationToken::new()),
        attempts: Attempts::default(),
        metrics: Metrics::new(),
        namespace: "ns".into(),
        cluster,
        node,
    }
}

/// Owns what a view borrows. By default there are only the claim and its class.
pub(crate) struct Fixture {
    pub(crate) config: ProvisionerConfig,
    pub(crate) pv: Option<PersistentVolume>,
    pub(crate) claim: Option<PersistentVolumeClaim>,
    pub(crate) class: Option<StorageClass>,
    pub(crate) intent: Option<Arc<Intent>>,
    pub(crate) handle_owner: Option<String>,
    pub(crate) state: ProvisionState,
    pub(crate) source_claim: Option<PersistentVolumeClaim>,
    pub(crate) source_volume: Option<PersistentVolume>,
    pub(crate) nodes: FixedNodes,
}

impl Default for Fixture {
    fn default() -> Self {
        Self {
            config: config(),
            pv: None,
            claim: Some(claim(json!({}))),
            class: Some(class(json!({}))),
            intent: None,
            handle_owner: None,
            state: ProvisionState::default(),
            source_claim: None,
            source_volume: None,
            nodes: FixedNodes::default(),
        }
    }
}

impl Fixture {
    pub(crate) fn view(&self) -> ProvisionView<'_> {
        ProvisionView {
            volume: VOLUME,
            config: &self.config,
            pv: self.pv.as_ref(),
            claim: self.claim.as_ref(),
            class: self.class.as_ref(),
            intent: self.intent.as_ref(),
            handle_owner: self.handle_owner.as_deref(),
            state: &self.state,
            source_claim: self.source_claim.as_ref(),
            source_volume: self.source_volume.as_ref(),
            nodes: &self.nodes as &dyn Nodes,
            pv_class: self.class.as_ref(),
            attached: &[],
            siblings: &[],
        }
    }
}
