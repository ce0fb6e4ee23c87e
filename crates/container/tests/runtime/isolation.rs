//! Isolation: what a container cannot do, see or keep.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::AsyncReadExt as _;
use wharf_container::{ContainerMount, ContainerSpec, ExecSpec, LogOptions, Rights, User};
use wharf_linux::MountTable;

use crate::harness::{Mounted, TestRuntime, command, eventually, sh, within};

#[tokio::test]
async fn writes_outside_volumes_are_discarded() {
    let test = TestRuntime::new();
    let before = fs::read("/etc/passwd").unwrap();
    let script = "echo gone >> /etc/passwd && echo new > /etc/wharf-new && rm /etc/hostname; mkdir /wharf-dir && \
                  echo x > /tmp/wharf-x && echo y > /run/wharf-y && tail -n1 /etc/passwd && cat /etc/wharf-new";
    assert_eq!(test.output(sh("a", script)).await, "gone\nnew\n");
    assert_eq!(fs::read("/etc/passwd").unwrap(), before);
    for path in ["/etc/wharf-new", "/wharf-dir", "/tmp/wharf-x", "/run/wharf-y"] {
        assert!(!fs::exists(path).unwrap(), "{path}");
    }
    let other =
        "test ! -e /etc/wharf-new && test ! -e /wharf-dir && test -z \"$(ls -A /tmp /run | grep -v :)\"";
    test.output(sh("b", other)).await;
}

#[tokio::test]
async fn hidden_directories_appear_empty() {
    let test = TestRuntime::with(|settings| {
        let data = settings.directory.with_file_name("data");
        settings.hidden = vec![data.clone(), data.with_file_name("file"), data.with_file_name("nowhere")];
    });
    let data = test.create_dir("data");
    fs::write(data.join("kubeconfig"), "secret").unwrap();
    fs::write(test.directory.path().join("file"), "secret").unwrap();
    fs::write(test.directory.path().join("seen"), "open").unwrap();
    let later = test.directory.path().join("nowhere");
    let root = test.directory.path().display();
    let script = format!(
        "cat {root}/seen; ls -A {root}/data {root}/containers {root}/logs | grep -v ':$' | grep .; \
         cat {root}/data/kubeconfig 2>&1; cat {root}/file; umount {root}/data 2>/dev/null && echo unmounted; true"
    );
    let log = test.output(sh("a", &script)).await;
    assert!(log.starts_with("open"), "{log}");
    assert!(log.contains("No such file") && !log.contains("secret") && !log.contains("unmounted"), "{log}");
    assert_eq!(log.lines().count(), 1, "nothing is listed: {log}");

    // Neither is content created there later.
    let script =
        format!("echo ready; while test ! -e /data/go; do sleep 0.05; done; ls -A {}", later.display());
    let volume = test.create_dir("volume");
    let mut spec = sh("b", &script);
    spec.mounts.push(mount(&volume, "/data"));
    let id = test.runtime.start(spec).await.unwrap();
    fs::create_dir(&later).unwrap();
    fs::write(later.join("kubeconfig"), "secret").unwrap();
    fs::write(volume.join("go"), "").unwrap();
    within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!(test.log(&id, LogOptions::default()).await, "ready\n");
}

/// A data directory that is bind-mounted from elsewhere: from the root disk, or from an included mount.
#[tokio::test]
async fn hidden_directories_appear_empty_at_their_bind_source() {
    let test = TestRuntime::with(|settings| {
        settings.hidden = ["data", "pool"].map(|name| settings.directory.with_file_name(name)).to_vec();
    });
    let disk = tempfile::Builder::new().prefix("wharf-runtime-").tempdir_in("/opt").unwrap();
    let _disk = Mounted::tmpfs(disk.path());
    fs::create_dir(disk.path().join("again")).unwrap();
    fs::write(disk.path().join("seen"), "seen\n").unwrap();
    let origins = [test.create_dir("origin"), disk.path().join("origin")];
    fs::create_dir(&origins[1]).unwrap();
    for origin in &origins {
        fs::write(origin.join("kubeconfig"), "secret").unwrap();
    }
    let _data = Mounted::bound(&origins[0], &test.create_dir("data"));
    let _pool = Mounted::bound(&origins[1], &test.create_dir("pool"));
    let _again = Mounted::bound(&origins[1], &disk.path().join("again"));
    let script = "cat $1/seen; cd $0 && ls -A data pool origin $1/again $1/origin | grep -v ':$' | grep .; \
                  umount $1/origin $0/origin 2>/dev/null && echo unmounted; true";
    let mut spec = sh("a", script);
    spec.command.extend([test.directory.path(), disk.path()].map(|path| path.display().to_string()));
    assert_eq!(test.output(spec).await, "seen\n");
}

