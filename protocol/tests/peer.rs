//! The protocol between nodes: every kind both ways, everything cut or changed, nobody believed
//! who does not know the token.

use proptest::prelude::*;
use ticketing_protocol::limits::{
    PEER_ADDRESSES_MAX, PEER_BODY_MAX, PEER_CHUNK_MAX, PEER_CONFIG_MAX_BYTES, PEER_ENTRIES_MAX,
    PEER_HEADER_BYTES, PEER_RECORDS_MAX_BYTES,
};
use ticketing_protocol::peer::addresses::ENTRY_LEN;
use ticketing_protocol::peer::body::KINDS;
use ticketing_protocol::peer::hello::{
    self, HELLO_LEN, PROOF_LEN, VERDICT_LEN, dialled_proof, encode_verdict, parse_verdict,
    verify_dialled,
};
use ticketing_protocol::peer::{
    Address, AddressesBuffer, Body, EntryId, Frame, Hello, HelloError, Kind, Malformed, Parsed,
    Refusal, Report, Run, SnapshotId, Verdict, parse,
};

const TOKEN: &[u8] = b"a-token-that-only-peers-know";

fn encoded(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// Puts the right checksum into a frame that was changed.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    frame[16..20].fill(0);
    let crc = crc32c::crc32c(&frame);
    frame[16..20].copy_from_slice(&crc.to_le_bytes());
    frame
}

fn node(n: u8) -> [u8; 16] {
    [n; 16]
}

/// Members, opaque here.
fn members() -> Vec<u8> {
    vec![7; 84]
}

/// So many nodes with their addresses.
fn listed(count: usize) -> AddressesBuffer {
    let mut listed = AddressesBuffer::default();
    for number in 1..=count {
        assert!(listed.push([number as u8; 16], address(number)));
    }
    listed
}

fn address(number: usize) -> Address {
    Address {
        ip: [number as u8 + 100; 16],
        port: 6_224 + number as u16,
    }
}

/// One body of each kind.
fn bodies<'a>(config: &'a [u8], listed: &'a AddressesBuffer) -> Vec<Body<'a>> {
    let last = EntryId { term: 3, index: 70 };
    let snapshot = SnapshotId {
        last,
        bytes: 9_000,
        id: 0x1122_3344_5566_7788,
    };
    vec![
        Body::PreVote { last },
        Body::PreVoteAnswer { granted: true },
        Body::Vote {
            last,
            transfer: true,
        },
        Body::VoteAnswer { granted: false },
        Body::Append {
            previous: last,
            commit: 69,
            run: Run {
                term: 3,
                count: 2,
                kind: Kind::Commands,
                records: b"two records",
            },
        },
        Body::Matched { up_to: 72 },
        Body::Conflict {
            refused: 71,
            hint: last,
        },
        Body::Heartbeat {
            round: 12,
            commit: 69,
            rank: 1,
        },
        Body::HeartbeatAnswer {
            round: 12,
            received: 72,
            report: Report {
                has_room: true,
                fit_to_lead: false,
            },
        },
        Body::SnapshotChunk {
            snapshot,
            offset: 4_096,
            config_index: 61,
            config,
            bytes: b"some of the file",
        },
        Body::SnapshotAnswer {
            snapshot,
            next_offset: 8_192,
        },
        Body::TimeoutNow,
        Body::DoYouLead,
        Body::NotLeading,
        Body::TermOver,
        Body::NeedsSnapshot,
        Body::Release {
            number: 5,
            token: 71,
            key: b"seat/A-12",
        },
        Body::ReleaseAnswer { number: 5 },
        Body::StateHash {
            index: 70,
            hash: u128::MAX - 1,
        },
        Body::Ready,
        Body::Alive,
        Body::Addresses(listed.addresses()),
    ]
}

