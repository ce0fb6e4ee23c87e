//! Tables of views and steps in the order of a volume's lifecycle: which claims are provisioned, what is requested,
//! how the response is handled, and what happens to an existing PersistentVolume.

mod intent;

use serde_json::json;
use wharf_csi::ErrorClass;
use wharf_model::topology::Segments;
use wharf_model::{Monotonic, VolumeAttributesClass, VolumeSnapshot, VolumeSnapshotContent};

use super::*;
use crate::context::LocalNode;
use crate::provisioner::intent::IntentTopology;
use crate::provisioner::reclaim::IdleReason;
use crate::provisioner::source::SourceProblem;
use crate::provisioner::testing::{
    AT, DRIVER, Fixture, GI, NOW, VOLUME, claim, class, created, intent, nodes, volume, with,
};
use crate::provisioner::view::{Exhausted, Transition};

impl Fixture {
    fn step(&self) -> ProvisionStep {
        decide(&self.view(), AT)
    }

    fn claimed(patch: Value) -> Self {
        Self { claim: Some(claim(patch)), ..Self::default() }
    }

    fn classed(patch: Value) -> Self {
        Self { class: Some(class(patch)), ..Self::default() }
    }

    /// A fixture with an intent, whose CreateVolume had this outcome.
    fn with_outcome(outcome: Option<CreateOutcome>) -> Self {
        let state = ProvisionState { outcome, ..ProvisionState::default() };
        Self { intent: Some(Arc::new(intent())), state, ..Self::default() }
    }

    /// With a driver that supports topology, on these nodes.
    fn with_nodes(mut self, zones: &[(&str, &str)]) -> Self {
        self.config.capabilities.topology = true;
        self.nodes = nodes(zones);
        self
    }

    fn written(&self) -> Intent {
        match self.step() {
            ProvisionStep::WriteIntent(intent) => *intent,
            step => panic!("expected WriteIntent, got {step:?}"),
        }
    }

    fn refusal(&self) -> Refusal {
        match self.step() {
            ProvisionStep::Refuse(refusal) => refusal,
            step => panic!("expected Refuse, got {step:?}"),
        }
    }
}

/// sidecars.md 1.0 "Secrets": undoing a call needs the same secret as the call.
#[test]
fn secret_comes_from_intent() {
    let mut intent = intent();
    assert_eq!(secret(&intent), None);
    intent.request.secret = Some(("ns".into(), "s".into()));
    assert_eq!(secret(&intent), Some(SecretRef { name: "s".into(), namespace: "ns".into() }));
}

fn on_node(node: &str) -> Value {
    json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}})
}

fn zone(name: &str) -> Segments {
    Segments::from([("zone".to_owned(), name.to_owned())])
}

fn created_outcome(created: CreatedVolume) -> Option<CreateOutcome> {
    Some(CreateOutcome::Created(Arc::new(created)))
}

/// sidecars.md 1.1 "Selects PVC"
#[test]
fn only_pending_claims_of_this_driver_are_provisioned() {
    let annotated = |key: &str, value: &str| {
        json!({"metadata": {"annotations": {
            "volume.kubernetes.io/storage-provisioner": null, key: value,
        }}})
    };
    for patch in [
        json!({}),
        annotated("volume.beta.kubernetes.io/storage-provisioner", DRIVER),
        annotated("pv.kubernetes.io/migrated-to", DRIVER),
        on_node("node-a"),
    ] {
        assert_eq!(Fixture::claimed(patch.clone()).written(), {
            let mut expected = intent();
            expected.template = Fixture::claimed(patch).written().template;
            expected
        });
    }
    for (patch, reason) in [
        (annotated("x", "y"), Reason::OtherProvisioner),
        (annotated("volume.kubernetes.io/storage-provisioner", "x"), Reason::OtherProvisioner),
        (annotated("pv.kubernetes.io/migrated-to", "x"), Reason::OtherProvisioner),
        (json!({"spec": {"volumeName": "pv"}}), Reason::Bound),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), Reason::Deleting),
    ] {
        assert_eq!(Fixture::claimed(patch.clone()).step(), ProvisionStep::Idle(reason), "{patch}");
    }
    assert_eq!(Fixture { claim: None, ..Fixture::default() }.step(), ProvisionStep::Idle(Reason::NoClaim));
    let no_class = Fixture { class: None, ..Fixture::default() };
    assert_eq!(no_class.step(), ProvisionStep::Idle(Reason::NoClass("fast".into())));
    let another = Reason::ClassOfOtherProvisioner { class: "fast".into(), provisioner: "x".into() };
    assert_eq!(Fixture::classed(json!({"provisioner": "x"})).step(), ProvisionStep::Idle(another));
    let selector = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    assert_eq!(Fixture::claimed(selector).refusal(), Refusal::Selector);
}

