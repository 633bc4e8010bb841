//! What goes into the core and what comes out.

use crate::types::{HardState, LogIndex, NodeId, Term};

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Time has passed.
    Tick {
        /// The caller's monotonic clock, in milliseconds; it never goes back.
        now_ms: u64,
    },
    /// The state machine wants entries appended, all or none.
    Propose {
        /// How many entries; 1 to [`crate::limits::MAX_RECORDS_PER_BATCH`].
        count: u32,
        /// The bytes of their payloads together.
        bytes: u64,
    },
    /// The log is persisted up to an index, as the node's durability has it.
    Persisted {
        /// The last persisted index.
        up_to: LogIndex,
    },
    /// Term and vote are synced.
    HardStatePersisted(HardState),
}

/// Something to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Sync term and vote, then report [`Input::HardStatePersisted`].
    PersistHardState(HardState),
    /// Append entries to the log, in one batch or as many as their payloads take, then report
    /// [`Input::Persisted`].
    Append {
        /// The index of the first.
        first: LogIndex,
        /// How many.
        count: u32,
        /// Their term.
        term: Term,
        /// What they are; the payloads are the caller's.
        kind: AppendKind,
    },
    /// Every entry up to this one is committed, and is to be applied in order.
    Commit {
        /// The new commit index.
        up_to: LogIndex,
    },
    /// This node's role, the term, or the leader it knows is another now.
    RoleChanged {
        /// The role.
        role: Role,
        /// In which term.
        term: Term,
        /// Who leads, if known.
        leader: Option<NodeId>,
    },
    /// A proposal was not taken; nothing of it is, or ever will be, in the log.
    ProposalRefused {
        /// The proposal's count.
        count: u32,
        /// Why.
        reason: RefusalReason,
    },
}

/// What an [`Output::Append`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendKind {
    /// The first entry of a leader's term.
    Noop,
    /// The commands of the oldest proposal that was neither appended nor refused.
    Commands,
}

/// What a node is in its term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Follows whoever leads.
    Follower,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
}

/// Why a proposal was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// This node does not lead.
    NotLeader,
    /// Too much is uncommitted already.
    Full,
}
