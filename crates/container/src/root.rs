//! A container's root: an overlay over the host's root, with the container's volumes mounted in it and hidden paths
//! covered. The overlay's upper layer is discarded when the container ends.
//!
//! Everything writable is mounted with `nodev`, so a container that can create a device node cannot open it. The devices
//! of a container are the host's own nodes, bind-mounted one by one.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::hidden::{Host, path_of};
use crate::host_memory;
use crate::layout::{self, DEVICES, LINKS, MASKED, READ_ONLY, VisibleMounts};
use crate::record::Order;
use crate::report::{Failure, Step as _};
use crate::sandbox::{self, DetachedMount, MountFlags, scoped_path};
use crate::spec::ContainerMount;

const NO_DEVICES: MountFlags = MountFlags { read_only: false, no_dev: true, no_exec: false, no_suid: false };
const FILES_ONLY: MountFlags = MountFlags { read_only: false, no_dev: true, no_exec: true, no_suid: true };
const DEVICES_ONLY: MountFlags = MountFlags { read_only: false, no_dev: false, no_exec: true, no_suid: true };
const READ_ONLY_NO_DEVICES: MountFlags =
    MountFlags { read_only: true, no_dev: true, no_exec: false, no_suid: false };
const READ_ONLY_FILES: MountFlags = MountFlags { read_only: true, ..FILES_ONLY };

/// A host mount to be attached in the container.
struct HostMount {
    tree: DetachedMount,
    target: PathBuf,
    is_directory: bool,
}

/// Host mounts for a container, opened but not attached yet.
pub(crate) struct HostMounts {
    system: Vec<HostMount>,
    /// Hidden paths in the host's root and in the `system` mounts.
    hidden: Vec<PathBuf>,
    /// Like `hidden`, if they are in the container's root.
    hidden_if_present: Vec<PathBuf>,
    devices: Vec<HostMount>,
    volumes: Vec<HostMount>,
}

