//! The state file: what a node must never forget, in two checksummed slots.
//!
//! A write goes to the one slot, is synced, then goes to the other and is synced again: whichever
//! slot a crash or a bad block takes, the other one holds everything that was acknowledged. (With
//! one slot written per change, the loss of the newer one would silently bring an old vote back.)

use std::fs::File;
use std::io;
use std::path::Path;

use crate::disk;
use crate::error::OpenError;
use crate::format::{BlockFault, FORMAT_VERSION, STATE_MAGIC, StateLayout, open_block, seal_block};
use crate::limits::BLOCK_BYTES;
use crate::types::{BootId, Durability, HardState, LogIndex, NodeId, Term};

/// The state file's name in the data folder.
pub(crate) const STATE_FILE: &str = "state";

/// Everything in the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeState {
    /// Term and vote.
    pub hard: HardState,
    /// The boot under which the log was last known good.
    pub boot_id: BootId,
    /// How the last run kept its log.
    pub durability: Durability,
    /// Whether the last run stopped in good order.
    pub clean_stop: bool,
    /// No index at or above this was issued under [`Durability::Memory`]; 0 before such a run.
    pub ceiling: LogIndex,
    /// The log goes on at this index or above.
    pub next_index_floor: LogIndex,
    /// How often the folder was opened for writing.
    pub starts: u64,
}

/// The state file, open for writing. Every write is synced, whatever the log's durability.
#[derive(Debug)]
pub struct HardStateStore {
    file: File,
    newest: Newest,
}

impl HardStateStore {
    /// Replaces term and vote, synced. Blocks.
    ///
    /// # Errors
    /// Whatever the system reports. The file must then count as failed: exit.
    ///
    /// # Panics
    /// When the term goes back, or a vote in the same term changes: the caller is wrong.
    pub fn write(&mut self, hard: &HardState) -> io::Result<()> {
        self.write_first(hard)?;
        self.write_second()
    }

    /// Replaces term and vote in one of the two slots, synced: no crash takes that back, so it counts. Until
    /// [`HardStateStore::write_second`], which is to follow at once, a bad block could. Blocks.
    ///
    /// # Errors
    /// As [`HardStateStore::write`].
    ///
    /// # Panics
    /// As [`HardStateStore::write`].
    pub fn write_first(&mut self, hard: &HardState) -> io::Result<()> {
        let old = self.newest.state.hard;
        assert!(
            hard.term >= old.term,
            "term {} behind {}",
            hard.term,
            old.term
        );
        assert!(
            hard.term > old.term || old.voted_for.is_none() || hard.voted_for == old.voted_for,
            "a second vote in term {}",
            hard.term
        );
        self.update_first(|state| state.hard = *hard)
    }

    /// Brings the other slot up to what the first one holds, synced. Blocks.
    ///
    /// # Errors
    /// As [`HardStateStore::write`].
    pub fn write_second(&mut self) -> io::Result<()> {
        let block = encode(&self.newest.state, self.newest.sequence);
        self.write_slot(other(&self.newest), &block)
    }

    /// Raises the ceiling of a log kept in memory, synced. Blocks.
    ///
    /// # Errors
    /// As [`HardStateStore::write`].
    ///
    /// # Panics
    /// When the ceiling does not rise.
    pub fn raise_ceiling(&mut self, ceiling: LogIndex) -> io::Result<()> {
        assert!(ceiling > self.newest.state.ceiling, "a ceiling only rises");
        self.update(|state| state.ceiling = ceiling)
    }

    /// Records that this run stops in good order, synced, once the log's last mark is. Blocks.
    ///
    /// # Errors
    /// As [`HardStateStore::write`].
    pub fn record_clean_stop(&mut self) -> io::Result<()> {
        self.update(|state| state.clean_stop = true)
    }

    /// What the file holds.
    #[must_use]
    pub fn state(&self) -> &NodeState {
        &self.newest.state
    }

    pub(crate) fn update(&mut self, change: impl FnOnce(&mut NodeState)) -> io::Result<()> {
        self.update_first(change)?;
        self.write_second()
    }

