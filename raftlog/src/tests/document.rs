//! The worked example of `docs/log-format.md` is a batch that this code writes and reads.

use crate::batch::{Control, EntryKind};
use crate::format::crc_seed;
use crate::limits::{BLOCK_BYTES, MIN_SEGMENT_BYTES};
use crate::parse::{Block, inspect};
use crate::raft::{Config, ConfigEntry};
use crate::snapshot::{Encoder, SnapshotMeta};
use crate::types::{ClusterId, LogIndex, NodeId, Position, Term, UseNumber};
use crate::writer::{Planner, Room, Start};

const DOCUMENT: &str = include_str!("../../../docs/log-format.md");

/// The cluster id of the example: 00, 01, ... 0f.
const CLUSTER: ClusterId = ClusterId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
/// Behind a first batch in the first block that holds any.
const POSITION: Position = Position::new(UseNumber(1), 0x2000);

/// The bytes of one of the document's hex dumps; lines that it leaves out are zero.
fn documented(dump: usize, size: usize) -> Vec<u8> {
    let dump = DOCUMENT
        .split("```hex\n")
        .nth(dump)
        .and_then(|rest| rest.split("```").next());
    // The last line may be short.
    let mut block = vec![0; size.next_multiple_of(16)];
    let mut lines = 0;
    for line in dump
        .expect("the document has a hex dump")
        .lines()
        .filter(|line| *line != "*")
    {
        let (offset, rest) = line.split_once("  ").expect("an offset");
        let at = usize::from_str_radix(offset, 16).expect("in hex");
        let digits: String = rest
            .split('|')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        for (n, byte) in block[at..at + digits.len() / 2].iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[n * 2..n * 2 + 2], 16).expect("in hex");
        }
        lines += 1;
    }
    assert!(lines > 8);
    block.truncate(size);
    block
}

/// The same batch, as the writer makes it.
fn written() -> Vec<u8> {
    let mut planner = Planner::new(Start {
        cluster_id: CLUSTER,
        active: Room {
            use_number: UseNumber(1),
            segment_bytes: MIN_SEGMENT_BYTES,
        },
        offset: POSITION.offset(),
        previous_crc: 0x1122_3344,
        next_index: LogIndex(1_876_951_040_000_000),
        last_term: Term(2),
        carried: Position::ZERO,
        ceiling: None,
    });
    let gap = Control::Gap {
        next: LogIndex(1_876_951_041_048_576),
        last_term: Term(2),
    };
    let mut batch = planner.begin(Vec::new(), Some(gap));
    batch.push(EntryKind::Noop, Term(3), &[]).expect("room");
    batch
        .push(EntryKind::Command, Term(3), b"grant seat-14")
        .expect("room");
    planner.plan(batch, None, false).expect("room").bytes
}

#[test]
fn the_documents_example_is_what_is_written() {
    assert_eq!(documented(1, BLOCK_BYTES), written());
}

#[test]
fn the_documents_example_reads_as_the_document_says() {
    let bytes = documented(1, BLOCK_BYTES);
    let Block::Batch(batch) = inspect(&bytes, POSITION, crc_seed(CLUSTER, UseNumber(1))) else {
        panic!("not a batch");
    };
    let summary = batch.summarize(Term(2)).expect("valid");
    assert_eq!((summary.entries, batch.synced()), (2, POSITION));
    assert_eq!(batch.header().previous_crc, 0x1122_3344);
    let records: Vec<_> = batch.records().collect();
    assert_eq!(records.len(), 3);
    let (offset, command) = records[2];
    assert_eq!(offset, 0x2000 + 0x70);
    assert_eq!(
        (command.term, command.payload),
        (Term(3), &b"grant seat-14"[..])
    );
}

/// The document's snapshot: one lock held.
fn snapshot() -> Vec<u8> {
    let token: u64 = 1_876_951_041_048_577;
    let lock = [
        &token.to_le_bytes()[..],
        &30_000_u32.to_le_bytes(),
        &30_050_u32.to_le_bytes(),
        &[7],
        b"seat-14",
    ]
    .concat();
    let meta = SnapshotMeta {
        index: LogIndex(token),
        term: Term(3),
        position: Position::new(UseNumber(1), 0x3000),
    };
    let mut bytes = Vec::new();
    let id = |first| NodeId(std::array::from_fn(|n| first + n as u8));
    let config = ConfigEntry {
        index: LogIndex(1_876_951_040_000_000),
        config: Config::new(&[id(0x20), id(0x40), id(0x60)], &[]).expect("valid"),
    };
    let mut encoder = Encoder::begin(CLUSTER, &meta, &config, &mut bytes);
    encoder.chunk(1, &lock, &mut bytes);
    encoder.end(&mut bytes);
    bytes
}

#[test]
fn the_documents_snapshot_is_what_is_written() {
    let bytes = snapshot();
    assert_eq!(documented(2, bytes.len()), bytes);
}
