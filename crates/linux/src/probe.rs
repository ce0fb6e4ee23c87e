//! What a device carries, found by its signatures. Pure: all reading goes through a closure.
//!
//! Ours (ext4, xfs, btrfs) are read whole: a superblock that does not hold together is damage, not absence.
//! All else needs only to be recognised, since the answer is to keep the hands off. Two rules make it safe:
//! a signature *inside* the space that a sound file system of ours covers is somebody's data and means
//! nothing; one *outside* of it means that the device is not, or not only, what it seems. And where no
//! superblock is left, its copies still tell that there was one.

mod btrfs;
mod ext;
mod foreign;
mod places;
mod xfs;

use std::collections::BTreeMap;
use std::ops::Range;

pub use places::signature_offsets;

use crate::{FsType, Probe, Result};

/// How reads are grouped: the first and the last such piece of a device hold nearly all signatures.
const PIECE: u64 = 1 << 20;

/// A device to look at.
struct Source<'a> {
    size: u64,
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl Source<'_> {
    /// Bytes at an offset; `None` if the device ends before their end.
    fn at(&mut self, offset: u64, length: usize) -> Result<Option<Vec<u8>>> {
        let Some(end) = offset.checked_add(length as u64).filter(|end| *end <= self.size) else {
            return Ok(None);
        };
        let cached = self.pieces.iter().find_map(|(start, piece)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            piece.get(from..from.checked_add(length)?).map(<[u8]>::to_vec)
        });
        if cached.is_some() {
            return Ok(cached);
        }
        let tail = self.size.saturating_sub(PIECE);
        let (start, stop) = if end <= PIECE {
            (0, PIECE.min(self.size))
        } else if offset >= tail {
            (tail, self.size)
        } else {
            (offset, end)
        };
        let mut piece = vec![0; (stop - start) as usize];
        (self.read)(start, &mut piece)?;
        let from = (offset - start) as usize;
        let bytes = piece[from..from + length].to_vec();
        self.pieces.insert(start, piece);
        Ok(Some(bytes))
    }
}

/// A signature.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    /// In words for the operator.
    what: String,
    /// Where it is.
    offset: u64,
    /// What it covers: other signatures in here are its data.
    claim: Range<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Ours { fs: FsType, uuid: String },
    Foreign,
    Damaged { fs: FsType },
}

impl Finding {
    fn foreign(what: impl Into<String>, offset: u64) -> Self {
        Self { verdict: Verdict::Foreign, what: what.into(), offset, claim: 0..0 }
    }

    fn damaged(fs: FsType, what: impl Into<String>, offset: u64) -> Self {
        Self { verdict: Verdict::Damaged { fs }, what: what.into(), offset, claim: 0..0 }
    }
}

/// Looks everywhere. The closure fills its buffer from an offset or fails; a failure is handed on.
pub(crate) fn recognise(size: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Probe> {
    let mut source = Source { size, read, pieces: BTreeMap::new() };
    let mut findings = Vec::new();
    findings.extend(ext::find(&mut source)?);
    findings.extend(xfs::find(&mut source)?);
    findings.extend(btrfs::find(&mut source)?);
    findings.extend(foreign::find(&mut source)?);
    if let Some(probe) = decide(&findings) {
        return Ok(probe);
    }
    for (fs, copy) in [
        (FsType::Ext4, ext::copy as fn(&mut Source<'_>) -> Result<Option<String>>),
        (FsType::Xfs, xfs::copy),
        (FsType::Btrfs, btrfs::copy),
    ] {
        if let Some(what) = copy(&mut source)? {
            return Ok(Probe::Damaged { fs: Some(fs), what });
        }
    }
    Ok(Probe::Nothing)
}

/// What to say about all that was found; `None` if nothing was.
fn decide(findings: &[Finding]) -> Option<Probe> {
    for (i, finding) in findings.iter().enumerate() {
        let Verdict::Ours { fs, uuid } = &finding.verdict else { continue };
        let mut others = findings.iter().enumerate().filter(|(j, _)| *j != i);
        if others.all(|(_, other)| finding.claim.contains(&other.offset)) {
            return Some(Probe::Filesystem { fs: *fs, uuid: uuid.clone() });
        }
    }
    let damaged: Vec<FsType> = findings
        .iter()
        .filter_map(|finding| match finding.verdict {
            Verdict::Damaged { fs } => Some(fs),
            Verdict::Ours { .. } | Verdict::Foreign => None,
        })
        .collect();
    let what = findings.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>().join(", and ");
    if findings.is_empty() {
        None
    } else if let Some(fs) = damaged.first() {
        // Damage of one kind and nothing else is what an interrupted mkfs leaves.
        let alone = damaged.len() == findings.len() && damaged.iter().all(|other| other == fs);
        Some(Probe::Damaged { fs: alone.then_some(*fs), what })
    } else {
        Some(Probe::Foreign { what })
    }
}

#[cfg(test)]
mod tests;
