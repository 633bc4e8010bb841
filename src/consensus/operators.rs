//! Carrying out what operators ask.

use ticketing_protocol::handshake::cluster_fingerprint;
use ticketing_raftlog::raft::{
    Change, ChangeRefusal, Input, Role as RaftRole, Slot, TransferResult,
};

use crate::cluster_view::{ClusterState, MemberView};
use crate::limits::PUBLISH_CLUSTER_MS;
use crate::operator::{Done, Order, Slip};

use super::role::Role;

/// What operators wait for.
#[derive(Debug, Default)]
pub(super) struct Orders {
    transfer: Option<Slip>,
    refused: Option<ChangeRefusal>,
    pub(super) drained: bool,
}

impl Role {
    /// Does what an operator asks, or begins to.
    pub(super) fn take_order(&mut self, slip: Slip) {
        if self.cluster.is_none() {
            return slip.done(Done::Refused {
                why: "this is a single node: it has no members".to_owned(),
            });
        }
        if let (Order::AddLearner { node, address }, Some(cluster)) = (slip.order, &self.cluster) {
            // By whoever is asked: the leader of a moment later may be another one.
            cluster.peers.note_address(node, address);
        }
        let leads = self.core.role() == RaftRole::Leader;
        if !leads && slip.order != Order::Drain {
            let leader_slot = self.leader_slot();
            return slip.done(Done::NotLeader { leader_slot });
        }
        let config = self.core.config().config;
        let no_such_slot = || Done::Refused {
            why: format!(
                "this cluster has {} slots, counted from 0",
                config.voters().len()
            ),
        };
        match slip.order {
            Order::AddLearner { node, .. } => self.change(&slip, Change::AddLearner { node }),
            Order::RemoveLearner(node) => self.change(&slip, Change::RemoveLearner { node }),
            Order::Replace { slot, new } => {
                let slot = Slot(slot);
                let Some(&old) = config.voters().get(usize::from(slot.0)) else {
                    return slip.done(no_such_slot());
                };
                if old == self.node_id {
                    // Whoever leads then goes on with it.
                    self.step(Input::Transfer { to: None });
                    return slip.done(Done::Later {
                        why: "the leader is the one to be replaced: it hands leadership over first"
                            .to_owned(),
                    });
                }
                self.change(&slip, Change::Replace { slot, old, new });
            }
            Order::Transfer(slot) => {
                let to = slot.map(|slot| config.voters().get(usize::from(slot)).copied());
                if to == Some(None) {
                    return slip.done(no_such_slot());
                }
                if to == Some(Some(self.node_id)) {
                    return slip.done(Done::Accepted);
                }
                self.transfer(slip, to.flatten());
            }
            Order::Drain => {
                if let Some(cluster) = &mut self.cluster {
                    cluster.orders.drained = true;
                }
                if leads {
                    self.transfer(slip, None);
                } else {
                    slip.done(Done::Accepted);
                }
            }
        }
    }

    fn transfer(&mut self, slip: Slip, to: Option<ticketing_raftlog::NodeId>) {
        if let Some(cluster) = &mut self.cluster {
            if cluster.orders.transfer.is_some() {
                return slip.done(Done::Later {
                    why: "leadership is being handed over already".to_owned(),
                });
            }
            cluster.orders.transfer = Some(slip);
        }
        self.step(Input::Transfer { to });
    }

    /// A hand-over has ended.
    pub(super) fn transfer_ended(&mut self, result: TransferResult) {
        let leader_slot = self.leader_slot();
        let Some(slip) = self.cluster.as_mut().and_then(|c| c.orders.transfer.take()) else {
            return;
        };
        slip.done(match result {
            TransferResult::SteppedDown => Done::Accepted,
            TransferResult::NotLeader => Done::NotLeader { leader_slot },
            TransferResult::TimedOut => Done::Later {
                why: "the other node has not taken over in time: this one leads on".to_owned(),
            },
            TransferResult::Busy => Done::Later {
                why: "leadership is being handed over already".to_owned(),
            },
            TransferResult::NoTarget => Done::Later {
                why: "no such voter is heard, has room on its disk, and has served clients for 4 s"
                    .to_owned(),
            },
        });
    }

