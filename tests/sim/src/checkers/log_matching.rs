//! Log matching: logs that agree on an index and its term agree on everything before (Raft paper,
//! figure 3 and section 5.3).

use std::collections::BTreeMap;

use super::Check;
use crate::world::events::Us;

/// The hash of every log that ever held an entry, by the entry's index and term.
#[derive(Debug, Default)]
pub struct LogMatching {
    seen: BTreeMap<(u64, u64), (usize, u64, Us)>,
}

impl LogMatching {
    /// `node` appended an entry.
    pub fn appended(
        &mut self,
        node: usize,
        index: u64,
        term: u64,
        chain: u64,
        now_us: Us,
    ) -> Check {
        let entry = self.seen.entry((index, term));
        let (first, seen, _) = *entry.or_insert((node, chain, now_us));
        if seen == chain {
            return Ok(());
        }
        Err(format!(
            "nodes {first} and {node} have different logs up to {index} in term {term}"
        ))
    }
    /// When the entry was appended by its leader.
    #[must_use]
    pub fn proposed_us(&self, index: u64, term: u64) -> Option<Us> {
        self.seen.get(&(index, term)).map(|(_, _, at_us)| *at_us)
    }
}
