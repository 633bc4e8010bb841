//! What goes into the core and what comes out.

use super::config::{Change, ChangeRefusal, Config, ConfigEntry};
use super::message::{Message, Snapshot};
use crate::types::{HardState, LogIndex, NodeId, Term};

/// Counts the truncations and resets of a log in one run of a core.
///
/// A write that was on its way when the log was cut reports an older epoch than the core's, and is
/// told apart so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// Something that happened.
#[allow(
    clippy::large_enum_variant,
    reason = "inputs are handed in one by one and not kept; boxing would allocate for each message"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Time has passed. To be given before anything else that has happened meanwhile: until then
    /// the core goes by the time of the last one.
    Tick {
        /// The caller's monotonic clock, in milliseconds; it never goes back.
        now_ms: u64,
    },
    /// The state machine wants entries appended, all or none.
    ///
    /// Answered in the same step, by [`Output::Append`] or [`Output::ProposalRefused`].
    Propose {
        /// How many entries; 1 to [`crate::limits::MAX_RECORDS_PER_BATCH`].
        count: u32,
        /// The bytes of their payloads together; at most [`crate::limits::MAX_PROPOSAL_BYTES`].
        bytes: u64,
    },
    /// The log is persisted up to an index, as the node's durability has it.
    Persisted {
        /// The epoch of the last [`Output::Truncate`] or [`Output::Reset`] that had been asked for
        /// when what is reported was written; 0 before any. Older epochs are ignored.
        epoch: Epoch,
        /// The last persisted index.
        up_to: LogIndex,
    },
    /// Term and vote are synced.
    HardStatePersisted(HardState),
    /// A peer sent a message.
    Received {
        /// Who; authenticated by the caller, and perhaps unknown to the core.
        from: NodeId,
        /// What. Payload bytes stay with the caller until the outputs of this step are done.
        message: Message,
    },
    /// A connection with this peer is open, perhaps again: nothing that was sent before is known
    /// to have arrived.
    PeerConnected {
        /// The peer.
        peer: NodeId,
    },
    /// The connection with this peer has closed. The caller connects again at once, and reports
    /// [`Input::PeerConnected`] or [`Input::PeerRefused`].
    PeerLost {
        /// The peer.
        peer: NodeId,
    },
    /// This peer's machine refuses the connection: nobody listens there, its process is gone.
    PeerRefused {
        /// The peer.
        peer: NodeId,
    },
    /// Somebody must know that this node still leads (thesis 6.4). Answered by
    /// [`Output::Confirmed`] or [`Output::NotConfirmed`].
    Confirm {
        /// The caller's name for the request.
        request: u64,
    },
    /// Hand leadership over (thesis 3.10). Answered by [`Output::TransferEnded`].
    Transfer {
        /// To this voter; `None`: to the best one.
        to: Option<NodeId>,
    },
    /// Change the cluster's members, one change at a time. A refusal is answered at once by
    /// [`Output::ChangeRefused`]; otherwise [`Output::ConfigChanged`] and
    /// [`Output::ConfigCommitted`] tell how it goes on.
    Change(Change),
    /// A synced snapshot stands for a part of the log, or the log has lost its oldest entries.
    Compacted {
        /// The newest synced snapshot.
        snapshot: Snapshot,
        /// The first index whose entry the log still has; at most the one behind the snapshot.
        first_index: LogIndex,
    },
    /// Bytes of a snapshot that [`Output::StoreSnapshotChunk`] asked for are stored.
    SnapshotChunkStored {
        /// Which snapshot.
        snapshot: Snapshot,
        /// Where the next byte goes.
        next_offset: u64,
    },
    /// What [`Output::InstallSnapshot`] asked for has ended.
    SnapshotInstalled {
        /// Which snapshot.
        snapshot: Snapshot,
        /// Whether it is whole, synced and now the node's newest; otherwise it is fetched anew.
        valid: bool,
    },
    /// Whether the disk has room for more than its reserve. It has, until told otherwise.
    DiskRoom {
        /// It has.
        has_room: bool,
    },
    /// Whether leadership may be handed to this node: not in its first seconds of serving
    /// clients, nor while it stops. It may not, until told otherwise.
    FitToLead {
        /// It may.
        fit: bool,
    },
}

/// What a leader knows of another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerProgress {
    /// Which.
    pub node: NodeId,
    /// Its log is the leader's up to here, and persisted.
    pub matched: LogIndex,
    /// When it was last heard in this term, by the clock of the ticks.
    pub heard_ms: u64,
}

