//! A log on a made-up disk: the real planning and the real recovery, on bytes in memory.

mod recovery;

use std::collections::VecDeque;
use std::rc::Rc;

use ticketing_raftlog::limits::{MIN_SEGMENT_BYTES, SEGMENT_HEADER_BYTES};
use ticketing_raftlog::raft::{AppendKind, EntryId, Epoch};
use ticketing_raftlog::{
    BatchBuilder, BatchSummary, ClusterId, Control, EntryKind, Full, LogIndex, Planner,
    PlannerStart, Position, Room, Term, UseNumber,
};

pub use self::recovery::{Recovered, RecoveryBugs};
use crate::node::journal::{Entry, Journal, Payload};
use crate::world::disk::{Disk, NoRoom};

/// The cluster of every run.
pub const CLUSTER: ClusterId = ClusterId([7; 16]);
/// Entries that are kept behind a snapshot, for peers that are a little behind.
const KEPT_BEHIND_SNAPSHOT: u64 = 40;
/// Segments that a snapshot covers and that wait to be used again.
const RETIRED_MAX: usize = 2;

/// A batch on its way to the disk.
#[derive(Debug)]
pub struct Write {
    /// The segment.
    pub use_number: UseNumber,
    /// Where in it.
    pub offset: u32,
    /// What.
    pub bytes: Vec<u8>,
    /// What the batch holds.
    pub summary: BatchSummary,
    /// For the report.
    pub epoch: Epoch,
    /// For the report: the last index there is once it is written.
    pub up_to: LogIndex,
    /// The snapshot behind which the log goes on from here, if this is a reset.
    pub reset: Option<LogIndex>,
}

/// The log of one node in one life of its process.
#[derive(Debug)]
pub struct MemLog {
    planner: Planner,
    room: Room,
    base: EntryId,
    entries: VecDeque<Entry>,
    writes: VecDeque<Write>,
    /// Per segment, the largest index that a batch in it holds.
    reach: VecDeque<(UseNumber, LogIndex)>,
    /// Segments before those that are in use, the oldest first.
    retired: VecDeque<UseNumber>,
    spare: Option<Room>,
    /// What is to be written, in order.
    asked: VecDeque<Asked>,
    /// A batch that found no segment.
    blocked: Option<Batch>,
    compacted: LogIndex,
    forgets_truncations: bool,
    newest: Option<BatchSummary>,
}

#[derive(Debug)]
enum Asked {
    Entries {
        term: Term,
        kind: AppendKind,
        payloads: VecDeque<Payload>,
        epoch: Epoch,
    },
    Control {
        control: Control,
        epoch: Epoch,
        reset: Option<LogIndex>,
    },
}

#[derive(Debug)]
struct Batch {
    builder: BatchBuilder,
    epoch: Epoch,
    reset: Option<LogIndex>,
}

impl MemLog {
    /// A new log behind `base`, in the place of the one there was. The first batch is written by the
    /// next [`MemLog::take_write`]s.
    #[must_use]
    pub fn create(disk: &mut Disk, base: EntryId) -> Self {
        let room = Room {
            use_number: next_use(disk),
            segment_bytes: MIN_SEGMENT_BYTES,
        };
        while !disk.segments().is_empty() {
            disk.remove_oldest();
        }
        let made = disk.add(room.use_number, room.segment_bytes);
        assert_eq!(made, Ok(()), "one segment has room where one was");
        let planner = Planner::new(PlannerStart {
            cluster_id: CLUSTER,
            active: room,
            offset: SEGMENT_HEADER_BYTES as u32,
            previous_crc: 0,
            next_index: base.index.next(),
            last_term: base.term,
            carried: Position::ZERO,
            ceiling: None,
        });
        let mut log = Self {
            planner,
            room,
            base,
            entries: VecDeque::new(),
            writes: VecDeque::new(),
            reach: VecDeque::from([(room.use_number, LogIndex(0))]),
            retired: VecDeque::new(),
            spare: None,
            asked: VecDeque::new(),
            blocked: None,
            compacted: LogIndex(0),
            forgets_truncations: false,
            newest: None,
        };
        let control = Control::Reset {
            index: base.index,
            term: base.term,
        };
        log.ask(Asked::Control {
            control,
            epoch: Epoch(0),
            reset: Some(base.index),
        });
        log
    }