#[tokio::test]
async fn namespaces_are_private_except_network() {
    let test = TestRuntime::new();
    let log = test
        .output(sh("a", "for n in mnt pid ipc uts net; do readlink /proc/self/ns/$n; done; hostname"))
        .await;
    let lines: Vec<&str> = log.lines().collect();
    for (line, (name, same)) in
        lines.iter().zip([("mnt", false), ("pid", false), ("ipc", false), ("uts", false), ("net", true)])
    {
        let host = fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert_eq!(host.to_str() == Some(line), same, "{name}");
    }
    assert_eq!(lines[5], "pod");
}

#[tokio::test]
async fn only_own_processes_are_visible() {
    let test = TestRuntime::new();
    let log = test.output(sh("a", "echo /proc/[0-9]*; kill -0 2 2>/dev/null && echo reached; true")).await;
    assert_eq!(log, "/proc/1\n");
}

#[tokio::test]
async fn host_mounts_are_not_held() {
    let test = TestRuntime::new();
    let other = test.create_dir("other");
    let _mounted = Mounted::tmpfs(&other);
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let table = fs::read_to_string(format!("/proc/{}/mountinfo", test.pid(&id))).unwrap();
    let table = MountTable::parse(table.as_bytes()).unwrap();
    assert!(table.at(&other).is_none(), "{table:?}");
    assert_eq!(table.at(Path::new("/")).unwrap().fs_type, "overlay");
    let real = table.mounts().iter().filter(|mount| mount.source.starts_with("/dev/")).count();
    assert_eq!(real, 0, "no file system of the host: {table:?}");
}

#[tokio::test]
async fn only_default_devices_exist() {
    let test = TestRuntime::new();
    let script = "echo $(ls /dev); echo x > /dev/null; head -c1 /dev/zero | od -An -tx1; \
                  head -c1 /dev/urandom > /dev/null && echo y > /dev/shm/y && echo z >/dev/stdout && test -c /dev/ptmx";
    let log = test.output(sh("a", script)).await;
    let all = "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero";
    assert_eq!(log, format!("{all}\n 00\nz\n"));
}

#[tokio::test]
async fn privileged_container_has_all_devices_and_cannot_change_the_hosts() {
    let test = TestRuntime::new();
    let script = "test -c /dev/loop-control && test -c /dev/pts/ptmx && mknod /dev/wharf-made c 1 5 && \
                  head -c1 /dev/wharf-made | od -An -tx1 && echo x > /dev/shm/x && rm /dev/null && mkdir /dev/wharf-dir";
    let mut spec = sh("a", script);
    spec.rights.privileged = true;
    assert_eq!(test.output(spec).await, " 00\n");
    assert!(fs::exists("/dev/null").unwrap() && !fs::exists("/dev/wharf-made").unwrap());
    assert!(!fs::exists("/dev/wharf-dir").unwrap());
}

#[tokio::test]
async fn system_mounts_are_included_read_only() {
    let test = TestRuntime::new();
    let place = tempfile::Builder::new().prefix("wharf-runtime-").tempdir_in("/opt").unwrap();
    let _mounted = Mounted::tmpfs(place.path());
    fs::write(place.path().join("file"), "seen").unwrap();
    let script =
        format!("cd {} && cat file; touch new 2>/dev/null && echo wrote; true", place.path().display());
    assert_eq!(test.output(sh("a", &script)).await, "seen");
}

#[tokio::test]
async fn created_device_nodes_cannot_be_opened() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    let mut spec = sh(
        "a",
        "for d in / /tmp /run /dev /dev/shm /data; do mknod $d/made c 1 5 || exit 1; \
         head -c1 $d/made >/dev/null 2>&1 && echo opened in $d; done; exit 0",
    );
    spec.mounts.push(mount(&volume, "/data"));
    assert_eq!(test.output(spec).await, "");
}

#[tokio::test]
async fn kernel_files_are_read_only_or_masked() {
    let test = TestRuntime::new();
    let script = "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/profiling /proc/irq/default_smp_affinity; \
                  do test -e $f || continue; (echo x > $f) 2>/dev/null && echo wrote $f; done; \
                  cat /proc/kcore /proc/keys /proc/timer_list 2>/dev/null; ls -A /sys/firmware; \
                  mount -o remount,rw /proc/sys 2>/dev/null && echo remounted; touch /sys/x 2>/dev/null && echo touched; true";
    assert_eq!(test.output(sh("a", script)).await, "");
}

fn status(log: &str, field: &str) -> String {
    log.lines().find_map(|line| line.strip_prefix(&format!("{field}:"))).unwrap().trim().to_owned()
}

