//! The core of a node that is its cluster's only voter.

use std::collections::VecDeque;

use super::start::{Start, StartError};
use super::types::{AppendKind, Epoch, Input, Output, RefusalReason, Role, Source};
use crate::limits::{
    MAX_PROPOSAL_BYTES, MAX_RECORDS_PER_BATCH, MAX_UNCOMMITTED_BYTES, MAX_UNCOMMITTED_ENTRIES,
};
use crate::types::{HardState, LogIndex, NodeId, Term};

/// The Raft state of one node (Raft paper, figure 2).
///
/// At its first tick a single voter raises its term and votes for itself; once that is persisted
/// it leads and appends the no-op of its term; once that is persisted, it and everything before
/// are committed.
#[derive(Debug)]
pub struct Core {
    node_id: NodeId,
    role: Role,
    /// Current term and vote, perhaps not persisted yet.
    hard: HardState,
    /// Whether `hard` is persisted.
    hard_persisted: bool,
    last_index: LogIndex,
    persisted: LogIndex,
    /// 0 until the first entry of this run commits: what is committed is learned, not stored.
    commit: LogIndex,
    /// The index of the leader's no-op; only from there on may it count persisted copies (5.4.2).
    term_start: LogIndex,
    now_ms: u64,
    /// Appended and not committed: last index and payload bytes of each append.
    uncommitted: VecDeque<(LogIndex, u64)>,
    uncommitted_entries: u64,
    uncommitted_bytes: u64,
}

impl Core {
    /// A follower that has heard nothing yet.
    ///
    /// # Errors
    /// When what it is given is not one node's state.
    pub fn new(start: Start) -> Result<Self, StartError> {
        let last = start.base;
        if last.term > start.hard_state.term {
            return Err(StartError::LogAheadOfTerm {
                log: last.term,
                state: start.hard_state.term,
            });
        }
        Ok(Self {
            node_id: start.node_id,
            role: Role::Follower,
            hard: start.hard_state,
            hard_persisted: true,
            last_index: last.index,
            persisted: last.index,
            commit: LogIndex(0),
            term_start: last.index.next(),
            now_ms: 0,
            uncommitted: VecDeque::new(),
            uncommitted_entries: 0,
            uncommitted_bytes: 0,
        })
    }

    /// Takes one input and adds what to do about it to `outputs`.
    ///
    /// # Panics
    /// When an input cannot be true (persisted beyond the log, a clock that goes back, a proposal
    /// outside its bounds): the caller is wrong, and nothing it reports can be relied on.
    pub fn step(&mut self, input: Input, outputs: &mut Vec<Output>) {
        match input {
            Input::Tick { now_ms } => self.tick(now_ms, outputs),
            Input::Propose { count, bytes } => self.propose(count, bytes, outputs),
            Input::Persisted { epoch, up_to } if epoch == Epoch(0) => {
                self.log_persisted(up_to, outputs);
            }
            Input::HardStatePersisted(hard) => self.hard_state_persisted(hard, outputs),
            _ => {}
        }
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

    /// The last index appended, persisted or not.
    #[must_use]
    pub fn last_index(&self) -> LogIndex {
        self.last_index
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

    fn tick(&mut self, now_ms: u64, outputs: &mut Vec<Output>) {
        assert!(
            now_ms >= self.now_ms,
            "time went back from {} to {now_ms} ms",
            self.now_ms
        );
        self.now_ms = now_ms;
        if self.role == Role::Follower {
            self.campaign(outputs);
        }
    }

    /// Stands for election: a new term, and its own vote, persisted before it counts (5.2).
    fn campaign(&mut self, outputs: &mut Vec<Output>) {
        let Some(term) = self.hard.term.0.checked_add(1) else {
            panic!("terms are used up");
        };
        self.hard = HardState {
            term: Term(term),
            voted_for: Some(self.node_id),
        };
        self.hard_persisted = false;
        outputs.push(Output::PersistHardState(self.hard));
        self.become_role(Role::Candidate, outputs);
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
        if self.role == Role::Candidate {
            // Its own vote is a majority of one.
            self.become_role(Role::Leader, outputs);
            self.term_start = self.last_index.next();
            self.append(1, 0, AppendKind::Noop, outputs);
        }
    }

    fn propose(&mut self, count: u32, bytes: u64, outputs: &mut Vec<Output>) {
        assert!(
            (1..=MAX_RECORDS_PER_BATCH).contains(&count),
            "a proposal of {count} entries"
        );
        assert!(bytes <= MAX_PROPOSAL_BYTES, "a proposal of {bytes} bytes");
        if self.role != Role::Leader {
            let reason = RefusalReason::NotLeader;
            outputs.push(Output::ProposalRefused { count, reason });
        } else if self.uncommitted_entries + u64::from(count) > MAX_UNCOMMITTED_ENTRIES
            || self.uncommitted_bytes.saturating_add(bytes) > MAX_UNCOMMITTED_BYTES
        {
            let reason = RefusalReason::Full;
            outputs.push(Output::ProposalRefused { count, reason });
        } else {
            self.append(count, bytes, AppendKind::Commands, outputs);
        }
    }

    fn append(&mut self, count: u32, bytes: u64, kind: AppendKind, outputs: &mut Vec<Output>) {
        let first = self.last_index.next();
        self.last_index = self.last_index.plus(u64::from(count));
        self.uncommitted.push_back((self.last_index, bytes));
        self.uncommitted_entries += u64::from(count);
        self.uncommitted_bytes += bytes;
        outputs.push(Output::Append {
            first,
            count,
            term: self.hard.term,
            kind,
            source: Source::Own,
        });
    }

    fn log_persisted(&mut self, up_to: LogIndex, outputs: &mut Vec<Output>) {
        assert!(
            up_to <= self.last_index,
            "{up_to} persisted, the log ends at {}",
            self.last_index
        );
        assert!(
            up_to >= self.persisted,
            "{up_to} persisted, after {}",
            self.persisted
        );
        self.persisted = up_to;
        // A leader commits entries of its own term by counting copies, and earlier ones with them
        // (5.4.2); the only copy there is counts once it is persisted.
        if self.role == Role::Leader && up_to >= self.term_start && up_to > self.commit {
            self.commit = up_to;
            self.forget_committed();
            outputs.push(Output::Commit { up_to });
        }
    }

    fn forget_committed(&mut self) {
        while let Some((last, bytes)) = self.uncommitted.front().copied() {
            if last > self.commit {
                break;
            }
            self.uncommitted.pop_front();
            self.uncommitted_bytes -= bytes;
        }
        self.uncommitted_entries = self.last_index.0 - self.commit.0;
    }

    fn become_role(&mut self, role: Role, outputs: &mut Vec<Output>) {
        self.role = role;
        let leader = (role == Role::Leader).then_some(self.node_id);
        outputs.push(Output::RoleChanged {
            role,
            term: self.hard.term,
            leader,
        });
    }

    fn check_invariants(&self) {
        assert!(self.commit <= self.persisted && self.persisted <= self.last_index);
        assert!(self.commit == LogIndex(0) || self.commit >= self.term_start);
        assert!(self.uncommitted_entries <= MAX_UNCOMMITTED_ENTRIES);
        assert!(self.uncommitted_bytes <= MAX_UNCOMMITTED_BYTES);
        if self.role == Role::Leader {
            assert!(self.hard_persisted && self.hard.voted_for == Some(self.node_id));
            assert!(
                self.last_index >= self.term_start,
                "a leader's no-op comes first"
            );
        }
    }
}
