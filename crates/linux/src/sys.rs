//! System calls that neither the standard library nor rustix wraps, each as one safe function.
//!
//! Nothing here makes decisions: a function makes one call and returns the kernel's result. Numbers and layouts are those
//! of the kernel's user-space headers for the architectures with generic ioctl numbers (x86-64, arm64, riscv64).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, RawFd};

const LOOP_CLR_FD: libc::Ioctl = 0x4C01_u32 as libc::Ioctl;
const LOOP_SET_STATUS64: libc::Ioctl = 0x4C04_u32 as libc::Ioctl;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05_u32 as libc::Ioctl;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07_u32 as libc::Ioctl;
const LOOP_SET_BLOCK_SIZE: libc::Ioctl = 0x4C09_u32 as libc::Ioctl;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A_u32 as libc::Ioctl;
const LOOP_CTL_REMOVE: libc::Ioctl = 0x4C81_u32 as libc::Ioctl;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82_u32 as libc::Ioctl;
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;
const FIFREEZE: libc::Ioctl = 0xC004_5877_u32 as libc::Ioctl;
const FITHAW: libc::Ioctl = 0xC004_5878_u32 as libc::Ioctl;
const FS_IOC_FIEMAP: libc::Ioctl = 0xC020_660B_u32 as libc::Ioctl;
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801C_581F_u32 as libc::Ioctl;
const FS_IOC_FSSETXATTR: libc::Ioctl = 0x401C_5820_u32 as libc::Ioctl;

/// No writes through the loop device.
pub(crate) const LO_FLAGS_READ_ONLY: u32 = 1;
/// The kernel detaches the loop device when it is closed for the last time.
pub(crate) const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// The loop device bypasses the page cache of its file.
pub(crate) const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) rdevice: u64,
    pub(crate) offset: u64,
    pub(crate) size_limit: u64,
    pub(crate) number: u32,
    pub(crate) encrypt_type: u32,
    pub(crate) encrypt_key_size: u32,
    pub(crate) flags: u32,
    pub(crate) file_name: [u8; 64],
    pub(crate) crypt_name: [u8; 64],
    pub(crate) encrypt_key: [u8; 32],
    pub(crate) init: [u64; 2],
}

impl LoopInfo {
    pub(crate) const ZERO: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct FiemapExtent {
    pub(crate) logical: u64,
    pub(crate) physical: u64,
    pub(crate) length: u64,
    pub(crate) reserved64: [u64; 2],
    pub(crate) flags: u32,
    pub(crate) reserved: [u32; 3],
}

/// How many extents one FIEMAP call requests.
pub(crate) const FIEMAP_PAGE: usize = 512;

/// `struct fiemap` with space for [`FIEMAP_PAGE`] extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; FIEMAP_PAGE],
}

/// `struct mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct FsAttributes {
    pub(crate) flags: u32,
    extent_size: u32,
    extents: u32,
    pub(crate) project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `struct if_nextdqblk`, which is `struct if_dqblk` with a number in its padding.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Quota {
    /// In units of 1024 bytes.
    pub(crate) hard_limit: u64,
    /// In units of 1024 bytes.
    pub(crate) soft_limit: u64,
    /// In bytes.
    pub(crate) used: u64,
    pub(crate) inode_hard_limit: u64,
    pub(crate) inode_soft_limit: u64,
    pub(crate) inodes: u64,
    pub(crate) space_time: u64,
    pub(crate) inode_time: u64,
    /// Which of the fields are valid.
    pub(crate) valid: u32,
    /// The project; only from [`quota_get_next`].
    pub(crate) id: u32,
}

