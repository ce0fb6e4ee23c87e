//! Copies one regular file.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};

use super::{Attributes, CopyError, Node, Outcome, Walk, add, attributes, beneath, count, data};
use crate::copy::data::{DataError, Method};
use crate::copy::{Verify, allocated};

impl Walk<'_> {
    pub(super) fn copy_file(
        &self,
        node: &Arc<Node>,
        name: &CStr,
        buffer: &mut [u8],
    ) -> Result<Outcome, CopyError> {
        let opened = beneath::open_for_reading(&node.from, name).and_then(|fd| {
            let stat = rustix::fs::fstat(&fd)?;
            Ok((File::from(fd), stat))
        });
        let (source, stat) = match opened {
            Ok((source, stat)) if beneath::kind(&stat) == FileType::RegularFile => (source, stat),
            Ok(_) => return Ok(Outcome::OtherType),
            Err(error) => return Outcome::of(error).map_err(node.error("open", name)),
        };
        self.once(node, name, &stat, || self.copy_open_file(node, name, &source, &stat, buffer))
    }

    /// Returns false if the file vanished: another NFS client removed it while it was read.
    fn copy_open_file(
        &self,
        node: &Node,
        name: &CStr,
        source: &File,
        stat: &Stat,
        buffer: &mut [u8],
    ) -> Result<bool, CopyError> {
        let gone = |error: &io::Error| {
            beneath::is_gone(error)
                && beneath::stat(&node.from, name).is_err_and(|error| beneath::is_gone(&error))
        };
        let mut attributes = Attributes::of(stat);
        attributes.xattrs = match attributes::read_xattrs(source.as_fd()) {
            Ok(xattrs) => xattrs,
            Err(error) if gone(&error) => return Ok(false),
            Err(error) => return Err(node.error("read the extended attributes of", name)(error)),
        };
        let target = beneath::create_file(&node.to, name, attributes.creation_mode())
            .map_err(node.error("create the copy of", name))?;
        let target = File::from(target);
        let advance = |bytes| self.advance(bytes);
        let method = match data::copy_contents(source, &target, stat, &self.methods, buffer, &advance) {
            Ok(method) => method,
            Err(DataError::Read(error)) if gone(&error) => {
                rustix::fs::unlinkat(&node.to, name, AtFlags::empty())
                    .map_err(|errno| node.error("remove the incomplete copy of", name)(errno.into()))?;
                return Ok(false);
            }
            Err(DataError::Read(error)) => return Err(node.error("read", name)(error)),
            Err(DataError::Write(error)) => return Err(node.error("write the copy of", name)(error)),
            Err(DataError::Cancelled) => return Err(CopyError::Cancelled),
        };
        attributes.apply(target.as_fd(), |problem| self.not_kept(problem, || node.path_of(name)))?;
        if self.sync_each {
            target.sync_all().map_err(node.error("sync the copy of", name))?;
        }
        let size = self.verify(node, name, (source, stat), &target, buffer)?;
        count(&self.counters.files);
        add(&self.counters.bytes, size);
        add(&self.counters.allocated, allocated(size, stat.st_blocks.unsigned_abs()));
        if method == Method::Cloned {
            count(&self.counters.cloned);
        }
        Ok(true)
    }

    /// Compares the copy with the source, and returns its size. If the source changed meanwhile, any size is right.
    fn verify(
        &self,
        node: &Node,
        name: &CStr,
        (source, before): (&File, &Stat),
        target: &File,
        buffer: &mut [u8],
    ) -> Result<u64, CopyError> {
        let read =
            |file: &File, step| rustix::fs::fstat(file).map_err(|errno| node.error(step, name)(errno.into()));
        let has_changed = || match rustix::fs::fstat(source) {
            Ok(after) => Ok(is_changed(before, &after)),
            Err(rustix::io::Errno::STALE) => Ok(true),
            Err(errno) => Err(node.error("read again", name)(errno.into())),
        };
        let found = read(target, "read the copy of")?.st_size.unsigned_abs();
        let expected = before.st_size.unsigned_abs();
        if found != expected {
            // The client can have cached attributes from before a change by another client.
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
            // Only refreshes the cache: the next look reports an error, if there is one.
            let _ = rustix::fs::statx(source, c"", flags, StatxFlags::BASIC_STATS);
        }
        if has_changed()? {
            count(&self.counters.changed);
            return Ok(found);
        }
        if found != expected {
            let reason = format!("it has {found} bytes instead of {expected}");
            return Err(CopyError::Mismatch { path: node.path_of(name), reason });
        }
        if self.options.verify == Verify::Contents {
            let same = data::same_contents(source, target, expected, buffer)
                .map_err(node.error("read the copy of", name))?;
            if !same && !has_changed()? {
                let reason = "its contents differ".to_owned();
                return Err(CopyError::Mismatch { path: node.path_of(name), reason });
            }
            if !same {
                count(&self.counters.changed);
            }
        }
        Ok(found)
    }
}

/// Whether a file was written between two looks at it.
fn is_changed(before: &Stat, after: &Stat) -> bool {
    let key = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec);
    key(before) != key(after)
}
