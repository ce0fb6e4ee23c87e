//! A container's root: the host's root under an overlay that is discarded, with the container's volumes in it and
//! without hidden paths.
//!
//! Everything writable is mounted without device nodes, so that a container that can create one cannot open it; the
//! devices it has are the host's own nodes, mounted one by one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::hidden::{Host, path_of};
use crate::layout::{self, DEVICES, LINKS, MASKED, READ_ONLY, Shown};
use crate::record::Order;
use crate::report::{Failure, Step as _};
use crate::sandbox::{self, DetachedMount, MountFlags, scoped_path};
use crate::spec::ContainerMount;

const NO_DEVICES: MountFlags = MountFlags { read_only: false, no_dev: true, no_exec: false, no_suid: false };
const FILES_ONLY: MountFlags = MountFlags { read_only: false, no_dev: true, no_exec: true, no_suid: true };
const DEVICES_ONLY: MountFlags = MountFlags { read_only: false, no_dev: false, no_exec: true, no_suid: true };
const READ: MountFlags = MountFlags { read_only: true, no_dev: true, no_exec: false, no_suid: false };
const READ_FILES: MountFlags = MountFlags { read_only: true, ..FILES_ONLY };

/// A host mount to be attached in the container.
struct HostMount {
    tree: DetachedMount,
    target: PathBuf,
    is_directory: bool,
}

/// Host mounts for a container, opened but not attached yet.
pub(crate) struct HostMounts {
    system: Vec<HostMount>,
    /// Hidden paths in the root and in those mounts.
    hidden: Vec<PathBuf>,
    devices: Vec<HostMount>,
    volumes: Vec<HostMount>,
}

impl HostMounts {
    /// Opens everything that the container gets from the host.
    pub(crate) fn open(order: &Order) -> Result<Self, Failure> {
        let spec = &order.spec;
        let host = Host::read(&order.hidden).step("mount table")?;
        let root = Path::new("/");
        let shown = layout::shown_root(&host);
        let hidden = shown.covered.iter().map(|part| root.join(part)).collect();
        let mut host_mounts = Self { system: Vec::new(), hidden, devices: Vec::new(), volumes: Vec::new() };
        for path in shown.nested.iter().map(|part| root.join(part)) {
            // A mount that was unmounted since the table was read is skipped.
            if path.try_exists().unwrap_or(false) {
                host_mounts.system.push(host_mount(&path, &path, READ)?);
            }
        }
        if !spec.rights.privileged {
            for name in DEVICES {
                let path = Path::new("/dev").join(name);
                host_mounts.devices.push(host_mount(&path, &path, DEVICES_ONLY)?);
            }
        }
        for mount in &spec.mounts {
            host_mounts.volume(mount, &host, order)?;
        }
        for device in &spec.devices {
            let step = format!("device {} for {}", device.source.display(), device.target.display());
            let node = scoped_path::open(&device.source).step(&step)?;
            if !scoped_path::is_block_device(&node).step(&step)? {
                return Err(Failure::Config(format!("{step}: not a block device")));
            }
            if device.read_only && !scoped_path::is_read_only_device(&node).step(&step)? {
                return Err(Failure::Config(format!(
                    "{step}: requested with readOnly, but the driver published a writable device, and a read-only mount \
                     does not prevent writes to a raw device; use it without readOnly or with volumeMode Filesystem, \
                     or make the device read-only (blockdev --setro)"
                )));
            }
            let tree = DetachedMount::copy(&node, DEVICES_ONLY).step(&step)?;
            host_mounts.volumes.push(HostMount { tree, target: device.target.clone(), is_directory: false });
        }
        // Outer mounts first; nested mounts of a volume stay after it.
        host_mounts.volumes.sort_by_key(|host_mount| host_mount.target.components().count());
        Ok(host_mounts)
    }

