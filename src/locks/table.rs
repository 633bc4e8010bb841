//! The table: requests come in, answers and proposals go out.

use super::command::Command;
use super::cut::Cut;
use super::entry::{Lock, Locks, PendingGrant, Removal};
use super::limits::{
    COUNT_MAX, FRESH_LEADER_HURRY_MS, FRESH_LEADER_MS, FRESH_LEADER_WAIT_S_MIN, KEY_BYTES_MAX,
    LEASE_S_MAX, LEASE_S_MIN, PREALLOCATED_LOCKS_MAX, PREALLOCATED_REQUESTS_MAX, RELEASE_ANSWER_MS,
    TRY_ANSWER_MS, TableLimits,
};
use super::requests::{Phase, Request, Requests};
use super::stats::{LockState, LockView, TableStats};
use super::types::{Answer, GrantRef, Origin, Outputs};
use super::wheel::{NIL, TimerWheel};

/// What the table may do of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Applies only: recovery, or a node that does not lead. Answers NotActive.
    Following,
    /// Serves.
    Serving,
    /// Planned stop: takes no acquires and expires nothing; releases still work.
    Stopping,
}

/// The lock table of one shard.
///
/// A new table only applies; [`LockTable::set_ready`] makes it serve. Every call takes the time,
/// in monotonic milliseconds; a time before one already seen counts as that one.
pub struct LockTable {
    pub(super) limits: TableLimits,
    pub(super) role: Role,
    pub(super) now_ms: u64,
    ready_ms: u64,
    pub(super) applied_index: u64,
    /// Sum of the hashes of the locks held.
    pub(super) state_sum: u128,
    pub(super) locks: Locks,
    pub(super) requests: Requests,
    /// Deadlines of requests.
    pub(super) waits: TimerWheel,
    /// Ends of leases.
    pub(super) leases: TimerWheel,
    /// Counters, and the gauges that are not read off a store.
    pub(super) stats: TableStats,
    /// Counts the cuts.
    pub(super) epoch: u32,
    pub(super) cut: Option<Cut>,
    #[cfg(feature = "bugs")]
    pub(super) bug: Option<super::TableBug>,
}

impl LockTable {
    /// An empty table. Panics if a limit is outside its own bound (see [`TableLimits`]).
    pub fn new(limits: TableLimits, now_ms: u64) -> Self {
        limits.assert_valid();
        let locks = limits.locks_total.min(PREALLOCATED_LOCKS_MAX);
        let requests = limits.waiters_total.min(PREALLOCATED_REQUESTS_MAX);
        Self {
            role: Role::Following,
            now_ms,
            ready_ms: now_ms,
            applied_index: 0,
            state_sum: 0,
            locks: Locks::with_capacity(locks),
            requests: Requests::with_capacity(requests, limits.origin_seed),
            waits: TimerWheel::new(now_ms),
            leases: TimerWheel::new(now_ms),
            stats: TableStats::default(),
            epoch: 0,
            cut: None,
            #[cfg(feature = "bugs")]
            bug: None,
            limits,
        }
    }

    /// Begins, or resumes, serving. Leases that ended before are expired by the next
    /// [`LockTable::advance`].
    pub fn set_ready(&mut self, now_ms: u64) {
        self.ready_ms = self.observe(now_ms);
        self.role = Role::Serving;
    }

    /// A planned stop: everyone in line, and every acquire from now on, is answered NotActive;
    /// releases and what is in the log go on until [`LockTable::is_quiet`]. No lease is expired any
    /// more. Nothing happens if the table does not serve.
    pub fn stop_acquires(&mut self, now_ms: u64, out: &mut Outputs) {
        self.observe(now_ms);
        if self.role == Role::Following {
            return;
        }
        self.role = Role::Stopping;
        // An index cannot be walked while its locks change, and a stop happens once.
        let locks: Vec<u32> = self.locks.ids().collect();
        for lock in locks {
            while let Some(waiter) = self.locks.get(lock).waiters.head() {
                self.leave_line(lock, waiter);
                self.answer_and_forget(waiter, Answer::NotActive, out);
            }
        }
    }

