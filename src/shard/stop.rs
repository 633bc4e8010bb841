//! A planned stop, as one shard sees it: no new acquires, everything that is in
//! the log finishes, each connection is told until it has gone quiet.
//!
//! One shard's quiet means little while another can still send it something: a
//! release forwarded just before its connection ended, or a grant that comes
//! back. So the consensus role asks until, in one round, every shard is quiet
//! and none has had anything to do since the round before.

use crate::lanes::messages::ToConsensus;
use crate::limits::{STOP_AT_MOST, STOP_SILENCE};

use super::state::{ConnectionRef, Shard, millis};

/// How often a stopping shard looks at its connections, in milliseconds.
const LOOK_EVERY_MS: u64 = 25;

/// Where a planned stop stands.
#[derive(Debug, Default)]
pub(super) struct Stop {
    asked_at_ms: Option<u64>,
    look_at_ms: Option<u64>,
    drained: bool,
    handed_over: bool,
    told: bool,
    idle_since_told: bool,
}

impl Stop {
    /// True once acquires are refused.
    pub(super) fn asked(&self) -> bool {
        self.asked_at_ms.is_some()
    }

    /// The shard had something to do that may reach another shard.
    pub(super) fn had_work(&mut self) {
        self.idle_since_told = false;
    }

    /// Whoever leads now, or nobody, does so without this node.
    pub(super) fn handed_over(&mut self) {
        self.handed_over = true;
    }

    /// The consensus role wants to hear again once this shard is quiet.
    pub(super) fn ask_again(&mut self) {
        self.told = false;
    }

    /// When to look at the connections again.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.look_at_ms
    }
}

impl Shard {
    /// Moves a stop on, once one was asked for.
    pub(super) fn pump_stop(&mut self, now_ms: u64) {
        if !self.setup.signals.stop_asked() || self.stop.told {
            return;
        }
        let asked_at_ms = match self.stop.asked_at_ms {
            Some(at_ms) => at_ms,
            None => {
                self.stop.asked_at_ms = Some(now_ms);
                self.table.stop_acquires(now_ms, &mut self.outputs);
                now_ms
            }
        };
        let late = now_ms >= asked_at_ms + millis(STOP_AT_MOST);
        if self.setup.is_cluster && !self.stop.drained && self.table.is_quiet() && self.is_idle() {
            self.stop.drained = true;
            self.tell_consensus(ToConsensus::Drained);
        }
        if late || self.stop.handed_over || !self.setup.is_cluster {
            self.close_silent(now_ms, late);
        }
        let quiet = self.connections.is_empty() && self.table.is_quiet() && self.is_idle();
        if quiet || late {
            let active = !self.stop.idle_since_told && !late;
            self.stop.told = true;
            self.stop.idle_since_told = true;
            self.stop.look_at_ms = None;
            self.tell_consensus(ToConsensus::Quiet { active });
        } else {
            self.stop.look_at_ms = Some(now_ms + LOOK_EVERY_MS);
        }
    }

    fn close_silent(&mut self, now_ms: u64, late: bool) {
        let silence_ms = millis(STOP_SILENCE);
        let over: Vec<ConnectionRef> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                let silent = connection.in_flight.is_empty()
                    && connection.output_waiting() == 0
                    && now_ms >= connection.active_ms + silence_ms;
                !connection.closing && (silent || late)
            })
            .map(|(index, connection)| ConnectionRef {
                index,
                generation: connection.generation,
            })
            .collect();
        for at in over {
            if let Some(connection) = self.connection(at) {
                connection.close();
            }
        }
    }
}
