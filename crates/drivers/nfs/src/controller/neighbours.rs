//! Which PersistentVolumes use one directory. Adoption makes a directory deletable, so it must know all users of it, also those
//! that have no record and get none. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::plain_server;
use crate::handle::{Location, VolumeHandle};
use crate::parameters::VolumeAttributes;
use crate::template;

/// A directory of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    server: String,
    path: Vec<String>,
}

impl Place {
    /// A directory by its absolute path; `.` and `..` are resolved.
    pub(super) fn new(server: &str, path: &str) -> Self {
        let server = plain_server(server.trim_matches('/')).trim_end_matches('.').to_ascii_lowercase();
        let server = server.parse::<IpAddr>().map_or(server, |address| address.to_string());
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part.to_owned()),
            }
        }
        Self { server, path: parts }
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    /// Whether the directories can be the same one, or one can be inside the other.
    fn overlaps(&self, other: &Self) -> bool {
        can_be_same_server(&self.server, &other.server)
            && (self.path.starts_with(&other.path) || other.path.starts_with(&self.path))
    }
}

/// Two names can be one server: an address and a name, or a name and its fully qualified form. What cannot be excluded here
/// keeps a directory that could have been deleted, and the command says so.
fn can_be_same_server(one: &str, other: &str) -> bool {
    let is_address = |server: &str| server.parse::<IpAddr>().is_ok();
    let is_short =
        |short: &str, long: &str| long.strip_prefix(short).is_some_and(|rest| rest.starts_with('.'));
    match (is_address(one), is_address(other)) {
        (true, true) => one == other,
        (true, false) | (false, true) => true,
        (false, false) => one == other || is_short(one, other) || is_short(other, one),
    }
}

/// A PersistentVolume as a user of directories.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct DirectoryUser {
    /// Its name.
    pub(super) name: String,
    /// The directories that it can use. A static volume's handle can be any text, so that its attributes count as well.
    pub(super) places: Vec<Place>,
    /// Handle and location of a volume that is adopted.
    pub(super) adopted: Option<(String, Location)>,
}

/// Where a CSI volume can be: by its attributes, and by its handle.
pub(super) fn places_of_csi(handle: &str, attributes: &BTreeMap<String, String>) -> Vec<Place> {
    let value = |name: &str| {
        attributes.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    };
    let mut places = Vec::new();
    if let Ok(location) = VolumeHandle::parse(handle).and_then(|handle| handle.location()) {
        places.push(Place::new(&location.server, &format!("{}/{}", location.share, location.path)));
    }
    if let (Some(server), Some(share)) = (value("server"), value("share")) {
        let sub_dir = value("subDir").unwrap_or_default();
        let resolved = VolumeAttributes::parse(attributes)
            .ok()
            .and_then(|attributes| template::resolve_existing(sub_dir, &attributes.metadata).ok());
        let sub_dir = resolved.as_deref().unwrap_or(sub_dir);
        places.push(Place::new(server, &format!("{share}/{sub_dir}")));
    }
    places
}

/// Who else uses the directory of a volume that is adopted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Neighbours {
    /// The handles of the volumes that have the same directory and are adopted with it: further references.
    pub(super) shared_with: BTreeSet<String>,
    /// The names of all others. The directory is theirs as well, so it is never deleted.
    pub(super) kept_for: BTreeSet<String>,
}

