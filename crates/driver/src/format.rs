//! Safe format: decides from evidence what to do with a device before it is mounted.
//!
//! Guarantee: a device is formatted only if it is proven to hold no data. There are two proofs. The *zero proof*
//! ([`zero`]): a probe found no signature, and all sampled ranges are zero. The *record* of a backend that has one: the
//! volume was created blank and never written. If there is a record, both proofs are required. Every other state is
//! refused without writing a byte; the message says what was found and what an operator can do.
//!
//! [`decide`] is the entry point. It is pure; `node/prepare.rs` gathers the evidence and carries out the decision.

pub(crate) mod zero;

use wharf_linux::{FsType, ProbeResult};

use crate::backend::FormatState;

/// The result of the zero proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZeroProof {
    /// Not needed or not done: proves nothing.
    NotTaken,
    /// All sampled ranges are zero.
    AllZero,
    /// A sampled range holds data.
    NonZero {
        /// The first byte that is not zero.
        offset: u64,
    },
}

/// Everything known about a device that is already verified to be the volume's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence<'a> {
    /// The backend's record; `None` if it has none.
    pub(crate) record: Option<&'a FormatState>,
    /// The result of the probe.
    pub(crate) probe: &'a ProbeResult,
    /// The result of the zero proof.
    pub(crate) zero: ZeroProof,
    /// The requested file system; `None` accepts an existing one, and ext4 on a blank device.
    pub(crate) wanted: Option<FsType>,
    /// Size of the device.
    pub(crate) size: u64,
    /// The volume is only read, so there is no reason to format it.
    pub(crate) reader_only: bool,
    /// The device rejects writes.
    pub(crate) device_read_only: bool,
    /// The user disabled formatting.
    pub(crate) formatting_disabled: bool,
}

/// What to do. A record is always written before the step it describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The device holds no data: choose a UUID, record `Formatting`, create the file system, record `Formatted`.
    Format { fs: FsType },
    /// An earlier format was interrupted, and its result was never mounted: format again with the recorded UUID.
    Reformat { fs: FsType, uuid: String },
    /// The volume's own file system: mount it.
    Mount { fs: FsType },
    /// A copy of another volume: set the UUID chosen for it, then record `Formatted`. Also if it has that UUID already,
    /// because an interrupted change can show the new UUID before it is complete.
    RenewUuid { fs: FsType, uuid: String },
    /// Change nothing.
    Refuse(Refusal),
}

/// Why a device is neither formatted nor mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The device holds a foreign format.
    #[error(
        "found {what}, which this driver did not create; if the data is not needed, delete the volume and create a \
         new one, else move the data away first"
    )]
    Foreign { what: String },
    /// The device holds an inconsistent signature.
    #[error(
        "found {what}, which is damaged; repair it manually or restore the volume from a snapshot or backup"
    )]
    Damaged { what: String },
    /// No signature, but data.
    #[error(
        "no file system was found, but byte {offset} is not zero, so the device holds unknown data; if it is not \
         needed, delete the volume and create a new one"
    )]
    UnknownData { offset: u64 },
    /// The zero proof was required and is missing.
    #[error("the device could not be proven to be empty; this is a bug in the driver, please report it")]
    Unproven,
    /// The record says blank, but the device holds a file system.
    #[error(
        "the record says that the volume was never formatted, but the device holds {fs} with UUID {uuid}; the \
         image may have been swapped: put the right one back, or delete the volume and create a new one"
    )]
    NotBlank { fs: FsType, uuid: String },
    /// The device holds another file system than recorded.
    #[error(
        "the device should hold {fs} with UUID {uuid}, but holds {found_fs} with UUID {found_uuid}; the image may \
         have been swapped: put the right one back, or restore the volume from a snapshot"
    )]
    OtherFilesystem { fs: FsType, uuid: String, found_fs: FsType, found_uuid: String },
    /// The recorded file system is missing.
    #[error(
        "the device should hold {fs} with UUID {uuid}, but no file system was found; it was overwritten, or the \
         image is the wrong one: put the right one back, or restore the volume from a snapshot"
    )]
    Lost { fs: FsType, uuid: String },
    /// The device holds another type than requested.
    #[error("the device holds {found}, but {wanted} was requested; request {found}, or create a new volume")]
    WrongType { wanted: FsType, found: FsType },
    /// A raw volume was requested as a file system.
    #[error(
        "the volume was published as a raw device, and no file system was found on it; use it as a block volume, \
         create a file system on it yourself, or create a new volume"
    )]
    Raw,
    /// A change is needed, but only reading is allowed.
    #[error(
        "the volume cannot be read yet ({missing}), and read-only access was requested; stage it once for writing"
    )]
    ReadOnly { missing: &'static str },
    /// There is no file system, and the user disabled formatting.
    #[error(
        "no file system was found, and the volume context disables formatting; create a file system manually, or \
         remove that key from the PersistentVolume"
    )]
    FormattingDisabled,
    /// mkfs would fail.
    #[error(
        "{fs} needs at least {minimum} bytes, but the device has {size}; expand the volume or choose another type"
    )]
    TooSmall { fs: FsType, minimum: u64, size: u64 },
}

