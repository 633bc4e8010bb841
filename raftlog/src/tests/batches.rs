//! Batches round-trip, and nothing else passes for one.

use proptest::prelude::*;

use super::memlog::{BASE, CLUSTER, MemLog, config};
use crate::batch::{Control, EntryKind, Full};
use crate::format::{BATCH_HEADER_BYTES, RecordKind, batch_crc, crc_seed, padded_record_bytes};
use crate::limits::{BLOCK_BYTES, MAX_PAYLOAD_BYTES, MAX_RECORDS_PER_BATCH, MIN_SEGMENT_BYTES};
use crate::parse::{BatchRef, Block, inspect};
use crate::types::{ClusterId, LogIndex, Position, Term, UseNumber};

fn valid<'a>(bytes: &'a [u8], position: Position) -> Option<BatchRef<'a>> {
    match inspect(bytes, position, crc_seed(CLUSTER, position.use_number())) {
        Block::Batch(batch) => Some(batch),
        Block::Started(_) | Block::Other => None,
    }
}

/// An entry of any kind, with its payload.
fn entry() -> impl Strategy<Value = (EntryKind, Vec<u8>)> {
    prop_oneof![
        Just((EntryKind::Noop, Vec::new())),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| (EntryKind::Command, bytes)),
        (0..20_u8).prop_map(|n| {
            let mut bytes = Vec::new();
            config(n).encode(&mut bytes);
            (EntryKind::Config, bytes)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_goes_in_comes_out(
        entries in prop::collection::vec((entry(), 0..3_u64), 0..60),
        gap in prop::option::of(1..1_000_000_u64),
    ) {
        let mut log = MemLog::new();
        let control = gap.map(|gap| Control::Gap { next: BASE.next().plus(gap), last_term: Term(0) });
        let mut batch = log.planner.begin(vec![0xee; 99], control);
        let (mut term, mut expected) = (0, Vec::new());
        for ((kind, payload), step) in &entries {
            term += step;
            let index = batch.push(*kind, Term(term), payload).expect("room");
            let kind = match kind {
                EntryKind::Noop => RecordKind::Noop,
                EntryKind::Command => RecordKind::Command,
                EntryKind::Config => RecordKind::Config,
            };
            expected.push((kind, Term(term), index, payload.clone()));
        }
        let configs = entries.iter().filter(|((kind, _), _)| *kind == EntryKind::Config).count();
        let first = BASE.next().plus(gap.unwrap_or(0));
        prop_assert!(expected.iter().zip(0..).all(|(e, n)| e.2 == first.plus(n)));
        let as_they_lie = batch.record_bytes().to_vec();
        let summary = log.write(batch, false);
        let bytes = log.bytes_of(&summary);
        let batch = valid(&bytes, summary.position).expect("valid");
        prop_assert_eq!(batch.summarize(Term(0)), Ok(summary));
        prop_assert_eq!((summary.configs as usize, batch.configs().count()), (configs, configs));
        let mut again = Vec::new();
        batch.records().for_each(|(_, record)| record.encode(&mut again));
        prop_assert_eq!(again, as_they_lie, "as they are sent to other nodes");
        let mut records = batch.records();
        if let Some(control) = control {
            let (_, record) = records.next().expect("the control record");
            prop_assert_eq!((record.kind, record.index), (RecordKind::Gap, control.next_index()));
        }
        for (kind, term, index, payload) in expected {
            let (offset, record) = records.next().expect("as many records");
            prop_assert_eq!(offset % 8, 0);
            prop_assert_eq!((record.kind, record.term, record.index), (kind, term, index));
            prop_assert_eq!(record.payload, &payload[..]);
        }
        prop_assert!(records.next().is_none());
    }

    #[test]
    fn random_bytes_are_no_batch_and_no_crash(
        mut bytes in prop::collection::vec(any::<u8>(), BLOCK_BYTES),
        keep_header in 0..=BATCH_HEADER_BYTES,
    ) {
        let mut log = MemLog::new();
        let summary = log.append(&[b"abc"]);
        let whole = log.bytes_of(&summary);
        bytes[..keep_header].copy_from_slice(&whole[..keep_header]);
        prop_assert!(valid(&bytes, summary.position).is_none());
    }

    #[test]
    fn a_batch_with_a_right_checksum_and_wrong_content_is_told_apart(
        noise in prop::collection::vec((48..330_usize, any::<u8>()), 1..6),
    ) {
        // The writer never makes such a batch; reading one must neither panic nor pass it off.
        let mut log = MemLog::new();
        let summary = log.append_configs(&[config(1), config(2)]);
        let mut bytes = log.bytes_of(&summary);
        let body = 3 * 24 + 8 + 2 * 88;
        let end = BATCH_HEADER_BYTES + body;
        for (at, byte) in noise {
            bytes[at.min(end - 1)] = byte;
        }
        let crc = batch_crc(crc_seed(CLUSTER, UseNumber(1)), &bytes);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        let batch = valid(&bytes, summary.position).expect("its checksum is right");
        if let Ok(again) = batch.summarize(Term(0)) {
            prop_assert_eq!(again.entries, summary.entries);
            prop_assert_eq!(batch.records().count(), 3);
            prop_assert_eq!(batch.configs().count() as u32, again.configs);
            prop_assert_eq!(again.first_index, summary.first_index);
        }
    }
}

#[test]
fn each_bit_of_a_batch_is_checked() {
    let mut log = MemLog::new();
    let summary = log.append(&[b"abc", &[9; 5000]]);
    let mut bytes = log.bytes_of(&summary);
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(valid(&bytes, summary.position).is_none(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(valid(&bytes, summary.position).is_some());
}

#[test]
fn a_batch_counts_only_in_its_place_its_use_and_its_cluster() {
    let mut log = MemLog::new();
    let summary = log.append(&[b"abc"]);
    let bytes = log.bytes_of(&summary);
    let here = summary.position;
    let next_block = Position::new(here.use_number(), here.offset() + BLOCK_BYTES as u32);
    assert!(valid(&bytes, next_block).is_none());
    assert!(valid(&bytes, Position::new(UseNumber(2), here.offset())).is_none());
    for seed in [
        crc_seed(CLUSTER, UseNumber(2)),
        crc_seed(ClusterId([8; 16]), UseNumber(1)),
    ] {
        assert!(!matches!(inspect(&bytes, here, seed), Block::Batch(_)));
    }
}

#[test]
fn the_longest_payload_fits_and_a_longer_one_is_the_callers_fault() {
    let mut log = MemLog::new();
    let longest = vec![1; MAX_PAYLOAD_BYTES];
    let summary = log.append(&[&longest]);
    assert_eq!(
        valid(&log.bytes_of(&summary), summary.position)
            .expect("valid")
            .records()
            .count(),
        1
    );
    let mut batch = log.planner.begin(Vec::new(), None);
    let longer = vec![1; MAX_PAYLOAD_BYTES + 1];
    let push = std::panic::AssertUnwindSafe(|| batch.push(EntryKind::Command, Term(1), &longer));
    assert!(std::panic::catch_unwind(push).is_err());
}

#[test]
fn a_batch_fills_up_to_its_bytes_and_not_beyond() {
    let log = MemLog::new();
    let room = MIN_SEGMENT_BYTES as usize - BLOCK_BYTES;
    let mut batch = log.planner.begin(Vec::new(), None);
    // The batch's header, the trailer, and one record of which the payload takes the rest.
    let mut left = room - BATCH_HEADER_BYTES - 8;
    while left > padded_record_bytes(8000) + padded_record_bytes(0) {
        batch
            .push(EntryKind::Command, Term(1), &[1; 8000])
            .expect("room");
        left -= padded_record_bytes(8000);
    }
    let rest = left - padded_record_bytes(0);
    let next = batch.next_index();
    assert_eq!(
        batch.push(EntryKind::Command, Term(1), &vec![1; rest + 1]),
        Err(Full)
    );
    assert_eq!(batch.next_index(), next, "a refused record changes nothing");
    assert_eq!(
        batch.push(EntryKind::Command, Term(1), &vec![1; rest]),
        Ok(next)
    );
    assert_eq!(batch.padded_bytes(), room);
    assert_eq!(batch.push(EntryKind::Noop, Term(1), &[]), Err(Full));
}

#[test]
fn a_batch_fills_up_to_its_records_and_not_beyond() {
    let mut batch = crate::BatchBuilder::new(Vec::new(), LogIndex(1), Term(0), None, usize::MAX);
    for _ in 0..MAX_RECORDS_PER_BATCH {
        batch.push(EntryKind::Noop, Term(1), &[]).expect("room");
    }
    assert_eq!(batch.push(EntryKind::Noop, Term(1), &[]), Err(Full));
    assert_eq!(batch.entries(), MAX_RECORDS_PER_BATCH);
}

#[test]
fn a_configuration_without_members_or_of_other_bytes_is_not_written() {
    let nobody = [0, 0, 255, 0];
    for payload in [&nobody[..], b"", b"anything else"] {
        let mut batch = MemLog::new().planner.begin(Vec::new(), None);
        let push = std::panic::AssertUnwindSafe(|| batch.push(EntryKind::Config, Term(1), payload));
        assert!(std::panic::catch_unwind(push).is_err(), "{payload:?}");
    }
}

/// A batch of three commands behind a gap, with bytes changed and the checksum made right again.
fn forged(change: impl FnOnce(&mut [u8])) -> (Vec<u8>, Position) {
    let mut log = MemLog::new();
    let gap = Control::Gap {
        next: BASE.plus(9),
        last_term: Term(0),
    };
    let mut batch = log.planner.begin(Vec::new(), Some(gap));
    for _ in 0..3 {
        batch
            .push(EntryKind::Command, Term(5), b"8 bytes.")
            .expect("room");
    }
    let summary = log.write(batch, false);
    let mut bytes = log.bytes_of(&summary);
    change(&mut bytes);
    let crc = batch_crc(crc_seed(CLUSTER, UseNumber(1)), &bytes);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    (bytes, summary.position)
}

#[test]
fn each_rule_about_a_batchs_content_is_enforced() {
    // Offsets in the batch: the gap's record at 64, the commands' at 88, 120 and 152.
    type Forgery = (&'static str, fn(&mut [u8]));
    let forgeries: [Forgery; 14] = [
        ("a lower term", |b| b[120 + 8] = 4),
        ("a term below the batch before", |b| b[64 + 8] = 1),
        ("an index twice", |b| b[120 + 16] -= 1),
        ("a gap to elsewhere", |b| b[64 + 16] += 1),
        ("an unknown kind", |b| b[120 + 4] = 4),
        ("a configuration that is none", |b| b[120 + 4] = 3),
        ("a control record among entries", |b| b[120 + 4] = 18),
        ("a payload beyond the records", |b| b[152] = 200),
        ("a record too many", |b| b[44] += 1),
        ("an entry too few", |b| b[48] -= 1),
        ("an unknown flag", |b| b[52] = 4),
        ("a mark with records", |b| b[52] = 1),
        ("reserved bytes in use", |b| b[56] = 1),
        ("an index beyond every bound", |b| b[32 + 6] = 0xff),
    ];
    let (whole, position) = forged(|_| {});
    assert!(
        valid(&whole, position)
            .expect("valid")
            .summarize(Term(0))
            .is_ok()
    );
    for (what, change) in forgeries {
        let (bytes, position) = forged(change);
        let batch = valid(&bytes, position).expect(what);
        // The term that the log had before is 0; the second forgery claims a 1.
        let summary = batch.summarize(Term(0));
        let mut index = crate::BatchIndex::default();
        let reset = Control::Reset {
            index: BASE,
            term: Term(0),
        };
        let first = MemLog::new().batches[0];
        assert_eq!(first.control, Some(reset));
        index.apply(&first).expect("it begins the log");
        assert!(
            summary.and_then(|summary| index.apply(&summary)).is_err(),
            "{what} passed"
        );
    }
}

#[test]
fn a_batch_cannot_vouch_for_what_is_behind_it() {
    let (bytes, position) = forged(|b| b[24..32].copy_from_slice(&u64::MAX.to_le_bytes()));
    assert!(valid(&bytes, position).is_none());
    let (bytes, position) = forged(|b| {
        let own: [u8; 8] = b[16..24].try_into().expect("8 bytes");
        b[24..32].copy_from_slice(&own);
    });
    assert!(valid(&bytes, position).is_some());
}

#[test]
fn a_batch_has_room_for_exactly_what_can_be_pushed() {
    let log = MemLog::new();
    let mut batch = log.planner.begin(Vec::new(), None);
    let (first, payload) = (batch.first_index(), [7; 12_001]);
    let record = batch.byte_len();
    while batch.has_room_for(1, payload.len()) {
        let pushed = batch.push(EntryKind::Command, Term(5), &payload);
        assert!(pushed.is_ok(), "{} bytes so far", batch.byte_len());
    }
    assert_eq!(batch.push(EntryKind::Command, Term(5), &payload), Err(Full));
    let (entries, bytes) = (batch.entries() as usize, batch.byte_len() - record);
    // A record's header, and its payload to a multiple of 8.
    assert_eq!(bytes, entries * (24 + 12_008));
    assert_eq!(batch.first_index().plus(entries as u64), batch.next_index());
    assert_eq!(batch.first_index(), first);
    assert!(batch.has_room_for(1, 1) && !batch.has_room_for(2, 8_000));
}
