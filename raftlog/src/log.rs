//! The log as its one writer holds it: segments, the index of batches, and appends.

mod recycling;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::{BatchBuilder, BatchSummary, Control};
use crate::index::{BatchIndex, Span};
use crate::parse::RecordRef;
use crate::segment::Segment;
use crate::types::{ClusterId, LogIndex, Position, Term, UseNumber};
use crate::writer::{Planner, Room};

/// The batch fits no segment at hand. Prepare one ([`Log::wants_spare`]), then finish again.
#[derive(Debug)]
pub struct NeedSegment {
    /// The batch, unchanged.
    pub batch: BatchBuilder,
}

/// A sealed batch on its way to the disk.
///
/// Write `bytes` to `segment` at `offset`, tell [`Log::written`], sync the file, then tell
/// [`Log::synced`] `position_end`. Batches are written in the order in which they were finished.
/// When `segment` is another than that of the batch before, sync that one too before reporting
/// `position_end` as synced.
#[derive(Debug)]
pub struct PendingWrite {
    /// Where to write.
    pub segment: Arc<Segment>,
    /// At which offset of the file; a multiple of the block size.
    pub offset: u64,
    /// What to write: whole blocks.
    pub bytes: Vec<u8>,
    /// The index of its first entry, or of the next to come when it has none.
    pub first_index: LogIndex,
    /// The log's last index behind it.
    pub last_index: LogIndex,
    /// How many entries it holds.
    pub entries: u32,
    /// The position behind it.
    pub position_end: Position,
    summary: BatchSummary,
}

/// Where an entry lies.
#[derive(Debug, Clone)]
pub struct Location {
    /// The segment.
    pub segment: Arc<Segment>,
    /// The offset of the entry's batch in the segment's file.
    pub batch_offset: u32,
    /// The first index that counts in that batch.
    pub first_index: LogIndex,
    /// The last index that counts in that batch: a truncation may have cut it.
    pub last_index: LogIndex,
}

impl Location {
    /// The entry at `index` and its offset in the segment's file; `None` outside the batch.
    #[must_use]
    pub fn entry(&self, index: LogIndex) -> Option<(u32, RecordRef<'_>)> {
        self.entries().find(|(_, record)| record.index == index)
    }

    /// The entries of the batch that still count, each with its offset in the segment's file.
    pub fn entries(&self) -> impl Iterator<Item = (u32, RecordRef<'_>)> {
        let counted = self.first_index..=self.last_index;
        self.segment
            .batch(self.batch_offset)
            .records()
            .filter(move |(_, record)| record.kind.is_entry() && counted.contains(&record.index))
    }
}

/// The log of one node, held by its one writer.
///
/// ```
/// use ticketing_raftlog::{EntryKind, Folder, OpenOptions, Term, blocking};
/// # let dir = tempfile::tempdir()?;
/// # let options = OpenOptions { segment_bytes: 1 << 20, now_unix_s: 1_700_000_000, ..OpenOptions::default() };
/// let mut opened = Folder::open_single(dir.path(), &options)?;
/// let log = &mut opened.log;
///
/// let mut batch = log.begin(Vec::new());
/// let index = batch.push(EntryKind::Command, Term(1), b"payload").expect("an empty batch has room");
/// let write = log.finish(batch).expect("a new segment has room");
/// blocking::append(log, write)?;
///
/// let location = log.locate(index).expect("just written");
/// let (_, record) = location.entry(index).expect("in that batch");
/// assert_eq!(record.payload, b"payload");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Log {
    dir: PathBuf,
    snapshot_dir: PathBuf,
    cluster_id: ClusterId,
    segment_bytes: u32,
    // Oldest first; the last is the one appended to.
    segments: VecDeque<Arc<Segment>>,
    spare: Option<Segment>,
    spare_asked: bool,
    next_use: UseNumber,
    // Segments that nothing needs any more, oldest first, none older than those in `surplus`.
    retired: VecDeque<Retired>,
    retired_max: usize,
    // To be removed before the next spare is made, oldest first.
    surplus: Vec<UseNumber>,
    // The one that the spare asked for is made from.
    reusing: Option<UseNumber>,
    planner: Planner,
    index: BatchIndex,
}

