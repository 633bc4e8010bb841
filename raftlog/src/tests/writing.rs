//! Planning: rolling over, marks, ceilings, and the index of batches against a naive one.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;

use super::memlog::{BASE, CLUSTER, MemLog, scan};
use crate::batch::{Control, EntryKind};
use crate::limits::{
    BLOCK_BYTES, CEILING_MARGIN, CEILING_STEP, MIN_SEGMENT_BYTES, SEGMENT_HEADER_BYTES,
};
use crate::scan::Verdict;
use crate::types::{LogIndex, Position, Term, UseNumber};
use crate::writer::{Planner, Room, Start};

#[test]
fn without_a_spare_a_full_segment_changes_nothing() {
    let mut log = MemLog::new();
    while log.planner.written_end().offset() < MIN_SEGMENT_BYTES {
        log.append_bytes(BLOCK_BYTES);
    }
    let (next, end) = (log.planner.next_index(), log.planner.written_end());
    let mut batch = log.planner.begin(Vec::new(), None);
    batch
        .push(EntryKind::Command, Term(1), b"late")
        .expect("room");
    let batch = log
        .planner
        .plan(batch, None, false)
        .expect_err("there is no room");
    assert_eq!(
        (log.planner.next_index(), log.planner.written_end()),
        (next, end)
    );
    let summary = log.write(batch, false);
    assert_eq!(
        summary.position,
        Position::new(UseNumber(2), SEGMENT_HEADER_BYTES as u32)
    );
    assert_eq!(summary.first_index, next);
}

#[test]
fn two_batches_begun_at_once_cannot_both_be_finished() {
    let mut log = MemLog::new();
    let mut batches = [(); 2].map(|()| log.planner.begin(Vec::new(), None));
    for batch in &mut batches {
        batch.push(EntryKind::Noop, Term(1), &[]).expect("room");
    }
    let [first, second] = batches;
    log.write(first, false);
    assert!(catch_unwind(AssertUnwindSafe(|| log.planner.plan(second, None, false))).is_err());
}

#[test]
fn nothing_counts_as_synced_before_it_is_written() {
    let mut log = MemLog::new();
    let end = log.planner.written_end();
    let beyond = Position::new(end.use_number(), end.offset() + 1);
    assert!(catch_unwind(AssertUnwindSafe(|| log.planner.synced(beyond))).is_err());
}

#[test]
fn each_batch_carries_what_was_synced_before_it() {
    let mut log = MemLog::new();
    let first = log.append(&[b"a"]);
    log.append(&[b"b"]);
    assert!(scan(&log.disks).mark() < first.end());
    log.planner.synced(first.end());
    log.append(&[b"c"]);
    assert_eq!(scan(&log.disks).mark(), first.end());
    assert!(
        !log.planner.needs_mark(),
        "there is content that is not synced"
    );
    log.sync();
    assert!(log.planner.needs_mark());
}

fn with_ceiling(next: u64, ceiling: u64) -> Planner {
    Planner::new(Start {
        cluster_id: CLUSTER,
        active: Room {
            use_number: UseNumber(1),
            segment_bytes: MIN_SEGMENT_BYTES,
        },
        offset: 2 * BLOCK_BYTES as u32,
        previous_crc: 0,
        next_index: LogIndex(next),
        last_term: Term(1),
        carried: Position::ZERO,
        ceiling: Some(LogIndex(ceiling)),
    })
}

#[test]
fn a_ceiling_is_due_at_its_margin_and_not_before() {
    let ceiling = 1 << 30;
    let at_margin = ceiling - CEILING_MARGIN;
    assert_eq!(with_ceiling(at_margin - 1, ceiling).ceiling_due(), None);
    let mut planner = with_ceiling(at_margin, ceiling);
    assert_eq!(
        planner.ceiling_due(),
        Some(LogIndex(ceiling + CEILING_STEP))
    );
    planner.ceiling_raised(LogIndex(ceiling + CEILING_STEP));
    assert_eq!(planner.ceiling_due(), None);
}

#[test]
fn an_index_at_the_ceiling_is_never_given() {
    let mut planner = with_ceiling(99, 100);
    let mut batch = planner.begin(Vec::new(), None);
    batch.push(EntryKind::Noop, Term(1), &[]).expect("room");
    planner
        .plan(batch, None, false)
        .expect("99 is below the ceiling");
    let mut batch = planner.begin(Vec::new(), None);
    batch.push(EntryKind::Noop, Term(1), &[]).expect("room");
    assert!(catch_unwind(AssertUnwindSafe(|| planner.plan(batch, None, false))).is_err());
}

