//! Tables: a released volume that is deleted, and the result when one field differs.

use serde_json::{Value, json};

use super::*;

const DRIVER: &str = "d.test";
const OURS: &str = finalizer::PROVISIONER;

/// The inputs of `decide`, as JSON that a case can change.
#[derive(Clone)]
struct Fixture {
    volume: Value,
    class: Value,
    attached: Vec<String>,
    siblings: Vec<Value>,
    node: Option<LocalNode>,
    deleted: Option<&'static str>,
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("u-{name}"), "finalizers": ["kubernetes.io/pv-protection", OURS],
            "annotations": {
                annotation::PROVISIONED_BY: DRIVER,
                annotation::DELETION_SECRET_NAME: "", annotation::DELETION_SECRET_NAMESPACE: "",
            },
        },
        "spec": {
            "csi": {"driver": DRIVER, "volumeHandle": "v-1"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "ns", "name": "claim", "uid": "u-claim"}, "storageClassName": "c",
        },
        "status": {"phase": "Released"},
    })
}

fn released() -> Fixture {
    Fixture {
        volume: volume("m"),
        class: json!({"metadata": {"name": "c"}, "provisioner": DRIVER}),
        attached: Vec::new(),
        siblings: Vec::new(),
        node: None,
        deleted: None,
    }
}

fn set(object: &mut Value, path: &str, value: Value) {
    let (parent, field) = path.rsplit_once('/').unwrap();
    match object.pointer_mut(parent).unwrap() {
        Value::Object(map) if value.is_null() => drop(map.remove(field)),
        parent => parent[field] = value,
    }
}

impl Fixture {
    /// The fixture with one field of the volume changed. `null` removes it.
    fn with(&self, path: &str, value: Value) -> Self {
        let mut fixture = self.clone();
        set(&mut fixture.volume, path, value);
        fixture
    }

    fn annotated(&self, key: &str, value: Value) -> Self {
        let mut fixture = self.clone();
        match (&mut fixture.volume["metadata"]["annotations"], value) {
            (Value::Object(map), Value::Null) => drop(map.remove(key)),
            (annotations, value) => annotations[key] = value,
        }
        fixture
    }

