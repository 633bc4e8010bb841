//! The index of batches: which batch holds the entry at a log index. Pure.

use crate::batch::{BatchSummary, Control};
use crate::types::{LogIndex, Position, Term};

/// One batch's entries, as far as later truncations left them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first entry's index.
    pub first: LogIndex,
    /// The last entry's index.
    pub last: LogIndex,
    /// Where the batch starts.
    pub position: Position,
}

/// What the log holds, from its batches in the order in which they were written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchIndex {
    // Ascending in index and position, without overlap. A sorted vector: appends and truncations
    // touch its end only, and look-ups are binary searches.
    spans: Vec<Span>,
    base: LogIndex,
    base_term: Term,
    next: LogIndex,
    last_term: Term,
    begun: bool,
    // Only marks were seen yet, and the terms are the snapshot's: what was in the log there may have
    // been of an earlier term, and truncated later on.
    only_marks: bool,
    // What a snapshot covers, for a log whose first batches are gone.
    covered: Option<(LogIndex, Term)>,
}

impl BatchIndex {
    /// Nothing taken in yet, of a log that may begin with any batch up to the one behind `index`:
    /// a snapshot covers what came before. `term` is the term of the entry at `index`.
    #[must_use]
    pub fn behind(index: LogIndex, term: Term) -> Self {
        Self {
            covered: Some((index, term)),
            ..Self::default()
        }
    }

