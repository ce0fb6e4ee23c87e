//! `status.volumesAttached` of nodes: the controller's half of the handshake about mounting.
//!
//! For each node, one complete list is written at a time, from the reports of its volumes. Volumes that are not CSI
//! volumes, or unknown, stay unchanged.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_model::Meta;
use wharf_model::node::AttachedVolume;
use wharf_model::patch::Patch;

use super::decide::Report;

/// A new value for `volumesAttached`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttachedList {
    /// The complete list.
    pub(super) volumes: Vec<AttachedVolume>,
    /// Names that are new in it.
    pub(super) added: Vec<String>,
    /// Names that are no longer in it.
    pub(super) removed: Vec<String>,
}

/// The list to write; `None` if the current list is right.
pub(super) fn updated_list(
    now: &[AttachedVolume],
    reports: &BTreeMap<String, Report>,
) -> Option<AttachedList> {
    let hidden = |volume: &AttachedVolume| reports.get(&volume.name) == Some(&Report::Hide);
    let (removed, kept): (Vec<_>, Vec<_>) = now.iter().cloned().partition(hidden);
    let listed = |name: &String| kept.iter().any(|volume| volume.name == *name);
    let shown = reports.iter().filter(|(name, report)| **report == Report::Show && !listed(name));
    let added: Vec<String> = shown.map(|(name, _)| name.clone()).collect();
    if removed.is_empty() && added.is_empty() {
        return None;
    }
    let new = added.iter().map(|name| AttachedVolume { name: name.clone(), device_path: String::new() });
    let volumes = kept.iter().cloned().chain(new).collect();
    Some(AttachedList { volumes, added, removed: removed.into_iter().map(|volume| volume.name).collect() })
}

/// The patch for the list. It has no resourceVersion, since others update the rest of the status all the time and only
/// this controller writes the list.
pub(super) fn patch(node: &Meta, volumes: &[AttachedVolume]) -> Patch {
    let entry = |volume: &AttachedVolume| json!({"name": volume.name, "devicePath": volume.device_path});
    let list = match volumes {
        [] => Value::Null,
        volumes => volumes.iter().map(entry).collect(),
    };
    Patch::Strategic(json!({"metadata": {"uid": node.uid}, "status": {"volumesAttached": list}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volumes(names: &[&str]) -> Vec<AttachedVolume> {
        let volume = |name: &&str| AttachedVolume { name: (*name).to_owned(), device_path: String::new() };
        names.iter().map(volume).collect()
    }

    /// kubernetes.md 1.3 "Node status". actual_state_of_world_test: AddVolumeToReportAsAttached,
    /// RemoveVolumeFromReportAsAttached, and each after the other.
    #[test]
    fn list_adds_shown_and_removes_hidden_volumes() {
        use Report::{Hide, Keep, Show};
        for (now, reports, wanted) in [
            (&[][..], &[][..], None),
            (&[], &[("a", Show)], Some((&["a"][..], &["a"][..], &[][..]))),
            (&[], &[("a", Keep)], None),
            (&[], &[("a", Hide)], None),
            (&["a"], &[("a", Show)], None),
            (&["a"], &[("a", Keep)], None),
            (&["a"], &[("a", Hide)], Some((&[], &[], &["a"]))),
            // Unknown: from another plugin, or from a newer upstream.
            (&["foreign"], &[("a", Show)], Some((&["foreign", "a"], &["a"], &[]))),
            (&["foreign", "a"], &[("a", Hide)], Some((&["foreign"], &[], &["a"]))),
            (&["b", "a"], &[("a", Hide), ("b", Keep), ("c", Show)], Some((&["b", "c"], &["c"], &["a"]))),
            // Duplicates are removed together.
            (&["a", "a"], &[("a", Hide)], Some((&[], &[], &["a", "a"]))),
        ] {
            let reports = reports.iter().map(|(name, report)| ((*name).to_owned(), *report)).collect();
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let wanted = wanted.map(|(all, added, removed): (&[&str], &[&str], &[&str])| AttachedList {
                volumes: volumes(all),
                added: owned(added),
                removed: owned(removed),
            });
            assert_eq!(updated_list(&volumes(now), &reports), wanted, "{now:?} {reports:?}");
        }
    }

    /// A devicePath that another controller wrote is preserved.
    #[test]
    fn kept_entries_are_unchanged() {
        let odd = AttachedVolume { name: "odd".into(), device_path: "/dev/x".into() };
        let list =
            updated_list(std::slice::from_ref(&odd), &[("a".to_owned(), Report::Show)].into()).unwrap();
        assert_eq!(list.volumes[0], odd);
    }

    #[test]
    fn patch_has_uid_precondition() {
        let node = Meta { uid: "u".into(), ..Meta::default() };
        let of =
            |list| Patch::Strategic(json!({"metadata": {"uid": "u"}, "status": {"volumesAttached": list}}));
        assert_eq!(patch(&node, &[]), of(Value::Null), "an empty list is removed");
        assert_eq!(patch(&node, &volumes(&["a"])), of(json!([{"name": "a", "devicePath": ""}])));
    }
}