    fn deleting(&self) -> Self {
        self.with("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))
    }

    fn phase(&self, phase: &str) -> Self {
        self.with("/status/phase", json!(phase))
    }

    fn policy(&self, policy: &str) -> Self {
        self.with("/spec/persistentVolumeReclaimPolicy", json!(policy))
    }

    fn without_finalizer(&self) -> Self {
        self.with("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]))
    }

    fn with_sibling(&self, sibling: Value) -> Self {
        let mut fixture = self.clone();
        fixture.siblings.push(sibling);
        fixture
    }

    fn on(&self, node: &str) -> Self {
        let topology = [("node".to_owned(), node.to_owned())].into();
        Self { node: Some(LocalNode { name: node.to_owned(), topology }), ..self.clone() }
    }

    fn decide(&self) -> ReclaimStep {
        let of = |value: &Value| serde_json::from_value::<PersistentVolume>(value.clone()).unwrap();
        let siblings: Vec<_> = self.siblings.iter().map(|sibling| Arc::new(of(sibling))).collect();
        let class: Option<StorageClass> = serde_json::from_value(self.class.clone()).unwrap();
        decide(&ReclaimView {
            volume: &of(&self.volume),
            class: class.as_ref(),
            driver: DRIVER,
            attached: &self.attached,
            siblings: &siblings,
            node: self.node.as_ref(),
            state: &ReclaimState { deleted: self.deleted.map(str::to_owned) },
        })
    }
}

fn delete_with(secret: Option<(&str, &str)>) -> ReclaimStep {
    let secret =
        secret.map(|(namespace, name)| SecretRef { name: name.to_owned(), namespace: namespace.to_owned() });
    ReclaimStep::DeleteVolume { handle: "v-1".to_owned(), secret }
}

fn delete() -> ReclaimStep {
    delete_with(None)
}

fn idle(reason: IdleReason) -> ReclaimStep {
    ReclaimStep::Idle(reason)
}

/// sidecars.md 1.1 "Delete": Released, policy Delete, and our finalizer or no deletion timestamp.
#[test]
fn released_volume_with_policy_delete_is_deleted() {
    let released = released();
    for (fixture, expected) in [
        (released.clone(), delete()),
        (released.without_finalizer(), delete()),
        (released.deleting(), delete()),
        // An object in deletion without our finalizer: its volume was deleted before.
        (released.deleting().without_finalizer(), idle(IdleReason::AlreadyDeleted)),
        (released.phase("Pending"), idle(IdleReason::InUse)),
        (released.phase("Available"), idle(IdleReason::InUse)),
        (released.phase("Bound"), idle(IdleReason::InUse)),
        (released.phase("Failed"), idle(IdleReason::InUse)),
        (released.phase("Unknown"), idle(IdleReason::InUse)),
        (released.phase("Bound").deleting(), idle(IdleReason::InUse)),
        (released.with("/spec/csi/volumeHandle", json!("")), ReclaimStep::Refuse(DeleteProblem::NoHandle)),
    ] {
        assert_eq!(fixture.decide(), expected, "{}", fixture.volume);
    }
}

/// sidecars.md 1.1 "Delete": which volumes this driver may delete.
#[test]
fn volumes_of_other_drivers_or_provisioners_are_ignored() {
    let provisioned_by = |provisioner: Value| released().annotated(annotation::PROVISIONED_BY, provisioner);
    let migrated = |fixture: Fixture, to: &str| fixture.annotated(annotation::MIGRATED_TO, json!(to));
    for (fixture, expected) in [
        (provisioned_by(json!("other")), idle(IdleReason::NotOurs)),
        (provisioned_by(Value::Null), delete()),
        (migrated(provisioned_by(json!("kubernetes.io/x")), DRIVER), delete()),
        (migrated(provisioned_by(json!("kubernetes.io/x")), "other"), idle(IdleReason::NotOurs)),
        (released().with("/spec/csi/driver", json!("other")), idle(IdleReason::NotOurs)),
        (provisioned_by(Value::Null).with("/spec/csi/driver", json!("other")), idle(IdleReason::NotOurs)),
        (released().with("/spec/csi", Value::Null), idle(IdleReason::NotOurs)),
        // The finalizer is not touched, either.
        (provisioned_by(json!("other")).phase("Bound").without_finalizer(), idle(IdleReason::NotOurs)),
        (provisioned_by(json!("other")).policy("Retain"), idle(IdleReason::NotOurs)),
    ] {
        assert_eq!(fixture.decide(), expected, "{}", fixture.volume);
    }
}

/// sidecars.md 1.1 "HonorPVReclaimPolicy"
#[test]
fn finalizer_follows_reclaim_policy() {
    let bound = released().phase("Bound");
    let static_volume = bound.annotated(annotation::PROVISIONED_BY, Value::Null);
    for (fixture, expected) in [
        (bound.clone(), idle(IdleReason::InUse)),
        (bound.without_finalizer(), ReclaimStep::AddFinalizer),
        (static_volume.without_finalizer(), ReclaimStep::AddFinalizer),
        (bound.without_finalizer().deleting(), idle(IdleReason::InUse)),
        (bound.without_finalizer().phase("Available"), idle(IdleReason::InUse)),
        (bound.without_finalizer().phase("Pending"), idle(IdleReason::InUse)),
        (bound.policy("Retain"), ReclaimStep::RemoveFinalizer),
        (bound.policy("Recycle"), ReclaimStep::RemoveFinalizer),
        (bound.policy("Retain").deleting(), ReclaimStep::RemoveFinalizer),
        (bound.policy("Retain").phase("Released"), ReclaimStep::RemoveFinalizer),
        (bound.policy("Retain").without_finalizer(), idle(IdleReason::Retained)),
        (bound.policy("Retain").without_finalizer().phase("Released"), idle(IdleReason::Retained)),
        (bound.policy("Shred"), idle(IdleReason::Retained)),
        (bound.policy("Shred").phase("Released"), idle(IdleReason::Retained)),
    ] {
        assert_eq!(fixture.decide(), expected, "{}", fixture.volume);
    }
}

/// sidecars.md 1.1 "Delete": deletion waits while an attachment refers to the volume.
#[test]
fn attached_volume_is_not_deleted() {
    let attached = Fixture { attached: vec!["csi-1".to_owned()], ..released() };
    assert_eq!(attached.decide(), ReclaimStep::Wait(BlockedBy::Attachments(vec!["csi-1".to_owned()])));
    assert_eq!(
        attached.deleting().decide(),
        ReclaimStep::Wait(BlockedBy::Attachments(vec!["csi-1".to_owned()]))
    );
    // After DeleteVolume has succeeded, deleting the object does not wait.
    assert_eq!(Fixture { deleted: Some("u-m"), ..attached }.decide(), ReclaimStep::DeleteObject);
}

/// sidecars.md 1.1 "Delete": DeleteVolume, then the object, then the finalizer.
#[test]
fn deletion_order_is_volume_object_finalizer() {
    let deleted = Fixture { deleted: Some("u-m"), ..released() };
    assert_eq!(released().decide(), delete());
    assert_eq!(deleted.decide(), ReclaimStep::DeleteObject);
    assert_eq!(deleted.without_finalizer().decide(), ReclaimStep::DeleteObject);
    assert_eq!(deleted.deleting().decide(), ReclaimStep::Release);
    assert_eq!(deleted.deleting().without_finalizer().decide(), idle(IdleReason::AlreadyDeleted));
    // Another object of the same name is another volume.
    assert_eq!(Fixture { deleted: Some("u-former"), ..released() }.decide(), delete());
    // The policy was changed too late for the volume, but not for the object.
    assert_eq!(deleted.policy("Retain").decide(), ReclaimStep::RemoveFinalizer);
}

/// sidecars.md 1.1 "Delete": the secret comes from the volume, else from the class.
#[test]
fn deletion_secret_comes_from_volume_else_class() {
    let annotated = |name: Value, namespace: Value| {
        let fixture = released().annotated(annotation::DELETION_SECRET_NAME, name);
        let mut fixture = fixture.annotated(annotation::DELETION_SECRET_NAMESPACE, namespace);
        fixture.class["parameters"] = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}-${pv.name}",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        });
        fixture
    };
    let unannotated = annotated(Value::Null, Value::Null);
    let with = |parameters: Value| {
        let mut fixture = unannotated.clone();
        fixture.class["parameters"] = parameters;
        fixture
    };
    for (fixture, expected) in [
        (annotated(json!("s"), json!("n")), Some(("n", "s"))),
        (annotated(json!(""), json!("")), None),
        (annotated(json!("s"), Value::Null), Some(("ns", "claim-m"))),
        (unannotated.clone(), Some(("ns", "claim-m"))),
        (Fixture { class: Value::Null, ..unannotated.clone() }, None),
        (unannotated.with("/spec/claimRef", Value::Null), None),
        (with(json!({})), None),
        (
            with(json!({"csi.storage.k8s.io/secret-name": "d", "csi.storage.k8s.io/secret-namespace": "x"})),
            Some(("x", "d")),
        ),
        (
            with(json!({"csiProvisionerSecretName": "old", "csiProvisionerSecretNamespace": "x"})),
            Some(("x", "old")),
        ),
        // Other errors of the class do not matter any more.
        (with(json!({"csi.storage.k8s.io/nonsense": "1"})), None),
    ] {
        assert_eq!(fixture.decide(), delete_with(expected), "{} {}", fixture.volume, fixture.class);
    }
    let half = with(json!({"csi.storage.k8s.io/provisioner-secret-name": "s"}));
    assert!(matches!(half.decide(), ReclaimStep::Refuse(DeleteProblem::Parameters { .. })));
    let unknown = with(json!({
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.annotations['gone']}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "x",
    }));
    assert!(matches!(unknown.decide(), ReclaimStep::Refuse(DeleteProblem::Secret { .. })));
}

