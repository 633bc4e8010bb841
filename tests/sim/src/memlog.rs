//! A log on a made-up disk: the real planning and the real recovery, on bytes in memory.

use std::collections::VecDeque;
use std::rc::Rc;

use ticketing_raftlog::limits::{MIN_SEGMENT_BYTES, SEGMENT_HEADER_BYTES};
use ticketing_raftlog::raft::{AppendKind, ConfigEntry, EntryId, Epoch, Extent, ExtentKind};
use ticketing_raftlog::{
    BatchBuilder, BatchSummary, ClusterId, Control, EntryKind, Full, LogIndex, Planner,
    PlannerStart, Position, RecordKind, Room, Scan, SegmentBytes, SnapshotMeta, Term, UseNumber,
    Verdict,
};

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

/// Mistakes of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryBugs {
    /// All damage is taken for a torn tail.
    pub trims_below_mark: bool,
    /// What an earlier use of a file left in it counts.
    #[cfg(feature = "bugs")]
    pub takes_stale: bool,
}

/// What recovery made of a disk.
#[derive(Debug)]
pub struct Recovered {
    /// The log.
    pub log: MemLog,
    /// Its entries as the core wants them.
    pub extents: Vec<Extent>,
    /// The configurations in it.
    pub configs: Vec<ConfigEntry>,
    /// A torn tail was trimmed.
    pub trimmed: bool,
    /// Everything below is proved to have been synced.
    pub mark: Position,
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

