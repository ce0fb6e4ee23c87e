//! Volumes in containers: directories, files, subPaths, devices.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use wharf_container::{ContainerDevice, ContainerMount, ContainerSpec, LogOptions, StartError};

use crate::harness::{Mounted, TestRuntime, command, eventually, sh, within};

fn mount(source: impl AsRef<Path>, target: &str) -> ContainerMount {
    ContainerMount { source: source.as_ref().to_owned(), target: target.into(), ..ContainerMount::default() }
}

/// A hostPath mount.
fn of_host(source: impl AsRef<Path>, target: &str) -> ContainerMount {
    ContainerMount { host: true, ..mount(source, target) }
}

fn part(source: impl AsRef<Path>, part: &str) -> ContainerMount {
    ContainerMount { sub_path: Some(PathBuf::from(part)), ..mount(source, "/data") }
}

#[tokio::test]
async fn read_only_volume_refuses_writes() {
    let test = TestRuntime::new();
    let (one, two) = (test.create_dir("one"), test.create_dir("two"));
    fs::write(two.join("old"), "old").unwrap();
    let mut spec = sh(
        "a",
        "echo new > /data/one/new; cat /data/two/old; touch /data/two/new 2>/dev/null && echo wrote; true",
    );
    spec.mounts =
        vec![ContainerMount { read_only: true, ..mount(&two, "/data/two") }, mount(&one, "/data/one")];
    assert_eq!(test.output(spec).await, "old");
    assert_eq!(fs::read_to_string(one.join("new")).unwrap(), "new\n");
    assert!(!two.join("new").exists());
}

#[tokio::test]
async fn nested_volumes_are_mounted_in_any_order() {
    let test = TestRuntime::new();
    let (outer, inner) = (test.create_dir("outer"), test.create_dir("inner"));
    let mut spec = sh("a", "touch /data/in/inner /data/outer");
    spec.mounts = vec![mount(&inner, "/data/in"), mount(&outer, "/data")];
    test.output(spec).await;
    assert!(inner.join("inner").exists() && outer.join("outer").exists());
}

#[tokio::test]
async fn single_file_is_mounted_over_a_file() {
    let test = TestRuntime::new();
    let file = test.directory.path().join("hosts");
    fs::write(&file, "127.0.0.1 pod\n").unwrap();
    let log = test.directory.path().join("termination-log");
    fs::write(&log, "").unwrap();
    let mut spec = sh("a", "cat /etc/hosts; echo why > /dev/termination-log");
    spec.mounts = vec![mount(&file, "/etc/hosts"), mount(&log, "/dev/termination-log")];
    assert_eq!(test.output(spec).await, "127.0.0.1 pod\n");
    assert_eq!(fs::read_to_string(log).unwrap(), "why\n");
}

#[tokio::test]
async fn missing_volume_is_an_error_with_its_path() {
    let test = TestRuntime::new();
    let mut spec = sh("a", "true");
    spec.mounts = vec![mount(test.directory.path().join("nowhere"), "/data")];
    let error = test.runtime.start(spec).await.unwrap_err();
    assert!(matches!(&error, StartError::Machine { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere for /data"), "{error}");
}

#[tokio::test]
async fn sub_path_is_created_with_the_volumes_mode() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2770)).unwrap();
    let mut spec = sh("a", "touch /data/x");
    spec.mounts = vec![part(&volume, "a/b")];
    test.output(spec.clone()).await;
    assert!(volume.join("a/b/x").exists());
    for made in ["a", "a/b"] {
        assert_eq!(fs::metadata(volume.join(made)).unwrap().permissions().mode() & 0o7777, 0o2770, "{made}");
    }
    spec.container = "again".to_owned();
    test.output(spec).await;
}

