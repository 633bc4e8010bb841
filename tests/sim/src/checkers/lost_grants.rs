//! No grant is lost and no ghost is left (behaviour, section 4, "Ghosts"; section 5, the ex-leader's
//! releases): what nobody was told is released by whoever proposed it, not left to its lease, and in
//! the end nothing is held and nobody waits.

use std::collections::BTreeSet;

use super::Check;
use super::history::{Granted, History};
use crate::cluster::host::Process;

/// Grants that a client was told of.
#[derive(Debug, Default)]
pub struct LostGrants {
    told: BTreeSet<u64>,
}

impl LostGrants {
    /// A client is told.
    pub fn told(&mut self, token: u64) {
        self.told.insert(token);
    }

    /// A lease ended a grant long after the faults; `alive`: the process that proposed it has lived
    /// all the while.
    pub fn expired(&self, token: u64, granted: &Granted, alive: bool) -> Check {
        if alive && !self.told.contains(&token) {
            return Err(format!(
                "token {token} of {} was told to nobody, and its lease had to end it",
                String::from_utf8_lossy(&granted.key)
            ));
        }
        Ok(())
    }
}

/// At the end.
pub fn finish(processes: &[(usize, &Process)], history: &History) -> Check {
    if let Some((key, token)) = history.held().iter().next() {
        let key = String::from_utf8_lossy(key);
        return Err(format!("{key} is still held, under {token}"));
    }
    for (node, process) in processes {
        for shard in &process.shards {
            let stats = shard.table().stats();
            if stats.held + stats.waiting + stats.requests + stats.in_flight > 0 {
                return Err(format!("node {node} still has {stats:?}"));
            }
        }
    }
    Ok(())
}
