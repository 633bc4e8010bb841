//! A run: events, one after another, until the story is told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use ticketing_raftlog::raft::{Config, Input};
use ticketing_raftlog::{NodeId, Verdict as LogVerdict};

use super::faults::Faulty;
use super::host::{Host, HostSetup, Job, Process, RoleIn};
use crate::checkers::{Checks, Failure};
use crate::clients::{Client, Heard, KeyBook};
use crate::mutants::Mutant;
use crate::node::messages::{Effect, PeerFrame, Reply, Request, Seen, SnapshotFile};
use crate::plan::{MS, Plan, SECOND};
use crate::world::clock::Clock;
use crate::world::events::{Events, Us};
use crate::world::network::{Manners, Network};
use crate::world::rng::Rng;
use crate::world::story::{Keep, Story};

/// How long a quiet log waits for its mark.
pub(super) const IDLE_MARK_US: Us = 50 * MS;
/// How long a run goes on after the faults have stopped.
const CALM_US: Us = 75 * SECOND;
/// From then on, counted from the calm, clients begin nothing new.
pub(super) const LAST_REQUEST_US: Us = 8 * SECOND;

/// What is going to happen.
#[derive(Debug)]
pub enum Event {
    /// A process starts.
    Start(usize),
    /// Something for the process that runs in that life of a machine.
    Process(usize, u64, Inside),
    /// A peer's frame arrives.
    Frame {
        /// Where.
        to: usize,
        /// From where.
        from: usize,
        /// What.
        frame: PeerFrame,
    },
    /// A socket fact for the core: about that peer.
    Hint(usize, usize, Hint),
    /// A client's message arrives at a node.
    ToNode(u32, ClientSays),
    /// A node's message arrives at a client.
    ToClient(u32, NodeSays),
    /// A client's timer.
    Client(usize, u64),
    /// A process that stood still goes on.
    Thaw(usize, u64),
    /// The next fault.
    Fault,
    /// The faults stop.
    Calm,
}

/// What happens inside a process.
#[derive(Debug)]
pub enum Inside {
    /// The role looks at its inbox and the clock.
    Role,
    /// A shard looks at its inbox and the clock.
    Shard(usize),
    /// The disk is done.
    Disk,
    /// A snapshot is saved.
    Saved(SnapshotFile, bool),
    /// A snapshot that found no room may be tried again.
    NotSaved(SnapshotFile, bool),
    /// The next segment is made, if there is room.
    Spare,
    /// The log was quiet for a while.
    Mark,
    /// The planned stop.
    Stop,
    /// The process ends by itself.
    End,
}

/// A socket fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Closed.
    Lost,
    /// Nobody listens.
    Refused,
    /// Open.
    Connected,
}

/// What a client sends.
#[derive(Clone, Debug)]
pub enum ClientSays {
    /// Opens a connection.
    Open,
    /// A request.
    Ask(Request),
    /// Closes it.
    Close,
}

/// What a node sends.
#[derive(Clone, Debug)]
pub enum NodeSays {
    /// The connection is open.
    Opened,
    /// A reply.
    Reply(Reply),
    /// The connection is closed.
    Closed,
}

/// A connection between a client and a node.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Whose.
    pub client: usize,
    /// To where.
    pub node: usize,
    /// The client has not closed it, nor seen it closed.
    pub open_at_client: bool,
}

/// What a run has to tell.
#[derive(Debug)]
pub struct Outcome {
    /// The hash of all events.
    pub hash: u64,
    /// How many there were.
    pub events: u64,
    /// What the clients got.
    pub summary: String,
    /// What went wrong, if anything did.
    pub failure: Option<Failure>,
    /// The last part of the story, if it was kept.
    pub story: Vec<String>,
    /// How long it was, in virtual time.
    pub virtual_us: Us,
}

/// One run.
pub struct Sim {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) net_rng: Rng,
    pub(super) disk_rng: Rng,
    pub(super) lane_rng: Rng,
    pub(super) events: Events<Event>,
    pub(super) net: Network,
    pub(super) hosts: Vec<Host>,
    pub(super) setup: HostSetup,
    pub(super) ids: Vec<NodeId>,
    pub(super) clients: Vec<Client>,
    pub(super) connections: BTreeMap<u32, Connection>,
    pub(super) checks: Checks,
    pub(super) story: Story,
    pub(super) calm: bool,
    pub(super) deferred: Vec<Vec<Event>>,
    pub(super) connections_made: u32,
    pub(super) faulty: Faulty,
}

