//! Requests that wait for an answer, and the lines they stand in.

use hashbrown::HashTable;
use slab::Slab;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::types::Origin;
use super::wheel::{NIL, TimerArena, TimerNode};

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// An acquire in its key's line.
    Queued,
    /// An acquire whose Grant is in the log.
    Granting,
    /// The release whose command is in the log.
    Releasing,
    /// A release that waits for the fate of a removal of the same token.
    Parked,
}

/// One request. It exists only while its answer is owed.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) origin: Origin,
    pub(super) timer: TimerNode,
    pub(super) lock: u32,
    prev: u32,
    next: u32,
    pub(super) phase: Phase,
    /// Wait 0: one try that never stands in line.
    pub(super) once: bool,
    /// What an acquire asks for; 0 in a release.
    pub(super) lease_s: u8,
}

impl Request {
    pub(super) fn new(origin: Origin, lock: u32, phase: Phase) -> Self {
        Self {
            origin,
            timer: TimerNode::idle(),
            lock,
            prev: NIL,
            next: NIL,
            phase,
            once: false,
            lease_s: 0,
        }
    }
}

/// A line of requests: its ends; the links are in the requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    head: u32,
    tail: u32,
    len: u32,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self {
            head: NIL,
            tail: NIL,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    #[cfg(feature = "bugs")]
    pub(super) fn tail(&self) -> Option<u32> {
        (self.tail != NIL).then_some(self.tail)
    }

    pub(super) fn push_back(&mut self, requests: &mut Requests, id: u32) {
        let tail = self.tail;
        let request = requests.get_mut(id);
        (request.prev, request.next) = (tail, NIL);
        if tail == NIL {
            self.head = id;
        } else {
            requests.get_mut(tail).next = id;
        }
        self.tail = id;
        self.len += 1;
    }

    pub(super) fn push_front(&mut self, requests: &mut Requests, id: u32) {
        let head = self.head;
        let request = requests.get_mut(id);
        (request.prev, request.next) = (NIL, head);
        if head == NIL {
            self.tail = id;
        } else {
            requests.get_mut(head).prev = id;
        }
        self.head = id;
        self.len += 1;
    }

    /// Takes `id`, which must be in this line, out of it, wherever it stands.
    pub(super) fn remove(&mut self, requests: &mut Requests, id: u32) {
        let request = requests.get_mut(id);
        let (prev, next) = (request.prev, request.next);
        (request.prev, request.next) = (NIL, NIL);
        if prev == NIL {
            self.head = next;
        } else {
            requests.get_mut(prev).next = next;
        }
        if next == NIL {
            self.tail = prev;
        } else {
            requests.get_mut(next).prev = prev;
        }
        self.len -= 1;
    }
}

/// All requests that wait, by index and by origin.
pub(super) struct Requests {
    slab: Slab<Request>,
    index: HashTable<u32>,
    seed: u64,
}

impl Requests {
    /// A store with address space for `capacity` requests.
    pub(super) fn with_capacity(capacity: usize, seed: u64) -> Self {
        Self {
            slab: Slab::with_capacity(capacity),
            index: HashTable::with_capacity(capacity),
            seed,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn insert(&mut self, request: Request) -> u32 {
        let place = place(self.seed, &request.origin);
        let id = self.slab.insert(request);
        assert!(id < NIL as usize, "more requests than 32-bit indexes");
        let id = id as u32;
        let (slab, seed) = (&self.slab, self.seed);
        self.index.insert_unique(place, id, |&other| {
            self::place(seed, &slab[other as usize].origin)
        });
        id
    }

    /// Removes a request that is in no line and has no timer set.
    pub(super) fn remove(&mut self, id: u32) -> Request {
        let request = self.slab.remove(id as usize);
        assert!(
            !request.timer.is_armed(),
            "a request was removed with its timer set"
        );
        match self
            .index
            .find_entry(place(self.seed, &request.origin), |&other| other == id)
        {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("every request is in the index"),
        }
        request
    }

    pub(super) fn find(&self, origin: &Origin) -> Option<u32> {
        let same = |&id: &u32| self.slab[id as usize].origin == *origin;
        self.index.find(place(self.seed, origin), same).copied()
    }

    pub(super) fn get(&self, id: u32) -> &Request {
        &self.slab[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Request {
        &mut self.slab[id as usize]
    }
}

impl TimerArena for Requests {
    fn timer_mut(&mut self, id: u32) -> &mut TimerNode {
        &mut self.slab[id as usize].timer
    }
}

fn place(seed: u64, origin: &Origin) -> u64 {
    let mut bytes = [0; 18];
    bytes[..8].copy_from_slice(&origin.request_id.to_le_bytes());
    bytes[8..12].copy_from_slice(&origin.connection.to_le_bytes());
    bytes[12..16].copy_from_slice(&origin.generation.to_le_bytes());
    bytes[16..].copy_from_slice(&origin.shard.to_le_bytes());
    xxh3_64_with_seed(&bytes, seed)
}

#[cfg(test)]
mod tests {
    use super::Request;

    #[test]
    fn a_request_is_at_most_72_bytes() {
        // With its place in the index, 100,000 fit in 64 MiB many times over.
        assert!(size_of::<Request>() <= 72, "{}", size_of::<Request>());
    }
}
