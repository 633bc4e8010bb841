//! Reading and judging batches and records where they lie. Pure.

use crate::batch::{BatchSummary, Control};
use crate::format::{
    BATCH_HEADER_BYTES, BATCH_MAGIC, BatchHeader, FLAG_CLEAN_STOP, FLAG_MARK, RECORD_HEADER_BYTES,
    RecordHeader, RecordKind, TRAILER_BYTES, batch_crc, padded_batch_bytes, padded_record_bytes,
    read, trailer,
};
use crate::limits::{BLOCK_BYTES, MAX_BATCH_BYTES, MAX_INDEX, MAX_RECORDS_PER_BATCH};
use crate::raft::{Config, ConfigEntry};
use crate::types::{LogIndex, Position, Term};

/// A record, read where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// What it is.
    pub kind: RecordKind,
    /// See [`RecordKind`].
    pub term: Term,
    /// See [`RecordKind`].
    pub index: LogIndex,
    /// The entry's payload; empty for all but commands and configurations.
    pub payload: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// Reads the record at the start of `bytes`; gives it and its padded size.
    ///
    /// `None` when it does not fit, or is of a kind this version does not know.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<(Self, usize)> {
        let header: RecordHeader = read(bytes)?;
        let size = padded_record_bytes(header.payload_bytes as usize);
        let body = bytes.get(RECORD_HEADER_BYTES..size)?;
        let record = Self {
            kind: RecordKind::from_u8(header.kind)?,
            term: Term(header.term),
            index: LogIndex(header.index),
            payload: &body[..header.payload_bytes as usize],
        };
        Some((record, size))
    }

    /// Appends the record as it lies in a log, padding included.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let header = RecordHeader {
            // It was read from such a field, or its bound is far below 2^32.
            payload_bytes: self.payload.len() as u32,
            kind: self.kind as u8,
            reserved: [0; 3],
            term: self.term.0,
            index: self.index.0,
        };
        let end = out.len() + padded_record_bytes(self.payload.len());
        out.extend_from_slice(bytemuck::bytes_of(&header));
        out.extend_from_slice(self.payload);
        out.resize(end, 0);
    }

    /// The configuration that it is, if it is one.
    #[must_use]
    pub fn config(&self) -> Option<ConfigEntry> {
        if self.kind != RecordKind::Config {
            return None;
        }
        let config = Config::decode_members(self.payload).ok()?;
        let index = self.index;
        Some(ConfigEntry { index, config })
    }
}

/// A whole batch, read where it lies.
#[derive(Debug, Clone, Copy)]
pub struct BatchRef<'a> {
    header: BatchHeader,
    bytes: &'a [u8],
}

impl<'a> BatchRef<'a> {
    /// Takes the batch at the start of `bytes`, trusting its checksum; `None` without a header.
    pub(crate) fn trusted(bytes: &'a [u8]) -> Option<Self> {
        let header: BatchHeader = read(bytes)?;
        let bytes = bytes.get(..padded_batch_bytes(header.body_bytes as usize))?;
        (header.magic == BATCH_MAGIC).then_some(Self { header, bytes })
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// Where it starts.
    #[must_use]
    pub fn position(&self) -> Position {
        Position::from_u64(self.header.position)
    }

    /// What was known synced when it was written.
    #[must_use]
    pub fn synced(&self) -> Position {
        Position::from_u64(self.header.synced)
    }

    /// Its size on disk.
    #[must_use]
    pub fn padded_bytes(&self) -> u32 {
        // Bounded by a segment's size.
        self.bytes.len() as u32
    }

    /// Whether the writer stopped in good order behind it.
    #[must_use]
    pub fn is_clean_stop(&self) -> bool {
        self.header.flags & FLAG_CLEAN_STOP != 0
    }

    /// Its records, each with its offset in the segment's file.
    #[must_use]
    pub fn records(&self) -> Records<'a> {
        let body = BATCH_HEADER_BYTES..BATCH_HEADER_BYTES + self.header.body_bytes as usize;
        Records {
            rest: &self.bytes[body],
            offset: self.position().offset() + BATCH_HEADER_BYTES as u32,
        }
    }

