//! What cores say to each other. Payload bytes travel beside it.

use super::config::ConfigEntry;
use super::types::AppendKind;
use crate::types::{LogIndex, Term};

/// A message between two cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The sender's term; of a pre-vote, and of an answer that grants one, the term asked about.
    pub term: Term,
    /// The rest.
    pub body: Body,
}

/// An entry's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    /// The term. First, so that places compare as the election restriction has it (5.4.1).
    pub term: Term,
    /// The index.
    pub index: LogIndex,
}

/// Consecutive entries of one term and one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Their term.
    pub term: Term,
    /// How many; at most [`crate::limits::MAX_APPEND_ENTRIES`]. 0 only probes.
    pub count: u32,
    /// An upper bound of their payloads' bytes; at most [`crate::limits::MAX_APPEND_BYTES`].
    pub bytes: u64,
    /// What they are. A configuration travels alone.
    pub kind: AppendKind,
}

/// A snapshot file's identity: two nodes' snapshots of one index are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// The last entry it stands for.
    pub last: EntryId,
    /// The file's size in bytes; not 0.
    pub bytes: u64,
    /// Tells files apart: a checksum of the file, say.
    pub id: u64,
}

/// What a node tells its leader about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Its disk has room.
    pub has_room: bool,
    /// Leadership may be handed to it.
    pub fit_to_lead: bool,
}

/// What a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// Would you vote for me? (thesis 9.6)
    PreVote {
        /// The sender's last entry.
        last: EntryId,
    },
    /// The answer; a refusal carries the answering node's own term.
    PreVoteAnswer {
        /// Whether it would.
        granted: bool,
    },
    /// RequestVote (paper, figure 2).
    Vote {
        /// The sender's last entry.
        last: EntryId,
        /// The leader asked for this: hearing it is no reason to refuse (thesis 4.2.3).
        transfer: bool,
    },
    /// The answer; a vote is persisted before it is given.
    VoteAnswer {
        /// Whether it is given.
        granted: bool,
    },
    /// AppendEntries (paper, figure 2).
    Append {
        /// The entry before the first of `run`.
        previous: EntryId,
        /// The entries.
        run: Run,
        /// The sender's commit index.
        commit: LogIndex,
    },
    /// The sender's log is the leader's up to here, and persisted.
    Matched {
        /// The last such index.
        up_to: LogIndex,
    },
    /// The sender's log has another entry, or none, at the `previous` of an append.
    Conflict {
        /// That append's `previous`.
        refused: LogIndex,
        /// The sender's last entry at or below it whose term is not above it either: the leader
        /// may skip everything between (paper 5.3, end).
        hint: EntryId,
    },
    /// The sender does not know who the cluster is, which entries do not tell: it takes a snapshot
    /// first.
    NeedsSnapshot,
    /// The leader is there. Never waits for anything.
    Heartbeat {
        /// Which round; rounds grow.
        round: u64,
        /// What of the receiver's log is committed.
        commit: LogIndex,
        /// The receiver's place among the voters by how much of the log they have, 0 the first.
        rank: u8,
    },
    /// The answer. Never waits for a sync.
    HeartbeatAnswer {
        /// The heartbeat's round.
        round: u64,
        /// Up to where the sender's log is the leader's, persisted or not.
        received: LogIndex,
        /// About the sender.
        report: Report,
    },
    /// A part of a snapshot (paper, section 7).
    SnapshotChunk {
        /// Of which.
        snapshot: Snapshot,
        /// The configuration in force at its last index, and where in the log that is.
        config: ConfigEntry,
        /// Where in the file.
        offset: u64,
        /// How many bytes; at most [`crate::limits::SNAPSHOT_CHUNK_BYTES`]. 0 only asks.
        bytes: u32,
    },
    /// How much of a snapshot the sender has.
    SnapshotAnswer {
        /// Of which.
        snapshot: Snapshot,
        /// The next byte it needs. Once it has installed it all it answers [`Body::Matched`].
        next_offset: u64,
    },
    /// Stand for election at once: leadership is yours to take (thesis 3.10).
    TimeoutNow,
    /// A connection closed: do you still lead? A leader answers with a heartbeat.
    DoYouLead,
    /// The sender does not lead, or no more.
    NotLeading,
    /// The message that this answers is of a term that is over.
    TermOver,
}
