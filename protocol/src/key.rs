//! What a key may be.

use crate::limits::{KEY_MAX_BYTES, KEY_MIN_BYTES};

/// Why some bytes are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No bytes at all.
    #[error("the key is empty: give it 1 to {KEY_MAX_BYTES} bytes")]
    Empty,
    /// More than [`KEY_MAX_BYTES`] bytes.
    #[error("the key has {bytes} bytes: shorten it to {KEY_MAX_BYTES} or fewer")]
    TooLong {
        /// How many bytes it has.
        bytes: usize,
    },
    /// Not UTF-8.
    #[error("the key is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// Offset of the first byte that is not part of a character.
        at: usize,
    },
    /// A space, line feed or carriage return.
    #[error("the key has a space, line feed or carriage return at byte {at}: remove it")]
    ForbiddenByte {
        /// Its offset.
        at: usize,
    },
}

/// The key as text, if it is 1 to [`KEY_MAX_BYTES`] bytes of UTF-8 without space, LF and CR.
///
/// Any other character is allowed, control characters included. Bytes are compared as they
/// are: there is no normalisation.
///
/// # Errors
/// The first reason found, in the order of [`KeyError`]'s variants.
#[inline]
pub fn validate_key(bytes: &[u8]) -> Result<&str, KeyError> {
    if bytes.len() < KEY_MIN_BYTES {
        return Err(KeyError::Empty);
    }
    if bytes.len() > KEY_MAX_BYTES {
        return Err(KeyError::TooLong { bytes: bytes.len() });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| KeyError::NotUtf8 {
        at: error.valid_up_to(),
    })?;
    if scan(bytes).has_forbidden {
        return Err(first_forbidden(bytes));
    }
    Ok(text)
}

/// Whether [`validate_key`] would take it, at the cost of a few instructions for eight bytes:
/// a server that reads 100,000 keys a second needs the verdict, not the text.
#[inline]
pub(crate) fn is_valid_key(bytes: &[u8]) -> bool {
    if !(KEY_MIN_BYTES..=KEY_MAX_BYTES).contains(&bytes.len()) {
        return false;
    }
    let scan = scan(bytes);
    !scan.has_forbidden && (!scan.has_non_ascii || std::str::from_utf8(bytes).is_ok())
}

struct Scan {
    has_forbidden: bool,
    has_non_ascii: bool,
}

/// One pass, eight bytes at a time.
#[inline]
fn scan(bytes: &[u8]) -> Scan {
    let (words, rest) = bytes.as_chunks::<8>();
    // Filled up with a byte that is allowed.
    let mut last = [b'x'; 8];
    for (to, &from) in last.iter_mut().zip(rest) {
        *to = from;
    }
    let mut zeros = 0;
    let mut high = 0;
    for word in words.iter().chain([&last]) {
        let word = u64::from_ne_bytes(*word);
        high |= word;
        for byte in FORBIDDEN {
            zeros |= zero_bytes(word ^ (EACH_BYTE * u64::from(byte)));
        }
    }
    Scan {
        has_forbidden: zeros != 0,
        has_non_ascii: high & HIGH_BITS != 0,
    }
}

const FORBIDDEN: [u8; 3] = *b" \n\r";
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Not 0 exactly if one of the word's bytes is 0: only then does a byte without its high bit
/// get one by losing 1. (A borrow can mark a byte above a zero byte as well, never without one.)
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(EACH_BYTE) & !word & HIGH_BITS
}

#[cold]
fn first_forbidden(bytes: &[u8]) -> KeyError {
    let at = bytes
        .iter()
        .take_while(|byte| !FORBIDDEN.contains(byte))
        .count();
    KeyError::ForbiddenByte { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_counted_in_bytes_at_the_bound_and_one_past() {
        assert_eq!(validate_key(b""), Err(KeyError::Empty));
        assert_eq!(validate_key(b"k"), Ok("k"));
        let longest = "k".repeat(KEY_MAX_BYTES);
        assert_eq!(validate_key(longest.as_bytes()), Ok(longest.as_str()));
        assert_eq!(
            validate_key("k".repeat(KEY_MAX_BYTES + 1).as_bytes()),
            Err(KeyError::TooLong { bytes: 129 })
        );
        // 43 three-byte characters are 129 bytes.
        assert_eq!(
            validate_key("표".repeat(43).as_bytes()),
            Err(KeyError::TooLong { bytes: 129 })
        );
        assert!(validate_key("표".repeat(42).as_bytes()).is_ok());
    }

    #[test]
    fn every_ascii_byte_but_three_is_allowed_anywhere() {
        for byte in 0..=127_u8 {
            for at in [0, 1, 31, 32, 127] {
                let mut key = [b'k'; KEY_MAX_BYTES];
                key[at] = byte;
                let expected = !matches!(byte, b' ' | b'\n' | b'\r');
                assert_eq!(validate_key(&key).is_ok(), expected, "{byte} at {at}");
                if !expected {
                    assert_eq!(validate_key(&key), Err(KeyError::ForbiddenByte { at }));
                }
            }
        }
    }

    #[test]
    fn the_quick_verdict_is_that_of_the_full_check() {
        for len in 0..=KEY_MAX_BYTES + 1 {
            let key = vec![b'k'; len];
            assert_eq!(
                is_valid_key(&key),
                validate_key(&key).is_ok(),
                "{len} bytes"
            );
        }
        // Every pair of bytes, across the border between two words and inside one.
        for first in 0..=255 {
            for second in 0..=255 {
                for at in [0, 7, 10] {
                    let mut key = [b'k'; 12];
                    key[at..at + 2].copy_from_slice(&[first, second]);
                    let plain = std::str::from_utf8(&key)
                        .is_ok_and(|text| !text.contains([' ', '\n', '\r']));
                    assert_eq!(is_valid_key(&key), plain, "{key:?}");
                    assert_eq!(validate_key(&key).is_ok(), plain, "{key:?}");
                }
            }
        }
    }

    #[test]
    fn broken_utf8_is_refused_where_it_breaks() {
        for bad in [
            &b"ok\x80"[..],
            b"ok\xc0\xaf",
            b"ok\xed\xa0\x80",
            b"ok\xff",
            b"ok\xe2\x82",
        ] {
            assert_eq!(
                validate_key(bad),
                Err(KeyError::NotUtf8 { at: 2 }),
                "{bad:?}"
            );
        }
    }
}
