//! Looks at files, loop devices and links, and does the steps.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use wharf_linux::{Beneath, Devices as _, Files as _, Linux, LoopOptions};

use super::{Attached, Image, Loop, PREFIX, Present, Step, Wanted, steps, wanted};
use crate::knobs::Knobs;
use crate::state::State;
use crate::time::Millis;

/// The images' directory beneath the state's.
const IMAGES: &str = "images";
/// What the name of an image that stands in for another ends with.
const HALF: &str = ".half";
/// Where a link that leads nowhere leads.
const NOWHERE: &str = "nowhere";
/// How long a step that could not be done is left, in milliseconds: looking whether a device is in use takes two
/// seconds already.
const AGAIN: Millis = 500;
/// More rounds than any device has steps: beyond that something undoes what we do.
const ROUNDS: usize = 12;

/// Why devices are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// A file or device call failed.
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// A directory or link could not be read or made.
    #[error("{step} {}: {source}", path.display())]
    Path {
        /// What was tried.
        step: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Somebody uses them.
    #[error(
        "devices of attached volumes are still in use, and were left: end that, and start and stop the fake again"
    )]
    InUse,
    /// It goes on and on.
    #[error("the devices do not come to rest: does another process change {}?", .0.display())]
    Restless(PathBuf),
}

/// The devices of one fake.
pub(crate) struct Devices {
    kernel: Linux,
    /// Of the state.
    root: PathBuf,
    /// Of the links.
    links: PathBuf,
    whole: HashSet<Attached>,
    /// What was brought about last, if all of it was.
    rest: Option<(Vec<Wanted>, BTreeSet<String>)>,
    /// No more devices: the fake ends.
    closed: bool,
}

impl Devices {
    /// Takes over what is attached in `state` as it is: a fake that is started again does not attach anew.
    pub(crate) fn open(root: &Path, links: &Path, state: &State) -> Result<Self, DevicesError> {
        let kernel = Linux::new();
        kernel.create_dir(&Beneath::new(root, Path::new(IMAGES)))?;
        let dirs = state.droplets.keys().map(|id| links.join(id.to_string()));
        for dir in dirs {
            std::fs::create_dir_all(&dir).map_err(failed("make the directory", &dir))?;
        }
        let attached = state.volumes.values().filter_map(|volume| {
            volume.attached.map(|place| (volume.id.clone(), place.droplet, place.since))
        });
        let (root, links) = (root.to_owned(), links.to_owned());
        Ok(Self { kernel, root, links, whole: attached.collect(), rest: None, closed: false })
    }

    /// Brings about what `state` says, and tells when to come back. A step that fails (a device that is in use) is
    /// left for then.
    pub(crate) fn follow(
        &mut self,
        state: &State,
        knobs: &Knobs,
        now: Millis,
    ) -> Result<Option<Millis>, DevicesError> {
        if self.closed {
            return Ok(None);
        }
        let attached = |(volume, droplet, since): &Attached| {
            let place = state.volumes.get(volume).and_then(|volume| volume.attached);
            place.is_some_and(|place| place.droplet == *droplet && place.since == *since)
        };
        self.whole.retain(attached);
        let (wanted, next) = wanted(state, knobs, &self.whole, now);
        let known: BTreeSet<String> = state.volumes.keys().chain(state.snapshots.keys()).cloned().collect();
        let plan = (wanted, known);
        if self.rest.as_ref() == Some(&plan) {
            return Ok(next);
        }
        self.rest = None;
        let undone = self.bring_about(&plan.0, &plan.1)?;
        let whole = plan.0.iter().filter(|want| want.half.is_none()).map(|want| want.attached.clone());
        self.whole.extend(whole);
        self.rest = (!undone).then_some(plan);
        let again = undone.then(|| now.saturating_add(AGAIN));
        Ok(next.into_iter().chain(again).min())
    }

