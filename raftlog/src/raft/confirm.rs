//! Rounds of heartbeats, and the confirmation of leadership by one (thesis 6.2, 6.4).

use std::collections::VecDeque;

use super::bugs::Bug;
use super::core::Core;
use super::message::{Body, Report};
use super::progress::State;
use super::types::{Output, Role};
use crate::limits::MAX_CONFIRMS;
use crate::types::{LogIndex, NodeId};

/// Requests that wait for a round to be answered.
#[derive(Debug)]
pub(super) struct Confirms {
    /// Oldest first; rounds and indexes never fall.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    request: u64,
    /// The first round sent after the request had come.
    round: u64,
    index: LogIndex,
}

impl Confirms {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(MAX_CONFIRMS),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Core {
    pub(super) fn confirm(&mut self, request: u64, outputs: &mut Vec<Output>) {
        if self.role != Role::Leader || self.confirms.waiting.len() == MAX_CONFIRMS {
            return outputs.push(Output::NotConfirmed { request });
        }
        // Until its no-op is committed a leader's commit index may be behind what others have
        // committed; all of that is before the no-op (section 8).
        let index = match self.makes(Bug::NoNoop) {
            true => self.commit,
            false => self.commit.max(self.term_start),
        };
        let round = self.round + 1;
        let waiting = Waiting {
            request,
            round,
            index,
        };
        self.confirms.waiting.push_back(waiting);
        // Requests that come while a round is on its way share the next one.
        if self.answered_round() == self.round {
            self.begin_round(outputs);
        }
    }

    /// Sends a heartbeat to every peer.
    pub(super) fn begin_round(&mut self, outputs: &mut Vec<Output>) {
        self.round += 1;
        self.heartbeat_at_ms = self.now_ms.saturating_add(self.timing.heartbeat_ms);
        let change_is_pending = self.configs.current().index > self.commit;
        let now_ms = self.now_ms;
        self.peers.retain(|peer| {
            let until_ms = peer.leaving_until_ms;
            until_ms.is_none_or(|until_ms| change_is_pending || now_ms < until_ms)
        });
        for place in 0..self.peers.len() {
            self.send_heartbeat(place, outputs);
        }
        self.answer_confirms(outputs);
    }

    /// Sends a heartbeat of this round.
    pub(super) fn send_heartbeat(&mut self, place: usize, outputs: &mut Vec<Output>) {
        let rank = self.rank_of(place);
        let round = self.round;
        let peer = &mut self.peers[place];
        peer.next_at_round = peer.next;
        let commit = self.commit.min(peer.matched);
        let to = peer.id;
        let body = Body::Heartbeat {
            round,
            commit,
            rank,
        };
        self.send(to, body, outputs);
    }

    /// A peer's place among the voters but this one, the one with the most of the log first.
    fn rank_of(&self, place: usize) -> u8 {
        let (config, peer) = (self.config_now(), &self.peers[place]);
        let before = self.peers.iter().enumerate().filter(|(at, other)| {
            let further = other.matched > peer.matched;
            config.is_voter(other.id) && (further || other.matched == peer.matched && *at < place)
        });
        before.count() as u8
    }

    pub(super) fn heartbeat_answered(
        &mut self,
        from: NodeId,
        round: u64,
        received: LogIndex,
        report: Report,
        outputs: &mut Vec<Output>,
    ) {
        let Some(place) = self.heard_from(from) else {
            return;
        };
        if round > self.round || received > self.last().index {
            return;
        }
        let is_newest = round == self.round;
        let now_ms = self.now_ms;
        let stuck_ms = self.timing.election_ms;
        let peer = &mut self.peers[place];
        peer.report = Some(report);
        peer.answered_round = peer.answered_round.max(round);
        match &mut peer.state {
            // What arrived is known without waiting for its sync.
            State::Probe { .. } if received >= peer.next.previous() => {
                peer.stream_from(received.next());
            }
            // The probe, or its answer, may be lost.
            State::Probe { waiting } => *waiting = false,
            // So may be what was sent before this round's heartbeat.
            State::Stream if is_newest && received.next() < peer.next_at_round => {
                peer.probe_from(received.next());
            }
            State::Stream => {}
            State::Snapshot(sending) => {
                if now_ms.saturating_sub(sending.moved_ms) >= stuck_ms {
                    self.send_chunk(place, outputs);
                }
            }
        }
        self.send_entries(place, outputs);
        if is_newest {
            self.answer_confirms(outputs);
            let more = self.confirms.waiting.back().map(|waiting| waiting.round);
            if more > Some(self.round) && self.answered_round() == self.round {
                self.begin_round(outputs);
            }
        }
        self.push_transfer(outputs);
    }

    /// The last round that a majority has answered.
    fn answered_round(&self) -> u64 {
        self.quorum_value(self.round, |peer| peer.answered_round)
    }

    /// Answers what a majority has confirmed, once it is committed.
    pub(super) fn answer_confirms(&mut self, outputs: &mut Vec<Output>) {
        if self.confirms.is_empty() {
            return;
        }
        let answered = self.answered_round();
        while let Some(first) = self.confirms.waiting.front().copied()
            && first.round <= answered
            && first.index <= self.commit
        {
            self.confirms.waiting.pop_front();
            outputs.push(Output::Confirmed {
                request: first.request,
                index: first.index,
            });
        }
    }

    /// Leadership is lost.
    pub(super) fn give_up_confirms(&mut self, outputs: &mut Vec<Output>) {
        for Waiting { request, .. } in self.confirms.waiting.drain(..) {
            outputs.push(Output::NotConfirmed { request });
        }
    }
}
