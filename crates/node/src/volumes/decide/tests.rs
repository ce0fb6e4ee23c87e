use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{CSIDriver, Map, Quantity};

use super::*;
use crate::plugins::NodeCapabilities;
use crate::volumes::failure::{Class, Failure};
use crate::volumes::view::NodeSeen;
use crate::volumes::world::{Expansion, Volume};

const NOW: Time = Time(1_000_000);
const POD: &str = "u1";

/// All that a view borrows from.
struct Scene {
    volume: Volume,
    released: Vec<String>,
    settled: bool,
    node: bool,
    labels: Map,
    reported: bool,
    attached: bool,
    driver: Option<CSIDriver>,
    drivers_known: bool,
    can: Option<NodeCapabilities>,
}

impl Scene {
    /// A volume of a driver that attaches and stages, all of it ready, and nothing done.
    fn new() -> Self {
        Self {
            volume: Volume::new("d", "h", "pv1", Mode::Filesystem, false),
            released: Vec::new(),
            settled: true,
            node: true,
            labels: Map::default(),
            reported: true,
            attached: true,
            driver: None,
            drivers_known: true,
            can: Some(NodeCapabilities { stage_unstage: true, expand: true, ..NodeCapabilities::default() }),
        }
    }

    fn wanted(self) -> Self {
        self.wanted_by(POD, json!({}), json!({}))
    }

    fn wanted_by(mut self, pod: &str, spec: Value, context: Value) -> Self {
        let mut volume = json!({
            "metadata": {"name": "pv1"},
            "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": "h", "fsType": "ext4"}},
        });
        for (key, value) in spec.as_object().unwrap() {
            volume["spec"][key] = value.clone();
        }
        let source = Source::Persistent {
            volume: Arc::new(serde_json::from_value(volume).unwrap()),
            claim: Arc::default(),
        };
        let object = json!({"metadata": {"name": "p", "uid": pod}, "spec": {"securityContext": context}});
        let want = Want {
            pod: Arc::new(serde_json::from_value(object).unwrap()),
            names: ["data".to_owned()].into(),
            source,
            read_only: false,
            se_linux: None,
        };
        self.volume.wants.insert(pod.to_owned(), want);
        self
    }

    fn inline(mut self) -> Self {
        self = self.wanted();
        self.volume.ephemeral = true;
        let want = self.volume.wants.get_mut(POD).unwrap();
        want.source = Source::Inline(Box::default());
        self
    }

    /// A device of a driver that does not stage.
    fn unstaged_block(self) -> Self {
        self.with(|s| (s.volume.mode, s.can) = (Mode::Block, Some(NodeCapabilities::default())))
    }

    fn verified(mut self) -> Self {
        self.volume.context = Some(BTreeMap::new());
        self
    }

    fn device(mut self, device: Device) -> Self {
        self.volume.device = device;
        self
    }

    fn mount(self, progress: Progress) -> Self {
        self.mount_of(POD, progress, false)
    }

    fn mount_of(mut self, pod: &str, progress: Progress, found: bool) -> Self {
        let mount = Mount { progress, found, published: NOW, spec: "pv1".into() };
        self.volume.mounts.insert(pod.to_owned(), mount);
        self
    }

    fn released(mut self, pod: &str) -> Self {
        self.released.push(pod.to_owned());
        self
    }

    fn failed(mut self, doing: Doing, pod: &str, left: u64) -> Self {
        let failure = Failure {
            class: Class::Final,
            message: "no".into(),
            at: NOW,
            pause: Duration::from_secs(left),
            count: 1,
        };
        self.volume.failures.insert((doing, pod.to_owned()), failure);
        self
    }

    fn driver(mut self, spec: Value) -> Self {
        self.driver = Some(serde_json::from_value(json!({"spec": spec})).unwrap());
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn decide(&self) -> Step {
        let driver = match (&self.driver, self.drivers_known) {
            (Some(driver), _) => Driver::Said(driver),
            (None, true) => Driver::Silent,
            (None, false) => Driver::Unknown,
        };
        let view = View {
            volume: &self.volume,
            released: &self.released,
            settled: self.settled,
            node: self.node.then_some(NodeSeen {
                name: "n1",
                labels: &self.labels,
                reported: self.reported,
                attached: self.attached,
            }),
            driver,
            can: self.can.as_ref(),
            resync: Duration::from_secs(60),
        };
        decide(&view, NOW)
    }
}

