use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{PersistentVolume, Time};

use super::super::view::{AttachState, AttacherConfig, Published};
use super::*;
use crate::driver::Capabilities;

const FINALIZER: &str = "external-attacher/d-test";
const DELETED: &str = "2026-01-01T00:00:00Z";
/// The wall clock has nothing to do with the monotonic clock.
const NOW: Time = Time(9_000_000);
const AT: Monotonic = Monotonic(1_000_000);

fn config() -> AttacherConfig {
    AttacherConfig {
        driver: "d.test".into(),
        finalizer: FINALIZER.into(),
        capabilities: Capabilities {
            controller_service: true,
            publish_unpublish_volume: true,
            ..Capabilities::default()
        },
        ..AttacherConfig::default()
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

fn attachment(name: &str, node: &str, fields: Value) -> AttachmentInputs {
    let object = json!({
        "metadata": {"name": name, "uid": format!("u-{name}"), "resourceVersion": "7", "annotations": {}, "finalizers": []},
        "spec": {"attacher": "d.test", "nodeName": node, "source": {"persistentVolumeName": "v"}},
        "status": {"attached": false},
    });
    AttachmentInputs {
        attachment: Arc::new(serde_json::from_value(set(object, fields)).unwrap()),
        node_id: Some(format!("id-{node}")),
        state: AttachState { uid: format!("u-{name}"), ..AttachState::default() },
    }
}

/// With our finalizer and the node ID.
fn prepared(name: &str, node: &str, fields: Value) -> AttachmentInputs {
    let guard = json!({
        "metadata.finalizers": [FINALIZER], "metadata.annotations": {NODE_ID: format!("id-{node}")},
    });
    let mut all = guard.as_object().unwrap().clone();
    all.extend(fields.as_object().unwrap().clone());
    attachment(name, node, all.into())
}

fn view(
    config: &AttacherConfig,
    volume: Option<Arc<PersistentVolume>>,
    attachments: Vec<AttachmentInputs>,
) -> VolumeView<'_> {
    VolumeView {
        config,
        volume,
        attachments,
        has_foreign_attachments: false,
        complete: true,
        unreferenced: None,
    }
}

fn failure(operation: AttachOperation, at: Monotonic, pause: u64) -> Failure {
    Failure {
        operation,
        message: "no".into(),
        code: Some(13),
        time: NOW,
        at,
        pause: Duration::from_secs(pause),
        count: 1,
        reported: true,
    }
}

fn with(mut inputs: AttachmentInputs, change: impl FnOnce(&mut AttachState)) -> AttachmentInputs {
    change(&mut inputs.state);
    inputs
}

/// A short description of a step.
fn summary(step: &AttachStep) -> String {
    match step {
        AttachStep::Idle => "done".into(),
        AttachStep::Wait(pause) => format!("wait {}", pause.as_secs()),
        AttachStep::AddVolumeFinalizer { attachment, .. } => format!("guard volume for {attachment}"),
        AttachStep::PrepareAttachment { attachment, secret, .. } => {
            format!("guard {attachment} {}", secret.as_ref().map_or("-", |secret| &secret.name))
        }
        AttachStep::Publish { attachment, request, secret } => format!(
            "publish {attachment} {} {} {}",
            request.volume_id,
            request.node_id,
            secret.as_ref().map_or("-", |secret| &secret.name)
        ),
        AttachStep::MarkAttached { attachment, .. } => format!("attached {attachment}"),
        AttachStep::Unpublish { attachment, request, secret } => format!(
            "unpublish {attachment} {} {} {}",
            request.volume_id,
            request.node_id,
            secret.as_ref().map_or("-", |secret| &secret.name)
        ),
        AttachStep::RemoveAttachmentFinalizer { attachment, .. } => format!("release {attachment}"),
        AttachStep::MarkDetached { attachment, .. } => format!("detached {attachment}"),
        AttachStep::Refuse { attachment, operation, reason } => {
            format!("refuse {attachment} {operation:?}: {reason}")
        }
        AttachStep::ReportError { attachment, .. } => format!("report {attachment}"),
        AttachStep::CheckReferences { uid } => format!("check references {uid}"),
        AttachStep::RemoveVolumeFinalizer { .. } => "release volume".into(),
    }
}

#[track_caller]
fn expect(volume: Option<Arc<PersistentVolume>>, attachments: Vec<AttachmentInputs>, step: &str) {
    let config = config();
    assert_eq!(summary(&decide(&view(&config, volume, attachments), AT)), step);
}

fn context() -> Published {
    let context = BTreeMap::from([("device".to_owned(), "sda".to_owned())]);
    Published { context, version: "7".into() }
}

/// sidecars.md 1.2 "Handler choice".
#[test]
fn driver_without_publish_marks_attached_at_once() {
    for capabilities in [
        Capabilities::default(),
        Capabilities { controller_service: true, ..Capabilities::default() },
        Capabilities { publish_unpublish_volume: true, ..Capabilities::default() },
    ] {
        let config = AttacherConfig { capabilities, ..config() };
        let decide = |attachments| summary(&decide(&view(&config, None, attachments), AT));
        let attached = || attachment("a", "n1", json!({"status.attached": true}));
        assert_eq!(decide(vec![attached(), attachment("b", "n1", json!({}))]), "attached b");
        let deleting = json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["theirs"]});
        assert_eq!(decide(vec![attachment("b", "n1", deleting)]), "attached b");
        assert_eq!(decide(vec![attached()]), "done");
    }
}

