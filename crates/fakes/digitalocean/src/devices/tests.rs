//! Device reconciliation as tables.

use super::*;
use crate::settings::HalfAttached;
use crate::state::{Attachment, Volume};

fn volume(id: &str, attached: Option<Attachment>) -> Volume {
    Volume {
        id: id.into(),
        name: format!("pvc-{id}"),
        region: "nyc3".into(),
        size_gigabytes: 2,
        description: String::new(),
        filesystem_type: String::new(),
        filesystem_label: String::new(),
        tags: Vec::new(),
        created: 0,
        attached,
        snapshotted: None,
    }
}

#[test]
fn device_appears_after_the_delay() {
    let mut state = State::default();
    state.volumes.insert("a".into(), volume("a", Some(Attachment { droplet: 1, since: 1_000 })));
    state.volumes.insert("b".into(), volume("b", None));
    let plain = FakeSettings { device_delay_ms: 500, ..FakeSettings::default() };
    let half = HalfAttached { shape: HalfAttachedShape::Short, for_ms: 200 };
    let slow = FakeSettings { half_attached: Some(half), ..plain.clone() };
    let (new, old) = (HashSet::new(), HashSet::from([("a".to_owned(), 1, 1_000)]));
    let table = [
        (&plain, &new, 1_000, None, Some(1_500)),
        (&plain, &new, 1_499, None, Some(1_500)),
        (&plain, &new, 1_500, Some(None), None),
        (&slow, &new, 1_499, None, Some(1_500)),
        (&slow, &new, 1_500, Some(Some(HalfAttachedShape::Short)), Some(1_700)),
        (&slow, &new, 1_700, Some(None), None),
        // A whole device stays whole when the settings change.
        (&slow, &old, 1_000, Some(None), None),
    ];
    for (i, (settings, whole, now, expected, next)) in table.into_iter().enumerate() {
        let (seen, found) = wanted(&state, settings, whole, now);
        assert_eq!(seen.first().map(|want| want.half), expected, "row {i}");
        assert!(seen.iter().all(|want| want.attached.0 == "a" && want.bytes == 2 * GIB), "row {i}");
        assert_eq!(found, next, "row {i}");
    }
}

fn want(half: Option<HalfAttachedShape>) -> DesiredDevice {
    DesiredDevice { attached: ("a".into(), 1, 0), name: "pvc-a".into(), bytes: 2 * GIB, half }
}

fn looped(image: Image, bytes: u64) -> Loop {
    Loop { path: PathBuf::from("/dev/loop7"), image, bytes }
}

/// Applies all steps to the model and returns them.
fn run(wanted: &[DesiredDevice], known: &[&str], present: &mut ActualDevices) -> Vec<Step> {
    let known = known.iter().map(|id| id.to_string()).collect();
    let mut taken = Vec::new();
    loop {
        let steps = steps(wanted, &known, present);
        if steps.is_empty() {
            return taken;
        }
        for step in steps {
            assert!(taken.len() < 50, "{taken:?}");
            match step.clone() {
                Step::Unlink { droplet, name } => _ = present.links.remove(&(droplet, name)),
                Step::Release(path) => present.loops.retain(|found| found.path != path),
                Step::Remove(image) => {
                    assert!(!present.loops.iter().any(|found| found.image == image), "in use: {image:?}");
                    present.images.remove(&image);
                }
                Step::SetSize(image, bytes) => _ = present.images.insert(image, bytes),
                Step::Attach(image) => {
                    let bytes = present.images[&image];
                    assert!(bytes > 0);
                    let path = PathBuf::from(format!("/dev/loop{}", 7 + present.loops.len()));
                    present.loops.push(Loop { path, image, bytes });
                }
                Step::Refresh(path) => {
                    for found in present.loops.iter_mut().filter(|found| found.path == path) {
                        found.bytes = present.images[&found.image];
                    }
                }
                Step::Link { droplet, name, target } => {
                    present.links.insert((droplet, name), target.unwrap_or_else(|| "/nowhere".into()));
                }
            }
            taken.push(step);
        }
    }
}

#[test]
fn device_is_created_resized_and_removed() {
    let of = || Image::Of("a".into());
    let mut present = ActualDevices::default();
    let link = (1, "scsi-0DO_Volume_pvc-a".to_owned());
    run(&[want(None)], &["a"], &mut present);
    assert_eq!(present.loops, [looped(of(), 2 * GIB)]);
    assert_eq!(present.links, BTreeMap::from([(link.clone(), PathBuf::from("/dev/loop7"))]));
    // A resize keeps the same device.
    let grown = DesiredDevice { bytes: 3 * GIB, ..want(None) };
    let steps = run(&[grown], &["a"], &mut present);
    assert_eq!(steps, [Step::SetSize(of(), 3 * GIB), Step::Refresh("/dev/loop7".into())]);
    // The link is removed before the device; the image stays.
    let steps = run(&[], &["a"], &mut present);
    let unlink = Step::Unlink { droplet: link.0, name: link.1 };
    assert_eq!(steps, [unlink, Step::Release("/dev/loop7".into())]);
    assert_eq!(present.images.len(), 1);
    // An earlier process may have left the device of a deleted volume.
    present.loops.push(looped(of(), 3 * GIB));
    let steps = run(&[], &[], &mut present);
    assert_eq!(steps, [Step::Release("/dev/loop7".into()), Step::Remove(of())]);
}

#[test]
fn partially_attached_device_is_completed() {
    for (half, bytes) in [
        (HalfAttachedShape::Dangling, None),
        (HalfAttachedShape::Empty, Some(0)),
        (HalfAttachedShape::Short, Some(GIB)),
    ] {
        let mut present = ActualDevices::default();
        run(&[want(Some(half))], &["a"], &mut present);
        assert_eq!(present.loops.first().map(|found| found.bytes), bytes, "{half:?}");
        assert_eq!(present.links.len(), 1, "{half:?}");
        assert!(
            !present.images.contains_key(&Image::Of("a".into())),
            "{half:?}: its own bytes are not touched"
        );
        run(&[want(None)], &["a"], &mut present);
        assert_eq!(present.images, BTreeMap::from([(Image::Of("a".into()), 2 * GIB)]), "{half:?}");
        let whole: Vec<_> =
            present.loops.iter().filter(|found| found.image == Image::Of("a".into())).collect();
        assert_eq!((present.loops.len(), whole.len()), (1, 1), "{half:?}");
        assert_eq!(present.links.values().next(), Some(&whole[0].path), "{half:?}");
    }
}

#[test]
fn volume_moves_to_another_droplet() {
    let mut present = ActualDevices::default();
    run(&[want(None)], &["a"], &mut present);
    let moved = DesiredDevice { attached: ("a".into(), 2, 5), ..want(None) };
    run(&[moved], &["a"], &mut present);
    assert_eq!(present.links.keys().map(|(droplet, _)| *droplet).collect::<Vec<_>>(), [2]);
}
