use std::path::Path;

use serde_json::json;

use super::*;

fn data(handle: &str, spec: Option<&str>) -> Data {
    Data {
        driver: "d".into(),
        handle: handle.into(),
        spec: spec.map(Into::into),
        lifecycle: spec.map(|_| LifecycleMode::Persistent),
        se_linux: None,
    }
}

fn torn() -> Option<Result<Data, Unreadable>> {
    Some(Err(Unreadable::Torn { line: 1, column: 9 }))
}

fn content(minor: u32) -> Option<Content> {
    Some(((7, minor), PathBuf::from("/")))
}

fn root() -> Root {
    Root::new("/k")
}

fn share(record: Option<Result<Data, Unreadable>>, mounted: Option<Content>) -> Share {
    Share {
        pod: "u1".into(),
        spec: "pv1".into(),
        mode: Mode::Filesystem,
        path: root().publish("u1", "pv1").join("mount"),
        record,
        mounted,
    }
}

fn stage(record: Option<Result<Data, Unreadable>>, mounted: Option<Content>) -> Stage {
    Stage {
        owner: "d".into(),
        name: hash("h1"),
        mode: Mode::Filesystem,
        path: root().stage("d", "h1").join("globalmount"),
        record,
        mounted,
    }
}

fn persistent() -> Vec<PersistentVolume> {
    let volume = json!({"metadata": {"name": "pv1"}, "spec": {"csi": {"driver": "d", "volumeHandle": "h1"}}});
    vec![serde_json::from_value(volume).unwrap()]
}

fn judge(shares: Vec<Share>, stages: Vec<Stage>, persistent: Option<&[PersistentVolume]>) -> Found {
    let readable = Readable { volumes: persistent.unwrap_or_default().to_vec(), all: persistent.is_some() };
    Scan { pods: Vec::new(), shares, stages }.judge(&root(), &readable, true)
}

/// kubernetes.md 1.8 "Found": mount, device and attachment are uncertain, whether or not something is mounted.
#[test]
fn records_are_believed() {
    for mounted in [content(0), None] {
        let shares = vec![share(Some(Ok(data("h1", Some("pv1")))), mounted.clone())];
        let found = judge(shares, vec![stage(Some(Ok(data("h1", None))), mounted)], None);
        let volume = &found.volumes[&names::unique("d", "h1")];
        assert_eq!((volume.spec.as_str(), volume.device), ("pv1", Device::Uncertain { found: true }));
        let mount = &volume.mounts["u1"];
        assert!(mount.found && mount.progress == Progress::Uncertain);
        assert_eq!(volume.staged_at, None);
        assert!(found.leftovers.is_empty() && found.stuck.is_empty() && volume.context.is_none());
    }
}

/// kubernetes.md 1.8 "Found"; kubernetes#85476: a volume that was unpublished and not unstaged is found; upstream's
/// way is to forget it.
#[test]
fn what_is_staged_alone_is_found() {
    let scan = Scan { stages: vec![stage(Some(Ok(data("h1", None))), content(0))], ..Scan::default() };
    let found = scan.judge(&root(), &Readable::default(), true);
    let volume = &found.volumes[&names::unique("d", "h1")];
    assert_eq!(volume.device, Device::Uncertain { found: true });
    assert!(
        volume.mounts.is_empty() && volume.staging(&root()) == root().stage("d", "h1").join("globalmount")
    );
    assert!(scan.judge(&root(), &Readable::default(), false).volumes.is_empty());
    // As kubelet before 1.24 had it.
    let path = PathBuf::from("/k/plugins/kubernetes.io/csi/pv/pv1/globalmount");
    let old = Stage { owner: "pv".into(), name: "pv1".into(), path: path.clone(), ..scan.stages[0].clone() };
    let found = judge(vec![], vec![old], None);
    assert_eq!(found.volumes[&names::unique("d", "h1")].staging(&root()), path);
}

