//! All records of a pool in memory, with what is looked up by more than its id: snapshots of a volume, copies
//! under way from a source, bytes promised, volumes attached. Changed only through `put` and `remove`, which
//! keep those in step.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use wharf_driver::backend::Source;

use crate::record::{GroupRecord, Phase, SnapshotRecord, VolumeRecord};

/// What a pool holds.
#[derive(Debug, Default)]
pub(crate) struct Index {
    volumes: BTreeMap<String, VolumeRecord>,
    snapshots: BTreeMap<String, SnapshotRecord>,
    groups: BTreeMap<String, GroupRecord>,
    /// Ids whose place is taken by something that cannot be read, and why: never used, never overwritten.
    broken: BTreeMap<String, String>,
    by_source: BTreeMap<String, BTreeSet<String>>,
    copies_from: BTreeMap<String, BTreeSet<String>>,
    committed: u128,
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

    /// Why this id cannot be used.
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

    /// Volumes behind `after`, by id.
    pub(crate) fn volumes_after(&self, after: Option<&str>) -> impl Iterator<Item = &VolumeRecord> {
        self.volumes.range::<str, _>((bound(after), Bound::Unbounded)).map(|(_, record)| record)
    }

    /// Snapshots behind `after`, by id.
    pub(crate) fn snapshots_after(&self, after: Option<&str>) -> impl Iterator<Item = &SnapshotRecord> {
        self.snapshots.range::<str, _>((bound(after), Bound::Unbounded)).map(|(_, record)| record)
    }

    /// Snapshots of one volume behind `after`, by id.
    pub(crate) fn snapshots_of(
        &self,
        source: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = &SnapshotRecord> {
        let ids = self.by_source.get(source).map(|ids| ids.range::<str, _>((bound(after), Bound::Unbounded)));
        ids.into_iter().flatten().filter_map(|id| self.snapshots.get(id))
    }

    /// One of the copies under way that read this volume or snapshot.
    pub(crate) fn copy_from(&self, source: &str) -> Option<&str> {
        self.copies_from.get(source).and_then(|targets| targets.first()).map(String::as_str)
    }

    /// Bytes promised to all volumes together.
    pub(crate) fn committed(&self) -> u128 {
        self.committed
    }

    /// Volumes that ControllerPublish has attached.
    pub(crate) fn attached(&self) -> usize {
        self.attached
    }

    pub(crate) fn put_volume(&mut self, record: VolumeRecord) {
        self.remove_volume(&record.id);
        self.committed += u128::from(promised(&record));
        self.attached += usize::from(record.attached.is_some());
        if let (Phase::Copying { .. }, Some(Source::Snapshot(source) | Source::Volume(source))) =
            (&record.state, &record.source)
        {
            add(&mut self.copies_from, source, &record.id);
        }
        self.volumes.insert(record.id.clone(), record);
    }

    pub(crate) fn remove_volume(&mut self, id: &str) {
        let Some(record) = self.volumes.remove(id) else { return };
        self.committed -= u128::from(promised(&record));
        self.attached -= usize::from(record.attached.is_some());
        if let Some(Source::Snapshot(source) | Source::Volume(source)) = &record.source {
            take(&mut self.copies_from, source, id);
        }
    }

    pub(crate) fn put_snapshot(&mut self, record: SnapshotRecord) {
        self.remove_snapshot(&record.id);
        add(&mut self.by_source, &record.source, &record.id);
        if matches!(record.state, Phase::Copying { .. }) {
            add(&mut self.copies_from, &record.source, &record.id);
        }
        self.snapshots.insert(record.id.clone(), record);
    }

    pub(crate) fn remove_snapshot(&mut self, id: &str) {
        let Some(record) = self.snapshots.remove(id) else { return };
        take(&mut self.by_source, &record.source, id);
        take(&mut self.copies_from, &record.source, id);
    }

    pub(crate) fn put_group(&mut self, record: GroupRecord) {
        self.groups.insert(record.id.clone(), record);
    }

    pub(crate) fn remove_group(&mut self, id: &str) {
        self.groups.remove(id);
    }

    pub(crate) fn put_broken(&mut self, id: String, why: String) {
        self.broken.insert(id, why);
    }
}

fn promised(record: &VolumeRecord) -> u64 {
    record.growing_to.unwrap_or(record.size).max(record.size)
}

fn bound(after: Option<&str>) -> Bound<&str> {
    after.map_or(Bound::Unbounded, Bound::Excluded)
}

fn add(map: &mut BTreeMap<String, BTreeSet<String>>, key: &str, id: &str) {
    map.entry(key.to_owned()).or_default().insert(id.to_owned());
}

fn take(map: &mut BTreeMap<String, BTreeSet<String>>, key: &str, id: &str) {
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
    use crate::record::{Attachment, Moment, VERSION};
    use wharf_driver::backend::Format;

    fn volume(id: &str, size: u64) -> VolumeRecord {
        VolumeRecord {
            version: VERSION,
            id: id.into(),
            name: id.into(),
            created: Moment::now(),
            state: Phase::Ready,
            size,
            growing_to: None,
            provisioning: Provisioning::Thin,
            access: vec![],
            mkfs_options: vec![],
            source: None,
            format: Format::Blank,
            image_inode: None,
            attached: None,
        }
    }

    fn snapshot(id: &str, source: &str, state: Phase) -> SnapshotRecord {
        SnapshotRecord {
            version: VERSION,
            id: id.into(),
            name: id.into(),
            created: Moment::now(),
            state,
            source: source.into(),
            size: 1,
            format: Format::Blank,
            group: None,
            image_inode: None,
        }
    }

    #[test]
    fn what_is_promised_and_attached_follows_the_records() {
        let mut index = Index::default();
        index.put_volume(volume("vol-a", 10));
        index.put_volume(VolumeRecord { growing_to: Some(50), ..volume("vol-b", 20) });
        assert_eq!(index.committed(), 60);
        index.put_volume(volume("vol-b", 50));
        assert_eq!(index.committed(), 60);
        let attached = Some(Attachment { node: "n".into(), read_only: false });
        index.put_volume(VolumeRecord { attached, ..volume("vol-a", 10) });
        assert_eq!(index.attached(), 1);
        index.remove_volume("vol-a");
        index.remove_volume("vol-a");
        assert_eq!((index.committed(), index.attached()), (50, 0));
        index.remove_volume("vol-b");
        assert_eq!(index.committed(), 0);
    }

    #[test]
    fn copies_hold_their_source_until_they_are_ready() {
        let copying = Phase::Copying { done: 0, total: 1 };
        let mut index = Index::default();
        index.put_snapshot(snapshot("snap-a", "vol-a", copying));
        assert_eq!(index.copy_from("vol-a"), Some("snap-a"));
        let source = Some(Source::Snapshot("snap-a".into()));
        index.put_volume(VolumeRecord { source, state: copying, ..volume("vol-b", 1) });
        assert_eq!(index.copy_from("snap-a"), Some("vol-b"));
        index.put_snapshot(snapshot("snap-a", "vol-a", Phase::Ready));
        index.remove_volume("vol-b");
        assert_eq!((index.copy_from("vol-a"), index.copy_from("snap-a")), (None, None));
        assert!(index.copies_from.is_empty());
    }

    #[test]
    fn listings_go_on_behind_an_id_that_is_gone() {
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
