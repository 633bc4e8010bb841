//! Snapshots: what the state machine was at one index, so that the log before it can go.
//!
//! The content is the state machine's: opaque chunks, each with how many items it holds; and the
//! cluster's configuration, with its place in the log. A file is
//! written aside, synced, and only then takes its name; a newer one is in place before an older
//! one is removed, and before any segment that it covers is used again.

mod files;
mod format;
mod install;
mod reader;
mod reserve;
mod writer;

pub use format::{
    CHUNK_HEADER_BYTES, Chunk, ChunkHeader, ChunkKind, Decoder, Encoder, Fault, SNAPSHOT_MAGIC,
    SNAPSHOT_TRAILER_BYTES, SnapshotHeader, SnapshotMeta, SnapshotTrailer, TRAILER_MAGIC,
    padded_chunk_bytes,
};
pub use install::InstallSpec;
pub use reader::SnapshotReader;
pub use reserve::Reserve;
pub use writer::{SnapshotSpec, SnapshotWriter};

pub use files::SNAPSHOT_DIR;
pub(crate) use files::{list, path_of, received_path, remove_all, sweep_unfinished};
