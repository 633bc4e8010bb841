//! Every limit at its bound and one past it, and every fault with the verdict it earns.

mod support;

use support::{body, encoded, raw, records};
use ticketing_protocol::limits::{KEY_MAX_BYTES, REQUEST_FRAME_MAX, SET_KEYS_MAX};
use ticketing_protocol::{
    ErrorCode, KeyError, KeySetBuf, KeySetError, KeySetRef, Malformed, Parsed, ParsedReply,
    Refused, Request, RequestKind, parse_reply, parse_request,
};

const ID: u64 = 9;
const TIMES: &[u8] = &[0, 30];
const TOKEN: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 7];

/// The verdict on one whole frame.
enum Verdict {
    Taken,
    Refused(ErrorCode),
    Closed(Malformed),
}
use Verdict::{Closed, Taken};

fn expect(frame: &[u8], verdict: Verdict) {
    let parsed = parse_request(frame);
    let consumed = frame.len();
    match verdict {
        Taken => {
            let Parsed::Frame {
                request: Ok(request),
                consumed: got,
            } = parsed
            else {
                panic!("{frame:02x?} -> {parsed:?}");
            };
            assert_eq!(got, consumed);
            assert_eq!(encoded(&request), frame);
        }
        Verdict::Refused(code) => {
            let kind = RequestKind::from_opcode(frame[0]).unwrap();
            assert!(code.allowed_for(kind), "{code:?} may not answer {kind:?}");
            let request = Err(Refused {
                request_id: ID,
                kind,
                code,
            });
            assert_eq!(parsed, Parsed::Frame { request, consumed }, "{frame:02x?}");
        }
        Closed(why) => assert_eq!(parsed, Parsed::Malformed(why), "{frame:02x?}"),
    }
}

/// The same set in both frames that carry one.
fn expect_set(encoded_set: &[u8], verdict: impl Fn() -> Verdict) {
    expect(&raw(b'S', &body(ID, TIMES, encoded_set)), verdict());
    expect(&raw(b'G', &body(ID, TOKEN, encoded_set)), verdict());
}

fn keys_of_full_length(count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|index| {
            let mut key = vec![b'k'; KEY_MAX_BYTES];
            key[0] = b'a' + index as u8;
            key
        })
        .collect()
}

