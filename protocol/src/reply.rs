//! What servers send: one reply for each request, and Leader, which answers none.

use crate::frame::{self, BodyBounds, Malformed, Split};
use crate::handshake::Mode;
use crate::limits::{
    HEADER_BYTES, REPLY_FRAME_MAX, REPLY_ID_BODY, REPLY_ID_BYTE_BODY, REPLY_LEADER_BODY,
    REPLY_TOKEN_BODY, SLOT_UNKNOWN, U64_BYTES, VOTERS_MAX,
};
use crate::request::RequestKind;

/// Why a request was not carried out (reply E).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorCode {
    /// 1: not a key. Any request.
    BadKey = 1,
    /// 2: lease not within 1 to 250 s. Acquires.
    BadLease = 2,
    /// 3: this node does not serve yet, or any more. Any request.
    NotActive = 3,
    /// 4: no leader is known. Any request.
    NoLeader = 4,
    /// 5: not a set of 2 to 16 strictly ascending keys. Requests about sets.
    BadKeySet = 5,
    /// 6: the token belongs to a grant of another shape. Releases.
    GroupMismatch = 6,
    /// 7: token 0. Releases.
    BadToken = 7,
}

impl ErrorCode {
    /// All seven, by number.
    pub const ALL: [ErrorCode; 7] = [
        ErrorCode::BadKey,
        ErrorCode::BadLease,
        ErrorCode::NotActive,
        ErrorCode::NoLeader,
        ErrorCode::BadKeySet,
        ErrorCode::GroupMismatch,
        ErrorCode::BadToken,
    ];

    /// Its byte on the wire.
    pub const fn to_byte(self) -> u8 {
        self as u8
    }

    /// The code with this byte.
    pub const fn from_byte(byte: u8) -> Option<ErrorCode> {
        match byte {
            1 => Some(ErrorCode::BadKey),
            2 => Some(ErrorCode::BadLease),
            3 => Some(ErrorCode::NotActive),
            4 => Some(ErrorCode::NoLeader),
            5 => Some(ErrorCode::BadKeySet),
            6 => Some(ErrorCode::GroupMismatch),
            7 => Some(ErrorCode::BadToken),
            _ => None,
        }
    }

    /// Whether a request of this kind may be answered with it.
    pub const fn allowed_for(self, kind: RequestKind) -> bool {
        match self {
            ErrorCode::BadKey | ErrorCode::NotActive | ErrorCode::NoLeader => true,
            ErrorCode::BadLease => kind.is_acquire(),
            ErrorCode::BadKeySet => kind.is_set(),
            ErrorCode::GroupMismatch | ErrorCode::BadToken => !kind.is_acquire(),
        }
    }
}

/// One reply. Request ids and tokens are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "request_id, token, code and slot: explained on each variant"
)]
pub enum Reply {
    /// `A`: the key is held under `token`.
    Acquired { request_id: u64, token: u64 },
    /// `S`: all the keys are held under `token`.
    SetAcquired { request_id: u64, token: u64 },
    /// `R`: the key was given back.
    Released { request_id: u64 },
    /// `G`: all the keys were given back.
    SetReleased { request_id: u64 },
    /// `N`: the token is not the current one; there is nothing to give back.
    NotFound { request_id: u64 },
    /// `T`: the wait ran out in line; not granted.
    TimedOut { request_id: u64 },
    /// `B`: not granted, because of the key, its line, or the server's capacity.
    Busy { request_id: u64 },
    /// `M`: not carried out here; the leader is at `slot` of the clients' address list,
    /// [`SLOT_UNKNOWN`] if none is known.
    Moved { request_id: u64, slot: u8 },
    /// `I`: nobody can tell whether it was carried out.
    Indeterminate { request_id: u64 },
    /// `E`: not carried out, for the reason `code`.
    Error { request_id: u64, code: ErrorCode },
    /// `L`, pushed to every client: the leader is at `slot`, [`SLOT_UNKNOWN`] if none is known.
    Leader { slot: u8 },
}

/// What lies at the start of a buffer of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedReply {
    /// Not a whole frame yet.
    Incomplete {
        /// How many bytes the buffer must hold, counted from its start, before it is worth
        /// looking again. Never more than [`REPLY_FRAME_MAX`].
        need: usize,
    },
    /// A whole frame.
    Frame {
        /// The reply.
        reply: Reply,
        /// The frame's length: where the next one starts.
        consumed: usize,
    },
    /// Drop the connection.
    Malformed(Malformed),
}

