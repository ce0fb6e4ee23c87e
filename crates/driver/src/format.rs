//! Safe format: what is to be done with a device before it is mounted, decided from evidence alone.
//!
//! What this promises: a device is formatted only if it is proven that nobody's data is on it. Two proofs
//! are known. The *zero proof* ([`zero`]): a probe ran and found nothing, and the places that were read are
//! all zero. The *record* of a backend that keeps one: made blank, nobody has written to it. Where there is
//! a record, both are needed. Whatever does not fit is refused, with what was found and what an operator can
//! do, and not one byte is written.
//!
//! [`decide`] is pure; `node/prepare.rs` gathers the evidence and does what was decided.

pub(crate) mod zero;

use wharf_linux::{FsType, Probe};

use crate::backend::Format;

/// What the zero proof came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZeroProof {
    /// It was not needed, or not done: proves nothing.
    NotTaken,
    /// Every place that was read is zero.
    AllZero,
    /// There is data.
    NonZero {
        /// The first byte of it that was met.
        offset: u64,
    },
}

/// All that is known of a device that has already been shown to be the volume's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Evidence<'a> {
    /// The backend's record; `None` where it cannot keep one.
    pub(crate) record: Option<&'a Format>,
    /// What a probe found.
    pub(crate) probe: &'a Probe,
    /// Whether it reads as zeroes.
    pub(crate) zero: ZeroProof,
    /// The file system asked for; `None` takes what is there, and ext4 where there is nothing.
    pub(crate) wanted: Option<FsType>,
    /// Size of the device.
    pub(crate) size: u64,
    /// The volume is to be read only: no reason to make a file system on it.
    pub(crate) reader_only: bool,
    /// The device takes no writes.
    pub(crate) device_read_only: bool,
    /// The user has forbidden to make a file system on it.
    pub(crate) never_formats: bool,
}

/// What to do. The record is always written before the step it speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nobody's data is there: choose a UUID, record `Formatting`, make the file system, record `Formatted`.
    Format {
        /// Which.
        fs: FsType,
    },
    /// An earlier format did not end, and nobody can have mounted what it left: make it again.
    Remake {
        /// Which.
        fs: FsType,
        /// The UUID that was chosen then.
        uuid: String,
    },
    /// An earlier format left what looks whole: if a check agrees record `Formatted`, else [`Self::Remake`].
    Adopt {
        /// Which.
        fs: FsType,
        /// The UUID that was chosen then.
        uuid: String,
    },
    /// The volume's own file system: use it.
    Mount {
        /// Which.
        fs: FsType,
    },
    /// A copy of another volume: give it its own UUID, then record `Formatted`. Also if it has that UUID
    /// already, because a renewal that was cut short may show the new UUID before it is complete.
    RenewUuid {
        /// Which.
        fs: FsType,
        /// The UUID that was chosen when the copy was made.
        uuid: String,
    },
    /// Touch nothing.
    Refuse(Refusal),
}

