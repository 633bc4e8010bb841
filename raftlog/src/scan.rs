//! Recovery's verdict: which part of the log counts, from the bytes of its segments. Pure.
//!
//! Segments are handed in one after another, oldest first, so that a log of any size can be
//! judged in the memory of one segment.

use crate::batch::{BatchSummary, Control};
use crate::format::crc_seed;
use crate::index::BatchIndex;
use crate::limits::{BLOCK_BYTES, SEGMENT_HEADER_BYTES};
use crate::parse::{BatchRef, Block, inspect, trailer_of};
use crate::raft::ConfigEntry;
use crate::snapshot::SnapshotMeta;
use crate::types::{ClusterId, Position, UseNumber};

/// A segment's bytes, header block included.
#[derive(Debug, Clone, Copy)]
pub struct SegmentBytes<'a> {
    /// Which use.
    pub use_number: UseNumber,
    /// The use whose bytes may lie behind this one's; 0 when the file was zero-filled.
    pub prior_use: UseNumber,
    /// The whole file.
    pub bytes: &'a [u8],
}

/// How far the batches of one segment count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// Which segment.
    pub use_number: UseNumber,
    /// The offset behind its last batch that counts.
    pub end: u32,
}

/// What recovery makes of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All that was written is whole.
    Clean,
    /// What lies behind the last batch that counts was never acknowledged: it is trimmed.
    TornTail {
        /// Where the first remains of it lie.
        at: Position,
        /// What they are.
        why: &'static str,
    },
    /// Something that was acknowledged is damaged.
    Corrupt {
        /// Where.
        at: Position,
        /// What is wrong there.
        why: &'static str,
    },
}

/// Reads segments in order and keeps what the verdict needs.
#[derive(Debug)]
pub struct Scan {
    cluster_id: ClusterId,
    // What a snapshot proves to have been in the log.
    covered: Option<SnapshotMeta>,
    index: BatchIndex,
    configs: Vec<ConfigEntry>,
    kept: Vec<Kept>,
    end: Position,
    last_crc: Option<u32>,
    mark: Position,
    clean_stop: bool,
    damage: Option<Damage>,
    broken: Option<(Position, &'static str)>,
    batches: u64,
    #[cfg(feature = "bugs")]
    takes_any_use: bool,
}

/// What lies behind the last batch that counts.
#[derive(Debug, Clone, Copy)]
struct Damage {
    at: Position,
    why: &'static str,
    /// One write of one batch, cut off by the end of its process, cannot have left this.
    beyond_one_batch: Option<&'static str>,
}

impl Scan {
    /// Nothing read yet.
    #[must_use]
    pub fn new(cluster_id: ClusterId) -> Self {
        Self {
            cluster_id,
            covered: None,
            index: BatchIndex::default(),
            configs: Vec::new(),
            kept: Vec::new(),
            end: Position::ZERO,
            last_crc: None,
            mark: Position::ZERO,
            clean_stop: false,
            damage: None,
            broken: None,
            batches: 0,
            #[cfg(feature = "bugs")]
            takes_any_use: false,
        }
    }

    /// Tells it to make the mistake of not looking at the use number of batches.
    #[cfg(feature = "bugs")]
    pub fn takes_any_use(&mut self, takes: bool) {
        self.takes_any_use = takes;
    }

    /// Nothing read yet, of a log whose first segments may be gone: `snapshot` is synced.
    #[must_use]
    pub fn behind(cluster_id: ClusterId, snapshot: SnapshotMeta) -> Self {
        Self {
            covered: Some(snapshot),
            index: BatchIndex::behind(snapshot.index, snapshot.term),
            mark: snapshot.position,
            ..Self::new(cluster_id)
        }
    }

    /// Reads the next segment. `visit` sees each batch that continues the log.
    ///
    /// # Panics
    /// When segments are not handed in by ascending use number, or are no whole blocks.
    pub fn segment(&mut self, segment: &SegmentBytes<'_>, mut visit: impl FnMut(&BatchRef<'_>)) {
        assert!(
            self.kept
                .last()
                .is_none_or(|kept| kept.use_number < segment.use_number)
        );
        assert!(segment.bytes.len().is_multiple_of(BLOCK_BYTES));
        let seed = crc_seed(self.cluster_id, segment.use_number);
        let mut at = SEGMENT_HEADER_BYTES;
        while self.damage.is_none() && self.broken.is_none() && at < segment.bytes.len() {
            let position = Position::new(segment.use_number, at as u32);
            let Block::Batch(batch) = self.inspect(&segment.bytes[at..], position, seed) else {
                break;
            };
            if self
                .last_crc
                .is_some_and(|crc| crc != batch.header().previous_crc)
            {
                break;
            }
            if !self.take(&batch) {
                return;
            }
            visit(&batch);
            at += batch.padded_bytes() as usize;
        }
        self.look_behind(segment, at, seed);
    }

