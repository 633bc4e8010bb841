//! An intrusive timer wheel with ticks of one millisecond.
//!
//! One bucket for each millisecond up to the farthest deadline there can be, and three levels of
//! bits that say which are occupied. With fewer buckets, in levels, timers would have to move
//! down as time passes, thousands of leases in one call; here none ever moves. What time passes
//! is hung onto the list of due timers bucket by bucket, whole. Timers come due by deadline, then
//! by insertion. Setting and cancelling are O(1); the nodes live inside the records they time, so
//! the wheel allocates nothing after it was made, and pages of buckets never used cost nothing.

#[cfg(test)]
mod tests;

/// "No record": ends every chain of 32-bit indexes.
pub(super) const NIL: u32 = u32::MAX;

/// A deadline lies less than this many milliseconds ahead.
pub(super) const HORIZON_MS: u64 = 1 << 18;

const SLOTS: usize = HORIZON_MS as usize;

/// The part of a record that the wheel uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerNode {
    deadline_ms: u64,
    prev: u32,
    next: u32,
    armed: bool,
}

impl TimerNode {
    /// A node in no wheel.
    pub(super) const fn idle() -> Self {
        Self {
            deadline_ms: 0,
            prev: NIL,
            next: NIL,
            armed: false,
        }
    }

    /// Whether the timer is set, due or not.
    pub(super) fn is_armed(&self) -> bool {
        self.armed
    }

    /// The deadline it was last set to, also after it fired or was cancelled.
    pub(super) fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }
}

/// Where the records live: the wheel knows them by index.
pub(super) trait TimerArena {
    /// The node of record `id`.
    fn timer_mut(&mut self, id: u32) -> &mut TimerNode;
}

/// The wheel of one kind of deadline.
pub(super) struct TimerWheel {
    /// Every timer in a bucket lies after this, and less than the horizon after it.
    elapsed_ms: u64,
    occupied: SlotSet,
    /// First and last of each bucket; means nothing unless it is occupied.
    buckets: Vec<[u32; 2]>,
    /// First and last of the due timers, or `NIL`.
    due: [u32; 2],
    armed: usize,
}

impl TimerWheel {
    /// An empty wheel whose time is `now_ms`.
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            elapsed_ms: now_ms,
            occupied: SlotSet::new(),
            buckets: vec![[0; 2]; SLOTS],
            due: [NIL; 2],
            armed: 0,
        }
    }

    /// How many timers are set, due ones included.
    pub(super) fn armed(&self) -> usize {
        self.armed
    }

    /// Sets the timer of `id`, which must not be set. A deadline that was reached is due at once;
    /// one beyond the horizon panics.
    pub(super) fn arm(&mut self, arena: &mut impl TimerArena, id: u32, deadline_ms: u64) {
        let ahead_ms = deadline_ms.saturating_sub(self.elapsed_ms);
        assert!(ahead_ms < HORIZON_MS, "a deadline beyond the horizon");
        let node = arena.timer_mut(id);
        assert!(!node.armed, "timer set twice");
        *node = TimerNode {
            deadline_ms,
            prev: NIL,
            next: NIL,
            armed: true,
        };
        self.armed += 1;
        let slot = slot_of(deadline_ms);
        if ahead_ms == 0 {
            self.append_due(arena, [id, id]);
        } else if self.occupied.insert(slot) {
            self.buckets[slot] = [id, id];
        } else {
            let tail = std::mem::replace(&mut self.buckets[slot][1], id);
            join(arena, tail, id);
        }
    }

    /// Unsets the timer of `id`; nothing happens if it is not set.
    pub(super) fn cancel(&mut self, arena: &mut impl TimerArena, id: u32) {
        let node = arena.timer_mut(id);
        if !node.armed {
            return;
        }
        let TimerNode {
            deadline_ms,
            prev,
            next,
            ..
        } = *node;
        *node = TimerNode {
            deadline_ms,
            ..TimerNode::idle()
        };
        self.armed -= 1;

        // Only the first and the last have to know whether they are in a bucket or due.
        let slot = slot_of(deadline_ms);
        let in_bucket = |end: usize| self.occupied.contains(slot) && self.buckets[slot][end] == id;
        let (first, last) = (in_bucket(0), in_bucket(1));
        match (prev == NIL, next == NIL) {
            (true, true) if first => self.occupied.remove(slot),
            (true, true) => self.due = [NIL; 2],
            (true, false) => {
                arena.timer_mut(next).prev = NIL;
                *(if first {
                    &mut self.buckets[slot][0]
                } else {
                    &mut self.due[0]
                }) = next;
            }
            (false, true) => {
                arena.timer_mut(prev).next = NIL;
                *(if last {
                    &mut self.buckets[slot][1]
                } else {
                    &mut self.due[1]
                }) = prev;
            }
            (false, false) => join(arena, prev, next),
        }
    }

    /// Moves time on to `now_ms`: what it passes becomes due. Time never goes back.
    pub(super) fn advance_to(&mut self, arena: &mut impl TimerArena, now_ms: u64) {
        while let Some((slot, at_ms)) = self.next_bucket() {
            if at_ms > now_ms {
                break;
            }
            self.elapsed_ms = at_ms;
            self.occupied.remove(slot);
            self.append_due(arena, self.buckets[slot]);
        }
        self.elapsed_ms = self.elapsed_ms.max(now_ms);
    }

    /// Takes the next due timer, unset.
    pub(super) fn pop_due(&mut self, arena: &mut impl TimerArena) -> Option<u32> {
        let id = self.due[0];
        if id == NIL {
            return None;
        }
        self.cancel(arena, id);
        Some(id)
    }

    /// The earliest deadline, or the present time if one was reached. `None` if no timer is set.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        if self.due[0] != NIL {
            return Some(self.elapsed_ms);
        }
        self.next_bucket().map(|(_, at_ms)| at_ms)
    }

    /// The occupied bucket that time reaches next, and when.
    fn next_bucket(&self) -> Option<(usize, u64)> {
        let here = slot_of(self.elapsed_ms);
        let slot = self
            .occupied
            .first_from(here)
            .or_else(|| self.occupied.first_from(0))?;
        let ahead = (slot + SLOTS - here) % SLOTS;
        Some((slot, self.elapsed_ms + ahead as u64))
    }

    fn append_due(&mut self, arena: &mut impl TimerArena, [first, last]: [u32; 2]) {
        let tail = std::mem::replace(&mut self.due[1], last);
        if tail == NIL {
            self.due[0] = first;
        } else {
            join(arena, tail, first);
        }
    }
}

