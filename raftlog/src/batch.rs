//! One batch: building its bytes, and reading and judging them. Pure.

use crate::format::{
    BATCH_HEADER_BYTES, BATCH_MAGIC, BatchHeader, FLAG_CLEAN_STOP, FLAG_MARK, RECORD_HEADER_BYTES,
    RecordHeader, RecordKind, TRAILER_BYTES, batch_crc, padded_batch_bytes, padded_record_bytes,
    read, trailer,
};
use crate::limits::{
    BLOCK_BYTES, MAX_BATCH_BYTES, MAX_INDEX, MAX_PAYLOAD_BYTES, MAX_RECORDS_PER_BATCH,
};
use crate::types::{LogIndex, Position, Term};

/// What an appended entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A new leader's first entry; its payload is empty.
    Noop,
    /// A command of the state machine.
    Command,
}

/// A change of the log's shape, written as the first record of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Drops the entries from `from` on.
    Truncate {
        /// The first index to drop, and the next to be written.
        from: LogIndex,
        /// The term of the entry before `from`.
        previous_term: Term,
    },
    /// Drops everything; the log goes on behind `index`.
    Reset {
        /// The last index that a snapshot (or nothing at all, in a new log) covers.
        index: LogIndex,
        /// The term of the entry at that index.
        term: Term,
    },
    /// Skips indexes without entries.
    Gap {
        /// The next index to be written.
        next: LogIndex,
        /// The term of the last entry before the gap.
        last_term: Term,
    },
}

impl Control {
    /// The next index once this has been carried out.
    #[must_use]
    pub fn next_index(self) -> LogIndex {
        match self {
            Self::Truncate { from, .. } => from,
            Self::Reset { index, .. } => index.next(),
            Self::Gap { next, .. } => next,
        }
    }

    /// The term of the last entry once this has been carried out.
    #[must_use]
    pub fn last_term(self) -> Term {
        match self {
            Self::Truncate {
                previous_term: term,
                ..
            }
            | Self::Reset { term, .. }
            | Self::Gap {
                last_term: term, ..
            } => term,
        }
    }

    fn header(self) -> RecordHeader {
        let (kind, index) = match self {
            Self::Truncate { from, .. } => (RecordKind::Truncate, from),
            Self::Reset { index, .. } => (RecordKind::Reset, index),
            Self::Gap { next, .. } => (RecordKind::Gap, next),
        };
        record_header(kind, self.last_term(), index, 0)
    }

    fn from_record(record: &RecordRef<'_>) -> Option<Self> {
        let (index, term) = (record.index, record.term);
        match record.kind {
            RecordKind::Truncate => Some(Self::Truncate {
                from: index,
                previous_term: term,
            }),
            RecordKind::Reset => Some(Self::Reset { index, term }),
            RecordKind::Gap => Some(Self::Gap {
                next: index,
                last_term: term,
            }),
            RecordKind::Noop | RecordKind::Command => None,
        }
    }
}

/// The batch has reached one of its bounds; the record was not added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A batch being gathered. [`crate::Log::begin`] makes one, [`crate::Log::finish`] takes it back.
#[derive(Debug)]
pub struct BatchBuilder {
    bytes: Vec<u8>,
    control: Option<Control>,
    start_index: LogIndex,
    first_index: LogIndex,
    next_index: LogIndex,
    first_term: Term,
    last_term: Term,
    records: u32,
    entries: u32,
    limit_bytes: usize,
}

impl BatchBuilder {
    /// Starts in `bytes`, whose room is reused; `limit_bytes` bounds the padded size.
    pub(crate) fn new(
        mut bytes: Vec<u8>,
        next_index: LogIndex,
        last_term: Term,
        control: Option<Control>,
        limit_bytes: usize,
    ) -> Self {
        bytes.clear();
        bytes.resize(BATCH_HEADER_BYTES, 0);
        let mut batch = Self {
            bytes,
            control,
            start_index: next_index,
            first_index: next_index,
            next_index,
            first_term: last_term,
            last_term,
            records: 0,
            entries: 0,
            limit_bytes: limit_bytes.min(MAX_BATCH_BYTES),
        };
        if let Some(control) = control {
            batch
                .bytes
                .extend_from_slice(bytemuck::bytes_of(&control.header()));
            batch.records = 1;
            batch.first_index = control.next_index();
            batch.next_index = batch.first_index;
            batch.first_term = control.last_term();
            batch.last_term = control.last_term();
        }
        batch
    }

