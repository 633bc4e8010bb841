//! What the admin address can see of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};
use ticketing_raftlog::{Durability, NodeId};

use crate::cluster_view::ClusterView;
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
    cluster: Option<Arc<ClusterView>>,
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
    /// What is known of the cluster; none of a single node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterStatus>,
    /// Each member of the cluster; of a single node, itself.
    pub members: Vec<MemberStatus>,
}

/// The cluster, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Its identity.
    pub cluster_id: String,
    /// What its clients are configured with.
    pub identity_fingerprint: String,
    /// The answering node's place.
    pub slot: u8,
    /// The leader's place, if one is known.
    pub leader_slot: Option<u8>,
    /// Whether the answering node leads and serves.
    pub is_ready: bool,
    /// Log index of the list of members in force.
    pub config_index: u64,
    /// Whether that is committed.
    pub config_committed: bool,
}

/// One member, as the answering node sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its place in the clients' address list; none in single mode.
    pub slot: Option<u8>,
    /// Its identity.
    pub node_id: String,
    /// `leader`, `follower`, `candidate`, `learner`, or `joining`: about to take a voter's place.
    pub role: String,
    /// Whether it is the answering node.
    pub is_self: bool,
    /// Whether the answering node has a connection with it.
    pub is_connected: bool,
    /// Its term; of the answering node only.
    pub term: Option<u64>,
    /// Log index committed; of the answering node only.
    pub commit_index: Option<u64>,
    /// Log index applied on every shard; of the answering node only.
    pub applied_index: Option<u64>,
    /// Log index on its disk (in memory durability: in its page cache); of others only where the
    /// answering node leads.
    pub synced_index: Option<u64>,
    /// Entries it has yet to get, where that is known.
    pub lag: Option<u64>,
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
        cluster: Option<Arc<ClusterView>>,
    ) -> Self {
        Self {
            node_id,
            durability,
            phase: AtomicU8::new(STARTING),
            shards,
            consensus,
            cluster,
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
        let own = MemberStatus {
            slot: None,
            node_id: self.node_id.to_string(),
            role: "leader".to_owned(),
            is_self: true,
            is_connected: true,
            term: Some(self.consensus.term.get()),
            commit_index: Some(self.consensus.commit_index.get()),
            applied_index: Some(applied_index),
            synced_index: Some(self.consensus.persisted_index.get()),
            lag: Some(0),
            last_contact_ms: None,
        };
        let last_index = self.consensus.last_index.get();
        let state = self.cluster.as_ref().map(|cluster| cluster.get());
        let members = match &state {
            None => vec![own],
            Some(state) => state
                .members
                .iter()
                .map(|member| {
                    let of_self =
                        |of: &MemberStatus| if member.is_self { of.clone() } else { empty() };
                    MemberStatus {
                        slot: member.slot,
                        node_id: member.node_id.clone(),
                        role: member.role.to_owned(),
                        is_self: member.is_self,
                        is_connected: member.is_connected,
                        synced_index: member.synced_index,
                        lag: member
                            .synced_index
                            .filter(|_| !member.is_self)
                            .map(|synced| last_index.saturating_sub(synced)),
                        last_contact_ms: member.last_contact_ms,
                        ..of_self(&own)
                    }
                })
                .collect(),
        };
        NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: if self.cluster.is_some() {
                "cluster"
            } else {
                "single"
            }
            .to_owned(),
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
            cluster: state.as_ref().map(|state| ClusterStatus {
                cluster_id: state.cluster_id.clone(),
                identity_fingerprint: state.fingerprint.clone(),
                slot: state.slot,
                leader_slot: state.leader_slot,
                is_ready: state.is_ready,
                config_index: state.config_index,
                config_committed: state.config_committed,
            }),
            members,
        }
    }
}

fn empty() -> MemberStatus {
    MemberStatus {
        slot: None,
        node_id: String::new(),
        role: String::new(),
        is_self: false,
        is_connected: false,
        term: None,
        commit_index: None,
        applied_index: None,
        synced_index: None,
        lag: None,
        last_contact_ms: None,
    }
}
