//! What each core counts, published where another thread may read it.
//!
//! A core owns its counters and stores them without ordering; a reader sees
//! each one whole, but not all of one instant.

use std::sync::atomic::{AtomicU64, Ordering};

/// One published number.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The number as last published.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Publishes a new value. Only the owning core may.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Adds to it. Any core may.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Takes from it. Any core may.
    pub fn sub(&self, less: u64) {
        self.0.fetch_sub(less, Ordering::Relaxed);
    }
}

/// What one shard publishes.
#[derive(Debug, Default)]
pub struct ShardCounters {
    /// Connections that have passed the handshake.
    pub connections: Counter,
    /// Connections in the handshake.
    pub unauthenticated: Counter,
    /// Connections accepted since the start.
    pub accepted: Counter,
    /// Connections closed at once, because there were too many.
    pub turned_away: Counter,
    /// Accepts that the kernel refused (out of descriptors, mostly).
    pub accept_errors: Counter,
    /// Handshakes refused for a wrong answer.
    pub handshakes_refused: Counter,
    /// Handshakes that were broken off or took too long.
    pub handshakes_dropped: Counter,
    /// Connections closed for malformed framing.
    pub malformed: Counter,
    /// Connections closed because they took no bytes, or left no room.
    pub stalled: Counter,
    /// Acquires received.
    pub acquires: Counter,
    /// Releases received.
    pub releases: Counter,
    /// Requests whose key belongs to another shard.
    pub forwarded: Counter,
    /// Acquires answered Busy because proposals or a lane were backed up.
    pub admission_refused: Counter,
    /// Locks held now.
    pub locks_held: Counter,
    /// Waiters in line now.
    pub waiting: Counter,
    /// Answers sent: acquired.
    pub answered_acquired: Counter,
    /// Answers sent: released.
    pub answered_released: Counter,
    /// Answers sent: not found, or not current.
    pub answered_not_found: Counter,
    /// Answers sent: the wait ran out.
    pub answered_timed_out: Counter,
    /// Answers sent: busy.
    pub answered_busy: Counter,
    /// Answers sent: indeterminate.
    pub answered_indeterminate: Counter,
    /// Answers sent: an error with a code.
    pub answered_error: Counter,
    /// Replies M.
    pub answered_moved: Counter,
    /// Leases that ran out and took a lock back.
    pub expired: Counter,
    /// Grants released because their requester was gone.
    pub ghosts: Counter,
    /// Grants that met a held key, which a healthy server never sees.
    pub grants_rejected: Counter,
    /// Log index applied last.
    pub applied_index: Counter,
    /// Rounds of the pump.
    pub rounds: Counter,
}

/// What the consensus role publishes.
#[derive(Debug, Default)]
pub struct ConsensusCounters {
    /// Current term.
    pub term: Counter,
    /// Last log index appended.
    pub last_index: Counter,
    /// Last log index known durable (in page cache, in memory durability).
    pub persisted_index: Counter,
    /// Last log index committed.
    pub commit_index: Counter,
    /// Log batches written.
    pub batches: Counter,
    /// Commands in them.
    pub commands: Counter,
    /// Bytes appended, padding included.
    pub bytes: Counter,
    /// Syncs done.
    pub syncs: Counter,
    /// Time spent waiting for writes and syncs, in microseconds.
    pub persist_us: Counter,
    /// Bytes of proposals that wait for the next batch.
    pub waiting_bytes: Counter,
    /// Segment files of the log, those that wait to be used again included.
    pub segments: Counter,
    /// 1 while there is no room on the disk for the next segment.
    pub log_full: Counter,
    /// Snapshots written.
    pub snapshots: Counter,
    /// Last log index in the newest one.
    pub snapshot_index: Counter,
    /// Its size, in bytes.
    pub snapshot_bytes: Counter,
    /// Rounds of the consensus loop.
    pub rounds: Counter,
}
