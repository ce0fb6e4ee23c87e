//! Identifies the content of a device by its signatures. Pure: all reads go through a closure. Start at [`identify`].
//!
//! Superblocks of supported file systems (ext4, xfs, btrfs) are checked completely: an inconsistent superblock is damage,
//! not absence. All other formats only need to be recognized, since such a device is never touched. Two rules make this
//! safe. A signature *inside* the space that a valid supported file system covers is file data and is ignored. One
//! *outside* of it means that the device is not, or not only, that file system. Where the superblock is missing, its
//! backup copies still reveal the file system.

mod btrfs;
mod ext;
mod foreign;
mod ranges;
mod xfs;

use std::collections::BTreeMap;
use std::ops::Range;

pub use ranges::signature_ranges;

use crate::{FsType, ProbeResult, Result};

/// The size of a read: the first and the last chunk of a device hold nearly all signatures.
const CHUNK: u64 = 1 << 20;

/// A device with a cache of the chunks read so far.
struct DeviceReader<'a> {
    size: u64,
    read: &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    cache: BTreeMap<u64, Vec<u8>>,
}

impl DeviceReader<'_> {
    /// Reads bytes at an offset; `None` if the range exceeds the device.
    fn read_at(&mut self, offset: u64, length: usize) -> Result<Option<Vec<u8>>> {
        let Some(end) = offset.checked_add(length as u64).filter(|end| *end <= self.size) else {
            return Ok(None);
        };
        let cached = self.cache.iter().find_map(|(start, chunk)| {
            let from = usize::try_from(offset.checked_sub(*start)?).ok()?;
            chunk.get(from..from.checked_add(length)?).map(<[u8]>::to_vec)
        });
        if cached.is_some() {
            return Ok(cached);
        }
        let tail = self.size.saturating_sub(CHUNK);
        let (start, stop) = if end <= CHUNK {
            (0, CHUNK.min(self.size))
        } else if offset >= tail {
            (tail, self.size)
        } else {
            (offset, end)
        };
        let mut chunk = vec![0; (stop - start) as usize];
        (self.read)(start, &mut chunk)?;
        let from = (offset - start) as usize;
        let bytes = chunk[from..from + length].to_vec();
        self.cache.insert(start, chunk);
        Ok(Some(bytes))
    }
}

/// A signature that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    /// A description for the operator.
    what: String,
    /// The offset of the signature on the device.
    offset: u64,
    /// The range that the file system covers: other signatures in this range are its data.
    covers: Range<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Ours { fs: FsType, uuid: String },
    Foreign,
    Damaged { fs: FsType },
}

impl Finding {
    fn foreign(what: impl Into<String>, offset: u64) -> Self {
        Self { verdict: Verdict::Foreign, what: what.into(), offset, covers: 0..0 }
    }

    fn damaged(fs: FsType, what: impl Into<String>, offset: u64) -> Self {
        Self { verdict: Verdict::Damaged { fs }, what: what.into(), offset, covers: 0..0 }
    }
}

/// Searches all known locations. `read` fills its buffer from an offset; its error is returned.
pub(crate) fn identify(size: u64, read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>) -> Result<ProbeResult> {
    let mut reader = DeviceReader { size, read, cache: BTreeMap::new() };
    let mut findings = Vec::new();
    findings.extend(ext::find(&mut reader)?);
    findings.extend(xfs::find(&mut reader)?);
    findings.extend(btrfs::find(&mut reader)?);
    findings.extend(foreign::find(&mut reader)?);
    if let Some(probe) = decide(&findings) {
        return Ok(probe);
    }
    for (fs, find_backup) in [
        (FsType::Ext4, ext::find_backup as fn(&mut DeviceReader<'_>) -> Result<Option<String>>),
        (FsType::Xfs, xfs::find_backup),
        (FsType::Btrfs, btrfs::find_backup),
    ] {
        if let Some(what) = find_backup(&mut reader)? {
            return Ok(ProbeResult::Damaged { fs: Some(fs), what });
        }
    }
    Ok(ProbeResult::NoSignature)
}

/// The result for all findings; `None` if there are none.
fn decide(findings: &[Finding]) -> Option<ProbeResult> {
    for (i, finding) in findings.iter().enumerate() {
        let Verdict::Ours { fs, uuid } = &finding.verdict else { continue };
        let mut others = findings.iter().enumerate().filter(|(j, _)| *j != i);
        if others.all(|(_, other)| finding.covers.contains(&other.offset)) {
            return Some(ProbeResult::Filesystem { fs: *fs, uuid: uuid.clone() });
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
        // An interrupted mkfs leaves damage of one type and nothing else.
        let alone = damaged.len() == findings.len() && damaged.iter().all(|other| other == fs);
        Some(ProbeResult::Damaged { fs: alone.then_some(*fs), what })
    } else {
        Some(ProbeResult::Foreign { what })
    }
}

#[cfg(test)]
mod tests;
