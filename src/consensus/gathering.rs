//! Proposals on their way into the next batch.

use std::collections::VecDeque;

use ticketing_raftlog::{BatchBuilder, EntryKind, Term};

use crate::locks::Proposals;
use crate::locks::command::COMMAND_BYTES_MAX;

/// What the shards propose, until it is in a batch.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    messages: VecDeque<Proposals>,
    // Units of the first message that are in a batch already.
    units_done: usize,
    pub(super) bytes: usize,
}

impl Gathering {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn add(&mut self, proposals: Proposals) {
        if !proposals.is_empty() {
            self.bytes += proposals.byte_len();
            self.messages.push_back(proposals);
        }
    }

    /// Moves whole units into `batch` as long as it has room.
    pub(super) fn fill(&mut self, batch: &mut BatchBuilder, term: Term) {
        while let Some(message) = self.messages.front() {
            for unit in message.units().skip(self.units_done) {
                // Neighbours stay neighbours: a unit goes in whole.
                if !batch.has_room_for(2, COMMAND_BYTES_MAX) {
                    return;
                }
                for payload in unit.payloads() {
                    let pushed = batch.push(EntryKind::Command, term, payload);
                    assert!(pushed.is_ok(), "there was room for two of the longest");
                }
                self.units_done += 1;
            }
            self.bytes -= message.byte_len();
            self.units_done = 0;
            self.messages.pop_front();
        }
    }
}
