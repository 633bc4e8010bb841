//! The state of one shard, and the pump that moves everything on.

use std::collections::VecDeque;

use slab::Slab;
use ticketing_protocol::reply::Reply;

use crate::lanes::{
    self,
    messages::{Committed, Forwarded, ForwardedRequest, FromConsensus, ToConsensus, ToShard},
};
use crate::limits::{
    FORWARD_WAITING_ACQUIRES, PROPOSAL_BYTES_WAITING, READ_BUFFER_BYTES, STALLED_READ,
    STALLED_WRITE,
};
use crate::locks::{Answer, Command, GrantRef, LockTable, Origin, Outputs};
use crate::security::tls::ClientStream;
use ticketing_raftlog::Term;

use super::Setup;
use super::connection::{Connection, InFlight};
use super::leadership::{Asked, Leadership};
use super::outbox::Outbox;
use super::snapshot::Cutting;
use super::stop::Stop;

/// Messages taken from one lane in one round: a flood from one side must not
/// keep the others waiting.
const MESSAGES_PER_ROUND: usize = 256;

/// What a round of the pump found out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pumped {
    /// Clients may be served.
    pub ready: bool,
    /// The node has stopped.
    pub ended: bool,
    /// There is more to do at once.
    pub more: bool,
}

/// A connection and its generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionRef {
    pub index: usize,
    pub generation: u32,
}

/// One shard.
pub(super) struct Shard {
    pub(super) setup: Setup,
    pub(super) connections: Slab<Connection>,
    pub(super) handshakes: u32,
    pub(super) read_buffer: Vec<u8>,
    pub(super) table: LockTable,
    pub(super) outputs: Outputs,
    pub(super) outboxes: Vec<Outbox>,
    pub(super) stop: Stop,
    pub(super) cutting: Cutting,
    pub(super) leadership: Leadership,
    next_generation: u32,
    dirty: Vec<ConnectionRef>,
    stalled: VecDeque<(u64, ConnectionRef)>,
    outbox_waits: bool,
    consensus_waits: bool,
    to_tell: VecDeque<ToConsensus>,
    ended: bool,
}

impl Shard {
    pub(super) fn new(setup: Setup) -> Self {
        let now_ms = setup.clock.now_ms();
        let shards = setup.to_shards.len();
        Self {
            table: LockTable::new(setup.table.clone(), now_ms),
            leadership: Leadership::new(setup.is_cluster),
            outboxes: (0..shards).map(|_| Outbox::default()).collect(),
            setup,
            connections: Slab::new(),
            handshakes: 0,
            read_buffer: vec![0; READ_BUFFER_BYTES],
            outputs: Outputs::default(),
            stop: Stop::default(),
            cutting: Cutting::default(),
            next_generation: 0,
            dirty: Vec::new(),
            stalled: VecDeque::new(),
            outbox_waits: false,
            consensus_waits: false,
            to_tell: VecDeque::new(),
            ended: false,
        }
    }

    /// The shard that owns a key of this hash.
    pub(super) fn owner_of(&self, key_hash: u64) -> u16 {
        lanes::owner_of(key_hash, self.setup.to_shards.len())
    }

    /// True while acquires are let in.
    pub(super) fn admits(&self, owner: u16) -> bool {
        if self.setup.signals.log_full() && self.leadership.term().is_some() {
            false
        } else if owner == self.setup.id {
            self.outputs.proposals.byte_len() < PROPOSAL_BYTES_WAITING
        } else {
            self.outboxes[usize::from(owner)].acquires_waiting() < FORWARD_WAITING_ACQUIRES
        }
    }

