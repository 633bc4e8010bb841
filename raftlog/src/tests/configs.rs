//! The configurations that a log is recovered with, whole and under damage.

use super::memlog::{BASE, Disk, MemLog, config, is_corrupt, is_torn, scan};
use crate::batch::{BatchSummary, Control};
use crate::format::{BATCH_HEADER_BYTES, batch_crc, crc_seed};
use crate::limits::BLOCK_BYTES;
use crate::raft::ConfigEntry;
use crate::scan::{Scan, Verdict};
use crate::snapshot::SnapshotMeta;
use crate::types::{LogIndex, Position, Term, UseNumber};

fn at(index: LogIndex, n: u8) -> ConfigEntry {
    let config = config(n);
    ConfigEntry { index, config }
}

/// Where the configurations of such a batch are: behind its command.
fn places(batch: &BatchSummary) -> impl Iterator<Item = LogIndex> + use<> {
    let first = batch.first_index;
    (1..u64::from(batch.entries)).map(move |n| first.plus(n))
}

/// Four batches with one, two, one and two configurations, between commands; and all of them.
fn log_with_configs() -> (MemLog, Vec<ConfigEntry>) {
    let (mut log, mut n, mut expected) = (MemLog::new(), 0, Vec::new());
    for count in [1, 2, 1, 2] {
        let configs: Vec<_> = (n..n + count).map(config).collect();
        let batch = log.append_configs(&configs);
        expected.extend(places(&batch).zip(n..).map(|(index, n)| at(index, n)));
        n += count;
        log.append(&[b"a command", b""]);
        log.sync();
    }
    (log, expected)
}

/// The configurations that were written in batches which a scan counts.
fn within(all: &[ConfigEntry], scan: &Scan) -> Vec<ConfigEntry> {
    let next = scan.index().next_index();
    let kept = all.iter().filter(|entry| entry.index < next);
    kept.copied().collect()
}

#[test]
fn the_configurations_of_a_log_are_found_where_they_stand() {
    let (log, expected) = log_with_configs();
    let scan = scan(&log.disks);
    assert_eq!(scan.verdict(true), Verdict::Clean);
    assert_eq!(scan.configs(), expected);
    assert_eq!(expected.len(), 6);
}

#[test]
fn what_is_truncated_or_reset_does_not_count() {
    let (mut log, mut expected) = log_with_configs();
    // From the second one of the second batch on: the first one there stays.
    let from = expected[2].index;
    log.control(Control::Truncate {
        from,
        previous_term: Term(1),
    });
    expected.truncate(2);
    assert_eq!(scan(&log.disks).configs(), expected);
    let batch = log.append_configs(&[config(9)]);
    expected.push(at(batch.first_index.next(), 9));
    assert_eq!(scan(&log.disks).configs(), expected);
    log.control(Control::Reset {
        index: BASE.plus(500),
        term: Term(1),
    });
    assert_eq!(scan(&log.disks).configs(), []);
    let batch = log.append_configs(&[config(3)]);
    assert_eq!(
        scan(&log.disks).configs(),
        [at(batch.first_index.next(), 3)]
    );
}

#[test]
fn behind_a_snapshot_they_are_found_as_well() {
    let (log, expected) = log_with_configs();
    let covered = log.batches[3];
    let meta = SnapshotMeta {
        index: covered.next_index().previous(),
        term: Term(1),
        position: covered.end(),
    };
    let mut scan = Scan::behind(super::memlog::CLUSTER, meta);
    for disk in &log.disks {
        let segment = crate::SegmentBytes {
            use_number: disk.use_number,
            prior_use: disk.prior_use,
            bytes: &disk.bytes,
        };
        scan.segment(&segment, |_| {});
    }
    assert_eq!(scan.configs(), expected);
}

fn batch_bytes<'a>(disks: &'a mut [Disk], batch: &BatchSummary) -> &'a mut [u8] {
    let at = batch.position.offset() as usize;
    let disk = disks
        .iter_mut()
        .find(|disk| disk.use_number == batch.position.use_number());
    &mut disk.expect("there").bytes[at..at + batch.bytes as usize]
}

