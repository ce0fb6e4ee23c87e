//! Writes the entries of an archive.

use std::io::{self, Write};

use super::header::{BLOCK, Header, format_time, id_fits, name_fits, push_pax, size_fits};
use crate::copy::attributes::Attributes;

/// PAX keys of this driver, see [`super`].
pub(super) const HARD_LINK_KEY: &[u8] = b"WHARF.hardlink";
pub(super) const TYPE_KEY: &[u8] = b"WHARF.type";
pub(super) const TYPE_FIFO: &[u8] = b"fifo";
/// The prefix of extended attributes, as star, GNU tar and libarchive write it.
pub(super) const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

/// What to write.
pub(super) struct NewEntry<'a> {
    pub(super) path: &'a [u8],
    /// The type in the header.
    pub(super) kind: u8,
    pub(super) attributes: &'a Attributes,
    /// The target of a symlink or hard link.
    pub(super) link: &'a [u8],
    /// The size of a regular file.
    pub(super) size: u64,
    /// The data of a sparse file, as start and end.
    pub(super) sparse: Option<&'a [(u64, u64)]>,
    /// Further PAX records.
    pub(super) extra: &'a [(&'a [u8], &'a [u8])],
}

/// Writes headers and padding to a stream.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out }
    }

    /// Writes the headers of an entry. The caller then writes exactly the returned number of bytes, and calls [`Self::pad`].
    pub(super) fn begin(&mut self, entry: &NewEntry<'_>) -> io::Result<u64> {
        let attributes = entry.attributes;
        let map = entry.sparse.map(|ranges| sparse_map(ranges, entry.size));
        let stored = match entry.sparse {
            Some(ranges) => ranges.iter().map(|(start, end)| end - start).sum(),
            None => entry.size,
        };
        let in_archive = stored + map.as_ref().map_or(0, |map| map.len() as u64);
        let mut pax = Vec::new();
        let mut header = Header {
            name: entry.path.to_vec(),
            mode: attributes.mode,
            uid: attributes.uid.into(),
            gid: attributes.gid.into(),
            size: in_archive,
            mtime: attributes.mtime.0,
            kind: entry.kind,
            link: entry.link.to_vec(),
        };
        if map.is_some() {
            push_pax(&mut pax, b"GNU.sparse.major", b"1");
            push_pax(&mut pax, b"GNU.sparse.minor", b"0");
            push_pax(&mut pax, b"GNU.sparse.name", entry.path);
            push_pax(&mut pax, b"GNU.sparse.realsize", entry.size.to_string().as_bytes());
            header.name = b"GNUSparseFile.0/file".to_vec();
        } else if !name_fits(entry.path) {
            push_pax(&mut pax, b"path", entry.path);
        }
        if !name_fits(entry.link) {
            push_pax(&mut pax, b"linkpath", entry.link);
        }
        for (key, id) in [(b"uid", header.uid), (b"gid", header.gid)] {
            if !id_fits(id) {
                push_pax(&mut pax, key, id.to_string().as_bytes());
            }
        }
        if !size_fits(in_archive) {
            push_pax(&mut pax, b"size", in_archive.to_string().as_bytes());
        }
        push_pax(&mut pax, b"mtime", format_time(attributes.mtime).as_bytes());
        push_pax(&mut pax, b"atime", format_time(attributes.atime).as_bytes());
        for (name, value) in &attributes.xattrs {
            push_pax(&mut pax, &[XATTR_PREFIX, name].concat(), value);
        }
        for (key, value) in entry.extra {
            push_pax(&mut pax, key, value);
        }
        let extended = Header {
            name: b"PaxHeaders/0".to_vec(),
            mode: 0o644,
            size: pax.len() as u64,
            kind: b'x',
            ..Header::default()
        };
        self.out.write_all(&extended.encode())?;
        self.out.write_all(&pax)?;
        self.pad(pax.len() as u64)?;
        self.out.write_all(&header.encode())?;
        if let Some(map) = map {
            self.out.write_all(&map)?;
        }
        Ok(stored)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Fills the last block of an entry.
    pub(super) fn pad(&mut self, size: u64) -> io::Result<()> {
        let used = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        if used == 0 { Ok(()) } else { self.out.write_all(&[0; BLOCK][used..]) }
    }

    /// Writes the end of the archive.
    pub(super) fn finish(self) -> io::Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])
    }
}

/// The map of a sparse file in GNU's format 1.0: decimal numbers in lines, padded to a block. A hole at the end is
/// written as an empty piece, as GNU tar does.
fn sparse_map(ranges: &[(u64, u64)], size: u64) -> Vec<u8> {
    let end = ranges.last().map_or(0, |(_, end)| *end);
    let last = (end < size).then_some((size, size));
    let ranges: Vec<_> = ranges.iter().copied().chain(last).collect();
    let mut map = format!("{}\n", ranges.len());
    for (start, end) in ranges {
        map.push_str(&format!("{start}\n{}\n", end - start));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}
