//! What clients send: acquire and release, of one key or of a set.
//!
//! # Which fault gets which verdict
//!
//! The length of every frame is known from its header, so a fault *inside* a body never costs
//! the framing. Hence the division:
//!
//! * [`Parsed::Malformed`], close the connection: an opcode that does not exist, a body shorter
//!   than its fixed part or longer than the frame's maximum (both judged from the header, before
//!   any body is buffered), request id 0. An id that is still in flight belongs here too; only
//!   the connection's owner can know, and it looks before it answers a [`Refused`].
//! * [`Refused`], answer E and go on: everything else. That includes an empty key, and a set
//!   whose inner lengths do not add up to its body.
//!
//! A frame with several bad values is refused for the first one in the order of its bytes:
//! lease or token, then the key; in a set the count, then key by key its length, its bytes and
//! its place in the order, and last any bytes left over. A key that is no key is BadKey in a set
//! as well; everything else about a set is BadKeySet.

use crate::frame::{self, BodyBounds, Malformed, Split};
use crate::key::is_valid_key;
use crate::keyset::{KeySetError, KeySetRef};
use crate::limits::{
    ACQUIRE_BODY_MAX, ACQUIRE_FIXED_BYTES, ACQUIRE_SET_BODY_MAX, ACQUIRE_SET_FIXED_BYTES,
    HEADER_BYTES, LEASE_S_MAX, LEASE_S_MIN, RELEASE_BODY_MAX, RELEASE_FIXED_BYTES,
    RELEASE_SET_BODY_MAX, RELEASE_SET_FIXED_BYTES,
};
use crate::reply::ErrorCode;

/// A request whose every value is in bounds. Keys point into the buffer it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `A`: the key, or a place in its line.
    Acquire {
        /// Names the request on its connection; never 0.
        request_id: u64,
        /// The longest to stand in line, in seconds; 0 is one try.
        wait_s: u8,
        /// The lease, in seconds.
        lease_s: u8,
        /// A valid key.
        key: &'a [u8],
    },
    /// `R`: give the key back.
    Release {
        /// Names the request on its connection; never 0.
        request_id: u64,
        /// The grant's token; never 0.
        token: u64,
        /// A valid key.
        key: &'a [u8],
    },
    /// `S`: all the keys at once, or none.
    AcquireSet {
        /// Names the request on its connection; never 0.
        request_id: u64,
        /// The longest to stand in line, in seconds; 0 is one try.
        wait_s: u8,
        /// The lease over all the keys, in seconds.
        lease_s: u8,
        /// The keys.
        keys: KeySetRef<'a>,
    },
    /// `G`: give all the keys back.
    ReleaseSet {
        /// Names the request on its connection; never 0.
        request_id: u64,
        /// The grant's token; never 0.
        token: u64,
        /// The keys.
        keys: KeySetRef<'a>,
    },
}

/// The four kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// `A`
    Acquire,
    /// `R`
    Release,
    /// `S`
    AcquireSet,
    /// `G`
    ReleaseSet,
}

impl RequestKind {
    /// All four.
    pub const ALL: [RequestKind; 4] = [
        RequestKind::Acquire,
        RequestKind::Release,
        RequestKind::AcquireSet,
        RequestKind::ReleaseSet,
    ];

    /// The kind's first byte on the wire.
    pub const fn opcode(self) -> u8 {
        match self {
            RequestKind::Acquire => b'A',
            RequestKind::Release => b'R',
            RequestKind::AcquireSet => b'S',
            RequestKind::ReleaseSet => b'G',
        }
    }

    /// The kind with this first byte.
    pub const fn from_opcode(opcode: u8) -> Option<RequestKind> {
        match opcode {
            b'A' => Some(RequestKind::Acquire),
            b'R' => Some(RequestKind::Release),
            b'S' => Some(RequestKind::AcquireSet),
            b'G' => Some(RequestKind::ReleaseSet),
            _ => None,
        }
    }

    /// Whether it asks for a lock rather than gives one back.
    pub const fn is_acquire(self) -> bool {
        matches!(self, RequestKind::Acquire | RequestKind::AcquireSet)
    }