    /// The verdict on everything read.
    ///
    /// `same_boot`: the kernel's boot id is the one recorded when the log was last known good, so
    /// only the process may have died, and the page cache still has all that it wrote.
    #[must_use]
    pub fn verdict(&self, same_boot: bool) -> Verdict {
        self.judge(same_boot, self.short_of_the_snapshot())
    }

    /// Whether the log is sound, and ends before a snapshot that came from another node: a crash came between
    /// installing it and dropping the log. Such a snapshot's header has no position of this log.
    #[must_use]
    pub fn was_overtaken(&self, same_boot: bool) -> bool {
        let overtaken = self.covered.is_some_and(|covered| {
            covered.position == Position::ZERO && self.index.next_index() <= covered.index
        });
        overtaken && !matches!(self.judge(same_boot, None), Verdict::Corrupt { .. })
    }

    fn judge(&self, same_boot: bool, short_of_the_snapshot: Option<Verdict>) -> Verdict {
        if let Some((at, why)) = self.broken {
            return Verdict::Corrupt { at, why };
        }
        let Some(damage) = self.damage else {
            if self.batches == 0 {
                return Verdict::Corrupt {
                    at: self.end,
                    why: "the log's first batch is missing",
                };
            }
            return short_of_the_snapshot.unwrap_or(Verdict::Clean);
        };
        let at = damage.at;
        if self.batches == 0 {
            return Verdict::Corrupt {
                at,
                why: "the log's first batch is damaged",
            };
        }
        if self.end < self.mark {
            return Verdict::Corrupt {
                at,
                why: "damage below a position that was synced",
            };
        }
        match damage.beyond_one_batch {
            Some(why) if same_boot => Verdict::Corrupt { at, why },
            _ => short_of_the_snapshot.unwrap_or(Verdict::TornTail {
                at,
                why: damage.why,
            }),
        }
    }

    /// The verdict on a log that ends before what a snapshot was made of.
    fn short_of_the_snapshot(&self) -> Option<Verdict> {
        let covered = self.covered?;
        (self.end < covered.position || self.index.next_index() <= covered.index).then_some(
            Verdict::Corrupt {
                at: self.end,
                why: "the log ends before what its snapshot was made of",
            },
        )
    }

    /// The entries that count.
    #[must_use]
    pub fn index(&self) -> &BatchIndex {
        &self.index
    }

    /// The configurations among the entries that count, in their order.
    #[must_use]
    pub fn configs(&self) -> &[ConfigEntry] {
        &self.configs
    }

    /// The entries that count, for keeping.
    #[must_use]
    pub fn into_index(self) -> BatchIndex {
        self.index
    }

    /// Per segment with batches that count, how far they reach.
    #[must_use]
    pub fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// The position behind the last batch that counts.
    #[must_use]
    pub fn end(&self) -> Position {
        self.end
    }

    /// The checksum of the last batch that counts; 0 when there is none.
    #[must_use]
    pub fn last_crc(&self) -> u32 {
        self.last_crc.unwrap_or(0)
    }

    /// The largest synced position that any valid batch carries.
    #[must_use]
    pub fn mark(&self) -> Position {
        self.mark
    }

    /// How many batches count.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Whether the last batch that counts is the mark of a clean stop.
    #[must_use]
    pub fn ends_in_clean_stop(&self) -> bool {
        self.clean_stop
    }

    /// Takes in a batch that continues the chain; `false` when its content cannot be right.
    fn take(&mut self, batch: &BatchRef<'_>) -> bool {
        let applied = batch
            .summarize(self.index.least_next_term())
            .and_then(|summary| self.index.apply(&summary).map(|()| summary));
        match applied {
            Ok(summary) => {
                self.take_configs(&summary, batch);
                self.end = summary.end();
                self.last_crc = Some(summary.crc);
                self.mark = self.mark.max(batch.synced());
                self.clean_stop = batch.is_clean_stop();
                self.batches += 1;
                let kept = Kept {
                    use_number: self.end.use_number(),
                    end: self.end.offset(),
                };
                match self.kept.last_mut() {
                    Some(last) if last.use_number == kept.use_number => *last = kept,
                    _ => self.kept.push(kept),
                }
                true
            }
            // Its checksum is right, so this was written as it stands: no crash explains it.
            Err(why) => {
                self.broken = Some((batch.position(), why));
                false
            }
        }
    }