/// sidecars.md 1.1 "Selects PVC": WaitForFirstConsumer needs a node.
#[test]
fn wait_for_first_consumer_needs_selected_node() {
    let waiting = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    assert_eq!(Fixture::classed(waiting.clone()).step(), ProvisionStep::Idle(Reason::NoNodeSelected));
    let old_key =
        json!({"metadata": {"annotations": {"volume.alpha.kubernetes.io/selected-node": "node-a"}}});
    for patch in [on_node("node-a"), old_key] {
        let fixture = Fixture { claim: Some(claim(patch)), ..Fixture::classed(waiting.clone()) };
        assert_eq!(fixture.written().claim.uid, "u1");
    }
    let fixture = Fixture { claim: Some(claim(on_node(""))), ..Fixture::classed(waiting) };
    assert_eq!(fixture.step(), ProvisionStep::Idle(Reason::NoNodeSelected));
}

/// The state is dropped when its claim is gone or bound.
#[test]
fn state_is_dropped_when_claim_needs_no_volume() {
    let refused = ProvisionState { outcome: Some(CreateOutcome::Refused), ..ProvisionState::default() };
    let fixture = Fixture { claim: None, state: refused.clone(), ..Fixture::default() };
    assert_eq!(fixture.step(), ProvisionStep::DropState);
    let bound = claim(json!({"spec": {"volumeName": "pv"}}));
    assert_eq!(
        Fixture { claim: Some(bound), state: refused, ..Fixture::default() }.step(),
        ProvisionStep::DropState
    );
}

/// sidecars.md 1.1 "Data sources": the provisioner creates no volumes for claims of volume populators, even if the
/// claims are otherwise invalid.
#[test]
fn claim_with_foreign_data_source_is_left_to_populator() {
    let source = json!({"spec": {
        "dataSourceRef": {"apiGroup": "populator.test", "kind": "Bucket", "name": "b"},
        "selector": {"matchLabels": {}},
    }});
    let mut fixture = Fixture::claimed(source.clone());
    assert_eq!(fixture.step(), ProvisionStep::LeaveToPopulator);
    // With node deployment, only the selected node records the event.
    fixture.config.node = Some(LocalNode { name: "node-a".into(), topology: zone("a") });
    assert_eq!(
        fixture.step(),
        ProvisionStep::Idle(Reason::NotThisNode("a volume populator provisions the claim"))
    );
    for (node, leaves) in [("node-a", true), ("node-b", false)] {
        fixture.claim = Some(claim(with(source.clone(), &on_node(node))));
        assert_eq!(fixture.step() == ProvisionStep::LeaveToPopulator, leaves, "{node}");
    }
}

fn clone_scene() -> Fixture {
    let mut fixture =
        Fixture::claimed(json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "src"}}}));
    fixture.config.capabilities.clone_volume = true;
    fixture.source_claim = Some(claim(json!({
        "metadata": {"name": "src", "uid": "u0"}, "spec": {"volumeName": "pv0"}, "status": {"phase": "Bound"},
    })));
    fixture.source_volume = Some(volume(json!({
        "metadata": {"name": "pv0"},
        "spec": {"claimRef": {"name": "src", "uid": "u0"}, "csi": {"volumeHandle": "h0"}},
    })));
    fixture
}

