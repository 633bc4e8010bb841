//! One lock, and the store of all locks of a table.

use hashbrown::HashTable;
use slab::Slab;
use xxhash_rust::xxh3::xxh3_128;

use super::limits::{KEY_BYTES_MAX, LEASE_GRACE_MS, LEASE_STRETCH_PER_MILLE};
use super::requests::Line;
use super::wheel::{NIL, TimerArena, TimerNode};

/// A router may have used the lowest or the highest bits of a key's hash to pick the shard, so
/// those say little here; the rotation puts bits from the middle where the index looks.
const INDEX_ROTATION: u32 = 20;

/// A Release or Expire that is in the log and not yet applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    None,
    Release,
    Expire,
}

/// A Grant that is in the log and not yet applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingGrant {
    None,
    /// For this request.
    For(u32),
    /// For nobody any more: its requester is gone, or was told Indeterminate.
    Ghost,
}

/// One key: what is applied, what is in the log, who stands in line.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) key: Box<[u8]>,
    pub(super) key_hash: u64,
    /// The current token; 0 while nobody holds the lock.
    pub(super) token: u64,
    /// When the current grant was applied.
    pub(super) granted_ms: u64,
    /// When its lease ends, stretched and with its grace; armed unless a removal is in the log.
    pub(super) lease_timer: TimerNode,
    pub(super) lease_ms: u32,
    /// The last cut that it is no part of, or is written of; its place in the store, apart from
    /// that, says whether it was written.
    pub(super) epoch: u32,
    pub(super) removal: Removal,
    /// The token in that removal. It is the current one, unless a command of another leadership
    /// came in between.
    pub(super) removal_token: u64,
    /// The request that asked for that removal and still wants its answer, or `NIL`.
    pub(super) releaser: u32,
    pub(super) grant: PendingGrant,
    /// Acquires, first come, first served.
    pub(super) waiters: Line,
    /// Releases of the current token that came while its removal was in the log.
    pub(super) parked: Line,
}

impl Lock {
    fn new(key: &[u8], key_hash: u64, epoch: u32) -> Self {
        Self {
            key: key.into(),
            key_hash,
            token: 0,
            granted_ms: 0,
            lease_timer: TimerNode::idle(),
            lease_ms: 0,
            epoch,
            removal: Removal::None,
            removal_token: 0,
            releaser: NIL,
            grant: PendingGrant::None,
            waiters: Line::new(),
            parked: Line::new(),
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.token != 0
    }

    /// Whether a Grant proposed now would find the lock free, or has to be the next command.
    pub(super) fn awaits_grant(&self) -> bool {
        self.grant == PendingGrant::None && (!self.is_held() || self.removal != Removal::None)
    }

    /// Whether nothing is known of the key any more: then nobody stands in its line either.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_held() && self.removal == Removal::None && self.grant == PendingGrant::None
    }
}

/// When the leader may propose the Expire of a lease that begins at `granted_ms`.
pub(super) fn lease_end_ms(granted_ms: u64, lease_ms: u32) -> u64 {
    let stretched_ms = (u64::from(lease_ms) * LEASE_STRETCH_PER_MILLE).div_ceil(1_000);
    granted_ms.saturating_add(stretched_ms + LEASE_GRACE_MS)
}

/// The hash of one held lock, for the sum over all of them.
pub(super) fn lock_hash(key: &[u8], token: u64, lease_ms: u32) -> u128 {
    const NUMBERS: usize = size_of::<u64>() + size_of::<u32>();
    let mut bytes = [0; KEY_BYTES_MAX + NUMBERS];
    let end = key.len() + NUMBERS;
    bytes[..key.len()].copy_from_slice(key);
    bytes[key.len()..end - 4].copy_from_slice(&token.to_le_bytes());
    bytes[end - 4..end].copy_from_slice(&lease_ms.to_le_bytes());
    xxh3_128(&bytes[..end])
}

/// All locks of a table, by index and by key.
pub(super) struct Locks {
    slab: Slab<Lock>,
    /// Places that were ever taken.
    places: u32,
    index: HashTable<u32>,
}

impl Locks {
    /// A store with address space for `capacity` locks.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            slab: Slab::with_capacity(capacity),
            places: 0,
            index: HashTable::with_capacity(capacity),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn find(&self, key_hash: u64, key: &[u8]) -> Option<u32> {
        let same = |&id: &u32| {
            let lock = &self.slab[id as usize];
            lock.key_hash == key_hash && *lock.key == *key
        };
        self.index.find(place(key_hash), same).copied()
    }

    /// Every lock's index is below this.
    pub(super) fn places(&self) -> u32 {
        self.places
    }

    /// Adds a lock that [`Locks::find`] does not know, and that is no part of the cut `epoch`.
    pub(super) fn insert(&mut self, key_hash: u64, key: &[u8], epoch: u32) -> u32 {
        let id = self.slab.insert(Lock::new(key, key_hash, epoch));
        assert!(id < NIL as usize, "more locks than 32-bit indexes");
        let id = id as u32;
        self.places = self.places.max(id + 1);
        let slab = &self.slab;
        self.index.insert_unique(place(key_hash), id, |&other| {
            place(slab[other as usize].key_hash)
        });
        id
    }

    pub(super) fn remove(&mut self, id: u32) {
        let lock = self.slab.remove(id as usize);
        assert!(
            !lock.lease_timer.is_armed(),
            "a lock was removed with its lease running"
        );
        assert!(
            lock.parked.is_empty(),
            "a lock was removed with releases parked"
        );
        match self
            .index
            .find_entry(place(lock.key_hash), |&other| other == id)
        {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every lock is in the index"),
        }
    }

    /// The lock at `id`, if there is one: for references that come from outside.
    pub(super) fn lookup(&self, id: u32) -> Option<&Lock> {
        self.slab.get(id as usize)
    }

    pub(super) fn get(&self, id: u32) -> &Lock {
        &self.slab[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Lock {
        &mut self.slab[id as usize]
    }

    /// All locks, by index: an order that the calls made decide, not a hash.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.slab.iter().map(|(_, lock)| lock)
    }

    /// The index of every lock, ascending.
    pub(super) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.slab.iter().map(|(id, _)| id as u32)
    }
}

impl TimerArena for Locks {
    fn timer_mut(&mut self, id: u32) -> &mut TimerNode {
        &mut self.slab[id as usize].lease_timer
    }
}

fn place(key_hash: u64) -> u64 {
    key_hash.rotate_right(INDEX_ROTATION)
}

#[cfg(test)]
mod tests {
    use super::{Lock, lease_end_ms};

    #[test]
    fn a_lock_is_at_most_128_bytes() {
        // With its key on the heap and its place in the index, a million fit in 300 MiB.
        assert!(size_of::<Lock>() <= 128, "{}", size_of::<Lock>());
    }

    #[test]
    fn a_lease_is_stretched_rounded_up_and_graced() {
        assert_eq!(lease_end_ms(0, 1_000), 1_001 + 20);
        assert_eq!(lease_end_ms(7, 1_001), 7 + 1_003 + 20);
        assert_eq!(lease_end_ms(0, 250_000), 250_250 + 20);
        assert_eq!(lease_end_ms(0, 1), 2 + 20);
        assert_eq!(lease_end_ms(u64::MAX, 1), u64::MAX);
    }
}