/// kubernetes.md 1.8 "Found without a record"; kubernetes#85280: a share's record is missing or torn.
#[test]
fn a_share_without_its_record() {
    let unique = names::unique("d", "h1");
    let whole = || vec![stage(Some(Ok(data("h1", None))), content(0))];
    let all = persistent();
    let none: &[PersistentVolume] = &[];
    for (name, record, mounted, stages, persistent, expected) in [
        ("its stage is mounted from the same place", None, content(0), whole(), None, "is"),
        ("torn, its stage tells", torn(), content(0), whole(), None, "is"),
        ("another mount is not its stage", None, content(1), whole(), None, "stuck"),
        ("its PersistentVolume tells", None, content(1), vec![], Some(&all[..]), "is"),
        (
            "torn and not mounted, its PersistentVolume tells: the driver is asked",
            torn(),
            None,
            vec![],
            Some(&all[..]),
            "is",
        ),
        ("nobody can tell", torn(), content(1), vec![], Some(none), "stuck"),
        ("nobody can tell yet", torn(), None, vec![], None, "stuck"),
        ("no record and not mounted: it is gone", None, None, vec![], None, "leftover"),
        (
            "no record and not mounted, whatever PersistentVolumes there are",
            None,
            None,
            vec![],
            Some(&all[..]),
            "leftover",
        ),
        ("torn, not mounted, and nobody's", torn(), None, vec![], Some(none), "leftover"),
    ] {
        let found = judge(vec![share(record, mounted)], stages, persistent);
        let is = found.volumes.get(&unique).is_some_and(|volume| volume.mounts.contains_key("u1"));
        let seen = match (is, found.stuck.len(), found.leftovers.len()) {
            (true, 0, 0) => "is",
            (false, 1, 0) => "stuck",
            (false, 0, 1) => "leftover",
            _ => "a mixture",
        };
        assert_eq!(seen, expected, "{name}: {found:?}");
    }
}

/// kubernetes.md 1.8 "Found without a record"; kubernetes#85280: a staged volume's record is missing or torn. Its
/// driver and the hash of its handle are in its path.
#[test]
fn a_stage_without_its_record() {
    let whole = || vec![share(Some(Ok(data("h1", Some("pv1")))), content(0))];
    let other = || vec![share(Some(Ok(data("h2", Some("pv2")))), content(0))];
    let all = persistent();
    let none: &[PersistentVolume] = &[];
    for (name, record, mounted, shares, persistent, expected) in [
        ("a share has the handle", None, content(0), whole(), None, "is"),
        ("torn, a share has the handle", torn(), content(0), whole(), None, "is"),
        ("a PersistentVolume has the handle", torn(), content(0), vec![], Some(&all[..]), "is"),
        ("torn and not mounted: the driver is asked", torn(), None, vec![], Some(&all[..]), "is"),
        ("another volume's share", None, content(0), other(), None, "stuck"),
        ("mounted, and nobody's", torn(), content(0), vec![], Some(none), "stuck"),
        ("nobody can tell yet", torn(), None, vec![], None, "stuck"),
        ("no record and not mounted: it is gone", None, None, vec![], None, "leftover"),
        ("torn, not mounted, and nobody's", torn(), None, vec![], Some(none), "leftover"),
    ] {
        let found = judge(shares, vec![stage(record, mounted)], persistent);
        let volume = found.volumes.get(&names::unique("d", "h1"));
        let is = volume.is_some_and(|volume| volume.device == Device::Uncertain { found: true });
        let seen = match (is, found.stuck.len(), found.leftovers.len()) {
            (true, 0, 0) => "is",
            (false, 1, 0) => "stuck",
            (false, 0, 1) => "leftover",
            _ => "a mixture",
        };
        assert_eq!(seen, expected, "{name}: {found:?}");
        if let [stuck] = &found.stuck[..] {
            assert!(stuck.why.contains("vol_data.json"), "{}", stuck.why);
        }
    }
}

