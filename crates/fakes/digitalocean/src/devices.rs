//! Volumes as real devices: the desired devices on this machine and the steps towards them. Pure; `act.rs` performs the
//! steps.
//!
//! A volume's data is a sparse file. An attached volume is a loop device, with the link that udev would create on the
//! droplet. Reconciliation repeats until no step is left, so leftovers of an earlier process are adopted or removed.

mod act;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;

use crate::settings::{FakeSettings, HalfAttachedShape};
use crate::state::State;
use crate::time::Millis;

pub(crate) use act::Devices;
pub use act::DevicesError;

const GIB: u64 = 1 << 30;

/// The name of a volume's link on a droplet.
pub(crate) fn link_name(volume: &str) -> String {
    format!("{PREFIX}{volume}")
}

const PREFIX: &str = "scsi-0DO_Volume_";

/// One attachment: volume, droplet, start time. A later attachment of the same volume differs.
pub(crate) type Attached = (String, u64, Millis);

/// A device that should exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DesiredDevice {
    pub(crate) attached: Attached,
    /// The volume's name.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Half attached, in this shape.
    pub(crate) half: Option<HalfAttachedShape>,
}

/// The desired devices at `now`, and when they change next. An attachment that was `whole` once stays whole, even if
/// the settings change.
pub(crate) fn wanted(
    state: &State,
    settings: &FakeSettings,
    whole: &HashSet<Attached>,
    now: Millis,
) -> (Vec<DesiredDevice>, Option<Millis>) {
    let after = |at: Millis, more: u64| at.saturating_add(Millis::try_from(more).unwrap_or(Millis::MAX));
    let (mut seen, mut next) = (Vec::new(), None::<Millis>);
    for volume in state.volumes.values() {
        let Some(place) = volume.attached else { continue };
        let attached = (volume.id.clone(), place.droplet, place.since);
        let appears = after(place.since, settings.device_delay_ms);
        let until = settings.half_attached.map(|half| (half.shape, after(appears, half.for_ms)));
        let half = match until {
            _ if whole.contains(&attached) => None,
            _ if now < appears => {
                next = Some(next.map_or(appears, |next| next.min(appears)));
                continue;
            }
            Some((shape, until)) if now < until => {
                next = Some(next.map_or(until, |next| next.min(until)));
                Some(shape)
            }
            _ => None,
        };
        seen.push(DesiredDevice {
            attached,
            name: volume.name.clone(),
            bytes: volume.size_gigabytes * GIB,
            half,
        });
    }
    (seen, next)
}

/// An image file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Image {
    /// Of a volume or snapshot.
    Of(String),
    /// The stand-in for a volume whose device is half attached.
    Half(String),
}

/// The existing images, devices and links.
#[derive(Debug, Clone, Default)]
pub(crate) struct ActualDevices {
    /// With their sizes.
    pub(crate) images: BTreeMap<Image, u64>,
    pub(crate) loops: Vec<Loop>,
    /// Link target by droplet and link name.
    pub(crate) links: BTreeMap<(u64, String), PathBuf>,
}

/// A loop device over one of our images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
    pub(crate) image: Image,
    pub(crate) bytes: u64,
}

/// One reconciliation step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Unlink {
        droplet: u64,
        name: String,
    },
    Release(PathBuf),
    Remove(Image),
    /// Creates the image if it does not exist.
    SetSize(Image, u64),
    Attach(Image),
    /// Updates the device to its image's size.
    Refresh(PathBuf),
    Link {
        droplet: u64,
        name: String,
        target: Option<PathBuf>,
    },
}

/// The next steps, in order; empty when the desired state is reached. `known` are the ids of the existing volumes and
/// snapshots: an image is removed only when its owner and its devices are gone.
pub(crate) fn steps(
    wanted: &[DesiredDevice],
    known: &BTreeSet<String>,
    present: &ActualDevices,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for (droplet, name) in present.links.keys() {
        if !wanted.iter().any(|want| want.attached.1 == *droplet && link_name(&want.name) == *name) {
            steps.push(Step::Unlink { droplet: *droplet, name: name.clone() });
        }
    }
    for image in present.images.keys() {
        let owned = match image {
            Image::Of(id) => known.contains(id),
            Image::Half(_) => wanted.iter().any(|want| image_of(want).as_ref() == Some(image)),
        };
        if !owned && !present.loops.iter().any(|found| found.image == *image) {
            steps.push(Step::Remove(image.clone()));
        }
    }
    wanted.iter().for_each(|want| steps.extend(next_step(want, present)));
    // Last: detaching a device in use takes a while to fail.
    for found in &present.loops {
        if !wanted.iter().any(|want| image_of(want).as_ref() == Some(&found.image)) {
            steps.push(Step::Release(found.path.clone()));
        }
    }
    steps
}

/// The image behind a device; none for a dangling link.
fn image_of(want: &DesiredDevice) -> Option<Image> {
    match want.half {
        None => Some(Image::Of(want.attached.0.clone())),
        Some(HalfAttachedShape::Dangling) => None,
        Some(HalfAttachedShape::Empty | HalfAttachedShape::Short) => {
            Some(Image::Half(want.attached.0.clone()))
        }
    }
}

/// The next step towards one device: each step requires the one before it.
fn next_step(want: &DesiredDevice, present: &ActualDevices) -> Option<Step> {
    let name = link_name(&want.name);
    let droplet = want.attached.1;
    let linked = present.links.get(&(droplet, name.clone()));
    let Some(image) = image_of(want) else {
        // An existing link was created as dangling by an earlier step.
        return linked.is_none().then_some(Step::Link { droplet, name, target: None });
    };
    let bytes = match want.half {
        None => want.bytes,
        Some(HalfAttachedShape::Short) => want.bytes / 2,
        Some(HalfAttachedShape::Empty | HalfAttachedShape::Dangling) => 0,
    };
    let size = present.images.get(&image).copied();
    let Some(device) = present.loops.iter().find(|found| found.image == image) else {
        // A loop device cannot be attached to an empty file: it is truncated afterwards.
        let first = bytes.max(512);
        return match size {
            Some(size) if size >= first => Some(Step::Attach(image)),
            _ => Some(Step::SetSize(image, first)),
        };
    };
    if size != Some(bytes) {
        return Some(Step::SetSize(image, bytes));
    }
    if device.bytes != bytes {
        return Some(Step::Refresh(device.path.clone()));
    }
    (linked != Some(&device.path)).then(|| Step::Link { droplet, name, target: Some(device.path.clone()) })
}

#[cfg(test)]
mod tests;
