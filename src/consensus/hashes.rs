//! Whether the nodes hold the same locks: each says the hash of its state at certain indexes, and whoever has
//! another one than a majority of the voters, the leader among them, is wrong and stops.
//!
//! The hash is the sum of the locks' own, so that it says nothing of how many shards a node has.

use std::collections::BTreeMap;

use ticketing_protocol::peer::Body as WireBody;
use ticketing_raftlog::raft::{Config, Input};
use ticketing_raftlog::{LogIndex, NodeId};

use crate::fatal::Fatal;

use super::role::Role;

/// What is known of one index.
#[derive(Clone, Debug, Default)]
struct Told {
    by: Vec<(NodeId, u128)>,
    judged: bool,
}

/// What the nodes say of the last few indexes.
#[derive(Debug, Default)]
pub(super) struct Hashes {
    told: BTreeMap<LogIndex, Told>,
    // Sums of this node's shards that are not complete yet.
    own: BTreeMap<LogIndex, (usize, u128)>,
}

/// What is to be thought of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not enough have said theirs, or all is well.
    GoOn,
    /// A majority of the voters with the leader has another value than this node.
    Wrong {
        /// Where.
        index: LogIndex,
        /// This node's.
        own: u128,
        /// The others'.
        others: u128,
    },
    /// This node leads, and a majority of the voters has another value than it.
    WrongLeader {
        /// Where.
        index: LogIndex,
    },
    /// Every voter has said its value, and no value is a majority's.
    NoMajority {
        /// Where.
        index: LogIndex,
    },
}

/// Indexes of which values are kept.
const KEPT: usize = 8;

impl Hashes {
    /// A shard's sum at an index; gives the node's once all `shards` have said theirs.
    pub(super) fn shard(&mut self, index: LogIndex, sum: u128, shards: usize) -> Option<u128> {
        let (count, total) = self.own.entry(index).or_insert((0, 0));
        *count += 1;
        *total = total.wrapping_add(sum);
        let done = (*count == shards).then_some(*total);
        if done.is_some() {
            self.own.remove(&index);
        }
        done
    }

    /// The state is another one: what shards have yet to say of the old one is of no use.
    pub(super) fn forget(&mut self) {
        self.own.clear();
    }

    /// What a node says.
    pub(super) fn told(&mut self, by: NodeId, index: LogIndex, hash: u128) {
        let told = self.told.entry(index).or_default();
        if told.by.iter().all(|(node, _)| *node != by) {
            told.by.push((by, hash));
        }
        while self.told.len() > KEPT {
            self.told.pop_first();
        }
    }

    /// Judges what has been said; each index once.
    pub(super) fn judge(
        &mut self,
        own: NodeId,
        leader: Option<NodeId>,
        config: &Config,
    ) -> Verdict {
        for (&index, told) in self.told.iter_mut().filter(|(_, told)| !told.judged) {
            let of = |node: NodeId| {
                told.by
                    .iter()
                    .find(|(by, _)| *by == node)
                    .map(|(_, hash)| *hash)
            };
            let Some(mine) = of(own) else {
                continue;
            };
            let shared = told.by.iter().map(|(_, hash)| *hash);
            let majority = shared
                .clone()
                .find(|hash| config.has_majority(|node| of(node) == Some(*hash)));
            let all_said = config.voters().iter().all(|voter| of(*voter).is_some());
            match majority {
                Some(hash) if hash == mine => told.judged = true,
                Some(hash) if leader.and_then(of) == Some(hash) => {
                    told.judged = true;
                    return Verdict::Wrong {
                        index,
                        own: mine,
                        others: hash,
                    };
                }
                // Once another leads that is of the majority, this one stops.
                Some(_) if leader == Some(own) => return Verdict::WrongLeader { index },
                // Perhaps it is the leader that is wrong, which will find it out.
                Some(_) => {}
                None if all_said => {
                    told.judged = true;
                    return Verdict::NoMajority { index };
                }
                None => {}
            }
        }
        Verdict::GoOn
    }
}

impl Role {
    /// A shard has said what it held at an index.
    pub(super) fn state_sum(&mut self, index: LogIndex, sum: u128) {
        let (node_id, shards) = (self.node_id, self.shards);
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let Some(hash) = cluster.hashes.shard(index, sum, shards) else {
            return;
        };
        cluster.hashes.told(node_id, index, hash);
        let term = self.core.term();
        for member in self.core.config().config.members() {
            let index = index.0;
            self.send_wire(member, term, WireBody::StateHash { index, hash });
        }
        self.judge_hashes();
    }

    /// Another node has said what it held at an index.
    pub(super) fn hash_told(&mut self, by: NodeId, index: LogIndex, hash: u128) {
        if let Some(cluster) = &mut self.cluster {
            cluster.hashes.told(by, index, hash);
        }
        self.judge_hashes();
    }

