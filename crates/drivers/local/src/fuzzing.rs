//! Entry points for the fuzz targets in `fuzz/`. Not part of the API.

use std::path::Path;

use crate::ids::{self, Kind};
use crate::record::{self, FreezeRecord, GroupRecord, PoolRecord, Record, SnapshotRecord, VolumeRecord};

/// Reads the record in this file of a pool and writes it again; `None` if it is not accepted.
pub fn rewrite_record(file: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    fn rewrite<T: Record>(file: &str, id: Option<&str>, bytes: &[u8]) -> Option<Vec<u8>> {
        record::parse::<T>(Path::new(file), id, bytes).ok().map(|record| record::to_bytes(&record))
    }
    let id = file.split(['/', '.']).nth(1);
    match file.split_once('/').map_or(file, |(dir, _)| dir) {
        "volumes" => rewrite::<VolumeRecord>(file, id, bytes),
        "snapshots" => rewrite::<SnapshotRecord>(file, id, bytes),
        "groups" => rewrite::<GroupRecord>(file, id, bytes),
        "freeze.json" => rewrite::<FreezeRecord>(file, None, bytes),
        _ => rewrite::<PoolRecord>(file, None, bytes),
    }
}

/// The ids of the volume, the snapshot and the group of this name.
pub fn ids(name: &str) -> [String; 3] {
    [Kind::Volume, Kind::Snapshot, Kind::Group].map(|kind| ids::derive(kind, name))
}

/// Whether a text is an id, and may become part of a path.
pub fn is_id(text: &str) -> bool {
    ids::kind_of(text).is_some()
}

/// The id and the number in the name of something in the trash.
pub fn parse_trash(name: &str) -> Option<(&str, u64)> {
    ids::parse_trash(name)
}