/// kubernetes.md 1.8 "Found", "Device paths": devices, whose record is beside neither stage nor share.
#[test]
fn devices() {
    let record = Some(Ok(Data { lifecycle: None, ..data("h1", Some("pv1")) }));
    let share = Share {
        mode: Mode::Block,
        path: root().device_publish("pv1", "u1"),
        ..share(record.clone(), content(0))
    };
    let stage = Stage {
        owner: "pv1".into(),
        name: "pv1".into(),
        mode: Mode::Block,
        path: root().device_stage("pv1"),
        ..stage(record, None)
    };
    let found = judge(vec![share], vec![stage], None);
    let volume = &found.volumes[&names::unique("d", "h1")];
    assert_eq!((volume.mode, volume.device), (Mode::Block, Device::Uncertain { found: true }));
    assert_eq!(volume.target(&root(), "u1"), root().device_publish("pv1", "u1"));
    assert_eq!(volume.staging(&root()), Path::new("/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1"));
    assert!(!volume.ephemeral);
}

/// A device's stage without its record: its PersistentVolume has its name, and no other is asked.
#[test]
fn a_device_without_its_record() {
    for (name, found) in [("pv1", true), ("pv2", false)] {
        let stage = Stage {
            owner: name.into(),
            name: name.into(),
            mode: Mode::Block,
            path: root().device_stage(name),
            ..stage(None, content(0))
        };
        let found_now = judge(vec![], vec![stage], Some(&persistent()));
        let is = found_now.volumes.contains_key(&names::unique("d", "h1"));
        assert_eq!((is, found_now.stuck.len()), (found, usize::from(!found)), "{name}: {found_now:?}");
    }
}

/// PersistentVolumes are read only where records are missing.
#[test]
fn gaps() {
    let whole = || Some(Ok(data("h1", Some("pv1"))));
    for (shares, stages, gaps) in [
        (vec![], vec![], false),
        (vec![share(whole(), None)], vec![stage(whole(), None)], false),
        (vec![share(torn(), None)], vec![stage(whole(), None)], true),
        (vec![share(whole(), None)], vec![stage(None, None)], true),
    ] {
        let scan = Scan { pods: Vec::new(), shares, stages };
        assert_eq!(scan.has_gaps(), gaps, "{scan:?}");
    }
}

/// kubernetes.md 1.8 "Inline", "Found": it was never staged, and is not attached.
#[test]
fn inline_volumes() {
    let record = Data { lifecycle: Some(LifecycleMode::Ephemeral), ..data("csi-1", Some("scratch")) };
    let share = Share { spec: "scratch".into(), ..share(Some(Ok(record)), content(0)) };
    let found = judge(vec![share], vec![], None);
    let volume = &found.volumes[&names::unique("d", "csi-1")];
    assert!(volume.ephemeral && volume.device == Device::None);
}

/// A link whose device is gone: the driver had unpublished it when we died. Without it the pod's directory would stay for ever.
#[test]
fn a_device_of_which_only_the_link_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::new(dir.path());
    let here = Here { kernel: &wharf_linux::Linux::new(), root: &root };
    let (link, target) = (here.device_link("pv1", "u1"), root.device_publish("pv1", "u1"));
    for record in [None, Some(data("h1", Some("pv1")))] {
        here.link(&link, &target).unwrap();
        if let Some(data) = &record {
            here.record(&root.device_data("pv1"), &data.published("n"), None).unwrap();
        }
        let found = scan(&here).unwrap().judge(&root, &Readable::default(), true);
        assert!(found.stuck.is_empty(), "{found:?}");
        match record {
            None => assert_eq!(found.leftovers, std::slice::from_ref(&target)),
            Some(_) => assert!(found.volumes[&names::unique("d", "h1")].mounts.contains_key("u1")),
        }
        here.sweep(&target).unwrap();
        assert!(link.symlink_metadata().is_err(), "{}", link.display());
    }
    here.sweep(&root.device_stage("pv1")).unwrap();
    assert_eq!(here.names(&root.devices().join("publish")).unwrap(), [""; 0]);
}