    /// Reads a disk as a start does: the real scan, its verdict, and what follows from it.
    ///
    /// # Errors
    /// The verdict when acknowledged data is damaged.
    pub fn recover(
        disk: &mut Disk,
        snapshot: Option<EntryId>,
        same_boot: bool,
        bugs: RecoveryBugs,
    ) -> Result<Recovered, Verdict> {
        let mut scan = match snapshot {
            Some(last) => Scan::behind(
                CLUSTER,
                SnapshotMeta {
                    index: last.index,
                    term: last.term,
                    position: Position::ZERO,
                },
            ),
            None => Scan::new(CLUSTER),
        };
        let mut entries: VecDeque<(LogIndex, Entry)> = VecDeque::new();
        let mut reach = VecDeque::new();
        for file in disk.segments() {
            let mut top = LogIndex(0);
            let segment = SegmentBytes {
                use_number: file.use_number,
                prior_use: file.prior_use,
                bytes: &file.bytes,
            };
            #[cfg(feature = "bugs")]
            scan.takes_any_use(bugs.takes_stale);
            scan.segment(&segment, |batch| {
                for (_, record) in batch.records() {
                    let kind = match record.kind {
                        RecordKind::Truncate => {
                            while entries
                                .back()
                                .is_some_and(|(index, _)| *index >= record.index)
                            {
                                entries.pop_back();
                            }
                            continue;
                        }
                        RecordKind::Reset => {
                            entries.clear();
                            continue;
                        }
                        RecordKind::Gap => continue,
                        RecordKind::Noop => AppendKind::Noop,
                        RecordKind::Command => AppendKind::Commands,
                        RecordKind::Config => match record.config() {
                            Some(entry) => AppendKind::Config(entry.config),
                            None => unreachable!("the scan has read it"),
                        },
                    };
                    let payload = match kind {
                        AppendKind::Commands => Payload::from(record.payload),
                        AppendKind::Noop | AppendKind::Config(_) => Payload::from(&b""[..]),
                    };
                    top = top.max(record.index);
                    let term = record.term;
                    let entry = Entry {
                        term,
                        kind,
                        payload,
                    };
                    entries.push_back((record.index, entry));
                }
            });
            reach.push_back((file.use_number, top));
        }
        let verdict = scan.verdict(same_boot);
        let trimmed = match verdict {
            Verdict::Clean => false,
            Verdict::TornTail { .. } => true,
            Verdict::Corrupt { .. } if bugs.trims_below_mark && scan.batches() > 0 => true,
            Verdict::Corrupt { .. } => return Err(verdict),
        };
        let (end, mark) = (scan.end(), scan.mark());
        reach.retain(|(number, _)| *number <= end.use_number());
        let behind = UseNumber(end.use_number().0 + 1);
        let is_spare = !trimmed && disk.segments().iter().any(|f| f.use_number == behind);
        disk.drop_above(if is_spare { behind } else { end.use_number() });
        if trimmed {
            let zeroes = vec![0; MIN_SEGMENT_BYTES as usize - end.offset() as usize];
            disk.write(end.use_number(), end.offset(), &zeroes);
        }
        // What no mark proves is written again; then all of it is synced.
        for kept in scan.kept() {
            let from = SEGMENT_HEADER_BYTES.max(if kept.use_number == mark.use_number() {
                mark.offset() as usize
            } else {
                0
            });
            if kept.use_number >= mark.use_number() && from < kept.end as usize {
                let file = disk
                    .segments()
                    .iter()
                    .find(|f| f.use_number == kept.use_number);
                let copy = file.map(|file| file.bytes[from..kept.end as usize].to_vec());
                disk.write(kept.use_number, from as u32, &copy.unwrap_or_default());
            }
        }
        let sync = disk.begin_sync();
        disk.end_sync(&sync);

        let room = Room {
            use_number: end.use_number(),
            segment_bytes: MIN_SEGMENT_BYTES,
        };
        let planner = Planner::new(PlannerStart {
            cluster_id: CLUSTER,
            active: room,
            offset: end.offset(),
            previous_crc: scan.last_crc(),
            next_index: scan.index().next_index(),
            last_term: scan.index().last_term(),
            carried: mark.min(end),
            ceiling: None,
        });
        let base = EntryId {
            term: scan.index().base_term(),
            index: scan.index().base(),
        };
        let mut log = Self {
            planner,
            room,
            base,
            entries: entries.into_iter().map(|(_, entry)| entry).collect(),
            writes: VecDeque::new(),
            reach,
            retired: VecDeque::new(),
            spare: is_spare.then_some(Room {
                use_number: behind,
                segment_bytes: MIN_SEGMENT_BYTES,
            }),
            asked: VecDeque::new(),
            blocked: None,
            compacted: LogIndex(0),
            forgets_truncations: false,
            newest: None,
        };
        if let Some(last) = snapshot
            && last.index > base.index
        {
            // The term of a base that is not the snapshot's is not known: go on behind the snapshot.
            log.forget(last);
        }
        let (extents, configs) = log.extents();
        Ok(Recovered {
            log,
            extents,
            configs,
            trimmed,
            mark,
        })
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

    fn forget(&mut self, last: EntryId) {
        while self.base.index < last.index && !self.entries.is_empty() {
            self.entries.pop_front();
            self.base.index = self.base.index.next();
        }
        self.base = last;
        self.compacted = self.compacted.max(last.index);
    }

    fn extents(&self) -> (Vec<Extent>, Vec<ConfigEntry>) {
        let (mut extents, mut configs): (Vec<Extent>, Vec<ConfigEntry>) = (Vec::new(), Vec::new());
        for (at, entry) in self.entries.iter().enumerate() {
            let index = self.base.index.plus(at as u64 + 1);
            let kind = match entry.kind {
                AppendKind::Noop => ExtentKind::Noop,
                AppendKind::Commands => ExtentKind::Commands,
                AppendKind::Config(config) => {
                    configs.push(ConfigEntry { index, config });
                    ExtentKind::Config
                }
            };
            extents.push(Extent {
                last_index: index,
                term: entry.term,
                bytes: entry.payload.len() as u64,
                kind,
            });
        }
        (extents, configs)
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
mod tests {
    use super::*;
    use crate::world::rng::Rng;
    use ticketing_raftlog::NodeId;
    use ticketing_raftlog::raft::{Config, Replacement, Slot};

    const BASE: EntryId = EntryId {
        term: Term(0),
        index: LogIndex(100),
    };

    fn write_all(log: &mut MemLog, disk: &mut Disk) {
        loop {
            while let Some(write) = log.take_write() {
                disk.write(write.use_number, write.offset, &write.bytes);
                log.written(&write.summary);
            }
            if !log.wants_spare() {
                return;
            }
            log.make_spare(disk).expect("room");
        }
    }

    fn sync(log: &mut MemLog, disk: &mut Disk) {
        let sync = disk.begin_sync();
        disk.end_sync(&sync);
        log.synced(log.written_end());
    }

    fn append(log: &mut MemLog, term: u64, text: &str) {
        let payload = Payload::from(text.as_bytes());
        log.append(Term(term), AppendKind::Commands, &[payload], Epoch(0));
    }

    #[test]
    fn configurations_are_read_back_where_they_stand() {
        let ids = |from: u8, to: u8| (from..to).map(|n| NodeId([n; 16])).collect::<Vec<_>>();
        let replacement = Replacement {
            slot: Slot(2),
            new: NodeId([9; 16]),
        };
        let mut disk = Disk::default();
        let mut log = MemLog::create(&mut disk, BASE);
        let mut expected = Vec::new();
        for replacement in [None, Some(replacement)] {
            append(&mut log, 1, "between");
            let config = Config::joint(&ids(1, 4), replacement, &ids(5, 6)).expect("valid");
            let kind = AppendKind::Config(config);
            log.append(Term(1), kind, &[nothing()], Epoch(0));
            let index = log.last().index;
            expected.push(ConfigEntry { index, config });
        }
        write_all(&mut log, &mut disk);
        let bugs = RecoveryBugs::default();
        let back = MemLog::recover(&mut disk, None, true, bugs).expect("no corruption");
        assert_eq!(back.configs, expected);
    }

    #[test]
    fn what_was_synced_is_recovered_after_any_cut() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let mut disk = Disk::default();
            let mut log = MemLog::create(&mut disk, BASE);
            let (mut synced, mut sound) = (BASE.index, true);
            for step in 0..rng.range(1, 60) {
                append(&mut log, 1 + step / 20, &format!("entry {step}"));
                if rng.chance(100) && log.last().index > synced.next() {
                    let from = synced.next();
                    let term = log.term_at(synced).expect("there");
                    log.truncate(from, term, Epoch(0));
                    append(&mut log, 1 + step / 20, "another");
                }
                write_all(&mut log, &mut disk);
                if rng.chance(300) {
                    sync(&mut log, &mut disk);
                    synced = log.last().index;
                }
            }
            let cut = rng.chance(700);
            if cut {
                disk.power_cut(&mut rng);
            }
            if synced == BASE.index {
                continue;
            }
            let back = MemLog::recover(&mut disk, None, !cut, RecoveryBugs::default())
                .expect("no corruption");
            assert_eq!(back.log.base(), BASE);
            for index in BASE.index.0 + 1..=synced.0 {
                let (now, then) = (back.log.entry(LogIndex(index)), log.entry(LogIndex(index)));
                let same = now.is_some_and(|now| then.is_some_and(|t| t.payload == now.payload));
                sound &= same;
            }
            assert!(sound, "seed {seed}");
            assert!(
                cut || back.log.last() == log.last(),
                "seed {seed}: a kill loses nothing"
            );
        }
    }

    #[test]
    fn recycled_segments_leave_a_log_behind_its_snapshot() {
        let mut disk = Disk::default();
        let mut log = MemLog::create(&mut disk, BASE);
        for step in 0..100 {
            append(&mut log, 1, &format!("entry {step}"));
        }
        write_all(&mut log, &mut disk);
        sync(&mut log, &mut disk);
        let files = disk.segments().len();
        let snapshot = EntryId {
            term: Term(1),
            index: LogIndex(180),
        };
        log.compact(snapshot);
        assert_eq!(log.base().index, LogIndex(140));
        // The next segments are made from those that the snapshot covers.
        for step in 100..120 {
            append(&mut log, 1, &format!("entry {step}"));
        }
        write_all(&mut log, &mut disk);
        sync(&mut log, &mut disk);
        assert!(disk.segments().len() < files);
        assert!(disk.segments().iter().any(|file| file.prior_use.0 > 0));
        let bugs = RecoveryBugs::default();
        let back = MemLog::recover(&mut disk, Some(snapshot), true, bugs).expect("no corruption");
        assert_eq!((back.log.base(), back.log.last()), (snapshot, log.last()));
        assert_eq!(back.extents.len(), 40);
    }

    #[test]
    fn without_room_for_a_segment_what_is_asked_for_waits_and_then_comes_in_order() {
        let mut disk = Disk::default();
        let mut log = MemLog::create(&mut disk, BASE);
        write_all(&mut log, &mut disk);
        disk.fill(0);
        for step in 0..50 {
            append(&mut log, 1, &format!("entry {step}"));
            while let Some(write) = log.take_write() {
                disk.write(write.use_number, write.offset, &write.bytes);
                log.written(&write.summary);
            }
        }
        assert!(log.wants_spare() && log.make_spare(&mut disk) == Err(NoRoom));
        log.mark_if_needed(Epoch(0));
        assert!(!log.has_writes(), "nothing goes before what waits");
        let from = LogIndex(log.last().index.0 - 3);
        log.truncate(from, Term(1), Epoch(1));
        append(&mut log, 2, "another");
        disk.make_room();
        write_all(&mut log, &mut disk);
        sync(&mut log, &mut disk);
        let bugs = RecoveryBugs::default();
        let back = MemLog::recover(&mut disk, None, true, bugs).expect("no corruption");
        assert_eq!(back.log.last(), log.last());
        for index in BASE.index.0 + 1..=from.0 {
            let payload = |log: &MemLog| log.entry(LogIndex(index)).map(|e| e.payload.clone());
            assert_eq!(payload(&back.log), payload(&log), "{index}");
        }
    }
}