fn slot_of(at_ms: u64) -> usize {
    (at_ms % HORIZON_MS) as usize
}

fn join(arena: &mut impl TimerArena, before: u32, after: u32) {
    arena.timer_mut(before).next = after;
    arena.timer_mut(after).prev = before;
}

/// A set of slots: a bit each, a bit for each word of those, and a bit for each word of those.
struct SlotSet {
    top: u64,
    middle: [u64; 64],
    bottom: Vec<u64>,
}

const _: () = assert!(SLOTS == 64 * 64 * 64);

impl SlotSet {
    fn new() -> Self {
        Self {
            top: 0,
            middle: [0; 64],
            bottom: vec![0; SLOTS / 64],
        }
    }

    fn contains(&self, slot: usize) -> bool {
        self.bottom[slot / 64] & bit(slot) != 0
    }

    /// Whether it was not inside.
    fn insert(&mut self, slot: usize) -> bool {
        let word = &mut self.bottom[slot / 64];
        let new = *word & bit(slot) == 0;
        *word |= bit(slot);
        self.middle[slot / 64 / 64] |= bit(slot / 64);
        self.top |= bit(slot / 64 / 64);
        new
    }

    fn remove(&mut self, slot: usize) {
        let (word, group) = (slot / 64, slot / 64 / 64);
        self.bottom[word] &= !bit(slot);
        if self.bottom[word] == 0 {
            self.middle[group] &= !bit(word);
        }
        if self.middle[group] == 0 {
            self.top &= !bit(group);
        }
    }

    /// The lowest slot inside that is not below `slot`.
    fn first_from(&self, slot: usize) -> Option<usize> {
        let (word, group) = (slot / 64, slot / 64 / 64);
        if let Some(found) = lowest(self.bottom[word] & (u64::MAX << (slot % 64))) {
            return Some(word * 64 + found);
        }
        let word = match lowest(self.middle[group] & above(word)) {
            Some(found) => group * 64 + found,
            None => {
                let group = lowest(self.top & above(group))?;
                group * 64 + lowest(self.middle[group])?
            }
        };
        Some(word * 64 + lowest(self.bottom[word])?)
    }
}

fn bit(place: usize) -> u64 {
    1 << (place % 64)
}

/// All bits higher than that of `place`.
fn above(place: usize) -> u64 {
    (u64::MAX << (place % 64)) << 1
}

fn lowest(word: u64) -> Option<usize> {
    (word != 0).then_some(word.trailing_zeros() as usize)
}