fn slices(keys: &[Vec<u8>]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

#[test]
fn single_keys() {
    let longest = [b'k'; KEY_MAX_BYTES];
    expect(&raw(b'A', &body(ID, TIMES, &longest)), Taken);
    expect(&raw(b'R', &body(ID, TOKEN, &longest)), Taken);
    // One byte more is one byte more than the body may have: the header alone condemns it.
    let too_long = |opcode, body, max| Closed(Malformed::BodyTooLong { opcode, body, max });
    let over = [b'k'; KEY_MAX_BYTES + 1];
    expect(
        &raw(b'A', &body(ID, TIMES, &over)),
        too_long(b'A', 139, 138),
    );
    expect(
        &raw(b'R', &body(ID, TOKEN, &over)),
        too_long(b'R', 145, 144),
    );
    for bad in [&b""[..], b"a b", b"a\n", b"\ra", b"a\xff"] {
        expect(
            &raw(b'A', &body(ID, TIMES, bad)),
            Verdict::Refused(ErrorCode::BadKey),
        );
        expect(
            &raw(b'R', &body(ID, TOKEN, bad)),
            Verdict::Refused(ErrorCode::BadKey),
        );
    }
}

#[test]
fn fixed_parts() {
    for (opcode, min) in [(b'A', 10), (b'R', 16), (b'S', 11), (b'G', 17)] {
        let short = vec![1; min - 1];
        let why = Malformed::BodyTooShort {
            opcode,
            body: min - 1,
            min,
        };
        expect(&raw(opcode, &short), Closed(why));
    }
    // Exactly the fixed part: framing is sound, the key is empty or the set has no keys.
    expect(
        &raw(b'A', &body(ID, TIMES, b"")),
        Verdict::Refused(ErrorCode::BadKey),
    );
    expect(
        &raw(b'R', &body(ID, TOKEN, b"")),
        Verdict::Refused(ErrorCode::BadKey),
    );
    expect_set(&[0], || Verdict::Refused(ErrorCode::BadKeySet));
}

#[test]
fn leases_waits_and_tokens() {
    let set = records(&[b"a", b"b"]);
    for wait in 0..=255 {
        expect(&raw(b'A', &body(ID, &[wait, 1], b"k")), Taken);
    }
    for lease in 0..=255 {
        let verdict = || match lease {
            1..=250 => Taken,
            _ => Verdict::Refused(ErrorCode::BadLease),
        };
        expect(&raw(b'A', &body(ID, &[0, lease], b"k")), verdict());
        expect(&raw(b'S', &body(ID, &[0, lease], &set)), verdict());
    }
    for (token, taken) in [(0, false), (1, true), (u64::MAX, true)] {
        let verdict = || match taken {
            true => Taken,
            false => Verdict::Refused(ErrorCode::BadToken),
        };
        expect(
            &raw(b'R', &body(ID, &u64::to_be_bytes(token), b"k")),
            verdict(),
        );
        expect(
            &raw(b'G', &body(ID, &u64::to_be_bytes(token), &set)),
            verdict(),
        );
    }
}

#[test]
fn request_ids() {
    for opcode in *b"ARSG" {
        expect(&raw(opcode, &[0; 30]), Closed(Malformed::ZeroRequestId));
    }
    expect(&raw(b'A', &body(1, TIMES, b"k")), Taken);
    expect(&raw(b'A', &body(u64::MAX, TIMES, b"k")), Taken);
}

#[test]
fn set_counts() {
    for count in 1..=SET_KEYS_MAX {
        let keys = keys_of_full_length(count);
        expect_set(&records(&slices(&keys)), || match count {
            1 => Verdict::Refused(ErrorCode::BadKeySet),
            _ => Taken,
        });
    }
    // 17 short keys fit the body: a bad set, not bad framing.
    let keys: Vec<Vec<u8>> = (b'a'..b'a' + 17).map(|byte| vec![byte]).collect();
    expect_set(&records(&slices(&keys)), || {
        Verdict::Refused(ErrorCode::BadKeySet)
    });
    // 17 of full length do not.
    let full = records(&slices(&keys_of_full_length(17)));
    let frame = raw(b'S', &body(ID, TIMES, &full));
    let why = Malformed::BodyTooLong {
        opcode: b'S',
        body: 2204,
        max: 2075,
    };
    expect(&frame, Closed(why));
    let frame = raw(b'G', &body(ID, TOKEN, &full));
    let why = Malformed::BodyTooLong {
        opcode: b'G',
        body: 2210,
        max: 2081,
    };
    expect(&frame, Closed(why));
}

#[test]
fn the_largest_request_is_what_a_reader_must_hold() {
    let set = KeySetBuf::from_unsorted(&keys_of_full_length(SET_KEYS_MAX)).unwrap();
    let largest = Request::ReleaseSet {
        request_id: ID,
        token: 7,
        keys: set.as_set(),
    };
    assert_eq!(encoded(&largest).len(), REQUEST_FRAME_MAX);
    assert_eq!(REQUEST_FRAME_MAX, 2084);
    // One byte behind the last key is one byte past the maximum.
    let mut body = encoded(&largest)[3..].to_vec();
    body.push(b'x');
    let why = Malformed::BodyTooLong {
        opcode: b'G',
        body: 2082,
        max: 2081,
    };
    expect(&raw(b'G', &body), Closed(why));
}

#[test]
fn set_faults() {
    let refuse = |keys: &[&[u8]], code| expect_set(&records(keys), || Verdict::Refused(code));
    refuse(&[b"b", b"a"], ErrorCode::BadKeySet);
    refuse(&[b"a", b"a"], ErrorCode::BadKeySet);
    refuse(&[b"ab", b"a"], ErrorCode::BadKeySet);
    refuse(&[b"a", b"c", b"b"], ErrorCode::BadKeySet);
    refuse(&[b"", b"a"], ErrorCode::BadKey);
    refuse(&[b"a", b"b c"], ErrorCode::BadKey);
    refuse(&[b"a", b"b\xff"], ErrorCode::BadKey);
    refuse(&[b"a", &[b'k'; KEY_MAX_BYTES + 1]], ErrorCode::BadKey);
    expect_set(&records(&[b"a", &[b'k'; KEY_MAX_BYTES]]), || Taken);
    // Order is that of bytes, not of characters or length.
    expect_set(&records(&[b"Z", b"a", "é".as_bytes()]), || Taken);

    let broken: [&[u8]; 6] = [
        b"\x02",             // no record at all
        b"\x02\x01a",        // second record missing
        b"\x02\x01a\x01",    // its key missing
        b"\x02\x01a\x02b",   // its key cut short
        b"\x02\x01a\xffb",   // its length far past the body
        b"\x02\x01a\x01bzz", // bytes behind it
    ];
    for set in broken {
        expect_set(set, || Verdict::Refused(ErrorCode::BadKeySet));
    }
}

#[test]
fn the_first_bad_value_in_byte_order_decides() {
    let refused = Verdict::Refused;
    expect(
        &raw(b'A', &body(ID, &[0, 0], b" ")),
        refused(ErrorCode::BadLease),
    );
    expect(
        &raw(b'R', &body(ID, &[0; 8], b" ")),
        refused(ErrorCode::BadToken),
    );
    expect(
        &raw(b'S', &body(ID, &[0, 251], b"\x00")),
        refused(ErrorCode::BadLease),
    );
    expect(
        &raw(b'G', &body(ID, &[0; 8], b"\x00")),
        refused(ErrorCode::BadToken),
    );
    // A bad key before, and behind, a fault of the set.
    expect_set(b"\x02\x01 \x09x", || Verdict::Refused(ErrorCode::BadKey));
    expect_set(b"\x03\x01b\x01a\x01 ", || {
        Verdict::Refused(ErrorCode::BadKeySet)
    });
    expect_set(b"\x01\x01 ", || Verdict::Refused(ErrorCode::BadKeySet));
    // Id 0 closes, whatever else is wrong.
    expect(
        &raw(b'A', &body(0, &[0, 0], b" ")),
        Closed(Malformed::ZeroRequestId),
    );
}

#[test]
fn key_set_errors_say_which_key() {
    let parse = |bytes| KeySetRef::parse(bytes).map(|set| set.len());
    assert_eq!(parse(b""), Err(KeySetError::Count(0)));
    assert_eq!(parse(b"\x11"), Err(KeySetError::Count(17)));
    assert_eq!(parse(b"\x02\x01a\x01b"), Ok(2));
    assert_eq!(
        parse(b"\x02\x01a\x02b"),
        Err(KeySetError::Overrun { index: 1 })
    );
    assert_eq!(
        parse(b"\x02\x01b\x01a"),
        Err(KeySetError::Order { index: 1 })
    );
    assert_eq!(
        parse(b"\x02\x01a\x01b!"),
        Err(KeySetError::Trailing { bytes: 1 })
    );
    let error = KeyError::ForbiddenByte { at: 1 };
    assert_eq!(
        parse(b"\x02\x01a\x02b "),
        Err(KeySetError::Key { index: 1, error })
    );
}

#[test]
fn owned_sets_sort_and_refuse() {
    let set = KeySetBuf::from_unsorted(&["c", "a", "b"]).unwrap();
    assert_eq!(set.as_set().iter().collect::<Vec<_>>(), [b"a", b"b", b"c"]);
    assert_eq!(format!("{set:?}"), r#"{"a", "b", "c"}"#);
    let refused = |keys: &[&[u8]]| KeySetBuf::from_unsorted(keys).unwrap_err();
    assert_eq!(refused(&[b"a"]), KeySetError::Count(1));
    assert_eq!(refused(&[b"a".as_slice(); 17]), KeySetError::Count(17));
    assert_eq!(
        refused(&[b"b", b"a", b"b"]),
        KeySetError::Order { index: 2 }
    );
    let error = KeyError::TooLong { bytes: 300 };
    assert_eq!(
        refused(&[&[b'z'; 300], b"a"]),
        KeySetError::Key { index: 1, error }
    );
    let error = KeyError::Empty;
    assert_eq!(refused(&[b"a", b""]), KeySetError::Key { index: 0, error });
}

#[test]
fn replies_with_impossible_values_drop_the_connection() {
    let closes = |frame: &[u8], why| assert_eq!(parse_reply(frame), ParsedReply::Malformed(why));
    for opcode in *b"AS" {
        closes(&raw(opcode, &[0; 16]), Malformed::ZeroRequestId);
        closes(&raw(opcode, &body(ID, &[0; 8], b"")), Malformed::ZeroToken);
    }
    for opcode in *b"RGNTBI" {
        closes(&raw(opcode, &[0; 8]), Malformed::ZeroRequestId);
    }
    for code in (0..=255).filter(|code| !(1..=7).contains(code)) {
        closes(
            &raw(b'E', &body(ID, &[code], b"")),
            Malformed::UnknownErrorCode(code),
        );
    }
}
