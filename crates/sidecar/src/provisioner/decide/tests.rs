//! Tables of views and steps, in the order of the story: which claims are taken up, what is asked, what is done with
//! the answer, and what with a volume that is there.

use serde_json::json;
use wharf_csi::ErrorClass;
use wharf_model::topology::Segments;
use wharf_model::{VolumeAttributesClass, VolumeSnapshot, VolumeSnapshotContent};

use super::*;
use crate::context::OwnNode;
use crate::provisioner::intent::Places;
use crate::provisioner::reclaim::Why;
use crate::provisioner::source::Unfit;
use crate::provisioner::testing::{
    DRIVER, GI, NOW, Scene, VOLUME, claim, class, intent, made, nodes, volume, with,
};
use crate::provisioner::view::{Happened, NO_ROOM};

impl Scene {
    fn step(&self) -> Step {
        decide(&self.view(), NOW)
    }

    fn claimed(patch: Value) -> Self {
        Self { claim: Some(claim(patch)), ..Self::default() }
    }

    fn classed(patch: Value) -> Self {
        Self { class: Some(class(patch)), ..Self::default() }
    }

    /// With an intent, and this answer to it.
    fn answered(answer: Option<Answer>) -> Self {
        let memory = Memory { answer, ..Memory::default() };
        Self { intent: Some(Arc::new(intent())), memory, ..Self::default() }
    }

    /// Whose driver knows places.
    fn located(mut self, zones: &[(&str, &str)]) -> Self {
        self.own.can.topology = true;
        self.nodes = nodes(zones);
        self
    }

    fn written(&self) -> Intent {
        match self.step() {
            Step::Write(intent) => *intent,
            step => panic!("nothing is written: {step:?}"),
        }
    }

    fn refusal(&self) -> Refusal {
        match self.step() {
            Step::Refuse(refusal) => refusal,
            step => panic!("not refused: {step:?}"),
        }
    }
}

/// sidecars.md 1.0 "Secrets": for what was asked with a secret, undoing it needs the same.
#[test]
fn the_secret_of_an_intent() {
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

fn answer_made(made: Made) -> Option<Answer> {
    Some(Answer::Made(Arc::new(made)))
}

/// sidecars.md 1.1 "Selects PVC"
#[test]
fn which_claims_are_taken_up() {
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
        assert_eq!(Scene::claimed(patch.clone()).written(), {
            let mut expected = intent();
            expected.template = Scene::claimed(patch).written().template;
            expected
        });
    }
    for (patch, reason) in [
        (annotated("x", "y"), Reason::NotOfThisDriver),
        (annotated("volume.kubernetes.io/storage-provisioner", "x"), Reason::NotOfThisDriver),
        (annotated("pv.kubernetes.io/migrated-to", "x"), Reason::NotOfThisDriver),
        (json!({"spec": {"volumeName": "pv"}}), Reason::Bound),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), Reason::Deleting),
    ] {
        assert_eq!(Scene::claimed(patch.clone()).step(), Step::Rest(reason), "{patch}");
    }
    assert_eq!(Scene { claim: None, ..Scene::default() }.step(), Step::Rest(Reason::NoClaim));
    let no_class = Scene { class: None, ..Scene::default() };
    assert_eq!(no_class.step(), Step::Rest(Reason::NoClass("fast".into())));
    let another = Reason::ClassOfAnother { class: "fast".into(), provisioner: "x".into() };
    assert_eq!(Scene::classed(json!({"provisioner": "x"})).step(), Step::Rest(another));
    let selector = json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}});
    assert_eq!(Scene::claimed(selector).refusal(), Refusal::Selector);
}

