//! What sockets tell of a leader's death, before any timeout.
//!
//! When a process dies its machine closes its connections at once. A follower that sees its
//! leader's close connects again; if that is refused, or the one who answers says that it does not
//! lead, the follower forgets the leader and stands for election after a moment of its own. Pre-votes
//! make a false alarm harmless: voters that hear the leader refuse.

use super::core::Core;
use super::message::Body;
use super::types::{Output, Role};
use crate::types::NodeId;

/// How much longer each rank waits, in milliseconds: the one with the most of the log goes first.
const RANK_STEP_MS: u64 = 5;
/// The first wait's jitter.
const FIRST_JITTER_MS: u64 = 5;
/// Between two rounds of pre-votes: from, to.
const PRE_VOTE_RETRY_MS: (u64, u64) = (5, 10);
/// After split votes: from, to. Also how long one that would vote for another holds back itself.
const SPLIT_VOTE_RETRY_MS: (u64, u64) = (10, 30);

/// What is suspected.
#[derive(Debug, Default)]
pub(super) struct Hint {
    /// The leader's connection has closed; whether it still leads is being asked.
    suspect: Option<NodeId>,
    /// The leader is gone: until when to hurry.
    until_ms: Option<u64>,
    /// This node's place in line, as the last leader had it.
    pub(super) rank: u8,
}

impl Hint {
    /// A leader was heard.
    pub(super) fn clear(&mut self) {
        self.suspect = None;
        self.until_ms = None;
    }
}

impl Core {
    pub(super) fn peer_lost(&mut self, peer: NodeId) {
        if self.role == Role::Leader {
            // What was on its way is lost.
            if let Some(place) = self.peer_place(peer) {
                self.peers[place].connection_changed();
            }
        } else if self.leader == Some(peer) {
            self.hint.suspect = Some(peer);
        }
    }

    pub(super) fn peer_connected(&mut self, peer: NodeId, outputs: &mut Vec<Output>) {
        if self.role == Role::Leader {
            if let Some(place) = self.peer_place(peer) {
                self.peers[place].connection_changed();
                self.send_entries(place, outputs);
                self.send_chunk(place, outputs);
            }
        } else if self.is_suspected(peer) {
            self.send(peer, Body::DoYouLead, outputs);
        }
    }

    pub(super) fn peer_refused(&mut self, peer: NodeId) {
        if self.is_suspected(peer) {
            self.leader_is_gone();
        }
    }

    pub(super) fn answer_whether_it_leads(&mut self, from: NodeId, outputs: &mut Vec<Output>) {
        if self.role != Role::Leader {
            return self.send(from, Body::NotLeading, outputs);
        }
        if let Some(place) = self.peer_place(from) {
            self.send_heartbeat(place, outputs);
        }
    }

    /// A node of this term says that it does not lead.
    pub(super) fn told_not_leading(&mut self, from: NodeId) {
        if self.role == Role::Follower && self.leader == Some(from) {
            self.leader_is_gone();
        }
    }

    fn is_suspected(&self, peer: NodeId) -> bool {
        self.role == Role::Follower && self.leader == Some(peer) && self.hint.suspect == Some(peer)
    }

    fn leader_is_gone(&mut self) {
        self.leader = None;
        self.hint.suspect = None;
        self.hint.until_ms = Some(self.now_ms.saturating_add(self.timing.election_ms));
        let rank_ms = u64::from(self.hint.rank) * RANK_STEP_MS;
        let wait_ms = rank_ms + self.jitter.between(0, FIRST_JITTER_MS);
        self.election_at_ms = self.now_ms.saturating_add(wait_ms);
    }

    fn hurries(&self) -> bool {
        self.hint
            .until_ms
            .is_some_and(|until_ms| self.now_ms < until_ms)
    }

    /// How long until the next round of pre-votes.
    pub(super) fn pre_vote_retry_ms(&mut self) -> u64 {
        let heartbeat_ms = self.timing.heartbeat_ms;
        let (from_ms, to_ms) = match self.hurries() {
            true => PRE_VOTE_RETRY_MS,
            // A pre-vote disturbs nobody, so there is no need to wait for a whole timeout.
            false => (heartbeat_ms, 2 * heartbeat_ms),
        };
        self.jitter.between(from_ms, to_ms + 1)
    }

    /// How long until the next election after votes were split.
    pub(super) fn split_vote_retry_ms(&mut self) -> u64 {
        let election_ms = self.timing.election_ms;
        let (from_ms, to_ms) = match self.hurries() {
            true => SPLIT_VOTE_RETRY_MS,
            false => (election_ms / 4, election_ms / 2),
        };
        self.jitter.between(from_ms, to_ms + 1)
    }

    /// Another would be elected: this node holds back for a moment.
    pub(super) fn give_way(&mut self) {
        let (from_ms, to_ms) = SPLIT_VOTE_RETRY_MS;
        let wait_ms = self.jitter.between(from_ms, to_ms + 1);
        let at_ms = self.now_ms.saturating_add(wait_ms);
        self.election_at_ms = self.election_at_ms.max(at_ms);
    }
}
