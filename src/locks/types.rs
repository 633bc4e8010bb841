//! What goes into the table and what comes out.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::proposals::Proposals;

/// The hash of a key, computed once per request and handed along with the key.
///
/// `seed` should be secret, as keys come from outside. A router may pick a shard by the hash's
/// lowest or highest bits: the table places its keys by others.
pub fn key_hash(seed: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// Who asked. Opaque to the table; while a request is unanswered its origin is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The shard that holds the connection.
    pub shard: u16,
    /// The connection's place on that shard.
    pub connection: u32,
    /// Tells one user of that place from the next.
    pub generation: u32,
    /// The client's id of the request.
    pub request_id: u64,
}

/// Names a grant without its key, so that one that could not be delivered can be handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRef {
    pub(super) slot: u32,
    pub(super) token: u64,
}

impl GrantRef {
    /// The fencing token of the grant.
    pub fn token(&self) -> u64 {
        self.token
    }
}

/// What a request is told; exactly one for each, none once its requester is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The lock is the requester's.
    Acquired {
        /// The fencing token.
        token: u64,
        /// To hand back if this answer cannot be delivered.
        grant: GrantRef,
    },
    /// The lock was given back.
    Released,
    /// The token is not the current one of its key.
    NotFound,
    /// The wait ran out; not granted.
    TimedOut,
    /// Held, or no room; not granted.
    Busy,
    /// The command is in the log and its fate is not known yet.
    Indeterminate,
    /// This table does not serve yet, or any more; not granted.
    NotActive,
}

/// What a committed command did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// A Grant took the lock.
    Granted {
        /// Its fencing token: the index of the entry.
        token: u64,
    },
    /// A Grant met a held lock. Never in normal flow.
    GrantRejected,
    /// A Release removed the lock.
    Released,
    /// A Release met no such lock.
    NotFound,
    /// An Expire was processed.
    Expired {
        /// Whether it removed something.
        existed: bool,
    },
    /// Nothing happened: the entry is not above what was applied already, or its key is out of
    /// bounds.
    Noop,
}

/// What a call decided. The caller drains it and uses the buffers again.
#[derive(Debug, Default)]
pub struct Outputs {
    /// Answers, in the order they were decided.
    pub answers: Vec<(Origin, Answer)>,
    /// Commands to append to the log, in order.
    pub proposals: Proposals,
    /// Grants that nobody wants and that this table cannot release, because it does not serve any
    /// more: the leader is to be asked to release them, until it answers.
    pub orphans: Vec<Orphan>,
}

/// A grant of an ex-leader's that nobody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The lock's name.
    pub key: Box<[u8]>,
    /// The fencing token of the grant.
    pub token: u64,
}

impl Outputs {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty() && self.proposals.is_empty() && self.orphans.is_empty()
    }

    /// Empties all, keeping their memory.
    pub fn clear(&mut self) {
        self.answers.clear();
        self.proposals.clear();
        self.orphans.clear();
    }
}