/// Why a device is neither formatted nor mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// Something that is not ours.
    #[error(
        "{what} was found on it, which this driver has not put there; if that is no longer needed, delete \
         the volume and make a new one, else move the data away first"
    )]
    Foreign { what: String },
    /// A signature that does not hold together.
    #[error(
        "{what} was found on it, which is damaged; repair it by hand or restore the volume from a snapshot \
         or backup"
    )]
    Damaged { what: String },
    /// No signature, but data.
    #[error(
        "no file system was found, but byte {offset} is not zero, so it holds data of an unknown kind; if \
         that is not needed, delete the volume and make a new one"
    )]
    UnknownData { offset: u64 },
    /// The zero proof was needed and is missing.
    #[error("it could not be shown to be empty; this is a bug in the driver, please report it")]
    Unproven,
    /// The record says that nobody has written to it, and somebody has.
    #[error(
        "the record says that it was never formatted, but {fs} with UUID {uuid} is on it; the image may have \
         been swapped: put the right one back, or delete the volume and make a new one"
    )]
    NotBlank { fs: FsType, uuid: String },
    /// Our record speaks of another file system.
    #[error(
        "it should hold {fs} with UUID {uuid}, but holds {found_fs} with UUID {found_uuid}; the image may \
         have been swapped: put the right one back, or restore the volume from a snapshot"
    )]
    OtherFilesystem { fs: FsType, uuid: String, found_fs: FsType, found_uuid: String },
    /// The file system that was there is gone.
    #[error(
        "it should hold {fs} with UUID {uuid}, but no file system was found; it was overwritten or the image \
         is not the right one: put it back, or restore the volume from a snapshot"
    )]
    Lost { fs: FsType, uuid: String },
    /// Another type is asked for than there is.
    #[error("it holds {found}, and {wanted} is asked for; ask for {found}, or make a new volume")]
    WrongType { wanted: FsType, found: FsType },
    /// A raw volume is asked for as a file system.
    #[error(
        "it was handed out as a raw device, and no file system was found on it; use it as a block volume, or \
         make a file system on it yourself, or make a new volume"
    )]
    Raw,
    /// A format or another change is needed, and nothing may be written.
    #[error(
        "it is not ready to be read ({missing}), and it is asked for read-only; stage it once for writing"
    )]
    ReadOnly { missing: &'static str },
    /// There is nothing to mount, and nothing may be made.
    #[error(
        "no file system was found on it, and the volume's context says that none is to be made; put one on it by \
         hand, or take that key out of the PersistentVolume"
    )]
    NeverFormats,
    /// mkfs would fail.
    #[error("{fs} needs {minimum} bytes at least, and it has {size}; expand it or choose another type")]
    TooSmall { fs: FsType, minimum: u64, size: u64 },
}

/// Whether the zero proof matters, that is whether a format is possible at all.
pub(crate) fn needs_zero_proof(record: Option<&Format>, probe: &Probe) -> bool {
    matches!((record, probe), (None | Some(Format::Blank), Probe::Nothing))
}

/// The rules. Every state of a device that is not spelled out here as safe is refused.
pub(crate) fn decide(evidence: &Evidence<'_>) -> Decision {
    let decision = match evidence.record {
        None => unrecorded(evidence),
        Some(Format::Blank) => blank(evidence),
        Some(Format::Formatting { fs, uuid }) => formatting(evidence, *fs, uuid),
        Some(Format::Formatted { fs, uuid }) => formatted(evidence, *fs, uuid),
        Some(Format::Copied { fs, uuid }) => copied(evidence, *fs, uuid),
        Some(Format::Raw) => raw(evidence),
    };
    permitted(evidence, decision)
}

/// No record: the zero proof stands alone, and a file system of the right type is taken for the volume's.
fn unrecorded(evidence: &Evidence<'_>) -> Decision {
    match evidence.probe {
        Probe::Nothing => format_if_zero(evidence),
        Probe::Filesystem { fs, .. } => Decision::Mount { fs: *fs },
        Probe::Foreign { what } => foreign(what),
        Probe::Damaged { what, .. } => damaged(what),
    }
}

fn blank(evidence: &Evidence<'_>) -> Decision {
    match evidence.probe {
        Probe::Nothing => format_if_zero(evidence),
        Probe::Filesystem { fs, uuid } => Decision::Refuse(Refusal::NotBlank { fs: *fs, uuid: uuid.clone() }),
        Probe::Foreign { what } => foreign(what),
        Probe::Damaged { what, .. } => damaged(what),
    }
}

/// Nobody can have mounted it: what is there is either what our mkfs left, or proof that something else is
/// going on.
fn formatting(evidence: &Evidence<'_>, fs: FsType, uuid: &str) -> Decision {
    match evidence.probe {
        Probe::Nothing => Decision::Remake { fs, uuid: uuid.to_owned() },
        Probe::Filesystem { fs: found, uuid: found_uuid } if *found == fs && found_uuid == uuid => {
            Decision::Adopt { fs, uuid: uuid.to_owned() }
        }
        Probe::Damaged { fs: Some(found), .. } if *found == fs => {
            Decision::Remake { fs, uuid: uuid.to_owned() }
        }
        Probe::Filesystem { fs: found_fs, uuid: found_uuid } => other(fs, uuid, *found_fs, found_uuid),
        Probe::Foreign { what } => foreign(what),
        Probe::Damaged { what, .. } => damaged(what),
    }
}