/// sidecars.md 1.1 "Clone finalizer": the source is protected before the intent is written or the driver called.
#[test]
fn clone_source_is_protected_before_intent() {
    let mut fixture = clone_scene();
    let source = match fixture.step() {
        ProvisionStep::ProtectSource(source) => source,
        step => panic!("{step:?}"),
    };
    assert!(matches!(&source, Source::Volume { handle, .. } if handle == "h0"), "{source:?}");
    fixture.state.apply(Transition::SourceProtected, AT.monotonic);
    assert_eq!(fixture.written().request.source, Some(ContentSource::Volume("h0".into())));

    let mut unsupported = clone_scene();
    unsupported.config.capabilities.clone_volume = false;
    assert_eq!(unsupported.refusal(), Refusal::Source(SourceError::CannotClone));
    let mut invalid = clone_scene();
    invalid.class = Some(class(json!({"parameters": {"csi.storage.k8s.io/oops": ""}})));
    assert!(
        matches!(invalid.refusal(), Refusal::Request(_)),
        "the source of an invalid claim is not protected"
    );
}

/// sidecars.md 1.1 "Snapshot finalizer": the snapshot is read from the server, then protected.
#[test]
fn snapshot_source_is_fetched_then_protected() {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let mut fixture = Fixture::claimed(json!({"spec": {"dataSource": source}}));
    fixture.config.capabilities.create_delete_snapshot = true;
    assert_eq!(fixture.step(), ProvisionStep::FetchSources);
    fixture.state.apply(Transition::Fetched(Arc::default()), AT.monotonic);
    let name = "s".into();
    let missing =
        SourceError::SourceProblem { kind: "VolumeSnapshot", name, problem: SourceProblem::Missing };
    assert_eq!(fixture.refusal(), Refusal::Source(missing));
    fixture.state.apply(Transition::AttemptEnded, AT.monotonic);
    assert_eq!(fixture.step(), ProvisionStep::FetchSources, "fetched again at the next attempt");

    let snapshot: VolumeSnapshot = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "s", "uid": "su"},
        "status": {"boundVolumeSnapshotContentName": "c", "readyToUse": true},
    }))
    .unwrap();
    let content: VolumeSnapshotContent = serde_json::from_value(json!({
        "metadata": {"name": "c"},
        "spec": {"driver": DRIVER, "volumeSnapshotRef": {"namespace": "shop", "name": "s", "uid": "su"}},
        "status": {"snapshotHandle": "sh", "readyToUse": true},
    }))
    .unwrap();
    let fetched = Fetched { snapshot: Some(snapshot), content: Some(content), ..Fetched::default() };
    fixture.state.apply(Transition::Fetched(Arc::new(fetched)), AT.monotonic);
    assert!(
        matches!(fixture.step(), ProvisionStep::ProtectSource(Source::Snapshot { handle, .. }) if handle == "sh")
    );
    fixture.state.apply(Transition::SourceProtected, AT.monotonic);
    assert_eq!(fixture.written().request.source, Some(ContentSource::Snapshot("sh".into())));
}

