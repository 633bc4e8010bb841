//! Every step that a start takes on the disk fails once: the start tells which file it was, and the
//! next one, be it after a power cut, ends as if nothing had been.

use std::fs;
use std::path::Path;

use crate::batch::EntryKind;
use crate::blocking;
use crate::disk::faults;
use crate::error::OpenError;
use crate::folder::{Folder, OpenOptions, Opened};
use crate::limits::{BLOCK_BYTES, MIN_SEGMENT_BYTES};
use crate::raft::ConfigEntry;
use crate::reader::LogReader;
use crate::scan::Verdict;
use crate::snapshot::SnapshotWriter;
use crate::types::{BootId, Durability, LogIndex, Position, Term};

const BOOT: BootId = BootId([1; 16]);
const NEXT_BOOT: BootId = BootId([2; 16]);
const LAST_BOOT: BootId = BootId([3; 16]);

fn options(boot_id: BootId) -> OpenOptions {
    OpenOptions {
        boot_id,
        now_unix_s: 1_700_000_000,
        segment_bytes: MIN_SEGMENT_BYTES,
        retired_segments: 2,
        ..OpenOptions::default()
    }
}

fn open(dir: &Path, boot_id: BootId) -> Opened {
    Folder::open_single(dir, &options(boot_id)).expect("it opens")
}

fn append_unsynced(opened: &mut Opened, payload: &[u8]) -> Position {
    let log = &mut opened.log;
    blocking::ensure_spare(log).expect("room on the disk");
    let begin = log.written_end();
    let mut batch = log.begin(Vec::new());
    batch
        .push(EntryKind::Command, Term(1), payload)
        .expect("room in the batch");
    let write = log.finish(batch).expect("there is a spare");
    blocking::write_only(log, &write).expect("it is written");
    begin
}

fn append(opened: &mut Opened, payload: &[u8]) {
    append_unsynced(opened, payload);
    for segment in opened.log.segments() {
        segment.file().sync_data().expect("synced");
    }
    opened.log.synced(opened.log.written_end());
}

fn snapshot(opened: &mut Opened) {
    let config = ConfigEntry {
        index: LogIndex(0),
        config: super::memlog::config(0),
    };
    let last = opened.log.next_index().previous();
    let spec = opened.log.snapshot_spec(last, config);
    let mut writer = SnapshotWriter::create(&spec).expect("created");
    writer.chunk(1, b"everything").expect("written");
    writer.finish().expect("written");
    opened.log.recycle(&spec.meta);
}

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

/// What a start ends with: the entries' payloads, and whether there is a snapshot.
fn content(opened: &Opened) -> (Vec<Vec<u8>>, bool) {
    let log = &opened.log;
    let entries = log.batches().flat_map(|location| {
        let payloads = location.entries().map(|(_, entry)| entry.payload.to_vec());
        payloads.collect::<Vec<_>>()
    });
    (entries.collect(), opened.snapshot.is_some())
}

/// Starts on copies of `template`, each cut short one step later; gives how many steps there were.
fn cut_short_at_every_step(template: &Path, options: &OpenOptions) -> usize {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("whole");
    copy(template, &dir);
    let whole = Folder::open_single(&dir, options).expect("it opens");
    let (expected, next_index) = (content(&whole), whole.log.next_index());
    drop(whole);
    for step in 0.. {
        for power_fails in [false, true] {
            let dir = place.path().join(format!("{step}-{power_fails}"));
            copy(template, &dir);
            faults::arm(step);
            let result = Folder::open_single(&dir, options);
            let undurable = faults::disarm();
            let error = match result {
                Ok(opened) => {
                    assert_eq!(content(&opened), expected);
                    return step;
                }
                Err(error) => error,
            };
            let OpenError::Io { path, .. } = &error else {
                panic!("step {step}: {error}");
            };
            assert!(path.starts_with(place.path()), "step {step}: {error}");
            assert!(error.to_string().contains("cut short"), "{error}");
            let mut next = options.clone();
            if power_fails {
                undurable.cut_power(|_, _| false);
                next.boot_id = LAST_BOOT;
            } else {
                // It has a handle of the lock file.
                drop(undurable);
            }
            let again = Folder::open_single(&dir, &next).expect("it opens now");
            assert_eq!(content(&again), expected, "step {step}");
            assert!(again.log.next_index() >= next_index, "step {step}");
        }
    }
    unreachable!("a start has an end");
}

