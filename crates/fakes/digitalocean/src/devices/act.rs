//! Reads files, loop devices and links, and performs the reconciliation steps.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use wharf_linux::{BlockDevices as _, Files as _, Linux, LoopOptions, PathBeneath};

use super::{ActualDevices, Attached, DesiredDevice, Image, Loop, PREFIX, Step, steps, wanted};
use crate::settings::FakeSettings;
use crate::state::State;
use crate::time::Millis;

/// The images' directory beneath the state directory.
const IMAGES: &str = "images";
/// Suffix of the stand-in image of a half-attached volume.
const HALF: &str = ".half";
/// Target of a dangling link.
const DANGLING_TARGET: &str = "nowhere";
/// Delay in milliseconds before a failed step is retried: checking whether a device is in use takes two seconds
/// already.
const RETRY_DELAY: Millis = 500;
/// More rounds than any device has steps: beyond that, another process undoes our changes.
const ROUNDS: usize = 12;

/// Why the devices could not be reconciled.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// A file or device call failed.
    #[error(transparent)]
    Kernel(#[from] wharf_linux::Error),
    /// A directory or link could not be read or created.
    #[error("failed to {step} {}: {source}", path.display())]
    Path {
        /// The failed step.
        step: &'static str,
        /// The directory or link.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Devices are still in use.
    #[error(
        "devices of attached volumes are still in use and were not detached: release them, then start and stop the fake again"
    )]
    InUse,
    /// Reconciliation does not converge.
    #[error("the devices do not converge: check whether another process changes {}", .0.display())]
    NotSettling(PathBuf),
}

/// The devices of one fake.
pub(crate) struct Devices {
    kernel: Linux,
    /// The state directory.
    root: PathBuf,
    /// The directory of the links.
    links: PathBuf,
    whole: HashSet<Attached>,
    /// The last plan, if it was completely reconciled.
    reconciled: Option<(Vec<DesiredDevice>, BTreeSet<String>)>,
    /// The fake is stopping: no more devices.
    closed: bool,
}

impl Devices {
    /// Adopts the attachments in `state`: a restarted fake does not attach them again.
    pub(crate) fn open(root: &Path, links: &Path, state: &State) -> Result<Self, DevicesError> {
        let kernel = Linux::new();
        kernel.create_dir(&PathBeneath::new(root, Path::new(IMAGES)))?;
        let dirs = state.droplets.keys().map(|id| links.join(id.to_string()));
        for dir in dirs {
            std::fs::create_dir_all(&dir).map_err(failed("create the directory", &dir))?;
        }
        let attached = state.volumes.values().filter_map(|volume| {
            volume.attached.map(|place| (volume.id.clone(), place.droplet, place.since))
        });
        let (root, links) = (root.to_owned(), links.to_owned());
        Ok(Self { kernel, root, links, whole: attached.collect(), reconciled: None, closed: false })
    }

    /// Reconciles the devices with `state` and returns when to run again. Failed steps (a device in use) are retried
    /// then.
    pub(crate) fn follow(
        &mut self,
        state: &State,
        settings: &FakeSettings,
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
        let (wanted, next) = wanted(state, settings, &self.whole, now);
        let known: BTreeSet<String> = state.volumes.keys().chain(state.snapshots.keys()).cloned().collect();
        let plan = (wanted, known);
        if self.reconciled.as_ref() == Some(&plan) {
            return Ok(next);
        }
        self.reconciled = None;
        let undone = self.reconcile(&plan.0, &plan.1)?;
        let whole = plan.0.iter().filter(|want| want.half.is_none()).map(|want| want.attached.clone());
        self.whole.extend(whole);
        self.reconciled = (!undone).then_some(plan);
        let retry_at = undone.then(|| now.saturating_add(RETRY_DELAY));
        Ok(next.into_iter().chain(retry_at).min())
    }

    /// Detaches all devices and removes the links; images stay.
    pub(crate) fn close(&mut self, state: &State) -> Result<(), DevicesError> {
        if std::mem::replace(&mut self.closed, true) {
            return Ok(());
        }
        let known = state.volumes.keys().chain(state.snapshots.keys()).cloned().collect();
        match self.reconcile(&[], &known)? {
            true => Err(DevicesError::InUse),
            false => Ok(()),
        }
    }

