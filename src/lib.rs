//! Ticketing: a distributed lock server.

pub mod locks;
