use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::PersistentVolume;

use super::super::view::{Memory, Published, Rules};
use super::*;
use crate::driver::Capabilities;

const FINALIZER: &str = "external-attacher/d-test";
const DELETED: &str = "2026-01-01T00:00:00Z";
const NOW: Time = Time(1_000_000);

fn rules() -> Rules {
    Rules {
        driver: "d.test".into(),
        finalizer: FINALIZER.into(),
        can: Capabilities {
            controller_service: true,
            publish_unpublish_volume: true,
            ..Capabilities::default()
        },
        ..Rules::default()
    }
}

/// An object with some of its fields set, each by its path.
fn set(mut object: Value, fields: Value) -> Value {
    for (path, value) in fields.as_object().unwrap() {
        let mut at = &mut object;
        for step in path.split('.') {
            at = &mut at[step];
        }
        *at = value.clone();
    }
    object
}

fn volume(fields: Value) -> Option<Arc<PersistentVolume>> {
    let object = json!({
        "metadata": {"name": "v", "uid": "vu", "resourceVersion": "5", "finalizers": ["x", FINALIZER]},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.test", "volumeHandle": "h", "controllerPublishSecretRef": {"name": "s", "namespace": "ns"}},
        },
    });
    Some(Arc::new(serde_json::from_value(set(object, fields)).unwrap()))
}

fn attachment(name: &str, node: &str, fields: Value) -> Seen {
    let object = json!({
        "metadata": {"name": name, "uid": format!("u-{name}"), "resourceVersion": "7", "annotations": {}, "finalizers": []},
        "spec": {"attacher": "d.test", "nodeName": node, "source": {"persistentVolumeName": "v"}},
        "status": {"attached": false},
    });
    Seen {
        attachment: Arc::new(serde_json::from_value(set(object, fields)).unwrap()),
        node_id: Some(format!("id-{node}")),
        memory: Memory { uid: format!("u-{name}"), ..Memory::default() },
    }
}

/// As it is after the guard.
fn guarded(name: &str, node: &str, fields: Value) -> Seen {
    let guard = json!({
        "metadata.finalizers": [FINALIZER], "metadata.annotations": {NODE_ID: format!("id-{node}")},
    });
    let mut all = guard.as_object().unwrap().clone();
    all.extend(fields.as_object().unwrap().clone());
    attachment(name, node, all.into())
}

fn view(rules: &Rules, volume: Option<Arc<PersistentVolume>>, attachments: Vec<Seen>) -> View<'_> {
    View { rules, volume, attachments, elsewhere: false, complete: true, unreferenced: None }
}

fn failure(doing: Doing, at: Time, pause: u64) -> Failure {
    Failure {
        doing,
        message: "no".into(),
        code: Some(13),
        at,
        pause: Duration::from_secs(pause),
        count: 1,
        reported: true,
    }
}

fn with(mut seen: Seen, change: impl FnOnce(&mut Memory)) -> Seen {
    change(&mut seen.memory);
    seen
}

/// A step in few words.
fn told(step: &Step) -> String {
    match step {
        Step::Done => "done".into(),
        Step::Wait(pause) => format!("wait {}", pause.as_secs()),
        Step::GuardVolume { attachment, .. } => format!("guard volume for {attachment}"),
        Step::GuardAttachment { attachment, secret, .. } => {
            format!("guard {attachment} {}", secret.as_ref().map_or("-", |secret| &secret.name))
        }
        Step::Publish { attachment, request, secret } => format!(
            "publish {attachment} {} {} {}",
            request.volume_id,
            request.node_id,
            secret.as_ref().map_or("-", |secret| &secret.name)
        ),
        Step::MarkAttached { attachment, .. } => format!("attached {attachment}"),
        Step::Unpublish { attachment, request, secret } => format!(
            "unpublish {attachment} {} {} {}",
            request.volume_id,
            request.node_id,
            secret.as_ref().map_or("-", |secret| &secret.name)
        ),
        Step::ReleaseAttachment { attachment, .. } => format!("release {attachment}"),
        Step::MarkDetached { attachment, .. } => format!("detached {attachment}"),
        Step::Refuse { attachment, doing, why } => format!("refuse {attachment} {doing:?}: {why}"),
        Step::Report { attachment, .. } => format!("report {attachment}"),
        Step::AskReferences { uid } => format!("ask {uid}"),
        Step::ReleaseVolume { .. } => "release volume".into(),
    }
}

