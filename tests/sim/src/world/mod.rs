//! The made-up world: time, chance, network, disks and clocks, and the story of a run.
//!
//! Nothing here knows Raft or locks. Everything follows from the seed: no real clock, no threads, no
//! hash-ordered iteration.

pub mod clock;
pub mod disk;
pub mod events;
pub mod network;
pub mod rng;
pub mod story;
