//! What a table shows of itself.

/// Gauges and counters of one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Gauge: locks held.
    pub held: u64,
    /// Gauge: keys known: held, or with a command in the log.
    pub locks: u64,
    /// Gauge: acquires standing in line.
    pub waiting: u64,
    /// Gauge: requests that are owed an answer, those in line included.
    pub requests: u64,
    /// Gauge: releases parked until a removal in the log is applied.
    pub parked_releases: u64,
    /// Gauge: own commands proposed and not yet applied.
    pub in_flight: u64,
    /// Gauge: timers set.
    pub timers: u64,
    /// Answers: Acquired.
    pub acquired: u64,
    /// Answers: Released.
    pub released: u64,
    /// Answers: NotFound.
    pub not_found: u64,
    /// Answers: TimedOut.
    pub timed_out: u64,
    /// Answers: Busy.
    pub busy: u64,
    /// Answers: Indeterminate.
    pub indeterminate: u64,
    /// Answers: NotActive.
    pub not_active: u64,
    /// Requests whose requester went before they were answered.
    pub disconnected: u64,
    /// Grants applied.
    pub grants: u64,
    /// Grants that met a held lock.
    pub grants_rejected: u64,
    /// Releases applied that removed something.
    pub releases: u64,
    /// Releases applied that met no such lock.
    pub releases_missed: u64,
    /// Expires applied that removed something.
    pub expires: u64,
    /// Expires applied that met no such lock.
    pub expires_missed: u64,
    /// Grants that nobody was there to take, released by the table itself.
    pub ghosts: u64,
    /// Own commands that the table did not know as proposed. Never in normal flow.
    pub unexpected: u64,
}

/// What is going on with a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockState {
    /// A Grant is in the log.
    Granting,
    /// Somebody holds it.
    Held,
    /// A Release is in the log; with `next`, a Grant behind it.
    Releasing {
        /// Whether the next holder is chosen.
        next: bool,
    },
    /// An Expire is in the log; with `next`, a Grant behind it.
    Expiring {
        /// Whether the next holder is chosen.
        next: bool,
    },
}

/// One lock, as an operator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockView<'a> {
    /// The lock's name.
    pub key: &'a [u8],
    /// The hash that came with it.
    pub key_hash: u64,
    /// The current token; `None` while its first Grant is in the log.
    pub token: Option<u64>,
    /// The current grant's lease, in milliseconds; 0 without a holder.
    pub lease_ms: u32,
    /// What is left of it, in milliseconds, without the grace that precedes an Expire.
    pub lease_left_ms: u64,
    /// How long it has been held, in milliseconds.
    pub held_for_ms: u64,
    /// How many stand in line.
    pub waiters: usize,
    /// What is going on with it.
    pub state: LockState,
}