fn stage() -> Step {
    Step::Stage { pod: POD.into() }
}

fn publish() -> Step {
    Step::Publish { pod: POD.into() }
}

fn ready() -> Step {
    Step::Ready { pod: POD.into() }
}

fn unpublish() -> Step {
    Step::Unpublish { pod: POD.into() }
}

fn rest(waiting: Waiting) -> Step {
    Step::Rest { until: None, waiting: Some(waiting) }
}

fn paused(seconds: u64) -> Step {
    Step::Rest { until: Some(Duration::from_secs(seconds)), waiting: Some(Waiting::Pause) }
}

fn idle() -> Step {
    Step::Rest { until: None, waiting: None }
}

fn check(table: impl IntoIterator<Item = (&'static str, Scene, Step)>) {
    for (rule, scene, expected) in table {
        assert_eq!(scene.decide(), expected, "{rule}");
    }
}

/// kubernetes.md 1.8 "Handshake": in use first, then attached, then the attachment, then the driver.
#[test]
fn the_handshake() {
    let scene = || Scene::new().wanted();
    check([
        ("the Node was not seen", scene().with(|s| s.node = false), rest(Waiting::Node)),
        ("CSIDrivers are not known", scene().with(|s| s.drivers_known = false), rest(Waiting::Drivers)),
        (
            "the server has not taken our word, whatever is attached",
            scene().verified().with(|s| s.reported = false),
            rest(Waiting::Report),
        ),
        ("nobody has attached it", scene().verified().with(|s| s.attached = false), rest(Waiting::Attach)),
        ("attached: its attachment is read", scene(), Step::Verify),
        ("the attachment was no good", scene().failed(Doing::Verify, "", 3), paused(3)),
        ("then it is staged", scene().verified(), stage()),
        (
            "a driver that does not attach needs none of it",
            scene()
                .driver(json!({"attachRequired": false}))
                .with(|s| (s.reported, s.attached) = (false, false)),
            stage(),
        ),
        (
            "nor does a volume of the pod's own",
            Scene::new()
                .inline()
                .driver(json!({"volumeLifecycleModes": ["Ephemeral"]}))
                .with(|s| (s.reported, s.attached) = (false, false)),
            publish(),
        ),
    ]);
}

/// kubernetes.md 1.8 "Mount order": from stage to the end.
#[test]
fn from_stage_to_the_pod() {
    use Progress::{Mounted, Owned, Published, Uncertain};
    let scene = || Scene::new().wanted().verified();
    let staged = || scene().device(Device::Staged);
    let owned =
        || Scene::new().wanted_by(POD, json!({}), json!({"fsGroup": 7})).verified().device(Device::Staged);
    check([
        ("it may be staged: again", scene().device(Device::Uncertain { found: false }), stage()),
        (
            "an earlier life may have staged it: again",
            scene().device(Device::Uncertain { found: true }),
            stage(),
        ),
        ("staged", staged(), publish()),
        ("it may be published: again", staged().mount(Uncertain), publish()),
        ("found: again", staged().mount_of(POD, Uncertain, true), publish()),
        ("published, and nothing else to do", staged().mount(Published), ready()),
        ("files have to be given away first", owned().mount(Published), Step::Own { pod: POD.into() }),
        ("they are", owned().mount(Owned), ready()),
        ("the pod has it", staged().mount(Mounted), idle()),
        (
            "a driver that does not stage publishes at once",
            scene().with(|s| s.can = Some(NodeCapabilities::default())),
            publish(),
        ),
        (
            "nor does its device, of which there is a record",
            scene().unstaged_block().device(Device::Uncertain { found: false }),
            publish(),
        ),
        (
            "published and not staged: the stage comes first",
            scene().device(Device::None).mount(Uncertain),
            stage(),
        ),
        (
            "the driver is away",
            scene().with(|s| s.can = None),
            Step::Refuse { pod: POD.into(), doing: Doing::Publish, why: Refusal::NotRegistered("d".into()) },
        ),
        (
            "what the pod has, it has, without the driver too",
            staged().mount(Mounted).with(|s| s.can = None),
            idle(),
        ),
    ]);
}

/// Pauses after failures: each has its own.
#[test]
fn pauses() {
    let scene = || Scene::new().wanted().verified();
    let staged = || scene().device(Device::Staged);
    check([
        ("stage", scene().failed(Doing::Stage, "", 5), paused(5)),
        ("publish", staged().failed(Doing::Publish, POD, 5), paused(5)),
        ("another pod's publish holds up nobody", staged().failed(Doing::Publish, "u2", 5), publish()),
        ("a stage that failed before it worked", staged().failed(Doing::Stage, "", 5), publish()),
        (
            "own",
            Scene::new()
                .wanted_by(POD, json!({}), json!({"fsGroup": 7}))
                .verified()
                .device(Device::Staged)
                .mount(Progress::Published)
                .failed(Doing::Own, POD, 5),
            paused(5),
        ),
        (
            "unpublish",
            Scene::new().mount(Progress::Mounted).released(POD).failed(Doing::Unpublish, POD, 5),
            paused(5),
        ),
        ("unstage", Scene::new().device(Device::Staged).failed(Doing::Unstage, "", 5), paused(5)),
        (
            "the soonest of several",
            Scene::new()
                .mount(Progress::Mounted)
                .mount_of("u2", Progress::Mounted, false)
                .released(POD)
                .released("u2")
                .failed(Doing::Unpublish, POD, 9)
                .failed(Doing::Unpublish, "u2", 4),
            paused(4),
        ),
    ]);
    let over = staged().failed(Doing::Publish, POD, 0);
    assert_eq!(over.decide(), publish());
}

/// kubernetes.md 1.8 "Unpublish", "Unstage", "Gate", "Uncertain": what may be there goes like what is.
#[test]
fn from_the_pod_to_nothing() {
    use Progress::{Mounted, Owned, Published, Uncertain};
    let mut table = vec![
        ("nothing is left", Scene::new(), Step::Forget),
        (
            "staged by us: it goes, all pods known or not",
            Scene::new().device(Device::Staged).with(|s| s.settled = false),
            Step::Unstage,
        ),
        ("it may be staged", Scene::new().device(Device::Uncertain { found: false }), Step::Unstage),
        ("found staged", Scene::new().device(Device::Uncertain { found: true }), Step::Unstage),
        (
            "the record of a device, whose driver does not stage",
            Scene::new().unstaged_block().device(Device::Uncertain { found: false }),
            Step::Unstage,
        ),
        (
            "found staged, and not all pods are known",
            Scene::new().device(Device::Uncertain { found: true }).with(|s| s.settled = false),
            rest(Waiting::Pods),
        ),
        ("not while a pod has it", Scene::new().device(Device::Staged).mount(Mounted), rest(Waiting::Pods)),
        (
            "not while a pod wants it",
            Scene::new().wanted().device(Device::Staged).with(|s| s.attached = false),
            rest(Waiting::Attach),
        ),
        (
            "the driver is away: it stays",
            Scene::new().mount(Mounted).released(POD).with(|s| s.can = None),
            Step::Refuse {
                pod: POD.into(),
                doing: Doing::Unpublish,
                why: Refusal::NotRegistered("d".into()),
            },
        ),
        (
            "the driver is away: the stage stays",
            Scene::new().device(Device::Staged).with(|s| s.can = None),
            Step::Refuse {
                pod: String::new(),
                doing: Doing::Unstage,
                why: Refusal::NotRegistered("d".into()),
            },
        ),
    ];
    for progress in [Uncertain, Published, Owned, Mounted] {
        let scene = || Scene::new().device(Device::Staged).mount(progress);
        table.push(("its pod was released", scene().released(POD), unpublish()));
        table.push(("nobody released its pod", scene(), rest(Waiting::Pods)));
    }
    check(table);
    // Without Node and CSIDrivers too: what goes needs neither.
    let blind =
        Scene::new().mount(Mounted).released(POD).with(|s| (s.node, s.drivers_known) = (false, false));
    assert_eq!(blind.decide(), unpublish());
}

/// kubernetes.md 1.8 "Order": unmounts before mounts; one pod's trouble is not another's.
#[test]
fn several_pods() {
    let scene = || Scene::new().wanted().verified().device(Device::Staged);
    check([
        (
            "what goes, goes first",
            scene().mount_of("u0", Progress::Mounted, false).released("u0"),
            Step::Unpublish { pod: "u0".into() },
        ),
        (
            "what does not go holds up nobody",
            scene().mount_of("u0", Progress::Mounted, false).released("u0").failed(Doing::Unpublish, "u0", 5),
            publish(),
        ),
        (
            "what is not known yet holds up nobody",
            scene().mount_of("u0", Progress::Uncertain, true).with(|s| s.settled = false),
            publish(),
        ),
        (
            "a second pod gets its share of what is staged",
            scene().mount(Progress::Mounted).wanted_by("u2", json!({}), json!({})),
            Step::Publish { pod: "u2".into() },
        ),
    ]);
}

/// kubernetes.md 1.8 "Mount order", "Inline", "SELinux": affinity, ReadWriteOncePod, lifecycle modes, labels.
#[test]
fn refusals() {
    let refused = |why| Step::Refuse { pod: POD.into(), doing: Doing::Publish, why };
    let zone = |value: &str| {
        json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]},
        ]}}})
    };
    let here = |s: &mut Scene| s.labels.insert("zone", "a");
    let once = json!({"accessModes": ["ReadWriteOncePod"]});
    let both = json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]});
    let by = |spec: Value| Scene::new().wanted_by(POD, spec, json!({})).verified();
    let lifecycle = |mode, hint| refused(Refusal::Lifecycle { mode, driver: "d".into(), hint });
    let other = |s: Scene| s.mount_of("u2", Progress::Uncertain, false);
    check([
        ("its place", by(zone("a")).with(here), stage()),
        ("another place", by(zone("b")).with(here), refused(Refusal::Affinity)),
        ("ReadWriteOncePod, and nobody has it", by(once.clone()), stage()),
        (
            "ReadWriteOncePod, and another pod has it or may",
            other(by(once.clone())),
            refused(Refusal::OncePod),
        ),
        ("ReadWriteOncePod beside another mode", other(by(both)), stage()),
        (
            "ReadWriteOncePod, and the pod itself has it",
            by(once).device(Device::Staged).mount(Progress::Published),
            ready(),
        ),
        ("inline, and no CSIDriver", Scene::new().inline(), lifecycle("Ephemeral", " (no CSIDriver object)")),
        (
            "inline, and the CSIDriver does not say so",
            Scene::new().inline().driver(json!({})),
            lifecycle("Ephemeral", " (its CSIDriver object does not list it in volumeLifecycleModes)"),
        ),
        (
            "persistent, and the driver has only inline ones",
            Scene::new().wanted().driver(json!({"volumeLifecycleModes": ["Ephemeral"]})),
            lifecycle("Persistent", " (its CSIDriver object does not list it in volumeLifecycleModes)"),
        ),
    ]);
    let labelled = |has: Option<&str>, elsewhere: bool| {
        let mut scene = Scene::new().wanted().verified().device(Device::Staged);
        scene.volume.se_linux = has.map(Into::into);
        scene.volume.wants.get_mut(POD).unwrap().se_linux = Some("b".into());
        if elsewhere { other(scene) } else { scene }
    };
    let label = refused(Refusal::Label { has: "a".into(), wants: "b".into() });
    check([
        ("another label", labelled(Some("a"), true), label),
        ("the same label", labelled(Some("b"), true), publish()),
        ("another label, and nobody else has it", labelled(Some("a"), false), Step::Unstage),
        ("no label, and nobody else has it", labelled(None, false), Step::Unstage),
        ("the same label, and nobody else has it", labelled(Some("b"), false), publish()),
        ("it is gone: staged with the new label", labelled(None, false).device(Device::None), stage()),
        (
            "another label, and the pod itself has it",
            labelled(Some("a"), false).mount(Progress::Uncertain),
            publish(),
        ),
        (
            "another label, and whose it was is not known yet",
            labelled(Some("a"), false).device(Device::Uncertain { found: true }).with(|s| s.settled = false),
            rest(Waiting::Pods),
        ),
        ("it could not be unstaged", labelled(Some("a"), false).failed(Doing::Unstage, "", 4), paused(4)),
    ]);
}

