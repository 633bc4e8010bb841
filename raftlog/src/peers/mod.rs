//! Whether a node that says who it is can be believed: verdicts from what its peers remember. Pure.
//!
//! A node that lost its state must not come back under its old name: it could vote twice in a term, and
//! forget entries that count as on its disk. Each peer remembers, on its own disk, which folder it saw
//! last under a NodeId, how often that was started, and what the node acknowledged; from that it refuses
//! wiped, copied and restored folders, and it remembers who left the cluster for good. What no peer that
//! is asked remembers cannot be caught.
//!
//! [`Known::judge`] is for the side that is asked; [`Standing`] is for the one that was refused, and says
//! when it has to exit.

mod memory;
mod standing;

pub use memory::{Memories, Memory};
pub use standing::{Outcome, Standing};

use crate::limits::{PEER_ASK_MS, PEER_SILENT_MS};
use crate::raft::Config;
use crate::types::{ClusterId, LogIndex, NodeId, Term};

/// Drawn at a folder's first start: tells two folders made for one NodeId apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(pub [u8; 16]);

/// Drawn at each start: tells two processes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProcessId(pub [u8; 16]);

/// What a node says of itself when it connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// Its cluster.
    pub cluster_id: ClusterId,
    /// Its name.
    pub node_id: NodeId,
    /// Its folder.
    pub incarnation: Incarnation,
    /// How often the folder was started, this time included; synced before it is said.
    pub starts: u64,
    /// This process.
    pub process: ProcessId,
    /// Its current term.
    pub term: Term,
    /// The last index of its log, or of its snapshot if that is further.
    pub last_index: LogIndex,
}

/// A connection that is open under a node's name.
///
/// When a newcomer is let in the earlier connection is closed: its process, should it wake up, has to
/// say its name again, and is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Live {
    /// Whose it is.
    pub process: ProcessId,
    /// For how long nothing came on it, in milliseconds of a monotonic clock.
    pub silent_ms: u64,
}

impl Live {
    /// Whether to ask it something: followers have little to say to each other.
    #[must_use]
    pub fn is_to_be_asked(&self) -> bool {
        self.silent_ms >= PEER_ASK_MS
    }

    /// Whether its process counts as alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.silent_ms < PEER_SILENT_MS
    }
}

/// What a node knows when another says who it is.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// The cluster.
    pub cluster_id: ClusterId,
    /// The members, as the latest configuration in this node's log has them.
    pub config: &'a Config,
    /// Whether this node leads: then its log has the latest configuration there is.
    pub leads: bool,
    /// What is remembered.
    pub memories: &'a Memories,
}

/// Why a node is refused, with what the one that refuses it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It belongs to another cluster.
    #[error("node {0} belongs to another cluster; correct the address at which the two met")]
    OtherCluster(NodeId),
    /// It is no member, as far as the leader knows.
    #[error("node {0} is no member of this cluster; add it first")]
    NotAMember(NodeId),
    /// It left the cluster for good.
    #[error("node {0} was replaced or removed, and its name is not used again; add a new node")]
    Replaced(NodeId),
    /// Another folder than before.
    #[error(
        "node {0} comes back with another data folder than before; its state is lost: add a new node \
         in its place"
    )]
    AnotherFolder(NodeId),
    /// A start counter that was seen before, from another process.
    #[error(
        "node {node} says that its folder was started {claimed} times, and {seen} were seen: this is a \
         copy or a restored backup; add a new node in its place"
    )]
    SeenBefore {
        /// The node.
        node: NodeId,
        /// Its counter.
        claimed: u64,
        /// The counter that was seen.
        seen: u64,
    },
    /// Another process under this name is connected, and answers.
    #[error(
        "another process of node {0} is still there: if this one was just restarted the earlier one is \
         not gone yet, and it tries again; if not, a copy of the folder runs: stop one of the two, and \
         find out which is the copy"
    )]
    RunsTwice(NodeId),
    /// The log lacks entries that the node acknowledged.
    #[error(
        "the log of node {node} ends at {has}, and it has acknowledged {needs}: entries are lost; add a \
         new node in its place"
    )]
    LogLost {
        /// The node.
        node: NodeId,
        /// Where its log ends.
        has: LogIndex,
        /// Where it must reach.
        needs: LogIndex,
    },
}