/// Runs `seed`, with a mistake in the code or none.
#[must_use]
pub fn run(seed: u64, keep: Keep, mutant: Option<Mutant>) -> Outcome {
    let mut sim = Sim::new(seed, keep, mutant);
    let end_us = sim.plan.calm_at_us + CALM_US;
    while sim.checks.failure().is_none() {
        let Some(event) = sim.events.next(end_us) else {
            break;
        };
        // What asserts in the code under test ends the run, not the program.
        let happened = catch_unwind(AssertUnwindSafe(|| sim.happen(event)));
        if let Err(panic) = happened {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let now_us = sim.events.now_us();
            sim.checks.panicked(now_us, text.unwrap_or_default());
        }
    }
    if sim.checks.failure().is_none() {
        sim.finish();
    }
    Outcome {
        hash: sim.story.hash(),
        events: sim.story.events(),
        summary: sim.checks.summary(),
        failure: sim.checks.failure().cloned(),
        story: sim.story.lines().map(str::to_owned).collect(),
        virtual_us: sim.events.now_us(),
    }
}

impl Sim {
    fn new(seed: u64, keep: Keep, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::draw(&mut rng.fork(1));
        if let Some(mutant) = mutant {
            mutant.suits(&mut plan);
        }
        let ids: Vec<NodeId> = (0..plan.nodes).map(|n| NodeId([n as u8 + 1; 16])).collect();
        let config = match Config::new(&ids, &[]) {
            Ok(config) => config,
            Err(error) => panic!("{error}"),
        };
        let mut clock_rng = rng.fork(2);
        let drift = plan.drift_ppm;
        let mut clock = || {
            let ppm = clock_rng.range(0, 2 * drift) as i64 - drift as i64;
            Clock::new(clock_rng.range(1, 1_000) * SECOND, ppm)
        };
        let hosts: Vec<Host> = ids.iter().map(|&id| Host::new(id, clock())).collect();
        let mut client_rng = rng.fork(3);
        let book = Rc::new(RefCell::new(KeyBook::default()));
        let clients: Vec<Client> = (0..plan.clients)
            .map(|number| {
                Client::new(
                    number,
                    &plan,
                    Rc::clone(&book),
                    client_rng.fork(number as u64),
                )
            })
            .collect();
        let setup = HostSetup {
            config,
            timing: plan.timing,
            snapshot_every: plan.snapshot_every,
            #[cfg(feature = "bugs")]
            bug: mutant.and_then(Mutant::core_bug),
            #[cfg(feature = "bugs")]
            table_bug: mutant.and_then(Mutant::table_bug),
            shell_bug: mutant.and_then(Mutant::shell_bug),
            disk_bug: mutant.and_then(Mutant::disk_bug),
        };
        let mut sim = Self {
            net: Network::new(plan.nodes, plan.clients, plan.manners.clone()),
            deferred: (0..plan.nodes).map(|_| Vec::new()).collect(),
            checks: Checks::new(&plan),
            net_rng: rng.fork(4),
            disk_rng: rng.fork(5),
            lane_rng: rng.fork(6),
            faulty: Faulty::new(rng.fork(7), plan.nodes),
            events: Events::default(),
            story: Story::new(keep),
            connections: BTreeMap::new(),
            connections_made: 0,
            calm: false,
            hosts,
            setup,
            ids,
            clients,
            rng,
            plan,
        };
        sim.story.note(&[seed]);
        let plan = sim.plan.clone();
        sim.tell(|| format!("seed {seed}: {plan:?}"));
        for node in 0..sim.plan.nodes {
            let at_us = sim.rng.below(20 * MS);
            sim.events.at(at_us, Event::Start(node));
        }
        for client in 0..sim.plan.clients {
            let at_us = sim.rng.below(SECOND);
            sim.events.at(at_us, Event::Client(client, 0));
        }
        sim.events.at(SECOND, Event::Fault);
        sim.events.at(sim.plan.calm_at_us, Event::Calm);
        sim
    }

    pub(super) fn tell(&mut self, words: impl FnOnce() -> String) {
        self.story.tell(self.events.now_us(), words);
    }