/// kubernetes.md 1.8 "Republish".
#[test]
fn published_again_and_again() {
    let scene = |published: i64| {
        let mut scene = Scene::new().wanted().verified().device(Device::Staged).mount(Progress::Mounted);
        scene.volume.mounts.get_mut(POD).unwrap().published = Time(NOW.0 - published);
        scene.driver(json!({"requiresRepublish": true}))
    };
    let until = |seconds| Step::Rest { until: Some(Duration::from_secs(seconds)), waiting: None };
    check([
        ("not yet", scene(20_000), until(40)),
        ("now", scene(60_000), publish()),
        ("long since", scene(600_000), publish()),
        (
            "attached anew: its attachment is read first",
            scene(60_000).with(|s| s.volume.context = None),
            Step::Verify,
        ),
        ("detached: not until it is back", scene(60_000).with(|s| s.attached = false), rest(Waiting::Attach)),
        ("it failed", scene(60_000).failed(Doing::Publish, POD, 5), paused(5)),
        ("only where the driver wants it", scene(600_000).driver(json!({})), idle()),
        ("a device is not", scene(600_000).with(|s| s.volume.mode = Mode::Block), idle()),
        (
            "not without the driver",
            scene(600_000).with(|s| s.can = None),
            Step::Rest { until: Some(Duration::ZERO), waiting: None },
        ),
    ]);
}

