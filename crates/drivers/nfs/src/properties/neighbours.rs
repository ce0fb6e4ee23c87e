//! Random volumes on one share: nothing of a neighbour changes.

use std::collections::BTreeMap;

use super::{HOSTILE, Random, cases};
use crate::handle::VolumeHandle;
use crate::parameters::OnDelete;
use crate::path::SharePath;
use crate::share::CreateVolume;
use crate::share::tests::support::{Fixture, create, tree, volume};

/// The directories that volumes ask for: equal ones, nested ones, and ones whose names begin alike.
const PATHS: [&str; 12] = [
    "a",
    "a/b",
    "a/b/c",
    "a/bc",
    "a-b",
    "ab",
    "b",
    "b/a",
    "archived-a",
    "archived-a/b",
    "foreign",
    "foreign/data",
];

fn nested(one: &SharePath, other: &SharePath) -> bool {
    one.parents().contains(other) || other.parents().contains(one)
}

/// Creates and deletes volumes at random. Each volume that lives has a file of its own, which must stay; and no volume's
/// directory is in another one's.
#[test]
fn random_volumes_are_never_nested_and_keep_their_files() {
    // One case is a few hundred system calls.
    for seed in 1..=cases() / 20_000 {
        let mut random = Random(seed);
        let fixture = Fixture::new();
        fixture.write("foreign/data", "precious");
        let mut live: BTreeMap<String, SharePath> = BTreeMap::new();
        let (mut retained, mut tried): (Vec<String>, Vec<SharePath>) = (Vec::new(), Vec::new());
        for n in 0..40 {
            if random.below(3) > 0 || live.is_empty() {
                let (handle, path) =
                    (format!("srv#share#v{n}##"), SharePath::new(random.pick(&PATHS)).unwrap());
                let policies = [None, Some(OnDelete::Archive), Some(OnDelete::Retain)];
                let on_delete = policies[random.below(3)];
                let request = CreateVolume { on_delete, ..volume(&handle, path.as_str()) };
                let inside = live.values().any(|other| nested(&path, other));
                let created = create(&fixture.share, &request);
                tried.push(path.clone());
                match created {
                    Ok(_) => {
                        assert!(!inside, "seed {seed}: {path} is nested with one of {live:?}");
                        let file = format!("{path}/{n}");
                        fixture.write(&file, &handle);
                        if on_delete.is_some() {
                            retained.push(n.to_string());
                        }
                        live.insert(handle, path);
                    }
                    Err(error) => {
                        // A file is not a directory, archives are not volumes, and a parent that has content stays one.
                        let kept = tried.iter().any(|other| nested(&path, other));
                        let archived = fixture.tree().iter().any(|name| name.starts_with("archived"));
                        assert!(
                            inside || kept || archived || path.as_str() == "foreign/data",
                            "seed {seed}: {error}"
                        );
                        assert_eq!(fixture.delete(&handle), Ok(()), "seed {seed}");
                    }
                }
            } else {
                let handle = live.keys().nth(random.below(live.len())).unwrap().clone();
                fixture.delete(&handle).unwrap_or_else(|error| panic!("seed {seed}: {handle}: {error}"));
                live.remove(&handle);
            }
            for (handle, path) in &live {
                let number = handle.trim_start_matches("srv#share#v").trim_end_matches('#');
                let content = std::fs::read_to_string(fixture.at(path.as_str()).join(number));
                assert_eq!(content.ok().as_ref(), Some(handle), "seed {seed}: {path} lost its file");
            }
        }
        for handle in live.keys() {
            fixture.delete(handle).unwrap();
        }
        fixture.leftovers();
        let tree = fixture.tree();
        for name in &retained {
            let found = tree.iter().any(|path| path.rsplit('/').next() == Some(name));
            assert!(found, "seed {seed}: file {name} of a retained or archived volume is gone: {tree:?}");
        }
        assert!(fixture.at("foreign/data").is_file(), "seed {seed}");
        fixture.assert_canary();
    }
}

/// Handles without a record: each delete succeeds, and nothing on the share changes.
#[test]
fn random_handles_delete_nothing() {
    let fixture = Fixture::new();
    for (handle, path) in [("srv#share#a##", "a"), ("srv#share#b/pvc-1#pvc-1#", "b/pvc-1")] {
        fixture.create(handle, path).unwrap();
        fixture.write(&format!("{path}/data"), "1");
    }
    fixture.write("pvc-1/data", "foreign");
    let before = tree(&fixture.root());
    let (mut random, mut text, mut near) = (Random(6), String::new(), 0_u64);
    for _ in 0..cases() / 20 {
        let case = format!("srv#share#{}", random.text(&mut text, &HOSTILE, 5));
        if case == "srv#share#a##" {
            continue;
        }
        let location = VolumeHandle::parse(&case).and_then(|handle| handle.location());
        near += u64::from(location.is_ok_and(|location| fixture.at(location.path.as_str()).exists()));
        fixture.delete(&case).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    assert!(near > 100, "only {near} handles named a directory that exists");
    assert_eq!(tree(&fixture.root()), before);
    fixture.assert_canary();
}
