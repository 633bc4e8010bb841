//! One shard: clients' connections on one side, the keys it owns on the other.

mod connections;
mod state;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ticketing::locks::{
    Answer, Command, LockTable, Origin, Orphan, Outputs, TableLimits, key_hash,
};
use ticketing_raftlog::LogIndex;

use super::bugs::ShellBug;
use super::journal::Payload;
use super::messages::{Asked, Effect, Lead, Reply, Request, Seen, ToRole, ToShard, Verdict};

/// How long a request waits for a new leader to become ready.
pub const PARKED_MS: u64 = 300;
/// Requests that wait so; more are answered at once.
pub const PARKED_MAX: usize = 4_096;
/// A release is answered this long after it arrived.
pub const RELEASE_ANSWER_MS: u64 = 1_500;
/// Between two times that the leader is asked to release an orphan.
pub const ORPHAN_RETRY_MS: u64 = 150;
/// Orphans remembered; of more the leases end.
pub const ORPHANS_MAX: usize = 4_096;
/// Origin of releases that a peer asked for.
const PEER: u16 = u16::MAX;
/// Origin of releases of the node's own orphans.
const OWN_ORPHAN: u16 = u16::MAX - 1;

/// What a shard starts with.
#[derive(Clone, Debug)]
pub struct ShardSetup {
    /// Its number.
    pub id: u16,
    /// How many there are on this node.
    pub shards: usize,
    /// Seed of the hash that spreads keys; the node's own.
    pub key_seed: u64,
    /// The table's bounds.
    pub limits: TableLimits,
    /// A mistake to make.
    pub bug: Option<ShellBug>,
    /// A mistake for the table to make.
    #[cfg(feature = "bugs")]
    pub table_bug: Option<ticketing::locks::TableBug>,
}

impl ShardSetup {
    fn table(&self, now_ms: u64) -> LockTable {
        #[cfg(feature = "bugs")]
        {
            let mut table = LockTable::new(self.limits.clone(), now_ms);
            table.make_mistake(self.table_bug);
            table
        }
        #[cfg(not(feature = "bugs"))]
        LockTable::new(self.limits.clone(), now_ms)
    }
}

struct Parked {
    origin: Origin,
    request: Request,
    arrived_ms: u64,
    until_ms: u64,
}

struct Confirming {
    origin: Origin,
    key: Rc<[u8]>,
    token: u64,
    arrived_ms: u64,
    index: Option<LogIndex>,
}

struct Asking {
    orphan: Orphan,
    at_ms: u64,
}

/// One shard of a node.
pub struct Shard {
    setup: ShardSetup,
    table: LockTable,
    out: Outputs,
    lead: Lead,
    has_room: bool,
    stopping: bool,
    told_quiet: bool,
    through: LogIndex,
    parked: VecDeque<Parked>,
    confirming: BTreeMap<u64, Confirming>,
    confirms: u64,
    orphans: VecDeque<Asking>,
    /// Open connections, and their unanswered requests with the shards that own the keys.
    connections: BTreeMap<u32, BTreeMap<u64, u16>>,
    /// Only for a mistake: second halves of hand-overs.
    held_back: Vec<Payload>,
}

impl Shard {
    /// A shard that has applied nothing.
    #[must_use]
    pub fn new(setup: ShardSetup, now_ms: u64) -> Self {
        Self {
            table: setup.table(now_ms),
            setup,
            out: Outputs::default(),
            lead: Lead::Follows(None),
            has_room: true,
            stopping: false,
            told_quiet: false,
            through: LogIndex(0),
            parked: VecDeque::new(),
            confirming: BTreeMap::new(),
            confirms: 0,
            orphans: VecDeque::new(),
            connections: BTreeMap::new(),
            held_back: Vec::new(),
        }
    }

    /// The table, to look at.
    #[must_use]
    pub fn table(&self) -> &LockTable {
        &self.table
    }

