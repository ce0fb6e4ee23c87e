//! What a container's root is made of: the rules, over plain data.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use wharf_linux::MountTable;

use super::capabilities;
use super::spec::ContainerSpec;
use crate::hidden::{Host, shows_processes};

/// Devices that every container has.
pub(super) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Links in `/dev`.
pub(super) const LINKS: [(&str, &str); 5] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
    ("pts/ptmx", "/dev/ptmx"),
];

/// What nobody in a container may see, as container runtimes have it: it tells of the whole machine.
pub(super) const MASKED: [&str; 10] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/firmware",
];

/// What root in a container must not write to, or it would rule the machine.
pub(super) const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Where programs and their settings are: file systems mounted at or beneath these come along.
const SYSTEM: [&str; 9] = ["/bin", "/etc", "/gnu", "/lib", "/lib64", "/nix", "/opt", "/sbin", "/usr"];
/// Those mounted exactly here come along, too. What is beneath is somebody's data, or a volume.
const SYSTEM_EXACTLY: [&str; 4] = ["/home", "/root", "/srv", "/var"];

/// Checks what can be checked without a look at the machine. The message says what is wrong and where.
pub(super) fn check(spec: &ContainerSpec) -> Result<(), String> {
    // The API lets no such name in; but they become names of directories here.
    for name in [&spec.namespace, &spec.pod, &spec.pod_uid, &spec.container] {
        if name.contains(['/', '\0']) || name == "." || name == ".." {
            return Err(format!("{name:?} cannot be a name"));
        }
    }
    if spec.user.non_root && spec.user.uid == 0 {
        return Err(format!(
            "container's runAsUser breaks non-root policy (pod: \"{}_{}({})\", container: {})",
            spec.pod, spec.namespace, spec.pod_uid, spec.container
        ));
    }
    if spec.command.first().is_none_or(String::is_empty) {
        return Err("the container has no command: there is no image that would have one".to_owned());
    }
    if spec.command.iter().any(|argument| argument.contains('\0')) {
        return Err("the command has a NUL character in it".to_owned());
    }
    for (name, value) in &spec.env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(format!("environment variable {name:?} cannot be: empty name, or `=` or NUL in it"));
        }
    }
    if !spec.working_dir.as_os_str().is_empty() {
        absolute("working directory", &spec.working_dir)?;
    }
    let (mounts, devices) = (spec.mounts.iter(), spec.devices.iter());
    for target in mounts.map(|mount| &mount.target).chain(devices.map(|device| &device.target)) {
        absolute("mount path", target)?;
        if target == Path::new("/") {
            return Err("a volume cannot be mounted over the whole root".to_owned());
        }
    }
    for part in spec.mounts.iter().filter_map(|mount| mount.sub_path.as_ref()) {
        if part.is_absolute() || part.components().any(|component| component == Component::ParentDir) {
            return Err(format!("subPath {:?} must be relative and without \"..\"", part.display()));
        }
    }
    capabilities::decide(spec.rights.privileged, &spec.rights.add, &spec.rights.drop)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn absolute(what: &str, path: &Path) -> Result<(), String> {
    if path.is_absolute() && !path.components().any(|component| component == Component::ParentDir) {
        Ok(())
    } else {
        Err(format!("{what} {:?} must be absolute and without \"..\"", path.display()))
    }
}

/// What is mounted beneath a volume's directory and comes along with it, relative to it; outer ones first.
pub(super) fn nested_mounts(table: &MountTable, source: &Path) -> Vec<PathBuf> {
    let mounts = table.mounts().iter().map(|mount| mount.mount_point.as_path());
    let parts = mounts.filter_map(|path| path.strip_prefix(source).ok());
    let chosen: BTreeSet<&Path> = parts.filter(|part| !part.as_os_str().is_empty()).collect();
    chosen.into_iter().map(Path::to_owned).collect()
}

/// What of a directory of the host a container sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Shown {
    /// What is mounted beneath it and comes along, relative to it; outer ones first.
    pub(super) nested: Vec<PathBuf>,
    /// What of it is covered, relative to it.
    pub(super) covered: BTreeSet<PathBuf>,
}

/// What is seen of a directory that the pod named: nothing that is hidden, by whatever mount, and no processes.
pub(super) fn shown(host: &Host, source: &Path) -> Shown {
    without_hidden(host, source, nested_mounts(host.table(), source))
}

