//! Crashes on real folders: what is trimmed, what is refused, and what is never issued again.

mod common;

use std::fs;

use common::*;
use ticketing_raftlog::format::{batch_crc, crc_seed};
use ticketing_raftlog::limits::{CEILING_STEP, GAP_INDEXES};
use ticketing_raftlog::raft::{Config, ConfigEntry};
use ticketing_raftlog::{
    Control, Durability, EntryKind, Folder, LogIndex, LogReader, NodeId, OpenError, Opened,
    Position, Term, Verdict, blocking,
};

fn stop_cleanly(mut opened: Opened) {
    let log = &mut opened.log;
    let segments: Vec<_> = log.segments().cloned().collect();
    for segment in segments {
        segment.file().sync_all().expect("synced");
    }
    log.synced(log.written_end());
    let write = log.clean_stop_mark(Vec::new()).expect("room");
    blocking::append(log, write).expect("written");
    opened.store.record_clean_stop().expect("written");
}

/// A folder whose last batch, of two blocks, has lost its second one; and where that batch began.
fn torn_folder() -> (tempfile::TempDir, LogIndex, Position) {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    append(&mut opened.log, b"kept");
    let begin = opened.log.written_end();
    let lost = append_unsynced(&mut opened.log, &[9; 6000]);
    drop(opened);
    let at = begin.offset() as usize + 4096;
    damage(&segment_file(dir.path(), begin), |bytes| {
        bytes[at..at + 4096].fill(0)
    });
    (dir, lost, begin)
}

#[test]
fn a_torn_tail_is_trimmed_and_its_indexes_are_never_given_again() {
    for boot in [BOOT_A, BOOT_B] {
        let (dir, lost, begin) = torn_folder();
        let mut opened = open(dir.path(), boot);
        let trimmed = opened.recovery.trimmed.expect("a trim");
        assert_eq!(trimmed.at, begin);
        let next = lost.plus(GAP_INDEXES);
        assert_eq!(opened.recovery.gap, Some((lost, next)));
        assert_eq!(opened.recovery.last_index, next.previous());
        assert_eq!(append(&mut opened.log, b"after"), next);
        let expected = vec![
            (lost.previous(), b"kept".to_vec()),
            (next, b"after".to_vec()),
        ];
        assert_eq!(replay(&opened.log), expected);
        assert!(opened.log.locate(lost).is_none());
        let onward = opened.log.locate_at_or_after(lost).expect("behind the gap");
        assert_eq!(onward.first_index, next);
        drop(opened);
        let again = open(dir.path(), boot);
        assert_eq!((again.recovery.trimmed, again.recovery.gap), (None, None));
        assert_eq!(replay(&again.log), expected);
    }
}

#[test]
fn a_recovery_cut_short_after_any_step_ends_the_same() {
    let (torn, lost, begin) = torn_folder();
    let recovered = tempfile::tempdir().expect("a folder");
    copy_folder(torn.path(), recovered.path());
    drop(open(recovered.path(), BOOT_B));
    let from = begin.offset() as usize;
    let next = lost.plus(GAP_INDEXES);
    let old_state = fs::read(torn.path().join("state")).expect("readable");
    // The steps: the floor is recorded, the tail zeroed, the boot id recorded, the gap written.
    for (floor, zeroed, boot, gap) in [
        (true, false, false, false),
        (true, true, false, false),
        (true, true, true, false),
        (true, true, true, true),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        copy_folder(
            if zeroed {
                recovered.path()
            } else {
                torn.path()
            },
            dir.path(),
        );
        if floor {
            fs::copy(recovered.path().join("state"), dir.path().join("state")).expect("copied");
        }
        if !gap && zeroed {
            damage(&segment_file(dir.path(), begin), |bytes| {
                bytes[from..].fill(0)
            });
        }
        // Without its boot id recorded, this start is under yet another one.
        let boot_id = if boot {
            BOOT_B
        } else {
            ticketing_raftlog::BootId([0xe; 16])
        };
        let opened = open(dir.path(), boot_id);
        assert_eq!(opened.log.next_index(), next);
        assert_eq!(replay(&opened.log).len(), 1);
    }
    assert_ne!(
        old_state,
        fs::read(recovered.path().join("state")).expect("readable")
    );
}

