//! Derives ids from names. An id depends on the name alone, so the same name always means the same object and no
//! index is needed. A string that does not have exactly this format never becomes part of a path.

use sha2::{Digest as _, Sha256};

/// The type of object that an id refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `vol-…`
    Volume,
    /// `snap-…`
    Snapshot,
    /// `group-…`
    Group,
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Volume => "vol-",
            Self::Snapshot => "snap-",
            Self::Group => "group-",
        }
    }
}

const HEX_DIGITS: usize = 32;

/// The id of the volume, snapshot or group with this name.
pub(crate) fn derive(kind: Kind, name: &str) -> String {
    hashed(kind, &[name])
}

/// The id of a group's snapshot of one volume. The NUL prevents collisions with names from callers, which never
/// contain one.
pub(crate) fn derive_member(group_name: &str, source: &str) -> String {
    hashed(Kind::Snapshot, &["\0group", group_name, source])
}

/// The kind of `id`, if it is a valid id: `^(vol|snap|group)-[0-9a-f]{32}$`.
pub(crate) fn kind_of(id: &str) -> Option<Kind> {
    [Kind::Volume, Kind::Snapshot, Kind::Group].into_iter().find(|kind| is(*kind, id))
}

/// Whether `id` is a valid id of this kind.
pub(crate) fn is(kind: Kind, id: &str) -> bool {
    id.strip_prefix(kind.prefix()).is_some_and(|rest| {
        rest.len() == HEX_DIGITS && rest.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Splits the name of a trash entry, `<id>.<n>`, into id and number.
pub(crate) fn parse_trash(name: &str) -> Option<(&str, u64)> {
    let (id, number) = name.split_once('.')?;
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let kind = kind_of(id)?;
    (plain && kind != Kind::Group).then_some(())?;
    Some((id, number.parse().ok()?))
}

fn hashed(kind: Kind, parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for (i, part) in parts.iter().enumerate() {
        if i > 0 {
            hash.update([0]);
        }
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    format!("{}{}", kind.prefix(), base16ct::lower::encode_string(&digest[..HEX_DIGITS / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_are_ids_and_differ_by_name_and_kind() {
        let names = ["a", "b", "pvc-1", "../../etc", "ü", &"x".repeat(1024)];
        let mut seen = std::collections::BTreeSet::new();
        for name in names {
            for kind in [Kind::Volume, Kind::Snapshot, Kind::Group] {
                let id = derive(kind, name);
                assert_eq!(kind_of(&id), Some(kind), "{id}");
                assert_eq!(id, derive(kind, name));
                assert!(seen.insert(id));
            }
        }
        assert!(seen.insert(derive_member("a", "b")));
        assert!(seen.insert(derive_member("a", "c")));
        // Pinned: ids must not change between releases.
        assert_eq!(derive(Kind::Volume, "a"), "vol-ca978112ca1bbdcafac231b39a23dc4d");
    }

    #[test]
    fn malformed_ids_are_rejected() {
        let hex = "0123456789abcdef0123456789abcdef";
        assert_eq!(kind_of(&format!("vol-{hex}")), Some(Kind::Volume));
        for id in [
            "",
            "vol-",
            hex,
            "vol-..",
            "../vol-0123456789abcdef0123456789abcdef",
            "vol-0123456789abcdef0123456789abcde",
            "vol-0123456789abcdef0123456789abcdef0",
            "vol-0123456789ABCDEF0123456789ABCDEF",
            "vol-0123456789abcdef0123456789abcde/",
            "vol-0123456789abcdef0123456789abcde\0",
            "VOL-0123456789abcdef0123456789abcdef",
            "volume-0123456789abcdef0123456789abcdef",
            "vol-0123456789abcdef0123456789abcdeü",
        ] {
            assert_eq!(kind_of(id), None, "{id:?}");
        }
    }

    #[test]
    fn trash_names_are_parsed_strictly() {
        let hex = "0123456789abcdef0123456789abcdef";
        let id = format!("vol-{hex}");
        assert_eq!(parse_trash(&format!("{id}.7")), Some((id.as_str(), 7)));
        for name in [
            id.clone(),
            format!("{id}."),
            format!("{id}.-1"),
            format!("{id}.+1"),
            format!("{id}.1.2"),
            format!("{id}.99999999999999999999999"),
            format!("group-{hex}.1"),
            "lost+found".into(),
        ] {
            assert_eq!(parse_trash(&name), None, "{name}");
        }
    }
}
