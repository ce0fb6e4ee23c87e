//! Volumes in containers: directories, files, parts of them, devices.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use wharf_node::runtime::{ContainerDevice, ContainerMount, ContainerSpec, LogOptions, StartError};

use crate::home::{Home, Mounted, command, eventually, sh, within};

fn mount(source: impl AsRef<Path>, target: &str) -> ContainerMount {
    ContainerMount { source: source.as_ref().to_owned(), target: target.into(), ..ContainerMount::default() }
}

/// A directory that the pod has named.
fn of_host(source: impl AsRef<Path>, target: &str) -> ContainerMount {
    ContainerMount { host: true, ..mount(source, target) }
}

fn part(source: impl AsRef<Path>, part: &str) -> ContainerMount {
    ContainerMount { sub_path: Some(PathBuf::from(part)), ..mount(source, "/data") }
}

#[tokio::test]
async fn a_volume_is_written_to_and_a_read_only_one_is_not() {
    let home = Home::new();
    let (one, two) = (home.make("one"), home.make("two"));
    fs::write(two.join("old"), "old").unwrap();
    let mut spec = sh(
        "a",
        "echo new > /data/one/new; cat /data/two/old; touch /data/two/new 2>/dev/null && echo wrote; true",
    );
    spec.mounts =
        vec![ContainerMount { read_only: true, ..mount(&two, "/data/two") }, mount(&one, "/data/one")];
    assert_eq!(home.output(spec).await, "old");
    assert_eq!(fs::read_to_string(one.join("new")).unwrap(), "new\n");
    assert!(!two.join("new").exists());
}

#[tokio::test]
async fn volumes_lie_in_each_other_in_any_order() {
    let home = Home::new();
    let (outer, inner) = (home.make("outer"), home.make("inner"));
    let mut spec = sh("a", "touch /data/in/inner /data/outer");
    spec.mounts = vec![mount(&inner, "/data/in"), mount(&outer, "/data")];
    home.output(spec).await;
    assert!(inner.join("inner").exists() && outer.join("outer").exists());
}

#[tokio::test]
async fn a_file_lies_over_a_file() {
    let home = Home::new();
    let file = home.directory.path().join("hosts");
    fs::write(&file, "127.0.0.1 pod\n").unwrap();
    let log = home.directory.path().join("termination-log");
    fs::write(&log, "").unwrap();
    let mut spec = sh("a", "cat /etc/hosts; echo why > /dev/termination-log");
    spec.mounts = vec![mount(&file, "/etc/hosts"), mount(&log, "/dev/termination-log")];
    assert_eq!(home.output(spec).await, "127.0.0.1 pod\n");
    assert_eq!(fs::read_to_string(log).unwrap(), "why\n");
}

