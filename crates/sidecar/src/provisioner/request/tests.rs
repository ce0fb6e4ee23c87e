use serde_json::{Value, json};
use wharf_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use wharf_model::AccessMode as Modes;

use super::*;
use crate::provisioner::testing::{GI, NOW, VOLUME, claim, class, config, intent_of};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn of(config: &ProvisionerConfig, claim: Value, class: Value) -> Intent {
    intent_of(config, &self::claim(claim), &self::class(class))
}

fn refused(claim: Value, class: Value) -> RequestError {
    let (config, claim, class) = (config(), self::claim(claim), self::class(class));
    let inputs = CreateRequest {
        volume: VOLUME,
        config: &config,
        claim: &claim,
        class: &class,
        provisioned_by: &class.provisioner,
        source: None,
        topology: None,
        attributes: None,
    };
    build_intent(inputs, NOW).unwrap_err()
}

/// sidecars.md 1.1 "PV / volume name", "Error classes (CreateVolume)": a repeated call is identical.
#[test]
fn minimal_claim_yields_minimal_request() {
    let intent = of(&config(), json!({}), json!({}));
    assert_eq!(
        (intent.volume.as_str(), intent.class_uid.as_str(), intent.written),
        (VOLUME, "class-1", NOW.0)
    );
    assert_eq!(intent.claim, IntentClaim { namespace: "shop".into(), name: "data".into(), uid: "u1".into() });
    let expected = v1::CreateVolumeRequest {
        name: VOLUME.into(),
        capacity_range: Some(v1::CapacityRange { required_bytes: GI, limit_bytes: 0 }),
        volume_capabilities: vec![v1::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: 1 }),
        }],
        ..v1::CreateVolumeRequest::default()
    };
    assert_eq!(create_volume_request(&intent, BTreeMap::new()), expected);
    let text = serde_json::to_string(&intent).unwrap();
    let again: Intent = serde_json::from_str(&text).unwrap();
    assert_eq!(
        create_volume_request(&again, BTreeMap::new()),
        expected,
        "identical when built from the journal"
    );
}

/// sidecars.md 1.1 "SC params `csi.storage.k8s.io/*`", "fsType": which parameters reach the driver.
#[test]
fn class_parameters_fs_type_and_mount_options_are_sent() {
    let class = json!({
        "parameters": {"pool": "a", "csi.storage.k8s.io/fstype": "xfs"}, "mountOptions": ["discard"],
    });
    let request = of(&config(), json!({}), class).request;
    assert_eq!(request.parameters, map(&[("pool", "a")]));
    let mount = Some(("xfs".to_owned(), vec!["discard".to_owned()]));
    assert_eq!(request.capabilities, [Capability { mode: 1, mount }]);

    let mut config = config();
    config.settings.default_fstype = "ext4".into();
    let fs_type = |class| {
        let request = of(&config, json!({}), class).request;
        request.capabilities[0].mount.as_ref().unwrap().0.clone()
    };
    assert_eq!(fs_type(json!({})), "ext4");
    assert_eq!(fs_type(json!({"parameters": {"fsType": "btrfs"}})), "btrfs");
    let unknown = refused(json!({}), json!({"parameters": {"csi.storage.k8s.io/oops": "x"}}));
    assert!(matches!(unknown, RequestError::Parameters(ParameterError::UnknownKey { .. })), "{unknown}");
}

/// sidecars.md 1.1 "Block", 1.0 "Access modes": one capability for each mode.
#[test]
fn each_access_mode_becomes_a_capability() {
    let numbers = |config: &ProvisionerConfig, modes: Value| {
        let request = of(config, json!({"spec": {"accessModes": modes}}), json!({})).request;
        request.capabilities.iter().map(|capability| capability.mode).collect::<Vec<_>>()
    };
    let plain = config();
    let mut finer = config();
    finer.capabilities.single_node_multi_writer = true;
    assert_eq!(numbers(&plain, json!(["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"])), [1, 3, 5]);
    assert_eq!(numbers(&plain, json!(["ReadWriteOncePod"])), [1]);
    assert_eq!(numbers(&finer, json!(["ReadWriteOncePod"])), [6]);
    assert_eq!(numbers(&finer, json!(["ReadWriteOnce"])), [7]);
    let odd = refused(json!({"spec": {"accessModes": ["Odd"]}}), json!({}));
    assert_eq!(odd, RequestError::Access(AccessError::Unsupported(vec![Modes::Unknown])));

    let block = of(&config(), json!({"spec": {"volumeMode": "Block"}}), json!({"mountOptions": ["discard"]}));
    assert_eq!(block.request.capabilities, [Capability { mode: 1, mount: None }]);
    let call = create_volume_request(&block, BTreeMap::new());
    assert_eq!(call.volume_capabilities[0].access_type, Some(AccessType::Block(BlockVolume {})));
}

/// sidecars.md 1.1 "extra-create-metadata"
#[test]
fn extra_create_metadata_adds_names() {
    let mut config = config();
    config.settings.extra_create_metadata = true;
    let expected = map(&[
        ("pool", "a"),
        ("csi.storage.k8s.io/pvc/name", "data"),
        ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ("csi.storage.k8s.io/pv/name", VOLUME),
    ]);
    assert_eq!(of(&config, json!({}), json!({"parameters": {"pool": "a"}})).request.parameters, expected);
}