/// `struct fs_quota_statv`.
#[repr(C)]
struct QuotaState {
    version: i8,
    padding: u8,
    flags: u16,
    rest: [u32; 39],
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An ioctl whose argument is an integer or nothing.
fn ioctl_value(fd: impl AsFd, request: libc::Ioctl, value: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: only called below with requests whose argument the kernel takes by value, so no memory of
    // ours is read or written; the descriptor is borrowed and thus open.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, value) })
}

/// An ioctl whose argument points at a structure.
///
/// # Safety
/// `T` must have the size and layout that `request` reads or writes, and any bytes the kernel may store
/// there must be a valid `T`.
unsafe fn ioctl_struct<T>(fd: impl AsFd, request: libc::Ioctl, argument: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: `argument` is valid for reads and writes for the whole call; its layout is the caller's promise.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, std::ptr::from_mut(argument)) })
}

/// A loop device number that is free right now; another process may take it first.
pub(crate) fn loop_free_number(control: impl AsFd) -> io::Result<u32> {
    ioctl_value(control, LOOP_CTL_GET_FREE, 0).map(|number| number.unsigned_abs())
}

/// Removes a loop device that is not configured and not open, with all its settings.
pub(crate) fn loop_remove(control: impl AsFd, number: u32) -> io::Result<()> {
    ioctl_value(control, LOOP_CTL_REMOVE, number.into()).map(drop)
}

/// Attaches `file` to the loop device and sets its whole configuration in one call.
pub(crate) fn loop_configure(
    device: impl AsFd,
    file: impl AsFd,
    block_size: u32,
    info: LoopInfo,
) -> io::Result<()> {
    // A descriptor is never negative.
    let fd = file.as_fd().as_raw_fd().unsigned_abs();
    let mut config = LoopConfig { fd, block_size, info, reserved: [0; 8] };
    // SAFETY: `LoopConfig` has the layout of `struct loop_config`, all plain integers.
    unsafe { ioctl_struct(device, LOOP_CONFIGURE, &mut config) }.map(drop)
}

/// The configuration of the loop device; ENXIO if it is not configured.
pub(crate) fn loop_status(device: impl AsFd) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::ZERO;
    // SAFETY: `LoopInfo` has the layout of `struct loop_info64`, all plain integers.
    unsafe { ioctl_struct(device, LOOP_GET_STATUS64, &mut info) }?;
    Ok(info)
}

/// Changes the settings of a configured loop device, such as [`LO_FLAGS_AUTOCLEAR`].
pub(crate) fn loop_set_status(device: impl AsFd, mut info: LoopInfo) -> io::Result<()> {
    // SAFETY: `LoopInfo` has the layout of `struct loop_info64`, all plain integers.
    unsafe { ioctl_struct(device, LOOP_SET_STATUS64, &mut info) }.map(drop)
}

/// Updates the loop device to the size of its file.
pub(crate) fn loop_set_capacity(device: impl AsFd) -> io::Result<()> {
    ioctl_value(device, LOOP_SET_CAPACITY, 0).map(drop)
}

/// Sets the loop device's logical block size.
pub(crate) fn loop_set_block_size(device: impl AsFd, bytes: u32) -> io::Result<()> {
    ioctl_value(device, LOOP_SET_BLOCK_SIZE, bytes.into()).map(drop)
}

/// Releases the loop device's file: at once if no other process has the device open, else at the last close.
pub(crate) fn loop_clear(device: impl AsFd) -> io::Result<()> {
    ioctl_value(device, LOOP_CLR_FD, 0).map(drop)
}

/// The size of a block device in bytes.
pub(crate) fn block_size64(device: impl AsFd) -> io::Result<u64> {
    let mut bytes = 0_u64;
    // SAFETY: the request writes one 64-bit integer.
    unsafe { ioctl_struct(device, BLKGETSIZE64, &mut bytes) }?;
    Ok(bytes)
}

/// FIFREEZE on a raw descriptor. Async-signal-safe, so a forked child can call it. Returns an errno; 0 is success.
pub(crate) fn freeze_raw(fd: RawFd) -> i32 {
    // SAFETY: takes its argument by value; a bad descriptor is an error, not undefined behaviour.
    if unsafe { libc::ioctl(fd, FIFREEZE, 0) } < 0 { errno() } else { 0 }
}

/// FITHAW on a raw descriptor, like [`freeze_raw`].
pub(crate) fn thaw_raw(fd: RawFd) -> i32 {
    // SAFETY: as in `freeze_raw`.
    if unsafe { libc::ioctl(fd, FITHAW, 0) } < 0 { errno() } else { 0 }
}

/// The calling thread's errno; async-signal-safe.
pub(crate) fn errno() -> i32 {
    // SAFETY: the pointer is to this thread's own errno and always valid.
    unsafe { *libc::__errno_location() }
}

/// One page of the file's extents from `start` on, after flushing its data.
pub(crate) fn fiemap(file: impl AsFd, start: u64, length: u64) -> io::Result<Vec<FiemapExtent>> {
    const FIEMAP_FLAG_SYNC: u32 = 1;
    let mut map = Box::new(Fiemap {
        start,
        length,
        flags: FIEMAP_FLAG_SYNC,
        mapped_extents: 0,
        extent_count: FIEMAP_PAGE as u32,
        reserved: 0,
        extents: [FiemapExtent::default(); FIEMAP_PAGE],
    });
    // SAFETY: `Fiemap` is `struct fiemap` followed by as many extents as `extent_count` says, all integers.
    unsafe { ioctl_struct(file, FS_IOC_FIEMAP, &mut *map) }?;
    Ok(map.extents[..FIEMAP_PAGE.min(map.mapped_extents as usize)].to_vec())
}

/// Makes a detached mount (`open_tree` with a clone) read-only.
pub(crate) fn mount_set_read_only(mount: impl AsFd) -> io::Result<()> {
    const MOUNT_ATTR_RDONLY: u64 = 1;
    mount_set_attributes(mount, MOUNT_ATTR_RDONLY, false)
}