    /// When [`Shard::advance`] is due, if anything waits for the clock.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        let parked = self.parked.iter().map(|parked| parked.until_ms).min();
        let confirming = self
            .confirming
            .values()
            .map(|c| c.arrived_ms + RELEASE_ANSWER_MS)
            .min();
        let orphans = self.orphans.iter().map(|orphan| orphan.at_ms).min();
        [self.table.next_deadline_ms(), parked, confirming, orphans]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due.
    pub fn advance(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        self.table.advance(now_ms, &mut self.out);
        self.flush(effects);
        let (due, rest): (VecDeque<Parked>, VecDeque<Parked>) = std::mem::take(&mut self.parked)
            .into_iter()
            .partition(|parked| parked.until_ms <= now_ms);
        self.parked = rest;
        for parked in due {
            let refusal = if self.stopping {
                self.refusal()
            } else {
                Verdict::NoLeader
            };
            self.tell(parked.origin, refusal, effects);
        }
        let late = |c: &Confirming| c.arrived_ms + RELEASE_ANSWER_MS <= now_ms;
        let late: Vec<u64> = self
            .confirming
            .iter()
            .filter(|(_, c)| late(c))
            .map(|(&id, _)| id)
            .collect();
        for id in late {
            if let Some(confirming) = self.confirming.remove(&id) {
                self.tell(confirming.origin, Verdict::Indeterminate, effects);
            }
        }
        self.ask_for_orphans(now_ms, effects);
    }

    /// Takes one message.
    pub fn take(&mut self, now_ms: u64, message: ToShard, effects: &mut Vec<Effect>) {
        match message {
            ToShard::Connected(connection) => {
                self.connections.insert(connection, BTreeMap::new());
            }
            ToShard::Requested(connection, request) => {
                self.requested(now_ms, connection, request, effects);
            }
            ToShard::Closed(connection) => self.closed(now_ms, connection, effects),
            ToShard::Asked(origin, asked) => self.asked(now_ms, origin, asked, effects),
            ToShard::Answered {
                owner,
                origin,
                verdict,
            } => self.answered(now_ms, owner, origin, verdict, effects),
            ToShard::Lead(lead) => self.lead(now_ms, lead, effects),
            ToShard::Room(has_room) => self.has_room = has_room,
            ToShard::LeaderReady(slot) => {
                for &connection in self.connections.keys() {
                    effects.push(Effect::Reply(connection, Reply::Leader(slot)));
                }
            }
            ToShard::Committed { through, records } => {
                for record in records {
                    self.apply(now_ms, &record, effects);
                }
                self.through = through;
                self.confirmed_ones(now_ms, effects);
            }
            ToShard::Barrier(index) => {
                let reached = ToRole::Reached(self.setup.id, index, self.sum());
                effects.push(Effect::ToRole(reached));
            }
            ToShard::Cut(index) => self.cut(now_ms, index, effects),
            ToShard::Dropped(payload, fate) => {
                let command = decode(&payload);
                let hash = key_hash(self.setup.key_seed, command.key());
                self.table
                    .dropped(now_ms, hash, command, fate, &mut self.out);
                self.flush(effects);
            }
            ToShard::TakenAsGranted(index, payload) => {
                let command = decode(&payload);
                let hash = key_hash(self.setup.key_seed, command.key());
                self.table
                    .apply(now_ms, index.0, hash, command, true, &mut self.out);
                self.flush(effects);
            }
            ToShard::Restore { index, locks } => self.restore(now_ms, index, &locks, effects),
            ToShard::Confirmed(request, index) => {
                if let Some(confirming) = self.confirming.get_mut(&request) {
                    confirming.index = Some(index);
                }
                self.confirmed_ones(now_ms, effects);
            }
            ToShard::NotConfirmed(request) => {
                if let Some(confirming) = self.confirming.remove(&request) {
                    let refusal = self.refusal();
                    self.tell(confirming.origin, refusal, effects);
                }
            }
            ToShard::PeerRelease(peer, key, token) => {
                let origin = Origin {
                    shard: PEER,
                    connection: peer,
                    generation: 0,
                    request_id: token,
                };
                let request = Request::Release {
                    id: token,
                    token,
                    key,
                };
                self.consider(now_ms, origin, request, now_ms, effects);
            }
            ToShard::OrphanDone(token) => self.orphans.retain(|o| o.orphan.token != token),
            ToShard::Stop => {
                self.stopping = true;
                self.table.stop_acquires(now_ms, &mut self.out);
                self.flush(effects);
            }
        }
        if self.stopping && !self.told_quiet && self.table.is_quiet() {
            self.told_quiet = true;
            effects.push(Effect::ToRole(ToRole::Quiet(self.setup.id)));
        }
    }

