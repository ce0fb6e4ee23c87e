//! The extents of a file, and copies that leave out its holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::Errno;

use super::files::{open_regular, syscall_error};
use crate::{Error, Extent, PathBeneath, Result, sys};

const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;
/// UNKNOWN, DELALLOC, ENCODED, DATA_ENCRYPTED, NOT_ALIGNED, DATA_INLINE, DATA_TAIL: the extent has no physical address,
/// or one that is not the location of exactly these bytes.
const NO_ADDRESS: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// The size of one copy call, so that a failing disk is noticed soon.
const STEP: u64 = 64 << 20;

pub(super) fn list(file: &PathBeneath<'_>) -> Result<Vec<Extent>> {
    let open = open_regular(file, OFlags::RDONLY)?;
    let size = open.metadata().map_err(syscall_error("fstat", file))?.len();
    match fiemap_extents(&open, size) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            open.sync_all().map_err(syscall_error("fsync", file))?;
            let data = data_ranges(&open, 0, size).map_err(syscall_error("lseek", file))?;
            Ok(data.into_iter().map(|(offset, length)| Extent { offset, length, physical: None }).collect())
        }
        result => result.map_err(syscall_error("FIEMAP", file)),
    }
}

fn fiemap_extents(file: &File, size: u64) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut start = 0;
    while start < size {
        let page = sys::fiemap(file, start, size - start)?;
        let Some(last) = page.last() else { break };
        let next = last.logical.saturating_add(last.length);
        page.iter()
            .filter_map(|found| written_part(found, size))
            .for_each(|extent| append(&mut extents, extent));
        if last.flags & LAST != 0 || next <= start {
            break;
        }
        start = next;
    }
    Ok(extents)
}

/// The part of an extent that holds data of the file; reserved blocks that were never written read as zeroes.
fn written_part(found: &sys::FiemapExtent, size: u64) -> Option<Extent> {
    let end = found.logical.saturating_add(found.length).min(size);
    let length = end.checked_sub(found.logical).filter(|length| *length > 0)?;
    if found.flags & UNWRITTEN != 0 {
        return None;
    }
    let physical = (found.flags & NO_ADDRESS == 0).then_some(found.physical);
    Some(Extent { offset: found.logical, length, physical })
}

/// Appends an extent. Merges it with the previous one if they are contiguous in the file and on the disk: file systems
/// split extents for internal reasons, for example because one half is shared.
fn append(extents: &mut Vec<Extent>, next: Extent) {
    if let Some(last) = extents.last_mut()
        && last.offset + last.length == next.offset
        && last.physical.map(|address| address + last.length) == next.physical
    {
        last.length += next.length;
        return;
    }
    extents.push(next);
}

/// `(offset, length)` of the data within a range, found with SEEK_DATA and SEEK_HOLE.
fn data_ranges(file: &File, start: u64, end: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut at = start;
    while at < end {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        if at >= end {
            break;
        }
        let hole = rustix::fs::seek(file, SeekFrom::Hole(at))?.min(end);
        ranges.push((at, hole - at));
        at = hole;
    }
    Ok(ranges)
}

pub(super) fn copy_range(
    from: &PathBeneath<'_>,
    to: &PathBeneath<'_>,
    offset: u64,
    length: u64,
) -> Result<u64> {
    let source = open_regular(from, OFlags::RDONLY)?;
    let target = open_regular(to, OFlags::WRONLY)?;
    let size =
        |file: &File, name| file.metadata().map(|stat| stat.len()).map_err(syscall_error("fstat", name));
    let end = offset.saturating_add(length).min(size(&source, from)?);
    let target_size = size(&target, to)?;
    if target_size < end {
        let reason = format!("has {target_size} bytes, too few for a copy that ends at {end}");
        return Err(Error::InvalidState { path: to.display(), reason });
    }
    let mut copied = 0;
    for (start, length) in data_ranges(&source, offset, end).map_err(syscall_error("lseek", from))? {
        copy(&source, &target, start, length).map_err(syscall_error("copy_file_range", from))?;
        copied += length;
    }
    Ok(copied)
}

fn copy(source: &File, target: &File, start: u64, length: u64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    let end = start + length;
    while read_at < end {
        let step = usize::try_from((end - read_at).min(STEP)).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(source, Some(&mut read_at), target, Some(&mut write_at), step) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return copy_through_buffer(source, target, read_at, end);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Copies between file systems for which the kernel has no copy_file_range.
fn copy_through_buffer(source: &File, target: &File, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = start;
    while at < end {
        let step = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        source.read_exact_at(&mut buffer[..step], at)?;
        target.write_all_at(&buffer[..step], at)?;
        at += step as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_extents_are_merged() {
        let extent = |offset, length, physical| Extent { offset, length, physical };
        let table = [
            (extent(0, 10, Some(100)), extent(10, 5, Some(110)), true),
            (extent(0, 10, Some(100)), extent(10, 5, Some(111)), false),
            (extent(0, 10, Some(100)), extent(11, 5, Some(110)), false),
            (extent(0, 10, Some(100)), extent(10, 5, None), false),
            (extent(0, 10, None), extent(10, 5, Some(10)), false),
            (extent(0, 10, None), extent(10, 5, None), true),
        ];
        for (first, second, joined) in table {
            let mut extents = vec![first];
            append(&mut extents, second);
            let expected = if joined { vec![extent(0, 15, first.physical)] } else { vec![first, second] };
            assert_eq!(extents, expected);
        }
    }

    #[test]
    fn extents_are_truncated_at_the_file_size_and_filtered_by_flags() {
        let found = |logical, length, flags| sys::FiemapExtent {
            logical,
            physical: 7 << 20,
            length,
            flags,
            ..Default::default()
        };
        let extent = |offset, length, physical| Some(Extent { offset, length, physical });
        let address = Some(7 << 20);
        let table = [
            (found(0, 4096, 0), extent(0, 4096, address)),
            (found(0, 4096, LAST), extent(0, 4096, address)),
            (found(0, 4096, 0x2000), extent(0, 4096, address)),
            (found(8192, 4096, 0), extent(8192, 1808, address)),
            (found(12288, 4096, 0), None),
            (found(0, 0, 0), None),
            (found(0, 4096, UNWRITTEN), None),
            (found(0, 4096, UNWRITTEN | 0x2000), None),
            (found(0, 4096, 0x2), extent(0, 4096, None)),
            (found(0, 4096, 0x8), extent(0, 4096, None)),
            (found(0, 100, 0x300), extent(0, 100, None)),
            (found(4096, u64::MAX, 0), extent(4096, 5904, address)),
        ];
        for (i, (found, expected)) in table.iter().enumerate() {
            assert_eq!(written_part(found, 10_000), *expected, "row {i}");
        }
    }
}