#[test]
fn acknowledged_damage_stops_the_node_and_names_the_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let begin = opened.log.written_end();
    append(&mut opened.log, &[9; 6000]);
    let mark = opened.log.mark(Vec::new()).expect("room");
    blocking::append(&mut opened.log, mark).expect("written");
    drop(opened);
    let file = segment_file(dir.path(), begin);
    let whole = fs::read(&file).expect("readable");
    for boot in [BOOT_A, BOOT_B] {
        damage(&file, |bytes| bytes[begin.offset() as usize + 5000] ^= 1);
        let error = refusal(try_open(dir.path(), boot));
        let text = error.to_string();
        let OpenError::Corrupt {
            file: named,
            offset,
            ..
        } = error
        else {
            panic!("{text}")
        };
        assert_eq!((named, offset), (file.clone(), u64::from(begin.offset())));
        assert!(text.contains("replace this node"), "{text}");
        assert_ne!(
            fs::read(&file).expect("readable"),
            whole,
            "nothing is touched"
        );
        fs::write(&file, &whole).expect("written");
    }
    open(dir.path(), BOOT_B);
}

#[test]
fn what_no_mark_covers_is_written_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    append(&mut opened.log, b"a");
    append_unsynced(&mut opened.log, b"b");
    append_unsynced(&mut opened.log, b"c");
    let before = fs::read(segment_file(dir.path(), opened.log.written_end())).expect("readable");
    drop(opened);
    let opened = open(dir.path(), BOOT_A);
    assert_eq!(opened.recovery.rewritten_bytes, 2 * 4096);
    assert_eq!(replay(&opened.log).len(), 3);
    let after = fs::read(segment_file(dir.path(), opened.log.written_end())).expect("readable");
    assert_eq!(before, after);
}

#[test]
fn a_gap_without_room_in_its_segment_goes_into_the_next() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    while opened.log.written_end().offset() < ticketing_raftlog::limits::MIN_SEGMENT_BYTES {
        append(&mut opened.log, b"fill");
    }
    let next = opened.log.next_index();
    // Into the second segment, and lost there.
    let lost = append_unsynced(&mut opened.log, &[9; 6000]);
    let second = opened.log.written_end();
    drop(opened);
    damage(&segment_file(dir.path(), second), |bytes| {
        bytes[8192..12288].fill(0)
    });
    let opened = open(dir.path(), BOOT_B);
    assert_eq!(
        opened
            .recovery
            .trimmed
            .map(|trimmed| trimmed.segments_dropped),
        Some(1)
    );
    assert_eq!(opened.log.next_index(), lost.plus(GAP_INDEXES));
    assert_eq!(lost, next);
    assert_eq!(opened.log.segments().count(), 2);
    drop(opened);
    assert_eq!(
        open(dir.path(), BOOT_B).log.next_index(),
        lost.plus(GAP_INDEXES)
    );
}

#[test]
fn a_log_in_memory_survives_its_process() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open_memory(dir.path(), BOOT_A);
    assert_eq!(opened.recovery.ceiling, Some(FIRST.plus(CEILING_STEP)));
    assert_eq!(opened.log.ceiling_due(), None);
    append_unsynced(&mut opened.log, b"a");
    drop(opened);
    let opened = open_memory(dir.path(), BOOT_A);
    assert_eq!(opened.recovery.lost_memory_log, None);
    assert_eq!(replay(&opened.log).len(), 1);
    assert_eq!(opened.recovery.ceiling, Some(FIRST.plus(CEILING_STEP)));
}

