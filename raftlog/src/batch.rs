//! One batch: what goes into it, and building its bytes. Pure.

use crate::format::{
    BATCH_HEADER_BYTES, BATCH_MAGIC, BatchHeader, RecordHeader, RecordKind, TRAILER_BYTES,
    batch_crc, padded_batch_bytes, padded_record_bytes, trailer,
};
use crate::limits::{MAX_BATCH_BYTES, MAX_PAYLOAD_BYTES, MAX_RECORDS_PER_BATCH};
use crate::parse::RecordRef;
use crate::raft::Config;
use crate::types::{LogIndex, Position, Term};

/// What an appended entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A new leader's first entry; its payload is empty.
    Noop,
    /// A command of the state machine.
    Command,
    /// A configuration of the cluster, as [`Config::encode`] writes it.
    Config,
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

    /// What a record does to the log; `None` for entries.
    pub(crate) fn from_record(record: &RecordRef<'_>) -> Option<Self> {
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
            RecordKind::Noop | RecordKind::Command | RecordKind::Config => None,
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
    configs: u32,
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
            configs: 0,
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
    /// When the payload is longer than [`MAX_PAYLOAD_BYTES`], a no-op has one, a configuration's is
    /// that of no members, or the term is below that of the entry before: the caller is wrong.
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
            EntryKind::Config => RecordKind::Config,
        };
        match kind {
            RecordKind::Noop => assert!(payload.is_empty(), "a no-op has no payload"),
            RecordKind::Config => assert!(
                Config::decode_members(payload).is_ok(),
                "a configuration has members"
            ),
            _ => {}
        }
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
        self.configs += u32::from(kind == RecordKind::Config);
        self.last_term = term;
        self.next_index = index.next();
        Ok(index)
    }

    /// Whether `entries` more, each of up to `payload_bytes`, can be pushed.
    #[must_use]
    pub fn has_room_for(&self, entries: u32, payload_bytes: usize) -> bool {
        let more = entries as usize * padded_record_bytes(payload_bytes);
        let end = self.bytes.len() + more;
        self.records + entries <= MAX_RECORDS_PER_BATCH
            && padded_batch_bytes(end - BATCH_HEADER_BYTES) <= self.limit_bytes
    }

    /// The bytes of its header and records so far.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Its records so far, as they will lie in the log.
    #[must_use]
    pub fn record_bytes(&self) -> &[u8] {
        &self.bytes[BATCH_HEADER_BYTES..]
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
            configs: self.configs,
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
    /// How many of them are configurations.
    pub configs: u32,
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

fn record_header(kind: RecordKind, term: Term, index: LogIndex, payload: u32) -> RecordHeader {
    RecordHeader {
        payload_bytes: payload,
        kind: kind as u8,
        reserved: [0; 3],
        term: term.0,
        index: index.0,
    }
}
