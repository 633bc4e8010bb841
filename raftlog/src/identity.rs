//! The identity file: whose log this is. Written once, when the folder is created.

use std::io;
use std::path::Path;

use crate::disk;
use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, IDENTITY_MAGIC, IdentityLayout, open_block, seal_block};
use crate::types::{ClusterId, LogIndex, Mode, NodeId};

/// The identity file's name in the data folder.
pub(crate) const IDENTITY_FILE: &str = "identity";

/// Whose log a folder holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Single or cluster.
    pub mode: Mode,
    /// The cluster; a single node is its own.
    pub cluster_id: ClusterId,
    /// This member.
    pub node_id: NodeId,
    /// The index of the first entry the log could hold when the folder was created.
    pub first_index: LogIndex,
    /// When the folder was created, by its machine's clock, in seconds of Unix time.
    pub created_unix_s: u64,
}

/// Writes the file and syncs it, not yet its name.
pub(crate) fn create(dir: &Path, identity: &Identity) -> io::Result<()> {
    disk::write_synced(&dir.join(IDENTITY_FILE), &encode(identity))
}

/// Reads the file; `None` when there is none.
pub(crate) fn load(dir: &Path) -> Result<Option<Identity>, OpenError> {
    let path = dir.join(IDENTITY_FILE);
    match disk::read(&path) {
        Ok(bytes) => judge(&bytes, &path).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::io(&path, "read the identity", error)),
    }
}

pub(crate) fn encode(identity: &Identity) -> Vec<u8> {
    seal_block(&IdentityLayout {
        magic: IDENTITY_MAGIC,
        version: FORMAT_VERSION,
        crc: 0,
        cluster_id: identity.cluster_id.0,
        node_id: identity.node_id.0,
        first_index: identity.first_index.0,
        created_unix_s: identity.created_unix_s,
        mode: match identity.mode {
            Mode::Single => 1,
            Mode::Cluster => 2,
        },
        reserved: 0,
    })
}

/// Reads the file's bytes. Pure.
pub(crate) fn judge(bytes: &[u8], path: &Path) -> Result<Identity, OpenError> {
    let layout: IdentityLayout =
        open_block(bytes, IDENTITY_MAGIC).map_err(|fault| OpenError::block(path, fault))?;
    let mode = match layout.mode {
        1 => Mode::Single,
        2 => Mode::Cluster,
        _ => return Err(OpenError::corrupt(path, 64, "the mode is unknown")),
    };
    Ok(Identity {
        mode,
        cluster_id: ClusterId(layout.cluster_id),
        node_id: NodeId(layout.node_id),
        first_index: LogIndex(layout.first_index),
        created_unix_s: layout.created_unix_s,
    })
}