    pub(super) fn now_ms(&self, node: usize) -> u64 {
        self.hosts[node].clock.shown_ms(self.events.now_us())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(node) => self.start(node),
            Event::Process(node, life, inside) => {
                if self.hosts[node].life != life || !self.hosts[node].is_up() {
                    return;
                }
                if self.hosts[node].frozen {
                    self.deferred[node].push(Event::Process(node, life, inside));
                    return;
                }
                self.inside(node, inside);
            }
            Event::Frame { to, from, frame } => {
                if self.hosts[to].frozen {
                    self.deferred[to].push(Event::Frame { to, from, frame });
                } else if self.hosts[to].is_up() {
                    self.tell(|| format!("{from} to {to}: {frame}"));
                    self.story
                        .note(&[1, to as u64, from as u64, self.events.now_us()]);
                    if let Some(process) = &mut self.hosts[to].process {
                        process.role_inbox.push_back(RoleIn::Frame(from, frame));
                    }
                    self.wake_role(to);
                }
            }
            Event::Hint(node, peer, hint) => self.hint(node, peer, hint),
            Event::ToNode(connection, says) => self.client_says(connection, says),
            Event::ToClient(connection, says) => self.node_says(connection, says),
            Event::Client(client, timer) => self.client(client, Heard::Timer(timer)),
            Event::Thaw(node, life) => self.thaw(node, life),
            Event::Fault => self.fault(),
            Event::Calm => self.calm_down(),
        }
    }

    // Processes.

    fn start(&mut self, node: usize) {
        if self.hosts[node].is_up() || self.hosts[node].broken {
            return;
        }
        let now_us = self.events.now_us();
        let mut effects = Vec::new();
        let setup = self.setup.clone();
        let started = self.hosts[node].start(now_us, &setup, &mut self.rng, &mut effects);
        let life = self.hosts[node].life;
        self.story.note(&[2, node as u64, life, now_us]);
        match started {
            Ok(trimmed) => {
                let (hard, last, base) = match &self.hosts[node].process {
                    Some(p) => (self.hosts[node].hard, p.log.last(), p.log.base()),
                    None => return,
                };
                self.tell(|| {
                    let torn = if trimmed { ", a torn tail trimmed" } else { "" };
                    format!(
                        "node {node} starts (life {life}): term {}, log ({}, {}]{torn}",
                        hard.term, base.index, last.index
                    )
                });
                let Some(process) = &self.hosts[node].process else {
                    return;
                };
                self.checks.started(now_us, node, hard, &process.log);
            }
            Err(verdict) => {
                self.hosts[node].broken = true;
                let LogVerdict::Corrupt { at, why } = verdict else {
                    return;
                };
                self.tell(|| format!("node {node} refuses its log at {at:?}: {why}"));
                self.checks.refused(now_us, node, why);
                return;
            }
        }
        self.carry_out(node, effects);
        self.core_input(node, Input::FitToLead { fit: true });
        for peer in 0..self.plan.nodes {
            let connects = peer != node
                && self.hosts[peer].is_up()
                && self.net.reaches(node, peer)
                && self.net.reaches(peer, node);
            if connects {
                let delay_us = self.net_rng.range(100, 5_000);
                self.events
                    .after(delay_us, Event::Hint(node, peer, Hint::Connected));
                self.events
                    .after(delay_us, Event::Hint(peer, node, Hint::Connected));
            }
        }
        self.wake_role(node);
    }

    /// The process ends: its machine goes on if `gently`.
    pub(super) fn end_process(&mut self, node: usize, power: bool) {
        let now_us = self.events.now_us();
        if !self.hosts[node].is_up() {
            return;
        }
        let connections: Vec<u32> = match &self.hosts[node].process {
            Some(process) => process.connections.keys().copied().collect(),
            None => Vec::new(),
        };
        self.hosts[node].kill(&mut self.disk_rng);
        for event in std::mem::take(&mut self.deferred[node]) {
            // Who knocked while it stood still finds the door closed.
            if let Event::ToNode(connection, ClientSays::Open) = event {
                self.close_at_client(connection, 0);
            }
        }
        if power {
            self.hosts[node].same_boot = false;
            let report = self.hosts[node].disk.power_cut(&mut self.disk_rng);
            self.tell(|| format!("node {node} loses its power: {report:?}"));
        } else {
            self.tell(|| format!("node {node}'s process ends"));
        }
        self.story.note(&[3, node as u64, u64::from(power), now_us]);
        self.checks.ended(now_us, node);
        let silent_us = if power { SECOND } else { 0 };
        for connection in connections {
            self.close_at_client(connection, silent_us);
        }
        if power {
            return;
        }
        // Its sockets close, and who connects again finds nobody.
        for peer in 0..self.plan.nodes {
            if peer != node && self.net.reaches(node, peer) {
                let lost_us = self.net_rng.range(1_000, 12_000);
                self.events
                    .after(lost_us, Event::Hint(peer, node, Hint::Lost));
                self.events
                    .after(lost_us + 800, Event::Hint(peer, node, Hint::Refused));
            }
        }
    }

    pub(super) fn freeze(&mut self, node: usize, for_us: Us) {
        let life = self.hosts[node].life;
        if self.hosts[node].is_up() && !self.hosts[node].frozen {
            self.hosts[node].frozen = true;
            self.checks.froze(node);
            self.tell(|| format!("node {node} stands still for {} ms", for_us / MS));
            self.events.after(for_us, Event::Thaw(node, life));
        }
    }

    fn thaw(&mut self, node: usize, life: u64) {
        if self.hosts[node].life != life || !self.hosts[node].frozen {
            return;
        }
        self.hosts[node].frozen = false;
        self.story.note(&[4, node as u64, self.events.now_us()]);
        self.tell(|| format!("node {node} goes on"));
        for event in std::mem::take(&mut self.deferred[node]) {
            self.events.after(0, event);
        }
    }

    fn hint(&mut self, node: usize, peer: usize, hint: Hint) {
        if self.hosts[node].frozen {
            self.deferred[node].push(Event::Hint(node, peer, hint));
            return;
        }
        // A peer that is back refuses nobody, and one that is not connects nobody.
        if (hint == Hint::Refused) == self.hosts[peer].is_up() && hint != Hint::Lost {
            return;
        }
        let peer_id = self.ids[peer];
        let input = match hint {
            Hint::Lost => Input::PeerLost { peer: peer_id },
            Hint::Refused => Input::PeerRefused { peer: peer_id },
            Hint::Connected => Input::PeerConnected { peer: peer_id },
        };
        self.core_input(node, input);
    }

    pub(super) fn core_input(&mut self, node: usize, input: Input) {
        if let Some(process) = &mut self.hosts[node].process {
            process.role_inbox.push_back(RoleIn::Core(input));
            self.wake_role(node);
        }
    }

    fn lane_us(&mut self, node: usize) -> Us {
        let slow = self.hosts[node].slow_until_us > self.events.now_us();
        let most_us = if slow { 40 * MS } else { self.plan.lane_us };
        let most_us = if self.calm { 100 } else { most_us };
        self.lane_rng.range(1, most_us)
    }

    pub(super) fn wake_role(&mut self, node: usize) {
        let delay_us = self.lane_rng.range(1, 60);
        let life = self.hosts[node].life;
        if let Some(process) = &mut self.hosts[node].process
            && !process.role_due
        {
            process.role_due = true;
            self.events
                .after(delay_us, Event::Process(node, life, Inside::Role));
        }
    }

    pub(super) fn wake_shard(&mut self, node: usize, shard: usize) {
        let life = self.hosts[node].life;
        let due = self.hosts[node]
            .process
            .as_ref()
            .is_some_and(|p| p.shard_due[shard]);
        if due {
            return;
        }
        let delay_us = self.lane_us(node);
        if let Some(process) = &mut self.hosts[node].process {
            process.shard_due[shard] = true;
            self.events
                .after(delay_us, Event::Process(node, life, Inside::Shard(shard)));
        }
    }

    fn inside(&mut self, node: usize, inside: Inside) {
        match inside {
            Inside::Role => self.run_role(node),
            Inside::Shard(shard) => self.run_shard(node, shard),
            Inside::Disk => self.disk_done(node),
            Inside::Saved(file, installed) => self.save_snapshot(node, file, installed),
            Inside::NotSaved(file, installed) => {
                if let Some(process) = &mut self.hosts[node].process {
                    process
                        .role_inbox
                        .push_back(RoleIn::NotSaved(file, installed));
                }
                self.wake_role(node);
            }
            Inside::Spare => self.make_spare(node),
            Inside::Mark => {
                if let Some(process) = &mut self.hosts[node].process
                    && process.jobs.is_empty()
                    && process.working.is_none()
                {
                    let epoch = process.role.core().epoch();
                    process.log.mark_if_needed(epoch);
                    self.take_writes(node);
                }
            }
            Inside::Stop => {
                self.tell(|| format!("node {node} is asked to stop"));
                let mut effects = Vec::new();
                if let Some(process) = &mut self.hosts[node].process {
                    process.stopping = true;
                    process.role.stop(&mut process.log, &mut effects);
                }
                self.carry_out(node, effects);
                let life = self.hosts[node].life;
                self.events
                    .after(5 * SECOND, Event::Process(node, life, Inside::End));
            }
            Inside::End => {
                self.end_process(node, false);
                self.restart_later(node);
            }
        }
    }

    pub(super) fn restart_later(&mut self, node: usize) {
        let delay_us = if self.calm {
            100 * MS
        } else {
            self.rng.range(1, 3_000) * MS
        };
        self.events.after(delay_us, Event::Start(node));
    }

    pub(super) fn run_role(&mut self, node: usize) {
        let now_us = self.events.now_us();
        let now_ms = self.now_ms(node);
        self.story.note(&[5, node as u64, now_us]);
        let ids = self.ids.clone();
        let mut effects = Vec::new();
        let Some(process) = &mut self.hosts[node].process else {
            return;
        };
        process.role_due = false;
        let timer_us = &mut process.timers_us[process.shards.len()];
        if *timer_us <= now_us {
            *timer_us = Us::MAX;
        }
        let Process { role, log, .. } = process;
        role.input(Input::Tick { now_ms }, log, &mut effects);
        while let Some(item) = process.role_inbox.pop_front() {
            let Process { role, log, .. } = process;
            match item {
                RoleIn::Shard(message) => role.take(message, &ids, log, &mut effects),
                RoleIn::Frame(from, frame) => {
                    role.frame(ids[from], from as u32, frame, log, &mut effects);
                }
                RoleIn::Core(input) => role.input(input, log, &mut effects),
                RoleIn::Saved(file, installed) => {
                    role.snapshot_saved(file, installed, log, &mut effects);
                }
                RoleIn::NotSaved(file, installed) => {
                    role.snapshot_failed(&file, installed, log, &mut effects);
                }
            }
            // One after the other, so that what is seen of the log is as it was then.
            if !effects.is_empty() {
                break;
            }
        }
        let more = !process.role_inbox.is_empty();
        self.carry_out(node, effects);
        if more {
            self.wake_role(node);
        }
        self.arm_role(node);
    }

    fn arm_role(&mut self, node: usize) {
        let now_us = self.events.now_us();
        let host = &mut self.hosts[node];
        let life = host.life;
        let Some(process) = &mut host.process else {
            return;
        };
        let deadline_ms = process.role.core().next_deadline_ms();
        let place = process.shards.len();
        if deadline_ms == u64::MAX {
            return;
        }
        let at_us = host.clock.when_us(now_us, deadline_ms).max(now_us + 100);
        if at_us < process.timers_us[place] {
            process.timers_us[place] = at_us;
            self.events
                .at(at_us, Event::Process(node, life, Inside::Role));
        }
    }

    pub(super) fn run_shard(&mut self, node: usize, shard: usize) {
        let now_us = self.events.now_us();
        let now_ms = self.now_ms(node);
        self.story.note(&[6, node as u64, shard as u64, now_us]);
        let mut effects = Vec::new();
        let Some(process) = &mut self.hosts[node].process else {
            return;
        };
        process.shard_due[shard] = false;
        if process.timers_us[shard] <= now_us {
            process.timers_us[shard] = Us::MAX;
        }
        while let Some(message) = process.shard_inbox[shard].pop_front() {
            process.shards[shard].take(now_ms, message, &mut effects);
        }
        process.shards[shard].advance(now_ms, &mut effects);
        self.carry_out(node, effects);
        let host = &mut self.hosts[node];
        let life = host.life;
        let Some(process) = &mut host.process else {
            return;
        };
        if let Some(deadline_ms) = process.shards[shard].next_deadline_ms() {
            let at_us = host.clock.when_us(now_us, deadline_ms).max(now_us + 100);
            if at_us < process.timers_us[shard] {
                process.timers_us[shard] = at_us;
                self.events
                    .at(at_us, Event::Process(node, life, Inside::Shard(shard)));
            }
        }
    }

    pub(super) fn carry_out(&mut self, node: usize, effects: Vec<Effect>) {
        for effect in effects {
            if self.hosts[node].process.is_none() {
                return;
            }
            match effect {
                Effect::ToShard(to, message) => {
                    let to = usize::from(to);
                    if let Some(process) = &mut self.hosts[node].process {
                        process.shard_inbox[to].push_back(message);
                    }
                    self.wake_shard(node, to);
                }
                Effect::ToRole(message) => {
                    if let Some(process) = &mut self.hosts[node].process {
                        process.role_inbox.push_back(RoleIn::Shard(message));
                    }
                    self.wake_role(node);
                }
                Effect::Reply(connection, reply) => {
                    self.send_to_client(connection, NodeSays::Reply(reply));
                }
                Effect::Close(connection) => {
                    self.send_to_client(connection, NodeSays::Closed);
                }
                Effect::Send(to, frame) => {
                    if let Some(to) = self.ids.iter().position(|id| *id == to) {
                        self.send_frame(node, to, frame);
                    }
                }
                Effect::PersistHardState(hard) => {
                    if let Some(process) = &mut self.hosts[node].process {
                        process.jobs.push_back(Job::Hard(hard));
                    }
                }
                Effect::SaveSnapshot(file, installed) => {
                    let delay_us = self.disk_rng.range(500, 50_000);
                    let life = self.hosts[node].life;
                    let saved = Inside::Saved(file, installed);
                    self.events
                        .after(delay_us, Event::Process(node, life, saved));
                }
                Effect::Stopped => {
                    let life = self.hosts[node].life;
                    let silent_us = self.rng.range(1, 250) * MS;
                    self.events
                        .after(silent_us, Event::Process(node, life, Inside::End));
                }
                Effect::Seen(seen) => self.seen(node, &seen),
            }
        }
        self.take_writes(node);
    }

    pub(super) fn seen(&mut self, node: usize, seen: &Seen) {
        let now_us = self.events.now_us();
        match seen {
            Seen::Role { role, term, leader } => {
                let leader = leader.and_then(|leader| self.ids.iter().position(|id| *id == leader));
                self.story.note(&[7, node as u64, term.0, *role as u64]);
                self.tell(|| {
                    let of = leader.map_or_else(String::new, |leader| format!(" of node {leader}"));
                    format!("node {node} in term {term}: {role:?}{of}")
                });
            }
            Seen::Ready(term) => {
                self.tell(|| format!("node {node} is ready in term {term}"));
            }
            Seen::Truncated(from) => {
                self.tell(|| format!("node {node} truncates its log from {from}"));
            }
            Seen::ResetTo(last) => {
                self.tell(|| format!("node {node} goes on behind a snapshot at {}", last.index));
            }
            Seen::StateHash(index, sum) => {
                self.story.note(&[8, node as u64, index.0, *sum as u64]);
            }
            Seen::Committed(index) => {
                self.tell(|| format!("node {node} knows {index} committed"));
            }
            Seen::Applied(index, applied) => {
                self.story.note(&[9, node as u64, index.0]);
                self.tell(|| format!("node {node} applies {index}: {applied:?}"));
            }
            Seen::Told { origin, verdict } => {
                self.tell(|| {
                    let (conn, id) = (origin.connection, origin.request_id);
                    format!("node {node} answers {id} on connection {conn}: {verdict:?}")
                });
            }
            _ => {}
        }
        let Some(process) = &self.hosts[node].process else {
            return;
        };
        let now_ms = self.hosts[node].clock.shown_ms(now_us);
        self.checks.seen(now_us, now_ms, node, process, seen);
    }

    // The end.

    fn calm_down(&mut self) {
        self.tell(|| "the faults stop".to_owned());
        self.calm = true;
        self.net.heal();
        self.net.set_manners(Manners::calm());
        let now_us = self.events.now_us();
        for node in 0..self.plan.nodes {
            self.hosts[node].hung_until_us = 0;
            self.hosts[node].slow_until_us = 0;
            let life = self.hosts[node].life;
            self.thaw(node, life);
            self.events.after(50 * MS, Event::Start(node));
            self.hosts[node].disk.make_room();
            for peer in 0..self.plan.nodes {
                if peer != node {
                    self.events
                        .after(20 * MS, Event::Hint(node, peer, Hint::Connected));
                }
            }
        }
        self.checks.calm(now_us);
    }

    fn finish(&mut self) {
        let now_us = self.events.now_us();
        let processes: Vec<(usize, &Process)> = self
            .hosts
            .iter()
            .enumerate()
            .filter_map(|(node, host)| Some((node, host.process.as_ref()?)))
            .collect();
        let unfinished: usize = self.clients.iter().map(Client::unfinished).sum();
        self.checks.finish(now_us, &processes, unfinished);
    }
}