    fn volume(&mut self, mount: &ContainerMount, host: &Host, order: &Order) -> Result<(), Failure> {
        let flags = MountFlags {
            read_only: mount.read_only,
            no_dev: !order.spec.rights.privileged,
            ..MountFlags::default()
        };
        let step = format!("volume {} for {}", mount.source.display(), mount.target.display());
        let admit = |directory_fd: &OwnedFd, rest: &Path| {
            let admitted = host.admit(&mount.source, directory_fd, rest);
            admitted.map_err(|refusal| Failure::Config(format!("{step}: {refusal}")))
        };
        let mut directory_fd = scoped_path::open(&mount.source).step(&step)?;
        if let Some(part) = &mount.sub_path {
            // Before it is created.
            if mount.host {
                admit(&directory_fd, part)?;
            }
            directory_fd = scoped_path::open_subpath(&directory_fd, part)
                .map_err(|error| sub_path_failure(mount, part, &error))?;
        }
        let shown = match &mount.sub_path {
            _ if mount.host => layout::shown(host, &admit(&directory_fd, Path::new(""))?),
            // Like kubelet, which binds only the subPath.
            Some(_) => Shown::default(),
            None => Shown {
                nested: layout::nested_mounts(host.table(), &path_of(&directory_fd).step(&step)?),
                ..Shown::default()
            },
        };
        self.volumes.push(copy(&directory_fd, &mount.target, flags, &step)?);
        self.within_volume(&directory_fd, &shown, &mount.target, flags)
    }

    /// Adds a volume's nested mounts, and covers for hidden paths. The pod can replace the volume's files at any
    /// time, so everything is resolved relative to the open directory and without following symlinks.
    fn within_volume(
        &mut self,
        directory_fd: &OwnedFd,
        shown: &Shown,
        target: &Path,
        flags: MountFlags,
    ) -> Result<(), Failure> {
        for part in &shown.nested {
            let step = format!("mount {} of a volume", part.display());
            match scoped_path::open_without_symlinks(directory_fd, part) {
                // A mount that was unmounted since the table was read is skipped; whatever is there now is not used
                // instead.
                Err(error) if is_gone(&error) => {}
                nested => self.volumes.push(copy(&nested.step(&step)?, &target.join(part), flags, &step)?),
            }
        }
        for part in &shown.covered {
            let step = format!("hiding {}", part.display());
            let is_directory = match scoped_path::open_without_symlinks(directory_fd, part) {
                // Nothing to hide; covering it would create an entry in the host's directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                hidden => scoped_path::is_directory(hidden.step(&step)?).step(&step)?,
            };
            let tree = match is_directory {
                true => DetachedMount::new("tmpfs", &[("size", b"4k"), ("mode", b"0755")], READ_FILES),
                false => scoped_path::open(Path::new("/dev/null"))
                    .and_then(|null| DetachedMount::copy(&null, DEVICES_ONLY)),
            };
            self.volumes.push(HostMount { tree: tree.step(&step)?, target: target.join(part), is_directory });
        }
        Ok(())
    }
}

fn sub_path_failure(mount: &ContainerMount, part: &Path, error: &io::Error) -> Failure {
    let target = mount.target.display();
    Failure::Config(match error.raw_os_error() {
        // openat2 returns EXDEV or ELOOP for paths that leave the volume.
        Some(18 | 40) => {
            format!("subPath {:?} for {target} leaves its volume through a symlink", part.display())
        }
        _ => format!("failed to prepare subPath {:?} for {target}: {error}", part.display()),
    })
}

/// Whether the path no longer exists, or is something else now.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn host_mount(source: &Path, target: &Path, flags: MountFlags) -> Result<HostMount, Failure> {
    let step = format!("{} of the host", source.display());
    copy(&scoped_path::open(source).step(&step)?, target, flags, &step)
}

fn copy(directory_fd: &OwnedFd, target: &Path, flags: MountFlags, step: &str) -> Result<HostMount, Failure> {
    let is_directory = scoped_path::is_directory(directory_fd).step(step)?;
    Ok(HostMount {
        tree: DetachedMount::copy(directory_fd, flags).step(step)?,
        target: target.to_owned(),
        is_directory,
    })
}

/// An overlay over a host directory, with its upper and work directories in `scratch`.
fn overlay(scratch: &Path, lower: &str, names: [&str; 2], flags: MountFlags) -> io::Result<DetachedMount> {
    let [upper, work] = names.map(|name| scratch.join(name));
    let layers: [(&str, &[u8]); 3] = [
        ("lowerdir", lower.as_bytes()),
        ("upperdir", upper.as_os_str().as_bytes()),
        ("workdir", work.as_os_str().as_bytes()),
    ];
    DetachedMount::new("overlay", &layers, flags)
}

