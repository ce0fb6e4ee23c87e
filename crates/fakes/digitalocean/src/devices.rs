//! Volumes as real devices: what is to be seen on this machine, and by which steps. Pure; `act.rs` does them.
//!
//! A volume's bytes are a sparse file. Attached, it is a loop device with a link of the name that udev would give it
//! at the droplet. Looking and stepping go on until nothing is left to do, so what an earlier process left behind is
//! taken over or cleared away like everything else.

mod act;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;

use crate::knobs::{Half, Knobs};
use crate::state::State;
use crate::time::Millis;

pub(crate) use act::Devices;
pub use act::DevicesError;

const GIB: u64 = 1 << 30;

/// The name under which a droplet sees a volume.
pub(crate) fn link_name(volume: &str) -> String {
    format!("{PREFIX}{volume}")
}

const PREFIX: &str = "scsi-0DO_Volume_";

/// One attachment: volume, droplet, since when. Another one of the same volume is another one.
pub(crate) type Attached = (String, u64, Millis);

/// A device that is to be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) attached: Attached,
    /// The volume's name.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Not whole yet.
    pub(crate) half: Option<Half>,
}

/// What is to be seen at `now`, and when that changes next. What was `whole` once stays it, whatever the knobs say by
/// now.
pub(crate) fn wanted(
    state: &State,
    knobs: &Knobs,
    whole: &HashSet<Attached>,
    now: Millis,
) -> (Vec<Wanted>, Option<Millis>) {
    let after = |at: Millis, more: u64| at.saturating_add(Millis::try_from(more).unwrap_or(Millis::MAX));
    let (mut seen, mut next) = (Vec::new(), None::<Millis>);
    for volume in state.volumes.values() {
        let Some(place) = volume.attached else { continue };
        let attached = (volume.id.clone(), place.droplet, place.since);
        let appears = after(place.since, knobs.device_delay_ms);
        let until = knobs.half_attached.map(|half| (half.shape, after(appears, half.for_ms)));
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
        seen.push(Wanted { attached, name: volume.name.clone(), bytes: volume.size_gigabytes * GIB, half });
    }
    (seen, next)
}

/// A file with the bytes of something.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Image {
    /// Of a volume or snapshot.
    Of(String),
    /// What stands in for a volume whose device is not whole.
    Half(String),
}

/// What is there.
#[derive(Debug, Clone, Default)]
pub(crate) struct Present {
    /// With their sizes.
    pub(crate) images: BTreeMap<Image, u64>,
    pub(crate) loops: Vec<Loop>,
    /// Droplet and link name, and where it leads.
    pub(crate) links: BTreeMap<(u64, String), PathBuf>,
}

/// A loop device over one of our images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
    pub(crate) image: Image,
    pub(crate) bytes: u64,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Unlink {
        droplet: u64,
        name: String,
    },
    Release(PathBuf),
    Remove(Image),
    /// Made if it is not there.
    SetSize(Image, u64),
    Attach(Image),
    /// The device takes its image's size.
    Refresh(PathBuf),
    Link {
        droplet: u64,
        name: String,
        target: Option<PathBuf>,
    },
}

/// What is to be done next, in this order; empty when all is as wanted. `known` are the ids of the volumes and
/// snapshots that there are: an image is removed only when its owner is gone, and its devices with it.
pub(crate) fn steps(wanted: &[Wanted], known: &BTreeSet<String>, present: &Present) -> Vec<Step> {
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
    wanted.iter().for_each(|want| steps.extend(towards(want, present)));
    // Last: a device that is in use takes a while to say so.
    for found in &present.loops {
        if !wanted.iter().any(|want| image_of(want).as_ref() == Some(&found.image)) {
            steps.push(Step::Release(found.path.clone()));
        }
    }
    steps
}

/// The image behind what is seen; none for a link that leads nowhere.
fn image_of(want: &Wanted) -> Option<Image> {
    match want.half {
        None => Some(Image::Of(want.attached.0.clone())),
        Some(Half::Dangling) => None,
        Some(Half::Empty | Half::Short) => Some(Image::Half(want.attached.0.clone())),
    }
}

/// The next step to one device: each can be taken only when the one before it has been.
fn towards(want: &Wanted, present: &Present) -> Option<Step> {
    let name = link_name(&want.name);
    let droplet = want.attached.1;
    let linked = present.links.get(&(droplet, name.clone()));
    let Some(image) = image_of(want) else {
        // A link which is there already, to whatever, was told to be dangling by nobody else.
        return linked.is_none().then_some(Step::Link { droplet, name, target: None });
    };
    let bytes = match want.half {
        None => want.bytes,
        Some(Half::Short) => want.bytes / 2,
        Some(Half::Empty | Half::Dangling) => 0,
    };
    let size = present.images.get(&image).copied();
    let Some(device) = present.loops.iter().find(|found| found.image == image) else {
        // A device cannot begin with nothing: it becomes empty afterwards.
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
