//! Log matching: logs that agree on an index and its term agree on everything before (Raft paper,
//! figure 3 and section 5.3).

use std::collections::BTreeMap;

use super::Check;

/// The hash of every log that ever held an entry, by the entry's index and term.
#[derive(Debug, Default)]
pub struct LogMatching {
    seen: BTreeMap<(u64, u64), (usize, u64)>,
}

impl LogMatching {
    /// `node` appended an entry.
    pub fn appended(&mut self, node: usize, index: u64, term: u64, chain: u64) -> Check {
        let (first, seen) = *self.seen.entry((index, term)).or_insert((node, chain));
        if seen == chain {
            return Ok(());
        }
        Err(format!(
            "nodes {first} and {node} have different logs up to {index} in term {term}"
        ))
    }
}
