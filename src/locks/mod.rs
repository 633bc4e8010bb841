//! The lock table of one shard: keys, lines of waiters, leases and deadlines.
//!
//! Everything here is a plain function of state and input. Time comes in as a value, outputs go
//! into a buffer of the caller's, and nothing is random or ordered by a hash: the same calls give
//! the same answers and proposals on every machine.
//!
//! [`LockTable`] answers requests and *proposes* commands for the replicated log; a lock changes
//! hands only when a command comes back, committed, through [`LockTable::apply`]:
//!
//! ```
//! use ticketing::locks::{Answer, Command, LockTable, Origin, Outputs, TableLimits, key_hash};
//!
//! let (mut table, mut out) = (LockTable::new(TableLimits::default(), 0), Outputs::default());
//! table.set_ready(0);
//! let origin = Origin { shard: 0, connection: 1, generation: 0, request_id: 7 };
//! let hash = key_hash(0, b"gate");
//! table.acquire(0, origin, 0, hash, b"gate", 5, 30, &mut out);
//!
//! // The log got it as entry 41, and a majority has it.
//! let payload = out.proposals.payloads().next().unwrap().to_vec();
//! let command = Command::decode(&payload).unwrap();
//! table.apply(1, 41, hash, command, true, &mut out);
//! assert!(matches!(out.answers[0], (_, Answer::Acquired { token: 41, .. })));
//! ```

pub mod command;
pub mod limits;

mod apply;
#[cfg(feature = "bugs")]
mod bugs;
mod cut;
mod deadlines;
mod entry;
mod held;
mod leadership;
mod proposals;
mod requests;
mod stats;
mod table;
mod types;
mod wheel;

#[cfg(feature = "bugs")]
pub use bugs::TableBug;
pub use command::{Command, CommandError};
pub use cut::CutChunk;
pub use held::{HELD_LOCK_BYTES_MAX, HeldLock, HeldLockError, held_locks};
pub use leadership::Fate;
pub use limits::TableLimits;
pub use proposals::{Proposals, Unit, Units};
pub use stats::{LockState, LockView, TableStats};
pub use table::LockTable;
pub use types::{Answer, Applied, GrantRef, Origin, Orphan, Outputs, key_hash};
