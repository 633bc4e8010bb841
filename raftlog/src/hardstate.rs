//! The state file: what a node must never forget, in two checksummed slots.
//!
//! A write goes to the one slot, is synced, then goes to the other and is synced again: whichever
//! slot a crash or a bad block takes, the other one holds everything that was acknowledged.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::disk;
use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, STATE_MAGIC, StateLayout, block_with, fixed_crc, read};
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
    state: NodeState,
    sequence: u64,
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
        let old = self.state.hard;
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
        self.update(|state| state.hard = *hard)
    }

    /// Raises the ceiling of a log kept in memory, synced. Blocks.
    ///
    /// # Errors
    /// As [`HardStateStore::write`].
    ///
    /// # Panics
    /// When the ceiling does not rise.
    pub fn raise_ceiling(&mut self, ceiling: LogIndex) -> io::Result<()> {
        assert!(ceiling > self.state.ceiling, "a ceiling only rises");
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
        &self.state
    }

    pub(crate) fn update(&mut self, change: impl FnOnce(&mut NodeState)) -> io::Result<()> {
        let mut state = self.state;
        change(&mut state);
        let sequence = self.sequence + 1;
        let block = encode(&state, sequence);
        for slot in slot_order(sequence) {
            self.file
                .write_all_at(&block, (slot * BLOCK_BYTES) as u64)?;
            rustix::fs::fdatasync(&self.file)?;
        }
        self.state = state;
        self.sequence = sequence;
        Ok(())
    }

    pub(crate) fn create(dir: &Path, state: NodeState) -> io::Result<()> {
        let block = encode(&state, 1);
        disk::write_synced(&dir.join(STATE_FILE), &[block.clone(), block].concat())
    }

    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(STATE_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|e| missing_or(&path, e))?;
        let (state, sequence) = judge(&read_whole(&file, &path)?, &path)?;
        Ok(Self {
            file,
            state,
            sequence,
        })
    }
}

/// Reads the state file of a folder that may be in use.
pub(crate) fn read_only(dir: &Path) -> Result<NodeState, OpenError> {
    let path = dir.join(STATE_FILE);
    let file = File::open(&path).map_err(|e| missing_or(&path, e))?;
    Ok(judge(&read_whole(&file, &path)?, &path)?.0)
}

/// Which slot holds the state that counts, from the file's bytes. Pure.
///
/// # Errors
/// When neither slot is valid, or one was written by a later version.
pub(crate) fn judge(bytes: &[u8], path: &Path) -> Result<(NodeState, u64), OpenError> {
    let mut best: Option<(NodeState, u64)> = None;
    let mut saw_magic = false;
    for slot in bytes.chunks(BLOCK_BYTES).take(2) {
        let Some(layout) = read::<StateLayout>(slot).filter(|l| l.magic == STATE_MAGIC) else {
            continue;
        };
        saw_magic = true;
        if layout.crc != fixed_crc(bytemuck::bytes_of(&layout)) {
            continue;
        }
        // Checked behind the checksum: a damaged version number is damage, not a newer format.
        if layout.version > FORMAT_VERSION {
            return Err(OpenError::NewerFormat {
                file: path.to_path_buf(),
                found: layout.version,
                supported: FORMAT_VERSION,
            });
        }
        if best.is_none_or(|(_, sequence)| layout.sequence > sequence) {
            best = decode(&layout)
                .map(|state| (state, layout.sequence))
                .or(best);
        }
    }
    match best {
        Some(best) => Ok(best),
        None if saw_magic => Err(OpenError::corrupt(path, 0, "both slots are damaged")),
        None => Err(OpenError::WrongMagic {
            file: path.to_path_buf(),
        }),
    }
}

/// The slots in the order in which a write with that sequence number fills them.
fn slot_order(sequence: u64) -> [usize; 2] {
    if sequence.is_multiple_of(2) {
        [0, 1]
    } else {
        [1, 0]
    }
}

fn encode(state: &NodeState, sequence: u64) -> Vec<u8> {
    let mut layout = StateLayout {
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
    };
    layout.crc = fixed_crc(bytemuck::bytes_of(&layout));
    block_with(&layout)
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
    let mut bytes = vec![0; 2 * BLOCK_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(OpenError::io(path, "read the state", error)),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

fn missing_or(path: &Path, error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::NotFound {
        return OpenError::corrupt(path, 0, "the file is missing beside the identity file");
    }
    OpenError::io(path, "open the state", error)
}
