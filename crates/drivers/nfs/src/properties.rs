//! Property tests of paths, handles and templates: a million cases each, and random operations on a share.
//!
//! Texts are built from pieces that the rules distinguish, so that a case is likely to be close to a limit. A failure prints
//! its case. `NFS_CASES` changes the number of cases.

mod neighbours;

use std::collections::BTreeMap;
use std::path::{Component, Path};

use crate::handle::{Location, SnapshotHandle, VolumeHandle};
use crate::path::{RECORDS, SharePath};
use crate::template::{self, TemplateValues};

/// The number of cases of each property: a million, unless `NFS_CASES` says otherwise.
fn cases() -> u64 {
    std::env::var("NFS_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(1_000_000)
}

/// A small generator: the same cases in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    fn pick<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }

    /// Up to `max` pieces, put together in `text`.
    fn text<'a>(&mut self, text: &'a mut String, pieces: &[&str], max: usize) -> &'a str {
        text.clear();
        for _ in 0..self.below(max + 1) {
            let piece = self.pick(pieces);
            text.push_str(piece);
        }
        text
    }
}

/// What paths, handles and values are made of.
const HOSTILE: [&str; 24] = [
    "/", "/", "/", "..", ".", ".wharf", ".WHARF", "#", "#", "\\", "\0", "\n", "${", "}", "$", "%2e%2e", "a",
    "b", "pvc-1", "ä", "\u{202e}", "．．", " ", "~",
];

/// Names that csi-driver-nfs gets from Kubernetes and from classes.
const NAMES: [&str; 8] = [
    "pvc-1",
    "a",
    "team",
    "data.v2",
    "pvc-0f3c5a0e-8f0e-4f6e-9c8f-6c8e6f3f1a11",
    "ns-claim-pvc-1",
    "..a",
    "ä b",
];
const SERVERS: [&str; 5] = ["srv", "nfs.example.com", "10.0.0.1", "[2001:db8::1]", "fe80::1%eth0"];

/// Asserts that a path, joined to the directory of a share, is a directory beneath it, and not one of the driver's.
fn assert_beneath(path: &SharePath, case: &str) {
    let joined = Path::new("/exports/share").join(path.as_path());
    let rest = joined.strip_prefix("/exports/share").unwrap_or_else(|_| panic!("{case:?} leaves the share"));
    let mut count = 0;
    for component in rest.components() {
        let Component::Normal(name) = component else { panic!("{case:?} has the component {component:?}") };
        assert!(!name.eq_ignore_ascii_case(RECORDS), "{case:?} enters the records");
        count += 1;
    }
    assert!(count > 0, "{case:?} is the share itself");
    assert_eq!(path.as_str().split('/').count(), count, "{case:?} is not normal");
    assert!(!path.as_str().contains(['#', '\\', '\0']), "{case:?} has a separator");
}

fn assert_safe(location: &Location, case: &str) {
    assert_beneath(&location.path, case);
    assert!(location.share.starts_with('/'), "{case:?}");
    for component in Path::new(&location.share).components().skip(1) {
        assert!(matches!(component, Component::Normal(_)), "{case:?}: share {:?}", location.share);
    }
    assert!(!location.server.is_empty() && !location.server.contains(['/', '#', ' ', ',']), "{case:?}");
}

#[test]
fn accepted_paths_stay_in_the_share_and_out_of_the_records() {
    let (mut random, mut text, mut accepted) = (Random(1), String::new(), 0_u64);
    for _ in 0..cases() {
        let case = random.text(&mut text, &HOSTILE, 6);
        let Ok(path) = SharePath::new(case) else { continue };
        accepted += 1;
        assert_beneath(&path, case);
        // An accepted path means the same wherever it is read again: in a record, and in a handle.
        assert_eq!(SharePath::new(path.as_str()).as_ref(), Ok(&path), "{case:?}");
        let handle = VolumeHandle::parse(&format!("s#x#{path}#u#")).unwrap();
        assert_eq!(handle.location().unwrap().path, path, "{case:?}");
    }
    assert!(accepted > cases() / 20, "only {accepted} paths were accepted");
}

#[test]
fn any_text_as_a_handle_names_a_safe_place_or_none() {
    let (mut random, mut text, mut named) = (Random(2), String::new(), 0_u64);
    for n in 0..cases() {
        // Half of the cases begin as a handle of csi-driver-nfs does.
        let mut case = random.text(&mut text, &HOSTILE, 7).to_owned();
        if n % 2 == 0 {
            case.insert_str(0, random.pick(&["srv#share#", "srv#share#snap#snap#", "srv/share/"]));
        }
        if let Ok(location) = VolumeHandle::parse(&case).and_then(|handle| handle.location()) {
            named += 1;
            assert_safe(&location, &case);
        }
        if let Ok(handle) = SnapshotHandle::parse(&case) {
            if let Ok(location) = handle.location() {
                assert_safe(&location, &case);
                assert!(location.path.parents().is_empty(), "{case:?}: a snapshot is one directory");
                assert!(SharePath::new(&handle.source).is_ok(), "{case:?}");
            }
        }
    }
    assert!(named > cases() / 20, "only {named} handles named a place");
}

