//! Every answer in time (behaviour, section 5, "Time up"; section 2, "wait").

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::node::messages::{Request, Verdict};

/// What lanes between slow cores may add on the way of a request and its answer.
const LANES_MS: u64 = 300;
/// A wait that runs out is answered that much early at most: under a fresh leader, and the margin.
const EARLY_MS: u64 = 1_000 + 50 + 5;

#[derive(Debug)]
struct Waiting {
    node: usize,
    arrived_ms: u64,
    limit_ms: u64,
    wait_ms: u64,
}

/// Requests without an answer.
#[derive(Debug, Default)]
pub struct Deadlines {
    waiting: BTreeMap<(u32, u64), Waiting>,
    excused: BTreeSet<(u32, u64)>,
}

impl Deadlines {
    /// A request arrives at `node`.
    pub fn arrived(&mut self, node: usize, connection: u32, request: &Request, now_ms: u64) {
        let (id, limit_ms, wait_ms) = match *request {
            Request::Acquire { id, wait_s: 0, .. } => (id, 4_500, 0),
            Request::Acquire { id, wait_s, .. } => {
                (id, u64::from(wait_s) * 1_000, u64::from(wait_s) * 1_000)
            }
            Request::Release { id, .. } => (id, 1_500, 0),
        };
        let waiting = Waiting {
            node,
            arrived_ms: now_ms,
            limit_ms,
            wait_ms,
        };
        self.waiting.insert((connection, id), waiting);
    }

    /// It is answered.
    pub fn told(&mut self, request: (u32, u64), verdict: Verdict, now_ms: u64) -> Check {
        let excused = self.excused.remove(&request);
        let Some(waiting) = self.waiting.remove(&request) else {
            return Ok(());
        };
        let took_ms = now_ms - waiting.arrived_ms;
        if !excused && took_ms > waiting.limit_ms + LANES_MS {
            return Err(format!(
                "{request:?} was told {verdict:?} after {took_ms} ms, the limit is {}",
                waiting.limit_ms
            ));
        }
        if verdict == Verdict::TimedOut && took_ms + EARLY_MS < waiting.wait_ms {
            return Err(format!(
                "{request:?} was told {verdict:?} after {took_ms} ms of {}",
                waiting.wait_ms
            ));
        }
        Ok(())
    }

    /// Nobody waits there any more.
    pub fn disconnected(&mut self, connection: u32) {
        self.waiting.retain(|(of, _), _| *of != connection);
    }

    /// The process of `node` has ended.
    pub fn ended(&mut self, node: usize) {
        self.waiting.retain(|_, waiting| waiting.node != node);
    }

    /// The process of `node` stands still: what waits there may be late.
    pub fn froze(&mut self, node: usize) {
        let there = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.node == node);
        self.excused.extend(there.map(|(request, _)| *request));
    }

    /// At the end, nothing may be left.
    pub fn finish(&self) -> Check {
        match self.waiting.iter().next() {
            Some((request, waiting)) => Err(format!("{request:?} was never answered: {waiting:?}")),
            None => Ok(()),
        }
    }
}
