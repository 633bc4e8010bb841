//! Every bound of the client wire, and how the bounds hang together.
//!
//! A body maximum is never written down as a number of its own: it is added up from
//! the parts the frame is made of, and the sums are pinned below at compile time to
//! the figures the protocol document gives.

/// The client port when nothing else is configured.
pub const CLIENT_PORT_DEFAULT: u16 = 5225;

/// Shortest key, in bytes.
pub const KEY_MIN_BYTES: usize = 1;
/// Longest key, in bytes (not characters).
pub const KEY_MAX_BYTES: usize = 128;

/// Longest time a request may stand in line, in seconds. Every value of the byte is allowed.
pub const WAIT_S_MAX: u8 = u8::MAX;
/// Shortest lease, in seconds.
pub const LEASE_S_MIN: u8 = 1;
/// Longest lease, in seconds.
pub const LEASE_S_MAX: u8 = 250;

/// Fewest keys in a set: a single key has frames of its own.
pub const SET_KEYS_MIN: usize = 2;
/// Most keys in a set.
pub const SET_KEYS_MAX: usize = 16;

/// Shortest client token that is accepted where a token is needed, in bytes.
pub const CLIENT_TOKEN_MIN_BYTES: usize = 16;

/// Requests in flight on one connection, unless configured otherwise. Past it, acquires get Busy.
pub const IN_FLIGHT_PER_CONNECTION_DEFAULT: usize = 32_768;

/// Most voters a cluster can have.
pub const VOTERS_MAX: u8 = 5;
/// Highest slot: a place in the clients' address list, counted from 0.
pub const SLOT_MAX: u8 = VOTERS_MAX - 1;
/// "No leader known" in Moved and Leader, and the slot of a server in single mode.
pub const SLOT_UNKNOWN: u8 = u8::MAX;

/// Opcode (1 byte) and body length (2 bytes) in front of every body.
pub const HEADER_BYTES: usize = 3;

/// A request id or a token on the wire.
pub(crate) const U64_BYTES: usize = 8;
/// wait, lease.
const TIMES_BYTES: usize = 2;
/// The count in front of a set's keys.
const COUNT_BYTES: usize = 1;
/// The length in front of each of a set's keys.
const KEY_LEN_BYTES: usize = 1;

/// Fixed part of an Acquire body: request id, wait, lease.
pub const ACQUIRE_FIXED_BYTES: usize = U64_BYTES + TIMES_BYTES;
/// Fixed part of a Release body: request id, token.
pub const RELEASE_FIXED_BYTES: usize = U64_BYTES + U64_BYTES;
/// Fixed part of an AcquireSet body: request id, wait, lease, count.
pub const ACQUIRE_SET_FIXED_BYTES: usize = ACQUIRE_FIXED_BYTES + COUNT_BYTES;
/// Fixed part of a ReleaseSet body: request id, token, count.
pub const RELEASE_SET_FIXED_BYTES: usize = RELEASE_FIXED_BYTES + COUNT_BYTES;
/// All the keys of the largest set, each with its length.
pub const SET_RECORDS_MAX_BYTES: usize = SET_KEYS_MAX * (KEY_LEN_BYTES + KEY_MAX_BYTES);

/// Longest Acquire body.
pub const ACQUIRE_BODY_MAX: usize = ACQUIRE_FIXED_BYTES + KEY_MAX_BYTES;
/// Longest Release body.
pub const RELEASE_BODY_MAX: usize = RELEASE_FIXED_BYTES + KEY_MAX_BYTES;
/// Longest AcquireSet body.
pub const ACQUIRE_SET_BODY_MAX: usize = ACQUIRE_SET_FIXED_BYTES + SET_RECORDS_MAX_BYTES;
/// Longest ReleaseSet body.
pub const RELEASE_SET_BODY_MAX: usize = RELEASE_SET_FIXED_BYTES + SET_RECORDS_MAX_BYTES;

/// Longest request frame, header included: what a reader must be able to hold.
pub const REQUEST_FRAME_MAX: usize = HEADER_BYTES + RELEASE_SET_BODY_MAX;

