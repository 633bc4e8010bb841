//! Virtual time: a heap of what is going to happen.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Virtual time in microseconds since the run began.
pub type Us = u64;

struct Due<E> {
    at_us: Us,
    order: u64,
    event: E,
}

impl<E> PartialEq for Due<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at_us, self.order) == (other.at_us, other.order)
    }
}

impl<E> Eq for Due<E> {}

impl<E> PartialOrd for Due<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Due<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_us, self.order).cmp(&(other.at_us, other.order))
    }
}

/// Events by time; those of one instant in the order in which they were added.
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Due<E>>>,
    now_us: Us,
    added: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self {
            heap: BinaryHeap::new(),
            now_us: 0,
            added: 0,
        }
    }
}

impl<E> Events<E> {
    /// The present.
    #[must_use]
    pub fn now_us(&self) -> Us {
        self.now_us
    }

    /// Adds what happens at `at_us`; the past counts as now.
    pub fn at(&mut self, at_us: Us, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Due {
            at_us: at_us.max(self.now_us),
            order: self.added,
            event,
        }));
    }

    /// Adds what happens in `delay_us`.
    pub fn after(&mut self, delay_us: Us, event: E) {
        self.at(self.now_us + delay_us, event);
    }

    /// Goes on to the next event, unless it lies behind `until_us`.
    pub fn next(&mut self, until_us: Us) -> Option<E> {
        if self.heap.peek()?.0.at_us > until_us {
            return None;
        }
        let Reverse(due) = self.heap.pop()?;
        self.now_us = due.at_us;
        Some(due.event)
    }
}

#[cfg(test)]
mod tests {
    use super::Events;

    #[test]
    fn events_come_by_time_then_by_order() {
        let mut events = Events::default();
        for (at, name) in [(5, 'c'), (3, 'a'), (3, 'b'), (9, 'd')] {
            events.at(at, name);
        }
        assert_eq!(events.next(5), Some('a'));
        events.at(1, 'x');
        let rest: String = std::iter::from_fn(|| events.next(5)).collect();
        assert_eq!((rest.as_str(), events.now_us()), ("bxc", 5));
        assert_eq!(events.next(100), Some('d'));
    }
}
