//! Loop devices of volumes.

use std::fs;

use wharf_driver::backend::{AccessMode, Capability, DeviceError, FormatState};
use wharf_driver_local::Pool;
use wharf_linux::{BlockDevices as _, FsType, Linux};
use wharf_testkit::loop_devices_on;

use crate::fixture::*;

on_each!(attach_is_idempotent_and_detach_releases_the_device, format_state_never_goes_back);

fn attach_is_idempotent_and_detach_releases_the_device(fs: FsType) {
    let f = Fixture::new(fs);
    let id = f.raw_volume("v", 32 * MIB).id;
    assert_eq!(f.find(&id), Ok(None));
    let device = f.attach(&id, &block()).unwrap();
    assert_eq!((device.size, device.read_only), (32 * MIB, false));
    assert_eq!(Linux::new().device_size(&device.path).unwrap(), 32 * MIB);
    let configured = Linux::new().loop_devices().unwrap();
    let configured = configured.iter().find(|other| other.path == device.path).unwrap();
    assert_eq!(configured.label, id);
    assert!(configured.direct_io);
    assert_eq!(f.attach(&id, &block()).unwrap(), device);
    assert_eq!(f.find(&id).unwrap(), Some(device));
    assert_eq!(loop_devices_on(f.disk.path()).len(), 1);
    f.detach(&id).unwrap();
    f.detach(&id).unwrap();
    assert_eq!(f.find(&id), Ok(None));
    assert!(matches!(f.attach("vol-x", &block()), Err(DeviceError::NotFound(_))));
    assert_eq!(f.detach("vol-x"), Ok(()));
    assert!(matches!(f.refresh(&id), Err(DeviceError::NotFound(_))));
    f.delete(&id).unwrap();
    f.assert_empty();
}

#[test]
fn volume_is_not_copied_while_its_file_system_grows_offline() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 32 * MIB).id;
    f.set_growing_offline(&id, true).unwrap();
    f.reopen();
    assert_eq!(f.is_growing_offline(&id), Ok(true));
    let refused = f.create_snapshot(&snapshot("s", &id)).unwrap_err().to_string();
    assert!(refused.contains("being enlarged"), "{refused}");
    f.create(&copy_of("copy", 32 * MIB, &id)).unwrap_err();
    f.set_growing_offline(&id, false).unwrap();
    f.take_snapshot("s", &id);

    // An image from a backup is not the one that was being grown.
    f.set_growing_offline(&id, true).unwrap();
    f.close();
    let copy = f.image(&id).with_file_name("copy");
    fs::copy(f.image(&id), &copy).unwrap();
    fs::rename(copy, f.image(&id)).unwrap();
    Pool::open_maintenance(std::sync::Arc::new(Linux::new()), f.disk.path()).unwrap().adopt(&id).unwrap();
    f.reopen();
    assert_eq!(f.is_growing_offline(&id), Ok(false));
}

#[test]
fn read_only_access_gets_a_read_only_device() {
    let f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 32 * MIB).id;
    let reader = Capability::block(AccessMode::SingleNodeReaderOnly);
    assert!(f.attach(&id, &reader).unwrap().read_only);
    // Not in use: it is replaced by a writable one, which serves readers as well.
    assert!(!f.attach(&id, &block()).unwrap().read_only);
    assert!(!f.attach(&id, &reader).unwrap().read_only);
    assert_eq!(loop_devices_on(f.disk.path()).len(), 1);
    f.detach(&id).unwrap();
}

#[test]
fn device_in_use_is_not_detached() {
    let f = Fixture::new(FsType::Xfs);
    let work = tempfile::tempdir().unwrap();
    for fs in ["ext4", "btrfs"] {
        let volume = wanted(fs, 200 * MIB).capabilities(vec![mount(fs)]);
        let id = f.create(&volume).unwrap().id;
        let device = f.attach(&id, &mount("")).unwrap().path;
        run(&format!("mkfs.{fs}"), &["-q".as_ref(), &device]);
        let mounted = Mounted::new(&device, &work.path().join(fs));
        let refused = f.detach(&id);
        assert!(matches!(&refused, Err(DeviceError::InUse(reason)) if reason.contains(fs)), "{refused:?}");
        let listed = f.contents().unwrap().volumes.into_iter().find(|entry| entry.id == id).unwrap();
        assert_eq!((listed.device, listed.mounts), (Some(device.clone()), vec![mounted.0.clone()]));
        drop(mounted);
        f.detach(&id).unwrap();
    }
    // Bind-mounted, as a published raw volume is.
    let id = f.raw_volume("raw", 16 * MIB).id;
    let device = f.attach(&id, &block()).unwrap().path;
    let target = work.path().join("target");
    fs::write(&target, "").unwrap();
    run("mount", &["--bind".as_ref(), &device, &target]);
    let bound = Mounted(target);
    assert!(matches!(f.detach(&id), Err(DeviceError::InUse(_))));
    drop(bound);
    f.detach(&id).unwrap();
}

