//! Becoming a follower, and telling what a node is.

use super::core::Core;
use super::message::Body;
use super::types::{Output, Role};
use crate::types::{HardState, LogIndex, NodeId, Term};

impl Core {
    /// Follows in a term, not below the current one.
    pub(super) fn become_follower(
        &mut self,
        term: Term,
        leader: Option<NodeId>,
        outputs: &mut Vec<Output>,
    ) {
        if self.role == Role::Leader {
            self.give_up_confirms(outputs);
            self.leave_transfer(outputs);
        }
        if term > self.hard.term {
            self.set_hard(HardState {
                term,
                voted_for: None,
            });
            self.vote_due = None;
            // What is committed is in every later leader's log (5.4); of the rest nothing is known.
            self.verified = self.commit;
            self.acknowledged = LogIndex(0);
            self.acknowledgement_due = false;
        }
        self.role = Role::Follower;
        self.leader = leader;
        self.by_transfer = false;
    }

    /// Gives leadership up without knowing of another leader, and says so: the others need not
    /// wait for the silence.
    pub(super) fn resign(&mut self, outputs: &mut Vec<Output>) {
        self.become_follower(self.hard.term, None, outputs);
        self.wait_for_a_leader();
        for place in 0..self.peers.len() {
            let to = self.peers[place].id;
            self.send(to, Body::NotLeading, outputs);
        }
    }

    pub(super) fn set_hard(&mut self, hard: HardState) {
        self.hard = hard;
        self.hard_persisted = false;
        self.hard_unasked = true;
        self.disk_works();
    }

    /// Asks for what has changed to be persisted, and tells the role if it is another.
    pub(super) fn tell_role(&mut self, outputs: &mut Vec<Output>) {
        if self.hard_unasked {
            self.hard_unasked = false;
            outputs.push(Output::PersistHardState(self.hard));
        }
        let now = (self.role, self.hard.term, self.leader);
        if now != self.told {
            self.told = now;
            let (role, term, leader) = now;
            outputs.push(Output::RoleChanged { role, term, leader });
        }
    }
}
