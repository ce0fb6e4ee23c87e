use std::collections::BTreeMap;

use super::*;
use crate::provisioner::intent::ContentSource;
use crate::provisioner::testing::{GI, VOLUME, claim, class, intent, intent_of, made, own, volume};

fn written(own: &Own, claim: Value, class: Value, made: &Made) -> Value {
    complete(&intent_of(own, &self::claim(claim), &self::class(class)), made, own, false)
}

fn segments(zone: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("zone".to_owned(), zone.to_owned())])
}

/// sidecars.md 1.1 "PV written": the plainest one, whole.
#[test]
fn the_plainest_volume() {
    let expected = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": VOLUME,
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "d.test",
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer"],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data",
                "uid": "u1", "resourceVersion": "7",
            },
            "csi": {
                "driver": "d.test", "volumeHandle": "h1",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1-2-d.test"},
            },
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
        },
    });
    assert_eq!(written(&own(), json!({}), json!({}), &made()), expected);
}

/// sidecars.md 1.1 "PV written": everything that a class, a claim and an answer can add.
#[test]
fn the_fullest_volume() {
    let mut own = own();
    own.can.topology = true;
    let secret = |purpose: &str| format!("csi.storage.k8s.io/{purpose}-secret-name");
    let mut parameters = json!({
        "csi.storage.k8s.io/fstype": "xfs",
        "csi.storage.k8s.io/secret-name": "all", "csi.storage.k8s.io/secret-namespace": "ns",
    });
    for purpose in ["node-stage", "controller-modify"] {
        parameters[secret(purpose)] = json!(format!("{purpose}-of-${{pv.name}}"));
        parameters[format!("csi.storage.k8s.io/{purpose}-secret-namespace")] = json!("ns");
    }
    let class = json!({
        "parameters": parameters, "mountOptions": ["noatime"], "reclaimPolicy": "Retain",
    });
    let claim =
        json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "volumeMode": "Filesystem"}});
    let made = Made {
        capacity_bytes: 2 * GI,
        context: BTreeMap::from([("k".into(), "v".into())]),
        places: vec![segments("a"), BTreeMap::new(), segments("b")],
        ..made()
    };
    let object = written(&own, claim, class, &made);
    let all = json!({"name": "all", "namespace": "ns"});
    assert_eq!(
        object["metadata"]["annotations"],
        json!({
            "pv.kubernetes.io/provisioned-by": "d.test",
            "volume.kubernetes.io/provisioner-deletion-secret-name": "all",
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": "ns",
            "volume.kubernetes.io/controller-modify-secret-name": "controller-modify-of-pvc-u1",
            "volume.kubernetes.io/controller-modify-secret-namespace": "ns",
        })
    );
    assert_eq!(
        object["spec"]["csi"],
        json!({
            "driver": "d.test", "volumeHandle": "h1", "fsType": "xfs",
            "volumeAttributes": {"k": "v", "storage.kubernetes.io/csiProvisionerIdentity": "1-2-d.test"},
            "controllerPublishSecretRef": all, "nodePublishSecretRef": all,
            "controllerExpandSecretRef": all, "nodeExpandSecretRef": all,
            "nodeStageSecretRef": {"name": "node-stage-of-pvc-u1", "namespace": "ns"},
        })
    );
    let spec = &object["spec"];
    assert_eq!(spec["accessModes"], json!(["ReadWriteOnce", "ReadOnlyMany"]));
    assert_eq!(spec["capacity"], json!({"storage": "2Gi"}));
    assert_eq!(spec["mountOptions"], json!(["noatime"]));
    assert_eq!(spec["persistentVolumeReclaimPolicy"], json!("Retain"));
    assert_eq!(spec["volumeMode"], json!("Filesystem"));
    let term = |zone| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]});
    assert_eq!(spec["nodeAffinity"], json!({"required": {"nodeSelectorTerms": [term("a"), term("b")]}}));
}

