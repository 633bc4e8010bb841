//! What a node knows of each of its peers.

use super::config::ConfigEntry;
use super::message::{Report, Snapshot};
use crate::types::{LogIndex, NodeId};

/// One peer, as a leader or a candidate sees it.
#[derive(Debug, Clone)]
pub(super) struct Progress {
    pub(super) id: NodeId,
    /// Its log is ours up to here, and persisted.
    pub(super) matched: LogIndex,
    /// The next entry to send.
    pub(super) next: LogIndex,
    /// What it was known to have, persisted or not, when streaming began: the window is counted
    /// from here until more than that matches. A log may begin anywhere, so not from 0.
    pub(super) streamed_from: LogIndex,
    pub(super) state: State,
    /// When it was last heard in this term.
    pub(super) heard_ms: u64,
    /// The last round of heartbeats that it answered.
    pub(super) answered_round: u64,
    /// `next` when the last heartbeat was sent: what was sent before it should have arrived.
    pub(super) next_at_round: LogIndex,
    /// Its vote, or its answer whether it would vote.
    pub(super) vote: Option<bool>,
    pub(super) report: Option<Report>,
    /// It is no member any more, and is only told so: until when it is tried.
    pub(super) leaving_until_ms: Option<u64>,
}

/// How entries go to a peer.
#[derive(Debug, Clone, Copy)]
#[allow(clippy::large_enum_variant)] // There are ten of them at most.
pub(super) enum State {
    /// Where the logs part is not known: one append at a time, until one fits.
    Probe {
        /// One is on its way.
        waiting: bool,
    },
    /// Everything goes out at once, within the window.
    Stream,
    /// What it needs is not in the log any more.
    Snapshot(Sending),
}

/// A snapshot on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending {
    pub(super) snapshot: Snapshot,
    pub(super) config: ConfigEntry,
    /// The next byte.
    pub(super) offset: u64,
    /// When the last chunk was sent, or answered.
    pub(super) moved_ms: u64,
}

impl Progress {
    pub(super) fn new(id: NodeId, next: LogIndex, now_ms: u64) -> Self {
        Self {
            id,
            matched: LogIndex(0),
            next,
            streamed_from: LogIndex(0),
            state: State::Probe { waiting: false },
            heard_ms: now_ms,
            answered_round: 0,
            next_at_round: next,
            vote: None,
            report: None,
            leaving_until_ms: None,
        }
    }

    /// Begins anew with finding out where the logs part, at `next` or behind what matches.
    pub(super) fn probe_from(&mut self, next: LogIndex) {
        self.next = next.max(self.matched.next());
        self.next_at_round = self.next;
        self.streamed_from = self.streamed_from.min(self.next.previous());
        self.state = State::Probe { waiting: false };
    }

    /// Everything before `next` is known to have arrived.
    pub(super) fn stream_from(&mut self, next: LogIndex) {
        self.next = next.max(self.matched.next());
        self.next_at_round = self.next_at_round.min(self.next);
        self.streamed_from = self.next.previous();
        self.state = State::Stream;
    }

    /// What was on its way may be lost: what is sent next shows what arrived.
    pub(super) fn connection_changed(&mut self) {
        match self.state {
            State::Probe { .. } => self.probe_from(self.next),
            State::Stream => self.probe_from(self.acknowledged().next()),
            State::Snapshot(_) => {}
        }
    }

    /// Up to where it is known to have what it was sent.
    pub(super) fn acknowledged(&self) -> LogIndex {
        self.matched.max(self.streamed_from)
    }

    /// Whether its disk has room, as far as is known.
    pub(super) fn has_room(&self) -> bool {
        self.report.is_none_or(|report| report.has_room)
    }

    pub(super) fn is_fit(&self) -> bool {
        self.report
            .is_some_and(|report| report.has_room && report.fit_to_lead)
    }
}