    /// The slot that counts stays whole until the other one is, and counts.
    fn update_first(&mut self, change: impl FnOnce(&mut NodeState)) -> io::Result<()> {
        let mut next = self.newest;
        change(&mut next.state);
        next.sequence += 1;
        next.slot = other(&self.newest);
        self.write_slot(next.slot, &encode(&next.state, next.sequence))?;
        self.newest = next;
        Ok(())
    }

    fn write_slot(&self, slot: usize, block: &[u8]) -> io::Result<()> {
        disk::write_at(&self.file, block, (slot * BLOCK_BYTES) as u64)?;
        disk::sync_data(&self.file)
    }

    pub(crate) fn create(dir: &Path, state: NodeState) -> io::Result<()> {
        let block = encode(&state, 1);
        disk::write_synced(&dir.join(STATE_FILE), &[block.clone(), block].concat())
    }

    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(STATE_FILE);
        let file = disk::open_for_writing(&path).map_err(|e| missing_or(&path, e))?;
        let newest = judge(&read_whole(&file, &path)?, &path)?;
        Ok(Self { file, newest })
    }
}

/// Reads the state file of a folder that may be in use.
pub(crate) fn read_only(dir: &Path) -> Result<NodeState, OpenError> {
    let path = dir.join(STATE_FILE);
    let file = disk::open(&path).map_err(|e| missing_or(&path, e))?;
    Ok(judge(&read_whole(&file, &path)?, &path)?.state)
}

/// The slot that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Newest {
    pub state: NodeState,
    sequence: u64,
    slot: usize,
}

/// Which slot holds the state that counts, from the file's bytes. Pure.
///
/// # Errors
/// When neither slot is valid, or one was written by a later version.
pub(crate) fn judge(bytes: &[u8], path: &Path) -> Result<Newest, OpenError> {
    let mut newest: Option<Newest> = None;
    let mut worst = BlockFault::WrongMagic;
    for (slot, block) in bytes.chunks(BLOCK_BYTES).take(2).enumerate() {
        let layout = match open_block::<StateLayout>(block, STATE_MAGIC) {
            Ok(layout) => layout,
            Err(fault @ BlockFault::Newer(_)) => return Err(OpenError::block(path, fault)),
            Err(BlockFault::Damaged) => {
                worst = BlockFault::Damaged;
                continue;
            }
            Err(BlockFault::WrongMagic) => continue,
        };
        let sequence = layout.sequence;
        if let Some(state) = decode(&layout)
            && newest.is_none_or(|newest| sequence > newest.sequence)
        {
            newest = Some(Newest {
                state,
                sequence,
                slot,
            });
        }
    }
    newest.ok_or_else(|| match worst {
        BlockFault::Damaged => OpenError::corrupt(path, 0, "neither of its two slots is whole"),
        fault => OpenError::block(path, fault),
    })
}

/// The slot beside the one that counts.
fn other(newest: &Newest) -> usize {
    1 - newest.slot
}

fn encode(state: &NodeState, sequence: u64) -> Vec<u8> {
    seal_block(&StateLayout {
        magic: STATE_MAGIC,
        version: FORMAT_VERSION,
        crc: 0,
        sequence,
        term: state.hard.term.0,
        voted_for: state.hard.voted_for.unwrap_or_default().0,
        boot_id: state.boot_id.0,
        ceiling: state.ceiling.0,
        next_index_floor: state.next_index_floor.0,
        starts: state.starts,
        has_vote: u8::from(state.hard.voted_for.is_some()),
        durability: match state.durability {
            Durability::Sync => 1,
            Durability::Memory => 2,
        },
        clean_stop: u8::from(state.clean_stop),
        reserved: [0; 5],
    })
}

fn decode(layout: &StateLayout) -> Option<NodeState> {
    let voted_for = match layout.has_vote {
        0 => None,
        1 => Some(NodeId(layout.voted_for)),
        _ => return None,
    };
    Some(NodeState {
        hard: HardState {
            term: Term(layout.term),
            voted_for,
        },
        boot_id: BootId(layout.boot_id),
        durability: match layout.durability {
            1 => Durability::Sync,
            2 => Durability::Memory,
            _ => return None,
        },
        clean_stop: layout.clean_stop == 1,
        ceiling: LogIndex(layout.ceiling),
        next_index_floor: LogIndex(layout.next_index_floor),
        starts: layout.starts,
    })
}