/// Reads the reply at the start of `buf`. Total: never panics, whatever the bytes.
///
/// Whether the reply fits the request it names is the caller's to ask
/// ([`Reply::allowed_for`], [`Reply::allowed_in`]).
pub fn parse_reply(buf: &[u8]) -> ParsedReply {
    let (opcode, body) = match frame::split(buf, body_bounds) {
        Split::Body { opcode, body } => (opcode, body),
        Split::Incomplete { need } => return ParsedReply::Incomplete { need },
        Split::Malformed(why) => return ParsedReply::Malformed(why),
    };
    match parse_body(opcode, body) {
        Ok(reply) => ParsedReply::Frame {
            reply,
            consumed: HEADER_BYTES + body.len(),
        },
        Err(why) => ParsedReply::Malformed(why),
    }
}

impl Reply {
    /// The request it answers; None for Leader.
    pub const fn request_id(&self) -> Option<u64> {
        match *self {
            Reply::Acquired { request_id, .. }
            | Reply::SetAcquired { request_id, .. }
            | Reply::Released { request_id }
            | Reply::SetReleased { request_id }
            | Reply::NotFound { request_id }
            | Reply::TimedOut { request_id }
            | Reply::Busy { request_id }
            | Reply::Moved { request_id, .. }
            | Reply::Indeterminate { request_id }
            | Reply::Error { request_id, .. } => Some(request_id),
            Reply::Leader { .. } => None,
        }
    }

    /// Whether a request of this kind may be answered with it. A client drops the connection
    /// over any other answer.
    pub const fn allowed_for(&self, kind: RequestKind) -> bool {
        match *self {
            Reply::Acquired { .. } => matches!(kind, RequestKind::Acquire),
            Reply::SetAcquired { .. } => matches!(kind, RequestKind::AcquireSet),
            Reply::Released { .. } => matches!(kind, RequestKind::Release),
            Reply::SetReleased { .. } => matches!(kind, RequestKind::ReleaseSet),
            Reply::NotFound { .. } => !kind.is_acquire(),
            Reply::TimedOut { .. } | Reply::Busy { .. } => kind.is_acquire(),
            Reply::Moved { .. } | Reply::Indeterminate { .. } => true,
            Reply::Error { code, .. } => code.allowed_for(kind),
            Reply::Leader { .. } => false,
        }
    }

    /// Whether a server of this mode, in a cluster of `voters`, may send it: a slot is below the
    /// number of voters or [`SLOT_UNKNOWN`]; in single mode there is no other slot than that,
    /// and no Leader at all.
    pub const fn allowed_in(&self, mode: Mode, voters: u8) -> bool {
        match (*self, mode) {
            (Reply::Leader { .. }, Mode::Single) => false,
            (Reply::Moved { slot, .. }, Mode::Single) => slot == SLOT_UNKNOWN,
            (Reply::Moved { slot, .. } | Reply::Leader { slot }, Mode::Cluster) => {
                slot == SLOT_UNKNOWN || (slot < voters && slot < VOTERS_MAX)
            }
            _ => true,
        }
    }

    /// Appends the frame to `out`, and allocates nothing but what `out` needs to grow.
    ///
    /// # Panics
    /// If a request id or a token is 0: a client would drop the connection.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Reply::Acquired { request_id, token } => put_token(out, b'A', request_id, token),
            Reply::SetAcquired { request_id, token } => put_token(out, b'S', request_id, token),
            Reply::Released { request_id } => put_id(out, b'R', request_id),
            Reply::SetReleased { request_id } => put_id(out, b'G', request_id),
            Reply::NotFound { request_id } => put_id(out, b'N', request_id),
            Reply::TimedOut { request_id } => put_id(out, b'T', request_id),
            Reply::Busy { request_id } => put_id(out, b'B', request_id),
            Reply::Indeterminate { request_id } => put_id(out, b'I', request_id),
            Reply::Moved { request_id, slot } => put_id_byte(out, b'M', request_id, slot),
            Reply::Error { request_id, code } => {
                put_id_byte(out, b'E', request_id, code.to_byte());
            }
            Reply::Leader { slot } => {
                frame::put_header(out, b'L', REPLY_LEADER_BODY);
                out.push(slot);
            }
        }
    }
}

