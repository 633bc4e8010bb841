//! Who leads was voted for, and what is committed is on the disks, of a majority of each of the
//! configurations in force (Raft paper, figure 2 and section 6), counted from the disks and not
//! from what the cores believe.

use std::collections::BTreeMap;

use ticketing_raftlog::raft::{Config, ConfigEntry};
use ticketing_raftlog::{HardState, NodeId};

use super::Check;
use super::logs::Logs;
use crate::cluster::host::{host_of, node_id};

/// The votes on the disks.
#[derive(Debug, Default)]
pub struct Quorums {
    votes: BTreeMap<u64, BTreeMap<usize, NodeId>>,
}

impl Quorums {
    /// `node` has `hard` on its disk.
    pub fn durable(&mut self, node: usize, hard: HardState) {
        if let Some(voted_for) = hard.voted_for {
            let votes = self.votes.entry(hard.term.0).or_default();
            votes.insert(node, voted_for);
        }
    }

    /// `node` leads in `term`, with that configuration in force.
    pub fn leads(&self, node: usize, term: u64, config: Option<&ConfigEntry>) -> Check {
        let Some(ConfigEntry { config, index }) = config else {
            return Ok(());
        };
        let votes = self.votes.get(&term);
        let by = |(&voter, &for_whom): (&usize, &NodeId)| {
            (for_whom == node_id(node)).then(|| node_id(voter))
        };
        let voters: Vec<NodeId> = votes.into_iter().flatten().filter_map(by).collect();
        majorities(config, &voters).map_err(|lacking| {
            let (voters, lacking) = (hosts(&voters), hosts(&lacking));
            format!(
                "node {node} leads in term {term} with the votes of {voters:?}, which are no majority \
                 of {lacking:?}, in force since {index}"
            )
        })
    }
}

/// `node`, which leads, counts everything up to `index` as committed.
pub fn committed(node: usize, index: u64, logs: &Logs) -> Check {
    let Some(log) = logs.of(node) else {
        return Ok(());
    };
    let (Some(ConfigEntry { config, .. }), Some(chain)) = (log.config(), log.chain(index)) else {
        return Ok(());
    };
    let copies: Vec<NodeId> = logs.with_durable(index, chain).map(node_id).collect();
    majorities(config, &copies).map_err(|lacking| {
        let (copies, lacking) = (hosts(&copies), hosts(&lacking));
        format!(
            "node {node} commits {index}, which is on the disks of {copies:?}: no majority of {lacking:?}"
        )
    })
}

fn hosts(nodes: &[NodeId]) -> Vec<usize> {
    nodes.iter().copied().map(host_of).collect()
}

/// The voters of which `nodes` are no majority, if there are such.
fn majorities(config: &Config, nodes: &[NodeId]) -> Result<(), Vec<NodeId>> {
    let old = config.voters().to_vec();
    let new = config.replacement().map(|replacement| {
        let mut voters = old.clone();
        voters[usize::from(replacement.slot.0)] = replacement.new;
        voters
    });
    for voters in std::iter::once(old).chain(new) {
        let count = voters.iter().filter(|voter| nodes.contains(voter)).count();
        if count * 2 <= voters.len() {
            return Err(voters);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ticketing_raftlog::raft::{Replacement, Slot};

    #[test]
    fn while_a_voter_is_replaced_both_majorities_count_and_learners_never() {
        let ids = |hosts: &[usize]| hosts.iter().map(|host| node_id(*host)).collect::<Vec<_>>();
        let rest = Config::new(&ids(&[0, 1, 2]), &ids(&[3])).expect("valid");
        assert_eq!(majorities(&rest, &ids(&[0, 2])), Ok(()));
        assert_eq!(majorities(&rest, &ids(&[0, 3])), Err(ids(&[0, 1, 2])));
        let (slot, new) = (Slot(0), node_id(3));
        let replacement = Some(Replacement { slot, new });
        let joint = Config::joint(&ids(&[0, 1, 2]), replacement, &[]).expect("valid");
        assert_eq!(majorities(&joint, &ids(&[1, 2])), Ok(()));
        assert_eq!(majorities(&joint, &ids(&[1, 3])), Err(ids(&[0, 1, 2])));
        assert_eq!(majorities(&joint, &ids(&[0, 1])), Err(ids(&[3, 1, 2])));
        assert_eq!(majorities(&joint, &ids(&[0, 1, 3])), Ok(()));
    }
}
