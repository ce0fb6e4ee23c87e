//! Create, get, expand, delete, archive, adopt, recover, purge.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use super::support::{Fixture, create, environment, purge, recover, volume};
use crate::parameters::OnDelete;
use crate::path::SharePath;
use crate::share::{
    Adopt, CreateVolume, ErrorKind, ExpandVolume, GetVolume, Request, Response, Share, ShareError, VolumeInfo,
};

fn get(share: &Share, handle: &str) -> Option<VolumeInfo> {
    match share.handle(Request::GetVolume(GetVolume { handle: handle.to_owned(), path: None })) {
        Response::GetVolume(result) => result.unwrap(),
        other => panic!("{other:?}"),
    }
}

fn expand(share: &Share, handle: &str, size: u64) -> Result<VolumeInfo, ShareError> {
    match share.handle(Request::ExpandVolume(ExpandVolume { handle: handle.to_owned(), size })) {
        Response::ExpandVolume(result) => result,
        other => panic!("{other:?}"),
    }
}

pub(super) fn adopt(share: &Share, handle: &str, path: &str) -> Result<VolumeInfo, ShareError> {
    let request = Adopt {
        handle: handle.to_owned(),
        name: handle.to_owned(),
        path: SharePath::new(path).unwrap(),
        size: 1,
        context: Default::default(),
        options: Vec::new(),
        on_delete: None,
        shared_with: Default::default(),
        keep: false,
    };
    match share.handle(Request::Adopt(request)) {
        Response::Adopt(result) => result,
        other => panic!("{other:?}"),
    }
}

#[test]
fn volume_is_created_expanded_and_deleted_without_a_trace() {
    let fixture = Fixture::new();
    fixture.write("neighbour/data", "1");
    let info = fixture.create("h1", "ns/pvc-1").unwrap();
    assert_eq!((info.size, info.present, info.path.as_str()), (1 << 30, true, "ns/pvc-1"));
    assert_eq!(fixture.create("h1", "ns/pvc-1").unwrap(), info);
    assert_eq!(get(&fixture.share, "h1"), Some(info));
    assert_eq!(std::fs::metadata(fixture.at("ns/pvc-1")).unwrap().permissions().mode() & 0o7777, 0o755);
    assert_eq!(std::fs::metadata(fixture.at("ns")).unwrap().permissions().mode() & 0o7777, 0o755);
    fixture.write("ns/pvc-1/a/b", "x");
    assert_eq!(expand(&fixture.share, "h1", 2 << 30).unwrap().size, 2 << 30);
    assert_eq!(expand(&fixture.share, "h1", 1).unwrap().size, 2 << 30);
    assert_eq!(expand(&fixture.share, "none", 1).unwrap_err().kind, ErrorKind::NotFound);
    fixture.delete("h1").unwrap();
    assert_eq!(get(&fixture.share, "h1"), None);
    assert_eq!(fixture.tree(), ["neighbour", "neighbour/data"]);
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

// B24
#[test]
fn owner_and_mode_are_set_at_creation() {
    let fixture = Fixture::new();
    let own = std::fs::metadata(fixture.root()).unwrap();
    let (uid, gid) = (Some(own.uid()), Some(own.gid()));
    let request = CreateVolume { mode: Some(0o2770), uid, gid, ..volume("h1", "pvc-1") };
    create(&fixture.share, &request).unwrap();
    let created = std::fs::metadata(fixture.at("pvc-1")).unwrap();
    assert_eq!(created.permissions().mode() & 0o7777, 0o2770);
    assert_eq!((created.uid(), created.gid()), (own.uid(), own.gid()));
}

#[test]
fn retained_directory_stays_and_can_be_used_again() {
    let fixture = Fixture::new();
    let request = CreateVolume { on_delete: Some(OnDelete::Retain), ..volume("h1", "pvc-1") };
    create(&fixture.share, &request).unwrap();
    fixture.write("pvc-1/data", "1");
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.tree(), ["pvc-1", "pvc-1/data"]);
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
    // Now it is a directory that was there before.
    fixture.create("h2", "pvc-1").unwrap();
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.tree(), ["pvc-1", "pvc-1/data"]);
}

