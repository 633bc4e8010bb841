//! A held lock as a snapshot keeps it.
//!
//! Little-endian, one behind the other without padding:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | token, not zero |
//! | 8 | 4 | lease in milliseconds, at most 250,000 |
//! | 12 | 4 | milliseconds left, when the snapshot was cut, until an Expire could be proposed |
//! | 16 | 1 | key length, 1 to 128 |
//! | 17 | key length | key |
//!
//! What is left includes the stretch and the grace of the lease, so it may be longer than the
//! lease itself by a moment.

use thiserror::Error;

use super::entry::lease_end_ms;
use super::limits::{KEY_BYTES_MAX, LEASE_MS_MAX};

const HEADER_BYTES: usize = 17;

/// Longest encoding of one held lock, in bytes.
pub const HELD_LOCK_BYTES_MAX: usize = HEADER_BYTES + KEY_BYTES_MAX;

/// A held lock: key, who may release it, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldLock<'a> {
    /// The lock's name.
    pub key: &'a [u8],
    /// The fencing token of the grant.
    pub token: u64,
    /// The lease as it was granted, in milliseconds.
    pub lease_ms: u32,
    /// How long until an Expire may be proposed, in milliseconds.
    pub left_ms: u32,
}

/// Why bytes are not a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HeldLockError {
    /// The bytes end before the lock does.
    #[error("a held lock is cut off")]
    CutOff,
    /// The token is zero.
    #[error("token 0 in a held lock")]
    ZeroToken,
    /// The key is empty or too long.
    #[error("key of {0} bytes in a held lock, allowed are 1 to 128")]
    KeyLength(usize),
    /// The lease is too long.
    #[error("lease of {0} ms in a held lock, allowed are up to 250,000")]
    Lease(u32),
    /// More is left than the lease ever had.
    #[error("{left_ms} ms are left of a lease of {lease_ms} ms in a held lock")]
    Left {
        /// The lease.
        lease_ms: u32,
        /// What is left of it.
        left_ms: u32,
    },
}

impl<'a> HeldLock<'a> {
    /// Appends the lock to `out`.
    ///
    /// Panics if a field is outside its bounds: a snapshot that no node can load must not be made.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Err(error) = self.check() {
            panic!("a lock that is held cannot be: {error}");
        }
        out.extend_from_slice(&self.token.to_le_bytes());
        out.extend_from_slice(&self.lease_ms.to_le_bytes());
        out.extend_from_slice(&self.left_ms.to_le_bytes());
        out.push(self.key.len() as u8);
        out.extend_from_slice(self.key);
    }

    /// Reads the lock at the start of `bytes`; gives it and the bytes behind it. Total: any bytes
    /// give a lock or an error.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), HeldLockError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(HeldLockError::CutOff);
        };
        let [
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            e0,
            e1,
            e2,
            e3,
            l0,
            l1,
            l2,
            l3,
            key_len,
        ] = *header;
        let Some((key, rest)) = rest.split_at_checked(usize::from(key_len)) else {
            return Err(HeldLockError::CutOff);
        };
        let lock = Self {
            key,
            token: u64::from_le_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            lease_ms: u32::from_le_bytes([e0, e1, e2, e3]),
            left_ms: u32::from_le_bytes([l0, l1, l2, l3]),
        };
        lock.check()?;
        Ok((lock, rest))
    }

    fn check(&self) -> Result<(), HeldLockError> {
        let Self {
            lease_ms, left_ms, ..
        } = *self;
        if !(1..=KEY_BYTES_MAX).contains(&self.key.len()) {
            return Err(HeldLockError::KeyLength(self.key.len()));
        }
        if self.token == 0 {
            return Err(HeldLockError::ZeroToken);
        }
        if lease_ms > LEASE_MS_MAX {
            return Err(HeldLockError::Lease(lease_ms));
        }
        if u64::from(left_ms) > lease_end_ms(0, lease_ms) {
            return Err(HeldLockError::Left { lease_ms, left_ms });
        }
        Ok(())
    }
}

/// The locks in the chunk of a snapshot, up to and with the first error.
pub fn held_locks(chunk: &[u8]) -> impl Iterator<Item = Result<HeldLock<'_>, HeldLockError>> {
    let mut rest = chunk;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        match HeldLock::decode(rest) {
            Ok((lock, behind)) => {
                rest = behind;
                Some(Ok(lock))
            }
            Err(error) => {
                rest = &[];
                Some(Err(error))
            }
        }
    })
}
