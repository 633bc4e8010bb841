//! The byte layouts of every file: segments with their batches and records, identity,
//! state, and what is remembered of peers.
//!
//! Pure: no I/O. `docs/log-format.md` describes the same layouts for people. All integers are
//! little-endian, and structures are read where they lie.

use bytemuck::{Pod, Zeroable};

use crate::limits::BLOCK_BYTES;
use crate::types::{ClusterId, Position, UseNumber};

// Headers are reinterpreted in place, so memory order must be file order.
const _: () = assert!(
    cfg!(target_endian = "little"),
    "the log format needs a little-endian machine"
);

/// First bytes of a segment file.
pub const SEGMENT_MAGIC: [u8; 8] = *b"TCKSEG\xff\0";
/// First bytes of a batch. The 0xff cannot occur in UTF-8, so no key can imitate it.
pub const BATCH_MAGIC: [u8; 8] = *b"TCKBAT\xff\0";
/// First bytes of the identity file.
pub const IDENTITY_MAGIC: [u8; 8] = *b"TCKIDN\xff\0";
/// First bytes of each slot of the state file.
pub const STATE_MAGIC: [u8; 8] = *b"TCKSTA\xff\0";

/// First bytes of the file of what is remembered of peers.
pub const PEERS_MAGIC: [u8; 8] = *b"TCKPRS\xff\0";

/// First bytes of the incarnation file.
pub const INCARNATION_MAGIC: [u8; 8] = *b"TCKINC\xff\0";

/// The version of every layout in this module.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of a batch's header.
pub const BATCH_HEADER_BYTES: usize = size_of::<BatchHeader>();
/// Bytes of a record's header; its payload follows, padded to 8 bytes.
pub const RECORD_HEADER_BYTES: usize = size_of::<RecordHeader>();
/// Bytes of the trailer, which ends a batch's last block.
pub const TRAILER_BYTES: usize = 8;
/// Records and their payloads start on multiples of this.
pub const RECORD_ALIGN: usize = 8;

/// In [`BatchHeader::flags`]: no records, only the synced position.
pub const FLAG_MARK: u32 = 1;
/// In [`BatchHeader::flags`], with [`FLAG_MARK`]: the writer stopped in good order behind this.
pub const FLAG_CLEAN_STOP: u32 = 2;

/// The header of a segment file, in its first block; the block's rest is zero.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct SegmentHeader {
    /// [`SEGMENT_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// See [`seal_block`].
    pub crc: u32,
    /// The log's cluster.
    pub cluster_id: [u8; 16],
    /// Which use of the file this is.
    pub use_number: u32,
    /// The use whose bytes may still lie in the file; 0 when it was zero-filled.
    pub prior_use: u32,
    /// Size of the whole file.
    pub segment_bytes: u32,
    /// Zero.
    pub reserved: u32,
}

/// The header of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BatchHeader {
    /// [`BATCH_MAGIC`].
    pub magic: [u8; 8],
    /// CRC32C of the whole padded batch but this field, seeded by [`crc_seed`].
    pub crc: u32,
    /// The `crc` of the batch before; 0 in a log's first.
    pub previous_crc: u32,
    /// Where the batch stands: use number and offset.
    pub position: u64,
    /// Everything before this position was known synced when the batch was written.
    pub synced: u64,
    /// Index of the first entry here, or of the next to come when there is none.
    pub first_index: u64,
    /// Bytes of the records.
    pub body_bytes: u32,
    /// How many records.
    pub records: u32,
    /// How many of them are entries, which take an index each.
    pub entries: u32,
    /// [`FLAG_MARK`], [`FLAG_CLEAN_STOP`]; other bits are zero.
    pub flags: u32,
    /// Zero.
    pub reserved: u64,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RecordHeader {
    /// Bytes of the payload, without padding.
    pub payload_bytes: u32,
    /// A [`RecordKind`] as a number.
    pub kind: u8,
    /// Zero.
    pub reserved: [u8; 3],
    /// See [`RecordKind`].
    pub term: u64,
    /// See [`RecordKind`].
    pub index: u64,
}

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Entry: nothing but its term, written by a new leader.
    Noop = 1,
    /// Entry: the payload is the state machine's.
    Command = 2,
    /// Entry: the payload is a configuration of the cluster ([`crate::raft::Config::encode`]).
    Config = 3,
    /// Drops the entries from `index` on; `term` is that of the entry before them.
    Truncate = 16,
    /// Drops everything; the log goes on behind `index`, whose entry had `term`.
    Reset = 17,
    /// No entries from the next index up to, not including, `index`; `term` is the last entry's.
    Gap = 18,
}

