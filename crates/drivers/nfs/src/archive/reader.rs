//! Reads the entries of an archive: ustar, PAX, GNU long names and sparse files in PAX format, as Go, GNU tar and this driver
//! write them.
//!
//! Nothing in the input is trusted; every length has a limit.

use std::io::{self, Read};

use super::header::{BLOCK, Block, Header, PaxRecord, parse_pax, parse_time};
use super::writer::{HARD_LINK_KEY, TYPE_FIFO, TYPE_KEY, XATTR_PREFIX};
use crate::copy::attributes::{Attributes, is_kept};
use crate::copy::{CopyError, beneath};

/// The limit of a PAX header: all extended attributes of a file.
const MAX_PAX: u64 = 4 << 20;
/// The limit of a GNU long name.
const MAX_NAME: u64 = 64 << 10;
/// The limit of pieces of a sparse file.
const MAX_PIECES: u64 = 1 << 20;
/// The largest size of a file.
const MAX_SIZE: u64 = i64::MAX as u64;

/// What an entry creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Directory,
    File,
    Symlink(Vec<u8>),
    HardLink(Vec<Vec<u8>>),
    Fifo,
}

/// One entry. Its data follows in the reader.
#[derive(Debug)]
pub(super) struct Entry {
    /// The components of its path; empty for the root.
    pub(super) path: Vec<Vec<u8>>,
    pub(super) kind: Kind,
    pub(super) attributes: Attributes,
    /// The size of a regular file.
    pub(super) size: u64,
    /// Where the data belongs: start and length.
    pub(super) pieces: Vec<(u64, u64)>,
}

/// Reads an archive from a stream.
pub(super) struct Reader<'a> {
    input: &'a mut dyn Read,
    offset: u64,
    /// Data and padding of the current entry that was not read yet.
    left: u64,
    padding: u64,
}

/// PAX records and GNU names that belong to the next entry.
#[derive(Default)]
struct Pending {
    pax: Vec<PaxRecord>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl Pending {
    fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.pax.iter().rev().find(|(name, _)| name == key).map(|(_, value)| &value[..])
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a mut dyn Read) -> Self {
        Self { input, offset: 0, left: 0, padding: 0 }
    }

