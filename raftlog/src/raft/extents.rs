//! The shape of a log: which index has which term, and how many bytes are where.

use std::collections::VecDeque;

use super::message::EntryId;
use super::start::{Extent, ExtentKind, StartError};
use crate::limits::{MAX_APPEND_BYTES, MAX_INDEX};
use crate::types::{LogIndex, Term};

/// Appends of commands become one extent up to this many entries...
const MERGE_ENTRIES: u64 = 4 << 10;
/// ...and this many bytes.
const MERGE_BYTES: u64 = 64 << 10;
/// Most lookups are near the log's end: so many extents are looked at before searching.
const NEAR_END: usize = 4;

/// The live log as runs of one term and kind.
#[derive(Debug)]
pub(super) struct Extents {
    base: EntryId,
    list: VecDeque<Held>,
    /// Bytes of everything that was ever before the list's first.
    base_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    last: LogIndex,
    term: Term,
    kind: ExtentKind,
    /// The bytes up to this extent's end, counted from some fixed place on.
    end_bytes: u64,
}

/// A [`super::message::Run`] before its configuration is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) term: Term,
    pub(super) count: u32,
    pub(super) bytes: u64,
    pub(super) kind: ExtentKind,
}

impl Extents {
    pub(super) fn new(base: EntryId, extents: &[Extent]) -> Result<Self, StartError> {
        let mut this = Self {
            base,
            list: VecDeque::with_capacity(extents.len().max(64)),
            base_bytes: 0,
        };
        for extent in extents {
            let before = this.last();
            let index = extent.last_index;
            if index <= before.index
                || index.0 > MAX_INDEX
                || extent.term < before.term
                || extent.bytes > MAX_APPEND_BYTES
                || (extent.kind == ExtentKind::Config && index != before.index.next())
            {
                return Err(StartError::LogOutOfOrder(index));
            }
            let count = index.0 - before.index.0;
            this.push(count, extent.term, extent.kind, extent.bytes);
        }
        Ok(this)
    }

    /// What the log goes on behind.
    pub(super) fn base(&self) -> EntryId {
        self.base
    }

    /// The last entry, or the base if there is none.
    pub(super) fn last(&self) -> EntryId {
        self.list.back().map_or(self.base, |held| EntryId {
            term: held.term,
            index: held.last,
        })
    }

    pub(super) fn term_at(&self, index: LogIndex) -> Option<Term> {
        if index == self.base.index {
            return Some(self.base.term);
        }
        Some(self.list[self.place_of(index)?].term)
    }

    pub(super) fn has(&self, entry: EntryId) -> bool {
        self.term_at(entry.index) == Some(entry.term)
    }

    /// The last entry at or below `index` whose term is not above `term`; the base if none is.
    pub(super) fn floor(&self, index: LogIndex, term: Term) -> EntryId {
        let in_term = self.list.partition_point(|held| held.term <= term);
        let Some(held) = in_term.checked_sub(1).map(|place| self.list[place]) else {
            return self.base;
        };
        let index = index.min(held.last).max(self.base.index);
        match self.term_at(index) {
            Some(term) => EntryId { term, index },
            None => self.base,
        }
    }

    /// The first of `count` entries of `term` behind `previous`, which the log has, that it does
    /// not have.
    pub(super) fn first_unknown(&self, previous: LogIndex, count: u32, term: Term) -> LogIndex {
        let end = previous.plus(u64::from(count));
        let mut index = previous.next();
        let Some(place) = self.place_of(index) else {
            return index;
        };
        for held in self.list.range(place..) {
            if held.term != term || index > end {
                break;
            }
            index = held.last.next();
        }
        index.min(end.next())
    }

    pub(super) fn push(&mut self, count: u64, term: Term, kind: ExtentKind, bytes: u64) {
        let last = self.last().index.plus(count);
        let end_bytes = self.total_bytes() + bytes;
        let start = self.start_of(self.list.len().wrapping_sub(1));
        if let (Some(held), Some((first, start_bytes))) = (self.list.back_mut(), start)
            && held.term == term
            && held.kind == ExtentKind::Commands
            && kind == ExtentKind::Commands
            && last.0 - first.0 <= MERGE_ENTRIES
            && end_bytes - start_bytes <= MERGE_BYTES
        {
            held.last = last;
            held.end_bytes = end_bytes;
            return;
        }
        self.list.push_back(Held {
            last,
            term,
            kind,
            end_bytes,
        });
    }

