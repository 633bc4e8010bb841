//! Snapshots and recycling cut short between any two steps on the disk, by the end of the process
//! or of the machine's power: nothing acknowledged is lost, nothing old comes back, and what lies
//! around is bounded.

use std::io;
use std::path::Path;

use crate::batch::EntryKind;
use crate::blocking;
use crate::disk::faults;
use crate::folder::{Folder, OpenOptions, Opened};
use crate::limits::MIN_SEGMENT_BYTES;
use crate::raft::ConfigEntry;
use crate::snapshot::SnapshotWriter;
use crate::types::{BootId, LogIndex, Term};

/// Five entries fill a segment: each round fills one at least, and one of them many.
const ENTRIES_PER_ROUND: [usize; 4] = [6, 6, 24, 6];
const RETIRED: usize = 2;

fn open(dir: &Path, boot: u8) -> Opened {
    let options = OpenOptions {
        boot_id: BootId([boot; 16]),
        now_unix_s: 1_700_000_000,
        segment_bytes: MIN_SEGMENT_BYTES,
        retired_segments: RETIRED,
        ..OpenOptions::default()
    };
    Folder::open_single(dir, &options).expect("it opens")
}

/// A folder in memory where there is one: what is durable is the test's to decide.
fn folder() -> tempfile::TempDir {
    let in_memory = Path::new("/dev/shm");
    if in_memory.is_dir() {
        tempfile::tempdir_in(in_memory).expect("a folder")
    } else {
        tempfile::tempdir().expect("a folder")
    }
}

/// The state machine: how many entries there were, and the last one's index.
type State = (u64, LogIndex);

fn state_of(opened: &mut Opened) -> State {
    let mut state = (0, LogIndex(0));
    if let Some(snapshot) = &mut opened.snapshot {
        let mut body = Vec::new();
        assert_eq!(snapshot.next_chunk(&mut body).expect("whole"), Some(1));
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8 bytes"));
        state = (number(0), LogIndex(number(8)));
        assert_eq!(snapshot.meta().index, state.1);
        assert_eq!(snapshot.next_chunk(&mut body).expect("whole"), None);
    }
    for location in opened.log.batches() {
        for (_, entry) in location.entries() {
            assert!(entry.index > state.1, "an entry comes twice");
            assert_eq!(
                entry.payload[..8],
                (state.0 + 1).to_le_bytes(),
                "one is missing"
            );
            state = (state.0 + 1, entry.index);
        }
    }
    state
}

fn append(opened: &mut Opened, state: &mut State) -> io::Result<()> {
    let log = &mut opened.log;
    blocking::ensure_spare(log)?;
    let mut payload = vec![b'x'; 12_000];
    payload[..8].copy_from_slice(&(state.0 + 1).to_le_bytes());
    let mut batch = log.begin(Vec::new());
    let index = batch
        .push(EntryKind::Command, Term(1), &payload)
        .expect("room");
    let write = log.finish(batch).expect("there is a spare");
    blocking::append(log, write)?;
    *state = (state.0 + 1, index);
    Ok(())
}

fn configured() -> ConfigEntry {
    ConfigEntry {
        index: LogIndex(0),
        config: super::memlog::config(0),
    }
}

fn snapshot(opened: &mut Opened, state: State) -> io::Result<()> {
    let spec = opened.log.snapshot_spec(state.1, configured());
    let mut writer = SnapshotWriter::create(&spec)?;
    writer.chunk(
        1,
        &[state.0.to_le_bytes(), state.1.0.to_le_bytes()].concat(),
    )?;
    writer.finish()?;
    opened.log.recycle(&spec.meta);
    Ok(())
}

fn run(opened: &mut Opened, state: &mut State) -> io::Result<()> {
    for entries in ENTRIES_PER_ROUND {
        for _ in 0..entries {
            append(opened, state)?;
        }
        snapshot(opened, *state)?;
    }
    Ok(())
}

