//! The data folders of a cluster's nodes: made, opened, refused; snapshots that come from other nodes.

use std::fs;
use std::path::Path;

use super::disk_errors::copy;
use crate::batch::{Control, EntryKind};
use crate::blocking;
use crate::disk::faults;
use crate::error::OpenError;
use crate::folder::{Folder, Genesis, NewMember, OpenOptions, OpenedMember};
use crate::limits::{BLOCK_BYTES, MIN_SEGMENT_BYTES};
use crate::peers::Incarnation;
use crate::raft::{Config, ConfigEntry, EntryId};
use crate::snapshot::{SnapshotReader, SnapshotSpec, SnapshotWriter};
use crate::types::{BootId, ClusterId, Durability, LogIndex, Mode, NodeId, Position, Term};

const BOOT: BootId = BootId([1; 16]);
const NEXT_BOOT: BootId = BootId([2; 16]);
const CLUSTER: ClusterId = ClusterId([7; 16]);
const NOW_UNIX_S: u64 = 1_700_000_000;

fn members() -> Config {
    let nodes = [1, 2, 3].map(|node| NodeId([node; 16]));
    Config::new(&nodes, &[]).expect("three voters")
}

fn first_index() -> LogIndex {
    NewMember::first_index_at(NOW_UNIX_S)
}

fn new_member(genesis: bool) -> NewMember {
    NewMember {
        cluster_id: CLUSTER,
        node_id: NodeId([1; 16]),
        genesis: genesis.then(|| Genesis {
            first_index: first_index(),
            config: members(),
        }),
        now_unix_s: NOW_UNIX_S,
        segment_bytes: MIN_SEGMENT_BYTES,
    }
}

fn options(boot_id: BootId) -> OpenOptions {
    OpenOptions {
        boot_id,
        now_unix_s: NOW_UNIX_S,
        segment_bytes: MIN_SEGMENT_BYTES,
        retired_segments: 2,
        new_incarnation: Incarnation([9; 16]),
        ..OpenOptions::default()
    }
}

fn open(dir: &Path) -> OpenedMember {
    Folder::open_member(dir, &options(BOOT)).expect("it opens")
}

fn refusal(dir: &Path) -> OpenError {
    Folder::open_member(dir, &options(BOOT)).expect_err("it is refused")
}

fn append(opened: &mut OpenedMember, term: u64, payload: &[u8]) -> LogIndex {
    let log = &mut opened.opened.log;
    blocking::ensure_spare(log).expect("room on the disk");
    let mut batch = log.begin(Vec::new());
    batch
        .push(EntryKind::Command, Term(term), payload)
        .expect("room in the batch");
    let write = log.finish(batch).expect("there is a spare");
    let index = write.last_index;
    blocking::append(log, write).expect("written");
    index
}

fn entries(opened: &OpenedMember) -> Vec<(u64, u64)> {
    let mut entries = Vec::new();
    for location in opened.opened.log.batches() {
        entries.extend(location.entries().map(|(_, e)| (e.index.0, e.term.0)));
    }
    entries
}

#[test]
fn the_first_members_find_their_configuration_in_front_of_the_log() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    let opened = open(&dir);
    assert_eq!(opened.opened.identity.cluster_id, CLUSTER);
    assert_eq!(opened.opened.identity.mode, Mode::Cluster);
    let base = first_index().previous();
    assert_eq!(opened.opened.log.index().base(), base);
    let genesis = ConfigEntry {
        index: base,
        config: members(),
    };
    assert_eq!(opened.configs, [genesis]);
    assert_eq!(opened.opened.log.next_index(), first_index());
}

#[test]
fn a_node_that_joins_knows_nobody_and_begins_below_every_snapshot() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(false)).expect("made");
    let opened = open(&dir);
    assert_eq!(opened.opened.log.index().base(), LogIndex(0));
    assert_eq!(opened.configs.len(), 1);
    assert_eq!(opened.configs[0].config, Config::unknown());
    assert!(opened.opened.snapshot.is_none());
}

#[test]
fn each_start_is_counted_and_the_incarnation_stays() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    for start in 1..=3 {
        let mut other = options(BOOT);
        if start > 1 {
            other.new_incarnation = Incarnation([start; 16]);
        }
        let opened = Folder::open_member(&dir, &other).expect("it opens");
        assert_eq!(opened.incarnation, Incarnation([9; 16]));
        assert_eq!(opened.opened.store.state().starts, u64::from(start));
    }
}

