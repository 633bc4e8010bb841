//! Snapshots and recycling on real folders: what covers what, what is refused, what is bounded.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::*;
use ticketing_raftlog::limits::{MAX_RETIRED_SEGMENTS, MIN_SEGMENT_BYTES};
use ticketing_raftlog::raft::{Config, ConfigEntry};
use ticketing_raftlog::{
    Durability, Folder, Log, LogIndex, LogReader, NodeId, OpenError, OpenOptions, Opened,
    SnapshotMeta, SnapshotWriter, Term, Verdict, blocking,
};

/// Five of these fill a segment.
const PAYLOAD: [u8; 12_000] = [b'x'; 12_000];

/// In force since some entries before the snapshot.
fn configured(last: LogIndex) -> ConfigEntry {
    ConfigEntry {
        index: LogIndex(last.0 - 3),
        config: Config::new(&[NodeId([9; 16])], &[]).expect("valid"),
    }
}

fn write_snapshot(log: &Log, index: LogIndex) -> SnapshotMeta {
    let spec = log.snapshot_spec(index, configured(index));
    let mut writer = SnapshotWriter::create(&spec).expect("room");
    writer.chunk(1, b"one").expect("room");
    writer.chunk(1, b"two").expect("room");
    writer.finish().expect("room");
    spec.meta
}

fn snapshot(log: &mut Log, index: LogIndex) {
    let meta = write_snapshot(log, index);
    log.recycle(&meta);
}

fn fill(log: &mut Log, entries: usize) -> LogIndex {
    (0..entries)
        .map(|_| append(log, &PAYLOAD))
        .last()
        .expect("one at least")
}

fn snapshot_file(dir: &Path, index: LogIndex) -> PathBuf {
    dir.join("snapshots").join(format!("{:016x}.snap", index.0))
}

fn segment_files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir.join("log"))
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    names
}

/// Two snapshots, the newer at the last entry, and segments recycled behind it.
fn recycled(dir: &Path) -> (Opened, LogIndex) {
    let mut opened = open(dir, BOOT_A);
    for _ in 0..2 {
        let last = fill(&mut opened.log, 7);
        snapshot(&mut opened.log, last);
    }
    let covered = opened.log.index().base();
    fill(&mut opened.log, 2);
    (opened, covered)
}

#[test]
fn a_start_goes_on_from_the_snapshot() {
    let dir = tempfile::tempdir().expect("a folder");
    let (opened, covered) = recycled(dir.path());
    let (next, behind) = (opened.log.next_index(), replay(&opened.log));
    assert_eq!(behind.len(), 2);
    assert_eq!(opened.log.term_at(covered), Some(Term(1)));
    assert!(opened.log.locate(covered).is_none());
    drop(opened);
    for boot in [BOOT_A, BOOT_B] {
        let mut opened = open(dir.path(), boot);
        let snapshot = opened.snapshot.as_mut().expect("a snapshot");
        assert_eq!((snapshot.meta().index, snapshot.items()), (covered, 2));
        assert_eq!(snapshot.path(), snapshot_file(dir.path(), covered));
        let mut bodies = Vec::new();
        let mut body = Vec::new();
        while let Some(items) = snapshot.next_chunk(&mut body).expect("whole") {
            bodies.push((items, body.clone()));
        }
        assert_eq!(bodies, [(1, b"one".to_vec()), (1, b"two".to_vec())]);
        assert_eq!(replay(&opened.log), behind);
        assert_eq!(
            (opened.log.next_index(), opened.recovery.entries),
            (next, 2)
        );
        assert_eq!(opened.recovery.first_index, covered.next());
        assert_eq!(opened.log.term_at(covered), Some(Term(1)));
    }
}

#[test]
fn files_and_the_index_of_batches_stay_bounded() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    for round in 0..40 {
        let last = fill(&mut opened.log, 6);
        snapshot(&mut opened.log, last);
        // In use: two, as a round fills more than one; the spare; two that are kept.
        assert!(segment_files(dir.path()).len() <= 6, "round {round}");
        assert_eq!(segment_files(dir.path()).len(), opened.log.segment_files());
        assert!(opened.log.index().spans().is_empty());
        assert_eq!(opened.log.bytes_behind(last), 0);
    }
    assert!(opened.log.written_end().use_number().0 > 40);
    assert_eq!(
        fs::read_dir(dir.path().join("snapshots"))
            .expect("a folder")
            .count(),
        1
    );
    let last = fill(&mut opened.log, 1);
    assert_eq!(opened.log.bytes_behind(last.previous()), 12_288);
}

