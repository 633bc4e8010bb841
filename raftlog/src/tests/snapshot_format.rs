//! A snapshot's bytes: what goes in comes out, and nothing else does.

use proptest::prelude::*;

use crate::limits::{BLOCK_BYTES, MAX_INDEX, MAX_SNAPSHOT_CHUNK_BYTES};
use crate::snapshot::{Decoder, Encoder, Fault, SnapshotMeta};
use crate::types::{ClusterId, LogIndex, Position, Term, UseNumber};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn meta() -> SnapshotMeta {
    SnapshotMeta {
        index: LogIndex(1_000),
        term: Term(3),
        position: Position::new(UseNumber(2), 0x3000),
    }
}

type Chunks = Vec<(u32, Vec<u8>)>;

fn encode(meta: &SnapshotMeta, chunks: &Chunks) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::begin(CLUSTER, meta, &mut bytes);
    for (items, body) in chunks {
        encoder.chunk(*items, body, &mut bytes);
    }
    let size = encoder.end(&mut bytes);
    assert_eq!(size, bytes.len() as u64);
    bytes
}

fn decode(bytes: &[u8]) -> Result<(SnapshotMeta, Chunks), Fault> {
    let block = &bytes[..bytes.len().min(BLOCK_BYTES)];
    let mut decoder = Decoder::begin(block, bytes.len() as u64, CLUSTER)?;
    let (mut at, mut chunks) = (BLOCK_BYTES, Vec::new());
    while let Some(size) = decoder.wants() {
        let piece = bytes.get(at..at + size).expect("it asks for what there is");
        if let Some(chunk) = decoder.feed(piece)? {
            chunks.push((chunk.items, chunk.body.to_vec()));
        }
        at += size;
    }
    assert_eq!(at, bytes.len(), "all of the file is read");
    assert_eq!(
        decoder.items(),
        chunks.iter().map(|(n, _)| u64::from(*n)).sum::<u64>()
    );
    Ok((decoder.meta(), chunks))
}

fn two_chunks() -> Chunks {
    vec![(2, b"first and second".to_vec()), (1, b"third".to_vec())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_goes_in_comes_out(
        index in 0..MAX_INDEX,
        term in any::<u64>(),
        position in any::<u64>(),
        chunks in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..200)), 0..6),
    ) {
        let meta = SnapshotMeta {
            index: LogIndex(index),
            term: Term(term),
            position: Position::from_u64(position),
        };
        prop_assert_eq!(decode(&encode(&meta, &chunks)), Ok((meta, chunks)));
    }

    #[test]
    fn any_bytes_are_judged(mut bytes in prop::collection::vec(any::<u8>(), 0..400), real in any::<bool>()) {
        if real {
            // Behind a header that is right.
            let mut with_header = encode(&meta(), &Vec::new());
            with_header.truncate(BLOCK_BYTES);
            with_header.append(&mut bytes);
            bytes = with_header;
        }
        prop_assert!(decode(&bytes).is_err());
    }
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    for chunks in [Vec::new(), two_chunks()] {
        let whole = encode(&meta(), &chunks);
        for size in 0..whole.len() {
            assert!(decode(&whole[..size]).is_err(), "cut at {size}");
        }
        assert!(
            decode(&[&whole[..], &[0]].concat()).is_err(),
            "one byte more"
        );
    }
}

#[test]
fn any_flipped_bit_is_found_at_or_before_its_place() {
    let whole = encode(&meta(), &two_chunks());
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        match decode(&bytes) {
            Err(Fault::Damaged { offset, .. }) => assert!(offset <= bit as u64 / 8, "bit {bit}"),
            Err(Fault::Header(_)) => assert!(bit / 8 < BLOCK_BYTES),
            Ok(_) => panic!("bit {bit} passed"),
        }
    }
}

#[test]
fn chunks_neither_change_places_nor_come_from_elsewhere() {
    let same_size = vec![(1, b"one".to_vec()), (1, b"two".to_vec())];
    let whole = encode(&meta(), &same_size);
    let (first, second) = (
        BLOCK_BYTES..BLOCK_BYTES + 24,
        BLOCK_BYTES + 24..BLOCK_BYTES + 48,
    );
    let mut swapped = whole.clone();
    swapped[first.clone()].copy_from_slice(&whole[second.clone()]);
    swapped[second.clone()].copy_from_slice(&whole[first.clone()]);
    let wrong = |offset| {
        let why = "a chunk's checksum is wrong";
        Err(Fault::Damaged { offset, why })
    };
    assert_eq!(decode(&swapped), wrong(BLOCK_BYTES as u64));

    let of_another_index = SnapshotMeta {
        index: LogIndex(1_001),
        ..meta()
    };
    let mut mixed = whole.clone();
    mixed[second.clone()].copy_from_slice(&encode(&of_another_index, &same_size)[second.clone()]);
    assert_eq!(decode(&mixed), wrong(second.start as u64));

    // A chunk left out, with the file's size as it would be.
    let without = [&whole[..first.start], &whole[second.start..]].concat();
    assert!(decode(&without).is_err());
    assert!(
        Decoder::begin(
            &whole[..BLOCK_BYTES],
            whole.len() as u64,
            ClusterId([8; 16])
        )
        .is_err()
    );
}

#[test]
fn a_chunk_is_as_long_as_its_bound_and_not_one_byte_longer() {
    let longest = vec![(1, vec![5; MAX_SNAPSHOT_CHUNK_BYTES])];
    assert_eq!(decode(&encode(&meta(), &longest)), Ok((meta(), longest)));
    let longer = vec![(1, vec![5; MAX_SNAPSHOT_CHUNK_BYTES + 1])];
    assert!(std::panic::catch_unwind(|| encode(&meta(), &longer)).is_err());
}
