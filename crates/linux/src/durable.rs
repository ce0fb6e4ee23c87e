//! The durable write: after a power loss at any time, a file has its old content or its new content.

use std::path::Path;

use crate::{Error, Files, PathBeneath, Result};

/// Durably replaces the content of `file` with `bytes`: writes `<name>.tmp` in the same directory, syncs it, renames it
/// over the file and syncs the directory. Each step is a separate call, so that a fake kernel observes all four. After a
/// crash the file has its old or its new content; a leftover `.tmp` is overwritten by the next write.
pub fn write_durably(kernel: &(impl Files + ?Sized), file: &PathBeneath<'_>, bytes: &[u8]) -> Result<()> {
    let name = file.path.file_name().ok_or_else(|| Error::InvalidState {
        path: file.display(),
        reason: "has no file name to write to".to_owned(),
    })?;
    let mut temporary = name.to_owned();
    temporary.push(".tmp");
    let temporary = file.path.with_file_name(temporary);
    let temporary = PathBeneath::new(file.root, &temporary);
    let parent = match file.path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    kernel.write_file(&temporary, bytes)?;
    kernel.sync(&temporary)?;
    kernel.rename(&temporary, file)?;
    kernel.sync(&PathBeneath::new(file.root, parent))
}
