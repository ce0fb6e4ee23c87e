//! Space for deletions on a full share.
//!
//! A deletion writes records before it moves a directory, so it would need space to make space. A file in `.wharf` occupies
//! some of it; a deletion on a full share removes the file and goes on. Recovery writes it again.

use super::root::own;
use super::{ErrorKind, Share, ShareError};

/// The size of the file. A deletion writes a few records and directories of one block each, and older ones go.
const SIZE: usize = 256 << 10;

impl Share {
    /// Writes the file, if it is missing. A share that has no space for it can be used all the same.
    pub(super) fn ensure_reserve(&self) -> Result<(), ShareError> {
        let file = own(["reserve"]);
        if self.stat(&file)?.is_some() {
            return Ok(());
        }
        match self.publish(&filling(), &file) {
            Err(error) if error.kind == ErrorKind::OutOfSpace => Ok(()),
            written => written.map(drop),
        }
    }

    /// Runs an operation that makes space; again without the file if the share is full.
    pub(super) fn with_reserve<T>(
        &self,
        operation: impl Fn() -> Result<T, ShareError>,
    ) -> Result<T, ShareError> {
        match operation() {
            Err(error) if error.kind == ErrorKind::OutOfSpace => {
                let file = own(["reserve"]);
                if self.stat(&file)?.is_none() {
                    return Err(error);
                }
                tracing::info!("share is full: releasing reserved space to continue the deletion");
                self.remove(&file)?;
                operation()
            }
            result => result,
        }
    }
}

/// Bytes that a file system cannot compress well.
fn filling() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for word in bytes.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    bytes
}
