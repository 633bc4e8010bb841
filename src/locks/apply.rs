//! Committed commands, in log order.

use super::command::Command;
use super::entry::{PendingGrant, Removal, lease_end_ms, lock_hash};
use super::limits::{KEY_BYTES_MAX, LEASE_MS_MAX};
use super::requests::Phase;
use super::table::{LockTable, Role, grant_command};
use super::types::{Answer, Applied, GrantRef, Orphan, Outputs};
use super::wheel::NIL;

impl LockTable {
    /// Applies the committed entry `index`, whose key hashes to `key_hash`.
    ///
    /// `own`: this table proposed it in this leadership, so it is the oldest of that kind that
    /// the table has in flight for its key. Entries come in log order; one that is not above
    /// [`LockTable::applied_index`] changes nothing. Total: no entry makes it fail.
    pub fn apply(
        &mut self,
        now_ms: u64,
        index: u64,
        key_hash: u64,
        command: Command<'_>,
        own: bool,
        out: &mut Outputs,
    ) -> Applied {
        self.observe(now_ms);
        if index <= self.applied_index {
            return Applied::Noop;
        }
        self.applied_index = index;
        if !(1..=KEY_BYTES_MAX).contains(&command.key().len()) {
            return Applied::Noop;
        }
        match command {
            Command::Grant { key, lease_ms } => {
                self.apply_grant(index, key_hash, key, lease_ms, own, out)
            }
            Command::Release { key, token } => {
                let removed = self.apply_removal(key_hash, key, token, Removal::Release, own, out);
                if removed {
                    self.stats.releases += 1;
                    Applied::Released
                } else {
                    self.stats.releases_missed += 1;
                    Applied::NotFound
                }
            }
            Command::Expire { key, token } => {
                let existed = self.apply_removal(key_hash, key, token, Removal::Expire, own, out);
                if existed {
                    self.stats.expires += 1;
                } else {
                    self.stats.expires_missed += 1;
                }
                Applied::Expired { existed }
            }
        }
    }

    fn apply_grant(
        &mut self,
        index: u64,
        key_hash: u64,
        key: &[u8],
        lease_ms: u32,
        own: bool,
        out: &mut Outputs,
    ) -> Applied {
        let found = self.locks.find(key_hash, key);
        let pending = match found {
            Some(lock) if own => self.take_grant(lock),
            _ => PendingGrant::None,
        };
        if own && pending == PendingGrant::None {
            self.stats.unexpected += 1;
        }
        if let Some(lock) = found.filter(|&lock| self.locks.get(lock).is_held()) {
            self.stats.grants_rejected += 1;
            if let PendingGrant::For(request) = pending {
                self.line_up_again(lock, request, out);
            }
            self.settle(lock, out);
            return Applied::GrantRejected;
        }

        let lock = found.unwrap_or_else(|| self.locks.insert(key_hash, key, self.epoch));
        self.preserve(lock);
        let granted_ms = self.now_ms;
        // Longer ones do not decode; the timers rely on it.
        let lease_ms = lease_ms.min(LEASE_MS_MAX);
        let entry = self.locks.get_mut(lock);
        entry.token = index;
        entry.lease_ms = lease_ms;
        entry.granted_ms = granted_ms;
        self.state_sum = self
            .state_sum
            .wrapping_add(lock_hash(&entry.key, index, lease_ms));
        self.leases
            .arm(&mut self.locks, lock, lease_end_ms(granted_ms, lease_ms));
        self.stats.held += 1;
        self.stats.grants += 1;
        self.hand_out(lock, pending, out);
        self.settle(lock, out);
        Applied::Granted { token: index }
    }

    /// Gives the fresh grant of `lock` to who asked for it, or takes it back.
    fn hand_out(&mut self, lock: u32, pending: PendingGrant, out: &mut Outputs) {
        match pending {
            // Another leadership's grant, or one from before a restart: its lease runs in full.
            PendingGrant::None => return,
            PendingGrant::For(request) => {
                self.waits.cancel(&mut self.requests, request);
                if self.now_ms < self.requests.get(request).timer.deadline_ms() {
                    let token = self.locks.get(lock).token;
                    let grant = GrantRef { slot: lock, token };
                    return self.answer_and_forget(request, Answer::Acquired { token, grant }, out);
                }
                // Its time was up, only the clock had not come round to it yet.
                self.answer_and_forget(request, Answer::Indeterminate, out);
            }
            PendingGrant::Ghost => {}
        }
        self.stats.ghosts += 1;
        #[cfg(feature = "bugs")]
        if self.bug == Some(super::TableBug::KeepsGhosts) {
            return;
        }
        if self.role == Role::Following {
            // It was proposed under a leadership that is over: only the leader can release it.
            return self.orphan(lock, out);
        }
        // With the removal of another leadership's grant still in the log, one more would be too
        // many: then the lease ends this grant.
        if self.locks.get(lock).removal == Removal::None {
            self.propose_removal(lock, Removal::Release, NIL, out);
        }
    }