/// sidecars.md 1.1 "VolumeAttributesClass"
#[test]
fn volume_attributes_class_is_fetched_and_checked() {
    let gold = |driver: &str| {
        let class = json!({"metadata": {"name": "gold"}, "driverName": driver, "parameters": {"iops": "9"}});
        AttributesClass::Found(Arc::new(serde_json::from_value::<VolumeAttributesClass>(class).unwrap()))
    };
    let fixture = |attributes, modify_volume| {
        let mut fixture = Fixture::claimed(json!({"spec": {"volumeAttributesClassName": "gold"}}));
        fixture.config.capabilities.modify_volume = modify_volume;
        fixture
            .state
            .apply(Transition::Fetched(Arc::new(Fetched { attributes, ..Fetched::default() })), AT.monotonic);
        fixture
    };
    let unseen = Fixture::claimed(json!({"spec": {"volumeAttributesClassName": "gold"}}));
    assert_eq!(unseen.step(), ProvisionStep::FetchSources);
    let empty = Fixture::claimed(json!({"spec": {"volumeAttributesClassName": ""}}));
    assert!(empty.written().request.mutable_parameters.is_empty());

    let intent = fixture(gold(DRIVER), true).written();
    assert_eq!(intent.request.mutable_parameters.get("iops").map(String::as_str), Some("9"));
    assert_eq!(intent.template["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(fixture(gold(DRIVER), false).refusal(), Refusal::CannotModify);
    let another = Refusal::AttributesClassOfOtherDriver {
        name: "gold".into(),
        driver: "x".into(),
        expected: DRIVER.into(),
    };
    assert_eq!(fixture(gold("x"), true).refusal(), another);
    assert_eq!(fixture(AttributesClass::Missing, true).refusal(), Refusal::NoAttributesClass("gold".into()));
    // If the API server does not serve the kind, the claim is treated as if it named no class.
    let unserved = fixture(AttributesClass::None, true).written();
    assert_eq!(unserved.template["spec"].get("volumeAttributesClassName"), None);
}

/// sidecars.md 1.1 "Topology": what the driver receives, by capability, node and flags. The order is tested in `model`.
#[test]
fn topology_requirement_follows_capability_node_and_flags() {
    let zones = [("node-a", "a"), ("node-b", "b")];
    let requested = |fixture: &Fixture| fixture.written().request.topology;
    let topology = |requisite: &[&str], preferred: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| zone(name)).collect();
        Some(IntentTopology { requisite: list(requisite), preferred: list(preferred) })
    };
    let on_b = || Fixture::claimed(on_node("node-b"));

    let mut without_topology = on_b().with_nodes(&zones);
    without_topology.config.capabilities.topology = false;
    assert_eq!(requested(&without_topology), None);
    assert_eq!(requested(&on_b().with_nodes(&zones)), topology(&["a", "b"], &["b", "a"]));
    let mut strict = on_b().with_nodes(&zones);
    strict.config.settings.strict_topology = true;
    assert_eq!(requested(&strict), topology(&["b"], &["b"]));
    let immediate = requested(&Fixture::default().with_nodes(&zones)).unwrap();
    assert_eq!(immediate.requisite, [zone("a"), zone("b")]);
    let mut silent = Fixture::default().with_nodes(&zones);
    silent.config.settings.immediate_topology = false;
    assert_eq!(requested(&silent), None);
    let allowed =
        json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]});
    let fixture = Fixture { class: Some(class(allowed)), ..on_b() }.with_nodes(&zones);
    assert_eq!(requested(&fixture), topology(&["b"], &["b"]));
}

/// sidecars.md 1.1 "Topology", "Reschedule": a missing node is rescheduled, other errors are reported.
#[test]
fn missing_node_is_rescheduled_and_other_topology_errors_are_refused() {
    let on_c = Fixture::claimed(on_node("node-c")).with_nodes(&[("node-a", "a")]);
    let gone = TopologyError::NoCSINode { node: "node-c".into() };
    assert_eq!(on_c.step(), ProvisionStep::UnselectNode(Unselect::Topology(gone)));
    let mut unregistered = Fixture::claimed(on_node("node-a")).with_nodes(&[("node-a", "a")]);
    Arc::make_mut(&mut unregistered.nodes.csi_nodes[0]).spec.drivers.clear();
    let refusal = Refusal::Topology(TopologyError::NoTopologyKeysOnNode { node: "node-a".into() });
    assert_eq!(unregistered.refusal(), refusal);
    assert_eq!(
        Fixture::default().with_nodes(&[]).refusal(),
        Refusal::Topology(TopologyError::NoTopologyKeys)
    );
}

/// sidecars.md 1.1 "SC params `csi.storage.k8s.io/*`": reported before the driver is called.
#[test]
fn invalid_class_parameter_is_refused() {
    let oops = Fixture::classed(json!({"parameters": {"csi.storage.k8s.io/oops": ""}}));
    assert!(oops.refusal().to_string().contains("csi.storage.k8s.io/oops"));
}

