//! Taking over a snapshot that came from another node.

use std::io;
use std::path::PathBuf;

use super::format::SnapshotMeta;
use super::reader::SnapshotReader;
use super::writer::{SnapshotSpec, SnapshotWriter};
use crate::error::OpenError;
use crate::raft::{ConfigEntry, EntryId};
use crate::types::{ClusterId, Position};

/// What a received snapshot is installed with, on a thread that may block. [`crate::Log::install_spec`]
/// makes one.
#[derive(Debug, Clone)]
pub struct InstallSpec {
    pub(crate) dir: PathBuf,
    pub(crate) received: PathBuf,
    pub(crate) cluster_id: ClusterId,
}

impl InstallSpec {
    /// Where the bytes that come are to be put together.
    #[must_use]
    pub fn received_path(&self) -> PathBuf {
        self.received.clone()
    }

    /// Judges all that was received, and makes it the newest snapshot, synced. `None` when it is not a
    /// whole snapshot of this cluster up to `last`, with that configuration.
    ///
    /// It is written anew: the original says how far the *sender's* log was synced, which a start would
    /// take for this node's.
    ///
    /// # Errors
    /// Whatever the system reports; only a full disk leaves everything as it was.
    pub fn install(
        &self,
        last: &EntryId,
        config: &ConfigEntry,
    ) -> io::Result<Option<SnapshotReader>> {
        let opened = SnapshotReader::open_file(&self.received, self.cluster_id, last.index);
        let mut received = match opened {
            Ok(reader) => reader,
            Err(OpenError::Io { source, .. }) => return Err(source),
            Err(_) => return Ok(None),
        };
        if received.meta().term != last.term || received.config() != *config {
            return Ok(None);
        }
        let mut writer = SnapshotWriter::create(&SnapshotSpec {
            dir: self.dir.clone(),
            cluster_id: self.cluster_id,
            meta: SnapshotMeta {
                index: last.index,
                term: last.term,
                position: Position::ZERO,
            },
            config: *config,
        })?;
        let mut body = Vec::new();
        let again = |error: OpenError| io::Error::other(error.to_string());
        while let Some(items) = received.next_chunk(&mut body).map_err(again)? {
            writer.chunk(items, &body)?;
        }
        writer.finish()?;
        crate::disk::remove_if_present(&self.received)?;
        SnapshotReader::open(&self.dir, self.cluster_id, last.index)
            .map(Some)
            .map_err(again)
    }
}
