//! A leader's part in replication (paper 5.3, 5.4.2; thesis 10.2).

use super::bugs::Bug;
use super::config::ConfigEntry;
use super::core::Core;
use super::extents::Piece;
use super::message::{Body, EntryId, Run};
use super::progress::{Progress, State};
use super::start::ExtentKind;
use super::types::{AppendKind, Output, RefusalReason, Role, Source};
use crate::limits::{
    LEARNER_APPEND_ENTRIES, LEARNER_WINDOW_ENTRIES, MAX_APPEND_ENTRIES, MAX_PROPOSAL_BYTES,
    MAX_RECORDS_PER_BATCH, MAX_UNCOMMITTED_BYTES, MAX_UNCOMMITTED_ENTRIES, WINDOW_BYTES,
    WINDOW_ENTRIES,
};
use crate::types::{LogIndex, NodeId, Term};

impl Core {
    /// The election is won.
    pub(super) fn lead(&mut self, outputs: &mut Vec<Output>) {
        self.role = Role::Leader;
        self.leader = Some(self.node_id);
        self.by_transfer = false;
        self.hint.clear();
        self.incoming = None;
        self.snapshot_wanted = false;
        self.term_start = self.last().index.next();
        self.peers.clear();
        self.sync_peers();
        self.tell_role(outputs);
        if !self.makes(Bug::NoNoop) {
            self.append_own(1, 0, AppendKind::Noop, outputs);
        }
        self.send_entries_to_all(outputs);
        self.begin_round(outputs);
    }

    pub(super) fn propose(&mut self, count: u32, bytes: u64, outputs: &mut Vec<Output>) {
        assert!(
            (1..=MAX_RECORDS_PER_BATCH).contains(&count),
            "a proposal of {count} entries"
        );
        assert!(bytes <= MAX_PROPOSAL_BYTES, "a proposal of {bytes} bytes");
        let (entries, uncommitted_bytes) = self.uncommitted();
        let reason = if self.role != Role::Leader {
            RefusalReason::NotLeader
        } else if self.transfer.is_some() {
            RefusalReason::Transferring
        } else if entries + u64::from(count) > MAX_UNCOMMITTED_ENTRIES
            || uncommitted_bytes + bytes > MAX_UNCOMMITTED_BYTES
        {
            RefusalReason::Full
        } else {
            self.append_own(count, bytes, AppendKind::Commands, outputs);
            return self.send_entries_to_all(outputs);
        };
        outputs.push(Output::ProposalRefused { count, reason });
    }

    /// Appends to a leader's log.
    pub(super) fn append_own(
        &mut self,
        count: u32,
        bytes: u64,
        kind: AppendKind,
        outputs: &mut Vec<Output>,
    ) {
        let term = self.hard.term;
        self.append(count, bytes, term, kind, Source::Own, outputs);
        if let AppendKind::Config(_) = kind {
            self.sync_peers();
        }
        if self.makes(Bug::LeaderCountsUnpersisted) {
            self.commit_what_a_quorum_has(outputs);
        }
    }

    /// Appends to the log; what it follows from is persisted before it.
    pub(super) fn append(
        &mut self,
        count: u32,
        bytes: u64,
        term: Term,
        kind: AppendKind,
        source: Source,
        outputs: &mut Vec<Output>,
    ) {
        self.tell_role(outputs);
        let first = self.last().index.next();
        self.log
            .push(u64::from(count), term, kind.extent_kind(), bytes);
        self.disk_works();
        outputs.push(Output::Append {
            first,
            count,
            term,
            kind,
            source,
        });
        if let AppendKind::Config(config) = kind {
            let index = first;
            self.config_appended(ConfigEntry { index, config }, outputs);
        }
    }

    /// How many entries and bytes of this leadership are not committed.
    pub(super) fn uncommitted(&self) -> (u64, u64) {
        let committed = self.commit.max(self.term_start.previous());
        let last = self.last().index.max(committed);
        let bytes = self.log.total_bytes() - self.log.bytes_through(committed);
        (last.0 - committed.0, bytes)
    }

    /// The peers that a leader has, by the configuration in force; what is known of those that
    /// stay is kept.
    pub(super) fn sync_peers(&mut self) {
        let config = *self.config_now();
        let next = self.last().index.next();
        let now_ms = self.now_ms;
        let farewell_ms = now_ms.saturating_add(2 * self.timing.election_ms);
        for peer in &mut self.peers {
            // Who is no member any more is sent entries for a while, so that it learns so.
            peer.leaving_until_ms = match config.is_member(peer.id) {
                true => None,
                false => peer.leaving_until_ms.or(Some(farewell_ms)),
            };
        }
        for member in config.members() {
            let known = self.peers.iter().any(|peer| peer.id == member);
            if member != self.node_id && !known {
                self.peers.push(Progress::new(member, next, now_ms));
            }
        }
    }

