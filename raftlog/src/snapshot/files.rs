//! The folder of snapshots.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::types::LogIndex;

/// The folder of snapshots inside the data folder.
pub const SNAPSHOT_DIR: &str = "snapshots";

/// Where the snapshot up to `index` lies.
pub(crate) fn path_of(dir: &Path, index: LogIndex) -> PathBuf {
    dir.join(format!("{:016x}.snap", index.0))
}

/// Where it is written before it is whole.
pub(super) fn unfinished_path_of(dir: &Path, index: LogIndex) -> PathBuf {
    dir.join(format!("{:016x}.new", index.0))
}

/// Where a snapshot from another node is put together.
pub(crate) fn received_path(dir: &Path) -> PathBuf {
    dir.join("received")
}

/// The indexes of the snapshots in a folder, ascending; none when there is no folder.
pub(crate) fn list(dir: &Path) -> io::Result<Vec<LogIndex>> {
    let mut found = Vec::new();
    let paths = match disk::list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        paths => paths?,
    };
    for path in paths {
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(digits) = name.and_then(|name| name.strip_suffix(".snap")) else {
            continue;
        };
        if let Ok(index) = u64::from_str_radix(digits, 16)
            && format!("{index:016x}") == digits
        {
            found.push(LogIndex(index));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Removes the snapshots before `index`, and what never became one.
pub(crate) fn remove_older(dir: &Path, index: LogIndex) -> io::Result<()> {
    for older in list(dir)?.into_iter().filter(|older| *older < index) {
        disk::remove_if_present(&path_of(dir, older))?;
    }
    sweep_unfinished(dir)?;
    disk::sync_dir(dir)
}

/// Removes every snapshot, synced.
pub(crate) fn remove_all(dir: &Path) -> io::Result<()> {
    let all = list(dir)?;
    for index in &all {
        disk::remove_if_present(&path_of(dir, *index))?;
    }
    if !all.is_empty() {
        disk::sync_dir(dir)?;
    }
    Ok(())
}

/// Removes snapshots that were never finished.
pub(crate) fn sweep_unfinished(dir: &Path) -> io::Result<()> {
    for path in disk::list(dir)? {
        if path.extension() == Some(OsStr::new("new")) {
            disk::remove_if_present(&path)?;
        }
    }
    Ok(())
}