    /// Drops the entries from `from` on, which is behind the base.
    pub(super) fn truncate(&mut self, from: LogIndex) {
        let Some(place) = self.place_of(from) else {
            return;
        };
        let first = self.start_of(place).map(|(before, _)| before.next());
        if first == Some(from) {
            self.list.truncate(place);
        } else {
            // The bytes of what is left of it are not known better.
            self.list.truncate(place + 1);
            self.list[place].last = from.previous();
        }
    }

    /// Drops everything; the log goes on behind `base`.
    pub(super) fn reset(&mut self, base: EntryId) {
        self.base_bytes = self.total_bytes();
        self.list.clear();
        self.base = base;
    }

    /// Drops the entries up to `index`, which the log has.
    pub(super) fn compact(&mut self, index: LogIndex) {
        let Some(term) = self.term_at(index) else {
            return;
        };
        while let Some(held) = self.list.front().copied()
            && held.last <= index
        {
            self.base_bytes = held.end_bytes;
            self.list.pop_front();
        }
        self.base = EntryId { term, index };
    }

    /// What one message of at most `most` entries can carry of what is behind `previous`, which is not the
    /// last.
    pub(super) fn piece_after(&self, previous: LogIndex, most: u64) -> Option<Piece> {
        let place = self.place_of(previous.next())?;
        let (_, start_bytes) = self.start_of(place)?;
        let first = self.list[place];
        let mut end = first;
        for held in self.list.range(place + 1..) {
            if first.kind != ExtentKind::Commands
                || held.kind != ExtentKind::Commands
                || held.term != first.term
                || held.last.0 - previous.0 > most
                || held.end_bytes - start_bytes > MAX_APPEND_BYTES
            {
                break;
            }
            end = *held;
        }
        Some(Piece {
            term: first.term,
            count: (end.last.0 - previous.0).min(most) as u32,
            bytes: end.end_bytes - start_bytes,
            kind: first.kind,
        })
    }

    /// The bytes of all whole extents up to `index`, counted from some fixed place on.
    pub(super) fn bytes_through(&self, index: LogIndex) -> u64 {
        if index >= self.last().index {
            return self.total_bytes();
        }
        match self.place_of(index) {
            Some(place) if self.list[place].last == index => self.list[place].end_bytes,
            Some(place) => self.start_of(place).map_or(0, |(_, bytes)| bytes),
            None => self.base_bytes,
        }
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.list
            .back()
            .map_or(self.base_bytes, |held| held.end_bytes)
    }

    /// Which extent has the entry.
    fn place_of(&self, index: LogIndex) -> Option<usize> {
        if index <= self.base.index || index > self.last().index {
            return None;
        }
        let mut place = self.list.len() - 1;
        for _ in 0..NEAR_END {
            if place == 0 || self.list[place - 1].last < index {
                return Some(place);
            }
            place -= 1;
        }
        Some(self.list.partition_point(|held| held.last < index))
    }

