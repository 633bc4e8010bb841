//! What the cores say to each other: the only meeting point of the shards and
//! the consensus role.

use std::sync::Arc;

use ticketing_raftlog::{LogIndex, NodeId, RecordRef, Segment, Term};

use crate::locks::{Answer, Fate, GrantRef, Origin, Proposals};
use crate::operator::Slip;

/// From one shard to another.
#[derive(Debug)]
pub enum ToShard {
    /// Requests for keys that the receiver owns.
    Forwarded(Forwarded),
    /// Answers to requests that came in on the receiver's connections.
    Answers {
        /// The shard that owns the keys, where an undeliverable grant goes back.
        owner: u16,
        /// In the order in which they were decided.
        answers: Vec<(Origin, Answer)>,
    },
}

/// Requests on their way to the shard that owns their keys, in order.
#[derive(Debug, Default)]
pub struct Forwarded {
    items: Vec<ForwardedItem>,
    keys: Vec<u8>,
}

#[derive(Debug)]
struct ForwardedItem {
    origin: Origin,
    key_hash: u64,
    key_start: u32,
    key_len: u32,
    request: ForwardedRequest,
}

/// What is asked of the shard that owns the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedRequest {
    /// Acquire the key.
    Acquire {
        /// When it arrived, on the clock that all cores share.
        arrived_ms: u64,
        /// How long it will stand in line, in seconds.
        wait_s: u8,
        /// How long it may hold the key, in seconds.
        lease_s: u8,
    },
    /// Release the key.
    Release {
        /// When it arrived, on the clock that all cores share.
        arrived_ms: u64,
        /// The token it was granted under.
        token: u64,
    },
    /// The requester's connection is gone.
    Disconnect,
    /// An answer could not be handed to the kernel.
    Undelivered(GrantRef),
}

impl Forwarded {
    /// Adds one request. `key` is empty for what needs none.
    pub fn push(&mut self, origin: Origin, key_hash: u64, key: &[u8], request: ForwardedRequest) {
        let key_start = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        let key_len = u32::try_from(key.len()).unwrap_or(u32::MAX);
        assert!(
            key_start < u32::MAX - key_len,
            "a message of requests is far below 4 GiB"
        );
        self.keys.extend_from_slice(key);
        self.items.push(ForwardedItem {
            origin,
            key_hash,
            key_start,
            key_len,
            request,
        });
    }

    /// How many requests it carries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// True when it carries none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The requests: who asks, the key's hash, the key, what is asked.
    pub fn iter(&self) -> impl Iterator<Item = (Origin, u64, &[u8], ForwardedRequest)> {
        self.items.iter().map(|item| {
            let start = item.key_start as usize;
            let key = &self.keys[start..start + item.key_len as usize];
            (item.origin, item.key_hash, key, item.request)
        })
    }
}

/// From a shard to the consensus role.
#[derive(Debug)]
pub enum ToConsensus {
    /// Commands to append, as they lie in the message.
    Proposals {
        /// The shard that proposes them.
        shard: u16,
        /// The leadership in which it does.
        term: Term,
        /// What.
        proposals: Proposals,
    },
    /// Confirm that this node leads.
    Confirm {
        /// The shard that asks.
        shard: u16,
        /// Its name for the request.
        request: u64,
    },
    /// Ask the leader to release a grant that nobody wants.
    Orphan {
        /// The lock's name.
        key: Box<[u8]>,
        /// The grant's token.
        token: u64,
    },
    /// A grant that a peer wanted released is current no more.
    PeerReleased {
        /// The peer.
        peer: NodeId,
        /// Its name for the request.
        number: u64,
    },
    /// What this shard held when everything up to `index` was applied.
    StateSum {
        /// The index.
        index: LogIndex,
        /// The sum of its locks' hashes.
        sum: u128,
    },
    /// An operator asks for something.
    Operator(Slip),
    /// This shard takes no acquires any more, and nothing of its is in the log.
    Drained,
    /// This shard has applied everything up to the barrier.
    Reached {
        /// The barrier's log index.
        index: LogIndex,
    },
    /// This shard has closed its connections, and nothing is under way in it.
    Quiet {
        /// Whether it had anything to do since it said so before, of which
        /// something may be on its way to another shard.
        active: bool,
    },
}