    /// An acquire of `key` that arrived at `arrived_ms`, with its wait and its lease in seconds.
    ///
    /// Panics if key or lease is out of bounds: the caller has answered such requests itself.
    #[expect(
        clippy::too_many_arguments,
        reason = "one request, field by field, without a copy"
    )]
    pub fn acquire(
        &mut self,
        now_ms: u64,
        origin: Origin,
        arrived_ms: u64,
        key_hash: u64,
        key: &[u8],
        wait_s: u8,
        lease_s: u8,
        out: &mut Outputs,
    ) {
        assert!(
            (1..=KEY_BYTES_MAX).contains(&key.len()),
            "acquire: key length out of bounds"
        );
        assert!(
            (LEASE_S_MIN..=LEASE_S_MAX).contains(&lease_s),
            "acquire: lease out of bounds"
        );
        let now_ms = self.observe(now_ms);
        if self.role != Role::Serving {
            return self.answer(origin, Answer::NotActive, out);
        }
        let once = wait_s == 0;
        let deadlines = self.acquire_deadlines(arrived_ms.min(now_ms), wait_s);
        if now_ms >= deadlines.give_up_ms {
            let answer = if once { Answer::Busy } else { Answer::TimedOut };
            return self.answer(origin, answer, out);
        }

        let found = self.locks.find(key_hash, key);
        let at_once = found.is_none_or(|lock| !once && self.locks.get(lock).awaits_grant());
        let full = if at_once {
            // A key whose removal is in the log still counts, and the Grant behind it as well.
            self.locks.len() >= self.limits.locks_total
        } else {
            let in_line = found.map_or(0, |lock| self.locks.get(lock).waiters.len());
            in_line >= self.limits.waiters_per_key
                || self.stats.waiting >= self.limits.waiters_total as u64
        };
        if full || (once && !at_once) {
            return self.answer(origin, Answer::Busy, out);
        }

        let lock = found.unwrap_or_else(|| self.locks.insert(key_hash, key, self.epoch));
        let mut request = Request::new(origin, lock, Phase::Queued);
        request.once = once;
        request.lease_s = lease_s;
        let request = self.requests.insert(request);
        if at_once {
            self.enter_log(request, deadlines.unknown_ms);
            let command = grant_command(self.locks.get(lock), lease_s);
            out.proposals.push(command);
        } else {
            self.locks
                .get_mut(lock)
                .waiters
                .push_back(&mut self.requests, request);
            self.stats.waiting += 1;
            self.waits
                .arm(&mut self.requests, request, deadlines.give_up_ms);
        }
    }

    /// A release of `key` that arrived at `arrived_ms`.
    #[expect(
        clippy::too_many_arguments,
        reason = "one request, field by field, without a copy"
    )]
    pub fn release(
        &mut self,
        now_ms: u64,
        origin: Origin,
        arrived_ms: u64,
        key_hash: u64,
        key: &[u8],
        token: u64,
        out: &mut Outputs,
    ) {
        let now_ms = self.observe(now_ms);
        if self.role == Role::Following {
            return self.answer(origin, Answer::NotActive, out);
        }
        let current = self.locks.find(key_hash, key).filter(|&lock| {
            let lock = self.locks.get(lock);
            lock.is_held() && lock.token == token
        });
        // A token above `applied_index` is answered NotFound as well: a single voter has applied
        // every Grant it ever acknowledged, so no such token was given out. A cluster's leader
        // has to confirm that it leads, and apply what is committed, before it asks here.
        let Some(lock) = current else {
            return self.answer(origin, Answer::NotFound, out);
        };
        let deadline_ms = arrived_ms.min(now_ms).saturating_add(RELEASE_ANSWER_MS);
        if self.locks.get(lock).removal == Removal::None {
            let request = self
                .requests
                .insert(Request::new(origin, lock, Phase::Releasing));
            self.waits.arm(&mut self.requests, request, deadline_ms);
            self.propose_removal(lock, Removal::Release, request, out);
        } else if self.stats.parked_releases >= self.limits.parked_releases as u64 {
            // Whether the token is still current is not known yet; asking again is harmless.
            self.answer(origin, Answer::Indeterminate, out);
        } else {
            let request = self
                .requests
                .insert(Request::new(origin, lock, Phase::Parked));
            self.waits.arm(&mut self.requests, request, deadline_ms);
            self.locks
                .get_mut(lock)
                .parked
                .push_back(&mut self.requests, request);
            self.stats.parked_releases += 1;
        }
    }

    /// The requester of `origin`'s acquire or release is gone: it gets no answer, now or later.
    /// A Grant in the log is released as soon as it applies. Nothing happens if that request was
    /// answered already.
    pub fn disconnect(&mut self, now_ms: u64, origin: Origin) {
        self.observe(now_ms);
        while let Some(request) = self.requests.find(&origin) {
            self.detach(request);
            self.forget(request);
            self.stats.disconnected += 1;
        }
    }

    /// The answer that carried `grant` could not be handed to the kernel: the table releases it.
    /// Nothing happens if the grant is not the current one any more.
    pub fn undelivered(&mut self, now_ms: u64, grant: GrantRef, out: &mut Outputs) {
        self.observe(now_ms);
        let current = self.locks.lookup(grant.slot).is_some_and(|lock| {
            lock.is_held() && lock.token == grant.token && lock.removal == Removal::None
        });
        if current && self.role == Role::Following {
            self.stats.ghosts += 1;
            self.orphan(grant.slot, out);
        } else if current {
            self.stats.ghosts += 1;
            self.propose_removal(grant.slot, Removal::Release, NIL, out);
        }
    }

    /// Whether none of the table's own commands is in the log without being applied.
    pub fn is_quiet(&self) -> bool {
        self.stats.in_flight == 0
    }

    /// Index of the last entry applied here; 0 before the first.
    pub fn applied_index(&self) -> u64 {
        self.applied_index
    }

    /// The sum, modulo 2^128, of the hashes of the locks held, each of its key, token and lease. Tables that
    /// have applied the same entries have sums that add up to the same, however keys are spread over them.
    pub fn state_sum(&self) -> u128 {
        self.state_sum
    }

    /// Gauges and counters.
    pub fn stats(&self) -> TableStats {
        TableStats {
            locks: self.locks.len() as u64,
            requests: self.requests.len() as u64,
            timers: (self.waits.armed() + self.leases.armed()) as u64,
            ..self.stats
        }
    }

    /// Every lock, in an order that the calls made decide; for status and snapshots.
    pub fn locks(&self, now_ms: u64) -> impl Iterator<Item = LockView<'_>> {
        let now_ms = now_ms.max(self.now_ms);
        self.locks.iter().map(move |lock| view(lock, now_ms))
    }

    /// One lock; `None` if nothing is known of the key.
    pub fn lock(&self, now_ms: u64, key_hash: u64, key: &[u8]) -> Option<LockView<'_>> {
        let id = self.locks.find(key_hash, key)?;
        Some(view(self.locks.get(id), now_ms.max(self.now_ms)))
    }
}

