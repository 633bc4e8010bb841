//! Frames cut short, lengths changed, bytes made up: the right verdict, never a panic, and never
//! a look past the frame.

mod support;

use proptest::prelude::*;
use support::{encoded, encoded_reply, sample_replies, sample_requests, small_set};
use ticketing_protocol::limits::{REPLY_FRAME_MAX, REQUEST_FRAME_MAX};
use ticketing_protocol::{
    ErrorCode, Malformed, Parsed, ParsedReply, Request, parse_reply, parse_request,
};

/// Shortest and longest body of a request, by opcode.
fn request_bounds(opcode: u8) -> (usize, usize) {
    match opcode {
        b'A' => (10, 138),
        b'R' => (16, 144),
        b'S' => (11, 2075),
        b'G' => (17, 2081),
        other => panic!("{other}"),
    }
}

fn is_length_fault(why: Malformed) -> bool {
    matches!(
        why,
        Malformed::BodyTooShort { .. } | Malformed::BodyTooLong { .. }
    )
}

#[test]
fn every_truncation_asks_for_the_header_and_then_the_frame() {
    let set = small_set();
    for request in sample_requests(&set) {
        let frame = encoded(&request);
        for end in 0..frame.len() {
            let need = if end < 3 { 3 } else { frame.len() };
            assert_eq!(
                parse_request(&frame[..end]),
                Parsed::Incomplete { need },
                "{end}"
            );
        }
    }
    for reply in sample_replies() {
        let frame = encoded_reply(&reply);
        for end in 0..frame.len() {
            let need = if end < 3 { 3 } else { frame.len() };
            assert_eq!(
                parse_reply(&frame[..end]),
                ParsedReply::Incomplete { need },
                "{end}"
            );
        }
    }
}

#[test]
fn what_follows_a_frame_is_not_looked_at() {
    let set = small_set();
    for request in sample_requests(&set) {
        let frame = encoded(&request);
        let alone = parse_request(&frame);
        for next in 0..=255_u8 {
            let followed = [&frame[..], &[next; 5]].concat();
            assert_eq!(parse_request(&followed), alone);
        }
    }
    for reply in sample_replies() {
        let frame = encoded_reply(&reply);
        let followed = [&frame[..], b"\xff\xff\xff\xff"].concat();
        assert_eq!(parse_reply(&followed), parse_reply(&frame));
    }
}

#[test]
fn every_opcode_is_judged_from_its_first_byte() {
    for opcode in 0..=255_u8 {
        let known = b"ARSG".contains(&opcode);
        match parse_request(&[opcode]) {
            Parsed::Incomplete { need: 3 } => assert!(known, "{opcode}"),
            Parsed::Malformed(why) => {
                assert_eq!((why, known), (Malformed::UnknownOpcode(opcode), false));
            }
            other => panic!("{opcode}: {other:?}"),
        }
        let known = b"ASRGNTBMIEL".contains(&opcode);
        match parse_reply(&[opcode]) {
            ParsedReply::Incomplete { need: 3 } => assert!(known, "{opcode}"),
            ParsedReply::Malformed(why) => {
                assert_eq!((why, known), (Malformed::UnknownOpcode(opcode), false));
            }
            other => panic!("{opcode}: {other:?}"),
        }
    }
}

