//! Ticketing: a distributed lock server for the moment a ticket sale opens.
//!
//! Everything that decides is pure, everything that touches the world is thin.
//! The lock table ([`locks`]) and the Raft core with its log
//! ([`ticketing_raftlog`]) are plain functions of state and input; around them,
//! each [`shard`] runs on an executor of its own with the connections that its
//! core accepted, the [`consensus`] role makes what they propose durable, and
//! [`lanes`] carry batches between the two.

pub mod admin;
pub mod cli;
pub mod cluster_view;
pub mod config;
pub mod consensus;
pub mod counters;
pub mod fatal;
pub mod lanes;
pub mod limits;
pub mod locks;
pub mod node;
pub mod node_signals;
pub mod operator;
pub mod peers;
pub mod probe;
pub mod requests;
pub mod runtime;
pub mod security;
pub mod shard;
pub mod watchdog;