#[tokio::test]
async fn capabilities_and_no_new_privileges_are_applied() {
    let test = TestRuntime::new();
    let with = |name: &str, rights: Rights, uid: u32| ContainerSpec {
        rights,
        user: User { uid, ..User::default() },
        ..sh(name, "cat /proc/self/status")
    };
    let log = test.output(with("default", Rights { no_new_privileges: true, ..Rights::default() }, 0)).await;
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(status(&log, set), "00000000a80405fb", "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(status(&log, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(&log, "NoNewPrivs"), "1");

    let log = test.output(with("user", Rights::default(), 1000)).await;
    assert_eq!(status(&log, "CapEff"), "0000000000000000");
    assert_eq!(status(&log, "CapBnd"), "00000000a80405fb");
    assert_eq!(status(&log, "NoNewPrivs"), "0");

    let drop = Rights { drop: vec!["ALL".to_owned()], add: vec!["CHOWN".to_owned()], ..Rights::default() };
    let log = test.output(with("one", drop, 0)).await;
    assert_eq!(status(&log, "CapEff"), "0000000000000001");

    let log = test.output(with("privileged", Rights { privileged: true, ..Rights::default() }, 0)).await;
    let own = fs::read_to_string("/proc/self/status").unwrap();
    assert_eq!(status(&log, "CapEff"), status(&own, "CapEff"), "all of ours");
}

#[tokio::test]
async fn user_and_groups_are_applied() {
    let test = TestRuntime::new();
    let user = User { uid: 1234, gid: 2345, groups: vec![3456, 4567], non_root: true };
    let spec = ContainerSpec {
        user,
        ..sh("a", "id -u; id -g; id -G; touch /etc/x 2>/dev/null && echo wrote; true")
    };
    assert_eq!(test.output(spec).await, "1234\n2345\n2345 3456 4567\n");
    let spec = ContainerSpec { user: User::default(), ..sh("b", "id -u; id -g; id -G") };
    assert_eq!(test.output(spec).await, "0\n0\n0\n", "none of the agent's groups");
}

#[tokio::test]
async fn no_new_privileges_disables_set_user_id() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    // A set-user-ID root copy of `id`.
    fs::copy("/usr/bin/id", volume.join("id")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(volume.join("id"), mode).unwrap();
    let spec = |name: &str, no_new_privileges| ContainerSpec {
        user: User { uid: 1000, ..User::default() },
        rights: Rights { no_new_privileges, ..Rights::default() },
        mounts: vec![mount(&volume, "/data")],
        ..sh(name, "/data/id -u")
    };
    assert_eq!(test.output(spec("a", true)).await, "1000\n");
    assert_eq!(test.output(spec("b", false)).await, "0\n", "upstream's default");
}

#[tokio::test]
async fn read_only_root_leaves_only_volumes_writable() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    let mut spec =
        sh("a", "for d in / /etc /tmp /run /data /dev/shm; do touch $d/x 2>/dev/null && echo $d; done; true");
    spec.rights.read_only_root = true;
    spec.mounts.push(mount(&volume, "/data"));
    assert_eq!(test.output(spec).await, "/data\n/dev/shm\n");
    assert!(volume.join("x").exists());
}

#[tokio::test]
async fn host_sockets_are_reachable_only_through_volumes() {
    let test = TestRuntime::new();
    let path = test.directory.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let connect = |text: String| {
        let code = format!(
            "use Socket; socket(my $s, AF_UNIX, SOCK_STREAM, 0); print connect($s, sockaddr_un('{text}')) ? 'reached' : 'refused';"
        );
        ["perl".to_owned(), "-e".to_owned(), code].to_vec()
    };
    let mut spec = sh("a", "");
    spec.command = connect(path.display().to_string());
    assert_eq!(test.output(spec).await, "refused");
    // Through a volume it can be reached: that is intended.
    let mut spec = sh("b", "");
    spec.command = connect("/data/socket".to_owned());
    spec.mounts.push(mount(test.directory.path(), "/data"));
    assert_eq!(test.output(spec).await, "reached");
}