const EBS: &str = "ebs.csi.aws.com";
const EBS_IN_TREE: &str = "kubernetes.io/aws-ebs";

/// A claim of a class of the in-tree plugin, for the driver that replaces it.
fn in_tree_scene(parameters: Value) -> Fixture {
    let to_driver = json!({"volume.kubernetes.io/storage-provisioner": EBS});
    let mut fixture = Fixture {
        claim: Some(claim(json!({"metadata": {"annotations": to_driver}}))),
        class: Some(class(json!({"provisioner": EBS_IN_TREE, "parameters": parameters}))),
        ..Fixture::default()
    };
    fixture.config.driver = EBS.into();
    fixture.config.capabilities.topology = true;
    fixture.config.settings.immediate_topology = false;
    fixture
}

/// sidecars.md 1.0 "In-tree migration".
#[test]
fn class_of_in_tree_plugin_is_translated_for_driver() {
    let intent = in_tree_scene(json!({"fsType": "xfs", "type": "gp3", "zone": "us-east-1a"})).written();
    assert_eq!(intent.request.parameters, [("type".to_owned(), "gp3".to_owned())].into());
    assert_eq!(intent.request.capabilities[0].mount, Some(("xfs".to_owned(), Vec::new())));
    let zone: Segments = [("topology.ebs.csi.aws.com/zone".to_owned(), "us-east-1a".to_owned())].into();
    assert_eq!(intent.request.topology.unwrap().requisite, [zone]);
    assert_eq!(intent.template["metadata"]["annotations"][annotation::PROVISIONED_BY], EBS_IN_TREE);

    let mut marked = in_tree_scene(json!({}));
    let annotations = json!({
        "volume.kubernetes.io/storage-provisioner": EBS_IN_TREE, "pv.kubernetes.io/migrated-to": EBS,
    });
    marked.claim = Some(claim(json!({"metadata": {"annotations": annotations}})));
    assert!(matches!(marked.step(), ProvisionStep::WriteIntent(_)));

    let mut both = in_tree_scene(json!({"zone": "us-east-1a"}));
    both.class = Some(class(json!({
        "provisioner": EBS_IN_TREE, "parameters": {"zone": "us-east-1a"},
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "topology.kubernetes.io/zone", "values": ["z"]}]}],
    })));
    assert_eq!(
        both.refusal().to_string(),
        "failed to translate storage class: cannot simultaneously set allowed topologies and zone/zones parameters"
    );
}

/// The intent's topology comes from the translated class.
#[test]
fn intent_of_in_tree_class_with_zone_is_wanted() {
    let mut fixture = in_tree_scene(json!({"zone": "us-east-1a"}));
    let intent = Arc::new(fixture.written());
    fixture.intent = Some(Arc::clone(&intent));
    assert_eq!(fixture.step(), ProvisionStep::CreateVolume { intent: Arc::clone(&intent), wanted: true });
    // The class was created again, for another zone.
    let parameters = json!({"provisioner": EBS_IN_TREE, "parameters": {"zone": "us-east-1b"}});
    fixture.class = Some(class(parameters));
    assert_eq!(fixture.step(), ProvisionStep::CreateVolume { intent, wanted: false });
}

#[test]
fn class_of_another_in_tree_plugin_is_not_provisioned() {
    let mut fixture = in_tree_scene(json!({}));
    fixture.class = Some(class(json!({"provisioner": "kubernetes.io/gce-pd"})));
    assert!(matches!(fixture.step(), ProvisionStep::Idle(Reason::ClassOfOtherProvisioner { .. })));
}

/// An in-tree claim whose volume the driver created in this zone.
fn created_in_tree(zone: &str) -> Fixture {
    let mut fixture = in_tree_scene(json!({}));
    let intent = fixture.written();
    let place = [("topology.ebs.csi.aws.com/zone".to_owned(), zone.to_owned())].into();
    fixture.state.outcome = created_outcome(CreatedVolume {
        handle: "vol-1".into(),
        accessible_topology: vec![place],
        ..created()
    });
    fixture.intent = Some(Arc::new(intent));
    fixture
}

