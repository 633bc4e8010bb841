//! The other nodes: what they say, what they are told, and what this node knows of itself among them.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use ticketing_protocol::peer::Body as WireBody;
use ticketing_raftlog::peers::{Outcome, Reason, Standing};
use ticketing_raftlog::raft::{
    Body, Config, ConfigEntry, Core, EntryId, Extent, ExtentKind, Input, Message, Start, Timing,
};
use ticketing_raftlog::{
    ClusterId, Log, LogIndex, NodeId, PeersFile, RecordKind, SnapshotReader, Term,
};

use crate::cluster_view::ClusterView;
use crate::fatal::Fatal;
use crate::lanes::messages::{FromConsensus, Lead};
use crate::limits::{FIT_TO_LEAD_AFTER_MS, PEER_EVENTS_PER_TURN};
use crate::locks::Fate;
use crate::peers::{self, Event, Known, Peers, Received};

use super::Setup;
use super::fates::{Fates, Pending};
use super::hashes::Hashes;
use super::install::{Incoming, Sending, identity_of};
use super::operators::Orders;
use super::role::Role;
use super::stopping::Stop;

/// What a node of a cluster is given at its start.
#[derive(Debug)]
pub struct ClusterSetup {
    /// Its place.
    pub slot: u8,
    /// Its connections.
    pub peers: peers::Setup,
    /// What is remembered of other nodes.
    pub file: PeersFile,
    /// The configurations that the core starts from.
    pub configs: Vec<ConfigEntry>,
    /// Seed of the core's jitter.
    pub seed: u64,
    /// How long things take.
    pub timing: Timing,
    /// Where it publishes what it knows of the cluster.
    pub view: Arc<ClusterView>,
}

/// What the role keeps about the cluster.
pub(super) struct Cluster {
    pub(super) peers: Peers,
    pub(super) fates: Fates,
    pub(super) sending: Sending,
    pub(super) incoming: Incoming,
    pub(super) slot: u8,
    pub(super) folder: PathBuf,
    pub(super) cluster_id: ClusterId,
    pub(super) view: Arc<ClusterView>,
    // When, and what of it is news at once.
    pub(super) published: (u64, (bool, Option<u8>)),
    pub(super) orders: Orders,
    pub(super) hashes: Hashes,
    standing: Standing,
    confirms: BTreeMap<u64, (u16, u64)>,
    next_confirm: u64,
    // Confirmed; the answer goes out behind what was committed by then.
    confirmed: VecDeque<(LogIndex, u16, u64)>,
    committed: Config,
    listening_since_ms: Option<u64>,
    is_fit: bool,
    told_room: bool,
}

impl ClusterSetup {
    /// What the core starts from.
    pub(super) fn start(&self, setup: &Setup) -> Start {
        let index = setup.log.index();
        Start {
            node_id: setup.node_id,
            hard_state: setup.hard_state,
            base: EntryId {
                term: index.base_term(),
                index: index.base(),
            },
            extents: extents(&setup.log),
            snapshot: setup.snapshot.as_ref().map(identity_of),
            configs: self.configs.clone(),
            timing: self.timing,
            seed: self.seed,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }
}

/// The log's entries as the core wants them.
fn extents(log: &Log) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    let mut encoded = Vec::new();
    for location in log.batches() {
        // One run at most goes over from batch to batch in no extent.
        let mut in_batch = false;
        for (_, record) in location.entries() {
            let kind = match record.kind {
                RecordKind::Noop => ExtentKind::Noop,
                RecordKind::Config => ExtentKind::Config,
                _ => ExtentKind::Commands,
            };
            encoded.clear();
            record.encode(&mut encoded);
            let bytes = encoded.len() as u64;
            match extents.last_mut() {
                Some(last)
                    if in_batch
                        && kind == ExtentKind::Commands
                        && last.kind == kind
                        && last.term == record.term =>
                {
                    last.last_index = record.index;
                    last.bytes += bytes;
                }
                _ => extents.push(Extent {
                    last_index: record.index,
                    term: record.term,
                    bytes,
                    kind,
                }),
            }
            in_batch = true;
        }
    }
    extents
}

impl Cluster {
    /// Listens for the other nodes and dials them.
    pub(super) fn start_with(
        setup: ClusterSetup,
        core: &Core,
        snapshot: Option<&SnapshotReader>,
    ) -> Self {
        let known = known(core);
        let node_id = setup.peers.node_id;
        let cluster_id = setup.peers.cluster_id;
        let listen = setup.peers.listen;
        let folder = setup.peers.folder.clone();
        let peers = Peers::start(setup.peers, known, setup.file).unwrap_or_else(|error| {
            Fatal::Listen.exit(format_args!(
                "cannot listen for the other nodes on {listen}: {error}; is another program using it?"
            ))
        });
        Self {
            peers,
            fates: Fates::default(),
            sending: Sending::new(snapshot),
            incoming: Incoming::default(),
            slot: setup.slot,
            folder,
            cluster_id,
            view: setup.view,
            published: (0, (false, None)),
            orders: Orders::default(),
            hashes: Hashes::default(),
            standing: Standing::new(node_id),
            confirms: BTreeMap::new(),
            next_confirm: 0,
            confirmed: VecDeque::new(),
            committed: core
                .config_at(core.commit())
                .map_or(Config::unknown(), |entry| entry.config),
            listening_since_ms: None,
            is_fit: false,
            told_room: true,
        }
    }
}