/// The neighbours of one of the users among the others.
pub(super) fn neighbours(of: &DirectoryUser, all: &[DirectoryUser]) -> Neighbours {
    let mut found = Neighbours::default();
    for other in all.iter().filter(|other| other.name != of.name) {
        let pairs =
            || of.places.iter().flat_map(|place| other.places.iter().map(move |theirs| (place, theirs)));
        if !pairs().any(|(place, theirs)| place.overlaps(theirs)) {
            continue;
        }
        match (&of.adopted, &other.adopted) {
            // A second reference in the same record. One handle is one reference: whichever is deleted first deletes both.
            (Some((handle, at)), Some((their_handle, their_at)))
                if handle != their_handle
                    && (&at.server, &at.share, &at.path)
                        == (&their_at.server, &their_at.share, &their_at.path)
                    && pairs().all(|(place, theirs)| place.is_same(theirs)) =>
            {
                found.shared_with.insert(their_handle.clone());
            }
            _ => {
                found.kept_for.insert(other.name.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_overlap_if_one_can_be_inside_the_other() {
        for (one, other, overlap) in [
            (("nas", "/export/a"), ("nas", "/export/a"), true),
            (("nas", "/export/a"), ("nas", "export//a/"), true),
            (("nas", "/export/a"), ("nas", "/export/x/../a/."), true),
            (("nas", "/export/a"), ("nas", "/export"), true),
            (("nas", "/export/a"), ("nas", "/"), true),
            (("nas", "/export/a"), ("nas", ""), true),
            (("nas", "/export/a"), ("nas", "/export/a/b/c"), true),
            (("nas", "/export/a"), ("nas", "/export/ab"), false),
            (("nas", "/export/a"), ("nas", "/export/b"), false),
            (("nas", "/export/a"), ("NAS.", "/export/a"), true),
            (("nas", "/export/a"), ("nas.example.com", "/export/a"), true),
            (("nas", "/export/a"), ("nas2", "/export/a"), false),
            (("nas", "/export/a"), ("other", "/export/a"), false),
            (("nas", "/export/a"), ("10.0.0.1", "/export/a"), true),
            (("10.0.0.1", "/export/a"), ("10.0.0.2", "/export/a"), false),
            (("[fd00::1]", "/export/a"), ("FD00:0::1", "/export/a"), true),
        ] {
            let (first, second) = (Place::new(one.0, one.1), Place::new(other.0, other.1));
            assert_eq!(first.overlaps(&second), overlap, "{one:?} {other:?}");
            assert_eq!(second.overlaps(&first), overlap, "{other:?} {one:?}");
        }
    }

    #[test]
    fn csi_volumes_are_where_their_handle_or_their_attributes_say() {
        let places = |handle: &str, pairs: &[(&str, &str)]| {
            let attributes = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            places_of_csi(handle, &attributes)
        };
        let at = |path: &str| Place::new("srv", path);
        assert_eq!(places("srv#share#a##", &[]), [at("/share/a")]);
        assert_eq!(places("any text", &[("SERVER", "srv"), ("share", "/share")]), [at("/share")]);
        let other = [("server", "srv"), ("share", "/share"), ("subDir", "b"), ("mountPermissions", "bad")];
        assert_eq!(places("srv#share#a##", &other), [at("/share/a"), at("/share/b")]);
        let template = [
            ("server", "srv"),
            ("share", "/share"),
            ("subdir", "${pvc.metadata.name}"),
            ("csi.storage.k8s.io/pvc/name", "data"),
        ];
        assert_eq!(places("any text", &template), [at("/share/data")]);
        assert_eq!(places("any text", &[("server", "srv")]), []);
    }

    #[test]
    fn only_adopted_volumes_with_the_same_directory_and_another_handle_share_it() {
        let user = |name: &str, share: &str, path: &str, handle: &str| {
            let place = Place::new("srv", &format!("{share}/{path}"));
            let location = VolumeHandle::parse(&format!("srv#{share}#{path}##"))
                .and_then(|handle| handle.location())
                .unwrap();
            let adopted = (!handle.is_empty()).then(|| (handle.to_owned(), location));
            DirectoryUser { name: name.to_owned(), places: vec![place], adopted }
        };
        let own = user("a", "share", "x/y", "h1");
        for (other, shared, kept) in [
            (user("b", "share", "x/y", "h2"), true, false),
            (user("b", "share", "x/y", "h1"), false, true),
            (user("b", "share", "x/y", ""), false, true),
            // Another share has other records.
            (user("b", "share/x", "y", "h2"), false, true),
            (user("b", "share", "x", "h2"), false, true),
            (user("b", "share", "x/y/z", "h2"), false, true),
            (user("b", "share", "x/z", "h2"), false, false),
            // The same PersistentVolume twice.
            (user("a", "share", "x/y", "h1"), false, false),
        ] {
            let found = neighbours(&own, &[own.clone(), other.clone()]);
            assert_eq!(
                (!found.shared_with.is_empty(), !found.kept_for.is_empty()),
                (shared, kept),
                "{other:?}"
            );
        }
    }
}
