//! What became of commands that this node proposed.
//!
//! A proposed command has an index and a term. It is applied if the entry committed at that index
//! has that term. It is dropped for good once an entry of a later term is committed at or before
//! its index: terms never fall along a log. Truncation alone proves nothing: the entry may be on
//! other nodes and come back.

use std::collections::VecDeque;

use ticketing_raftlog::{LogIndex, Term};

use super::journal::Payload;

/// A command that was appended and whose fate is open.
#[derive(Clone, Debug)]
pub struct Pending {
    /// Where it was appended.
    pub index: LogIndex,
    /// In which term.
    pub term: Term,
    /// The shard that proposed it.
    pub shard: u16,
    /// The command.
    pub payload: Payload,
}

/// Open fates, oldest first: by term, then by index.
#[derive(Debug, Default)]
pub struct Fates {
    pending: VecDeque<Pending>,
}

impl Fates {
    /// A command was appended.
    ///
    /// # Panics
    /// When it does not come behind the ones before.
    pub fn appended(&mut self, pending: Pending) {
        let place = |p: &Pending| (p.term, p.index);
        assert!(
            self.pending
                .back()
                .is_none_or(|last| place(last) < place(&pending))
        );
        self.pending.push_back(pending);
    }

    /// The entry at `index` is committed and has `term`. Gives whether it is the node's own, and
    /// takes out what is dropped by it.
    pub fn committed(
        &mut self,
        index: LogIndex,
        term: Term,
        mut dropped: impl FnMut(Pending),
    ) -> Option<u16> {
        while self.pending.front().is_some_and(|first| first.term < term) {
            self.pending.pop_front().map(&mut dropped);
        }
        let own = |first: &Pending| first.term == term && first.index == index;
        if self.pending.front().is_some_and(own) {
            return self.pending.pop_front().map(|own| own.shard);
        }
        None
    }

    /// A snapshot up to `index`, whose entry has `term`, replaces the log: gives each command whose
    /// fate it decides, and whether that is known to be "dropped".
    pub fn covered(&mut self, index: LogIndex, term: Term, mut decided: impl FnMut(Pending, bool)) {
        let all = std::mem::take(&mut self.pending);
        for pending in all {
            if pending.index <= index {
                decided(pending, false);
            } else if pending.term < term {
                decided(pending, true);
            } else {
                self.pending.push_back(pending);
            }
        }
    }

    /// Takes out everything from `from` on: the mistake of taking truncation for proof.
    pub fn truncated(&mut self, from: LogIndex, mut dropped: impl FnMut(Pending)) {
        while self.pending.back().is_some_and(|last| last.index >= from) {
            self.pending.pop_back().map(&mut dropped);
        }
    }

    /// Whether nothing is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(of: &[(u64, u64)]) -> Fates {
        let mut fates = Fates::default();
        for &(term, index) in of {
            fates.appended(Pending {
                index: LogIndex(index),
                term: Term(term),
                shard: index as u16,
                payload: Payload::from(&b""[..]),
            });
        }
        fates
    }

    fn commit(fates: &mut Fates, index: u64, term: u64) -> (Option<u16>, Vec<u64>) {
        let mut dropped = Vec::new();
        let own = fates.committed(LogIndex(index), Term(term), |p| dropped.push(p.index.0));
        (own, dropped)
    }

    #[test]
    fn an_entry_is_ones_own_by_index_and_term() {
        let mut fates = fates(&[(3, 10), (3, 11), (3, 12), (5, 11)]);
        assert_eq!(commit(&mut fates, 9, 2), (None, vec![]));
        assert_eq!(commit(&mut fates, 10, 3), (Some(10), vec![]));
        // Another leader's entry: term 3 is over from here on, and so is the command behind it.
        assert_eq!(commit(&mut fates, 11, 4), (None, vec![11, 12]));
        assert!(!fates.is_empty());
        assert_eq!(commit(&mut fates, 12, 6), (None, vec![11]));
        assert!(fates.is_empty());
    }

    #[test]
    fn a_snapshot_hides_fates_below_it_and_decides_older_terms_behind_it() {
        let mut fates = fates(&[(3, 10), (3, 20), (4, 21)]);
        let mut seen = Vec::new();
        fates.covered(LogIndex(15), Term(4), |p, dropped| {
            seen.push((p.index.0, dropped))
        });
        assert_eq!(seen, [(10, false), (20, true)]);
        assert_eq!(commit(&mut fates, 21, 4), (Some(21), vec![]));
    }
}