    /// Takes in the next batch.
    ///
    /// # Errors
    /// When the batch does not follow on what is there; the text says how. Nothing is changed.
    pub fn apply(&mut self, batch: &BatchSummary) -> Result<(), &'static str> {
        self.check(batch)?;
        if !self.begun {
            self.begin(batch);
        }
        if self.only_marks && (batch.entries > 0 || batch.control.is_some()) {
            self.only_marks = false;
            if batch.first_term < self.last_term {
                self.base_term = Term::default();
                self.last_term = Term::default();
            }
        }
        match batch.control {
            Some(Control::Reset { index, term }) => {
                self.spans.clear();
                self.base = index;
                self.base_term = term;
            }
            // The entries before the oldest batch that is left were truncated with its first ones.
            Some(Control::Truncate {
                from,
                previous_term,
            }) if from <= self.base => {
                self.spans.clear();
                self.base = from.previous();
                self.base_term = previous_term;
            }
            Some(Control::Truncate { from, .. }) => self.truncate(from),
            Some(Control::Gap { .. }) | None => {}
        }
        if batch.entries > 0 {
            self.spans.push(Span {
                first: batch.first_index,
                last: batch.next_index().previous(),
                position: batch.position,
            });
        }
        self.next = batch.next_index();
        // A mark, as the first batch that is left, does not know what came before it.
        self.last_term = self.last_term.max(batch.last_term);
        if batch.control.is_some() {
            self.last_term = batch.last_term;
        }
        Ok(())
    }

    /// Forgets the entries up to `index`, which a snapshot covers; `term` is that of the last one.
    /// Nothing happens if they are forgotten already.
    ///
    /// # Panics
    /// When the log does not reach that far.
    pub fn compact(&mut self, index: LogIndex, term: Term) {
        if index <= self.base {
            return;
        }
        assert!(index < self.next, "a snapshot beyond the log's end");
        let gone = self.spans.partition_point(|span| span.last <= index);
        self.spans.drain(..gone);
        if let Some(first) = self.spans.first_mut() {
            first.first = first.first.max(index.next());
        }
        // Room for what a busy hour held is given back.
        if self.spans.capacity() / 4 > self.spans.len() {
            self.spans.shrink_to(self.spans.len() * 2);
        }
        self.base = index;
        self.base_term = term;
        self.last_term = self.last_term.max(term);
    }

    /// The batch that holds the entry at `index`, or `None` when there is no such entry.
    #[must_use]
    pub fn locate(&self, index: LogIndex) -> Option<Span> {
        let at = self.spans.partition_point(|span| span.last < index);
        self.spans
            .get(at)
            .copied()
            .filter(|span| span.first <= index)
    }

    /// The first batch with an entry at `index` or above.
    #[must_use]
    pub fn at_or_after(&self, index: LogIndex) -> Option<Span> {
        let at = self.spans.partition_point(|span| span.last < index);
        self.spans.get(at).copied()
    }

    /// All batches with entries, in order.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The index before the first that the log can hold.
    #[must_use]
    pub fn base(&self) -> LogIndex {
        self.base
    }

    /// The term of the entry at [`BatchIndex::base`].
    #[must_use]
    pub fn base_term(&self) -> Term {
        self.base_term
    }

    /// The index that the next entry takes.
    #[must_use]
    pub fn next_index(&self) -> LogIndex {
        self.next
    }

    /// The term of the last entry; of the base when there is none.
    #[must_use]
    pub fn last_term(&self) -> Term {
        self.last_term
    }

    /// What the term of the next entry is at least, as far as the log itself says.
    #[must_use]
    pub fn least_next_term(&self) -> Term {
        if self.only_marks {
            Term::default()
        } else {
            self.last_term
        }
    }

    /// How many entries the log holds; indexes in gaps do not count.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.spans
            .iter()
            .map(|span| span.last.0 - span.first.0 + 1)
            .sum()
    }

    fn check(&self, batch: &BatchSummary) -> Result<(), &'static str> {
        match batch.control {
            Some(Control::Reset { .. }) => return Ok(()),
            _ if !self.begun => {
                let Some((index, _)) = self.covered else {
                    return Err(
                        "the log does not begin with its first batch: an earlier segment is missing",
                    );
                };
                if batch.first_index > index.next() {
                    return Err(
                        "the log begins behind what the snapshot covers: a segment is missing",
                    );
                }
            }
            Some(Control::Truncate {
                from,
                previous_term,
            }) => {
                if from > self.next || (from <= self.base && !self.covers(from.previous())) {
                    return Err("a truncation lies outside the log");
                }
                if from <= self.base {
                    return Ok(());
                }
                let out_of_place = previous_term > self.last_term || previous_term < self.base_term;
                if out_of_place && !self.only_marks {
                    return Err("a truncation names a term that the log cannot have there");
                }
            }
            Some(Control::Gap { next, last_term }) => {
                if next <= self.next || last_term != self.last_term {
                    return Err("a gap does not follow on the entry before");
                }
            }
            None => {
                if batch.first_index != self.next {
                    return Err("a batch's first index does not follow on the entry before");
                }
                if batch.first_term < self.least_next_term() {
                    return Err("a batch's first term is below the entry before");
                }
            }
        }
        Ok(())
    }

    /// Whether the snapshot that the log goes on from has the entry at `index`.
    fn covers(&self, index: LogIndex) -> bool {
        self.covered.is_some_and(|(covered, _)| index <= covered)
    }

    /// Begins with the oldest batch that is left.
    fn begin(&mut self, batch: &BatchSummary) {
        self.begun = true;
        self.base = batch.first_index.previous();
        if let Some((_, term)) = self
            .covered
            .filter(|(index, _)| index.next() == batch.first_index)
            // Entries of an earlier term were truncated later on: the snapshot's are not before them.
            .filter(|(_, term)| batch.entries == 0 || batch.first_term >= *term)
        {
            self.base_term = term;
            self.last_term = term;
            self.only_marks = batch.entries == 0 && batch.control.is_none();
        }
    }

    fn truncate(&mut self, from: LogIndex) {
        while let Some(span) = self.spans.last_mut() {
            if span.first < from {
                span.last = span.last.min(from.previous());
                return;
            }
            self.spans.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::UseNumber;

    fn batch(control: Option<Control>, first: u64, entries: u32, term: u64) -> BatchSummary {
        BatchSummary {
            position: Position::new(UseNumber(1), 4096),
            bytes: 4096,
            crc: 0,
            control,
            first_index: LogIndex(first),
            entries,
            configs: 0,
            first_term: Term(term),
            last_term: Term(term),
        }
    }

    /// Base 10 of term 2, then 11 to 13 in term 5.
    fn index() -> BatchIndex {
        let mut index = BatchIndex::default();
        let reset = Control::Reset {
            index: LogIndex(10),
            term: Term(2),
        };
        index
            .apply(&batch(Some(reset), 11, 3, 5))
            .expect("it begins a log");
        index
    }

    #[test]
    fn a_truncation_may_reach_before_the_oldest_batch_that_is_left() {
        let truncate = |from| {
            let control = Control::Truncate {
                from: LogIndex(from),
                previous_term: Term(4),
            };
            batch(Some(control), from, 0, 4)
        };
        // Entries 10 to 13 were truncated from 11 on, and the batch with 10 and 11 is recycled.
        for (covered, from, fits) in [
            (15, 11, true),
            (15, 12, true),
            (11, 11, true),
            (9, 11, false),
        ] {
            let mut index = BatchIndex::behind(LogIndex(covered), Term(6));
            let oldest = batch(None, 12, 2, 5);
            if index.apply(&oldest).is_err() {
                assert!(!fits, "it begins behind what is covered");
                continue;
            }
            assert_eq!(
                index.apply(&truncate(from)).is_ok(),
                fits,
                "{covered} {from}"
            );
            let base = LogIndex(from - 1);
            assert_eq!((index.base(), index.next_index()), (base, LogIndex(from)));
            assert!(index.spans().is_empty());
            index.apply(&batch(None, from, 5, 6)).expect("it follows");
            assert_eq!(index.entries(), 5);
        }
        let mut without = index();
        assert!(
            without.apply(&truncate(10)).is_err(),
            "no snapshot has what was there"
        );
    }

    #[test]
    fn the_oldest_batches_may_be_of_an_earlier_term_than_the_snapshot_before_them() {
        let mut index = BatchIndex::behind(LogIndex(10), Term(6));
        index
            .apply(&batch(None, 11, 2, 4))
            .expect("truncated later");
        index.apply(&batch(None, 13, 2, 4)).expect("as well");
        let control = Control::Truncate {
            from: LogIndex(9),
            previous_term: Term(3),
        };
        index
            .apply(&batch(Some(control), 9, 0, 3))
            .expect("the snapshot covers it");
        index.apply(&batch(None, 9, 3, 6)).expect("it follows");
        assert_eq!(
            (index.last_term(), index.next_index()),
            (Term(6), LogIndex(12))
        );
    }

    #[test]
    fn entries_of_an_earlier_term_may_follow_a_mark_that_is_the_oldest_batch_left() {
        // The snapshot has entry 10 in term 6; the log had it, and 11, in term 4 before.
        let behind = || BatchIndex::behind(LogIndex(10), Term(6));
        let mut index = behind();
        index.apply(&batch(None, 11, 0, 0)).expect("a mark");
        assert_eq!(
            (index.last_term(), index.least_next_term()),
            (Term(6), Term(0))
        );
        index
            .apply(&batch(None, 11, 1, 4))
            .expect("of an earlier term");
        assert_eq!(index.least_next_term(), Term(4));
        let truncate = Control::Truncate {
            from: LogIndex(10),
            previous_term: Term(3),
        };
        index
            .apply(&batch(Some(truncate), 10, 2, 6))
            .expect("it was truncated");
        assert_eq!((index.last_term(), index.entries()), (Term(6), 2));
        assert!(
            index.apply(&batch(None, 12, 1, 5)).is_err(),
            "terms do not fall"
        );

        let mut index = behind();
        index.apply(&batch(None, 11, 0, 0)).expect("a mark");
        index
            .apply(&batch(None, 11, 1, 6))
            .expect("of the same term");
        assert_eq!((index.base_term(), index.last_term()), (Term(6), Term(6)));
        assert!(
            index.apply(&batch(None, 12, 1, 5)).is_err(),
            "terms do not fall"
        );
    }

    #[test]
    fn only_what_follows_is_taken_in() {
        let truncate = |from, term| {
            let control = Control::Truncate {
                from: LogIndex(from),
                previous_term: Term(term),
            };
            batch(Some(control), from, 0, term)
        };
        let gap = |next, term| {
            let control = Control::Gap {
                next: LogIndex(next),
                last_term: Term(term),
            };
            batch(Some(control), next, 0, term)
        };
        for right in [
            batch(None, 14, 1, 5),
            batch(None, 14, 0, 5),
            truncate(11, 2),
            truncate(14, 5),
            gap(15, 5),
        ] {
            assert_eq!(index().apply(&right), Ok(()), "{right:?}");
        }
        for wrong in [
            batch(None, 13, 1, 5),
            batch(None, 15, 1, 5),
            batch(None, 14, 1, 4),
            truncate(10, 2),
            truncate(15, 5),
            truncate(12, 6),
            truncate(12, 1),
            gap(14, 5),
            gap(15, 4),
        ] {
            let mut index = index();
            let before = index.clone();
            assert!(index.apply(&wrong).is_err(), "{wrong:?}");
            assert_eq!(index, before);
        }
        assert!(BatchIndex::default().apply(&batch(None, 0, 1, 1)).is_err());
    }
}