#[test]
fn every_kind_is_read_as_it_was_written_and_asks_for_what_is_missing() {
    let (config, listed) = (members(), listed(2));
    let bodies = bodies(&config, &listed);
    let kinds: Vec<u8> = bodies.iter().map(Body::kind).collect();
    assert_eq!(kinds, KINDS, "one of each");
    for body in bodies {
        let frame = Frame { term: 9, body };
        let bytes = encoded(&frame);
        for end in 0..bytes.len() {
            let need = if end < PEER_HEADER_BYTES {
                PEER_HEADER_BYTES
            } else {
                bytes.len()
            };
            assert_eq!(parse(&bytes[..end]), Parsed::Incomplete { need });
        }
        let mut followed = bytes.clone();
        followed.extend_from_slice(&[0xff; 40]);
        let consumed = bytes.len();
        assert_eq!(parse(&followed), Parsed::Frame { frame, consumed });
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (config, listed) = (members(), listed(2));
    for body in bodies(&config, &listed) {
        let bytes = encoded(&Frame { term: 9, body });
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            // A longer one waits for bytes that then do not fit the checksum.
            flipped.resize(flipped.len().max(PEER_BODY_MAX + PEER_HEADER_BYTES), 0);
            assert!(matches!(parse(&flipped), Parsed::Malformed(_)), "bit {bit}");
        }
    }
}

#[test]
fn with_the_right_checksum_each_body_is_as_long_as_its_kind_says() {
    let (config, listed) = (members(), listed(2));
    for body in bodies(&config, &listed) {
        let bytes = encoded(&Frame { term: 9, body });
        let open_ended = matches!(
            body,
            Body::Append { .. } | Body::SnapshotChunk { .. } | Body::Release { .. }
        );
        // One of whole entries.
        let is_list = matches!(body, Body::Addresses(_));
        let longer = {
            let mut frame = bytes.clone();
            frame.push(b'x');
            let length = (frame.len() - PEER_HEADER_BYTES) as u32;
            frame[..4].copy_from_slice(&length.to_le_bytes());
            sealed(frame)
        };
        let accepted = matches!(parse(&longer), Parsed::Frame { .. });
        assert_eq!(accepted, open_ended, "{body:?} and one byte more");
        for cut in 1..=bytes.len() - PEER_HEADER_BYTES {
            let mut frame = bytes[..bytes.len() - cut].to_vec();
            let length = (frame.len() - PEER_HEADER_BYTES) as u32;
            frame[..4].copy_from_slice(&length.to_le_bytes());
            match parse(&sealed(frame)) {
                Parsed::Malformed(Malformed::Body { .. }) => {}
                Parsed::Frame { frame, .. } if open_ended || is_list => {
                    assert_ne!(frame.body, body);
                }
                other => panic!("{body:?} cut by {cut}: {other:?}"),
            }
        }
    }
}

#[test]
fn values_that_cannot_be_are_refused() {
    let refused = |body: Body<'_>, change: &dyn Fn(&mut [u8])| {
        let mut bytes = encoded(&Frame { term: 9, body });
        change(&mut bytes[PEER_HEADER_BYTES..]);
        let parsed = matches!(
            parse(&sealed(bytes)),
            Parsed::Malformed(Malformed::Body { .. })
        );
        assert!(parsed, "{body:?}");
    };
    refused(Body::VoteAnswer { granted: true }, &|body| body[0] = 2);
    let report = Report {
        has_room: true,
        fit_to_lead: true,
    };
    let answer = Body::HeartbeatAnswer {
        round: 1,
        received: 2,
        report,
    };
    refused(answer, &|body| body[16] = 4);
    let release = Body::Release {
        number: 1,
        token: 7,
        key: b"k",
    };
    refused(release, &|body| body[8] = 0);
    refused(release, &|body| body[16] = b' ');
    let append = |count, kind, records| Body::Append {
        previous: EntryId::default(),
        commit: 0,
        run: Run {
            term: 1,
            count,
            kind,
            records,
        },
    };
    refused(append(1, Kind::Noop, b"r"), &|body| body[36] = 3);
    refused(append(1, Kind::Noop, b"r"), &|body| body[37] = 1);
    refused(append(1, Kind::Noop, b"r"), &|body| body[32] = 2);
    refused(append(1, Kind::Commands, b"r"), &|body| body[32] = 0);
    refused(append(2, Kind::Config, b"r"), &|_| {});
    refused(append(1, Kind::Commands, b""), &|_| {});
    let config = members();
    let chunk = Body::SnapshotChunk {
        snapshot: SnapshotId {
            last: EntryId::default(),
            bytes: 1,
            id: 1,
        },
        offset: 0,
        config_index: 0,
        config: &config,
        bytes: b"",
    };
    let listed = listed(PEER_ADDRESSES_MAX);
    let addresses = Body::Addresses(listed.addresses());
    refused(addresses, &|body| body[32..34].fill(0));
    refused(addresses, &|body| body[39] = 1);
    refused(chunk, &|body| body[16] = 0);
    refused(chunk, &|body| body[49] = 1);
    refused(chunk, &|body| body[48] = 85);

    let frame = encoded(&Frame {
        term: 9,
        body: Body::TermOver,
    });
    for (at, byte) in [(5, 1), (7, 1), (20, 1), (23, 1)] {
        let mut changed = frame.clone();
        changed[at] = byte;
        assert_eq!(
            parse(&sealed(changed)),
            Parsed::Malformed(Malformed::Reserved)
        );
    }
    for kind in (0..=255).filter(|kind| !KINDS.contains(kind)) {
        let mut changed = frame.clone();
        changed[4] = kind;
        assert_eq!(
            parse(&sealed(changed)),
            Parsed::Malformed(Malformed::Kind(kind))
        );
    }
}

