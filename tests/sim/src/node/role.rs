//! The consensus role: proposals in, committed commands out, and everything in between.

mod applying;
mod outputs;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ticketing::lanes::owner_of;
use ticketing::locks::{Fate, key_hash};
use ticketing_raftlog::raft::{
    ConfigEntry, Core, EntryId, Input, Output, Role, Slot, Start, StartError,
};
use ticketing_raftlog::{LogIndex, NodeId, Position, Term};

use super::bugs::ShellBug;
use super::fates::Fates;
use super::journal::{Journal, Payload};
use super::messages::{Effect, PeerFrame, SnapshotFile, ToRole, ToShard};

/// Most commands in one proposal.
pub const PROPOSAL_ENTRIES_MAX: usize = 64;
/// The shard of proposals that no shard made.
pub(super) const NO_SHARD: u16 = u16::MAX;
/// In front of what is held in a snapshot: its last index and term.
const SNAPSHOT_HEADER_BYTES: usize = 16;

/// What a consensus role starts with.
pub struct RoleSetup {
    /// What the core starts from.
    pub start: Start,
    /// How many shards the node has.
    pub shards: usize,
    /// Seed of the hash that spreads keys; the node's own.
    pub key_seed: u64,
    /// A snapshot is made each time that many entries were applied.
    pub snapshot_every: u64,
    /// The state at each multiple of this index is compared between nodes.
    pub hash_every: u64,
    /// The newest snapshot.
    pub snapshot: Option<SnapshotFile>,
    /// A mistake to make.
    pub bug: Option<ShellBug>,
}

struct Proposal {
    shard: u16,
    term: Term,
    unit: Vec<Payload>,
}

struct Cutting {
    last: EntryId,
    config: ConfigEntry,
    position: Position,
    parts: BTreeMap<u16, Vec<u8>>,
}

/// The consensus role of one node.
pub struct Consensus {
    core: Core,
    node_id: NodeId,
    outputs: Vec<Output>,
    shards: usize,
    key_seed: u64,
    snapshot_every: u64,
    hash_every: u64,
    bug: Option<ShellBug>,

    queue: VecDeque<Proposal>,
    fates: Fates,
    /// The next index to hand out.
    cursor: LogIndex,
    leading: Option<Term>,
    ready: bool,
    /// Where each shard has to come before the node is ready, and which have.
    reached: Vec<LogIndex>,
    sums: BTreeMap<LogIndex, Vec<u128>>,
    confirms: BTreeMap<u64, (u16, u64)>,
    confirmed: u64,
    cutting: Option<Cutting>,
    saving: bool,
    /// A peer needs a snapshot: one is made as soon as there is something new to put in.
    snapshot_wanted: bool,
    snapshots: VecDeque<SnapshotFile>,
    staged: Vec<u8>,
    quiet: usize,
    stop: Stop,
    /// The newest configuration that this node knows committed.
    committed: ConfigEntry,
    /// One of those that it knew committed had this node.
    was_member: bool,
    /// The committed one has it no more: it ends once it does not lead.
    leaving: bool,
    /// The slot of the leader that the shards were told.
    told_slot: Option<Slot>,
    /// Whether this node's disk has room, and whether the shards take it that acquires have some.
    has_room: bool,
    told_room: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    Draining,
    HandingOver,
    Over,
}

/// What an append's payloads come from.
#[derive(Default)]
struct Payloads {
    received: Vec<Payload>,
    chunk: Option<Rc<[u8]>>,
    own: Vec<(u16, Payload)>,
}

impl Consensus {
    /// A follower; every shard is told to restore the snapshot, if there is one.
    ///
    /// # Errors
    /// When the core's state is not one node's.
    pub fn new(setup: RoleSetup, effects: &mut Vec<Effect>) -> Result<Self, StartError> {
        let base = setup.start.base.index;
        let first = setup
            .snapshot
            .as_ref()
            .map_or(base, |file| file.snapshot.last.index);
        let node_id = setup.start.node_id;
        let core = Core::new(setup.start)?;
        let Some(committed) = core.config_at(first) else {
            unreachable!("what the log goes on behind has a configuration");
        };
        let mut role = Self {
            core,
            node_id,
            outputs: Vec::new(),
            shards: setup.shards,
            key_seed: setup.key_seed,
            snapshot_every: setup.snapshot_every,
            hash_every: setup.hash_every,
            bug: setup.bug,
            queue: VecDeque::new(),
            fates: Fates::default(),
            cursor: first.next(),
            leading: None,
            ready: false,
            reached: vec![LogIndex(0); setup.shards],
            sums: BTreeMap::new(),
            confirms: BTreeMap::new(),
            confirmed: 0,
            cutting: None,
            saving: false,
            snapshot_wanted: false,
            snapshots: VecDeque::new(),
            staged: Vec::new(),
            quiet: 0,
            stop: Stop::No,
            committed,
            was_member: committed.config.is_member(node_id),
            leaving: false,
            told_slot: None,
            has_room: true,
            told_room: true,
        };
        if let Some(file) = setup.snapshot {
            role.restore(&file, effects);
            role.snapshots.push_back(file);
        }
        Ok(role)
    }