#[test]
fn every_announced_length_is_judged_from_the_header_alone() {
    for opcode in *b"ARSG" {
        let (min, max) = request_bounds(opcode);
        for len in 0..=u16::MAX {
            let [high, low] = len.to_be_bytes();
            let len = usize::from(len);
            match parse_request(&[opcode, high, low]) {
                Parsed::Incomplete { need } => {
                    assert!((min..=max).contains(&len));
                    assert_eq!(need, 3 + len);
                    assert!(need <= REQUEST_FRAME_MAX);
                }
                Parsed::Malformed(why) => {
                    assert!(is_length_fault(why));
                    assert!(!(min..=max).contains(&len));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    for reply in sample_replies() {
        let frame = encoded_reply(&reply);
        for len in 0..=u16::MAX {
            let [high, low] = len.to_be_bytes();
            let right = usize::from(len) == frame.len() - 3;
            match parse_reply(&[frame[0], high, low]) {
                ParsedReply::Incomplete { need } => {
                    assert!(right && need == frame.len() && need <= REPLY_FRAME_MAX);
                }
                ParsedReply::Malformed(why) => assert!(is_length_fault(why) && !right),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn every_flipped_length_byte_of_a_request_is_handled() {
    let set = small_set();
    for request in sample_requests(&set) {
        let good = encoded(&request);
        let (min, max) = request_bounds(good[0]);
        for at in [1, 2] {
            for value in (0..=255).filter(|&value| value != good[at]) {
                let mut frame = good.clone();
                frame[at] = value;
                let len = usize::from(u16::from_be_bytes([frame[1], frame[2]]));
                match parse_request(&frame) {
                    Parsed::Malformed(why) => {
                        assert!(is_length_fault(why) && !(min..=max).contains(&len));
                    }
                    Parsed::Incomplete { need } => {
                        assert!(len <= max && need == 3 + len && need > frame.len());
                    }
                    Parsed::Frame {
                        request: shorter,
                        consumed,
                    } => {
                        assert!(len >= min && consumed == 3 + len && consumed < frame.len());
                        check_shorter(&request, shorter.map_err(|refused| refused.code), len - min);
                    }
                }
            }
        }
    }
}

/// A frame announced shorter than it is: a key loses its end, a set no longer adds up.
fn check_shorter(whole: &Request<'_>, shorter: Result<Request<'_>, ErrorCode>, key_len: usize) {
    let whole_key = match whole {
        Request::Acquire { key, .. } | Request::Release { key, .. } => key,
        _ => {
            assert_eq!(shorter, Err(ErrorCode::BadKeySet));
            return;
        }
    };
    match shorter {
        Err(code) => assert_eq!((code, key_len), (ErrorCode::BadKey, 0)),
        Ok(Request::Acquire { key, .. } | Request::Release { key, .. }) => {
            assert_eq!(key, &whole_key[..key_len]);
        }
        Ok(other) => panic!("{other:?}"),
    }
}

#[test]
fn every_flipped_length_byte_of_a_reply_drops_the_connection() {
    for reply in sample_replies() {
        let good = encoded_reply(&reply);
        for at in [1, 2] {
            for value in (0..=255).filter(|&value| value != good[at]) {
                let mut frame = good.clone();
                frame[at] = value;
                let ParsedReply::Malformed(why) = parse_reply(&frame) else {
                    panic!("{frame:02x?}");
                };
                assert!(is_length_fault(why));
            }
        }
    }
}

#[test]
fn every_flipped_count_and_key_length_of_a_set_is_refused() {
    let set = small_set();
    for (request, count_at) in [(2, 13), (3, 19)].map(|(i, at)| (sample_requests(&set)[i], at)) {
        let good = encoded(&request);
        assert_eq!(good[count_at], 3);
        // The count, and the lengths of "aa", "bb" and "cc" behind it.
        for at in [count_at, count_at + 1, count_at + 4, count_at + 7] {
            for value in (0..=255).filter(|&value| value != good[at]) {
                let mut frame = good.clone();
                frame[at] = value;
                let Parsed::Frame {
                    request: Err(refused),
                    consumed,
                } = parse_request(&frame)
                else {
                    panic!("{frame:02x?}");
                };
                assert_eq!(consumed, good.len());
                assert_eq!(refused.request_id, request.request_id());
                // A key of no bytes is no key; any other length leaves the records not adding
                // up, because every byte of a key, read as a length, runs past the body.
                let expected = match (at == count_at, value) {
                    (false, 0) => ErrorCode::BadKey,
                    _ => ErrorCode::BadKeySet,
                };
                assert_eq!(refused.code, expected, "byte {at} = {value}");
            }
        }
    }
}

/// Bytes that get past the header often enough to reach the inside of bodies.
fn nearly_a_request() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        // Small bytes look like counts and lengths.
        prop::collection::vec(0..5_u8, 0..60),
        // A good id and times or token, then a count and small records.
        prop::collection::vec(prop_oneof![1..4_u8, b'a'..b'd'], 8..40),
    ];
    (prop::sample::select(b"ARSG".to_vec()), body).prop_map(|(op, body)| support::raw(op, &body))
}

fn check_any(bytes: &[u8]) -> Result<(), TestCaseError> {
    match parse_request(bytes) {
        Parsed::Incomplete { need } => {
            prop_assert!(need > bytes.len() && need <= REQUEST_FRAME_MAX);
        }
        Parsed::Frame { request, consumed } => {
            prop_assert!(consumed <= bytes.len());
            match request {
                // What is accepted is exactly what would be sent.
                Ok(request) => prop_assert_eq!(&encoded(&request)[..], &bytes[..consumed]),
                Err(refused) => {
                    prop_assert!(refused.request_id != 0);
                    prop_assert!(refused.code.allowed_for(refused.kind));
                }
            }
        }
        Parsed::Malformed(_) => {}
    }
    match parse_reply(bytes) {
        ParsedReply::Incomplete { need } => {
            prop_assert!(need > bytes.len() && need <= REPLY_FRAME_MAX);
        }
        ParsedReply::Frame { reply, consumed } => {
            prop_assert_eq!(&encoded_reply(&reply)[..], &bytes[..consumed]);
        }
        ParsedReply::Malformed(_) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2_200)) {
        check_any(&bytes)?;
    }

    #[test]
    fn nearly_right_bytes_never_panic(bytes in nearly_a_request()) {
        check_any(&bytes)?;
    }

    #[test]
    fn one_changed_byte_never_panics(which in 0..4_usize, at in 0..30_usize, value: u8) {
        let set = small_set();
        let mut frame = encoded(&sample_requests(&set)[which]);
        let at = at % frame.len();
        frame[at] = value;
        check_any(&frame)?;
    }
}
