//! Creating, getting, listing and deleting volumes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use wharf_driver::backend::{CapacityQuery, CreateError, DeleteError, FormatState, SizeRange, Topology};
use wharf_driver_local::TOPOLOGY_KEY;
use wharf_linux::FsType;

use crate::fixture::*;

on_each!(
    create_gives_exact_size_and_is_idempotent,
    delete_refuses_volumes_in_use_and_ignores_odd_ids,
    thick_volume_allocates_its_blocks
);

fn create_gives_exact_size_and_is_idempotent(fs: FsType) {
    let mut f = Fixture::new(fs);
    let exact = wanted("pvc-1", 0).size(SizeRange { required: 5 * MIB, limit: Some(5 * MIB) });
    let volume = f.create(&exact).unwrap();
    assert_eq!(volume.capacity, 5 * MIB);
    assert_eq!(volume.topology, [Topology::from([(TOPOLOGY_KEY.to_owned(), "n1".to_owned())])]);
    assert!(volume.context.is_empty());
    assert_eq!(f.image(&volume.id).metadata().unwrap().len(), 5 * MIB);
    assert_eq!(f.read(&volume.id, 0, 5 << 20), vec![0; 5 << 20]);
    assert_eq!(f.format(&volume.id), Ok(FormatState::Blank));
    assert_eq!(f.create(&exact), Ok(volume.clone()));
    assert!(matches!(f.create(&wanted("pvc-1", 6 * MIB)), Err(CreateError::Exists(_))));
    f.reopen();
    assert_eq!(f.create(&exact), Ok(volume.clone()));
    assert_eq!(f.get(&volume.id), Ok(Some(volume.clone())));
    f.delete(&volume.id).unwrap();
    f.delete(&volume.id).unwrap();
    assert_eq!(f.get(&volume.id), Ok(None));
    f.assert_empty();
    // The name can be used again, for a new image.
    assert_eq!(f.volume("pvc-1", 8 * MIB).id, volume.id);
}

fn delete_refuses_volumes_in_use_and_ignores_odd_ids(fs: FsType) {
    let f = Fixture::new(fs);
    let id = f.raw_volume("pvc-1", 8 * MIB).id;
    f.attach(&id, &block()).unwrap();
    let refused = f.delete(&id).unwrap_err();
    assert!(matches!(&refused, DeleteError::InUse(reason) if reason.contains("/dev/loop")), "{refused}");
    assert!(f.image(&id).exists());
    f.detach(&id).unwrap();
    for odd in
        ["", ".", "..", "/", "../volumes", "vol-x", &format!("{id}/../{id}"), &format!("../{id}"), "a\0b"]
    {
        assert_eq!(f.delete(odd), Ok(()), "{odd:?}");
        assert_eq!(f.get(odd), Ok(None), "{odd:?}");
        assert_eq!(f.delete_snapshot(odd), Ok(()), "{odd:?}");
        assert_eq!(f.delete_group(odd), Ok(()), "{odd:?}");
    }
    assert!(f.image(&id).exists());
    f.delete(&id).unwrap();
    f.assert_empty();
}

fn thick_volume_allocates_its_blocks(fs: FsType) {
    let f = Fixture::new(fs);
    let thick = |name: &str, size| {
        wanted(name, size).parameters(BTreeMap::from([("type".to_owned(), "thick".to_owned())]))
    };
    let volume = f.create(&thick("thick", 64 * MIB)).unwrap();
    assert!(f.image(&volume.id).metadata().unwrap().blocks() * 512 >= 64 * MIB);
    let thin = f.volume("thin", 64 * MIB);
    assert!(f.image(&thin.id).metadata().unwrap().blocks() * 512 < MIB);
    // More than the free space, although a thin volume of that size is allowed.
    let refused = f.create(&thick("too-thick", 5 * GIB)).unwrap_err();
    assert!(matches!(refused, CreateError::Exhausted(_)), "{refused}");
    f.volume("just-thin", 2 * GIB);
    let other = f.create(&wanted("thick", 64 * MIB)).unwrap_err();
    assert!(matches!(other, CreateError::Exists(_)), "{other}");
}

