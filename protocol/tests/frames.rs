//! One worked example of every frame, byte by byte, read and written.

mod support;

use support::{encoded, encoded_reply, hex};
use ticketing_protocol::handshake::Mode;
use ticketing_protocol::{
    ErrorCode, KeySetBuf, Parsed, ParsedReply, Reply, Request, RequestKind, SLOT_UNKNOWN,
    parse_reply, parse_request,
};

const ID: u64 = 0x0102_0304_0506_0708;
const TOKEN: u64 = 0x1112_1314_1516_1718;

fn check_request(digits: &str, expected: Request<'_>) {
    let bytes = hex(digits);
    assert_eq!(encoded(&expected), bytes);
    assert_eq!(
        parse_request(&bytes),
        Parsed::Frame {
            request: Ok(expected),
            consumed: bytes.len()
        }
    );
}

#[test]
fn requests_read_and_write_as_worked_out_by_hand() {
    let set = KeySetBuf::from_unsorted(&["row-2", "a"]).unwrap();
    let keys = set.as_set();
    // opcode, length | id | wait 10, lease 30 | "seat:7"
    check_request(
        "41 0010  0102030405060708  0a 1e  736561743a37",
        Request::Acquire {
            request_id: ID,
            wait_s: 10,
            lease_s: 30,
            key: b"seat:7",
        },
    );
    // opcode, length | id | token | "seat:7"
    check_request(
        "52 0016  0102030405060708  1112131415161718  736561743a37",
        Request::Release {
            request_id: ID,
            token: TOKEN,
            key: b"seat:7",
        },
    );
    // opcode, length | id | wait 255, lease 250 | 2 keys: "a", "row-2"
    check_request(
        "53 0013  0102030405060708  ff fa  02  01 61  05 726f772d32",
        Request::AcquireSet {
            request_id: ID,
            wait_s: 255,
            lease_s: 250,
            keys,
        },
    );
    // opcode, length | id | token | 2 keys: "a", "row-2"
    check_request(
        "47 0019  0102030405060708  1112131415161718  02  01 61  05 726f772d32",
        Request::ReleaseSet {
            request_id: ID,
            token: TOKEN,
            keys,
        },
    );
}

#[test]
fn replies_read_and_write_as_worked_out_by_hand() {
    let request_id = ID;
    let token = TOKEN;
    let code = ErrorCode::BadKeySet;
    let table = [
        (
            "41 0010 0102030405060708 1112131415161718",
            Reply::Acquired { request_id, token },
        ),
        (
            "53 0010 0102030405060708 1112131415161718",
            Reply::SetAcquired { request_id, token },
        ),
        ("52 0008 0102030405060708", Reply::Released { request_id }),
        (
            "47 0008 0102030405060708",
            Reply::SetReleased { request_id },
        ),
        ("4e 0008 0102030405060708", Reply::NotFound { request_id }),
        ("54 0008 0102030405060708", Reply::TimedOut { request_id }),
        ("42 0008 0102030405060708", Reply::Busy { request_id }),
        (
            "4d 0009 0102030405060708 02",
            Reply::Moved {
                request_id,
                slot: 2,
            },
        ),
        (
            "4d 0009 0102030405060708 ff",
            Reply::Moved {
                request_id,
                slot: SLOT_UNKNOWN,
            },
        ),
        (
            "49 0008 0102030405060708",
            Reply::Indeterminate { request_id },
        ),
        (
            "45 0009 0102030405060708 05",
            Reply::Error { request_id, code },
        ),
        ("4c 0001 04", Reply::Leader { slot: 4 }),
    ];
    for (digits, reply) in table {
        let bytes = hex(digits);
        assert_eq!(encoded_reply(&reply), bytes, "{reply:?}");
        assert_eq!(
            parse_reply(&bytes),
            ParsedReply::Frame {
                reply,
                consumed: bytes.len()
            }
        );
        let expected_id = (!matches!(reply, Reply::Leader { .. })).then_some(ID);
        assert_eq!(reply.request_id(), expected_id);
    }
}

#[test]
fn each_reply_is_allowed_for_exactly_its_requests() {
    // For each kind of request, the opcodes (and error codes) that may answer it.
    let table = [
        (RequestKind::Acquire, "ATBMI", [1, 2, 3, 4].as_slice()),
        (RequestKind::Release, "RNMI", &[1, 3, 4, 6, 7]),
        (RequestKind::AcquireSet, "STBMI", &[1, 2, 3, 4, 5]),
        (RequestKind::ReleaseSet, "GNMI", &[1, 3, 4, 5, 6, 7]),
    ];
    for (kind, opcodes, codes) in table {
        for reply in support::sample_replies() {
            let expected = match reply {
                Reply::Error { code, .. } => codes.contains(&code.to_byte()),
                _ => opcodes.as_bytes().contains(&encoded_reply(&reply)[0]),
            };
            assert_eq!(reply.allowed_for(kind), expected, "{reply:?} for {kind:?}");
        }
    }
}

#[test]
fn slots_are_held_to_mode_and_voters() {
    for slot in 0..=255 {
        let moved = Reply::Moved {
            request_id: 1,
            slot,
        };
        let leader = Reply::Leader { slot };
        assert_eq!(moved.allowed_in(Mode::Single, 1), slot == 255);
        assert!(!leader.allowed_in(Mode::Single, 1));
        for voters in [3, 5] {
            let expected = slot < voters || slot == 255;
            assert_eq!(moved.allowed_in(Mode::Cluster, voters), expected);
            assert_eq!(leader.allowed_in(Mode::Cluster, voters), expected);
        }
    }
    assert!(Reply::Busy { request_id: 1 }.allowed_in(Mode::Single, 1));
}

#[test]
fn error_codes_are_one_to_seven() {
    for byte in 0..=255 {
        let code = ErrorCode::from_byte(byte);
        assert_eq!(code.is_some(), (1..=7).contains(&byte));
        assert_eq!(code.map_or(byte, ErrorCode::to_byte), byte);
    }
    assert_eq!(
        ErrorCode::ALL.map(ErrorCode::to_byte),
        [1, 2, 3, 4, 5, 6, 7]
    );
}

#[test]
fn encoding_appends_and_leaves_what_is_there() {
    let mut out = b"before".to_vec();
    Reply::Busy { request_id: ID }.encode(&mut out);
    Request::Release {
        request_id: ID,
        token: TOKEN,
        key: b"k",
    }
    .encode(&mut out);
    assert_eq!(&out[..6], b"before");
    assert_eq!(out.len(), 6 + 11 + 20);
}

#[test]
#[should_panic(expected = "token 0")]
fn token_zero_is_never_sent() {
    encoded_reply(&Reply::Acquired {
        request_id: 1,
        token: 0,
    });
}

#[test]
#[should_panic(expected = "request id 0")]
fn id_zero_is_never_sent() {
    encoded_reply(&Reply::Busy { request_id: 0 });
}

#[test]
#[should_panic(expected = "out of bounds")]
fn lease_251_is_never_sent() {
    encoded(&Request::Acquire {
        request_id: 1,
        wait_s: 0,
        lease_s: 251,
        key: b"k",
    });
}