#[tokio::test]
async fn sub_path_symlinks_cannot_leave_the_volume() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    // As in a ConfigMap volume.
    fs::create_dir(volume.join("..2026")).unwrap();
    fs::write(volume.join("..2026/settings"), "mine").unwrap();
    symlink("..2026", volume.join("..data")).unwrap();
    symlink("..data/settings", volume.join("settings")).unwrap();
    fs::write(test.directory.path().join("other"), "another pod's").unwrap();
    symlink("../other", volume.join("up")).unwrap();
    symlink("/etc/passwd", volume.join("absolute")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("..", volume.join("parent")).unwrap();

    let with =
        |name: &str, part: ContainerMount| ContainerSpec { mounts: vec![part], ..sh(name, "cat /data") };
    assert_eq!(test.output(with("a", part(&volume, "settings"))).await, "mine");
    for (index, path) in
        ["up", "absolute", "magic/etc/passwd", "parent/other", "parent/made"].iter().enumerate()
    {
        let error = test.runtime.start(with(&format!("c{index}"), part(&volume, path))).await.unwrap_err();
        assert!(
            matches!(&error, StartError::Config(message) if message.contains("leaves its volume")),
            "{path}: {error}"
        );
    }
    assert!(!test.directory.path().join("made").exists());
    let error = test.runtime.start(with("climbs", part(&volume, "a/../../other"))).await.unwrap_err();
    assert!(matches!(error, StartError::Config(_)), "{error}");
}

/// The path of a subPath is resolved once: what is a directory at first could be replaced by a symlink to other pods'
/// volumes.
#[tokio::test]
async fn nested_mounts_are_included_except_for_sub_paths() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    let _nested = Mounted::tmpfs(&volume.join("sub/disk"));
    fs::write(volume.join("sub/disk/file"), "").unwrap();
    let script = "cut -d' ' -f5 /proc/self/mountinfo | grep ^/data; find /data -name file";
    for (name, mount, expected) in [
        ("whole", mount(&volume, "/data"), "/data\n/data/sub/disk\n/data/sub/disk/file\n"),
        ("part", part(&volume, "sub"), "/data\n"),
    ] {
        let spec = ContainerSpec { mounts: vec![mount], ..sh(name, script) };
        assert_eq!(test.output(spec).await, expected, "{name}");
    }
}

/// A nested mount that is covered by now: its path contains a symlink, which a pod could create while its container
/// starts.
#[tokio::test]
async fn nested_mounts_are_not_resolved_through_symlinks() {
    let test = TestRuntime::new();
    let (volume, other) = (test.create_dir("volume"), test.create_dir("other"));
    fs::write(other.join("secret"), "another pod's").unwrap();
    let _nested = Mounted::tmpfs(&volume.join("sub/disk"));
    let _over = Mounted::tmpfs(&volume.join("sub"));
    symlink(&other, volume.join("sub/disk")).unwrap();
    for (name, mount) in [("volume", mount(&volume, "/data")), ("host", of_host(&volume, "/data"))] {
        let spec = ContainerSpec {
            mounts: vec![mount],
            ..sh(name, "ls /data/sub; cut -d' ' -f5 /proc/self/mountinfo | grep -e ^/data -e /other")
        };
        assert_eq!(test.output(spec).await, "disk\n/data\n/data/sub\n", "{name}");
    }
}

