//! Opening folders: new, foreign, in use, damaged, of another version.

mod common;

use std::fs;
use std::path::Path;

use common::*;
use ticketing_raftlog::format::{
    FORMAT_VERSION, IDENTITY_MAGIC, IdentityLayout, SEGMENT_MAGIC, STATE_MAGIC, SegmentHeader,
    StateLayout, open_block, read, seal_block,
};
use ticketing_raftlog::limits::{
    INDEXES_PER_SECOND, MAX_INDEX, MAX_SEGMENT_BYTES, MAX_SEGMENTS, MIN_SEGMENT_BYTES,
};
use ticketing_raftlog::{
    Durability, EntryKind, Folder, HardState, LogIndex, Mode, NodeId, OpenError, OpenOptions, Term,
    blocking,
};

const SEGMENT: &str = "log/00000001.seg";

#[test]
fn a_new_folder_starts_at_the_clock_and_empty() {
    let dir = tempfile::tempdir().expect("a folder");
    let dir = dir.path().join("new");
    let opened = open(&dir, BOOT_A);
    assert!(opened.recovery.created);
    assert_eq!(opened.identity.mode, Mode::Single);
    assert_eq!(opened.identity.first_index, FIRST);
    assert_eq!(opened.identity.node_id, NodeId([0xd; 16]));
    assert_eq!(opened.recovery.first_index, FIRST);
    assert_eq!(opened.recovery.last_index, FIRST.previous());
    assert_eq!(opened.log.next_index(), FIRST);
    assert_eq!(opened.hard_state, HardState::default());
    assert_eq!((opened.recovery.entries, opened.recovery.starts), (0, 1));
    assert_eq!(opened.recovery.gap, None);
    drop(opened);
    let again = open(&dir, BOOT_A);
    assert!(!again.recovery.created);
    assert_eq!(again.recovery.starts, 2);
    assert_eq!(again.log.next_index(), FIRST);
}

#[test]
fn index_0_is_never_given_even_without_a_clock() {
    let dir = tempfile::tempdir().expect("a folder");
    let options = OpenOptions {
        now_unix_s: 0,
        ..options(BOOT_A, Durability::Sync)
    };
    let opened = Folder::open_single(dir.path(), &options).expect("it opens");
    assert_eq!(opened.log.next_index(), LogIndex(1));
}

#[test]
fn entries_survive_over_many_segments() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let mut expected = Vec::new();
    for n in 0..60_u32 {
        let payload = n.to_le_bytes().repeat(1 + n as usize * 40);
        expected.push((append(&mut opened.log, &payload), payload));
    }
    assert!(opened.log.segments().count() > 3);
    assert_eq!(replay(&opened.log), expected);
    drop(opened);
    for boot in [BOOT_A, BOOT_B] {
        let opened = open(dir.path(), boot);
        assert_eq!(replay(&opened.log), expected);
        assert_eq!(opened.recovery.entries, 60);
        assert_eq!(opened.recovery.gap, None);
        assert_eq!(opened.recovery.last_term, Term(1));
        for (index, payload) in &expected {
            let location = opened.log.locate(*index).expect("there");
            let (offset, record) = location.entry(*index).expect("in its batch");
            assert_eq!(record.payload, payload);
            assert_eq!(location.segment.record(offset), record);
            assert_eq!(opened.log.term_at(*index), Some(Term(1)));
        }
        assert_eq!(opened.log.term_at(FIRST.previous()), Some(Term(0)));
        assert!(opened.log.locate(opened.log.next_index()).is_none());
    }
}

#[test]
fn a_spare_left_by_the_last_run_is_used_by_the_next() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    append(&mut opened.log, b"a");
    assert!(opened.log.has_spare());
    drop(opened);
    let mut opened = open(dir.path(), BOOT_A);
    assert!(opened.log.has_spare() && opened.log.wants_spare().is_none());
    for _ in 0..40 {
        append(&mut opened.log, &[1; 3000]);
    }
    let uses: Vec<u32> = opened.log.segments().map(|s| s.use_number().0).collect();
    assert_eq!(uses, (1..=uses.len() as u32).collect::<Vec<_>>());
}