    /// When the pump must run at the latest, even if nobody rings.
    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        // A full lane rings nobody when it has room again, so look.
        let retry_ms = (self.outbox_waits || self.consensus_waits || self.cutting.is_parked())
            .then(|| self.setup.clock.now_ms() + 1);
        [
            self.table.next_deadline_ms(),
            self.stalled.front().map(|&(at_ms, _)| at_ms),
            self.stop.next_deadline_ms(),
            self.leadership.next_deadline_ms(),
            retry_ms,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Takes in what came over the lanes, moves time on, sends out what was
    /// decided.
    pub(super) fn pump(&mut self) -> Pumped {
        let now_ms = self.setup.clock.now_ms();
        let more = self.take_in(now_ms);
        if self.table.next_deadline_ms().is_some_and(|at| at <= now_ms) {
            self.table.advance(now_ms, &mut self.outputs);
        }
        self.pump_leadership(now_ms);
        self.close_stalled(now_ms);
        self.pump_stop(now_ms);
        self.send_out(now_ms);
        let cut_goes_on = self.pump_cut();
        self.publish();
        Pumped {
            ready: self.may_listen(),
            ended: self.ended,
            more: more || cut_goes_on,
        }
    }

    /// Adds a connection that has passed the handshake.
    pub(super) fn add_connection(&mut self, stream: ClientStream) -> ConnectionRef {
        let now_ms = self.setup.clock.now_ms();
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let index = self
            .connections
            .insert(Connection::new(generation, stream, now_ms));
        ConnectionRef { index, generation }
    }

    /// Forgets a connection; what it waited for is withdrawn, and grants that
    /// the kernel did not take are released.
    pub(super) fn remove_connection(&mut self, at: ConnectionRef) {
        let Some(mut connection) = self.connections.try_remove(at.index) else {
            return;
        };
        connection.close();
        let now_ms = self.setup.clock.now_ms();
        let mut waiting: Vec<(u64, InFlight)> = connection
            .in_flight
            .iter()
            .filter(|(_, in_flight)| in_flight.acquire)
            .map(|(&request_id, &in_flight)| (request_id, in_flight))
            .collect();
        // The map's order is random, and what is decided must not be.
        waiting.sort_unstable_by_key(|&(request_id, _)| request_id);
        for (request_id, in_flight) in waiting {
            let origin = self.origin(at, request_id);
            if in_flight.owner == self.setup.id {
                self.forget_request(now_ms, origin);
            } else {
                self.outboxes[usize::from(in_flight.owner)].forward(
                    origin,
                    0,
                    &[],
                    ForwardedRequest::Disconnect,
                );
            }
        }
        for (owner, grant) in connection.take_unsent() {
            self.undelivered(now_ms, self.origin(at, 0), owner, grant);
        }
        self.setup.doorbell.ring();
    }

    pub(super) fn origin(&self, at: ConnectionRef, request_id: u64) -> Origin {
        Origin {
            shard: self.setup.id,
            connection: u32::try_from(at.index).unwrap_or(u32::MAX),
            generation: at.generation,
            request_id,
        }
    }

    pub(super) fn connection(&mut self, at: ConnectionRef) -> Option<&mut Connection> {
        self.connections
            .get_mut(at.index)
            .filter(|connection| connection.generation == at.generation)
    }

    /// Encodes an answer that was decided here, without asking the table.
    pub(super) fn reply(&mut self, at: ConnectionRef, reply: Reply) {
        if let Some(connection) = self.connection(at) {
            reply.encode(connection.output());
            self.mark_dirty(at);
        }
    }

    /// Has the pump write to this connection.
    pub(super) fn mark_dirty(&mut self, at: ConnectionRef) {
        if let Some(connection) = self.connection(at)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(at);
        }
    }

