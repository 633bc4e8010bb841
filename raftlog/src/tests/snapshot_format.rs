//! A snapshot's bytes: what goes in comes out, and nothing else does.

use proptest::prelude::*;

use crate::format::seal_block;
use crate::limits::{BLOCK_BYTES, CONFIG_BYTES, MAX_INDEX, MAX_SNAPSHOT_CHUNK_BYTES};
use crate::raft::{Config, ConfigEntry};
use crate::snapshot::{Decoder, Encoder, Fault, SnapshotHeader, SnapshotMeta};
use crate::types::{ClusterId, LogIndex, Position, Term, UseNumber};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn meta() -> SnapshotMeta {
    SnapshotMeta {
        index: LogIndex(1_000),
        term: Term(3),
        position: Position::new(UseNumber(2), 0x3000),
    }
}

/// In force from 900 on.
fn config() -> ConfigEntry {
    ConfigEntry {
        index: LogIndex(900),
        config: super::memlog::config(1),
    }
}

type Chunks = Vec<(u32, Vec<u8>)>;

fn encode(meta: &SnapshotMeta, chunks: &Chunks) -> Vec<u8> {
    encode_with(meta, &config(), chunks)
}

fn encode_with(meta: &SnapshotMeta, config: &ConfigEntry, chunks: &Chunks) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::begin(CLUSTER, meta, config, &mut bytes);
    for (items, body) in chunks {
        encoder.chunk(*items, body, &mut bytes);
    }
    let size = encoder.end(&mut bytes);
    assert_eq!(size, bytes.len() as u64);
    bytes
}

fn decode(bytes: &[u8]) -> Result<(SnapshotMeta, Chunks), Fault> {
    decode_with(bytes).map(|(meta, _, chunks)| (meta, chunks))
}

fn decode_with(bytes: &[u8]) -> Result<(SnapshotMeta, ConfigEntry, Chunks), Fault> {
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
    Ok((decoder.meta(), decoder.config(), chunks))
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
        members in 0..20_u8,
        before in any::<prop::sample::Index>(),
    ) {
        let meta = SnapshotMeta {
            index: LogIndex(index),
            term: Term(term),
            position: Position::from_u64(position),
        };
        let config = ConfigEntry {
            index: LogIndex(before.index(index as usize + 1) as u64),
            config: super::memlog::config(members),
        };
        let bytes = encode_with(&meta, &config, &chunks);
        prop_assert_eq!(decode_with(&bytes), Ok((meta, config, chunks)));
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

/// A file with bytes of its header changed, and the checksum made right again.
fn forged(change: impl FnOnce(&mut SnapshotHeader)) -> Vec<u8> {
    let mut bytes = encode(&meta(), &two_chunks());
    let size = size_of::<SnapshotHeader>();
    let mut header: SnapshotHeader = bytemuck::pod_read_unaligned(&bytes[..size]);
    header.crc = 0;
    change(&mut header);
    bytes[..BLOCK_BYTES].copy_from_slice(&seal_block(&header));
    bytes
}

#[test]
fn a_configuration_that_cannot_be_is_refused_under_a_right_checksum() {
    assert_eq!(
        decode_with(&forged(|_| {})).map(|(_, c, _)| c),
        Ok(config())
    );
    let at_the_end = forged(|header| header.config_index = 1_000);
    assert!(decode(&at_the_end).is_ok(), "at the bound");
    type Forgery = (&'static str, fn(&mut SnapshotHeader));
    let forgeries: [Forgery; 9] = [
        ("behind the snapshot", |h| h.config_index = 1_001),
        ("nothing", |h| h.config_bytes = 0),
        ("one byte less", |h| h.config_bytes -= 1),
        ("one byte more", |h| h.config_bytes += 1),
        ("more than there is", |h| {
            h.config_bytes = CONFIG_BYTES as u32 + 1
        }),
        ("something behind it", |h| h.config[255] = 1),
        ("reserved bytes in use", |h| h.reserved = 1),
        ("two voters", |h| h.config[0] = 2),
        ("somebody twice", |h| h.config.copy_within(4..20, 20)),
    ];
    for (what, forge) in forgeries {
        let fault = decode(&forged(forge)).expect_err(what);
        let Fault::Damaged { offset, why } = fault else {
            panic!("{what}: {fault:?}");
        };
        assert!(
            offset == 56 && why.contains("configuration"),
            "{what}: {why}"
        );
    }
    let nobody = forged(|header| {
        header.config.fill(0);
        header.config[2] = 255;
        header.config_bytes = 4;
    });
    assert!(decode(&nobody).is_err(), "no members");
}

#[test]
fn a_snapshot_is_not_begun_without_members_or_with_those_of_a_later_index() {
    let later = ConfigEntry {
        index: LogIndex(1_001),
        ..config()
    };
    let nobody = ConfigEntry {
        config: Config::unknown(),
        ..config()
    };
    for wrong in [later, nobody] {
        let begin = || encode_with(&meta(), &wrong, &Vec::new());
        assert!(std::panic::catch_unwind(begin).is_err());
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
