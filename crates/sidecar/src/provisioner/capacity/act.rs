//! Effects for one CSIStorageCapacity object: calls GetCapacity, and creates, updates or deletes the object.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, Patch, Preconditions};
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_csi::{DeadlineChannel, v1};
use wharf_model::names::label;
use wharf_model::{CSIStorageCapacity, Kind, OwnerRef, Quantity, StorageClass};

use super::view::{Capacity, Item};
use crate::driver::Driver;

/// Why a capacity could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum CapacityError {
    #[error("GetCapacity: {code:?}: {message}")]
    Driver { code: tonic::Code, message: String },
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Writes CSIStorageCapacity objects with the sidecar's labels and owner.
#[derive(Debug, Clone)]
pub(super) struct CapacityApi {
    pub(super) namespace: String,
    pub(super) driver: String,
    /// The name of this node, if the sidecar runs with `--node-deployment`.
    pub(super) node: Option<String>,
    pub(super) owner: Option<OwnerRef>,
}

impl CapacityApi {
    /// The label selector of the sidecar's own objects.
    pub(super) fn selector(&self) -> String {
        let managed_by = label::managed_by(self.node.as_deref());
        format!("{}={},{}={managed_by}", label::DRIVER_NAME, self.driver, label::MANAGED_BY)
    }

    /// Builds a new CSIStorageCapacity object.
    fn object(&self, item: &Item, capacity: Capacity) -> Value {
        let labels = json!({
            label::DRIVER_NAME: self.driver,
            label::MANAGED_BY: label::managed_by(self.node.as_deref()),
        });
        let mut metadata = json!({"generateName": "csisc-", "labels": labels});
        if let Some(owner) = &self.owner {
            metadata["ownerReferences"] = json!([reference(owner)]);
        }
        let mut object = json!({
            "apiVersion": CSIStorageCapacity::API.api_version(),
            "kind": CSIStorageCapacity::API.kind,
            "metadata": metadata,
            "storageClassName": item.class,
            "nodeTopology": {"matchLabels": item.topology},
            "capacity": Quantity::from_bytes(capacity.available).to_string(),
        });
        if let Some(maximum) = capacity.maximum {
            object["maximumVolumeSize"] = json!(Quantity::from_bytes(maximum).to_string());
        }
        object
    }

    /// Builds the patch for an existing object. The owner replaces an earlier controller reference, because an object
    /// can have only one controller.
    fn patch(&self, object: &CSIStorageCapacity, capacity: Capacity) -> Patch {
        let meta = &object.metadata;
        let mut metadata = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
        if let Some(owner) = self.owner.as_ref().filter(|owner| !super::decide::is_owned(object, Some(owner)))
        {
            let others = meta.owner_references.iter().filter(|other| other.controller != Some(true));
            metadata["ownerReferences"] = others.chain([owner]).map(reference).collect();
        }
        Patch::Merge(json!({
            "metadata": metadata,
            "capacity": Quantity::from_bytes(capacity.available).to_string(),
            "maximumVolumeSize": capacity.maximum.map(|maximum| Quantity::from_bytes(maximum).to_string()),
        }))
    }

    pub(super) async fn create(
        &self,
        cluster: &Cluster,
        item: &Item,
        capacity: Capacity,
    ) -> Result<(), ApiError> {
        let object = self.object(item, capacity);
        cluster.create(&CSIStorageCapacity::API, Some(&self.namespace), &object).await.map(drop)
    }

    pub(super) async fn update(
        &self,
        cluster: &Cluster,
        object: &CSIStorageCapacity,
        capacity: Capacity,
    ) -> Result<(), ApiError> {
        let patch = self.patch(object, capacity);
        cluster.patch(&CSIStorageCapacity::API, &object.key(), None, patch).await.map(drop)
    }

    pub(super) async fn delete(
        &self,
        cluster: &Cluster,
        object: &CSIStorageCapacity,
    ) -> Result<(), ApiError> {
        let uid = Some(object.metadata.uid.clone());
        let preconditions = Preconditions { uid, ..Preconditions::default() };
        cluster.delete(&CSIStorageCapacity::API, &object.key(), preconditions).await
    }
}

fn reference(owner: &OwnerRef) -> Value {
    let OwnerRef { api_version, kind, name, uid, controller, block_owner_deletion } = owner;
    let mut reference = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
    if let Some(controller) = controller {
        reference["controller"] = json!(controller);
    }
    if let Some(block) = block_owner_deletion {
        reference["blockOwnerDeletion"] = json!(block);
    }
    reference
}

