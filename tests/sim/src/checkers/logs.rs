//! What each node's log holds, as hashes: what the checkers of logs look at.

use std::collections::{BTreeMap, VecDeque};

use ticketing_raftlog::LogIndex;
use ticketing_raftlog::raft::EntryId;

use super::history::{History, chain_with};
use crate::memlog::MemLog;
use crate::node::journal::Journal;

/// One node's log: the hash of it up to each index.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    base: u64,
    base_chain: u64,
    entries: VecDeque<(u64, u64)>,
}

impl Shadow {
    /// The last index.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.base + self.entries.len() as u64
    }

    /// Term and hash at `index`.
    #[must_use]
    pub fn at(&self, index: u64) -> Option<(u64, u64)> {
        self.entries
            .get(index.checked_sub(self.base + 1)? as usize)
            .copied()
    }

    /// The hash at `index`, that of the base included.
    #[must_use]
    pub fn chain(&self, index: u64) -> Option<u64> {
        if index == self.base {
            return Some(self.base_chain);
        }
        self.at(index).map(|(_, chain)| chain)
    }
}

/// Every node's log.
#[derive(Debug, Default)]
pub struct Logs {
    shadows: BTreeMap<usize, Shadow>,
}

impl Logs {
    /// The log of `node`.
    #[must_use]
    pub fn of(&self, node: usize) -> Option<&Shadow> {
        self.shadows.get(&node)
    }

    /// `node` starts with that log.
    pub fn started(&mut self, node: usize, log: &MemLog, history: &History) {
        self.reset(node, log.base(), history);
        self.appended(node, log.last().index, log, |_, _, _| {});
    }

    /// The log of `node` goes on behind `base`, which is committed.
    pub fn reset(&mut self, node: usize, base: EntryId, history: &History) {
        let shadow = Shadow {
            base: base.index.0,
            // Below what is known committed nothing can be compared.
            base_chain: history.chain(base.index.0).unwrap_or(0),
            entries: VecDeque::new(),
        };
        self.shadows.insert(node, shadow);
    }

    /// The log of `node` was cut.
    pub fn truncated(&mut self, node: usize, from: LogIndex) {
        if let Some(shadow) = self.shadows.get_mut(&node) {
            let kept = from.0.saturating_sub(shadow.base + 1);
            shadow.entries.truncate(kept as usize);
        }
    }

    /// Entries were appended, up to `last`; gives each one's index, term and hash.
    pub fn appended(
        &mut self,
        node: usize,
        last: LogIndex,
        log: &MemLog,
        mut each: impl FnMut(u64, u64, u64),
    ) {
        let Some(shadow) = self.shadows.get_mut(&node) else {
            return;
        };
        while shadow.last() < last.0 {
            let index = shadow.last() + 1;
            let Some(entry) = log.entry(LogIndex(index)) else {
                return;
            };
            let chain = chain_with(shadow.chain(index - 1).unwrap_or(0), entry);
            shadow.entries.push_back((entry.term.0, chain));
            each(index, entry.term.0, chain);
        }
    }
}