    pub(super) fn peer_place(&self, id: NodeId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.id == id)
    }

    pub(super) fn send_entries_to_all(&mut self, outputs: &mut Vec<Output>) {
        for place in 0..self.peers.len() {
            self.send_entries(place, outputs);
        }
    }

    /// Sends a peer what it lacks, as far as its window has room.
    pub(super) fn send_entries(&mut self, place: usize, outputs: &mut Vec<Output>) {
        loop {
            let peer = &self.peers[place];
            let streams = match peer.state {
                State::Probe { waiting: false } => false,
                State::Stream => true,
                State::Probe { waiting: true } | State::Snapshot(_) => return,
            };
            let previous = peer.next.previous();
            if streams && (peer.next > self.last().index || self.window_is_full(peer)) {
                return;
            }
            let Some(term) = self.log.term_at(previous) else {
                return self.begin_snapshot(place, outputs);
            };
            let run = self.run_after(previous, self.most_at_once(peer.id).0);
            let body = Body::Append {
                previous: EntryId {
                    term,
                    index: previous,
                },
                run,
                commit: self.commit,
            };
            self.send(self.peers[place].id, body, outputs);
            let peer = &mut self.peers[place];
            if !streams {
                peer.state = State::Probe { waiting: true };
                return;
            }
            peer.next = peer.next.plus(u64::from(run.count));
        }
    }

    fn window_is_full(&self, peer: &Progress) -> bool {
        let sent = peer.next.previous();
        let acknowledged = peer.acknowledged();
        let bytes = self.log.bytes_through(sent);
        sent.0 - acknowledged.0 >= self.most_at_once(peer.id).1
            || bytes.saturating_sub(self.log.bytes_through(acknowledged)) >= WINDOW_BYTES
    }

    /// Most entries in one message to a node, and on their way to it. A learner gets what it lacks in small
    /// pieces: the leader has others to serve.
    fn most_at_once(&self, id: NodeId) -> (u64, u64) {
        match self.config_now().learners().contains(&id) {
            true => (LEARNER_APPEND_ENTRIES, LEARNER_WINDOW_ENTRIES),
            false => (u64::from(MAX_APPEND_ENTRIES), WINDOW_ENTRIES),
        }
    }

    /// What one message of at most `most` entries carries of what is behind `previous`; nothing if that is
    /// the last.
    fn run_after(&self, previous: LogIndex, most: u64) -> Run {
        let Some(piece) = self.log.piece_after(previous, most) else {
            return Run {
                term: self.hard.term,
                count: 0,
                bytes: 0,
                kind: AppendKind::Commands,
            };
        };
        let Piece {
            term, count, bytes, ..
        } = piece;
        let kind = match piece.kind {
            ExtentKind::Noop => AppendKind::Noop,
            ExtentKind::Commands => AppendKind::Commands,
            ExtentKind::Config => match self.configs.at(previous.next()) {
                Some(entry) => AppendKind::Config(entry.config),
                None => unreachable!("every configuration in the log is known"),
            },
        };
        Run {
            term,
            count,
            bytes,
            kind,
        }
    }

    /// A peer has the log up to an index, persisted.
    pub(super) fn peer_matched(
        &mut self,
        from: NodeId,
        up_to: LogIndex,
        outputs: &mut Vec<Output>,
    ) {
        let Some(place) = self.heard_from(from) else {
            return;
        };
        if up_to > self.last().index {
            return;
        }
        let base = self.log.base().index;
        let peer = &mut self.peers[place];
        let grown = up_to > peer.matched;
        peer.matched = peer.matched.max(up_to);
        match peer.state {
            State::Probe { .. } if up_to.next() >= peer.next => peer.stream_from(up_to.next()),
            // It has the snapshot, or got what this log goes on behind another way. If the log has
            // lost more meanwhile, it needs another.
            State::Snapshot(sending) if up_to >= sending.snapshot.last.index.min(base) => {
                peer.probe_from(up_to.next());
            }
            _ => peer.next = peer.next.max(up_to.next()),
        }
        if grown {
            self.commit_what_a_quorum_has(outputs);
        }
        if self.role == Role::Leader {
            self.send_entries(place, outputs);
            self.push_transfer(outputs);
        }
    }

    /// A peer's log does not have the entry before what it was sent.
    pub(super) fn peer_conflict(
        &mut self,
        from: NodeId,
        refused: LogIndex,
        hint: EntryId,
        outputs: &mut Vec<Output>,
    ) {
        let Some(place) = self.heard_from(from) else {
            return;
        };
        let peer = &self.peers[place];
        // Answers come late and twice: what is known to match is not doubted, and a probe that was
        // answered before is not moved.
        let stale = match peer.state {
            State::Probe { .. } => refused != peer.next.previous(),
            State::Stream => refused >= peer.next,
            State::Snapshot(_) => true,
        };
        if stale || refused <= peer.matched {
            return;
        }
        let base = self.log.base().index;
        let next = if hint.index < base {
            // What it lacks is gone from this log.
            base
        } else {
            let end = hint.index.min(refused);
            self.log.floor(end, hint.term).index.next().min(refused)
        };
        self.peers[place].probe_from(next);
        self.send_entries(place, outputs);
    }

    /// A peer answers in this leader's term.
    pub(super) fn heard_from(&mut self, from: NodeId) -> Option<usize> {
        if self.role != Role::Leader {
            return None;
        }
        let place = self.peer_place(from)?;
        self.peers[place].heard_ms = self.now_ms;
        Some(place)
    }

    /// Commits what a majority has persisted: by counting copies only from this term on, and what
    /// is before with it (5.4.2). This leader's own copy counts once it is persisted like any
    /// other's (thesis 10.2.1).
    pub(super) fn commit_what_a_quorum_has(&mut self, outputs: &mut Vec<Output>) {
        let own = if self.makes(Bug::LeaderCountsUnpersisted) {
            self.last().index
        } else {
            self.persisted
        };
        let index = LogIndex(self.quorum_value(own.0, |peer| peer.matched.0));
        let counts = index >= self.term_start || self.makes(Bug::CommitsEarlierTermByCounting);
        if index <= self.commit || !counts {
            return;
        }
        self.advance_commit(index, outputs);
        self.answer_confirms(outputs);
        self.go_on_with_change(outputs);
    }
}