/// Something to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Sync term and vote, then report [`Input::HardStatePersisted`]. No [`Output::Append`] that
    /// comes after it may become durable before it.
    PersistHardState(HardState),
    /// Drop the entries from `from` on; they were never committed. The entries that take their
    /// place follow in the same step.
    Truncate {
        /// The first index to drop.
        from: LogIndex,
        /// The term of the entry before it.
        previous_term: Term,
        /// What reports about later writes carry.
        epoch: Epoch,
    },
    /// Drop the whole log; it goes on behind `index`. The snapshot that was just installed has
    /// everything up to there, all of it committed.
    ///
    /// A crash before this is durable leaves a log without that snapshot's last entry: such a log
    /// is to be dropped at the next start.
    Reset {
        /// The snapshot's last index.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// What reports about later writes carry.
        epoch: Epoch,
    },
    /// Append entries to the log, in one batch or as many as their payloads take, then report
    /// [`Input::Persisted`].
    Append {
        /// The index of the first.
        first: LogIndex,
        /// How many.
        count: u32,
        /// Their term.
        term: Term,
        /// What they are.
        kind: AppendKind,
        /// Where their payloads come from.
        source: Source,
    },
    /// Send a message. For [`Body::Append`](super::Body::Append) the payloads of its entries, and
    /// for [`Body::SnapshotChunk`](super::Body::SnapshotChunk) its bytes, are read by the caller;
    /// the entries may be those of an append just before, which is not written yet.
    /// It may be lost, but should not overtake another to the same peer.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Every entry up to this one is committed, and is to be applied in order.
    ///
    /// That may be ahead of what this node has persisted, and never ahead of what it was asked to
    /// append.
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
    /// This node led after the request had come in: whatever was committed anywhere by then is at
    /// or below `index`, and `index` is committed.
    Confirmed {
        /// The request.
        request: u64,
        /// Its commit index.
        index: LogIndex,
    },
    /// This node does not lead, or has lost its leadership, or too many such requests wait.
    NotConfirmed {
        /// The request.
        request: u64,
    },
    /// Another configuration is in force: a configuration takes effect when it is in the log, and
    /// falls back to the one before if it is truncated.
    ConfigChanged {
        /// The configuration.
        config: Config,
        /// Where it is in the log.
        index: LogIndex,
        /// Whether it is committed already: one fallen back to, or a snapshot's.
        committed: bool,
    },
    /// A configuration is committed, and is not undone any more. Another may be in force already.
    ConfigCommitted {
        /// The configuration.
        config: Config,
        /// Where it is in the log.
        index: LogIndex,
    },
    /// A change of members was not begun.
    ChangeRefused {
        /// The change.
        change: Change,
        /// Why.
        reason: ChangeRefusal,
    },
    /// A leadership transfer is over.
    TransferEnded {
        /// How.
        result: TransferResult,
    },
    /// Store the bytes of the chunk just received, at `offset`; then report
    /// [`Input::SnapshotChunkStored`]. Offset 0 begins anew: what was stored of others is of no
    /// more use.
    StoreSnapshotChunk {
        /// Which snapshot.
        snapshot: Snapshot,
        /// Where the bytes go.
        offset: u64,
        /// How many.
        bytes: u32,
    },
    /// Check and sync the snapshot, all of which is stored, make it the node's newest and give it
    /// to the state machine; then report [`Input::SnapshotInstalled`].
    InstallSnapshot {
        /// Which.
        snapshot: Snapshot,
        /// The configuration in force at its last index, and where in the log that is: the file must
        /// have the same.
        config: ConfigEntry,
    },
    /// A peer needs a snapshot, and there is none that the log goes on from: make one, then report
    /// [`Input::Compacted`].
    SnapshotWanted,
}

/// What an [`Output::Append`] holds, or a message's entries are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendKind {
    /// The first entry of a leader's term.
    Noop,
    /// Commands of the state machine.
    Commands,
    /// One configuration of the cluster.
    Config(Config),
}

/// Where the payloads of an append come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// This node: the proposal that is being answered, or an entry of the core's own.
    Own,
    /// The message just received, less the first entries in it, which are in the log already.
    Received {
        /// How many of the message's entries to leave out.
        skip: u32,
    },
}

/// What a node is in its term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Follows whoever leads, votes.
    Follower,
    /// Asks whether it would be elected, in the next term, before it disturbs anybody (thesis 9.6).
    PreCandidate,
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
    /// Leadership is being handed over.
    Transferring,
}

/// How a leadership transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferResult {
    /// This node leads no more; whether the one it was handed to does will be seen.
    SteppedDown,
    /// Nothing came of it in an election timeout: this node leads on.
    TimedOut,
    /// This node does not lead, so it has nothing to hand over.
    NotLeader,
    /// Another transfer is on its way.
    Busy,
    /// There is no voter of that name, or none at all, that is heard, has room and is fit to lead.
    NoTarget,
}
