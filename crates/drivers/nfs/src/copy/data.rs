//! The contents of one file: shared by the server if it can (FICLONE), else copied by the server or the kernel
//! (copy_file_range), else read and written. Holes stay holes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, SeekFrom, Stat};
use rustix::io::Errno;

/// Files up to this size are read and written if they cannot be cloned: one READ and one WRITE are not slower than SEEK
/// and COPY.
const SMALL: u64 = 128 << 10;
/// The size of one copy_file_range call, so that progress is visible.
const STEP: u64 = 32 << 20;
/// The size of a copier's buffer.
pub(crate) const BUFFER: usize = 1 << 20;
/// The granularity of zeroes that become holes if the file system cannot tell where a sparse file has data.
const BLOCK: usize = 4 << 10;

/// Which calls this pair of file systems has refused. Shared by all threads of one copy.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    no_clone: AtomicBool,
    no_range: AtomicBool,
}

/// How the contents were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// The copy shares the original's blocks.
    Cloned,
    /// The data was copied.
    Copied,
}

/// An error of the source or of the target.
#[derive(Debug)]
pub(crate) enum DataError {
    Read(io::Error),
    Write(io::Error),
    /// The progress callback asked to stop.
    Cancelled,
}

/// Copies the contents of `source`, whose attributes were `stat` when it was opened, to the empty file `target`.
///
/// The copy has the source's size, or less if the source shrank meanwhile. `advance` is called with the number of bytes
/// after each step; false stops the copy.
pub(crate) fn copy_contents(
    source: &File,
    target: &File,
    stat: &Stat,
    methods: &Methods,
    buffer: &mut [u8],
    advance: &dyn Fn(u64) -> bool,
) -> Result<Method, DataError> {
    let size = stat.st_size.unsigned_abs();
    if size == 0 {
        return Ok(Method::Copied);
    }
    if clone(source, target, methods).map_err(DataError::Write)? {
        return if advance(size) { Ok(Method::Cloned) } else { Err(DataError::Cancelled) };
    }
    let sparse = (stat.st_blocks.unsigned_abs()).saturating_mul(512) < size;
    let copier = Copier { source, target, methods, advance };
    if size <= SMALL && !sparse {
        copier.through_buffer(0, size, buffer, false)?;
        return Ok(Method::Copied);
    }
    let ranges = data_ranges(source, size).map_err(DataError::Read)?;
    // A sparse file without a hole: the file system cannot tell. So zeroes become holes.
    let skip_zeroes = sparse && ranges == [(0, size)];
    for (start, end) in ranges {
        if skip_zeroes || !copier.in_kernel(start, end)? {
            copier.through_buffer(start, end, buffer, skip_zeroes)?;
        }
    }
    copier.set_final_size(size)?;
    Ok(Method::Copied)
}

/// Tries FICLONE; false if it is not possible.
fn clone(source: &File, target: &File, methods: &Methods) -> io::Result<bool> {
    if methods.no_clone.load(Ordering::Relaxed) {
        return Ok(false);
    }
    match rustix::fs::ioctl_ficlone(target, source) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::NOSYS) => {
            methods.no_clone.store(true, Ordering::Relaxed);
            Ok(false)
        }
        // Some files cannot be cloned, for example because of their flags.
        Err(Errno::INVAL | Errno::PERM | Errno::TXTBSY) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

struct Copier<'a> {
    source: &'a File,
    target: &'a File,
    methods: &'a Methods,
    advance: &'a dyn Fn(u64) -> bool,
}

