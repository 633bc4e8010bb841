//! What the server may use at most, measured on the real process, and what becomes of those who
//! want more than their share. Each test prints its figure.
//!
//! The memory meant is the anonymous one: what was allocated, without the log's mapped segments.

#[path = "../support/mod.rs"]
mod support;

mod load;
mod memory;
mod strangers;