#[test]
fn what_is_no_members_folder_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    assert!(matches!(refusal(&dir), OpenError::NoMember { .. }));
    assert!(!dir.exists(), "nothing is made by a start");
    fs::create_dir(&dir).expect("made");
    assert!(matches!(refusal(&dir), OpenError::NoMember { .. }));
    assert_eq!(fs::read_dir(&dir).expect("readable").count(), 0);

    // A single node's.
    let single = place.path().join("single");
    drop(Folder::open_single(&single, &options(BOOT)).expect("made"));
    let refused = refusal(&single);
    assert!(
        matches!(
            refused,
            OpenError::WrongMode {
                found: Mode::Single,
                ..
            }
        ),
        "{refused}"
    );
    // And a member's is no single node's.
    Folder::create_member(&dir, &new_member(true)).expect("made in an empty folder");
    let refused = Folder::open_single(&dir, &options(BOOT)).expect_err("refused");
    assert!(
        matches!(
            refused,
            OpenError::WrongMode {
                found: Mode::Cluster,
                ..
            }
        ),
        "{refused}"
    );
    // Nothing is made over either.
    for taken in [&single, &dir] {
        let refused = Folder::create_member(taken, &new_member(true)).expect_err("refused");
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
    }
    fs::write(place.path().join("file"), b"mine").expect("written");
    let refused = Folder::create_member(place.path(), &new_member(true)).expect_err("refused");
    assert!(matches!(refused, OpenError::Foreign { .. }), "{refused}");
}

#[test]
fn a_second_process_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    let opened = open(&dir);
    assert!(matches!(refusal(&dir), OpenError::Locked { .. }));
    drop(opened);
    drop(open(&dir));
}

#[test]
fn a_lost_incarnation_or_memory_is_no_start() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    let mut opened = open(&dir);
    append(&mut opened, 1, b"known to others");
    drop(opened);
    let file = dir.join("incarnation");
    let kept = fs::read(&file).expect("there");
    fs::remove_file(&file).expect("removed");
    assert!(matches!(refusal(&dir), OpenError::Corrupt { .. }));
    let mut flipped = kept.clone();
    flipped[20] ^= 1;
    fs::write(&file, &flipped).expect("written");
    assert!(matches!(refusal(&dir), OpenError::Corrupt { .. }));
    fs::write(&file, &kept).expect("written");
    drop(open(&dir));

    // What was only in memory is gone with the machine's boot.
    let memory = |boot_id| OpenOptions {
        durability: Durability::Memory,
        ..options(boot_id)
    };
    let mut opened = Folder::open_member(&dir, &memory(BOOT)).expect("it opens");
    append(&mut opened, 1, b"in memory");
    drop(opened);
    let refused = Folder::open_member(&dir, &memory(NEXT_BOOT)).expect_err("refused");
    assert!(matches!(refused, OpenError::LostMemory { .. }), "{refused}");
    // The process alone may die.
    drop(Folder::open_member(&dir, &memory(BOOT)).expect("it opens"));
}

#[test]
fn a_retired_folder_is_never_opened_again_and_says_why() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    drop(open(&dir));
    crate::retire(&dir, 19, "an old backup").expect("written");
    crate::retire(&dir, 18, "replaced too").expect("the first reason stays");
    let starts = || crate::hardstate::read_only(&dir).expect("whole").starts;
    let before = starts();
    for _ in 0..3 {
        let refused = refusal(&dir);
        let told = matches!(
            &refused,
            OpenError::Retired { code: Some(19), why, .. } if why == "an old backup"
        );
        assert!(told, "{refused}");
    }
    assert_eq!(starts(), before, "no start was counted");
    // What it says may be damaged, and be anything.
    for said in [&b""[..], b"\xff\xff", b"300 what", &[b'x'; 10_000]] {
        fs::write(dir.join("retired"), said).expect("written");
        let refused = refusal(&dir);
        let told = matches!(refused, OpenError::Retired { code: None, .. });
        assert!(told, "{refused}");
    }
}

#[test]
fn a_creation_that_was_cut_short_is_refused_and_can_be_done_again() {
    let place = tempfile::tempdir().expect("a folder");
    let mut cuts = 0;
    for step in 0.. {
        let dir = place.path().join(step.to_string());
        faults::arm(step);
        let made = Folder::create_member(&dir, &new_member(true));
        drop(faults::disarm());
        if made.is_ok() {
            break;
        }
        cuts += 1;
        match Folder::open_member(&dir, &options(BOOT)) {
            // All that was left to do was to remove the marker for good.
            Ok(opened) => assert_eq!(opened.configs[0].config, members()),
            Err(error) => {
                assert!(
                    matches!(error, OpenError::NoMember { .. }),
                    "step {step}: {error}"
                );
                Folder::create_member(&dir, &new_member(true)).expect("made now");
                assert_eq!(open(&dir).configs[0].config, members());
            }
        }
    }
    assert!(cuts > 15, "{cuts} steps");
}

#[test]
fn a_folder_with_the_mark_of_a_creation_is_nobodys() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    fs::write(dir.join("creating"), b"").expect("written");
    assert!(matches!(refusal(&dir), OpenError::NoMember { .. }));
}

