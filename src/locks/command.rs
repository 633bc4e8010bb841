//! The replicated commands: the payload of one log entry.
//!
//! Fixed layout, little-endian, a multiple of 8 bytes long:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 Grant, 2 Release, 3 Expire |
//! | 1 | 1 | key length, 1 to 128 |
//! | 2 | 2 | zero |
//! | 4 | 4 | Grant: lease in milliseconds, 1 to 250,000; else zero |
//! | 8 | 8 | Release, Expire: token, not zero (absent in a Grant) |
//! | 8 or 16 | key length | key, then zeros up to a multiple of 8 |
//!
//! The encoding is canonical: what decodes encodes to the same bytes. Key bytes are not checked
//! for UTF-8 here; that is done before a key is accepted from a client.

use thiserror::Error;

use super::limits::{KEY_BYTES_MAX, LEASE_MS_MAX};

pub use super::proposals::{Proposals, Unit, Units};

const KIND_GRANT: u8 = 1;
const KIND_RELEASE: u8 = 2;
const KIND_EXPIRE: u8 = 3;

const HEADER_BYTES: usize = 8;
const TOKEN_BYTES: usize = 8;

/// Longest payload of a command, in bytes.
pub const COMMAND_BYTES_MAX: usize = HEADER_BYTES + TOKEN_BYTES + KEY_BYTES_MAX;
const _: () = assert!(COMMAND_BYTES_MAX.is_multiple_of(8));

/// One change of lock state (behaviour, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Acquire `key`. The token is not inside: it is the index of the entry in the log.
    Grant {
        /// The lock's name.
        key: &'a [u8],
        /// How long the grant lasts, in milliseconds.
        lease_ms: u32,
    },
    /// Release `key`, only if `token` is the current one.
    Release {
        /// The lock's name.
        key: &'a [u8],
        /// The fencing token of the grant to release.
        token: u64,
    },
    /// The lease of `key` ran out; removes only if `token` is the current one.
    Expire {
        /// The lock's name.
        key: &'a [u8],
        /// The fencing token of the grant whose lease ran out.
        token: u64,
    },
}

/// Why a payload is not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The payload is not as long as its header says.
    #[error("command of {actual} bytes where its header asks for {expected}")]
    Length {
        /// What the header asks for; the header's own size if that is missing.
        expected: usize,
        /// What there is.
        actual: usize,
    },
    /// The kind is none that this version knows.
    #[error("unknown command kind {0}: written by a newer version?")]
    Kind(u8),
    /// The key is empty or too long.
    #[error("key of {0} bytes in a command, allowed are 1 to 128")]
    KeyLength(usize),
    /// The lease is zero or too long.
    #[error("lease of {0} ms in a command, allowed are 1 to 250,000")]
    Lease(u32),
    /// A Release or Expire carries token 0.
    #[error("token 0 in a command")]
    ZeroToken,
    /// Bytes that must be zero are not.
    #[error("bytes that must be zero are not")]
    Padding,
}

impl<'a> Command<'a> {
    /// The lock that the command is about.
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Command::Grant { key, .. }
            | Command::Release { key, .. }
            | Command::Expire { key, .. } => key,
        }
    }

    /// Length of the encoded payload, in bytes: a multiple of 8.
    pub fn encoded_len(&self) -> usize {
        let token_bytes = if matches!(self, Command::Grant { .. }) {
            0
        } else {
            TOKEN_BYTES
        };
        HEADER_BYTES + token_bytes + self.key().len().next_multiple_of(8)
    }

    /// Appends the payload to `out`.
    ///
    /// Panics if the key, the lease or the token is outside its bounds: a command is only built
    /// from checked values, and an entry that no node can read must never reach a log.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (kind, lease_ms, token) = match *self {
            Command::Grant { lease_ms, .. } => (KIND_GRANT, lease_ms, None),
            Command::Release { token, .. } => (KIND_RELEASE, 0, Some(token)),
            Command::Expire { token, .. } => (KIND_EXPIRE, 0, Some(token)),
        };
        let key = self.key();
        assert!(
            (1..=KEY_BYTES_MAX).contains(&key.len()),
            "key length out of bounds in a command"
        );
        assert!(token != Some(0), "token 0 in a command");
        assert!(
            token.is_some() || (1..=LEASE_MS_MAX).contains(&lease_ms),
            "lease out of bounds in a command"
        );

        out.extend_from_slice(&[kind, key.len() as u8, 0, 0]);
        out.extend_from_slice(&lease_ms.to_le_bytes());
        if let Some(token) = token {
            out.extend_from_slice(&token.to_le_bytes());
        }
        out.extend_from_slice(key);
        let padding = key.len().next_multiple_of(8) - key.len();
        out.extend_from_slice(&[0; 8][..padding]);
    }

    /// Reads one payload. Total: any bytes give a command or an error.
    pub fn decode(payload: &'a [u8]) -> Result<Command<'a>, CommandError> {
        let Some((header, rest)) = payload.split_first_chunk::<HEADER_BYTES>() else {
            return Err(CommandError::Length {
                expected: HEADER_BYTES,
                actual: payload.len(),
            });
        };
        let [kind, key_len, zero_0, zero_1, lease @ ..] = *header;
        let key_len = usize::from(key_len);
        let token_bytes = match kind {
            KIND_GRANT => 0,
            KIND_RELEASE | KIND_EXPIRE => TOKEN_BYTES,
            other => return Err(CommandError::Kind(other)),
        };
        if !(1..=KEY_BYTES_MAX).contains(&key_len) {
            return Err(CommandError::KeyLength(key_len));
        }
        let expected = HEADER_BYTES + token_bytes + key_len.next_multiple_of(8);
        if payload.len() != expected {
            return Err(CommandError::Length {
                expected,
                actual: payload.len(),
            });
        }
        // `expected` covers the token, so neither split can be out of range.
        let (token, tail) = rest.split_at(token_bytes);
        let (key, padding) = tail.split_at(key_len);
        if zero_0 != 0 || zero_1 != 0 || padding.iter().any(|&byte| byte != 0) {
            return Err(CommandError::Padding);
        }
        let lease_ms = u32::from_le_bytes(lease);
        let Some(token) = token.first_chunk::<TOKEN_BYTES>() else {
            if !(1..=LEASE_MS_MAX).contains(&lease_ms) {
                return Err(CommandError::Lease(lease_ms));
            }
            return Ok(Command::Grant { key, lease_ms });
        };
        if lease_ms != 0 {
            return Err(CommandError::Padding);
        }
        let token = u64::from_le_bytes(*token);
        if token == 0 {
            return Err(CommandError::ZeroToken);
        }
        Ok(if kind == KIND_RELEASE {
            Command::Release { key, token }
        } else {
            Command::Expire { key, token }
        })
    }
}