#[tokio::test]
async fn host_path_includes_nested_mounts_except_hidden_ones() {
    let test = TestRuntime::with(|settings| {
        settings.hidden = vec![settings.directory.with_file_name("host").join("kubelet")]
    });
    let host = test.create_dir("host");
    let _seen = Mounted::tmpfs(&host.join("disk"));
    let _hidden = Mounted::tmpfs(&host.join("kubelet/pods/1/volume"));
    fs::write(host.join("disk/file"), "").unwrap();
    fs::write(host.join("kubelet/pods/1/volume/file"), "").unwrap();
    let mut spec = sh("a", "cd /data && find . -name file; exec sleep 1000");
    spec.mounts = vec![of_host(&host, "/data")];
    let id = test.runtime.start(spec).await.unwrap();
    let mut logs =
        test.runtime.logs(&id, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(within(logs.next()).await.unwrap().unwrap(), b"./disk/file\n");
    let table = fs::read_to_string(format!("/proc/{}/mountinfo", test.pid(&id))).unwrap();
    assert!(table.contains(" /data/disk ") && !table.contains("/data/kubelet/"), "{table}");
}

/// A pod that mounts the data directory would have all credentials and volumes.
#[tokio::test]
async fn host_path_into_a_hidden_directory_is_refused() {
    let test =
        TestRuntime::with(|settings| settings.hidden = vec![settings.directory.with_file_name("data")]);
    let data = test.create_dir("data/deep").parent().unwrap().to_owned();
    fs::write(data.join("kubeconfig"), "admin").unwrap();
    let sibling = test.create_dir("sibling");
    symlink(&data, sibling.join("link")).unwrap();
    let bound = test.create_dir("bound");
    command("mount", &["--bind", test.directory.path().to_str().unwrap(), bound.to_str().unwrap()]);
    let _bound = MountedOver(bound.clone());
    let other = test.runtime.start(sh("other", "exec sleep 1000")).await.unwrap();
    let of_other = format!("/proc/{}/root/etc", test.pid(&other));
    let part = |source: &Path, part: &str| ContainerMount {
        sub_path: Some(PathBuf::from(part)),
        ..of_host(source, "/data")
    };
    for (index, (mount, expected)) in [
        (of_host(&data, "/data"), "which holds data of Wharf"),
        (of_host(data.join("deep"), "/data"), "which holds data of Wharf"),
        (of_host(data.join("kubeconfig"), "/data"), "which holds data of Wharf"),
        (of_host(sibling.join("link"), "/data"), "which holds data of Wharf"),
        (of_host(bound.join("data"), "/data"), "which holds data of Wharf"),
        (part(test.directory.path(), "data"), "which holds data of Wharf"),
        (part(test.directory.path(), "data/new"), "which holds data of Wharf"),
        (of_host(test.directory.path().join("containers"), "/data"), "which holds data of Wharf"),
        (of_host(of_other, "/data"), "another container's"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{} {:?}", mount.source.display(), mount.sub_path);
        let spec = ContainerSpec { mounts: vec![mount], ..sh(&format!("c{index}"), "true") };
        let error = test.runtime.start(spec).await.expect_err(&name);
        assert!(
            matches!(&error, StartError::Config(message) if message.contains(expected)),
            "{name}: {error}"
        );
    }
    assert!(!data.join("new").exists());
}

#[tokio::test]
async fn hidden_directories_are_covered_in_a_host_path_above_them() {
    let test = TestRuntime::with(|settings| {
        settings.hidden =
            ["data", "data/logs", "file"].map(|name| settings.directory.with_file_name(name)).to_vec();
    });
    let data = test.create_dir("data");
    fs::create_dir(data.join("logs")).unwrap();
    fs::write(data.join("kubeconfig"), "admin").unwrap();
    fs::write(test.directory.path().join("file"), "admin").unwrap();
    fs::write(test.directory.path().join("seen"), "seen\n").unwrap();
    let bound = test.create_dir("bound");
    command("mount", &["--bind", test.directory.path().to_str().unwrap(), bound.to_str().unwrap()]);
    let _bound = MountedOver(bound.clone());
    let script = "ls -A $1/data $1/containers; cat $1/file $1/seen; umount $1/data 2>/dev/null && echo unmounted; \
                  touch $1/data/new 2>/dev/null && echo written; ls -A $1/data";
    let here = test.directory.path().display().to_string();
    for (index, (source, read_only, inside)) in [
        (Path::new("/"), true, format!("/host{here}")),
        (Path::new("/"), false, format!("/host{here}")),
        (Path::new("/"), true, format!("/host{here}/bound")),
        (test.directory.path(), true, "/host".to_owned()),
        (test.directory.path(), false, "/host/bound".to_owned()),
        (&*bound, false, "/host".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = sh(&format!("c{index}"), script);
        spec.command.extend(["sh".to_owned(), inside.clone()]);
        spec.mounts = vec![ContainerMount { read_only, ..of_host(source, "/host") }];
        let (_, output) = test.run(spec).await;
        let expected = format!("{inside}/containers:\n\n{inside}/data:\nseen\n");
        assert_eq!(output, expected, "{} {inside}", source.display());
    }
    assert!(!data.join("new").exists());
}

#[tokio::test]
async fn later_mounts_are_not_propagated() {
    let test = TestRuntime::new();
    let volume = test.create_dir("volume");
    let _volume = Mounted::tmpfs(&volume);
    command("mount", &["--make-shared", volume.to_str().unwrap()]);
    fs::create_dir(volume.join("sub")).unwrap();
    let mut spec = sh("a", "while test ! -e /data/go; do sleep 0.05; done; ls /data/sub");
    spec.mounts = vec![mount(&volume, "/data")];
    let id = test.runtime.start(spec).await.unwrap();
    let _later = Mounted::tmpfs(&volume.join("sub"));
    fs::write(volume.join("sub/file"), "").unwrap();
    fs::write(volume.join("go"), "").unwrap();
    within(test.runtime.exited(&id)).await.unwrap();
    assert_eq!(test.log(&id, LogOptions::default()).await, "");
}

/// A loop device that is detached when dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Self {
        Self(command("losetup", &["--find", "--show", file.to_str().unwrap()]))
    }

    fn reading(file: &Path) -> Self {
        Self(command("losetup", &["--read-only", "--find", "--show", file.to_str().unwrap()]))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).output();
    }
}

