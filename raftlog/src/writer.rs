//! Planning appends: where the next batch goes and what its header says. Pure.

use crate::batch::{BatchBuilder, BatchSummary, Control, Place};
use crate::format::{FLAG_CLEAN_STOP, FLAG_MARK, crc_seed};
use crate::limits::{CEILING_MARGIN, CEILING_STEP, SEGMENT_HEADER_BYTES};
use crate::types::{ClusterId, LogIndex, Position, Term, UseNumber};

/// A segment as far as planning needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Which use.
    pub use_number: UseNumber,
    /// The file's size, header block included.
    pub segment_bytes: u32,
}

/// Where a planned batch goes.
#[derive(Debug)]
pub struct Planned {
    /// The batch's bytes, padded to whole blocks.
    pub bytes: Vec<u8>,
    /// What it holds, and where it goes.
    pub summary: BatchSummary,
    /// Whether the spare has become the active segment.
    pub rolled: bool,
}

/// The writer's state: the log's end as planned, as written, and as synced.
#[derive(Debug)]
pub struct Planner {
    cluster_id: ClusterId,
    active: Room,
    offset: u32,
    previous_crc: u32,
    next_index: LogIndex,
    last_term: Term,
    written: Position,
    synced: Position,
    /// End of the last batch that is not a mark.
    content_end: Position,
    /// Largest synced position that a written batch carries.
    carried: Position,
    ceiling: Option<LogIndex>,
}

/// Where a planner starts.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// Whose log it is.
    pub cluster_id: ClusterId,
    /// The segment that is being written.
    pub active: Room,
    /// Where the next batch goes in it.
    pub offset: u32,
    /// The checksum of the last batch; 0 before the first.
    pub previous_crc: u32,
    /// The index that the next entry takes.
    pub next_index: LogIndex,
    /// The term of the entry before.
    pub last_term: Term,
    /// The largest synced position that a batch carries.
    pub carried: Position,
    /// An index that the log may not pass, if there is one.
    pub ceiling: Option<LogIndex>,
}

impl Planner {
    /// Starts behind a log that is written and synced as a whole.
    ///
    /// # Panics
    /// When a batch carries a synced position behind the log's end.
    #[must_use]
    pub fn new(start: Start) -> Self {
        let end = Position::new(start.active.use_number, start.offset);
        assert!(start.carried <= end);
        Self {
            cluster_id: start.cluster_id,
            active: start.active,
            offset: start.offset,
            previous_crc: start.previous_crc,
            next_index: start.next_index,
            last_term: start.last_term,
            written: end,
            synced: end,
            content_end: end,
            carried: start.carried,
            ceiling: start.ceiling,
        }
    }

    /// Begins the next batch in `buffer`, whose room is reused.
    #[must_use]
    pub fn begin(&self, buffer: Vec<u8>, control: Option<Control>) -> BatchBuilder {
        let room = self.active.segment_bytes as usize - SEGMENT_HEADER_BYTES;
        BatchBuilder::new(buffer, self.next_index, self.last_term, control, room)
    }

    /// Seals the batch for its place, or gives it back when it fits neither the active segment
    /// nor the spare, and changes nothing.
    ///
    /// # Errors
    /// The batch, when there is no room for it.
    ///
    /// # Panics
    /// When another batch was planned since this one was begun, or the ceiling would be passed.
    pub fn plan(
        &mut self,
        batch: BatchBuilder,
        spare: Option<Room>,
        clean_stop: bool,
    ) -> Result<Planned, BatchBuilder> {
        assert_eq!(
            batch.start_index(),
            self.next_index,
            "another batch was finished in between"
        );
        let bytes = batch.padded_bytes();
        let fits = |room: Room, offset: u32| offset as usize + bytes <= room.segment_bytes as usize;
        let (room, offset, rolled) = if fits(self.active, self.offset) {
            (self.active, self.offset, false)
        } else {
            match spare {
                Some(spare) if fits(spare, SEGMENT_HEADER_BYTES as u32) => {
                    assert!(spare.use_number > self.active.use_number);
                    (spare, SEGMENT_HEADER_BYTES as u32, true)
                }
                _ => return Err(batch),
            }
        };
        if let Some(ceiling) = self.ceiling {
            let next = batch.next_index();
            assert!(
                next <= ceiling,
                "the log would pass its synced ceiling {ceiling} at {next}"
            );
        }
        let mark = if batch.is_empty() { FLAG_MARK } else { 0 };
        let flags = mark | if clean_stop { FLAG_CLEAN_STOP } else { 0 };
        self.next_index = batch.next_index();
        let (bytes, summary) = batch.seal(Place {
            position: Position::new(room.use_number, offset),
            previous_crc: self.previous_crc,
            synced: self.synced,
            seed: crc_seed(self.cluster_id, room.use_number),
            flags,
        });
        self.active = room;
        self.offset = offset + summary.bytes;
        self.previous_crc = summary.crc;
        self.last_term = summary.last_term;
        self.carried = self.synced;
        if mark == 0 {
            self.content_end = summary.end();
        }
        Ok(Planned {
            bytes,
            summary,
            rolled,
        })
    }

    /// Everything up to the end of that batch is written.
    ///
    /// # Panics
    /// When a later batch was written before.
    pub fn written(&mut self, batch: &BatchSummary) {
        assert!(
            batch.position >= self.written,
            "batches are written in order, each once"
        );
        self.written = batch.end();
    }

    /// Everything before that position is on the disk.
    ///
    /// # Panics
    /// When it is not written yet.
    pub fn synced(&mut self, end: Position) {
        assert!(
            end <= self.written,
            "{end:?} synced, {:?} written",
            self.written
        );
        self.synced = self.synced.max(end);
    }

    /// Whether all content is synced and no batch says so yet.
    #[must_use]
    pub fn needs_mark(&self) -> bool {
        self.synced >= self.content_end && self.carried < self.content_end
    }

    /// The ceiling to sync now, if the log has come close to the present one.
    #[must_use]
    pub fn ceiling_due(&self) -> Option<LogIndex> {
        let ceiling = self.ceiling?;
        (self.next_index.plus(CEILING_MARGIN) >= ceiling)
            .then(|| ceiling.max(self.next_index).plus(CEILING_STEP))
    }

    /// The raised ceiling is synced.
    ///
    /// # Panics
    /// When there is none, or it does not rise.
    pub fn ceiling_raised(&mut self, ceiling: LogIndex) {
        assert!(
            self.ceiling.is_some_and(|present| ceiling > present),
            "a ceiling only rises"
        );
        self.ceiling = Some(ceiling);
    }

    /// The index that the next entry takes.
    #[must_use]
    pub fn next_index(&self) -> LogIndex {
        self.next_index
    }

    /// Everything before it is written.
    #[must_use]
    pub fn written_end(&self) -> Position {
        self.written
    }

    /// Everything before it is synced.
    #[must_use]
    pub fn synced_end(&self) -> Position {
        self.synced
    }
}