    /// Copies the current data of a volume or snapshot to another. One without an image reads as zeroes, and so does
    /// its copy.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<(), DevicesError> {
        let (from, to) = (path_of(&Image::Of(from.to_owned())), path_of(&Image::Of(to.to_owned())));
        let (from, to) = (PathBeneath::new(&self.root, &from), PathBeneath::new(&self.root, &to));
        let Some(stat) = self.kernel.stat(&from)? else { return Ok(()) };
        // A reflink is instant; without reflinks, only written data is copied.
        if self.kernel.reflink(&from, &to).is_err() {
            self.kernel.set_size(&to, stat.size)?;
            self.kernel.copy_range(&from, &to, 0, stat.size)?;
        }
        Ok(self.kernel.sync(&to)?)
    }

    /// Performs steps until none is left; returns whether some failed.
    fn reconcile(&self, wanted: &[DesiredDevice], known: &BTreeSet<String>) -> Result<bool, DevicesError> {
        for _ in 0..ROUNDS {
            let steps = steps(wanted, known, &self.observe()?);
            if steps.is_empty() {
                return Ok(false);
            }
            let mut failed = 0;
            for step in &steps {
                if let Err(error) = self.perform(step) {
                    tracing::warn!(?step, %error, "failed to perform device step; retrying");
                    failed += 1;
                }
            }
            if failed == steps.len() {
                return Ok(true);
            }
        }
        Err(DevicesError::NotSettling(self.links.clone()))
    }

    fn observe(&self) -> Result<ActualDevices, DevicesError> {
        let mut present = ActualDevices::default();
        let mut files = Vec::new();
        for name in self.kernel.list_dir(&PathBeneath::new(&self.root, Path::new(IMAGES)))? {
            let image = match name.strip_suffix(HALF) {
                Some(id) => Image::Half(id.to_owned()),
                None => Image::Of(name),
            };
            if let Some(stat) = self.kernel.stat(&PathBeneath::new(&self.root, &path_of(&image)))? {
                files.push((stat.id, image.clone()));
                present.images.insert(image, stat.size);
            }
        }
        if !files.is_empty() {
            for device in self.kernel.loop_devices()? {
                let Some((_, image)) = files.iter().find(|(id, _)| *id == device.backing) else { continue };
                // A device in autoclear counts as detached.
                if !device.autoclear {
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

    fn perform(&self, step: &Step) -> Result<(), DevicesError> {
        let link = |droplet: &u64, name: &str| self.links.join(droplet.to_string()).join(name);
        match step {
            Step::Unlink { droplet, name } => {
                let path = link(droplet, name);
                std::fs::remove_file(&path).map_err(failed("remove the link", &path))?;
            }
            Step::Release(path) => self.kernel.loop_detach(path, None)?,
            Step::Remove(image) => {
                self.kernel.remove_file(&PathBeneath::new(&self.root, &path_of(image)))?;
            }
            Step::SetSize(image, bytes) => {
                self.kernel.set_size(&PathBeneath::new(&self.root, &path_of(image)), *bytes)?;
            }
            Step::Attach(image) => {
                let (Image::Of(id) | Image::Half(id)) = image;
                let options = LoopOptions { read_only: false, label: id.clone() };
                self.kernel.loop_attach(&PathBeneath::new(&self.root, &path_of(image)), &options)?;
            }
            Step::Refresh(path) => self.kernel.loop_refresh(path)?,
            Step::Link { droplet, name, target } => {
                let path = link(droplet, name);
                let dir = self.links.join(droplet.to_string());
                std::fs::create_dir_all(&dir).map_err(failed("create the directory", &dir))?;
                let target = target.clone().unwrap_or_else(|| dir.join(DANGLING_TARGET));
                // Created under a temporary name and renamed, so that an existing link is replaced atomically.
                let temporary = dir.join(".link");
                _ = std::fs::remove_file(&temporary);
                symlink(&target, &temporary).map_err(failed("create the link", &temporary))?;
                std::fs::rename(&temporary, &path).map_err(failed("create the link", &path))?;
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

/// Names in a directory; empty if it does not exist.
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
