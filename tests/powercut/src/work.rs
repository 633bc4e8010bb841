//! The load: workers that take and give back keys until their connection breaks, and remember
//! what they were told.

use std::net::SocketAddr;

use ticketing_protocol::Reply;

use crate::known::{Known, Op, own_key};
use crate::raw::RawClient;
use crate::rng::Rng;

/// Keys that each worker has to itself.
pub const OWN_KEYS: u64 = 16;
/// How many of them it asks for or gives back in one write, at most.
const MOST_AT_ONCE: u64 = 8;

/// Takes and gives back keys until the connection breaks.
pub fn work(address: SocketAddr, worker: u64, seed: u64) -> Known {
    let mut known = Known::default();
    let mut rng = Rng::new(seed);
    let Ok(mut client) = RawClient::try_connect(address, b"") else {
        return known;
    };
    loop {
        let first = rng.below(OWN_KEYS);
        let ops = (0..=rng.below(MOST_AT_ONCE))
            .map(|number| known.next_op(own_key(worker, (first + number) % OWN_KEYS)))
            .map(|op| (op, 0))
            .collect();
        if !known.exchange(&mut client, ops, may_be_done) {
            return known;
        }
    }
}

fn may_be_done(op: &Op, reply: &Reply) -> bool {
    match (op, reply) {
        // Nothing was done: the server was full, or is ending.
        (Op::Acquire { .. }, Reply::Busy { .. } | Reply::Error { .. }) => false,
        (_, Reply::Indeterminate { .. } | Reply::Error { .. }) => true,
        _ => panic!("{op:?}: {reply:?}"),
    }
}
