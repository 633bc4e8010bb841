//! The protocol between the nodes of a cluster, version 1: every byte of it, and nothing else.
//!
//! All integers are little-endian, as in the log, whose records travel as they lie there. A
//! connection starts with the [`hello`] of both sides, each of which proves that it knows the peer
//! token; then both send [`frame`]s.

pub mod addresses;
pub mod body;
pub mod frame;
pub mod hello;
mod wire;

pub use addresses::{Address, Addresses, AddressesBuffer};
pub use body::{Body, EntryId, Kind, Report, Run, SnapshotId};
pub use frame::{Frame, Malformed, Parsed, parse};
pub use hello::{Hello, HelloError, Refusal, Verdict};
