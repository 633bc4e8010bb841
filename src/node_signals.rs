//! The few things that concern the whole process: how many connections there
//! are, whether it serves, whether it is to stop.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

/// Written and read by every core, without order.
#[derive(Debug, Default)]
pub struct NodeSignals {
    connections: AtomicU32,
    strangers: AtomicU32,
    stop: AtomicBool,
    log_full: AtomicBool,
    listening: AtomicU16,
    port_wanted: AtomicBool,
    port_open: AtomicBool,
    shut: AtomicBool,
}

impl NodeSignals {
    /// Asks every core to stop in order. Ring their doorbells afterwards.
    pub fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// True once a stop was asked for.
    #[must_use]
    pub fn stop_asked(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Says whether there is room for the log's next segment.
    pub fn set_log_full(&self, full: bool) {
        self.log_full.store(full, Ordering::Release);
    }

    /// True while there is no room on the disk for the log's next segment.
    #[must_use]
    pub fn log_full(&self) -> bool {
        self.log_full.load(Ordering::Acquire)
    }

    /// This node of a cluster has something to tell clients: the client port is wanted.
    pub fn want_port(&self) {
        self.port_wanted.store(true, Ordering::Release);
    }

    /// True once the client port is wanted.
    #[must_use]
    pub fn port_wanted(&self) -> bool {
        self.port_wanted.load(Ordering::Acquire)
    }

    /// The client port is this process's: ring the shards' doorbells afterwards.
    pub fn open_port(&self) {
        self.port_open.store(true, Ordering::Release);
    }

    /// True once the shards of a cluster's node may listen.
    #[must_use]
    pub fn port_open(&self) -> bool {
        self.port_open.load(Ordering::Acquire)
    }

    /// Says whether clients are to stay away, though the port is open: another node may have this one's place.
    pub fn set_shut(&self, shut: bool) {
        self.shut.store(shut, Ordering::Release);
    }

    /// True while clients are to stay away.
    #[must_use]
    pub fn shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    /// One more shard listens.
    pub fn shard_listens(&self) {
        self.listening.fetch_add(1, Ordering::AcqRel);
    }

    /// How many shards listen.
    #[must_use]
    pub fn shards_listening(&self) -> u16 {
        self.listening.load(Ordering::Acquire)
    }

    /// Counts one more connection in, a stranger still; false, and not counted,
    /// when there are `connections` or `strangers` already.
    pub fn admit(&self, connections: u32, strangers: u32) -> bool {
        if !increment_below(&self.connections, connections) {
            return false;
        }
        if !increment_below(&self.strangers, strangers) {
            self.connections.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// A stranger has passed the handshake, or is about to be counted out.
    pub fn stranger_known(&self) {
        self.strangers.fetch_sub(1, Ordering::AcqRel);
    }

    /// A connection is gone.
    pub fn connection_gone(&self) {
        self.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

fn increment_below(count: &AtomicU32, limit: u32) -> bool {
    count
        .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < limit).then_some(count + 1)
        })
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_admitted_up_to_the_bound_and_not_one_past() {
        let signals = NodeSignals::default();
        assert!(signals.admit(2, 2));
        assert!(signals.admit(2, 2));
        assert!(!signals.admit(2, 2), "two connections are enough");
        signals.connection_gone();
        assert!(!signals.admit(2, 2), "both strangers are still strangers");
        signals.stranger_known();
        assert!(signals.admit(2, 2));
    }
}