    /// Whether it is about a set of keys.
    pub const fn is_set(self) -> bool {
        matches!(self, RequestKind::AcquireSet | RequestKind::ReleaseSet)
    }
}

/// A well-formed request with a value out of bounds: its answer is E with `code`, and the
/// connection stays usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The request to answer; never 0.
    pub request_id: u64,
    /// What it was, for counters.
    pub kind: RequestKind,
    /// The answer's code.
    pub code: ErrorCode,
}

/// What lies at the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// Not a whole frame yet.
    Incomplete {
        /// How many bytes the buffer must hold, counted from its start, before it is worth
        /// looking again: the header, or once that is there the whole frame. Always more than it
        /// holds now, never more than [`crate::limits::REQUEST_FRAME_MAX`].
        need: usize,
    },
    /// A whole frame.
    Frame {
        /// The request, or the refusal it earned.
        request: Result<Request<'a>, Refused>,
        /// The frame's length: where the next one starts.
        consumed: usize,
    },
    /// Close the connection.
    Malformed(Malformed),
}

/// Reads the request at the start of `buf`. Total: never panics, whatever the bytes.
#[inline]
pub fn parse_request(buf: &[u8]) -> Parsed<'_> {
    let (opcode, body) = match frame::split(buf, body_bounds) {
        Split::Body { opcode, body } => (opcode, body),
        Split::Incomplete { need } => return Parsed::Incomplete { need },
        Split::Malformed(why) => return Parsed::Malformed(why),
    };
    // `body_bounds` knows exactly the opcodes that `from_opcode` knows, and its minimum holds
    // the id, so neither arm of this `else` is reached.
    let (Some(kind), Some((id, rest))) = (RequestKind::from_opcode(opcode), split_u64(body)) else {
        return Parsed::Malformed(Malformed::UnknownOpcode(opcode));
    };
    if id == 0 {
        return Parsed::Malformed(Malformed::ZeroRequestId);
    }
    let request = parse_values(kind, id, rest).map_err(|code| Refused {
        request_id: id,
        kind,
        code,
    });
    Parsed::Frame {
        request,
        consumed: HEADER_BYTES + body.len(),
    }
}

impl<'a> Request<'a> {
    /// Its kind.
    pub const fn kind(&self) -> RequestKind {
        match self {
            Request::Acquire { .. } => RequestKind::Acquire,
            Request::Release { .. } => RequestKind::Release,
            Request::AcquireSet { .. } => RequestKind::AcquireSet,
            Request::ReleaseSet { .. } => RequestKind::ReleaseSet,
        }
    }

    /// Its id.
    pub const fn request_id(&self) -> u64 {
        match *self {
            Request::Acquire { request_id, .. }
            | Request::Release { request_id, .. }
            | Request::AcquireSet { request_id, .. }
            | Request::ReleaseSet { request_id, .. } => request_id,
        }
    }

    /// Whether every value is in bounds (the id apart): what a server would say to it.
    ///
    /// # Errors
    /// The code a server would answer with.
    pub fn check(&self) -> Result<(), ErrorCode> {
        match *self {
            Request::Acquire { lease_s, key, .. } => {
                check_lease(lease_s)?;
                check_key(key)
            }
            Request::Release { token, key, .. } => {
                check_token(token)?;
                check_key(key)
            }
            Request::AcquireSet { lease_s, .. } => check_lease(lease_s),
            Request::ReleaseSet { token, .. } => check_token(token),
        }
    }

