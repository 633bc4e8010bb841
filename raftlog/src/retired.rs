//! The file that says that a folder must not be started on again.

use std::io;
use std::path::Path;

use crate::disk;
use crate::error::OpenError;
use crate::limits::MAX_RETIRED_BYTES;

/// The file's name in the data folder.
pub(crate) const RETIRED_FILE: &str = "retired";

/// Makes a folder one that is never started on again, synced: of a node that was replaced, that most others do
/// not believe, or that holds what they do not. Each start would raise the folder's start counter, by which an
/// old one is told from its original. `code` is the process's exit code, now and at every later start. Blocks.
///
/// # Errors
/// Whatever the system reports: the folder can be started on then, and its start counter goes on.
pub fn retire(dir: &Path, code: u8, why: &str) -> io::Result<()> {
    let path = dir.join(RETIRED_FILE);
    if disk::exists(&path)? {
        return Ok(());
    }
    let unfinished = dir.join(format!("{RETIRED_FILE}.new"));
    disk::remove_if_present(&unfinished)?;
    disk::write_synced(&unfinished, format!("{code} {why}\n").as_bytes())?;
    disk::rename(&unfinished, &path)?;
    disk::sync_dir(dir)
}

/// Refuses a folder that must not be started on again.
pub(crate) fn check(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(RETIRED_FILE);
    let look = |error| OpenError::io(&path, "read why the folder is not used any more", error);
    if !disk::exists(&path).map_err(look)? {
        return Ok(());
    }
    let file = disk::open(&path).map_err(look)?;
    let bytes = disk::read_at_most(&file, MAX_RETIRED_BYTES).map_err(look)?;
    let text = String::from_utf8_lossy(&bytes);
    let (code, why) = text.trim_end().split_once(' ').unwrap_or_default();
    Err(OpenError::Retired {
        dir: dir.to_path_buf(),
        // Whatever it says, that it is there is what counts.
        code: code.parse().ok(),
        why: why.to_owned(),
    })
}