#[test]
fn a_torn_tail_is_trimmed_and_no_index_is_skipped() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    let mut opened = open(&dir);
    let kept = append(&mut opened, 1, b"kept");
    let torn = opened.opened.log.written_end();
    append(&mut opened, 1, &[1; 2 * BLOCK_BYTES]);
    drop(opened);
    let file = dir.join("log/00000001.seg");
    let mut bytes = fs::read(&file).expect("readable");
    let at = torn.offset() as usize + BLOCK_BYTES;
    bytes[at..at + BLOCK_BYTES].fill(0);
    fs::write(&file, bytes).expect("written");
    let mut opened = Folder::open_member(&dir, &options(NEXT_BOOT)).expect("it opens");
    let trimmed = opened.opened.recovery.trimmed;
    assert_eq!(trimmed.map(|trimmed| trimmed.at), Some(torn));
    // A majority has what was acknowledged, and its indexes.
    assert_eq!(opened.opened.recovery.gap, None);
    assert_eq!(append(&mut opened, 2, b"from the leader"), kept.next());
}

/// A snapshot up to `last` as another node sends it, put where it is received.
fn receive(opened: &OpenedMember, last: EntryId, config: ConfigEntry) {
    let sender = tempfile::tempdir().expect("a folder");
    let mut writer = SnapshotWriter::create(&SnapshotSpec {
        dir: sender.path().to_path_buf(),
        cluster_id: CLUSTER,
        meta: crate::snapshot::SnapshotMeta {
            index: last.index,
            term: last.term,
            // Of the sender's log, far ahead of this one's.
            position: Position::from_u64(u64::from(u32::MAX) << 32),
        },
        config,
    })
    .expect("begun");
    writer.chunk(1, b"some locks").expect("written");
    writer.finish().expect("written");
    let reader = SnapshotReader::open(sender.path(), CLUSTER, last.index).expect("there");
    fs::copy(
        reader.path(),
        opened.opened.log.install_spec().received_path(),
    )
    .expect("copied");
}

fn last_at(ahead: u64, term: u64) -> EntryId {
    EntryId {
        index: first_index().plus(ahead),
        term: Term(term),
    }
}

fn entry_of(last: EntryId) -> ConfigEntry {
    ConfigEntry {
        index: last.index.previous(),
        config: members(),
    }
}

/// Carries out the reset that follows an installation.
fn reset(opened: &mut OpenedMember, last: EntryId) {
    let log = &mut opened.opened.log;
    blocking::ensure_spare(log).expect("room");
    let control = Control::Reset {
        index: last.index,
        term: last.term,
    };
    let batch = log.begin_with(Vec::new(), control);
    let write = log.finish(batch).expect("there is a spare");
    blocking::append(log, write).expect("written");
}

#[test]
fn an_installed_snapshot_takes_the_logs_place_before_and_behind_its_reset() {
    for is_reset in [false, true] {
        let place = tempfile::tempdir().expect("a folder");
        let dir = place.path().join("data");
        Folder::create_member(&dir, &new_member(false)).expect("made");
        let mut opened = open(&dir);
        let last = last_at(50, 3);
        receive(&opened, last, entry_of(last));
        let spec = opened.opened.log.install_spec();
        let reader = spec.install(&last, &entry_of(last)).expect("no error");
        let reader = reader.expect("it is whole");
        assert_eq!(reader.meta().position, Position::ZERO, "not the sender's");
        assert!(!spec.received_path().exists());
        if is_reset {
            reset(&mut opened, last);
            append(&mut opened, 3, b"behind it");
        }
        drop(opened);
        for _ in 0..2 {
            let opened = open(&dir);
            assert_eq!(opened.opened.log.index().base(), last.index);
            assert_eq!(opened.opened.log.index().base_term(), last.term);
            assert_eq!(opened.configs[0], entry_of(last));
            let snapshot = opened.opened.snapshot.as_ref().expect("there");
            assert_eq!(snapshot.meta().index, last.index);
            let behind = is_reset.then_some((last.index.next().0, 3));
            assert_eq!(entries(&opened), Vec::from_iter(behind));
        }
        let mut opened = open(&dir);
        let next = append(&mut opened, 4, b"goes on");
        assert_eq!(next, last.index.plus(if is_reset { 2 } else { 1 }));
        drop(opened);
        assert_eq!(entries(&open(&dir)).last(), Some(&(next.0, 4)));
    }
}

