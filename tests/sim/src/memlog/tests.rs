use super::*;
use crate::world::rng::Rng;
use ticketing_raftlog::NodeId;
use ticketing_raftlog::raft::{Config, ConfigEntry, Replacement, Slot};

const BASE: EntryId = EntryId {
    term: Term(0),
    index: LogIndex(100),
};

fn write_all(log: &mut MemLog, disk: &mut Disk) {
    loop {
        while let Some(write) = log.take_write() {
            disk.write(write.use_number, write.offset, &write.bytes);
            log.written(&write.summary);
        }
        if !log.wants_spare() {
            return;
        }
        log.make_spare(disk).expect("room");
    }
}

fn sync(log: &mut MemLog, disk: &mut Disk) {
    let sync = disk.begin_sync();
    disk.end_sync(&sync);
    log.synced(log.written_end());
}

fn append(log: &mut MemLog, term: u64, text: &str) {
    let payload = Payload::from(text.as_bytes());
    log.append(Term(term), AppendKind::Commands, &[payload], Epoch(0));
}

#[test]
fn configurations_are_read_back_where_they_stand() {
    let ids = |from: u8, to: u8| (from..to).map(|n| NodeId([n; 16])).collect::<Vec<_>>();
    let replacement = Replacement {
        slot: Slot(2),
        new: NodeId([9; 16]),
    };
    let mut disk = Disk::default();
    let mut log = MemLog::create(&mut disk, BASE);
    let mut expected = Vec::new();
    for replacement in [None, Some(replacement)] {
        append(&mut log, 1, "between");
        let config = Config::joint(&ids(1, 4), replacement, &ids(5, 6)).expect("valid");
        let kind = AppendKind::Config(config);
        log.append(Term(1), kind, &[nothing()], Epoch(0));
        let index = log.last().index;
        expected.push(ConfigEntry { index, config });
    }
    write_all(&mut log, &mut disk);
    let bugs = RecoveryBugs::default();
    let back = MemLog::recover(&mut disk, None, true, bugs).expect("no corruption");
    assert_eq!(back.configs, expected);
}

#[test]
fn what_was_synced_is_recovered_after_any_cut() {
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut disk = Disk::default();
        let mut log = MemLog::create(&mut disk, BASE);
        let (mut synced, mut sound) = (BASE.index, true);
        for step in 0..rng.range(1, 60) {
            append(&mut log, 1 + step / 20, &format!("entry {step}"));
            if rng.chance(100) && log.last().index > synced.next() {
                let from = synced.next();
                let term = log.term_at(synced).expect("there");
                log.truncate(from, term, Epoch(0));
                append(&mut log, 1 + step / 20, "another");
            }
            write_all(&mut log, &mut disk);
            if rng.chance(300) {
                sync(&mut log, &mut disk);
                synced = log.last().index;
            }
        }
        let cut = rng.chance(700);
        if cut {
            disk.power_cut(&mut rng);
        }
        if synced == BASE.index {
            continue;
        }
        let back =
            MemLog::recover(&mut disk, None, !cut, RecoveryBugs::default()).expect("no corruption");
        assert_eq!(back.log.base(), BASE);
        for index in BASE.index.0 + 1..=synced.0 {
            let (now, then) = (back.log.entry(LogIndex(index)), log.entry(LogIndex(index)));
            let same = now.is_some_and(|now| then.is_some_and(|t| t.payload == now.payload));
            sound &= same;
        }
        assert!(sound, "seed {seed}");
        assert!(
            cut || back.log.last() == log.last(),
            "seed {seed}: a kill loses nothing"
        );
    }
}

#[test]
fn recycled_segments_leave_a_log_behind_its_snapshot() {
    let mut disk = Disk::default();
    let mut log = MemLog::create(&mut disk, BASE);
    for step in 0..100 {
        append(&mut log, 1, &format!("entry {step}"));
    }
    write_all(&mut log, &mut disk);
    sync(&mut log, &mut disk);
    let files = disk.segments().len();
    let snapshot = EntryId {
        term: Term(1),
        index: LogIndex(180),
    };
    log.compact(snapshot);
    assert_eq!(log.base().index, LogIndex(140));
    // The next segments are made from those that the snapshot covers.
    for step in 100..120 {
        append(&mut log, 1, &format!("entry {step}"));
    }
    write_all(&mut log, &mut disk);
    sync(&mut log, &mut disk);
    assert!(disk.segments().len() < files);
    assert!(disk.segments().iter().any(|file| file.prior_use.0 > 0));
    let bugs = RecoveryBugs::default();
    let back = MemLog::recover(&mut disk, Some(snapshot), true, bugs).expect("no corruption");
    assert_eq!((back.log.base(), back.log.last()), (snapshot, log.last()));
    assert_eq!(back.extents.len(), 40);
}

#[test]
fn without_room_for_a_segment_what_is_asked_for_waits_and_then_comes_in_order() {
    let mut disk = Disk::default();
    let mut log = MemLog::create(&mut disk, BASE);
    write_all(&mut log, &mut disk);
    disk.fill(0);
    for step in 0..50 {
        append(&mut log, 1, &format!("entry {step}"));
        while let Some(write) = log.take_write() {
            disk.write(write.use_number, write.offset, &write.bytes);
            log.written(&write.summary);
        }
    }
    assert!(log.wants_spare() && log.make_spare(&mut disk) == Err(NoRoom));
    log.mark_if_needed(Epoch(0));
    assert!(!log.has_writes(), "nothing goes before what waits");
    let from = LogIndex(log.last().index.0 - 3);
    log.truncate(from, Term(1), Epoch(1));
    append(&mut log, 2, "another");
    disk.make_room();
    write_all(&mut log, &mut disk);
    sync(&mut log, &mut disk);
    let bugs = RecoveryBugs::default();
    let back = MemLog::recover(&mut disk, None, true, bugs).expect("no corruption");
    assert_eq!(back.log.last(), log.last());
    for index in BASE.index.0 + 1..=from.0 {
        let payload = |log: &MemLog| log.entry(LogIndex(index)).map(|e| e.payload.clone());
        assert_eq!(payload(&back.log), payload(&log), "{index}");
    }
}