fn known(core: &Core) -> Known {
    let last = core.last_index();
    Known {
        config: core.config().config,
        leads: core.role() == ticketing_raftlog::raft::Role::Leader,
        term: core.term(),
        last: EntryId {
            term: core.term_at(last).unwrap_or_default(),
            index: last,
        },
    }
}

impl Role {
    /// Takes in what the other nodes have said.
    pub(super) fn take_events(&mut self, now_ms: u64) {
        for _ in 0..PEER_EVENTS_PER_TURN {
            let Some(cluster) = &self.cluster else {
                return;
            };
            let Some(event) = cluster.peers.next_event() else {
                return;
            };
            match event {
                Event::Connected(peer) => {
                    tracing::info!(?peer, "connected");
                    self.step(Input::PeerConnected { peer });
                    if self.ready
                        && let Some(term) = self.leading
                    {
                        self.send_wire(peer, term, WireBody::Ready);
                    }
                }
                Event::Lost(peer) => {
                    tracing::info!(?peer, "connection lost");
                    self.step(Input::PeerLost { peer });
                }
                Event::Refused(peer) => self.step(Input::PeerRefused { peer }),
                Event::Frame(from, received) => self.take_frame(from, received, now_ms),
                Event::Welcome(by) => {
                    if let Some(cluster) = &mut self.cluster {
                        cluster.standing.let_in(by);
                    }
                }
                Event::Unwelcome(by, reason) => self.unwelcome(by, reason, now_ms),
            }
        }
        // More waits: look again behind what else there is.
        self.doorbell.ring();
    }

    fn take_frame(&mut self, from: NodeId, received: Received, now_ms: u64) {
        match received {
            Received::Raft { message, bytes } => {
                self.note_acknowledgement(from, &message, now_ms);
                self.received = bytes;
                self.step(Input::Received { from, message });
                self.received = Vec::new();
            }
            Received::Ready { term } => {
                let slot = self.core.config().config.slot_of(from);
                if term == self.core.term()
                    && self.core.leader() == Some(from)
                    && let Some(slot) = slot
                {
                    self.fan_out.tell_all(|| FromConsensus::LeaderReady(slot.0));
                }
            }
            Received::Release { number, token, key } => {
                if self.ready {
                    self.fan_out
                        .tell_owner(&key, |key| FromConsensus::PeerRelease {
                            peer: from,
                            number,
                            key: key.to_vec(),
                            token,
                        });
                }
            }
            Received::ReleaseAnswer { number } => {
                self.fan_out
                    .tell_all(|| FromConsensus::OrphanDone { token: number });
            }
            Received::StateHash { index, hash } => self.hash_told(from, index, hash),
        }
    }

    /// Remembers what a follower has on its disk.
    fn note_acknowledgement(&self, from: NodeId, message: &Message, now_ms: u64) {
        if let (Some(cluster), Some(term), Body::Matched { up_to }) =
            (&self.cluster, self.leading, message.body)
            && message.term == term
        {
            let commit = self.core.commit();
            cluster
                .peers
                .acknowledged(from, term, up_to, commit, now_ms);
        }
    }

    fn unwelcome(&mut self, by: NodeId, reason: Reason, now_ms: u64) {
        let config = self.core.config().config;
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        cluster.standing.refused(&config, by, reason, now_ms);
        if let Outcome::Exit(reason) = cluster.standing.outcome(&config) {
            match reason {
                // Which of the two processes has the folder that counts is not known: it may be this one's.
                Reason::RunsTwice => Fatal::Unwelcome.exit(reason),
                Reason::Replaced => Fatal::Replaced.retire(&cluster.folder, reason),
                _ => Fatal::Unwelcome.retire(&cluster.folder, reason),
            }
        }
        if reason == Reason::Replaced && self.core.leader().is_none() && !self.signals.shut() {
            tracing::warn!(
                %by,
                "a node says that this one was replaced, and too few say so to be sure: clients are sent \
                 away until this node hears a leader"
            );
            self.signals.set_shut(true);
            self.fan_out
                .tell_all(|| FromConsensus::Lead(Lead::Follows(None)));
        }
    }

    /// Sends a message of the core's, with the bytes that belong to it.
    pub(super) fn send(&mut self, to: NodeId, message: &Message) {
        let Some(cluster) = &self.cluster else {
            unreachable!("a single node sends nothing");
        };
        if !cluster.peers.is_connected(to) {
            return;
        }
        let (mut bytes, mut config) = (Vec::new(), Vec::new());
        if self.bytes_of(message, &mut bytes).is_some() {
            let body = peers::body(message, &bytes, &mut config);
            cluster.peers.send(to, message.term, body);
        }
    }

    pub(super) fn send_wire(&self, to: NodeId, term: Term, body: WireBody<'_>) {
        if let Some(cluster) = &self.cluster {
            cluster.peers.send(to, term, body);
        }
    }

