//! The core's state, and what goes where.

use super::bugs::Bug;
use super::config::{ConfigEntry, Configs};
use super::confirm::Confirms;
use super::extents::Extents;
use super::hint::Hint;
use super::install::Incoming;
use super::jitter::Jitter;
use super::message::{Body, EntryId, Message, Report, Snapshot};
use super::progress::Progress;
use super::start::{ExtentKind, Start, StartError, Timing, check_configs};
use super::transfer::Transfer;
use super::types::{AppendKind, Epoch, Input, Output, PeerProgress, Role};
use crate::limits::{MAX_LEARNERS, MAX_UNCOMMITTED_BYTES, MAX_UNCOMMITTED_ENTRIES, MAX_VOTERS};
use crate::types::{HardState, LogIndex, NodeId, Term};

/// The Raft state of one node (Raft paper, figure 2).
///
/// See [the module](super) for what it asks of its caller.
#[derive(Debug)]
pub struct Core {
    pub(super) node_id: NodeId,
    pub(super) timing: Timing,
    pub(super) jitter: Jitter,
    bug: Option<Bug>,

    pub(super) role: Role,
    pub(super) leader: Option<NodeId>,
    pub(super) told: (Role, Term, Option<NodeId>),
    /// Current term and vote, perhaps not persisted yet.
    pub(super) hard: HardState,
    pub(super) hard_persisted: bool,
    /// `hard` has changed since it was last asked to be persisted.
    pub(super) hard_unasked: bool,

    pub(super) log: Extents,
    pub(super) persisted: LogIndex,
    /// 0, or what the snapshot covers, until more is learned.
    pub(super) commit: LogIndex,
    pub(super) epoch: Epoch,
    pub(super) configs: Configs,
    /// Configurations up to here were told to be committed.
    pub(super) configs_told: LogIndex,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) snapshot_wanted: bool,

    pub(super) now_ms: u64,
    ticked: bool,
    /// When to stand for election.
    pub(super) election_at_ms: u64,
    /// When the leader was last heard.
    pub(super) heard_leader_ms: u64,
    pub(super) hint: Hint,

    // As a follower.
    /// The log is the leader's up to here.
    pub(super) verified: LogIndex,
    /// The leader was told so, up to here.
    pub(super) acknowledged: LogIndex,
    pub(super) acknowledgement_due: bool,
    /// Whom to give the vote in `hard` once that is persisted.
    pub(super) vote_due: Option<NodeId>,
    pub(super) incoming: Option<Incoming>,

    // As a candidate.
    /// The leader asked for this election.
    pub(super) by_transfer: bool,

    // As a candidate or leader.
    pub(super) peers: Vec<Progress>,

    // As a leader.
    /// The index of the leader's no-op; only from there on may it count copies (5.4.2).
    pub(super) term_start: LogIndex,
    pub(super) round: u64,
    pub(super) heartbeat_at_ms: u64,
    pub(super) confirms: Confirms,
    pub(super) transfer: Option<Transfer>,
    /// When to look again for a voter that has room.
    pub(super) room_search_at_ms: u64,

    // The disk.
    /// Since when something is on its way to the disk without any progress.
    pub(super) writing_since_ms: Option<u64>,
    pub(super) report: Report,
}

