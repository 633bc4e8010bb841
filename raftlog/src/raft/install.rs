//! Snapshots on the follower's side (paper, section 7): chunk by chunk, from where it left off.

use super::config::{Config, ConfigEntry};
use super::core::Core;
use super::message::{Body, Snapshot};
use super::types::{Output, Role};
use crate::limits::{MAX_PEER_INDEX, SNAPSHOT_CHUNK_BYTES};
use crate::types::NodeId;

/// A snapshot being received.
#[derive(Debug)]
pub(super) struct Incoming {
    snapshot: Snapshot,
    config: ConfigEntry,
    /// The next byte to store.
    stored: u64,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The next chunk is waited for.
    Receiving,
    /// A chunk is being stored.
    Storing,
    /// All is stored, and is being made the node's state.
    Installing,
}

impl Core {
    /// Whether the log is about to be replaced by a snapshot: it stays as it is until then.
    pub(super) fn is_installing(&self) -> bool {
        let step = self.incoming.as_ref().map(|incoming| incoming.step);
        step == Some(Step::Installing)
    }

    pub(super) fn take_chunk(
        &mut self,
        from: NodeId,
        snapshot: Snapshot,
        config: ConfigEntry,
        offset: u64,
        bytes: u32,
        outputs: &mut Vec<Output>,
    ) {
        let last = snapshot.last;
        let sound = bytes <= SNAPSHOT_CHUNK_BYTES
            && offset
                .checked_add(u64::from(bytes))
                .is_some_and(|end| end <= snapshot.bytes)
            && snapshot.bytes > 0
            && last.index.0 < MAX_PEER_INDEX
            && last.term <= self.hard.term
            && config.index <= last.index
            && config.config != Config::unknown();
        if !sound {
            return;
        }
        if !self.is_installing() && (last.index <= self.commit || self.log.has(last)) {
            // Nothing in it is new, and all of it is committed.
            self.verified = self.verified.max(last.index);
            self.commit_up_to(last.index, outputs);
            self.acknowledgement_due = true;
            return self.acknowledge(outputs);
        }
        let fresh = Incoming {
            snapshot,
            config,
            stored: 0,
            step: Step::Receiving,
        };
        let incoming = match &mut self.incoming {
            Some(incoming) if incoming.snapshot == snapshot => incoming,
            Some(incoming) if incoming.step == Step::Installing => return,
            other => other.insert(fresh),
        };
        if incoming.step == Step::Storing {
            return;
        }
        if incoming.step == Step::Receiving && offset == incoming.stored && bytes > 0 {
            incoming.step = Step::Storing;
            return outputs.push(Output::StoreSnapshotChunk {
                snapshot,
                offset,
                bytes,
            });
        }
        let next_offset = incoming.stored;
        let body = Body::SnapshotAnswer {
            snapshot,
            next_offset,
        };
        self.send(from, body, outputs);
    }

    pub(super) fn chunk_stored(
        &mut self,
        snapshot: Snapshot,
        next_offset: u64,
        outputs: &mut Vec<Output>,
    ) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        if incoming.snapshot != snapshot || incoming.step != Step::Storing {
            return;
        }
        assert!(
            next_offset > incoming.stored && next_offset <= snapshot.bytes,
            "{next_offset} bytes of a snapshot of {} stored, after {}",
            snapshot.bytes,
            incoming.stored
        );
        incoming.stored = next_offset;
        incoming.step = Step::Receiving;
        self.answer_leader(snapshot, next_offset, outputs);
        self.begin_install(outputs);
    }

    /// Installs a snapshot that is all there, once the term is persisted: a snapshot of a term
    /// that the node has forgotten would not be its own.
    pub(super) fn begin_install(&mut self, outputs: &mut Vec<Output>) {
        let Some(incoming) = &mut self.incoming else {
            return;
        };
        let snapshot = incoming.snapshot;
        let whole = incoming.stored == snapshot.bytes && incoming.step == Step::Receiving;
        if !whole || !self.hard_persisted {
            return;
        }
        if snapshot.last.index <= self.commit || self.log.has(snapshot.last) {
            // The log got there first.
            self.incoming = None;
            return;
        }
        incoming.step = Step::Installing;
        let config = incoming.config;
        outputs.push(Output::InstallSnapshot { snapshot, config });
    }

    pub(super) fn snapshot_installed(
        &mut self,
        snapshot: Snapshot,
        valid: bool,
        outputs: &mut Vec<Output>,
    ) {
        let installing = self.is_installing();
        let this = self
            .incoming
            .take_if(|incoming| incoming.snapshot == snapshot);
        let Some(incoming) = this.filter(|_| installing) else {
            return;
        };
        if !valid {
            return self.answer_leader(snapshot, 0, outputs);
        }
        let last = snapshot.last;
        self.tell_role(outputs);
        self.epoch.0 += 1;
        self.log.reset(last);
        self.snapshot = Some(snapshot);
        self.persisted = last.index;
        self.commit = last.index;
        self.verified = last.index;
        outputs.push(Output::Reset {
            index: last.index,
            term: last.term,
            epoch: self.epoch,
        });
        self.configs.reset(incoming.config);
        self.configs_known(last.index);
        self.tell_config(outputs);
        self.disk_moved();
        self.acknowledgement_due = true;
        self.acknowledge(outputs);
    }

    fn answer_leader(&self, snapshot: Snapshot, next_offset: u64, outputs: &mut Vec<Output>) {
        if let Some(leader) = self.leader
            && self.role == Role::Follower
        {
            let body = Body::SnapshotAnswer {
                snapshot,
                next_offset,
            };
            self.send(leader, body, outputs);
        }
    }
}