/// The new root, in its own mount namespace; not entered yet.
pub(crate) struct Root {
    /// tmpfs for what the container writes outside its volumes.
    scratch: DetachedMount,
    /// Where `scratch` is attached.
    directory: PathBuf,
    overlay: DetachedMount,
    /// The overlay's root directory.
    directory_fd: OwnedFd,
    /// Directories in `scratch` that are mounted in the root, and become read-only with it.
    parts: Vec<DetachedMount>,
    privileged: bool,
}

impl Root {
    /// Creates the overlay over the host's root. Its upper directory is in memory, since an overlay's upper directory
    /// cannot be within its lower one; and so it disappears with the last process, whatever happens.
    pub(crate) fn create(directory: &Path, bytes: u64, privileged: bool) -> Result<Self, Failure> {
        let size = bytes.to_string();
        let options: [(&str, &[u8]); 2] = [("size", size.as_bytes()), ("mode", b"0755")];
        let scratch = DetachedMount::new("tmpfs", &options, NO_DEVICES).step("scratch")?;
        scratch.attach(scoped_path::open(directory).step("scratch")?).step("scratch")?;
        for name in ["upper", "work", "dev-upper", "dev-work", "root", "parts"] {
            mkdirat(&scratch, name, Mode::from_raw_mode(0o755)).map_err(io::Error::from).step("scratch")?;
        }
        let flags = MountFlags { no_dev: !privileged, ..MountFlags::default() };
        let overlay =
            overlay(directory, "/", ["upper", "work"], flags).step("overlay over the host's root")?;
        let directory_fd = directory.join("root");
        overlay.attach(scoped_path::open(&directory_fd).step("root")?).step("root")?;
        let directory_fd = scoped_path::open(&directory_fd).step("root")?;
        let directory = directory.to_owned();
        Ok(Self { scratch, directory, overlay, directory_fd, parts: Vec::new(), privileged })
    }

    /// Attaches all mounts.
    pub(crate) fn attach_all(&mut self, host_mounts: &HostMounts, order: &Order) -> Result<(), Failure> {
        for host_mount in &host_mounts.system {
            self.attach_mount(host_mount)?;
        }
        for path in &host_mounts.hidden {
            self.hide(path)?;
        }
        self.part(Path::new("/tmp"), 0o1777)?;
        self.part(Path::new("/run"), 0o755)?;
        self.kernel_file_systems()?;
        self.devices(&host_mounts.devices)?;
        if !self.privileged {
            self.protect_kernel()?;
        }
        for host_mount in &host_mounts.volumes {
            self.attach_mount(host_mount)?;
        }
        if !order.spec.working_dir.as_os_str().is_empty() {
            scoped_path::create_directory_in_root(&self.directory_fd, &order.spec.working_dir)
                .map(drop)
                .step("working directory")?;
        }
        Ok(())
    }

    /// Makes it the root of this namespace; the host's mounts are removed from it.
    pub(crate) fn enter(&self, read_only: bool) -> Result<(), Failure> {
        if read_only {
            let flags = MountFlags { read_only: true, ..MountFlags::default() };
            self.overlay.restrict(flags).step("read-only root")?;
            for part in &self.parts {
                part.restrict(flags).step("read-only root")?;
            }
        }
        sandbox::pivot_to_root(&self.directory_fd).step("change of the root")
    }

    fn attach_mount(&self, host_mount: &HostMount) -> Result<(), Failure> {
        let step = format!("mount at {}", host_mount.target.display());
        let target = match host_mount.is_directory {
            true => scoped_path::create_directory_in_root(&self.directory_fd, &host_mount.target),
            false => scoped_path::create_file_in_root(&self.directory_fd, &host_mount.target),
        };
        host_mount.tree.attach(target.step(&step)?).step(&step)
    }

