//! What the parts of a node, its peers and its clients say to each other.

use std::fmt;
use std::rc::Rc;

use ticketing::locks::{Applied, Fate, GrantRef, Origin};
use ticketing_raftlog::raft::{
    Change, ChangeRefusal, ConfigEntry, EntryId, Message, Role, Snapshot,
};
use ticketing_raftlog::{HardState, LogIndex, NodeId, Position, Term};

use super::journal::Payload;

/// From a client.
#[derive(Clone, Debug)]
pub enum Request {
    /// Acquire a key.
    Acquire {
        /// The client's name for the request.
        id: u64,
        /// How long to stand in line, in seconds.
        wait_s: u8,
        /// How long to hold it, in seconds.
        lease_s: u8,
        /// The lock's name.
        key: Rc<[u8]>,
    },
    /// Release a key.
    Release {
        /// The client's name for the request.
        id: u64,
        /// The grant's token.
        token: u64,
        /// The lock's name.
        key: Rc<[u8]>,
    },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquire {
                id,
                wait_s,
                lease_s,
                key,
            } => {
                let key = String::from_utf8_lossy(key);
                write!(
                    f,
                    "acquire {key} wait {wait_s} s lease {lease_s} s (request {id})"
                )
            }
            Self::Release { id, token, key } => {
                let key = String::from_utf8_lossy(key);
                write!(f, "release {key} token {token} (request {id})")
            }
        }
    }
}

/// To a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to a request.
    Answer(u64, Verdict),
    /// L: this slot leads and is ready.
    Leader(u8),
}

/// What a request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A.
    Acquired {
        /// The fencing token.
        token: u64,
        /// To hand back if it cannot be delivered.
        grant: GrantRef,
    },
    /// R.
    Released,
    /// N.
    NotFound,
    /// T.
    TimedOut,
    /// B.
    Busy,
    /// I.
    Indeterminate,
    /// M, with the leader's slot; none when only the command's fate is told.
    Moved(Option<u8>),
    /// E 4.
    NoLeader,
    /// E 3.
    NotActive,
}

impl Verdict {
    /// Whether it says for certain that an acquire was not granted.
    #[must_use]
    pub fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::TimedOut | Self::Busy | Self::Moved(_) | Self::NoLeader | Self::NotActive
        )
    }
}

/// Between nodes.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every frame is of the large kind"
)]
pub enum PeerFrame {
    /// A message of the Raft cores.
    Raft {
        /// What it says.
        message: Message,
        /// The payloads of its entries.
        payloads: Vec<Payload>,
        /// The bytes of its snapshot chunk.
        chunk: Rc<[u8]>,
    },
    /// The sender leads and is ready.
    Ready {
        /// In which term.
        term: Term,
    },
    /// An ex-leader asks the leader to release a grant of its.
    ReleaseAsked {
        /// The lock's name.
        key: Rc<[u8]>,
        /// The grant's token.
        token: u64,
    },
    /// That grant is current no more.
    ReleaseDone {
        /// The grant's token.
        token: u64,
    },
}

impl fmt::Display for PeerFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raft { message, .. } => write!(f, "term {} {:?}", message.term, message.body),
            Self::Ready { term } => write!(f, "ready in term {term}"),
            Self::ReleaseAsked { token, .. } => write!(f, "please release token {token}"),
            Self::ReleaseDone { token } => write!(f, "token {token} is released"),
        }
    }
}

/// Where a shard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Another node leads, at that slot if it is known.
    Follows(Option<u8>),
    /// This node leads and is not ready.
    Elected,
    /// This node leads and is ready, in that term.
    Ready(Term),
}

/// A committed command on its way to its shard.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its index.
    pub index: LogIndex,
    /// The command.
    pub payload: Payload,
    /// Whether the shard proposed it.
    pub own: bool,
}

/// What is asked of the shard that owns a key.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A request that arrived at `arrived_ms`.
    Request {
        /// What.
        request: Request,
        /// When, on the node's clock.
        arrived_ms: u64,
    },
    /// The requester is gone.
    Disconnect,
    /// An answer could not be delivered.
    Undelivered(GrantRef),
}