    pub(super) fn judge_hashes(&mut self) {
        let config = self.core.config().config;
        let (node_id, leader) = (self.node_id, self.core.leader());
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        match cluster.hashes.judge(node_id, leader, &config) {
            Verdict::GoOn => {}
            Verdict::Wrong { index, own, others } => Fatal::Diverged.retire(
                &cluster.folder,
                format_args!(
                    "at index {index} this node's locks have the hash {own:032x}, and a majority with the leader \
                     has {others:032x}: this node is wrong; keep its folder for inspection, report this line, and \
                     replace the node"
                ),
            ),
            Verdict::WrongLeader { index } => {
                tracing::error!(
                    %index,
                    "a majority of the voters holds other locks than this node, which leads: another is to lead"
                );
                self.step(Input::Transfer { to: None });
            }
            Verdict::NoMajority { index } => {
                tracing::error!(
                    %index,
                    "every voter holds other locks at this index: nobody knows which are right, and nothing is \
                     granted any more; keep all folders, and report this"
                );
                self.diverged = true;
                self.tell_room();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: LogIndex = LogIndex(65_536);

    fn node(number: u8) -> NodeId {
        NodeId([number; 16])
    }

    fn config() -> Config {
        Config::new(&[1, 2, 3].map(node), &[node(4)]).expect("three voters")
    }

    fn judged(own: u8, leader: Option<u8>, said: &[(u8, u128)]) -> Verdict {
        let mut hashes = Hashes::default();
        for &(by, hash) in said {
            hashes.told(node(by), AT, hash);
        }
        hashes.judge(node(own), leader.map(node), &config())
    }

    #[test]
    fn a_node_is_wrong_only_against_a_majority_with_the_leader() {
        let wrong = Verdict::Wrong {
            index: AT,
            own: 8,
            others: 7,
        };
        assert_eq!(judged(1, Some(2), &[(1, 8), (2, 7), (3, 7)]), wrong);
        assert_eq!(judged(2, Some(2), &[(1, 8), (2, 7), (3, 7)]), Verdict::GoOn);
        // Two are no majority against oneself, a learner does not count, and the leader must be among them.
        assert_eq!(judged(1, Some(2), &[(1, 8), (2, 7)]), Verdict::GoOn);
        assert_eq!(judged(1, Some(2), &[(1, 8), (2, 7), (4, 7)]), Verdict::GoOn);
        assert_eq!(judged(1, Some(3), &[(1, 8), (2, 7), (4, 7)]), Verdict::GoOn);
        assert_eq!(judged(1, None, &[(1, 8), (2, 7), (3, 7)]), Verdict::GoOn);
        // A learner may be wrong, too.
        assert_eq!(judged(4, Some(2), &[(4, 8), (2, 7), (3, 7)]), wrong);
        // Nobody knows without having said its own.
        assert_eq!(judged(1, Some(2), &[(2, 7), (3, 7)]), Verdict::GoOn);
    }

    #[test]
    fn a_leader_that_is_wrong_has_another_lead_and_stops_then() {
        let mut hashes = Hashes::default();
        for (by, hash) in [(1, 8), (2, 7), (3, 7)] {
            hashes.told(node(by), AT, hash);
        }
        let mut judge = |leader| hashes.judge(node(1), Some(node(leader)), &config());
        let wrong_leader = Verdict::WrongLeader { index: AT };
        assert_eq!([judge(1), judge(1)], [wrong_leader; 2]);
        assert_eq!(
            judge(2),
            Verdict::Wrong {
                index: AT,
                own: 8,
                others: 7
            }
        );
    }

    #[test]
    fn three_values_of_three_voters_are_nobodys() {
        let said = [(1, 6), (2, 7), (3, 8)];
        assert_eq!(judged(1, Some(2), &said), Verdict::NoMajority { index: AT });
        assert_eq!(judged(1, Some(2), &said[..2]), Verdict::GoOn);
    }

    #[test]
    fn the_first_word_counts_and_old_indexes_are_forgotten() {
        let mut hashes = Hashes::default();
        hashes.told(node(1), AT, 7);
        hashes.told(node(1), AT, 8);
        assert_eq!(hashes.told[&AT].by, [(node(1), 7)]);
        for more in 1..=KEPT as u64 {
            hashes.told(node(1), AT.plus(more), 7);
        }
        assert_eq!(hashes.told.len(), KEPT);
        assert!(!hashes.told.contains_key(&AT));
    }

    #[test]
    fn a_nodes_hash_is_complete_with_its_last_shard() {
        let mut hashes = Hashes::default();
        assert_eq!(hashes.shard(AT, u128::MAX, 3), None);
        assert_eq!(hashes.shard(AT, 1, 3), None);
        hashes.forget();
        assert_eq!(hashes.shard(AT, u128::MAX, 2), None);
        assert_eq!(hashes.shard(AT, 3, 2), Some(2));
    }
}