impl RecordKind {
    /// The kind with that number, or `None` when this version knows none.
    #[must_use]
    pub const fn from_u8(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Noop),
            2 => Some(Self::Command),
            3 => Some(Self::Config),
            16 => Some(Self::Truncate),
            17 => Some(Self::Reset),
            18 => Some(Self::Gap),
            _ => None,
        }
    }

    /// Whether such a record takes an index of its own.
    #[must_use]
    pub const fn is_entry(self) -> bool {
        matches!(self, Self::Noop | Self::Command | Self::Config)
    }
}

/// The incarnation file, one block; what is behind it is zero.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct IncarnationLayout {
    /// [`INCARNATION_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// See [`seal_block`].
    pub crc: u32,
    /// Whose it is.
    pub node_id: [u8; 16],
    /// 128 random bits.
    pub incarnation: [u8; 16],
}

/// The identity file, one block; what is behind it is zero.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct IdentityLayout {
    /// [`IDENTITY_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// See [`seal_block`].
    pub crc: u32,
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// This member of it.
    pub node_id: [u8; 16],
    /// The index of the first entry the log could hold when the folder was created.
    pub first_index: u64,
    /// When the folder was created, by its machine's clock.
    pub created_unix_s: u64,
    /// 1 single, 2 cluster.
    pub mode: u32,
    /// Zero.
    pub reserved: u32,
}

/// One slot of the state file; the block's rest is zero.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct StateLayout {
    /// [`STATE_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// See [`seal_block`].
    pub crc: u32,
    /// Grows with every write; the valid slot with the larger one counts.
    pub sequence: u64,
    /// Current term.
    pub term: u64,
    /// Whom this node voted for, if `has_vote`.
    pub voted_for: [u8; 16],
    /// The kernel's boot id when the log was last known good.
    pub boot_id: [u8; 16],
    /// Every index issued under `memory` is below this; 0 before the first such run.
    pub ceiling: u64,
    /// The log goes on at this index or above.
    pub next_index_floor: u64,
    /// How often the folder was opened for writing.
    pub starts: u64,
    /// 1 or 0.
    pub has_vote: u8,
    /// 1 sync, 2 memory: of the run that wrote this.
    pub durability: u8,
    /// 1 when the run that wrote this stopped in good order.
    pub clean_stop: u8,
    /// Zero.
    pub reserved: [u8; 5],
}

/// The header of the file of what is remembered of peers, in its first block; the block's rest is
/// zero, and the body follows: the records, then the ids of those that left.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct PeersLayout {
    /// [`PEERS_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// See [`seal_block`].
    pub crc: u32,
    /// The cluster.
    pub cluster_id: [u8; 16],
    /// Who remembers.
    pub node_id: [u8; 16],
    /// How many [`PeerRecord`]s the body has.
    pub records: u32,
    /// How many ids of nodes that left.
    pub left: u32,
    /// CRC32C of the body.
    pub body_crc: u32,
    /// Zero.
    pub reserved: u32,
}

/// What is remembered of one node.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct PeerRecord {
    /// The node.
    pub node_id: [u8; 16],
    /// Its folder.
    pub incarnation: [u8; 16],
    /// The last process seen.
    pub process: [u8; 16],
    /// The largest start counter seen.
    pub starts: u64,
    /// The newest term in which it acknowledged entries.
    pub acknowledged_term: u64,
    /// The last of them.
    pub acknowledged_index: u64,
    /// The largest index that it acknowledged and that is known committed.
    pub committed: u64,
}

