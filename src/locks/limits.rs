//! Every bound of the lock table, and the times it answers by.

use super::wheel::HORIZON_MS;

/// Longest key, in bytes (behaviour, section 6).
pub const KEY_BYTES_MAX: usize = 128;
/// Shortest lease a request may ask for, in seconds.
pub const LEASE_S_MIN: u8 = 1;
/// Longest lease a request may ask for, in seconds.
pub const LEASE_S_MAX: u8 = 250;
/// Longest lease that a Grant may carry, in milliseconds.
pub const LEASE_MS_MAX: u32 = LEASE_S_MAX as u32 * 1_000;

/// Added to every lease, stretched by [`LEASE_STRETCH_PER_MILLE`], before an Expire is proposed.
pub const LEASE_GRACE_MS: u64 = 20;
/// Clock rates differ: a lease is counted down as this many thousandths of its length.
pub const LEASE_STRETCH_PER_MILLE: u64 = 1_001;

/// An acquire with wait 0 is answered at the latest this long after it arrived.
pub const TRY_ANSWER_MS: u64 = 4_500;
/// A release is answered at the latest this long after it arrived.
pub const RELEASE_ANSWER_MS: u64 = 1_500;
/// Acquires that arrive this soon after the table became ready are answered earlier, because a
/// client that tries again rounds what is left of its wait up to whole seconds.
pub const FRESH_LEADER_MS: u64 = 5_000;
/// How much earlier those acquires are answered.
pub const FRESH_LEADER_HURRY_MS: u64 = 1_000;
/// Shortest wait, in seconds, that is answered earlier under a fresh leader.
pub const FRESH_LEADER_WAIT_S_MIN: u8 = 2;

/// Default of [`TableLimits::wait_margin_ms`].
pub const WAIT_MARGIN_MS_DEFAULT: u64 = 50;
/// Largest [`TableLimits::wait_margin_ms`]: a wait of one second must leave time to stand in line.
pub const WAIT_MARGIN_MS_MAX: u64 = 500;

/// Deadlines of each kind (waits, leases) handled by one `advance`; what is left over is due at
/// once, so that a burst of deadlines does not hold its core for long.
pub const ADVANCE_BUDGET: usize = 8_192;

/// Locks for which a table reserves address space when it is made, however high its limit.
pub const PREALLOCATED_LOCKS_MAX: usize = 1 << 20;
/// Requests for which a table reserves address space when it is made, however high its limit.
pub const PREALLOCATED_REQUESTS_MAX: usize = 1 << 17;

/// Largest value of every count in [`TableLimits`]: indexes are 32 bits wide, and records of
/// several kinds share one index space.
pub const COUNT_MAX: usize = 1 << 28;

// A wait of one second, or of two under a fresh leader, still has a moment to stand in line.
const _: () = assert!(WAIT_MARGIN_MS_MAX < 1_000);
const _: () =
    assert!(FRESH_LEADER_WAIT_S_MIN as u64 * 1_000 > FRESH_LEADER_HURRY_MS + WAIT_MARGIN_MS_MAX);
// Waiting, granting, releasing and parked requests together stay below the 32-bit index space.
const _: () = assert!(4 * COUNT_MAX < u32::MAX as usize);
const _: () = assert!(KEY_BYTES_MAX <= u8::MAX as usize);
// The timers reach as far as the longest lease and the longest wait.
const LEASE_END_MS_MAX: u64 =
    (LEASE_MS_MAX as u64 * LEASE_STRETCH_PER_MILLE).div_ceil(1_000) + LEASE_GRACE_MS;
const _: () = assert!(LEASE_END_MS_MAX < HORIZON_MS && u8::MAX as u64 * 1_000 < HORIZON_MS);

/// The bounds of one shard's lock table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableLimits {
    /// Requests that may stand in one key's line; the next gets Busy.
    pub waiters_per_key: usize,
    /// Requests that may stand in all lines together; the next gets Busy.
    pub waiters_total: usize,
    /// Keys held or with a command in the log; an acquire that would add one gets Busy.
    pub locks_total: usize,
    /// Repeated releases that may wait for the one in the log; the next gets Indeterminate,
    /// which is always safe to say of a release.
    pub parked_releases: usize,
    /// Milliseconds before the end of a request's wait at which it is answered TimedOut.
    pub wait_margin_ms: u64,
    /// Seed of the hash by which requests are found again; request ids come from outside.
    pub origin_seed: u64,
}

impl Default for TableLimits {
    fn default() -> Self {
        Self {
            waiters_per_key: 1 << 17,
            waiters_total: 1 << 19,
            locks_total: 1 << 21,
            parked_releases: 1 << 15,
            wait_margin_ms: WAIT_MARGIN_MS_DEFAULT,
            origin_seed: 0,
        }
    }
}

impl TableLimits {
    /// Panics unless every value is inside its bound; a config is checked before it gets here.
    pub(super) fn assert_valid(&self) {
        assert!(
            self.wait_margin_ms <= WAIT_MARGIN_MS_MAX,
            "wait_margin_ms is above WAIT_MARGIN_MS_MAX"
        );
        let counts = [
            self.waiters_per_key,
            self.waiters_total,
            self.locks_total,
            self.parked_releases,
        ];
        assert!(
            counts.iter().all(|&count| count <= COUNT_MAX),
            "a count of TableLimits is above COUNT_MAX"
        );
    }
}