/// A segment that is not in use, nor mapped, any more.
#[derive(Debug, Clone, Copy)]
struct Retired {
    use_number: UseNumber,
    segment_bytes: u32,
}

/// What a log is made of after recovery.
#[derive(Debug)]
pub(crate) struct Parts {
    pub dir: PathBuf,
    pub snapshot_dir: PathBuf,
    pub cluster_id: ClusterId,
    pub segment_bytes: u32,
    pub retired_max: usize,
    pub segments: VecDeque<Arc<Segment>>,
    pub spare: Option<Segment>,
    pub next_use: UseNumber,
    pub planner: Planner,
    pub index: BatchIndex,
}

impl Log {
    pub(crate) fn new(parts: Parts) -> Self {
        assert!(
            !parts.segments.is_empty(),
            "a log has a segment to append to"
        );
        Self {
            dir: parts.dir,
            snapshot_dir: parts.snapshot_dir,
            cluster_id: parts.cluster_id,
            segment_bytes: parts.segment_bytes,
            segments: parts.segments,
            spare: parts.spare,
            spare_asked: false,
            next_use: parts.next_use,
            retired: VecDeque::new(),
            retired_max: parts.retired_max,
            surplus: Vec::new(),
            reusing: None,
            planner: parts.planner,
            index: parts.index,
        }
    }

    /// Starts a batch behind everything finished so far, reusing `buffer`'s room.
    #[must_use]
    pub fn begin(&self, buffer: Vec<u8>) -> BatchBuilder {
        self.planner.begin(buffer, None)
    }

    /// Starts a batch whose first record changes the log's shape.
    #[must_use]
    pub fn begin_with(&self, buffer: Vec<u8>, control: Control) -> BatchBuilder {
        self.planner.begin(buffer, Some(control))
    }

    /// Seals a batch for its place in the log. An empty one becomes a mark.
    ///
    /// # Errors
    /// [`NeedSegment`], with the batch, when it fits neither the active segment nor the spare;
    /// nothing has changed.
    ///
    /// # Panics
    /// When another batch was finished since this one was begun, or the log would pass its ceiling.
    pub fn finish(&mut self, batch: BatchBuilder) -> Result<PendingWrite, NeedSegment> {
        self.seal(batch, false)
    }

    /// A batch without records that carries the synced position, for when [`Log::needs_mark`].
    ///
    /// # Errors
    /// As [`Log::finish`].
    pub fn mark(&mut self, buffer: Vec<u8>) -> Result<PendingWrite, NeedSegment> {
        self.seal(self.begin(buffer), false)
    }

    /// The last mark of a clean stop: write and sync it once everything else is synced, then call
    /// [`crate::HardStateStore::record_clean_stop`].
    ///
    /// # Errors
    /// As [`Log::finish`].
    ///
    /// # Panics
    /// When something written is not synced yet.
    pub fn clean_stop_mark(&mut self, buffer: Vec<u8>) -> Result<PendingWrite, NeedSegment> {
        assert_eq!(
            self.planner.synced_end(),
            self.planner.written_end(),
            "sync first, then stop"
        );
        self.seal(self.begin(buffer), true)
    }

    /// The batch is in the file (not necessarily synced) and can be read from now on.
    ///
    /// # Panics
    /// When batches are reported out of order.
    pub fn written(&mut self, write: &PendingWrite) {
        self.planner.written(&write.summary);
        write.segment.set_written(write.position_end.offset());
        if let Err(why) = self.index.apply(&write.summary) {
            panic!(
                "a batch written at {:?} does not fit the log: {why}",
                write.summary.position
            );
        }
    }

    /// Everything before `end` is on the disk.
    ///
    /// # Panics
    /// When it was not reported written.
    pub fn synced(&mut self, end: Position) {
        self.planner.synced(end);
    }

