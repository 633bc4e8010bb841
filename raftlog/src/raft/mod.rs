//! The Raft core: pure decisions, `step(input) -> outputs`.
//!
//! No I/O, no clock, no randomness, no payloads. Time comes in as a value. What an output asks for
//! is done by the caller, in the order of the outputs, and reported back as an input; the core
//! never assumes that it happened. What the network brings may be anything; what the caller itself
//! reports must be true.
//!
//! `docs/raft.md` says where each rule of the paper and the thesis is, and which test holds it.

mod bugs;
mod change;
mod config;
mod config_bytes;
mod confirm;
mod core;
mod election;
mod extents;
mod follower;
mod hint;
mod install;
mod jitter;
mod message;
mod persisting;
mod progress;
mod quorum;
mod receiving;
mod replication;
mod roles;
mod snapshot;
mod start;
#[cfg(test)]
mod tests;
mod transfer;
mod types;

#[cfg(feature = "bugs")]
pub use self::bugs::Bug;
pub use self::config::{
    Change, ChangeRefusal, Config, ConfigEntry, ConfigError, Replacement, Slot,
};
pub use self::core::Core;
pub use self::message::{Body, EntryId, Message, Report, Run, Snapshot};
pub use self::start::{Extent, ExtentKind, Start, StartError, Timing};
pub use self::types::{
    AppendKind, Epoch, Input, Output, PeerProgress, RefusalReason, Role, Source, TransferResult,
};
