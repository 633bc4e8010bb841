//! Requests while leadership is elsewhere, on its way, or lost (`docs/raft.md`); of a single node only that
//! it serves.

use std::collections::{BTreeMap, VecDeque};

use ticketing_protocol::reply::{ErrorCode, Reply};
use ticketing_raftlog::{NodeId, Term};

use crate::lanes::messages::{Lead, ToConsensus};
use crate::limits::{ORPHAN_RETRY_MS, ORPHANS_MOST, PARKED_MOST, PARKED_MS};
use crate::locks::limits::RELEASE_ANSWER_MS;
use crate::locks::{Answer, Command, Fate, Origin, Orphan};

use super::state::{ConnectionRef, Shard};

/// Origin of releases that a peer asked for.
const PEER: u16 = u16::MAX;
/// Origin of releases of this node's own orphans.
const OWN_ORPHAN: u16 = u16::MAX - 1;

/// What is asked for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Acquire { wait_s: u8, lease_s: u8 },
    Release { token: u64 },
}

/// One request for a key of this shard's.
#[derive(Clone, Debug)]
struct Request {
    origin: Origin,
    arrived_ms: u64,
    key_hash: u64,
    key: Box<[u8]>,
    asked: Asked,
}

/// A release that waits for the confirmation that this node leads.
#[derive(Debug)]
struct Confirming {
    origin: Origin,
    arrived_ms: u64,
    key_hash: u64,
    key: Box<[u8]>,
    token: u64,
}

#[derive(Debug)]
struct Asking {
    orphan: Orphan,
    at_ms: u64,
}

/// Where the node stands, and what waits for that to change.
#[derive(Debug)]
pub(super) struct Leadership {
    lead: Lead,
    is_cluster: bool,
    // Wait for the leader that this node is about to be, or for the one it hands over to.
    parked: VecDeque<Request>,
    confirming: BTreeMap<u64, Confirming>,
    confirms: u64,
    orphans: VecDeque<Asking>,
    // Peers that asked for releases, by the number in the origins.
    peers: Vec<NodeId>,
}

impl Leadership {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self {
            lead: Lead::Follows(None),
            is_cluster,
            parked: VecDeque::new(),
            confirming: BTreeMap::new(),
            confirms: 0,
            orphans: VecDeque::new(),
            peers: Vec::new(),
        }
    }

    /// The term in which this node serves.
    pub(super) fn term(&self) -> Option<Term> {
        match self.lead {
            Lead::Ready(term) => Some(term),
            Lead::Follows(_) | Lead::Elected => None,
        }
    }

    /// What a request is told that was not carried out because of where the node stands.
    pub(super) fn refusal(&self, request_id: u64, stopping: bool) -> Reply {
        let code = match self.lead {
            Lead::Follows(Some(slot)) => return Reply::Moved { request_id, slot },
            _ if !self.is_cluster => ErrorCode::NotActive,
            Lead::Ready(_) if stopping => ErrorCode::NotActive,
            _ => ErrorCode::NoLeader,
        };
        Reply::Error { request_id, code }
    }

    /// When something is due.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        let parked = self.parked.front().map(|p| p.arrived_ms + PARKED_MS);
        let confirming = self.confirming.values().next();
        let confirming = confirming.map(|c| c.arrived_ms + RELEASE_ANSWER_MS);
        let orphans = self.orphans.iter().map(|asking| asking.at_ms).min();
        [parked, confirming, orphans].into_iter().flatten().min()
    }
}

impl Shard {
    /// Takes a request for a key that this shard owns.
    pub(super) fn ask(
        &mut self,
        now_ms: u64,
        origin: Origin,
        arrived_ms: u64,
        (key_hash, key): (u64, &[u8]),
        asked: Asked,
    ) {
        let is_acquire = matches!(asked, Asked::Acquire { .. });
        let hands_over = self.leadership.is_cluster && is_acquire && self.stop.asked();
        match self.leadership.lead {
            Lead::Follows(_) if self.leadership.is_cluster => {
                self.outputs.answers.push((origin, Answer::NotActive));
            }
            Lead::Ready(_) | Lead::Follows(_) if !hands_over => {
                self.serve(now_ms, origin, arrived_ms, (key_hash, key), asked);
            }
            _ if self.leadership.parked.len() >= PARKED_MOST => {
                self.outputs.answers.push((origin, Answer::NotActive));
            }
            _ => self.leadership.parked.push_back(Request {
                origin,
                arrived_ms,
                key_hash,
                key: key.into(),
                asked,
            }),
        }
    }

