//! What a driver left behind, as reported by the kernel and the disk instead of the driver itself.

use std::fs;
use std::path::Path;

use wharf_linux::{BlockDevices as _, Linux, Mounts as _};

/// Everything that must be gone once all volumes and snapshots are deleted and the driver has stopped: files in the
/// pool, loop devices on the pool, mounts and directories in `work`.
pub fn leftovers(pool: &Path, work: &Path) -> Vec<String> {
    let mut left = Vec::new();
    for place in ["volumes", "snapshots", "groups", "trash"] {
        left.extend(files_below(&pool.join(place)));
    }
    left.extend(
        files_below(pool).into_iter().filter(|path| path.ends_with(".tmp") || path.ends_with("/freeze.json")),
    );
    left.extend(loop_devices_on(pool).into_iter().map(|device| format!("loop device {device}")));
    let table = Linux::new().mount_table().expect("failed to read the mount table");
    let mounts = table.mounts().iter().filter(|mount| mount.mount_point.starts_with(work));
    left.extend(mounts.map(|mount| format!("mount {}", mount.mount_point.display())));
    for place in ["staging", "pods"] {
        let below = files_below(&work.join(place));
        // The orchestrator creates the pod directories itself.
        left.extend(
            below.into_iter().filter(|path| !path.ends_with("pods/pod") && !path.ends_with("pods/other")),
        );
    }
    left
}

/// Loop devices whose backing file is on the pool's file system.
pub fn loop_devices_on(pool: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt as _;
    let device = fs::metadata(pool).expect("failed to stat the pool").dev();
    let devices = Linux::new().loop_devices().expect("failed to list loop devices");
    devices.into_iter().filter(|d| d.backing.device == device).map(|d| d.path.display().to_string()).collect()
}

/// All paths below a directory, without the directory itself.
fn files_below(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .flatten()
        .flat_map(|entry| {
            let path = entry.path();
            let mut all = vec![path.display().to_string()];
            if path.is_dir() {
                all.extend(files_below(&path));
            }
            all
        })
        .collect()
}
