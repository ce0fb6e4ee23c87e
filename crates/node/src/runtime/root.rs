//! A container's root: the host's own under an overlay that is thrown away, with the container's volumes in it and
//! without what it must not see.
//!
//! All that can be written to is without device nodes, so that a container which may make one cannot open it; the devices
//! it has are the host's own nodes, mounted one by one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use wharf_linux::sandbox::{self, MountFlags, Tree, inside};

use super::layout::{self, DEVICES, LINKS, MASKED, READ_ONLY, Shown};
use super::record::Order;
use super::report::{Failure, Step as _};
use super::spec::ContainerMount;
use crate::hidden::{Host, path_of};

const NO_DEVICES: MountFlags = MountFlags { read_only: false, no_dev: true, no_exec: false, no_suid: false };
const FILES_ONLY: MountFlags = MountFlags { read_only: false, no_dev: true, no_exec: true, no_suid: true };
const DEVICES_ONLY: MountFlags = MountFlags { read_only: false, no_dev: false, no_exec: true, no_suid: true };
const READ: MountFlags = MountFlags { read_only: true, no_dev: true, no_exec: false, no_suid: false };
const READ_FILES: MountFlags = MountFlags { read_only: true, ..FILES_ONLY };

/// A mount of the host that comes along.
struct Along {
    tree: Tree,
    target: PathBuf,
    is_directory: bool,
}

/// What comes along from the host, held on to but attached nowhere.
pub(super) struct Kept {
    system: Vec<Along>,
    /// What of the root and of those mounts is hidden.
    hidden: Vec<PathBuf>,
    devices: Vec<Along>,
    volumes: Vec<Along>,
}

impl Kept {
    /// Holds on to everything that the container gets from the host.
    pub(super) fn open(order: &Order) -> Result<Self, Failure> {
        let spec = &order.spec;
        let host = Host::read(&order.hidden).step("mount table")?;
        let root = Path::new("/");
        let shown = layout::shown_root(&host);
        let hidden = shown.covered.iter().map(|part| root.join(part)).collect();
        let mut kept = Self { system: Vec::new(), hidden, devices: Vec::new(), volumes: Vec::new() };
        for path in shown.nested.iter().map(|part| root.join(part)) {
            // One that was unmounted since the table was read is not missed.
            if path.try_exists().unwrap_or(false) {
                kept.system.push(along(&path, &path, READ)?);
            }
        }
        if !spec.rights.privileged {
            for name in DEVICES {
                let path = Path::new("/dev").join(name);
                kept.devices.push(along(&path, &path, DEVICES_ONLY)?);
            }
        }
        for mount in &spec.mounts {
            kept.volume(mount, &host, order)?;
        }
        for device in &spec.devices {
            let step = format!("device {} for {}", device.source.display(), device.target.display());
            let node = inside::open(&device.source).step(&step)?;
            if !inside::is_block_device(&node).step(&step)? {
                return Err(Failure::Config(format!("{step}: it is not a block device")));
            }
            if device.read_only && !inside::is_read_only_device(&node).step(&step)? {
                return Err(Failure::Config(format!(
                    "{step}: it was asked for with readOnly, but its driver has published a device that can be written to, \
                     and nothing would keep the container from that; ask for it without readOnly, or as a file system, or \
                     make the device read-only (blockdev --setro)"
                )));
            }
            let tree = Tree::copy(&node, DEVICES_ONLY).step(&step)?;
            kept.volumes.push(Along { tree, target: device.target.clone(), is_directory: false });
        }
        // Outer ones first; what is nested in a volume stays behind it.
        kept.volumes.sort_by_key(|along| along.target.components().count());
        Ok(kept)
    }