    /// Tells the other nodes, and the own clients, that this node serves.
    pub(super) fn tell_ready(&mut self, term: Term) {
        let Some(cluster) = &self.cluster else {
            return;
        };
        let slot = cluster.slot;
        for member in self.core.config().config.members() {
            self.send_wire(member, term, WireBody::Ready);
        }
        self.fan_out.tell_all(|| FromConsensus::LeaderReady(slot));
    }

    /// Keeps the commands of a leadership that is over, until it is known what became of them.
    pub(super) fn capture_fates(&mut self) {
        let (Some(cluster), Some(term)) = (&mut self.cluster, self.leading) else {
            return;
        };
        let first = self.fan_out.next();
        // Not the core's: that is ahead of what is being carried out.
        let last = self.last;
        let mut next = first;
        while next <= last {
            let read = self.tail.read(&self.log, next, 1, |record| {
                if record.term == term && record.kind == RecordKind::Command {
                    cluster.fates.open(Pending {
                        index: record.index,
                        term,
                        payload: record.payload.to_vec(),
                    });
                }
            });
            if !read {
                break;
            }
            next = next.next();
        }
        self.leading = None;
    }

    /// Tells the shards what became of commands of a leadership that is over.
    pub(super) fn tell_fates(&mut self, decided: Vec<(Pending, Fate)>) {
        for (pending, fate) in decided {
            let Ok(command) = crate::locks::Command::decode(&pending.payload) else {
                unreachable!("it was encoded by a shard of this node");
            };
            self.fan_out
                .tell_owner(command.key(), |_| FromConsensus::Dropped {
                    commands: vec![pending.payload.clone()],
                    fate,
                });
        }
    }

    pub(super) fn confirm(&mut self, shard: u16, request: u64) {
        let Some(cluster) = &mut self.cluster else {
            unreachable!("a single node confirms nothing");
        };
        cluster.next_confirm += 1;
        let name = cluster.next_confirm;
        cluster.confirms.insert(name, (shard, request));
        self.step(Input::Confirm { request: name });
    }

    pub(super) fn confirmed(&mut self, name: u64, index: Option<LogIndex>) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let Some((shard, request)) = cluster.confirms.remove(&name) else {
            return;
        };
        match index {
            Some(index) => cluster.confirmed.push_back((index, shard, request)),
            None => {
                let leads = false;
                self.fan_out
                    .tell(shard, FromConsensus::Confirmed { request, leads });
            }
        }
    }

    pub(super) fn ask_to_release(&mut self, key: &[u8], token: u64) {
        if let Some(leader) = self.core.leader() {
            let number = token;
            self.send_wire(
                leader,
                self.core.term(),
                WireBody::Release { number, token, key },
            );
        }
    }

    pub(super) fn tell_released(&mut self, peer: NodeId, number: u64) {
        self.send_wire(peer, self.core.term(), WireBody::ReleaseAnswer { number });
    }

    pub(super) fn config_committed(&mut self, config: Config) {
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        let before = std::mem::replace(&mut cluster.committed, config);
        cluster.peers.committed(before, config);
        if before.is_member(self.node_id) && !config.is_member(self.node_id) {
            Fatal::Replaced.retire(
                &cluster.folder,
                "this node was replaced by another one; its data folder can be removed",
            );
        }
    }

    /// What is to be done now and then among the others.
    pub(super) fn pump_cluster(&mut self, now_ms: u64) {
        let handed_out = self.fan_out.next();
        let known = known(&self.core);
        let room = self.core.quorum_has_room();
        let Some(cluster) = &mut self.cluster else {
            return;
        };
        cluster.peers.know(known);
        while let Some(&(index, shard, request)) = cluster.confirmed.front() {
            if handed_out <= index {
                break;
            }
            cluster.confirmed.pop_front();
            let leads = true;
            self.fan_out
                .tell(shard, FromConsensus::Confirmed { request, leads });
        }
        // As soon as there is an answer, be it where the leader is, or that none is known.
        // Not who is only about to take a place: that one's clients may still be with the old node.
        let is_voter = cluster.committed.voters().contains(&self.node_id);
        if cluster.listening_since_ms.is_none() && is_voter && self.restore.is_none() {
            cluster.listening_since_ms = Some(now_ms);
            self.signals.want_port();
        }
        let told_room = std::mem::replace(&mut cluster.told_room, room);
        let since = cluster.listening_since_ms;
        let fit = !self.signals.stop_asked()
            && !cluster.orders.drained
            && since.is_some_and(|since_ms| now_ms >= since_ms + FIT_TO_LEAD_AFTER_MS);
        let was_fit = std::mem::replace(&mut cluster.is_fit, fit);
        if told_room != room {
            self.tell_room();
        }
        if was_fit != fit {
            self.step(Input::FitToLead { fit });
        }
    }

    /// The log is going to be closed: nothing more is said or heard.
    pub(super) fn leave_cluster(&mut self) {
        debug_assert_ne!(self.stop, Stop::Serving);
        if let Some(cluster) = &self.cluster {
            cluster.peers.end();
        }
    }
}
