//! The Raft core and its log.