#[track_caller]
fn expect(volume: Option<Arc<PersistentVolume>>, attachments: Vec<Seen>, step: &str) {
    let rules = rules();
    assert_eq!(told(&decide(&view(&rules, volume, attachments), NOW)), step);
}

fn context() -> Published {
    let context = BTreeMap::from([("device".to_owned(), "sda".to_owned())]);
    Published { context, version: "7".into() }
}

/// sidecars.md 1.2 "Handler choice".
#[test]
fn a_driver_that_does_not_publish() {
    for can in [
        Capabilities::default(),
        Capabilities { controller_service: true, ..Capabilities::default() },
        Capabilities { publish_unpublish_volume: true, ..Capabilities::default() },
    ] {
        let rules = Rules { can, ..rules() };
        let decide = |attachments| told(&decide(&view(&rules, None, attachments), NOW));
        let attached = || attachment("a", "n1", json!({"status.attached": true}));
        assert_eq!(decide(vec![attached(), attachment("b", "n1", json!({}))]), "attached b");
        let going = json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["theirs"]});
        assert_eq!(decide(vec![attachment("b", "n1", going)]), "attached b");
        assert_eq!(decide(vec![attached()]), "done");
    }
}

/// sidecars.md 1.2 "Attach order": one step after the other. 1.0 "Secrets": guard and call read the one that the
/// volume names.
#[test]
fn attaching() {
    let bare = || attachment("a", "n1", json!({}));
    expect(volume(json!({"metadata.finalizers": ["x"]})), vec![bare()], "guard volume for a");
    expect(volume(json!({})), vec![bare()], "guard a s");
    expect(volume(json!({})), vec![guarded("a", "n1", json!({}))], "publish a h id-n1 s");
    let published = with(guarded("a", "n1", json!({})), |memory| memory.has_published(context()));
    expect(volume(json!({})), vec![published], "attached a");
    // It has changed since: somebody else may have published it.
    let stale = Published { version: "6".into(), ..context() };
    let stale = |fields| with(guarded("a", "n1", fields), |memory| memory.has_published(stale));
    expect(volume(json!({})), vec![stale.clone()(json!({}))], "publish a h id-n1 s");
    expect(volume(json!({})), vec![stale(json!({"status.attached": true}))], "done");
    expect(volume(json!({})), vec![guarded("a", "n1", json!({"status.attached": true}))], "done");
    // Attached by another attacher, which died before it could say so: the driver is asked again.
    expect(volume(json!({})), vec![guarded("a", "n1", json!({}))], "publish a h id-n1 s");
    // The node has another name for the driver now: that is written first.
    let mut renamed = guarded("a", "n1", json!({}));
    renamed.node_id = Some("id-new".into());
    expect(volume(json!({})), vec![renamed], "guard a s");
}

/// sidecars.md 1.2 "Attach order": the patches.
#[test]
fn what_is_written() {
    let rules = rules();
    let decide = |volume, seen| decide(&view(&rules, volume, vec![seen]), NOW);
    let Step::GuardVolume { patch: Patch::Json(patch), .. } =
        decide(volume(json!({"metadata.finalizers": ["x"]})), attachment("a", "n1", json!({})))
    else {
        panic!()
    };
    assert_eq!(patch[1], json!({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}));
    let published = with(guarded("a", "n1", json!({})), |memory| memory.has_published(context()));
    let Step::MarkAttached { patch: Patch::Merge(patch), .. } = decide(volume(json!({})), published) else {
        panic!()
    };
    assert_eq!(
        patch["status"],
        json!({"attached": true, "attachmentMetadata": {"device": "sda"}, "attachError": null})
    );
}

