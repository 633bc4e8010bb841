//! What is remembered of nodes, and its bytes.

use super::{Claim, Incarnation, ProcessId};
use crate::format::{PeerRecord, read};
use crate::limits::{MAX_LEFT_NODES, MAX_REMEMBERED_NODES};
use crate::raft::Config;
use crate::types::{LogIndex, NodeId, Term};

const RECORD_BYTES: usize = size_of::<PeerRecord>();
const ID_BYTES: usize = size_of::<NodeId>();

/// What a peer remembers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub(super) incarnation: Incarnation,
    pub(super) starts: u64,
    pub(super) process: ProcessId,
    /// The newest term in which it acknowledged entries to this peer, and the last of them.
    pub(super) acknowledged: (Term, LogIndex),
    /// The largest index that it acknowledged and that is known committed.
    pub(super) committed: LogIndex,
}

impl Memory {
    /// What to remember of a node that was never seen.
    #[must_use]
    pub fn first(claim: &Claim) -> Self {
        Self {
            incarnation: claim.incarnation,
            starts: claim.starts,
            process: claim.process,
            acknowledged: (Term(0), LogIndex(0)),
            committed: LogIndex(0),
        }
    }

    /// The node acknowledges its log up to `up_to` to this peer, which leads in `term`.
    pub fn acknowledges(&mut self, term: Term, up_to: LogIndex) {
        let (newest, last) = self.acknowledged;
        if term > newest {
            self.acknowledged = (term, up_to);
        } else if term == newest {
            self.acknowledged.1 = last.max(up_to);
        }
    }

    /// This peer, which leads in `term`, knows everything up to `commit` committed.
    pub fn commits(&mut self, term: Term, commit: LogIndex) {
        let (newest, last) = self.acknowledged;
        if term == newest {
            self.committed = self.committed.max(last.min(commit));
        }
    }
}

/// What is remembered of every node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Memories {
    /// The one that was first seen first.
    nodes: Vec<(NodeId, Memory)>,
    /// The one that left first.
    left: Vec<NodeId>,
}

impl Memories {
    /// What is remembered of a node.
    #[must_use]
    pub fn of(&self, node: NodeId) -> Option<&Memory> {
        let found = self.nodes.iter().find(|(other, _)| *other == node);
        found.map(|(_, memory)| memory)
    }

    /// The same, to add what it acknowledged.
    pub fn of_mut(&mut self, node: NodeId) -> Option<&mut Memory> {
        let found = self.nodes.iter_mut().find(|(other, _)| *other == node);
        found.map(|(_, memory)| memory)
    }

    /// Whether the node is known to have left the cluster.
    #[must_use]
    pub fn has_left(&self, node: NodeId) -> bool {
        self.left.contains(&node)
    }

    /// Remembers a node that is let in. With [`MAX_REMEMBERED_NODES`] others, one that is no member of
    /// `config` is forgotten.
    pub fn remember(&mut self, config: &Config, node: NodeId, memory: Memory) {
        if let Some(known) = self.of_mut(node) {
            *known = memory;
            return;
        }
        if self.nodes.len() == MAX_REMEMBERED_NODES {
            let stranger = self.nodes.iter().position(|(n, _)| !config.is_member(*n));
            // The limits say that there is one.
            self.nodes.remove(stranger.unwrap_or(0));
        }
        self.nodes.push((node, memory));
    }

    /// The cluster has committed a configuration; `before` is the committed one that this node knew
    /// until then. Remembers who left. True if anybody did.
    pub fn committed(&mut self, before: &Config, now: &Config) -> bool {
        let mut any = false;
        for node in before.members().filter(|node| !now.is_member(*node)) {
            self.nodes.retain(|(other, _)| *other != node);
            self.left.retain(|other| *other != node);
            if self.left.len() == MAX_LEFT_NODES {
                self.left.remove(0);
            }
            self.left.push(node);
            any = true;
        }
        any
    }

    /// How many nodes it has a memory of, and how many left.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.left.len())
    }

    /// The bytes: a [`PeerRecord`] for each memory, then the ids of those that left.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(body_bytes(self.nodes.len(), self.left.len()));
        for (node, memory) in &self.nodes {
            let record = PeerRecord {
                node_id: node.0,
                incarnation: memory.incarnation.0,
                process: memory.process.0,
                starts: memory.starts,
                acknowledged_term: memory.acknowledged.0.0,
                acknowledged_index: memory.acknowledged.1.0,
                committed: memory.committed.0,
            };
            bytes.extend_from_slice(bytemuck::bytes_of(&record));
        }
        for node in &self.left {
            bytes.extend_from_slice(&node.0);
        }
        bytes
    }

    /// Reads that many memories, and that many that left, and all of the bytes.
    ///
    /// `None` when they are not what [`Memories::encode`] writes.
    #[must_use]
    pub fn decode(nodes: usize, left: usize, bytes: &[u8]) -> Option<Self> {
        let counts_fit = nodes <= MAX_REMEMBERED_NODES && left <= MAX_LEFT_NODES;
        if !counts_fit || bytes.len() != body_bytes(nodes, left) {
            return None;
        }
        let mut memories = Self::default();
        let (records, ids) = bytes.split_at_checked(nodes * RECORD_BYTES)?;
        for record in records.chunks(RECORD_BYTES) {
            let record: PeerRecord = read(record)?;
            let node = NodeId(record.node_id);
            if memories.of(node).is_some() {
                return None;
            }
            let memory = Memory {
                incarnation: Incarnation(record.incarnation),
                starts: record.starts,
                process: ProcessId(record.process),
                acknowledged: (
                    Term(record.acknowledged_term),
                    LogIndex(record.acknowledged_index),
                ),
                committed: LogIndex(record.committed),
            };
            memories.nodes.push((node, memory));
        }
        let (ids, _) = ids.as_chunks::<ID_BYTES>();
        for node in ids.iter().map(|id| NodeId(*id)) {
            if memories.has_left(node) {
                return None;
            }
            memories.left.push(node);
        }
        Some(memories)
    }
}

const fn body_bytes(nodes: usize, left: usize) -> usize {
    nodes * RECORD_BYTES + left * ID_BYTES
}