/// Calls GetCapacity with all parameters of the class, unfiltered, and no capabilities.
pub(super) async fn get_capacity(
    driver: &Driver,
    timeout: Duration,
    item: &Item,
    class: &StorageClass,
) -> Result<Capacity, CapacityError> {
    let request = request(item, class);
    let call =
        |mut client: ControllerClient<DeadlineChannel>| async move { client.get_capacity(request).await };
    let response = driver.controller("GetCapacity", timeout, call).await.map_err(|status| {
        CapacityError::Driver { code: status.code(), message: status.message().to_owned() }
    })?;
    Ok(Capacity { available: response.available_capacity, maximum: response.maximum_volume_size })
}

fn request(item: &Item, class: &StorageClass) -> v1::GetCapacityRequest {
    v1::GetCapacityRequest {
        volume_capabilities: Vec::new(),
        parameters: class.parameters.clone().into_iter().collect(),
        accessible_topology: Some(v1::Topology { segments: item.topology.clone().into_iter().collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api(owner: Option<OwnerRef>) -> CapacityApi {
        CapacityApi { namespace: "ns".into(), driver: "d.test".into(), node: None, owner }
    }

    fn owner(uid: &str) -> OwnerRef {
        let (api_version, kind, name) = ("apps/v1".into(), "DaemonSet".into(), "driver".into());
        OwnerRef {
            api_version,
            kind,
            name,
            uid: uid.into(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    fn item() -> Item {
        Item { class: "fast".into(), topology: [("zone".to_owned(), "a".to_owned())].into() }
    }

    /// sidecars.md 1.1 "Capacity": name, labels, owner, topology.
    #[test]
    fn new_object_matches_upstream() {
        let capacity = Capacity { available: 3 << 30, maximum: Some(1 << 30) };
        assert_eq!(
            api(Some(owner("o"))).object(&item(), capacity),
            json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
                "metadata": {
                    "generateName": "csisc-",
                    "labels": {
                        "csi.storage.k8s.io/drivername": "d.test",
                        "csi.storage.k8s.io/managed-by": "external-provisioner",
                    },
                    "ownerReferences": [
                        {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "driver", "uid": "o", "controller": true},
                    ],
                },
                "storageClassName": "fast", "nodeTopology": {"matchLabels": {"zone": "a"}},
                "capacity": "3Gi", "maximumVolumeSize": "1Gi",
            })
        );
        let plain = api(None).object(&item(), Capacity { available: 0, maximum: None });
        assert_eq!((&plain["capacity"], plain.get("maximumVolumeSize")), (&json!("0"), None));
        assert_eq!(plain["metadata"].get("ownerReferences"), None);
        let selector = CapacityApi { node: Some("n".into()), ..api(None) }.selector();
        let expected =
            "csi.storage.k8s.io/drivername=d.test,csi.storage.k8s.io/managed-by=external-provisioner-n";
        assert_eq!(selector, expected);
    }

    /// sidecars.md 1.1 "Capacity": a patch changes only capacity, maximumVolumeSize and the owner.
    #[test]
    fn patch_keeps_one_controller() {
        let object = |owners: Value| -> CSIStorageCapacity {
            let metadata =
                json!({"name": "x", "uid": "u", "resourceVersion": "7", "ownerReferences": owners});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let capacity = Capacity { available: 1024, maximum: None };
        let ours = reference(&owner("o"));
        let user = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c", "blockOwnerDeletion": true});
        for (before, after) in [
            (json!([]), Some(json!([ours]))),
            (json!([user, reference(&owner("old"))]), Some(json!([user, ours]))),
            (json!([ours, user]), None),
        ] {
            let Patch::Merge(patch) = api(Some(owner("o"))).patch(&object(before), capacity) else {
                panic!()
            };
            assert_eq!(patch["metadata"].get("ownerReferences"), after.as_ref());
            assert_eq!((&patch["capacity"], &patch["maximumVolumeSize"]), (&json!("1Ki"), &Value::Null));
            assert_eq!(
                (&patch["metadata"]["uid"], &patch["metadata"]["resourceVersion"]),
                (&json!("u"), &json!("7"))
            );
        }
        let Patch::Merge(patch) = api(None).patch(&object(json!([])), capacity) else { panic!() };
        assert_eq!(patch["metadata"].get("ownerReferences"), None);
    }

    /// sidecars.md 1.1 "Capacity": GetCapacity with raw parameters and no capabilities.
    #[test]
    fn get_capacity_sends_raw_class_parameters() {
        let class: StorageClass =
            serde_json::from_value(json!({"parameters": {"pool": "p", "csi.storage.k8s.io/fstype": "xfs"}}))
                .unwrap();
        let request = request(&item(), &class);
        assert!(request.volume_capabilities.is_empty());
        assert_eq!(request.parameters.len(), 2);
        let segments = request.accessible_topology.map(|topology| topology.segments);
        assert_eq!(segments, Some([("zone".to_owned(), "a".to_owned())].into()));
    }
}
