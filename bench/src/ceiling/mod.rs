//! The ceiling: single mode's wire with nothing behind it.
//!
//! One thread, one epoll loop, a line of waiters per key. There is no disk, no lease, no wait
//! that runs out and no way to learn that a holder is gone, so this is no lock server; it answers
//! as fast as anything could. Sets are outside the load: their acquires get Busy.

mod event_loop;
mod table;

pub use event_loop::{Ceiling, CeilingError};
