//! The requests for one item: what the driver is asked, and what is written.

use std::time::Duration;

use serde_json::{Value, json};
use wharf_cluster::{ApiError, Cluster, Patch, Preconditions};
use wharf_csi::v1::controller_client::ControllerClient;
use wharf_csi::{Calls, v1};
use wharf_model::names::label;
use wharf_model::{CSIStorageCapacity, Kind, OwnerRef, Quantity, StorageClass};

use super::view::{Item, Room};
use crate::driver::Driver;

/// Why an item is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum CapacityError {
    /// The driver did not say how much room there is.
    #[error("GetCapacity: {code:?}: {message}")]
    Driver { code: tonic::Code, message: String },
    /// The server did not take it.
    #[error("{0}")]
    Api(#[from] ApiError),
}

/// Whose objects they are, and where.
#[derive(Debug, Clone)]
pub(super) struct Keeper {
    pub(super) namespace: String,
    pub(super) driver: String,
    /// The node, where the sidecar is a node's own.
    pub(super) node: Option<String>,
    pub(super) owner: Option<OwnerRef>,
}

impl Keeper {
    /// Selects our objects and nobody else's.
    pub(super) fn selector(&self) -> String {
        let managed_by = label::managed_by(self.node.as_deref());
        format!("{}={},{}={managed_by}", label::DRIVER_NAME, self.driver, label::MANAGED_BY)
    }

    /// A new object.
    fn object(&self, item: &Item, room: Room) -> Value {
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
            "nodeTopology": {"matchLabels": item.place},
            "capacity": Quantity::from_bytes(room.capacity).to_string(),
        });
        if let Some(maximum) = room.maximum {
            object["maximumVolumeSize"] = json!(Quantity::from_bytes(maximum).to_string());
        }
        object
    }

    /// Changes an object. Who controlled it before does no longer: an object has one controller.
    fn change(&self, object: &CSIStorageCapacity, room: Room) -> Patch {
        let meta = &object.metadata;
        let mut metadata = json!({"uid": meta.uid, "resourceVersion": meta.resource_version});
        if let Some(owner) = self.owner.as_ref().filter(|owner| !super::decide::is_owned(object, Some(owner)))
        {
            let others = meta.owner_references.iter().filter(|other| other.controller != Some(true));
            metadata["ownerReferences"] = others.chain([owner]).map(reference).collect();
        }
        Patch::Merge(json!({
            "metadata": metadata,
            "capacity": Quantity::from_bytes(room.capacity).to_string(),
            "maximumVolumeSize": room.maximum.map(|maximum| Quantity::from_bytes(maximum).to_string()),
        }))
    }

    pub(super) async fn create(&self, cluster: &Cluster, item: &Item, room: Room) -> Result<(), ApiError> {
        let object = self.object(item, room);
        cluster.create(&CSIStorageCapacity::API, Some(&self.namespace), &object).await.map(drop)
    }

    pub(super) async fn update(
        &self,
        cluster: &Cluster,
        object: &CSIStorageCapacity,
        room: Room,
    ) -> Result<(), ApiError> {
        let change = self.change(object, room);
        cluster.patch(&CSIStorageCapacity::API, &object.key(), None, change).await.map(drop)
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
    let OwnerRef { api_version, kind, name, uid, controller } = owner;
    let mut reference = json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": uid});
    if let Some(controller) = controller {
        reference["controller"] = json!(controller);
    }
    reference
}

/// Asks the driver how much room there is: with all of the class's parameters as they are, and no capabilities.
pub(super) async fn ask(
    driver: &Driver,
    timeout: Duration,
    item: &Item,
    class: &StorageClass,
) -> Result<Room, CapacityError> {
    let request = request(item, class);
    let call = |mut client: ControllerClient<Calls>| async move { client.get_capacity(request).await };
    let told = driver.controller("GetCapacity", timeout, call).await.map_err(|status| {
        CapacityError::Driver { code: status.code(), message: status.message().to_owned() }
    })?;
    Ok(Room { capacity: told.available_capacity, maximum: told.maximum_volume_size })
}

fn request(item: &Item, class: &StorageClass) -> v1::GetCapacityRequest {
    v1::GetCapacityRequest {
        volume_capabilities: Vec::new(),
        parameters: class.parameters.clone().into_iter().collect(),
        accessible_topology: Some(v1::Topology { segments: item.place.clone().into_iter().collect() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeper(owner: Option<OwnerRef>) -> Keeper {
        Keeper { namespace: "ns".into(), driver: "d.test".into(), node: None, owner }
    }

    fn owner(uid: &str) -> OwnerRef {
        let (api_version, kind, name) = ("apps/v1".into(), "DaemonSet".into(), "driver".into());
        OwnerRef { api_version, kind, name, uid: uid.into(), controller: Some(true) }
    }

    fn item() -> Item {
        Item { class: "fast".into(), place: [("zone".to_owned(), "a".to_owned())].into() }
    }

    /// sidecars.md 1.1 "Capacity": name, labels, owner, topology.
    #[test]
    fn a_new_object_is_upstreams() {
        let room = Room { capacity: 3 << 30, maximum: Some(1 << 30) };
        assert_eq!(
            keeper(Some(owner("o"))).object(&item(), room),
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
        let plain = keeper(None).object(&item(), Room { capacity: 0, maximum: None });
        assert_eq!((&plain["capacity"], plain.get("maximumVolumeSize")), (&json!("0"), None));
        assert_eq!(plain["metadata"].get("ownerReferences"), None);
        let selector = Keeper { node: Some("n".into()), ..keeper(None) }.selector();
        let wanted =
            "csi.storage.k8s.io/drivername=d.test,csi.storage.k8s.io/managed-by=external-provisioner-n";
        assert_eq!(selector, wanted);
    }

    /// sidecars.md 1.1 "Capacity": capacity, maximumVolumeSize and owner are what changes.
    #[test]
    fn a_change_has_one_controller() {
        let object = |owners: Value| -> CSIStorageCapacity {
            let metadata =
                json!({"name": "x", "uid": "u", "resourceVersion": "7", "ownerReferences": owners});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let room = Room { capacity: 1024, maximum: None };
        let ours = reference(&owner("o"));
        let user = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"});
        for (before, after) in [
            (json!([]), Some(json!([ours]))),
            (json!([user, reference(&owner("old"))]), Some(json!([user, ours]))),
            (json!([ours, user]), None),
        ] {
            let Patch::Merge(change) = keeper(Some(owner("o"))).change(&object(before), room) else {
                panic!()
            };
            assert_eq!(change["metadata"].get("ownerReferences"), after.as_ref());
            assert_eq!((&change["capacity"], &change["maximumVolumeSize"]), (&json!("1Ki"), &Value::Null));
            assert_eq!(
                (&change["metadata"]["uid"], &change["metadata"]["resourceVersion"]),
                (&json!("u"), &json!("7"))
            );
        }
        let Patch::Merge(change) = keeper(None).change(&object(json!([])), room) else { panic!() };
        assert_eq!(change["metadata"].get("ownerReferences"), None);
    }

    /// sidecars.md 1.1 "Capacity": GetCapacity with raw parameters and no capabilities.
    #[test]
    fn the_driver_is_asked_with_the_classs_own_words() {
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
