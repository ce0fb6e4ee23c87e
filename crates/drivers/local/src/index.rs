//! All records of a pool in memory, with secondary indexes: snapshots by volume, running copies by source, attached
//! volumes. Only `put_*` and `remove_*` change it, which keeps the indexes consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use wharf_driver::backend::VolumeContentSource;

use crate::record::{GroupRecord, Phase, SnapshotRecord, VolumeRecord};

/// The records of a pool, with their indexes.
#[derive(Debug, Default)]
pub(crate) struct Index {
    volumes: BTreeMap<String, VolumeRecord>,
    snapshots: BTreeMap<String, SnapshotRecord>,
    groups: BTreeMap<String, GroupRecord>,
    /// Ids whose record cannot be read, and the reason. Such an id is never used and its files are never overwritten.
    broken: BTreeMap<String, String>,
    snapshots_by_source: BTreeMap<String, BTreeSet<String>>,
    copies_from: BTreeMap<String, BTreeSet<String>>,
    attached: usize,
}

impl Index {
    pub(crate) fn volume(&self, id: &str) -> Option<&VolumeRecord> {
        self.volumes.get(id)
    }

    pub(crate) fn snapshot(&self, id: &str) -> Option<&SnapshotRecord> {
        self.snapshots.get(id)
    }

    pub(crate) fn group(&self, id: &str) -> Option<&GroupRecord> {
        self.groups.get(id)
    }

    /// The reason why this ID cannot be used, if its record cannot be read.
    pub(crate) fn broken(&self, id: &str) -> Option<&str> {
        self.broken.get(id).map(String::as_str)
    }

    pub(crate) fn all_broken(&self) -> impl Iterator<Item = (&String, &String)> {
        self.broken.iter()
    }

    pub(crate) fn volumes(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.volumes.values()
    }