    fn volume(&mut self, mount: &ContainerMount, host: &Host, order: &Order) -> Result<(), Failure> {
        let flags = MountFlags {
            read_only: mount.read_only,
            no_dev: !order.spec.rights.privileged,
            ..MountFlags::default()
        };
        let step = format!("volume {} for {}", mount.source.display(), mount.target.display());
        let admit = |place: &OwnedFd, rest: &Path| {
            let admitted = host.admit(&mount.source, place, rest);
            admitted.map_err(|refusal| Failure::Config(format!("{step}: {refusal}")))
        };
        let mut place = inside::open(&mount.source).step(&step)?;
        if let Some(part) = &mount.sub_path {
            // Before it is made.
            if mount.host {
                admit(&place, part)?;
            }
            place = inside::open_part(&place, part).map_err(|error| sub_path_failure(mount, part, &error))?;
        }
        let shown = match &mount.sub_path {
            _ if mount.host => layout::shown(host, &admit(&place, Path::new(""))?),
            // As kubelet has it, which binds the part alone.
            Some(_) => Shown::default(),
            None => Shown {
                nested: layout::nested_mounts(host.table(), &path_of(&place).step(&step)?),
                ..Shown::default()
            },
        };
        self.volumes.push(copy(&place, &mount.target, flags, &step)?);
        self.within_volume(&place, &shown, &mount.target, flags)
    }

    /// What belongs to a volume's directory: what is mounted beneath, and covers over what is hidden. Its files are the
    /// pod's to swap at any time, so all is looked up from the directory as it was opened, and by no link.
    fn within_volume(
        &mut self,
        place: &OwnedFd,
        shown: &Shown,
        target: &Path,
        flags: MountFlags,
    ) -> Result<(), Failure> {
        for part in &shown.nested {
            let step = format!("mount {} of a volume", part.display());
            match inside::open_without_links(place, part) {
                // One that was unmounted since the table was read is not missed, and nothing is looked for in its place.
                Err(error) if is_gone(&error) => {}
                nested => self.volumes.push(copy(&nested.step(&step)?, &target.join(part), flags, &step)?),
            }
        }
        for part in &shown.covered {
            let step = format!("hiding {}", part.display());
            let is_directory = match inside::open_without_links(place, part) {
                // There is nothing to hide, and the host's directory gets nothing new by our hiding it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                hidden => inside::is_directory(hidden.step(&step)?).step(&step)?,
            };
            let tree = match is_directory {
                true => Tree::new("tmpfs", &[("size", b"4k"), ("mode", b"0755")], READ_FILES),
                false => {
                    inside::open(Path::new("/dev/null")).and_then(|null| Tree::copy(&null, DEVICES_ONLY))
                }
            };
            self.volumes.push(Along { tree: tree.step(&step)?, target: target.join(part), is_directory });
        }
        Ok(())
    }
}

fn sub_path_failure(mount: &ContainerMount, part: &Path, error: &io::Error) -> Failure {
    let target = mount.target.display();
    Failure::Config(match error.raw_os_error() {
        // EXDEV and ELOOP are how openat2 refuses a way out.
        Some(18 | 40) => {
            format!("subPath {:?} for {target} leads out of its volume by a link", part.display())
        }
        _ => format!("failed to prepare subPath {:?} for {target}: {error}", part.display()),
    })
}

/// Whether there is nothing at a path any more, or something else.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn along(source: &Path, target: &Path, flags: MountFlags) -> Result<Along, Failure> {
    let step = format!("{} of the host", source.display());
    copy(&inside::open(source).step(&step)?, target, flags, &step)
}

fn copy(place: &OwnedFd, target: &Path, flags: MountFlags, step: &str) -> Result<Along, Failure> {
    let is_directory = inside::is_directory(place).step(step)?;
    Ok(Along { tree: Tree::copy(place, flags).step(step)?, target: target.to_owned(), is_directory })
}

/// An overlay over a directory of the host, with the directories of these names in the scratch.
fn overlay(scratch: &Path, lower: &str, names: [&str; 2], flags: MountFlags) -> io::Result<Tree> {
    let [upper, work] = names.map(|name| scratch.join(name));
    let layers: [(&str, &[u8]); 3] = [
        ("lowerdir", lower.as_bytes()),
        ("upperdir", upper.as_os_str().as_bytes()),
        ("workdir", work.as_os_str().as_bytes()),
    ];
    Tree::new("overlay", &layers, flags)
}