fn formatted(evidence: &Evidence<'_>, fs: FsType, uuid: &str) -> Decision {
    match evidence.probe {
        Probe::Filesystem { fs: found, uuid: found_uuid } if *found == fs && found_uuid == uuid => {
            Decision::Mount { fs }
        }
        Probe::Filesystem { fs: found_fs, uuid: found_uuid } => other(fs, uuid, *found_fs, found_uuid),
        Probe::Nothing => Decision::Refuse(Refusal::Lost { fs, uuid: uuid.to_owned() }),
        Probe::Foreign { what } => foreign(what),
        Probe::Damaged { what, .. } => damaged(what),
    }
}

/// A copy has its source's UUID, or the new one, or, half renewed, perhaps neither: the type is what counts.
fn copied(evidence: &Evidence<'_>, fs: FsType, uuid: &str) -> Decision {
    match evidence.probe {
        Probe::Filesystem { fs: found, .. } if *found == fs => {
            Decision::RenewUuid { fs, uuid: uuid.to_owned() }
        }
        Probe::Filesystem { fs: found_fs, uuid: found_uuid } => other(fs, uuid, *found_fs, found_uuid),
        Probe::Nothing => Decision::Refuse(Refusal::Lost { fs, uuid: uuid.to_owned() }),
        Probe::Foreign { what } => foreign(what),
        Probe::Damaged { what, .. } => damaged(what),
    }
}

/// A user may put a file system on a raw volume and mount it later; we never make one on it.
fn raw(evidence: &Evidence<'_>) -> Decision {
    match evidence.probe {
        Probe::Filesystem { fs, .. } => Decision::Mount { fs: *fs },
        Probe::Nothing => Decision::Refuse(Refusal::Raw),
        Probe::Foreign { what } => foreign(what),
        Probe::Damaged { what, .. } => damaged(what),
    }
}

fn format_if_zero(evidence: &Evidence<'_>) -> Decision {
    match evidence.zero {
        ZeroProof::AllZero => Decision::Format { fs: evidence.wanted.unwrap_or(FsType::Ext4) },
        ZeroProof::NonZero { offset } => Decision::Refuse(Refusal::UnknownData { offset }),
        ZeroProof::NotTaken => Decision::Refuse(Refusal::Unproven),
    }
}

fn other(fs: FsType, uuid: &str, found_fs: FsType, found_uuid: &str) -> Decision {
    let (uuid, found_uuid) = (uuid.to_owned(), found_uuid.to_owned());
    Decision::Refuse(Refusal::OtherFilesystem { fs, uuid, found_fs, found_uuid })
}

fn foreign(what: &str) -> Decision {
    Decision::Refuse(Refusal::Foreign { what: what.to_owned() })
}

fn damaged(what: &str) -> Decision {
    Decision::Refuse(Refusal::Damaged { what: what.to_owned() })
}

/// What every decision must pass: the type that is asked for, the device's size, and being allowed to write.
fn permitted(evidence: &Evidence<'_>, decision: Decision) -> Decision {
    let (fs, missing) = match &decision {
        Decision::Format { fs } | Decision::Remake { fs, .. } => (*fs, Some("it has no file system yet")),
        Decision::Adopt { fs, .. } | Decision::Mount { fs } => (*fs, None),
        Decision::RenewUuid { fs, .. } => (*fs, Some("a copy must get a UUID of its own first")),
        Decision::Refuse(_) => return decision,
    };
    if let Some(wanted) = evidence.wanted.filter(|wanted| *wanted != fs) {
        return Decision::Refuse(Refusal::WrongType { wanted, found: fs });
    }
    let makes = matches!(decision, Decision::Format { .. } | Decision::Remake { .. });
    if makes && evidence.never_formats {
        return Decision::Refuse(Refusal::NeverFormats);
    }
    if makes && evidence.size < fs.minimum_size() {
        let (minimum, size) = (fs.minimum_size(), evidence.size);
        return Decision::Refuse(Refusal::TooSmall { fs, minimum, size });
    }
    // A new UUID leaves a reader's data alone, so a volume that is only read may get one.
    match missing {
        Some(missing) if evidence.device_read_only || (makes && evidence.reader_only) => {
            Decision::Refuse(Refusal::ReadOnly { missing })
        }
        _ => decision,
    }
}

#[cfg(test)]
mod tests;