/// From the consensus role to a shard, in log order.
#[derive(Debug)]
pub enum FromConsensus {
    /// Committed commands whose keys this shard owns.
    Committed(Committed),
    /// Everything below `index` that concerns this shard has been sent: say so
    /// when it is applied.
    Barrier {
        /// The log index it stands at.
        index: LogIndex,
    },
    /// Locks of the snapshot that the log goes on from, before any of its entries.
    Restore(Restored),
    /// Everything up to `index` that concerns this shard has been sent: cut here,
    /// and send what is held in [`SnapshotChunk`]s.
    Snapshot {
        /// The log index it stands at.
        index: LogIndex,
    },
    /// Everything up to `index` that concerns this shard has been sent: say what is held there.
    StateSum {
        /// The index.
        index: LogIndex,
    },
    /// Where this node stands has changed.
    Lead(Lead),
    /// The leader at that slot serves: tell the clients.
    LeaderReady(u8),
    /// The state is another one from here on: forget what is held, and take in what follows.
    Reset,
    /// Commands that this shard proposed will not be applied as its own.
    Dropped {
        /// The commands.
        commands: Vec<Vec<u8>>,
        /// What is known of them.
        fate: Fate,
    },
    /// The answer to a confirmation: whether this node led behind the request; everything that was
    /// committed by then and concerns this shard has been sent.
    Confirmed {
        /// The request.
        request: u64,
        /// It led.
        leads: bool,
    },
    /// A peer wants a grant released.
    PeerRelease {
        /// The peer.
        peer: NodeId,
        /// Its name for the request.
        number: u64,
        /// The lock's name.
        key: Vec<u8>,
        /// The grant's token.
        token: u64,
    },
    /// A grant that the leader was asked to release is current no more.
    OrphanDone {
        /// The grant's token.
        token: u64,
    },
    /// A stopping leader has handed over, or could not.
    HandedOver,
    /// Every shard was quiet, but not all of them for long enough: say so again.
    StillQuiet,
    /// Every shard has stopped and the log is closed: end.
    End,
}

/// Where a node stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Another node leads, at that slot if it is known.
    Follows(Option<u8>),
    /// This node leads, and does not serve yet.
    Elected,
    /// This node leads in that term: the no-op of the term is applied on every shard.
    Ready(Term),
}

/// Locks whose keys the receiver owns, from a snapshot.
#[derive(Debug)]
pub struct Restored {
    /// The last log index that is in the snapshot.
    pub index: LogIndex,
    /// One [`crate::locks::HeldLock`] behind the other.
    pub locks: Vec<u8>,
}

/// From a shard to the consensus role, on a lane of its own: a part of what it
/// held at a cut.
#[derive(Debug)]
pub struct SnapshotChunk {
    /// The log index of the cut.
    pub index: LogIndex,
    /// How many locks are in it.
    pub locks: u32,
    /// One [`crate::locks::HeldLock`] behind the other.
    pub bytes: Vec<u8>,
    /// Whether this shard has more of them.
    pub more: bool,
}

/// Committed commands, read in place.
#[derive(Debug)]
pub struct Committed {
    /// Where they lie.
    pub lie_in: Records,
    /// True when this node appended them as the leader it still is.
    pub own: bool,
    /// In log order.
    pub records: Vec<CommittedRecord>,
}

/// What records lie in.
#[derive(Clone, Debug)]
pub enum Records {
    /// The log.
    Segment(Arc<Segment>),
    /// Memory: a majority of the nodes has them on its disks, and this one has not yet.
    Memory(Arc<[u8]>),
}

impl Records {
    /// The record at that offset.
    ///
    /// # Panics
    /// When none starts there: the caller is wrong.
    #[must_use]
    pub fn record(&self, offset: u32) -> RecordRef<'_> {
        match self {
            Self::Segment(segment) => segment.record(offset),
            Self::Memory(bytes) => match RecordRef::read(&bytes[offset as usize..]) {
                Some((record, _)) => record,
                None => panic!("no record at offset {offset} of {} bytes", bytes.len()),
            },
        }
    }
}

/// One committed command.
#[derive(Clone, Copy, Debug)]
pub struct CommittedRecord {
    /// Where the record lies, in bytes from the beginning.
    pub offset: u32,
    /// The hash of its key.
    pub key_hash: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_requests_come_out_as_they_went_in() {
        let origin = |request_id| Origin {
            shard: 1,
            connection: 2,
            generation: 3,
            request_id,
        };
        let mut forwarded = Forwarded::default();
        assert!(forwarded.is_empty());
        let acquire = ForwardedRequest::Acquire {
            arrived_ms: 7,
            wait_s: 1,
            lease_s: 2,
        };
        forwarded.push(origin(1), 11, b"first", acquire);
        forwarded.push(origin(1), 0, b"", ForwardedRequest::Disconnect);
        forwarded.push(
            origin(2),
            22,
            b"second",
            ForwardedRequest::Release {
                arrived_ms: 8,
                token: 9,
            },
        );
        assert_eq!(forwarded.len(), 3);
        let seen: Vec<_> = forwarded.iter().collect();
        assert_eq!(seen[0], (origin(1), 11, &b"first"[..], acquire));
        assert_eq!(
            seen[1],
            (origin(1), 0, &b""[..], ForwardedRequest::Disconnect)
        );
        assert_eq!(
            seen[2],
            (
                origin(2),
                22,
                &b"second"[..],
                ForwardedRequest::Release {
                    arrived_ms: 8,
                    token: 9,
                }
            )
        );
    }
}
