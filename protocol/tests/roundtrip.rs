//! What is written is read back the same, for every frame.

mod support;

use std::collections::BTreeSet;

use proptest::prelude::*;
use support::{encoded, encoded_reply};
use ticketing_protocol::handshake::{Mode, ServerHello};
use ticketing_protocol::{
    ErrorCode, KeySetBuf, Parsed, ParsedReply, Reply, Request, parse_reply, parse_request,
    validate_key,
};

/// Any valid key: any characters but three, cut at 128 bytes.
fn any_key() -> impl Strategy<Value = String> {
    let ascii = "[!-~]{1,128}";
    let wide = prop::collection::vec(any::<char>(), 1..128).prop_map(|chars| {
        let mut key = String::new();
        for char in chars {
            if !matches!(char, ' ' | '\n' | '\r') && key.len() + char.len_utf8() <= 128 {
                key.push(char);
            }
        }
        if key.is_empty() { "k".to_owned() } else { key }
    });
    prop_oneof![ascii, wide]
}

fn any_keys() -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set(any_key(), 2..=16)
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let code = prop::sample::select(ErrorCode::ALL.to_vec());
    (0..11_u8, 1..=u64::MAX, 1..=u64::MAX, any::<u8>(), code).prop_map(
        |(which, request_id, token, slot, code)| match which {
            0 => Reply::Acquired { request_id, token },
            1 => Reply::SetAcquired { request_id, token },
            2 => Reply::Released { request_id },
            3 => Reply::SetReleased { request_id },
            4 => Reply::NotFound { request_id },
            5 => Reply::TimedOut { request_id },
            6 => Reply::Busy { request_id },
            7 => Reply::Moved { request_id, slot },
            8 => Reply::Indeterminate { request_id },
            9 => Reply::Error { request_id, code },
            _ => Reply::Leader { slot },
        },
    )
}

fn check(request: Request<'_>) -> Result<(), TestCaseError> {
    let bytes = encoded(&request);
    let consumed = bytes.len();
    prop_assert_eq!(
        parse_request(&bytes),
        Parsed::Frame {
            request: Ok(request),
            consumed
        }
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn single_key_requests(
        request_id in 1..=u64::MAX,
        token in 1..=u64::MAX,
        wait_s: u8,
        lease_s in 1..=250_u8,
        key in any_key(),
    ) {
        prop_assert_eq!(validate_key(key.as_bytes()), Ok(key.as_str()));
        let key = key.as_bytes();
        check(Request::Acquire { request_id, wait_s, lease_s, key })?;
        check(Request::Release { request_id, token, key })?;
    }

    #[test]
    fn set_requests(
        request_id in 1..=u64::MAX,
        token in 1..=u64::MAX,
        wait_s: u8,
        lease_s in 1..=250_u8,
        keys in any_keys(),
    ) {
        let backwards: Vec<&String> = keys.iter().rev().collect();
        let set = KeySetBuf::from_unsorted(&backwards).unwrap();
        prop_assert_eq!(set.as_set().len(), keys.len());
        prop_assert!(set.as_set().into_iter().eq(keys.iter().map(String::as_bytes)));
        let keys = set.as_set();
        check(Request::AcquireSet { request_id, wait_s, lease_s, keys })?;
        check(Request::ReleaseSet { request_id, token, keys })?;
    }

    #[test]
    fn replies(reply in any_reply()) {
        let bytes = encoded_reply(&reply);
        let consumed = bytes.len();
        prop_assert_eq!(parse_reply(&bytes), ParsedReply::Frame { reply, consumed });
    }

    #[test]
    fn replies_in_one_stream(replies in prop::collection::vec(any_reply(), 1..50)) {
        let mut stream = Vec::new();
        for reply in &replies {
            reply.encode(&mut stream);
        }
        let mut read = Vec::new();
        let mut rest = &stream[..];
        while let ParsedReply::Frame { reply, consumed } = parse_reply(rest) {
            read.push(reply);
            rest = &rest[consumed..];
        }
        prop_assert_eq!(read, replies);
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn hellos(nonce: [u8; 16], slot in 0..5_u8, cluster: bool) {
        let hello = match cluster {
            true => ServerHello { mode: Mode::Cluster, slot, nonce },
            false => ServerHello::single(nonce),
        };
        prop_assert_eq!(ServerHello::parse(&hello.encode()), Ok(hello));
    }
}