/// sidecars.md 1.1 "Selects PVC": WaitForFirstConsumer needs a node.
#[test]
fn a_claim_waits_for_its_first_consumer() {
    let waiting = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    assert_eq!(Scene::classed(waiting.clone()).step(), Step::Rest(Reason::NoNodeSelected));
    let old_key =
        json!({"metadata": {"annotations": {"volume.alpha.kubernetes.io/selected-node": "node-a"}}});
    for patch in [on_node("node-a"), old_key] {
        let scene = Scene { claim: Some(claim(patch)), ..Scene::classed(waiting.clone()) };
        assert_eq!(scene.written().claim.uid, "u1");
    }
    let scene = Scene { claim: Some(claim(on_node(""))), ..Scene::classed(waiting) };
    assert_eq!(scene.step(), Step::Rest(Reason::NoNodeSelected));
}

/// What is remembered goes with what it was about.
#[test]
fn nothing_is_remembered_without_need() {
    let refused = Memory { answer: Some(Answer::Refused), ..Memory::default() };
    let scene = Scene { claim: None, memory: refused.clone(), ..Scene::default() };
    assert_eq!(scene.step(), Step::Forget);
    let bound = claim(json!({"spec": {"volumeName": "pv"}}));
    assert_eq!(Scene { claim: Some(bound), memory: refused, ..Scene::default() }.step(), Step::Forget);
}

/// sidecars.md 1.1 "Data sources": populators are left alone, whatever else is wrong.
#[test]
fn a_populators_claim_is_left_alone() {
    let source = json!({"spec": {
        "dataSourceRef": {"apiGroup": "populator.test", "kind": "Bucket", "name": "b"},
        "selector": {"matchLabels": {}},
    }});
    let mut scene = Scene::claimed(source.clone());
    assert_eq!(scene.step(), Step::LeaveToPopulator);
    // Where each node has a sidecar of its own, one of them tells so.
    scene.own.node = Some(OwnNode { name: "node-a".into(), place: zone("a") });
    assert_eq!(scene.step(), Step::Rest(Reason::OfAnotherNode("a populator sees to it")));
    for (node, tells) in [("node-a", true), ("node-b", false)] {
        scene.claim = Some(claim(with(source.clone(), &on_node(node))));
        assert_eq!(scene.step() == Step::LeaveToPopulator, tells, "{node}");
    }
}

fn clone_scene() -> Scene {
    let mut scene =
        Scene::claimed(json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "src"}}}));
    scene.own.can.clone_volume = true;
    scene.source_claim = Some(claim(json!({
        "metadata": {"name": "src", "uid": "u0"}, "spec": {"volumeName": "pv0"}, "status": {"phase": "Bound"},
    })));
    scene.source_volume = Some(volume(json!({
        "metadata": {"name": "pv0"},
        "spec": {"claimRef": {"name": "src", "uid": "u0"}, "csi": {"volumeHandle": "h0"}},
    })));
    scene
}

/// sidecars.md 1.1 "Clone finalizer": the source is protected before anything is written or asked.
#[test]
fn a_clones_source_is_protected_first() {
    let mut scene = clone_scene();
    let source = match scene.step() {
        Step::Protect(source) => source,
        step => panic!("{step:?}"),
    };
    assert!(matches!(&source, Source::Volume { handle, .. } if handle == "h0"), "{source:?}");
    scene.memory.after(Happened::Protected, NOW);
    assert_eq!(scene.written().request.source, Some(ContentSource::Volume("h0".into())));

    let mut cannot = clone_scene();
    cannot.own.can.clone_volume = false;
    assert_eq!(cannot.refusal(), Refusal::Source(SourceError::CannotClone));
    let mut hopeless = clone_scene();
    hopeless.class = Some(class(json!({"parameters": {"csi.storage.k8s.io/oops": ""}})));
    assert!(matches!(hopeless.refusal(), Refusal::Request(_)), "nothing is protected for nothing");
}

