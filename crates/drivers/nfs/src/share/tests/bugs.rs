//! One test per bug of csi-driver-nfs that concerns the share (see the reference, section 2).

use std::os::unix::fs::symlink;

use super::support::{Fixture, create, delete, tree, volume};
use super::volumes::adopt;
use crate::handle::tests::hostile_handles;
use crate::parameters::OnDelete;
use crate::share::create::is_final;
use crate::share::record::VolumeRecord;
use crate::share::{CreateVolume, ErrorKind};

// B1, B2, B31, CVE-2026-3864
#[test]
fn handle_without_record_is_deleted_without_effect() {
    let fixture = Fixture::new();
    fixture.write("sub/data", "1");
    fixture.write("x/data", "1");
    fixture.create("srv#share#neighbour##", "neighbour").unwrap();
    fixture.write("neighbour/data", "1");
    let before = (fixture.tree(), tree(&fixture.at(".wharf")));
    let crafted = ["server#share#", "srv#share#neighbour#pvc-9#", "srv#share#neighbour", "any text", ""];
    for handle in hostile_handles().iter().map(String::as_str).chain(crafted) {
        fixture.delete(handle).unwrap();
    }
    assert_eq!((fixture.tree(), tree(&fixture.at(".wharf"))), before);
    fixture.assert_canary();
}

// B1
#[test]
fn share_without_records_is_not_written_to() {
    let fixture = Fixture::new();
    fixture.write("data", "1");
    fixture.delete("srv#share#data##").unwrap();
    super::support::recover(&fixture.share).unwrap();
    super::support::purge(&fixture.share, 10).unwrap();
    assert_eq!(tree(&fixture.root()), ["data"]);
}

#[test]
fn records_that_others_can_write_are_not_trusted() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::new();
    fixture.create("h1", "pvc-1").unwrap();
    std::fs::set_permissions(fixture.at(".wharf"), std::fs::Permissions::from_mode(0o770)).unwrap();
    let reopened = || {
        crate::share::Share::open(&fixture.root(), super::support::environment(std::time::Duration::ZERO))
            .unwrap()
    };
    for error in
        [delete(&reopened(), "h1").unwrap_err(), create(&reopened(), &volume("h2", "x")).unwrap_err()]
    {
        assert_eq!(error.kind, ErrorKind::Precondition);
        assert!(error.message.contains("mode 770"), "{error}");
    }
    assert_eq!(fixture.tree(), ["pvc-1"]);
    std::fs::set_permissions(fixture.at(".wharf"), std::fs::Permissions::from_mode(0o700)).unwrap();
    if std::os::unix::fs::chown(fixture.at(".wharf"), Some(12345), None).is_ok() {
        assert_eq!(delete(&reopened(), "h1").unwrap_err().kind, ErrorKind::Precondition);
        assert_eq!(fixture.tree(), ["pvc-1"]);
    }
}

// B3
#[test]
fn parents_are_removed_only_if_empty_and_ours() {
    let fixture = Fixture::new();
    fixture.write("existing/other/file", "1");
    fixture.create("h1", "existing/new/pvc-1").unwrap();
    fixture.create("h2", "existing/new/pvc-2").unwrap();
    fixture.write("existing/new/foreign", "1");
    fixture.delete("h1").unwrap();
    fixture.delete("h2").unwrap();
    assert_eq!(
        fixture.tree(),
        ["existing", "existing/new", "existing/new/foreign", "existing/other", "existing/other/file"]
    );
    std::fs::remove_file(fixture.at("existing/new/foreign")).unwrap();
    fixture.create("h3", "existing/new/pvc-3").unwrap();
    fixture.delete("h3").unwrap();
    assert_eq!(fixture.tree(), ["existing", "existing/other", "existing/other/file"]);
    std::fs::remove_dir_all(fixture.at("existing/other")).unwrap();
    fixture.create("h4", "existing/pvc-4").unwrap();
    fixture.delete("h4").unwrap();
    assert_eq!(fixture.tree(), ["existing"], "an empty directory that was there before stays");
}

// B5
#[test]
fn one_directory_of_many_volumes_goes_with_the_last_one() {
    let fixture = Fixture::new();
    for handle in ["h1", "h2", "h3"] {
        fixture.create(handle, "constant").unwrap();
    }
    fixture.write("constant/data", "1");
    fixture.delete("h1").unwrap();
    fixture.delete("h3").unwrap();
    assert_eq!(fixture.tree(), ["constant", "constant/data"]);
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.tree(), Vec::<String>::new());
}

// B5
#[test]
fn directory_that_was_there_before_is_never_deleted_or_archived() {
    for policy in [OnDelete::Delete, OnDelete::Archive] {
        let fixture = Fixture::new();
        fixture.write("old/data", "1");
        create(&fixture.share, &CreateVolume { on_delete: Some(policy), ..volume("h1", "old") }).unwrap();
        fixture.create("h2", "old").unwrap();
        fixture.delete("h1").unwrap();
        fixture.delete("h2").unwrap();
        assert_eq!(fixture.tree(), ["old", "old/data"], "{policy:?}");
        assert_eq!(fixture.leftovers(), Vec::<String>::new());
    }
}

