//! The first 353 bytes of a connection between two nodes: who they are, and that both know the
//! peer token.
//!
//! The side that accepts sends its [`Hello`]. The side that dialled answers with its own and a
//! proof over both; the other side then sends its [`Verdict`] with a proof of its own over all that
//! was said. Nonces make every proof good for one connection; each side's proof has a domain of
//! its own, so that none can be reflected; and a refusal is proven as well, so that no stranger
//! can tell a node that it was replaced. A wrong proof is answered by closing, without a byte.
//!
//! | offset | bytes | field of a hello |
//! |---|---|---|
//! | 0 | 8 | `TCKPEER1` |
//! | 8 | 2 | version, 1 |
//! | 10 | 1 | slot; 255: a learner |
//! | 11 | 5 | zero |
//! | 16 | 16 | cluster id |
//! | 32 | 16 | node id |
//! | 48 | 16 | incarnation |
//! | 64 | 8 | start counter, from 1 on |
//! | 72 | 16 | process, drawn at each start |
//! | 88 | 8 | the current term |
//! | 96 | 16 | the log's last entry: term, index |
//! | 112 | 32 | nonce |

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::body::{EntryId, NODE_ID_LEN};
use super::wire::{Reader, put_u64};
use crate::limits::{SLOT_MAX, SLOT_UNKNOWN};

/// Bytes of a hello.
pub const HELLO_LEN: usize = 144;
/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;
/// Bytes of the answer of the side that dialled: its hello, then its proof.
pub const DIALLED_LEN: usize = HELLO_LEN + PROOF_LEN;
/// Bytes of the answer to that: the verdict, then the proof.
pub const VERDICT_LEN: usize = 1 + PROOF_LEN;
/// Bytes of a nonce.
pub const NONCE_LEN: usize = 32;
/// The version of the protocol between nodes.
pub const PEER_VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"TCKPEER1";
const DIALLED_DOMAIN: [u8; 16] = *b"TCK/PEER/DIALED1";
const ACCEPTED_DOMAIN: [u8; 16] = *b"TCK/PEER/ACCEPT1";

/// Who a node says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Its slot; [`SLOT_UNKNOWN`] of a learner.
    pub slot: u8,
    /// Its cluster.
    pub cluster_id: [u8; 16],
    /// The node.
    pub node_id: [u8; NODE_ID_LEN],
    /// Drawn at its folder's first start.
    pub incarnation: [u8; 16],
    /// How many times it was started; from 1 on.
    pub start_counter: u64,
    /// Drawn at each start: tells a process that connects again from another one.
    pub process: [u8; 16],
    /// Its current term, which may be later than that of its last entry.
    pub term: u64,
    /// Its log's last entry.
    pub last: EntryId,
    /// Bytes that were never sent before.
    pub nonce: [u8; NONCE_LEN],
}

/// Why bytes are no hello of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Not a peer port.
    #[error(
        "the other side does not speak the protocol between nodes: check address, port and TLS"
    )]
    Magic,
    /// Another version.
    #[error(
        "the other side speaks version {0} of the protocol between nodes, this one {PEER_VERSION}"
    )]
    Version(u16),
    /// A field that cannot be.
    #[error("a hello with a slot, a counter or reserved bytes that cannot be")]
    Field,
}

/// Why a node is not talked to, though it knows the token. What it does then is in
/// `docs/protocol-cluster.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// 2: another cluster.
    OtherCluster = 2,
    /// 3: no member; only a leader says so, as another node may not have heard of it yet.
    NotAMember = 3,
    /// 4: the same node id with another incarnation: its folder was made anew, or is a copy.
    OtherIncarnation = 4,
    /// 5: a start counter that is not above the last one seen of another process.
    OldStart = 5,
    /// 6: a log that lacks what this node acknowledged.
    LostLog = 6,
    /// 7: another process with this node id is connected, and answers: the one before a restart that is
    /// not gone yet, or a copy.
    SecondProcess = 7,
    /// 8: it was replaced or removed, for good.
    Replaced = 8,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::OtherCluster,
        Self::NotAMember,
        Self::OtherIncarnation,
        Self::OldStart,
        Self::LostLog,
        Self::SecondProcess,
        Self::Replaced,
    ];
}

/// What the side that accepts says of the other: 1 welcome, 2 to 8 a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on with frames.
    Welcome,
    /// The connection is closed after this.
    Refused(Refusal),
}

impl Verdict {
    const WELCOME: u8 = 1;

