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
    kernel.write_file(&temporary, bytes)?;
    kernel.sync(&temporary)?;
    kernel.rename(&temporary, file)?;
    kernel.sync(&parent_of(file))
}

/// Durably replaces the content of `file` with `bytes` without any free space. `spare`, in the same directory, was created
/// with [`Files::create_reserved`] and has at least as many bytes; so has `file`. The spare is overwritten, synced and
/// exchanged with the file, so a crash leaves the old or the new content in `file`. What is in the spare never matters.
pub fn replace_durably(
    kernel: &(impl Files + ?Sized),
    file: &PathBeneath<'_>,
    spare: &PathBeneath<'_>,
    bytes: &[u8],
) -> Result<()> {
    kernel.overwrite(spare, bytes)?;
    kernel.sync(spare)?;
    kernel.exchange(spare, file)?;
    kernel.sync(&parent_of(file))
}

fn parent_of<'a>(file: &PathBeneath<'a>) -> PathBeneath<'a> {
    let parent = file.path.parent().filter(|parent| *parent != Path::new(""));
    PathBeneath::new(file.root, parent.unwrap_or(Path::new(".")))
}
