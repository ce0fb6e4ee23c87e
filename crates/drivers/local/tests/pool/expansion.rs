//! Volume expansion.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wharf_driver::backend::{ExpandError, SizeRange};
use wharf_linux::{BlockDevices as _, FsType, Linux};

use crate::fixture::*;

on_each!(expansion_grows_image_and_device);

fn to(required: u64) -> SizeRange {
    SizeRange { required, limit: None }
}

fn expansion_grows_image_and_device(fs: FsType) {
    let mut f = Fixture::new(fs);
    let id = f.raw_volume("v", 16 * MIB).id;
    f.write(&id, 0, b"data");
    let grown = f.expand(&id, to(32 * MIB)).unwrap();
    assert_eq!((grown.capacity, grown.node_expansion_required), (32 * MIB, true));
    assert_eq!(f.expand(&id, to(32 * MIB)).unwrap(), grown);
    // Never smaller.
    assert_eq!(f.expand(&id, to(MIB)).unwrap().capacity, 32 * MIB);
    assert_eq!(f.image(&id).metadata().unwrap().len(), 32 * MIB);
    assert_eq!(f.read(&id, 0, 4), b"data");
    // In use: the device gets the new size on refresh.
    let device = f.attach(&id, &block()).unwrap();
    f.expand(&id, to(48 * MIB)).unwrap();
    assert_eq!(f.refresh(&id).unwrap().size, 48 * MIB);
    assert_eq!(Linux::new().device_size(&device.path).unwrap(), 48 * MIB);
    f.detach(&id).unwrap();
    f.reopen();
    assert_eq!(f.get(&id).unwrap().unwrap().capacity, 48 * MIB);
    let limit = SizeRange { required: 64 * MIB + 1, limit: Some(64 * MIB + 1) };
    assert!(matches!(f.expand(&id, limit), Err(ExpandError::OutOfRange(_))));
    assert!(matches!(f.expand(&id, to(u64::MAX)), Err(ExpandError::OutOfRange(_))));
    assert!(matches!(f.expand(&id, to(1 << 50)), Err(ExpandError::Exhausted(_))));
    assert!(matches!(f.expand("vol-x", to(MIB)), Err(ExpandError::NotFound(_))));
    assert_eq!(f.get(&id).unwrap().unwrap().capacity, 48 * MIB);
}

#[test]
fn thick_volume_expands_only_into_free_space() {
    let f = Fixture::with(FsType::Xfs, GIB, |_| ());
    let thick = wanted("v", 64 * MIB).parameters(BTreeMap::from([("type".to_owned(), "thick".to_owned())]));
    let id = f.create(&thick).unwrap().id;
    assert_eq!(f.expand(&id, to(128 * MIB)).unwrap().capacity, 128 * MIB);
    assert!(matches!(f.expand(&id, to(1500 * MIB)), Err(ExpandError::Exhausted(_))));
    assert_eq!(f.image(&id).metadata().unwrap().len(), 128 * MIB);
    f.attach(&id, &mount("")).unwrap();
    f.detach(&id).unwrap();
}

#[test]
fn interrupted_expansion_is_finished_at_startup() {
    let mut f = Fixture::new(FsType::Xfs);
    for (name, image_size) in [("before", 16 * MIB), ("between", 32 * MIB)] {
        let id = f.raw_volume(name, 16 * MIB).id;
        f.close();
        let record = fs::read_to_string(f.record(&id)).unwrap();
        let record = record.replace("\"size\": 16777216,", "\"size\": 16777216, \"growingTo\": 33554432,");
        fs::write(f.record(&id), record).unwrap();
        fs::File::options().write(true).open(f.image(&id)).unwrap().set_len(image_size).unwrap();
        f.reopen();
        assert_eq!(f.get(&id).unwrap().unwrap().capacity, 32 * MIB);
        assert_eq!(f.image(&id).metadata().unwrap().len(), 32 * MIB);
        assert!(!fs::read_to_string(f.record(&id)).unwrap().contains("growingTo"));
    }
}

#[test]
fn expansion_that_failed_halfway_is_finished_by_the_next_attach() {
    let mut f = Fixture::new(FsType::Xfs);
    let id = f.raw_volume("v", 16 * MIB).id;
    // The image grows, and then writing the record fails.
    let grown = AtomicBool::new(false);
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = Arc::clone(&broken);
    f.reopen_with(refusing(move |effect| {
        let after = effect == "set_size" && is_broken.load(Ordering::SeqCst);
        let after = grown.fetch_or(after, Ordering::SeqCst);
        (["overwrite", "write_file"].contains(&effect) && after && is_broken.load(Ordering::SeqCst))
            .then_some(EIO)
    }));
    f.expand(&id, to(32 * MIB)).unwrap_err();
    assert_eq!(f.image(&id).metadata().unwrap().len(), 32 * MIB);
    broken.store(false, Ordering::SeqCst);
    assert_eq!(f.attach(&id, &block()).unwrap().size, 32 * MIB);
    assert_eq!(f.get(&id).unwrap().unwrap().capacity, 32 * MIB);
    f.detach(&id).unwrap();
}