    /// Adds an entry and returns the index it takes, or [`Full`] and changes nothing.
    ///
    /// # Panics
    /// When the payload is longer than [`MAX_PAYLOAD_BYTES`], a no-op has one, or the term is
    /// below that of the entry before: the caller is wrong.
    pub fn push(&mut self, kind: EntryKind, term: Term, payload: &[u8]) -> Result<LogIndex, Full> {
        assert!(
            payload.len() <= MAX_PAYLOAD_BYTES,
            "payload of {} bytes",
            payload.len()
        );
        assert!(
            term >= self.last_term,
            "term {term} behind term {}",
            self.last_term
        );
        let kind = match kind {
            EntryKind::Noop => RecordKind::Noop,
            EntryKind::Command => RecordKind::Command,
        };
        assert!(
            kind == RecordKind::Command || payload.is_empty(),
            "a no-op has no payload"
        );
        let end = self.bytes.len() + padded_record_bytes(payload.len());
        if self.records == MAX_RECORDS_PER_BATCH
            || padded_batch_bytes(end - BATCH_HEADER_BYTES) > self.limit_bytes
        {
            return Err(Full);
        }
        let index = self.next_index;
        // The length fits: it was checked against a bound far below 2^32.
        let header = record_header(kind, term, index, payload.len() as u32);
        self.bytes.extend_from_slice(bytemuck::bytes_of(&header));
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(end, 0);
        if self.entries == 0 {
            self.first_term = term;
        }
        self.records += 1;
        self.entries += 1;
        self.last_term = term;
        self.next_index = index.next();
        Ok(index)
    }

    /// How many entries it holds.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether there is nothing in it to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The index that the first entry takes.
    #[must_use]
    pub fn first_index(&self) -> LogIndex {
        self.first_index
    }

    /// The index that the next entry pushed takes.
    #[must_use]
    pub fn next_index(&self) -> LogIndex {
        self.next_index
    }

    /// Gives the buffer back without writing anything.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.bytes
    }

    /// The bytes it takes on disk.
    pub(crate) fn padded_bytes(&self) -> usize {
        padded_batch_bytes(self.bytes.len() - BATCH_HEADER_BYTES)
    }

    /// The log's next index before this batch.
    pub(crate) fn start_index(&self) -> LogIndex {
        self.start_index
    }

    /// Pads, fills the header in and seals the batch for its place in the log.
    pub(crate) fn seal(mut self, place: Place) -> (Vec<u8>, BatchSummary) {
        let body_bytes = self.bytes.len() - BATCH_HEADER_BYTES;
        let total = padded_batch_bytes(body_bytes);
        self.bytes.resize(total, 0);
        self.bytes[total - TRAILER_BYTES..].copy_from_slice(&trailer(place.position).to_le_bytes());
        let mut header = BatchHeader {
            magic: BATCH_MAGIC,
            crc: 0,
            previous_crc: place.previous_crc,
            position: place.position.as_u64(),
            synced: place.synced.as_u64(),
            first_index: self.first_index.0,
            // Bounded by MAX_BATCH_BYTES.
            body_bytes: body_bytes as u32,
            records: self.records,
            entries: self.entries,
            flags: place.flags,
            reserved: 0,
        };
        self.bytes[..BATCH_HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&header));
        header.crc = batch_crc(place.seed, &self.bytes);
        self.bytes[8..12].copy_from_slice(&header.crc.to_le_bytes());
        let summary = BatchSummary {
            position: place.position,
            bytes: total as u32,
            crc: header.crc,
            control: self.control,
            first_index: self.first_index,
            entries: self.entries,
            first_term: self.first_term,
            last_term: self.last_term,
        };
        (self.bytes, summary)
    }
}

/// Where and behind what a batch is sealed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub position: Position,
    pub previous_crc: u32,
    pub synced: Position,
    pub seed: u32,
    pub flags: u32,
}

/// What the index of batches needs to know of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSummary {
    /// Where it starts.
    pub position: Position,
    /// Its size on disk.
    pub bytes: u32,
    /// Its checksum, which the next batch repeats.
    pub crc: u32,
    /// What it does to the log before its entries.
    pub control: Option<Control>,
    /// The index of its first entry, or of the next to come.
    pub first_index: LogIndex,
    /// How many entries it holds.
    pub entries: u32,
    /// The term of its first entry, or of the last before it.
    pub first_term: Term,
    /// The term of its last entry, or of the last before it.
    pub last_term: Term,
}

impl BatchSummary {
    /// The position behind it.
    #[must_use]
    pub fn end(&self) -> Position {
        Position::new(
            self.position.use_number(),
            self.position.offset() + self.bytes,
        )
    }

    /// The index after its last entry.
    #[must_use]
    pub fn next_index(&self) -> LogIndex {
        self.first_index.plus(u64::from(self.entries))
    }
}

/// A record, read where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef<'a> {
    /// What it is.
    pub kind: RecordKind,
    /// See [`RecordKind`].
    pub term: Term,
    /// See [`RecordKind`].
    pub index: LogIndex,
    /// The entry's payload; empty for all but commands.
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

/// Where a batch of that use began whose last block is the one that ends with `block`'s bytes.
pub(crate) fn trailer_of(block: &[u8]) -> Position {
    debug_assert_eq!(block.len(), BLOCK_BYTES);
    let raw = read::<u64>(&block[BLOCK_BYTES - TRAILER_BYTES..]).unwrap_or(0);
    Position::from_u64(!raw)
}

fn record_header(kind: RecordKind, term: Term, index: LogIndex, payload: u32) -> RecordHeader {
    RecordHeader {
        payload_bytes: payload,
        kind: kind as u8,
        reserved: [0; 3],
        term: term.0,
        index: index.0,
    }
}
