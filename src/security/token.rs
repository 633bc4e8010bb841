//! Shared secrets: where they come from, and what is refused.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use ticketing_protocol::limits::CLIENT_TOKEN_MIN_BYTES;

use super::files;

/// Environment variable that holds the client token, and wins over a file.
pub const CLIENT_TOKEN_VARIABLE: &str = "TICKETING_CLIENT_TOKEN";

/// Environment variable that holds the operators' token, and wins over a file.
pub const ADMIN_TOKEN_VARIABLE: &str = "TICKETING_ADMIN_TOKEN";

/// Environment variable that holds the token that nodes prove to each other, and wins over a file.
pub const PEER_TOKEN_VARIABLE: &str = "TICKETING_PEER_TOKEN";

/// A secret that never prints itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<[u8]>);

impl Token {
    /// The empty token: whoever reaches the address may use it. Loopback only.
    #[must_use]
    pub fn none() -> Self {
        Self(Arc::from([]))
    }

    /// A token of at least [`CLIENT_TOKEN_MIN_BYTES`] bytes; one trailing
    /// newline, which editors like to add, is not part of it.
    ///
    /// # Errors
    /// When it is too short. `source` says in the message where it came from.
    pub fn new(bytes: &[u8], source: &str) -> Result<Self, String> {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        if bytes.len() < CLIENT_TOKEN_MIN_BYTES {
            return Err(format!(
                "the token in {source} has {} bytes; make it at least {CLIENT_TOKEN_MIN_BYTES} \
                 (for example: head -c 32 /dev/urandom | base64)",
                bytes.len()
            ));
        }
        Ok(Self(Arc::from(bytes)))
    }

    /// Reads a token from a file that only its owner may read.
    ///
    /// # Errors
    /// When the file cannot be read, others may read it, or the token is too
    /// short; each with the remedy.
    pub fn from_file(path: &Path) -> Result<Self, String> {
        let bytes = files::read_secret("token file", path)?;
        Self::new(&bytes, &format!("file {}", path.display()))
    }

    /// True for the token that lets everybody in.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `shown` is the secret; takes as long for every wrong one of its length. The token that lets
    /// everybody in is nobody's.
    #[must_use]
    pub fn is(&self, shown: &[u8]) -> bool {
        !self.is_none() && bool::from(self.0.ct_eq(shown))
    }

    /// The secret itself.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The token that counts, and the one before it while that is being changed: both let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// What is shown to others.
    pub current: Token,
    /// What some may still show.
    pub previous: Option<Token>,
}

impl Tokens {
    /// One token alone.
    #[must_use]
    pub fn one(current: Token) -> Self {
        Self {
            current,
            previous: None,
        }
    }

    /// The current one first.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        [&self.current].into_iter().chain(&self.previous)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_none() {
            "Token(none)"
        } else {
            "Token(hidden)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file_with(bytes: &[u8], mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("client.token");
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("mode set");
        (dir, path)
    }

    #[test]
    fn sixteen_bytes_are_enough_and_fifteen_are_not() {
        assert!(Token::new(&[b'x'; 16], "a test").is_ok());
        let short = Token::new(&[b'x'; 15], "a test").expect_err("too short");
        assert!(short.contains("15 bytes") && short.contains("at least 16"));
    }

    #[test]
    fn one_trailing_newline_is_ignored_and_no_more() {
        let one = Token::new(b"0123456789abcdef\n", "a test").expect("long enough");
        assert_eq!(one.bytes(), b"0123456789abcdef");
        let two = Token::new(b"0123456789abcdef\n\n", "a test").expect("long enough");
        assert_eq!(two.bytes(), b"0123456789abcdef\n");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        let (_dir, path) = file_with(b"0123456789abcdef", 0o600);
        assert!(Token::from_file(&path).is_ok());
        for mode in [0o640, 0o604, 0o660, 0o644] {
            let (_dir, path) = file_with(b"0123456789abcdef", mode);
            let refused = Token::from_file(&path).expect_err("others can read it");
            assert!(refused.contains("chmod 600"), "{refused}");
        }
    }

    #[test]
    fn a_token_never_prints_itself() {
        let token = Token::new(b"very-secret-token", "a test").expect("long enough");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