/// sidecars.md 1.2 "Attach order": one step after the other. 1.0 "Secrets": the secret is the one that the volume
/// names.
#[test]
fn attach_adds_finalizers_then_publishes() {
    let bare = || attachment("a", "n1", json!({}));
    expect(volume(json!({"metadata.finalizers": ["x"]})), vec![bare()], "guard volume for a");
    expect(volume(json!({})), vec![bare()], "guard a s");
    expect(volume(json!({})), vec![prepared("a", "n1", json!({}))], "publish a h id-n1 s");
    let published = with(prepared("a", "n1", json!({})), |state| state.record_published(context()));
    expect(volume(json!({})), vec![published], "attached a");
    // The attachment changed since: another attacher may have published it.
    let stale = Published { version: "6".into(), ..context() };
    let stale = |fields| with(prepared("a", "n1", fields), |state| state.record_published(stale));
    expect(volume(json!({})), vec![stale.clone()(json!({}))], "publish a h id-n1 s");
    expect(volume(json!({})), vec![stale(json!({"status.attached": true}))], "done");
    expect(volume(json!({})), vec![prepared("a", "n1", json!({"status.attached": true}))], "done");
    // Attached by another attacher that crashed before it updated the status: the driver is called again.
    expect(volume(json!({})), vec![prepared("a", "n1", json!({}))], "publish a h id-n1 s");
    // The driver has another node ID now: that is written first.
    let mut renamed = prepared("a", "n1", json!({}));
    renamed.node_id = Some("id-new".into());
    expect(volume(json!({})), vec![renamed], "guard a s");
}

