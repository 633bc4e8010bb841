//! The bytes of a snapshot file, encoded and decoded piece by piece. Pure.

use bytemuck::{Pod, Zeroable};

use crate::format::{BlockFault, FORMAT_VERSION, open_block, read, seal_block};
use crate::limits::{BLOCK_BYTES, CONFIG_BYTES, MAX_SNAPSHOT_CHUNK_BYTES};
use crate::raft::{Config, ConfigEntry};
use crate::types::{ClusterId, LogIndex, Position, Term};

/// First bytes of a snapshot file.
pub const SNAPSHOT_MAGIC: [u8; 8] = *b"TCKSNP\xff\0";
/// First bytes of the trailer that ends one.
pub const TRAILER_MAGIC: [u8; 8] = *b"TCKEND\xff\0";
/// Bytes of a chunk's header; its body follows, padded to 8 bytes.
pub const CHUNK_HEADER_BYTES: usize = size_of::<ChunkHeader>();
/// Bytes of the trailer.
pub const SNAPSHOT_TRAILER_BYTES: usize = size_of::<SnapshotTrailer>();
/// Chunks start on multiples of this.
const CHUNK_ALIGN: usize = 8;

/// The header of a snapshot file, in its first block; the block's rest is zero.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct SnapshotHeader {
    /// [`SNAPSHOT_MAGIC`].
    pub magic: [u8; 8],
    /// [`FORMAT_VERSION`].
    pub version: u32,
    /// See [`seal_block`].
    pub crc: u32,
    /// The log's cluster.
    pub cluster_id: [u8; 16],
    /// See [`SnapshotMeta::index`].
    pub index: u64,
    /// See [`SnapshotMeta::term`].
    pub term: u64,
    /// See [`SnapshotMeta::position`].
    pub position: u64,
    /// Where in the log the configuration is that is in force at `index`.
    pub config_index: u64,
    /// Bytes of that configuration.
    pub config_bytes: u32,
    /// Zero.
    pub reserved: u32,
    /// The configuration ([`Config::encode`]); what is behind it is zero.
    pub config: [u8; CONFIG_BYTES as usize],
}

/// The header of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ChunkHeader {
    /// CRC32C of the padded chunk behind this field, seeded with cluster, index and its number.
    pub crc: u32,
    /// Bytes of the body, without padding.
    pub body_bytes: u32,
    /// A [`ChunkKind`] as a number.
    pub kind: u32,
    /// How many of the state machine's items the body holds.
    pub items: u32,
}

/// The end of a snapshot file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SnapshotTrailer {
    /// [`TRAILER_MAGIC`].
    pub magic: [u8; 8],
    /// CRC32C of the trailer but this field, seeded with cluster and index.
    pub crc: u32,
    /// CRC32C of the chunks' checksums, in their order.
    pub chunks_crc: u32,
    /// How many chunks.
    pub chunks: u64,
    /// How many items in them.
    pub items: u64,
    /// Bytes of the whole file.
    pub file_bytes: u64,
}

/// What a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ChunkKind {
    /// A part of the state machine's state.
    State = 1,
}

/// What a snapshot stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// The last index whose entry is in it.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
    /// Everything before this position of the log was synced when the snapshot was begun.
    pub position: Position,
}

/// What is wrong with a snapshot file, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Its first block cannot be used.
    Header(BlockFault),
    /// It is damaged.
    Damaged {
        /// Where, in bytes.
        offset: u64,
        /// What is wrong there.
        why: &'static str,
    },
}

/// A chunk, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// How many of the state machine's items it holds.
    pub items: u32,
    /// The state machine's bytes.
    pub body: &'a [u8],
}

/// Makes the bytes of a snapshot file.
#[derive(Debug)]
pub struct Encoder {
    seed: u32,
    chunks_crc: u32,
    chunks: u64,
    items: u64,
    bytes: u64,
}

impl Encoder {
    /// Begins a file; appends its header block to `out`. `config` is the configuration that is in
    /// force at the snapshot's index, and where in the log that is.
    ///
    /// # Panics
    /// When `config` is behind the snapshot, or has no members: the caller is wrong.
    #[must_use]
    pub fn begin(
        cluster_id: ClusterId,
        meta: &SnapshotMeta,
        config: &ConfigEntry,
        out: &mut Vec<u8>,
    ) -> Self {
        assert!(
            config.index <= meta.index && config.config != Config::unknown(),
            "a snapshot up to {} with the configuration at {}",
            meta.index,
            config.index
        );
        let mut members = Vec::with_capacity(CONFIG_BYTES as usize);
        config.config.encode(&mut members);
        let mut padded = [0; CONFIG_BYTES as usize];
        padded[..members.len()].copy_from_slice(&members);
        out.extend_from_slice(&seal_block(&SnapshotHeader {
            magic: SNAPSHOT_MAGIC,
            version: FORMAT_VERSION,
            crc: 0,
            cluster_id: cluster_id.0,
            index: meta.index.0,
            term: meta.term.0,
            position: meta.position.as_u64(),
            config_index: config.index.0,
            // Bounded by CONFIG_BYTES.
            config_bytes: members.len() as u32,
            reserved: 0,
            config: padded,
        }));
        Self {
            seed: seed_of(cluster_id, meta.index),
            chunks_crc: 0,
            chunks: 0,
            items: 0,
            bytes: BLOCK_BYTES as u64,
        }
    }

