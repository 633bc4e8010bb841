//! The parser of frames between nodes: never a panic, never a read past the
//! end, and what is accepted encodes to the bytes it came from.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ticketing_protocol::limits::PEER_HEADER_BYTES;
use ticketing_protocol::peer::{Parsed, parse};

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    if let Some(frame) = sealed(bytes) {
        check(&frame);
    }
});

fn check(bytes: &[u8]) {
    match parse(bytes) {
        Parsed::Incomplete { need } => assert!(need > bytes.len()),
        Parsed::Malformed(_) => {}
        Parsed::Frame { frame, consumed } => {
            let mut again = Vec::new();
            frame.encode(&mut again);
            assert_eq!(again, &bytes[..consumed]);
        }
    }
}

/// With length and checksum made right: by chance nothing gets past them.
fn sealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let body = bytes.len().checked_sub(PEER_HEADER_BYTES)?;
    let mut frame = bytes.to_vec();
    frame[..4].copy_from_slice(&(body as u32).to_le_bytes());
    frame[5..8].fill(0);
    frame[16..24].fill(0);
    let crc = crc32c::crc32c(&frame);
    frame[16..20].copy_from_slice(&crc.to_le_bytes());
    Some(frame)
}
