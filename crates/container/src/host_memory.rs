//! Files in which a host stores memory of its processes, with their secrets: swap files and core dumps. Containers must not
//! see them. They are looked up when a container starts, since swap can be added at any time.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

/// Where programs that collect core dumps store them by default.
const DUMPS: [&str; 2] = ["/var/crash", "/var/lib/systemd/coredump"];

/// Directories that have other files than core dumps, which pods may need.
const SHARED: [&str; 25] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/dev/shm",
    "/etc",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/tmp",
];

/// The paths to hide, without symlinks. A path that does not exist is left out.
pub(crate) fn paths() -> io::Result<Vec<PathBuf>> {
    let (swaps, pattern) = (read("/proc/swaps")?, read("/proc/sys/kernel/core_pattern")?);
    let dumps = DUMPS.iter().map(PathBuf::from).chain(dump_directory(&pattern));
    let dumps = dumps.filter_map(|path| path.canonicalize().ok()).filter(|path| !is_shared(path));
    let swaps = swap_files(&swaps).into_iter().filter_map(|path| path.canonicalize().ok());
    Ok(dumps.chain(swaps).collect::<BTreeSet<_>>().into_iter().collect())
}

/// The content of a file of the kernel; empty if the kernel does not have it.
fn read(path: &str) -> io::Result<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        content => content,
    }
}

/// The files in `/proc/swaps`. Partitions are left out: a container has no devices of the host.
fn swap_files(swaps: &[u8]) -> Vec<PathBuf> {
    let file = |line: &[u8]| {
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let (name, kind) = (unescape(fields.next()?), fields.next()?);
        let path = PathBuf::from(OsString::from_vec(name));
        (kind == b"file" && path.is_absolute()).then_some(path)
    };
    swaps.split(|&byte| byte == b'\n').skip(1).filter_map(file).collect()
}

/// The kernel escapes white space and backslashes as three octal digits.
fn unescape(mut text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while let [first, rest @ ..] = text {
        let octal = rest.get(..3).filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                text = &rest[3..];
            }
            None => {
                plain.push(*first);
                text = rest;
            }
        }
    }
    plain
}

/// The directory of an absolute `core_pattern`, up to the first part that is different for each dump.
fn dump_directory(pattern: &[u8]) -> Option<PathBuf> {
    let pattern = PathBuf::from(OsString::from_vec(pattern.trim_ascii().to_vec()));
    let is_fixed = |part: &Component<'_>| !part.as_os_str().as_encoded_bytes().contains(&b'%');
    let directory: PathBuf = pattern.parent()?.components().take_while(is_fixed).collect();
    directory.is_absolute().then_some(directory)
}

fn is_shared(directory: &Path) -> bool {
    SHARED.iter().any(|shared| directory == Path::new(shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_swap_files_are_listed() {
        let header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        let cases: [(&str, &str, &[&str]); 4] = [
            ("no swap", "", &[]),
            ("a partition", "/dev/sda2                partition\t8388604\t\t0\t\t-2\n", &[]),
            (
                "files",
                "/swap.img                 file\t\t4\t0\t-2\n/data/swap\\040file\\134x file\t4\t0\t-3\n",
                &["/swap.img", "/data/swap file\\x"],
            ),
            (
                "names that are no escapes",
                "/a\\9x  file 4 0 -2\n/b\\04 file 4 0 -3\nfile\n",
                &["/a\\9x", "/b\\04"],
            ),
        ];
        for (case, lines, expected) in cases {
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(swap_files(format!("{header}{lines}").as_bytes()), expected, "{case}");
        }
        assert_eq!(swap_files(b""), Vec::<PathBuf>::new(), "a kernel without swap");
    }

    #[test]
    fn directory_of_core_dumps_is_the_fixed_part_of_an_absolute_pattern() {
        for (pattern, directory, hidden) in [
            ("core\n", None, false),
            ("", None, false),
            ("cores/core.%p\n", None, false),
            ("|/usr/lib/systemd/systemd-coredump %P %u\n", None, false),
            ("/var/cores/core.%e.%p\n", Some("/var/cores"), true),
            ("/cores/%h/%e/core\n", Some("/cores"), true),
            ("/core.%p\n", Some("/"), false),
            ("/tmp/core\n", Some("/tmp"), false),
            ("/var/tmp/%e/core\n", Some("/var/tmp"), false),
        ] {
            let found = dump_directory(pattern.as_bytes());
            assert_eq!(found.as_deref(), directory.map(Path::new), "{pattern}");
            assert_eq!(found.is_some_and(|found| !is_shared(&found)), hidden, "{pattern}");
        }
    }
}