/// Sets attributes of one mount; `private` also removes it from its peer group, so that mounts and unmounts no longer
/// propagate.
pub(crate) fn mount_set_attributes(mount: impl AsFd, set: u64, private: bool) -> io::Result<()> {
    const EMPTY: &CStr = c"";
    let propagation = if private { libc::MS_PRIVATE } else { 0 };
    let attributes = MountAttr { set, clear: 0, propagation, user_namespace: 0 };
    // SAFETY: the path is a NUL-terminated string and the attributes are a `struct mount_attr` of the size
    // given; the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_fd().as_raw_fd(),
            EMPTY.as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            size_of::<MountAttr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The flags and the project of a file.
pub(crate) fn fs_attributes(file: impl AsFd) -> io::Result<FsAttributes> {
    let mut attributes = FsAttributes::default();
    // SAFETY: `FsAttributes` has the layout of `struct fsxattr`, all plain integers.
    unsafe { ioctl_struct(file, FS_IOC_FSGETXATTR, &mut attributes) }?;
    Ok(attributes)
}

/// Sets the flags and the project of a file. Pass what [`fs_attributes`] returned, with changes.
pub(crate) fn set_fs_attributes(file: impl AsFd, mut attributes: FsAttributes) -> io::Result<()> {
    // SAFETY: `FsAttributes` has the layout of `struct fsxattr`, all plain integers.
    unsafe { ioctl_struct(file, FS_IOC_FSSETXATTR, &mut attributes) }.map(drop)
}

/// quotactl_fd(2) for project quotas.
///
/// # Safety
/// `T` must have the size and layout that `command` reads or writes, and any bytes the kernel may store there must be a
/// valid `T`.
unsafe fn project_quotactl<T>(file: impl AsFd, command: u32, id: u32, argument: &mut T) -> io::Result<()> {
    const PROJECT: u32 = 2;
    // SAFETY: `argument` is valid for reads and writes for the whole call; its layout is the caller's promise. The
    // descriptor is borrowed and thus open.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_fd().as_raw_fd(),
            command << 8 | PROJECT,
            id,
            std::ptr::from_mut(argument),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The limits and the usage of a project.
pub(crate) fn quota_get(file: impl AsFd, id: u32) -> io::Result<Quota> {
    const Q_GETQUOTA: u32 = 0x80_0007;
    let mut quota = Quota::default();
    // SAFETY: `Quota` has the layout of `struct if_dqblk`, all plain integers.
    unsafe { project_quotactl(file, Q_GETQUOTA, id, &mut quota) }?;
    Ok(quota)
}

/// The limits and the usage of the first project with at least this number; ENOENT if there is none.
pub(crate) fn quota_get_next(file: impl AsFd, id: u32) -> io::Result<Quota> {
    const Q_GETNEXTQUOTA: u32 = 0x80_0009;
    let mut next = Quota::default();
    // SAFETY: `Quota` has the layout of `struct if_nextdqblk`, all plain integers.
    unsafe { project_quotactl(file, Q_GETNEXTQUOTA, id, &mut next) }?;
    Ok(next)
}

/// Sets the limits of a project: those that `valid` names.
pub(crate) fn quota_set(file: impl AsFd, id: u32, mut quota: Quota) -> io::Result<()> {
    const Q_SETQUOTA: u32 = 0x80_0008;
    // SAFETY: `Quota` has the layout of `struct if_dqblk`, all plain integers.
    unsafe { project_quotactl(file, Q_SETQUOTA, id, &mut quota) }
}

/// Which kinds of quotas the file system counts and enforces: `FS_QUOTA_*`.
pub(crate) fn quota_flags(file: impl AsFd) -> io::Result<u16> {
    const Q_XGETQSTATV: u32 = 0x5808;
    let mut state = QuotaState { version: 1, padding: 0, flags: 0, rest: [0; 39] };
    // SAFETY: `QuotaState` has the size of `struct fs_quota_statv` and its first fields, all plain integers.
    unsafe { project_quotactl(file, Q_XGETQSTATV, 0, &mut state) }?;
    Ok(state.flags)
}

/// Sets close-on-exec on every descriptor from `first` on.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: takes its arguments by value and closes nothing now, so all owned descriptors stay valid.
    let result =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_match_the_kernel_headers() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(size_of::<FiemapExtent>(), 56);
        assert_eq!(size_of::<Fiemap>(), 32 + 56 * FIEMAP_PAGE);
        assert_eq!(size_of::<MountAttr>(), 32);
        assert_eq!(size_of::<FsAttributes>(), 28);
        assert_eq!(size_of::<Quota>(), 72);
        assert_eq!(size_of::<QuotaState>(), 160);
    }
}