#[test]
fn purge_is_bounded_and_resumes() {
    let fixture = Fixture::new();
    fixture.create("h1", "pvc-1").unwrap();
    for n in 0..20 {
        fixture.write(&format!("pvc-1/d{}/f{n}", n % 3), "x");
    }
    let deep = vec!["d"; 100].join("/");
    fixture.write(&format!("pvc-1/{deep}/leaf"), "x");
    std::os::unix::fs::symlink("../../canary", fixture.at("pvc-1/link")).unwrap();
    fixture.delete("h1").unwrap();
    let mut rounds = 0;
    while !purge(&fixture.share, 5).unwrap() {
        rounds += 1;
        assert!(rounds < 100);
    }
    assert!(rounds > 3, "{rounds}");
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
    fixture.assert_canary();
}

#[test]
fn nested_volumes_are_refused() {
    let fixture = Fixture::new();
    fixture.create("h1", "a/b").unwrap();
    for path in ["a", "a/b/c"] {
        assert_eq!(fixture.create("h2", path).unwrap_err().kind, ErrorKind::Invalid, "{path}");
    }
    fixture.create("h3", "a/c").unwrap();
    fixture.delete("h1").unwrap();
    assert_eq!(fixture.tree(), ["a", "a/c"]);
    fixture.delete("h3").unwrap();
    assert_eq!(fixture.tree(), Vec::<String>::new());
    // The name of a removed parent is released by recovery.
    let error = fixture.create("h9", "a").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    fixture.delete("h9").unwrap();
    recover(&fixture.share).unwrap();
    fixture.create("h2", "a").unwrap();
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.leftovers(), Vec::<String>::new());
}

#[test]
fn adopted_volumes_are_deleted_and_shared_directories_are_counted() {
    let fixture = Fixture::new();
    fixture.write("pvc-1/data", "1");
    fixture.write("team/shared/data", "1");
    assert_eq!(adopt(&fixture.share, "h0", "none").unwrap_err().kind, ErrorKind::NotFound);
    assert!(!fixture.at(".wharf").exists());
    adopt(&fixture.share, "h1", "pvc-1").unwrap();
    adopt(&fixture.share, "h1", "pvc-1").unwrap();
    adopt(&fixture.share, "h2", "team/shared").unwrap();
    adopt(&fixture.share, "h3", "team/shared").unwrap();
    fixture.delete("h1").unwrap();
    fixture.delete("h2").unwrap();
    assert_eq!(fixture.tree(), ["team", "team/shared", "team/shared/data"]);
    fixture.delete("h3").unwrap();
    // The parent is not the driver's.
    assert_eq!(fixture.tree(), ["team"]);
}

#[test]
fn recovery_leaves_what_is_young_and_undoes_what_is_old() {
    let fixture = Fixture::new();
    fixture.create("h0", "keep").unwrap();
    // An unfinished create: its directory is another volume's, which is not ready.
    let young = Share::open(&fixture.root(), environment(Duration::from_secs(3600))).unwrap();
    std::fs::create_dir(fixture.at(".wharf/staging/abandoned")).unwrap();
    std::fs::write(fixture.at(".wharf/tmp/abandoned"), "x").unwrap();
    recover(&young).unwrap();
    assert!(fixture.at(".wharf/staging/abandoned").exists() && fixture.at(".wharf/tmp/abandoned").exists());
    recover(&fixture.share).unwrap();
    assert!(!fixture.at(".wharf/staging/abandoned").exists() && !fixture.at(".wharf/tmp/abandoned").exists());
    assert_eq!(fixture.tree(), ["keep"]);
}

#[test]
fn capacity_is_that_of_the_file_system() {
    let fixture = Fixture::new();
    match fixture.share.handle(Request::Capacity) {
        Response::Capacity(Ok(capacity)) => {
            assert!(capacity.total >= capacity.available && capacity.total > 0)
        }
        other => panic!("{other:?}"),
    }
    assert!(!fixture.at(".wharf").exists(), "reading creates no records");
}