/// sidecars.md 1.1 "Snapshot finalizer": what no store has is read, then the source is protected.
#[test]
fn a_snapshot_is_looked_at_and_protected() {
    let source = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"});
    let mut scene = Scene::claimed(json!({"spec": {"dataSource": source}}));
    scene.own.can.create_delete_snapshot = true;
    assert_eq!(scene.step(), Step::Look);
    scene.memory.after(Happened::Looked(Arc::default()), NOW);
    let name = "s".into();
    let missing = SourceError::Unfit { kind: "VolumeSnapshot", name, why: Unfit::Missing };
    assert_eq!(scene.refusal(), Refusal::Source(missing));
    scene.memory.after(Happened::Stopped, NOW);
    assert_eq!(scene.step(), Step::Look, "and again at the next attempt");

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
    let looked = Looked { snapshot: Some(snapshot), content: Some(content), ..Looked::default() };
    scene.memory.after(Happened::Looked(Arc::new(looked)), NOW);
    assert!(matches!(scene.step(), Step::Protect(Source::Snapshot { handle, .. }) if handle == "sh"));
    scene.memory.after(Happened::Protected, NOW);
    assert_eq!(scene.written().request.source, Some(ContentSource::Snapshot("sh".into())));
}

/// sidecars.md 1.1 "VolumeAttributesClass"
#[test]
fn a_mutable_class() {
    let gold = |driver: &str| {
        let class = json!({"metadata": {"name": "gold"}, "driverName": driver, "parameters": {"iops": "9"}});
        Attributes::Found(Arc::new(serde_json::from_value::<VolumeAttributesClass>(class).unwrap()))
    };
    let scene = |attributes, modify_volume| {
        let mut scene = Scene::claimed(json!({"spec": {"volumeAttributesClassName": "gold"}}));
        scene.own.can.modify_volume = modify_volume;
        scene.memory.after(Happened::Looked(Arc::new(Looked { attributes, ..Looked::default() })), NOW);
        scene
    };
    let unseen = Scene::claimed(json!({"spec": {"volumeAttributesClassName": "gold"}}));
    assert_eq!(unseen.step(), Step::Look);
    let empty = Scene::claimed(json!({"spec": {"volumeAttributesClassName": ""}}));
    assert!(empty.written().request.mutable_parameters.is_empty());

    let intent = scene(gold(DRIVER), true).written();
    assert_eq!(intent.request.mutable_parameters.get("iops").map(String::as_str), Some("9"));
    assert_eq!(intent.template["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(scene(gold(DRIVER), false).refusal(), Refusal::CannotModify);
    let another =
        Refusal::AttributesOfAnother { name: "gold".into(), driver: "x".into(), own: DRIVER.into() };
    assert_eq!(scene(gold("x"), true).refusal(), another);
    assert_eq!(scene(Attributes::Missing, true).refusal(), Refusal::NoAttributesClass("gold".into()));
    // An API server that does not know the kind: as if none was named.
    let unserved = scene(Attributes::None, true).written();
    assert_eq!(unserved.template["spec"].get("volumeAttributesClassName"), None);
}

/// sidecars.md 1.1 "Topology": what the driver is told, by capability, node and flags. The turns are model's.
#[test]
fn places() {
    let zones = [("node-a", "a"), ("node-b", "b")];
    let asked = |scene: &Scene| scene.written().request.places;
    let places = |requisite: &[&str], preferred: &[&str]| {
        let list = |names: &[&str]| names.iter().map(|name| zone(name)).collect();
        Some(Places { requisite: list(requisite), preferred: list(preferred) })
    };
    let on_b = || Scene::claimed(on_node("node-b"));

    let mut ignorant = on_b().located(&zones);
    ignorant.own.can.topology = false;
    assert_eq!(asked(&ignorant), None);
    assert_eq!(asked(&on_b().located(&zones)), places(&["a", "b"], &["b", "a"]));
    let mut strict = on_b().located(&zones);
    strict.own.settings.strict_topology = true;
    assert_eq!(asked(&strict), places(&["b"], &["b"]));
    let immediate = asked(&Scene::default().located(&zones)).unwrap();
    assert_eq!(immediate.requisite, [zone("a"), zone("b")]);
    let mut silent = Scene::default().located(&zones);
    silent.own.settings.immediate_topology = false;
    assert_eq!(asked(&silent), None);
    let allowed =
        json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]});
    let scene = Scene { class: Some(class(allowed)), ..on_b() }.located(&zones);
    assert_eq!(asked(&scene), places(&["b"], &["b"]));
}

