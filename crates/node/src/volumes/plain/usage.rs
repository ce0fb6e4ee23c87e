//! The disk usage of emptyDir volumes that have a size limit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use wharf_model::{Pod, Quantity};

use super::EMPTY_DIR;
use crate::paths::Root;

/// Why a pod is evicted: kubelet's message. `None` while no emptyDir on disk exceeds its limit. In memory, the limit is
/// that of the tmpfs. Blocks.
pub fn exceeded_limit(root: &Root, pod: &Pod) -> Option<String> {
    limits(pod).find_map(|(volume, limit)| {
        let path = root.plain(&pod.metadata.uid, EMPTY_DIR, volume);
        let used = match disk_usage(&path) {
            Ok(used) => used,
            Err(error) => {
                tracing::warn!(pod = %pod.metadata.key(), volume, %error, "failed to measure the usage of an emptyDir");
                return None;
            }
        };
        message(volume, limit, used)
    })
}

/// Names and limits of the emptyDir volumes on disk that have one.
pub fn limits(pod: &Pod) -> impl Iterator<Item = (&str, Quantity)> {
    pod.spec.volumes.iter().filter_map(|volume| {
        let wanted = volume.empty_dir.as_ref().filter(|wanted| wanted.medium.is_empty())?;
        let limit = wanted.size_limit.filter(|limit| *limit > Quantity::ZERO)?;
        Some((volume.name.as_str(), limit))
    })
}

fn message(volume: &str, limit: Quantity, used: u64) -> Option<String> {
    let exceeded = i128::from(used) > i128::from(limit.bytes());
    exceeded.then(|| format!("Usage of EmptyDir volume {volume:?} exceeds the limit \"{limit}\". "))
}

/// Bytes allocated to the directory and everything in it, as `du -x` counts: a file with several names once, no symlink
/// is followed, and no other file system is entered. Files that disappear meanwhile are not counted.
fn disk_usage(root: &Path) -> io::Result<u64> {
    let top = match fs::symlink_metadata(root) {
        Ok(top) if top.is_dir() => top,
        Ok(_) => return Ok(0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let (mut sum, mut linked, mut directories) = (top.blocks() * 512, BTreeSet::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if metadata.dev() != top.dev() {
                continue;
            }
            if !metadata.is_dir() && metadata.nlink() > 1 && !linked.insert(metadata.ino()) {
                continue;
            }
            sum += metadata.blocks() * 512;
            if metadata.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn only_limited_volumes_on_disk_are_measured() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "unlimited", "emptyDir": {}},
            {"name": "zero", "emptyDir": {"sizeLimit": "0"}},
            {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "limited", "emptyDir": {"sizeLimit": "1Mi"}},
        ]}}))
        .unwrap();
        let limits: Vec<_> = limits(&pod).collect();
        assert_eq!(limits, [("limited", "1Mi".parse().unwrap())]);
        assert_eq!(message("v", "1Mi".parse().unwrap(), 1 << 20), None);
        assert_eq!(
            message("v", "1Mi".parse().unwrap(), (1 << 20) + 1).unwrap(),
            "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". "
        );
    }

    #[test]
    fn usage_counts_blocks_once_and_follows_no_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(disk_usage(&at("missing")).unwrap(), 0);
        let empty = disk_usage(dir.path()).unwrap();
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("sub/file"), vec![1; 1 << 20]).unwrap();
        fs::File::open(at("sub/file")).unwrap().sync_all().unwrap();
        fs::hard_link(at("sub/file"), at("again")).unwrap();
        symlink("/usr", at("usr")).unwrap();
        symlink(dir.path(), at("loop")).unwrap();
        fs::File::create(at("sparse")).unwrap().set_len(1 << 40).unwrap();
        let used = disk_usage(dir.path()).unwrap() - empty;
        assert!(((1 << 20)..(1 << 20) + 65536).contains(&used), "{used}");
    }
}