    // The keys' side.

    fn asked(&mut self, now_ms: u64, origin: Origin, asked: Asked, effects: &mut Vec<Effect>) {
        match asked {
            Asked::Request {
                request,
                arrived_ms,
            } => self.consider(now_ms, origin, request, arrived_ms, effects),
            Asked::Disconnect => {
                self.parked.retain(|parked| parked.origin != origin);
                self.confirming
                    .retain(|_, confirming| confirming.origin != origin);
                self.table.disconnect(now_ms, origin);
            }
            Asked::Undelivered(grant) => {
                self.table.undelivered(now_ms, grant, &mut self.out);
                self.flush(effects);
            }
        }
    }

    fn consider(
        &mut self,
        now_ms: u64,
        origin: Origin,
        request: Request,
        arrived_ms: u64,
        effects: &mut Vec<Effect>,
    ) {
        let acquire = matches!(request, Request::Acquire { .. });
        match self.lead {
            Lead::Follows(_) => {
                let refusal = self.refusal();
                self.tell(origin, refusal, effects);
            }
            Lead::Ready(_) if acquire && !self.has_room => {
                self.tell(origin, Verdict::Busy, effects);
            }
            Lead::Ready(_) if !(self.stopping && acquire) => {
                self.serve(now_ms, origin, request, arrived_ms, effects);
            }
            Lead::Elected | Lead::Ready(_) => {
                if self.parked.len() >= PARKED_MAX {
                    return self.tell(origin, Verdict::NoLeader, effects);
                }
                self.parked.push_back(Parked {
                    origin,
                    request,
                    arrived_ms,
                    until_ms: arrived_ms + PARKED_MS,
                });
            }
        }
    }

    fn serve(
        &mut self,
        now_ms: u64,
        origin: Origin,
        request: Request,
        arrived_ms: u64,
        effects: &mut Vec<Effect>,
    ) {
        if let Lead::Ready(term) = self.lead {
            effects.push(Effect::Seen(Seen::Considered {
                origin,
                term,
                request: request.clone(),
            }));
        }
        match request {
            Request::Acquire {
                wait_s,
                lease_s,
                key,
                ..
            } => {
                let hash = key_hash(self.setup.key_seed, &key);
                self.table.acquire(
                    now_ms,
                    origin,
                    arrived_ms,
                    hash,
                    &key,
                    wait_s,
                    lease_s,
                    &mut self.out,
                );
                self.flush(effects);
            }
            // Past what is applied here, only a confirmed leader that has applied as far may say
            // that a token is not current.
            Request::Release { token, key, .. }
                if LogIndex(token) > self.through
                    && self.setup.bug != Some(ShellBug::NotFoundUnapplied) =>
            {
                self.confirms += 1;
                let confirming = Confirming {
                    origin,
                    key,
                    token,
                    arrived_ms,
                    index: None,
                };
                self.confirming.insert(self.confirms, confirming);
                let confirm = ToRole::Confirm(self.setup.id, self.confirms);
                effects.push(Effect::ToRole(confirm));
            }
            Request::Release { token, key, .. } => {
                self.release(now_ms, origin, arrived_ms, &key, token, effects);
            }
        }
    }

    fn release(
        &mut self,
        now_ms: u64,
        origin: Origin,
        arrived_ms: u64,
        key: &[u8],
        token: u64,
        effects: &mut Vec<Effect>,
    ) {
        let hash = key_hash(self.setup.key_seed, key);
        let out = &mut self.out;
        self.table
            .release(now_ms, origin, arrived_ms, hash, key, token, out);
        self.flush(effects);
    }

    fn confirmed_ones(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        let through = self.through;
        let ready = |c: &Confirming| c.index.is_some_and(|index| index <= through);
        let ready: Vec<u64> = self
            .confirming
            .iter()
            .filter(|(_, c)| ready(c))
            .map(|(&id, _)| id)
            .collect();
        for id in ready {
            let Some(c) = self.confirming.remove(&id) else {
                continue;
            };
            if matches!(self.lead, Lead::Ready(_)) {
                self.release(now_ms, c.origin, c.arrived_ms, &c.key, c.token, effects);
            } else {
                let refusal = self.refusal();
                self.tell(c.origin, refusal, effects);
            }
        }
    }

