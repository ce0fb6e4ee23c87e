//! File systems: probed by our own code; created, checked and grown by their own programs.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::devices::Reader;
use super::{Linux, freeze, loops, uuids};
use crate::command::{Command, ProgramOutput};
use crate::{
    BlockDevices as _, Error, FileBeneath, FileId, FileStat, Filesystems, Frozen, FsCheck, FsError, FsType,
    FsUsage, MakeFsRequest, Mounts as _, ProbeResult, Result, mkfs, probe,
};

/// mkfs writes little data, so a longer run means that it hangs.
const MKFS_TIMEOUT: Duration = Duration::from_secs(300);
/// A full check of a large ext4 is the slowest program run.
const CHECK_TIMEOUT: Duration = Duration::from_secs(3600);
const GROW_TIMEOUT: Duration = Duration::from_secs(600);

impl Filesystems for Linux {
    fn probe(&self, device: &Path) -> Result<ProbeResult> {
        let mut reader = Reader::open(device)?;
        if reader.size() == 0 {
            // An empty device must not be reported as "no signature": the content of the volume is unknown.
            let reason = "has size 0: no image or medium is attached".to_owned();
            return Err(Error::InvalidState { path: device.to_owned(), reason });
        }
        probe::identify(reader.size(), &mut |offset, buffer| reader.read(offset, buffer))
    }

    fn make_fs(&self, device: &Path, request: &MakeFsRequest<'_>) -> Result<()> {
        let arguments = mkfs::arguments(request)
            .map_err(|reason| Error::InvalidState { path: device.to_owned(), reason })?;
        let program = format!("mkfs.{}", request.fs);
        Command::new(&program, device, MKFS_TIMEOUT).args(arguments).args([utf8_path(device)?]).run()?;
        sync(device)?;
        // The caller records this UUID as formatted, so verify that the options did not lead to another result.
        match self.probe(device)? {
            ProbeResult::Filesystem { fs, uuid } if fs == request.fs && uuid == request.uuid => Ok(()),
            found => {
                let reason = format!("was formatted with {program}, but a probe found {found:?}");
                Err(Error::InvalidState { path: device.to_owned(), reason })
            }
        }
    }

    fn check_fs(&self, device: &Path, fs: FsType, check: FsCheck) -> Result<(), FsError> {
        match fs {
            FsType::Ext4 => {
                let options: &[&str] = match check {
                    FsCheck::BeforeMount => &["-p"],
                    FsCheck::Full => &["-f", "-p"],
                    FsCheck::Repair => &["-f", "-y"],
                };
                interpret_e2fsck(device, e2fsck(device, options)?)
            }
            // A mount replays their log; no other repair is safe before it.
            FsType::Xfs | FsType::Btrfs => Ok(()),
        }
    }

    fn grow_fs(&self, device: &Path, fs: FsType, mounted_at: Option<&Path>) -> Result<()> {
        let path = utf8_path(device)?;
        match (fs, mounted_at) {
            // While it is mounted, the kernel grows it in transactions; else resize2fs itself moves its metadata. It then
            // refuses a file system that was mounted after the last full check.
            (FsType::Ext4, _) => {
                Command::new("resize2fs", device, GROW_TIMEOUT).args([path]).outlives_us().run().map(drop)
            }
            (FsType::Xfs, Some(at)) => {
                Command::new("xfs_growfs", device, GROW_TIMEOUT).args(["-d", utf8_path(at)?]).run().map(drop)
            }
            (FsType::Btrfs, Some(at)) => Command::new("btrfs", device, GROW_TIMEOUT)
                .args(["filesystem", "resize", "max", utf8_path(at)?])
                .run()
                .map(drop),
            (FsType::Xfs | FsType::Btrfs, None) => Err(Error::InvalidState {
                path: device.to_owned(),
                reason: format!("{fs} can grow only while it is mounted; it grows at the next mount"),
            }),
        }
    }

    fn can_grow_online(&self, fs: FsType) -> Result<(), String> {
        match fs {
            FsType::Xfs | FsType::Btrfs => Ok(()),
            FsType::Ext4 => {
                let status = std::fs::read_to_string("/proc/self/status")
                    .map_err(|error| format!("failed to read /proc/self/status: {error}"))?;
                if has_sys_resource(&status) {
                    return Ok(());
                }
                Err("the kernel grows a mounted ext4 only for a process with CAP_SYS_RESOURCE, which this process \
                     does not have"
                    .to_owned())
            }
        }
    }

    fn set_fs_uuid(&self, device: &Path, fs: FsType, uuid: &str, scratch: &Path) -> Result<()> {
        uuids::set(self, device, fs, uuid, scratch)
    }

    fn usage(&self, path: &Path) -> Result<FsUsage> {
        let stat = rustix::fs::statvfs(path).map_err(|errno| Error::call("statvfs", path, errno))?;
        Ok(FsUsage {
            total_bytes: stat.f_blocks * stat.f_frsize,
            used_bytes: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
            available_bytes: stat.f_bavail * stat.f_frsize,
            total_inodes: stat.f_files,
            used_inodes: stat.f_files.saturating_sub(stat.f_ffree),
            available_inodes: stat.f_favail,
            read_only: stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
        })
    }

    fn file_beneath(&self, path: &Path) -> Result<Option<FileBeneath>> {
        let path = path.canonicalize().map_err(|error| Error::call("realpath", path, error))?;
        let table = self.mount_table()?;
        let Some(mount) = table.holding(&path) else { return Ok(None) };
        if !mount.source.starts_with("/dev/loop") {
            return Ok(None);
        }
        let Some((file, backing)) = loops::backing(Path::new(&mount.source))? else { return Ok(None) };
        // In another mount namespace, or deleted.
        let Ok(found) = std::fs::metadata(&file) else { return Ok(None) };
        let id = FileId { device: found.dev(), inode: found.ino() };
        if id != backing {
            return Ok(None);
        }
        let stat = FileStat { id, size: found.len(), allocated: found.blocks() * 512, is_dir: false };
        let usage = self.usage(&file)?;
        Ok(Some(FileBeneath { path: file, stat, usage }))
    }

