//! Keys, their holders and their lines. No I/O.

use std::collections::VecDeque;

use hashbrown::HashMap;
use ticketing_protocol::Reply;

/// Most keys remembered. Past it, free ones are forgotten; if none is free, acquires get Busy.
const KEYS_MAX: usize = 65_536;
/// Most requests in line, over all keys. Past it, acquires get Busy.
const WAITERS_MAX: usize = 65_536;

/// One connection, never mistaken for a later one in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnId {
    pub(super) index: usize,
    pub(super) generation: u64,
}

#[derive(Default)]
pub(super) struct Table {
    keys: HashMap<Vec<u8>, Key>,
    waiting: usize,
    last_token: u64,
}

/// A key stays in the table when it is free, so that no acquire of a known key allocates.
#[derive(Default)]
struct Key {
    /// The current grant's token, 0 when free.
    token: u64,
    line: VecDeque<Waiter>,
}

struct Waiter {
    conn: ConnId,
    request_id: u64,
}

impl Table {
    /// The answer to an acquire, or None if it joined the line.
    pub(super) fn acquire(
        &mut self,
        conn: ConnId,
        request_id: u64,
        wait_s: u8,
        key: &[u8],
    ) -> Option<Reply> {
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(key) {
            self.keys.retain(|_, key| key.token != 0);
            if self.keys.len() >= KEYS_MAX {
                return Some(Reply::Busy { request_id });
            }
        }
        let key = self.keys.entry_ref(key).or_default();
        if key.token == 0 {
            self.last_token += 1;
            key.token = self.last_token;
            let token = key.token;
            return Some(Reply::Acquired { request_id, token });
        }
        if wait_s == 0 || self.waiting >= WAITERS_MAX {
            return Some(Reply::Busy { request_id });
        }
        self.waiting += 1;
        key.line.push_back(Waiter { conn, request_id });
        None
    }

    /// The answer to a release, and to the first in line whose connection still `lives`.
    pub(super) fn release(
        &mut self,
        request_id: u64,
        token: u64,
        key: &[u8],
        lives: impl Fn(ConnId) -> bool,
    ) -> (Reply, Option<(ConnId, Reply)>) {
        let Some(key) = self.keys.get_mut(key).filter(|key| key.token == token) else {
            return (Reply::NotFound { request_id }, None);
        };
        let released = Reply::Released { request_id };
        while let Some(next) = key.line.pop_front() {
            self.waiting -= 1;
            if lives(next.conn) {
                self.last_token += 1;
                key.token = self.last_token;
                let request_id = next.request_id;
                let token = key.token;
                let granted = Reply::Acquired { request_id, token };
                return (released, Some((next.conn, granted)));
            }
        }
        key.token = 0;
        (released, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: ConnId = ConnId {
        index: 0,
        generation: 1,
    };
    const TWO: ConnId = ConnId {
        index: 1,
        generation: 2,
    };

    #[test]
    fn a_key_goes_down_its_line_in_order() {
        let mut table = Table::default();
        let granted = |request_id, token| Reply::Acquired { request_id, token };
        assert_eq!(table.acquire(ONE, 1, 9, b"k"), Some(granted(1, 1)));
        assert_eq!(table.acquire(ONE, 2, 9, b"k"), None);
        assert_eq!(table.acquire(TWO, 3, 9, b"k"), None);
        assert_eq!(
            table.acquire(TWO, 4, 0, b"k"),
            Some(Reply::Busy { request_id: 4 })
        );
        assert_eq!(table.acquire(TWO, 5, 0, b"other"), Some(granted(5, 2)));

        let stale = table.release(6, 9, b"k", |_| true);
        assert_eq!(stale, (Reply::NotFound { request_id: 6 }, None));
        let handed_on = table.release(7, 1, b"k", |_| true);
        let released = Reply::Released { request_id: 7 };
        assert_eq!(handed_on, (released, Some((ONE, granted(2, 3)))));
        let handed_on = table.release(7, 3, b"k", |_| true);
        assert_eq!(handed_on, (released, Some((TWO, granted(3, 4)))));
        assert_eq!(table.release(7, 4, b"k", |_| true), (released, None));
        assert_eq!(table.acquire(ONE, 8, 0, b"k"), Some(granted(8, 5)));
    }

    #[test]
    fn who_left_is_passed_over() {
        let mut table = Table::default();
        table.acquire(ONE, 1, 0, b"k");
        table.acquire(TWO, 2, 9, b"k");
        table.acquire(ONE, 3, 9, b"k");
        let (_, next) = table.release(4, 1, b"k", |conn| conn != TWO);
        let granted = Reply::Acquired {
            request_id: 3,
            token: 2,
        };
        assert_eq!(next, Some((ONE, granted)));
        assert_eq!(table.waiting, 0);
    }

    #[test]
    fn keys_are_bounded_and_free_ones_make_room() {
        let mut table = Table::default();
        for number in 0..KEYS_MAX as u64 {
            let reply = table.acquire(ONE, 1, 0, &number.to_be_bytes());
            assert!(matches!(reply, Some(Reply::Acquired { .. })));
        }
        let busy = Some(Reply::Busy { request_id: 1 });
        assert_eq!(table.acquire(ONE, 1, 0, b"one past"), busy);
        table.release(1, 1, &0_u64.to_be_bytes(), |_| true);
        assert_ne!(table.acquire(ONE, 1, 0, b"one past"), busy);
    }

    #[test]
    fn waiters_are_bounded() {
        let mut table = Table::default();
        table.acquire(ONE, 1, 0, b"k");
        for _ in 0..WAITERS_MAX {
            assert_eq!(table.acquire(ONE, 1, 1, b"k"), None);
        }
        assert_eq!(
            table.acquire(ONE, 1, 1, b"k"),
            Some(Reply::Busy { request_id: 1 })
        );
    }
}