#[test]
fn a_batch_without_room_waits_for_its_segment() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let log = &mut opened.log;
    let mut batch = loop {
        let mut batch = log.begin(Vec::new());
        batch
            .push(EntryKind::Command, Term(1), &[7; 9000])
            .expect("room");
        match log.finish(batch) {
            Ok(write) => drop(blocking::append(log, write).expect("written")),
            Err(need) => break need.batch,
        }
    };
    let end = log.written_end();
    batch = log
        .finish(batch)
        .expect_err("there is still no segment")
        .batch;
    assert_eq!(log.written_end(), end);
    let spec = log.wants_spare().expect("it asks for one");
    assert_eq!(log.wants_spare(), None, "it asks once");
    log.spare_failed();
    assert_eq!(log.wants_spare(), Some(spec), "it asks anew");
    log.spare_failed();
    blocking::ensure_spare(log).expect("room on the disk");
    let write = log.finish(batch).expect("there is a spare");
    assert_eq!(write.segment.use_number().0, 2);
    blocking::append(log, write).expect("written");
}

#[test]
fn a_second_process_is_refused_and_told_who_has_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = open(dir.path(), BOOT_A);
    let error = refusal(try_open(dir.path(), BOOT_A));
    assert!(
        matches!(error, OpenError::Locked { holder: Some(pid), .. } if pid == std::process::id())
    );
    assert!(error.to_string().contains("stop that one first"));
    drop(first);
    open(dir.path(), BOOT_A);
}

#[test]
fn a_folder_with_other_things_in_it_is_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("thesis.txt"), "chapter 1").expect("written");
    let error = refusal(try_open(dir.path(), BOOT_A));
    assert!(matches!(error, OpenError::Foreign { .. }));
    assert!(error.to_string().contains("thesis.txt") && error.to_string().contains("empty"));
    assert!(!dir.path().join("identity").exists());
}

#[test]
fn a_place_below_nothing_or_below_a_file_is_refused_with_what_is_in_the_way() {
    let dir = tempfile::tempdir().expect("a folder");
    let missing = dir.path().join("missing");
    let error = refusal(try_open(&missing.join("data"), BOOT_A));
    assert!(matches!(error, OpenError::NoParent { .. }), "{error}");
    assert!(!missing.exists());
    let file = dir.path().join("file");
    fs::write(&file, "not ours").expect("written");
    let error = refusal(try_open(&file, BOOT_A)).to_string();
    assert!(error.contains(&format!("{}", file.display())), "{error}");
    assert_eq!(fs::read(&file).expect("readable"), b"not ours");
}

#[test]
fn a_folder_that_lost_its_identity_is_not_made_new() {
    let dir = tempfile::tempdir().expect("a folder");
    append(&mut open(dir.path(), BOOT_A).log, b"a");
    fs::remove_file(dir.path().join("identity")).expect("removed");
    assert!(matches!(
        refusal(try_open(dir.path(), BOOT_A)),
        OpenError::Foreign { .. }
    ));
    assert!(dir.path().join(SEGMENT).exists());
}

#[test]
fn a_folder_that_lost_its_state_or_its_log_is_refused() {
    for lost in ["state", SEGMENT] {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(dir.path(), BOOT_A));
        fs::remove_file(dir.path().join(lost)).expect("removed");
        let error = refusal(try_open(dir.path(), BOOT_A));
        assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("replace this node"));
    }
}

#[test]
fn a_creation_cut_short_anywhere_is_done_again() {
    let whole = tempfile::tempdir().expect("a folder");
    drop(open(whole.path(), BOOT_A));
    let parts = ["identity", "state", SEGMENT];
    for missing in 0..1 << parts.len() {
        let dir = tempfile::tempdir().expect("a folder");
        copy_folder(whole.path(), dir.path());
        fs::write(dir.path().join("creating"), "").expect("written");
        fs::write(dir.path().join("log/00000001.new"), "half").expect("written");
        for (bit, part) in parts.iter().enumerate() {
            if missing & 1 << bit != 0 {
                fs::remove_file(dir.path().join(part)).expect("removed");
            }
        }
        let opened = open(dir.path(), BOOT_B);
        assert!(opened.recovery.created);
        assert_eq!(opened.log.next_index(), FIRST);
        assert!(!dir.path().join("creating").exists());
        assert!(!dir.path().join("log/00000001.new").exists());
    }
}