    fn serve(
        &mut self,
        now_ms: u64,
        origin: Origin,
        arrived_ms: u64,
        (key_hash, key): (u64, &[u8]),
        asked: Asked,
    ) {
        let out = &mut self.outputs;
        match asked {
            Asked::Acquire { wait_s, lease_s } => self.table.acquire(
                now_ms, origin, arrived_ms, key_hash, key, wait_s, lease_s, out,
            ),
            // Past what is applied here, only a confirmed leader that has applied as far may say that
            // a token is not current.
            Asked::Release { token }
                if self.leadership.is_cluster && token > self.table.applied_index() =>
            {
                let leadership = &mut self.leadership;
                leadership.confirms += 1;
                let request = leadership.confirms;
                let confirming = Confirming {
                    origin,
                    arrived_ms,
                    key_hash,
                    key: key.into(),
                    token,
                };
                leadership.confirming.insert(request, confirming);
                let shard = self.setup.id;
                self.tell_consensus(ToConsensus::Confirm { shard, request });
            }
            Asked::Release { token } => {
                self.table
                    .release(now_ms, origin, arrived_ms, key_hash, key, token, out);
            }
        }
    }

    /// Where this node stands has changed.
    pub(super) fn lead(&mut self, now_ms: u64, lead: Lead) {
        // What was proposed in a leadership that is over and has not left: it never gets into the log.
        let unsent = std::mem::take(&mut self.outputs.proposals);
        self.leadership.lead = lead;
        if let Lead::Ready(_) = lead {
            debug_assert!(unsent.is_empty(), "nothing is proposed before");
            self.table.set_ready(now_ms);
            if self.stop.asked() {
                self.table.stop_acquires(now_ms, &mut self.outputs);
            }
            for request in std::mem::take(&mut self.leadership.parked) {
                let key = (request.key_hash, &*request.key);
                self.ask(
                    now_ms,
                    request.origin,
                    request.arrived_ms,
                    key,
                    request.asked,
                );
            }
            return self.ask_for_orphans(now_ms);
        }
        self.table.step_down(now_ms, &mut self.outputs);
        for unit in unsent.units() {
            for command in unit.payloads() {
                self.dropped(now_ms, command, Fate::Dropped);
            }
        }
        for confirming in std::mem::take(&mut self.leadership.confirming).into_values() {
            self.outputs
                .answers
                .push((confirming.origin, Answer::NotActive));
        }
        if let Lead::Follows(_) = lead {
            for request in std::mem::take(&mut self.leadership.parked) {
                self.outputs
                    .answers
                    .push((request.origin, Answer::NotActive));
            }
        }
    }

    /// What this shard proposed will not be applied as its own.
    pub(super) fn dropped(&mut self, now_ms: u64, command: &[u8], fate: Fate) {
        let Ok(command) = Command::decode(command) else {
            unreachable!("it was encoded by a shard of this node");
        };
        let hash = crate::locks::key_hash(self.setup.key_seed, command.key());
        let out = &mut self.outputs;
        self.table.dropped(now_ms, hash, command, fate, out);
    }

    /// Tells every client where the leader is.
    pub(super) fn push_leader(&mut self, slot: u8) {
        let all: Vec<ConnectionRef> = self
            .connections
            .iter()
            .map(|(index, connection)| ConnectionRef {
                index,
                generation: connection.generation,
            })
            .collect();
        for at in all {
            self.reply(at, Reply::Leader { slot });
        }
    }

    /// Whether clients may come.
    pub(super) fn may_listen(&self) -> bool {
        if self.leadership.is_cluster {
            self.setup.signals.port_open()
        } else {
            self.leadership.term().is_some()
        }
    }

    /// The answer to a confirmation.
    pub(super) fn confirmed(&mut self, now_ms: u64, request: u64, leads: bool) {
        let Some(c) = self.leadership.confirming.remove(&request) else {
            return;
        };
        if leads && self.leadership.term().is_some() {
            let out = &mut self.outputs;
            self.table.release(
                now_ms,
                c.origin,
                c.arrived_ms,
                c.key_hash,
                &c.key,
                c.token,
                out,
            );
        } else {
            self.outputs.answers.push((c.origin, Answer::NotActive));
        }
    }