/// Whether the zero proof is required, that is, whether a first format is possible.
pub(crate) fn needs_zero_proof(record: Option<&FormatState>, probe: &ProbeResult) -> bool {
    matches!((record, probe), (None | Some(FormatState::Blank), ProbeResult::NoSignature))
}

/// Decides what to do with a device. Every state that is not explicitly safe is refused.
pub(crate) fn decide(evidence: &Evidence<'_>) -> Decision {
    let decision = match evidence.record {
        None => unrecorded(evidence),
        Some(FormatState::Blank) => blank(evidence),
        Some(FormatState::Formatting { fs, uuid }) => formatting(evidence, *fs, uuid),
        Some(FormatState::Formatted { fs, uuid }) => formatted(evidence, *fs, uuid),
        Some(FormatState::Copied { fs, uuid }) => copied(evidence, *fs, uuid),
        Some(FormatState::Raw) => raw(evidence),
    };
    check_permitted(evidence, decision)
}

/// No record: the zero proof alone decides, and any supported file system counts as the volume's.
fn unrecorded(evidence: &Evidence<'_>) -> Decision {
    match evidence.probe {
        ProbeResult::NoSignature => format_if_zero(evidence),
        ProbeResult::Filesystem { fs, .. } => Decision::Mount { fs: *fs },
        ProbeResult::Foreign { what } => foreign(what),
        ProbeResult::Damaged { what, .. } => damaged(what),
    }
}

fn blank(evidence: &Evidence<'_>) -> Decision {
    match evidence.probe {
        ProbeResult::NoSignature => format_if_zero(evidence),
        ProbeResult::Filesystem { fs, uuid } => {
            Decision::Refuse(Refusal::NotBlank { fs: *fs, uuid: uuid.clone() })
        }
        ProbeResult::Foreign { what } => foreign(what),
        ProbeResult::Damaged { what, .. } => damaged(what),
    }
}

/// The file system was never mounted: the device holds either what our mkfs wrote, or something unexpected. A superblock
/// with our UUID does not prove that mkfs had finished, and a check would not find everything that is missing: format again.
fn formatting(evidence: &Evidence<'_>, fs: FsType, uuid: &str) -> Decision {
    match evidence.probe {
        ProbeResult::NoSignature => Decision::Reformat { fs, uuid: uuid.to_owned() },
        ProbeResult::Filesystem { fs: found, uuid: found_uuid } if *found == fs && found_uuid == uuid => {
            Decision::Reformat { fs, uuid: uuid.to_owned() }
        }
        ProbeResult::Damaged { fs: Some(found), .. } if *found == fs => {
            Decision::Reformat { fs, uuid: uuid.to_owned() }
        }
        ProbeResult::Filesystem { fs: found_fs, uuid: found_uuid } => {
            other_filesystem(fs, uuid, *found_fs, found_uuid)
        }
        ProbeResult::Foreign { what } => foreign(what),
        ProbeResult::Damaged { what, .. } => damaged(what),
    }
}

