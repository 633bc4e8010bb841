//! A follower sends clients to the slot of the leader that it knows; nobody to its own slot, or to
//! one that is not below the number of voters (behaviour, section 7).

use std::collections::BTreeMap;

use ticketing_raftlog::NodeId;

use super::Check;
use super::logs::Shadow;
use crate::cluster::host::node_id;
use crate::node::messages::Verdict;
use crate::plan::SECOND;
use crate::world::events::Us;

/// By then every shard knows what the consensus role does.
const KNOWN_US: Us = SECOND;

/// Since when each node's leader, and where it is, have not changed.
#[derive(Debug, Default)]
pub struct Moved {
    since_us: BTreeMap<usize, Us>,
}

impl Moved {
    /// The leader that `node` knows, or its configuration, has changed.
    pub fn changed(&mut self, node: usize, now_us: Us) {
        self.since_us.insert(node, now_us);
    }

    /// The process of `node` stands still, or ends: what it says may be old.
    pub fn held_up(&mut self, node: usize) {
        self.since_us.remove(&node);
    }

    /// `node`, whose log is `log` and which follows that leader, tells a client that.
    pub fn told(
        &self,
        node: usize,
        log: &Shadow,
        leader: Option<NodeId>,
        verdict: Verdict,
        now_us: Us,
    ) -> Check {
        let Some(config) = log.config().map(|entry| entry.config) else {
            return Ok(());
        };
        let own = config.slot_of(node_id(node));
        match verdict {
            Verdict::Moved(Some(slot)) => {
                let other = own.is_none_or(|own| own.0 != slot);
                if other && usize::from(slot) < config.voters().len() {
                    return Ok(());
                }
                Err(format!(
                    "node {node}, in {own:?}, sends a client to slot {slot}"
                ))
            }
            Verdict::NoLeader => {
                let slot = leader.and_then(|leader| config.slot_of(leader));
                let since_us = self.since_us.get(&node).copied().unwrap_or(now_us);
                if slot.is_none() || slot == own || now_us < since_us + KNOWN_US {
                    return Ok(());
                }
                Err(format!(
                    "node {node} knows of no leader, and follows the one in {slot:?}"
                ))
            }
            _ => Ok(()),
        }
    }
}