#[tokio::test]
async fn device_is_available_at_its_path() {
    let test = TestRuntime::new();
    let image = test.directory.path().join("image");
    fs::write(&image, [b'x'; 1 << 20]).unwrap();
    let device = Loop::over(&image);
    // Like a published raw volume: bound over a file.
    let published = test.directory.path().join("published");
    fs::write(&published, "").unwrap();
    command("mount", &["--bind", &device.0, published.to_str().unwrap()]);
    let _bound = MountedOver(published.clone());
    let mut spec = sh(
        "a",
        "test -b /dev/xvda && head -c2 /dev/xvda; printf yz | dd of=/dev/xvda conv=notrunc,fsync 2>/dev/null",
    );
    spec.devices = vec![ContainerDevice {
        source: published.clone(),
        target: "/dev/xvda".into(),
        ..ContainerDevice::default()
    }];
    assert_eq!(test.output(spec.clone()).await, "xx");
    eventually("write to the image", || fs::read(&image).unwrap()[..3] == *b"yzx");

    spec.container = "b".to_owned();
    spec.devices[0].source = image;
    let error = test.runtime.start(spec).await.unwrap_err();
    assert!(
        matches!(&error, StartError::Config(message) if message.contains("not a block device")),
        "{error}"
    );
}

/// A driver may implement `readonly` by a read-only bind mount of the device node, which does not prevent writes.
#[tokio::test]
async fn read_only_device_must_be_read_only_itself() {
    let test = TestRuntime::new();
    let image = test.directory.path().join("image");
    fs::write(&image, [b'x'; 1 << 20]).unwrap();
    let (writable, fixed) = (Loop::over(&image), Loop::reading(&image));
    let script =
        "head -c2 /dev/xvda; printf yz | dd of=/dev/xvda conv=notrunc,fsync 2>/dev/null && echo wrote; true";
    let with = |name: &str, device: &Loop| ContainerSpec {
        devices: vec![ContainerDevice {
            source: device.0.clone().into(),
            target: "/dev/xvda".into(),
            read_only: true,
        }],
        ..sh(name, script)
    };
    let error = test.runtime.start(with("a", &writable)).await.unwrap_err();
    assert!(matches!(&error, StartError::Config(message) if message.contains(&writable.0)), "{error}");
    assert_eq!(test.output(with("b", &fixed)).await, "xx");
    assert!(fs::read(&image).unwrap().iter().all(|&byte| byte == b'x'));
}

struct MountedOver(PathBuf);

impl Drop for MountedOver {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).output();
    }
}

#[tokio::test]
async fn volume_is_released_when_its_container_exits() {
    let test = TestRuntime::new();
    let image = test.directory.path().join("image");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    command("mkfs.ext4", &["-q", image.to_str().unwrap()]);
    let device = Loop::over(&image);
    let volume = test.create_dir("volume");
    command("mount", &[&device.0, volume.to_str().unwrap()]);
    let mounted = MountedOver(volume.clone());
    // One container with the volume, and one without that was started while it was mounted.
    let other = test.runtime.start(sh("other", "exec sleep 1000")).await.unwrap();
    let mut spec = sh("a", "touch /data/x");
    spec.mounts = vec![mount(&volume, "/data")];
    test.output(spec).await;
    drop(mounted);
    // While any namespace holds the file system, the device cannot be opened exclusively.
    eventually("release of the device", || {
        let exclusive = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::RDONLY;
        rustix::fs::open(device.0.as_str(), exclusive, rustix::fs::Mode::empty()).is_ok()
    });
    assert!(test.pid(&other) > 0);
}