    /// The core, to look at.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The last index handed to the shards.
    #[must_use]
    pub fn handed_out(&self) -> LogIndex {
        self.cursor.previous()
    }

    /// Whether this node serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// The newest configuration that this node knows committed.
    #[must_use]
    pub fn committed_config(&self) -> ConfigEntry {
        self.committed
    }

    /// The slot whose address this node opens to clients: that of a voter once it knows its
    /// configuration committed, and of a replaced one until it ends.
    #[must_use]
    pub fn slot(&self) -> Option<Slot> {
        if self.bug == Some(ShellBug::NewcomerServesEarly) {
            return self.core.config().config.slot_of(self.node_id);
        }
        let voters = self.committed.config.voters();
        let place = voters.iter().position(|voter| *voter == self.node_id);
        place.map(|place| Slot(place as u8))
    }

    /// Something that concerns the core alone: time, disks, connections.
    pub fn input(&mut self, input: Input, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        if let Input::DiskRoom { has_room } = input {
            self.has_room = has_room;
        }
        self.step(input, &mut Payloads::default(), journal, effects);
        self.pump(journal, effects);
    }

    /// There is no room for the log's next segment: a snapshot may let one be used again.
    pub fn make_room(&mut self, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        self.snapshot_wanted = true;
        self.cut(journal, effects);
    }

    /// There was no room for a snapshot.
    pub fn snapshot_failed(
        &mut self,
        file: &SnapshotFile,
        installed: bool,
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        self.saving = false;
        if installed {
            let input = Input::SnapshotInstalled {
                snapshot: file.snapshot,
                valid: false,
            };
            self.input(input, journal, effects);
        }
    }

    /// A peer's frame.
    pub fn frame(
        &mut self,
        from: NodeId,
        peer: u32,
        frame: PeerFrame,
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        match frame {
            PeerFrame::Raft {
                message,
                payloads,
                chunk,
            } => {
                let mut source = Payloads {
                    received: payloads,
                    chunk: Some(chunk),
                    own: Vec::new(),
                };
                self.step(
                    Input::Received { from, message },
                    &mut source,
                    journal,
                    effects,
                );
                self.pump(journal, effects);
            }
            PeerFrame::Ready { term } => {
                let slot = self.slot_of_leader(Some(from));
                if term == self.core.term()
                    && self.core.leader() == Some(from)
                    && let Some(slot) = slot
                {
                    self.tell_all(&ToShard::LeaderReady(slot.0), effects);
                }
            }
            PeerFrame::ReleaseAsked { key, token } => {
                if self.ready {
                    let shard = owner_of(key_hash(self.key_seed, &key), self.shards);
                    effects.push(Effect::ToShard(
                        shard,
                        ToShard::PeerRelease(peer, key, token),
                    ));
                }
            }
            PeerFrame::ReleaseDone { token } => {
                self.tell_all(&ToShard::OrphanDone(token), effects);
            }
        }
    }

    /// A shard's message. `peers` are the nodes by the numbers that [`Consensus::frame`] was given.
    pub fn take(
        &mut self,
        message: ToRole,
        peers: &[NodeId],
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        match message {
            ToRole::Proposals(shard, term, units) => {
                for unit in units {
                    self.queue.push_back(Proposal { shard, term, unit });
                }
                self.pump(journal, effects);
            }
            ToRole::Reached(shard, index, sum) => self.reached(shard, index, sum, effects),
            ToRole::Part(shard, index, bytes) => self.part(shard, index, bytes, effects),
            ToRole::Confirm(shard, request) => {
                self.confirmed += 1;
                let request_of_core = self.confirmed;
                self.confirms.insert(request_of_core, (shard, request));
                let input = Input::Confirm {
                    request: request_of_core,
                };
                self.input(input, journal, effects);
            }
            ToRole::Orphan(key, token) => {
                if let Some(leader) = self.core.leader() {
                    effects.push(Effect::Send(leader, PeerFrame::ReleaseAsked { key, token }));
                }
            }
            ToRole::PeerReleased(peer, token) => {
                if let Some(&peer) = peers.get(peer as usize) {
                    effects.push(Effect::Send(peer, PeerFrame::ReleaseDone { token }));
                }
            }
            ToRole::Quiet(_) => {
                self.quiet += 1;
                self.go_on_stopping(journal, effects);
            }
        }
    }

