//! What a start makes of a disk: the real scan, its verdict, and what follows from it.

use std::collections::VecDeque;

use ticketing_raftlog::limits::{MIN_SEGMENT_BYTES, SEGMENT_HEADER_BYTES};
use ticketing_raftlog::raft::{AppendKind, ConfigEntry, EntryId, Extent, ExtentKind};
use ticketing_raftlog::{
    LogIndex, Planner, PlannerStart, Position, RecordKind, Room, Scan, SegmentBytes, SnapshotMeta,
    UseNumber, Verdict,
};

use super::{CLUSTER, MemLog};
use crate::node::journal::{Entry, Payload};
use crate::world::disk::Disk;

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
}
