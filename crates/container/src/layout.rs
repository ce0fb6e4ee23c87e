//! Layout of a container's root: rules over plain data, no I/O.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use wharf_linux::MountTable;

use crate::capabilities;
use crate::hidden::{Host, shows_processes};
use crate::spec::ContainerSpec;

/// Devices in every container.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Symlinks in `/dev`.
pub(crate) const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
];

/// Paths masked in a container, as other container runtimes do: they expose the whole host.
pub(crate) const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// The directory of the CPUs.
pub(crate) const CPUS: &str = "/sys/devices/system/cpu";

/// Directories masked like [`MASKED`], given the names in [`CPUS`]: like the energy counters of powercap, they tell a
/// pod what the host and other pods compute. A CPU need not have one.
pub(crate) fn masked_of_cpus(names: impl IntoIterator<Item = String>) -> Vec<PathBuf> {
    let is_cpu = |name: &String| {
        let number = name.strip_prefix("cpu").unwrap_or_default();
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let directory = |name: String| Path::new(CPUS).join(name).join("thermal_throttle");
    names.into_iter().filter(is_cpu).map(directory).collect()
}

/// Paths that are read-only even for root in a container: writing to them would control the host.
pub(crate) const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Directories of programs and their settings: mounts at or beneath these are included.
const SYSTEM: [&str; 9] = ["/bin", "/etc", "/gnu", "/lib", "/lib64", "/nix", "/opt", "/sbin", "/usr"];
/// Mounts at exactly these paths are included. Mounts beneath them are user data or volumes.
const SYSTEM_EXACTLY: [&str; 4] = ["/home", "/root", "/srv", "/var"];

/// Validates a spec as far as possible without I/O. The message names the invalid field.
pub(crate) fn check(spec: &ContainerSpec) -> Result<(), String> {
    // The API rejects such names, but here they become directory names.
    for name in [&spec.namespace, &spec.pod, &spec.pod_uid, &spec.container] {
        if name.contains(['/', '\0']) || name == "." || name == ".." {
            return Err(format!("{name:?} is not a valid name"));
        }
    }
    if spec.user.non_root && spec.user.uid == 0 {
        return Err(format!(
            "container's runAsUser breaks non-root policy (pod: \"{}_{}({})\", container: {})",
            spec.pod, spec.namespace, spec.pod_uid, spec.container
        ));
    }
    if spec.command.first().is_none_or(String::is_empty) {
        return Err("the container has no command, and there is no image to provide one".to_owned());
    }
    if spec.command.iter().any(|argument| argument.contains('\0')) {
        return Err("the command contains a NUL character".to_owned());
    }
    for (name, value) in &spec.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!(
                "environment variable {name:?} is invalid: its name is empty, or it contains `=` or NUL"
            ));
        }
    }
    if !spec.working_dir.as_os_str().is_empty() {
        absolute("working directory", &spec.working_dir)?;
    }
    let (mounts, devices) = (spec.mounts.iter(), spec.devices.iter());
    for target in mounts.map(|mount| &mount.target).chain(devices.map(|device| &device.target)) {
        absolute("mount path", target)?;
        if target == Path::new("/") {
            return Err("a volume cannot be mounted at the root directory".to_owned());
        }
    }
    for part in spec.mounts.iter().filter_map(|mount| mount.sub_path.as_ref()) {
        if part.is_absolute() || part.components().any(|component| component == Component::ParentDir) {
            return Err(format!("subPath {:?} must be relative and must not contain \"..\"", part.display()));
        }
    }
    capabilities::resolve(spec.rights.privileged, &spec.rights.add, &spec.rights.drop)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn absolute(what: &str, path: &Path) -> Result<(), String> {
    if path.is_absolute() && !path.components().any(|component| component == Component::ParentDir) {
        Ok(())
    } else {
        Err(format!("{what} {:?} must be absolute and must not contain \"..\"", path.display()))
    }
}

/// Mounts beneath a volume's directory, relative to it; outer ones first.
pub(crate) fn nested_mounts(table: &MountTable, source: &Path) -> Vec<PathBuf> {
    let mounts = table.mounts().iter().map(|mount| mount.mount_point.as_path());
    let parts = mounts.filter_map(|path| path.strip_prefix(source).ok());
    let chosen: BTreeSet<&Path> = parts.filter(|part| !part.as_os_str().is_empty()).collect();
    chosen.into_iter().map(Path::to_owned).collect()
}

