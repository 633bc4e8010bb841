//! What became of commands that this node proposed in a leadership that is over.
//!
//! While a node leads, every entry of its term is its own. Once it does not, a command of its is applied if
//! the entry committed at its index has its term, and dropped for good once an entry of a later term is
//! committed at or before its index: terms never fall along a log. Truncation alone proves nothing: the
//! entry may be on other nodes and come back.

use std::collections::VecDeque;

use ticketing_raftlog::{LogIndex, Term};

/// A command whose fate is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// Where it was appended.
    pub index: LogIndex,
    /// In which term.
    pub term: Term,
    /// The command.
    pub payload: Vec<u8>,
}

/// Open fates, oldest first: by term, then by index.
#[derive(Debug, Default)]
pub(super) struct Fates {
    pending: VecDeque<Pending>,
}

impl Fates {
    /// Whether nothing is open.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The fate of a command is open from now on.
    pub(super) fn open(&mut self, pending: Pending) {
        self.pending.push_back(pending);
    }

    /// The entry at `index` is committed and has `term`: gives what is dropped by it.
    pub(super) fn committed(&mut self, index: LogIndex, term: Term) -> Vec<Pending> {
        let mut dropped = Vec::new();
        while let Some(first) = self.pending.front() {
            if first.term < term {
                dropped.extend(self.pending.pop_front());
            } else if first.term == term && first.index <= index {
                self.pending.pop_front();
            } else {
                break;
            }
        }
        dropped
    }

    /// Whether a committed entry of `term` would drop something.
    pub(super) fn would_drop(&self, term: Term) -> bool {
        self.pending.front().is_some_and(|first| first.term < term)
    }

    /// A snapshot up to `index`, whose entry has `term`, takes the log's place: gives each command that
    /// it decides, and whether that is known to be dropped.
    pub(super) fn covered(&mut self, index: LogIndex, term: Term) -> Vec<(Pending, bool)> {
        let mut decided = Vec::new();
        for pending in std::mem::take(&mut self.pending) {
            if pending.index <= index {
                decided.push((pending, false));
            } else if pending.term < term {
                decided.push((pending, true));
            } else {
                self.pending.push_back(pending);
            }
        }
        decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(of: &[(u64, u64)]) -> Fates {
        let mut fates = Fates::default();
        for &(term, index) in of {
            fates.open(Pending {
                index: LogIndex(index),
                term: Term(term),
                payload: Vec::new(),
            });
        }
        fates
    }

    fn commit(fates: &mut Fates, index: u64, term: u64) -> Vec<u64> {
        let dropped = fates.committed(LogIndex(index), Term(term));
        dropped.into_iter().map(|pending| pending.index.0).collect()
    }

    #[test]
    fn a_later_term_at_or_before_its_index_drops_a_command_and_nothing_else_does() {
        let mut fates = fates(&[(3, 10), (3, 11), (3, 12), (5, 11)]);
        assert_eq!(commit(&mut fates, 9, 2), [0; 0]);
        assert_eq!(commit(&mut fates, 10, 3), [0; 0], "applied as its own");
        assert!(fates.would_drop(Term(4)) && !fates.would_drop(Term(3)));
        assert_eq!(commit(&mut fates, 11, 4), [11, 12]);
        assert_eq!(commit(&mut fates, 12, 6), [11]);
        assert!(fates.is_empty());
    }

    #[test]
    fn a_snapshot_hides_fates_below_it_and_decides_older_terms_behind_it() {
        let mut fates = fates(&[(3, 10), (3, 20), (4, 21)]);
        let covered = fates.covered(LogIndex(15), Term(4));
        let seen: Vec<(u64, bool)> = covered.iter().map(|(p, d)| (p.index.0, *d)).collect();
        assert_eq!(seen, [(10, false), (20, true)]);
        assert!(!fates.is_empty());
    }
}