/// Reply body of a request id and a token.
pub const REPLY_TOKEN_BODY: usize = U64_BYTES + U64_BYTES;
/// Reply body of a request id alone.
pub const REPLY_ID_BODY: usize = U64_BYTES;
/// Reply body of a request id and one byte (slot or error code).
pub const REPLY_ID_BYTE_BODY: usize = U64_BYTES + 1;
/// Body of a pushed Leader: one slot.
pub const REPLY_LEADER_BODY: usize = 1;
/// Longest reply body.
pub const REPLY_BODY_MAX: usize = REPLY_TOKEN_BODY;
/// Longest reply frame, header included.
pub const REPLY_FRAME_MAX: usize = HEADER_BYTES + REPLY_BODY_MAX;

/// Header of a frame between nodes.
pub const PEER_HEADER_BYTES: usize = 24;
/// Most entries in one frame between nodes.
pub const PEER_ENTRIES_MAX: u32 = 16 << 10;
/// Most bytes of records in one frame between nodes: what one batch of the log holds.
pub const PEER_RECORDS_MAX_BYTES: usize = 1 << 20;
/// Most bytes of a snapshot in one frame.
pub const PEER_CHUNK_MAX: usize = 256 << 10;
/// Longest encoding of a cluster's members.
pub const PEER_CONFIG_MAX_BYTES: usize = 255;
/// Most nodes in one list of addresses: 5 voters, one that takes a place, and 4 learners.
pub const PEER_ADDRESSES_MAX: usize = 10;
/// Longest body of a frame between nodes, far above the fixed fields of any kind beside its
/// records or bytes.
pub const PEER_BODY_MAX: usize = PEER_RECORDS_MAX_BYTES + 1024;

// The figures of the protocol document.
const _: () = assert!(ACQUIRE_BODY_MAX == 138);
const _: () = assert!(RELEASE_BODY_MAX == 144);
const _: () = assert!(ACQUIRE_SET_BODY_MAX == 11 + 16 + 2048);
const _: () = assert!(RELEASE_SET_BODY_MAX == 17 + 16 + 2048);
const _: () = assert!(REPLY_BODY_MAX == 16);

// No kind of reply body is longer than the maximum a client reads.
const _: () = assert!(REPLY_ID_BODY <= REPLY_BODY_MAX);
const _: () = assert!(REPLY_ID_BYTE_BODY <= REPLY_BODY_MAX);
const _: () = assert!(REPLY_LEADER_BODY <= REPLY_BODY_MAX);

// The largest request is the release of the largest set, so one buffer size fits all.
const _: () = assert!(RELEASE_SET_BODY_MAX >= ACQUIRE_SET_BODY_MAX);
const _: () = assert!(RELEASE_SET_BODY_MAX >= RELEASE_BODY_MAX);
const _: () = assert!(RELEASE_SET_BODY_MAX >= ACQUIRE_BODY_MAX);
// Every body length fits its two bytes, every key length and count its one byte.
const _: () = assert!(RELEASE_SET_BODY_MAX <= u16::MAX as usize);
const _: () = assert!(KEY_MAX_BYTES <= u8::MAX as usize);
const _: () = assert!(SET_KEYS_MAX <= u8::MAX as usize);

const _: () = assert!(KEY_MIN_BYTES >= 1 && KEY_MIN_BYTES <= KEY_MAX_BYTES);
const _: () = assert!(LEASE_S_MIN >= 1 && LEASE_S_MIN <= LEASE_S_MAX);
const _: () = assert!(SET_KEYS_MIN == 2 && SET_KEYS_MIN <= SET_KEYS_MAX);
// "Unknown" can never be mistaken for a place in the address list.
const _: () = assert!(SLOT_MAX < SLOT_UNKNOWN);

// A configuration's length fits its byte, and every kind of body its bound.
const _: () = assert!(PEER_CONFIG_MAX_BYTES <= u8::MAX as usize);
const _: () = assert!(PEER_CHUNK_MAX + PEER_CONFIG_MAX_BYTES + 64 <= PEER_BODY_MAX);