#[test]
fn the_cluster_members_folder_is_not_opened_as_a_single_nodes() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(dir.path(), BOOT_A));
    damage(&dir.path().join("identity"), |bytes| {
        let mut layout: IdentityLayout = open_block(bytes, IDENTITY_MAGIC).expect("valid");
        layout.mode = 2;
        *bytes = seal_block(&IdentityLayout { crc: 0, ..layout });
    });
    let error = refusal(try_open(dir.path(), BOOT_A));
    assert!(matches!(error, OpenError::WrongMode { .. }));
    assert!(error.to_string().contains("config file"));
}

#[test]
fn a_later_format_is_refused_with_its_version() {
    let newer = FORMAT_VERSION + 1;
    for file in ["identity", "state", SEGMENT] {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(dir.path(), BOOT_A));
        damage(&dir.path().join(file), |bytes| {
            let block = match file {
                "identity" => {
                    let layout: IdentityLayout = read(bytes).expect("long enough");
                    seal_block(&IdentityLayout {
                        version: newer,
                        crc: 0,
                        ..layout
                    })
                }
                "state" => {
                    let layout: StateLayout = read(bytes).expect("long enough");
                    seal_block(&StateLayout {
                        version: newer,
                        crc: 0,
                        ..layout
                    })
                }
                _ => {
                    let layout: SegmentHeader = read(bytes).expect("long enough");
                    seal_block(&SegmentHeader {
                        version: newer,
                        crc: 0,
                        ..layout
                    })
                }
            };
            bytes[..block.len()].copy_from_slice(&block);
        });
        let error = refusal(try_open(dir.path(), BOOT_A));
        let OpenError::NewerFormat {
            found, supported, ..
        } = error
        else {
            panic!("{file}: {error}");
        };
        assert_eq!((found, supported), (newer, FORMAT_VERSION));
        assert!(error.to_string().contains("start the newer program"));
    }
}

#[test]
fn another_magic_is_refused_in_every_file() {
    for file in ["identity", "state", SEGMENT] {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(dir.path(), BOOT_A));
        damage(&dir.path().join(file), |bytes| {
            for block in bytes.chunks_mut(4096) {
                block[0] ^= 1;
            }
        });
        let error = refusal(try_open(dir.path(), BOOT_A));
        assert!(
            matches!(error, OpenError::WrongMagic { .. }),
            "{file}: {error}"
        );
    }
}

#[test]
fn each_bit_of_the_identity_and_of_a_segments_header_is_checked() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(dir.path(), BOOT_A));
    let identity = fs::read(dir.path().join("identity")).expect("readable");
    let segment = fs::read(dir.path().join(SEGMENT)).expect("readable");
    let header = &segment[..4096];
    for (block, magic) in [(&identity[..], IDENTITY_MAGIC), (header, SEGMENT_MAGIC)] {
        let mut block = block.to_vec();
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(open_block::<[u8; 64]>(&block, magic).is_err(), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(open_block::<[u8; 64]>(&block, magic).is_ok());
        assert!(open_block::<[u8; 64]>(&block[..4095], magic).is_err());
    }
}

#[test]
fn a_segment_of_another_size_or_cluster_or_name_is_refused() {
    let refused = |change: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().expect("a folder");
        drop(open(dir.path(), BOOT_A));
        change(&dir.path().join(SEGMENT));
        let error = refusal(try_open(dir.path(), BOOT_A));
        assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    };
    refused(&|file| damage(file, |bytes| bytes.truncate(4096 * 3)));
    refused(&|file| damage(file, |bytes| bytes.truncate(100)));
    refused(&|file| damage(file, |bytes| bytes.extend([0; 4096])));
    refused(&|file| fs::rename(file, file.with_file_name("00000002.seg")).expect("renamed"));
    let change_header = |file: &Path, change: fn(&mut SegmentHeader)| {
        damage(file, |bytes| {
            let mut header: SegmentHeader = open_block(bytes, SEGMENT_MAGIC).expect("valid");
            change(&mut header);
            bytes[..4096].copy_from_slice(&seal_block(&SegmentHeader { crc: 0, ..header }));
        });
    };
    refused(&|file| change_header(file, |header| header.cluster_id[3] ^= 1));
    refused(&|file| change_header(file, |header| header.segment_bytes += 4096));
}

