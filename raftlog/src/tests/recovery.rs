//! Recovery's verdict under damage of every kind, on both sides of the boot id.

use proptest::prelude::*;

use super::memlog::{BASE, Disk, MemLog, is_corrupt, is_torn, judge, scan};
use crate::batch::{BatchSummary, Control};
use crate::format::BATCH_HEADER_BYTES;
use crate::limits::{BLOCK_BYTES, SEGMENT_HEADER_BYTES};
use crate::scan::Verdict;
use crate::types::{Position, Term, UseNumber};

/// Three batches behind the log's first, of one, three and two blocks; all but the last synced
/// when the last one was written, if `marked`.
fn three(marked: bool) -> MemLog {
    let mut log = MemLog::new();
    for (number, blocks) in [1, 3, 2].into_iter().enumerate() {
        log.append_bytes(blocks * BLOCK_BYTES);
        if marked || number == 0 {
            log.sync();
        }
    }
    log
}

/// The log with all of that batch but its first `keep` bytes still as the disk was before it.
fn cut(log: &MemLog, batch: &BatchSummary, keep: usize) -> Vec<Disk> {
    let mut disks = log.disks.clone();
    let at = batch.position.offset() as usize;
    let disk = disks
        .iter_mut()
        .find(|d| d.use_number == batch.position.use_number());
    disk.expect("there").bytes[at + keep..at + batch.bytes as usize].fill(0);
    disks
}

fn flip(disks: &mut [Disk], batch: &BatchSummary, bit: usize) {
    let at = batch.position.offset() as usize + bit / 8;
    let disk = disks
        .iter_mut()
        .find(|d| d.use_number == batch.position.use_number());
    disk.expect("there").bytes[at] ^= 1 << (bit % 8);
}

#[test]
fn a_whole_log_is_clean() {
    let log = three(true);
    for same_boot in [false, true] {
        let outcome = judge(&log.disks, same_boot);
        assert_eq!(outcome.verdict, Verdict::Clean);
        assert_eq!((outcome.batches, outcome.entries), (4, 3));
        assert_eq!(outcome.end, log.planner.written_end());
    }
    assert_eq!(scan(&log.disks).mark(), log.batches[2].end());
}

#[test]
fn the_last_batch_cut_at_every_byte_is_a_torn_tail() {
    let log = three(true);
    let last = log.batches[3];
    for keep in 0..last.bytes as usize {
        let disks = cut(&log, &last, keep);
        for same_boot in [false, true] {
            let outcome = judge(&disks, same_boot);
            assert_eq!(
                (outcome.batches, outcome.end),
                (3, last.position),
                "{keep} kept"
            );
            match keep {
                0 => assert_eq!(outcome.verdict, Verdict::Clean),
                _ => assert!(
                    is_torn(outcome.verdict),
                    "{keep} kept: {:?}",
                    outcome.verdict
                ),
            }
        }
    }
}

#[test]
fn a_batch_cut_at_every_byte_with_a_whole_one_behind_it() {
    for marked in [false, true] {
        let log = three(marked);
        let middle = log.batches[2];
        for keep in 0..middle.bytes as usize {
            let disks = cut(&log, &middle, keep);
            // The machine kept running, so nothing can have come out of order.
            assert!(is_corrupt(judge(&disks, true).verdict), "{keep} kept");
            // It went down: it depends on whether the batch was known to be synced.
            let outcome = judge(&disks, false);
            assert_eq!((outcome.batches, outcome.end), (2, middle.position));
            assert_eq!(
                is_corrupt(outcome.verdict),
                marked,
                "{keep} kept: {:?}",
                outcome.verdict
            );
            assert_eq!(is_torn(outcome.verdict), !marked);
        }
    }
}

#[test]
fn a_flipped_bit_in_the_last_batch_is_no_cut_off_write() {
    let log = three(true);
    let last = log.batches[3];
    let bits = last.bytes as usize * 8;
    for bit in (0..BATCH_HEADER_BYTES * 8)
        .chain((0..bits).step_by(61))
        .chain(bits - 64..bits)
    {
        let mut disks = log.disks.clone();
        flip(&mut disks, &last, bit);
        let outcome = judge(&disks, true);
        assert!(
            is_corrupt(outcome.verdict),
            "bit {bit}: {:?}",
            outcome.verdict
        );
        assert_eq!(outcome.batches, 3);
        // Nothing says that it was synced, so after a power cut it may be what was left.
        assert!(is_torn(judge(&disks, false).verdict), "bit {bit}");
    }
}

