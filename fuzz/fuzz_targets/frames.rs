//! The frame parsers, both ways: never a panic, never a read past the end, and
//! what is accepted encodes to the bytes it came from.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ticketing_protocol::{Parsed, ParsedReply, parse_reply, parse_request};

fuzz_target!(|bytes: &[u8]| {
    requests(bytes);
    replies(bytes);
});

fn requests(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        match parse_request(rest) {
            Parsed::Incomplete { need } => {
                assert!(need > rest.len());
                return;
            }
            Parsed::Malformed(_) => return,
            Parsed::Frame { request, consumed } => {
                assert!(consumed > 0 && consumed <= rest.len());
                if let Ok(request) = request {
                    let mut again = Vec::new();
                    request.encode(&mut again);
                    assert_eq!(again, &rest[..consumed]);
                }
                rest = &rest[consumed..];
            }
        }
    }
}

fn replies(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        match parse_reply(rest) {
            ParsedReply::Incomplete { need } => {
                assert!(need > rest.len());
                return;
            }
            ParsedReply::Malformed(_) => return,
            ParsedReply::Frame { reply, consumed } => {
                assert!(consumed > 0 && consumed <= rest.len());
                let mut again = Vec::new();
                reply.encode(&mut again);
                assert_eq!(again, &rest[..consumed]);
                rest = &rest[consumed..];
            }
        }
    }
}