/// `format(parse(h)) == h` for what csi-driver-nfs writes. The older forms name the same place, and come back with the parts
/// that they lack.
#[test]
fn handles_of_csi_driver_nfs_survive_parsing_byte_for_byte() {
    let mut random = Random(3);
    for n in 0..cases() {
        let server = random.pick(&SERVERS);
        let (share, sub_dir) = (names(&mut random, 0), names(&mut random, 1));
        let uuid = random.pick(&["", "pvc-1", "pvc-0f3c5a0e-8f0e-4f6e-9c8f-6c8e6f3f1a11"]);
        let on_delete = random.pick(&["", "retain", "archive", "Retain", "ARCHIVE"]);
        let (text, rest) = match n % 5 {
            // v4.1 and v3.1 wrote fewer parts.
            0 => (format!("{server}#{share}#{sub_dir}#{uuid}"), "#"),
            1 => (format!("{server}#{share}#{sub_dir}"), "##"),
            // v3.0 wrote slashes, and only the share had any.
            2 if !sub_dir.contains('/') => (format!("{server}/{share}/{sub_dir}"), ""),
            3 => {
                let source = VolumeHandle {
                    sub_dir: sub_dir.clone(),
                    uuid: uuid.to_owned(),
                    ..VolumeHandle::default()
                };
                let snapshot = SnapshotHandle::new(server, &share, "snapshot-1", &source).to_string();
                let source = if uuid.is_empty() { sub_dir.as_str() } else { uuid };
                assert_eq!(snapshot, format!("{server}#{share}#snapshot-1#snapshot-1#{source}"));
                assert_eq!(SnapshotHandle::parse(&snapshot).unwrap().to_string(), snapshot);
                continue;
            }
            _ => (format!("{server}#{share}#{sub_dir}#{uuid}#{on_delete}"), ""),
        };
        let parsed = VolumeHandle::parse(&text).unwrap();
        let written = parsed.to_string();
        match n % 5 {
            2 if !sub_dir.contains('/') => assert_eq!(written, format!("{server}#{share}#{sub_dir}##")),
            _ => assert_eq!(written.strip_prefix(&text), Some(rest), "{text}"),
        }
        assert_eq!(VolumeHandle::parse(&written).as_ref(), Ok(&parsed), "{text}");
        let location = parsed.location().unwrap();
        assert_eq!((location.server.as_str(), location.path.as_str()), (server, sub_dir.as_str()), "{text}");
        assert_eq!(location.share.strip_prefix('/'), Some(share.as_str()), "{text}");
    }
}

/// A path of `least` to three names.
fn names(random: &mut Random, least: usize) -> String {
    let count = least + random.below(4 - least);
    (0..count).map(|_| random.pick(&NAMES)).collect::<Vec<_>>().join("/")
}

/// Whatever the author of a claim writes, the path has the components that the author of the class wrote.
#[test]
fn values_of_templates_never_add_or_remove_a_component() {
    let (mut random, mut text, mut resolved) = (Random(4), String::new(), 0_u64);
    let mut values = TemplateValues {
        labels: Some(BTreeMap::from([("l".to_owned(), String::new())])),
        ..TemplateValues::default()
    };
    for _ in 0..cases() {
        let value = random.text(&mut text, &HOSTILE, 3).to_owned();
        values.pvc_name = Some(value.clone());
        *values.labels.as_mut().unwrap().get_mut("l").unwrap() = value.clone();
        let name = random.pick(&["${pvc.metadata.name}", "${.PVC.labels.l}"]);
        let Ok(path) = template::resolve(&format!("top/{name}/x-{name}"), &values) else { continue };
        resolved += 1;
        let path = SharePath::new(&path).unwrap_or_else(|error| panic!("{value:?}: {error}"));
        assert_beneath(&path, &value);
        let mut components = path.as_str().split('/');
        assert_eq!(components.next(), Some("top"), "{value:?}");
        assert_eq!(components.next(), Some(value.as_str()));
        assert_eq!(components.next().and_then(|last| last.strip_prefix("x-")), Some(value.as_str()));
        assert_eq!(components.next(), None, "{value:?}");
    }
    assert!(resolved > cases() / 20, "only {resolved} templates were resolved");
}

/// Templates of namespace and name as components keep the volumes of different claims apart.
#[test]
fn claims_with_different_names_never_get_the_same_or_nested_directories() {
    const CLAIMS: [&str; 8] = ["a", "b", "a-b", "a.b", "ab", "pvc-1", "default", "a--b"];
    let mut random = Random(5);
    for _ in 0..cases() {
        let mut claim = || {
            let (namespace, name) = (random.pick(&CLAIMS), random.pick(&CLAIMS));
            let values = TemplateValues {
                pvc_name: Some(name.to_owned()),
                pvc_namespace: Some(namespace.to_owned()),
                ..TemplateValues::default()
            };
            let path = template::resolve("${pvc.metadata.namespace}/${pvc.metadata.name}", &values).unwrap();
            ((namespace, name), SharePath::new(&path).unwrap())
        };
        let ((one, path), (other, other_path)) = (claim(), claim());
        assert_eq!(one == other, path == other_path, "{one:?} and {other:?}");
        assert!(!path.parents().contains(&other_path), "{one:?} is in {other:?}");
    }
}
