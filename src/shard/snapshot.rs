//! A shard's part of a snapshot: its cut on the way out, its locks on the way in.

use ticketing_raftlog::LogIndex;

use crate::fatal::Fatal;
use crate::lanes::messages::{Restored, SnapshotChunk};
use crate::limits::SNAPSHOT_LOCKS_PER_CHUNK;
use crate::locks::{LockTable, held_locks, key_hash};

use super::state::Shard;

/// The cut that is being written.
#[derive(Debug, Default)]
pub(super) struct Cutting {
    index: Option<LogIndex>,
    // A chunk for which the lane had no room.
    parked: Option<SnapshotChunk>,
}

impl Cutting {
    /// True while a chunk waits for room in the lane.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.is_some()
    }
}

impl Shard {
    /// Cuts at `index`, up to which everything is applied.
    pub(super) fn begin_cut(&mut self, now_ms: u64, index: LogIndex) {
        assert!(
            self.cutting.index.is_none() && !self.cutting.is_parked(),
            "one snapshot at a time"
        );
        self.table.begin_snapshot(now_ms);
        self.cutting.index = Some(index);
    }

    /// Sends the next chunk of a cut, one each round. True when there is another
    /// one and room for it.
    pub(super) fn pump_cut(&mut self) -> bool {
        let chunk = match self.cutting.parked.take() {
            Some(chunk) => chunk,
            None => {
                let Some(index) = self.cutting.index else {
                    return false;
                };
                let mut bytes = Vec::new();
                let cut = self
                    .table
                    .snapshot_chunk(SNAPSHOT_LOCKS_PER_CHUNK, &mut bytes);
                if !cut.more {
                    self.cutting.index = None;
                }
                SnapshotChunk {
                    index,
                    locks: cut.locks,
                    bytes,
                    more: cut.more,
                }
            }
        };
        match self.setup.to_snapshot.try_send(chunk) {
            Ok(()) => self.cutting.index.is_some(),
            Err(chunk) => {
                self.cutting.parked = Some(chunk);
                false
            }
        }
    }

    /// The state is another one from here on: what is cut of the old one is of no use to anybody.
    pub(super) fn reset(&mut self, now_ms: u64) {
        self.table = LockTable::new(self.setup.table.clone(), now_ms);
        let waiting = self.cutting.parked.as_mut().filter(|chunk| chunk.more);
        if let Some(index) = self.cutting.index.take() {
            match waiting {
                Some(chunk) => chunk.more = false,
                None => {
                    self.cutting.parked = Some(SnapshotChunk {
                        index,
                        locks: 0,
                        bytes: Vec::new(),
                        more: false,
                    });
                }
            }
        }
    }

    /// Takes in locks of the snapshot that the log goes on from.
    pub(super) fn restore(&mut self, now_ms: u64, restored: &Restored) {
        for lock in held_locks(&restored.locks) {
            let loaded = lock.is_ok_and(|lock| {
                let hash = key_hash(self.setup.key_seed, lock.key);
                self.table.restore_lock(now_ms, hash, &lock)
            });
            if !loaded {
                Fatal::Corrupt.exit(format_args!(
                    "the snapshot up to {} has a key twice, or a lock that cannot be: it was \
                     written by another version or is damaged; do not start this node again on \
                     this folder",
                    restored.index
                ));
            }
        }
        self.table.restored_up_to(restored.index.0);
    }
}