#[test]
fn only_as_many_segments_as_asked_for_are_kept_and_the_bound_holds() {
    for keep in [0, 1, 3] {
        let dir = tempfile::tempdir().expect("a folder");
        let options = OpenOptions {
            retired_segments: keep,
            ..options(BOOT_A, Durability::Sync)
        };
        let mut opened = Folder::open_single(dir.path(), &options).expect("it opens");
        let last = fill(&mut opened.log, 31);
        assert_eq!(opened.log.segments().count(), 7);
        snapshot(&mut opened.log, last);
        assert_eq!(opened.log.segments().count(), 1);
        // The next spare is the first to be wanted, once this one is in use.
        fill(&mut opened.log, 5);
        blocking::ensure_spare(&mut opened.log).expect("room");
        // Two in use, the spare, and those kept but the one that became it.
        assert_eq!(
            segment_files(dir.path()).len(),
            3 + keep.saturating_sub(1),
            "{keep} kept"
        );
    }
    let with = |retired_segments| {
        let dir = tempfile::tempdir().expect("a folder");
        let options = OpenOptions {
            retired_segments,
            ..options(BOOT_A, Durability::Sync)
        };
        Folder::open_single(dir.path(), &options)
    };
    assert!(with(MAX_RETIRED_SEGMENTS).is_ok());
    let error = refusal(with(MAX_RETIRED_SEGMENTS + 1));
    assert!(matches!(error, OpenError::BadOption { .. }), "{error}");
}

#[test]
fn a_segment_that_is_read_is_left_alone_and_goes_later() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let last = fill(&mut opened.log, 12);
    let read = Arc::clone(opened.log.segments().next().expect("the oldest"));
    let before = opened.log.segments().count();
    snapshot(&mut opened.log, last);
    assert_eq!(
        opened.log.segments().count(),
        before,
        "the oldest goes first"
    );
    assert!(read.batch(4096).padded_bytes() > 0);
    drop(read);
    // Looked at again when a spare is wanted.
    fill(&mut opened.log, 6);
    blocking::ensure_spare(&mut opened.log).expect("room");
    assert!(opened.log.segments().count() <= 3);
}

#[test]
fn segments_of_another_size_are_not_used_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let (opened, _) = recycled(dir.path());
    let expected = replay(&opened.log);
    drop(opened);
    let larger = OpenOptions {
        segment_bytes: 2 * MIN_SEGMENT_BYTES,
        ..options(BOOT_A, Durability::Sync)
    };
    let mut opened = Folder::open_single(dir.path(), &larger).expect("it opens");
    assert_eq!(replay(&opened.log), expected);
    for _ in 0..3 {
        let last = fill(&mut opened.log, 12);
        snapshot(&mut opened.log, last);
    }
    blocking::ensure_spare(&mut opened.log).expect("room");
    for name in segment_files(dir.path()) {
        let size = fs::metadata(dir.path().join("log").join(&name))
            .expect("there")
            .len();
        assert_eq!(size, 2 * u64::from(MIN_SEGMENT_BYTES), "{name}");
    }
    drop(opened);
    Folder::open_single(dir.path(), &larger).expect("it opens");
}

#[test]
fn a_damaged_snapshot_is_refused_by_name_and_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let (opened, covered) = recycled(dir.path());
    drop(opened);
    let file = snapshot_file(dir.path(), covered);
    let whole = fs::read(&file).expect("readable");
    for (at, place) in [
        (20, 0),
        (4_100, 4_096),
        (4_125, 4_120),
        (whole.len() - 9, 4_144),
    ] {
        damage(&file, |bytes| bytes[at] ^= 1);
        let error = refusal(try_open(dir.path(), BOOT_A));
        let OpenError::Corrupt {
            file: named,
            offset,
            ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((named, *offset), (&file, place));
        assert!(
            LogReader::open(dir.path())
                .expect("opens")
                .verify(BOOT_A)
                .is_err()
        );
        fs::write(&file, &whole).expect("written");
    }
    fs::write(&file, b"").expect("written");
    assert!(try_open(dir.path(), BOOT_A).is_err());
    let renamed = snapshot_file(dir.path(), covered.next());
    fs::write(&renamed, &whole).expect("written");
    let error = refusal(try_open(dir.path(), BOOT_A)).to_string();
    assert!(error.contains("not the one in the file's name"), "{error}");
    fs::remove_file(&renamed).expect("removed");
    fs::remove_file(&file).expect("removed");
    let error = refusal(try_open(dir.path(), BOOT_A)).to_string();
    assert!(
        error.contains("a segment is missing") || error.contains("earlier segment"),
        "{error}"
    );
    fs::write(&file, &whole).expect("written");
    open(dir.path(), BOOT_A);
}

