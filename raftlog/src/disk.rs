//! The few file operations that the folder's files share.
//!
//! What a start, recycling and snapshots do to the disk, and what a start reads from it, goes
//! through here, so that a test can cut it short between any two steps.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Mode of the files in a data folder: they hold keys that clients chose.
const FILE_MODE: u32 = 0o600;

/// Mode of the folders in it, and its own.
const DIR_MODE: u32 = 0o700;

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

/// Opens a file for reading and writing, an empty one where there is none.
pub(crate) fn open_or_create(path: &Path) -> io::Result<File> {
    step()?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path)
}

/// Writes a whole file and syncs it; its name is durable only once the folder is synced.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = create(path)?;
    write_at(&file, bytes, 0)?;
    sync(&file)
}

/// Creates a folder; its name is durable only once the one around it is synced.
pub(crate) fn create_dir(dir: &Path) -> io::Result<()> {
    step()?;
    DirBuilder::new().mode(DIR_MODE).create(dir)
}

/// Opens a file that is there for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    step()?;
    File::open(path)
}

/// Opens a file that is there for reading and writing.
pub(crate) fn open_for_writing(path: &Path) -> io::Result<File> {
    step()?;
    OpenOptions::new().read(true).write(true).open(path)
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> io::Result<Vec<u8>> {
    step()?;
    fs::read(path)
}

/// Reads what is left of the file from where it stands, up to `most_bytes` of it.
pub(crate) fn read_at_most(file: &File, most_bytes: u64) -> io::Result<Vec<u8>> {
    step()?;
    let mut bytes = Vec::new();
    file.take(most_bytes).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The paths of what is in a folder.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    step()?;
    fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect()
}

/// Whether there is something of that name.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    step()?;
    path.try_exists()
}

/// The file's size.
pub(crate) fn size(file: &File) -> io::Result<u64> {
    step()?;
    Ok(file.metadata()?.len())
}

/// Fills all of `bytes` from where `file` stands.
pub(crate) fn read_exact(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<()> {
    step()?;
    file.read_exact(bytes)
}

/// Fills all of `bytes` from `offset` on.
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    step()?;
    file.read_exact_at(bytes, offset)
}

/// Goes back to the file's start.
pub(crate) fn rewind(file: &mut impl Seek) -> io::Result<()> {
    step()?;
    file.rewind()
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

/// Makes what was written to a file durable whose size is as before.
pub(crate) fn sync_data(file: &File) -> io::Result<()> {
    step()?;
    file.sync_data()?;
    #[cfg(test)]
    faults::content_is_durable(file);
    Ok(())
}

/// Gives a file another name in the same folder.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    step()?;
    #[cfg(test)]
    let replaced = fs::read(to).ok();
    fs::rename(from, to)?;
    #[cfg(test)]
    faults::renamed(from, to, replaced);
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