#[test]
fn segment_sizes_are_checked_at_their_bounds() {
    let with = |segment_bytes| {
        let dir = tempfile::tempdir().expect("a folder");
        let options = OpenOptions {
            segment_bytes,
            ..options(BOOT_A, Durability::Sync)
        };
        Folder::open_single(dir.path(), &options)
    };
    assert!(with(MIN_SEGMENT_BYTES).is_ok());
    for bytes in [
        0,
        MIN_SEGMENT_BYTES - 4096,
        MIN_SEGMENT_BYTES + 1,
        MAX_SEGMENT_BYTES + 4096,
    ] {
        let error = refusal(with(bytes));
        assert!(
            matches!(error, OpenError::BadOption { .. }),
            "{bytes}: {error}"
        );
    }
}

#[test]
fn a_clock_centuries_ahead_is_refused_and_one_second_less_is_not() {
    let with = |now_unix_s| {
        let dir = tempfile::tempdir().expect("a folder");
        let options = OpenOptions {
            now_unix_s,
            ..options(BOOT_A, Durability::Sync)
        };
        Folder::open_single(dir.path(), &options)
    };
    let bound = MAX_INDEX / INDEXES_PER_SECOND / 2;
    assert!(matches!(refusal(with(bound)), OpenError::BadOption { .. }));
    assert_eq!(
        with(bound - 1).expect("it opens").log.next_index().0,
        (bound - 1) << 20
    );
}

#[test]
fn the_number_of_segments_is_bounded() {
    let dir = tempfile::tempdir().expect("a folder");
    drop(open(dir.path(), BOOT_A));
    let add = |number: usize| {
        fs::write(dir.path().join(format!("log/{number:08x}.seg")), "").expect("written");
    };
    (2..=MAX_SEGMENTS).for_each(add);
    let at_the_bound = refusal(try_open(dir.path(), BOOT_A)).to_string();
    assert!(
        at_the_bound.contains("ends before its header"),
        "{at_the_bound}"
    );
    add(MAX_SEGMENTS + 1);
    let beyond = refusal(try_open(dir.path(), BOOT_A)).to_string();
    assert!(beyond.contains("4097 segments, more than 4096"), "{beyond}");
}

#[test]
fn a_place_that_cannot_be_written_is_refused_with_the_rights_it_needs() {
    // Nobody, root included, creates folders there.
    let error = refusal(try_open(Path::new("/sys/ticketing"), BOOT_A));
    assert!(matches!(error, OpenError::NoAccess { .. }), "{error}");
    assert!(error.to_string().contains("read and write access"));
}

#[test]
fn term_and_vote_survive_and_one_slot_is_enough() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let hard = HardState {
        term: Term(9),
        voted_for: Some(NodeId([3; 16])),
    };
    opened.store.write(&hard).expect("written");
    drop(opened);
    let state = dir.path().join("state");
    let whole = fs::read(&state).expect("readable");
    for slot in [0, 4096] {
        for at in [0, 13, 30, 4095] {
            fs::write(&state, &whole).expect("written");
            damage(&state, |bytes| bytes[slot + at] ^= 4);
            let mut opened = open(dir.path(), BOOT_A);
            assert_eq!(opened.hard_state, hard);
            // The next write makes both whole again.
            opened.store.write(&hard).expect("written");
            let bytes = fs::read(&state).expect("readable");
            assert!(
                bytes
                    .chunks(4096)
                    .all(|b| open_block::<StateLayout>(b, STATE_MAGIC).is_ok())
            );
        }
    }
    damage(&state, |bytes| {
        bytes[20] ^= 1;
        bytes[4096 + 20] ^= 1;
    });
    assert!(matches!(
        refusal(try_open(dir.path(), BOOT_A)),
        OpenError::Corrupt { .. }
    ));
}

#[test]
fn a_vote_is_given_once_a_term_and_terms_do_not_go_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut opened = open(dir.path(), BOOT_A);
    let vote = |term, node| HardState {
        term: Term(term),
        voted_for: Some(NodeId([node; 16])),
    };
    opened.store.write(&vote(2, 1)).expect("written");
    opened.store.write(&vote(2, 1)).expect("the same again");
    for wrong in [
        vote(2, 2),
        vote(1, 1),
        HardState {
            term: Term(2),
            voted_for: None,
        },
    ] {
        let store = std::panic::AssertUnwindSafe(&mut opened.store);
        let result = std::panic::catch_unwind(move || {
            let store = store;
            store.0.write(&wrong).is_ok()
        });
        assert!(result.is_err(), "{wrong:?} passed");
    }
    opened.store.write(&vote(3, 2)).expect("another term");
}