#[tokio::test]
async fn the_helpers_program_cannot_be_written_through_proc() {
    // A copy that nothing else runs: an executing file cannot be written anyway.
    let test = TestRuntime::with(|settings| {
        let copy = settings.directory.with_file_name("helper");
        fs::copy(&settings.program, &copy).unwrap();
        settings.program = copy;
    });
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let record = fs::read(test.record(&id).join("running.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    // What a container obtains whose command is `/proc/self/exe`; it would also wait for the helper to exit.
    let held = fs::File::open(format!("/proc/{}/exe", record["shim"]["pid"])).unwrap();
    within(test.runtime.stop(&id, Duration::ZERO)).await.unwrap();
    let again = format!("/proc/self/fd/{}", held.as_raw_fd());
    let error = fs::OpenOptions::new().write(true).open(again).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "not even by us");

    let mut spec = sh("b", "");
    spec.command = vec!["/proc/self/exe".to_owned()];
    assert_ne!(test.run(spec).await.0.code, 0, "the helper does nothing in a container");
}

#[tokio::test]
async fn scratch_size_is_limited() {
    let test = TestRuntime::with(|settings| settings.scratch_bytes = 4 << 20);
    let script = "head -c 8M /dev/zero > /big 2>/dev/null && echo wrote; \
                  head -c 8M /dev/zero > /tmp/big 2>/dev/null && echo wrote; true";
    assert_eq!(test.output(sh("a", script)).await, "");
}

/// A program that prints the serial number of its session keyring.
fn print_keyring() -> Vec<String> {
    let number = if cfg!(target_arch = "x86_64") { 250 } else { 219 };
    // keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0)
    ["perl".to_owned(), "-e".to_owned(), format!("print syscall({number}, 0, -3, 0)")].to_vec()
}

#[tokio::test]
async fn session_keyring_is_not_the_agents() {
    let test = TestRuntime::new();
    let program = print_keyring();
    let own = command(&program[0], &[&program[1], &program[2]]);
    let privileged = Rights { privileged: true, ..Rights::default() };
    let spec = ContainerSpec { command: program.clone(), rights: privileged.clone(), ..sh("a", "") };
    let of_container = test.output(spec).await;

    let id =
        test.runtime.start(ContainerSpec { rights: privileged, ..sh("b", "exec sleep 1000") }).await.unwrap();
    let exec = ExecSpec { command: program, ..ExecSpec::default() };
    let mut session = test.runtime.exec(&id, exec).await.unwrap();
    let mut of_exec = String::new();
    within(session.stdout.take().unwrap().read_to_string(&mut of_exec)).await.unwrap();
    for (serial, case) in [(&of_container, "container"), (&of_exec, "exec")] {
        assert!(serial.parse::<i64>().unwrap() > 0, "{case}: {serial}");
        assert_ne!(*serial, own, "{case}");
    }
}

#[tokio::test]
async fn masked_directories_appear_empty() {
    let test = TestRuntime::new();
    let script = "ls -A /sys/devices/virtual/powercap /sys/devices/system/cpu/cpu*/thermal_throttle 2>/dev/null \
                  | grep -v ':$' | grep .; ls -d /sys/devices/system/cpu/cpu0";
    assert_eq!(test.output(sh("a", script)).await, "/sys/devices/system/cpu/cpu0\n");
}

/// The directory of core dumps of the machine, created by the test if it is missing.
#[tokio::test]
async fn memory_of_the_host_is_hidden() {
    let test = TestRuntime::new();
    let dumps = Path::new("/var/crash");
    let (mut dump, mut created) = (None, false);
    // Another run of this test may remove the directory.
    eventually("a core dump", || {
        created |= fs::create_dir(dumps).is_ok();
        dump = tempfile::Builder::new().prefix("wharf-runtime-").tempfile_in(dumps).ok();
        dump.is_some()
    });
    let mut spec = sh("a", "ls -A /var/crash; ls -A /host/crash; ulimit -S -c; test -d /host/lib");
    spec.mounts.push(ContainerMount { host: true, ..mount(Path::new("/var"), "/host") });
    let log = test.output(spec).await;
    drop(dump);
    if created {
        // Fails if the machine has core dumps by now.
        let _ = fs::remove_dir(dumps);
    }
    assert_eq!(log, "0\n");
}

#[tokio::test]
async fn programs_dump_no_core() {
    // Otherwise the limit may be 0 anyway.
    let own = getrlimit(Resource::Core);
    setrlimit(Resource::Core, Rlimit { current: own.maximum, ..own }).unwrap();
    let test = TestRuntime::new();
    let id = test.runtime.start(sh("a", "exec sleep 1000")).await.unwrap();
    let limit = |limits: &str| {
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        core.split_ascii_whitespace().nth(4).unwrap().to_owned()
    };
    let program = fs::read_to_string(format!("/proc/{}/limits", test.pid(&id))).unwrap();
    assert_eq!(limit(&program), "0");
    let exec =
        ExecSpec { command: ["cat", "/proc/self/limits"].map(str::to_owned).to_vec(), ..ExecSpec::default() };
    let mut session = test.runtime.exec(&id, exec).await.unwrap();
    let mut of_exec = String::new();
    within(session.stdout.take().unwrap().read_to_string(&mut of_exec)).await.unwrap();
    assert_eq!(limit(&of_exec), "0");
}

fn mount(source: &Path, target: &str) -> ContainerMount {
    ContainerMount { source: source.to_owned(), target: target.into(), ..ContainerMount::default() }
}