/// A device that disappeared at its last close would leave its number to another volume, and a process that got the
/// device node in between would read and write that volume.
#[test]
fn open_device_stays_attached_and_autoclear_device_is_not_reused() {
    let f = Fixture::new(FsType::Xfs);
    let capability = mount("ext4");
    let id = f.create(&wanted("v", 64 * MIB).capabilities(vec![capability.clone()])).unwrap().id;
    let device = f.attach(&id, &capability).unwrap();
    let open = fs::File::open(&device.path).unwrap();
    let refused = f.detach(&id);
    assert!(
        matches!(&refused, Err(DeviceError::InUse(reason)) if reason.contains("has it open")),
        "{refused:?}"
    );
    assert_eq!(f.attach(&id, &capability).unwrap(), device);
    drop(open);
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(f.find(&id).unwrap(), Some(device.clone()));

    // As if a driver crashed while it waited for the close.
    let open = fs::File::open(&device.path).unwrap();
    run("losetup", &["-d".as_ref(), &device.path]);
    let refused = f.attach(&id, &capability);
    assert!(matches!(refused, Err(DeviceError::InUse(_))), "{refused:?}");
    drop(open);
    let again = f.attach(&id, &capability).unwrap();
    assert!(!is_autoclear(&again.path));
    f.detach(&id).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}

/// A pod with a raw device can set it to disappear at its last close. It is held, so it stays, and the driver restores it.
#[test]
fn autoclear_device_that_is_held_is_restored_and_reused() {
    let f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 16 * MIB).id;
    let device = f.attach(&id, &block()).unwrap();
    run("losetup", &["-d".as_ref(), &device.path]);
    assert!(is_autoclear(&device.path));
    assert_eq!(f.attach(&id, &block()).unwrap(), device);
    assert!(!is_autoclear(&device.path));
    f.detach(&id).unwrap();
    f.delete(&id).unwrap();
    f.assert_empty();
}

fn is_autoclear(device: &std::path::Path) -> bool {
    let configured = Linux::new().loop_devices().unwrap();
    configured.iter().find(|other| other.path == device).expect("the device is configured").autoclear
}

#[test]
fn replaced_image_is_refused_until_adopted() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 16 * MIB).id;
    let image = f.image(&id);
    let aside = image.with_file_name("aside");
    let refused = |f: &Fixture, word: &str| {
        let message = f.attach(&id, &block()).unwrap_err();
        assert!(matches!(&message, DeviceError::WrongDevice(reason) if reason.contains(word)), "{message}");
        assert_eq!(loop_devices_on(f.disk.path()), Vec::<String>::new());
    };
    fs::rename(&image, &aside).unwrap();
    refused(&f, "missing");
    fs::copy(&aside, &image).unwrap();
    refused(&f, "not the file it was created with");
    fs::remove_file(&image).unwrap();
    std::os::unix::fs::symlink(&aside, &image).unwrap();
    let message = f.attach(&id, &block()).unwrap_err();
    assert!(!matches!(message, DeviceError::NotFound(_)), "{message}");
    fs::remove_file(&image).unwrap();
    fs::rename(&aside, &image).unwrap();
    fs::File::options().write(true).open(&image).unwrap().set_len(8 * MIB).unwrap();
    refused(&f, "8388608 bytes");
    fs::File::options().write(true).open(&image).unwrap().set_len(16 * MIB).unwrap();
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();

    // A restored backup, which the operator adopts.
    fs::copy(&image, &aside).unwrap();
    fs::rename(&aside, &image).unwrap();
    refused(&f, "not the file it was created with");
    f.close();
    let maintenance = Pool::open_maintenance(std::sync::Arc::new(Linux::new()), f.disk.path()).unwrap();
    assert!(maintenance.check().iter().any(|finding| finding.object == id));
    maintenance.adopt(&id).unwrap();
    assert!(maintenance.adopt("vol-x").is_err());
    assert_eq!(maintenance.check(), []);
    drop(maintenance);
    f.reopen();
    f.attach(&id, &block()).unwrap();
    f.detach(&id).unwrap();
}

fn format_state_never_goes_back(fs: FsType) {
    let mut f = Fixture::new(fs);
    let id = f.volume("v", 16 * MIB).id;
    let formatting = FormatState::Formatting { fs: FsType::Ext4, uuid: "u".into() };
    let formatted = FormatState::Formatted { fs: FsType::Ext4, uuid: "u".into() };
    assert!(f.set_format(&id, &formatted).is_err());
    f.set_format(&id, &formatting).unwrap();
    f.reopen();
    assert_eq!(f.format(&id), Ok(formatting));
    f.set_format(&id, &formatted).unwrap();
    assert!(f.set_format(&id, &FormatState::Blank).is_err());
    f.reopen();
    assert_eq!(f.format(&id), Ok(formatted));
    assert!(matches!(f.format("vol-x"), Err(DeviceError::NotFound(_))));
}