fn files(dir: &Path, ending: &str) -> usize {
    let files = std::fs::read_dir(dir).expect("a folder");
    files
        .filter(|file| {
            let name = file.as_ref().expect("an entry").file_name();
            name.to_string_lossy().ends_with(ending)
        })
        .count()
}

#[derive(Debug, Clone, Copy)]
enum Cut {
    Process,
    /// With so many of the names that were not durable yet on the disk, the oldest first.
    Power {
        names: usize,
    },
    /// With only the newest of them on the disk.
    PowerAndOrder,
}

#[test]
fn cut_short_after_any_step_everything_acknowledged_is_there_and_goes_on() {
    let template = folder();
    let mut opened = open(template.path(), 1);
    let mut state = (0, LogIndex(0));
    faults::arm(usize::MAX);
    run(&mut opened, &mut state).expect("nothing fails");
    let steps = faults::disarm().steps;
    assert_eq!(state.0, ENTRIES_PER_ROUND.iter().sum::<usize>() as u64);
    drop(opened);
    assert_eq!(state_of(&mut open(template.path(), 1)), state);
    assert!(steps > 40, "{steps} steps");

    for step in 0..steps {
        for cut in [
            Cut::Process,
            Cut::Power { names: 0 },
            Cut::Power { names: 1 },
            Cut::PowerAndOrder,
        ] {
            let dir = folder();
            let mut opened = open(dir.path(), 1);
            let mut acknowledged = (0, LogIndex(0));
            faults::arm(step);
            run(&mut opened, &mut acknowledged).expect_err("it is cut short");
            let undurable = faults::disarm();
            drop(opened);
            let boot = match cut {
                Cut::Process => 1,
                Cut::Power { names } => {
                    undurable.cut_power(|name, _| name < names);
                    2
                }
                Cut::PowerAndOrder => {
                    undurable.cut_power(|name, all| name + 1 == all);
                    2
                }
            };
            let mut opened = open(dir.path(), boot);
            let context = format!("{cut:?} after step {step}");
            assert_eq!(opened.recovery.trimmed, None, "{context}");
            assert_eq!(opened.recovery.damaged_snapshot, None, "{context}");
            let mut state = state_of(&mut opened);
            assert_eq!(state, acknowledged, "{context}");
            assert_eq!(files(&dir.path().join("log"), ".new"), 0, "{context}");
            assert_eq!(files(&dir.path().join("snapshots"), ".new"), 0, "{context}");

            run(&mut opened, &mut state).expect("it goes on");
            let log = dir.path().join("log");
            // What came since the last snapshot but one, a spare, and what is kept.
            assert!(files(&log, ".seg") <= 4 + 1 + RETIRED, "{context}");
            assert_eq!(
                files(&dir.path().join("snapshots"), ".snap"),
                1,
                "{context}"
            );
            drop(opened);
            assert_eq!(state_of(&mut open(dir.path(), 3)), state, "{context}");
        }
    }
}

#[test]
fn a_full_disk_while_a_segment_is_used_again_leaves_nothing_behind_that_a_start_trips_over() {
    // Each step of making the spare fails once, then works.
    for failing in 0..6 {
        let dir = folder();
        let mut opened = open(dir.path(), 1);
        let mut state = (0, LogIndex(0));
        run(&mut opened, &mut state).expect("nothing fails");
        let mut reused = 0;
        for number in 0..30 {
            let log = &mut opened.log;
            if let Some(spec) = log.wants_spare() {
                reused += usize::from(spec.reuse.is_some());
                faults::arm(failing);
                let result = crate::segment::Segment::create(&spec);
                drop(faults::disarm());
                match result {
                    Ok(segment) => log.give_spare(segment),
                    Err(_) => log.spare_failed(),
                }
            }
            append(&mut opened, &mut state).expect("it works now");
            if number % 6 == 0 {
                snapshot(&mut opened, state).expect("it works");
            }
        }
        assert!(reused > 2, "{reused} segments used again");
        drop(opened);
        assert_eq!(state_of(&mut open(dir.path(), 2)), state, "step {failing}");
    }
}