#[test]
fn volume_is_at_least_the_file_system_minimum() {
    let f = Fixture::new(FsType::Ext4);
    let small = |name: &str, fs, limit| {
        wanted(name, 0).capabilities(vec![mount(fs)]).size(SizeRange { required: MIB, limit })
    };
    assert_eq!(f.create(&small("x", "xfs", None)).unwrap().capacity, FsType::Xfs.minimum_size());
    assert_eq!(f.create(&small("b", "btrfs", None)).unwrap().capacity, FsType::Btrfs.minimum_size());
    assert!(matches!(f.create(&small("y", "xfs", Some(2 * MIB))), Err(CreateError::OutOfRange(_))));
    assert!(matches!(f.create(&small("z", "ntfs", None)), Err(CreateError::Invalid(_))));
    assert!(matches!(f.create(&wanted("huge", u64::MAX)), Err(CreateError::OutOfRange(_))));
    assert!(matches!(f.create(&wanted("large", 1 << 60)), Err(CreateError::Exhausted(_))));
}

#[test]
fn parameters_are_validated_and_passed_in_the_context() {
    let f = Fixture::new(FsType::Ext4);
    let with = |key: &str, value: &str| {
        wanted("p", 16 * MIB).parameters(BTreeMap::from([(key.to_owned(), value.to_owned())]))
    };
    assert!(matches!(f.create(&with("tpye", "thin")), Err(CreateError::Invalid(_))));
    let dangerous = f.create(&with("mkfsOptions", "/etc/passwd"));
    assert!(matches!(dangerous, Err(CreateError::Invalid(_))), "{dangerous:?}");
    let volume = f.create(&with("mkfsOptions", "-m 0")).unwrap();
    assert_eq!(volume.context.get("mkfsOptions").map(String::as_str), Some("-m 0"));
}

#[test]
fn provisioning_is_limited_by_overcommit() {
    let f = Fixture::with(FsType::Xfs, GIB, |config| config.overcommit = 1.0);
    let available = f.capacity(&CapacityQuery::default()).unwrap().available;
    assert!(available > 800 * MIB && available <= GIB, "{available}");
    f.raw_volume("a", 512 * MIB);
    let left = f.capacity(&CapacityQuery::default()).unwrap();
    assert!(left.available <= available - 512 * MIB);
    assert_eq!(left.maximum_volume, Some(left.available));
    assert!(matches!(f.create(&wanted("b", left.available + MIB)), Err(CreateError::Exhausted(_))));
    f.raw_volume("c", left.available - MIB);
}

#[test]
fn other_topology_is_refused_and_has_no_capacity() {
    let f = Fixture::new(FsType::Ext4);
    let term = |node: &str| Topology::from([(TOPOLOGY_KEY.to_owned(), node.to_owned())]);
    let at = |name: &str, terms: &[&str]| {
        wanted(name, 16 * MIB).requisite(terms.iter().map(|node| term(node)).collect::<Vec<_>>())
    };
    assert!(matches!(f.create(&at("a", &["n2"])), Err(CreateError::Exhausted(_))));
    assert!(f.create(&at("a", &["n2", "n1"])).is_ok());
    let query = |node: &str| CapacityQuery::default().topology(term(node));
    assert_eq!(f.capacity(&query("n2")).unwrap().available, 0);
    assert!(f.capacity(&query("n1")).unwrap().available > 0);
    let thick = query("n1").parameters(BTreeMap::from([("type".to_owned(), "thick".to_owned())]));
    assert_eq!(f.capacity(&thick).unwrap().available, f.capacity(&query("n1")).unwrap().available);
}

#[test]
fn listing_continues_after_deletions() {
    let f = Fixture::new(FsType::Ext4);
    let mut ids: Vec<String> = (0..7).map(|i| f.volume(&format!("v{i}"), 16 * MIB).id).collect();
    ids.sort();
    let first = f.list(None, 3);
    assert!(first.more);
    assert_eq!(first.entries.iter().map(|v| &v.id).collect::<Vec<_>>(), ids[..3].iter().collect::<Vec<_>>());
    f.delete(&ids[2]).unwrap();
    f.delete(&ids[4]).unwrap();
    let rest = f.list(Some(&ids[2]), 10);
    assert!(!rest.more);
    assert_eq!(rest.entries.iter().map(|v| &v.id).collect::<Vec<_>>(), [&ids[3], &ids[5], &ids[6]]);
}
