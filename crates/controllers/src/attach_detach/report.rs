//! What a node is told: `status.volumesAttached`, which is the other half of the handshake about mounting.
//!
//! Promise: one list is written at a time for each node, whole, from what is known of each of its volumes; what is
//! not a CSI volume, or nobody of ours knows, stays as it is.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wharf_model::Meta;
use wharf_model::patch::Patch;
use wharf_model::whole::node::AttachedVolume;

use super::decide::Report;

/// A list that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    /// All of it.
    pub(super) volumes: Vec<AttachedVolume>,
    /// What is new in it.
    pub(super) added: Vec<String>,
    /// What is no longer in it.
    pub(super) removed: Vec<String>,
}

/// The list that a node is to have; `None` if it has it.
pub(super) fn list(now: &[AttachedVolume], reports: &BTreeMap<String, Report>) -> Option<List> {
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
    Some(List { volumes, added, removed: removed.into_iter().map(|volume| volume.name).collect() })
}

/// The list, as it is sent. Others write other parts of the status all the time, so it does not name a version; ours
/// is the only hand on this part.
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
    fn what_a_node_is_told() {
        use Report::{Hide, Keep, Show};
        for (now, reports, wanted) in [
            (&[][..], &[][..], None),
            (&[], &[("a", Show)], Some((&["a"][..], &["a"][..], &[][..]))),
            (&[], &[("a", Keep)], None),
            (&[], &[("a", Hide)], None),
            (&["a"], &[("a", Show)], None),
            (&["a"], &[("a", Keep)], None),
            (&["a"], &[("a", Hide)], Some((&[], &[], &["a"]))),
            // Nobody knows of it: another plugin's, or an upstream that is newer than we are.
            (&["foreign"], &[("a", Show)], Some((&["foreign", "a"], &["a"], &[]))),
            (&["foreign", "a"], &[("a", Hide)], Some((&["foreign"], &[], &["a"]))),
            (&["b", "a"], &[("a", Hide), ("b", Keep), ("c", Show)], Some((&["b", "c"], &["c"], &["a"]))),
            // Twice is once.
            (&["a", "a"], &[("a", Hide)], Some((&[], &[], &["a", "a"]))),
        ] {
            let reports = reports.iter().map(|(name, report)| ((*name).to_owned(), *report)).collect();
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            let wanted = wanted.map(|(all, added, removed): (&[&str], &[&str], &[&str])| List {
                volumes: volumes(all),
                added: owned(added),
                removed: owned(removed),
            });
            assert_eq!(list(&volumes(now), &reports), wanted, "{now:?} {reports:?}");
        }
    }

    /// The path of a device that somebody else wrote is not lost.
    #[test]
    fn what_stays_stays_as_it_is() {
        let odd = AttachedVolume { name: "odd".into(), device_path: "/dev/x".into() };
        let list = list(std::slice::from_ref(&odd), &[("a".to_owned(), Report::Show)].into()).unwrap();
        assert_eq!(list.volumes[0], odd);
    }

    #[test]
    fn a_list_is_for_one_node_alone() {
        let node = Meta { uid: "u".into(), ..Meta::default() };
        let of =
            |list| Patch::Strategic(json!({"metadata": {"uid": "u"}, "status": {"volumesAttached": list}}));
        assert_eq!(patch(&node, &[]), of(Value::Null), "an empty list is none");
        assert_eq!(patch(&node, &volumes(&["a"])), of(json!([{"name": "a", "devicePath": ""}])));
    }
}