#[derive(Debug, Clone)]
enum Op {
    Append(u8),
    Truncate(u16),
    Gap(u16),
    Reset(u16),
    Mark,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (1..9_u8).prop_map(Op::Append),
        2 => any::<u16>().prop_map(Op::Truncate),
        1 => (1..500_u16).prop_map(Op::Gap),
        1 => any::<u16>().prop_map(Op::Reset),
        1 => Just(Op::Mark),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_rebuilt_index_knows_what_a_naive_log_knows(ops in prop::collection::vec(op(), 1..80)) {
        let mut log = MemLog::new();
        // Index to (term, payload); a base below which there is nothing.
        let mut model: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let (mut base, mut base_term, mut next, mut term) = (BASE.0, 0, BASE.0 + 1, 0);
        for (serial, op) in (1_u64..).zip(ops) {
            let last_term = model.last_key_value().map_or(base_term, |(_, entry)| entry.0);
            let control = match op {
                Op::Append(_) | Op::Mark => None,
                Op::Truncate(_) if next == base + 1 => continue,
                Op::Truncate(place) => {
                    next = base + 1 + u64::from(place) % (next - base - 1);
                    model.split_off(&next);
                    let previous = model.last_key_value().map_or(base_term, |(_, entry)| entry.0);
                    Some(Control::Truncate { from: LogIndex(next), previous_term: Term(previous) })
                }
                Op::Gap(skip) => {
                    next += u64::from(skip);
                    Some(Control::Gap { next: LogIndex(next), last_term: Term(last_term) })
                }
                Op::Reset(ahead) => {
                    model.clear();
                    (base, base_term) = (next + u64::from(ahead), last_term);
                    next = base + 1;
                    Some(Control::Reset { index: LogIndex(base), term: Term(base_term) })
                }
            };
            let count = if let Op::Append(count) = op { count } else { (serial % 3) as u8 };
            let mut batch = log.planner.begin(Vec::new(), control);
            if !matches!(op, Op::Mark) {
                term += serial % 2;
                for _ in 0..count {
                    let payload = serial.to_le_bytes();
                    let index = batch.push(EntryKind::Command, Term(term), &payload).expect("room");
                    prop_assert_eq!(index.0, next);
                    model.insert(next, (term, serial));
                    next += 1;
                }
            }
            log.write(batch, false);
        }
        let scan = scan(&log.disks);
        prop_assert_eq!(scan.verdict(true), Verdict::Clean);
        let index = scan.index();
        prop_assert_eq!((index.base().0, index.next_index().0), (base, next));
        prop_assert_eq!(index.entries(), model.len() as u64);
        prop_assert_eq!(index.base_term().0, base_term);
        let last_term = model.last_key_value().map_or(base_term, |(_, entry)| entry.0);
        prop_assert_eq!(index.last_term().0, last_term);
        let starts: BTreeMap<Position, usize> =
            log.batches.iter().enumerate().map(|(n, batch)| (batch.position, n)).collect();
        for at in base.saturating_sub(2)..next + 2 {
            let span = index.locate(LogIndex(at));
            prop_assert_eq!(span.is_some(), model.contains_key(&at), "index {}", at);
            let following = model.range(at..).next().map(|(index, _)| *index);
            let found = index.at_or_after(LogIndex(at)).map(|span| span.first.0.max(at));
            prop_assert_eq!(found, following);
            if let Some(span) = span {
                let batch = log.batches[starts[&span.position]];
                let bytes = log.bytes_of(&batch);
                let batch = crate::BatchRef::trusted(&bytes).expect("a batch");
                let record = batch.records().map(|(_, record)| record).find(|r| r.kind.is_entry() && r.index.0 == at);
                let record = record.expect("in the batch it was located in");
                let (term, serial) = model[&at];
                prop_assert_eq!((record.term.0, record.payload), (term, &serial.to_le_bytes()[..]));
            }
        }
    }
}

#[test]
fn a_buffer_goes_round_without_a_new_allocation() {
    let mut log = MemLog::new();
    let mut buffer = Vec::with_capacity(3 * BLOCK_BYTES);
    let room = buffer.as_ptr();
    for _ in 0..4 {
        let mut batch = log.planner.begin(buffer, None);
        for _ in 0..100 {
            batch
                .push(EntryKind::Command, Term(1), b"grant seat-14")
                .expect("room");
        }
        let planned = log.planner.plan(batch, None, false).expect("room");
        buffer = planned.bytes;
        assert_eq!(buffer.as_ptr(), room);
    }
}
