//! The consensus role: takes what the shards propose, has the Raft core order
//! it, makes it durable batch by batch, and hands what is committed back to the
//! shards that own the keys.
//!
//! While one batch is on its way to the disk the next one gathers, so that the
//! price of a sync is shared by all that arrived meanwhile (group commit). The
//! log itself is the buffer towards the shards: a full lane stops the fan-out
//! at its cursor, and nothing is dropped.

mod append;
mod cluster;
mod disk;
mod fan_out;
mod fates;
mod gathering;
mod hashes;
mod install;
mod jobs;
mod operators;
mod raft;
mod restore;
mod role;
mod snapshots;
mod stopping;
mod tail;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use ticketing_raftlog::{
    Durability, Folder, HardState, HardStateStore, Log, LogIndex, NodeId, SnapshotReader, Term,
};

use crate::counters::ConsensusCounters;
use crate::lanes::messages::{FromConsensus, SnapshotChunk, ToConsensus};
use crate::lanes::{Doorbell, Receiver, Sender};
use crate::node_signals::NodeSignals;
use crate::runtime::{self, Alarm, Clock};

pub use cluster::ClusterSetup;
use role::Role;
pub(crate) use role::fatal_unless;
pub use snapshots::SnapshotPolicy;

/// What the consensus role is given at its start.
#[derive(Debug)]
pub struct Setup {
    /// The clock that all cores share.
    pub clock: Clock,
    /// Seed of the hash that spreads keys over shards.
    pub key_seed: u64,
    /// When an entry counts as persisted.
    pub durability: Durability,
    /// Who this node is.
    pub node_id: NodeId,
    /// Term and vote, as recovered.
    pub hard_state: HardState,
    /// Where they are kept.
    pub hard_state_store: HardStateStore,
    /// The data folder, locked for this process while this lives.
    pub folder: Folder,
    /// The log, as recovered.
    pub log: Log,
    /// What the log goes on from.
    pub snapshot: Option<SnapshotReader>,
    /// When to take the next one.
    pub snapshots: SnapshotPolicy,
    /// Its last entry's index and term, as recovered.
    pub last: (LogIndex, Term),
    /// Rung for whatever comes in over its lane.
    pub doorbell: Arc<Doorbell>,
    /// From the shards.
    pub from_shards: Receiver<ToConsensus>,
    /// From the shards: what they held at a cut.
    pub snapshot_chunks: Receiver<SnapshotChunk>,
    /// To every shard, by number.
    pub to_shards: Vec<Sender<FromConsensus>>,
    /// Where it publishes what it counts.
    pub counters: Arc<ConsensusCounters>,
    /// What the whole node tells its parts.
    pub signals: Arc<NodeSignals>,
    /// The other nodes; none of a single node.
    pub cluster: Option<ClusterSetup>,
}

/// Runs the consensus role until every shard has stopped.
pub async fn run(setup: Setup) {
    let doorbell = Arc::clone(&setup.doorbell);
    let clock = setup.clock;
    let mut alarm = Alarm::default();
    let mut role = Role::new(setup);
    loop {
        // What has arrived in the sockets meanwhile goes into the same batch.
        if role.may_append() {
            runtime::after_io().await;
        }
        if role.turn() {
            break;
        }
        let deadline_ms = role.next_deadline_ms();
        poll_fn(|cx| {
            let rung = doorbell.poll_rung(cx).is_ready();
            let done = role.poll_jobs(cx).is_ready();
            let due = alarm.poll_due(cx, &clock, deadline_ms).is_ready();
            if rung || done || due {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}
