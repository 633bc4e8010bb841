//! Frames: a header of 24 bytes, then a body.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | length of the body |
//! | 4 | 1 | kind ([`super::body`]) |
//! | 5 | 3 | zero |
//! | 8 | 8 | term |
//! | 16 | 4 | CRC32C of header and body, these four bytes taken as zero |
//! | 20 | 4 | zero |
//!
//! The checksum is there because what is received goes into a log whose own checksums are made by
//! the receiver: without it, a byte that went bad on the way would be made to look sound.

use super::body::Body;
use super::wire::put_u64;
use crate::limits::{PEER_BODY_MAX, PEER_HEADER_BYTES};

const CRC_AT: usize = 16;

/// A message from one node to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The sender's term, or the one a pre-vote is about.
    pub term: u64,
    /// The rest.
    pub body: Body<'a>,
}

/// The connection cannot be trusted any more: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The body is announced longer than any is.
    #[error("a body of {0} bytes announced, {PEER_BODY_MAX} are the most")]
    TooLong(u32),
    /// Bytes of the header that are zero in this version are not.
    #[error("bytes that must be zero are not: the peer runs another version?")]
    Reserved,
    /// The bytes are not those that were sent.
    #[error("checksum {found:08x} where the bytes give {computed:08x}: damaged on the way")]
    Checksum {
        /// What the header says.
        found: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// No message of this version.
    #[error("unknown kind {0}: the peer runs another version?")]
    Kind(u8),
    /// A body that its kind cannot have.
    #[error("a body of kind {kind} that cannot be, of {bytes} bytes")]
    Body {
        /// The kind.
        kind: u8,
        /// The body's length.
        bytes: usize,
    },
}

/// What lies at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not a whole frame yet.
    Incomplete {
        /// How many bytes the buffer must hold before it is worth looking again.
        need: usize,
    },
    /// A whole frame.
    Frame {
        /// The message.
        frame: Frame<'a>,
        /// The frame's length: where the next one starts.
        consumed: usize,
    },
    /// Close the connection.
    Malformed(Malformed),
}

impl Frame<'_> {
    /// Appends the whole frame to `out`.
    ///
    /// # Panics
    /// When the body is outside its bounds: the peer would close the connection over it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[self.body.kind(), 0, 0, 0]);
        put_u64(out, self.term);
        out.extend_from_slice(&[0; 8]);
        assert_eq!(out.len() - start, PEER_HEADER_BYTES);
        self.body.encode(out);
        let length = out.len() - start - PEER_HEADER_BYTES;
        assert!(length <= PEER_BODY_MAX, "a body of {length} bytes");
        out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
        let crc = crc32c::crc32c(&out[start..]);
        out[start + CRC_AT..start + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Reads the first frame of `buffer`. Total: any bytes give a verdict.
///
/// A length is judged as soon as the header is there, before any body is.
#[must_use]
pub fn parse(buffer: &[u8]) -> Parsed<'_> {
    let Some((header, rest)) = buffer.split_first_chunk::<PEER_HEADER_BYTES>() else {
        return Parsed::Incomplete {
            need: PEER_HEADER_BYTES,
        };
    };
    let field = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&header[at..at + 4]);
        u32::from_le_bytes(bytes)
    };
    let announced = field(0);
    if announced as usize > PEER_BODY_MAX {
        return Parsed::Malformed(Malformed::TooLong(announced));
    }
    if header[5..8] != [0; 3] || header[20..] != [0; 4] {
        return Parsed::Malformed(Malformed::Reserved);
    }
    let consumed = PEER_HEADER_BYTES + announced as usize;
    let Some(body) = rest.get(..announced as usize) else {
        return Parsed::Incomplete { need: consumed };
    };
    let found = field(CRC_AT);
    let mut unsealed = *header;
    unsealed[CRC_AT..CRC_AT + 4].fill(0);
    let computed = crc32c::crc32c_append(crc32c::crc32c(&unsealed), body);
    if found != computed {
        return Parsed::Malformed(Malformed::Checksum { found, computed });
    }
    let mut term = [0; 8];
    term.copy_from_slice(&header[8..16]);
    match Body::parse(header[4], body) {
        Ok(body) => Parsed::Frame {
            frame: Frame {
                term: u64::from_le_bytes(term),
                body,
            },
            consumed,
        },
        Err(why) => Parsed::Malformed(why),
    }
}