    /// Tells it to make the mistake of not writing truncations down.
    pub fn forgets_truncations(&mut self, forgets: bool) {
        self.forgets_truncations = forgets;
    }

    /// The next batch to write.
    pub fn take_write(&mut self) -> Option<Write> {
        self.writes.pop_front()
    }

    /// Whether a batch waits to be written.
    #[must_use]
    pub fn has_writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// A batch is in the page cache.
    pub fn written(&mut self, summary: &BatchSummary) {
        if summary.position >= self.planner.written_end() {
            self.planner.written(summary);
        }
    }

    /// Everything before `end` is synced.
    pub fn synced(&mut self, end: Position) {
        self.planner.synced(end);
    }

    /// The end of what is written.
    #[must_use]
    pub fn written_end(&self) -> Position {
        self.planner.written_end()
    }

    /// The end of what is synced.
    #[must_use]
    pub fn synced_end(&self) -> Position {
        self.planner.synced_end()
    }

    /// Plans the mark of an idle log, if one is due.
    pub fn mark_if_needed(&mut self, epoch: Epoch) {
        if self.planner.needs_mark() && self.writes.is_empty() && self.blocked.is_none() {
            let mark = Batch {
                builder: self.planner.begin(Vec::new(), None),
                epoch,
                reset: None,
            };
            // One without room is made anew.
            drop(self.plan(mark));
        }
    }

    /// The entry that the log goes on behind.
    #[must_use]
    pub fn base(&self) -> EntryId {
        self.base
    }

    /// The last entry, or the base.
    #[must_use]
    pub fn last(&self) -> EntryId {
        EntryId {
            term: self
                .entries
                .back()
                .map_or(self.base.term, |entry| entry.term),
            index: self.last_index(),
        }
    }

    /// Whether the next segment is to be made.
    #[must_use]
    pub fn wants_spare(&self) -> bool {
        self.spare.is_none()
    }

    /// Whether a snapshot of everything would let a segment be used again.
    #[must_use]
    pub fn could_recycle(&self) -> bool {
        self.reach.len() > 1
    }

    /// Makes the next segment, from one that holds nothing above the snapshot if there is one, and
    /// goes on with what waited for it.
    ///
    /// # Errors
    /// [`NoRoom`]: to be tried again.
    pub fn make_spare(&mut self, disk: &mut Disk) -> Result<(), NoRoom> {
        while self.reach.len() > 1
            && self.reach[0].1 <= self.compacted
            && self.reach[0].0 < self.synced_end().use_number()
        {
            self.retired
                .extend(self.reach.pop_front().map(|(number, _)| number));
        }
        while self.retired.len() > RETIRED_MAX {
            self.retired.pop_front();
            disk.remove_oldest();
        }
        let spare = Room {
            use_number: next_use(disk),
            segment_bytes: MIN_SEGMENT_BYTES,
        };
        match self.retired.pop_front() {
            Some(_) => disk.reuse_oldest(spare.use_number),
            None => disk.add(spare.use_number, spare.segment_bytes)?,
        }
        self.spare = Some(spare);
        self.go_on();
        Ok(())
    }

    /// Goes on at `from` as if what the disk has from there on had never been written.
    fn go_back(&mut self, from: LogIndex, previous_term: Term) {
        let Some(last) = self.newest else {
            return;
        };
        self.asked.clear();
        self.blocked = None;
        self.planner = Planner::new(PlannerStart {
            cluster_id: CLUSTER,
            active: self.room,
            offset: last.end().offset(),
            previous_crc: last.crc,
            next_index: from,
            last_term: previous_term,
            carried: Position::ZERO,
            ceiling: None,
        });
    }

    fn last_index(&self) -> LogIndex {
        self.base.index.plus(self.entries.len() as u64)
    }

    fn ask(&mut self, asked: Asked) {
        self.asked.push_back(asked);
        self.go_on();
    }

    /// Plans what was asked for, until a batch finds no segment.
    fn go_on(&mut self) {
        while let Some(batch) = self.blocked.take().or_else(|| self.next_batch()) {
            self.blocked = self.plan(batch);
            if self.blocked.is_some() {
                return;
            }
        }
    }

