//! A node's durable term never falls and its vote in a term never changes (Raft paper, figure 2
//! and section 5.2).

use std::collections::BTreeMap;

use ticketing_raftlog::HardState;

use super::Check;

/// What each node has on its disk.
#[derive(Debug, Default)]
pub struct OneVote {
    seen: BTreeMap<usize, HardState>,
}

impl OneVote {
    /// `node` has `hard` on its disk, or started with it.
    pub fn durable(&mut self, node: usize, hard: HardState) -> Check {
        let before = self.seen.insert(node, hard).unwrap_or_default();
        let changed = hard.term == before.term
            && before.voted_for.is_some()
            && hard.voted_for != before.voted_for;
        if hard.term < before.term || changed {
            return Err(format!("node {node} had {before:?} and now has {hard:?}"));
        }
        Ok(())
    }
}
