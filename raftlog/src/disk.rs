//! The few file operations that the folder's files share.
//!
//! What recycling and snapshots do to the disk goes through here, so that a test can cut it short
//! between any two steps.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Mode of the files in a data folder: they hold keys that clients chose.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Makes the names in a folder durable.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    step()?;
    File::open(dir)?.sync_all()?;
    #[cfg(test)]
    faults::names_are_durable(dir);
    Ok(())
}

/// Creates a file, or empties the one there, for reading and writing.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    step()?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Writes a whole file and syncs it; its name is durable only once the folder is synced.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Writes all of `bytes` at `offset`.
pub(crate) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    step()?;
    #[cfg(test)]
    faults::will_write(file, bytes.len(), offset);
    file.write_all_at(bytes, offset)
}

/// Makes what was written to the file durable.
pub(crate) fn sync(file: &File) -> io::Result<()> {
    step()?;
    file.sync_all()?;
    #[cfg(test)]
    faults::content_is_durable(file);
    Ok(())
}

/// Gives a file another name in the same folder.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step()?;
    fs::rename(from, to)?;
    #[cfg(test)]
    faults::renamed(from, to);
    Ok(())
}

/// Removes a file if it is there.
pub(crate) fn remove_if_present(path: &Path) -> io::Result<()> {
    step()?;
    #[cfg(test)]
    faults::will_remove(path);
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(not(test))]
#[inline]
#[allow(
    clippy::unnecessary_wraps,
    reason = "in tests a step can be the one that fails"
)]
fn step() -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
use faults::step;

#[cfg(test)]
pub(crate) mod faults;