    fn lead(&mut self, now_ms: u64, lead: Lead, effects: &mut Vec<Effect>) {
        self.lead = lead;
        if let Lead::Ready(_) = lead {
            if self.setup.bug == Some(ShellBug::LeaseRestarted) {
                self.restart_leases(now_ms);
            }
            self.table.set_ready(now_ms);
            for parked in std::mem::take(&mut self.parked) {
                let Parked {
                    origin,
                    request,
                    arrived_ms,
                    ..
                } = parked;
                self.consider(now_ms, origin, request, arrived_ms, effects);
            }
            return self.ask_for_orphans(now_ms, effects);
        }
        self.table.step_down(now_ms, &mut self.out);
        self.flush(effects);
        let refusal = self.refusal();
        for confirming in std::mem::take(&mut self.confirming).into_values() {
            self.tell(confirming.origin, refusal, effects);
        }
        if let Lead::Follows(_) = lead {
            for parked in std::mem::take(&mut self.parked) {
                self.tell(parked.origin, refusal, effects);
            }
        }
    }

    /// Has every orphan released that is due: by the leader, or here if this node leads again.
    fn ask_for_orphans(&mut self, now_ms: u64, effects: &mut Vec<Effect>) {
        let ready = matches!(self.lead, Lead::Ready(_));
        let mut own = Vec::new();
        for asking in &mut self.orphans {
            if asking.at_ms > now_ms {
                continue;
            }
            asking.at_ms = now_ms + ORPHAN_RETRY_MS;
            let (key, token) = (Rc::from(&*asking.orphan.key), asking.orphan.token);
            if ready {
                own.push((key, token));
            } else {
                effects.push(Effect::ToRole(ToRole::Orphan(key, token)));
            }
        }
        for (key, token) in own {
            let origin = Origin {
                shard: OWN_ORPHAN,
                connection: 0,
                generation: now_ms as u32,
                request_id: token,
            };
            self.release(now_ms, origin, now_ms, &key, token, effects);
        }
    }

    /// What a node that does not serve says.
    fn refusal(&self) -> Verdict {
        match self.lead {
            Lead::Follows(Some(slot)) => Verdict::Moved(Some(slot)),
            _ => Verdict::NoLeader,
        }
    }

    /// Passes on what the table decided.
    fn flush(&mut self, effects: &mut Vec<Effect>) {
        let mut out = std::mem::take(&mut self.out);
        for (origin, answer) in out.answers.drain(..) {
            let verdict = match answer {
                Answer::Acquired { token, grant } => Verdict::Acquired { token, grant },
                Answer::Released => Verdict::Released,
                Answer::NotFound => Verdict::NotFound,
                Answer::TimedOut => Verdict::TimedOut,
                Answer::Busy => Verdict::Busy,
                Answer::Indeterminate => Verdict::Indeterminate,
                Answer::NotActive => match self.refusal() {
                    Verdict::NoLeader => Verdict::Moved(None),
                    refusal => refusal,
                },
            };
            self.tell(origin, verdict, effects);
        }
        if self.setup.bug != Some(ShellBug::OrphansForgotten) {
            for orphan in out.orphans.drain(..) {
                if self.orphans.len() < ORPHANS_MAX {
                    self.orphans.push_back(Asking { orphan, at_ms: 0 });
                }
            }
        }
        if !out.proposals.is_empty() {
            let Lead::Ready(term) = self.lead else {
                panic!("a table that does not serve proposes");
            };
            let mut units: Vec<Vec<Payload>> = Vec::new();
            for unit in out.proposals.units() {
                let payloads: Vec<Payload> = unit.payloads().map(Payload::from).collect();
                effects.push(Effect::Seen(Seen::Proposed(term, payloads[0].clone())));
                units.push(payloads);
            }
            if self.setup.bug == Some(ShellBug::HandOverInTwo) {
                let seconds = units.iter_mut().filter_map(|unit| unit.drain(1..).next());
                let seconds: Vec<Payload> = seconds.collect();
                units.extend(
                    std::mem::take(&mut self.held_back)
                        .into_iter()
                        .map(|p| vec![p]),
                );
                self.held_back = seconds;
            }
            let proposals = ToRole::Proposals(self.setup.id, term, units);
            effects.push(Effect::ToRole(proposals));
        }
        out.clear();
        self.out = out;
    }

