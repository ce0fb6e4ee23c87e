use std::collections::BTreeMap;

use super::*;
use crate::provisioner::intent::ContentSource;
use crate::provisioner::testing::{GI, VOLUME, claim, class, config, created, intent, intent_of, volume};

fn written(config: &ProvisionerConfig, claim: Value, class: Value, created: &CreatedVolume) -> Value {
    build_pv(&intent_of(config, &self::claim(claim), &self::class(class)), created, config, false).unwrap()
}

fn segments(zone: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("zone".to_owned(), zone.to_owned())])
}

/// sidecars.md 1.1 "PV written": the complete minimal object.
#[test]
fn minimal_claim_yields_minimal_pv() {
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
    assert_eq!(written(&config(), json!({}), json!({}), &created()), expected);
}

/// sidecars.md 1.1 "PV written": everything that a class, a claim and a response can add.
#[test]
fn class_claim_and_response_fill_pv() {
    let mut config = config();
    config.capabilities.topology = true;
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
    let created = CreatedVolume {
        capacity_bytes: 2 * GI,
        context: BTreeMap::from([("k".into(), "v".into())]),
        accessible_topology: vec![segments("a"), BTreeMap::new(), segments("b")],
        ..created()
    };
    let object = written(&config, claim, class, &created);
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
fn block_mode_and_missing_topology_omit_fields() {
    let block = written(
        &config(),
        json!({"spec": {"volumeMode": "Block"}}),
        json!({"parameters": {"fstype": "xfs"}}),
        &CreatedVolume { capacity_bytes: 0, accessible_topology: vec![segments("a")], ..created() },
    );
    assert_eq!(block["spec"]["csi"].get("fsType"), None);
    assert_eq!(block["spec"]["volumeMode"], json!("Block"));
    assert_eq!(block["spec"]["capacity"], json!({"storage": "1Gi"}), "the requested size");
    assert_eq!(block["spec"].get("nodeAffinity"), None);
    let context = BTreeMap::from([(key::PROVISIONER_IDENTITY.to_owned(), "driver's own".to_owned())]);
    let own_identity = written(&config(), json!({}), json!({}), &CreatedVolume { context, ..created() });
    let attributes = &own_identity["spec"]["csi"]["volumeAttributes"];
    assert_eq!(*attributes, json!({"storage.kubernetes.io/csiProvisionerIdentity": "driver's own"}));
}

/// sidecars.md 1.1 "PV written": readOnly.
#[test]
fn read_only_needs_flag_and_read_only_many() {
    for (flag, modes, expected) in [
        (true, json!(["ReadOnlyMany"]), Some(true)),
        (false, json!(["ReadOnlyMany"]), None),
        (true, json!(["ReadWriteOnce"]), None),
        (true, json!(["ReadOnlyMany", "ReadWriteOnce"]), None),
    ] {
        let mut config = config();
        config.settings.controller_publish_readonly = flag;
        let object = written(&config, json!({"spec": {"accessModes": modes}}), json!({}), &created());
        assert_eq!(object["spec"]["csi"].get("readOnly").and_then(Value::as_bool), expected);
    }
}

/// sidecars.md 1.1 "VolumeAttributesClass": on the volume.
#[test]
fn pv_names_volume_attributes_class() {
    let (config, claim, class) = (config(), self::claim(json!({})), self::class(json!({})));
    let secrets = SecretTemplates::default();
    let wanted = |attributes_class| TemplateInputs {
        volume: VOLUME,
        config: &config,
        claim: &claim,
        class: &class,
        provisioned_by: &class.provisioner,
        secrets: &secrets,
        fs_type: "",
        attributes_class,
    };
    let named = |wanted| template(&wanted).unwrap()["spec"].get("volumeAttributesClassName").cloned();
    assert_eq!(named(wanted(Some("gold"))), Some(json!("gold")));
    assert_eq!(named(wanted(None)), None);
}

#[test]
fn retain_overrides_reclaim_policy_of_class() {
    let policy = |retain| {
        build_pv(&intent(), &created(), &config(), retain).unwrap()["spec"]["persistentVolumeReclaimPolicy"]
            .clone()
    };
    assert_eq!((policy(false), policy(true)), (json!("Delete"), json!("Retain")));
}

/// sidecars.md 1.1 "capacity checks"
#[test]
fn created_volume_is_validated() {
    let created_with = |capacity_bytes, has_source| CreatedVolume { capacity_bytes, has_source, ..created() };
    let plain = intent();
    let mut copy = intent();
    copy.request.source = Some(ContentSource::Volume("v".into()));
    for (intent, created, expected) in [
        (&plain, created_with(GI, false), None),
        (&plain, created_with(GI + 1, true), None),
        (&plain, created_with(0, false), None),
        (
            &plain,
            created_with(GI - 1, false),
            Some(InvalidVolume::TooSmall { created: GI - 1, requested: GI }),
        ),
        (&copy, created_with(GI, true), None),
        (&copy, created_with(GI, false), Some(InvalidVolume::NoSource)),
        (&copy, created_with(1, false), Some(InvalidVolume::TooSmall { created: 1, requested: GI })),
    ] {
        assert_eq!(validate(intent, &created), expected);
    }
}

/// sidecars.md 1.1 "Save PV": a volume that exists is compared, not assumed ours.
#[test]
fn existing_pv_is_compared_with_intent() {
    let other = CreatedVolume { handle: "h2".into(), ..created() };
    for (patch, known, expected) in [
        (json!({}), Some(&created()), true),
        (json!({}), None, true),
        (json!({}), Some(&other), false),
        (json!({"spec": {"csi": {"driver": "x"}}}), Some(&created()), false),
        (json!({"spec": {"csi": null}}), None, false),
        (json!({"spec": {"claimRef": {"uid": "u2"}}}), None, false),
        (json!({"spec": {"claimRef": {"name": "x"}}}), None, false),
        (json!({"spec": {"claimRef": {"namespace": "x"}}}), None, false),
        (json!({"spec": {"claimRef": null}}), None, false),
    ] {
        assert_eq!(matches_intent(&volume(patch.clone()), &intent(), &config(), known), expected, "{patch}");
    }
}
