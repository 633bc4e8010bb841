//! A log whose disk is a vector of bytes per segment.

use crate::batch::{BatchSummary, Control, EntryKind};
use crate::limits::{MIN_SEGMENT_BYTES, SEGMENT_HEADER_BYTES};
use crate::raft::{Config, Replacement, Slot};
use crate::scan::{Scan, SegmentBytes, Verdict};
use crate::types::{ClusterId, LogIndex, NodeId, Position, Term, UseNumber};
use crate::writer::{Planner, Room, Start};

pub(super) const CLUSTER: ClusterId = ClusterId([7; 16]);
/// The index before the first entry.
pub(super) const BASE: LogIndex = LogIndex(1000);

/// A segment's bytes and what may lie behind them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disk {
    pub use_number: UseNumber,
    pub prior_use: UseNumber,
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct MemLog {
    pub planner: Planner,
    pub disks: Vec<Disk>,
    pub batches: Vec<BatchSummary>,
}

/// What a scan kept, and its verdict.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub verdict: Verdict,
    pub batches: u64,
    pub entries: u64,
    pub end: Position,
}

impl MemLog {
    /// A log that begins in the use with that number, its first batch (a Reset) synced.
    pub fn in_use(use_number: u32) -> Self {
        let use_number = UseNumber(use_number);
        let room = Room {
            use_number,
            segment_bytes: MIN_SEGMENT_BYTES,
        };
        let planner = Planner::new(Start {
            cluster_id: CLUSTER,
            active: room,
            offset: SEGMENT_HEADER_BYTES as u32,
            previous_crc: 0,
            next_index: BASE.next(),
            last_term: Term(0),
            carried: Position::ZERO,
            ceiling: None,
        });
        let bytes = vec![0; MIN_SEGMENT_BYTES as usize];
        let disk = Disk {
            use_number,
            prior_use: UseNumber(0),
            bytes,
        };
        let mut log = Self {
            planner,
            disks: vec![disk],
            batches: Vec::new(),
        };
        log.control(Control::Reset {
            index: BASE,
            term: Term(0),
        });
        log.sync();
        log
    }

    pub fn new() -> Self {
        Self::in_use(1)
    }

    pub fn control(&mut self, control: Control) -> BatchSummary {
        let batch = self.planner.begin(Vec::new(), Some(control));
        self.write(batch, false)
    }

    pub fn append(&mut self, payloads: &[&[u8]]) -> BatchSummary {
        let mut batch = self.planner.begin(Vec::new(), None);
        for payload in payloads {
            batch
                .push(EntryKind::Command, Term(1), payload)
                .expect("room");
        }
        self.write(batch, false)
    }

    /// Configurations, each in a record of its own, behind a command.
    pub fn append_configs(&mut self, configs: &[Config]) -> BatchSummary {
        let mut batch = self.planner.begin(Vec::new(), None);
        batch
            .push(EntryKind::Command, Term(1), b"before")
            .expect("room");
        for config in configs {
            let mut payload = Vec::new();
            config.encode(&mut payload);
            batch
                .push(EntryKind::Config, Term(1), &payload)
                .expect("room");
        }
        self.write(batch, false)
    }

    /// One entry, in a batch of about that many bytes on disk.
    pub fn append_bytes(&mut self, padded: usize) -> BatchSummary {
        let payload = vec![b'x'; padded - 256];
        let batch = self.append(&[&payload]);
        assert_eq!(batch.bytes as usize, padded);
        batch
    }

    pub fn mark(&mut self, clean_stop: bool) -> BatchSummary {
        let batch = self.planner.begin(Vec::new(), None);
        self.write(batch, clean_stop)
    }

    pub fn sync(&mut self) {
        self.planner.synced(self.planner.written_end());
    }

    pub fn write(&mut self, batch: crate::BatchBuilder, clean_stop: bool) -> BatchSummary {
        let last = self.disks.last().expect("one at least").use_number;
        let spare = Room {
            use_number: UseNumber(last.0 + 1),
            segment_bytes: MIN_SEGMENT_BYTES,
        };
        let planned = self
            .planner
            .plan(batch, Some(spare), clean_stop)
            .expect("the spare has room");
        if planned.rolled {
            self.disks.push(Disk {
                use_number: spare.use_number,
                prior_use: UseNumber(0),
                bytes: vec![0; MIN_SEGMENT_BYTES as usize],
            });
        }
        let at = planned.summary.position.offset() as usize;
        let disk = self.disks.last_mut().expect("one at least");
        disk.bytes[at..at + planned.bytes.len()].copy_from_slice(&planned.bytes);
        self.planner.written(&planned.summary);
        self.batches.push(planned.summary);
        planned.summary
    }

    pub fn bytes_of(&self, batch: &BatchSummary) -> Vec<u8> {
        let disk = self
            .disks
            .iter()
            .find(|d| d.use_number == batch.position.use_number());
        let at = batch.position.offset() as usize;
        disk.expect("there").bytes[at..at + batch.bytes as usize].to_vec()
    }
}

pub(super) fn scan(disks: &[Disk]) -> Scan {
    let mut scan = Scan::new(CLUSTER);
    for disk in disks {
        let (use_number, prior_use) = (disk.use_number, disk.prior_use);
        scan.segment(
            &SegmentBytes {
                use_number,
                prior_use,
                bytes: &disk.bytes,
            },
            |_| {},
        );
    }
    scan
}

pub(super) fn judge(disks: &[Disk], same_boot: bool) -> Outcome {
    let scan = scan(disks);
    Outcome {
        verdict: scan.verdict(same_boot),
        batches: scan.batches(),
        entries: scan.index().entries(),
        end: scan.end(),
    }
}

/// A configuration of three voters, told apart by its learners; every other one replaces a voter.
pub(super) fn config(n: u8) -> Config {
    let id = |n| NodeId([n; 16]);
    let replacement = (n % 2 == 1).then_some(Replacement {
        slot: Slot(n % 3),
        new: id(0xf0),
    });
    let learners = [id(0x10 + n), id(0x80 + n)];
    Config::joint(
        &[id(1), id(2), id(3)],
        replacement,
        &learners[..usize::from(n) % 3],
    )
    .expect("valid")
}

pub(super) fn is_torn(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::TornTail { .. })
}

pub(super) fn is_corrupt(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Corrupt { .. })
}
