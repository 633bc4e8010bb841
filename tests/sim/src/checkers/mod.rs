//! One checker for each property, in a file of its own that cites where the property comes from.

pub mod corruption;
pub mod deadlines;
pub mod definite_answers;
pub mod early_expiry;
pub mod election_safety;
pub mod fifo;
pub mod folders;
pub mod hand_over;
pub mod history;
pub mod leader_append_only;
pub mod leader_completeness;
pub mod liveness;
pub mod log_matching;
pub mod logs;
pub mod lost_grants;
pub mod membership;
pub mod moved;
pub mod newcomer;
pub mod one_answer;
pub mod one_holder;
pub mod one_vote;
pub mod quorums;
pub mod replaced;
pub mod state_machine_safety;
pub mod tokens;

use std::collections::BTreeMap;
use std::rc::Rc;

use ticketing::locks::Applied;
use ticketing_raftlog::peers::{Claim, Incarnation, Reason};
use ticketing_raftlog::raft::{AppendKind, ConfigEntry, Role};
use ticketing_raftlog::{HardState, LogIndex, NodeId};

use self::corruption::Corruption;
use self::deadlines::Deadlines;
use self::definite_answers::DefiniteAnswers;
use self::early_expiry::Leases;
use self::election_safety::ElectionSafety;
use self::fifo::Fifo;
use self::folders::Folders;
use self::hand_over::HandOver;
use self::history::{Change, History};
use self::liveness::Liveness;
use self::log_matching::LogMatching;
use self::logs::Logs;
use self::lost_grants::LostGrants;
use self::moved::Moved;
use self::one_answer::OneAnswer;
use self::one_holder::OneHolder;
use self::one_vote::OneVote;
use self::quorums::Quorums;
use self::replaced::Replaced;
use self::tokens::Tokens;
use crate::clients::Believes;
use crate::cluster::folders::Kind;
use crate::cluster::host::{Process, genesis, node_id};
use crate::memlog::MemLog;
use crate::node::journal::Journal;
use crate::node::messages::{Request, Seen, Verdict};
use crate::plan::{Plan, SECOND};
use crate::world::events::Us;

/// What a checker says: what is wrong, if anything is.
pub type Check = Result<(), String>;

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The property.
    pub checker: &'static str,
    /// What.
    pub what: String,
    /// When, in virtual time.
    pub at_us: Us,
}

#[derive(Debug)]
struct Asked {
    request: Request,
    highest_before: u64,
    arrived_us: Us,
}

/// Everything that looks on.
#[derive(Debug)]
pub struct Checks {
    wild_clocks: bool,
    failure: Option<Failure>,
    now_us: Us,
    calm_us: Option<Us>,
    history: History,
    logs: Logs,
    election_safety: ElectionSafety,
    one_vote: OneVote,
    moved: Moved,
    quorums: Quorums,
    replaced: Replaced,
    log_matching: LogMatching,
    one_holder: OneHolder,
    tokens: Tokens,
    leases: Leases,
    fifo: Fifo,
    hand_over: HandOver,
    definite: DefiniteAnswers,
    one_answer: OneAnswer,
    deadlines: Deadlines,
    lost_grants: LostGrants,
    liveness: Liveness,
    corruption: Corruption,
    folders: Folders,
    requests: BTreeMap<(u32, u64), Asked>,
    /// Since when each node's process runs, or goes on behind a snapshot.
    since_us: BTreeMap<usize, Us>,
    /// Ready and not held up since: node and time, by term.
    ready: BTreeMap<u64, (usize, Us)>,
    hung_until_us: Us,
    committed: BTreeMap<usize, u64>,
    told: BTreeMap<&'static str, u64>,
}

