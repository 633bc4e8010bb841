//! The first 61 bytes of a connection: hello, answer, verdict.
//!
//! The server sends a [`ServerHello`] with a fresh random nonce. The client answers with
//! [`client_auth`], an HMAC keyed with the shared token, so the token itself never crosses the
//! wire and no answer can be used twice. The server then sends [`ACCEPTED`] or [`REFUSED`].

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::limits::{SLOT_MAX, SLOT_UNKNOWN};

/// Bytes of a server hello.
pub const HELLO_LEN: usize = 28;
/// Bytes of a client's answer.
pub const AUTH_LEN: usize = 32;
/// Bytes of the nonce inside a hello.
pub const NONCE_LEN: usize = 16;
/// Bytes of an identity fingerprint.
pub const FINGERPRINT_LEN: usize = 32;
/// Bytes of a cluster id.
pub const CLUSTER_ID_LEN: usize = 16;
/// The wire version in the hello and in the HMAC.
pub const WIRE_VERSION: u16 = 3;

/// The server's verdict: go on with frames.
pub const ACCEPTED: u8 = 1;
/// The server's verdict: wrong answer. Clients give the address up for good, so a server sends
/// it for a wrong HMAC and for nothing else.
pub const REFUSED: u8 = 0;

const MAGIC: [u8; 8] = *b"TCKCLI3\0";
const AUTH_DOMAIN: [u8; 16] = *b"TCK/CLIENT/AUTH3";
const SINGLE_IDENTITY: &[u8] = b"ticketing/single/v3";
const CLUSTER_IDENTITY: &[u8] = b"ticketing/cluster/v3";

const _: () = assert!(MAGIC.len() + 2 + 1 + 1 + NONCE_LEN == HELLO_LEN);

/// How a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// One node alone.
    Single,
    /// A member of a cluster of 3 or 5.
    Cluster,
}

impl Mode {
    /// Its byte on the wire.
    pub const fn to_byte(self) -> u8 {
        match self {
            Mode::Single => 0,
            Mode::Cluster => 1,
        }
    }
}

/// What a server says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerHello {
    /// Single or cluster.
    pub mode: Mode,
    /// The server's own slot: 0 to [`SLOT_MAX`] in a cluster, [`SLOT_UNKNOWN`] in single mode.
    pub slot: u8,
    /// 16 bytes that were never sent before.
    pub nonce: [u8; NONCE_LEN],
}

/// Why 28 bytes are not a hello of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Not a Ticketing client port.
    #[error("the peer does not speak Ticketing's client protocol: check address, port and TLS")]
    Magic,
    /// Another version.
    #[error("the server speaks wire version {0}, this side {WIRE_VERSION}")]
    Version(u16),
    /// A mode that does not exist.
    #[error("hello with unknown mode {0}")]
    Mode(u8),
    /// A slot that does not go with the mode.
    #[error("hello with slot {slot} in {mode:?} mode")]
    Slot {
        /// The mode it came with.
        mode: Mode,
        /// The slot.
        slot: u8,
    },
}

impl ServerHello {
    /// The hello of a server in single mode.
    pub const fn single(nonce: [u8; NONCE_LEN]) -> ServerHello {
        ServerHello {
            mode: Mode::Single,
            slot: SLOT_UNKNOWN,
            nonce,
        }
    }

    /// The 28 bytes to send.
    ///
    /// # Panics
    /// If the slot does not go with the mode: no client would ever come back.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        assert!(
            self.slot_fits(),
            "slot {} in {:?} mode",
            self.slot,
            self.mode
        );
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..10].copy_from_slice(&WIRE_VERSION.to_be_bytes());
        out[10] = self.mode.to_byte();
        out[11] = self.slot;
        out[12..].copy_from_slice(&self.nonce);
        out
    }

    /// Reads a hello, as a client does.
    ///
    /// # Errors
    /// The first field that is not as it must be.
    pub fn parse(bytes: &[u8; HELLO_LEN]) -> Result<ServerHello, HelloError> {
        let [
            magic @ ..,
            v1,
            v0,
            mode,
            slot,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
        ] = bytes;
        if *magic != MAGIC {
            return Err(HelloError::Magic);
        }
        let version = u16::from_be_bytes([*v1, *v0]);
        if version != WIRE_VERSION {
            return Err(HelloError::Version(version));
        }
        let mode = match *mode {
            0 => Mode::Single,
            1 => Mode::Cluster,
            other => return Err(HelloError::Mode(other)),
        };
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&bytes[HELLO_LEN - NONCE_LEN..]);
        let slot = *slot;
        let hello = ServerHello { mode, slot, nonce };
        if !hello.slot_fits() {
            return Err(HelloError::Slot { mode, slot });
        }
        Ok(hello)
    }

    fn slot_fits(&self) -> bool {
        match self.mode {
            Mode::Single => self.slot == SLOT_UNKNOWN,
            Mode::Cluster => self.slot <= SLOT_MAX,
        }
    }
}

/// The identity fingerprint of every server in single mode.
pub fn single_fingerprint() -> [u8; FINGERPRINT_LEN] {
    Sha256::digest(SINGLE_IDENTITY).into()
}

/// The identity fingerprint of one cluster: what its clients are configured with.
pub fn cluster_fingerprint(cluster_id: &[u8; CLUSTER_ID_LEN]) -> [u8; FINGERPRINT_LEN] {
    let mut hash = Sha256::new();
    hash.update(CLUSTER_IDENTITY);
    hash.update(cluster_id);
    hash.finalize().into()
}

/// The answer to `hello` by a client that knows `token` and expects `fingerprint`.
///
/// An empty token is an empty key; servers accept that on loopback only.
pub fn client_auth(
    token: &[u8],
    fingerprint: &[u8; FINGERPRINT_LEN],
    hello: &ServerHello,
) -> [u8; AUTH_LEN] {
    // HMAC takes a key of any length, the empty one too: this constructor has no failing path.
    let mut mac = Hmac::<Sha256>::new_from_slice(token).expect("HMAC takes any key length");
    mac.update(&AUTH_DOMAIN);
    mac.update(&WIRE_VERSION.to_be_bytes());
    mac.update(&[hello.mode.to_byte()]);
    mac.update(fingerprint);
    mac.update(&[hello.slot]);
    mac.update(&hello.nonce);
    mac.finalize().into_bytes().into()
}

/// Whether `answer` is the one to `hello`, found out in constant time.
pub fn verify_client_auth(
    token: &[u8],
    fingerprint: &[u8; FINGERPRINT_LEN],
    hello: &ServerHello,
    answer: &[u8; AUTH_LEN],
) -> bool {
    client_auth(token, fingerprint, hello).ct_eq(answer).into()
}
