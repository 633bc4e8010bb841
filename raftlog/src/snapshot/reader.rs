//! Reading a snapshot file: the whole of it is judged before anything of it is used.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use super::files::path_of;
use super::format::{Decoder, Fault, SnapshotMeta};
use crate::disk;
use crate::error::OpenError;
use crate::limits::BLOCK_BYTES;
use crate::raft::ConfigEntry;
use crate::types::{ClusterId, LogIndex};

/// Bytes read from the file at a time.
const READ_BYTES: usize = 256 << 10;

/// A whole snapshot, open for reading.
#[derive(Debug)]
pub struct SnapshotReader {
    path: PathBuf,
    cluster_id: ClusterId,
    file: BufReader<File>,
    file_bytes: u64,
    decoder: Decoder,
    buffer: Vec<u8>,
    items: u64,
}

impl SnapshotReader {
    /// Opens the snapshot up to `index` and reads all of it once.
    ///
    /// # Errors
    /// [`OpenError::Corrupt`] with the place of the first damage; other faults of the file or the
    /// system as everywhere.
    pub(crate) fn open(
        dir: &Path,
        cluster_id: ClusterId,
        index: LogIndex,
    ) -> Result<Self, OpenError> {
        Self::open_file(&path_of(dir, index), cluster_id, index)
    }

    /// The same of a file that may have any name.
    ///
    /// # Errors
    /// As [`SnapshotReader::open`].
    pub(crate) fn open_file(
        path: &Path,
        cluster_id: ClusterId,
        index: LogIndex,
    ) -> Result<Self, OpenError> {
        let path = path.to_path_buf();
        let file = disk::open(&path).map_err(|e| OpenError::io(&path, "open the snapshot", e))?;
        let file_bytes =
            disk::size(&file).map_err(|e| OpenError::io(&path, "look at the snapshot", e))?;
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let decoder = begin(&path, &mut file, file_bytes, cluster_id)?;
        if decoder.meta().index != index {
            let why = "the index is not the one in the file's name";
            return Err(OpenError::corrupt(&path, 32, why));
        }
        let mut reader = Self {
            path,
            cluster_id,
            file,
            file_bytes,
            decoder,
            buffer: Vec::new(),
            items: 0,
        };
        while reader.next_chunk(&mut Vec::new())?.is_some() {}
        reader.items = reader.decoder.items();
        reader.rewind()?;
        Ok(reader)
    }

    /// What it stands for.
    #[must_use]
    pub fn meta(&self) -> SnapshotMeta {
        self.decoder.meta()
    }

    /// The configuration that is in force at its index, and where in the log that is.
    #[must_use]
    pub fn config(&self) -> ConfigEntry {
        self.decoder.config()
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many items the state machine put into it.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Reads the next chunk's body into `body`, whose room is reused; gives its number of items,
    /// or `None` at the end. Blocks.
    ///
    /// # Errors
    /// As for opening it: only if the file has changed since.
    pub fn next_chunk(&mut self, body: &mut Vec<u8>) -> Result<Option<u32>, OpenError> {
        body.clear();
        while let Some(size) = self.decoder.wants() {
            self.buffer.resize(size, 0);
            disk::read_exact(&mut self.file, &mut self.buffer)
                .map_err(|e| OpenError::io(&self.path, "read the snapshot", e))?;
            let fed = self.decoder.feed(&self.buffer);
            if let Some(chunk) = fed.map_err(|fault| refused(&self.path, fault))? {
                body.extend_from_slice(chunk.body);
                return Ok(Some(chunk.items));
            }
        }
        Ok(None)
    }

    /// Goes back to the first chunk.
    fn rewind(&mut self) -> Result<(), OpenError> {
        disk::rewind(&mut self.file)
            .map_err(|e| OpenError::io(&self.path, "read the snapshot", e))?;
        self.decoder = begin(&self.path, &mut self.file, self.file_bytes, self.cluster_id)?;
        Ok(())
    }
}

fn begin(
    path: &Path,
    file: &mut BufReader<File>,
    file_bytes: u64,
    cluster_id: ClusterId,
) -> Result<Decoder, OpenError> {
    let mut block = vec![0; BLOCK_BYTES.min(usize::try_from(file_bytes).unwrap_or(BLOCK_BYTES))];
    disk::read_exact(file, &mut block)
        .map_err(|e: io::Error| OpenError::io(path, "read the snapshot", e))?;
    Decoder::begin(&block, file_bytes, cluster_id).map_err(|fault| refused(path, fault))
}

fn refused(path: &Path, fault: Fault) -> OpenError {
    match fault {
        Fault::Header(fault) => OpenError::block(path, fault),
        Fault::Damaged { offset, why } => OpenError::corrupt(path, offset, why),
    }
}
