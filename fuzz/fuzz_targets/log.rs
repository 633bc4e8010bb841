//! Recovery's verdict over a real log that was edited: never a panic, never
//! entries from nowhere, and the same verdict every time.
//!
//! The input is a list of edits of five bytes each: where (u24), what, and how.
//! An edit may seal its batch again, so that what lies behind the checksum is
//! reached too.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ticketing_raftlog::format::{batch_crc, crc_seed};
use ticketing_raftlog::limits::BLOCK_BYTES;
use ticketing_raftlog::raft::Config;
use ticketing_raftlog::{
    ClusterId, EntryKind, Folder, NodeId, OpenOptions, Scan, SegmentBytes, Term, UseNumber,
    blocking,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const BATCHES: usize = 6;
const EDIT_BYTES: usize = 5;

/// The bytes of a log's first segment, with a few batches in it.
static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a folder");
    let options = OpenOptions {
        segment_bytes: 64 << 10,
        now_unix_s: 1_700_000_000,
        new_cluster_id: CLUSTER,
        ..OpenOptions::default()
    };
    let mut opened = Folder::open_single(dir.path(), &options).expect("opened");
    for batch in 0..BATCHES {
        let mut builder = opened.log.begin(Vec::new());
        for entry in 0..=batch {
            let payload = vec![entry as u8; 16 * entry];
            builder
                .push(EntryKind::Command, Term(1), &payload)
                .expect("there is room");
        }
        if batch % 2 == 1 {
            let voters = [1, 2, 3].map(|n| NodeId([n; 16]));
            let config = Config::new(&voters, &[NodeId([9; 16])]).expect("valid");
            let mut payload = Vec::new();
            config.encode(&mut payload);
            builder
                .push(EntryKind::Config, Term(1), &payload)
                .expect("there is room");
        }
        let write = opened.log.finish(builder).expect("there is room");
        blocking::append(&mut opened.log, write).expect("written");
    }
    let segment = opened.log.segments().next().expect("a segment");
    std::fs::read(segment.path()).expect("read")
});

fuzz_target!(|input: &[u8]| {
    let mut bytes = IMAGE.clone();
    for edit in input.chunks_exact(EDIT_BYTES) {
        apply(edit, &mut bytes);
    }
    let judge = |same_boot| {
        let segment = SegmentBytes {
            use_number: UseNumber(1),
            prior_use: UseNumber(0),
            bytes: &bytes,
        };
        let mut scan = Scan::new(CLUSTER);
        let mut records = 0_u64;
        scan.segment(&segment, |batch| records += batch.records().count() as u64);
        let configs = scan.configs().to_vec();
        let entries = scan.index();
        for config in &configs {
            assert!(entries.locate(config.index).is_some(), "one from nowhere");
        }
        (format!("{:?}", scan.verdict(same_boot)), records, configs)
    };
    for same_boot in [false, true] {
        assert_eq!(judge(same_boot), judge(same_boot));
    }
});

fn apply(edit: &[u8], bytes: &mut Vec<u8>) {
    let at = usize::from(edit[0]) << 16 | usize::from(edit[1]) << 8 | usize::from(edit[2]);
    let at = at % bytes.len().max(1);
    match edit[4] % 4 {
        0 => bytes[at] = edit[3],
        1 => bytes[at] ^= 1 << (edit[3] % 8),
        2 => {
            bytes[at] = edit[3];
            seal(bytes, at);
        }
        // What stood elsewhere: stale blocks, swapped batches.
        _ => {
            let from = usize::from(edit[3]) * BLOCK_BYTES % bytes.len();
            let to = at / BLOCK_BYTES * BLOCK_BYTES;
            let len = BLOCK_BYTES.min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + len, to);
        }
    }
}

/// Makes the checksum of the one-block batch around `at` right again.
fn seal(bytes: &mut [u8], at: usize) {
    let start = at / BLOCK_BYTES * BLOCK_BYTES;
    let Some(batch) = bytes.get_mut(start..start + BLOCK_BYTES) else {
        return;
    };
    let crc = batch_crc(crc_seed(CLUSTER, UseNumber(1)), batch);
    batch[8..12].copy_from_slice(&crc.to_le_bytes());
}