impl Core {
    /// A follower that has heard nothing yet.
    ///
    /// # Errors
    /// When what it is given is not one node's state.
    pub fn new(start: Start) -> Result<Self, StartError> {
        start.timing.check()?;
        let log = Extents::new(start.base, &start.extents)?;
        let hard = start.hard_state;
        if log.last().term > hard.term {
            return Err(StartError::LogAheadOfTerm {
                log: log.last().term,
                state: hard.term,
            });
        }
        if hard.term == Term(0) && hard.voted_for.is_some() {
            return Err(StartError::VoteInTermZero);
        }
        if let Some(snapshot) = start.snapshot
            && !log.has(snapshot.last)
        {
            return Err(StartError::SnapshotNotInLog(snapshot.last.index));
        }
        let covered = start
            .snapshot
            .map_or(LogIndex(0), |snapshot| snapshot.last.index);
        let configs = check_configs(start.configs, &start.extents, log.base().index, covered)?;
        let last = log.last().index;
        Ok(Self {
            node_id: start.node_id,
            timing: start.timing,
            jitter: Jitter::new(start.seed),
            #[cfg(feature = "bugs")]
            bug: start.bug,
            #[cfg(not(feature = "bugs"))]
            bug: None,
            role: Role::Follower,
            leader: None,
            told: (Role::Follower, hard.term, None),
            hard,
            hard_persisted: true,
            hard_unasked: false,
            persisted: last,
            commit: covered,
            epoch: Epoch(0),
            configs_told: configs
                .at(log.base().index.max(covered))
                .map_or(covered, |c| c.index),
            configs,
            snapshot: start.snapshot,
            snapshot_wanted: false,
            now_ms: 0,
            ticked: false,
            election_at_ms: 0,
            heard_leader_ms: 0,
            hint: Hint::default(),
            verified: covered,
            acknowledged: LogIndex(0),
            acknowledgement_due: false,
            vote_due: None,
            incoming: None,
            by_transfer: false,
            peers: Vec::with_capacity(MAX_VOTERS + 1 + MAX_LEARNERS),
            term_start: last.next(),
            round: 0,
            heartbeat_at_ms: 0,
            confirms: Confirms::new(),
            transfer: None,
            room_search_at_ms: 0,
            writing_since_ms: None,
            report: Report {
                has_room: true,
                fit_to_lead: false,
            },
            log,
        })
    }

    /// Takes one input and adds what to do about it to `outputs`.
    ///
    /// # Panics
    /// When what the caller reports of its own cannot be true (persisted beyond the log, a clock
    /// that goes back, a proposal outside its bounds): nothing it reports can be relied on then.
    /// Nothing that a peer sends does that.
    pub fn step(&mut self, input: Input, outputs: &mut Vec<Output>) {
        match input {
            Input::Tick { now_ms } => self.tick(now_ms, outputs),
            Input::Propose { count, bytes } => self.propose(count, bytes, outputs),
            Input::Persisted { epoch, up_to } => self.log_persisted(epoch, up_to, outputs),
            Input::HardStatePersisted(hard) => self.hard_state_persisted(hard, outputs),
            Input::Received { from, message } => self.receive(from, message, outputs),
            Input::PeerConnected { peer } => self.peer_connected(peer, outputs),
            Input::PeerLost { peer } => self.peer_lost(peer),
            Input::PeerRefused { peer } => self.peer_refused(peer),
            Input::Confirm { request } => self.confirm(request, outputs),
            Input::Transfer { to } => self.start_transfer(to, outputs),
            Input::Change(change) => self.change(change, outputs),
            Input::Compacted {
                snapshot,
                first_index,
            } => self.compacted(snapshot, first_index, outputs),
            Input::SnapshotChunkStored {
                snapshot,
                next_offset,
            } => self.chunk_stored(snapshot, next_offset, outputs),
            Input::SnapshotInstalled { snapshot, valid } => {
                self.snapshot_installed(snapshot, valid, outputs);
            }
            Input::DiskRoom { has_room } => self.report.has_room = has_room,
            Input::FitToLead { fit } => self.report.fit_to_lead = fit,
        }
        self.tell_role(outputs);
        self.check_invariants();
    }

