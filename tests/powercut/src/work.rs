//! The load: workers that take and give back keys until their connection breaks, and remember
//! what they were told.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ticketing_protocol::Reply;

use crate::PATIENCE;
use crate::raw::{RawClient, acquire, release};
use crate::rng::Rng;

/// Keys that each worker has to itself.
pub const OWN_KEYS: u64 = 16;
/// How many of them it asks for or gives back in one write, at most.
const MOST_AT_ONCE: u64 = 8;
/// Does not run out between two cuts.
pub const LEASE_S: u8 = 250;

/// A command that a client sent.
#[derive(Clone, Debug)]
pub enum Op {
    Acquire { key: String },
    Release { key: String, token: u64 },
}

/// What a worker knew when its connection broke.
#[derive(Debug, Default)]
pub struct Known {
    /// Acknowledged grants, by token.
    pub granted: Vec<(u64, String)>,
    /// Acknowledged releases.
    pub released: Vec<(u64, String)>,
    /// Sent and not answered.
    pub in_flight: Vec<Op>,
    /// What it holds for sure: granted, and no release sent.
    pub holds: BTreeMap<String, u64>,
}

/// The name of a worker's key.
pub fn own_key(worker: u64, number: u64) -> String {
    format!("own-{worker}-{number}")
}

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
            .collect();
        if !known.exchange(&mut client, ops) {
            return known;
        }
    }
}

impl Op {
    /// Whether a key may be held, by that token, because nobody knows if this was done.
    pub fn explains_held(&self, held: &str, by: u64) -> bool {
        match self {
            Op::Acquire { key } => key == held,
            Op::Release { key, token } => key == held && *token == by,
        }
    }
}

impl Known {
    /// Gives a key back if it is held, and else asks for it.
    fn next_op(&mut self, key: String) -> Op {
        match self.holds.remove(&key) {
            Some(token) => Op::Release { key, token },
            None => Op::Acquire { key },
        }
    }

    /// Sends all of it in one write and takes note of the answers; false once the connection is
    /// broken.
    fn exchange(&mut self, client: &mut RawClient, ops: Vec<Op>) -> bool {
        let mut waiting = BTreeMap::new();
        let mut bytes = Vec::new();
        for op in ops {
            let id = client.new_id();
            bytes.extend(match &op {
                Op::Acquire { key } => acquire(id, key, 0, LEASE_S),
                Op::Release { key, token } => release(id, key, *token),
            });
            waiting.insert(id, op);
        }
        let mut is_open = client.try_send_bytes(&bytes).is_ok();
        while is_open && !waiting.is_empty() {
            let Ok(reply) = client.try_reply(PATIENCE) else {
                is_open = false;
                break;
            };
            let id = reply.request_id().expect("an answer");
            let op = waiting.remove(&id).expect("an answer to what was asked");
            match (op, reply) {
                (Op::Acquire { key }, Reply::Acquired { token, .. }) => {
                    self.granted.push((token, key.clone()));
                    self.holds.insert(key, token);
                }
                (Op::Release { key, token }, Reply::Released { .. }) => {
                    self.released.push((token, key));
                }
                // Nothing was done: the server was full, or is ending.
                (Op::Acquire { .. }, Reply::Busy { .. } | Reply::Error { .. }) => {}
                (op, reply @ (Reply::Indeterminate { .. } | Reply::Error { .. })) => {
                    let _ = reply;
                    self.in_flight.push(op);
                }
                (op, reply) => panic!("{op:?}: {reply:?}"),
            }
        }
        self.in_flight.extend(waiting.into_values());
        is_open
    }
}
