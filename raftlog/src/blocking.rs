//! A plain blocking driver for tests, tools and recovery. A server writes through its ring.

use std::io;
use std::os::unix::fs::FileExt;

use crate::log::{Log, PendingWrite};
use crate::segment::Segment;

/// Writes a batch, syncs its segment and tells the log; gives the buffer back.
///
/// # Errors
/// Whatever the system reports; the log must not be used after a failed write or sync.
pub fn append(log: &mut Log, write: PendingWrite) -> io::Result<Vec<u8>> {
    write_only(log, &write)?;
    let unsynced_from = log.synced_end().use_number();
    for segment in log
        .segments()
        .filter(|segment| segment.use_number() >= unsynced_from)
    {
        rustix::fs::fdatasync(segment.file())?;
    }
    log.synced(write.position_end);
    Ok(write.bytes)
}

/// Writes a batch without syncing it, and tells the log.
///
/// # Errors
/// Whatever the system reports; the log must not be used after a failed write.
pub fn write_only(log: &mut Log, write: &PendingWrite) -> io::Result<()> {
    write
        .segment
        .file()
        .write_all_at(&write.bytes, write.offset)?;
    log.written(write);
    Ok(())
}

/// Creates the spare segment if the log wants one.
///
/// # Errors
/// Whatever [`Segment::create`] reports; the log asks anew.
pub fn ensure_spare(log: &mut Log) -> io::Result<()> {
    let Some(spec) = log.wants_spare() else {
        return Ok(());
    };
    match Segment::create(&spec) {
        Ok(segment) => {
            log.give_spare(segment);
            Ok(())
        }
        Err(error) => {
            log.spare_failed();
            Err(error)
        }
    }
}