#[test]
fn a_folder_that_is_made() {
    let template = tempfile::tempdir().expect("a folder");
    let steps = cut_short_at_every_step(template.path(), &options(BOOT));
    assert!(steps > 30, "{steps} steps");
    // A creation was cut short at its end: all of it is swept, and done again.
    let opened = open(template.path(), BOOT);
    drop(opened);
    fs::write(template.path().join("creating"), b"").expect("written");
    fs::write(template.path().join("log/00000002.new"), b"begun").expect("written");
    fs::write(template.path().join("snapshots/1.new"), b"begun").expect("written");
    let again = cut_short_at_every_step(template.path(), &options(BOOT));
    assert!(again > steps, "{again} steps, {steps} before");
}

#[test]
fn a_log_with_a_torn_tail_over_two_segments() {
    let template = tempfile::tempdir().expect("a folder");
    let mut opened = open(template.path(), BOOT);
    append(&mut opened, b"first");
    let torn = append_unsynced(&mut opened, &[1; 2 * BLOCK_BYTES]);
    while opened.log.segments().count() == 1 {
        append_unsynced(&mut opened, &[2; 3 * BLOCK_BYTES]);
    }
    drop(opened);
    let file = template.path().join("log/00000001.seg");
    let mut bytes = fs::read(&file).expect("readable");
    let at = torn.offset() as usize + BLOCK_BYTES;
    bytes[at..at + BLOCK_BYTES].fill(0);
    fs::write(&file, bytes).expect("written");
    fs::write(template.path().join("log/00000009.new"), b"begun").expect("written");
    let steps = cut_short_at_every_step(template.path(), &options(NEXT_BOOT));
    assert!(steps > 30, "{steps} steps");
}

#[test]
fn a_log_behind_a_snapshot_with_a_spare_of_another_size() {
    let template = tempfile::tempdir().expect("a folder");
    let mut opened = open(template.path(), BOOT);
    for _ in 0..12 {
        append(&mut opened, &[1; 3 * BLOCK_BYTES]);
    }
    snapshot(&mut opened);
    append(&mut opened, b"last");
    blocking::ensure_spare(&mut opened.log).expect("room on the disk");
    drop(opened);
    let larger = OpenOptions {
        segment_bytes: 2 * MIN_SEGMENT_BYTES,
        ..options(BOOT)
    };
    let steps = cut_short_at_every_step(template.path(), &larger);
    assert!(steps > 30, "{steps} steps");
}

#[test]
fn a_log_that_was_in_memory_only_and_is_lost() {
    let template = tempfile::tempdir().expect("a folder");
    let in_memory = |boot_id| OpenOptions {
        durability: Durability::Memory,
        ..options(boot_id)
    };
    let opened = Folder::open_single(template.path(), &in_memory(BOOT));
    let mut opened = opened.expect("it opens");
    append(&mut opened, b"lost");
    snapshot(&mut opened);
    drop(opened);
    let steps = cut_short_at_every_step(template.path(), &in_memory(NEXT_BOOT));
    assert!(steps > 30, "{steps} steps");
}

#[test]
fn a_log_that_is_read_beside_its_node() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT);
    append(&mut opened, b"covered");
    snapshot(&mut opened);
    append(&mut opened, b"shown");
    let show = || -> Result<Vec<Vec<u8>>, OpenError> {
        let reader = LogReader::open(dir.path())?;
        let report = reader.verify(BOOT)?;
        assert_eq!(report.verdict, Verdict::Clean);
        let mut shown = Vec::new();
        if let Some(mut snapshot) = reader.snapshot()? {
            let mut body = Vec::new();
            while snapshot.next_chunk(&mut body)?.is_some() {
                shown.push(body.clone());
            }
        }
        reader.for_each(&report, |_, batch| {
            let records = batch.records().map(|(_, record)| record.payload.to_vec());
            shown.extend(records.filter(|payload| !payload.is_empty()));
        })?;
        Ok(shown)
    };
    let expected = vec![
        b"everything".to_vec(),
        b"covered".to_vec(),
        b"shown".to_vec(),
    ];
    for step in 0.. {
        faults::arm(step);
        let result = show();
        drop(faults::disarm());
        match result {
            Ok(shown) => {
                assert_eq!(shown, expected);
                assert!(step > 20, "{step} steps");
                return;
            }
            Err(OpenError::Io { path, .. }) => assert!(path.starts_with(dir.path())),
            Err(error) => panic!("step {step}: {error}"),
        }
    }
}