    /// Writes to one connection, and watches it should its socket be full.
    pub(super) fn flush_connection(&mut self, at: ConnectionRef, now_ms: u64) {
        let output_limit = self.setup.limits.output_bytes as usize;
        let in_flight_limit = self.in_flight_with_reserve();
        let Some(connection) = self.connection(at) else {
            return;
        };
        connection.dirty = false;
        let was_stalled = connection.write_stalled_since_ms.is_some();
        if connection.flush(now_ms).is_err() {
            connection.close();
            return;
        }
        if connection.paused
            && connection.output_waiting() < output_limit
            && connection.in_flight.len() < in_flight_limit
        {
            connection.paused = false;
            connection.read_stalled_since_ms = None;
            connection.wake();
        }
        if !was_stalled && connection.write_stalled_since_ms.is_some() {
            self.watch(at, now_ms + millis(STALLED_WRITE));
        }
    }

    /// Looks at a connection again at `at_ms`, to close it if it is stalled.
    pub(super) fn watch(&mut self, at: ConnectionRef, at_ms: u64) {
        let place = self
            .stalled
            .partition_point(|&(earlier_ms, _)| earlier_ms <= at_ms);
        self.stalled.insert(place, (at_ms, at));
    }

    /// In-flight requests at which a connection is not read any more.
    pub(super) fn in_flight_with_reserve(&self) -> usize {
        self.setup.limits.in_flight as usize + crate::limits::IN_FLIGHT_RELEASE_RESERVE as usize
    }

    fn take_in(&mut self, now_ms: u64) -> bool {
        for _ in 0..MESSAGES_PER_ROUND {
            match self.setup.from_consensus.try_recv() {
                Some(FromConsensus::Committed(committed)) => {
                    if committed.own {
                        self.stop.had_work();
                    }
                    self.apply(now_ms, &committed);
                }
                Some(FromConsensus::Restore(restored)) => self.restore(now_ms, &restored),
                Some(FromConsensus::Snapshot { index }) => self.begin_cut(now_ms, index),
                Some(FromConsensus::Barrier { index }) => {
                    self.tell_consensus(ToConsensus::Reached { index });
                }
                Some(FromConsensus::StateSum { index }) => {
                    let sum = self.table.state_sum();
                    self.tell_consensus(ToConsensus::StateSum { index, sum });
                }
                Some(FromConsensus::Lead(lead)) => self.lead(now_ms, lead),
                Some(FromConsensus::LeaderReady(slot)) => self.push_leader(slot),
                Some(FromConsensus::Reset) => self.reset(now_ms),
                Some(FromConsensus::Dropped { commands, fate }) => {
                    for command in &commands {
                        self.dropped(now_ms, command, fate);
                    }
                }
                Some(FromConsensus::Confirmed { request, leads }) => {
                    self.confirmed(now_ms, request, leads);
                }
                Some(FromConsensus::PeerRelease {
                    peer,
                    number,
                    key,
                    token,
                }) => self.peer_release(now_ms, peer, number, &key, token),
                Some(FromConsensus::OrphanDone { token }) => self.orphan_done(token),
                Some(FromConsensus::HandedOver) => self.stop.handed_over(),
                Some(FromConsensus::StillQuiet) => self.stop.ask_again(),
                Some(FromConsensus::End) => self.ended = true,
                None => break,
            }
        }
        for _ in 0..MESSAGES_PER_ROUND {
            match self.setup.from_shards.try_recv() {
                Some(ToShard::Forwarded(forwarded)) => {
                    self.stop.had_work();
                    self.take_forwarded(now_ms, &forwarded);
                }
                Some(ToShard::Answers { owner, answers }) => {
                    self.stop.had_work();
                    for (origin, answer) in answers {
                        self.deliver(now_ms, origin, owner, answer);
                    }
                }
                None => break,
            }
        }
        self.setup.from_consensus.depth() > 0 || self.setup.from_shards.depth() > 0
    }

    fn apply(&mut self, now_ms: u64, committed: &Committed) {
        for record in &committed.records {
            let entry = committed.lie_in.record(record.offset);
            let command = match Command::decode(entry.payload) {
                Ok(command) => command,
                Err(error) => crate::fatal::Fatal::Corrupt.exit(format_args!(
                    "the committed entry {} cannot be read ({error}): it was written by another \
                     version or is damaged; do not start this node again on this folder",
                    entry.index.0
                )),
            };
            self.table.apply(
                now_ms,
                entry.index.0,
                record.key_hash,
                command,
                committed.own,
                &mut self.outputs,
            );
        }
    }