/// The new root, in a mount namespace of our own; not entered yet.
pub(super) struct Root {
    /// In memory: what the container writes beside its volumes.
    scratch: Tree,
    /// Where that is attached.
    directory: PathBuf,
    overlay: Tree,
    /// The overlay's root, where it is attached.
    place: OwnedFd,
    /// Parts of `scratch` that stand for directories of the root, and are read-only with it.
    parts: Vec<Tree>,
    privileged: bool,
}

impl Root {
    /// Makes the overlay over the host's root. Its upper side is in memory, since an overlay cannot lie on a part of what
    /// it covers; and so it is gone with the last process, whatever happens.
    pub(super) fn make(directory: &Path, bytes: u64, privileged: bool) -> Result<Self, Failure> {
        let size = bytes.to_string();
        let options: [(&str, &[u8]); 2] = [("size", size.as_bytes()), ("mode", b"0755")];
        let scratch = Tree::new("tmpfs", &options, NO_DEVICES).step("scratch")?;
        scratch.attach(inside::open(directory).step("scratch")?).step("scratch")?;
        for name in ["upper", "work", "dev-upper", "dev-work", "root", "parts"] {
            mkdirat(&scratch, name, Mode::from_raw_mode(0o755)).map_err(io::Error::from).step("scratch")?;
        }
        let flags = MountFlags { no_dev: !privileged, ..MountFlags::default() };
        let overlay =
            overlay(directory, "/", ["upper", "work"], flags).step("overlay over the host's root")?;
        let place = directory.join("root");
        overlay.attach(inside::open(&place).step("root")?).step("root")?;
        let place = inside::open(&place).step("root")?;
        let directory = directory.to_owned();
        Ok(Self { scratch, directory, overlay, place, parts: Vec::new(), privileged })
    }

    /// Puts everything in its place.
    pub(super) fn furnish(&mut self, kept: &Kept, order: &Order) -> Result<(), Failure> {
        for along in &kept.system {
            self.attach_along(along)?;
        }
        for path in &kept.hidden {
            self.hide(path)?;
        }
        self.part(Path::new("/tmp"), 0o1777)?;
        self.part(Path::new("/run"), 0o755)?;
        self.kernel_file_systems()?;
        self.devices(&kept.devices)?;
        if !self.privileged {
            self.protect_kernel()?;
        }
        for along in &kept.volumes {
            self.attach_along(along)?;
        }
        if !order.spec.working_dir.as_os_str().is_empty() {
            inside::make_directory_in_root(&self.place, &order.spec.working_dir)
                .map(drop)
                .step("working directory")?;
        }
        Ok(())
    }

    /// Makes it the root of this namespace; the host's mounts are gone from it.
    pub(super) fn enter(&self, read_only: bool) -> Result<(), Failure> {
        if read_only {
            let flags = MountFlags { read_only: true, ..MountFlags::default() };
            self.overlay.restrict(flags).step("read-only root")?;
            for part in &self.parts {
                part.restrict(flags).step("read-only root")?;
            }
        }
        sandbox::change_root(&self.place).step("change of the root")
    }

    fn attach_along(&self, along: &Along) -> Result<(), Failure> {
        let step = format!("mount at {}", along.target.display());
        let target = match along.is_directory {
            true => inside::make_directory_in_root(&self.place, &along.target),
            false => inside::make_file_in_root(&self.place, &along.target),
        };
        along.tree.attach(target.step(&step)?).step(&step)
    }