    pub(crate) fn snapshots(&self) -> impl Iterator<Item = &SnapshotRecord> {
        self.snapshots.values()
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &GroupRecord> {
        self.groups.values()
    }

    /// Volumes with an id greater than `after`, ordered by id.
    pub(crate) fn volumes_after(&self, after: Option<&str>) -> impl Iterator<Item = &VolumeRecord> {
        self.volumes.range::<str, _>((bound(after), Bound::Unbounded)).map(|(_, record)| record)
    }

    /// Snapshots with an id greater than `after`, ordered by id.
    pub(crate) fn snapshots_after(&self, after: Option<&str>) -> impl Iterator<Item = &SnapshotRecord> {
        self.snapshots.range::<str, _>((bound(after), Bound::Unbounded)).map(|(_, record)| record)
    }

    /// Snapshots of one volume with an id greater than `after`, ordered by id.
    pub(crate) fn snapshots_of(
        &self,
        source: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &SnapshotRecord> {
        let ids = self
            .snapshots_by_source
            .get(source)
            .map(|ids| ids.range::<str, _>((bound(after), Bound::Unbounded)));
        ids.into_iter().flatten().filter_map(|id| self.snapshots.get(id))
    }

    /// The target of a running copy that reads this volume or snapshot, if there is one.
    pub(crate) fn copy_reading(&self, source: &str) -> Option<&str> {
        self.copies_from.get(source).and_then(|targets| targets.first()).map(String::as_str)
    }

    /// The number of volumes that ControllerPublishVolume has attached.
    pub(crate) fn attached(&self) -> usize {
        self.attached
    }

    pub(crate) fn put_volume(&mut self, record: VolumeRecord) {
        self.remove_volume(&record.id);
        self.attached += usize::from(record.attached.is_some());
        if let (
            Phase::Copying { .. },
            Some(VolumeContentSource::Snapshot(source) | VolumeContentSource::Volume(source)),
        ) = (&record.state, &record.source)
        {
            insert_id(&mut self.copies_from, source, &record.id);
        }
        self.volumes.insert(record.id.clone(), record);
    }

    /// Completes the records of snapshots that an earlier release wrote.
    pub(crate) fn complete_snapshots(&mut self) {
        for record in self.snapshots.values_mut() {
            record.complete(self.volumes.get(&record.source));
        }
    }

    pub(crate) fn remove_volume(&mut self, id: &str) {
        let Some(record) = self.volumes.remove(id) else { return };
        self.attached -= usize::from(record.attached.is_some());
        if let Some(VolumeContentSource::Snapshot(source) | VolumeContentSource::Volume(source)) =
            &record.source
        {
            remove_id(&mut self.copies_from, source, id);
        }
    }

    pub(crate) fn put_snapshot(&mut self, record: SnapshotRecord) {
        self.remove_snapshot(&record.id);
        insert_id(&mut self.snapshots_by_source, &record.source, &record.id);
        if matches!(record.state, Phase::Copying { .. }) {
            insert_id(&mut self.copies_from, &record.source, &record.id);
        }
        self.snapshots.insert(record.id.clone(), record);
    }

    pub(crate) fn remove_snapshot(&mut self, id: &str) {
        let Some(record) = self.snapshots.remove(id) else { return };
        remove_id(&mut self.snapshots_by_source, &record.source, id);
        remove_id(&mut self.copies_from, &record.source, id);
    }

    pub(crate) fn put_group(&mut self, record: GroupRecord) {
        self.groups.insert(record.id.clone(), record);
    }

    pub(crate) fn remove_group(&mut self, id: &str) {
        self.groups.remove(id);
    }

    pub(crate) fn put_broken(&mut self, id: String, reason: String) {
        self.broken.insert(id, reason);
    }
}

/// The size that the pool has promised to a volume. A volume that is being expanded counts with its new size.
pub(crate) fn promised(record: &VolumeRecord) -> u64 {
    record.growing_to.unwrap_or(record.size).max(record.size)
}

fn bound(after: Option<&str>) -> Bound<&str> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

fn insert_id(map: &mut BTreeMap<String, BTreeSet<String>>, key: &str, id: &str) {
    map.entry(key.to_owned()).or_default().insert(id.to_owned());
}

fn remove_id(map: &mut BTreeMap<String, BTreeSet<String>>, key: &str, id: &str) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provisioning;
    use crate::record::{Attachment, Timestamp, VERSION};
    use wharf_driver::backend::FormatState;

    fn volume(id: &str, size: u64) -> VolumeRecord {
        VolumeRecord {
            version: VERSION,
            id: id.into(),
            name: id.into(),
            created: Timestamp::now(),
            state: Phase::Ready,
            size,
            requested: None,
            growing_to: None,
            provisioning: Provisioning::Thin,
            access: vec![],
            mkfs_options: vec![],
            source: None,
            format: FormatState::Blank,
            image_inode: None,
            attached: None,
            growing_offline: false,
        }
    }

    fn snapshot(id: &str, source: &str, state: Phase) -> SnapshotRecord {
        SnapshotRecord {
            version: VERSION,
            id: id.into(),
            name: id.into(),
            created: Timestamp::now(),
            state,
            source: source.into(),
            size: 1,
            requested: None,
            format: FormatState::Blank,
            group: None,
            image_inode: None,
            crash_consistent: false,
            of_copy: Some(false),
        }
    }

    #[test]
    fn attached_follows_the_records() {
        let mut index = Index::default();
        let attached = Some(Attachment { node: "n".into(), read_only: false });
        index.put_volume(volume("vol-a", 10));
        index.put_volume(VolumeRecord { attached, ..volume("vol-a", 10) });
        assert_eq!(index.attached(), 1);
        index.remove_volume("vol-a");
        index.remove_volume("vol-a");
        assert_eq!(index.attached(), 0);
    }

    #[test]
    fn larger_size_of_an_expansion_is_promised() {
        assert_eq!(promised(&volume("vol-a", 20)), 20);
        assert_eq!(promised(&VolumeRecord { growing_to: Some(50), ..volume("vol-b", 20) }), 50);
    }

    #[test]
    fn snapshot_of_a_deleted_copy_is_recognized_also_in_old_records() {
        let at = |text: &str| serde_json::from_value(serde_json::json!(text)).unwrap();
        let (before, taken, after) =
            (at("2026-01-01T00:00:00Z"), at("2026-01-02T00:00:00Z"), at("2026-01-03T00:00:00Z"));
        let source = |created, is_copy: bool| VolumeRecord {
            created,
            source: is_copy.then(|| VolumeContentSource::Snapshot("snap-x".into())),
            ..volume("vol-a", 1)
        };
        for (of_copy, source, expected) in [
            (None, None, true),
            (None, Some(source(before, true)), false),
            (None, Some(source(before, false)), false),
            // The name was used again: this is not the volume of the snapshot.
            (None, Some(source(after, false)), true),
            (Some(true), Some(source(after, false)), true),
            (Some(true), Some(source(before, true)), false),
            (Some(true), None, true),
            (Some(false), None, false),
            (Some(false), Some(source(after, true)), false),
        ] {
            let mut index = Index::default();
            let record = snapshot("snap-a", "vol-a", Phase::Ready);
            index.put_snapshot(SnapshotRecord { of_copy, created: taken, ..record });
            source.iter().for_each(|source| index.put_volume(source.clone()));
            index.complete_snapshots();
            let left =
                |index: &Index| index.snapshot("snap-a").unwrap().is_left_by_copy(index.volume("vol-a"));
            assert_eq!(left(&index), expected, "{of_copy:?} {source:?}");
            // The volume is deleted later.
            let was_copy = source.as_ref().is_some_and(|source| source.source.is_some());
            index.remove_volume("vol-a");
            assert_eq!(
                left(&index),
                expected || (of_copy != Some(false) && was_copy),
                "{of_copy:?} {source:?}"
            );
        }
    }

    #[test]
    fn copy_references_its_source_until_ready() {
        let copying = Phase::Copying { done: 0, total: 1 };
        let mut index = Index::default();
        index.put_snapshot(snapshot("snap-a", "vol-a", copying));
        assert_eq!(index.copy_reading("vol-a"), Some("snap-a"));
        let source = Some(VolumeContentSource::Snapshot("snap-a".into()));
        index.put_volume(VolumeRecord { source, state: copying, ..volume("vol-b", 1) });
        assert_eq!(index.copy_reading("snap-a"), Some("vol-b"));
        index.put_snapshot(snapshot("snap-a", "vol-a", Phase::Ready));
        index.remove_volume("vol-b");
        assert_eq!((index.copy_reading("vol-a"), index.copy_reading("snap-a")), (None, None));
        assert!(index.copies_from.is_empty());
    }

    #[test]
    fn listing_continues_after_a_deleted_id() {
        let mut index = Index::default();
        for (id, source) in
            [("snap-a", "vol-1"), ("snap-b", "vol-2"), ("snap-c", "vol-1"), ("snap-d", "vol-1")]
        {
            index.put_snapshot(snapshot(id, source, Phase::Ready));
        }
        let ids =
            |list: Vec<&SnapshotRecord>| list.iter().map(|record| record.id.clone()).collect::<Vec<_>>();
        assert_eq!(ids(index.snapshots_of("vol-1", Some("snap-a")).collect()), ["snap-c", "snap-d"]);
        index.remove_snapshot("snap-a");
        assert_eq!(ids(index.snapshots_of("vol-1", Some("snap-a")).collect()), ["snap-c", "snap-d"]);
        assert_eq!(ids(index.snapshots_of("vol-3", None).collect()), Vec::<String>::new());
        assert_eq!(ids(index.snapshots_after(Some("snap-b")).collect()), ["snap-c", "snap-d"]);
    }
}