    fn take_configs(&mut self, summary: &BatchSummary, batch: &BatchRef<'_>) {
        match summary.control {
            Some(Control::Reset { .. }) => self.configs.clear(),
            Some(Control::Truncate { from, .. }) => {
                self.configs.retain(|entry| entry.index < from);
            }
            Some(Control::Gap { .. }) | None => {}
        }
        if summary.configs > 0 {
            self.configs.extend(batch.configs());
        }
    }

    /// Looks for remains of batches in the part of a segment that does not count.
    fn look_behind(&mut self, segment: &SegmentBytes<'_>, from: usize, seed: u32) {
        let zero_filled = segment.prior_use == UseNumber(0);
        let earlier_damage = self.damage.is_some();
        // The bytes that the one cut-off batch at `from` may have reached.
        let mut reach = from + BLOCK_BYTES;
        let mut at = from;
        while at < segment.bytes.len() {
            let block = &segment.bytes[at..at + BLOCK_BYTES];
            if is_zero(block) {
                at += BLOCK_BYTES;
                continue;
            }
            let position = Position::new(segment.use_number, at as u32);
            match self.inspect(&segment.bytes[at..], position, seed) {
                Block::Batch(batch) => {
                    self.mark = self.mark.max(batch.synced());
                    self.found(
                        position,
                        "a whole batch that does not follow on the last one",
                    );
                    self.beyond("whole batches lie behind the last one that counts");
                    at += batch.padded_bytes() as usize;
                    continue;
                }
                Block::Started(size) => {
                    self.found(position, "a batch that is not whole");
                    if at != from || earlier_damage {
                        self.beyond("more than one batch is damaged");
                    }
                    match size {
                        None => self.beyond("a batch's length is impossible"),
                        // A write that was cut off leaves the last byte as it was: zero.
                        Some(size) if zero_filled && segment.bytes[at + size - 1] != 0 => {
                            self.beyond(WHOLE_BUT_DAMAGED);
                        }
                        Some(size) if at == from => reach = from + size,
                        Some(_) => {}
                    }
                }
                Block::Other if zero_filled => {
                    self.found(position, "bytes of no whole batch");
                    if at >= reach || earlier_damage {
                        self.beyond("bytes behind the log belong to no batch");
                    }
                }
                // Left from an earlier use of the file.
                Block::Other => {}
            }
            let began = trailer_of(block);
            let began_at = began.offset() as usize;
            if began.use_number() == segment.use_number
                && began_at.is_multiple_of(BLOCK_BYTES)
                && (from..=at).contains(&began_at)
            {
                self.found(position, "the end of a batch that is not whole");
                self.beyond(WHOLE_BUT_DAMAGED);
            }
            at += BLOCK_BYTES;
        }
    }

    #[cfg(not(feature = "bugs"))]
    #[allow(clippy::unused_self, reason = "the mistake is in the scan")]
    fn inspect<'a>(&self, bytes: &'a [u8], position: Position, seed: u32) -> Block<'a> {
        inspect(bytes, position, seed)
    }

    #[cfg(feature = "bugs")]
    fn inspect<'a>(&self, bytes: &'a [u8], position: Position, seed: u32) -> Block<'a> {
        let found = inspect(bytes, position, seed);
        let claimed = crate::parse::claimed_position(bytes);
        if self.takes_any_use && claimed.offset() == position.offset() {
            let seed = crc_seed(self.cluster_id, claimed.use_number());
            return inspect(bytes, claimed, seed);
        }
        found
    }

    fn found(&mut self, at: Position, why: &'static str) {
        if self.damage.is_none() {
            self.damage = Some(Damage {
                at,
                why,
                beyond_one_batch: None,
            });
        }
    }

    fn beyond(&mut self, why: &'static str) {
        if let Some(damage) = &mut self.damage {
            damage.beyond_one_batch.get_or_insert(why);
        }
    }
}

const WHOLE_BUT_DAMAGED: &str = "a batch that was written whole is damaged";

fn is_zero(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}
