//! The incarnation file: which making of a node's folder this is. Drawn at the first start.

use std::io;
use std::path::Path;

use crate::disk;
use crate::error::OpenError;
use crate::folder::OpenOptions;
use crate::format::{FORMAT_VERSION, INCARNATION_MAGIC, IncarnationLayout, open_block, seal_block};
use crate::identity::Identity;
use crate::peers::Incarnation;
use crate::recovery::RecoveryReport;

/// The file's name in the data folder.
const INCARNATION_FILE: &str = "incarnation";

/// Reads it; at the folder's first start, which has not said it to anybody yet, draws and syncs it.
pub(crate) fn load_or_draw(
    dir: &Path,
    identity: &Identity,
    recovery: &RecoveryReport,
    options: &OpenOptions,
) -> Result<Incarnation, OpenError> {
    let path = dir.join(INCARNATION_FILE);
    match disk::read(&path) {
        Ok(bytes) => {
            let layout: IncarnationLayout = open_block(&bytes, INCARNATION_MAGIC)
                .map_err(|fault| OpenError::block(&path, fault))?;
            if layout.node_id != identity.node_id.0 {
                return Err(OpenError::corrupt(&path, 16, "it is another node's"));
            }
            Ok(Incarnation(layout.incarnation))
        }
        // A start that was cut short before it drew one has counted as well.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if recovery.last_term.0 > 0 {
                return Err(OpenError::corrupt(
                    &path,
                    0,
                    "the file is missing beside a log that others know",
                ));
            }
            let layout = IncarnationLayout {
                magic: INCARNATION_MAGIC,
                version: FORMAT_VERSION,
                crc: 0,
                node_id: identity.node_id.0,
                incarnation: options.new_incarnation.0,
            };
            disk::write_synced(&path, &seal_block(&layout))
                .and_then(|()| disk::sync_dir(dir))
                .map_err(|e| OpenError::io(&path, "write the incarnation", e))?;
            Ok(options.new_incarnation)
        }
        Err(error) => Err(OpenError::io(&path, "read the incarnation", error)),
    }
}
