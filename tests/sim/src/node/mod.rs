//! A cluster node's shell around the Raft core and the lock tables, as pure code.
//!
//! [`role::Consensus`] is the consensus role: the proposals' queue, the fan-out of what is committed,
//! the fate of proposed commands, readiness, confirmations, snapshots. [`shard::Shard`] is one
//! shard: connections on one side, the keys it owns on the other. They meet only through the
//! messages of [`messages`], in lanes that keep their order. Time comes in as a value; what is to
//! be done comes out as effects; the log is behind [`journal::Journal`]. Nothing here knows that it
//! is simulated.

pub mod bugs;
pub mod fates;
pub mod journal;
pub mod messages;
pub mod role;
pub mod shard;
