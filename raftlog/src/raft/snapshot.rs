//! Snapshots on the leader's side (paper, section 7): what the log may lose, and who needs what it
//! has lost.

use super::core::Core;
use super::message::{Body, Snapshot};
use super::progress::{Sending, State};
use super::types::{Output, Role};
use crate::limits::SNAPSHOT_CHUNK_BYTES;
use crate::types::{LogIndex, NodeId};

impl Core {
    pub(super) fn compacted(
        &mut self,
        snapshot: Snapshot,
        first_index: LogIndex,
        outputs: &mut Vec<Output>,
    ) {
        let newest = self.snapshot.map_or(LogIndex(0), |s| s.last.index);
        let base = self.log.base().index;
        if snapshot.last.index < newest.max(base) {
            // One that was being made when a newer one was installed.
            return;
        }
        assert!(
            snapshot.last.index <= self.commit && self.log.has(snapshot.last),
            "a snapshot of {:?}, committed is {}",
            snapshot.last,
            self.commit
        );
        assert!(
            first_index > base && first_index <= snapshot.last.index.next(),
            "a log from {first_index} on, behind {base} and a snapshot up to {}",
            snapshot.last.index
        );
        self.snapshot = Some(snapshot);
        self.snapshot_wanted = false;
        self.log.compact(first_index.previous());
        // A snapshot's configuration is sent with it, and is not before the log's.
        self.configs.compact(first_index.previous());
        if self.role == Role::Leader {
            for place in 0..self.peers.len() {
                if let State::Probe { waiting } = &mut self.peers[place].state {
                    *waiting = false;
                    self.send_entries(place, outputs);
                }
            }
        }
    }

    /// The first entry that some member which is heard still needs from this leader's log, within
    /// what the log has: what to keep, if there is room. A snapshot on its way needs what is
    /// behind it.
    #[must_use]
    pub fn needed_from(&self) -> LogIndex {
        let last = self.last().index;
        let mut needed = last.next();
        if self.role == Role::Leader {
            for peer in &self.peers {
                let heard = self.now_ms.saturating_sub(peer.heard_ms) < self.timing.election_ms;
                let from = match peer.state {
                    State::Snapshot(sending) => sending.snapshot.last.index.next(),
                    _ => peer.matched.next(),
                };
                if heard {
                    needed = needed.min(from);
                }
            }
        }
        needed.max(self.log.base().index.next())
    }

    /// Whether a snapshot is on its way to a peer: its file is still read.
    #[must_use]
    pub fn sends_snapshot(&self, snapshot: &Snapshot) -> bool {
        self.role == Role::Leader
            && self.peers.iter().any(|peer| {
                matches!(peer.state, State::Snapshot(sending) if sending.snapshot == *snapshot)
            })
    }

    pub(super) fn peer_needs_snapshot(&mut self, from: NodeId, outputs: &mut Vec<Output>) {
        if let Some(place) = self.heard_from(from)
            && !matches!(self.peers[place].state, State::Snapshot(_))
        {
            self.begin_snapshot(place, outputs);
        }
    }

    /// A peer needs what the log has no more.
    pub(super) fn begin_snapshot(&mut self, place: usize, outputs: &mut Vec<Output>) {
        let base = self.log.base().index;
        let usable = self.snapshot.filter(|snapshot| snapshot.last.index >= base);
        let Some(snapshot) = usable else {
            self.peers[place].state = State::Probe { waiting: true };
            if !self.snapshot_wanted {
                self.snapshot_wanted = true;
                outputs.push(Output::SnapshotWanted);
            }
            return;
        };
        let Some(entry) = self.configs.at(snapshot.last.index) else {
            unreachable!("the configuration of the newest snapshot is kept");
        };
        self.peers[place].state = State::Snapshot(Sending {
            snapshot,
            config: *entry,
            offset: 0,
            moved_ms: self.now_ms,
        });
        self.send_chunk(place, outputs);
    }

    /// Sends the next chunk; once all are sent, asks how far the peer is.
    pub(super) fn send_chunk(&mut self, place: usize, outputs: &mut Vec<Output>) {
        let now_ms = self.now_ms;
        let peer = &mut self.peers[place];
        let State::Snapshot(sending) = &mut peer.state else {
            return;
        };
        sending.moved_ms = now_ms;
        let Sending {
            snapshot,
            config,
            offset,
            ..
        } = *sending;
        let left = snapshot.bytes - offset;
        let bytes = left.min(u64::from(SNAPSHOT_CHUNK_BYTES)) as u32;
        let to = peer.id;
        let body = Body::SnapshotChunk {
            snapshot,
            config,
            offset,
            bytes,
        };
        self.send(to, body, outputs);
    }

    pub(super) fn snapshot_answered(
        &mut self,
        from: NodeId,
        snapshot: Snapshot,
        next_offset: u64,
        outputs: &mut Vec<Output>,
    ) {
        let now_ms = self.now_ms;
        let Some(place) = self.heard_from(from) else {
            return;
        };
        let State::Snapshot(sending) = &mut self.peers[place].state else {
            return;
        };
        if sending.snapshot != snapshot || next_offset > snapshot.bytes {
            return;
        }
        let moved = sending.offset != next_offset;
        sending.offset = next_offset;
        sending.moved_ms = now_ms;
        // Once it has all, it installs, and says so when it has.
        if moved && next_offset < snapshot.bytes {
            self.send_chunk(place, outputs);
        }
    }
}