impl Checks {
    /// Checkers that have seen nothing.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        Self {
            wild_clocks: plan.wild_clocks,
            failure: None,
            now_us: 0,
            calm_us: None,
            history: History::new(genesis(plan.nodes)),
            logs: Logs::default(),
            election_safety: ElectionSafety::default(),
            one_vote: OneVote::default(),
            moved: Moved::default(),
            quorums: Quorums::default(),
            replaced: Replaced::default(),
            log_matching: LogMatching::default(),
            one_holder: OneHolder::default(),
            tokens: Tokens::default(),
            leases: Leases::default(),
            fifo: Fifo::default(),
            hand_over: HandOver::default(),
            definite: DefiniteAnswers::default(),
            one_answer: OneAnswer::default(),
            deadlines: Deadlines::default(),
            lost_grants: LostGrants::default(),
            liveness: Liveness::default(),
            corruption: Corruption::default(),
            folders: Folders::default(),
            requests: BTreeMap::new(),
            since_us: BTreeMap::new(),
            ready: BTreeMap::new(),
            hung_until_us: 0,
            committed: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// What went wrong first.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// What there was, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let answers: Vec<String> = self
            .told
            .iter()
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
        let ended = self
            .history
            .grants()
            .values()
            .filter_map(|granted| granted.ended);
        let expired = ended.filter(|(_, _, expired)| *expired).count();
        format!(
            "{} terms, {} configurations, {} entries, {} grants ({expired} expired); {}",
            self.election_safety.terms(),
            self.history.configs().len(),
            self.history.last() - crate::cluster::host::GENESIS.index.0,
            self.history.grants().len(),
            answers.join(", ")
        )
    }

    /// How many Expires ended nothing, of those that were committed.
    #[must_use]
    pub fn idle_expires(&self) -> usize {
        self.history.idle_expires()
    }

    /// How many folders were out, were refused, and ended their process.
    #[must_use]
    pub fn folders(&self) -> [u64; 3] {
        self.folders.counts()
    }

    fn check(&mut self, checker: &'static str, check: Check) {
        if let Err(what) = check
            && self.failure.is_none()
        {
            self.failure = Some(Failure {
                checker,
                what,
                at_us: self.now_us,
            });
        }
    }

    /// The code under test, or the world, asserted something that does not hold.
    pub fn panicked(&mut self, now_us: Us, text: String) {
        self.now_us = now_us;
        self.check("assertions", Err(text));
    }

    /// Keys that are held, each with a token of it that has ended.
    #[must_use]
    pub fn outlived(&self) -> Vec<(Rc<[u8]>, u64)> {
        let grants = self.history.grants();
        let ended = grants.iter().filter(|(_, granted)| granted.ended.is_some());
        let held = self.history.held();
        ended
            .filter(|(_, granted)| held.contains_key(&granted.key))
            .map(|(&token, granted)| (granted.key.clone(), token))
            .collect()
    }

    // Processes.

    /// A process starts from what is on its disk.
    pub fn started(
        &mut self,
        now_us: Us,
        node: usize,
        hard: HardState,
        log: &MemLog,
        first: ConfigEntry,
    ) {
        self.now_us = now_us;
        self.logs.started(node, log, first, &self.history);
        self.replaced
            .started(node, log.base().index.0, &self.history);
        self.quorums.durable(node, hard);
        self.since_us.insert(node, now_us);
        self.committed.insert(node, log.base().index.0);
        let check = self.one_vote.durable(node, hard);
        self.check("one vote", check);
        let check = self.corruption.taken(node);
        self.check("corruption", check);
    }

    /// A process refuses its log.
    pub fn refused(&mut self, now_us: Us, node: usize, why: &str) {
        self.now_us = now_us;
        let check = self.corruption.refused(node, why);
        self.check("corruption", check);
    }

    /// A bit below a synced mark of a node's log flips.
    pub fn rots(&mut self, node: usize) {
        self.corruption.rots(node);
    }

    /// A process ends.
    pub fn ended(&mut self, now_us: Us, node: usize) {
        self.now_us = now_us;
        self.deadlines.ended(node);
        self.replaced.ended(node);
        self.held_up(node);
        self.since_us.remove(&node);
    }

    /// A process stands still.
    pub fn froze(&mut self, node: usize) {
        self.deadlines.froze(node);
        self.replaced.froze(node);
        self.held_up(node);
    }

    /// A disk hangs until then: a follower's may hold up every commit, and the leader leads on.
    pub fn hangs(&mut self, until_us: Us) {
        self.hung_until_us = self.hung_until_us.max(until_us);
    }

    /// Whether the newest committed configuration has the node.
    fn is_member(&self, node: usize) -> bool {
        let last = self.history.configs().last();
        last.is_some_and(|entry| entry.config.is_member(node_id(node)))
    }

    fn held_up(&mut self, node: usize) {
        self.moved.held_up(node);
        self.leases.forget(node);
        self.ready.retain(|_, (of, _)| *of != node);
    }

    /// Term and vote are durable.
    pub fn hard_state(&mut self, node: usize, hard: HardState) {
        self.quorums.durable(node, hard);
        let check = self.one_vote.durable(node, hard);
        self.check("one vote", check);
    }

    /// The log of a node is on its disk up to there.
    pub fn synced(&mut self, node: usize, up_to: LogIndex) {
        self.logs.synced(node, up_to);
    }

    /// A node opens its port to clients.
    pub fn opens(&mut self, now_us: Us, node: usize, process: &Process) {
        self.now_us = now_us;
        let check = newcomer::serves(node, known_to(process), &self.history);
        self.check("newcomer", check);
    }

    /// Something happened inside a process.
    pub fn seen(&mut self, now_us: Us, now_ms: u64, node: usize, process: &Process, seen: &Seen) {
        self.now_us = now_us;
        let core = process.role.core();
        let check = self.replaced.goes_on(node, now_us);
        self.check("replaced", check);
        match seen {
            Seen::Role { role, term, .. } => {
                self.moved.changed(node, now_us);
                let config = self.logs.of(node).and_then(|log| log.config()).copied();
                let check = membership::stands(node, node_id(node), *role, config.as_ref());
                self.check("membership", check);
                if *role == Role::Leader {
                    let check = self.quorums.leads(node, term.0, config.as_ref());
                    self.check("quorums", check);
                    let check = replaced::leads(node, term.0, &self.history);
                    self.check("replaced", check);
                    let check = self.replaced.acts(node, "comes to lead");
                    self.check("replaced", check);
                    let check = self.election_safety.leads(node, term.0);
                    self.check("election safety", check);
                    if let Some(log) = self.logs.of(node) {
                        let check = leader_completeness::leads(node, term.0, log, &self.history);
                        self.check("leader completeness", check);
                    }
                }
            }
            Seen::Ready(term) => {
                self.ready.insert(term.0, (node, now_us));
            }
            Seen::Truncated(from) => {
                self.logs.truncated(node, *from);
                let leads = core.role() == Role::Leader;
                let check = leader_append_only::cut(node, from.0, leads);
                self.check("leader append-only", check);
            }
            Seen::ResetTo(last) => {
                self.moved.changed(node, now_us);
                self.logs.reset(node, *last, core.config(), &self.history);
                self.committed.insert(node, last.index.0);
                self.replaced
                    .knows(node, last.index.0, true, now_us, &self.history);
                self.since_us.insert(node, now_us);
                self.leases.forget(node);
                let check = leader_append_only::cut(node, 0, core.role() == Role::Leader);
                self.check("leader append-only", check);
            }
            Seen::Appended(last) => self.appended(node, *last, process),
            Seen::Committed(up_to) => {
                if core.role() == Role::Leader {
                    let check = quorums::committed(node, up_to.0, &self.logs);
                    self.check("quorums", check);
                }
                self.committed(node, *up_to, core.term().0, &process.log);
                self.replaced
                    .knows(node, up_to.0, false, now_us, &self.history);
            }
            Seen::StateHash(index, sum) => {
                let check = state_machine_safety::state(node, index.0, *sum, &self.history);
                self.check("state machine safety", check);
            }
            Seen::Applied(index, applied) => {
                if let Applied::Granted { token } = applied {
                    self.leases.applied(node, *token, now_us);
                }
                let check = state_machine_safety::applied(node, index.0, *applied, &self.history);
                self.check("state machine safety", check);
            }
            Seen::Considered {
                origin,
                term,
                request,
            } => {
                if let Request::Acquire { key, wait_s, .. } = request
                    && *wait_s > 0
                {
                    let life = self.since_us.get(&node).copied().unwrap_or(0);
                    let request = (origin.connection, origin.request_id);
                    self.fifo.came(request, node, life, term.0, key);
                }
            }
            Seen::Proposed(term, payload) => {
                self.hand_over.proposed(term.0, payload, self.fifo.count());
            }
            Seen::Told { origin, verdict } => {
                let check = newcomer::serves(node, known_to(process), &self.history);
                self.check("newcomer", check);
                let leader = core.leader().filter(|_| core.role() != Role::Leader);
                if let Some(log) = self.logs.of(node) {
                    let check = self.moved.told(node, log, leader, *verdict, now_us);
                    self.check("moved", check);
                }
                if core.role() != Role::Leader {
                    let check = self.replaced.acts(node, "answers a client");
                    self.check("replaced", check);
                }
                self.told((origin.connection, origin.request_id), *verdict, now_ms);
            }
            Seen::ConfigCommitted { .. } | Seen::ChangeRefused(..) => {}
        }
    }

    fn appended(&mut self, node: usize, last: LogIndex, process: &Process) {
        let (core, log) = (process.role.core(), &process.log);
        let mut check = Ok(());
        let (matching, now_us) = (&mut self.log_matching, self.now_us);
        self.logs.appended(node, last, log, |index, term, chain| {
            if check.is_ok() {
                check = matching.appended(node, index, term, chain, now_us);
            }
        });
        self.check("log matching", check);
        let is_config = log
            .entry(last)
            .is_some_and(|entry| matches!(entry.kind, AppendKind::Config(_)));
        if is_config {
            self.moved.changed(node, self.now_us);
        }
        if let Some(shadow) = self.logs.of(node)
            && is_config
            && core.role() == Role::Leader
        {
            let check = membership::appended(node, shadow, &self.history);
            self.check("membership", check);
        }
    }

    fn committed(&mut self, node: usize, up_to: LogIndex, term: u64, log: &MemLog) {
        let from = self.committed.insert(node, up_to.0).unwrap_or(0) + 1;
        for index in from..=up_to.0 {
            if self.failure.is_some() {
                return;
            }
            if index > self.history.last() {
                let Some(entry) = log.entry(LogIndex(index)).cloned() else {
                    return;
                };
                if index > self.history.last() + 1 {
                    return;
                }
                let change = self.history.push(&entry, term, self.now_us);
                if let AppendKind::Config(_) = entry.kind {
                    let check = membership::committed(&self.history);
                    self.check("membership", check);
                }
                self.changed(index, term, entry.term.0, &entry.payload, &change);
            }
            let chain = self.logs.of(node).and_then(|log| log.chain(index));
            if let Some(chain) = chain {
                let check = state_machine_safety::committed(node, index, chain, &self.history);
                self.check("state machine safety", check);
            }
        }
    }

    /// The model's lock state has changed.
    fn changed(&mut self, index: u64, known: u64, term: u64, payload: &Rc<[u8]>, change: &Change) {
        match change {
            Change::None => {}
            Change::Granted(token) => {
                let Some(granted) = self.history.grants().get(token).cloned() else {
                    return;
                };
                let check = self.definite.granted(&granted.key, granted.lease_s, *token);
                self.check("definite answers", check);
                let attempt = self.requests.iter().rev().find(|(_, asked)| {
                    matches!(&asked.request, Request::Acquire { key, lease_s, .. }
                        if *key == granted.key && u64::from(*lease_s) == granted.lease_s)
                });
                let came = attempt.and_then(|(request, _)| self.fifo.place(*request));
                if let (Some(came), Some(removal)) = (came, granted.after_removal)
                    && self
                        .history
                        .at(removal)
                        .is_some_and(|removal| removal.term == term)
                {
                    let check = self.hand_over.granted(index, removal, came);
                    self.check("hand-over", check);
                }
            }
            Change::Ended(token) => {
                self.hand_over.removed(index, term, payload);
                let Some(granted) = self.history.grants().get(token).cloned() else {
                    return;
                };
                let Some((_, _, true)) = granted.ended else {
                    return;
                };
                let steady =
                    |(_, ready_us): &(usize, Us)| known == term && *ready_us > self.hung_until_us;
                let leader = self.ready.get(&term).copied().filter(steady);
                if !self.wild_clocks {
                    let check = self.leases.expired(*token, &granted, self.now_us, leader);
                    self.check("early expiry", check);
                }
                // Who has left releases nothing any more.
                let proposer = self.election_safety.leader(granted.term);
                let proposer = proposer.filter(|node| self.is_member(*node));
                let since_us = proposer.and_then(|node| self.since_us.get(&node));
                let proposed_us = self.log_matching.proposed_us(*token, granted.term);
                let alive = since_us
                    .zip(proposed_us)
                    .is_some_and(|(since, at)| *since < at);
                let healed = self
                    .calm_us
                    .is_some_and(|calm_us| self.now_us > calm_us + 5 * SECOND);
                let check = self.lost_grants.expired(*token, &granted, alive && healed);
                self.check("lost grants", check);
            }
        }
    }

    // Folders.

    /// A folder is put where it does not belong.
    pub fn folder_out(&mut self) {
        self.folders.out();
    }

    /// Whether `judge` has let a node in with that folder, at that start or a later one.
    #[must_use]
    pub fn remembers(
        &self,
        judge: usize,
        node: NodeId,
        incarnation: Option<Incarnation>,
        starts: u64,
    ) -> bool {
        self.folders.remembers(judge, node, incarnation, starts)
    }

    /// A machine judges the claim of another, whose folder is `kind`, or its node's own.
    pub fn folder_judged(
        &mut self,
        now_us: Us,
        who: (usize, usize),
        claim: &Claim,
        kind: Option<Kind>,
        verdict: Result<(), Reason>,
    ) {
        self.now_us = now_us;
        let check = self.folders.judged(who, claim, kind, verdict);
        self.check("folders", check);
    }

    /// A frame of a machine whose folder is `kind` gets to the core of another.
    pub fn folder_heard(&mut self, now_us: Us, from: usize, to: usize, kind: Option<Kind>) {
        self.now_us = now_us;
        self.check("folders", folders::heard(from, to, kind));
    }

    /// Something happened in a process with a folder that is not its node's.
    pub fn folder_acts(&mut self, now_us: Us, machine: usize, seen: &Seen, kind: Kind) {
        self.now_us = now_us;
        if let Seen::Role { role, .. } = seen {
            self.check("folders", folders::stands(machine, *role, kind));
        }
    }

    /// A process ends because it was refused for good.
    pub fn folder_exits(&mut self, now_us: Us, node: usize, kind: Option<Kind>) {
        self.now_us = now_us;
        let check = self.folders.exits(node, kind);
        self.check("folders", check);
    }

    // Requests.

    /// A client sends a request.
    pub fn sent(&mut self, now_us: Us, connection: u32, request: &Request) {
        self.now_us = now_us;
        self.liveness.asked(now_us);
        let (Request::Acquire { id, .. } | Request::Release { id, .. }) = *request;
        if let Request::Release { token, .. } = *request {
            self.one_holder.guesses(token);
        }
        let asked = Asked {
            request: request.clone(),
            highest_before: self.tokens.highest(),
            arrived_us: Us::MAX,
        };
        self.requests.insert((connection, id), asked);
    }

    /// It arrives at a node.
    pub fn arrived(
        &mut self,
        now_us: Us,
        now_ms: u64,
        node: usize,
        connection: u32,
        request: &Request,
    ) {
        self.now_us = now_us;
        let (Request::Acquire { id, .. } | Request::Release { id, .. }) = *request;
        if let Some(asked) = self.requests.get_mut(&(connection, id)) {
            asked.arrived_us = now_us;
        }
        if !self.wild_clocks {
            self.deadlines.arrived(node, connection, request, now_ms);
        }
    }

    /// A node sees a connection closed.
    pub fn disconnected(&mut self, connection: u32) {
        self.deadlines.disconnected(connection);
    }

    fn told(&mut self, request: (u32, u64), verdict: Verdict, now_ms: u64) {
        *self.told.entry(letter(verdict)).or_default() += 1;
        let serves = |verdict| !matches!(verdict, Verdict::Moved(_) | Verdict::NoLeader);
        if serves(verdict) && verdict != Verdict::Indeterminate {
            self.liveness.served(self.now_us);
        }
        let check = self.one_answer.told(request, verdict);
        self.check("one answer", check);
        let check = self.deadlines.told(request, verdict, now_ms);
        self.check("deadlines", check);
        let Some(asked) = self.requests.get(&request) else {
            return;
        };
        let arrived_us = asked.arrived_us;
        match asked.request.clone() {
            Request::Acquire { key, lease_s, .. } => {
                let lease_s = u64::from(lease_s);
                let check = self.definite.acquire(&key, lease_s, verdict, &self.history);
                self.check("definite answers", check);
                if let Verdict::Acquired { token, .. } = verdict {
                    self.lost_grants.told(token);
                    let check = self
                        .tokens
                        .told(request, &key, lease_s, token, &self.history);
                    self.check("tokens", check);
                    let check = self.fifo.granted(request, token);
                    self.check("first come, first served", check);
                }
            }
            Request::Release { key, token, .. } => {
                let check =
                    definite_answers::release(&key, token, arrived_us, verdict, &self.history);
                self.check("definite answers", check);
            }
        }
    }

    /// A client gets an answer.
    pub fn answered(&mut self, now_us: Us, connection: u32, id: u64, verdict: Verdict) {
        self.now_us = now_us;
        if let Verdict::Acquired { token, .. } = verdict
            && let Some(asked) = self.requests.get(&(connection, id))
        {
            let check = self.tokens.learned(token, asked.highest_before);
            self.check("tokens", check);
        }
    }

    /// A client believes something.
    pub fn client(&mut self, now_us: Us, event: &Believes) {
        self.now_us = now_us;
        match event {
            Believes::Holds {
                key,
                token,
                until_us,
                ..
            } => {
                let check = self.one_holder.holds(key, *token, *until_us, now_us);
                if !self.wild_clocks {
                    self.check("one holder", check);
                }
            }
            Believes::LetGo { key, token } => self.one_holder.lets_go(key, *token),
            Believes::Released { .. } | Believes::GaveUp => {}
        }
    }

    // The end.

    /// The faults stop.
    pub fn calm(&mut self, now_us: Us) {
        self.now_us = now_us;
        self.calm_us = Some(now_us);
        self.liveness.calm(now_us);
    }

    /// At the end: the machine that the operator is not done with.
    pub fn operator(&mut self, in_hand: Option<usize>) {
        if let Some(spare) = in_hand {
            let what = format!("the operator is not done with machine {spare}");
            self.check("liveness", Err(what));
        }
    }

    /// The run is over.
    pub fn finish(
        &mut self,
        now_us: Us,
        all: &[(usize, &Process)],
        unfinished: usize,
        knows_left: &dyn Fn(NodeId, NodeId) -> bool,
    ) {
        self.now_us = now_us;
        let check = membership::finish(all, &self.history, knows_left);
        self.check("membership", check);
        let processes: Vec<(usize, &Process)> = all
            .iter()
            .copied()
            .filter(|(node, _)| self.is_member(*node))
            .collect();
        let processes = &processes[..];
        let check = self.liveness.finish(processes, unfinished);
        self.check("liveness", check);
        let check = self.deadlines.finish();
        self.check("deadlines", check);
        let check = lost_grants::finish(processes, &self.history);
        self.check("lost grants", check);
    }
}

/// What a process knows committed: what its log goes on behind, at least.
fn known_to(process: &Process) -> u64 {
    let commit = process.role.core().commit();
    commit.max(process.log.base().index).0
}

fn letter(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Acquired { .. } => "A",
        Verdict::Released => "R",
        Verdict::NotFound => "N",
        Verdict::TimedOut => "T",
        Verdict::Busy => "B",
        Verdict::Indeterminate => "I",
        Verdict::Moved(_) => "M",
        Verdict::NoLeader => "E4",
        Verdict::NotActive => "E3",
    }
}
