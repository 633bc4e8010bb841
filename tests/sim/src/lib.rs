//! The simulator: whole clusters of the real pure code, in virtual time.
//!
//! One `u64` seed decides everything: sizes, faults, what clients do and when. A run of the same
//! seed is the same run, in every build, so a failure is told by its seed. What decides in the
//! server (the Raft core, the log's planning and recovery, the lock tables) is the code that ships;
//! the network, disks, clocks and processes are made up ([`world`]); `docs/testing.md` has how to
//! use it.

pub mod checkers;
pub mod clients;
pub mod cluster;
pub mod memlog;
pub mod mutants;
pub mod node;
pub mod plan;
pub mod world;