    fn take_forwarded(&mut self, now_ms: u64, forwarded: &Forwarded) {
        for (origin, key_hash, key, request) in forwarded.iter() {
            match request {
                ForwardedRequest::Acquire {
                    arrived_ms,
                    wait_s,
                    lease_s,
                } => {
                    if self.outputs.proposals.byte_len() >= PROPOSAL_BYTES_WAITING {
                        self.setup.counters.admission_refused.add(1);
                        self.outputs.answers.push((origin, Answer::Busy));
                    } else {
                        let asked = Asked::Acquire { wait_s, lease_s };
                        self.ask(now_ms, origin, arrived_ms, (key_hash, key), asked);
                    }
                }
                ForwardedRequest::Release { arrived_ms, token } => {
                    let asked = Asked::Release { token };
                    self.ask(now_ms, origin, arrived_ms, (key_hash, key), asked);
                }
                ForwardedRequest::Disconnect => self.forget_request(now_ms, origin),
                ForwardedRequest::Undelivered(grant) => {
                    self.table.undelivered(now_ms, grant, &mut self.outputs);
                }
            }
        }
    }

    fn undelivered(&mut self, now_ms: u64, origin: Origin, owner: u16, grant: GrantRef) {
        if owner == self.setup.id {
            self.table.undelivered(now_ms, grant, &mut self.outputs);
        } else {
            self.outboxes[usize::from(owner)].undelivered(origin, grant);
        }
    }

    fn deliver(&mut self, now_ms: u64, origin: Origin, owner: u16, answer: Answer) {
        let at = ConnectionRef {
            index: origin.connection as usize,
            generation: origin.generation,
        };
        let counters = std::sync::Arc::clone(&self.setup.counters);
        let request_id = origin.request_id;
        let not_active = self.leadership.refusal(request_id, self.stop.asked());
        let Some(connection) = self.connection(at) else {
            if let Answer::Acquired { grant, .. } = answer {
                self.undelivered(now_ms, origin, owner, grant);
            }
            return;
        };
        let known = connection.in_flight.remove(&request_id).is_some();
        assert!(known, "each request gets exactly one answer");
        let (reply, counter) = match answer {
            Answer::Acquired { token, .. } => (
                Reply::Acquired { request_id, token },
                &counters.answered_acquired,
            ),
            Answer::Released => (Reply::Released { request_id }, &counters.answered_released),
            Answer::NotFound => (Reply::NotFound { request_id }, &counters.answered_not_found),
            Answer::TimedOut => (Reply::TimedOut { request_id }, &counters.answered_timed_out),
            Answer::Busy => (Reply::Busy { request_id }, &counters.answered_busy),
            Answer::Indeterminate => (
                Reply::Indeterminate { request_id },
                &counters.answered_indeterminate,
            ),
            Answer::NotActive if matches!(not_active, Reply::Moved { .. }) => {
                (not_active, &counters.answered_moved)
            }
            Answer::NotActive => (not_active, &counters.answered_error),
        };
        counter.add(1);
        reply.encode(connection.output());
        if let Answer::Acquired { grant, .. } = answer {
            connection.granted(owner, grant);
        }
        self.mark_dirty(at);
    }