    fn change(&mut self, slip: &Slip, change: Change) {
        if let Some(cluster) = &mut self.cluster {
            cluster.orders.refused = None;
        }
        self.step(Input::Change(change));
        let refused = self.cluster.as_mut().and_then(|c| c.orders.refused.take());
        let leader_slot = self.leader_slot();
        let later = |why: &str| Done::Later {
            why: why.to_owned(),
        };
        let refuse = |why: &str| Done::Refused {
            why: why.to_owned(),
        };
        slip.done(match refused {
            None => Done::Accepted,
            Some(ChangeRefusal::NotLeader) => Done::NotLeader { leader_slot },
            Some(ChangeRefusal::NotReady) => later("the leader is new and not ready yet"),
            Some(ChangeRefusal::Busy) => later("another change of members is on its way"),
            Some(ChangeRefusal::Transferring) => later("leadership is being handed over"),
            Some(ChangeRefusal::NotCaughtUp) => {
                later("the learner is not heard, or has not caught up with the log")
            }
            Some(ChangeRefusal::AlreadyMember) => refuse("that node is a member already"),
            Some(ChangeRefusal::NotLearner) => refuse(
                "that node is no learner: only learners can be removed, and only a learner can take a \
                 voter's place (ticketing member add-learner)",
            ),
            Some(ChangeRefusal::NotInSlot) => refuse("the slot has another voter now"),
            Some(ChangeRefusal::TooManyLearners) => {
                refuse("there are as many learners as there may be: remove one first")
            }
            Some(ChangeRefusal::SingleMode) => refuse("this is a single node: it has no members"),
        });
    }

    /// A change was not begun.
    pub(super) fn change_refused(&mut self, reason: ChangeRefusal) {
        if let Some(cluster) = &mut self.cluster {
            cluster.orders.refused = Some(reason);
        }
    }

    fn leader_slot(&self) -> Option<u8> {
        let leader = self.core.leader()?;
        self.core.config().config.slot_of(leader).map(|slot| slot.0)
    }

    /// Publishes what the admin address shows of the cluster, now and then.
    pub(super) fn publish_cluster(&mut self, now_ms: u64) {
        let leader_slot = self.leader_slot();
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let is_news = cluster.published.1 != (self.ready, leader_slot);
        if !is_news && now_ms < cluster.published.0 + PUBLISH_CLUSTER_MS {
            return;
        }
        cluster.published = (now_ms, (self.ready, leader_slot));
        let entry = self.core.config();
        let config = entry.config;
        let leads = self.core.role() == RaftRole::Leader;
        let member = |node| {
            let is_self = node == self.node_id;
            let progress = self.core.peers().find(|peer| peer.node == node);
            let is_connected = is_self || cluster.peers.is_connected(node);
            let role = if config.learners().contains(&node) {
                "learner"
            } else if config.replacement().is_some_and(|r| r.new == node) {
                "joining"
            } else if self.core.leader() == Some(node) {
                "leader"
            } else if is_self && self.core.role() != RaftRole::Follower {
                "candidate"
            } else {
                "follower"
            };
            let heard = progress.filter(|_| leads && !is_self);
            MemberView {
                slot: config.slot_of(node).map(|slot| slot.0),
                node_id: node.to_string(),
                role,
                is_self,
                synced_index: match heard {
                    Some(peer) => Some(peer.matched.0),
                    None => is_self.then(|| self.core.persisted().0),
                },
                last_contact_ms: heard.map(|peer| now_ms.saturating_sub(peer.heard_ms)),
                is_connected,
            }
        };
        let mut members: Vec<MemberView> = config.members().map(member).collect();
        if !config.is_member(self.node_id) {
            members.push(member(self.node_id));
        }
        let fingerprint = cluster_fingerprint(&cluster.cluster_id.0);
        cluster.view.set(ClusterState {
            cluster_id: cluster.cluster_id.to_string(),
            fingerprint: fingerprint
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            slot: cluster.slot,
            leader_slot,
            is_ready: self.ready,
            config_index: entry.index.0,
            config_committed: entry.index <= self.core.commit(),
            members,
        });
        if is_news {
            // Whoever leads now may be of those who hold other locks.
            self.judge_hashes();
        }
    }
}
