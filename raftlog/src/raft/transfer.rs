//! Handing leadership over (thesis 3.10).

use super::core::Core;
use super::message::Body;
use super::types::{Output, Role, TransferResult};
use crate::types::NodeId;

/// A transfer on its way. Proposals are refused for as long as it is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    /// To whom.
    to: NodeId,
    /// When it is given up.
    pub(super) until_ms: u64,
    /// The target was told to stand for election.
    told: bool,
    /// This leader is no member any more: it steps down whatever comes of it.
    pub(super) leaves: bool,
}

impl Core {
    pub(super) fn start_transfer(&mut self, to: Option<NodeId>, outputs: &mut Vec<Output>) {
        let end = |result, outputs: &mut Vec<Output>| {
            outputs.push(Output::TransferEnded { result });
        };
        if self.role != Role::Leader {
            return end(TransferResult::NotLeader, outputs);
        }
        if self.transfer.is_some() {
            return end(TransferResult::Busy, outputs);
        }
        let Some(to) = self.best_successor(to, true) else {
            return end(TransferResult::NoTarget, outputs);
        };
        self.begin_transfer(to, false, outputs);
    }

    fn begin_transfer(&mut self, to: NodeId, leaves: bool, outputs: &mut Vec<Output>) {
        self.transfer = Some(Transfer {
            to,
            until_ms: self.now_ms.saturating_add(self.timing.election_ms),
            told: false,
            leaves,
        });
        self.push_transfer(outputs);
    }

    /// The voter with the most of the log among those that are heard and, if asked for, fit to
    /// lead; only `wanted`, if that is given.
    fn best_successor(&self, wanted: Option<NodeId>, fit: bool) -> Option<NodeId> {
        let settled = self.config_now().settled();
        let candidates = self.peers.iter().filter(|peer| {
            let heard = self.now_ms.saturating_sub(peer.heard_ms) < self.timing.election_ms;
            settled.voters().contains(&peer.id)
                && wanted.is_none_or(|wanted| wanted == peer.id)
                && heard
                && (peer.is_fit() || !fit)
        });
        // The first of those with the most.
        let best = candidates.rev().max_by_key(|peer| peer.matched)?;
        Some(best.id)
    }

    /// Tells the target to stand for election once it has everything.
    pub(super) fn push_transfer(&mut self, outputs: &mut Vec<Output>) {
        let Some(transfer) = &mut self.transfer else {
            return;
        };
        let last = self.log.last().index;
        let peer = self.peers.iter().find(|peer| peer.id == transfer.to);
        if !transfer.told && peer.is_some_and(|peer| peer.matched == last) {
            transfer.told = true;
            let (to, leaves) = (transfer.to, transfer.leaves);
            self.send(to, Body::TimeoutNow, outputs);
            if leaves {
                self.resign(outputs);
            }
        }
    }

    pub(super) fn tick_transfer(&mut self, outputs: &mut Vec<Output>) {
        match self.transfer {
            Some(transfer) if self.now_ms >= transfer.until_ms => {
                if transfer.leaves {
                    return self.resign(outputs);
                }
                self.transfer = None;
                let result = TransferResult::TimedOut;
                outputs.push(Output::TransferEnded { result });
                self.go_on_with_change(outputs);
            }
            Some(_) => {}
            None => self.look_for_room(outputs),
        }
    }

    /// A leader whose disk is full hands over to a voter whose is not.
    fn look_for_room(&mut self, outputs: &mut Vec<Output>) {
        if self.report.has_room || self.now_ms < self.room_search_at_ms {
            return;
        }
        if let Some(to) = self.best_successor(None, true) {
            self.room_search_at_ms = self.now_ms.saturating_add(2 * self.timing.election_ms);
            self.begin_transfer(to, false, outputs);
        }
    }

    /// Leadership is lost, to the target or somebody else.
    pub(super) fn leave_transfer(&mut self, outputs: &mut Vec<Output>) {
        if self.transfer.take().is_some() {
            let result = TransferResult::SteppedDown;
            outputs.push(Output::TransferEnded { result });
        }
    }

    /// The leader is no member of the committed configuration: it hands over, and steps down.
    pub(super) fn leave_leadership(&mut self, outputs: &mut Vec<Output>) {
        let fit = self.best_successor(None, true);
        match fit.or_else(|| self.best_successor(None, false)) {
            Some(to) => self.begin_transfer(to, true, outputs),
            None => self.resign(outputs),
        }
    }

    /// The leader wants this node to take over: a pre-vote would only be refused.
    pub(super) fn stand_at_once(&mut self, from: NodeId, outputs: &mut Vec<Output>) {
        if self.role == Role::Follower && self.leader == Some(from) && self.may_campaign() {
            self.campaign(true, outputs);
        }
    }

    /// Whether a majority of the voters has room on its disk, this node included; who has not told
    /// yet counts as having some.
    #[must_use]
    pub fn quorum_has_room(&self) -> bool {
        let own = u64::from(self.report.has_room);
        self.quorum_value(own, |peer| u64::from(peer.has_room())) == 1
    }
}