    fn send_out(&mut self, now_ms: u64) {
        let mut answers = Vec::new();
        // A grant that cannot be delivered may decide further answers.
        while !self.outputs.answers.is_empty() {
            std::mem::swap(&mut answers, &mut self.outputs.answers);
            // Grants first, and so first on their way: everybody else in line
            // waits for their holders.
            for grants in [true, false] {
                for &(origin, answer) in &answers {
                    if matches!(answer, Answer::Acquired { .. }) != grants {
                        continue;
                    }
                    if self.answer_is_foreign(origin, answer) {
                        continue;
                    }
                    if origin.shard == self.setup.id {
                        self.deliver(now_ms, origin, self.setup.id, answer);
                    } else {
                        self.outboxes[usize::from(origin.shard)].answer(origin, answer);
                    }
                }
            }
            answers.clear();
        }
        if answers.capacity() > self.outputs.answers.capacity() {
            self.outputs.answers = answers;
        }
        self.consensus_waits = !self.send_to_consensus();
        self.outbox_waits = false;
        for (other, outbox) in self.outboxes.iter_mut().enumerate() {
            if !outbox.flush(self.setup.id, &self.setup.to_shards[other]) {
                self.outbox_waits = true;
            }
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for at in dirty.drain(..) {
            self.flush_connection(at, now_ms);
        }
        // Nothing became dirty meanwhile, so this keeps the allocation.
        self.dirty = dirty;
    }

    /// True when nothing decided here is on its way out, and nothing from
    /// another shard waits to be taken in.
    pub(super) fn is_idle(&self) -> bool {
        self.outputs.proposals.is_empty()
            && self.outputs.answers.is_empty()
            && self.to_tell.is_empty()
            && self.outboxes.iter().all(Outbox::is_empty)
            && self.setup.from_shards.depth() == 0
    }

    /// Tells the consensus role something that must arrive, behind everything
    /// proposed before.
    pub(super) fn tell_consensus(&mut self, message: ToConsensus) {
        self.to_tell.push_back(message);
    }

    fn send_to_consensus(&mut self) -> bool {
        if !self.outputs.proposals.is_empty() {
            let message = ToConsensus::Proposals {
                shard: self.setup.id,
                term: self.proposing_term(),
                proposals: std::mem::take(&mut self.outputs.proposals),
            };
            if let Err(ToConsensus::Proposals { proposals, .. }) =
                self.setup.to_consensus.try_send(message)
            {
                self.outputs.proposals = proposals;
                return false;
            }
        }
        while let Some(message) = self.to_tell.pop_front() {
            if let Err(back) = self.setup.to_consensus.try_send(message) {
                self.to_tell.push_front(back);
                return false;
            }
        }
        true
    }

    fn proposing_term(&self) -> Term {
        match self.leadership.term() {
            Some(term) => term,
            None => unreachable!("a table that does not serve proposes nothing"),
        }
    }

    fn close_stalled(&mut self, now_ms: u64) {
        while let Some(&(at_ms, at)) = self.stalled.front() {
            if at_ms > now_ms {
                break;
            }
            self.stalled.pop_front();
            let Some(connection) = self.connection(at) else {
                continue;
            };
            let write_due_ms = connection
                .write_stalled_since_ms
                .map(|since_ms| since_ms + millis(STALLED_WRITE));
            let read_due_ms = connection
                .read_stalled_since_ms
                .map(|since_ms| since_ms + millis(STALLED_READ));
            if write_due_ms.is_some_and(|due| due <= now_ms)
                || read_due_ms.is_some_and(|due| due <= now_ms)
            {
                connection.close();
                self.setup.counters.stalled.add(1);
            } else if let Some(again_ms) = write_due_ms.into_iter().chain(read_due_ms).min() {
                self.watch(at, again_ms);
            }
        }
    }

    fn publish(&mut self) {
        let stats = self.table.stats();
        let counters = &self.setup.counters;
        counters.rounds.add(1);
        counters.connections.set(self.connections.len() as u64);
        counters.unauthenticated.set(u64::from(self.handshakes));
        counters.locks_held.set(stats.held);
        counters.waiting.set(stats.waiting);
        counters.expired.set(stats.expires);
        counters.ghosts.set(stats.ghosts);
        counters.grants_rejected.set(stats.grants_rejected);
        counters.applied_index.set(self.table.applied_index());
    }
}

pub(super) fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
