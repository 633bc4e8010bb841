//! Elections (paper 5.2, 5.4.1; thesis 9.6).

use super::bugs::Bug;
use super::core::Core;
use super::message::{Body, EntryId, Message};
use super::progress::Progress;
use super::types::{Output, Role};
use crate::limits::MAX_TERM;
use crate::types::{HardState, NodeId, Term};

impl Core {
    /// Puts this node's own candidacy off by an election timeout.
    pub(super) fn wait_for_a_leader(&mut self) {
        let timeout_ms = self.timing.election_ms;
        let wait_ms = self.jitter.between(timeout_ms, 2 * timeout_ms);
        self.election_at_ms = self.now_ms.saturating_add(wait_ms);
    }

    /// Whether this node may stand for election: it is a voter as far as its log says, its disk
    /// can take a vote, and its log is not about to be replaced.
    pub(super) fn may_campaign(&self) -> bool {
        self.role != Role::Leader
            && self.config_now().is_voter(self.node_id)
            && !self.disk_hangs()
            && !self.is_installing()
            && self.hard.term.0 < MAX_TERM
    }

    /// Asks whether it would be elected; the only voter knows.
    pub(super) fn ask_for_votes(&mut self, outputs: &mut Vec<Output>) {
        if self.config_now().is_single() {
            if self.role != Role::Candidate {
                self.campaign(false, outputs);
            }
            return;
        }
        self.role = Role::PreCandidate;
        self.by_transfer = false;
        // What this node believed of a leader is over, for itself and for those that ask it: two
        // that ask each other must not both refuse.
        self.leader = None;
        self.know_voters();
        let retry_ms = self.pre_vote_retry_ms();
        self.election_at_ms = self.now_ms.saturating_add(retry_ms);
        let term = Term(self.hard.term.0 + 1);
        let body = Body::PreVote { last: self.last() };
        self.send_to_voters(Message { term, body }, outputs);
    }

    /// Stands for election: a new term, and its own vote, persisted before it counts and before
    /// others are asked: one term's campaign then has one log behind it.
    pub(super) fn campaign(&mut self, by_transfer: bool, outputs: &mut Vec<Output>) {
        self.become_follower(Term(self.hard.term.0 + 1), None, outputs);
        self.set_hard(HardState {
            term: self.hard.term,
            voted_for: Some(self.node_id),
        });
        self.role = Role::Candidate;
        self.by_transfer = by_transfer;
        self.know_voters();
        self.wait_for_a_leader();
    }

    /// The candidate's own vote is persisted.
    pub(super) fn own_vote_counts(&mut self, outputs: &mut Vec<Output>) {
        if self.has_won() {
            return self.lead(outputs);
        }
        let body = Body::Vote {
            last: self.last(),
            transfer: self.by_transfer,
        };
        let term = self.hard.term;
        self.send_to_voters(Message { term, body }, outputs);
    }

    pub(super) fn answer_pre_vote(
        &mut self,
        from: NodeId,
        term: Term,
        last: EntryId,
        outputs: &mut Vec<Output>,
    ) {
        if term <= self.hard.term {
            // With this node's term the other can ask again; without, two that each refuse the
            // other, for its term and for its log, would do so for ever.
            return self.send(from, Body::PreVoteAnswer { granted: false }, outputs);
        }
        if self.has_live_leader() || last < self.last() {
            return self.send(from, Body::PreVoteAnswer { granted: false }, outputs);
        }
        // Two that ask at once would split the votes.
        if self.role == Role::PreCandidate {
            self.role = Role::Follower;
        }
        self.give_way();
        let body = Body::PreVoteAnswer { granted: true };
        let message = Message { term, body };
        outputs.push(Output::Send { to: from, message });
    }

    pub(super) fn pre_vote_granted(&mut self, from: NodeId, term: Term, outputs: &mut Vec<Output>) {
        if self.role != Role::PreCandidate || term.0 != self.hard.term.0 + 1 {
            return;
        }
        self.note_vote(from, true);
        if self.has_won() {
            self.campaign(false, outputs);
        }
    }