    /// Whether everything with content is synced and no batch carries that yet: an idle log then
    /// writes a mark within 50 ms, so that recovery can tell damage from a torn tail.
    #[must_use]
    pub fn needs_mark(&self) -> bool {
        self.planner.needs_mark()
    }

    /// Whether a spare segment is at hand.
    #[must_use]
    pub fn has_spare(&self) -> bool {
        self.spare.is_some()
    }

    /// In a log kept in memory: the ceiling to sync now with
    /// [`crate::HardStateStore::raise_ceiling`], then to confirm with [`Log::ceiling_raised`].
    #[must_use]
    pub fn ceiling_due(&self) -> Option<LogIndex> {
        self.planner.ceiling_due()
    }

    /// The ceiling is synced.
    ///
    /// # Panics
    /// When it is not above the present one, or the log has none.
    pub fn ceiling_raised(&mut self, ceiling: LogIndex) {
        self.planner.ceiling_raised(ceiling);
    }

    /// Where the written entry at `index` lies; `None` when there is none.
    #[must_use]
    pub fn locate(&self, index: LogIndex) -> Option<Location> {
        self.index.locate(index).map(|span| self.location(span))
    }

    /// Where the first written entry at `index` or above lies, for going on behind a gap.
    #[must_use]
    pub fn locate_at_or_after(&self, index: LogIndex) -> Option<Location> {
        self.index
            .at_or_after(index)
            .map(|span| self.location(span))
    }

    /// Every batch with entries, in log order: what a start replays.
    pub fn batches(&self) -> impl Iterator<Item = Location> {
        self.index.spans().iter().map(|span| self.location(*span))
    }

    /// The term of the written entry at `index`, also at the log's base; `None` elsewhere.
    #[must_use]
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index == self.index.base() {
            return Some(self.index.base_term());
        }
        self.locate(index)?
            .entry(index)
            .map(|(_, record)| record.term)
    }

    /// The index of batches, as written.
    #[must_use]
    pub fn index(&self) -> &BatchIndex {
        &self.index
    }

    /// The index that the next entry pushed takes, behind everything finished.
    #[must_use]
    pub fn next_index(&self) -> LogIndex {
        self.planner.next_index()
    }

    /// The position behind everything written.
    #[must_use]
    pub fn written_end(&self) -> Position {
        self.planner.written_end()
    }

    /// The position behind everything known synced.
    #[must_use]
    pub fn synced_end(&self) -> Position {
        self.planner.synced_end()
    }

    /// The segments in use, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.iter()
    }

    fn seal(&mut self, batch: BatchBuilder, clean: bool) -> Result<PendingWrite, NeedSegment> {
        let spare = self.spare.as_ref().map(room_of);
        let planned = self
            .planner
            .plan(batch, spare, clean)
            .map_err(|batch| NeedSegment { batch })?;
        if planned.rolled
            && let Some(spare) = self.spare.take()
        {
            self.segments.push_back(Arc::new(spare));
        }
        let summary = planned.summary;
        let Some(segment) = self.segments.back() else {
            unreachable!("a log has a segment to append to");
        };
        assert_eq!(segment.use_number(), summary.position.use_number());
        Ok(PendingWrite {
            segment: Arc::clone(segment),
            offset: u64::from(summary.position.offset()),
            bytes: planned.bytes,
            first_index: summary.first_index,
            last_index: summary.next_index().previous(),
            entries: summary.entries,
            position_end: summary.end(),
            summary,
        })
    }

    fn location(&self, span: Span) -> Location {
        let wanted = span.position.use_number();
        let at = self
            .segments
            .partition_point(|segment| segment.use_number() < wanted);
        let segment = &self.segments[at];
        assert_eq!(
            segment.use_number(),
            wanted,
            "the index points into segments that are there"
        );
        Location {
            segment: Arc::clone(segment),
            batch_offset: span.position.offset(),
            first_index: span.first,
            last_index: span.last,
        }
    }
}

/// The room of a segment, for planning.
pub(crate) fn room_of(segment: &Segment) -> Room {
    Room {
        use_number: segment.use_number(),
        segment_bytes: segment.segment_bytes(),
    }
}