    fn to_byte(self) -> u8 {
        match self {
            Self::Welcome => Self::WELCOME,
            Self::Refused(why) => why as u8,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        if byte == Self::WELCOME {
            return Some(Self::Welcome);
        }
        let why = Refusal::ALL.into_iter().find(|why| *why as u8 == byte);
        why.map(Self::Refused)
    }
}

impl Hello {
    /// The bytes to send.
    ///
    /// # Panics
    /// When a field cannot be: no node would ever talk to this one.
    #[must_use]
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        assert!(self.fits(), "slot {} or start 0", self.slot);
        let mut out = Vec::with_capacity(HELLO_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&PEER_VERSION.to_le_bytes());
        out.extend_from_slice(&[self.slot, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.cluster_id);
        out.extend_from_slice(&self.node_id);
        out.extend_from_slice(&self.incarnation);
        put_u64(&mut out, self.start_counter);
        out.extend_from_slice(&self.process);
        put_u64(&mut out, self.term);
        put_u64(&mut out, self.last.term);
        put_u64(&mut out, self.last.index);
        out.extend_from_slice(&self.nonce);
        let mut bytes = [0; HELLO_LEN];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// The first field that is not as it must be.
    pub fn parse(bytes: &[u8; HELLO_LEN]) -> Result<Self, HelloError> {
        let mut reader = Reader(bytes);
        if reader.array() != Some(MAGIC) {
            return Err(HelloError::Magic);
        }
        let version = reader.array().map(u16::from_le_bytes);
        if let Some(other) = version.filter(|version| *version != PEER_VERSION) {
            return Err(HelloError::Version(other));
        }
        Self::read(&mut reader)
            .filter(Self::fits)
            .ok_or(HelloError::Field)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let slot = reader.u8()?;
        reader.zeros::<5>()?;
        Some(Self {
            slot,
            cluster_id: reader.array()?,
            node_id: reader.array()?,
            incarnation: reader.array()?,
            start_counter: reader.u64()?,
            process: reader.array()?,
            term: reader.u64()?,
            last: EntryId {
                term: reader.u64()?,
                index: reader.u64()?,
            },
            nonce: reader.array()?,
        })
    }

    fn fits(&self) -> bool {
        (self.slot <= SLOT_MAX || self.slot == SLOT_UNKNOWN) && self.start_counter > 0
    }
}

/// The proof of the side that dialled: that it knows `token`, over both hellos.
#[must_use]
pub fn dialled_proof(token: &[u8], accepting: &Hello, dialling: &Hello) -> [u8; PROOF_LEN] {
    proof(token, &DIALLED_DOMAIN, accepting, dialling, &[])
}

/// Whether that proof is right, found out in constant time.
#[must_use]
pub fn verify_dialled(
    token: &[u8],
    accepting: &Hello,
    dialling: &Hello,
    claimed: &[u8; PROOF_LEN],
) -> bool {
    dialled_proof(token, accepting, dialling)
        .ct_eq(claimed)
        .into()
}

/// The answer of the side that accepted: its verdict and its proof, to a dialling side whose proof
/// was right.
#[must_use]
pub fn encode_verdict(
    token: &[u8],
    accepting: &Hello,
    dialling: &Hello,
    verdict: Verdict,
) -> [u8; VERDICT_LEN] {
    let byte = [verdict.to_byte()];
    let mut bytes = [0; VERDICT_LEN];
    bytes[..1].copy_from_slice(&byte);
    bytes[1..].copy_from_slice(&proof(token, &ACCEPTED_DOMAIN, accepting, dialling, &byte));
    bytes
}

/// Reads the verdict; `None` when the proof is wrong, or there is no such verdict.
#[must_use]
pub fn parse_verdict(
    token: &[u8],
    accepting: &Hello,
    dialling: &Hello,
    bytes: &[u8; VERDICT_LEN],
) -> Option<Verdict> {
    let (byte, claimed) = bytes.split_first_chunk::<1>()?;
    let right = proof(token, &ACCEPTED_DOMAIN, accepting, dialling, byte);
    let is_right: bool = right[..].ct_eq(claimed).into();
    Verdict::from_byte(byte[0]).filter(|_| is_right)
}

fn proof(
    token: &[u8],
    domain: &[u8; 16],
    accepting: &Hello,
    dialling: &Hello,
    verdict: &[u8],
) -> [u8; PROOF_LEN] {
    // HMAC takes a key of any length: this constructor has no failing path.
    let mut mac = Hmac::<Sha256>::new_from_slice(token).expect("HMAC takes any key length");
    mac.update(domain);
    mac.update(&accepting.encode());
    mac.update(&dialling.encode());
    mac.update(verdict);
    mac.finalize().into_bytes().into()
}
