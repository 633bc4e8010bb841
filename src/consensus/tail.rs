//! What the Raft core has asked to be appended and is not in the file yet: in order, and readable, since it
//! may have to be sent to peers before it is written here.

use std::collections::VecDeque;

use ticketing_raftlog::raft::Epoch;
use ticketing_raftlog::{
    BatchBuilder, Control, EntryKind, Log, LogIndex, RecordKind, RecordRef, Term,
};

use crate::limits::COMMITTED_RECORDS_PER_MESSAGE;

/// A change of the log.
#[derive(Debug)]
pub(super) enum Op {
    /// Its shape.
    Control(Control),
    /// More entries.
    Entries(Entries),
}

/// Consecutive entries of one term and kind.
#[derive(Debug)]
pub(super) struct Entries {
    /// The first one's index.
    pub first: LogIndex,
    /// How many.
    pub count: u32,
    /// Their records, as they lie in the log.
    pub records: Vec<u8>,
}

impl Entries {
    fn last(&self) -> LogIndex {
        self.first.plus(u64::from(self.count)).previous()
    }

    fn iter(&self) -> impl Iterator<Item = RecordRef<'_>> {
        let mut rest = &self.records[..];
        std::iter::from_fn(move || {
            let (record, bytes) = RecordRef::read(rest)?;
            rest = &rest[bytes..];
            Some(record)
        })
    }
}

/// What is on its way to the log.
#[derive(Debug, Default)]
pub(super) struct Tail {
    queue: VecDeque<(Op, Epoch)>,
    // What is in the batch that is being written, or waits for a segment.
    writing: Vec<Entries>,
    // The change of shape that such a batch begins with.
    writing_control: Option<Control>,
    writing_epoch: Epoch,
}

impl Tail {
    /// True when nothing waits for a batch.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Adds a change, asked for in that epoch.
    pub(super) fn push(&mut self, op: Op, epoch: Epoch) {
        self.queue.push_back((op, epoch));
    }

    /// The next batch, if anything waits: as much of it as fits, up to the next change of shape.
    pub(super) fn next_batch(&mut self, log: &Log, buffer: &mut Vec<u8>) -> Option<BatchBuilder> {
        let (first, epoch) = self.queue.front()?;
        let mut epoch = *epoch;
        let buffer = std::mem::take(buffer);
        let mut batch = match first {
            Op::Control(control) => {
                let batch = log.begin_with(buffer, *control);
                self.writing_control = Some(*control);
                self.queue.pop_front();
                batch
            }
            Op::Entries(_) => log.begin(buffer),
        };
        while let Some((Op::Entries(_), asked)) = self.queue.front() {
            let asked = *asked;
            let Some((Op::Entries(entries), _)) = self.queue.pop_front() else {
                unreachable!("it was just looked at");
            };
            let (taken, rest) = fill(&mut batch, entries);
            if taken.count > 0 {
                epoch = asked;
                self.writing.push(taken);
            }
            if let Some(rest) = rest {
                self.queue.push_front((Op::Entries(rest), asked));
                break;
            }
        }
        self.writing_epoch = epoch;
        Some(batch)
    }

    /// A batch of this node's own proposals is about to be written.
    pub(super) fn writes_own(&mut self, entries: Option<Entries>, epoch: Epoch) {
        self.writing.extend(entries);
        self.writing_epoch = epoch;
    }

    /// The batch is in the file: gives the epoch to report.
    pub(super) fn written(&mut self) -> Epoch {
        self.writing.clear();
        self.writing_control = None;
        self.writing_epoch
    }

    /// From here on what is in the file is of no account any more: a truncation that is still on its way
    /// to it has dropped it.
    pub(super) fn stale_from(&self) -> LogIndex {
        let queued = self.queue.iter().filter_map(|(op, _)| match op {
            Op::Control(control) => Some(*control),
            Op::Entries(_) => None,
        });
        let stale_from = |control| match control {
            Control::Truncate { from, .. } => from,
            Control::Reset { .. } | Control::Gap { .. } => LogIndex(0),
        };
        let on_their_way = queued.chain(self.writing_control);
        let first = on_their_way.map(stale_from).min();
        first.unwrap_or(LogIndex(u64::MAX))
    }

    /// The entries that hold the one at `index`, if it is not in the file yet, and the last of them that no
    /// later truncation drops.
    fn holding(&self, index: LogIndex) -> Option<(&Entries, LogIndex)> {
        let mut last = LogIndex(u64::MAX);
        let holds = |entries: &Entries, last: LogIndex| index >= entries.first && index <= last;
        for (op, _) in self.queue.iter().rev() {
            match op {
                Op::Control(control) => last = last.min(control.next_index().previous()),
                Op::Entries(entries) => {
                    let last = last.min(entries.last());
                    if holds(entries, last) {
                        return Some((entries, last));
                    }
                }
            }
        }
        self.writing.iter().rev().find_map(|entries| {
            let last = last.min(entries.last());
            holds(entries, last).then_some((entries, last))
        })
    }

