use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use wharf_model::{CSIDriver, Quantity, StringMap};

use super::*;
use crate::plugins::NodeCapabilities;
use crate::volumes::failure::{Class, Failure};
use crate::volumes::view::NodeView;
use crate::volumes::world::{Expansion, Volume};

const NOW: Monotonic = Monotonic(1_000_000);
const POD: &str = "u1";

/// Owner of everything that a view borrows.
struct Fixture {
    volume: Volume,
    released: Vec<String>,
    pods_known: bool,
    node: bool,
    labels: StringMap,
    reported: bool,
    attached: bool,
    driver: Option<CSIDriver>,
    drivers_known: bool,
    capabilities: Option<NodeCapabilities>,
}

impl Fixture {
    /// A volume of a driver that attaches and stages: all preconditions met, nothing done yet.
    fn new() -> Self {
        Self {
            volume: Volume::new("d", "h", "pv1", Mode::Filesystem, false),
            released: Vec::new(),
            pods_known: true,
            node: true,
            labels: StringMap::default(),
            reported: true,
            attached: true,
            driver: None,
            drivers_known: true,
            capabilities: Some(NodeCapabilities {
                stage_unstage: true,
                expand: true,
                ..NodeCapabilities::default()
            }),
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
        let desired = DesiredMount {
            pod: Arc::new(serde_json::from_value(object).unwrap()),
            names: ["data".to_owned()].into(),
            source,
            read_only: false,
            se_linux: None,
        };
        self.volume.desired.insert(pod.to_owned(), desired);
        self
    }

    fn inline(mut self) -> Self {
        self = self.wanted();
        self.volume.ephemeral = true;
        let desired = self.volume.desired.get_mut(POD).unwrap();
        desired.source = Source::Inline(Box::default());
        self
    }

    /// A block volume of a driver that does not stage.
    fn unstaged_block(self) -> Self {
        self.with(|s| (s.volume.mode, s.capabilities) = (Mode::Block, Some(NodeCapabilities::default())))
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
        let mount = Mount { progress, found, published: Some(NOW), spec: "pv1".into() };
        self.volume.mounts.insert(pod.to_owned(), mount);
        self
    }

    fn released(mut self, pod: &str) -> Self {
        self.released.push(pod.to_owned());
        self
    }

    fn failed(mut self, operation: Operation, pod: &str, left: u64) -> Self {
        let failure = Failure {
            class: Class::Final,
            message: "no".into(),
            time: wharf_model::Time(0),
            at: NOW,
            pause: Duration::from_secs(left),
            count: 1,
        };
        self.volume.failures.insert((operation, pod.to_owned()), failure);
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
            (Some(driver), _) => Driver::Object(driver),
            (None, true) => Driver::NoObject,
            (None, false) => Driver::Unknown,
        };
        let view = View {
            volume: &self.volume,
            released: &self.released,
            pods_known: self.pods_known,
            node: self.node.then_some(NodeView {
                name: "n1",
                labels: &self.labels,
                reported: self.reported,
                attached: self.attached,
            }),
            driver,
            capabilities: self.capabilities.as_ref(),
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
    Step::Idle { until: None, waiting: Some(waiting) }
}

fn paused(seconds: u64) -> Step {
    Step::Idle { until: Some(Duration::from_secs(seconds)), waiting: Some(Waiting::Pause) }
}

fn idle() -> Step {
    Step::Idle { until: None, waiting: None }
}

fn check(table: impl IntoIterator<Item = (&'static str, Fixture, Step)>) {
    for (rule, fixture, expected) in table {
        assert_eq!(fixture.decide(), expected, "{rule}");
    }
}

/// kubernetes.md 1.8 "Attach handshake": in use first, then attached, then the attachment, then the driver.
#[test]
fn driver_is_called_only_after_the_attach_handshake() {
    let fixture = || Fixture::new().wanted();
    check([
        ("the Node is unknown", fixture().with(|s| s.node = false), rest(Waiting::Node)),
        ("CSIDrivers are unknown", fixture().with(|s| s.drivers_known = false), rest(Waiting::Drivers)),
        (
            "volumesInUse is not accepted, even if attached",
            fixture().verified().with(|s| s.reported = false),
            rest(Waiting::Report),
        ),
        ("not attached", fixture().verified().with(|s| s.attached = false), rest(Waiting::Attach)),
        ("attached: its attachment is read", fixture(), Step::Verify),
        ("reading the attachment failed", fixture().failed(Operation::Verify, "", 3), paused(3)),
        ("then it is staged", fixture().verified(), stage()),
        (
            "a driver that does not attach skips the handshake",
            fixture()
                .driver(json!({"attachRequired": false}))
                .with(|s| (s.reported, s.attached) = (false, false)),
            stage(),
        ),
        (
            "so does an inline volume",
            Fixture::new()
                .inline()
                .driver(json!({"volumeLifecycleModes": ["Ephemeral"]}))
                .with(|s| (s.reported, s.attached) = (false, false)),
            publish(),
        ),
    ]);
}

/// kubernetes.md 1.8 "Mount order": from stage to mounted.
#[test]
fn volume_is_staged_published_owned_then_ready() {
    use Progress::{Mounted, Owned, Published, Uncertain};
    let fixture = || Fixture::new().wanted().verified();
    let staged = || fixture().device(Device::Staged);
    let owned =
        || Fixture::new().wanted_by(POD, json!({}), json!({"fsGroup": 7})).verified().device(Device::Staged);
    check([
        ("may be staged: stage again", fixture().device(Device::Uncertain { found: false }), stage()),
        (
            "may be staged by an earlier run: stage again",
            fixture().device(Device::Uncertain { found: true }),
            stage(),
        ),
        ("staged", staged(), publish()),
        ("may be published: publish again", staged().mount(Uncertain), publish()),
        ("found: publish again", staged().mount_of(POD, Uncertain, true), publish()),
        ("published, and nothing else to do", staged().mount(Published), ready()),
        ("fsGroup has to be applied first", owned().mount(Published), Step::SetOwnership { pod: POD.into() }),
        ("fsGroup applied", owned().mount(Owned), ready()),
        ("mounted", staged().mount(Mounted), idle()),
        (
            "a driver that does not stage publishes directly",
            fixture().with(|s| s.capabilities = Some(NodeCapabilities::default())),
            publish(),
        ),
        (
            "so does its block volume, which has a record",
            fixture().unstaged_block().device(Device::Uncertain { found: false }),
            publish(),
        ),
        ("published and not staged: stage first", fixture().device(Device::None).mount(Uncertain), stage()),
        (
            "the driver is not registered",
            fixture().with(|s| s.capabilities = None),
            Step::Refuse {
                pod: POD.into(),
                operation: Operation::Publish,
                reason: Refusal::NotRegistered("d".into()),
            },
        ),
        (
            "a mounted volume stays mounted without the driver",
            staged().mount(Mounted).with(|s| s.capabilities = None),
            idle(),
        ),
    ]);
}

/// Every operation has its own backoff.
#[test]
fn operations_back_off_independently() {
    let fixture = || Fixture::new().wanted().verified();
    let staged = || fixture().device(Device::Staged);
    check([
        ("stage", fixture().failed(Operation::Stage, "", 5), paused(5)),
        ("publish", staged().failed(Operation::Publish, POD, 5), paused(5)),
        ("another pod's publish does not block", staged().failed(Operation::Publish, "u2", 5), publish()),
        ("a stage that failed before it worked", staged().failed(Operation::Stage, "", 5), publish()),
        (
            "own",
            Fixture::new()
                .wanted_by(POD, json!({}), json!({"fsGroup": 7}))
                .verified()
                .device(Device::Staged)
                .mount(Progress::Published)
                .failed(Operation::SetOwnership, POD, 5),
            paused(5),
        ),
        (
            "unpublish",
            Fixture::new().mount(Progress::Mounted).released(POD).failed(Operation::Unpublish, POD, 5),
            paused(5),
        ),
        ("unstage", Fixture::new().device(Device::Staged).failed(Operation::Unstage, "", 5), paused(5)),
        (
            "the earliest of several",
            Fixture::new()
                .mount(Progress::Mounted)
                .mount_of("u2", Progress::Mounted, false)
                .released(POD)
                .released("u2")
                .failed(Operation::Unpublish, POD, 9)
                .failed(Operation::Unpublish, "u2", 4),
            paused(4),
        ),
    ]);
    let over = staged().failed(Operation::Publish, POD, 0);
    assert_eq!(over.decide(), publish());
}

/// kubernetes.md 1.8 "Unpublish", "Unstage", "Wait for all pods", "Uncertain": uncertain state is cleaned up like
/// certain state.
#[test]
fn released_volume_is_unpublished_unstaged_and_dropped() {
    use Progress::{Mounted, Owned, Published, Uncertain};
    let mut table = vec![
        ("nothing is left", Fixture::new(), Step::DropState),
        (
            "staged by this run: unstage, all pods known or not",
            Fixture::new().device(Device::Staged).with(|s| s.pods_known = false),
            Step::Unstage,
        ),
        ("may be staged", Fixture::new().device(Device::Uncertain { found: false }), Step::Unstage),
        ("found staged", Fixture::new().device(Device::Uncertain { found: true }), Step::Unstage),
        (
            "the record of a block volume whose driver does not stage",
            Fixture::new().unstaged_block().device(Device::Uncertain { found: false }),
            Step::Unstage,
        ),
        (
            "found staged, and not all pods are known",
            Fixture::new().device(Device::Uncertain { found: true }).with(|s| s.pods_known = false),
            rest(Waiting::Pods),
        ),
        ("not while mounted", Fixture::new().device(Device::Staged).mount(Mounted), rest(Waiting::Pods)),
        (
            "not while desired",
            Fixture::new().wanted().device(Device::Staged).with(|s| s.attached = false),
            rest(Waiting::Attach),
        ),
        (
            "driver not registered: the mount stays",
            Fixture::new().mount(Mounted).released(POD).with(|s| s.capabilities = None),
            Step::Refuse {
                pod: POD.into(),
                operation: Operation::Unpublish,
                reason: Refusal::NotRegistered("d".into()),
            },
        ),
        (
            "driver not registered: the stage stays",
            Fixture::new().device(Device::Staged).with(|s| s.capabilities = None),
            Step::Refuse {
                pod: String::new(),
                operation: Operation::Unstage,
                reason: Refusal::NotRegistered("d".into()),
            },
        ),
    ];
    for progress in [Uncertain, Published, Owned, Mounted] {
        let fixture = || Fixture::new().device(Device::Staged).mount(progress);
        table.push(("its pod was released", fixture().released(POD), unpublish()));
        table.push(("its pod was not released", fixture(), rest(Waiting::Pods)));
    }
    check(table);
    // Cleanup needs neither the Node nor CSIDrivers.
    let blind =
        Fixture::new().mount(Mounted).released(POD).with(|s| (s.node, s.drivers_known) = (false, false));
    assert_eq!(blind.decide(), unpublish());
}

/// kubernetes.md 1.8 "Order": unmounts before mounts; one pod's failure does not affect another.
#[test]
fn pods_sharing_a_volume_do_not_block_each_other() {
    let fixture = || Fixture::new().wanted().verified().device(Device::Staged);
    check([
        (
            "unpublish first",
            fixture().mount_of("u0", Progress::Mounted, false).released("u0"),
            Step::Unpublish { pod: "u0".into() },
        ),
        (
            "a failing unpublish does not block",
            fixture().mount_of("u0", Progress::Mounted, false).released("u0").failed(
                Operation::Unpublish,
                "u0",
                5,
            ),
            publish(),
        ),
        (
            "a mount of an unknown pod does not block",
            fixture().mount_of("u0", Progress::Uncertain, true).with(|s| s.pods_known = false),
            publish(),
        ),
        (
            "a second pod publishes the staged volume",
            fixture().mount(Progress::Mounted).wanted_by("u2", json!({}), json!({})),
            Step::Publish { pod: "u2".into() },
        ),
    ]);
}

/// kubernetes.md 1.8 "Mount order", "Inline", "SELinux": affinity, ReadWriteOncePod, lifecycle modes, labels.
#[test]
fn failed_preconditions_refuse_the_mount() {
    let refused = |reason| Step::Refuse { pod: POD.into(), operation: Operation::Publish, reason };
    let zone = |value: &str| {
        json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]},
        ]}}})
    };
    let disk = |s: &mut Fixture| s.labels.insert("zone", "a");
    let once = json!({"accessModes": ["ReadWriteOncePod"]});
    let both = json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]});
    let by = |spec: Value| Fixture::new().wanted_by(POD, spec, json!({})).verified();
    let lifecycle = |mode, hint| refused(Refusal::Lifecycle { mode, driver: "d".into(), hint });
    let other = |s: Fixture| s.mount_of("u2", Progress::Uncertain, false);
    check([
        ("matching affinity", by(zone("a")).with(disk), stage()),
        ("other affinity", by(zone("b")).with(disk), refused(Refusal::Affinity)),
        ("ReadWriteOncePod, not mounted", by(once.clone()), stage()),
        (
            "ReadWriteOncePod, mounted or maybe mounted by another pod",
            other(by(once.clone())),
            refused(Refusal::OncePod),
        ),
        ("ReadWriteOncePod and another mode", other(by(both)), stage()),
        (
            "ReadWriteOncePod, mounted by the pod itself",
            by(once).device(Device::Staged).mount(Progress::Published),
            ready(),
        ),
        (
            "inline, no CSIDriver object",
            Fixture::new().inline(),
            lifecycle("Ephemeral", " (no CSIDriver object)"),
        ),
        (
            "inline, not in volumeLifecycleModes",
            Fixture::new().inline().driver(json!({})),
            lifecycle("Ephemeral", " (its CSIDriver object does not list it in volumeLifecycleModes)"),
        ),
        (
            "persistent, driver is ephemeral only",
            Fixture::new().wanted().driver(json!({"volumeLifecycleModes": ["Ephemeral"]})),
            lifecycle("Persistent", " (its CSIDriver object does not list it in volumeLifecycleModes)"),
        ),
    ]);
    let labelled = |has: Option<&str>, elsewhere: bool| {
        let mut fixture = Fixture::new().wanted().verified().device(Device::Staged);
        fixture.volume.se_linux = has.map(Into::into);
        fixture.volume.desired.get_mut(POD).unwrap().se_linux = Some("b".into());
        if elsewhere { other(fixture) } else { fixture }
    };
    let label = refused(Refusal::Label { has: "a".into(), wants: "b".into() });
    check([
        ("another label", labelled(Some("a"), true), label),
        ("the same label", labelled(Some("b"), true), publish()),
        ("another label, not mounted elsewhere", labelled(Some("a"), false), Step::Unstage),
        ("no label, not mounted elsewhere", labelled(None, false), Step::Unstage),
        ("the same label, not mounted elsewhere", labelled(Some("b"), false), publish()),
        ("unstaged: stage with the new label", labelled(None, false).device(Device::None), stage()),
        (
            "another label, mounted by the pod itself",
            labelled(Some("a"), false).mount(Progress::Uncertain),
            publish(),
        ),
        (
            "another label, and its pods are not known yet",
            labelled(Some("a"), false)
                .device(Device::Uncertain { found: true })
                .with(|s| s.pods_known = false),
            rest(Waiting::Pods),
        ),
        ("unstage failed", labelled(Some("a"), false).failed(Operation::Unstage, "", 4), paused(4)),
    ]);
}

