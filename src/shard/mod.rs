//! One shard: the connections that its core accepted, and the keys that it
//! owns. Everything here runs on one executor and is never locked.
//!
//! A connection's task reads and parses; what it asks for goes to the lock
//! table at once when this shard owns the key, or into the outbox of the shard
//! that does. The *pump*, woken once for whatever has happened meanwhile,
//! takes in what came over the lanes, sends out what the table decided, and
//! writes to each connection once.

mod connection;
mod leadership;
mod outbox;
mod requests;
mod serve;
mod snapshot;
mod state;
mod stop;

use std::cell::RefCell;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crate::counters::ShardCounters;
use crate::lanes::messages::{FromConsensus, SnapshotChunk, ToConsensus, ToShard};
use crate::lanes::{Doorbell, Receiver, Sender};
use crate::locks::TableLimits;
use crate::node_signals::NodeSignals;
use crate::runtime::{Alarm, Clock};
use crate::security::handshake::Gate;

use state::Shard;

/// What a shard is given at its start.
#[derive(Debug)]
pub struct Setup {
    /// Its number, below `to_shards.len()`.
    pub id: u16,
    /// The clock that all cores share.
    pub clock: Clock,
    /// Seed of the hash that spreads keys over shards.
    pub key_seed: u64,
    /// Whether there are other nodes, of which another one may lead.
    pub is_cluster: bool,
    /// Where it listens, once the node serves.
    pub listen: SocketAddr,
    /// What a client must prove.
    pub gate: Gate,
    /// Bounds of its lock table.
    pub table: TableLimits,
    /// Bounds of its connections.
    pub limits: ConnectionLimits,
    /// Rung for whatever comes in over its lanes.
    pub doorbell: Arc<Doorbell>,
    /// From the other shards.
    pub from_shards: Receiver<ToShard>,
    /// From the consensus role.
    pub from_consensus: Receiver<FromConsensus>,
    /// To every shard, by number; its own place is never used.
    pub to_shards: Vec<Sender<ToShard>>,
    /// To the consensus role.
    pub to_consensus: Sender<ToConsensus>,
    /// To the consensus role: what was held at a cut.
    pub to_snapshot: Sender<SnapshotChunk>,
    /// Where it publishes what it counts.
    pub counters: Arc<ShardCounters>,
    /// What the whole node tells its parts, and they it.
    pub signals: Arc<NodeSignals>,
}

/// Bounds of connections (see [`crate::limits`]).
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Connections of the whole node.
    pub connections: u32,
    /// Connections of the whole node that have not passed the handshake.
    pub unauthenticated: u32,
    /// Requests in flight on one connection.
    pub in_flight: u32,
    /// Bytes that may wait for one connection's socket.
    pub output_bytes: u32,
}

/// Runs a shard until the consensus role says that the node has stopped.
pub async fn run(setup: Setup) {
    let doorbell = Arc::clone(&setup.doorbell);
    let clock = setup.clock;
    let shard = Rc::new(RefCell::new(Shard::new(setup)));
    let mut alarm = Alarm::default();
    let mut serving = false;
    loop {
        let deadline_ms = shard.borrow().next_deadline_ms();
        poll_fn(|cx| {
            if doorbell.poll_rung(cx).is_ready() {
                return Poll::Ready(());
            }
            alarm.poll_due(cx, &clock, deadline_ms)
        })
        .await;
        let pumped = shard.borrow_mut().pump();
        if pumped.ready && !serving {
            serving = true;
            serve::listen(&shard);
        }
        if pumped.ended {
            break;
        }
        if pumped.more {
            // More than one round's worth waits: let the connections read first.
            doorbell.ring();
        }
    }
}