/// sidecars.md 1.1 "Node deployment": a node deletes only the volumes that belong to it.
#[test]
fn node_deployment_deletes_only_own_volumes() {
    let affinity = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "node", "operator": "In", "values": ["a"]}]},
    ]}});
    let local = released().with("/spec/nodeAffinity", affinity);
    for (fixture, expected) in [
        (local.clone(), delete()),
        (local.on("a"), delete()),
        (local.on("b"), idle(IdleReason::OtherNode)),
        (local.on("b").phase("Bound").without_finalizer(), idle(IdleReason::OtherNode)),
        (local.on("b").policy("Retain"), idle(IdleReason::OtherNode)),
        // It may be on any node: the driver of a wrong one would report it as deleted, and it would leak.
        (released().on("b"), idle(IdleReason::OtherNode)),
    ] {
        assert_eq!(fixture.decide(), expected, "{}", fixture.volume);
    }
}

/// A volume is not deleted while another PersistentVolume uses its handle.
#[test]
fn shared_handle_blocks_deletion_until_last_pv() {
    let shared =
        |by: &str| ReclaimStep::Refuse(DeleteProblem::Shared { handle: "v-1".to_owned(), by: by.to_owned() });
    let with = |mut other: Value, path: &str, value: Value| {
        set(&mut other, path, value);
        other
    };
    let other = |name: &str, path: &str, value: Value| with(volume(name), path, value);
    let wait = |name: &str| ReclaimStep::Wait(BlockedBy::Sibling(name.to_owned()));
    let (bound, retained) = ("/status/phase", "/spec/persistentVolumeReclaimPolicy");
    for (fixture, expected) in [
        (released().with_sibling(other("z", bound, json!("Bound"))), shared("z")),
        (released().with_sibling(other("a", bound, json!("Available"))), shared("a")),
        (released().with_sibling(other("z", retained, json!("Retain"))), shared("z")),
        (released().with_sibling(volume("a")).with_sibling(other("z", bound, json!("Bound"))), shared("z")),
        // The volume itself is not a sibling.
        (released().with_sibling(volume("m")), delete()),
        // All have to be deleted: the last one by name deletes the driver's volume.
        (released().with_sibling(volume("a")), wait("a")),
        (released().with_sibling(volume("b")).with_sibling(volume("a")).with_sibling(volume("z")), wait("a")),
        (released().with_sibling(volume("z")), ReclaimStep::DeleteObject),
        (released().with_sibling(volume("z")).deleting(), ReclaimStep::Release),
        // Siblings in deletion and siblings without our finalizer count, too.
        (
            released().with_sibling(other("z", "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"))),
            ReclaimStep::DeleteObject,
        ),
        (
            released().with_sibling(other("z", "/metadata/finalizers", json!(["x"]))),
            ReclaimStep::DeleteObject,
        ),
        // A sibling in deletion without our finalizer does not count.
        (
            released().deleting().with_sibling({
                let mut deleting = other("z", "/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z"));
                set(&mut deleting, "/metadata/finalizers", json!(["x"]));
                deleting
            }),
            shared("z"),
        ),
        (
            released().with_sibling(other(
                "z",
                "/metadata/annotations",
                json!({annotation::PROVISIONED_BY: "x"}),
            )),
            shared("z"),
        ),
    ] {
        assert_eq!(fixture.decide(), expected, "{} {:?}", fixture.volume, fixture.siblings);
    }
    // A sibling with another handle may have another volume: it does not delete this one.
    let other_handle = |name: &str| other(name, "/spec/csi/volumeHandle", json!("V-1"));
    for (fixture, expected) in [
        (released().with_sibling(other_handle("z")), delete()),
        (released().with_sibling(other_handle("a")), wait("a")),
        (released().with_sibling(other_handle("y")).with_sibling(volume("z")), ReclaimStep::DeleteObject),
        (released().with_sibling(with(other_handle("z"), bound, json!("Bound"))), shared("z")),
    ] {
        assert_eq!(fixture.decide(), expected, "{:?}", fixture.siblings);
    }
    // Each volume waits for its own attachments first.
    let attached = Fixture { attached: vec!["csi-1".to_owned()], ..released().with_sibling(volume("z")) };
    assert!(matches!(attached.decide(), ReclaimStep::Wait(BlockedBy::Attachments(_))));
}