fn formatted(evidence: &Evidence<'_>, fs: FsType, uuid: &str) -> Decision {
    match evidence.probe {
        ProbeResult::Filesystem { fs: found, uuid: found_uuid } if *found == fs && found_uuid == uuid => {
            Decision::Mount { fs }
        }
        ProbeResult::Filesystem { fs: found_fs, uuid: found_uuid } => {
            other_filesystem(fs, uuid, *found_fs, found_uuid)
        }
        ProbeResult::NoSignature => Decision::Refuse(Refusal::Lost { fs, uuid: uuid.to_owned() }),
        ProbeResult::Foreign { what } => foreign(what),
        ProbeResult::Damaged { what, .. } => damaged(what),
    }
}

/// A copy has the UUID of its source or the new one, or perhaps neither after an interrupted change, so only the type
/// matters.
fn copied(evidence: &Evidence<'_>, fs: FsType, uuid: &str) -> Decision {
    match evidence.probe {
        ProbeResult::Filesystem { fs: found, .. } if *found == fs => {
            Decision::RenewUuid { fs, uuid: uuid.to_owned() }
        }
        ProbeResult::Filesystem { fs: found_fs, uuid: found_uuid } => {
            other_filesystem(fs, uuid, *found_fs, found_uuid)
        }
        ProbeResult::NoSignature => Decision::Refuse(Refusal::Lost { fs, uuid: uuid.to_owned() }),
        ProbeResult::Foreign { what } => foreign(what),
        ProbeResult::Damaged { what, .. } => damaged(what),
    }
}

/// A user can create a file system on a raw volume and mount it later; the driver never formats it.
fn raw(evidence: &Evidence<'_>) -> Decision {
    match evidence.probe {
        ProbeResult::Filesystem { fs, .. } => Decision::Mount { fs: *fs },
        ProbeResult::NoSignature => Decision::Refuse(Refusal::Raw),
        ProbeResult::Foreign { what } => foreign(what),
        ProbeResult::Damaged { what, .. } => damaged(what),
    }
}

fn format_if_zero(evidence: &Evidence<'_>) -> Decision {
    match evidence.zero {
        ZeroProof::AllZero => Decision::Format { fs: evidence.wanted.unwrap_or(FsType::Ext4) },
        ZeroProof::NonZero { offset } => Decision::Refuse(Refusal::UnknownData { offset }),
        ZeroProof::NotTaken => Decision::Refuse(Refusal::Unproven),
    }
}

fn other_filesystem(fs: FsType, uuid: &str, found_fs: FsType, found_uuid: &str) -> Decision {
    let (uuid, found_uuid) = (uuid.to_owned(), found_uuid.to_owned());
    Decision::Refuse(Refusal::OtherFilesystem { fs, uuid, found_fs, found_uuid })
}

fn foreign(what: &str) -> Decision {
    Decision::Refuse(Refusal::Foreign { what: what.to_owned() })
}

fn damaged(what: &str) -> Decision {
    Decision::Refuse(Refusal::Damaged { what: what.to_owned() })
}

/// Checks that apply to every decision: the requested type, the device's size, and whether writes are allowed.
fn check_permitted(evidence: &Evidence<'_>, decision: Decision) -> Decision {
    let (fs, missing) = match &decision {
        Decision::Format { fs } | Decision::Reformat { fs, .. } => {
            (*fs, Some("its file system is not complete"))
        }
        Decision::Mount { fs } => (*fs, None),
        Decision::RenewUuid { fs, .. } => (*fs, Some("a copy must get a new UUID first")),
        Decision::Refuse(_) => return decision,
    };
    if let Some(wanted) = evidence.wanted.filter(|wanted| *wanted != fs) {
        return Decision::Refuse(Refusal::WrongType { wanted, found: fs });
    }
    let formats = matches!(decision, Decision::Format { .. } | Decision::Reformat { .. });
    if formats && evidence.formatting_disabled {
        return Decision::Refuse(Refusal::FormattingDisabled);
    }
    if formats && evidence.size < fs.minimum_size() {
        let (minimum, size) = (fs.minimum_size(), evidence.size);
        return Decision::Refuse(Refusal::TooSmall { fs, minimum, size });
    }
    // A new UUID does not change the data, so it is allowed for a volume that is only read.
    match missing {
        Some(missing) if evidence.device_read_only || (formats && evidence.reader_only) => {
            Decision::Refuse(Refusal::ReadOnly { missing })
        }
        _ => decision,
    }
}

#[cfg(test)]
mod tests;