    /// True while a snapshot's end of the log is on its way to the file.
    pub(super) fn begins_anew(&self) -> bool {
        self.stale_from() == LogIndex(0)
    }

    /// The records from the entry at `first` on that lie next to it, up to `last` and at most
    /// [`COMMITTED_RECORDS_PER_MESSAGE`], if they are not in the file yet.
    pub(super) fn held(&self, first: LogIndex, last: LogIndex) -> Option<Vec<u8>> {
        let (entries, counts) = self.holding(first)?;
        let last = last.min(counts);
        let mut bytes = Vec::new();
        entries
            .iter()
            .filter(|record| record.index >= first && record.index <= last)
            .take(COMMITTED_RECORDS_PER_MESSAGE)
            .for_each(|record| record.encode(&mut bytes));
        Some(bytes)
    }

    /// Calls `each` with the entries from `first` on, `count` of them, wherever they are; false when the
    /// log has not got all of them.
    pub(super) fn read(
        &self,
        log: &Log,
        first: LogIndex,
        count: u64,
        mut each: impl FnMut(RecordRef<'_>),
    ) -> bool {
        let end = first.plus(count);
        let stale_from = self.stale_from();
        let mut next = first;
        while next < end {
            let before = next;
            if let Some((entries, last)) = self.holding(next) {
                for record in entries.iter() {
                    if record.index == next && next < end && next <= last {
                        each(record);
                        next = next.next();
                    }
                }
            } else if next < stale_from
                && let Some(location) = log.locate(next)
            {
                for (_, record) in location.entries() {
                    let is_next = record.index == next && next < end && next < stale_from;
                    if is_next && self.holding(next).is_none() {
                        each(record);
                        next = next.next();
                    }
                }
            }
            if next == before {
                return false;
            }
        }
        true
    }
}

/// Moves as many entries into `batch` as fit: gives those, and the rest if there is one.
fn fill(batch: &mut BatchBuilder, entries: Entries) -> (Entries, Option<Entries>) {
    let mut offset = 0;
    let mut count = 0;
    for record in entries.iter() {
        if batch
            .push(entry_kind(record.kind), record.term, record.payload)
            .is_err()
        {
            break;
        }
        count += 1;
        let mut size = Vec::new();
        record.encode(&mut size);
        offset += size.len();
    }
    if count == entries.count {
        return (entries, None);
    }
    let mut taken = entries;
    let rest = Entries {
        first: taken.first.plus(u64::from(count)),
        count: taken.count - count,
        records: taken.records.split_off(offset),
    };
    taken.count = count;
    (taken, Some(rest))
}

fn entry_kind(kind: RecordKind) -> EntryKind {
    match kind {
        RecordKind::Noop => EntryKind::Noop,
        RecordKind::Command => EntryKind::Command,
        RecordKind::Config => EntryKind::Config,
        RecordKind::Truncate | RecordKind::Reset | RecordKind::Gap => {
            unreachable!("received entries are checked, and own ones are entries")
        }
    }
}

/// One entry of this node's own, beside commands.
pub(super) fn one(kind: RecordKind, term: Term, index: LogIndex, payload: &[u8]) -> Entries {
    let mut records = Vec::new();
    RecordRef {
        kind,
        term,
        index,
        payload,
    }
    .encode(&mut records);
    Entries {
        first: index,
        count: 1,
        records,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ticketing_raftlog::{Folder, OpenOptions, PendingWrite, blocking};

    /// A log with five entries of term 1, and the index of the first.
    fn log() -> (tempfile::TempDir, Folder, Log, LogIndex) {
        let dir = tempfile::tempdir().expect("a folder");
        let options = OpenOptions {
            now_unix_s: 1_790_000_000,
            segment_bytes: ticketing_raftlog::limits::MIN_SEGMENT_BYTES,
            ..OpenOptions::default()
        };
        let opened = Folder::open_single(&dir.path().join("data"), &options).expect("opened");
        let mut log = opened.log;
        let mut batch = log.begin(Vec::new());
        let first = batch.first_index();
        for entry in 0..5 {
            let pushed = batch.push(EntryKind::Command, Term(1), &[entry]);
            assert!(pushed.is_ok(), "there is room");
        }
        let write = sealed(&mut log, batch);
        blocking::append(&mut log, write).expect("appended");
        (dir, opened.folder, log, first)
    }

    fn sealed(log: &mut Log, batch: BatchBuilder) -> PendingWrite {
        match log.finish(batch) {
            Ok(write) => write,
            Err(_) => panic!("the segment has room"),
        }
    }

    fn entries(first: LogIndex, term: u64, count: u64) -> Entries {
        let mut records = Vec::new();
        for at in 0..count {
            let one = one(RecordKind::Command, Term(term), first.plus(at), b"new");
            records.extend_from_slice(&one.records);
        }
        Entries {
            first,
            count: u32::try_from(count).expect("few"),
            records,
        }
    }

    /// The terms of `count` entries from `first` on, if all of them are there.
    fn terms(tail: &Tail, log: &Log, first: LogIndex, count: u64) -> Option<Vec<u64>> {
        let mut terms = Vec::new();
        let all = tail.read(log, first, count, |record| terms.push(record.term.0));
        all.then_some(terms)
    }

    #[test]
    fn what_a_truncation_drops_is_gone_before_the_file_knows_it() {
        let (_dir, _folder, mut log, first) = log();
        let mut tail = Tail::default();
        assert_eq!(terms(&tail, &log, first, 5), Some(vec![1; 5]));
        assert_eq!(tail.stale_from(), LogIndex(u64::MAX));

        let from = first.plus(2);
        let control = Control::Truncate {
            from,
            previous_term: Term(1),
        };
        tail.push(Op::Control(control), Epoch(1));
        assert_eq!(tail.stale_from(), from);
        assert_eq!(terms(&tail, &log, first, 2), Some(vec![1; 2]));
        assert_eq!(terms(&tail, &log, first, 3), None, "the third is dropped");
        assert_eq!(terms(&tail, &log, from, 1), None);

        tail.push(Op::Entries(entries(from, 2, 2)), Epoch(1));
        assert_eq!(terms(&tail, &log, first, 4), Some(vec![1, 1, 2, 2]));
        assert_eq!(terms(&tail, &log, first, 5), None, "the fifth is dropped");

        // What is held is as it was, and nothing of the file.
        let held = |tail: &Tail, first: LogIndex, last: LogIndex| {
            let bytes = tail.held(first, last)?;
            let record = |bytes| RecordRef::read(bytes).map(|(record, _)| record.term.0);
            Some((record(&bytes[..])?, bytes.len()))
        };
        let one_long = one(RecordKind::Command, Term(2), from, b"new")
            .records
            .len();
        assert_eq!(held(&tail, first, from), None);
        assert_eq!(held(&tail, from, from), Some((2, one_long)));
        assert_eq!(held(&tail, from, from.plus(9)), Some((2, 2 * one_long)));
        assert_eq!(held(&tail, from.plus(2), from.plus(9)), None);

        // While the batch is on its way to the file, nothing is different.
        let batch = tail.next_batch(&log, &mut Vec::new()).expect("a batch");
        assert!(tail.is_empty());
        assert_eq!(tail.stale_from(), from);
        assert_eq!(terms(&tail, &log, first, 4), Some(vec![1, 1, 2, 2]));
        assert_eq!(terms(&tail, &log, first, 5), None);

        let write = sealed(&mut log, batch);
        blocking::append(&mut log, write).expect("appended");
        assert_eq!(tail.written(), Epoch(1));
        assert_eq!(tail.stale_from(), LogIndex(u64::MAX));
        assert_eq!(terms(&tail, &log, first, 4), Some(vec![1, 1, 2, 2]));
        assert_eq!(terms(&tail, &log, first, 5), None);
    }

    #[test]
    fn behind_a_snapshot_nothing_of_the_file_counts() {
        let (_dir, _folder, log, first) = log();
        let mut tail = Tail::default();
        let control = Control::Reset {
            index: first.plus(1),
            term: Term(2),
        };
        tail.push(Op::Control(control), Epoch(1));
        assert_eq!(tail.stale_from(), LogIndex(0));
        assert_eq!(terms(&tail, &log, first, 1), None);
        tail.push(Op::Entries(entries(first.plus(2), 2, 1)), Epoch(1));
        assert_eq!(terms(&tail, &log, first.plus(2), 1), Some(vec![2]));
    }

    #[test]
    fn entries_that_are_truncated_before_they_were_written_are_gone() {
        let (_dir, _folder, log, first) = log();
        let mut tail = Tail::default();
        tail.push(Op::Entries(entries(first.plus(5), 1, 3)), Epoch(0));
        let control = Control::Truncate {
            from: first.plus(6),
            previous_term: Term(1),
        };
        tail.push(Op::Control(control), Epoch(1));
        tail.push(Op::Entries(entries(first.plus(6), 3, 1)), Epoch(1));
        assert_eq!(terms(&tail, &log, first.plus(4), 3), Some(vec![1, 1, 3]));
        assert_eq!(terms(&tail, &log, first.plus(7), 1), None);
    }
}
