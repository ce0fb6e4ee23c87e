use super::*;

fn handle(parts: [&str; 5]) -> VolumeHandle {
    let [server, share, sub_dir, uuid, on_delete] = parts.map(str::to_owned);
    VolumeHandle { server, share, sub_dir, uuid, on_delete }
}

#[test]
fn every_form_of_csi_driver_nfs_is_parsed() {
    for (text, parts) in [
        // v4: all five parts.
        ("srv#share#sub#pvc-1#retain", ["srv", "share", "sub", "pvc-1", "retain"]),
        ("srv#share#pvc-1##", ["srv", "share", "pvc-1", "", ""]),
        ("srv##pvc-1##", ["srv", "", "pvc-1", "", ""]),
        ("10.0.0.1#a/b#c/d#pvc-1#archive", ["10.0.0.1", "a/b", "c/d", "pvc-1", "archive"]),
        // v4.1: four parts; v3.1: three.
        ("srv#share#sub#pvc-1", ["srv", "share", "sub", "pvc-1", ""]),
        ("srv#share#pvc-1", ["srv", "share", "pvc-1", "", ""]),
        // Further parts are ignored.
        ("srv#share#sub#pvc-1#retain#x#y", ["srv", "share", "sub", "pvc-1", "retain"]),
        // v3.0.
        ("srv/share/pvc-1", ["srv", "share", "pvc-1", "", ""]),
        ("srv/a/b/c/pvc-1", ["srv", "a/b/c", "pvc-1", "", ""]),
        ("srv//pvc-1", ["srv", "", "pvc-1", "", ""]),
        // The static example of the documentation.
        (
            "nfs-server.default.svc.cluster.local/share##",
            ["nfs-server.default.svc.cluster.local/share", "", "", "", ""],
        ),
        ("server#share#", ["server", "share", "", "", ""]),
    ] {
        assert_eq!(VolumeHandle::parse(text), Ok(handle(parts)), "{text}");
    }
    for text in
        ["", "unique-volumeid", "pv-nfs-1", "srv/pvc-1", "/share/pvc-1", "srv/share/", "a#b", "srv#share"]
    {
        assert_eq!(VolumeHandle::parse(text), Err(HandleError::Form), "{text}");
    }
}

#[test]
fn handles_are_written_as_csi_driver_nfs_writes_them() {
    for (parts, text) in [
        (["srv", "/share", "pvc-1", "", ""], "srv#share#pvc-1##"),
        (["srv", "/", "pvc-1", "", ""], "srv##pvc-1##"),
        (["srv/", "/a/b/", "/c/d/", "pvc-1", "retain"], "srv#a/b#c/d#pvc-1#retain"),
        (["srv", "share", "x", "pvc-1", "delete"], "srv#share#x#pvc-1#"),
        // The class's spelling is kept.
        (["srv", "share", "x", "pvc-1", "Archive"], "srv#share#x#pvc-1#Archive"),
    ] {
        assert_eq!(handle(parts).to_string(), text);
    }
    let source = handle(["srv", "share", "sub", "pvc-1", ""]);
    let snapshot = SnapshotHandle::new("srv", "/backup/", "snapshot-1", &source);
    assert_eq!(snapshot.to_string(), "srv#backup#snapshot-1#snapshot-1#pvc-1");
    assert_eq!(SnapshotHandle::parse("srv#backup#snapshot-1#snapshot-1#pvc-1"), Ok(snapshot));
    let source = handle(["srv", "share", "sub", "", ""]);
    assert_eq!(SnapshotHandle::new("srv", "share", "s", &source).source, "sub");
    for text in ["a#b#c#d", "a#b#c#d#e#f", "", "snapshot-1"] {
        assert_eq!(SnapshotHandle::parse(text), Err(HandleError::Form), "{text}");
    }
}

#[test]
fn location_is_normalized() {
    let location = |text: &str| VolumeHandle::parse(text).unwrap().location();
    let found = location("srv#/a/b/#/c/d/#u#").unwrap();
    assert_eq!((found.server.as_str(), found.share.as_str(), found.path.as_str()), ("srv", "/a/b", "c/d"));
    assert_eq!(location("srv##x##").unwrap().share, "/");
    assert_eq!(location("[fe80::1%eth0]#s#x##").unwrap().server, "[fe80::1%eth0]");
    assert!(matches!(location("a b#s#x##"), Err(HandleError::Server(_))));
    assert!(matches!(location("#s#x##"), Err(HandleError::Server(_))));
    assert!(matches!(location("-o#s#x##"), Err(HandleError::Server(_))));
    // B1: the documented shape of a static handle names no directory.
    assert!(matches!(location("server#share#"), Err(HandleError::SubDir(_))));
}

/// What a crafted handle can have in any of its parts.
pub(crate) const HOSTILE: [&str; 12] =
    ["..", "a/../b", "/x", ".", "", "..\\x", "a/..", ".wharf", "../../x", "./x", "a//b", ".wharf/volumes"];

/// Every form of a volume handle with a hostile text in every part.
pub(crate) fn hostile_handles() -> Vec<String> {
    const FORMS: [&[&str]; 4] = [
        &["srv", "#", "share", "#", "sub", "#", "pvc-1", "#", "retain"],
        &["srv", "#", "share", "#", "sub", "#", "pvc-1"],
        &["srv", "#", "share", "#", "sub"],
        &["srv", "/", "share", "/", "sub"],
    ];
    let mut handles = Vec::new();
    for form in FORMS {
        for part in (0..form.len()).step_by(2) {
            for text in HOSTILE {
                let mut parts = form.to_vec();
                parts[part] = text;
                handles.push(parts.concat());
            }
        }
    }
    handles
}

// CVE-2026-3864
#[test]
fn hostile_handles_name_a_safe_place_or_none() {
    for text in hostile_handles() {
        let Ok(location) = VolumeHandle::parse(&text).and_then(|handle| handle.location()) else { continue };
        for component in location.path.as_str().split('/').chain(location.share.trim_matches('/').split('/'))
        {
            assert!(
                component != ".." && component != "." && !component.contains('\\'),
                "{text}: {location:?}"
            );
        }
        assert!(!location.path.as_str().starts_with(".wharf"), "{text}: {location:?}");
        assert!(!location.server.contains("..") || location.server == "..", "{text}: {location:?}");
    }
    for part in 0..4 {
        for text in HOSTILE {
            let mut parts = ["srv", "share", "snap", "src"];
            parts[part] = text;
            let [server, share, name, source] = parts;
            let handle = format!("{server}#{share}#{name}#{name}#{source}");
            if let Ok(location) = SnapshotHandle::parse(&handle).and_then(|handle| handle.location()) {
                assert_eq!(location.path.as_str(), "snap", "{handle}");
                assert!(!location.share.contains(".."), "{handle}");
            }
        }
    }
}
