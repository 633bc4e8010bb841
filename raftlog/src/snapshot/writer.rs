//! Writing a snapshot. Blocks: for a thread that may.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::files::{path_of, remove_older, unfinished_path_of};
use super::format::{Encoder, SnapshotMeta};
use crate::disk;
use crate::limits::SNAPSHOT_SYNC_BYTES;
use crate::raft::ConfigEntry;
use crate::types::ClusterId;

/// Which snapshot is to be written. [`crate::Log::snapshot_spec`] makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSpec {
    /// The folder of snapshots.
    pub dir: PathBuf,
    /// The log's cluster.
    pub cluster_id: ClusterId,
    /// What it stands for.
    pub meta: SnapshotMeta,
    /// The configuration that is in force at its index, and where in the log that is.
    pub config: ConfigEntry,
}

/// A snapshot being written, under a name that no start reads.
#[derive(Debug)]
pub struct SnapshotWriter {
    dir: PathBuf,
    meta: SnapshotMeta,
    file: File,
    encoder: Encoder,
    buffer: Vec<u8>,
    written: u64,
    synced: u64,
}

impl SnapshotWriter {
    /// Begins the file.
    ///
    /// # Errors
    /// Whatever the system reports; a full disk is [`io::ErrorKind::StorageFull`], and harmless.
    pub fn create(spec: &SnapshotSpec) -> io::Result<Self> {
        let file = disk::create(&unfinished_path_of(&spec.dir, spec.meta.index))?;
        let mut buffer = Vec::new();
        let encoder = Encoder::begin(spec.cluster_id, &spec.meta, &spec.config, &mut buffer);
        let mut writer = Self {
            dir: spec.dir.clone(),
            meta: spec.meta,
            file,
            encoder,
            buffer,
            written: 0,
            synced: 0,
        };
        writer.flush()?;
        Ok(writer)
    }

    /// What it stands for.
    #[must_use]
    pub fn meta(&self) -> SnapshotMeta {
        self.meta
    }

    /// Adds a chunk of `items` items.
    ///
    /// # Errors
    /// As [`SnapshotWriter::create`]; then [`SnapshotWriter::abandon`] it.
    ///
    /// # Panics
    /// When the body is longer than [`crate::limits::MAX_SNAPSHOT_CHUNK_BYTES`].
    pub fn chunk(&mut self, items: u32, body: &[u8]) -> io::Result<()> {
        self.encoder.chunk(items, body, &mut self.buffer);
        self.flush()?;
        // Bit by bit, so that the log's own syncs never wait behind all of it.
        if self.written - self.synced >= SNAPSHOT_SYNC_BYTES {
            disk::sync(&self.file)?;
            self.synced = self.written;
        }
        Ok(())
    }

    /// Ends the file, syncs it, gives it its name, syncs that, and removes older snapshots. Gives
    /// the file's size.
    ///
    /// # Errors
    /// Whatever the system reports. Only a full disk leaves everything as it was.
    pub fn finish(mut self) -> io::Result<u64> {
        let index = self.meta.index;
        let dir = &self.dir;
        let bytes = self.encoder.end(&mut self.buffer);
        let whole = disk::write_at(&self.file, &self.buffer, self.written)
            .and_then(|()| disk::sync(&self.file));
        if let Err(error) = whole {
            // The first error is the one to report; a leftover is swept at the next start.
            let _ = disk::remove_if_present(&unfinished_path_of(dir, index));
            return Err(error);
        }
        disk::rename(&unfinished_path_of(dir, index), &path_of(dir, index))?;
        disk::sync_dir(dir)?;
        remove_older(dir, index)?;
        Ok(bytes)
    }

    /// Removes what was written.
    ///
    /// # Errors
    /// Whatever the system reports; a leftover is swept at the next start.
    pub fn abandon(self) -> io::Result<()> {
        disk::remove_if_present(&unfinished_path_of(&self.dir, self.meta.index))
    }

    fn flush(&mut self) -> io::Result<()> {
        disk::write_at(&self.file, &self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