/// kubernetes.md 1.8 "Republish".
#[test]
fn republish_is_due_after_the_resync_interval() {
    let since = |published: Option<i64>| {
        let mut fixture = Fixture::new().wanted().verified().device(Device::Staged).mount(Progress::Mounted);
        fixture.volume.mounts.get_mut(POD).unwrap().published = published.map(|ago| Monotonic(NOW.0 - ago));
        fixture.driver(json!({"requiresRepublish": true}))
    };
    let fixture = |published| since(Some(published));
    let until = |seconds| Step::Idle { until: Some(Duration::from_secs(seconds)), waiting: None };
    check([
        ("not yet", fixture(20_000), until(40)),
        ("now", fixture(60_000), publish()),
        ("overdue", fixture(600_000), publish()),
        ("published by an earlier process", since(None), publish()),
        (
            "attached again: its attachment is read first",
            fixture(60_000).with(|s| s.volume.context = None),
            Step::Verify,
        ),
        (
            "detached: wait until attached",
            fixture(60_000).with(|s| s.attached = false),
            rest(Waiting::Attach),
        ),
        ("failed", fixture(60_000).failed(Operation::Publish, POD, 5), paused(5)),
        ("only if the driver requires it", fixture(600_000).driver(json!({})), idle()),
        ("never for a block volume", fixture(600_000).with(|s| s.volume.mode = Mode::Block), idle()),
        (
            "not without the driver",
            fixture(600_000).with(|s| s.capabilities = None),
            Step::Idle { until: Some(Duration::ZERO), waiting: None },
        ),
    ]);
}