// B6
#[test]
fn symlinks_in_the_path_are_refused() {
    let fixture = Fixture::new();
    fixture.write("target/data", "1");
    symlink("..", fixture.at("up")).unwrap();
    symlink("target", fixture.at("link")).unwrap();
    for path in ["up/pvc-1", "link/pvc-1", "link/deep/pvc-1", "target/data/deep/pvc-1", "up", "link"] {
        let error = fixture.create("h1", path).unwrap_err();
        // The caller does not repeat the call, so no record may be left.
        assert!(is_final(error.kind), "{path}: {error:?}");
        assert!(fixture.share.read_record::<VolumeRecord>("h1").unwrap().record.is_none(), "{path}");
    }
    // A volume's directory that is replaced by a symlink is not followed.
    fixture.create("h2", "pvc-2").unwrap();
    std::fs::remove_dir(fixture.at("pvc-2")).unwrap();
    symlink("target", fixture.at("pvc-2")).unwrap();
    assert_eq!(fixture.delete("h2").unwrap_err().kind, ErrorKind::Internal);
    assert_eq!(fixture.tree(), ["link", "pvc-2", "target", "target/data", "up"]);
    fixture.assert_canary();
}

// B7
#[test]
fn repeated_delete_succeeds() {
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        let fixture = Fixture::new();
        create(&fixture.share, &CreateVolume { on_delete: Some(policy), ..volume("h1", "a/b/c") }).unwrap();
        for _ in 0..3 {
            fixture.delete("h1").unwrap();
        }
        fixture.leftovers();
        fixture.delete("h1").unwrap();
    }
    // Also if the directory was removed by hand, with its parents.
    let fixture = Fixture::new();
    fixture.create("h1", "a/b/c").unwrap();
    std::fs::remove_dir_all(fixture.at("a")).unwrap();
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

// B8
#[test]
fn archives_never_replace_each_other() {
    let fixture = Fixture::new();
    fixture.write("archived-pvc-1/by-hand", "0");
    for n in 1..=3 {
        let handle = format!("h{n}");
        let request = CreateVolume { on_delete: Some(OnDelete::Archive), ..volume(&handle, "pvc-1") };
        create(&fixture.share, &request).unwrap();
        fixture.write(&format!("pvc-1/data-{n}"), "1");
        fixture.delete(&handle).unwrap();
    }
    let tree = fixture.tree();
    for name in ["by-hand", "data-1", "data-2", "data-3"] {
        let found: Vec<_> = tree.iter().filter(|path| path.ends_with(name)).collect();
        assert!(found.len() == 1 && found[0].starts_with("archived-pvc-1"), "{tree:?}");
    }
    // The names of archives are taken.
    let nested = CreateVolume { on_delete: Some(OnDelete::Archive), ..volume("h9", "deep/pvc-9") };
    create(&fixture.share, &nested).unwrap();
    fixture.delete("h9").unwrap();
    assert!(fixture.at("archived-deep/pvc-9").is_dir() && !fixture.at("deep").exists());
    assert_eq!(fixture.create("h10", "archived-deep/pvc-9").unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(fixture.create("h11", "archived-deep/pvc-9/below").unwrap_err().kind, ErrorKind::Invalid);
}

// B21
#[test]
fn same_name_with_other_properties_is_refused() {
    let fixture = Fixture::new();
    fixture.create("h1", "pvc-1").unwrap();
    let same = volume("h1", "pvc-1");
    for request in [
        CreateVolume { size: 2 << 30, ..same.clone() },
        CreateVolume { size: 1, limit: Some(2), ..same.clone() },
        CreateVolume { context: Default::default(), ..same.clone() },
        CreateVolume { name: "other".to_owned(), ..same.clone() },
        CreateVolume {
            source: Some(wharf_driver::backend::VolumeContentSource::Volume("h0".to_owned())),
            ..same.clone()
        },
    ] {
        assert_eq!(
            create(&fixture.share, &request).unwrap_err().kind,
            ErrorKind::AlreadyExists,
            "{request:?}"
        );
    }
    create(&fixture.share, &CreateVolume { size: 0, limit: Some(1 << 30), ..same.clone() }).unwrap();
    // Other parameters can give another handle.
    let moved = CreateVolume { handle: "h2".to_owned(), path: "elsewhere".parse().unwrap(), ..same };
    assert_eq!(create(&fixture.share, &moved).unwrap_err().kind, ErrorKind::AlreadyExists);
    assert_eq!(fixture.tree(), ["pvc-1"]);
    fixture.delete("h1").unwrap();
    create(&fixture.share, &moved).unwrap();
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

// B31
#[test]
fn replaced_directory_is_not_deleted() {
    let fixture = Fixture::new();
    fixture.create("h1", "pvc-1").unwrap();
    std::fs::rename(fixture.at("pvc-1"), fixture.at("moved")).unwrap();
    fixture.write("pvc-1/precious", "1");
    for _ in 0..2 {
        let error = fixture.delete("h1").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Internal);
        assert!(error.message.contains("pvc-1") && error.message.contains("move it away"), "{error}");
    }
    fixture.leftovers();
    assert_eq!(fixture.tree(), ["moved", "pvc-1", "pvc-1/precious"]);
    // As the message says.
    std::fs::rename(fixture.at("pvc-1"), fixture.at("elsewhere")).unwrap();
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.tree(), ["elsewhere", "elsewhere/precious", "moved"]);
}

#[test]
fn directory_of_adopted_volume_inside_another_is_refused() {
    let fixture = Fixture::new();
    fixture.write("a/b/data", "1");
    adopt(&fixture.share, "h1", "a/b").unwrap();
    assert_eq!(adopt(&fixture.share, "h2", "a").unwrap_err().kind, ErrorKind::Precondition);
    delete(&fixture.share, "h2").unwrap();
    assert_eq!(fixture.tree(), ["a", "a/b", "a/b/data"]);
}