#[test]
fn a_flipped_bit_below_the_mark_is_corruption_and_named() {
    let log = three(true);
    for batch in &log.batches[..3] {
        let bits = batch.bytes as usize * 8;
        for bit in (0..BATCH_HEADER_BYTES * 8).chain((0..bits).step_by(1009)) {
            let mut disks = log.disks.clone();
            flip(&mut disks, batch, bit);
            for same_boot in [false, true] {
                let Verdict::Corrupt { at, .. } = judge(&disks, same_boot).verdict else {
                    panic!("bit {bit} of {:?} passed", batch.position);
                };
                assert!(
                    at >= batch.position && at < batch.end(),
                    "{at:?} for {batch:?}"
                );
            }
        }
    }
}

#[test]
fn an_idle_mark_turns_damage_into_corruption() {
    let mut log = MemLog::new();
    let content = log.append_bytes(2 * BLOCK_BYTES);
    log.sync();
    let without_mark = cut(&log, &content, BLOCK_BYTES);
    assert!(is_torn(judge(&without_mark, false).verdict));
    assert!(log.planner.needs_mark());
    log.mark(false);
    log.sync();
    assert!(!log.planner.needs_mark(), "a mark is not marked again");
    let with_mark = cut(&log, &content, BLOCK_BYTES);
    assert!(is_corrupt(judge(&with_mark, false).verdict));
}

#[test]
fn a_clean_stop_is_seen_until_something_follows() {
    let mut log = MemLog::new();
    log.append(&[b"a"]);
    log.sync();
    log.mark(true);
    assert!(scan(&log.disks).ends_in_clean_stop());
    log.append(&[b"b"]);
    assert!(!scan(&log.disks).ends_in_clean_stop());
}

#[test]
fn bytes_of_an_earlier_use_are_never_accepted() {
    // The earlier use filled the segment with batches that would continue any log of its own.
    let mut earlier = MemLog::in_use(3);
    while earlier.disks.len() == 1 {
        earlier.append_bytes(BLOCK_BYTES);
        earlier.sync();
    }
    let mut log = MemLog::in_use(9);
    let kept = [
        log.append_bytes(BLOCK_BYTES),
        log.append_bytes(2 * BLOCK_BYTES),
    ];
    log.sync();
    let last = log.append_bytes(2 * BLOCK_BYTES);
    let written = log.planner.written_end().offset() as usize;
    let stale = &earlier.disks[0].bytes;
    let disk = &mut log.disks[0];
    disk.prior_use = UseNumber(3);
    disk.bytes[written..].copy_from_slice(&stale[written..]);
    for same_boot in [false, true] {
        let outcome = judge(&log.disks, same_boot);
        assert_eq!((outcome.verdict, outcome.batches), (Verdict::Clean, 4));
        assert_eq!(outcome.end.offset() as usize, written);
    }
    let at = last.position.offset() as usize;
    for keep in 0..last.bytes as usize {
        let mut disks = log.disks.clone();
        disks[0].bytes[at + keep..written].copy_from_slice(&stale[at + keep..written]);
        if disks == log.disks {
            // The last bytes of both uses' trailers are the same.
            continue;
        }
        for same_boot in [false, true] {
            let outcome = judge(&disks, same_boot);
            assert_eq!(outcome.end, kept[1].end(), "{keep} kept");
            assert!(
                !is_corrupt(outcome.verdict),
                "{keep} kept: {:?}",
                outcome.verdict
            );
            // With magic and position there, it is known that something was begun.
            assert!(keep < 24 || is_torn(outcome.verdict));
        }
    }
}

#[test]
fn in_a_zero_filled_segment_any_other_byte_is_damage() {
    let log = three(true);
    let end = log.planner.written_end().offset() as usize;
    for (at, same_boot_is_corrupt) in [
        (end, false),
        (end + BLOCK_BYTES - 1, false),
        (end + BLOCK_BYTES, true),
    ] {
        let mut disks = log.disks.clone();
        disks[0].bytes[at] = 1;
        assert!(is_torn(judge(&disks, false).verdict));
        assert_eq!(
            is_corrupt(judge(&disks, true).verdict),
            same_boot_is_corrupt,
            "at {at}"
        );
    }
}

/// A log over three segments, with everything but its last batch synced.
fn rolled() -> MemLog {
    let mut log = MemLog::new();
    while log.disks.len() < 3 {
        log.sync();
        log.append_bytes(3 * BLOCK_BYTES);
    }
    log
}

#[test]
fn a_log_goes_on_from_segment_to_segment() {
    let log = rolled();
    let scan = scan(&log.disks);
    assert_eq!(scan.verdict(true), Verdict::Clean);
    assert_eq!(scan.kept().len(), 3);
    assert_eq!(scan.batches() as usize, log.batches.len());
    let mut with_spare = log.disks.clone();
    let bytes = vec![0; with_spare[0].bytes.len()];
    with_spare.push(Disk {
        use_number: UseNumber(4),
        prior_use: UseNumber(0),
        bytes,
    });
    assert_eq!(judge(&with_spare, true).verdict, Verdict::Clean);
}

