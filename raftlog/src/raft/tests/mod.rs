//! Tests of the core: a single voter against a model, and several on a network made of queues.

mod basics;
mod bounds;
mod lies;
mod net;
mod parts;
mod random;
mod single;
mod snapshots;

/// What the network needs; outside this crate it is built against the public names.
mod api {
    pub(super) use super::super::*;
    pub(super) use crate::types::{HardState, LogIndex, NodeId, Term};
}