#[test]
fn a_list_of_addresses_holds_what_was_put_in_and_no_more_than_it_may() {
    let mut listed = listed(PEER_ADDRESSES_MAX);
    assert!(!listed.push([99; 16], address(99)));
    let body = Body::Addresses(listed.addresses());
    let mut frame = encoded(&Frame { term: 9, body });
    let Parsed::Frame { frame: parsed, .. } = parse(&frame) else {
        panic!("{:?}", parse(&frame));
    };
    let Body::Addresses(read) = parsed.body else {
        panic!("{parsed:?}");
    };
    let read: Vec<_> = read.iter().collect();
    assert_eq!(read.len(), PEER_ADDRESSES_MAX);
    for (place, &entry) in read.iter().enumerate() {
        assert_eq!(entry, ([place as u8 + 1; 16], address(place + 1)));
    }
    let one = frame[PEER_HEADER_BYTES..][..ENTRY_LEN].to_vec();
    frame.extend_from_slice(&one);
    let length = (frame.len() - PEER_HEADER_BYTES) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    assert!(matches!(parse(&sealed(frame)), Parsed::Malformed(_)));
}

#[test]
fn bounds_hold_and_one_past_them_is_refused() {
    let records = vec![7; PEER_RECORDS_MAX_BYTES + 1];
    let append = |count, records| {
        encoded(&Frame {
            term: 1,
            body: Body::Append {
                previous: EntryId::default(),
                commit: 0,
                run: Run {
                    term: 1,
                    count,
                    kind: Kind::Commands,
                    records,
                },
            },
        })
    };
    let most = &records[..PEER_RECORDS_MAX_BYTES];
    assert!(matches!(
        parse(&append(PEER_ENTRIES_MAX, most)),
        Parsed::Frame { .. }
    ));
    for frame in [
        append(PEER_ENTRIES_MAX + 1, most),
        append(PEER_ENTRIES_MAX, &records),
    ] {
        assert!(matches!(
            parse(&frame),
            Parsed::Malformed(Malformed::Body { .. })
        ));
    }
    let config = vec![7; PEER_CONFIG_MAX_BYTES];
    let chunk = |bytes| {
        encoded(&Frame {
            term: 1,
            body: Body::SnapshotChunk {
                snapshot: SnapshotId {
                    last: EntryId::default(),
                    bytes: 1,
                    id: 1,
                },
                offset: 0,
                config_index: 0,
                config: &config,
                bytes,
            },
        })
    };
    assert!(matches!(
        parse(&chunk(&records[..PEER_CHUNK_MAX])),
        Parsed::Frame { .. }
    ));
    assert!(matches!(
        parse(&chunk(&records[..PEER_CHUNK_MAX + 1])),
        Parsed::Malformed(Malformed::Body { .. })
    ));
    let mut header = vec![0; PEER_HEADER_BYTES];
    header[..4].copy_from_slice(&(PEER_BODY_MAX as u32).to_le_bytes());
    let need = PEER_HEADER_BYTES + PEER_BODY_MAX;
    assert_eq!(parse(&header), Parsed::Incomplete { need });
    let beyond = PEER_BODY_MAX as u32 + 1;
    header[..4].copy_from_slice(&beyond.to_le_bytes());
    assert_eq!(
        parse(&header),
        Parsed::Malformed(Malformed::TooLong(beyond)),
        "before any body is waited for"
    );
}

