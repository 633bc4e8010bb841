//! What the protocol tests share: hex, sample frames, raw frames.
#![allow(dead_code, reason = "each test file uses its own part of this module")]

use ticketing_protocol::{ErrorCode, KeySetBuf, Reply, Request};

/// Bytes from hex digits; blanks are for the reader.
pub fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits
        .bytes()
        .filter(|b| !b.is_ascii_whitespace())
        .collect();
    assert_eq!(digits.len() % 2, 0, "an odd number of hex digits");
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

/// Exactly `N` bytes from hex digits.
pub fn hex_array<const N: usize>(digits: &str) -> [u8; N] {
    hex(digits).try_into().unwrap()
}

/// A frame with any body, sound or not.
pub fn raw(opcode: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![opcode];
    frame.extend_from_slice(&u16::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend_from_slice(body);
    frame
}

/// The body of a frame that begins with an id, then `middle`, then the rest.
pub fn body(id: u64, middle: &[u8], rest: &[u8]) -> Vec<u8> {
    [&id.to_be_bytes(), middle, rest].concat()
}

/// Count and records of any keys, sorted or not.
pub fn records(keys: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![u8::try_from(keys.len()).unwrap()];
    for key in keys {
        out.push(u8::try_from(key.len()).unwrap());
        out.extend_from_slice(key);
    }
    out
}

pub fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

pub fn encoded_reply(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.encode(&mut out);
    out
}

/// Three keys whose bytes, read as lengths, all run past their body.
pub fn small_set() -> KeySetBuf {
    KeySetBuf::from_unsorted(&["aa", "bb", "cc"]).unwrap()
}

/// One request of each kind.
pub fn sample_requests(set: &KeySetBuf) -> [Request<'_>; 4] {
    let request_id = 0x0102_0304_0506_0708;
    let token = 0x1112_1314_1516_1718;
    let keys = set.as_set();
    [
        Request::Acquire {
            request_id,
            wait_s: 5,
            lease_s: 30,
            key: b"seat",
        },
        Request::Release {
            request_id,
            token,
            key: b"seat",
        },
        Request::AcquireSet {
            request_id,
            wait_s: 5,
            lease_s: 30,
            keys,
        },
        Request::ReleaseSet {
            request_id,
            token,
            keys,
        },
    ]
}

/// One reply of each kind, and one Error of each code.
pub fn sample_replies() -> Vec<Reply> {
    let request_id = 0x0102_0304_0506_0708;
    let token = 0x1112_1314_1516_1718;
    let mut all = vec![
        Reply::Acquired { request_id, token },
        Reply::SetAcquired { request_id, token },
        Reply::Released { request_id },
        Reply::SetReleased { request_id },
        Reply::NotFound { request_id },
        Reply::TimedOut { request_id },
        Reply::Busy { request_id },
        Reply::Moved {
            request_id,
            slot: 2,
        },
        Reply::Indeterminate { request_id },
        Reply::Leader { slot: 2 },
    ];
    all.extend(ErrorCode::ALL.map(|code| Reply::Error { request_id, code }));
    all
}