/// sidecars.md 1.1 "Topology", "Reschedule": a node that is gone is chosen anew; other errors are told.
#[test]
fn places_that_cannot_be_told() {
    let on_c = Scene::claimed(on_node("node-c")).located(&[("node-a", "a")]);
    let gone = TopologyError::NoCSINode { node: "node-c".into() };
    assert_eq!(on_c.step(), Step::Unselect(Unselect::Topology(gone)));
    let mut unregistered = Scene::claimed(on_node("node-a")).located(&[("node-a", "a")]);
    Arc::make_mut(&mut unregistered.nodes.csi_nodes[0]).spec.drivers.clear();
    let refusal = Refusal::Topology(TopologyError::NoKeys { node: "node-a".into() });
    assert_eq!(unregistered.refusal(), refusal);
    assert_eq!(Scene::default().located(&[]).refusal(), Refusal::Topology(TopologyError::NoPlaces));
}

/// sidecars.md 1.1 "SC params `csi.storage.k8s.io/*`": told before anything is done.
#[test]
fn a_class_that_cannot_be_read_is_told() {
    let oops = Scene::classed(json!({"parameters": {"csi.storage.k8s.io/oops": ""}}));
    assert!(oops.refusal().to_string().contains("csi.storage.k8s.io/oops"));
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": an intent is repeated as it is until there is a final answer,
/// whatever became of claim, class and node.
#[test]
fn the_same_call_is_repeated() {
    let create = Step::Create(Arc::new(intent()));
    assert_eq!(Scene::answered(None).step(), create);
    for scene in [
        Scene { claim: None, class: None, ..Scene::answered(None) },
        Scene { claim: Some(claim(json!({"spec": {"volumeName": "pv"}}))), ..Scene::answered(None) },
        Scene { class: Some(class(json!({"provisioner": "x"}))), ..Scene::answered(None) },
        Scene { claim: Some(claim(on_node("gone"))), ..Scene::answered(None) }.located(&[]),
    ] {
        assert_eq!(scene.step(), create);
    }
    // Only where the driver was never asked, and nobody wants the volume, it is not asked.
    let uncalled = |claim| Scene {
        claim,
        memory: Memory { uncalled: true, ..Memory::default() },
        ..Scene::answered(None)
    };
    assert_eq!(uncalled(Some(claim(json!({})))).step(), create);
    assert_eq!(uncalled(None).step(), Step::GiveUp { intent: Arc::new(intent()), retry: false });
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": what each class of error leaves behind.
#[test]
fn what_an_error_means() {
    let after = |class, exhausted| {
        let mut memory = Memory::default();
        memory.after(Happened::Wrote, NOW);
        memory.after(Happened::Calling, NOW);
        memory.after(Happened::Failed { class, exhausted, vague: false, class_uid: "class-1".into() }, NOW);
        memory
    };
    let infeasible = Answer::Infeasible { class_uid: "class-1".into(), since: NOW };
    for (class, exhausted, answer) in [
        (ErrorClass::StillRunning, false, None),
        (ErrorClass::Final, false, Some(Answer::Refused)),
        (ErrorClass::Final, true, Some(Answer::Exhausted)),
        (ErrorClass::Infeasible, false, Some(infeasible)),
    ] {
        let settled = class != ErrorClass::StillRunning;
        assert_eq!(after(class, exhausted), Memory { answer, settled, ..Memory::default() });
    }
    // An intent that was found: somebody before us may have asked, with success.
    for (vague, answer) in [(true, None), (false, Some(Answer::Refused))] {
        let mut found = Memory::default();
        let class_uid = "class-1".into();
        found.after(Happened::Failed { class: ErrorClass::Final, exhausted: false, vague, class_uid }, NOW);
        assert_eq!(found, Memory { answer, ..Memory::default() }, "{vague}");
    }
}

/// A volume that somebody before us made is not forgotten because the driver has no room just now; for ever so nobody is
/// held up by a place that is full.
#[test]
fn no_room_is_believed_in_the_end() {
    let failed = |exhausted| Happened::Failed {
        class: if exhausted { ErrorClass::Final } else { ErrorClass::StillRunning },
        exhausted,
        vague: false,
        class_uid: "class-1".into(),
    };
    let mut found = Memory::default();
    for attempt in 1..NO_ROOM {
        found.after(failed(true), NOW);
        assert_eq!(found.answer, None, "attempt {attempt}");
    }
    found.after(failed(false), NOW);
    for attempt in 1..NO_ROOM {
        found.after(failed(true), NOW);
        assert_eq!(found.answer, None, "attempt {attempt} after another answer");
    }
    found.after(failed(true), NOW);
    assert_eq!(found.answer, Some(Answer::Exhausted));
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": a final answer ends the intent, and how it goes on.
#[test]
fn a_final_answer_ends_the_intent() {
    let give_up = |retry| Step::GiveUp { intent: Arc::new(intent()), retry };
    let infeasible = || Answer::Infeasible { class_uid: "class-1".into(), since: NOW };
    let on_a = || Some(claim(on_node("node-a")));
    for (answer, claimed, topology, retry) in [
        (Answer::Refused, Some(claim(json!({}))), false, true),
        (Answer::Refused, None, false, false),
        (Answer::Undone, Some(claim(json!({}))), false, true),
        (Answer::Undone, None, false, false),
        (Answer::Exhausted, on_a(), true, false),
        (Answer::Exhausted, on_a(), false, true),
        (Answer::Exhausted, Some(claim(json!({}))), true, true),
        (Answer::Exhausted, None, true, false),
        (infeasible(), Some(claim(json!({}))), false, false),
    ] {
        let mut scene = Scene { claim: claimed, ..Scene::answered(Some(answer)) };
        scene.own.can.topology = topology;
        assert_eq!(scene.step(), give_up(retry), "{:?} {topology}", scene.memory.answer);
    }
}

/// sidecars.md 1.1 "Reschedule"
#[test]
fn no_room_at_the_chosen_node() {
    let mut memory = Memory { answer: Some(Answer::Exhausted), ..Memory::default() };
    memory.after(Happened::GaveUp, NOW);
    let scene = |patch| Scene { claim: Some(claim(patch)), memory: memory.clone(), ..Scene::default() };
    let zones = [("node-a", "a")];
    let rescheduled = scene(on_node("node-a")).located(&zones);
    assert_eq!(rescheduled.step(), Step::Unselect(Unselect::Exhausted));
    // Without a node or without places there is nothing to choose: it is tried again.
    assert_eq!(scene(json!({})).located(&zones).written().claim.uid, "u1");
    assert_eq!(scene(on_node("node-a")).written().claim.uid, "u1");
    memory.after(Happened::Unselected, NOW);
    assert_eq!(memory, Memory::default());
}

/// sidecars.md 1.1 "Error classes (CreateVolume)": infeasible is retried late, or with another class.
#[test]
fn the_infeasible_waits() {
    let max = Duration::from_secs(300);
    let mut memory = Memory::default();
    let class_uid = "class-1".into();
    memory.after(
        Happened::Failed { class: ErrorClass::Infeasible, exhausted: false, vague: false, class_uid },
        NOW,
    );
    memory.after(Happened::GaveUp, NOW);
    let scene = Scene { memory, ..Scene::default() };
    let at = |now| decide(&scene.view(), now);
    let wait = |pause| Step::Wait { reason: Reason::Infeasible, pause, competing: false };
    assert_eq!(at(NOW), wait(max));
    assert_eq!(at(NOW.plus(max - Duration::from_secs(1))), wait(Duration::from_secs(1)));
    assert!(matches!(at(NOW.plus(max)), Step::Write(_)));
    let other = Scene { class: Some(class(json!({"metadata": {"uid": "class-2"}}))), ..scene };
    assert!(matches!(other.step(), Step::Write(_)));
}

/// sidecars.md 1.1 "Save PV": also when the claim is gone, since the volume must not be lost.
#[test]
fn what_was_made_is_written() {
    let scene = |claim, written: Time| {
        let mut intent = intent();
        intent.written = written.0;
        let memory = Memory { answer: answer_made(made()), ..Memory::default() };
        Scene { claim, intent: Some(Arc::new(intent)), memory, ..Scene::default() }
    };
    let saved = |scene: &Scene| match scene.step() {
        Step::Save { object, kept, .. } => {
            (object["spec"]["persistentVolumeReclaimPolicy"].as_str().unwrap().to_owned(), kept)
        }
        step => panic!("{step:?}"),
    };
    let day = 86_400_000;
    let (delete, retain) = (("Delete".to_owned(), false), ("Retain".to_owned(), true));
    assert_eq!(saved(&scene(Some(claim(json!({}))), NOW)), delete);
    assert_eq!(saved(&scene(None, NOW)), delete);
    assert_eq!(saved(&scene(None, Time(NOW.0 - day))), delete);
    assert_eq!(saved(&scene(None, Time(NOW.0 - day - 1))), retain);
    assert_eq!(saved(&scene(Some(claim(json!({}))), Time(0))), delete);
}

/// sidecars.md 1.1 "capacity checks"
#[test]
fn what_is_not_as_asked_is_undone() {
    let small = Made { capacity_bytes: GI - 1, ..made() };
    let scene = Scene::answered(answer_made(small));
    let mut refused = Scene::answered(answer_made(made()));
    refused.memory.after(Happened::Unsaved("no".into()), NOW);
    let flaw = Flaw::Unsaved("no".into());
    let undone = Step::Undo { intent: Arc::new(intent()), handle: "h1".into(), flaw, beside: None };
    assert_eq!(refused.step(), undone);
    // Also when nobody waits for it any more.
    refused.claim = None;
    assert_eq!(refused.step(), undone);
    refused.memory.after(Happened::Made(Arc::new(made())), NOW);
    assert!(matches!(refused.step(), Step::Save { .. }), "another answer of the driver may be better");
    let flaw = Flaw::TooSmall { made: GI - 1, requested: GI };
    let undo = |intent, flaw, beside| Step::Undo { intent, handle: "h1".into(), flaw, beside };
    assert_eq!(scene.step(), undo(Arc::new(intent()), flaw, None));

    let mut copy = intent();
    copy.request.source = Some(ContentSource::Snapshot("s".into()));
    let copy = Arc::new(copy);
    let mut scene = Scene { intent: Some(Arc::clone(&copy)), ..Scene::answered(answer_made(made())) };
    assert_eq!(scene.step(), undo(Arc::clone(&copy), Flaw::NoSource, None));

    // Unless a volume stands for it: then it is somebody's.
    scene.holder = Some("static".into());
    assert_eq!(scene.step(), Step::Settle { intent: copy, held_by: Some("static".into()) });
}

/// sidecars.md 1.1 "Save PV": the volume is there, so the intent is settled, also one from before a crash.
#[test]
fn a_volume_that_is_there_settles_the_intent() {
    let settle = Step::Settle { intent: Arc::new(intent()), held_by: None };
    for memory in [
        Memory::default(),
        Memory { answer: answer_made(made()), ..Memory::default() },
        Memory { uncalled: true, ..Memory::default() },
        Memory { answer: Some(Answer::Refused), ..Memory::default() },
    ] {
        let scene = Scene { present: Some(volume(json!({}))), memory, ..Scene::answered(None) };
        assert_eq!(scene.step(), settle);
    }
}

/// sidecars.md 1.1 "Save PV": another's volume of the same name is not ours, and ours is not left behind.
#[test]
fn anothers_volume_of_the_same_name() {
    let taken = || Flaw::NameTaken { name: VOLUME.into() };
    let intent = Arc::new(intent());
    let scene = |patch, memory: Memory| Scene {
        present: Some(volume(patch)),
        intent: Some(Arc::clone(&intent)),
        memory,
        ..Scene::default()
    };
    let with = |answer| Memory { answer, ..Memory::default() };
    for patch in [
        json!({"spec": {"claimRef": {"uid": "u9"}}}),
        json!({"spec": {"csi": {"driver": "x"}}}),
        json!({"spec": {"csi": {"volumeHandle": "h9"}}}),
    ] {
        let undo = Step::Undo {
            intent: Arc::clone(&intent),
            handle: "h1".into(),
            flaw: taken(),
            beside: Some("pv-1".into()),
        };
        assert_eq!(scene(patch, with(answer_made(made()))).step(), undo);
    }
    let other = json!({"spec": {"claimRef": {"uid": "u9"}}});
    let held = Scene { holder: Some("pv9".into()), ..scene(other.clone(), with(answer_made(made()))) };
    assert_eq!(held.step(), Step::Settle { intent: Arc::clone(&intent), held_by: Some("pv9".into()) });
    // What is not known is asked.
    assert_eq!(scene(other.clone(), Memory::default()).step(), Step::Create(Arc::clone(&intent)));
    let give_up = Step::GiveUp { intent: Arc::clone(&intent), retry: false };
    for memory in [
        with(Some(Answer::Undone)),
        with(Some(Answer::Refused)),
        with(Some(Answer::Exhausted)),
        Memory { uncalled: true, ..Memory::default() },
    ] {
        assert_eq!(scene(other.clone(), memory).step(), give_up);
    }
    // And the claim is told.
    let told = Scene { intent: None, ..scene(other, Memory::default()) };
    assert_eq!(told.refusal(), Refusal::NameTaken(taken()));
}

/// sidecars.md 1.1 "Delete": the volume's own life begins where the claim's wait ends.
#[test]
fn a_volume_that_is_there_lives_its_own_life() {
    let scene = |volume| Scene { present: Some(volume), ..Scene::default() };
    let step = |scene: &Scene| match scene.step() {
        Step::Reclaim(step) => step,
        step => panic!("{step:?}"),
    };
    // Just written, not bound yet.
    assert_eq!(
        step(&scene(volume(json!({"status": {"phase": "Pending"}})))),
        ReclaimStep::Nothing(Why::InUse)
    );
    assert_eq!(step(&scene(volume(json!({})))), ReclaimStep::Nothing(Why::InUse));
    let unguarded = json!({"metadata": {"finalizers": []}});
    assert_eq!(step(&scene(volume(unguarded))), ReclaimStep::Guard);
    let released = volume(json!({"status": {"phase": "Released"}}));
    let mut gone = Scene { claim: None, ..scene(released) };
    let delete = ReclaimStep::DeleteVolume { handle: "h1".into(), secret: None };
    assert_eq!(step(&gone), delete);
    gone.memory.after(Happened::Deleted { uid: "pv-1".into() }, NOW);
    assert_eq!(step(&gone), ReclaimStep::DeleteObject);
    // Another's, of the name that a claim would get: it is deleted first, if it is to be, then the claim is told.
    let others = volume(json!({"spec": {"claimRef": {"uid": "u9"}}, "status": {"phase": "Released"}}));
    assert_eq!(step(&scene(others)), delete);
}

/// A refused claim is told why in its own terms.
#[test]
fn reasons_are_sentences() {
    for reason in [
        Reason::NoClaim,
        Reason::NoClass("fast".into()),
        Reason::ClassOfAnother { class: "fast".into(), provisioner: "x".into() },
        Reason::OfAnotherNode("the claim is another node's"),
        Reason::Infeasible,
    ] {
        assert!(reason.to_string().split(' ').count() > 3, "{reason}");
    }
}