    /// The configurations in it.
    pub(crate) fn configs(&self) -> impl Iterator<Item = ConfigEntry> + use<'a> {
        self.records().filter_map(|(_, record)| record.config())
    }

    /// Checks everything about it that the checksum does not, and sums it up.
    ///
    /// `last_term` is the term of the entry before. The text says what is wrong.
    pub(crate) fn summarize(&self, last_term: Term) -> Result<BatchSummary, &'static str> {
        let header = &self.header;
        if header.flags & !(FLAG_MARK | FLAG_CLEAN_STOP) != 0 || header.reserved != 0 {
            return Err("a batch uses bits that this version does not know");
        }
        if (header.records == 0) != (header.flags & FLAG_MARK != 0) {
            return Err("a batch is a mark exactly when it has no records");
        }
        if header.first_index > MAX_INDEX - u64::from(MAX_RECORDS_PER_BATCH) {
            return Err("a batch's first index is beyond every bound");
        }
        let mut summary = BatchSummary {
            position: self.position(),
            bytes: self.padded_bytes(),
            crc: header.crc,
            control: None,
            first_index: LogIndex(header.first_index),
            entries: 0,
            configs: 0,
            first_term: last_term,
            last_term,
        };
        let (mut rest, mut records) = (self.records().rest, 0);
        while !rest.is_empty() {
            let Some((record, size)) = RecordRef::read(rest) else {
                return Err("a record is cut off, or of a kind this version does not know");
            };
            add_record(&mut summary, &record, records)?;
            records += 1;
            rest = &rest[size..];
        }
        if records != header.records || summary.entries != header.entries {
            return Err("a batch's counts are not those of its records");
        }
        Ok(summary)
    }
}

fn add_record(
    summary: &mut BatchSummary,
    record: &RecordRef<'_>,
    place: u32,
) -> Result<(), &'static str> {
    if let Some(control) = Control::from_record(record) {
        if place != 0 || !record.payload.is_empty() {
            return Err("a control record stands behind others or has a payload");
        }
        if record.index.0 >= MAX_INDEX || control.next_index() != summary.first_index {
            return Err("a control record and its batch disagree on the next index");
        }
        summary.control = Some(control);
        summary.first_term = control.last_term();
        summary.last_term = control.last_term();
        return Ok(());
    }
    if record.index.0 >= MAX_INDEX || record.index != summary.next_index() {
        return Err("an entry's index does not follow on the one before");
    }
    if record.term < summary.last_term {
        return Err("an entry's term is below the one before");
    }
    if record.kind == RecordKind::Config {
        if Config::decode_members(record.payload).is_err() {
            return Err("a configuration's bytes are not those of one");
        }
        summary.configs += 1;
    }
    if summary.entries == 0 {
        summary.first_term = record.term;
    }
    summary.last_term = record.term;
    summary.entries += 1;
    Ok(())
}

/// Iterator over a batch's records and their offsets in the segment's file.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: u32,
}

impl<'a> Iterator for Records<'a> {
    type Item = (u32, RecordRef<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        // A batch is checked record by record before it is iterated, so this ends at the body's end.
        let (record, size) = RecordRef::read(self.rest)?;
        let offset = self.offset;
        self.rest = &self.rest[size..];
        self.offset += size as u32;
        Some((offset, record))
    }
}

/// What a block is when judged alone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Block<'a> {
    /// A whole batch of this use starts here.
    Batch(BatchRef<'a>),
    /// A batch of this use was begun here, and is not whole. Its claimed size, if that is possible.
    Started(Option<usize>),
    /// Nothing of this use starts here.
    Other,
}

/// Judges the block at the start of `bytes` (which reach to the segment's end), continuity apart.
pub(crate) fn inspect(bytes: &[u8], position: Position, seed: u32) -> Block<'_> {
    let Some(header) = read::<BatchHeader>(bytes) else {
        return Block::Other;
    };
    if header.magic != BATCH_MAGIC || header.position != position.as_u64() {
        return Block::Other;
    }
    let size = padded_batch_bytes(header.body_bytes as usize);
    if size > MAX_BATCH_BYTES || size > bytes.len() {
        return Block::Started(None);
    }
    let whole = &bytes[..size];
    let trailer_is_right = read::<u64>(&whole[size - TRAILER_BYTES..]) == Some(trailer(position));
    if batch_crc(seed, whole) != header.crc || !trailer_is_right || header.synced > header.position
    {
        return Block::Started(Some(size));
    }
    Block::Batch(BatchRef {
        header,
        bytes: whole,
    })
}

/// Where the batch that may start here says that it stands.
#[cfg(feature = "bugs")]
pub(crate) fn claimed_position(bytes: &[u8]) -> Position {
    let header = read::<BatchHeader>(bytes);
    Position::from_u64(header.map_or(0, |header| header.position))
}

/// Where a batch of that use began whose last block is the one that ends with `block`'s bytes.
pub(crate) fn trailer_of(block: &[u8]) -> Position {
    debug_assert_eq!(block.len(), BLOCK_BYTES);
    let raw = read::<u64>(&block[BLOCK_BYTES - TRAILER_BYTES..]).unwrap_or(0);
    Position::from_u64(!raw)
}