impl Copier<'_> {
    fn step(&self, bytes: u64) -> Result<(), DataError> {
        if (self.advance)(bytes) { Ok(()) } else { Err(DataError::Cancelled) }
    }

    /// Copies a range with copy_file_range; false if that is not possible.
    fn in_kernel(&self, start: u64, end: u64) -> Result<bool, DataError> {
        if self.methods.no_range.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (mut from, mut to) = (start, start);
        while from < end {
            let step = usize::try_from((end - from).min(STEP)).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(self.source, Some(&mut from), self.target, Some(&mut to), step)
            {
                // The source shrank, or the file system has no data to offer in this way: reading tells.
                Ok(0) => {
                    let mut rest = vec![0; BUFFER];
                    self.through_buffer(from, end, &mut rest, false)?;
                    return Ok(true);
                }
                Ok(copied) => self.step(copied as u64)?,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) if from == start => {
                    self.methods.no_range.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(errno) => return Err(DataError::Write(errno.into())),
            }
        }
        Ok(true)
    }

    /// Reads and writes a range. Ends early if the source shrank.
    fn through_buffer(
        &self,
        start: u64,
        end: u64,
        buffer: &mut [u8],
        skip_zeroes: bool,
    ) -> Result<(), DataError> {
        let mut at = start;
        while at < end {
            let step = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let read = match self.source.read_at(&mut buffer[..step], at) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(DataError::Read(error)),
            };
            if skip_zeroes {
                self.write_non_zero(&buffer[..read], at)?;
            } else {
                self.target.write_all_at(&buffer[..read], at).map_err(DataError::Write)?;
            }
            self.step(read as u64)?;
            at += read as u64;
        }
        Ok(())
    }

    fn write_non_zero(&self, bytes: &[u8], at: u64) -> Result<(), DataError> {
        for (start, end) in non_zero_ranges(bytes) {
            self.target.write_all_at(&bytes[start..end], at + start as u64).map_err(DataError::Write)?;
        }
        Ok(())
    }

    /// Sets the size, for a hole at the end, and for a source that shrank behind the copier.
    fn set_final_size(&self, size: u64) -> Result<(), DataError> {
        let now = self.source.metadata().map_err(DataError::Read)?.len().min(size);
        if self.target.metadata().map_err(DataError::Write)?.len() != now {
            self.target.set_len(now).map_err(DataError::Write)?;
        }
        Ok(())
    }
}

/// Runs of blocks that are not all zero, as start and end.
fn non_zero_ranges(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (index, block) in bytes.chunks(BLOCK).enumerate() {
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = index * BLOCK;
        match ranges.last_mut() {
            Some(last) if last.1 == start => last.1 += block.len(),
            _ => ranges.push((start, start + block.len())),
        }
    }
    ranges
}

/// The data of a file as start and end, found with SEEK_DATA and SEEK_HOLE. A file system that does not know holes
/// reports the whole file as data.
pub(crate) fn data_ranges(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // The answer of file systems without SEEK_DATA.
            Err(Errno::INVAL | Errno::OPNOTSUPP) if at == 0 => return Ok(vec![(0, size)]),
            Err(errno) => return Err(errno.into()),
        };
        if start >= size {
            break;
        }
        let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size),
            // The file shrank between the calls.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(errno.into()),
        };
        if end <= start {
            break;
        }
        ranges.push((start, end));
        at = end;
    }
    Ok(ranges)
}

/// Compares the contents of two files of `size` bytes, the second as it is on the server and not in the cache.
pub(crate) fn same_contents(source: &File, target: &File, size: u64, buffer: &mut [u8]) -> io::Result<bool> {
    // Only advice: a file system that ignores it gives a weaker check.
    let _ = rustix::fs::fadvise(target, 0, None, Advice::DontNeed);
    let (first, second) = buffer.split_at_mut(buffer.len() / 2);
    let mut at = 0;
    while at < size {
        let step = usize::try_from(size - at).unwrap_or(usize::MAX).min(first.len());
        let read = |file: &File, into: &mut [u8]| match file.read_exact_at(into, at) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            result => result.map(|()| true),
        };
        let complete = read(source, &mut first[..step])? && read(target, &mut second[..step])?;
        if !complete || first[..step] != second[..step] {
            return Ok(false);
        }
        at += step as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_blocks_are_found() {
        let block = |value| vec![value; BLOCK];
        let table = [
            (vec![], vec![]),
            (block(0), vec![]),
            (block(1), vec![(0, BLOCK)]),
            ([block(0), block(1), block(2), block(0)].concat(), vec![(BLOCK, 3 * BLOCK)]),
            ([block(1), block(0), vec![7]].concat(), vec![(0, BLOCK), (2 * BLOCK, 2 * BLOCK + 1)]),
        ];
        for (bytes, expected) in table {
            assert_eq!(non_zero_ranges(&bytes), expected);
        }
    }
}
