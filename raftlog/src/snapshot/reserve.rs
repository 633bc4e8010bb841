//! Room on the disk that is kept for the snapshot which makes room when the disk is full.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;

use crate::disk;

/// Zeros written at a time where the file system cannot allocate.
const FILL_BYTES: usize = 1 << 20;

/// The reserve's name in the folder of snapshots.
const RESERVE_FILE: &str = "reserve";

/// A file of allocated, unused blocks, as large as a segment.
///
/// When the disk is full, the segments that a snapshot covers can be used again; but a snapshot
/// takes room itself before it gives any. Removing this file gives it. [`crate::Log::reserve`]
/// makes one. Blocks: for a thread that may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    path: PathBuf,
    bytes: u64,
}

impl Reserve {
    pub(crate) fn new(snapshot_dir: &Path, bytes: u64) -> Self {
        Self {
            path: snapshot_dir.join(RESERVE_FILE),
            bytes,
        }
    }

    /// Allocates the file unless it is there. It need not survive a power cut, so it is not synced.
    ///
    /// # Errors
    /// Whatever the system reports, and then nothing is kept; a full disk is
    /// [`io::ErrorKind::StorageFull`], and harmless.
    pub fn hold(&self) -> io::Result<()> {
        if self.is_held() {
            return Ok(());
        }
        let file = disk::create(&self.path)?;
        let result = allocate(&file, self.bytes);
        if result.is_err() {
            // The first error is the one to report; a leftover counts as not held.
            let _ = self.release();
        }
        result
    }

    /// Gives the room back.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn release(&self) -> io::Result<()> {
        disk::remove_if_present(&self.path)
    }

    /// Whether all of it is allocated.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.path.metadata().is_ok_and(|found| {
            found.len() == self.bytes && found.blocks().saturating_mul(512) >= self.bytes
        })
    }
}

fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(file, bytes),
        result => Ok(result?),
    }
}

fn write_zeros(file: &File, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let left = usize::try_from(bytes - offset).unwrap_or(FILL_BYTES);
        let part = &zeros[..left.min(FILL_BYTES)];
        disk::write_at(file, part, offset)?;
        offset += part.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_once_all_of_it_is_allocated_and_until_it_is_released() {
        let dir = tempfile::tempdir().expect("a folder");
        let reserve = Reserve::new(dir.path(), 64 << 10);
        assert!(!reserve.is_held());
        reserve.hold().expect("room");
        reserve.hold().expect("held already");
        assert!(reserve.is_held());
        let file = File::options()
            .write(true)
            .open(dir.path().join(RESERVE_FILE))
            .expect("it is there");
        file.set_len(4 << 10).expect("shortened");
        assert!(!reserve.is_held(), "a part of it is not enough");
        reserve.hold().expect("room");
        assert!(reserve.is_held());
        // As long as it should be, and nothing behind it.
        file.set_len(0).expect("emptied");
        file.set_len(64 << 10).expect("a hole");
        assert!(!reserve.is_held(), "a hole keeps no room");
        reserve.release().expect("removed");
        reserve.release().expect("gone already");
        assert!(!reserve.is_held());
    }

    #[test]
    fn without_fallocate_it_is_written() {
        let dir = tempfile::tempdir().expect("a folder");
        let reserve = Reserve::new(dir.path(), (1 << 20) + 4_096);
        let file = disk::create(&reserve.path).expect("created");
        write_zeros(&file, reserve.bytes).expect("room");
        assert!(reserve.is_held());
    }
}