    /// The role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The current term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.hard.term
    }

    /// Who leads in this term, as far as known.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// The last index appended, persisted or not.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.log.last().index
    }

    /// The last index known persisted.
    #[must_use]
    pub fn persisted(&self) -> LogIndex {
        self.persisted
    }

    /// The last index known committed; 0 before any is.
    #[must_use]
    pub fn commit(&self) -> LogIndex {
        self.commit
    }

    /// The other members, as this node knows them: how far a leader has matched their logs, and when it
    /// heard them last.
    pub fn peers(&self) -> impl Iterator<Item = PeerProgress> + '_ {
        self.peers.iter().map(|peer| PeerProgress {
            node: peer.id,
            matched: peer.matched,
            heard_ms: peer.heard_ms,
        })
    }

    /// The index of this leader's no-op: it is ready once that is applied. `None` unless it leads.
    #[must_use]
    pub fn term_start(&self) -> Option<LogIndex> {
        (self.role == Role::Leader).then_some(self.term_start)
    }

    /// The configuration in force, and where it is in the log; committed if that is.
    #[must_use]
    pub fn config(&self) -> ConfigEntry {
        *self.configs.current()
    }

    /// The configuration that a snapshot up to `index` has to hold; `None` if that is before the
    /// log.
    #[must_use]
    pub fn config_at(&self, index: LogIndex) -> Option<ConfigEntry> {
        self.configs.at(index).copied()
    }

    /// What reports about writes asked for now carry.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The term of an entry in the log, or of the one that the log goes on behind.
    #[must_use]
    pub fn term_at(&self, index: LogIndex) -> Option<Term> {
        self.log.term_at(index)
    }

    /// When a tick is due even if nothing happens, by the clock of the ticks.
    #[must_use]
    pub fn next_deadline_ms(&self) -> u64 {
        if !self.ticked {
            return self.now_ms;
        }
        let deadline = match self.role {
            Role::Leader => {
                let transfer = self.transfer.map_or(u64::MAX, |transfer| transfer.until_ms);
                self.heartbeat_at_ms.min(transfer)
            }
            _ if self.may_campaign() => self.election_at_ms,
            _ => u64::MAX,
        };
        let hung = self.writing_since_ms.map_or(u64::MAX, |since_ms| {
            since_ms.saturating_add(self.timing.disk_hung_ms)
        });
        // A disk that hangs already makes nothing due.
        let hung = if hung > self.now_ms { hung } else { u64::MAX };
        deadline.min(hung)
    }

    fn tick(&mut self, now_ms: u64, outputs: &mut Vec<Output>) {
        assert!(
            now_ms >= self.now_ms,
            "time went back from {} to {now_ms} ms",
            self.now_ms
        );
        self.now_ms = now_ms;
        if !self.ticked {
            self.ticked = true;
            self.wait_for_a_leader();
        }
        if self.role == Role::Leader {
            self.tick_leader(outputs);
        } else if self.may_campaign()
            && (self.config_now().is_single() || now_ms >= self.election_at_ms)
        {
            self.ask_for_votes(outputs);
        }
    }

    fn tick_leader(&mut self, outputs: &mut Vec<Output>) {
        if !self.config_now().is_single() && (self.disk_hangs() || !self.hears_a_quorum()) {
            return self.resign(outputs);
        }
        self.tick_transfer(outputs);
        if self.role == Role::Leader && self.now_ms >= self.heartbeat_at_ms {
            self.begin_round(outputs);
        }
    }

    /// Check-quorum (thesis 6.2): whether a majority was heard in the last election timeout.
    fn hears_a_quorum(&self) -> bool {
        let heard_ms = self.quorum_value(self.now_ms, |peer| peer.heard_ms);
        self.now_ms.saturating_sub(heard_ms) < self.timing.election_ms
    }

    /// This node's last entry.
    pub(super) fn last(&self) -> EntryId {
        self.log.last()
    }

    pub(super) fn send(&self, to: NodeId, body: Body, outputs: &mut Vec<Output>) {
        let term = self.hard.term;
        let message = Message { term, body };
        outputs.push(Output::Send { to, message });
    }

    /// Whether to make a mistake.
    pub(super) fn makes(&self, bug: Bug) -> bool {
        cfg!(feature = "bugs") && self.bug == Some(bug)
    }

    fn check_invariants(&self) {
        let last = self.log.last().index;
        assert!(self.commit <= last && self.persisted <= last);
        assert!(self.verified >= self.commit && self.verified <= last);
        if self.role != Role::Leader {
            assert!(self.confirms.is_empty() && self.transfer.is_none());
            return;
        }
        assert!(self.hard_persisted && self.hard.voted_for == Some(self.node_id));
        assert!(self.leader == Some(self.node_id) && self.incoming.is_none());
        assert!(
            last >= self.term_start || self.makes(Bug::NoNoop),
            "a leader's no-op comes first"
        );
        let (entries, bytes) = self.uncommitted();
        assert!(entries <= MAX_UNCOMMITTED_ENTRIES + OWN_ENTRIES);
        assert!(bytes <= MAX_UNCOMMITTED_BYTES + crate::limits::MAX_PROPOSAL_BYTES);
        for peer in &self.peers {
            assert!(peer.matched < peer.next && peer.next <= last.next());
        }
    }
}

/// Entries that a leader may append of its own while proposals fill the bound: its no-op, and a
/// joint configuration and the one it leads to.
const OWN_ENTRIES: u64 = 3;

impl AppendKind {
    pub(super) fn extent_kind(&self) -> ExtentKind {
        match self {
            Self::Noop => ExtentKind::Noop,
            Self::Commands => ExtentKind::Commands,
            Self::Config(_) => ExtentKind::Config,
        }
    }
}