#[test]
fn a_log_in_memory_is_lost_with_its_machine_and_no_token_comes_twice() {
    for durability in [Durability::Memory, Durability::Sync] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut opened = open_memory(dir.path(), BOOT_A);
        for _ in 0..40 {
            append_unsynced(&mut opened.log, &[1; 3000]);
        }
        let hard = ticketing_raftlog::HardState {
            term: Term(5),
            voted_for: None,
        };
        opened.store.write(&hard).expect("written");
        let ceiling = opened.recovery.ceiling.expect("there is one");
        drop(opened);
        // Whatever the disk still holds of it must not matter.
        damage(&dir.path().join("log/00000002.seg"), |bytes| {
            bytes[9000..20000].fill(0xff)
        });
        let opened =
            Folder::open_single(dir.path(), &options(BOOT_B, durability)).expect("it opens");
        assert_eq!(opened.recovery.lost_memory_log, Some(ceiling));
        assert_eq!(opened.log.next_index(), ceiling);
        assert_eq!(
            (opened.recovery.entries, opened.recovery.last_term),
            (0, Term(5))
        );
        assert_eq!(opened.hard_state, hard);
        assert_eq!(opened.log.segments().count(), 1);
        let raised = (durability == Durability::Memory).then(|| ceiling.plus(CEILING_STEP));
        assert_eq!(opened.recovery.ceiling, raised);
        drop(opened);
        let again = Folder::open_single(dir.path(), &options(BOOT_B, durability)).expect("opens");
        assert_eq!(
            (again.recovery.lost_memory_log, again.log.next_index()),
            (None, ceiling)
        );
    }
}

#[test]
fn a_lost_log_begins_higher_again_when_its_start_is_cut_short() {
    let dir = tempfile::tempdir().expect("a folder");
    let opened = open_memory(dir.path(), BOOT_A);
    let ceiling = opened.recovery.ceiling.expect("there is one");
    drop(opened);
    // The last use number there is: no new segment can be created.
    let last = dir.path().join("log/ffffffff.seg");
    fs::write(&last, "").expect("written");
    let refused = Folder::open_single(dir.path(), &options(BOOT_B, Durability::Memory));
    assert!(refusal(refused).to_string().contains("used up"));
    fs::remove_file(&last).expect("removed");
    let opened = open_memory(dir.path(), BOOT_B);
    assert_eq!(
        opened.recovery.lost_memory_log,
        Some(ceiling.plus(CEILING_STEP))
    );
}

#[test]
fn a_clean_stop_keeps_a_log_in_memory_until_the_next_run_begins() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open_memory(dir.path(), BOOT_A);
    append_unsynced(&mut opened.log, b"a");
    stop_cleanly(opened);
    let opened = open_memory(dir.path(), BOOT_B);
    assert!(opened.recovery.clean_stop && opened.recovery.lost_memory_log.is_none());
    assert_eq!(replay(&opened.log).len(), 1);
    drop(opened);
    // That run did not stop in good order, so what it did is lost.
    assert!(
        open_memory(dir.path(), BOOT_A)
            .recovery
            .lost_memory_log
            .is_some()
    );
}

#[test]
fn a_ceiling_raised_is_a_ceiling_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open_memory(dir.path(), BOOT_A);
    let raised = opened
        .recovery
        .ceiling
        .expect("there is one")
        .plus(CEILING_STEP);
    opened.store.raise_ceiling(raised).expect("written");
    opened.log.ceiling_raised(raised);
    drop(opened);
    assert_eq!(
        open_memory(dir.path(), BOOT_B).recovery.lost_memory_log,
        Some(raised)
    );
}

#[test]
fn memory_after_sync_takes_a_ceiling_above_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    assert_eq!(opened.recovery.ceiling, None);
    let last = append(&mut opened.log, b"a");
    drop(opened);
    let opened = open_memory(dir.path(), BOOT_B);
    assert_eq!(
        opened.recovery.ceiling,
        Some(last.next().plus(CEILING_STEP))
    );
    assert_eq!(replay(&opened.log).len(), 1);
}

#[test]
fn a_live_log_is_read_without_its_lock() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    for n in 0..30_u8 {
        append(&mut opened.log, &[n; 3000]);
    }
    let reader = LogReader::open(dir.path()).expect("it opens");
    assert_eq!(reader.identity(), &opened.identity);
    let report = reader.verify(BOOT_A).expect("readable");
    assert_eq!(report.verdict, Verdict::Clean);
    assert_eq!((report.entries, report.end), (30, opened.log.written_end()));
    assert_eq!(report.last_index, opened.log.next_index().previous());
    append(&mut opened.log, b"later");
    let mut seen = Vec::new();
    let collect = |file: &std::path::Path, batch: &ticketing_raftlog::BatchRef<'_>| {
        assert_eq!(file, reader.path_of(batch.position()));
        let entries = batch.records().filter(|(_, record)| record.kind.is_entry());
        seen.extend(entries.map(|(_, e)| (e.index, e.payload.to_vec())));
    };
    reader.for_each(&report, collect).expect("readable");
    assert_eq!(seen, replay(&opened.log)[..30]);
}