    fn fs_error_count(&self, device: &Path, fs: FsType, _mounted_at: &Path) -> Result<u64> {
        error_count(self, device, fs)
    }

    fn freeze(&self, mount_points: &[&Path], at_most: Duration) -> Result<Box<dyn Frozen>> {
        freeze::freeze(mount_points, at_most)
    }

    fn thaw(&self, mount_point: &Path) -> Result<()> {
        freeze::thaw(mount_point)
    }
}

/// A path as a program argument: a path that is not UTF-8 is an error, and is never converted lossily.
pub(super) fn utf8_path(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| Error::InvalidState {
        path: path.to_owned(),
        reason: "is not UTF-8 and cannot be passed to a program".to_owned(),
    })
}

/// Flushes a device: afterwards all writes are on the disk, also below a loop device.
pub(super) fn sync(device: &Path) -> Result<()> {
    let file = std::fs::File::open(device).map_err(|error| Error::call("open", device, error))?;
    file.sync_all().map_err(|error| Error::call("fsync", device, error))
}

pub(super) fn e2fsck(device: &Path, options: &[&str]) -> Result<ProgramOutput> {
    Command::new("e2fsck", device, CHECK_TIMEOUT)
        .args(options.iter().copied())
        .args([utf8_path(device)?])
        .outlives_us()
        .run_any_exit_code()
}

/// e2fsck's exit code is a bit mask: 1 means repaired, 2 repaired and a reboot is advised (root file system only). With 4
/// errors remain, and with higher bits the check did not run.
pub(super) fn interpret_e2fsck(device: &Path, ended: ProgramOutput) -> Result<(), FsError> {
    match ended.code() {
        Some(0..=3) => Ok(()),
        Some(code) if code < 8 => Err(FsError::Damaged {
            fs: FsType::Ext4,
            device: device.to_owned(),
            // e2fsck reports its findings on standard output.
            details: format!("{} {}", ended.stdout.trim(), ended.stderr.trim()),
        }),
        code => Err(FsError::Check(Error::ProgramFailed {
            program: "e2fsck".to_owned(),
            path: device.to_owned(),
            status: format!("exit code {code:?}"),
            stderr: format!("{} {}", ended.stdout.trim(), ended.stderr.trim()),
        })),
    }
}

/// Converts damage to an [`Error`] for callers that return only that type.
pub(super) fn into_error(error: FsError) -> Error {
    match error {
        FsError::Check(error) => error,
        FsError::Damaged { device, details, fs } => Error::InvalidState {
            path: device,
            reason: format!("{fs} is damaged and was not repaired: {details}"),
        },
    }
}

/// Whether `CapEff` of /proc/PID/status has CAP_SYS_RESOURCE.
fn has_sys_resource(status: &str) -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
        .is_some_and(|value| value >> CAP_SYS_RESOURCE & 1 == 1)
}

fn error_count(kernel: &Linux, device: &Path, fs: FsType) -> Result<u64> {
    match fs {
        FsType::Xfs => Ok(0),
        FsType::Ext4 => {
            let (major, minor) = kernel.device_number(device)?;
            // The kernel's name of the device, independent of the node or symlink used to open it.
            let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
            let target = std::fs::read_link(&link).map_err(|error| Error::call("readlink", &link, error))?;
            let name = target.file_name().unwrap_or_default();
            let file = Path::new("/sys/fs/ext4").join(name).join("errors_count");
            let count = std::fs::read_to_string(&file).map_err(|error| Error::call("read", &file, error))?;
            count.trim().parse().map_err(|_| Error::InvalidState {
                path: file,
                reason: format!("has unexpected content {count:?}"),
            })
        }
        FsType::Btrfs => {
            let ProbeResult::Filesystem { uuid, .. } = kernel.probe(device)? else {
                let reason = "has no btrfs whose errors could be counted".to_owned();
                return Err(Error::InvalidState { path: device.to_owned(), reason });
            };
            btrfs_errors(&Path::new("/sys/fs/btrfs").join(uuid).join("devinfo"))
        }
    }
}

/// Sums all counters of all devices; 0 on kernels before 5.14, which do not have them.
fn btrfs_errors(devices: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(devices).map_err(|error| Error::call("readdir", devices, error))? {
        let entry = entry.map_err(|error| Error::call("readdir", devices, error))?;
        let file = entry.path().join("error_stats");
        match std::fs::read_to_string(&file) {
            Ok(text) => sum += sum_of_counters(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::call("read", &file, error)),
        }
    }
    Ok(sum)
}

/// Lines such as `read_errs 0`.
fn sum_of_counters(text: &str) -> u64 {
    text.lines().filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sys_resource_is_read_from_the_effective_set() {
        let status = |effective: &str| format!("Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective}\n");
        for (effective, has) in [
            ("000001ffffffffff", true),
            ("0000000001000000", true),
            ("000001fffeffffff", false),
            ("0", false),
        ] {
            assert_eq!(has_sys_resource(&status(effective)), has, "{effective}");
        }
        assert!(!has_sys_resource(""));
    }

    #[test]
    fn btrfs_counters_are_summed() {
        let text = "write_errs 1\nread_errs 2\nflush_errs 0\ncorruption_errs 40\ngeneration_errs 0\n";
        assert_eq!(sum_of_counters(text), 43);
        assert_eq!(sum_of_counters(""), 0);
    }
}
