//! Proposals on their way into the next batch.

use std::collections::VecDeque;

use ticketing_raftlog::{BatchBuilder, EntryKind, Term};

use crate::locks::Proposals;
use crate::locks::command::COMMAND_BYTES_MAX;

/// What one shard proposes in one leadership.
#[derive(Debug)]
struct Message {
    shard: u16,
    term: Term,
    proposals: Proposals,
}

/// What the shards propose, until it is in a batch.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    messages: VecDeque<Message>,
    // Units of the first message that are in a batch already.
    units_done: usize,
    pub(super) bytes: usize,
}

/// How much of it was put into a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filled {
    messages: usize,
    units: usize,
}

impl Gathering {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn add(&mut self, shard: u16, term: Term, proposals: Proposals) {
        if !proposals.is_empty() {
            self.bytes += proposals.byte_len();
            self.messages.push_back(Message {
                shard,
                term,
                proposals,
            });
        }
    }

    /// Copies whole units that were proposed in `term` into `batch` as long as it has room; they stay
    /// here until [`Gathering::taken`].
    pub(super) fn fill(&self, batch: &mut BatchBuilder, term: Term) -> Filled {
        let mut filled = Filled {
            messages: 0,
            units: self.units_done,
        };
        for message in self.messages.iter().take_while(|m| m.term == term) {
            for unit in message.proposals.units().skip(filled.units) {
                // Neighbours stay neighbours: a unit goes in whole.
                if !batch.has_room_for(2, COMMAND_BYTES_MAX) {
                    return filled;
                }
                for payload in unit.payloads() {
                    let pushed = batch.push(EntryKind::Command, term, payload);
                    assert!(pushed.is_ok(), "there was room for two of the longest");
                }
                filled.units += 1;
            }
            filled = Filled {
                messages: filled.messages + 1,
                units: 0,
            };
        }
        filled
    }

    /// What was filled into a batch is in the log.
    pub(super) fn taken(&mut self, filled: Filled) {
        for message in self.messages.drain(..filled.messages) {
            self.bytes -= message.proposals.byte_len();
        }
        self.units_done = filled.units;
    }

    /// Takes out what was proposed in another leadership than that of `term`: it never gets into the
    /// log. Gives each shard's.
    pub(super) fn drop_stale(&mut self, term: Option<Term>) -> Vec<(u16, Proposals)> {
        let mut stale = Vec::new();
        while let Some(message) = self.messages.pop_front() {
            if Some(message.term) == term {
                self.messages.push_front(message);
                break;
            }
            self.bytes -= message.proposals.byte_len();
            let mut rest = Proposals::new();
            for unit in message.proposals.units().skip(self.units_done) {
                rest.push_unit(unit);
            }
            self.units_done = 0;
            stale.push((message.shard, rest));
        }
        stale
    }
}