    /// Sends every client away while another node may have this one's place: they find it by coming back.
    fn keep_shut(&mut self) {
        if self.leadership.is_cluster && self.setup.signals.shut() {
            for (_, connection) in &mut self.connections {
                if !connection.closing {
                    connection.close();
                }
            }
        }
    }

    /// Does what is due.
    pub(super) fn pump_leadership(&mut self, now_ms: u64) {
        self.keep_shut();
        for orphan in self.outputs.orphans.drain(..) {
            // Of more than that the leases end.
            if self.leadership.orphans.len() < ORPHANS_MOST {
                self.leadership
                    .orphans
                    .push_back(Asking { orphan, at_ms: 0 });
            }
        }
        while let Some(first) = self.leadership.parked.front()
            && first.arrived_ms + PARKED_MS <= now_ms
        {
            self.outputs.answers.push((first.origin, Answer::NotActive));
            self.leadership.parked.pop_front();
        }
        while let Some(first) = self.leadership.confirming.first_entry()
            && first.get().arrived_ms + RELEASE_ANSWER_MS <= now_ms
        {
            let late = first.remove();
            self.outputs
                .answers
                .push((late.origin, Answer::Indeterminate));
        }
        self.ask_for_orphans(now_ms);
    }

    /// Has every orphan released that is due: by the leader, or here if this node leads again.
    fn ask_for_orphans(&mut self, now_ms: u64) {
        let serves = self.leadership.term().is_some();
        let mut due = Vec::new();
        for asking in &mut self.leadership.orphans {
            if asking.at_ms <= now_ms {
                asking.at_ms = now_ms + ORPHAN_RETRY_MS;
                due.push(asking.orphan.clone());
            }
        }
        for Orphan { key, token } in due {
            if !serves {
                self.tell_consensus(ToConsensus::Orphan { key, token });
                continue;
            }
            let hash = crate::locks::key_hash(self.setup.key_seed, &key);
            let origin = foreign(OWN_ORPHAN, 0, now_ms as u32, token);
            let out = &mut self.outputs;
            self.table
                .release(now_ms, origin, now_ms, hash, &key, token, out);
        }
    }

    /// A peer wants a grant released that its client did not want.
    pub(super) fn peer_release(
        &mut self,
        now_ms: u64,
        peer: NodeId,
        number: u64,
        key: &[u8],
        token: u64,
    ) {
        debug_assert_eq!(number, token, "a release is named by its token");
        let known = self.leadership.peers.iter().position(|p| *p == peer);
        let number = known.unwrap_or_else(|| {
            self.leadership.peers.push(peer);
            self.leadership.peers.len() - 1
        });
        let origin = foreign(PEER, number as u32, 0, token);
        let hash = crate::locks::key_hash(self.setup.key_seed, key);
        self.ask(
            now_ms,
            origin,
            now_ms,
            (hash, key),
            Asked::Release { token },
        );
    }

    /// The leader says that this grant is current no more.
    pub(super) fn orphan_done(&mut self, token: u64) {
        self.leadership.orphans.retain(|a| a.orphan.token != token);
    }

    /// An answer to no client: true if it was one.
    pub(super) fn answer_is_foreign(&mut self, origin: Origin, answer: Answer) -> bool {
        let done = matches!(answer, Answer::Released | Answer::NotFound);
        let (token, from) = (origin.request_id, origin.connection as usize);
        match origin.shard {
            PEER if done => {
                let peer = self.leadership.peers[from];
                let number = token;
                self.tell_consensus(ToConsensus::PeerReleased { peer, number });
            }
            OWN_ORPHAN if done => self.orphan_done(token),
            PEER | OWN_ORPHAN => {}
            _ => return false,
        }
        true
    }

    /// Forgets what a requester that is gone has waiting here.
    pub(super) fn forget_request(&mut self, now_ms: u64, origin: Origin) {
        self.table.disconnect(now_ms, origin);
        self.leadership.parked.retain(|p| p.origin != origin);
        self.leadership.confirming.retain(|_, c| c.origin != origin);
    }
}

fn foreign(shard: u16, connection: u32, generation: u32, request_id: u64) -> Origin {
    Origin {
        shard,
        connection,
        generation,
        request_id,
    }
}