/// When an acquire gets which answer at the latest.
struct AcquireDeadlines {
    /// TimedOut in line; no Grant is proposed from then on.
    give_up_ms: u64,
    /// Indeterminate while its Grant is in the log.
    unknown_ms: u64,
}

impl LockTable {
    /// Takes note of the time: what it passed becomes due.
    pub(super) fn observe(&mut self, now_ms: u64) -> u64 {
        if now_ms > self.now_ms {
            self.now_ms = now_ms;
            self.waits.advance_to(&mut self.requests, now_ms);
            self.leases.advance_to(&mut self.locks, now_ms);
        }
        self.now_ms
    }

    fn acquire_deadlines(&self, arrived_ms: u64, wait_s: u8) -> AcquireDeadlines {
        if wait_s == 0 {
            let unknown_ms = arrived_ms.saturating_add(TRY_ANSWER_MS);
            return AcquireDeadlines {
                give_up_ms: unknown_ms,
                unknown_ms,
            };
        }
        let fresh = arrived_ms <= self.ready_ms.saturating_add(FRESH_LEADER_MS);
        let hurry_ms = if fresh && wait_s >= FRESH_LEADER_WAIT_S_MIN {
            FRESH_LEADER_HURRY_MS
        } else {
            0
        };
        let end_ms = arrived_ms.saturating_add(u64::from(wait_s) * 1_000 - hurry_ms);
        let margin_ms = self.limits.wait_margin_ms;
        AcquireDeadlines {
            give_up_ms: end_ms - margin_ms,
            unknown_ms: end_ms - margin_ms / 2,
        }
    }

