//! What the tests on real folders share.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::path::{Path, PathBuf};

use ticketing_raftlog::limits::MIN_SEGMENT_BYTES;
use ticketing_raftlog::peers::Incarnation;
use ticketing_raftlog::{
    BootId, ClusterId, Durability, EntryKind, Folder, Log, LogIndex, NodeId, OpenError,
    OpenOptions, Opened, PendingWrite, Position, Term, blocking,
};

pub const BOOT_A: BootId = BootId([0xa; 16]);
pub const BOOT_B: BootId = BootId([0xb; 16]);
pub const NOW_UNIX_S: u64 = 1_790_000_000;
pub const FIRST: LogIndex = LogIndex(NOW_UNIX_S << 20);

pub fn options(boot_id: BootId, durability: Durability) -> OpenOptions {
    OpenOptions {
        durability,
        boot_id,
        now_unix_s: NOW_UNIX_S,
        segment_bytes: MIN_SEGMENT_BYTES,
        retired_segments: 2,
        new_cluster_id: ClusterId([0xc; 16]),
        new_node_id: NodeId([0xd; 16]),
        new_incarnation: Incarnation([0xe; 16]),
    }
}

pub fn try_open(dir: &Path, boot_id: BootId) -> Result<Opened, OpenError> {
    Folder::open_single(dir, &options(boot_id, Durability::Sync))
}

pub fn open(dir: &Path, boot_id: BootId) -> Opened {
    try_open(dir, boot_id).expect("it opens")
}

pub fn open_memory(dir: &Path, boot_id: BootId) -> Opened {
    Folder::open_single(dir, &options(boot_id, Durability::Memory)).expect("it opens")
}

pub fn refusal(result: Result<Opened, OpenError>) -> OpenError {
    result.expect_err("it is refused")
}

/// Seals a batch with one command, creating a segment when it needs one.
pub fn seal(log: &mut Log, payload: &[u8]) -> PendingWrite {
    blocking::ensure_spare(log).expect("room on the disk");
    let mut batch = log.begin(Vec::new());
    batch
        .push(EntryKind::Command, Term(1), payload)
        .expect("room in the batch");
    log.finish(batch).expect("there is a spare")
}

pub fn append(log: &mut Log, payload: &[u8]) -> LogIndex {
    let write = seal(log, payload);
    let index = write.last_index;
    blocking::append(log, write).expect("it is written");
    index
}

/// As [`append`], without a sync.
pub fn append_unsynced(log: &mut Log, payload: &[u8]) -> LogIndex {
    let write = seal(log, payload);
    blocking::write_only(log, &write).expect("it is written");
    write.last_index
}

/// All entries, by walking the batches as a start does.
pub fn replay(log: &Log) -> Vec<(LogIndex, Vec<u8>)> {
    let mut entries = Vec::new();
    for location in log.batches() {
        entries.extend(
            location
                .entries()
                .map(|(_, e)| (e.index, e.payload.to_vec())),
        );
    }
    entries
}

pub fn segment_file(dir: &Path, position: Position) -> PathBuf {
    dir.join("log")
        .join(format!("{:08x}.seg", position.use_number().0))
}

/// Changes bytes of a file behind everybody's back.
pub fn damage(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).expect("it is there");
    change(&mut bytes);
    fs::write(file, bytes).expect("it can be written");
}

pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("readable");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}
