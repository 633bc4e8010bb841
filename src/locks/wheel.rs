//! An intrusive, hierarchical timer wheel with ticks of one millisecond.
//!
//! Eleven levels of 64 buckets cover every `u64`. A timer lies on the level of the highest digit
//! (base 64) in which its deadline differs from the time reached so far; when time enters a
//! bucket, what lies there moves down in order. All timers with one deadline are therefore always
//! in the same bucket, in the order of their insertion: timers come due by deadline, then by
//! insertion. Inserting and cancelling are O(1); the nodes live inside the records they time, so
//! the wheel allocates nothing after it was made.

#[cfg(test)]
mod tests;

/// "No record": ends every chain of 32-bit indexes.
pub(super) const NIL: u32 = u32::MAX;

const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = (u64::BITS as usize).div_ceil(DIGIT_BITS as usize);

/// The bucket of timers that are due and not yet popped.
const DUE: u16 = (LEVELS * SLOTS) as u16;
/// In no bucket.
const IDLE: u16 = u16::MAX;

/// The part of a record that the wheel uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerNode {
    deadline_ms: u64,
    prev: u32,
    next: u32,
    bucket: u16,
}

impl TimerNode {
    /// A node in no wheel.
    pub(super) const fn idle() -> Self {
        Self {
            deadline_ms: 0,
            prev: NIL,
            next: NIL,
            bucket: IDLE,
        }
    }

    /// Whether the timer is set, due or not.
    pub(super) fn is_armed(&self) -> bool {
        self.bucket != IDLE
    }

    /// The deadline it was last set to, also after it fired or was cancelled.
    pub(super) fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }
}

/// Where the records live: the wheel knows them by index.
pub(super) trait TimerArena {
    /// The node of record `id`.
    fn timer(&self, id: u32) -> &TimerNode;
    /// The node of record `id`, to change.
    fn timer_mut(&mut self, id: u32) -> &mut TimerNode;
}

#[derive(Clone, Copy)]
struct Bucket {
    head: u32,
    tail: u32,
}

/// The wheel of one kind of deadline.
pub(super) struct TimerWheel {
    elapsed_ms: u64,
    occupied: [u64; LEVELS],
    buckets: Box<[Bucket]>,
    armed: usize,
}

impl TimerWheel {
    /// An empty wheel whose time is `now_ms`.
    pub(super) fn new(now_ms: u64) -> Self {
        let empty = Bucket {
            head: NIL,
            tail: NIL,
        };
        Self {
            elapsed_ms: now_ms,
            occupied: [0; LEVELS],
            buckets: vec![empty; LEVELS * SLOTS + 1].into_boxed_slice(),
            armed: 0,
        }
    }

    /// How many timers are set, due ones included.
    pub(super) fn armed(&self) -> usize {
        self.armed
    }

    /// Sets the timer of `id`, which must not be set. A deadline that was reached is due at once.
    pub(super) fn arm(&mut self, arena: &mut impl TimerArena, id: u32, deadline_ms: u64) {
        let node = arena.timer_mut(id);
        assert!(!node.is_armed(), "timer set twice");
        node.deadline_ms = deadline_ms;
        self.link(arena, id, self.bucket_of(deadline_ms));
        self.armed += 1;
    }

    /// Unsets the timer of `id`; nothing happens if it is not set.
    pub(super) fn cancel(&mut self, arena: &mut impl TimerArena, id: u32) {
        if arena.timer(id).is_armed() {
            self.unlink(arena, id);
            self.armed -= 1;
        }
    }

    /// Moves time on to `now_ms`: what it passes becomes due. Time never goes back.
    pub(super) fn advance_to(&mut self, arena: &mut impl TimerArena, now_ms: u64) {
        while let Some((bucket, start_ms)) = self.next_bucket() {
            if start_ms > now_ms {
                break;
            }
            self.elapsed_ms = start_ms;
            self.spill(arena, bucket);
        }
        self.elapsed_ms = self.elapsed_ms.max(now_ms);
    }

    /// Takes the next due timer, unset.
    pub(super) fn pop_due(&mut self, arena: &mut impl TimerArena) -> Option<u32> {
        let id = self.buckets[usize::from(DUE)].head;
        if id == NIL {
            return None;
        }
        self.unlink(arena, id);
        self.armed -= 1;
        Some(id)
    }

    /// When to advance next: never later than the earliest deadline, sometimes earlier (when
    /// timers have to move to a finer level). `None` if no timer is set.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        if self.buckets[usize::from(DUE)].head != NIL {
            return Some(self.elapsed_ms);
        }
        self.next_bucket().map(|(_, start_ms)| start_ms)
    }

    /// The bucket that time enters next, and when.
    fn next_bucket(&self) -> Option<(u16, u64)> {
        // Every set timer lies in the future, so on each level the lowest occupied bucket is the
        // next, and a lower level always comes before a higher one.
        let level = self.occupied.iter().position(|&occupied| occupied != 0)?;
        let slot = u64::from(self.occupied[level].trailing_zeros());
        let shift = level as u32 * DIGIT_BITS;
        let above = u64::MAX.checked_shl(shift + DIGIT_BITS).unwrap_or(0);
        let start_ms = (self.elapsed_ms & above) | (slot << shift);
        Some(((level * SLOTS) as u16 + slot as u16, start_ms))
    }

    /// Moves every timer of a bucket whose start was reached to where it belongs now, in order.
    fn spill(&mut self, arena: &mut impl TimerArena, bucket: u16) {
        let index = usize::from(bucket);
        let mut id = self.buckets[index].head;
        self.buckets[index] = Bucket {
            head: NIL,
            tail: NIL,
        };
        self.occupied[index / SLOTS] &= !(1 << (index % SLOTS));
        while id != NIL {
            let next = arena.timer(id).next;
            let target = self.bucket_of(arena.timer(id).deadline_ms);
            self.link(arena, id, target);
            id = next;
        }
    }

    fn bucket_of(&self, deadline_ms: u64) -> u16 {
        if deadline_ms <= self.elapsed_ms {
            return DUE;
        }
        let level = (deadline_ms ^ self.elapsed_ms).ilog2() / DIGIT_BITS;
        let slot = (deadline_ms >> (level * DIGIT_BITS)) as usize % SLOTS;
        (level as usize * SLOTS + slot) as u16
    }

    fn link(&mut self, arena: &mut impl TimerArena, id: u32, bucket: u16) {
        let index = usize::from(bucket);
        let tail = self.buckets[index].tail;
        let node = arena.timer_mut(id);
        node.bucket = bucket;
        node.prev = tail;
        node.next = NIL;
        self.buckets[index].tail = id;
        if tail == NIL {
            self.buckets[index].head = id;
        } else {
            arena.timer_mut(tail).next = id;
        }
        if bucket != DUE {
            self.occupied[index / SLOTS] |= 1 << (index % SLOTS);
        }
    }

    fn unlink(&mut self, arena: &mut impl TimerArena, id: u32) {
        let node = arena.timer_mut(id);
        let TimerNode {
            prev, next, bucket, ..
        } = *node;
        node.bucket = IDLE;
        node.prev = NIL;
        node.next = NIL;
        let index = usize::from(bucket);
        if prev == NIL {
            self.buckets[index].head = next;
        } else {
            arena.timer_mut(prev).next = next;
        }
        if next == NIL {
            self.buckets[index].tail = prev;
        } else {
            arena.timer_mut(next).prev = prev;
        }
        if bucket != DUE && self.buckets[index].head == NIL {
            self.occupied[index / SLOTS] &= !(1 << (index % SLOTS));
        }
    }
}