fn body_bounds(opcode: u8) -> Option<BodyBounds> {
    let exact = match opcode {
        b'A' | b'S' => REPLY_TOKEN_BODY,
        b'R' | b'G' | b'N' | b'T' | b'B' | b'I' => REPLY_ID_BODY,
        b'M' | b'E' => REPLY_ID_BYTE_BODY,
        b'L' => REPLY_LEADER_BODY,
        _ => return None,
    };
    Some(BodyBounds {
        min: exact,
        max: exact,
    })
}

/// A body of exactly the length that `body_bounds` gives for `opcode`.
fn parse_body(opcode: u8, body: &[u8]) -> Result<Reply, Malformed> {
    if let (b'L', &[slot]) = (opcode, body) {
        return Ok(Reply::Leader { slot });
    }
    // Every other body starts with the id, so the `else` is never taken.
    let Some((id, tail)) = body.split_first_chunk::<U64_BYTES>() else {
        return Err(Malformed::UnknownOpcode(opcode));
    };
    let request_id = u64::from_be_bytes(*id);
    if request_id == 0 {
        return Err(Malformed::ZeroRequestId);
    }
    match (opcode, tail) {
        (b'R', []) => Ok(Reply::Released { request_id }),
        (b'G', []) => Ok(Reply::SetReleased { request_id }),
        (b'N', []) => Ok(Reply::NotFound { request_id }),
        (b'T', []) => Ok(Reply::TimedOut { request_id }),
        (b'B', []) => Ok(Reply::Busy { request_id }),
        (b'I', []) => Ok(Reply::Indeterminate { request_id }),
        (b'M', &[slot]) => Ok(Reply::Moved { request_id, slot }),
        (b'E', &[byte]) => match ErrorCode::from_byte(byte) {
            Some(code) => Ok(Reply::Error { request_id, code }),
            None => Err(Malformed::UnknownErrorCode(byte)),
        },
        (_, tail) => {
            // 'A' and 'S': the only bodies left, and they are 16 bytes long.
            let token = tail
                .first_chunk()
                .map_or(0, |bytes| u64::from_be_bytes(*bytes));
            match (opcode, token) {
                (_, 0) => Err(Malformed::ZeroToken),
                (b'A', token) => Ok(Reply::Acquired { request_id, token }),
                (b'S', token) => Ok(Reply::SetAcquired { request_id, token }),
                _ => Err(Malformed::UnknownOpcode(opcode)),
            }
        }
    }
}

// Each frame is put together on the stack and appended in one go.

#[inline]
fn put_token(out: &mut Vec<u8>, opcode: u8, request_id: u64, token: u64) {
    assert_ne!(token, 0, "token 0 in a reply");
    let mut frame: [u8; REPLY_FRAME_MAX] = start(opcode, REPLY_TOKEN_BODY, request_id);
    frame[HEADER_BYTES + U64_BYTES..].copy_from_slice(&token.to_be_bytes());
    out.extend_from_slice(&frame);
}

#[inline]
fn put_id(out: &mut Vec<u8>, opcode: u8, request_id: u64) {
    let frame: [u8; HEADER_BYTES + REPLY_ID_BODY] = start(opcode, REPLY_ID_BODY, request_id);
    out.extend_from_slice(&frame);
}

#[inline]
fn put_id_byte(out: &mut Vec<u8>, opcode: u8, request_id: u64, byte: u8) {
    let mut frame: [u8; HEADER_BYTES + REPLY_ID_BYTE_BODY] =
        start(opcode, REPLY_ID_BYTE_BODY, request_id);
    frame[HEADER_BYTES + U64_BYTES] = byte;
    out.extend_from_slice(&frame);
}

#[inline]
fn start<const N: usize>(opcode: u8, body_len: usize, request_id: u64) -> [u8; N] {
    assert_ne!(request_id, 0, "request id 0 in a reply");
    let mut frame = [0; N];
    frame[0] = opcode;
    frame[1..HEADER_BYTES].copy_from_slice(&(body_len as u16).to_be_bytes());
    frame[HEADER_BYTES..HEADER_BYTES + U64_BYTES].copy_from_slice(&request_id.to_be_bytes());
    frame
}