/// sidecars.md 1.2 "Attach order": the patches.
#[test]
fn attach_patches_name_finalizer_and_publish_context() {
    let config = config();
    let decide = |volume, inputs| decide(&view(&config, volume, vec![inputs]), AT);
    let AttachStep::AddVolumeFinalizer { patch: Patch::Json(patch), .. } =
        decide(volume(json!({"metadata.finalizers": ["x"]})), attachment("a", "n1", json!({})))
    else {
        panic!()
    };
    assert_eq!(patch[1], json!({"op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER}));
    let published = with(prepared("a", "n1", json!({})), |state| state.record_published(context()));
    let AttachStep::MarkAttached { patch: Patch::Merge(patch), .. } = decide(volume(json!({})), published)
    else {
        panic!()
    };
    assert_eq!(
        patch["status"],
        json!({"attached": true, "attachmentMetadata": {"device": "sda"}, "attachError": null})
    );
}

/// sidecars.md 1.2 "Attach order": refused before the driver is called, and before our finalizer could block the
/// attachment's deletion.
#[test]
fn invalid_attach_is_refused_before_finalizer() {
    let bare = || attachment("a", "n1", json!({}));
    let refused =
        |volume, inputs, reason: &str| expect(volume, vec![inputs], &format!("refuse a Attach: {reason}"));
    refused(
        volume(json!({"metadata.deletionTimestamp": DELETED})),
        bare(),
        "PersistentVolume \"v\" is marked for deletion",
    );
    refused(None, bare(), "PersistentVolume \"v\" not found: the volume is attached once it exists");
    refused(
        volume(json!({"spec.csi": null})),
        bare(),
        "the volume is not a CSI volume, so driver d.test cannot attach it",
    );
    refused(
        volume(json!({"spec.csi.driver": "e.test"})),
        bare(),
        "PersistentVolume \"v\" belongs to driver e.test, but the VolumeAttachment names d.test: delete the VolumeAttachment",
    );
    refused(
        volume(json!({"spec.accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]})),
        bare(),
        "the volume's access modes: ReadWriteOncePod cannot be combined with other access modes: request it alone",
    );
    // Only the CSINode counts for an attach, not an old annotation.
    let mut unregistered = prepared("a", "n1", json!({}));
    unregistered.node_id = None;
    refused(
        volume(json!({})),
        unregistered,
        "CSINode n1 does not contain driver d.test: the volume is attached once the driver registers there",
    );
    let inline = json!({"csi": {"driver": "d.test", "volumeHandle": "i"}});
    refused(
        volume(json!({})),
        attachment("a", "n1", json!({"spec.source.inlineVolumeSpec": inline})),
        "the VolumeAttachment names a PersistentVolume and an inline volume, but must name one: delete it",
    );
    refused(
        None,
        attachment("a", "n1", json!({"spec.source": {}})),
        "the VolumeAttachment names neither a PersistentVolume nor an inline volume: delete it",
    );
}

/// sidecars.md 1.2 "Attach order": inline volumes have no PersistentVolume that needs a finalizer.
#[test]
fn inline_volume_needs_no_volume_finalizer() {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d.test", "volumeHandle": "i"}});
    let source = json!({"spec.source": {"inlineVolumeSpec": spec}});
    expect(None, vec![attachment("a", "n1", source.clone())], "guard a -");
    expect(None, vec![prepared("a", "n1", source.clone())], "publish a i id-n1 -");
    let deleting = json!({
        "spec.source": {"inlineVolumeSpec": spec}, "metadata.deletionTimestamp": DELETED,
    });
    expect(None, vec![prepared("a", "n1", deleting)], "unpublish a i id-n1 -");
    let other = json!({"spec.source": {"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"]}}});
    expect(
        None,
        vec![attachment("a", "n1", other)],
        "refuse a Attach: the volume is not a CSI volume, so driver d.test cannot attach it",
    );
}

/// sidecars.md 1.2 "Detach": unpublish, remove the finalizer, then update the status if other finalizers remain.
#[test]
fn detach_unpublishes_then_removes_finalizer() {
    let deleting = |fields| {
        let mut all = json!({"metadata.deletionTimestamp": DELETED, "status.attached": true});
        all.as_object_mut().unwrap().extend(serde_json::Map::clone(Value::as_object(&fields).unwrap()));
        prepared("a", "n1", all)
    };
    expect(volume(json!({})), vec![deleting(json!({}))], "unpublish a h id-n1 s");
    // Also if it was never attached: the driver may have started to.
    expect(volume(json!({})), vec![deleting(json!({"status.attached": false}))], "unpublish a h id-n1 s");
    expect(
        volume(json!({"metadata.deletionTimestamp": DELETED})),
        vec![deleting(json!({}))],
        "unpublish a h id-n1 s",
    );
    let unpublished = |fields| with(deleting(fields), AttachState::record_unpublished);
    expect(volume(json!({})), vec![unpublished(json!({}))], "release a");
    let held = json!({"metadata.finalizers": ["theirs"]});
    expect(volume(json!({})), vec![unpublished(held)], "detached a");
    let held = json!({"metadata.finalizers": ["theirs"], "status.attached": false});
    expect(volume(json!({})), vec![unpublished(held)], "done");
    // Without our finalizer there is nothing to detach, and without our own call no result to write.
    expect(volume(json!({})), vec![deleting(json!({"metadata.finalizers": ["theirs"]}))], "done");
    // An attach that has just succeeded is undone.
    let published = with(deleting(json!({})), |state| state.record_published(context()));
    expect(volume(json!({})), vec![published], "unpublish a h id-n1 s");
}

/// sidecars.md 1.2 "Detach": the node ID is read from the CSINode, otherwise from the attachment's annotation, so volumes
/// are detached from deleted nodes too.
#[test]
fn detach_from_deleted_node_uses_annotation() {
    let mut gone = prepared("a", "n1", json!({"metadata.deletionTimestamp": DELETED}));
    gone.node_id = None;
    expect(volume(json!({})), vec![gone.clone()], "unpublish a h id-n1 s");
    gone.node_id = Some("id-now".into());
    expect(volume(json!({})), vec![gone], "unpublish a h id-now s");
    let mut unknown =
        prepared("a", "n1", json!({"metadata.deletionTimestamp": DELETED, "metadata.annotations": {}}));
    unknown.node_id = None;
    expect(
        volume(json!({})),
        vec![unknown],
        "refuse a Detach: CSINode n1 does not contain driver d.test and the VolumeAttachment has no annotation \
         csi.alpha.kubernetes.io/node-id: register the driver on the node, or set the annotation to the \
         driver's node ID",
    );
}

/// sidecars.md 1.2 "Detach": PV missing is an error for as long as it is missing.
#[test]
fn detach_without_pv_is_refused() {
    let deleting =
        prepared("a", "n1", json!({"metadata.deletionTimestamp": DELETED, "status.attached": true}));
    expect(
        None,
        vec![deleting],
        "refuse a Detach: PersistentVolume \"v\" not found, so the volume's handle is unknown: recreate it with the same \
         handle, or make sure that the volume is detached from node n1 and remove finalizer external-attacher/d-test from \
         this VolumeAttachment",
    );
}

/// sidecars.md 1.2 "Errors": errors are always retried, with a backoff for each attachment.
#[test]
fn failure_delays_only_its_own_attachment() {
    let failed = |name, node, operation, ago: i64, pause| {
        let fields = match operation {
            AttachOperation::Attach => json!({}),
            AttachOperation::Detach => json!({"metadata.deletionTimestamp": DELETED}),
        };
        with(prepared(name, node, fields), |state| {
            state.failure = Some(failure(operation, Monotonic(AT.0 - ago * 1000), pause));
        })
    };
    let attach = |ago, pause| failed("a", "n1", AttachOperation::Attach, ago, pause);
    let detach = |ago, pause| failed("b", "n2", AttachOperation::Detach, ago, pause);
    expect(volume(json!({})), vec![attach(10, 30)], "wait 20");
    expect(volume(json!({})), vec![attach(30, 30)], "publish a h id-n1 s");
    expect(volume(json!({})), vec![attach(10, 30), detach(0, 8)], "wait 8");
    expect(volume(json!({})), vec![attach(30, 30), detach(0, 8)], "publish a h id-n1 s");
    expect(volume(json!({})), vec![attach(0, 30), detach(8, 8)], "unpublish b h id-n2 s");
    expect(volume(json!({})), vec![attach(0, 30), prepared("c", "n3", json!({}))], "publish c h id-n3 s");
    // A deletion ends the backoff of the attach.
    let mut deleting = prepared("a", "n1", json!({"metadata.deletionTimestamp": DELETED}));
    deleting.state.failure = attach(0, 30).state.failure;
    expect(volume(json!({})), vec![deleting], "unpublish a h id-n1 s");
}

/// A volume is detached from one node before it is attached to another; pending writes go first.
#[test]
fn detach_precedes_attach_of_same_volume() {
    let attaching = || attachment("a", "n1", json!({}));
    let deleting =
        || prepared("b", "n2", json!({"metadata.deletionTimestamp": DELETED, "status.attached": true}));
    expect(volume(json!({})), vec![attaching(), deleting()], "unpublish b h id-n2 s");
    expect(
        volume(json!({})),
        vec![attaching(), with(deleting(), AttachState::record_unpublished)],
        "release b",
    );
    let published = with(prepared("a", "n1", json!({})), |state| state.record_published(context()));
    expect(volume(json!({})), vec![published, deleting()], "attached a");
    // Even if the volume is attached elsewhere, the driver is called: upstream leaves the decision to it, too.
    let there = prepared("b", "n2", json!({"status.attached": true}));
    expect(volume(json!({})), vec![attaching(), there], "guard a s");
}

/// sidecars.md 1.2 "Errors": reported once, and again if the error changes or a minute has passed. 1.2 "Events": none,
/// errors are reported in the attachment's status.
#[test]
fn errors_are_reported_once_per_minute_or_change() {
    let ago = |seconds: i64| Time(NOW.0 - seconds * 1000).to_string();
    let attach_error = |message: &str, code: Option<i32>, seconds| json!({"attached": false, "attachError": {"message": message, "errorCode": code, "time": ago(seconds)}});
    for (operation, status, reported, step) in [
        (AttachOperation::Attach, json!({"attached": false}), false, "report a"),
        (AttachOperation::Attach, json!({"attached": false}), true, "wait 9"),
        (AttachOperation::Attach, attach_error("no", Some(13), 30), false, "wait 9"),
        (AttachOperation::Attach, attach_error("no", Some(13), 59), false, "wait 9"),
        (AttachOperation::Attach, attach_error("no", Some(13), 60), false, "report a"),
        (AttachOperation::Attach, attach_error("no", Some(13), 61), false, "report a"),
        (AttachOperation::Attach, attach_error("no", Some(14), 30), false, "report a"),
        (AttachOperation::Attach, attach_error("no", None, 30), false, "wait 9"),
        (AttachOperation::Attach, attach_error("another", Some(13), 30), false, "report a"),
        (AttachOperation::Detach, json!({"attached": true}), false, "report a"),
        (
            AttachOperation::Detach,
            json!({"attached": true, "detachError": {"message": "no", "time": ago(30)}}),
            false,
            "wait 9",
        ),
        (
            AttachOperation::Detach,
            json!({"attached": true, "detachError": {"message": "x", "time": ago(30)}}),
            false,
            "report a",
        ),
    ] {
        let fields = match operation {
            AttachOperation::Attach => json!({"status": status}),
            AttachOperation::Detach => json!({"status": status, "metadata.deletionTimestamp": DELETED}),
        };
        let inputs = with(prepared("a", "n1", fields), |state| {
            state.failure = Some(Failure { reported, ..failure(operation, AT, 9) });
        });
        expect(volume(json!({})), vec![inputs], step);
    }
    // A failed attach is irrelevant once the attachment is being deleted.
    let deleting = with(prepared("a", "n1", json!({"metadata.deletionTimestamp": DELETED})), |state| {
        state.failure = Some(Failure { reported: false, ..failure(AttachOperation::Attach, AT, 9) });
    });
    expect(volume(json!({})), vec![deleting], "unpublish a h id-n1 s");
}

/// sidecars.md 1.2 "Reconcile": the driver is called again, whatever the status says. A forced call is void if the
/// attachment changed since.
#[test]
fn forced_call_ignores_status_and_backoff() {
    let forced =
        |inputs, version: &str| with(inputs, |state: &mut AttachState| state.forced = Some(version.into()));
    let attached = || prepared("a", "n1", json!({"status.attached": true}));
    expect(volume(json!({})), vec![forced(attached(), "7")], "publish a h id-n1 s");
    expect(volume(json!({})), vec![forced(attached(), "6")], "done");
    let without_finalizer = || {
        attachment(
            "a",
            "n1",
            json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["theirs"]}),
        )
    };
    expect(volume(json!({})), vec![forced(without_finalizer(), "7")], "unpublish a h id-n1 s");
    expect(volume(json!({})), vec![without_finalizer()], "done");
    // No backoff delays it.
    let failed = with(prepared("a", "n1", json!({})), |state| {
        state.failure = Some(failure(AttachOperation::Attach, AT, 30));
    });
    expect(volume(json!({})), vec![failed.clone()], "wait 30");
    expect(volume(json!({})), vec![forced(failed, "7")], "publish a h id-n1 s");
    // A forced attach that failed is reported, and not repeated.
    let reported = with(attached(), |state| {
        state.failure = Some(Failure { reported: false, ..failure(AttachOperation::Attach, AT, 30) });
    });
    expect(volume(json!({})), vec![reported.clone()], "report a");
    let reported = with(reported, |state| state.failure.as_mut().unwrap().reported = true);
    expect(volume(json!({})), vec![reported], "done");
}

/// sidecars.md 1.2 "PV finalizer removal": only after the server confirms that no attachment refers to the volume; an
/// empty store is no proof. The patch names only our own finalizer.
#[test]
fn volume_finalizer_is_removed_after_server_confirms_no_references() {
    let config = config();
    let deleting = || volume(json!({"metadata.deletionTimestamp": DELETED}));
    let decide = |change: &dyn Fn(&mut VolumeView<'_>)| {
        let mut view = view(&config, deleting(), vec![]);
        change(&mut view);
        summary(&decide(&view, AT))
    };
    assert_eq!(decide(&|_| {}), "check references vu");
    assert_eq!(decide(&|view| view.unreferenced = Some("vu".into())), "release volume");
    assert_eq!(decide(&|view| view.unreferenced = Some("another".into())), "check references vu");
    assert_eq!(decide(&|view| view.complete = false), "wait 30");
    assert_eq!(decide(&|view| view.volume = volume(json!({}))), "done");
    let without_finalizer = json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["x"]});
    assert_eq!(decide(&|view| view.volume = volume(without_finalizer.clone())), "done");
    assert_eq!(decide(&|view| view.volume = None), "done");
    let unreferenced = |view: &mut VolumeView<'_>| view.unreferenced = Some("vu".into());
    assert_eq!(
        decide(&|view| {
            unreferenced(view);
            view.has_foreign_attachments = true;
        }),
        "done"
    );
    assert_eq!(
        decide(&|view| {
            unreferenced(view);
            let fields = json!({"metadata.deletionTimestamp": DELETED, "metadata.finalizers": ["theirs"]});
            view.attachments = vec![attachment("a", "n1", fields)];
        }),
        "done"
    );
}

