//! Splits `mount -o` options as mount(8) does: into flags of the system call, and data for the file system.

use rustix::mount::MountFlags;

/// Options after the split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountOptions {
    pub(crate) flags: MountFlags,
    /// Options for the file system, in the given order.
    pub(crate) data: Vec<String>,
}

/// Each name with its flag, and whether the name sets (true) or clears the flag.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
    ("relatime", MountFlags::RELATIME, true),
    ("norelatime", MountFlags::RELATIME, false),
    ("strictatime", MountFlags::STRICTATIME, true),
    ("nostrictatime", MountFlags::STRICTATIME, false),
    ("lazytime", MountFlags::LAZYTIME, true),
    ("nolazytime", MountFlags::LAZYTIME, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
    ("silent", MountFlags::SILENT, true),
    ("loud", MountFlags::SILENT, false),
    ("mand", MountFlags::PERMIT_MANDATORY_FILE_LOCKING, true),
    ("nomand", MountFlags::PERMIT_MANDATORY_FILE_LOCKING, false),
];

/// Options for user-space programs, unknown to the kernel and to file systems.
const IGNORED: &[&str] = &["defaults", "_netdev", "nofail", "auto", "noauto", "nouser"];

/// Splits the options; each may be a comma-separated list. The last of contradicting flags wins.
pub(crate) fn split(options: &[String]) -> MountOptions {
    let mut flags = MountFlags::empty();
    let mut data = Vec::new();
    for option in options.iter().flat_map(|option| option.split(',')) {
        if let Some((_, flag, set)) = FLAGS.iter().find(|(name, ..)| *name == option) {
            flags.set(*flag, *set);
        } else if !option.is_empty() && !option.starts_with("x-") && !IGNORED.contains(&option) {
            data.push(option.to_owned());
        }
    }
    MountOptions { flags, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_split_like_mount_does() {
        let ro = MountFlags::RDONLY;
        let table: &[(&[&str], MountFlags, &[&str])] = &[
            (&[], MountFlags::empty(), &[]),
            (&["defaults"], MountFlags::empty(), &[]),
            (&["ro"], ro, &[]),
            (&["ro", "rw"], MountFlags::empty(), &[]),
            (&["rw", "ro"], ro, &[]),
            (&["noatime,nodev", "discard"], MountFlags::NOATIME | MountFlags::NODEV, &["discard"]),
            (&["data=ordered", "barrier=1"], MountFlags::empty(), &["data=ordered", "barrier=1"]),
            (&["", "x-systemd.automount", "nofail", "_netdev"], MountFlags::empty(), &[]),
            (&["size=1m,mode=0700"], MountFlags::empty(), &["size=1m", "mode=0700"]),
            // Not in our table: the file system rejects them, so nothing is remounted or bound.
            (&["remount", "bind"], MountFlags::empty(), &["remount", "bind"]),
        ];
        for (options, flags, data) in table {
            let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
            let expected =
                MountOptions { flags: *flags, data: data.iter().map(|word| (*word).to_owned()).collect() };
            assert_eq!(split(&options), expected, "{options:?}");
        }
    }
}
