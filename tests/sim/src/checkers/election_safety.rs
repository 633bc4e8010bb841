//! Election safety: at most one leader in a term (Raft paper, figure 3 and section 5.2).

use std::collections::BTreeMap;

use super::Check;

/// Who led in which term.
#[derive(Debug, Default)]
pub struct ElectionSafety {
    led: BTreeMap<u64, usize>,
}

impl ElectionSafety {
    /// `node` leads in `term`.
    pub fn leads(&mut self, node: usize, term: u64) -> Check {
        let leader = *self.led.entry(term).or_insert(node);
        if leader == node {
            return Ok(());
        }
        Err(format!(
            "nodes {leader} and {node} both lead in term {term}"
        ))
    }

    /// Who led in `term`.
    #[must_use]
    pub fn leader(&self, term: u64) -> Option<usize> {
        self.led.get(&term).copied()
    }

    /// How many terms had a leader.
    #[must_use]
    pub fn terms(&self) -> usize {
        self.led.len()
    }
}