const EBS: &str = "ebs.csi.aws.com";

fn in_tree(source: Value) -> Option<Arc<PersistentVolume>> {
    let object = json!({
        "metadata": {"name": "v", "uid": "vu", "resourceVersion": "5", "finalizers": [FINALIZER]},
        "spec": {"accessModes": ["ReadWriteOnce"], "awsElasticBlockStore": source},
    });
    Some(Arc::new(serde_json::from_value(object).unwrap()))
}

/// sidecars.md 1.0 "In-tree migration", 1.2 "Attach order", "Detach".
#[test]
fn in_tree_volume_is_attached_and_detached_with_translated_source() {
    let config = AttacherConfig { driver: EBS.into(), ..config() };
    let step = |source, fields| {
        let prepared = prepared("a", "n1", fields);
        decide(&view(&config, in_tree(source), vec![prepared]), AT)
    };
    let source = || json!({"volumeID": "aws://us-east-1a/vol-1", "fsType": "xfs", "partition": 2});
    let AttachStep::Publish { request, .. } = step(source(), json!({})) else { panic!("not published") };
    assert_eq!(request.volume_id, "vol-1");
    assert_eq!(request.volume_context, [("partition".to_owned(), "2".to_owned())].into());
    let mount =
        wharf_csi::v1::volume_capability::AccessType::Mount(crate::capability::mount_volume("xfs", &[]));
    assert_eq!(request.volume_capability.unwrap().access_type, Some(mount));
    let deleting = || json!({"metadata.deletionTimestamp": DELETED});
    assert_eq!(summary(&step(source(), deleting())), "unpublish a vol-1 id-n1 -");
    for (fields, operation) in [(json!({}), "Attach"), (deleting(), "Detach")] {
        assert_eq!(
            summary(&step(json!({"volumeID": "aws://us-east-1a/disk"}), fields)),
            format!(
                "refuse a {operation}: failed to translate in tree pv to CSI: invalid EBS volume ID \
                 \"aws://us-east-1a/disk\": expected vol-<id> or aws://<zone>/vol-<id>"
            )
        );
    }
}

#[test]
fn in_tree_volume_of_another_driver_is_refused() {
    let bare = attachment("a", "n1", json!({}));
    expect(
        in_tree(json!({"volumeID": "vol-1"})),
        vec![bare],
        "refuse a Attach: PersistentVolume \"v\" belongs to driver ebs.csi.aws.com, but the VolumeAttachment names \
         d.test: delete the VolumeAttachment",
    );
}

/// Otherwise the driver would detach its own volume of that handle.
#[test]
fn volume_of_another_driver_is_not_detached() {
    let deleting = || vec![prepared("a", "n1", json!({"metadata.deletionTimestamp": DELETED}))];
    for (volume, of) in [
        (in_tree(json!({"volumeID": "vol-1"})), EBS),
        (volume(json!({"spec.csi.driver": "e.test"})), "e.test"),
    ] {
        expect(
            volume,
            deleting(),
            &format!(
                "refuse a Detach: PersistentVolume \"v\" belongs to driver {of}, so the handle of the volume that \
                 d.test attached is unknown: make sure that it is detached from node n1 and remove finalizer \
                 {FINALIZER} from this VolumeAttachment"
            ),
        );
    }
}
