//! What each node's log holds, as hashes: what the checkers of logs look at.

use std::collections::{BTreeMap, VecDeque};

use ticketing_raftlog::LogIndex;
use ticketing_raftlog::raft::{AppendKind, ConfigEntry, EntryId};

use super::history::{History, chain_with};
use crate::memlog::MemLog;
use crate::node::journal::Journal;

/// One node's log: the hash of it up to each index.
#[derive(Clone, Debug, Default)]
pub struct Shadow {
    base: u64,
    base_chain: u64,
    entries: VecDeque<(u64, u64)>,
    /// Up to here it is on the disk.
    durable: u64,
    /// The configuration at the base, and those behind it.
    configs: Vec<ConfigEntry>,
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

    /// The configuration in force: the last one in the log, committed or not.
    #[must_use]
    pub fn config(&self) -> Option<&ConfigEntry> {
        self.configs.last()
    }

    /// The one that was in force when the last one was appended.
    #[must_use]
    pub fn config_before(&self) -> Option<&ConfigEntry> {
        self.configs.iter().rev().nth(1)
    }

    /// Whether the log up to `index`, which has that hash, is on the disk, or a snapshot of it.
    #[must_use]
    pub fn has_durable(&self, index: u64, chain: u64) -> bool {
        let known = self.chain(index);
        index <= self.durable && (index < self.base || known == Some(chain))
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
    pub fn started(&mut self, node: usize, log: &MemLog, first: ConfigEntry, history: &History) {
        self.reset(node, log.base(), first, history);
        self.appended(node, log.last().index, log, |_, _, _| {});
        // Recovery has synced what it kept.
        self.synced(node, log.last().index);
    }

    /// The log of `node` is on its disk up to there.
    pub fn synced(&mut self, node: usize, up_to: LogIndex) {
        if let Some(shadow) = self.shadows.get_mut(&node) {
            shadow.durable = shadow.durable.max(up_to.0.min(shadow.last()));
        }
    }

    /// The nodes whose disks have the log up to `index`, with that hash.
    pub fn with_durable(&self, index: u64, chain: u64) -> impl Iterator<Item = usize> {
        let has = move |shadow: &Shadow| shadow.has_durable(index, chain);
        let nodes = self.shadows.iter().filter(move |(_, shadow)| has(shadow));
        nodes.map(|(&node, _)| node)
    }

    /// The log of `node` goes on behind `base`, which is committed.
    pub fn reset(&mut self, node: usize, base: EntryId, config: ConfigEntry, history: &History) {
        let shadow = Shadow {
            base: base.index.0,
            // Below what is known committed nothing can be compared.
            base_chain: history.chain(base.index.0).unwrap_or(0),
            entries: VecDeque::new(),
            durable: base.index.0,
            configs: vec![config],
        };
        self.shadows.insert(node, shadow);
    }

    /// The log of `node` was cut.
    pub fn truncated(&mut self, node: usize, from: LogIndex) {
        if let Some(shadow) = self.shadows.get_mut(&node) {
            let kept = from.0.saturating_sub(shadow.base + 1);
            shadow.entries.truncate(kept as usize);
            shadow.durable = shadow.durable.min(shadow.last());
            let base = shadow.base;
            let kept = |entry: &ConfigEntry| entry.index < from || entry.index.0 <= base;
            shadow.configs.retain(kept);
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
            if let AppendKind::Config(config) = entry.kind {
                let index = LogIndex(index);
                shadow.configs.push(ConfigEntry { index, config });
            }
            each(index, entry.term.0, chain);
        }
    }
}
