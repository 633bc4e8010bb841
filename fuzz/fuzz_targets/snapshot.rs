//! The snapshot reader over edited and over arbitrary bytes: never a panic, and
//! only a file that is whole is ever read to its end.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use ticketing_raftlog::limits::BLOCK_BYTES;
use ticketing_raftlog::raft::{Config, ConfigEntry};
use ticketing_raftlog::{
    ClusterId, LogIndex, NodeId, Position, SnapshotDecoder, SnapshotEncoder, SnapshotMeta, Term,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const EDIT_BYTES: usize = 4;

static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let meta = SnapshotMeta {
        index: LogIndex(1 << 40),
        term: Term(3),
        position: Position::ZERO,
    };
    let mut bytes = Vec::new();
    let voters = [1, 2, 3].map(|n| NodeId([n; 16]));
    let config = ConfigEntry {
        index: LogIndex(1 << 39),
        config: Config::new(&voters, &[]).expect("valid"),
    };
    let mut encoder = SnapshotEncoder::begin(CLUSTER, &meta, &config, &mut bytes);
    for chunk in 1..5_u32 {
        encoder.chunk(chunk, &vec![chunk as u8; 40 * chunk as usize], &mut bytes);
    }
    encoder.end(&mut bytes);
    bytes
});

fuzz_target!(|input: &[u8]| {
    // The first byte chooses: arbitrary bytes, or edits and a cut of a real file.
    let Some((&how, rest)) = input.split_first() else {
        return;
    };
    if how == 0 {
        read(rest);
        return;
    }
    let mut bytes = IMAGE.clone();
    for edit in rest.chunks_exact(EDIT_BYTES) {
        let at = (usize::from(edit[0]) << 8 | usize::from(edit[1])) % bytes.len().max(1);
        match edit[3] % 3 {
            0 => bytes[at] = edit[2],
            1 => bytes[at] ^= 1 << (edit[2] % 8),
            _ => bytes.truncate(at.max(1)),
        }
    }
    let whole = read(&bytes);
    assert_eq!(whole, bytes == *IMAGE, "only the file as written is whole");
});

/// Whether the file was read to its end without a fault.
fn read(bytes: &[u8]) -> bool {
    let file_bytes = bytes.len() as u64;
    let Ok(mut decoder) = SnapshotDecoder::begin(bytes, file_bytes, CLUSTER) else {
        return false;
    };
    let mut at = BLOCK_BYTES;
    while let Some(wants) = decoder.wants() {
        let Some(piece) = bytes.get(at..at + wants) else {
            return false;
        };
        if decoder.feed(piece).is_err() {
            return false;
        }
        at += wants;
    }
    at == bytes.len()
}