    pub(super) fn pre_vote_refused(&mut self, from: NodeId) {
        if self.role == Role::PreCandidate {
            self.note_vote(from, false);
        } else if self.leader.is_none() && self.role == Role::Follower {
            // The refusal brought a later term: ask again, in that.
            let retry_ms = self.pre_vote_retry_ms();
            let at_ms = self.now_ms.saturating_add(retry_ms);
            self.election_at_ms = self.election_at_ms.min(at_ms);
        }
    }

    pub(super) fn answer_vote(
        &mut self,
        from: NodeId,
        term: Term,
        last: EntryId,
        transfer: bool,
        outputs: &mut Vec<Output>,
    ) {
        if term < self.hard.term {
            return self.send(from, Body::VoteAnswer { granted: false }, outputs);
        }
        if term > self.hard.term {
            // Who hears a leader lets nobody disturb it, unless it wants so (thesis 4.2.3).
            if !transfer && self.has_live_leader() {
                return;
            }
            self.become_follower(term, None, outputs);
        }
        let voted_for = self.hard.voted_for;
        let free = voted_for.is_none() && self.leader.is_none() || voted_for == Some(from);
        let free = free || self.makes(Bug::VotesTwice);
        let stands = matches!(self.role, Role::Candidate | Role::Leader);
        if !free || stands || last < self.last() {
            return self.send(from, Body::VoteAnswer { granted: false }, outputs);
        }
        if voted_for != Some(from) {
            self.set_hard(HardState {
                term,
                voted_for: Some(from),
            });
        }
        self.role = Role::Follower;
        self.wait_for_a_leader();
        self.vote_due = Some(from);
        self.give_vote(outputs);
    }

    /// Gives the vote that is due, once it is persisted.
    pub(super) fn give_vote(&mut self, outputs: &mut Vec<Output>) {
        let may = self.hard_persisted || self.makes(Bug::AnswersBeforePersisting);
        if let Some(to) = self.vote_due.take_if(|_| may) {
            self.send(to, Body::VoteAnswer { granted: true }, outputs);
        }
    }

    pub(super) fn count_vote(&mut self, from: NodeId, granted: bool, outputs: &mut Vec<Output>) {
        if self.role != Role::Candidate || !self.hard_persisted {
            return;
        }
        self.note_vote(from, granted);
        if self.has_won() {
            self.lead(outputs);
        } else if !granted {
            // The votes are split, or this log is behind: no use in waiting for a timeout.
            let retry_ms = self.split_vote_retry_ms();
            let at_ms = self.now_ms.saturating_add(retry_ms);
            self.election_at_ms = self.election_at_ms.min(at_ms);
        }
    }

    /// Whether a leader is, or was within the last election timeout.
    pub(super) fn has_live_leader(&self) -> bool {
        let heard_ms = self.now_ms.saturating_sub(self.heard_leader_ms);
        self.role == Role::Leader || self.leader.is_some() && heard_ms < self.timing.election_ms
    }

    fn has_won(&self) -> bool {
        self.quorum_value(1, |peer| u64::from(peer.vote == Some(true))) == 1
    }

    fn note_vote(&mut self, from: NodeId, granted: bool) {
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.id == from) {
            // A refusal that overtakes nothing: one that was granted stays so in its term.
            peer.vote = Some(granted || peer.vote == Some(true));
        }
    }

    /// Forgets what was known of the peers: a new election begins.
    fn know_voters(&mut self) {
        self.peers.clear();
        let config = *self.config_now();
        let next = self.last().index.next();
        let now_ms = self.now_ms;
        let others = config.members().filter(|member| *member != self.node_id);
        self.peers
            .extend(others.map(|member| Progress::new(member, next, now_ms)));
    }

    fn send_to_voters(&self, message: Message, outputs: &mut Vec<Output>) {
        let config = self.config_now();
        for peer in &self.peers {
            if config.is_voter(peer.id) || self.makes(Bug::LearnersVote) {
                outputs.push(Output::Send {
                    to: peer.id,
                    message,
                });
            }
        }
    }
}
