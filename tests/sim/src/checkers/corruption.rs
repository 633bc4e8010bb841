//! Recovery refuses a log exactly when what was acknowledged is damaged (log format: a torn tail or
//! corruption).

use std::collections::BTreeSet;

use super::Check;

/// Disks that rotted below what was acknowledged.
#[derive(Debug, Default)]
pub struct Corruption {
    rotten: BTreeSet<usize>,
}

impl Corruption {
    /// A bit below a synced mark flips.
    pub fn rots(&mut self, node: usize) {
        self.rotten.insert(node);
    }

    /// A node refuses its log.
    pub fn refused(&self, node: usize, why: &str) -> Check {
        if self.rotten.contains(&node) {
            return Ok(());
        }
        Err(format!(
            "node {node} refuses a log that only crashes have touched: {why}"
        ))
    }

    /// A node takes its log.
    pub fn taken(&self, node: usize) -> Check {
        if self.rotten.contains(&node) {
            return Err(format!(
                "node {node} takes a log whose acknowledged part is damaged"
            ));
        }
        Ok(())
    }
}