/// A released volume with an in-tree source, of a plugin that the driver replaces.
fn in_tree(driver: &str, source: Value) -> (Value, String) {
    let mut volume = volume("m");
    volume["spec"].as_object_mut().unwrap().remove("csi");
    volume["spec"].as_object_mut().unwrap().append(source.clone().as_object_mut().unwrap());
    let plugin = migration::Plugin::replaced_by(driver).unwrap();
    volume["metadata"]["annotations"] =
        json!({annotation::PROVISIONED_BY: plugin.in_tree_name(), annotation::MIGRATED_TO: driver});
    (volume, driver.to_owned())
}

fn step_of(volume: &Value, driver: &str, class: Option<&StorageClass>) -> ReclaimStep {
    decide(&ReclaimView {
        volume: &serde_json::from_value(volume.clone()).unwrap(),
        class,
        driver,
        attached: &[],
        siblings: &[],
        node: None,
        state: &ReclaimState::default(),
    })
}

/// sidecars.md 1.0 "In-tree migration", 1.1 "Delete".
#[test]
fn released_in_tree_volume_is_deleted_by_driver_that_replaces_its_plugin() {
    let (volume, ebs) =
        in_tree("ebs.csi.aws.com", json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1"}}));
    let delete = ReclaimStep::DeleteVolume { handle: "vol-1".to_owned(), secret: None };
    assert_eq!(step_of(&volume, &ebs, None), delete);
    assert_eq!(step_of(&volume, "disk.csi.azure.com", None), idle(IdleReason::NotOurs));
    // Not marked by the volume binder: upstream leaves it alone, too.
    for (path, value) in [
        ("/metadata/annotations", json!({})),
        ("/metadata/annotations", json!({annotation::PROVISIONED_BY: "kubernetes.io/aws-ebs"})),
        ("/metadata/annotations", json!({annotation::MIGRATED_TO: "ebs.csi.aws.com"})),
    ] {
        let mut unmarked = volume.clone();
        set(&mut unmarked, path, value.clone());
        assert_eq!(step_of(&unmarked, &ebs, None), idle(IdleReason::NotOurs), "{value}");
    }
    let mut by_driver = volume.clone();
    set(&mut by_driver, "/metadata/annotations", json!({annotation::PROVISIONED_BY: "ebs.csi.aws.com"}));
    assert_eq!(step_of(&by_driver, &ebs, None), delete);
    let mut retained = volume.clone();
    set(&mut retained, "/spec/persistentVolumeReclaimPolicy", json!("Retain"));
    assert_eq!(step_of(&retained, &ebs, None), ReclaimStep::RemoveFinalizer);
}

/// Otherwise the driver would get the handle of another driver's volume, and could delete its own volume of that handle.
#[test]
fn in_tree_volume_of_another_plugin_or_provisioner_is_ignored() {
    const EBS: &str = "ebs.csi.aws.com";
    let ebs_source = || json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
    let delete = ReclaimStep::DeleteVolume { handle: "vol-1".to_owned(), secret: None };
    for (source, provisioned_by, expected) in [
        (ebs_source(), "kubernetes.io/aws-ebs", delete.clone()),
        (ebs_source(), EBS, delete),
        (ebs_source(), "kubernetes.io/cinder", idle(IdleReason::NotOurs)),
        (ebs_source(), "other.driver", idle(IdleReason::NotOurs)),
        (json!({"cinder": {"volumeID": "vol-1"}}), "kubernetes.io/aws-ebs", idle(IdleReason::NotOurs)),
        (json!({"cinder": {"volumeID": "vol-1"}}), "kubernetes.io/cinder", idle(IdleReason::NotOurs)),
        (json!({"cinder": {"volumeID": "vol-1"}}), EBS, idle(IdleReason::NotOurs)),
        // No CSI driver replaces this plugin.
        (json!({"rbd": {"image": "i"}}), "kubernetes.io/rbd", ReclaimStep::Refuse(DeleteProblem::NoSource)),
        (json!({"rbd": {"image": "i"}}), "kubernetes.io/cinder", idle(IdleReason::NotOurs)),
        (json!({"rbd": {"image": "i"}}), "other.driver", idle(IdleReason::NotOurs)),
    ] {
        let (mut volume, ebs) = in_tree(EBS, source.clone());
        volume["metadata"]["annotations"][annotation::PROVISIONED_BY] = json!(provisioned_by);
        assert_eq!(step_of(&volume, &ebs, None), expected, "{source} {provisioned_by}");
    }
}

#[test]
fn in_tree_volume_that_cannot_be_translated_is_not_deleted() {
    let (volume, azure) =
        in_tree("disk.csi.azure.com", json!({"azureDisk": {"diskURI": "/d", "kind": "Dedicated"}}));
    let refused = step_of(&volume, &azure, None);
    let ReclaimStep::Refuse(problem) = refused else { panic!("{refused:?}") };
    assert_eq!(
        problem.to_string(),
        "failed to translate in tree pv to CSI: Azure disks of kind \"Dedicated\" are not supported by the CSI driver, \
         which supports only Managed; to keep the volume and release the object, set persistentVolumeReclaimPolicy to \
         Retain"
    );
    // A plugin without translation, such as the one for Ceph RBD.
    let (rbd, _) = in_tree(&azure, json!({"rbd": {"image": "i"}}));
    assert_eq!(step_of(&rbd, &azure, None), ReclaimStep::Refuse(DeleteProblem::NoSource));
    assert!(DeleteProblem::NoSource.to_string().ends_with("set persistentVolumeReclaimPolicy to Retain"));
    // The remedy that both messages name.
    for mut volume in [volume, rbd] {
        set(&mut volume, "/spec/persistentVolumeReclaimPolicy", json!("Retain"));
        assert_eq!(step_of(&volume, &azure, None), ReclaimStep::RemoveFinalizer, "{volume}");
    }
}

#[test]
fn deletion_secret_of_in_tree_volume_is_from_translated_class() {
    let (volume, portworx) = in_tree("pxd.portworx.com", json!({"portworxVolume": {"volumeID": "p"}}));
    let class = json!({
        "metadata": {"name": "c"}, "provisioner": "kubernetes.io/portworx-volume",
        "parameters": {"openstorage.io/auth-secret-name": "s", "openstorage.io/auth-secret-namespace": "n"},
    });
    let class: StorageClass = serde_json::from_value(class).unwrap();
    let secret = Some(SecretRef { name: "s".into(), namespace: "n".into() });
    let delete = ReclaimStep::DeleteVolume { handle: "p".into(), secret };
    assert_eq!(step_of(&volume, &portworx, Some(&class)), delete);
}
