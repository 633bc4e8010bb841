//! What a client knows of its keys: what it was told, and what it asked for and never heard of.

use std::collections::BTreeMap;

use ticketing_protocol::Reply;

use super::PATIENCE;
use super::raw::{RawClient, acquire, release};

/// Does not run out while a test lasts: what is not released stays.
pub const LEASE_S: u8 = 250;

/// A command that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The name of a worker's own key.
pub fn own_key(worker: u64, number: u64) -> String {
    format!("own-{worker}-{number}")
}

impl Op {
    /// Whether a key may be held, by that token, because nobody knows if this was done.
    pub fn explains_held(&self, held: &str, by: u64) -> bool {
        match self {
            Op::Acquire { key } => key == held,
            Op::Release { key, token } => key == held && *token == by,
        }
    }

    fn frame(&self, id: u64, wait_s: u8) -> Vec<u8> {
        match self {
            Op::Acquire { key } => acquire(id, key, wait_s, LEASE_S),
            Op::Release { key, token } => release(id, key, *token),
        }
    }
}

impl Known {
    /// Gives a key back if it is held, and else asks for it.
    pub fn next_op(&mut self, key: String) -> Op {
        match self.holds.remove(&key) {
            Some(token) => Op::Release { key, token },
            None => Op::Acquire { key },
        }
    }

    /// Sends all of it, each with the time it may wait, in one write, and takes note of the
    /// answers; false once the connection is broken. An answer that is neither a grant nor a
    /// release goes to `otherwise`, which says whether the command may have been done.
    pub fn exchange(
        &mut self,
        client: &mut RawClient,
        ops: Vec<(Op, u8)>,
        otherwise: impl Fn(&Op, &Reply) -> bool,
    ) -> bool {
        let mut waiting = BTreeMap::new();
        let mut bytes = Vec::new();
        for (op, wait_s) in ops {
            let id = client.new_id();
            bytes.extend(op.frame(id, wait_s));
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
                (op, reply) if otherwise(&op, &reply) => self.in_flight.push(op),
                _ => {}
            }
        }
        self.in_flight.extend(waiting.into_values());
        is_open
    }
}
