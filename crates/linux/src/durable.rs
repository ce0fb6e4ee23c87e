//! The durable write: a file has its old content or its new one, whenever the power goes.

use std::path::Path;

use crate::{Beneath, Error, Files, Result};

/// Replaces `file` by `bytes`, durably: written to `<name>.tmp` beside it, synced, renamed over it, and the
/// directory synced. Each is a call of its own, so that whoever stands in for the kernel sees all four. After
/// a crash the file is the old one or the new one; a `.tmp` that stayed behind is overwritten next time.
pub fn write_durably(kernel: &(impl Files + ?Sized), file: &Beneath<'_>, bytes: &[u8]) -> Result<()> {
    let name = file.path.file_name().ok_or_else(|| Error::State {
        path: file.display(),
        reason: "has no file name to write to".to_owned(),
    })?;
    let mut temporary = name.to_owned();
    temporary.push(".tmp");
    let temporary = file.path.with_file_name(temporary);
    let temporary = Beneath::new(file.root, &temporary);
    let parent = match file.path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    kernel.write_file(&temporary, bytes)?;
    kernel.sync(&temporary)?;
    kernel.rename(&temporary, file)?;
    kernel.sync(&Beneath::new(file.root, parent))
}