    /// A directory of its own, empty, over `path`.
    fn part(&mut self, path: &Path, mode: u32) -> Result<(), Failure> {
        let step = format!("{} of its own", path.display());
        let target = inside::make_directory_in_root(&self.place, path).step(&step)?;
        let name = format!("parts/{}", self.parts.len());
        let umask = rustix::process::umask(Mode::empty());
        let made = mkdirat(&self.scratch, &name, Mode::from_raw_mode(mode)).map_err(io::Error::from);
        rustix::process::umask(umask);
        made.step(&step)?;
        let source = openat(&self.scratch, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .step(&step)?;
        let tree = Tree::copy(&source, MountFlags { no_suid: true, ..NO_DEVICES }).step(&step)?;
        tree.attach(target).step(&step)?;
        self.parts.push(tree);
        Ok(())
    }

    /// Puts something empty over a path of the host. One that is not there is made: the host may make it later, and the
    /// overlay would show it.
    fn hide(&mut self, path: &Path) -> Result<(), Failure> {
        match inside::open_in_root(&self.place, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.part(path, 0o755),
            Err(error) => Err(Failure::machine(format_args!("hiding {}", path.display()), error)),
            Ok(place) if inside::is_directory(&place).step("hiding")? => self.part(path, 0o755),
            Ok(place) => self.cover(&place, path),
        }
    }

    /// Puts the null device over a file.
    fn cover(&self, place: &OwnedFd, path: &Path) -> Result<(), Failure> {
        let step = format!("hiding {}", path.display());
        let null = inside::open(Path::new("/dev/null")).step(&step)?;
        Tree::copy(&null, DEVICES_ONLY).and_then(|tree| tree.attach(place)).step(&step)
    }

    fn attach_new(
        &self,
        fs_type: &str,
        options: &[(&str, &[u8])],
        flags: MountFlags,
        path: &str,
    ) -> Result<(), Failure> {
        let tree = Tree::new(fs_type, options, flags).step(path)?;
        let target = inside::make_directory_in_root(&self.place, Path::new(path)).step(path)?;
        tree.attach(target).step(path)
    }

    fn kernel_file_systems(&self) -> Result<(), Failure> {
        self.attach_new("proc", &[], FILES_ONLY, "/proc")?;
        let sys = if self.privileged { FILES_ONLY } else { READ_FILES };
        self.attach_new("sysfs", &[], sys, "/sys")
    }

    /// A few devices; all of the host's with privileges, under an overlay, since `/dev` is the host's own.
    fn devices(&self, devices: &[Along]) -> Result<(), Failure> {
        let tree = if self.privileged {
            overlay(&self.directory, "/dev", ["dev-upper", "dev-work"], DEVICES_ONLY)
        } else {
            let options: [(&str, &[u8]); 2] = [("size", b"64m"), ("mode", b"0755")];
            Tree::new("tmpfs", &options, MountFlags { no_suid: true, ..NO_DEVICES })
        };
        let target = inside::make_directory_in_root(&self.place, Path::new("/dev")).step("/dev")?;
        tree.and_then(|tree| tree.attach(target)).step("/dev")?;
        for along in devices {
            self.attach_along(along)?;
        }
        let terminals: [(&str, &[u8]); 3] = [("ptmxmode", b"0666"), ("mode", b"0620"), ("gid", b"5")];
        self.attach_new("devpts", &terminals, DEVICES_ONLY, "/dev/pts")?;
        self.attach_new("tmpfs", &[("size", b"64m"), ("mode", b"1777")], FILES_ONLY, "/dev/shm")?;
        self.attach_new("mqueue", &[], FILES_ONLY, "/dev/mqueue")?;
        if !self.privileged {
            for (to, path) in LINKS {
                inside::make_link_in_root(&self.place, Path::new(to), Path::new(path)).step(path)?;
            }
        }
        Ok(())
    }

    /// What of `/proc` and `/sys` rules or tells of the whole machine is covered, or only for reading.
    fn protect_kernel(&self) -> Result<(), Failure> {
        for path in MASKED {
            match inside::open_in_root(&self.place, Path::new(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(place) if inside::is_directory(&place).step(path)? => {
                    Tree::new("tmpfs", &[("size", b"4k")], READ_FILES)
                        .and_then(|tree| tree.attach(&place))
                        .step(path)?;
                }
                Ok(place) => self.cover(&place, Path::new(path))?,
                Err(error) => return Err(Failure::machine(path, error)),
            }
        }
        for path in READ_ONLY {
            match inside::open_in_root(&self.place, Path::new(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(place) => {
                    Tree::copy(&place, READ_FILES).and_then(|tree| tree.attach(&place)).step(path)?;
                }
                Err(error) => return Err(Failure::machine(path, error)),
            }
        }
        Ok(())
    }
}
