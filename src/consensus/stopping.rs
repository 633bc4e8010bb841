//! The steps of an ordered end.

use ticketing_raftlog::Durability;
use ticketing_raftlog::raft::Input;

use crate::lanes::messages::FromConsensus;

use super::jobs::{self, Job};
use super::role::Role;

/// Where a planned stop stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Not every shard is quiet yet, if a stop was asked for at all.
    Serving,
    /// Every shard is quiet: nothing more is taken in, and what is here goes into
    /// the log.
    Closing,
    /// Everything written is being synced.
    Syncing,
    /// The last mark is on its way.
    Marking,
    /// The clean stop is being recorded.
    Recording,
    /// Done.
    Ended,
}

impl Role {
    /// One more shard is quiet.
    pub(super) fn quiet(&mut self, active: bool) {
        self.quiet += 1;
        self.quiet_anew |= active;
        if self.quiet < self.shards {
            return;
        }
        if self.quiet_anew {
            self.quiet = 0;
            self.quiet_anew = false;
            self.fan_out.tell_all(|| FromConsensus::StillQuiet);
        } else {
            self.stop = Stop::Closing;
            self.leave_cluster();
        }
    }

    /// One more shard has nothing in the log any more: once all have, a leader hands over, and the shards
    /// say where the new one is until their clients have gone.
    pub(super) fn drained(&mut self) {
        self.drained += 1;
        if self.drained == self.shards && self.cluster.is_some() {
            self.handing_over = true;
            self.step(Input::Transfer { to: None });
        }
    }

    /// The hand-over has ended, however it did.
    pub(super) fn handed_over(&mut self) {
        if std::mem::take(&mut self.handing_over) {
            self.fan_out.tell_all(|| FromConsensus::HandedOver);
        }
    }

    /// The steps of an ordered end, one job after the other.
    pub(super) fn close(&mut self) -> Option<Job> {
        match self.stop {
            Stop::Serving | Stop::Ended => None,
            Stop::Closing => {
                self.stop = Stop::Syncing;
                Some(jobs::sync_all(self.log.segments().cloned().collect()))
            }
            Stop::Syncing => {
                self.stop = Stop::Marking;
                let mark = self.log.clean_stop_mark(Vec::new());
                self.write(mark, Durability::Sync);
                if self.writing.is_none() {
                    tracing::warn!("no room for the last mark: stopping without it");
                    self.end();
                }
                None
            }
            Stop::Marking => {
                self.stop = Stop::Recording;
                let store = self.take_store();
                Some(jobs::clean_stop(store))
            }
            Stop::Recording => {
                self.end();
                None
            }
        }
    }

    pub(super) fn end(&mut self) {
        self.stop = Stop::Ended;
        self.fan_out.end();
    }
}