/// Why a node is refused, as it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// [`Refusal::OtherCluster`].
    #[error("the node at that address belongs to another cluster; correct the address")]
    OtherCluster,
    /// [`Refusal::NotAMember`].
    #[error("this node is not added to the cluster yet; add it, and it goes on by itself")]
    NotAMember,
    /// [`Refusal::RunsTwice`].
    #[error(
        "another process under this node's id is alive: a copy of this data folder runs; stop one of \
         the two, find out which is the copy, and remove that"
    )]
    RunsTwice,
    /// [`Refusal::Replaced`].
    #[error(
        "this node was replaced or removed while it was away, and its id is not used again; its data \
         folder can be removed"
    )]
    Replaced,
    /// [`Refusal::AnotherFolder`].
    #[error(
        "the cluster knows this node's id with another data folder: this one is not the node's; add \
         a new node in its place"
    )]
    AnotherFolder,
    /// [`Refusal::SeenBefore`].
    #[error(
        "the cluster has seen a later start of this data folder: this is a copy or a restored backup; \
         add a new node in its place"
    )]
    SeenBefore,
    /// [`Refusal::LogLost`].
    #[error(
        "this node's log lacks entries that it acknowledged: state is lost; add a new node in its place"
    )]
    LogLost,
}

/// What a refused process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// It tries again for as long as it takes: the other side may be behind, the address wrong, or the
    /// node be added in a moment.
    Retry,
    /// It tries again; once it was told for [`crate::limits::SECOND_PROCESS_RETRY_MS`], as [`Self::Exit`].
    RetryForAWhile,
    /// It exits, when a majority of the voters says so: no try can succeed.
    Exit,
}

impl Reason {
    /// What the refused process does about it.
    #[must_use]
    pub fn consequence(self) -> Consequence {
        match self {
            Self::OtherCluster | Self::NotAMember => Consequence::Retry,
            Self::RunsTwice => Consequence::RetryForAWhile,
            Self::Replaced | Self::AnotherFolder | Self::SeenBefore | Self::LogLost => {
                Consequence::Exit
            }
        }
    }
}

impl Refusal {
    /// What to tell the refused node.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::OtherCluster(_) => Reason::OtherCluster,
            Self::NotAMember(_) => Reason::NotAMember,
            Self::Replaced(_) => Reason::Replaced,
            Self::AnotherFolder(_) => Reason::AnotherFolder,
            Self::SeenBefore { .. } => Reason::SeenBefore,
            Self::RunsTwice(_) => Reason::RunsTwice,
            Self::LogLost { .. } => Reason::LogLost,
        }
    }
}

impl Known<'_> {
    /// Judges a claim; `live` is the connection that is open under that name.
    ///
    /// Gives what to remember from now on, synced before the node is let in.
    ///
    /// # Errors
    /// Why it is refused; what is remembered stays.
    pub fn judge(&self, live: Option<&Live>, claim: &Claim) -> Result<Memory, Refusal> {
        let node = claim.node_id;
        if claim.cluster_id != self.cluster_id {
            return Err(Refusal::OtherCluster(node));
        }
        if !self.config.is_member(node) {
            if self.memories.has_left(node) {
                return Err(Refusal::Replaced(node));
            }
            // Only a leader's configuration is surely not behind: who was away must hear of members
            // that came meanwhile from these members.
            if self.leads {
                return Err(Refusal::NotAMember(node));
            }
        }
        match self.memories.of(node) {
            Some(memory) => memory.judge(live, claim),
            None => Ok(Memory::first(claim)),
        }
    }
}

impl Memory {
    fn judge(&self, live: Option<&Live>, claim: &Claim) -> Result<Self, Refusal> {
        let node = claim.node_id;
        if claim.incarnation != self.incarnation {
            return Err(Refusal::AnotherFolder(node));
        }
        // Before the counter, which the start of a copy raises too.
        if live.is_some_and(|live| live.is_alive() && live.process != claim.process) {
            return Err(Refusal::RunsTwice(node));
        }
        let same_process = claim.process == self.process;
        if same_process != (claim.starts == self.starts) || claim.starts < self.starts {
            return Err(Refusal::SeenBefore {
                node,
                claimed: claim.starts,
                seen: self.starts,
            });
        }
        // What it acknowledged in the term that it still has cannot have been truncated since.
        let (term, last) = self.acknowledged;
        let needs = match claim.term == term {
            true => last.max(self.committed),
            false => self.committed,
        };
        if claim.term < term || claim.last_index < needs {
            return Err(Refusal::LogLost {
                node,
                has: claim.last_index,
                needs,
            });
        }
        Ok(Self {
            starts: claim.starts,
            process: claim.process,
            ..*self
        })
    }
}

#[cfg(test)]
mod tests;
