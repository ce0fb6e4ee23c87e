//! A pod with a raw device cannot take over another volume (N-H1), nor change its own for good; readers get a device of
//! their own (U-11).

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use wharf_driver::backend::{AccessMode, Capability, DeviceError};
use wharf_linux::{BlockDevices as _, FsType, Linux, LoopDevice};

use crate::fixture::*;

/// What a process with the device open can do. Only root in the pod is needed, no capability.
fn ioctl(device: &Path, mode: &str, request: u32, argument: &str) {
    let script = "open(my $d, $ARGV[1], $ARGV[0]) or die $!; my $a = eval $ARGV[3]; die $@ if $@; \
                  ioctl($d, $ARGV[2], $a) or die $!;";
    let mut perl = Command::new("perl");
    perl.args(["-e", script]).arg(device).args([mode, &request.to_string(), argument]);
    let output = perl.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn change_file(device: &Path, file: &Path) {
    let argument = format!("do {{ open(our $f, '<', '{}') or die $!; fileno($f) }}", file.display());
    ioctl(device, "<", LOOP_CHANGE_FD, &argument);
}

const LOOP_CLR_FD: u32 = 0x4C01;
const LOOP_SET_STATUS64: u32 = 0x4C04;
const LOOP_CHANGE_FD: u32 = 0x4C06;
const LOOP_SET_BLOCK_SIZE: u32 = 0x4C09;

fn holders(f: &Fixture, id: &str) -> Vec<LoopDevice> {
    let pool: String = f.uuid().replace('-', "").chars().take(16).collect();
    let label = format!("hold:{pool}:{id}");
    Linux::new().loop_devices().unwrap().into_iter().filter(|device| device.label == label).collect()
}

fn configured(path: &Path) -> LoopDevice {
    Linux::new().loop_devices().unwrap().into_iter().find(|device| device.path == path).unwrap()
}

fn staged(f: &Fixture, name: &str) -> (String, PathBuf) {
    let id = f.raw_volume(name, 16 * MIB).id;
    let path = f.attach(&id, &block()).unwrap().path;
    f.before_publish(&id, &block()).unwrap();
    (id, path)
}

fn release(f: &Fixture, id: &str) {
    f.detach(id).unwrap();
    assert_eq!(holders(f, id), []);
    f.delete(id).unwrap();
}

#[test]
fn detach_by_a_pod_neither_releases_the_device_nor_its_number() {
    let mut f = Fixture::new(FsType::Xfs);
    let (id, device) = staged(&f, "victim");
    assert_eq!(holders(&f, &id).len(), 1);
    for restarted in [false, true] {
        if restarted {
            f.close();
        }
        ioctl(&device, "+<", LOOP_CLR_FD, "0");
        // The last close by a pod, which used to release the device.
        drop(File::open(&device).unwrap());
        if restarted {
            f.reopen();
        }
        let other = f.raw_volume(&format!("other-{restarted}"), 16 * MIB).id;
        assert_ne!(f.attach(&other, &block()).unwrap().path, device);
        File::options().write(true).open(&device).unwrap().write_all_at(&[7; 4096], 0).unwrap();
        File::open(&device).unwrap().sync_all().unwrap();
        assert_eq!((f.read(&id, 0, 4096), f.read(&other, 0, 4096)), (vec![7; 4096], vec![0; 4096]));
        f.before_publish(&id, &block()).unwrap();
        assert!(!configured(&device).autoclear);
        release(&f, &other);
    }
    release(&f, &id);
    f.assert_empty();
}

#[test]
fn changed_configuration_is_restored_at_publish_and_start() {
    let mut f = Fixture::new(FsType::Xfs);
    let (id, device) = staged(&f, "v");
    // Offset 4096, size limit 8192, no flags, label "x".
    let status = r#"pack("Q5 L4 a64 a64 a32 Q2", 0, 0, 0, 4096, 8192, 0, 0, 0, 0, "x", "", "", 0, 0)"#;
    for at in ["publish", "start", "expansion", "stage"] {
        ioctl(&device, "+<", LOOP_SET_STATUS64, status);
        ioctl(&device, "+<", LOOP_SET_BLOCK_SIZE, "4096");
        let changed = configured(&device);
        assert_eq!((changed.offset, changed.size_limit, changed.sector_size), (4096, 8192, 4096));
        match at {
            "publish" => f.before_publish(&id, &block()).unwrap(),
            "start" => f.reopen(),
            "expansion" => drop(f.refresh(&id).unwrap()),
            _ => drop(f.attach(&id, &block()).unwrap()),
        }
        assert_eq!(configured(&device).altered(&id), None, "{at}");
        assert_eq!(Linux::new().device_size(&device).unwrap(), 16 * MIB, "{at}");
    }
    release(&f, &id);
    f.assert_empty();
}

/// Between listing and holding it, the device goes to another program's file.
#[test]
fn device_that_went_to_another_program_is_neither_held_nor_detached() {
    let mut f = Fixture::new(FsType::Xfs);
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("file");
    File::create(&file).unwrap().set_len(16 * MIB).unwrap();
    // Volumes of the same name have the same label, also in the pools of other tests.
    let id = f.raw_volume(f.uuid(), 16 * MIB).id;
    let reader = Capability::block(AccessMode::SingleNodeReaderOnly);
    let (label, stolen) = (id.clone(), Arc::new(Mutex::new(None)));
    let taken = Arc::clone(&stolen);
    f.reopen_with(observing(move |effect| {
        let mut taken = taken.lock().unwrap();
        if effect == "loop_hold" && taken.is_none() {
            let devices = Linux::new().loop_devices().unwrap();
            let device = devices.into_iter().find(|device| device.label == label).unwrap().path;
            // In one step: other tests would take the number of a detached device.
            change_file(&device, &file);
            *taken = Some(device);
        }
    }));
    let refused = f.attach(&id, &reader);
    assert!(matches!(&refused, Err(DeviceError::WrongDevice(_))), "{refused:?}");
    let device = stolen.lock().unwrap().clone().unwrap();
    let theirs = configured(&device);
    let others = Linux::new().loop_devices().unwrap();
    let holder = others.iter().find(|other| other.backing_device == Some(theirs.number));
    f.detach(&id).unwrap();
    let after = Linux::new().loop_devices().unwrap().into_iter().find(|found| found.path == device);
    let kept = after.is_some_and(|found| found.backing == theirs.backing);
    run("losetup", &["-d".as_ref(), &device]);
    assert_eq!((holder, kept), (None, true));
    f.delete(&id).unwrap();
    f.assert_empty();
}

/// LOOP_CHANGE_FD needs only a read-only device and read access.
#[test]
fn device_with_another_file_is_not_published_and_is_released() {
    let f = Fixture::new(FsType::Xfs);
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("file");
    File::create(&file).unwrap().set_len(16 * MIB).unwrap();
    let id = f.raw_volume("v", 16 * MIB).id;
    let reader = Capability::block(AccessMode::SingleNodeReaderOnly);
    let device = f.attach(&id, &reader).unwrap().path;
    change_file(&device, &file);
    let refused = f.before_publish(&id, &reader);
    assert!(
        matches!(&refused, Err(DeviceError::WrongDevice(reason)) if reason.contains("another file")),
        "{refused:?}"
    );
    assert!(f.delete(&id).is_err(), "the volume is still attached");
    // A new stage gets a device with the volume's image.
    let again = f.attach(&id, &reader).unwrap().path;
    assert_eq!(
        configured(&again).backing.device,
        std::os::unix::fs::MetadataExt::dev(&f.disk.path().metadata().unwrap())
    );
    f.before_publish(&id, &reader).unwrap();
    release(&f, &id);
    f.assert_empty();
}

#[test]
fn device_without_holder_is_held_after_a_restart() {
    let mut f = Fixture::new(FsType::Xfs);
    let (id, device) = staged(&f, "v");
    f.set_format(&id, &wharf_driver::backend::FormatState::Raw).unwrap();
    // As an older driver left it, or one that was killed between attach and hold.
    for holder in holders(&f, &id) {
        Linux::new().loop_detach(&holder.path, Some(holder.backing)).unwrap();
    }
    f.reopen();
    assert_eq!(holders(&f, &id).len(), 1);
    assert_eq!(holders(&f, &id)[0].backing_device, Some(configured(&device).number));
    f.reopen();
    assert_eq!(holders(&f, &id).len(), 1);
    release(&f, &id);
    f.assert_empty();
}

#[test]
fn device_that_cannot_be_detached_stays_held() {
    let f = Fixture::new(FsType::Xfs);
    let (id, device) = staged(&f, "v");
    let open = File::open(&device).unwrap();
    assert!(matches!(f.detach(&id), Err(DeviceError::InUse(_))));
    assert_eq!(holders(&f, &id).len(), 1);
    assert!(!configured(&device).autoclear);
    drop(open);
    release(&f, &id);
    f.assert_empty();
}

#[test]
fn kubelets_own_lock_is_left_alone() {
    let f = Fixture::new(FsType::Xfs);
    let (id, device) = staged(&f, "v");
    let lock = Linux::new().loop_hold(&device, "/var/lib/kubelet/plugins/dev/v").unwrap();
    assert!(matches!(f.detach(&id), Err(DeviceError::InUse(_))));
    assert_eq!(configured(&lock.path), lock);
    Linux::new().loop_detach(&lock.path, Some(lock.backing)).unwrap();
    release(&f, &id);
    f.assert_empty();
}

#[test]
fn reader_gets_a_read_only_device_of_its_own() {
    let f = Fixture::new(FsType::Xfs);
    let (id, device) = staged(&f, "v");
    File::options().write(true).open(&device).unwrap().write_all_at(&[7; 4096], 0).unwrap();
    File::open(&device).unwrap().sync_all().unwrap();
    let both = f.attach_reader(&id).unwrap();
    let reader = both.reader.clone().unwrap();
    assert_eq!((&both.path, both.read_only), (&device, false));
    assert!(
        File::options().write(true).open(&reader).and_then(|file| file.write_all_at(&[1; 512], 0)).is_err()
    );
    let mut bytes = [0; 4096];
    File::open(&reader).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [7; 4096]);
    assert_eq!(f.attach_reader(&id).unwrap(), both);
    assert_eq!(f.find(&id).unwrap(), Some(both));
    let about_it = |finding: &wharf_driver_local::Finding| finding.object == id;
    assert!(!f.check().iter().any(about_it), "{:?}", f.check());
    let listed = f.contents().unwrap().volumes.remove(0);
    assert_eq!(listed.device.as_ref(), Some(&device));
    assert_eq!(holders(&f, &id).len(), 2);
    f.expand(&id, wharf_driver::backend::SizeRange { required: 32 * MIB, limit: None }).unwrap();
    f.refresh(&id).unwrap();
    assert_eq!(Linux::new().device_size(&reader).unwrap(), 32 * MIB);
    release(&f, &id);
    f.assert_empty();
}

/// The ids of volumes are derived from their names, so two pools on a node can have the same.
#[test]
fn volumes_of_the_same_name_in_two_pools_are_distinct() {
    let (f, g) = (Fixture::new(FsType::Xfs), Fixture::new(FsType::Xfs));
    let ((id, device), (same, other)) = (staged(&f, "v"), staged(&g, "v"));
    assert_eq!(id, same);
    assert_ne!(device, other);
    assert_eq!(
        (f.find(&id).unwrap().unwrap().path, g.find(&id).unwrap().unwrap().path),
        (device, other.clone())
    );
    release(&f, &id);
    assert_eq!((holders(&g, &id).len(), configured(&other).altered(&id)), (1, None));
    release(&g, &id);
}