impl HostMounts {
    /// Opens everything that the container gets from the host.
    pub(crate) fn open(order: &Order) -> Result<Self, Failure> {
        let spec = &order.spec;
        let memory = host_memory::paths().step("swap files and core dumps")?;
        let required = Host::read(&order.hidden).step("mount table")?;
        let all: Vec<PathBuf> = order.hidden.iter().cloned().chain(memory).collect();
        let host = Host::read(&all).step("mount table")?;
        let root = Path::new("/");
        let (required, visible) =
            (layout::visible_in_root(&required).covered, layout::visible_in_root(&host));
        let mut host_mounts = Self {
            system: Vec::new(),
            hidden: required.iter().map(|part| root.join(part)).collect(),
            hidden_if_present: visible.covered.difference(&required).map(|part| root.join(part)).collect(),
            devices: Vec::new(),
            volumes: Vec::new(),
        };
        for path in visible.nested.iter().map(|part| root.join(part)) {
            // A mount that was unmounted since the table was read is skipped.
            if path.try_exists().unwrap_or(false) {
                host_mounts.system.push(host_mount(&path, &path, READ_ONLY_NO_DEVICES)?);
            }
        }
        if !spec.rights.privileged {
            for name in DEVICES {
                let path = Path::new("/dev").join(name);
                host_mounts.devices.push(host_mount(&path, &path, DEVICES_ONLY)?);
            }
        }
        for mount in &spec.mounts {
            host_mounts.add_volume(mount, &host, order)?;
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

    fn add_volume(&mut self, mount: &ContainerMount, host: &Host, order: &Order) -> Result<(), Failure> {
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
            // Checked before `open_subpath` creates it.
            if mount.host {
                admit(&directory_fd, part)?;
            }
            directory_fd = scoped_path::open_subpath(&directory_fd, part)
                .map_err(|error| sub_path_failure(mount, part, &error))?;
        }
        let visible = match &mount.sub_path {
            _ if mount.host => layout::visible_in_host_path(host, &admit(&directory_fd, Path::new(""))?),
            // Nested mounts are not included: kubelet binds only the subPath itself.
            Some(_) => VisibleMounts::default(),
            None => VisibleMounts {
                nested: layout::nested_mounts(host.table(), &path_of(&directory_fd).step(&step)?),
                ..VisibleMounts::default()
            },
        };
        self.volumes.push(bind_copy(&directory_fd, &mount.target, flags, &step)?);
        self.add_nested_and_covers(&directory_fd, &visible, &mount.target, flags)
    }

    /// Adds a volume's nested mounts, and covers for hidden paths. The pod can replace the volume's files at any
    /// time, so everything is resolved relative to the open directory and without following symlinks.
    fn add_nested_and_covers(
        &mut self,
        directory_fd: &OwnedFd,
        visible: &VisibleMounts,
        target: &Path,
        flags: MountFlags,
    ) -> Result<(), Failure> {
        for part in &visible.nested {
            let step = format!("mount {} of a volume", part.display());
            match scoped_path::open_without_symlinks(directory_fd, part) {
                // A mount that was unmounted since the table was read is skipped, also if there is a symlink or file in
                // its place now.
                Err(error) if is_gone(&error) => {}
                nested => {
                    self.volumes.push(bind_copy(&nested.step(&step)?, &target.join(part), flags, &step)?)
                }
            }
        }
        for part in &visible.covered {
            let step = format!("hide {}", part.display());
            let is_directory = match scoped_path::open_without_symlinks(directory_fd, part) {
                // Nothing to hide; covering it would create an entry in the host's directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                hidden => scoped_path::is_directory(hidden.step(&step)?).step(&step)?,
            };
            let tree = match is_directory {
                true => DetachedMount::new("tmpfs", &[("size", b"4k"), ("mode", b"0755")], READ_ONLY_FILES),
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
    Failure::Config(match Errno::from_io_error(error) {
        // The errors of openat2 for paths that leave the volume.
        Some(Errno::XDEV | Errno::LOOP) => {
            format!("subPath {:?} for {target} leaves its volume through a symlink", part.display())
        }
        _ => format!("failed to prepare subPath {:?} for {target}: {error}", part.display()),
    })
}

/// Whether the path no longer exists, or has been replaced by a symlink or file.
fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

fn host_mount(source: &Path, target: &Path, flags: MountFlags) -> Result<HostMount, Failure> {
    let step = format!("host path {}", source.display());
    bind_copy(&scoped_path::open(source).step(&step)?, target, flags, &step)
}

fn bind_copy(
    directory_fd: &OwnedFd,
    target: &Path,
    flags: MountFlags,
    step: &str,
) -> Result<HostMount, Failure> {
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

/// The container's root in its own mount namespace. [`Self::enter`] switches to it.
pub(crate) struct Root {
    /// The tmpfs with everything that the container writes outside its volumes.
    scratch: DetachedMount,
    /// Where `scratch` is attached.
    directory: PathBuf,
    overlay: DetachedMount,
    /// The overlay's root directory.
    directory_fd: OwnedFd,
    /// Empty directories of `scratch` that are mounted in the root and become read-only with it.
    empty_directories: Vec<DetachedMount>,
    privileged: bool,
}

impl Root {
    /// Creates the overlay over the host's root. Its upper directory is on a tmpfs, because an overlay's upper directory
    /// cannot be within its lower one. The tmpfs also disappears with the last process of the container, even after a
    /// crash.
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
        let root = directory.join("root");
        overlay.attach(scoped_path::open(&root).step("root")?).step("root")?;
        let directory_fd = scoped_path::open(&root).step("root")?;
        let directory = directory.to_owned();
        Ok(Self { scratch, directory, overlay, directory_fd, empty_directories: Vec::new(), privileged })
    }

    /// Attaches all mounts.
    pub(crate) fn attach_all(&mut self, host_mounts: &HostMounts, order: &Order) -> Result<(), Failure> {
        for host_mount in &host_mounts.system {
            self.attach_mount(host_mount)?;
        }
        for path in &host_mounts.hidden {
            self.hide(path)?;
        }
        for path in &host_mounts.hidden_if_present {
            match scoped_path::open_in_root(&self.directory_fd, path) {
                Err(error) if is_gone(&error) => {}
                _ => self.hide(path)?,
            }
        }
        self.mount_empty_directory(Path::new("/tmp"), 0o1777)?;
        self.mount_empty_directory(Path::new("/run"), 0o755)?;
        self.mount_proc_and_sys()?;
        self.mount_dev(&host_mounts.devices)?;
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

    /// Makes this the root of the mount namespace and detaches the host's mounts from the namespace.
    pub(crate) fn enter(&self, read_only: bool) -> Result<(), Failure> {
        if read_only {
            let flags = MountFlags { read_only: true, ..MountFlags::default() };
            self.overlay.restrict(flags).step("read-only root")?;
            for directory in &self.empty_directories {
                directory.restrict(flags).step("read-only root")?;
            }
        }
        sandbox::pivot_to_root(&self.directory_fd).step("pivot_root")
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
    fn mount_empty_directory(&mut self, path: &Path, mode: u32) -> Result<(), Failure> {
        let step = format!("empty directory at {}", path.display());
        let target = scoped_path::create_directory_in_root(&self.directory_fd, path).step(&step)?;
        let name = format!("parts/{}", self.empty_directories.len());
        let umask = rustix::process::umask(Mode::empty());
        let created = mkdirat(&self.scratch, &name, Mode::from_raw_mode(mode)).map_err(io::Error::from);
        rustix::process::umask(umask);
        created.step(&step)?;
        let source = openat(&self.scratch, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(io::Error::from)
            .step(&step)?;
        let tree = DetachedMount::copy(&source, MountFlags { no_suid: true, ..NO_DEVICES }).step(&step)?;
        tree.attach(target).step(&step)?;
        self.empty_directories.push(tree);
        Ok(())
    }

    /// Covers a path of the host with an empty directory or file. A missing path is created: the host may create it
    /// later, and the overlay would show it.
    fn hide(&mut self, path: &Path) -> Result<(), Failure> {
        match scoped_path::open_in_root(&self.directory_fd, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match scoped_path::create_directory_in_root(&self.directory_fd, path) {
                    // In a read-only mount of the host. If it appears later, containers that start after that do not see it.
                    Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
                    _ => self.mount_empty_directory(path, 0o755),
                }
            }
            Err(error) => Err(Failure::machine(format_args!("hide {}", path.display()), error)),
            Ok(directory_fd) if scoped_path::is_directory(&directory_fd).step("hide")? => {
                self.mount_empty_directory(path, 0o755)
            }
            Ok(directory_fd) => self.cover_file(&directory_fd, path),
        }
    }

    /// Mounts the null device over a file.
    fn cover_file(&self, directory_fd: &OwnedFd, path: &Path) -> Result<(), Failure> {
        let step = format!("hide {}", path.display());
        let null = scoped_path::open(Path::new("/dev/null")).step(&step)?;
        DetachedMount::copy(&null, DEVICES_ONLY).and_then(|tree| tree.attach(directory_fd)).step(&step)
    }

    /// Mounts a new file system at `path`.
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

    fn mount_proc_and_sys(&self) -> Result<(), Failure> {
        self.attach_new("proc", &[], FILES_ONLY, "/proc")?;
        let sys = if self.privileged { FILES_ONLY } else { READ_ONLY_FILES };
        self.attach_new("sysfs", &[], sys, "/sys")
    }

    /// Mounts `/dev`: a tmpfs with a few devices. A privileged container gets an overlay over the host's `/dev`, so that
    /// it can use all devices and not change the host's directory.
    fn mount_dev(&self, devices: &[HostMount]) -> Result<(), Failure> {
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
        let masked = MASKED.iter().map(PathBuf::from).chain(masked_of_cpus()?);
        for path in masked {
            let step = format!("mask {}", path.display());
            match scoped_path::open_in_root(&self.directory_fd, &path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(directory_fd) if scoped_path::is_directory(&directory_fd).step(&step)? => {
                    DetachedMount::new("tmpfs", &[("size", b"4k")], READ_ONLY_FILES)
                        .and_then(|tree| tree.attach(&directory_fd))
                        .step(&step)?;
                }
                Ok(directory_fd) => self.cover_file(&directory_fd, &path)?,
                Err(error) => return Err(Failure::machine(step, error)),
            }
        }
        for path in READ_ONLY {
            match scoped_path::open_in_root(&self.directory_fd, Path::new(path)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(directory_fd) => {
                    DetachedMount::copy(&directory_fd, READ_ONLY_FILES)
                        .and_then(|tree| tree.attach(&directory_fd))
                        .step(path)?;
                }
                Err(error) => return Err(Failure::machine(path, error)),
            }
        }
        Ok(())
    }
}

/// The directories to mask in those of the host's CPUs.
fn masked_of_cpus() -> Result<Vec<PathBuf>, Failure> {
    let entries = match std::fs::read_dir(layout::CPUS) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.step(layout::CPUS)?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    Ok(layout::masked_of_cpus(names.collect::<io::Result<Vec<_>>>().step(layout::CPUS)?))
}
