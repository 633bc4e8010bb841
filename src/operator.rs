//! What operators ask of the consensus role, and what they are told.

use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;

use serde::{Deserialize, Serialize};
use ticketing_raftlog::NodeId;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// A node joins, without a vote.
    AddLearner {
        /// Which.
        node: NodeId,
        /// Where it listens for the other nodes.
        address: SocketAddr,
    },
    /// A node without a vote leaves.
    RemoveLearner(NodeId),
    /// A learner takes a voter's place.
    Replace {
        /// The place.
        slot: u8,
        /// The learner.
        new: NodeId,
    },
    /// Leadership goes to that slot's node; to the best one if none is named.
    Transfer(Option<u8>),
    /// This node hands leadership over and takes none that is handed to it, until it is started again.
    Drain,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Done {
    /// It has begun, or is done; the status shows how it goes on.
    Accepted,
    /// Not now: ask again in a moment.
    Later {
        /// Why.
        why: String,
    },
    /// This node does not lead; the one at that slot may.
    NotLeader {
        /// The leader's place, if one is known.
        leader_slot: Option<u8>,
    },
    /// It cannot be.
    Refused {
        /// Why, and what to do.
        why: String,
    },
}

/// An order, and where its answer goes.
#[derive(Debug)]
pub struct Slip {
    /// What is asked.
    pub order: Order,
    /// Takes one answer without waiting.
    pub answer: SyncSender<Done>,
}

impl Slip {
    /// Answers; whoever asked may be gone.
    pub fn done(&self, done: Done) {
        let _ = self.answer.try_send(done);
    }
}