    /// Appends a chunk to `out`.
    ///
    /// # Panics
    /// When the body is longer than [`MAX_SNAPSHOT_CHUNK_BYTES`]: the caller is wrong.
    pub fn chunk(&mut self, items: u32, body: &[u8], out: &mut Vec<u8>) {
        assert!(
            body.len() <= MAX_SNAPSHOT_CHUNK_BYTES,
            "a chunk of {} bytes",
            body.len()
        );
        let start = out.len();
        let mut header = ChunkHeader {
            crc: 0,
            body_bytes: body.len() as u32,
            kind: ChunkKind::State as u32,
            items,
        };
        out.extend_from_slice(bytemuck::bytes_of(&header));
        out.extend_from_slice(body);
        out.resize(start + padded_chunk_bytes(body.len()), 0);
        header.crc = crc32c::crc32c_append(chunk_seed(self.seed, self.chunks), &out[start + 4..]);
        out[start..start + 4].copy_from_slice(&header.crc.to_le_bytes());
        self.chunks_crc = crc32c::crc32c_append(self.chunks_crc, &header.crc.to_le_bytes());
        self.chunks += 1;
        self.items += u64::from(items);
        self.bytes += (out.len() - start) as u64;
    }

    /// Appends the trailer to `out`; gives the bytes of the whole file.
    pub fn end(self, out: &mut Vec<u8>) -> u64 {
        let file_bytes = self.bytes + SNAPSHOT_TRAILER_BYTES as u64;
        let mut trailer = SnapshotTrailer {
            magic: TRAILER_MAGIC,
            crc: 0,
            chunks_crc: self.chunks_crc,
            chunks: self.chunks,
            items: self.items,
            file_bytes,
        };
        trailer.crc = trailer_crc(self.seed, &trailer);
        out.extend_from_slice(bytemuck::bytes_of(&trailer));
        file_bytes
    }
}

/// Reads a snapshot file piece by piece, each of the size that it asks for.
#[derive(Debug)]
pub struct Decoder {
    meta: SnapshotMeta,
    config: ConfigEntry,
    seed: u32,
    file_bytes: u64,
    chunks_crc: u32,
    chunks: u64,
    items: u64,
    /// Where the next piece begins.
    at: u64,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Between,
    Body(ChunkHeader),
    Ended,
}

impl Decoder {
    /// Reads the header, from the file's first block and its size.
    ///
    /// # Errors
    /// The [`Fault`]; a file of another cluster is one.
    pub fn begin(block: &[u8], file_bytes: u64, cluster_id: ClusterId) -> Result<Self, Fault> {
        if block.len() < BLOCK_BYTES || file_bytes < smallest_file_bytes() {
            return Err(damaged(file_bytes, "the file ends before a snapshot can"));
        }
        let header: SnapshotHeader = open_block(block, SNAPSHOT_MAGIC).map_err(Fault::Header)?;
        if header.cluster_id != cluster_id.0 {
            return Err(damaged(16, "the snapshot belongs to another cluster"));
        }
        if header.index >= crate::limits::MAX_INDEX {
            return Err(damaged(32, "the snapshot's index is beyond every bound"));
        }
        let meta = SnapshotMeta {
            index: LogIndex(header.index),
            term: Term(header.term),
            position: Position::from_u64(header.position),
        };
        Ok(Self {
            meta,
            config: read_config(&header).map_err(|why| damaged(56, why))?,
            seed: seed_of(cluster_id, meta.index),
            file_bytes,
            chunks_crc: 0,
            chunks: 0,
            items: 0,
            at: BLOCK_BYTES as u64,
            state: State::Between,
        })
    }

    /// What the snapshot stands for.
    #[must_use]
    pub fn meta(&self) -> SnapshotMeta {
        self.meta
    }

    /// The configuration that is in force at the snapshot's index, and where in the log that is.
    #[must_use]
    pub fn config(&self) -> ConfigEntry {
        self.config
    }

    /// How many items were read so far; of a whole snapshot at its end.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// How many bytes [`Decoder::feed`] takes next; `None` once the whole file was read.
    #[must_use]
    pub fn wants(&self) -> Option<usize> {
        match self.state {
            State::Between if self.at == self.trailer_at() => Some(SNAPSHOT_TRAILER_BYTES),
            State::Between => Some(CHUNK_HEADER_BYTES),
            State::Body(header) => Some(padded_body_bytes(header.body_bytes as usize)),
            State::Ended => None,
        }
    }

