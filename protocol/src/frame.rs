//! What requests and replies share: the header, and what makes framing malformed.

use crate::limits::HEADER_BYTES;

/// The connection's framing cannot be trusted any more: close it.
///
/// Never returned for a bad *value* in a request; that is [`crate::Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first byte names no frame of this direction.
    #[error("unknown opcode 0x{0:02x}")]
    UnknownOpcode(u8),
    /// The body is shorter than the frame's fixed part.
    #[error("body of frame '{}' announced with {body} bytes, at least {min} are needed", char::from(*.opcode))]
    BodyTooShort {
        /// The frame's opcode.
        opcode: u8,
        /// The announced body length in bytes.
        body: usize,
        /// The least it can be.
        min: usize,
    },
    /// The body is longer than the frame can ever be.
    #[error("body of frame '{}' announced with {body} bytes, at most {max} are possible", char::from(*.opcode))]
    BodyTooLong {
        /// The frame's opcode.
        opcode: u8,
        /// The announced body length in bytes.
        body: usize,
        /// The most it can be.
        max: usize,
    },
    /// Request id 0 is never used.
    #[error("request id 0")]
    ZeroRequestId,
    /// A reply granted token 0, which is never issued.
    #[error("reply with token 0")]
    ZeroToken,
    /// A reply carries an error code that does not exist.
    #[error("unknown error code {0}")]
    UnknownErrorCode(u8),
}

/// The shortest and longest body of one kind of frame, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct BodyBounds {
    pub(crate) min: usize,
    pub(crate) max: usize,
}

/// The first frame of a buffer, cut out but not looked into.
pub(crate) enum Split<'a> {
    Incomplete { need: usize },
    Body { opcode: u8, body: &'a [u8] },
    Malformed(Malformed),
}

/// Cuts the first frame out of `buf`. `bounds` gives the limits of an opcode, None if there is
/// no such frame. A length is judged as soon as the header is there, before any body is.
#[inline]
pub(crate) fn split(buf: &[u8], bounds: impl Fn(u8) -> Option<BodyBounds>) -> Split<'_> {
    let Some(&opcode) = buf.first() else {
        return Split::Incomplete { need: HEADER_BYTES };
    };
    let Some(BodyBounds { min, max }) = bounds(opcode) else {
        return Split::Malformed(Malformed::UnknownOpcode(opcode));
    };
    let Some((&[_, high, low], rest)) = buf.split_first_chunk::<HEADER_BYTES>() else {
        return Split::Incomplete { need: HEADER_BYTES };
    };
    let body_len = usize::from(u16::from_be_bytes([high, low]));
    if body_len < min {
        return Split::Malformed(Malformed::BodyTooShort {
            opcode,
            body: body_len,
            min,
        });
    }
    if body_len > max {
        return Split::Malformed(Malformed::BodyTooLong {
            opcode,
            body: body_len,
            max,
        });
    }
    match rest.get(..body_len) {
        Some(body) => Split::Body { opcode, body },
        None => Split::Incomplete {
            need: HEADER_BYTES + body_len,
        },
    }
}

/// Appends a header.
///
/// # Panics
/// If the body length does not fit two bytes: every caller's body is bounded far below.
#[inline]
pub(crate) fn put_header(out: &mut Vec<u8>, opcode: u8, body_len: usize) {
    assert!(
        body_len <= usize::from(u16::MAX),
        "body of {body_len} bytes"
    );
    let [high, low] = (body_len as u16).to_be_bytes();
    out.extend_from_slice(&[opcode, high, low]);
}