/// kubernetes.md 1.4 "Node side", "Mount fails": during the mount, and online.
#[test]
fn growth() {
    let gib = |n: i64| Quantity::from_bytes(n << 30);
    let growing = |progress, state: &str| {
        let mut scene = Scene::new()
            .wanted_by(POD, json!({"capacity": {"storage": "2Gi"}}), json!({}))
            .verified()
            .device(Device::Staged)
            .mount(progress);
        let claim = json!({"status": {
            "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": state},
        }});
        let want = scene.volume.wants.get_mut(POD).unwrap();
        if let Source::Persistent { claim: known, .. } = &mut want.source {
            *known = Arc::new(serde_json::from_value(claim).unwrap());
        }
        scene
    };
    let pending = |progress| growing(progress, "NodeResizePending");
    let expand = || Step::Expand { pod: POD.into() };
    let reading = |scene: Scene| scene.with(|s| s.volume.wants.get_mut(POD).unwrap().read_only = true);
    use Progress::{Mounted, Published, Uncertain};
    check([
        ("before the pod has it", pending(Published), expand()),
        ("not before it is published", pending(Uncertain), publish()),
        ("while the pod has it", pending(Mounted), expand()),
        ("done already", pending(Mounted).with(|s| s.volume.size = Some(gib(2))), idle()),
        ("the mount fails with it", pending(Published).failed(Doing::Expand, POD, 5), paused(5)),
        ("the pod goes on with it", pending(Mounted).failed(Doing::Expand, POD, 5), paused(5)),
        (
            "not on this node any more",
            pending(Published)
                .with(|s| s.volume.expansion = Expansion { in_use: true, ..Expansion::default() }),
            ready(),
        ),
        ("infeasible: the mount goes on", growing(Published, "NodeResizeInfeasible"), ready()),
        ("not without the driver", pending(Mounted).with(|s| s.can = None), idle()),
        ("for reading only", reading(pending(Published)), expand()),
        // What is known of the size counts for all of them.
        (
            "for reading only, and another pod writes",
            reading(pending(Published)).wanted_by("u2", json!({}), json!({})),
            ready(),
        ),
    ]);
}