fn hello(n: u8) -> Hello {
    Hello {
        slot: n,
        cluster_id: [0xc1; 16],
        node_id: node(n),
        incarnation: [n + 0x10; 16],
        start_counter: 7,
        process: [n + 0x30; 16],
        term: 4,
        last: EntryId { term: 3, index: 70 },
        nonce: [n + 0x20; 32],
    }
}

#[test]
fn a_hello_is_read_as_it_was_written_and_nothing_else_is_one() {
    for slot in [0, 4, 255] {
        let said = Hello { slot, ..hello(1) };
        assert_eq!(Hello::parse(&said.encode()), Ok(said));
    }
    let bytes = hello(1).encode();
    for at in 0..HELLO_LEN {
        let mut changed = bytes;
        changed[at] ^= 0x40;
        let heard = Hello::parse(&changed);
        match at {
            0..8 => assert_eq!(heard, Err(HelloError::Magic)),
            8 | 9 => assert!(matches!(heard, Err(HelloError::Version(_)))),
            10..16 => assert_eq!(heard, Err(HelloError::Field)),
            _ => assert_ne!(heard, Ok(hello(1))),
        }
    }
    let mut never_started = bytes;
    never_started[64..72].fill(0);
    assert_eq!(Hello::parse(&never_started), Err(HelloError::Field));
}

#[test]
fn a_proof_is_good_for_its_token_its_side_and_its_connection_alone() {
    let (accepting, dialling) = (hello(1), hello(2));
    let proof = dialled_proof(TOKEN, &accepting, &dialling);
    assert!(verify_dialled(TOKEN, &accepting, &dialling, &proof));
    assert!(!verify_dialled(b"another", &accepting, &dialling, &proof));
    assert!(!verify_dialled(TOKEN, &dialling, &accepting, &proof));
    for at in 16..HELLO_LEN {
        for which in 0..2 {
            let mut hellos = [accepting.encode(), dialling.encode()];
            hellos[which][at] ^= 1;
            let [Ok(a), Ok(d)] = hellos.map(|bytes| Hello::parse(&bytes)) else {
                panic!("still a hello");
            };
            assert!(!verify_dialled(TOKEN, &a, &d, &proof), "byte {at}");
        }
    }
    for at in 0..PROOF_LEN {
        let mut changed = proof;
        changed[at] ^= 1;
        assert!(!verify_dialled(TOKEN, &accepting, &dialling, &changed));
    }

    let refusals = Refusal::ALL.map(Verdict::Refused);
    for verdict in refusals.into_iter().chain([Verdict::Welcome]) {
        let bytes = encode_verdict(TOKEN, &accepting, &dialling, verdict);
        let heard = parse_verdict(TOKEN, &accepting, &dialling, &bytes);
        assert_eq!(heard, Some(verdict));
        assert_eq!(
            parse_verdict(b"another", &accepting, &dialling, &bytes),
            None
        );
        for at in 0..VERDICT_LEN {
            let mut changed = bytes;
            changed[at] ^= 1;
            assert_eq!(
                parse_verdict(TOKEN, &accepting, &dialling, &changed),
                None,
                "nobody is refused, or welcomed, by a stranger"
            );
        }
        // What the dialling side proved is no verdict.
        let mut reflected = bytes;
        reflected[1..].copy_from_slice(&proof);
        assert_eq!(
            parse_verdict(TOKEN, &accepting, &dialling, &reflected),
            None
        );
    }
    let unknown = hello::PEER_VERSION;
    assert_eq!(unknown, 1, "a new version needs new domains");
}

proptest! {
    #[test]
    fn any_bytes_give_a_verdict(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in any::<u8>()) {
        let _ = parse(&bytes);
        if bytes.len() >= PEER_HEADER_BYTES {
            // Past the checksum too.
            let mut frame = bytes;
            let length = (frame.len() - PEER_HEADER_BYTES) as u32;
            frame[..4].copy_from_slice(&length.to_le_bytes());
            frame[4] = kind % 40;
            frame[5..8].fill(0);
            frame[20..24].fill(0);
            let frame = sealed(frame);
            if let Parsed::Frame { frame: read, consumed } = parse(&frame) {
                prop_assert_eq!(consumed, frame.len());
                prop_assert_eq!(encoded(&read), frame);
            }
        }
    }
}