/// sidecars.md 1.1 "PV written": fsType only for Filesystem, nodeAffinity only with the capability, an unknown
/// capacity, a context that names the identity itself.
#[test]
fn what_is_left_out() {
    let block = written(
        &own(),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"parameters": {"fstype": "xfs"}}),
        &Made { capacity_bytes: 0, places: vec![segments("a")], ..made() },
    );
    assert_eq!(block["spec"]["csi"].get("fsType"), None);
    assert_eq!(block["spec"]["volumeMode"], json!("Block"));
    assert_eq!(block["spec"]["capacity"], json!({"storage": "1Gi"}), "as requested");
    assert_eq!(block["spec"].get("nodeAffinity"), None);
    let context = BTreeMap::from([(key::PROVISIONER_IDENTITY.to_owned(), "driver's own".to_owned())]);
    let own_word = written(&own(), json!({}), json!({}), &Made { context, ..made() });
    let attributes = &own_word["spec"]["csi"]["volumeAttributes"];
    assert_eq!(*attributes, json!({"storage.kubernetes.io/csiProvisionerIdentity": "driver's own"}));
}

/// sidecars.md 1.1 "PV written": readOnly.
#[test]
fn read_only() {
    for (flag, modes, expected) in [
        (true, json!(["ReadOnlyMany"]), Some(true)),
        (false, json!(["ReadOnlyMany"]), None),
        (true, json!(["ReadWriteOnce"]), None),
        (true, json!(["ReadOnlyMany", "ReadWriteOnce"]), None),
    ] {
        let mut own = own();
        own.settings.controller_publish_readonly = flag;
        let object = written(&own, json!({"spec": {"accessModes": modes}}), json!({}), &made());
        assert_eq!(object["spec"]["csi"].get("readOnly").and_then(Value::as_bool), expected);
    }
}

/// sidecars.md 1.1 "VolumeAttributesClass": on the volume.
#[test]
fn the_mutable_class_is_named() {
    let (own, claim, class) = (own(), self::claim(json!({})), self::class(json!({})));
    let secrets = Secrets::default();
    let wanted = |attributes_class| Wanted {
        volume: VOLUME,
        own: &own,
        claim: &claim,
        class: &class,
        secrets: &secrets,
        fs_type: "",
        attributes_class,
    };
    let named = |wanted| template(&wanted).unwrap()["spec"].get("volumeAttributesClassName").cloned();
    assert_eq!(named(wanted(Some("gold"))), Some(json!("gold")));
    assert_eq!(named(wanted(None)), None);
}

#[test]
fn a_volume_is_kept_whatever_the_class_said() {
    let policy =
        |keep| complete(&intent(), &made(), &own(), keep)["spec"]["persistentVolumeReclaimPolicy"].clone();
    assert_eq!((policy(false), policy(true)), (json!("Delete"), json!("Retain")));
}

/// sidecars.md 1.1 "capacity checks"
#[test]
fn what_the_driver_made_is_checked() {
    let answer = |capacity_bytes, has_source| Made { capacity_bytes, has_source, ..made() };
    let plain = intent();
    let mut copy = intent();
    copy.request.source = Some(ContentSource::Volume("v".into()));
    for (intent, made, expected) in [
        (&plain, answer(GI, false), None),
        (&plain, answer(GI + 1, true), None),
        (&plain, answer(0, false), None),
        (&plain, answer(GI - 1, false), Some(Flaw::TooSmall { made: GI - 1, requested: GI })),
        (&copy, answer(GI, true), None),
        (&copy, answer(GI, false), Some(Flaw::NoSource)),
        (&copy, answer(1, false), Some(Flaw::TooSmall { made: 1, requested: GI })),
    ] {
        assert_eq!(flaw(intent, &made), expected);
    }
}

/// sidecars.md 1.1 "Save PV": a volume that exists is compared, not assumed ours.
#[test]
fn a_volume_that_is_there_is_compared() {
    let other = Made { handle: "h2".into(), ..made() };
    for (patch, known, expected) in [
        (json!({}), Some(&made()), true),
        (json!({}), None, true),
        (json!({}), Some(&other), false),
        (json!({"spec": {"csi": {"driver": "x"}}}), Some(&made()), false),
        (json!({"spec": {"csi": null}}), None, false),
        (json!({"spec": {"claimRef": {"uid": "u2"}}}), None, false),
        (json!({"spec": {"claimRef": {"name": "x"}}}), None, false),
        (json!({"spec": {"claimRef": {"namespace": "x"}}}), None, false),
        (json!({"spec": {"claimRef": null}}), None, false),
    ] {
        assert_eq!(is_the_one(&volume(patch.clone()), &intent(), "d.test", known), expected, "{patch}");
    }
}
