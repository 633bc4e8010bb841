//! Ticketing's benchmarks.
//!
//! Two programs share this library. `bench` puts the published client's load on a server and on
//! the *ceiling*, by turns within one run, and compares. `ceiling` is a responder that does the
//! least a server can do: its figure is the most that client can be shown on a machine, so a
//! server's figure is told as a part of it and means the same on a fast machine and a slow one.

pub mod ceiling;
pub mod cluster;
pub mod hot_key;
pub mod load;
pub mod machine;
pub mod physical;
pub mod report;
pub mod servers;