    /// A command comes that no shard has proposed, and nobody waits for.
    pub fn propose_late(
        &mut self,
        payload: Payload,
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(term) = self.leading {
            self.queue.push_back(Proposal {
                shard: NO_SHARD,
                term,
                unit: vec![payload],
            });
            self.pump(journal, effects);
        }
    }

    /// A planned stop: what is in the log finishes, then leadership is handed over.
    pub fn stop(&mut self, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        self.stop = Stop::Draining;
        self.step(
            Input::FitToLead { fit: false },
            &mut Payloads::default(),
            journal,
            effects,
        );
        self.tell_all(&ToShard::Stop, effects);
    }

    /// A snapshot is written and synced.
    pub fn snapshot_saved(
        &mut self,
        file: SnapshotFile,
        installed: bool,
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        self.saving = false;
        let snapshot = file.snapshot;
        self.snapshots.push_back(file.clone());
        // The newest stays, and what is on its way to a peer until it is there.
        let core = &self.core;
        self.snapshots
            .retain(|file| file.snapshot == snapshot || core.sends_snapshot(&file.snapshot));
        if installed {
            let last = snapshot.last;
            let mut decided = Vec::new();
            self.fates
                .covered(last.index, last.term, |pending, dropped| {
                    decided.push((pending, dropped));
                });
            for (pending, dropped) in decided {
                let to = match (dropped, self.bug) {
                    (false, Some(ShellBug::AcquiredFromSnapshot)) => {
                        ToShard::TakenAsGranted(pending.index, pending.payload)
                    }
                    (true, _) => ToShard::Dropped(pending.payload, Fate::Dropped),
                    (false, _) => ToShard::Dropped(pending.payload, Fate::Unknown),
                };
                effects.push(Effect::ToShard(pending.shard, to));
            }
            if last.index >= self.cursor {
                self.cutting = None;
                self.restore(&file, effects);
                self.cursor = last.index.next();
            }
            let input = Input::SnapshotInstalled {
                snapshot,
                valid: true,
            };
            self.input(input, journal, effects);
        } else {
            journal.compact(snapshot.last);
            let input = Input::Compacted {
                snapshot,
                first_index: journal.first_index(),
            };
            self.input(input, journal, effects);
        }
    }

    fn step(
        &mut self,
        input: Input,
        source: &mut Payloads,
        journal: &mut impl Journal,
        effects: &mut Vec<Effect>,
    ) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut outputs = std::mem::take(&mut self.outputs);
            self.core.step(input, &mut outputs);
            for output in outputs.drain(..) {
                self.carry_out(output, source, &mut inputs, journal, effects);
            }
            self.outputs = outputs;
        }
        self.fan_out(journal, effects);
        if self.leaving && self.core.role() != Role::Leader {
            self.leaving = false;
            effects.push(Effect::Replaced);
        }
        let room = self.has_room && self.core.quorum_has_room();
        if room != self.told_room {
            self.told_room = room;
            self.tell_all(&ToShard::Room(room), effects);
        }
    }

    /// Appends what waits, or hands back what was proposed under a leadership that is over.
    fn pump(&mut self, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        loop {
            while let Some(first) = self.queue.front() {
                if Some(first.term) == self.leading {
                    break;
                }
                let Some(stale) = self.queue.pop_front() else {
                    break;
                };
                if stale.shard == NO_SHARD {
                    continue;
                }
                for payload in stale.unit {
                    let dropped = ToShard::Dropped(payload, Fate::Dropped);
                    effects.push(Effect::ToShard(stale.shard, dropped));
                }
            }
            let mut source = Payloads::default();
            let mut units = 0;
            let mut bytes = 0;
            for proposal in &self.queue {
                if Some(proposal.term) != self.leading
                    || source.own.len() + proposal.unit.len() > PROPOSAL_ENTRIES_MAX
                {
                    break;
                }
                units += 1;
                for payload in &proposal.unit {
                    bytes += payload.len() as u64;
                    source.own.push((proposal.shard, payload.clone()));
                }
            }
            if units == 0 {
                return;
            }
            let count = source.own.len() as u32;
            self.step(
                Input::Propose { count, bytes },
                &mut source,
                journal,
                effects,
            );
            if !source.own.is_empty() {
                return;
            }
            self.queue.drain(..units);
        }
    }

    fn go_on_stopping(&mut self, journal: &mut impl Journal, effects: &mut Vec<Effect>) {
        if self.stop == Stop::Draining && self.quiet == self.shards {
            self.stop = Stop::HandingOver;
            let transfer = Input::Transfer { to: None };
            self.input(transfer, journal, effects);
        }
    }

    fn tell_all(&self, message: &ToShard, effects: &mut Vec<Effect>) {
        for shard in 0..self.shards {
            effects.push(Effect::ToShard(shard as u16, message.clone()));
        }
    }
}
