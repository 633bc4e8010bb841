//! What the consensus role publishes of the cluster, for whoever asks at the admin address.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One member, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView {
    /// Its place; none of a learner.
    pub slot: Option<u8>,
    /// Its identity.
    pub node_id: String,
    /// `leader`, `follower`, `candidate`, `learner`, `joining` (is to take a voter's place), `leaving`.
    pub role: &'static str,
    /// Whether it is this node.
    pub is_self: bool,
    /// Log index it has on its disk; known of this node, and of all where this node leads.
    pub synced_index: Option<u64>,
    /// Milliseconds since it was last heard of, where that is known.
    pub last_contact_ms: Option<u64>,
    /// Whether there is a connection with it.
    pub is_connected: bool,
}

/// The cluster as of a moment ago.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterState {
    /// The cluster's identity.
    pub cluster_id: String,
    /// What its clients are configured with.
    pub fingerprint: String,
    /// This node's place.
    pub slot: u8,
    /// The leader's place, if one is known.
    pub leader_slot: Option<u8>,
    /// Whether this node leads and serves.
    pub is_ready: bool,
    /// Log index of the configuration in force, and whether it is committed.
    pub config_index: u64,
    /// See `config_index`.
    pub config_committed: bool,
    /// Everybody in it, by slot; learners last.
    pub members: Vec<MemberView>,
}

/// Written by the consensus role, read by the admin address.
#[derive(Debug, Default)]
pub struct ClusterView(Mutex<ClusterState>);

impl ClusterView {
    /// The last state that was published.
    #[must_use]
    pub fn get(&self) -> ClusterState {
        self.lock().clone()
    }

    /// Publishes a state.
    pub fn set(&self, state: ClusterState) {
        *self.lock() = state;
    }

    fn lock(&self) -> MutexGuard<'_, ClusterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