/// sidecars.md 1.2 "Attach order": what is refused before the driver is called, and before the attachment's
/// deletion could be held up by our finalizer.
#[test]
fn attaching_what_cannot_be() {
    let bare = || attachment("a", "n1", json!({}));
    let refused = |volume, seen, why: &str| expect(volume, vec![seen], &format!("refuse a Attach: {why}"));
    refused(
        volume(json!({"metadata.deletionTimestamp": DELETED})),
        bare(),
        "PersistentVolume \"v\" is marked for deletion",
    );
    refused(None, bare(), "PersistentVolume \"v\" not found: it is attached once it exists");
    refused(
        volume(json!({"spec.csi": null})),
        bare(),
        "the volume is not a CSI volume, and is not for driver d.test to attach",
    );
    refused(
        volume(json!({"spec.csi.driver": "e.test"})),
        bare(),
        "PersistentVolume \"v\" is of driver e.test, the VolumeAttachment asks d.test: delete it",
    );
    refused(
        volume(json!({"spec.accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]})),
        bare(),
        "the volume's access modes: ReadWriteOncePod cannot be combined with other access modes: ask for it alone",
    );
    // Only the CSINode counts for attaching, not what the annotation says of earlier days.
    let mut elsewhere = guarded("a", "n1", json!({}));
    elsewhere.node_id = None;
    refused(
        volume(json!({})),
        elsewhere,
        "CSINode n1 does not contain driver d.test: it is attached once the driver registers there",
    );
    let inline = json!({"csi": {"driver": "d.test", "volumeHandle": "i"}});
    refused(
        volume(json!({})),
        attachment("a", "n1", json!({"spec.source.inlineVolumeSpec": inline})),
        "the VolumeAttachment names a PersistentVolume and an inline volume: delete it, it must name one",
    );
    refused(
        None,
        attachment("a", "n1", json!({"spec.source": {}})),
        "the VolumeAttachment names neither a PersistentVolume nor an inline volume: delete it",
    );
}

/// sidecars.md 1.2 "Attach order": inline volumes have no volume to guard.
#[test]
fn inline_volumes() {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.test", "volumeHandle": "i"}});
    let source = json!({"spec.source": {"inlineVolumeSpec": spec}});
    expect(None, vec![attachment("a", "n1", source.clone())], "guard a -");
    expect(None, vec![guarded("a", "n1", source.clone())], "publish a i id-n1 -");
    let going = json!({
        "spec.source": {"inlineVolumeSpec": spec}, "metadata.deletionTimestamp": DELETED,
    });
    expect(None, vec![guarded("a", "n1", going)], "unpublish a i id-n1 -");
    let other = json!({"spec.source": {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"]}}});
    expect(
        None,
        vec![attachment("a", "n1", other)],
        "refuse a Attach: the volume is not a CSI volume, and is not for driver d.test to attach",
    );
}

/// sidecars.md 1.2 "Detach": unpublished, the finalizer off first, then the status where others hold it.
#[test]
fn detaching() {
    let going = |fields| {
        let mut all = json!({"metadata.deletionTimestamp": DELETED, "status.attached": true});
        all.as_object_mut().unwrap().extend(serde_json::Map::clone(Value::as_object(&fields).unwrap()));
        guarded("a", "n1", all)
    };
    expect(volume(json!({})), vec![going(json!({}))], "unpublish a h id-n1 s");
    // Also if it was never attached: the driver may have begun to.
    expect(volume(json!({})), vec![going(json!({"status.attached": false}))], "unpublish a h id-n1 s");
    expect(
        volume(json!({"metadata.deletionTimestamp": DELETED})),
        vec![going(json!({}))],
        "unpublish a h id-n1 s",
    );
    let unpublished = |fields| with(going(fields), Memory::has_unpublished);
    expect(volume(json!({})), vec![unpublished(json!({}))], "release a");
    let held = json!({"metadata.finalizers": ["theirs"]});
    expect(volume(json!({})), vec![unpublished(held)], "detached a");
    let held = json!({"metadata.finalizers": ["theirs"], "status.attached": false});
    expect(volume(json!({})), vec![unpublished(held)], "done");
    // Without our finalizer there is nothing to detach, and without our own call nothing that we know.
    expect(volume(json!({})), vec![going(json!({"metadata.finalizers": ["theirs"]}))], "done");
    // An attach that has just succeeded is undone all the same.
    let published = with(going(json!({})), |memory| memory.has_published(context()));
    expect(volume(json!({})), vec![published], "unpublish a h id-n1 s");
}

/// sidecars.md 1.2 "Detach": node ID from CSINode else VA annotation. User pain 21: a node that is gone is
/// detached from.
#[test]
fn detaching_from_a_node_that_is_gone() {
    let mut gone = guarded("a", "n1", json!({"metadata.deletionTimestamp": DELETED}));
    gone.node_id = None;
    expect(volume(json!({})), vec![gone.clone()], "unpublish a h id-n1 s");
    gone.node_id = Some("id-now".into());
    expect(volume(json!({})), vec![gone], "unpublish a h id-now s");
    let mut unknown =
        guarded("a", "n1", json!({"metadata.deletionTimestamp": DELETED, "metadata.annotations": {}}));
    unknown.node_id = None;
    expect(
        volume(json!({})),
        vec![unknown],
        "refuse a Detach: CSINode n1 does not contain driver d.test and the VolumeAttachment has no annotation \
         csi.alpha.kubernetes.io/node-id: the driver has to register on the node, or the annotation be set to the \
         driver's name for it",
    );
}

/// sidecars.md 1.2 "Detach": PV missing is an error for as long as it is missing.
#[test]
fn detaching_without_the_volume() {
    let going = guarded("a", "n1", json!({"metadata.deletionTimestamp": DELETED, "status.attached": true}));
    expect(
        None,
        vec![going],
        "refuse a Detach: PersistentVolume \"v\" not found, and with it the volume's handle: create it again with \
         its handle, or make sure that the volume is off node n1 and take finalizer external-attacher/d-test off \
         this VolumeAttachment",
    );
}

/// User pain 14 and sidecars.md 1.2 "Errors": always retried, after a pause of its own.
#[test]
fn failures_wait_for_themselves_only() {
    let failed = |name, node, doing, ago: i64, pause| {
        let fields = match doing {
            Doing::Attach => json!({}),
            Doing::Detach => json!({"metadata.deletionTimestamp": DELETED}),
        };
        with(guarded(name, node, fields), |memory| {
            memory.failure = Some(failure(doing, Time(NOW.0 - ago * 1000), pause));
        })
    };
    let attach = |ago, pause| failed("a", "n1", Doing::Attach, ago, pause);
    let detach = |ago, pause| failed("b", "n2", Doing::Detach, ago, pause);
    expect(volume(json!({})), vec![attach(10, 30)], "wait 20");
    expect(volume(json!({})), vec![attach(30, 30)], "publish a h id-n1 s");
    expect(volume(json!({})), vec![attach(10, 30), detach(0, 8)], "wait 8");
    expect(volume(json!({})), vec![attach(30, 30), detach(0, 8)], "publish a h id-n1 s");
    expect(volume(json!({})), vec![attach(0, 30), detach(8, 8)], "unpublish b h id-n2 s");
    expect(volume(json!({})), vec![attach(0, 30), guarded("c", "n3", json!({}))], "publish c h id-n3 s");
    // A deletion ends the wait for the attach.
    let mut going = guarded("a", "n1", json!({"metadata.deletionTimestamp": DELETED}));
    going.memory.failure = attach(0, 30).memory.failure;
    expect(volume(json!({})), vec![going], "unpublish a h id-n1 s");
}

/// A volume leaves one node before it enters another; what only has to be written down goes first.
#[test]
fn one_volume_on_two_nodes() {
    let coming = || attachment("a", "n1", json!({}));
    let going =
        || guarded("b", "n2", json!({"metadata.deletionTimestamp": DELETED, "status.attached": true}));
    expect(volume(json!({})), vec![coming(), going()], "unpublish b h id-n2 s");
    expect(volume(json!({})), vec![coming(), with(going(), Memory::has_unpublished)], "release b");
    let published = with(guarded("a", "n1", json!({})), |memory| memory.has_published(context()));
    expect(volume(json!({})), vec![published, going()], "attached a");
    // Whatever else is attached, the driver is asked: upstream leaves the refusal to it, too.
    let there = guarded("b", "n2", json!({"status.attached": true}));
    expect(volume(json!({})), vec![coming(), there], "guard a s");
}

/// sidecars.md 1.2 "Errors": written once, and again when they say something new or a minute has passed. 1.2
/// "Events": none, the attachment itself is where failures are told.
#[test]
fn failures_are_written_down() {
    let ago = |seconds: i64| Time(NOW.0 - seconds * 1000).to_string();
    let attach_error = |message: &str, code: Option<i32>, seconds| json!({"attached": false, "attachError": {"message": message, "errorCode": code, "time": ago(seconds)}});
    for (doing, status, reported, step) in [
        (Doing::Attach, json!({"attached": false}), false, "report a"),
        (Doing::Attach, json!({"attached": false}), true, "wait 9"),
        (Doing::Attach, attach_error("no", Some(13), 30), false, "wait 9"),
        (Doing::Attach, attach_error("no", Some(13), 59), false, "wait 9"),
        (Doing::Attach, attach_error("no", Some(13), 60), false, "report a"),
        (Doing::Attach, attach_error("no", Some(13), 61), false, "report a"),
        (Doing::Attach, attach_error("no", Some(14), 30), false, "report a"),
        (Doing::Attach, attach_error("no", None, 30), false, "wait 9"),
        (Doing::Attach, attach_error("another", Some(13), 30), false, "report a"),
        (Doing::Detach, json!({"attached": true}), false, "report a"),
        (
            Doing::Detach,
            json!({"attached": true, "detachError": {"message": "no", "time": ago(30)}}),
            false,
            "wait 9",
        ),
        (
            Doing::Detach,
            json!({"attached": true, "detachError": {"message": "x", "time": ago(30)}}),
            false,
            "report a",
        ),
    ] {
        let fields = match doing {
            Doing::Attach => json!({"status": status}),
            Doing::Detach => json!({"status": status, "metadata.deletionTimestamp": DELETED}),
        };
        let seen = with(guarded("a", "n1", fields), |memory| {
            memory.failure = Some(Failure { reported, ..failure(doing, NOW, 9) });
        });
        expect(volume(json!({})), vec![seen], step);
    }
    // An attach that failed is of no interest once the attachment goes.
    let going = with(guarded("a", "n1", json!({"metadata.deletionTimestamp": DELETED})), |memory| {
        memory.failure = Some(Failure { reported: false, ..failure(Doing::Attach, NOW, 9) });
    });
    expect(volume(json!({})), vec![going], "unpublish a h id-n1 s");
}

/// sidecars.md 1.2 "Reconcile": the driver is called once more, whatever the attachment says; a force is void when
/// the attachment has changed since.
#[test]
fn forced_by_what_the_driver_lists() {
    let forced = |seen, version: &str| with(seen, |memory: &mut Memory| memory.forced = Some(version.into()));
    let attached = || guarded("a", "n1", json!({"status.attached": true}));
    expect(volume(json!({})), vec![forced(attached(), "7")], "publish a h id-n1 s");
    expect(volume(json!({})), vec![forced(attached(), "6")], "done");
    let unheld = || {
        attachment(
            "a",
            "n1",
            json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["theirs"]}),
        )
    };
    expect(volume(json!({})), vec![forced(unheld(), "7")], "unpublish a h id-n1 s");
    expect(volume(json!({})), vec![unheld()], "done");
    // No pause holds it up.
    let failed = with(guarded("a", "n1", json!({})), |memory| {
        memory.failure = Some(failure(Doing::Attach, NOW, 30));
    });
    expect(volume(json!({})), vec![failed.clone()], "wait 30");
    expect(volume(json!({})), vec![forced(failed, "7")], "publish a h id-n1 s");
    // A forced attach that failed is told, and that is all.
    let told = with(attached(), |memory| {
        memory.failure = Some(Failure { reported: false, ..failure(Doing::Attach, NOW, 30) });
    });
    expect(volume(json!({})), vec![told.clone()], "report a");
    let told = with(told, |memory| memory.failure.as_mut().unwrap().reported = true);
    expect(volume(json!({})), vec![told], "done");
}

/// sidecars.md 1.2 "PV finalizer removal": the volume goes when the server says that nobody needs it, and not
/// because we see nobody. User pain 11: only our own finalizer is named in the patch.
#[test]
fn letting_the_volume_go() {
    let rules = rules();
    let going = || volume(json!({"metadata.deletionTimestamp": DELETED}));
    let decide = |change: &dyn Fn(&mut View<'_>)| {
        let mut view = view(&rules, going(), vec![]);
        change(&mut view);
        told(&decide(&view, NOW))
    };
    assert_eq!(decide(&|_| {}), "ask vu");
    assert_eq!(decide(&|view| view.unreferenced = Some("vu".into())), "release volume");
    assert_eq!(decide(&|view| view.unreferenced = Some("another".into())), "ask vu");
    assert_eq!(decide(&|view| view.complete = false), "wait 30");
    assert_eq!(decide(&|view| view.volume = volume(json!({}))), "done");
    let unheld = json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["x"]});
    assert_eq!(decide(&|view| view.volume = volume(unheld.clone())), "done");
    assert_eq!(decide(&|view| view.volume = None), "done");
    let needed = |view: &mut View<'_>| view.unreferenced = Some("vu".into());
    assert_eq!(
        decide(&|view| {
            needed(view);
            view.elsewhere = true;
        }),
        "done"
    );
    assert_eq!(
        decide(&|view| {
            needed(view);
            let fields = json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["theirs"]});
            view.attachments = vec![attachment("a", "n1", fields)];
        }),
        "done"
    );
}