    /// Reads the next entry; `None` at the end of the archive. Data of the last entry that was not read is skipped.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, CopyError> {
        let mut pending = Pending::default();
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return self.end(&pending) };
            self.start_data(header.size);
            match header.kind {
                b'x' => {
                    let records = self.read_small(MAX_PAX)?;
                    pending.pax.extend(parse_pax(&records).map_err(|error| self.error(error.to_string()))?);
                }
                // Global records: comments of other programs.
                b'g' => {}
                b'L' => pending.name = Some(without_nul(self.read_small(MAX_NAME)?)),
                b'K' => pending.link = Some(without_nul(self.read_small(MAX_NAME)?)),
                _ => return self.entry(header, &pending).map(Some),
            }
        }
    }

    /// Reads data of the current entry; 0 at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, CopyError> {
        let step = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        self.fill(&mut buffer[..step])?;
        self.left -= step as u64;
        Ok(step)
    }

    /// An error at the current position.
    pub(super) fn error(&self, reason: impl Into<String>) -> CopyError {
        CopyError::Archive { offset: self.offset, reason: reason.into() }
    }

    fn entry(&mut self, header: Header, pending: &Pending) -> Result<Entry, CopyError> {
        let number = |key: &[u8]| match pending.get(key) {
            None => Ok(None),
            Some(text) => parse_number(text).map(Some).ok_or_else(|| CopyError::Archive {
                offset: 0,
                reason: format!("the PAX record {} is not a number", String::from_utf8_lossy(key)),
            }),
        };
        if let Some(size) = number(b"size")? {
            self.start_data(size);
        }
        let name = [pending.get(b"GNU.sparse.name"), pending.get(b"path"), pending.name.as_deref()];
        let name = name.into_iter().flatten().next().unwrap_or(&header.name);
        let path = components(name).map_err(|reason| self.error(reason))?;
        let shown = String::from_utf8_lossy(name).into_owned();
        let link = [pending.get(b"linkpath"), pending.link.as_deref()];
        let link = link.into_iter().flatten().next().unwrap_or(&header.link).to_vec();
        let hard_link =
            |link: &[u8]| components(link).map(Kind::HardLink).map_err(|reason| self.error(reason));
        let kind = match header.kind {
            // Old archives mark directories with a slash.
            0 | b'0' if name.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' => match (pending.get(HARD_LINK_KEY), pending.get(TYPE_KEY)) {
                (Some(link), _) => hard_link(link)?,
                (None, Some(kind)) if kind == TYPE_FIFO => Kind::Fifo,
                _ => Kind::File,
            },
            b'1' => hard_link(&link)?,
            b'2' if link.is_empty() || link.contains(&0) => {
                return Err(self.error(format!("symlink {shown} has no target")));
            }
            b'2' => Kind::Symlink(link),
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            b'S' => {
                return Err(self.error(format!(
                    "{shown} is a sparse file in the old GNU format, which is not supported"
                )));
            }
            b'3' | b'4' => return Err(self.error(format!("{shown} is a device node"))),
            other => return Err(self.error(format!("{shown} has the unknown type {:?}", char::from(other)))),
        };
        if path.is_empty() && kind != Kind::Directory {
            return Err(self.error(format!("{shown:?} names the volume itself but is not a directory")));
        }
        let (size, pieces) = match kind {
            Kind::File if pending.get(b"GNU.sparse.major") == Some(b"1") => {
                let size =
                    number(b"GNU.sparse.realsize")?.ok_or_else(|| self.error("a sparse file has no size"))?;
                (size, self.sparse_map()?)
            }
            Kind::File if pending.pax.iter().any(|(key, _)| key.starts_with(b"GNU.sparse.")) => {
                return Err(self.error(format!("{shown} is a sparse file in a format that is not supported")));
            }
            Kind::File => (self.left, vec![(0, self.left)]),
            _ => (0, Vec::new()),
        };
        self.check_pieces(size, &pieces)?;
        let attributes = self.attributes(&header, pending, number(b"uid")?, number(b"gid")?)?;
        Ok(Entry { path, kind, attributes, size, pieces })
    }

    fn attributes(
        &self,
        header: &Header,
        pending: &Pending,
        uid: Option<u64>,
        gid: Option<u64>,
    ) -> Result<Attributes, CopyError> {
        let id = |id: u64| u32::try_from(id).map_err(|_| self.error("an owner or group is too large"));
        let time = |key: &[u8]| match pending.get(key) {
            None => Ok(None),
            Some(text) => parse_time(text).map(Some).ok_or_else(|| self.error("a time is malformed")),
        };
        let mtime = time(b"mtime")?.unwrap_or((header.mtime, 0));
        let xattrs = pending.pax.iter().filter_map(|(key, value)| {
            let name = key.strip_prefix(XATTR_PREFIX)?;
            (is_kept(name) && !name.contains(&0)).then(|| (name.to_vec(), value.clone()))
        });
        Ok(Attributes {
            uid: id(uid.unwrap_or(header.uid))?,
            gid: id(gid.unwrap_or(header.gid))?,
            mode: header.mode & 0o7777,
            atime: time(b"atime")?.unwrap_or(mtime),
            mtime,
            xattrs: xattrs.collect(),
        })
    }

    /// Pieces must be in order, within the file, and be all of the data.
    fn check_pieces(&self, size: u64, pieces: &[(u64, u64)]) -> Result<(), CopyError> {
        let mut at = 0;
        let mut sum: u64 = 0;
        for (start, length) in pieces {
            let end = start.checked_add(*length).filter(|end| *start >= at && *end <= size);
            at = end.ok_or_else(|| self.error("the pieces of a sparse file overlap or exceed its size"))?;
            sum += length;
        }
        if size > MAX_SIZE {
            return Err(self.error("a file is larger than a file can be"));
        }
        // Entries without data (links) can have some in the archive: it is skipped.
        if !pieces.is_empty() && sum != self.left {
            return Err(self.error("the pieces of a sparse file are not all of its data"));
        }
        Ok(())
    }

    /// The map of GNU sparse format 1.0: lines of decimal numbers before the data.
    fn sparse_map(&mut self) -> Result<Vec<(u64, u64)>, CopyError> {
        let (mut block, mut at): (Block, usize) = ([0; BLOCK], BLOCK);
        let mut line = |reader: &mut Self| {
            let mut digits = Vec::new();
            loop {
                if at == BLOCK {
                    if reader.left < BLOCK as u64 {
                        return Err(reader.error("the map of a sparse file is cut off"));
                    }
                    reader.read(&mut block)?;
                    at = 0;
                }
                let byte = block[at];
                at += 1;
                if byte == b'\n' {
                    break;
                }
                digits.push(byte);
                if digits.len() > 20 {
                    return Err(reader.error("the map of a sparse file is malformed"));
                }
            }
            parse_number(&digits).ok_or_else(|| reader.error("the map of a sparse file is malformed"))
        };
        let count = line(self)?;
        if count > MAX_PIECES {
            return Err(self.error("a sparse file has too many pieces"));
        }
        let mut pieces = Vec::new();
        for _ in 0..count {
            pieces.push((line(self)?, line(self)?));
        }
        Ok(pieces)
    }

    fn header(&mut self) -> Result<Option<Header>, CopyError> {
        let mut block: Block = [0; BLOCK];
        self.fill(&mut block)?;
        Header::decode(&block).map_err(|error| self.error(error.to_string()))
    }

    /// Reads what follows the end of the archive, so that a compressor's checksum is checked.
    fn end(&mut self, pending: &Pending) -> Result<Option<Entry>, CopyError> {
        if !pending.pax.is_empty() || pending.name.is_some() {
            return Err(self.error("the archive ends before an announced entry"));
        }
        io::copy(self.input, &mut io::sink()).map_err(|source| self.read_error(source))?;
        Ok(None)
    }

    fn start_data(&mut self, size: u64) {
        self.left = size;
        self.padding = size.next_multiple_of(BLOCK as u64).wrapping_sub(size);
    }

    fn skip(&mut self) -> Result<(), CopyError> {
        let mut buffer = [0; 8 * BLOCK];
        while self.read(&mut buffer)? > 0 {}
        self.left = std::mem::take(&mut self.padding);
        while self.read(&mut buffer)? > 0 {}
        Ok(())
    }

    fn read_small(&mut self, limit: u64) -> Result<Vec<u8>, CopyError> {
        if self.left > limit {
            return Err(self.error(format!("a header has {} bytes, more than {limit}", self.left)));
        }
        let mut bytes = vec![0; usize::try_from(self.left).unwrap_or(0)];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), CopyError> {
        self.input.read_exact(buffer).map_err(|source| self.read_error(source))?;
        self.offset += buffer.len() as u64;
        Ok(())
    }

    fn read_error(&self, source: io::Error) -> CopyError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => self.error("it ends too early"),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
                self.error(format!("it cannot be decompressed: {source}"))
            }
            _ => CopyError::call("read", "the archive", source),
        }
    }
}

fn without_nul(mut bytes: Vec<u8>) -> Vec<u8> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

fn parse_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?;
    text.parse().ok().filter(|value| *value <= MAX_SIZE)
}

/// The components of a name, without `.` and empty ones. Absolute names and `..` are errors.
pub(super) fn components(name: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let shown = String::from_utf8_lossy(name);
    if name.is_empty() || name.starts_with(b"/") {
        return Err(format!("the name {shown:?} is empty or absolute"));
    }
    let parts = name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts: Vec<_> = parts.map(<[u8]>::to_vec).collect();
    if parts.iter().all(|part| beneath::is_component(part)) {
        Ok(parts)
    } else {
        Err(format!("the name {shown:?} has a component \"..\" or a NUL"))
    }
}