#[test]
fn volume_of_in_tree_class_is_saved_with_in_tree_source_and_then_recognised() {
    let mut fixture = created_in_tree("us-east-1a");
    let ProvisionStep::SavePv { object, .. } = fixture.step() else { panic!("{:?}", fixture.step()) };
    assert_eq!(object["spec"]["awsElasticBlockStore"], json!({"volumeID": "vol-1"}));
    assert_eq!(object["spec"].get("csi"), None);
    assert_eq!(object["metadata"]["annotations"][annotation::PROVISIONED_BY], EBS_IN_TREE);
    assert_eq!(
        object["metadata"]["labels"],
        json!({"topology.kubernetes.io/region": "us-east-1", "topology.kubernetes.io/zone": "us-east-1a"})
    );
    assert_eq!(
        object["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0],
        json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]})
    );
    // After a crash: the volume exists, so the intent is done.
    for (volume_id, recognised) in [("vol-1", true), ("vol-2", false)] {
        let mut object = object.clone();
        object["spec"]["awsElasticBlockStore"]["volumeID"] = json!(volume_id);
        fixture.pv = Some(serde_json::from_value(object).unwrap());
        let done = matches!(fixture.step(), ProvisionStep::FinishIntent { handle_owner: None, .. });
        assert_eq!(done, recognised, "{volume_id}");
    }
}

/// The handle of an in-tree volume depends on its labels. Otherwise the disk of a bound volume would be deleted.
#[test]
fn created_volume_is_kept_if_in_tree_pv_of_its_claim_was_changed() {
    const GCE: &str = "pd.csi.storage.gke.io";
    let mut fixture = in_tree_scene(json!({}));
    fixture.config.driver = GCE.into();
    fixture.config.capabilities.topology = false;
    fixture.claim = Some(claim(json!({
        "metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": GCE}},
    })));
    fixture.class = Some(class(json!({"provisioner": "kubernetes.io/gce-pd"})));
    fixture.intent = Some(Arc::new(fixture.written()));
    fixture.state.outcome = created_outcome(CreatedVolume {
        handle: "projects/p/zones/us-east1-b/disks/pvc-u1".into(),
        ..created()
    });
    let ProvisionStep::SavePv { object, .. } = fixture.step() else { panic!("{:?}", fixture.step()) };
    assert_eq!(object["spec"]["gcePersistentDisk"], json!({"pdName": "pvc-u1"}));
    let mut step_with = |patch: Value| {
        fixture.pv = Some(serde_json::from_value(with(object.clone(), &patch)).unwrap());
        fixture.step()
    };
    let finished = |step: &ProvisionStep, expected: Option<&str>| match step {
        ProvisionStep::FinishIntent { handle_owner, .. } => handle_owner.as_deref() == expected,
        _ => false,
    };
    let zones = |zones: &str| json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zones}}});
    let step = step_with(json!({}));
    assert!(finished(&step, None), "{step:?}");
    // Another handle; none, since the zones are in several regions.
    for patch in [zones("us-east1-b"), zones("us-east1-b__europe-west1-b")] {
        let step = step_with(patch.clone());
        assert!(finished(&step, Some(VOLUME)), "{patch}: {step:?}");
    }
    // The PersistentVolume of another claim of the name: no object refers to the created volume.
    let step = step_with(with(zones("us-east1-b"), &json!({"spec": {"claimRef": {"uid": "u2"}}})));
    assert!(matches!(step, ProvisionStep::DeleteCreated { .. }), "{step:?}");
}

/// Upstream calls the driver again and again, and leaks the volume if the claim is deleted.
#[test]
fn volume_that_cannot_get_in_tree_source_is_deleted() {
    let fixture = created_in_tree("moon");
    let ProvisionStep::DeleteCreated { handle, problem, .. } = fixture.step() else {
        panic!("{:?}", fixture.step())
    };
    assert_eq!(handle, "vol-1");
    assert_eq!(
        problem.to_string(),
        "failed to translate CSI PV to in-tree due to: cannot get the region from zone \"moon\""
    );
}