/// What the checksum of every batch in that use of a segment starts from.
#[must_use]
pub fn crc_seed(cluster_id: ClusterId, use_number: UseNumber) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&cluster_id.0), &use_number.0.to_le_bytes())
}

/// The checksum of a whole padded batch, leaving out the field that holds it.
///
/// # Panics
/// When `batch` is shorter than a header.
#[must_use]
pub fn batch_crc(seed: u32, batch: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(seed, &batch[..8]);
    crc32c::crc32c_append(crc, &batch[12..])
}

/// What the last 8 bytes of a batch hold: the complement of its position, whose lowest byte
/// (0xff, as positions of batches are multiples of a block) cannot occur in UTF-8.
#[must_use]
pub const fn trailer(position: Position) -> u64 {
    !position.as_u64()
}

/// The bytes a batch takes with a body of that many: header, body and trailer, in whole blocks.
#[must_use]
pub const fn padded_batch_bytes(body_bytes: usize) -> usize {
    (BATCH_HEADER_BYTES + body_bytes + TRAILER_BYTES).next_multiple_of(BLOCK_BYTES)
}

/// The bytes a record takes with a payload of that many.
#[must_use]
pub const fn padded_record_bytes(payload_bytes: usize) -> usize {
    RECORD_HEADER_BYTES + payload_bytes.next_multiple_of(RECORD_ALIGN)
}

/// Why a header block cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockFault {
    /// It does not begin with the magic, or is shorter than a block.
    WrongMagic,
    /// Its checksum is wrong.
    Damaged,
    /// It is whole, and of this later version.
    Newer(u32),
}

/// A block that begins with a structure and is zero behind it, with its checksum filled in.
///
/// In every such block, of every version, bytes 0 to 8 are the magic, 8 to 12 the version, and 12
/// to 16 the CRC32C of the whole block with these four bytes zero; so damage is told from a later
/// version without knowing that version's layout.
#[must_use]
pub fn seal_block<T: Pod>(layout: &T) -> Vec<u8> {
    let bytes = bytemuck::bytes_of(layout);
    let mut block = vec![0; BLOCK_BYTES];
    block[..bytes.len()].copy_from_slice(bytes);
    let crc = block_crc(&block);
    block[12..16].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Checks the block at the start of `bytes` and reads the structure in it.
///
/// # Errors
/// The [`BlockFault`].
pub fn open_block<T: Pod>(bytes: &[u8], magic: [u8; 8]) -> Result<T, BlockFault> {
    let block = bytes.get(..BLOCK_BYTES).ok_or(BlockFault::WrongMagic)?;
    if block[..8] != magic {
        return Err(BlockFault::WrongMagic);
    }
    if read::<u32>(&block[12..]) != Some(block_crc(block)) {
        return Err(BlockFault::Damaged);
    }
    let version: u32 = read(&block[8..]).ok_or(BlockFault::WrongMagic)?;
    if version > FORMAT_VERSION {
        return Err(BlockFault::Newer(version));
    }
    read(block).ok_or(BlockFault::WrongMagic)
}

fn block_crc(block: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&block[..12]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &block[16..])
}

/// Reads a structure from the start of `bytes`, whatever their alignment; `None` when too short.
#[must_use]
pub fn read<T: Pod>(bytes: &[u8]) -> Option<T> {
    bytes
        .get(..size_of::<T>())
        .map(bytemuck::pod_read_unaligned)
}

const _: () = {
    assert!(BATCH_HEADER_BYTES == 64 && RECORD_HEADER_BYTES == 24);
    assert!(size_of::<SegmentHeader>() == 48);
    assert!(size_of::<IdentityLayout>() == 72 && size_of::<StateLayout>() == 96);
    assert!(size_of::<PeersLayout>() == 64 && size_of::<PeerRecord>() == 80);
    assert!(BATCH_HEADER_BYTES.is_multiple_of(RECORD_ALIGN));
    assert!(RECORD_HEADER_BYTES.is_multiple_of(RECORD_ALIGN));
};
