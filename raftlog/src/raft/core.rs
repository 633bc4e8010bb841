//! The core's state, and what goes where.

use super::bugs::Bug;
use super::config::{Config, ConfigEntry, Configs};
use super::confirm::Confirms;
use super::extents::Extents;
use super::hint::Hint;
use super::install::Incoming;
use super::jitter::Jitter;
use super::message::{Body, EntryId, Message, Report, Snapshot};
use super::progress::Progress;
use super::start::{ExtentKind, Start, StartError, Timing};
use super::transfer::Transfer;
use super::types::{AppendKind, Epoch, Input, Output, Role};
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
    told: (Role, Term, Option<NodeId>),
    /// Current term and vote, perhaps not persisted yet.
    pub(super) hard: HardState,
    pub(super) hard_persisted: bool,
    /// `hard` has changed since it was last asked to be persisted.
    hard_unasked: bool,

    pub(super) log: Extents,
    pub(super) persisted: LogIndex,
    /// 0, or what the snapshot covers, until more is learned.
    pub(super) commit: LogIndex,
    pub(super) epoch: Epoch,
    pub(super) configs: Configs,
    /// Configurations up to here were told to be committed.
    configs_told: LogIndex,
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
        check_timing(&start.timing)?;
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

    /// Whether something is on its way to the disk for longer than a disk takes.
    pub(super) fn disk_hangs(&self) -> bool {
        self.writing_since_ms.is_some_and(|since_ms| {
            self.now_ms.saturating_sub(since_ms) >= self.timing.disk_hung_ms
        })
    }

    /// Something is given to the disk.
    pub(super) fn disk_works(&mut self) {
        self.writing_since_ms.get_or_insert(self.now_ms);
    }

    /// Something came back from the disk.
    pub(super) fn disk_moved(&mut self) {
        let idle = self.hard_persisted && self.persisted == self.log.last().index;
        self.writing_since_ms = (!idle).then_some(self.now_ms);
    }

    fn hard_state_persisted(&mut self, hard: HardState, outputs: &mut Vec<Output>) {
        assert!(
            hard.term <= self.hard.term,
            "a term was persisted that was never asked for"
        );
        if hard != self.hard || self.hard_persisted {
            return;
        }
        self.hard_persisted = true;
        self.disk_moved();
        if self.role == Role::Candidate {
            self.own_vote_counts(outputs);
        }
        self.give_vote(outputs);
        self.acknowledge(outputs);
        self.begin_install(outputs);
    }

    fn log_persisted(&mut self, epoch: Epoch, up_to: LogIndex, outputs: &mut Vec<Output>) {
        assert!(
            epoch <= self.epoch,
            "a report of an epoch that has not begun"
        );
        if epoch < self.epoch {
            return;
        }
        assert!(
            up_to <= self.log.last().index,
            "{up_to} persisted, the log ends at {}",
            self.log.last().index
        );
        assert!(
            up_to >= self.persisted,
            "{up_to} persisted, after {}",
            self.persisted
        );
        if up_to == self.persisted {
            return;
        }
        self.persisted = up_to;
        self.disk_moved();
        if self.role == Role::Leader {
            self.commit_what_a_quorum_has(outputs);
        } else {
            self.acknowledge(outputs);
        }
    }

    fn receive(&mut self, from: NodeId, message: Message, outputs: &mut Vec<Output>) {
        let Message { term, body } = message;
        if from == self.node_id || !is_plausible(term) {
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

    pub(super) fn send(&self, to: NodeId, body: Body, outputs: &mut Vec<Output>) {
        let term = self.hard.term;
        let message = Message { term, body };
        outputs.push(Output::Send { to, message });
    }

    pub(super) fn config_now(&self) -> &Config {
        &self.configs.current().config
    }

    /// The largest value that a majority has; while a voter is being replaced, a majority of the
    /// voters with the old node and one of those with the new (section 6).
    pub(super) fn quorum_value(&self, own: u64, value: impl Fn(&Progress) -> u64) -> u64 {
        let config = self.config_now();
        let of_node = |node: NodeId| {
            if node == self.node_id {
                return own;
            }
            let peer = self.peers.iter().find(|peer| peer.id == node);
            peer.map_or(0, &value)
        };
        let old = config.voters();
        let majority = old.len() / 2 + 1;
        let of_voters = |voters: &[NodeId]| {
            let learners = if self.makes(Bug::LearnersVote) {
                config.learners()
            } else {
                &[]
            };
            let mut values = [0; MAX_VOTERS + MAX_LEARNERS];
            let count = voters.len() + learners.len();
            for (place, node) in voters.iter().chain(learners).enumerate() {
                values[place] = of_node(*node);
            }
            values[..count].sort_unstable();
            values[count.wrapping_sub(majority)..].first().copied()
        };
        let by_old = of_voters(old).unwrap_or(0);
        let Some(incoming) = config.incoming() else {
            return by_old;
        };
        let by_new = of_voters(&incoming[..old.len()]).unwrap_or(0);
        if self.makes(Bug::JointCountsOneMajority) {
            return by_new;
        }
        by_old.min(by_new)
    }

    /// Sets the commit index, and tells what follows from it.
    pub(super) fn advance_commit(&mut self, to: LogIndex, outputs: &mut Vec<Output>) {
        debug_assert!(to > self.commit && to <= self.log.last().index);
        self.commit = to;
        self.verified = self.verified.max(to);
        outputs.push(Output::Commit { up_to: to });
        let told = self.configs_told;
        for entry in self.configs.within(told, to) {
            self.configs_told = entry.index;
            outputs.push(Output::ConfigCommitted {
                config: entry.config,
                index: entry.index,
            });
        }
    }

    /// A configuration takes effect as soon as it is in the log (section 6).
    pub(super) fn config_appended(&mut self, entry: ConfigEntry, outputs: &mut Vec<Output>) {
        self.configs.push(entry);
        self.tell_config(outputs);
    }

    pub(super) fn tell_config(&self, outputs: &mut Vec<Output>) {
        let ConfigEntry { config, index } = self.config();
        outputs.push(Output::ConfigChanged {
            config,
            index,
            committed: index <= self.commit,
        });
    }

    /// What was told of configurations up to here needs no telling again.
    pub(super) fn configs_known(&mut self, index: LogIndex) {
        self.configs_told = index;
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

fn is_plausible(term: Term) -> bool {
    term.0 <= crate::limits::MAX_TERM
}

fn check_timing(timing: &Timing) -> Result<(), StartError> {
    let fits = timing.heartbeat_ms > 0
        && timing.disk_hung_ms > 0
        && timing.election_ms / 2 >= timing.heartbeat_ms;
    fits.then_some(()).ok_or(StartError::Timing)
}

/// The configurations, each where the log has one.
fn check_configs(
    list: Vec<ConfigEntry>,
    extents: &[super::start::Extent],
    base: LogIndex,
    covered: LogIndex,
) -> Result<Configs, StartError> {
    let first = list.first().map(|entry| entry.index);
    if let Some(first) = first
        && first > base.max(covered)
    {
        return Err(StartError::ConfigNotInLog(first));
    }
    let is_config = |index: LogIndex| {
        let at = extents.binary_search_by_key(&index, |extent| extent.last_index);
        at.is_ok_and(|place| extents[place].kind == ExtentKind::Config)
    };
    if let Some(stray) = list.iter().find(|c| c.index > base && !is_config(c.index)) {
        return Err(StartError::ConfigNotInLog(stray.index));
    }
    for extent in extents.iter().filter(|e| e.kind == ExtentKind::Config) {
        if !list.iter().any(|entry| entry.index == extent.last_index) {
            return Err(StartError::ConfigNotInLog(extent.last_index));
        }
    }
    Configs::new(list).ok_or(StartError::NoConfig)
}

impl AppendKind {
    pub(super) fn extent_kind(&self) -> ExtentKind {
        match self {
            Self::Noop => ExtentKind::Noop,
            Self::Commands => ExtentKind::Commands,
            Self::Config(_) => ExtentKind::Config,
        }
    }
}

impl Core {
    /// This node's last entry.
    pub(super) fn last(&self) -> EntryId {
        self.log.last()
    }
}