/// sidecars.md 1.1 "Secret templates", 1.0 "Secrets": the intent names the secret, only the request has its values.
#[test]
fn intent_names_secret_without_values() {
    let parameters = json!({"parameters": {
        "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}-${pv.name}",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    }});
    let intent = of(&config(), json!({}), parameters);
    assert_eq!(intent.request.secret, Some(("shop".into(), "data-pvc-u1".into())));
    let call = create_volume_request(&intent, map(&[("user", "hunter2")]));
    assert_eq!(call.secrets, map(&[("user", "hunter2")]));
    assert!(!serde_json::to_string(&intent).unwrap().contains("hunter2"));

    let unknown = json!({"parameters": {
        "csi.storage.k8s.io/secret-name": "${pvc.oops}", "csi.storage.k8s.io/secret-namespace": "n",
    }});
    assert!(matches!(refused(json!({}), unknown), RequestError::Secret(TemplateError::UnknownTokens { .. })));
}

/// sidecars.md 1.1 "Data sources", "Topology", "VolumeAttributesClass": the other fields of the request.
#[test]
fn request_has_source_topology_and_mutable_parameters() {
    let (config, claim, class) = (config(), self::claim(json!({})), self::class(json!({})));
    let (a, b) = (map(&[("zone", "a")]), map(&[("zone", "b")]));
    let gold: VolumeAttributesClass =
        serde_json::from_value(json!({"metadata": {"name": "gold"}, "parameters": {"iops": "9"}})).unwrap();
    let inputs = |source| CreateRequest {
        volume: VOLUME,
        config: &config,
        claim: &claim,
        class: &class,
        provisioned_by: &class.provisioner,
        source: Some(source),
        topology: Some(TopologyRequirement {
            requisite: vec![a.clone(), b.clone()],
            preferred: vec![b.clone(), a.clone()],
        }),
        attributes: Some(&gold),
    };
    let topology = |place: &Segments| v1::Topology { segments: place.clone() };
    for (source, expected) in [
        (
            ContentSource::Snapshot("s1".into()),
            volume_content_source::Type::Snapshot(SnapshotSource { snapshot_id: "s1".into() }),
        ),
        (
            ContentSource::Volume("v1".into()),
            volume_content_source::Type::Volume(VolumeSource { volume_id: "v1".into() }),
        ),
    ] {
        let call = create_volume_request(&build_intent(inputs(source), NOW).unwrap(), BTreeMap::new());
        assert_eq!(call.volume_content_source.and_then(|source| source.r#type), Some(expected));
        let requirement = call.accessibility_requirements.unwrap();
        assert_eq!(requirement.requisite, [topology(&a), topology(&b)]);
        assert_eq!(requirement.preferred, [topology(&b), topology(&a)]);
        assert_eq!(call.mutable_parameters, map(&[("iops", "9")]));
    }
}

#[test]
fn response_is_read_and_needs_volume_id() {
    let volume = v1::Volume {
        capacity_bytes: 7,
        volume_id: "h".into(),
        volume_context: map(&[("k", "v")]),
        content_source: Some(v1::VolumeContentSource::default()),
        accessible_topology: vec![v1::Topology { segments: map(&[("zone", "a")]) }],
    };
    let response = |volume| v1::CreateVolumeResponse { volume };
    let expected = CreatedVolume {
        handle: "h".into(),
        capacity_bytes: 7,
        context: map(&[("k", "v")]),
        accessible_topology: vec![map(&[("zone", "a")])],
        has_source: true,
    };
    assert_eq!(created_volume(response(Some(volume.clone()))), Some(expected));
    let nameless = v1::Volume { volume_id: String::new(), ..volume };
    assert_eq!(created_volume(response(Some(nameless))), None);
    assert_eq!(created_volume(response(None)), None);
}

/// Finding S-L8. sidecars.md 1.1 "Node deployment": a driver may have capacity for some kinds of volumes only.
#[test]
fn bid_asks_for_capacity_of_the_claims_volume() {
    let (config, class) =
        (config(), class(json!({"parameters": {"pool": "p"}, "mountOptions": ["noatime"]})));
    let topology: Segments = [("zone".to_owned(), "a".to_owned())].into();
    for mode in ["Filesystem", "Block"] {
        let claim = claim(json!({"spec": {"volumeMode": mode, "accessModes": ["ReadWriteMany"]}}));
        let request = capacity_request(&config, &claim, &class, &topology).unwrap();
        let created = create_volume_request(&intent_of(&config, &claim, &class), BTreeMap::new());
        assert_eq!(request.volume_capabilities, created.volume_capabilities, "{mode}");
        assert_eq!(request.volume_capabilities.len(), 1, "{mode}");
        assert_eq!(request.parameters, created.parameters);
        let segments = request.accessible_topology.unwrap().segments;
        assert_eq!(segments, [("zone".to_owned(), "a".to_owned())].into());
    }
    let claim = claim(json!({}));
    assert_eq!(
        capacity_request(&config, &claim, &class, &Segments::new()).unwrap().accessible_topology,
        None
    );
}