#[test]
fn every_step_of_a_start_behind_an_installed_snapshot_fails_once() {
    let last = last_at(50, 3);
    let template = tempfile::tempdir().expect("a folder");
    let data = template.path().join("data");
    Folder::create_member(&data, &new_member(false)).expect("made");
    let opened = open(&data);
    receive(&opened, last, entry_of(last));
    let spec = opened.opened.log.install_spec();
    let installed = spec.install(&last, &entry_of(last));
    assert!(installed.expect("no error").is_some());
    drop(opened);
    let (mut failed, mut whole) = (0, 0);
    for step in 0.. {
        for power_fails in [false, true] {
            let place = tempfile::tempdir().expect("a folder");
            let dir = place.path().join("data");
            copy(&data, &dir);
            faults::arm(step);
            let result = Folder::open_member(&dir, &options(BOOT));
            let undurable = faults::disarm();
            match result {
                // Whether there is an identity is looked at twice, and the first look may fail.
                Ok(opened) => {
                    drop(opened);
                    whole += 1;
                }
                Err(error) => {
                    let told =
                        matches!(&error, OpenError::Io { path, .. } if path.starts_with(&dir));
                    assert!(told && error.to_string().contains("cut short"), "{error}");
                    failed += 1;
                }
            }
            let next = match power_fails {
                true => {
                    undurable.cut_power(|_, _| false);
                    NEXT_BOOT
                }
                false => {
                    drop(undurable);
                    BOOT
                }
            };
            let again = Folder::open_member(&dir, &options(next));
            let again =
                again.unwrap_or_else(|error| panic!("step {step}, {power_fails}: {error:?}"));
            assert_eq!(again.opened.log.index().base(), last.index, "step {step}");
            assert_eq!(again.opened.log.index().base_term(), last.term);
            assert_eq!(
                (again.configs[0], entries(&again)),
                (entry_of(last), vec![])
            );
        }
        if whole > 6 {
            break;
        }
    }
    assert!(failed > 60, "{failed} failed");
}

#[test]
fn an_installation_cut_short_anywhere_is_before_it_or_behind_it() {
    let last = last_at(50, 3);
    let (mut before, mut behind) = (0, 0);
    for step in 0.. {
        let place = tempfile::tempdir().expect("a folder");
        let dir = place.path().join("data");
        Folder::create_member(&dir, &new_member(true)).expect("made");
        let mut opened = open(&dir);
        let kept = append(&mut opened, 1, b"its own");
        receive(&opened, last, entry_of(last));
        let spec = opened.opened.log.install_spec();
        faults::arm(step);
        let installed = spec.install(&last, &entry_of(last));
        let undurable = faults::disarm();
        drop(opened);
        if installed.is_ok() {
            break;
        }
        undurable.cut_power(|_, _| false);
        let opened = Folder::open_member(&dir, &options(NEXT_BOOT)).expect("it opens");
        if opened.opened.log.index().base() == last.index {
            assert_eq!(entries(&opened), []);
            behind += 1;
        } else {
            assert_eq!(entries(&opened), [(kept.0, 1)]);
            assert_eq!(opened.configs[0].config, members());
            before += 1;
        }
    }
    assert!(before > 3, "{before} before, {behind} behind");
}

#[test]
fn what_is_no_such_snapshot_changes_nothing() {
    let place = tempfile::tempdir().expect("a folder");
    let dir = place.path().join("data");
    Folder::create_member(&dir, &new_member(true)).expect("made");
    let opened = open(&dir);
    let spec = opened.opened.log.install_spec();
    let last = last_at(50, 3);
    let try_with = |change: &dyn Fn(&mut Vec<u8>), last: EntryId, config: ConfigEntry| {
        receive(&opened, last_at(50, 3), entry_of(last_at(50, 3)));
        let mut bytes = fs::read(spec.received_path()).expect("there");
        change(&mut bytes);
        fs::write(spec.received_path(), bytes).expect("written");
        spec.install(&last, &config)
            .expect("no error of the disk")
            .is_some()
    };
    let config = entry_of(last);
    assert!(!try_with(
        &|bytes| bytes.truncate(bytes.len() - 1),
        last,
        config
    ));
    assert!(!try_with(&|bytes| bytes.push(0), last, config));
    for at in [0, 20, 60] {
        assert!(
            !try_with(&|bytes| bytes[at] ^= 1, last, config),
            "byte {at}"
        );
    }
    assert!(!try_with(
        &|bytes| {
            let end = bytes.len() - 30;
            bytes[end] ^= 1
        },
        last,
        config
    ));
    assert!(!try_with(&|_| {}, last_at(51, 3), config), "another index");
    assert!(!try_with(&|_| {}, last_at(50, 4), config), "another term");
    let other = ConfigEntry {
        index: config.index.previous(),
        ..config
    };
    assert!(!try_with(&|_| {}, last, other), "another configuration");
    drop(opened);
    let opened = open(&dir);
    assert_eq!(opened.opened.log.index().base(), first_index().previous());
    assert_eq!(opened.configs[0].config, members());
}