    /// The last index, and the bytes, before the extent at `place`.
    fn start_of(&self, place: usize) -> Option<(LogIndex, u64)> {
        if place >= self.list.len() {
            return None;
        }
        Some(match place.checked_sub(1) {
            Some(before) => (self.list[before].last, self.list[before].end_bytes),
            None => (self.base.index, self.base_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limits::MAX_APPEND_ENTRIES;

    fn entry(term: u64, index: u64) -> EntryId {
        EntryId {
            term: Term(term),
            index: LogIndex(index),
        }
    }

    fn extents(list: &[(u64, u64)]) -> Extents {
        let mut extents = Extents::new(entry(1, 10), &[]).expect("empty");
        for (count, term) in list {
            extents.push(*count, Term(*term), ExtentKind::Commands, 100);
        }
        extents
    }

    #[test]
    fn a_message_carries_entries_of_one_term_within_its_limits() {
        let mut log = extents(&[(5, 2), (5, 2), (3, 3)]);
        let piece = |log: &Extents, previous| {
            log.piece_after(LogIndex(previous), u64::from(MAX_APPEND_ENTRIES))
        };
        let commands = |term, count, bytes| {
            Some(Piece {
                term: Term(term),
                count,
                bytes,
                kind: ExtentKind::Commands,
            })
        };
        assert_eq!(piece(&log, 10), commands(2, 10, 200));
        assert_eq!(piece(&log, 17), commands(2, 3, 200), "at most so many");
        assert_eq!(piece(&log, 20), commands(3, 3, 100));
        assert_eq!(piece(&log, 23), None);
        assert_eq!(piece(&log, 9), None, "not in the log any more");
        log.push(1, Term(3), ExtentKind::Config, 7);
        log.push(1, Term(3), ExtentKind::Commands, MAX_APPEND_BYTES);
        log.push(1, Term(3), ExtentKind::Commands, 1);
        assert_eq!(piece(&log, 20), commands(3, 3, 100), "not with the config");
        assert_eq!(piece(&log, 23).map(|p| (p.count, p.bytes)), Some((1, 7)));
        assert_eq!(piece(&log, 24), commands(3, 1, MAX_APPEND_BYTES));
        let most = u64::from(MAX_APPEND_ENTRIES);
        let mut log = extents(&[(most - 1, 2)]);
        for _ in 0..2 {
            log.push(1, Term(2), ExtentKind::Commands, MERGE_BYTES);
        }
        let bytes = 100 + MERGE_BYTES;
        assert_eq!(piece(&log, 10), commands(2, MAX_APPEND_ENTRIES, bytes));
        assert_eq!(piece(&log, 10 + most), commands(2, 1, MERGE_BYTES));
    }

    #[test]
    fn a_log_that_is_not_in_order_is_refused() {
        let extent = |last_index, term, bytes, kind| Extent {
            last_index: LogIndex(last_index),
            term: Term(term),
            bytes,
            kind,
        };
        let of = |extent: Extent| Extents::new(entry(3, 10), &[extent]).map(|log| log.last());
        let kind = ExtentKind::Commands;
        assert_eq!(of(extent(12, 3, MAX_APPEND_BYTES, kind)), Ok(entry(3, 12)));
        for bad in [
            extent(10, 3, 0, kind),
            extent(12, 2, 0, kind),
            extent(12, 3, MAX_APPEND_BYTES + 1, kind),
            extent(12, 3, 0, ExtentKind::Config),
            extent(MAX_INDEX + 1, 3, 0, kind),
        ] {
            assert_eq!(of(bad), Err(StartError::LogOutOfOrder(bad.last_index)));
        }
    }

    proptest! {
        /// Against the plainest model there is: the term of each entry in a list.
        #[test]
        fn shapes_answer_like_a_list_of_terms(
            pushes in prop::collection::vec((1..6_u64, 0..2_u64, 0..40_000_u64), 1..40),
            cut in any::<prop::sample::Index>(),
            compact in any::<prop::sample::Index>(),
        ) {
            let mut log = Extents::new(entry(1, 0), &[]).expect("empty");
            let mut terms = vec![1];
            let add = |log: &mut Extents, terms: &mut Vec<u64>| {
                for (count, step, bytes) in &pushes {
                    let term = terms.last().expect("base") + step;
                    log.push(*count, Term(term), ExtentKind::Commands, *bytes);
                    terms.extend((0..*count).map(|_| term));
                }
            };
            add(&mut log, &mut terms);
            let from = cut.index(terms.len() - 1) + 1;
            log.truncate(LogIndex(from as u64));
            terms.truncate(from);
            add(&mut log, &mut terms);
            let base = compact.index(terms.len());
            log.compact(LogIndex(base as u64));
            let last = terms.len() as u64 - 1;
            prop_assert_eq!(log.last(), entry(terms[last as usize], last));
            prop_assert_eq!(log.base(), entry(terms[base], base as u64));
            for (index, term) in terms.iter().enumerate() {
                let known = (index >= base).then_some(Term(*term));
                prop_assert_eq!(log.term_at(LogIndex(index as u64)), known);
                for bound in 0..terms[last as usize] + 2 {
                    let expected = (base..=index).rev().find(|at| terms[*at] <= bound).unwrap_or(base);
                    if index >= base {
                        let floor = log.floor(LogIndex(index as u64), Term(bound));
                        prop_assert_eq!(floor, entry(terms[expected], expected as u64));
                    }
                }
                if index >= base {
                    for count in 0..8_u32 {
                        let all = index + 1..=index + count as usize;
                        let same = all.take_while(|at| terms.get(*at) == Some(&(term + 1))).count();
                        let unknown = log.first_unknown(LogIndex(index as u64), count, Term(term + 1));
                        prop_assert_eq!(unknown.0 as usize, index + 1 + same);
                    }
                    if (index as u64) < last {
                        let piece = log.piece_after(LogIndex(index as u64), u64::from(MAX_APPEND_ENTRIES)).expect("not the last");
                        prop_assert!(piece.count >= 1);
                        let ends = index + piece.count as usize;
                        prop_assert!(terms[index + 1..=ends].iter().all(|t| *t == piece.term.0));
                        prop_assert!(piece.bytes <= log.total_bytes());
                    }
                }
            }
            let through: Vec<u64> = (base..terms.len()).map(|at| log.bytes_through(LogIndex(at as u64))).collect();
            prop_assert!(through.is_sorted());
            prop_assert_eq!(through.last().copied(), Some(log.total_bytes()));
        }
    }
}