    /// Hands the grant of `lock`, which nobody wants, to the caller to release.
    pub(super) fn orphan(&mut self, lock: u32, out: &mut Outputs) {
        let entry = self.locks.get(lock);
        out.orphans.push(Orphan {
            key: entry.key.clone(),
            token: entry.token,
        });
    }

    /// A rejected Grant: the request was not granted, and is the first in line again.
    fn line_up_again(&mut self, lock: u32, request: u32, out: &mut Outputs) {
        self.waits.cancel(&mut self.requests, request);
        let unknown_ms = self.requests.get(request).timer.deadline_ms();
        let give_up_ms = unknown_ms - self.unknown_after_give_up_ms();
        let answer = if self.requests.get(request).once {
            Answer::Busy
        } else if self.role != Role::Serving {
            Answer::NotActive
        } else if self.now_ms >= give_up_ms {
            Answer::TimedOut
        } else {
            self.requests.get_mut(request).phase = Phase::Queued;
            self.locks
                .get_mut(lock)
                .waiters
                .push_front(&mut self.requests, request);
            self.stats.waiting += 1;
            return self.waits.arm(&mut self.requests, request, give_up_ms);
        };
        self.answer_and_forget(request, answer, out);
    }

    /// Whether the command removed a grant.
    fn apply_removal(
        &mut self,
        key_hash: u64,
        key: &[u8],
        token: u64,
        kind: Removal,
        own: bool,
        out: &mut Outputs,
    ) -> bool {
        let Some(lock) = self.locks.find(key_hash, key) else {
            self.stats.unexpected += u64::from(own);
            return false;
        };
        let releaser = if own {
            self.take_removal(lock, kind, token)
        } else {
            NIL
        };
        let entry = self.locks.get(lock);
        let removed = entry.is_held() && entry.token == token;
        if removed {
            self.preserve(lock);
            let entry = self.locks.get_mut(lock);
            let hash = lock_hash(&entry.key, token, entry.lease_ms);
            self.state_sum = self.state_sum.wrapping_sub(hash);
            entry.token = 0;
            self.leases.cancel(&mut self.locks, lock);
            self.stats.held -= 1;
        }
        if releaser != NIL {
            self.waits.cancel(&mut self.requests, releaser);
            let answer = if removed {
                Answer::Released
            } else {
                Answer::NotFound
            };
            self.answer_and_forget(releaser, answer, out);
        }
        if removed {
            self.answer_parked(lock, out);
        }
        self.settle(lock, out);
        removed
    }

    /// Parked releases name the grant that is gone now, whatever removed it.
    fn answer_parked(&mut self, lock: u32, out: &mut Outputs) {
        while let Some(request) = self.locks.get(lock).parked.head() {
            self.detach(request);
            self.answer_and_forget(request, Answer::NotFound, out);
        }
    }

    /// The own Grant in flight, now applied.
    pub(super) fn take_grant(&mut self, lock: u32) -> PendingGrant {
        let grant = std::mem::replace(&mut self.locks.get_mut(lock).grant, PendingGrant::None);
        if grant != PendingGrant::None {
            self.stats.in_flight -= 1;
        }
        grant
    }

    /// The own removal in flight, now applied: gives the request to answer, or `NIL`.
    pub(super) fn take_removal(&mut self, lock: u32, kind: Removal, token: u64) -> u32 {
        let entry = self.locks.get_mut(lock);
        if entry.removal != kind || entry.removal_token != token {
            self.stats.unexpected += 1;
            return NIL;
        }
        entry.removal = Removal::None;
        self.stats.in_flight -= 1;
        std::mem::replace(&mut entry.releaser, NIL)
    }

    /// After a change: proposes what the lock needs next, and drops it when nothing is left.
    pub(super) fn settle(&mut self, lock: u32, out: &mut Outputs) {
        let entry = self.locks.get(lock);
        if entry.is_held() && entry.removal == Removal::None {
            self.settle_held(lock, out);
        } else if entry.awaits_grant()
            && let Some(lease_s) = self.choose_next(lock, out)
        {
            out.proposals
                .push(grant_command(self.locks.get(lock), lease_s));
        }
        if self.locks.get(lock).is_idle() {
            self.locks.remove(lock);
        }
    }

    /// A held lock without a removal in the log. Only if commands of another leadership came in
    /// between can there be anything to do: what waited for the removal that missed.
    fn settle_held(&mut self, lock: u32, out: &mut Outputs) {
        let entry = self.locks.get_mut(lock);
        if let Some(request) = entry.parked.head() {
            entry.parked.remove(&mut self.requests, request);
            self.stats.parked_releases -= 1;
            self.requests.get_mut(request).phase = Phase::Releasing;
            self.propose_removal(lock, Removal::Release, request, out);
        } else if !entry.lease_timer.is_armed() {
            let lease_end_ms = entry.lease_timer.deadline_ms();
            self.leases.arm(&mut self.locks, lock, lease_end_ms);
        }
    }
}