/// To a shard.
#[derive(Clone, Debug)]
pub enum ToShard {
    /// A client's connection was opened on this shard.
    Connected(u32),
    /// A client's request came in on this shard.
    Requested(u32, Request),
    /// A client's connection is gone.
    Closed(u32),
    /// For a key that this shard owns.
    Asked(Origin, Asked),
    /// For a request that came in on this shard.
    Answered {
        /// The shard that owns the key.
        owner: u16,
        /// Whose.
        origin: Origin,
        /// What it is told.
        verdict: Verdict,
    },
    /// Where this node stands has changed.
    Lead(Lead),
    /// The leader is ready: tell the clients.
    LeaderReady(u8),
    /// Whether the disks have room for what acquires write.
    Room(bool),
    /// Everything committed up to `through` that concerns this shard.
    Committed {
        /// Up to where.
        through: LogIndex,
        /// The commands.
        records: Vec<Record>,
    },
    /// Report when everything before is applied, with the sum over what is held.
    Barrier(LogIndex),
    /// Report what is held here.
    Cut(LogIndex),
    /// A command that this shard proposed will not be applied as its own.
    Dropped(Payload, Fate),
    /// As the mistake [`super::bugs::ShellBug::AcquiredFromSnapshot`] has it.
    TakenAsGranted(LogIndex, Payload),
    /// The state is that of a snapshot from now on.
    Restore {
        /// Its last index.
        index: LogIndex,
        /// What is held in it, all shards'.
        locks: Rc<[u8]>,
    },
    /// Leadership was confirmed after the request; the index that has to be applied.
    Confirmed(u64, LogIndex),
    /// It was not.
    NotConfirmed(u64),
    /// A peer asks for the release of a grant it could not deliver.
    PeerRelease(u32, Rc<[u8]>, u64),
    /// The leader says that this grant is current no more.
    OrphanDone(u64),
    /// Stop in good order.
    Stop,
}

/// From a shard to the consensus role.
#[derive(Clone, Debug)]
pub enum ToRole {
    /// Commands to append, in units that stay together, made in the leadership of that term.
    Proposals(u16, Term, Vec<Vec<Payload>>),
    /// A barrier is reached; the sum over what is held.
    Reached(u16, LogIndex, u128),
    /// What is held at a cut.
    Part(u16, LogIndex, Vec<u8>),
    /// Confirm that this node leads.
    Confirm(u16, u64),
    /// Ask the leader to release.
    Orphan(Rc<[u8]>, u64),
    /// That peer's grant is current no more.
    PeerReleased(u32, u64),
    /// Nothing of this shard's is in the log any more.
    Quiet(u16),
}

/// A snapshot with what it needs.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    /// Its identity.
    pub snapshot: Snapshot,
    /// The configuration at its last index, and where in the log that is.
    pub config: ConfigEntry,
    /// What is held.
    pub locks: Rc<[u8]>,
    /// What was synced of the log when it was made; zero when it came from a peer.
    pub position: Position,
}

/// What a part of a node wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Give this to a shard of this node.
    ToShard(u16, ToShard),
    /// Give this to the consensus role of this node.
    ToRole(ToRole),
    /// Send to a client.
    Reply(u32, Reply),
    /// Close a client's connection.
    Close(u32),
    /// Send to a peer.
    Send(NodeId, PeerFrame),
    /// Sync term and vote, before any append asked for later.
    PersistHardState(HardState),
    /// Write, sync and keep a snapshot, then report it.
    SaveSnapshot(SnapshotFile, bool),
    /// The planned stop has come to its end.
    Stopped,
    /// The cluster has committed a configuration without this node: it is to close its clients'
    /// connections and to end for good.
    Replaced,
    /// For metrics and checks: nothing is to be done.
    Seen(Seen),
}

/// What happened inside, for metrics and checks.
#[derive(Clone, Debug)]
pub enum Seen {
    /// The core's role.
    Role {
        /// What.
        role: Role,
        /// In which term.
        term: Term,
        /// Who leads.
        leader: Option<NodeId>,
    },
    /// Every shard has applied the no-op: the node serves.
    Ready(Term),
    /// The log was truncated.
    Truncated(LogIndex),
    /// The log goes on behind a snapshot.
    ResetTo(EntryId),
    /// Entries were appended, up to this one.
    Appended(LogIndex),
    /// The commit index.
    Committed(LogIndex),
    /// A configuration is committed; the committed one that this node knew until then.
    ConfigCommitted {
        /// Until then.
        before: Box<ConfigEntry>,
        /// From now on.
        now: Box<ConfigEntry>,
    },
    /// A change of members was not begun.
    ChangeRefused(Change, ChangeRefusal),
    /// The state at an index.
    StateHash(LogIndex, u128),
    /// A shard applied a command.
    Applied(LogIndex, Applied),
    /// An acquire was put before the table of the shard that owns its key.
    Considered {
        /// Whose.
        origin: Origin,
        /// In which term this node is ready.
        term: Term,
        /// The request.
        request: Request,
    },
    /// A unit of commands is proposed in a term; its first.
    Proposed(Term, Payload),
    /// A request is answered.
    Told {
        /// Whose.
        origin: Origin,
        /// What.
        verdict: Verdict,
    },
}