    fn next_batch(&mut self) -> Option<Batch> {
        match self.asked.front_mut()? {
            &mut Asked::Control {
                control,
                epoch,
                reset,
            } => {
                self.asked.pop_front();
                Some(Batch {
                    builder: self.planner.begin(Vec::new(), Some(control)),
                    epoch,
                    reset,
                })
            }
            Asked::Entries {
                term,
                kind,
                payloads,
                epoch,
            } => {
                let mut builder = self.planner.begin(Vec::new(), None);
                while let Some(payload) = payloads.front() {
                    let mut members = Vec::new();
                    if let AppendKind::Config(config) = kind {
                        config.encode(&mut members);
                    }
                    let (entry, bytes) = match kind {
                        AppendKind::Noop => (EntryKind::Noop, &payload[..]),
                        AppendKind::Commands => (EntryKind::Command, &payload[..]),
                        AppendKind::Config(_) => (EntryKind::Config, &members[..]),
                    };
                    if builder.push(entry, *term, bytes) == Err(Full) {
                        assert!(!builder.is_empty(), "an empty batch has room");
                        break;
                    }
                    payloads.pop_front();
                }
                let epoch = *epoch;
                if payloads.is_empty() {
                    self.asked.pop_front();
                }
                Some(Batch {
                    builder,
                    epoch,
                    reset: None,
                })
            }
        }
    }

    /// Gives the batch a place and has it written, or gives it back if there is no segment for it.
    fn plan(&mut self, batch: Batch) -> Option<Batch> {
        let Batch {
            builder,
            epoch,
            reset,
        } = batch;
        let planned = match self.planner.plan(builder, self.spare, false) {
            Ok(planned) => planned,
            Err(builder) => {
                return Some(Batch {
                    builder,
                    epoch,
                    reset,
                });
            }
        };
        if planned.rolled
            && let Some(spare) = self.spare.take()
        {
            self.room = spare;
            self.reach.push_back((spare.use_number, LogIndex(0)));
        }
        let summary = planned.summary;
        self.newest = Some(summary);
        let up_to = summary.next_index().previous();
        if let Some(last) = self.reach.back_mut() {
            last.1 = last.1.max(up_to);
        }
        self.writes.push_back(Write {
            use_number: summary.position.use_number(),
            offset: summary.position.offset(),
            bytes: planned.bytes,
            summary,
            epoch,
            up_to,
            reset,
        });
        None
    }
}

/// The use number behind all there are.
fn next_use(disk: &Disk) -> UseNumber {
    let last = disk.segments().last().map_or(0, |file| file.use_number.0);
    UseNumber(last + 1)
}

impl Journal for MemLog {
    fn append(&mut self, term: Term, kind: AppendKind, payloads: &[Payload], epoch: Epoch) {
        self.entries.extend(payloads.iter().map(|payload| Entry {
            term,
            kind,
            payload: payload.clone(),
        }));
        self.ask(Asked::Entries {
            term,
            kind,
            payloads: payloads.iter().cloned().collect(),
            epoch,
        });
    }

    fn truncate(&mut self, from: LogIndex, previous_term: Term, epoch: Epoch) {
        let kept = from.0 - self.base.index.0 - 1;
        self.entries.truncate(kept as usize);
        if self.forgets_truncations {
            return self.go_back(from, previous_term);
        }
        let control = Control::Truncate {
            from,
            previous_term,
        };
        self.ask(Asked::Control {
            control,
            epoch,
            reset: None,
        });
    }

    fn reset(&mut self, last: EntryId, epoch: Epoch) {
        self.entries.clear();
        self.base = last;
        let control = Control::Reset {
            index: last.index,
            term: last.term,
        };
        self.ask(Asked::Control {
            control,
            epoch,
            reset: Some(last.index),
        });
    }

    fn compact(&mut self, last: EntryId) {
        self.compacted = self.compacted.max(last.index);
        while self.base.index.0 + KEPT_BEHIND_SNAPSHOT < last.index.0 {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            self.base = EntryId {
                term: entry.term,
                index: self.base.index.next(),
            };
        }
    }

    fn entry(&self, index: LogIndex) -> Option<&Entry> {
        let at = index.0.checked_sub(self.base.index.0 + 1)?;
        self.entries.get(at as usize)
    }

    fn first_index(&self) -> LogIndex {
        self.base.index.next()
    }

    fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        self.entry(index).map(|entry| entry.term)
    }
}

/// An empty payload.
#[must_use]
pub fn nothing() -> Payload {
    Rc::from(&b""[..])
}

#[cfg(test)]
mod tests;