#[test]
fn an_older_snapshot_or_the_whole_log_does_where_nothing_is_gone_yet() {
    // As a crash between naming the newer one and removing the older one leaves it.
    for older in [true, false] {
        let dir = tempfile::tempdir().expect("a folder");
        let mut opened = open(dir.path(), BOOT_A);
        let first = fill(&mut opened.log, 3);
        let second = fill(&mut opened.log, 3);
        write_snapshot(&opened.log, first);
        let kept = fs::read(snapshot_file(dir.path(), first)).expect("readable");
        write_snapshot(&opened.log, second);
        if older {
            fs::write(snapshot_file(dir.path(), first), kept).expect("written");
        }
        drop(opened);
        damage(&snapshot_file(dir.path(), second), |bytes| {
            bytes[4_100] ^= 1
        });
        let opened = open(dir.path(), BOOT_A);
        let told = opened.recovery.damaged_snapshot.as_ref().expect("told");
        assert!(told.contains("offset 4096"), "{told}");
        assert_eq!(
            opened.recovery.snapshot.map(|meta| meta.index),
            older.then_some(first)
        );
        assert_eq!(replay(&opened.log).len(), if older { 3 } else { 6 });
        drop(opened);
        let report = LogReader::open(dir.path()).expect("opens").verify(BOOT_A);
        let report = report.expect("readable");
        assert_eq!(
            (report.verdict, report.damaged_snapshot.is_some()),
            (Verdict::Clean, true)
        );
    }
}

#[test]
fn a_missing_segment_is_missed() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let covered = fill(&mut opened.log, 7);
    snapshot(&mut opened.log, covered);
    // The snapshot covers a part of the oldest segment that is left, and not the rest.
    fill(&mut opened.log, 7);
    let oldest = opened
        .log
        .segments()
        .next()
        .expect("one")
        .path()
        .to_path_buf();
    drop(opened);
    for name in segment_files(dir.path()) {
        if dir.path().join("log").join(&name) <= oldest {
            fs::remove_file(dir.path().join("log").join(name)).expect("removed");
        }
    }
    let error = refusal(try_open(dir.path(), BOOT_A)).to_string();
    assert!(error.contains("a segment is missing"), "{error}");
}

#[test]
fn a_log_that_ends_before_its_snapshot_is_not_taken_for_a_torn_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    append(&mut opened.log, b"a");
    let begin = opened.log.written_end();
    let last = append(&mut opened.log, b"b");
    write_snapshot(&opened.log, last);
    drop(opened);
    let at = begin.offset() as usize;
    let file = segment_file(dir.path(), begin);
    let whole = fs::read(&file).expect("readable");
    for boot in [BOOT_A, BOOT_B] {
        // Gone without a trace, and damaged.
        for (damaged, byte) in [(at..at + 4_096, 0), (at + 100..at + 101, 0xee)] {
            damage(&file, |bytes| bytes[damaged].fill(byte));
            let error = refusal(try_open(dir.path(), boot));
            assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
            fs::write(&file, &whole).expect("written");
        }
    }
    // Without the snapshot it may just be torn.
    fs::remove_file(snapshot_file(dir.path(), last)).expect("removed");
    damage(&file, |bytes| bytes[at..at + 4_096].fill(0));
    open(dir.path(), BOOT_B);
}

#[test]
fn what_a_snapshot_proves_needs_no_mark_to_be_damage() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let begin = opened.log.written_end();
    let last = append(&mut opened.log, &PAYLOAD);
    write_snapshot(&opened.log, last.previous().max(last));
    drop(opened);
    let at = begin.offset() as usize + 5_000;
    damage(&segment_file(dir.path(), begin), |bytes| bytes[at] ^= 1);
    assert!(matches!(
        refusal(try_open(dir.path(), BOOT_B)),
        OpenError::Corrupt { .. }
    ));
}

#[test]
fn a_torn_tail_behind_a_snapshot_is_trimmed_and_its_indexes_skipped() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut opened, covered) = recycled(dir.path());
    let begin = opened.log.written_end();
    let lost = append_unsynced(&mut opened.log, &[9; 6_000]);
    let segment = segment_file(dir.path(), opened.log.written_end());
    let same_segment = begin.use_number() == opened.log.written_end().use_number();
    let at = if same_segment {
        begin.offset() as usize
    } else {
        4_096
    };
    drop(opened);
    damage(&segment, |bytes| bytes[at + 4_096..at + 8_192].fill(0));
    for _ in 0..2 {
        let opened = open(dir.path(), BOOT_B);
        assert_eq!(
            opened.recovery.snapshot.map(|meta| meta.index),
            Some(covered)
        );
        assert!(opened.log.next_index() > lost.plus(1_000_000));
        assert_eq!(replay(&opened.log).len(), 2);
    }
    // And a snapshot behind the gap.
    let mut opened = open(dir.path(), BOOT_B);
    let last = fill(&mut opened.log, 7);
    snapshot(&mut opened.log, last);
    drop(opened);
    assert_eq!(open(dir.path(), BOOT_B).log.next_index(), last.next());
}