    /// Lets go of all devices and links; images stay.
    pub(crate) fn close(&mut self, state: &State) -> Result<(), DevicesError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let known = state.volumes.keys().chain(state.snapshots.keys()).cloned().collect();
        match self.bring_about(&[], &known)? {
            true => Err(DevicesError::InUse),
            false => Ok(()),
        }
    }

    /// Copies the bytes of a volume or snapshot, as they are now, to another's. One without bytes reads as zeroes,
    /// and so does its copy.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<(), DevicesError> {
        let (from, to) = (path_of(&Image::Of(from.to_owned())), path_of(&Image::Of(to.to_owned())));
        let (from, to) = (Beneath::new(&self.root, &from), Beneath::new(&self.root, &to));
        let Some(stat) = self.kernel.stat(&from)? else { return Ok(()) };
        // Sharing blocks is instant; where the file system cannot, only what was written is copied.
        if self.kernel.reflink(&from, &to).is_err() {
            self.kernel.set_size(&to, stat.size)?;
            self.kernel.copy_range(&from, &to, 0, stat.size)?;
        }
        Ok(self.kernel.sync(&to)?)
    }

    /// Does step after step until there are none; says whether some could not be done.
    fn bring_about(&self, wanted: &[Wanted], known: &BTreeSet<String>) -> Result<bool, DevicesError> {
        for _ in 0..ROUNDS {
            let steps = steps(wanted, known, &self.look()?);
            if steps.is_empty() {
                return Ok(false);
            }
            let mut failed = 0;
            for step in &steps {
                if let Err(error) = self.take(step) {
                    tracing::warn!(?step, %error, "not done yet");
                    failed += 1;
                }
            }
            if failed == steps.len() {
                return Ok(true);
            }
        }
        Err(DevicesError::Restless(self.links.clone()))
    }

    fn look(&self) -> Result<Present, DevicesError> {
        let mut present = Present::default();
        let mut files = Vec::new();
        for name in self.kernel.list_dir(&Beneath::new(&self.root, Path::new(IMAGES)))? {
            let image = match name.strip_suffix(HALF) {
                Some(id) => Image::Half(id.to_owned()),
                None => Image::Of(name),
            };
            if let Some(stat) = self.kernel.stat(&Beneath::new(&self.root, &path_of(&image)))? {
                files.push((stat.id, image.clone()));
                present.images.insert(image, stat.size);
            }
        }
        if !files.is_empty() {
            for device in self.kernel.loop_devices()? {
                let Some((_, image)) = files.iter().find(|(id, _)| *id == device.backing) else { continue };
                // One that is going is as good as gone; it is nobody's any more.
                if !device.going {
                    let bytes = self.kernel.device_size(&device.path)?;
                    present.loops.push(Loop { path: device.path, image: image.clone(), bytes });
                }
            }
        }
        for dir in entries(&self.links)? {
            let Some(droplet) = dir.parse().ok() else { continue };
            for name in entries(&self.links.join(&dir))?.into_iter().filter(|name| name.starts_with(PREFIX)) {
                let path = self.links.join(&dir).join(&name);
                let target = std::fs::read_link(&path).map_err(failed("read the link", &path))?;
                present.links.insert((droplet, name), target);
            }
        }
        Ok(present)
    }

    fn take(&self, step: &Step) -> Result<(), DevicesError> {
        let link = |droplet: &u64, name: &str| self.links.join(droplet.to_string()).join(name);
        match step {
            Step::Unlink { droplet, name } => {
                let path = link(droplet, name);
                std::fs::remove_file(&path).map_err(failed("remove the link", &path))?;
            }
            Step::Release(path) => self.kernel.loop_detach(path)?,
            Step::Remove(image) => {
                self.kernel.remove_file(&Beneath::new(&self.root, &path_of(image)))?;
            }
            Step::SetSize(image, bytes) => {
                self.kernel.set_size(&Beneath::new(&self.root, &path_of(image)), *bytes)?;
            }
            Step::Attach(image) => {
                let (Image::Of(id) | Image::Half(id)) = image;
                let options = LoopOptions { read_only: false, label: id.clone() };
                self.kernel.loop_attach(&Beneath::new(&self.root, &path_of(image)), &options)?;
            }
            Step::Refresh(path) => self.kernel.loop_refresh(path)?,
            Step::Link { droplet, name, target } => {
                let path = link(droplet, name);
                let dir = self.links.join(droplet.to_string());
                std::fs::create_dir_all(&dir).map_err(failed("make the directory", &dir))?;
                let target = target.clone().unwrap_or_else(|| dir.join(NOWHERE));
                // Made beside and renamed: it is there or not, and never for a moment gone.
                let beside = dir.join(".link");
                _ = std::fs::remove_file(&beside);
                symlink(&target, &beside).map_err(failed("make the link", &beside))?;
                std::fs::rename(&beside, &path).map_err(failed("make the link", &path))?;
            }
        }
        Ok(())
    }
}

fn path_of(image: &Image) -> PathBuf {
    match image {
        Image::Of(id) => Path::new(IMAGES).join(id),
        Image::Half(id) => Path::new(IMAGES).join(format!("{id}{HALF}")),
    }
}

/// Names in a directory that may not be there yet.
fn entries(dir: &Path) -> Result<Vec<String>, DevicesError> {
    let entries = match std::fs::read_dir(dir) {
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        entries => entries.map_err(failed("read the directory", dir))?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().map_err(failed("read the directory", dir))
}

fn failed<'a>(step: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> DevicesError + use<'a> {
    move |source| DevicesError::Path { step, path: path.to_owned(), source }
}