    fn tell(&mut self, origin: Origin, verdict: Verdict, effects: &mut Vec<Effect>) {
        let done = matches!(verdict, Verdict::Released | Verdict::NotFound);
        match origin.shard {
            PEER => {
                if done {
                    let released = ToRole::PeerReleased(origin.connection, origin.request_id);
                    effects.push(Effect::ToRole(released));
                }
            }
            OWN_ORPHAN => {
                if done {
                    self.orphans.retain(|o| o.orphan.token != origin.request_id);
                }
            }
            shard => {
                let answered = ToShard::Answered {
                    owner: self.setup.id,
                    origin,
                    verdict,
                };
                effects.push(Effect::ToShard(shard, answered));
            }
        }
    }
}

fn decode(payload: &[u8]) -> Command<'_> {
    match Command::decode(payload) {
        Ok(command) => command,
        Err(error) => panic!("a committed command that cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use ticketing_raftlog::Term;

    use super::*;
    use crate::node::messages::Record;

    fn shard() -> Shard {
        let setup = ShardSetup {
            id: 0,
            shards: 1,
            key_seed: 1,
            limits: TableLimits::default(),
            bug: None,
            #[cfg(feature = "bugs")]
            table_bug: None,
        };
        Shard::new(setup, 0)
    }

    fn acquire(id: u64) -> ToShard {
        let request = Request::Acquire {
            id,
            wait_s: 5,
            lease_s: 5,
            key: Rc::from(&b"k"[..]),
        };
        ToShard::Requested(1, request)
    }

    fn told(effects: &[Effect]) -> Vec<Verdict> {
        let verdict = |effect: &Effect| match effect {
            Effect::ToShard(_, ToShard::Answered { verdict, .. }) => Some(*verdict),
            _ => None,
        };
        effects.iter().filter_map(verdict).collect()
    }

    #[test]
    fn requests_wait_for_a_new_leader_and_are_refused_when_it_does_not_come() {
        let (mut shard, mut effects) = (shard(), Vec::new());
        shard.take(0, ToShard::Connected(1), &mut effects);
        shard.take(0, acquire(1), &mut effects);
        assert_eq!(told(&effects), [Verdict::NoLeader]);
        effects.clear();
        shard.take(0, ToShard::Lead(Lead::Elected), &mut effects);
        shard.take(1, acquire(2), &mut effects);
        assert_eq!(shard.next_deadline_ms(), Some(1 + PARKED_MS));
        shard.advance(PARKED_MS, &mut effects);
        assert!(told(&effects).is_empty());
        shard.advance(PARKED_MS + 1, &mut effects);
        assert_eq!(told(&effects), [Verdict::NoLeader]);
    }

    #[test]
    fn an_acquire_in_the_log_outlives_its_leadership() {
        let (mut shard, mut effects) = (shard(), Vec::new());
        shard.take(0, ToShard::Connected(1), &mut effects);
        shard.take(0, ToShard::Lead(Lead::Ready(Term(1))), &mut effects);
        shard.take(0, acquire(1), &mut effects);
        let proposed = effects.iter().find_map(|effect| match effect {
            Effect::ToRole(ToRole::Proposals(_, _, units)) => Some(units[0][0].clone()),
            _ => None,
        });
        let payload = proposed.expect("a free key is granted at once");
        effects.clear();
        shard.take(1, ToShard::Lead(Lead::Follows(Some(2))), &mut effects);
        assert!(told(&effects).is_empty());
        // Its client goes, and then it turns out granted: the leader has to release it.
        shard.take(2, ToShard::Closed(1), &mut effects);
        let record = Record {
            index: LogIndex(9),
            payload,
            own: true,
        };
        let committed = ToShard::Committed {
            through: LogIndex(9),
            records: vec![record],
        };
        shard.take(3, committed, &mut effects);
        shard.advance(3, &mut effects);
        let asked = |effect: &Effect| matches!(effect, Effect::ToRole(ToRole::Orphan(_, 9)));
        assert!(told(&effects).is_empty() && effects.iter().any(asked));
    }
}