#[test]
fn a_log_lost_in_memory_takes_its_snapshot_with_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open_memory(dir.path(), BOOT_A);
    let ceiling = opened.recovery.ceiling.expect("there is one");
    for _ in 0..2 {
        let mut last = LogIndex(0);
        for _ in 0..7 {
            last = append_unsynced(&mut opened.log, &PAYLOAD);
        }
        snapshot(&mut opened.log, last);
    }
    let covered = opened.log.index().base();
    drop(opened);
    // Its process alone takes nothing.
    let opened = open_memory(dir.path(), BOOT_A);
    assert_eq!(
        opened.recovery.snapshot.map(|meta| meta.index),
        Some(covered)
    );
    drop(opened);
    let opened = open_memory(dir.path(), BOOT_B);
    assert_eq!(opened.recovery.lost_memory_log, Some(ceiling));
    assert!(opened.snapshot.is_none());
    assert_eq!(opened.log.next_index(), ceiling);
    assert_eq!(
        fs::read_dir(dir.path().join("snapshots"))
            .expect("a folder")
            .count(),
        0
    );
}

#[test]
fn a_reader_sees_the_snapshot_and_what_is_left_of_the_log() {
    let dir = tempfile::tempdir().expect("a folder");
    let (opened, covered) = recycled(dir.path());
    let reader = LogReader::open(dir.path()).expect("it opens");
    let report = reader.verify(BOOT_A).expect("readable");
    assert_eq!(report.verdict, Verdict::Clean);
    let snapshot = report.snapshot.expect("a snapshot");
    assert_eq!((snapshot.index, report.snapshot_items), (covered, 2));
    let mut seen = Vec::new();
    reader
        .for_each(&report, |_, batch| {
            seen.extend(batch.records().map(|(_, record)| record.index));
        })
        .expect("readable");
    assert_eq!(
        seen.last().map(|last| last.next()),
        Some(opened.log.next_index())
    );
    assert!(seen.contains(&covered.next()));
    let mut reading = reader.snapshot().expect("readable").expect("a snapshot");
    assert_eq!(reading.next_chunk(&mut Vec::new()).expect("whole"), Some(1));

    // A log that has moved on is not shown in part as if it were all.
    let mut opened = opened;
    for _ in 0..3 {
        let last = fill(&mut opened.log, 7);
        snapshot_and_spare(&mut opened.log, last);
    }
    assert!(reader.for_each(&report, |_, _| {}).is_err());
}

fn snapshot_and_spare(log: &mut Log, last: LogIndex) {
    snapshot(log, last);
    blocking::ensure_spare(log).expect("room");
}

#[test]
fn a_snapshot_given_up_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let last = fill(&mut opened.log, 1);
    let mut writer =
        SnapshotWriter::create(&opened.log.snapshot_spec(last, configured(last))).expect("room");
    writer.chunk(1, b"one").expect("room");
    let files = || {
        fs::read_dir(dir.path().join("snapshots"))
            .expect("a folder")
            .count()
    };
    assert_eq!(files(), 1);
    writer.abandon().expect("removed");
    assert_eq!(files(), 0);
    // One that was cut short is swept.
    let _unfinished =
        SnapshotWriter::create(&opened.log.snapshot_spec(last, configured(last))).expect("room");
    drop(opened);
    assert!(open(dir.path(), BOOT_A).snapshot.is_none());
    assert_eq!(files(), 0);
}

#[test]
fn a_snapshot_has_the_configuration_in_force_and_its_place() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let last = fill(&mut opened.log, 5);
    snapshot(&mut opened.log, last);
    drop(opened);
    let opened = open(dir.path(), BOOT_A);
    let reader = opened.snapshot.expect("a snapshot");
    assert_eq!(reader.config(), configured(last));
    assert_ne!(reader.config().index, reader.meta().index);
    drop(reader);
    let file = dir
        .path()
        .join("snapshots")
        .join(format!("{:016x}.snap", last.0));
    let whole = fs::read(&file).expect("readable");
    // The header's part with it: every byte edited, and the file cut in it.
    for at in 56..328 {
        let mut edited = whole.clone();
        edited[at] ^= 1;
        let cut = whole[..at].to_vec();
        for bytes in [edited, cut] {
            fs::write(&file, bytes).expect("written");
            let reader = LogReader::open(dir.path()).expect("a folder");
            assert!(reader.snapshot().expect("readable").is_none(), "byte {at}");
        }
    }
}