    /// How much later Indeterminate comes than TimedOut would have.
    pub(super) fn unknown_after_give_up_ms(&self) -> u64 {
        self.limits.wait_margin_ms - self.limits.wait_margin_ms / 2
    }

    /// Proposes to remove the current grant of `lock`, and the next Grant right behind it unless
    /// one is in the log already. `releaser` is the request to answer then, or `NIL`.
    pub(super) fn propose_removal(
        &mut self,
        lock: u32,
        kind: Removal,
        releaser: u32,
        out: &mut Outputs,
    ) {
        self.leases.cancel(&mut self.locks, lock);
        let entry = self.locks.get_mut(lock);
        assert!(
            entry.is_held() && entry.removal == Removal::None,
            "removal of a lock proposed twice"
        );
        entry.removal = kind;
        entry.removal_token = entry.token;
        entry.releaser = releaser;
        let next = if entry.grant == PendingGrant::None {
            self.choose_next(lock, out)
        } else {
            None
        };

        self.stats.in_flight += 1;
        let entry = self.locks.get(lock);
        let (key, token) = (&*entry.key, entry.token);
        let removal = match kind {
            Removal::Expire => Command::Expire { key, token },
            Removal::Release | Removal::None => Command::Release { key, token },
        };
        match next {
            Some(lease_s) => out
                .proposals
                .push_pair(removal, grant_command(entry, lease_s)),
            None => out.proposals.push(removal),
        }
    }

    /// Takes the first in line whose wait has not run out and puts its Grant in the log; gives
    /// its lease in seconds. Those before it are answered TimedOut.
    pub(super) fn choose_next(&mut self, lock: u32, out: &mut Outputs) -> Option<u8> {
        while let Some(waiter) = self.next_waiter(lock) {
            self.leave_line(lock, waiter);
            let give_up_ms = self.requests.get(waiter).timer.deadline_ms();
            if self.now_ms < give_up_ms {
                self.enter_log(waiter, give_up_ms + self.unknown_after_give_up_ms());
                return Some(self.requests.get(waiter).lease_s);
            }
            #[cfg(feature = "bugs")]
            if self.bug == Some(super::TableBug::GrantsAfterTimedOut) {
                let lease_s = self.requests.get(waiter).lease_s;
                self.answer_and_forget(waiter, Answer::TimedOut, out);
                self.locks.get_mut(lock).grant = PendingGrant::Ghost;
                self.stats.in_flight += 1;
                return Some(lease_s);
            }
            self.answer_and_forget(waiter, Answer::TimedOut, out);
        }
        None
    }

    fn next_waiter(&self, lock: u32) -> Option<u32> {
        let waiters = &self.locks.get(lock).waiters;
        #[cfg(feature = "bugs")]
        if self.bug == Some(super::TableBug::TakesTheLastFirst) {
            return waiters.tail();
        }
        waiters.head()
    }

