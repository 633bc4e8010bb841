//! A power cut: blocks that were written and not synced reach the disk in any order, or never.

use super::memlog::{MemLog, is_corrupt, judge};
use crate::limits::BLOCK_BYTES;
use crate::scan::Verdict;

#[test]
fn whichever_blocks_reached_the_disk_the_whole_batches_before_the_first_hole_count() {
    let mut log = MemLog::new();
    log.append_bytes(BLOCK_BYTES);
    log.sync();
    let synced = log.planner.written_end().offset() as usize;
    let unsynced = [1, 3, 1, 2];
    for blocks in unsynced {
        log.append_bytes(blocks * BLOCK_BYTES);
    }
    let blocks: usize = unsynced.iter().sum();
    for arrived in 0..1_u32 << blocks {
        let mut disks = log.disks.clone();
        for block in (0..blocks).filter(|block| arrived & 1 << block == 0) {
            let at = synced + block * BLOCK_BYTES;
            disks[0].bytes[at..at + BLOCK_BYTES].fill(0);
        }
        let (mut whole, mut before) = (0, 0);
        for batch in unsynced {
            let mask = ((1 << batch) - 1) << before;
            if arrived & mask != mask {
                break;
            }
            whole += 1;
            before += batch;
        }
        let outcome = judge(&disks, false);
        assert!(
            !is_corrupt(outcome.verdict),
            "{arrived:b}: {:?}",
            outcome.verdict
        );
        assert_eq!(outcome.batches, 2 + whole, "{arrived:b}");
        let nothing_behind = arrived >> before == 0;
        assert_eq!(
            outcome.verdict == Verdict::Clean,
            nothing_behind,
            "{arrived:b}"
        );
    }
}

#[test]
fn a_trim_cut_short_at_any_block_is_judged_as_before() {
    // Damage above the mark with whole batches behind it, over two segments. A trim zeroes the
    // first one's tail and drops the second; a crash in between leaves any part of that undone.
    let mut log = MemLog::new();
    log.append_bytes(BLOCK_BYTES);
    log.sync();
    let torn = log.append_bytes(2 * BLOCK_BYTES);
    while log.disks.len() == 1 {
        log.append_bytes(3 * BLOCK_BYTES);
    }
    let from = torn.position.offset() as usize;
    log.disks[0].bytes[from + BLOCK_BYTES..from + 2 * BLOCK_BYTES].fill(0);
    let first = judge(&log.disks, false);
    assert_eq!(first.batches, 2);
    for dropped in [false, true] {
        for zeroed in (from..=log.disks[0].bytes.len()).step_by(BLOCK_BYTES) {
            for from_the_end in [false, true] {
                let mut disks = log.disks.clone();
                if dropped {
                    disks.pop();
                }
                let size = disks[0].bytes.len();
                let range = if from_the_end {
                    from + size - zeroed..size
                } else {
                    from..zeroed
                };
                disks[0].bytes[range].fill(0);
                let again = judge(&disks, false);
                assert!(!is_corrupt(again.verdict), "{again:?}");
                assert_eq!((again.batches, again.end), (first.batches, first.end));
            }
        }
    }
}