    /// Appends the frame to `out`.
    ///
    /// # Panics
    /// If the request id is 0 or [`check`](Request::check) refuses the request: such a frame is
    /// never worth sending.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert_ne!(self.request_id(), 0, "request id 0");
        assert_eq!(self.check(), Ok(()), "a value out of bounds in {self:?}");
        let opcode = self.kind().opcode();
        let id = self.request_id().to_be_bytes();
        match *self {
            Request::Acquire {
                wait_s,
                lease_s,
                key,
                ..
            } => {
                put_parts(out, opcode, [&id, &[wait_s, lease_s], key]);
            }
            Request::Release { token, key, .. } => {
                put_parts(out, opcode, [&id, &token.to_be_bytes(), key]);
            }
            Request::AcquireSet {
                wait_s,
                lease_s,
                keys,
                ..
            } => {
                put_parts(out, opcode, [&id, &[wait_s, lease_s], keys.as_bytes()]);
            }
            Request::ReleaseSet { token, keys, .. } => {
                put_parts(out, opcode, [&id, &token.to_be_bytes(), keys.as_bytes()]);
            }
        }
    }
}

#[inline]
fn body_bounds(opcode: u8) -> Option<BodyBounds> {
    let (min, max) = match RequestKind::from_opcode(opcode)? {
        RequestKind::Acquire => (ACQUIRE_FIXED_BYTES, ACQUIRE_BODY_MAX),
        RequestKind::Release => (RELEASE_FIXED_BYTES, RELEASE_BODY_MAX),
        RequestKind::AcquireSet => (ACQUIRE_SET_FIXED_BYTES, ACQUIRE_SET_BODY_MAX),
        RequestKind::ReleaseSet => (RELEASE_SET_FIXED_BYTES, RELEASE_SET_BODY_MAX),
    };
    Some(BodyBounds { min, max })
}

/// Everything behind the request id. The body is at least its fixed part, so the `else` branches
/// on lengths are never taken; they name the code of the field that would be missing.
#[inline]
fn parse_values(kind: RequestKind, request_id: u64, rest: &[u8]) -> Result<Request<'_>, ErrorCode> {
    if kind.is_acquire() {
        let Some((&[wait_s, lease_s], rest)) = rest.split_first_chunk::<2>() else {
            return Err(ErrorCode::BadLease);
        };
        check_lease(lease_s)?;
        if kind.is_set() {
            let keys = parse_set(rest)?;
            return Ok(Request::AcquireSet {
                request_id,
                wait_s,
                lease_s,
                keys,
            });
        }
        check_key(rest)?;
        return Ok(Request::Acquire {
            request_id,
            wait_s,
            lease_s,
            key: rest,
        });
    }
    let Some((token, rest)) = split_u64(rest) else {
        return Err(ErrorCode::BadToken);
    };
    check_token(token)?;
    if kind.is_set() {
        let keys = parse_set(rest)?;
        return Ok(Request::ReleaseSet {
            request_id,
            token,
            keys,
        });
    }
    check_key(rest)?;
    Ok(Request::Release {
        request_id,
        token,
        key: rest,
    })
}

#[inline]
fn check_lease(lease_s: u8) -> Result<(), ErrorCode> {
    if (LEASE_S_MIN..=LEASE_S_MAX).contains(&lease_s) {
        Ok(())
    } else {
        Err(ErrorCode::BadLease)
    }
}

#[inline]
fn check_token(token: u64) -> Result<(), ErrorCode> {
    if token == 0 {
        Err(ErrorCode::BadToken)
    } else {
        Ok(())
    }
}

#[inline]
fn check_key(key: &[u8]) -> Result<(), ErrorCode> {
    if is_valid_key(key) {
        Ok(())
    } else {
        Err(ErrorCode::BadKey)
    }
}

fn parse_set(encoded: &[u8]) -> Result<KeySetRef<'_>, ErrorCode> {
    KeySetRef::parse(encoded).map_err(|error| match error {
        KeySetError::Key { .. } => ErrorCode::BadKey,
        KeySetError::Count(_)
        | KeySetError::Overrun { .. }
        | KeySetError::Order { .. }
        | KeySetError::Trailing { .. } => ErrorCode::BadKeySet,
    })
}

#[inline]
fn split_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*head), rest))
}

fn put_parts(out: &mut Vec<u8>, opcode: u8, parts: [&[u8]; 3]) {
    let body_len = parts.iter().map(|part| part.len()).sum();
    out.reserve(HEADER_BYTES + body_len);
    frame::put_header(out, opcode, body_len);
    for part in parts {
        out.extend_from_slice(part);
    }
}