/// kubernetes.md 1.4 "Node expansion", "Mount fails": during the mount, and online.
#[test]
fn pending_resize_expands_before_and_after_mount() {
    let gib = |n: i64| Quantity::from_bytes(n << 30);
    let growing = |progress, state: &str| {
        let mut fixture = Fixture::new()
            .wanted_by(POD, json!({"capacity": {"storage": "2Gi"}}), json!({}))
            .verified()
            .device(Device::Staged)
            .mount(progress);
        let claim = json!({"status": {
            "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": state},
        }});
        let desired = fixture.volume.desired.get_mut(POD).unwrap();
        if let Source::Persistent { claim: known, .. } = &mut desired.source {
            *known = Arc::new(serde_json::from_value(claim).unwrap());
        }
        fixture
    };
    let pending = |progress| growing(progress, "NodeResizePending");
    let expand = || Step::Expand { pod: POD.into() };
    let reading =
        |fixture: Fixture| fixture.with(|s| s.volume.desired.get_mut(POD).unwrap().read_only = true);
    use Progress::{Mounted, Published, Uncertain};
    check([
        ("before it is ready", pending(Published), expand()),
        ("not before it is published", pending(Uncertain), publish()),
        ("while mounted", pending(Mounted), expand()),
        ("already done", pending(Mounted).with(|s| s.volume.size = Some(gib(2))), idle()),
        ("a failure delays the mount", pending(Published).failed(Operation::Expand, POD, 5), paused(5)),
        (
            "a failure does not affect a mounted volume",
            pending(Mounted).failed(Operation::Expand, POD, 5),
            paused(5),
        ),
        (
            "not retried on this node",
            pending(Published)
                .with(|s| s.volume.expansion = Expansion { in_use: true, ..Expansion::default() }),
            ready(),
        ),
        ("infeasible: the mount continues", growing(Published, "NodeResizeInfeasible"), ready()),
        ("not without the driver", pending(Mounted).with(|s| s.capabilities = None), idle()),
        ("read-only", reading(pending(Published)), expand()),
        // The volume's known size applies to all pods.
        (
            "read-only, and another pod writes",
            reading(pending(Published)).wanted_by("u2", json!({}), json!({})),
            ready(),
        ),
    ]);
}
