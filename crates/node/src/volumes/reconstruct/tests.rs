use std::path::Path;

use serde_json::json;

use super::*;

fn data(handle: &str, spec: Option<&str>) -> Data {
    Data {
        driver: "d".into(),
        handle: handle.into(),
        spec: spec.map(Into::into),
        lifecycle: spec.map(|_| VolumeLifecycleMode::Persistent),
        se_linux: None,
    }
}

fn truncated() -> Option<Result<Data, Unreadable>> {
    Some(Err(Unreadable::Truncated { line: 1, column: 9 }))
}

fn content(minor: u32) -> Option<Content> {
    Some(((7, minor), PathBuf::from("/")))
}

fn root() -> Root {
    Root::new("/k")
}

fn published(record: Option<Result<Data, Unreadable>>, mounted: Option<Content>) -> PublishedDir {
    PublishedDir {
        pod: "u1".into(),
        spec: "pv1".into(),
        mode: Mode::Filesystem,
        path: root().publish("u1", "pv1").join("mount"),
        record,
        mounted,
    }
}

fn stage(record: Option<Result<Data, Unreadable>>, mounted: Option<Content>) -> StagedDir {
    StagedDir {
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

fn identify(
    mounts: Vec<PublishedDir>,
    stages: Vec<StagedDir>,
    persistent: Option<&[PersistentVolume]>,
) -> Found {
    let readable =
        ReadableVolumes { volumes: persistent.unwrap_or_default().to_vec(), all: persistent.is_some() };
    Scan { pods: Vec::new(), mounts, stages }.identify(&root(), &readable, true)
}

/// kubernetes.md 1.8 "Found at start": mount, device and attachment are uncertain, whether or not something is mounted.
#[test]
fn records_alone_make_a_volume_uncertain() {
    for mounted in [content(0), None] {
        let mounts = vec![published(Some(Ok(data("h1", Some("pv1")))), mounted.clone())];
        let found = identify(mounts, vec![stage(Some(Ok(data("h1", None))), mounted)], None);
        let volume = &found.volumes[&names::unique("d", "h1")];
        assert_eq!((volume.spec.as_str(), volume.device), ("pv1", Device::Uncertain { found: true }));
        let mount = &volume.mounts["u1"];
        assert!(mount.found && mount.progress == Progress::Uncertain);
        assert_eq!(volume.staged_at, None);
        assert!(found.leftovers.is_empty() && found.unidentified.is_empty() && volume.context.is_none());
    }
}

/// kubernetes.md 1.8 "Found at start"; kubernetes#85476: a volume that was unpublished but not unstaged is found;
/// upstream leaks it.
#[test]
fn staged_volume_without_pod_is_found() {
    let scan = Scan { stages: vec![stage(Some(Ok(data("h1", None))), content(0))], ..Scan::default() };
    let found = scan.identify(&root(), &ReadableVolumes::default(), true);
    let volume = &found.volumes[&names::unique("d", "h1")];
    assert_eq!(volume.device, Device::Uncertain { found: true });
    assert!(
        volume.mounts.is_empty() && volume.staging(&root()) == root().stage("d", "h1").join("globalmount")
    );
    assert!(scan.identify(&root(), &ReadableVolumes::default(), false).volumes.is_empty());
    // The path of kubelet before 1.24.
    let path = PathBuf::from("/k/plugins/kubernetes.io/csi/pv/pv1/globalmount");
    let old =
        StagedDir { owner: "pv".into(), name: "pv1".into(), path: path.clone(), ..scan.stages[0].clone() };
    let found = identify(vec![], vec![old], None);
    assert_eq!(found.volumes[&names::unique("d", "h1")].staging(&root()), path);
}

/// kubernetes.md 1.8 "Found without a record"; kubernetes#85280: a published volume's record is missing or truncated.
#[test]
fn published_volume_without_record_is_identified_by_other_evidence() {
    let unique = names::unique("d", "h1");
    let staged = || vec![stage(Some(Ok(data("h1", None))), content(0))];
    let all = persistent();
    let none: &[PersistentVolume] = &[];
    for (name, record, mounted, stages, persistent, expected) in [
        ("staged volume with the same mount", None, content(0), staged(), None, "identified"),
        (
            "truncated, staged volume with the same mount",
            truncated(),
            content(0),
            staged(),
            None,
            "identified",
        ),
        ("staged volume with another mount", None, content(1), staged(), None, "unidentified"),
        ("its PersistentVolume", None, content(1), vec![], Some(&all[..]), "identified"),
        (
            "truncated and not mounted, its PersistentVolume: call the driver",
            truncated(),
            None,
            vec![],
            Some(&all[..]),
            "identified",
        ),
        ("no evidence", truncated(), content(1), vec![], Some(none), "unidentified"),
        ("no evidence yet", truncated(), None, vec![], None, "unidentified"),
        ("no record and not mounted: gone", None, None, vec![], None, "leftover"),
        (
            "no record and not mounted, even with a PersistentVolume",
            None,
            None,
            vec![],
            Some(&all[..]),
            "leftover",
        ),
        ("truncated, not mounted, no PersistentVolume", truncated(), None, vec![], Some(none), "leftover"),
    ] {
        let found = identify(vec![published(record, mounted)], stages, persistent);
        let identified = found.volumes.get(&unique).is_some_and(|volume| volume.mounts.contains_key("u1"));
        let verdict = match (identified, found.unidentified.len(), found.leftovers.len()) {
            (true, 0, 0) => "identified",
            (false, 1, 0) => "unidentified",
            (false, 0, 1) => "leftover",
            _ => "mixed",
        };
        assert_eq!(verdict, expected, "{name}: {found:?}");
    }
}

/// kubernetes.md 1.8 "Found without a record"; kubernetes#85280: a staged volume's record is missing or truncated. Its
/// path contains the driver and the hash of its handle.
#[test]
fn staged_volume_without_record_is_identified_by_its_path() {
    let published_volume = || vec![published(Some(Ok(data("h1", Some("pv1")))), content(0))];
    let other = || vec![published(Some(Ok(data("h2", Some("pv2")))), content(0))];
    let all = persistent();
    let none: &[PersistentVolume] = &[];
    for (name, record, mounted, mounts, persistent, expected) in [
        ("a published volume has the handle", None, content(0), published_volume(), None, "identified"),
        (
            "truncated, a published volume has the handle",
            truncated(),
            content(0),
            published_volume(),
            None,
            "identified",
        ),
        ("a PersistentVolume has the handle", truncated(), content(0), vec![], Some(&all[..]), "identified"),
        (
            "truncated and not mounted: call the driver",
            truncated(),
            None,
            vec![],
            Some(&all[..]),
            "identified",
        ),
        ("another published volume", None, content(0), other(), None, "unidentified"),
        ("mounted, no PersistentVolume", truncated(), content(0), vec![], Some(none), "unidentified"),
        ("no evidence yet", truncated(), None, vec![], None, "unidentified"),
        ("no record and not mounted: gone", None, None, vec![], None, "leftover"),
        ("truncated, not mounted, no PersistentVolume", truncated(), None, vec![], Some(none), "leftover"),
    ] {
        let found = identify(mounts, vec![stage(record, mounted)], persistent);
        let volume = found.volumes.get(&names::unique("d", "h1"));
        let identified = volume.is_some_and(|volume| volume.device == Device::Uncertain { found: true });
        let verdict = match (identified, found.unidentified.len(), found.leftovers.len()) {
            (true, 0, 0) => "identified",
            (false, 1, 0) => "unidentified",
            (false, 0, 1) => "leftover",
            _ => "mixed",
        };
        assert_eq!(verdict, expected, "{name}: {found:?}");
        if let [unidentified] = &found.unidentified[..] {
            assert!(unidentified.reason.contains("vol_data.json"), "{}", unidentified.reason);
        }
    }
}

/// kubernetes.md 1.8 "Found at start", "Device paths": block volumes, whose record is in a directory of its own.
#[test]
fn block_volumes_are_found() {
    let record = Some(Ok(Data { lifecycle: None, ..data("h1", Some("pv1")) }));
    let published = PublishedDir {
        mode: Mode::Block,
        path: root().device_publish("pv1", "u1"),
        ..published(record.clone(), content(0))
    };
    let stage = StagedDir {
        owner: "pv1".into(),
        name: "pv1".into(),
        mode: Mode::Block,
        path: root().device_stage("pv1"),
        ..stage(record, None)
    };
    let found = identify(vec![published], vec![stage], None);
    let volume = &found.volumes[&names::unique("d", "h1")];
    assert_eq!((volume.mode, volume.device), (Mode::Block, Device::Uncertain { found: true }));
    assert_eq!(volume.target(&root(), "u1"), root().device_publish("pv1", "u1"));
    assert_eq!(volume.staging(&root()), Path::new("/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv1"));
    assert!(!volume.ephemeral);
}

/// A staged block volume without its record is identified by its PersistentVolume's name only.
#[test]
fn block_volume_without_record_is_identified_by_name() {
    for (name, found) in [("pv1", true), ("pv2", false)] {
        let stage = StagedDir {
            owner: name.into(),
            name: name.into(),
            mode: Mode::Block,
            path: root().device_stage(name),
            ..stage(None, content(0))
        };
        let found_now = identify(vec![], vec![stage], Some(&persistent()));
        let identified = found_now.volumes.contains_key(&names::unique("d", "h1"));
        assert_eq!(
            (identified, found_now.unidentified.len()),
            (found, usize::from(!found)),
            "{name}: {found_now:?}"
        );
    }
}

/// PersistentVolumes are read only where records are missing.
#[test]
fn persistent_volumes_are_needed_only_for_missing_records() {
    let whole = || Some(Ok(data("h1", Some("pv1"))));
    for (mounts, stages, gaps) in [
        (vec![], vec![], false),
        (vec![published(whole(), None)], vec![stage(whole(), None)], false),
        (vec![published(truncated(), None)], vec![stage(whole(), None)], true),
        (vec![published(whole(), None)], vec![stage(None, None)], true),
    ] {
        let scan = Scan { pods: Vec::new(), mounts, stages };
        assert_eq!(scan.has_gaps(), gaps, "{scan:?}");
    }
}

/// kubernetes.md 1.8 "Inline", "Found at start": never staged and never attached.
#[test]
fn inline_volume_is_found_unstaged() {
    let record = Data { lifecycle: Some(VolumeLifecycleMode::Ephemeral), ..data("csi-1", Some("scratch")) };
    let published = PublishedDir { spec: "scratch".into(), ..published(Some(Ok(record)), content(0)) };
    let found = identify(vec![published], vec![], None);
    let volume = &found.volumes[&names::unique("d", "csi-1")];
    assert!(volume.ephemeral && volume.device == Device::None);
}

/// A link whose device is gone: we crashed after NodeUnpublishVolume. If not found, the pod's directory would never
/// be removed.
#[test]
fn dangling_device_link_is_found_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::new(dir.path());
    let disk = BlockingDisk { kernel: &wharf_linux::Linux::new(), root: &root };
    let (link, target) = (disk.device_link("pv1", "u1"), root.device_publish("pv1", "u1"));
    for record in [None, Some(data("h1", Some("pv1")))] {
        disk.link(&link, &target).unwrap();
        if let Some(data) = &record {
            disk.write_record(&root.device_data("pv1"), &data.published("n"), None).unwrap();
        }
        let found = scan(&disk).unwrap().identify(&root, &ReadableVolumes::default(), true);
        assert!(found.unidentified.is_empty(), "{found:?}");
        match record {
            None => assert_eq!(found.leftovers, std::slice::from_ref(&target)),
            Some(_) => assert!(found.volumes[&names::unique("d", "h1")].mounts.contains_key("u1")),
        }
        disk.remove_leftovers(&target).unwrap();
        assert!(link.symlink_metadata().is_err(), "{}", link.display());
    }
    disk.remove_leftovers(&root.device_stage("pv1")).unwrap();
    assert_eq!(disk.names(&root.devices().join("publish")).unwrap(), [""; 0]);
}

/// N-L6: a volume that was staged at another path is unstaged there, also if it was identified only later.
#[test]
fn adopted_stage_keeps_its_path() {
    let empty = || Volume::new("d", "h", "pv", Mode::Filesystem, false);
    let found =
        Volume { device: Device::Uncertain { found: true }, staged_at: Some("/elsewhere".into()), ..empty() };
    let mut known = empty();
    known.adopt_stage(&found);
    assert_eq!((known.device, known.staged_at.clone()), (found.device, found.staged_at.clone()));
    let mut staged = Volume { device: Device::Uncertain { found: true }, ..empty() };
    staged.adopt_stage(&found);
    assert_eq!(staged.staged_at, None);
}