    /// Mounts an empty directory over `path`.
    fn part(&mut self, path: &Path, mode: u32) -> Result<(), Failure> {
        let step = format!("empty {}", path.display());
        let target = scoped_path::create_directory_in_root(&self.directory_fd, path).step(&step)?;
        let name = format!("parts/{}", self.parts.len());
        let umask = rustix::process::umask(Mode::empty());
        let made = mkdirat(&self.scratch, &name, Mode::from_raw_mode(mode)).map_err(io::Error::from);
        rustix::process::umask(umask);
        made.step(&step)?;
        let source = openat(&self.scratch, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .step(&step)?;
        let tree = DetachedMount::copy(&source, MountFlags { no_suid: true, ..NO_DEVICES }).step(&step)?;
        tree.attach(target).step(&step)?;
        self.parts.push(tree);
        Ok(())
    }

    /// Covers a path of the host with an empty directory or file. A missing path is created: the host may create it
    /// later, and the overlay would show it.
    fn hide(&mut self, path: &Path) -> Result<(), Failure> {
        match scoped_path::open_in_root(&self.directory_fd, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.part(path, 0o755),
            Err(error) => Err(Failure::machine(format_args!("hiding {}", path.display()), error)),
            Ok(directory_fd) if scoped_path::is_directory(&directory_fd).step("hiding")? => {
                self.part(path, 0o755)
            }
            Ok(directory_fd) => self.cover(&directory_fd, path),
        }
    }

    /// Mounts the null device over a file.
    fn cover(&self, directory_fd: &OwnedFd, path: &Path) -> Result<(), Failure> {
        let step = format!("hiding {}", path.display());
        let null = scoped_path::open(Path::new("/dev/null")).step(&step)?;
        DetachedMount::copy(&null, DEVICES_ONLY).and_then(|tree| tree.attach(directory_fd)).step(&step)
    }

    fn attach_new(
        &self,
        fs_type: &str,
        options: &[(&str, &[u8])],
        flags: MountFlags,
        path: &str,
    ) -> Result<(), Failure> {
        let tree = DetachedMount::new(fs_type, options, flags).step(path)?;
        let target = scoped_path::create_directory_in_root(&self.directory_fd, Path::new(path)).step(path)?;
        tree.attach(target).step(path)
    }

    fn kernel_file_systems(&self) -> Result<(), Failure> {
        self.attach_new("proc", &[], FILES_ONLY, "/proc")?;
        let sys = if self.privileged { FILES_ONLY } else { READ_FILES };
        self.attach_new("sysfs", &[], sys, "/sys")
    }

    /// A few devices; with privileges all of the host's, under an overlay, since `/dev` is the host's own.
    fn devices(&self, devices: &[HostMount]) -> Result<(), Failure> {
        let tree = if self.privileged {
            overlay(&self.directory, "/dev", ["dev-upper", "dev-work"], DEVICES_ONLY)
        } else {
            let options: [(&str, &[u8]); 2] = [("size", b"64m"), ("mode", b"0755")];
            DetachedMount::new("tmpfs", &options, MountFlags { no_suid: true, ..NO_DEVICES })
        };
        let target =
            scoped_path::create_directory_in_root(&self.directory_fd, Path::new("/dev")).step("/dev")?;
        tree.and_then(|tree| tree.attach(target)).step("/dev")?;
        for host_mount in devices {
            self.attach_mount(host_mount)?;
        }
        let terminals: [(&str, &[u8]); 3] = [("ptmxmode", b"0666"), ("mode", b"0620"), ("gid", b"5")];
        self.attach_new("devpts", &terminals, DEVICES_ONLY, "/dev/pts")?;
        self.attach_new("tmpfs", &[("size", b"64m"), ("mode", b"1777")], FILES_ONLY, "/dev/shm")?;
        self.attach_new("mqueue", &[], FILES_ONLY, "/dev/mqueue")?;
        if !self.privileged {
            for (to, path) in LINKS {
                scoped_path::create_symlink_in_root(&self.directory_fd, Path::new(to), Path::new(path))
                    .step(path)?;
            }
        }
        Ok(())
    }

    /// Masks parts of `/proc` and `/sys` that expose the host, and makes those that control it read-only.
    fn protect_kernel(&self) -> Result<(), Failure> {
        for path in MASKED {
            match scoped_path::open_in_root(&self.directory_fd, Path::new(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(directory_fd) if scoped_path::is_directory(&directory_fd).step(path)? => {
                    DetachedMount::new("tmpfs", &[("size", b"4k")], READ_FILES)
                        .and_then(|tree| tree.attach(&directory_fd))
                        .step(path)?;
                }
                Ok(directory_fd) => self.cover(&directory_fd, Path::new(path))?,
                Err(error) => return Err(Failure::machine(path, error)),
            }
        }
        for path in READ_ONLY {
            match scoped_path::open_in_root(&self.directory_fd, Path::new(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(directory_fd) => {
                    DetachedMount::copy(&directory_fd, READ_FILES)
                        .and_then(|tree| tree.attach(&directory_fd))
                        .step(path)?;
                }
                Err(error) => return Err(Failure::machine(path, error)),
            }
        }
        Ok(())
    }
}
