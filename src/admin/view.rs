//! What the admin address can see of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};
use ticketing_raftlog::{Durability, NodeId};

use crate::counters::{ConsensusCounters, Counter, ShardCounters};

const STARTING: u8 = 0;
const SERVING: u8 = 1;
const STOPPING: u8 = 2;

/// The node, as its published counters show it.
#[derive(Debug)]
pub struct NodeView {
    node_id: NodeId,
    durability: Durability,
    phase: AtomicU8,
    pub(super) shards: Vec<Arc<ShardCounters>>,
    pub(super) consensus: Arc<ConsensusCounters>,
}

/// The answer of `/status`, and what `ticketing status --json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The server's version.
    pub version: String,
    /// `single` or `cluster`.
    pub mode: String,
    /// `sync` or `memory`.
    pub durability: String,
    /// `starting`, `serving` or `stopping`.
    pub phase: String,
    /// Cores that hold connections and keys.
    pub shards: usize,
    /// Client connections that have passed the handshake.
    pub connections: u64,
    /// Locks held.
    pub locks_held: u64,
    /// Requests in line.
    pub waiting: u64,
    /// Each member of the cluster; of a single node, itself.
    pub members: Vec<MemberStatus>,
}

/// One member, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its place in the clients' address list; none in single mode.
    pub slot: Option<u8>,
    /// Its identity.
    pub node_id: String,
    /// `leader`, `follower`, `learner`, ...
    pub role: String,
    /// Its term.
    pub term: u64,
    /// Log index committed.
    pub commit_index: u64,
    /// Log index applied on every shard.
    pub applied_index: u64,
    /// Log index on its disk (in memory durability: in its page cache).
    pub synced_index: u64,
    /// Entries it has yet to get.
    pub lag: u64,
    /// Milliseconds since it was last heard of; none for the answering node.
    pub last_contact_ms: Option<u64>,
}

impl NodeView {
    /// A node that is starting.
    #[must_use]
    pub fn new(
        node_id: NodeId,
        durability: Durability,
        shards: Vec<Arc<ShardCounters>>,
        consensus: Arc<ConsensusCounters>,
    ) -> Self {
        Self {
            node_id,
            durability,
            phase: AtomicU8::new(STARTING),
            shards,
            consensus,
        }
    }

    /// Clients are served from now on.
    pub fn set_serving(&self) {
        self.phase.store(SERVING, Ordering::Release);
    }

    /// A stop was asked for.
    pub fn set_stopping(&self) {
        self.phase.store(STOPPING, Ordering::Release);
    }

    /// Whether clients are served.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase.load(Ordering::Acquire) == SERVING
    }

    /// Adds one number up over all shards.
    pub(super) fn sum(&self, of: impl Fn(&ShardCounters) -> &Counter) -> u64 {
        self.shards.iter().map(|shard| of(shard).get()).sum()
    }

    /// The status as of now.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        let phase = match self.phase.load(Ordering::Acquire) {
            SERVING => "serving",
            STOPPING => "stopping",
            _ => "starting",
        };
        // Every shard has applied up to the last entry that concerned it, so
        // the furthest of them is what the node has applied.
        let applied_index = self
            .shards
            .iter()
            .map(|shard| shard.applied_index.get())
            .max()
            .unwrap_or(0);
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: "single".to_owned(),
            durability: match self.durability {
                Durability::Sync => "sync",
                Durability::Memory => "memory",
            }
            .to_owned(),
            phase: phase.to_owned(),
            shards: self.shards.len(),
            connections: self.sum(|shard| &shard.connections),
            locks_held: self.sum(|shard| &shard.locks_held),
            waiting: self.sum(|shard| &shard.waiting),
            members: vec![MemberStatus {
                slot: None,
                node_id: self.node_id.to_string(),
                role: "leader".to_owned(),
                term: self.consensus.term.get(),
                commit_index: self.consensus.commit_index.get(),
                applied_index,
                synced_index: self.consensus.persisted_index.get(),
                lag: 0,
                last_contact_ms: None,
            }],
        }
    }
}