/// What a container sees of a host directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct VisibleMounts {
    /// Included mounts beneath the directory, relative to it; outer ones first.
    pub(crate) nested: Vec<PathBuf>,
    /// Hidden paths to cover with an empty directory or file, relative to the directory.
    pub(crate) covered: BTreeSet<PathBuf>,
}

/// What a container sees of a hostPath directory: no hidden directory, whichever mount leads to it, and no procfs.
pub(crate) fn visible_in_host_path(host: &Host, source: &Path) -> VisibleMounts {
    without_hidden(host, source, nested_mounts(host.table(), source))
}

/// What a container sees of the host's root: its own file system and mounts of programs and settings. Other mounts are
/// excluded, so that containers do not prevent the host from unmounting them.
pub(crate) fn visible_in_root(host: &Host) -> VisibleMounts {
    let root = Path::new("/");
    let is_system = |part: &PathBuf| {
        let path = root.join(part);
        SYSTEM.iter().any(|directory| path.starts_with(directory))
            || SYSTEM_EXACTLY.iter().any(|directory| path == Path::new(directory))
    };
    without_hidden(host, root, nested_mounts(host.table(), root).into_iter().filter(is_system).collect())
}

fn without_hidden(host: &Host, source: &Path, mut nested: Vec<PathBuf>) -> VisibleMounts {
    nested.retain(|part| {
        let path = source.join(part);
        host.holding(&path).is_none() && !shows_processes(host.table(), &path)
    });
    let mut all = BTreeSet::new();
    for mount in std::iter::once(Path::new("")).chain(nested.iter().map(PathBuf::as_path)) {
        let hidden = host.hidden_beneath(&source.join(mount)).into_keys().map(|part| mount.join(part));
        // A path under another mount is not visible.
        let mount_of = |part: &Path| {
            nested.iter().rfind(|inner| part.starts_with(inner)).map_or("".as_ref(), PathBuf::as_path)
        };
        all.extend(hidden.filter(|part| mount_of(part) == mount));
    }
    // Only the outermost cover is needed.
    let outermost = |part: &&PathBuf| !part.ancestors().skip(1).any(|above| all.contains(above));
    let covered = all.iter().filter(outermost).cloned().collect();
    VisibleMounts { nested, covered }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{ContainerDevice, ContainerMount, Rights, User};

    /// Mounts of separate disks.
    fn mounts(points: &[&str]) -> String {
        let lines = points.iter().enumerate();
        lines.map(|(disk, point)| format!("1 2 8:{disk} / {point} rw - ext4 /dev/sda rw\n")).collect()
    }

    /// Mounts given by disk, root within the disk, and mount point.
    fn mounts_of(mounts: &[(u32, &str, &str)]) -> String {
        let line = |(disk, root, point): &(u32, &str, &str)| {
            format!("1 2 8:{disk} {root} {point} rw - ext4 /dev/sda rw\n")
        };
        mounts.iter().map(line).collect()
    }

    /// The host's procfs, a mount within it, and the procfs of another root.
    const PROCFS: &str = "\
2 1 0:5 / /proc rw - proc proc rw
3 2 0:6 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
4 1 0:5 / /opt/root/proc rw - proc proc rw
";

    fn paths(texts: &[&str]) -> Vec<PathBuf> {
        texts.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn system_mounts_are_included_in_the_root() {
        type Paths = &'static [&'static str];
        let cases: [(&str, Paths, Paths, Paths); 6] = [
            ("nothing but the root", &["/"], &[], &[]),
            (
                "programs and settings",
                &["/", "/usr/lib", "/usr", "/etc/hosts"],
                &[],
                &["etc/hosts", "usr", "usr/lib"],
            ),
            (
                "homes, but no disk in them",
                &["/home", "/home/me/disk", "/var", "/var/lib/x"],
                &[],
                &["home", "var"],
            ),
            (
                "no pseudo file systems, no volumes",
                &["/proc", "/sys", "/dev", "/run", "/tmp", "/mnt/a", "/media/b"],
                &[],
                &[],
            ),
            ("nothing that is hidden", &["/opt/wharf/pool", "/opt/x"], &["/opt/wharf"], &["opt/x"]),
            ("stacked mounts are included once", &["/usr", "/usr"], &[], &["usr"]),
        ];
        for (case, points, hidden, expected) in cases {
            let host = Host::parse(mounts(points).as_bytes(), &paths(hidden)).unwrap();
            assert_eq!(visible_in_root(&host).nested, paths(expected), "{case}");
        }
        let processes = Host::parse(PROCFS.as_bytes(), &[]).unwrap();
        assert_eq!(visible_in_root(&processes).nested, paths(&[]), "no procfs");
    }

    #[test]
    fn only_directories_of_cpus_are_masked() {
        let names = ["cpu0", "cpu17", "cpu", "cpufreq", "cpu1x", "xcpu1", "online"].map(str::to_owned);
        let expected =
            ["cpu0", "cpu17"].map(|name| format!("/sys/devices/system/cpu/{name}/thermal_throttle"));
        assert_eq!(masked_of_cpus(names), expected.map(PathBuf::from));
        assert!(MASKED.contains(&"/sys/devices/virtual/powercap"));
    }

    #[test]
    fn hidden_directories_are_covered_in_the_root() {
        type Mounts = &'static [(u32, &'static str, &'static str)];
        type Paths = &'static [&'static str];
        let cases: [(&str, Mounts, Paths, Paths); 8] = [
            ("by path", &[(1, "/", "/")], &["/var/lib/wharf"], &["var/lib/wharf"]),
            ("once", &[(1, "/", "/")], &["/k/logs", "/k", "/k/containers"], &["k"]),
            (
                "at the source of its bind mount",
                &[(1, "/", "/"), (1, "/srv/wharf", "/var/lib/wharf")],
                &["/var/lib/wharf"],
                &["srv/wharf", "var/lib/wharf"],
            ),
            (
                "at the source of its bind mount, on another disk",
                &[(1, "/", "/"), (2, "/", "/srv"), (2, "/wharf", "/var/lib/wharf")],
                &["/var/lib/wharf"],
                &["srv/wharf", "var/lib/wharf"],
            ),
            (
                "a pool in a data directory, bound from elsewhere",
                &[(1, "/", "/"), (2, "/", "/home"), (2, "/pool", "/var/lib/wharf/pool")],
                &["/var/lib/wharf", "/var/lib/wharf/pool"],
                &["home/pool", "var/lib/wharf"],
            ),
            (
                "not on an excluded disk",
                &[(1, "/", "/"), (2, "/", "/mnt"), (2, "/wharf", "/var/lib/wharf")],
                &["/var/lib/wharf"],
                &["var/lib/wharf"],
            ),
            (
                "not where another mount covers it",
                &[(1, "/", "/"), (1, "/srv/wharf", "/var/lib/wharf"), (2, "/", "/srv")],
                &["/var/lib/wharf"],
                &["var/lib/wharf"],
            ),
            (
                "an excluded mount covers nothing",
                &[(1, "/", "/"), (1, "/mnt/wharf", "/var/lib/wharf"), (2, "/", "/mnt")],
                &["/var/lib/wharf"],
                &["mnt/wharf", "var/lib/wharf"],
            ),
        ];
        for (case, mounts, hidden, expected) in cases {
            let host = Host::parse(mounts_of(mounts).as_bytes(), &paths(hidden)).unwrap();
            assert_eq!(visible_in_root(&host).covered, paths(expected).into_iter().collect(), "{case}");
        }
        let again: Mounts = &[(1, "/", "/"), (1, "/k", "/opt/k"), (1, "/srv", "/opt/srv")];
        let host = Host::parse(mounts_of(again).as_bytes(), &paths(&["/k", "/srv/x"])).unwrap();
        let covered = paths(&["k", "opt/srv/x", "srv/x"]).into_iter().collect();
        let expected = VisibleMounts { nested: paths(&["opt/srv"]), covered };
        assert_eq!(
            visible_in_root(&host),
            expected,
            "a second mount of it is excluded, one above it is covered"
        );
    }

    #[test]
    fn nested_mounts_of_a_volume_are_listed() {
        let points = ["/", "/data", "/data/a/b", "/data/a", "/k/pods/1/v", "/k/pods/1/v/in", "/k/pods/2/v"];
        let table = MountTable::parse(mounts(&points).as_bytes()).unwrap();
        let cases: [(&str, &str, &[&str]); 3] = [
            ("mounts beneath a directory", "/data", &["a", "a/b"]),
            ("mounts beneath a volume", "/k/pods/1/v", &["in"]),
            ("similar names are not beneath", "/dat", &[]),
        ];
        for (case, source, expected) in cases {
            assert_eq!(nested_mounts(&table, Path::new(source)), paths(expected), "{case}");
        }
    }

    #[test]
    fn host_path_excludes_hidden_directories_and_procfs() {
        let mounts = [
            (1, "/", "/"),
            (2, "/", "/data"),
            (3, "/", "/data/a"),
            (1, "/k", "/data/a/second"),
            (1, "/srv", "/data/a/third"),
            (4, "/", "/srv/k/pods/1/v"),
            (5, "/", "/srv/k/pool"),
        ];
        let text = mounts_of(&mounts) + PROCFS;
        let host = Host::parse(text.as_bytes(), &paths(&["/srv/k", "/k", "/srv/k/logs"])).unwrap();
        type Paths = &'static [&'static str];
        let cases: [(&str, &str, Paths, Paths); 5] = [
            (
                "the whole host, without volumes and pools",
                "/",
                &["data", "data/a", "data/a/third"],
                &["data/a/third/k", "k", "srv/k"],
            ),
            ("a directory with the data directory in it", "/srv", &[], &["k"]),
            ("beneath a second mount of it", "/data", &["a", "a/third"], &["a/third/k"]),
            ("the second mount itself", "/data/a/third", &[], &["k"]),
            ("an unrelated directory", "/home", &[], &[]),
        ];
        for (case, source, nested, covered) in cases {
            let expected =
                VisibleMounts { nested: paths(nested), covered: paths(covered).into_iter().collect() };
            assert_eq!(visible_in_host_path(&host, Path::new(source)), expected, "{case}");
        }
    }

    #[test]
    fn invalid_specs_are_refused() {
        let good = || ContainerSpec { command: vec!["true".to_owned()], ..ContainerSpec::default() };
        let mount = |target: &str, part: Option<&str>| ContainerMount {
            target: PathBuf::from(target),
            sub_path: part.map(PathBuf::from),
            ..ContainerMount::default()
        };
        let cases: [(&str, ContainerSpec, &str); 12] = [
            ("a name with ..", ContainerSpec { container: "..".to_owned(), ..good() }, "is not a valid name"),
            ("a name with a slash", ContainerSpec { pod: "a/b".to_owned(), ..good() }, "is not a valid name"),
            (
                "root though runAsNonRoot",
                ContainerSpec { user: User { non_root: true, ..User::default() }, ..good() },
                "non-root policy",
            ),
            ("no command", ContainerSpec::default(), "no command"),
            ("NUL in an argument", ContainerSpec { command: vec!["a\0".to_owned()], ..good() }, "NUL"),
            (
                "= in a name",
                ContainerSpec { env: vec![("a=b".to_owned(), String::new())], ..good() },
                "environment",
            ),
            (
                "relative directory",
                ContainerSpec { working_dir: "tmp".into(), ..good() },
                "working directory",
            ),
            ("relative target", ContainerSpec { mounts: vec![mount("data", None)], ..good() }, "mount path"),
            ("over the root", ContainerSpec { mounts: vec![mount("/", None)], ..good() }, "root directory"),
            (
                "subPath with ..",
                ContainerSpec { mounts: vec![mount("/d", Some("a/../../b"))], ..good() },
                "subPath",
            ),
            (
                "device path with ..",
                ContainerSpec {
                    devices: vec![ContainerDevice {
                        target: "/dev/../x".into(),
                        ..ContainerDevice::default()
                    }],
                    ..good()
                },
                "mount path",
            ),
            (
                "unknown capability",
                ContainerSpec {
                    rights: Rights { add: vec!["FLY".to_owned()], ..Rights::default() },
                    ..good()
                },
                "FLY",
            ),
        ];
        for (case, spec, part) in cases {
            let error = check(&spec).expect_err(case);
            assert!(error.contains(part), "{case}: {error}");
        }
        assert_eq!(check(&good()), Ok(()));
        let other = User { non_root: true, uid: 1000, ..User::default() };
        assert_eq!(check(&ContainerSpec { user: other, ..good() }), Ok(()));
    }
}
