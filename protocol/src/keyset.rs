//! Sets of keys as they lie on the wire: count u8 · count x (length u8, key).

use crate::key::{KeyError, validate_key};
use crate::limits::{KEY_MAX_BYTES, SET_KEYS_MAX, SET_KEYS_MIN};

/// Why keys are not a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Fewer than [`SET_KEYS_MIN`] or more than [`SET_KEYS_MAX`] keys.
    #[error("a set has {SET_KEYS_MIN} to {SET_KEYS_MAX} keys, not {0}")]
    Count(usize),
    /// A key is longer than what is left of the frame's body.
    #[error("key {index} of the set runs past the frame's body")]
    Overrun {
        /// Which key, from 0.
        index: usize,
    },
    /// One of the keys is no key.
    #[error("key {index} of the set: {error}")]
    Key {
        /// Which key, from 0.
        index: usize,
        /// What is wrong with it.
        error: KeyError,
    },
    /// A key is not greater, bytewise, than the one before it.
    #[error("key {index} of the set is not above the one before it: sort and deduplicate bytewise")]
    Order {
        /// Which key, from 0.
        index: usize,
    },
    /// Bytes are left in the body behind the last key.
    #[error("{bytes} bytes behind the last key of the set")]
    Trailing {
        /// How many.
        bytes: usize,
    },
}

/// A valid set of keys, still in the bytes it came in.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeySetRef<'a> {
    /// Count and records; only ever made by `parse`, so every invariant holds.
    encoded: &'a [u8],
}

impl<'a> KeySetRef<'a> {
    /// Reads a set that fills `encoded` exactly: the count byte, then the records.
    ///
    /// # Errors
    /// The first fault of one pass from the first byte to the last: the count, then for each key
    /// its length, its bytes, its place in the order, and last what is left over.
    pub fn parse(encoded: &'a [u8]) -> Result<KeySetRef<'a>, KeySetError> {
        let Some((&count, mut rest)) = encoded.split_first() else {
            return Err(KeySetError::Count(0));
        };
        let count = usize::from(count);
        if !(SET_KEYS_MIN..=SET_KEYS_MAX).contains(&count) {
            return Err(KeySetError::Count(count));
        }
        // No key is below the empty slice, and no key is empty: the first always passes.
        let mut previous: &[u8] = &[];
        for index in 0..count {
            let (key, behind) = split_record(rest).ok_or(KeySetError::Overrun { index })?;
            validate_key(key).map_err(|error| KeySetError::Key { index, error })?;
            if key <= previous {
                return Err(KeySetError::Order { index });
            }
            previous = key;
            rest = behind;
        }
        if !rest.is_empty() {
            return Err(KeySetError::Trailing { bytes: rest.len() });
        }
        Ok(KeySetRef { encoded })
    }

    /// How many keys: [`SET_KEYS_MIN`] to [`SET_KEYS_MAX`]. A set is never empty.
    #[expect(clippy::len_without_is_empty, reason = "a set has at least two keys")]
    pub fn len(&self) -> usize {
        usize::from(self.encoded[0])
    }

    /// The keys, strictly ascending bytewise.
    pub fn iter(&self) -> Keys<'a> {
        Keys {
            rest: &self.encoded[1..],
        }
    }

    /// The count byte and the records, as on the wire.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.encoded
    }
}

impl std::fmt::Debug for KeySetRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries(self.iter().map(String::from_utf8_lossy))
            .finish()
    }
}

impl<'a> IntoIterator for KeySetRef<'a> {
    type Item = &'a [u8];
    type IntoIter = Keys<'a>;

    fn into_iter(self) -> Keys<'a> {
        self.iter()
    }
}

/// The keys of a [`KeySetRef`], in order.
#[derive(Clone, Debug)]
pub struct Keys<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Keys<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (key, rest) = split_record(self.rest)?;
        self.rest = rest;
        Some(key)
    }
}

/// A set of keys that owns its bytes: what a client keeps between acquire and release.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeySetBuf {
    encoded: Box<[u8]>,
}

impl KeySetBuf {
    /// The set of these keys, in whatever order they come.
    ///
    /// # Errors
    /// A bad count, a bad key, or the same key twice ([`KeySetError::Order`]). Indexes are those
    /// of the sorted keys.
    pub fn from_unsorted<K: AsRef<[u8]>>(keys: &[K]) -> Result<KeySetBuf, KeySetError> {
        if !(SET_KEYS_MIN..=SET_KEYS_MAX).contains(&keys.len()) {
            return Err(KeySetError::Count(keys.len()));
        }
        let mut sorted: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        sorted.sort_unstable();
        let mut encoded = vec![keys.len() as u8];
        for (index, key) in sorted.iter().enumerate() {
            // Checked before the length is squeezed into its byte.
            if key.len() > KEY_MAX_BYTES {
                let error = KeyError::TooLong { bytes: key.len() };
                return Err(KeySetError::Key { index, error });
            }
            encoded.push(key.len() as u8);
            encoded.extend_from_slice(key);
        }
        KeySetRef::parse(&encoded)?;
        Ok(KeySetBuf {
            encoded: encoded.into(),
        })
    }

    /// The set, borrowed.
    pub fn as_set(&self) -> KeySetRef<'_> {
        KeySetRef {
            encoded: &self.encoded,
        }
    }
}

impl std::fmt::Debug for KeySetBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_set().fmt(f)
    }
}

/// The key in front of `bytes` and what is behind it; None if it runs past the end.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(len))
}