/// What is seen of the host's root: beside its own file system those with programs and settings. All others stay out, or a
/// container would hold on to what its host wants to unmount.
pub(super) fn shown_root(host: &Host) -> Shown {
    let root = Path::new("/");
    let wanted = |part: &PathBuf| {
        let path = root.join(part);
        SYSTEM.iter().any(|place| path.starts_with(place))
            || SYSTEM_EXACTLY.iter().any(|place| path == Path::new(place))
    };
    without_hidden(host, root, nested_mounts(host.table(), root).into_iter().filter(wanted).collect())
}

fn without_hidden(host: &Host, source: &Path, mut nested: Vec<PathBuf>) -> Shown {
    nested.retain(|part| {
        let whole = source.join(part);
        host.holding(&whole).is_none() && !shows_processes(host.table(), &whole)
    });
    let mut all = BTreeSet::new();
    for mount in std::iter::once(Path::new("")).chain(nested.iter().map(PathBuf::as_path)) {
        let hidden = host.hidden_beneath(&source.join(mount)).into_keys().map(|part| mount.join(part));
        // What another mount lies over is not seen.
        let on = |part: &Path| {
            nested.iter().rfind(|inner| part.starts_with(inner)).map_or("".as_ref(), PathBuf::as_path)
        };
        all.extend(hidden.filter(|part| on(part) == mount));
    }
    // One cover is enough; beneath it there is no place for another.
    let outermost = |part: &&PathBuf| !part.ancestors().skip(1).any(|above| all.contains(above));
    let covered = all.iter().filter(outermost).cloned().collect();
    Shown { nested, covered }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{ContainerDevice, ContainerMount, Rights, User};
    use super::*;

    /// Mounts of disks of their own.
    fn mounts(points: &[&str]) -> String {
        let lines = points.iter().enumerate();
        lines.map(|(disk, point)| format!("1 2 8:{disk} / {point} rw - ext4 /dev/sda rw\n")).collect()
    }

    /// Each with the disk it is of, and what of it.
    fn mounts_of(mounts: &[(u32, &str, &str)]) -> String {
        let line = |(disk, root, point): &(u32, &str, &str)| {
            format!("1 2 8:{disk} {root} {point} rw - ext4 /dev/sda rw\n")
        };
        mounts.iter().map(line).collect()
    }

    /// The host's own, what systemd mounts in it, and that of somebody's other root.
    const PROCFS: &str = "\
2 1 0:5 / /proc rw - proc proc rw
3 2 0:6 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
4 1 0:5 / /opt/root/proc rw - proc proc rw
";

    fn paths(texts: &[&str]) -> Vec<PathBuf> {
        texts.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn which_mounts_of_the_host_come_along() {
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
            ("twice over each other is once", &["/usr", "/usr"], &[], &["usr"]),
        ];
        for (case, points, hidden, expected) in cases {
            let host = Host::parse(mounts(points).as_bytes(), &paths(hidden)).unwrap();
            assert_eq!(shown_root(&host).nested, paths(expected), "{case}");
        }
        let processes = Host::parse(PROCFS.as_bytes(), &[]).unwrap();
        assert_eq!(shown_root(&processes).nested, paths(&[]), "nobody's processes");
    }

    #[test]
    fn what_is_hidden_in_the_root() {
        type Mounts = &'static [(u32, &'static str, &'static str)];
        type Paths = &'static [&'static str];
        let cases: [(&str, Mounts, Paths, Paths); 8] = [
            ("by its name", &[(1, "/", "/")], &["/var/lib/wharf"], &["var/lib/wharf"]),
            ("once", &[(1, "/", "/")], &["/k/logs", "/k", "/k/containers"], &["k"]),
            (
                "where it is bound from",
                &[(1, "/", "/"), (1, "/srv/wharf", "/var/lib/wharf")],
                &["/var/lib/wharf"],
                &["srv/wharf", "var/lib/wharf"],
            ),
            (
                "where it is bound from, on another disk",
                &[(1, "/", "/"), (2, "/", "/srv"), (2, "/wharf", "/var/lib/wharf")],
                &["/var/lib/wharf"],
                &["srv/wharf", "var/lib/wharf"],
            ),
            (
                "a pool in a data directory, from elsewhere",
                &[(1, "/", "/"), (2, "/", "/home"), (2, "/pool", "/var/lib/wharf/pool")],
                &["/var/lib/wharf", "/var/lib/wharf/pool"],
                &["home/pool", "var/lib/wharf"],
            ),
            (
                "no disk that does not come along",
                &[(1, "/", "/"), (2, "/", "/mnt"), (2, "/wharf", "/var/lib/wharf")],
                &["/var/lib/wharf"],
                &["var/lib/wharf"],
            ),
            (
                "not where another disk lies over it",
                &[(1, "/", "/"), (1, "/srv/wharf", "/var/lib/wharf"), (2, "/", "/srv")],
                &["/var/lib/wharf"],
                &["var/lib/wharf"],
            ),
            (
                "one that stays out lies over nothing",
                &[(1, "/", "/"), (1, "/mnt/wharf", "/var/lib/wharf"), (2, "/", "/mnt")],
                &["/var/lib/wharf"],
                &["mnt/wharf", "var/lib/wharf"],
            ),
        ];
        for (case, mounts, hidden, expected) in cases {
            let host = Host::parse(mounts_of(mounts).as_bytes(), &paths(hidden)).unwrap();
            assert_eq!(shown_root(&host).covered, paths(expected).into_iter().collect(), "{case}");
        }
        let again: Mounts = &[(1, "/", "/"), (1, "/k", "/opt/k"), (1, "/srv", "/opt/srv")];
        let host = Host::parse(mounts_of(again).as_bytes(), &paths(&["/k", "/srv/x"])).unwrap();
        let covered = paths(&["k", "opt/srv/x", "srv/x"]).into_iter().collect();
        let expected = Shown { nested: paths(&["opt/srv"]), covered };
        assert_eq!(shown_root(&host), expected, "a second mount of it stays out, one above it is covered");
    }

    #[test]
    fn what_is_mounted_beneath_a_volume() {
        let points = ["/", "/data", "/data/a/b", "/data/a", "/k/pods/1/v", "/k/pods/1/v/in", "/k/pods/2/v"];
        let table = MountTable::parse(mounts(&points).as_bytes()).unwrap();
        let cases: [(&str, &str, &[&str]); 3] = [
            ("a directory brings its mounts", "/data", &["a", "a/b"]),
            ("a volume brings its own", "/k/pods/1/v", &["in"]),
            ("similar names are not beneath", "/dat", &[]),
        ];
        for (case, source, expected) in cases {
            assert_eq!(nested_mounts(&table, Path::new(source)), paths(expected), "{case}");
        }
    }

    #[test]
    fn what_is_seen_of_the_host() {
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
                "the whole host, without volumes, pools and what holds them",
                "/",
                &["data", "data/a", "data/a/third"],
                &["data/a/third/k", "k", "srv/k"],
            ),
            ("a directory with the data directory in it", "/srv", &[], &["k"]),
            ("a second mount of such a directory", "/data", &["a", "a/third"], &["a/third/k"]),
            ("that mount itself", "/data/a/third", &[], &["k"]),
            ("one that has to do with nothing", "/home", &[], &[]),
        ];
        for (case, source, nested, covered) in cases {
            let expected = Shown { nested: paths(nested), covered: paths(covered).into_iter().collect() };
            assert_eq!(shown(&host, Path::new(source)), expected, "{case}");
        }
    }

    #[test]
    fn what_is_refused_before_anything_is_done() {
        let good = || ContainerSpec { command: vec!["true".to_owned()], ..ContainerSpec::default() };
        let mount = |target: &str, part: Option<&str>| ContainerMount {
            target: PathBuf::from(target),
            sub_path: part.map(PathBuf::from),
            ..ContainerMount::default()
        };
        let cases: [(&str, ContainerSpec, &str); 12] = [
            (
                "a name that climbs",
                ContainerSpec { container: "..".to_owned(), ..good() },
                "cannot be a name",
            ),
            ("a name with a slash", ContainerSpec { pod: "a/b".to_owned(), ..good() }, "cannot be a name"),
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
            ("over the root", ContainerSpec { mounts: vec![mount("/", None)], ..good() }, "whole root"),
            (
                "subPath that climbs",
                ContainerSpec { mounts: vec![mount("/d", Some("a/../../b"))], ..good() },
                "subPath",
            ),
            (
                "device that climbs",
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
