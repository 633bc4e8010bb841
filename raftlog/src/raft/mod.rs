//! The Raft core: pure decisions, `step(input) -> outputs`.
//!
//! No I/O, no clock, no randomness, no payloads. Time comes in as a value. What an output asks for
//! is done by the caller, in the order of the outputs, and reported back as an input; the core
//! never assumes that it happened.

mod core;
#[cfg(test)]
mod tests;
mod types;

pub use self::core::{Core, Start};
pub use types::{AppendKind, Input, Output, RefusalReason, Role};