#[test]
fn the_last_three_batches_cut_at_every_byte_leave_the_configurations_before() {
    let (log, expected) = log_with_configs();
    let mut last = log.batches.clone();
    for behind in 0..3 {
        let Some(batch) = last.pop() else {
            panic!("there are more");
        };
        for keep in 0..batch.bytes as usize {
            let mut disks = log.disks.clone();
            let lost = log.batches.iter().rev().take(behind);
            for later in lost {
                batch_bytes(&mut disks, later).fill(0);
            }
            batch_bytes(&mut disks, &batch)[keep..].fill(0);
            let scan = scan(&disks);
            assert_eq!(scan.configs(), within(&expected, &scan), "{keep} kept");
            assert_eq!(scan.end(), batch.position);
            for same_boot in [false, true] {
                let verdict = scan.verdict(same_boot);
                match keep {
                    0 => assert_eq!(verdict, Verdict::Clean),
                    _ => assert!(is_torn(verdict), "{keep} kept: {verdict:?}"),
                }
            }
        }
    }
    assert_eq!(last.len(), 6);
}

#[test]
fn a_flipped_bit_never_makes_another_configuration() {
    let (log, expected) = log_with_configs();
    for (behind, batch) in log.batches.iter().rev().take(3).enumerate() {
        for bit in 0..batch.bytes as usize * 8 {
            // Every bit of the records, and some of the padding.
            if bit / 8 > 700 && bit % 61 != 0 && bit / 8 < BLOCK_BYTES - 8 {
                continue;
            }
            let mut disks = log.disks.clone();
            batch_bytes(&mut disks, batch)[bit / 8] ^= 1 << (bit % 8);
            let scan = scan(&disks);
            assert_eq!(scan.configs(), within(&expected, &scan), "bit {bit}");
            assert_eq!(scan.end(), batch.position, "bit {bit}");
            assert!(is_corrupt(scan.verdict(true)), "bit {bit}");
            // After a power cut the last two, which no mark covers, may have been torn.
            let power_cut = scan.verdict(false);
            assert_eq!(is_corrupt(power_cut), behind > 1, "{power_cut:?}");
        }
    }
}

#[test]
fn malformed_members_in_a_whole_batch_are_corruption_at_its_place() {
    // Of the only record's payload: counts, slot, zero, and a member twice.
    let record = BATCH_HEADER_BYTES + 24 + 8 + 24;
    type Forgery = (&'static str, fn(&mut [u8]));
    let forgeries: [Forgery; 7] = [
        ("no voters", |members| members[0] = 0),
        ("two voters", |members| members[0] = 2),
        ("more learners than there are", |members| members[1] = 9),
        ("no such slot", |members| members[2] = 3),
        ("nobody in the place of a voter", |members| members[2] = 255),
        ("a byte that is zero", |members| members[3] = 1),
        ("somebody twice", |members| members.copy_within(4..20, 20)),
    ];
    for (what, forge) in forgeries {
        let mut log = MemLog::new();
        log.append_configs(&[config(0)]);
        let batch = log.append_configs(&[config(1)]);
        log.sync();
        let behind = log.append_configs(&[config(2)]);
        let bytes = batch_bytes(&mut log.disks, &batch);
        forge(&mut bytes[record..]);
        let crc = batch_crc(crc_seed(super::memlog::CLUSTER, UseNumber(1)), bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let scan = scan(&log.disks);
        assert_eq!(scan.configs().len(), 1, "{what}: only what was before");
        assert!(scan.end() == batch.position && scan.end() < behind.position);
        for same_boot in [false, true] {
            let Verdict::Corrupt { at, why } = scan.verdict(same_boot) else {
                panic!("{what} passed");
            };
            assert_eq!(at, Position::new(UseNumber(1), batch.position.offset()));
            assert!(why.contains("configuration"), "{what}: {why}");
        }
    }
}
