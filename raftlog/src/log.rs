//! The log as its one writer holds it: segments, the index of batches, and appends.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use crate::batch::{BatchBuilder, BatchSummary, Control};
use crate::index::{BatchIndex, Span};
use crate::limits::{MAX_SEGMENTS, SEGMENT_HEADER_BYTES};
use crate::parse::RecordRef;
use crate::segment::{Segment, SegmentSpec};
use crate::snapshot::{SnapshotMeta, SnapshotSpec};
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

    /// What spare segment to create ([`Segment::create`], on a thread that may block), once:
    /// `None` when one is there or asked for, or the log has [`crate::limits::MAX_SEGMENTS`].
    ///
    /// It is made from the oldest segment that nothing needs any more, if there is one.
    pub fn wants_spare(&mut self) -> Option<SegmentSpec> {
        self.retire();
        if self.spare.is_some() || self.spare_asked {
            return None;
        }
        while self.retired.len() > self.retired_max
            || self
                .retired
                .front()
                .is_some_and(|oldest| oldest.segment_bytes != self.segment_bytes)
        {
            let oldest = self.retired.pop_front().map(|oldest| oldest.use_number);
            self.surplus.extend(oldest);
        }
        if self.retired.is_empty() && !may_grow(self.segments.len() + self.surplus.len()) {
            return None;
        }
        self.spare_asked = true;
        self.reusing = self.retired.pop_front().map(|oldest| oldest.use_number);
        Some(SegmentSpec {
            dir: self.dir.clone(),
            cluster_id: self.cluster_id,
            use_number: self.next_use,
            segment_bytes: self.segment_bytes,
            surplus: self.surplus.clone(),
            reuse: self.reusing,
        })
    }

    /// Hands the spare over.
    ///
    /// # Panics
    /// When it is not the one asked for.
    pub fn give_spare(&mut self, segment: Segment) {
        assert!(
            self.spare_asked && segment.use_number() == self.next_use,
            "not the one asked for"
        );
        self.spare_asked = false;
        self.surplus.clear();
        self.reusing = None;
        self.next_use = UseNumber(self.next_use.0 + 1);
        self.spare = Some(segment);
    }

    /// The spare could not be created (a full disk): [`Log::wants_spare`] asks anew.
    pub fn spare_failed(&mut self) {
        self.spare_asked = false;
        // It is unknown what became of it, and none behind it may go before it does.
        self.surplus.extend(self.reusing.take());
    }

    /// What to write a snapshot of the state at `index` with, on a thread that may block.
    ///
    /// # Panics
    /// When there is no such entry, or it is not written.
    #[must_use]
    pub fn snapshot_spec(&self, index: LogIndex) -> SnapshotSpec {
        let Some(term) = self.term_at(index) else {
            panic!("a snapshot at {index}, where the log has no entry");
        };
        SnapshotSpec {
            dir: self.snapshot_dir.clone(),
            cluster_id: self.cluster_id,
            meta: SnapshotMeta {
                index,
                term,
                position: self.planner.synced_end(),
            },
        }
    }

    /// The snapshot is synced under its name: forgets the entries it covers, and lets the segments
    /// that hold nothing else, and that nobody reads, become spares again.
    ///
    /// # Panics
    /// When the log does not reach the snapshot's index.
    pub fn recycle(&mut self, snapshot: &SnapshotMeta) {
        self.index.compact(snapshot.index, snapshot.term);
        self.retire();
    }

    /// How many bytes of the segments in use hold what comes behind `index`, or are not used yet
    /// because something else did not fit them.
    #[must_use]
    pub fn bytes_behind(&self, index: LogIndex) -> u64 {
        let Some(span) = self.index.at_or_after(index.next()) else {
            return 0;
        };
        let from = span.position;
        self.segments
            .iter()
            .filter(|segment| segment.use_number() >= from.use_number())
            .map(|segment| {
                let begin = if segment.use_number() == from.use_number() {
                    from.offset()
                } else {
                    SEGMENT_HEADER_BYTES as u32
                };
                u64::from(segment.written_bytes() - begin)
            })
            .sum()
    }

    /// How many segment files there are, those that wait to be used again included.
    #[must_use]
    pub fn segment_files(&self) -> usize {
        self.segments.len()
            + self.retired.len()
            + self.surplus.len()
            + usize::from(self.spare.is_some() || self.spare_asked)
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

    /// Takes the oldest segments out of use, as long as the one behind begins at or before the
    /// first entry that counts, and nobody reads the segment.
    fn retire(&mut self) {
        while let (Some(oldest), Some(next)) = (self.segments.front(), self.segments.get(1)) {
            let first = SEGMENT_HEADER_BYTES as u32;
            if next.written_bytes() <= first
                || next.batch(first).header().first_index > self.index.base().next().0
                || Arc::strong_count(oldest) > 1
            {
                return;
            }
            let retired = Retired {
                use_number: oldest.use_number(),
                segment_bytes: oldest.segment_bytes(),
            };
            // Its mapping ends here, before the file is touched.
            self.segments.pop_front();
            self.retired.push_back(retired);
        }
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

/// Whether a log of that many segments may get another one.
fn may_grow(segments: usize) -> bool {
    segments < MAX_SEGMENTS
}

/// The room of a segment, for planning.
pub(crate) fn room_of(segment: &Segment) -> Room {
    Room {
        use_number: segment.use_number(),
        segment_bytes: segment.segment_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_grows_up_to_its_bound_and_not_beyond() {
        assert!(may_grow(MAX_SEGMENTS - 1));
        assert!(!may_grow(MAX_SEGMENTS));
    }
}