#[test]
fn reading_reports_damage_and_changes_nothing() {
    let (dir, _, begin) = torn_folder();
    let file = segment_file(dir.path(), begin);
    let before = fs::read(&file).expect("readable");
    let reader = LogReader::open(dir.path()).expect("it opens");
    let report = reader.verify(BOOT_B).expect("readable");
    assert!(matches!(report.verdict, Verdict::TornTail { at, .. } if at == begin));
    assert_eq!((report.entries, report.end), (1, begin));
    assert_eq!(fs::read(&file).expect("readable"), before);
    let nowhere = tempfile::tempdir().expect("a folder");
    let error = LogReader::open(nowhere.path()).expect_err("there is nothing");
    assert!(matches!(error, OpenError::Foreign { .. }));
    assert_eq!(fs::read_dir(nowhere.path()).expect("readable").count(), 0);
}

#[test]
fn a_log_that_is_written_while_it_is_read_is_never_called_corrupt() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    append(&mut opened.log, b"a");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for n in 0..300_usize {
                append(&mut opened.log, &vec![1; n * 20]);
            }
        });
        while !writer.is_finished() {
            let reader = LogReader::open(dir.path()).expect("it opens");
            let report = reader.verify(BOOT_A).expect("readable");
            assert!(
                !matches!(report.verdict, Verdict::Corrupt { .. }),
                "{report:?}"
            );
        }
    });
}

/// Appends a configuration with that learner.
fn append_config(opened: &mut Opened, learner: u8) -> ConfigEntry {
    let config = Config::new(&[opened.identity.node_id], &[NodeId([learner; 16])]).expect("valid");
    let mut payload = Vec::new();
    config.encode(&mut payload);
    let mut batch = opened.log.begin(Vec::new());
    let index = batch
        .push(EntryKind::Config, Term(1), &payload)
        .expect("room");
    let write = opened.log.finish(batch).expect("room");
    blocking::append(&mut opened.log, write).expect("written");
    ConfigEntry { index, config }
}

#[test]
fn a_start_finds_the_configurations_that_count() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    assert_eq!(opened.recovery.configs, []);
    let first = append_config(&mut opened, 8);
    append(&mut opened.log, b"a command");
    let truncated = append_config(&mut opened, 9);
    let control = Control::Truncate {
        from: truncated.index,
        previous_term: Term(1),
    };
    let batch = opened.log.begin_with(Vec::new(), control);
    let write = opened.log.finish(batch).expect("room");
    blocking::append(&mut opened.log, write).expect("written");
    let last = append_config(&mut opened, 10);
    assert_eq!(last.index, truncated.index);
    drop(opened);
    let opened = open(dir.path(), BOOT_A);
    assert_eq!(opened.recovery.configs, [first, last]);
}

#[test]
fn members_that_cannot_be_stop_the_node_and_name_the_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let begin = opened.log.written_end();
    append_config(&mut opened, 8);
    let seed = crc_seed(opened.identity.cluster_id, begin.use_number());
    drop(opened);
    let file = segment_file(dir.path(), begin);
    damage(&file, |bytes| {
        let batch = &mut bytes[begin.offset() as usize..][..4096];
        // Two voters, under a right checksum.
        batch[64 + 24] = 2;
        let crc = batch_crc(seed, batch);
        batch[8..12].copy_from_slice(&crc.to_le_bytes());
    });
    for boot in [BOOT_A, BOOT_B] {
        let error = refusal(try_open(dir.path(), boot));
        let text = error.to_string();
        let OpenError::Corrupt {
            file: named,
            offset,
            ..
        } = error
        else {
            panic!("{text}")
        };
        assert_eq!((named, offset), (file.clone(), u64::from(begin.offset())));
        assert!(text.contains("configuration"), "{text}");
    }
}
