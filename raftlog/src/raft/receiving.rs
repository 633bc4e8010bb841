//! What peers send: whose turn it is, and whose term is over.

use super::core::Core;
use super::message::{Body, Message};
use super::types::{Output, Role};
use crate::limits::MAX_TERM;
use crate::types::{NodeId, Term};

impl Core {
    pub(super) fn receive(&mut self, from: NodeId, message: Message, outputs: &mut Vec<Output>) {
        let Message { term, body } = message;
        if from == self.node_id || term.0 > MAX_TERM {
            return;
        }
        match body {
            Body::PreVote { last } => return self.answer_pre_vote(from, term, last, outputs),
            Body::Vote { last, transfer } => {
                return self.answer_vote(from, term, last, transfer, outputs);
            }
            Body::PreVoteAnswer { granted: true } => {
                return self.pre_vote_granted(from, term, outputs);
            }
            Body::DoYouLead => return self.answer_whether_it_leads(from, outputs),
            _ => {}
        }
        let leads = matches!(
            body,
            Body::Append { .. } | Body::Heartbeat { .. } | Body::SnapshotChunk { .. }
        );
        if term < self.hard.term {
            if leads || body == Body::TimeoutNow {
                self.send(from, Body::TermOver, outputs);
            }
            return;
        }
        if leads {
            if !self.follow(from, term, outputs) {
                return;
            }
        } else if term > self.hard.term {
            if body == Body::TimeoutNow {
                return;
            }
            self.become_follower(term, None, outputs);
        }
        match body {
            Body::Append {
                previous,
                run,
                commit,
            } => self.take_entries(from, previous, run, commit, outputs),
            Body::Heartbeat {
                round,
                commit,
                rank,
            } => self.take_heartbeat(from, round, commit, rank, outputs),
            Body::SnapshotChunk {
                snapshot,
                config,
                offset,
                bytes,
            } => self.take_chunk(from, snapshot, config, offset, bytes, outputs),
            Body::TimeoutNow => self.stand_at_once(from, outputs),
            Body::NotLeading => self.told_not_leading(from),
            Body::VoteAnswer { granted } => self.count_vote(from, granted, outputs),
            Body::PreVoteAnswer { .. } => self.pre_vote_refused(from),
            Body::Matched { up_to } => self.peer_matched(from, up_to, outputs),
            Body::Conflict { refused, hint } => self.peer_conflict(from, refused, hint, outputs),
            Body::NeedsSnapshot => self.peer_needs_snapshot(from, outputs),
            Body::HeartbeatAnswer {
                round,
                received,
                report,
            } => self.heartbeat_answered(from, round, received, report, outputs),
            Body::SnapshotAnswer {
                snapshot,
                next_offset,
            } => self.snapshot_answered(from, snapshot, next_offset, outputs),
            Body::TermOver | Body::PreVote { .. } | Body::Vote { .. } | Body::DoYouLead => {}
        }
    }

    /// A message that only a leader sends, of a term that is not over. False if this node leads
    /// in it itself, or knows another to: the sender lies.
    fn follow(&mut self, from: NodeId, term: Term, outputs: &mut Vec<Output>) -> bool {
        let same_term = term == self.hard.term;
        if same_term && (self.role == Role::Leader || self.leader.is_some_and(|l| l != from)) {
            return false;
        }
        if !same_term || self.role != Role::Follower || self.leader.is_none() {
            self.become_follower(term, Some(from), outputs);
        }
        self.heard_leader_ms = self.now_ms;
        self.hint.clear();
        self.wait_for_a_leader();
        true
    }
}