#[test]
fn the_first_batch_of_a_segment_cut_off_is_a_torn_tail() {
    let log = rolled();
    let last = log.batches.last().expect("some");
    assert_eq!(last.position.offset() as usize, SEGMENT_HEADER_BYTES);
    for keep in (1..last.bytes as usize).step_by(97) {
        let disks = cut(&log, last, keep);
        for same_boot in [false, true] {
            let outcome = judge(&disks, same_boot);
            assert!(
                is_torn(outcome.verdict),
                "{keep} kept: {:?}",
                outcome.verdict
            );
            assert_eq!(outcome.end.use_number(), UseNumber(2));
        }
    }
}

#[test]
fn a_missing_segment_is_corruption() {
    for missing in [0, 1] {
        let mut disks = rolled().disks;
        disks.remove(missing);
        for same_boot in [false, true] {
            assert!(
                is_corrupt(judge(&disks, same_boot).verdict),
                "without {missing}"
            );
        }
    }
    for same_boot in [false, true] {
        assert!(is_corrupt(judge(&[], same_boot).verdict));
    }
}

#[test]
fn damage_in_an_earlier_segment_is_corruption() {
    let log = rolled();
    let batch = log.batches[2];
    assert_eq!(batch.position.use_number(), UseNumber(1));
    let mut disks = log.disks.clone();
    flip(&mut disks, &batch, 8 * 100);
    let Verdict::Corrupt { at, .. } = judge(&disks, false).verdict else {
        panic!("damage passed");
    };
    assert_eq!(at, batch.position);
}

#[test]
fn a_right_checksum_over_wrong_content_is_corruption_whatever_the_boot() {
    let mut log = MemLog::new();
    log.append(&[b"a"]);
    // A gap that goes backwards: no writer makes it, so it can only be written by force.
    let wrong = Control::Gap {
        next: BASE,
        last_term: Term(1),
    };
    let batch = log.planner.begin(Vec::new(), Some(wrong));
    let at = log.write(batch, false).position;
    for same_boot in [false, true] {
        let Verdict::Corrupt { at: named, .. } = judge(&log.disks, same_boot).verdict else {
            panic!("it passed");
        };
        assert_eq!(named, at);
    }
}

#[test]
fn a_log_must_begin_with_a_reset() {
    let mut disks = three(true).disks;
    // Without the first batch the next ones are whole, and follow on nothing.
    let block = SEGMENT_HEADER_BYTES..SEGMENT_HEADER_BYTES + BLOCK_BYTES;
    disks[0].bytes[block].fill(0);
    for same_boot in [false, true] {
        assert!(is_corrupt(judge(&disks, same_boot).verdict));
    }
}

#[test]
fn two_damaged_batches_are_more_than_one_cut_off_write() {
    let mut log = three(true);
    let size = 2 * BLOCK_BYTES;
    let batches = [log.batches[3], log.append_bytes(size)];
    let mut disks = log.disks.clone();
    for batch in batches {
        let end = batch.end().offset() as usize;
        disks[0].bytes[end - BLOCK_BYTES..end].fill(0);
    }
    assert!(is_corrupt(judge(&disks, true).verdict));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_damage_makes_recovery_panic_or_keep_what_was_never_written(
        sizes in prop::collection::vec((1..4_usize, any::<bool>()), 1..30),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 1..5000_usize), 0..4),
        same_boot in any::<bool>(),
    ) {
        let mut log = MemLog::new();
        for (blocks, synced) in sizes {
            log.append_bytes(blocks * BLOCK_BYTES);
            if synced {
                log.sync();
            }
        }
        let mut disks = log.disks.clone();
        for (place, byte, length) in damage {
            let disk = &mut disks[place.index(log.disks.len())];
            let room = disk.bytes.len() - SEGMENT_HEADER_BYTES;
            let from = SEGMENT_HEADER_BYTES + place.index(room);
            let to = (from + length).min(disk.bytes.len());
            disk.bytes[from..to].fill(byte);
        }
        let scan = scan(&disks);
        let batches = scan.batches() as usize;
        prop_assert!(batches <= log.batches.len());
        let end = log.batches[..batches].last().map_or(Position::ZERO, BatchSummary::end);
        prop_assert_eq!(scan.end(), end);
        match scan.verdict(same_boot) {
            // Bytes may have been damaged into what they were.
            Verdict::Clean => prop_assert!(batches == log.batches.len() || scan.mark() <= end),
            Verdict::TornTail { at, .. } => prop_assert!(at >= end && scan.mark() <= end),
            Verdict::Corrupt { at, .. } => prop_assert!(at >= end),
        }
    }
}