#[tokio::test]
async fn a_missing_volume_is_an_error_that_names_it() {
    let home = Home::new();
    let mut spec = sh("a", "true");
    spec.mounts = vec![mount(home.directory.path().join("nowhere"), "/data")];
    let error = home.runtime.start(spec).await.unwrap_err();
    assert!(matches!(&error, StartError::Machine { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere for /data"), "{error}");
}

#[tokio::test]
async fn a_part_of_a_volume_is_made_with_the_volumes_mode() {
    let home = Home::new();
    let volume = home.make("volume");
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o2770)).unwrap();
    let mut spec = sh("a", "touch /data/x");
    spec.mounts = vec![part(&volume, "a/b")];
    home.output(spec.clone()).await;
    assert!(volume.join("a/b/x").exists());
    for made in ["a", "a/b"] {
        assert_eq!(fs::metadata(volume.join(made)).unwrap().permissions().mode() & 0o7777, 0o2770, "{made}");
    }
    spec.container = "again".to_owned();
    home.output(spec).await;
}

#[tokio::test]
async fn links_are_followed_in_a_volume_but_not_out_of_it() {
    let home = Home::new();
    let volume = home.make("volume");
    // As config maps are made.
    fs::create_dir(volume.join("..2026")).unwrap();
    fs::write(volume.join("..2026/settings"), "mine").unwrap();
    symlink("..2026", volume.join("..data")).unwrap();
    symlink("..data/settings", volume.join("settings")).unwrap();
    fs::write(home.directory.path().join("other"), "another pod's").unwrap();
    symlink("../other", volume.join("up")).unwrap();
    symlink("/etc/passwd", volume.join("absolute")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("..", volume.join("parent")).unwrap();

    let with =
        |name: &str, part: ContainerMount| ContainerSpec { mounts: vec![part], ..sh(name, "cat /data") };
    assert_eq!(home.output(with("a", part(&volume, "settings"))).await, "mine");
    for (index, path) in
        ["up", "absolute", "magic/etc/passwd", "parent/other", "parent/made"].iter().enumerate()
    {
        let error = home.runtime.start(with(&format!("c{index}"), part(&volume, path))).await.unwrap_err();
        assert!(
            matches!(&error, StartError::Config(message) if message.contains("out of its volume")),
            "{path}: {error}"
        );
    }
    assert!(!home.directory.path().join("made").exists());
    let error = home.runtime.start(with("climbs", part(&volume, "a/../../other"))).await.unwrap_err();
    assert!(matches!(error, StartError::Config(_)), "{error}");
}

/// Nothing of a part's path is looked at twice: what is a directory for us first could be a link to other pods' volumes
/// then.
#[tokio::test]
async fn a_volume_brings_its_mounts_but_a_part_of_it_does_not() {
    let home = Home::new();
    let volume = home.make("volume");
    let _nested = Mounted::tmpfs(&volume.join("sub/disk"));
    fs::write(volume.join("sub/disk/file"), "").unwrap();
    let script = "cut -d' ' -f5 /proc/self/mountinfo | grep ^/data; find /data -name file";
    for (name, mount, expected) in [
        ("whole", mount(&volume, "/data"), "/data\n/data/sub/disk\n/data/sub/disk/file\n"),
        ("part", part(&volume, "sub"), "/data\n"),
    ] {
        let spec = ContainerSpec { mounts: vec![mount], ..sh(name, script) };
        assert_eq!(home.output(spec).await, expected, "{name}");
    }
}

/// One that is covered by now: on the way to it there is a link, as a pod could make it while its container starts.
#[tokio::test]
async fn what_is_mounted_in_a_volume_is_not_looked_for_by_links() {
    let home = Home::new();
    let (volume, other) = (home.make("volume"), home.make("other"));
    fs::write(other.join("secret"), "another pod's").unwrap();
    let _nested = Mounted::tmpfs(&volume.join("sub/disk"));
    let _over = Mounted::tmpfs(&volume.join("sub"));
    symlink(&other, volume.join("sub/disk")).unwrap();
    for (name, mount) in [("volume", mount(&volume, "/data")), ("host", of_host(&volume, "/data"))] {
        let spec = ContainerSpec {
            mounts: vec![mount],
            ..sh(name, "ls /data/sub; cut -d' ' -f5 /proc/self/mountinfo | grep -e ^/data -e /other")
        };
        assert_eq!(home.output(spec).await, "disk\n/data\n/data/sub\n", "{name}");
    }
}

#[tokio::test]
async fn a_directory_of_the_host_brings_its_mounts_but_not_hidden_ones() {
    let home = Home::with(|settings| {
        settings.hidden = vec![settings.directory.with_file_name("host").join("kubelet")]
    });
    let host = home.make("host");
    let _seen = Mounted::tmpfs(&host.join("disk"));
    let _hidden = Mounted::tmpfs(&host.join("kubelet/pods/1/volume"));
    fs::write(host.join("disk/file"), "").unwrap();
    fs::write(host.join("kubelet/pods/1/volume/file"), "").unwrap();
    let mut spec = sh("a", "cd /data && find . -name file; exec sleep 1000");
    spec.mounts = vec![of_host(&host, "/data")];
    let id = home.runtime.start(spec).await.unwrap();
    let mut logs =
        home.runtime.logs(&id, LogOptions { follow: true, ..LogOptions::default() }).await.unwrap();
    assert_eq!(within(logs.next()).await.unwrap().unwrap(), b"./disk/file\n");
    let table = fs::read_to_string(format!("/proc/{}/mountinfo", home.pid(&id))).unwrap();
    assert!(table.contains(" /data/disk ") && !table.contains("/data/kubelet/"), "{table}");
}

/// A pod that names the data directory would have everybody's credentials and volumes.
#[tokio::test]
async fn a_path_of_the_host_that_leads_into_a_hidden_place_is_refused() {
    let home = Home::with(|settings| settings.hidden = vec![settings.directory.with_file_name("data")]);
    let data = home.make("data/deep").parent().unwrap().to_owned();
    fs::write(data.join("kubeconfig"), "admin").unwrap();
    let beside = home.make("beside");
    symlink(&data, beside.join("link")).unwrap();
    let bound = home.make("bound");
    command("mount", &["--bind", home.directory.path().to_str().unwrap(), bound.to_str().unwrap()]);
    let _bound = MountedOver(bound.clone());
    let other = home.runtime.start(sh("other", "exec sleep 1000")).await.unwrap();
    let of_other = format!("/proc/{}/root/etc", home.pid(&other));
    let part = |source: &Path, part: &str| ContainerMount {
        sub_path: Some(PathBuf::from(part)),
        ..of_host(source, "/data")
    };
    for (index, (mount, words)) in [
        (of_host(&data, "/data"), "which holds wharf's own data"),
        (of_host(data.join("deep"), "/data"), "which holds wharf's own data"),
        (of_host(data.join("kubeconfig"), "/data"), "which holds wharf's own data"),
        (of_host(beside.join("link"), "/data"), "which holds wharf's own data"),
        (of_host(bound.join("data"), "/data"), "which holds wharf's own data"),
        (part(home.directory.path(), "data"), "which holds wharf's own data"),
        (part(home.directory.path(), "data/new"), "which holds wharf's own data"),
        (of_host(home.directory.path().join("containers"), "/data"), "which holds wharf's own data"),
        (of_host(of_other, "/data"), "another container's"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("{} {:?}", mount.source.display(), mount.sub_path);
        let spec = ContainerSpec { mounts: vec![mount], ..sh(&format!("c{index}"), "true") };
        let error = home.runtime.start(spec).await.expect_err(&name);
        assert!(matches!(&error, StartError::Config(message) if message.contains(words)), "{name}: {error}");
    }
    assert!(!data.join("new").exists());
}

#[tokio::test]
async fn what_is_hidden_is_covered_in_the_directories_above_it() {
    let home = Home::with(|settings| {
        settings.hidden =
            ["data", "data/logs", "file"].map(|name| settings.directory.with_file_name(name)).to_vec();
    });
    let data = home.make("data");
    fs::create_dir(data.join("logs")).unwrap();
    fs::write(data.join("kubeconfig"), "admin").unwrap();
    fs::write(home.directory.path().join("file"), "admin").unwrap();
    fs::write(home.directory.path().join("seen"), "seen\n").unwrap();
    let bound = home.make("bound");
    command("mount", &["--bind", home.directory.path().to_str().unwrap(), bound.to_str().unwrap()]);
    let _bound = MountedOver(bound.clone());
    let script = "ls -A $1/data $1/containers; cat $1/file $1/seen; umount $1/data 2>/dev/null && echo unmounted; \
                  touch $1/data/new 2>/dev/null && echo written; ls -A $1/data";
    let here = home.directory.path().display().to_string();
    for (index, (source, read_only, inside)) in [
        (Path::new("/"), true, format!("/host{here}")),
        (Path::new("/"), false, format!("/host{here}")),
        (Path::new("/"), true, format!("/host{here}/bound")),
        (home.directory.path(), true, "/host".to_owned()),
        (home.directory.path(), false, "/host/bound".to_owned()),
        (&*bound, false, "/host".to_owned()),
    ]
    .into_iter()
    .enumerate()
    {
        let mut spec = sh(&format!("c{index}"), script);
        spec.command.extend(["sh".to_owned(), inside.clone()]);
        spec.mounts = vec![ContainerMount { read_only, ..of_host(source, "/host") }];
        let (_, said) = home.run(spec).await;
        let expected = format!("{inside}/containers:\n\n{inside}/data:\nseen\n");
        assert_eq!(said, expected, "{} {inside}", source.display());
    }
    assert!(!data.join("new").exists());
}

#[tokio::test]
async fn mounts_made_later_are_not_passed_on() {
    let home = Home::new();
    let volume = home.make("volume");
    let _volume = Mounted::tmpfs(&volume);
    command("mount", &["--make-shared", volume.to_str().unwrap()]);
    fs::create_dir(volume.join("sub")).unwrap();
    let mut spec = sh("a", "while test ! -e /data/go; do sleep 0.05; done; ls /data/sub");
    spec.mounts = vec![mount(&volume, "/data")];
    let id = home.runtime.start(spec).await.unwrap();
    let _later = Mounted::tmpfs(&volume.join("sub"));
    fs::write(volume.join("sub/file"), "").unwrap();
    fs::write(volume.join("go"), "").unwrap();
    within(home.runtime.exited(&id)).await.unwrap();
    assert_eq!(home.log(&id, LogOptions::default()).await, "");
}

/// A loop device that is gone at the end of the test.
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
async fn a_device_is_where_it_was_asked_for() {
    let home = Home::new();
    let image = home.directory.path().join("image");
    fs::write(&image, [b'x'; 1 << 20]).unwrap();
    let device = Loop::over(&image);
    // Published as a raw volume is: bound over a file.
    let published = home.directory.path().join("published");
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
    assert_eq!(home.output(spec.clone()).await, "xx");
    eventually("write to the image", || fs::read(&image).unwrap()[..3] == *b"yzx");

    spec.container = "b".to_owned();
    spec.devices[0].source = image;
    let error = home.runtime.start(spec).await.unwrap_err();
    assert!(
        matches!(&error, StartError::Config(message) if message.contains("not a block device")),
        "{error}"
    );
}

/// A bind of a device's node may be all that a driver does for `readonly`, and keeps nobody from writing.
#[tokio::test]
async fn a_device_for_reading_is_refused_unless_it_refuses_writes() {
    let home = Home::new();
    let image = home.directory.path().join("image");
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
    let error = home.runtime.start(with("a", &writable)).await.unwrap_err();
    assert!(matches!(&error, StartError::Config(message) if message.contains(&writable.0)), "{error}");
    assert_eq!(home.output(with("b", &fixed)).await, "xx");
    assert!(fs::read(&image).unwrap().iter().all(|&byte| byte == b'x'));
}

struct MountedOver(PathBuf);

impl Drop for MountedOver {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).output();
    }
}

#[tokio::test]
async fn the_host_can_let_go_of_a_volume_when_its_container_has_ended() {
    let home = Home::new();
    let image = home.directory.path().join("image");
    fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
    command("mkfs.ext4", &["-q", image.to_str().unwrap()]);
    let device = Loop::over(&image);
    let volume = home.make("volume");
    command("mount", &[&device.0, volume.to_str().unwrap()]);
    let mounted = MountedOver(volume.clone());
    // One that has the volume, and one that was started while it was mounted and has not.
    let beside = home.runtime.start(sh("beside", "exec sleep 1000")).await.unwrap();
    let mut spec = sh("a", "touch /data/x");
    spec.mounts = vec![mount(&volume, "/data")];
    home.output(spec).await;
    drop(mounted);
    // As long as any namespace holds the file system, the device cannot be opened for oneself.
    eventually("release of the device", || {
        let exclusive = rustix::fs::OFlags::EXCL | rustix::fs::OFlags::RDONLY;
        rustix::fs::open(device.0.as_str(), exclusive, rustix::fs::Mode::empty()).is_ok()
    });
    assert!(home.pid(&beside) > 0);
}