    /// Notes that the Grant of `request` goes into the log; the caller proposes it.
    fn enter_log(&mut self, request: u32, unknown_ms: u64) {
        self.waits.arm(&mut self.requests, request, unknown_ms);
        let entry = self.requests.get_mut(request);
        entry.phase = Phase::Granting;
        let lock = self.locks.get_mut(entry.lock);
        assert!(
            lock.grant == PendingGrant::None,
            "two Grants of a lock in the log"
        );
        lock.grant = PendingGrant::For(request);
        self.stats.in_flight += 1;
    }

    /// Takes a waiter out of its line and stops its clock.
    pub(super) fn leave_line(&mut self, lock: u32, waiter: u32) {
        self.locks
            .get_mut(lock)
            .waiters
            .remove(&mut self.requests, waiter);
        self.stats.waiting -= 1;
        self.waits.cancel(&mut self.requests, waiter);
    }

    /// Cuts a request loose from its lock; what it has in the log stays there.
    pub(super) fn detach(&mut self, request: u32) {
        self.waits.cancel(&mut self.requests, request);
        let Request { lock, phase, .. } = *self.requests.get(request);
        match phase {
            Phase::Queued => self.leave_line(lock, request),
            Phase::Granting => self.locks.get_mut(lock).grant = PendingGrant::Ghost,
            Phase::Releasing => self.locks.get_mut(lock).releaser = NIL,
            Phase::Parked => {
                self.locks
                    .get_mut(lock)
                    .parked
                    .remove(&mut self.requests, request);
                self.stats.parked_releases -= 1;
            }
        }
    }

    /// Drops the record of a request that was cut loose.
    pub(super) fn forget(&mut self, request: u32) -> Origin {
        self.requests.remove(request).origin
    }

    pub(super) fn answer_and_forget(&mut self, request: u32, answer: Answer, out: &mut Outputs) {
        let origin = self.forget(request);
        self.answer(origin, answer, out);
    }

    pub(super) fn answer(&mut self, origin: Origin, answer: Answer, out: &mut Outputs) {
        let counter = match answer {
            Answer::Acquired { .. } => &mut self.stats.acquired,
            Answer::Released => &mut self.stats.released,
            Answer::NotFound => &mut self.stats.not_found,
            Answer::TimedOut => &mut self.stats.timed_out,
            Answer::Busy => &mut self.stats.busy,
            Answer::Indeterminate => &mut self.stats.indeterminate,
            Answer::NotActive => &mut self.stats.not_active,
        };
        *counter += 1;
        out.answers.push((origin, answer));
    }
}

/// The Grant of `lock` for a request with that lease.
pub(super) fn grant_command(lock: &Lock, lease_s: u8) -> Command<'_> {
    Command::Grant {
        key: &lock.key,
        lease_ms: u32::from(lease_s) * 1_000,
    }
}

fn view(lock: &Lock, now_ms: u64) -> LockView<'_> {
    let next = lock.grant != PendingGrant::None;
    let held_for_ms = if lock.is_held() {
        now_ms.saturating_sub(lock.granted_ms)
    } else {
        0
    };
    let lease_ms = if lock.is_held() { lock.lease_ms } else { 0 };
    LockView {
        key: &lock.key,
        key_hash: lock.key_hash,
        token: lock.is_held().then_some(lock.token),
        lease_ms,
        lease_left_ms: u64::from(lease_ms).saturating_sub(held_for_ms),
        held_for_ms,
        waiters: lock.waiters.len(),
        state: match lock.removal {
            Removal::Release => LockState::Releasing { next },
            Removal::Expire => LockState::Expiring { next },
            Removal::None if next => LockState::Granting,
            Removal::None => LockState::Held,
        },
    }
}

const _: () = assert!(COUNT_MAX < NIL as usize);