    /// Takes the next piece; gives a chunk when the piece completes one.
    ///
    /// # Errors
    /// The [`Fault`], after which nothing that was read may be used.
    ///
    /// # Panics
    /// When the piece is not as long as [`Decoder::wants`] says: the caller is wrong.
    pub fn feed<'a>(&mut self, piece: &'a [u8]) -> Result<Option<Chunk<'a>>, Fault> {
        assert_eq!(Some(piece.len()), self.wants(), "a piece of the wrong size");
        match self.state {
            State::Between if self.at == self.trailer_at() => self.trailer(piece).map(|()| None),
            State::Between => self.chunk_header(piece).map(|()| None),
            State::Body(header) => self.body(&header, piece).map(Some),
            State::Ended => unreachable!("nothing is wanted at the end"),
        }
    }

    fn chunk_header(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let Some(header) = read::<ChunkHeader>(piece) else {
            unreachable!("the piece has the header's size");
        };
        let size = padded_chunk_bytes(header.body_bytes as usize) as u64;
        if header.body_bytes as usize > MAX_SNAPSHOT_CHUNK_BYTES
            || self.at + size > self.trailer_at()
        {
            return Err(damaged(self.at, "a chunk's length is impossible"));
        }
        self.state = State::Body(header);
        Ok(())
    }

    fn body<'a>(&mut self, header: &ChunkHeader, piece: &'a [u8]) -> Result<Chunk<'a>, Fault> {
        let crc = chunk_seed(self.seed, self.chunks);
        let crc = crc32c::crc32c_append(crc, &bytemuck::bytes_of(header)[4..]);
        if crc32c::crc32c_append(crc, piece) != header.crc {
            return Err(damaged(self.at, "a chunk's checksum is wrong"));
        }
        if header.kind != ChunkKind::State as u32 {
            return Err(damaged(
                self.at,
                "a chunk is of a kind this version does not know",
            ));
        }
        self.chunks_crc = crc32c::crc32c_append(self.chunks_crc, &header.crc.to_le_bytes());
        self.chunks += 1;
        self.items += u64::from(header.items);
        self.at += (CHUNK_HEADER_BYTES + piece.len()) as u64;
        self.state = State::Between;
        Ok(Chunk {
            items: header.items,
            body: &piece[..header.body_bytes as usize],
        })
    }

    fn trailer(&mut self, piece: &[u8]) -> Result<(), Fault> {
        let Some(trailer) = read::<SnapshotTrailer>(piece) else {
            unreachable!("the piece has the trailer's size");
        };
        if trailer.magic != TRAILER_MAGIC || trailer_crc(self.seed, &trailer) != trailer.crc {
            return Err(damaged(self.at, "the file does not end in a whole trailer"));
        }
        let counts = (trailer.chunks, trailer.items, trailer.file_bytes);
        if counts != (self.chunks, self.items, self.file_bytes)
            || trailer.chunks_crc != self.chunks_crc
        {
            return Err(damaged(self.at, "the trailer speaks of other chunks"));
        }
        self.at = self.file_bytes;
        self.state = State::Ended;
        Ok(())
    }

    fn trailer_at(&self) -> u64 {
        self.file_bytes - SNAPSHOT_TRAILER_BYTES as u64
    }
}

fn read_config(header: &SnapshotHeader) -> Result<ConfigEntry, &'static str> {
    if header.config_index > header.index {
        return Err("the snapshot's configuration is behind its last index");
    }
    let size = header.config_bytes as usize;
    let Some((members, rest)) = header.config.split_at_checked(size) else {
        return Err("the length of the snapshot's configuration is impossible");
    };
    if header.reserved != 0 || rest.iter().any(|byte| *byte != 0) {
        return Err("what is behind the snapshot's configuration is not zero");
    }
    let config = Config::decode_members(members)
        .map_err(|_| "the snapshot's configuration is not one of members")?;
    let index = LogIndex(header.config_index);
    Ok(ConfigEntry { index, config })
}

/// The bytes that a chunk takes with a body of that many.
#[must_use]
pub const fn padded_chunk_bytes(body_bytes: usize) -> usize {
    CHUNK_HEADER_BYTES + padded_body_bytes(body_bytes)
}

const fn padded_body_bytes(body_bytes: usize) -> usize {
    body_bytes.next_multiple_of(CHUNK_ALIGN)
}

const fn smallest_file_bytes() -> u64 {
    (BLOCK_BYTES + SNAPSHOT_TRAILER_BYTES) as u64
}

fn damaged(offset: u64, why: &'static str) -> Fault {
    Fault::Damaged { offset, why }
}

fn seed_of(cluster_id: ClusterId, index: LogIndex) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&cluster_id.0), &index.0.to_le_bytes())
}

fn chunk_seed(seed: u32, number: u64) -> u32 {
    crc32c::crc32c_append(seed, &number.to_le_bytes())
}

fn trailer_crc(seed: u32, trailer: &SnapshotTrailer) -> u32 {
    let bytes = bytemuck::bytes_of(trailer);
    let crc = crc32c::crc32c_append(seed, &bytes[..8]);
    crc32c::crc32c_append(crc, &bytes[12..])
}

const _: () = {
    assert!(size_of::<SnapshotHeader>() == 328 && size_of::<SnapshotHeader>() <= BLOCK_BYTES);
    assert!(CHUNK_HEADER_BYTES == 16 && SNAPSHOT_TRAILER_BYTES == 40);
    assert!(CHUNK_HEADER_BYTES.is_multiple_of(CHUNK_ALIGN));
};
