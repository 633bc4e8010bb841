//! A consistent cut of the table, taken bit by bit while commands go on being applied.
//!
//! The cut is the state at one moment. Locks are written a few at a time, by their place in the
//! store; one that is about to change before its turn is written first, as it was. So nothing
//! stops for a million locks, and what comes out is exactly what was held at the cut
//! (`docs/adr/0003-incremental-cut.md`).

use super::entry::{Lock, lease_end_ms, lock_hash};
use super::held::HeldLock;
use super::limits::LEASE_MS_MAX;
use super::table::LockTable;

/// A cut being written.
#[derive(Debug)]
pub(super) struct Cut {
    at_ms: u64,
    /// Places below this are written.
    next: u32,
    /// Places from here on held nothing at the cut.
    end: u32,
    /// Locks that changed before their turn, as they were: bounded by the table, as each lock is
    /// written once.
    changed: Vec<u8>,
    /// Bytes of it that are taken.
    taken: usize,
}

/// What was taken of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutChunk {
    /// How many locks.
    pub locks: u32,
    /// Whether there is more to take.
    pub more: bool,
}

impl LockTable {
    /// Cuts: what is held now is what [`LockTable::snapshot_chunk`] gives, whatever is applied
    /// meanwhile. Takes no time.
    ///
    /// Panics if a cut is not finished yet.
    pub fn begin_snapshot(&mut self, now_ms: u64) {
        assert!(self.cut.is_none(), "a cut is being written already");
        let at_ms = self.observe(now_ms);
        self.epoch = self.epoch.wrapping_add(1);
        self.cut = Some(Cut {
            at_ms,
            next: 0,
            end: self.locks.places(),
            changed: Vec::new(),
            taken: 0,
        });
    }

    /// Appends locks of the cut to `out` (see [`HeldLock`]): looks at `max_locks` at most. Without
    /// a cut there is nothing.
    ///
    /// Panics if `max_locks` is zero.
    pub fn snapshot_chunk(&mut self, max_locks: u32, out: &mut Vec<u8>) -> CutChunk {
        assert!(max_locks > 0, "a chunk of no locks");
        let Some(cut) = &mut self.cut else {
            return CutChunk {
                locks: 0,
                more: false,
            };
        };
        let mut locks = 0;
        let mut looked_at = 0;
        while looked_at < max_locks && cut.take_changed(out) {
            looked_at += 1;
            locks += 1;
        }
        while looked_at < max_locks && cut.next < cut.end {
            let lock = self.locks.lookup(cut.next);
            if let Some(lock) = lock.filter(|lock| lock.is_held() && lock.epoch != self.epoch) {
                held(lock, cut.at_ms).encode(out);
                locks += 1;
            }
            cut.next += 1;
            looked_at += 1;
        }
        let more = cut.next < cut.end || cut.taken < cut.changed.len();
        if !more {
            self.cut = None;
        }
        CutChunk { locks, more }
    }

    /// Forgets the cut that is being written, if there is one.
    pub fn abandon_snapshot(&mut self) {
        self.cut = None;
    }

    /// Adds a lock from a snapshot; what is left of its lease is counted down from now.
    ///
    /// `false`, and nothing happens, if the key is held already: no snapshot has a key twice.
    pub fn restore_lock(&mut self, now_ms: u64, key_hash: u64, held: &HeldLock<'_>) -> bool {
        let now_ms = self.observe(now_ms);
        if self
            .locks
            .find(key_hash, held.key)
            .is_some_and(|lock| self.locks.get(lock).is_held())
        {
            return false;
        }
        let lock = self
            .locks
            .find(key_hash, held.key)
            .unwrap_or_else(|| self.locks.insert(key_hash, held.key, self.epoch));
        // This clock may run faster than the one it was counted down on before.
        let whole_ms = lease_end_ms(now_ms, held.lease_ms);
        let end_ms = lease_end_ms(now_ms, held.left_ms.min(LEASE_MS_MAX)).min(whole_ms);
        let entry = self.locks.get_mut(lock);
        entry.token = held.token;
        entry.lease_ms = held.lease_ms;
        self.state_sum =
            self.state_sum
                .wrapping_add(lock_hash(&entry.key, held.token, held.lease_ms));
        entry.granted_ms = now_ms.saturating_sub(whole_ms - end_ms);
        self.leases.arm(&mut self.locks, lock, end_ms);
        self.stats.held += 1;
        true
    }

    /// Everything up to `index` is in what was restored.
    pub fn restored_up_to(&mut self, index: u64) {
        self.applied_index = self.applied_index.max(index);
    }

    /// To be called before a lock's token, lease or deadline change.
    pub(super) fn preserve(&mut self, lock: u32) {
        let Some(cut) = &mut self.cut else {
            return;
        };
        let entry = self.locks.get_mut(lock);
        if lock < cut.next || entry.epoch == self.epoch {
            return;
        }
        entry.epoch = self.epoch;
        if entry.is_held() {
            held(entry, cut.at_ms).encode(&mut cut.changed);
        }
    }
}

impl Cut {
    /// Moves the next of the changed locks to `out`; `false` when there is none.
    fn take_changed(&mut self, out: &mut Vec<u8>) -> bool {
        let rest = &self.changed[self.taken..];
        if rest.is_empty() {
            self.changed.clear();
            self.taken = 0;
            return false;
        }
        match HeldLock::decode(rest) {
            Ok((_, behind)) => {
                let size = rest.len() - behind.len();
                out.extend_from_slice(&rest[..size]);
                self.taken += size;
                true
            }
            Err(error) => unreachable!("it was encoded here: {error}"),
        }
    }
}

fn held(lock: &Lock, at_ms: u64) -> HeldLock<'_> {
    let left_ms = lock.lease_timer.deadline_ms().saturating_sub(at_ms);
    HeldLock {
        key: &lock.key,
        token: lock.token,
        lease_ms: lock.lease_ms,
        // It was granted before the cut, so no more than the whole lease is left.
        left_ms: left_ms.min(lease_end_ms(0, lock.lease_ms)) as u32,
    }
}