fn read_whole(file: &File, path: &Path) -> Result<Vec<u8>, OpenError> {
    disk::read_at_most(file, 2 * BLOCK_BYTES as u64)
        .map_err(|e| OpenError::io(path, "read the state", e))
}

fn missing_or(path: &Path, error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::NotFound {
        return OpenError::corrupt(path, 0, "the file is missing beside the identity file");
    }
    OpenError::io(path, "open the state", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_term(term: u64) -> NodeState {
        let hard = HardState {
            term: Term(term),
            voted_for: Some(NodeId([1; 16])),
        };
        NodeState {
            hard,
            starts: term,
            ..NodeState::default()
        }
    }

    fn judged(bytes: &[u8]) -> Newest {
        judge(bytes, Path::new("state")).expect("one slot is whole")
    }

    #[test]
    fn a_write_cut_short_at_any_byte_leaves_the_old_state_or_the_new() {
        // Also when a slot was damaged before.
        for damaged in [None, Some(0), Some(1)] {
            let mut bytes = [encode(&in_term(1), 4), encode(&in_term(1), 4)].concat();
            if let Some(slot) = damaged {
                bytes[slot * BLOCK_BYTES + 30] ^= 1;
            }
            let newest = judged(&bytes);
            let block = encode(&in_term(2), newest.sequence + 1);
            for (done, slot) in [other(&newest), newest.slot].into_iter().enumerate() {
                let at = slot * BLOCK_BYTES;
                for written in 0..128 {
                    let mut cut = bytes.clone();
                    cut[at..at + written].copy_from_slice(&block[..written]);
                    let state = judged(&cut).state;
                    assert!(state == in_term(2) || (done == 0 && state == in_term(1)));
                }
                bytes[at..at + BLOCK_BYTES].copy_from_slice(&block);
                assert_eq!(judged(&bytes).state, in_term(2), "the later state counts");
            }
        }
    }

    #[test]
    fn what_is_in_one_slot_counts_and_what_is_in_both_survives_a_bad_block() {
        let dir = tempfile::tempdir().expect("a folder");
        HardStateStore::create(dir.path(), in_term(1)).expect("room");
        let mut store = HardStateStore::open(dir.path()).expect("whole");
        let whole = || std::fs::read(dir.path().join(STATE_FILE)).expect("there");
        let survivors = |bytes: &[u8]| {
            [0, 1].map(|bad| {
                let mut bytes = bytes.to_vec();
                bytes[bad * BLOCK_BYTES + 30] ^= 1;
                judged(&bytes).state.hard.term.0
            })
        };
        // The second slot may also be left behind for good: the next change goes there.
        for term in [2, 3] {
            store.write_first(&in_term(term).hard).expect("room");
            assert_eq!(judged(&whole()).state.hard.term, Term(term));
            assert!(survivors(&whole()).contains(&(term - 1)));
        }
        store.write_second().expect("room");
        assert_eq!(survivors(&whole()), [3, 3]);
        store.write(&in_term(4).hard).expect("room");
        assert_eq!(survivors(&whole()), [4, 4]);
    }

    #[test]
    fn every_field_comes_back() {
        let state = NodeState {
            hard: HardState {
                term: Term(7),
                voted_for: None,
            },
            boot_id: BootId([9; 16]),
            durability: Durability::Memory,
            clean_stop: true,
            ceiling: LogIndex(11),
            next_index_floor: LogIndex(12),
            starts: 13,
        };
        let bytes = [encode(&state, 1), vec![0; BLOCK_BYTES]].concat();
        assert_eq!(judged(&bytes).state, state);
        // The bytes for durability and vote: a whole slot with what they never are does not count.
        for offset in [88, 89] {
            let mut forged = encode(&in_term(8), 2);
            forged[offset] = 3;
            let mut layout: StateLayout =
                bytemuck::pod_read_unaligned(&forged[..size_of::<StateLayout>()]);
            layout.crc = 0;
            let both = [encode(&state, 1), seal_block(&layout)].concat();
            assert_eq!(judged(&both).state, state, "byte {offset}");
        }
        assert_eq!(
            judged(&bytes[..BLOCK_BYTES]).state,
            state,
            "a file cut to one slot"
        );
    }
}
