//! A run: events, one after another, until the story is told.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use ticketing_raftlog::NodeId;
use ticketing_raftlog::peers::Reason;

use super::faults::Faulty;
use super::folders::Folders;
use super::host::{Host, HostSetup, Process, RoleIn, genesis, host_of, node_id};
use super::members::Address;
use super::names::Link;
use super::operator::Operator;
use super::scenes::Scenes;
use crate::checkers::{Checks, Failure};
use crate::clients::{Client, Heard, KeyBook};
use crate::mutants::Mutant;
use crate::node::messages::{PeerFrame, Reply, Request, SnapshotFile};
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
    /// A node is refused by another.
    Refused {
        /// Who.
        node: usize,
        /// By whom.
        by: usize,
        /// Why.
        reason: Reason,
    },
    /// The operator looks at the cluster.
    Operator,
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
    /// One more fault.
    Strike,
    /// A scene begins or goes on.
    Scene,
    /// A folder is put where it does not belong, or put right.
    Folders,
    /// An Expire that is long out of date is proposed.
    LateExpire,
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
    /// The port is tried again.
    Open,
    /// The port was open for so long that the node may be handed leadership.
    Fit,
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

/// How often what hardly ever comes about by itself did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rare {
    /// Scenes that were played to their end: figure 8, the truncated entry, the leader that was deposed.
    pub scenes: [u64; 3],
    /// Expires that ended nothing.
    pub idle_expires: usize,
    /// Folders that were out, refusals of them, and processes that ended because of those.
    pub folders: [u64; 3],
}

impl Rare {
    /// Adds what another run had.
    pub fn add(&mut self, other: &Self) {
        self.idle_expires += other.idle_expires;
        for (own, other) in [
            (&mut self.scenes, other.scenes),
            (&mut self.folders, other.folders),
        ] {
            for (own, other) in own.iter_mut().zip(other) {
                *own += other;
            }
        }
    }
}

/// A connection between a client and a node.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Whose.
    pub client: usize,
    /// To which slot.
    pub slot: usize,
    /// The machine that had its address then.
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
    /// What hardly ever comes about.
    pub rare: Rare,
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
    pub(super) members_rng: Rng,
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
    /// Where clients find each slot.
    pub(super) addresses: Vec<Address>,
    pub(super) operator: Operator,
    pub(super) scenes: Scenes,
    pub(super) rare_rng: Rng,
    pub(super) folders: Folders,
    /// Connections between nodes, in runs in which they ask each other's names.
    pub(super) links: BTreeMap<(usize, usize), Link>,
    /// When two that did not let each other in try again.
    pub(super) meets_again: BTreeMap<(usize, usize), Us>,
}

/// Runs `seed`, with a mistake in the code or none.
#[must_use]
pub fn run(seed: u64, keep: Keep, mutant: Option<Mutant>) -> Outcome {
    play(Sim::new(seed, keep, mutant, mutant))
}

/// Runs `seed` by the plan that would bring the mistake out, without the mistake.
#[must_use]
pub fn run_without(seed: u64, keep: Keep, mutant: Mutant) -> Outcome {
    play(Sim::new(seed, keep, Some(mutant), None))
}

fn play(mut sim: Sim) -> Outcome {
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
        rare: Rare {
            scenes: sim.scenes.played(),
            idle_expires: sim.checks.idle_expires(),
            folders: sim.checks.folders(),
        },
        failure: sim.checks.failure().cloned(),
        story: sim.story.lines().map(str::to_owned).collect(),
        virtual_us: sim.events.now_us(),
    }
}

impl Sim {
    fn new(seed: u64, keep: Keep, suited: Option<Mutant>, mutant: Option<Mutant>) -> Self {
        let mut rng = Rng::new(seed);
        // Of its own, so that what else the seed draws is as it was without.
        let mut members_rng = Rng::new(seed).fork(8);
        let mut plan = Plan::draw(&mut rng.fork(1));
        plan.draw_members(&mut members_rng);
        let mut rare_rng = Rng::new(seed).fork(9);
        plan.draw_rare(&mut rare_rng);
        if let Some(suited) = suited {
            suited.suits(&mut plan);
        }
        let spares = plan.nodes..plan.nodes + plan.spares;
        // One machine more for folders that are copied to another.
        let places = spares.end + usize::from(plan.folders_every_us.is_some());
        let ids: Vec<NodeId> = (0..places).map(node_id).collect();
        let first = genesis(plan.nodes);
        let mut clock_rng = rng.fork(2);
        let drift = plan.drift_ppm;
        let mut clock = || {
            let ppm = clock_rng.range(0, 2 * drift) as i64 - drift as i64;
            Clock::new(clock_rng.range(1, 1_000) * SECOND, ppm)
        };
        let host = |(place, &id): (usize, &NodeId)| {
            Host::new(id, clock(), (place < plan.nodes).then_some(first))
        };
        let hosts: Vec<Host> = ids.iter().enumerate().map(host).collect();
        let mut client_rng = rng.fork(3);
        let book = Rc::new(RefCell::new(KeyBook::default()));
        let clients: Vec<Client> = (0..plan.clients)
            .map(|number| {
                Client::new(
                    number,
                    &plan,
                    Rc::clone(&book),
                    client_rng.fork(number as u64),
                    rare_rng.fork(number as u64),
                )
            })
            .collect();
        let setup = HostSetup {
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
            net: Network::new(places, plan.clients, plan.manners.clone()),
            deferred: (0..places).map(|_| Vec::new()).collect(),
            checks: Checks::new(&plan),
            net_rng: rng.fork(4),
            disk_rng: rng.fork(5),
            lane_rng: rng.fork(6),
            faulty: Faulty::new(rng.fork(7), places),
            addresses: (0..plan.nodes)
                .map(|node| Address {
                    node,
                    since: first.index.0,
                })
                .collect(),
            operator: Operator::new(members_rng.fork(1), spares),
            members_rng,
            scenes: Scenes::new(rare_rng.fork(100)),
            folders: Folders::new(rare_rng.fork(101)),
            rare_rng,
            links: BTreeMap::new(),
            meets_again: BTreeMap::new(),
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
        if sim.plan.spares > 0 {
            let at_us = sim.members_rng.range(500 * MS, 6 * SECOND);
            sim.events.at(at_us, Event::Operator);
        }
        if sim.plan.folders_every_us.is_some() {
            sim.events.at(2 * SECOND, Event::Folders);
        }
        if sim.plan.scene_every_us.is_some() {
            sim.events.at(2 * SECOND, Event::Scene);
        }
        if sim.plan.late_expire_every_us.is_some() {
            sim.events.at(SECOND, Event::LateExpire);
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
                } else if self.hosts[to].is_up() && self.hears(to, from, &frame) {
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
            Event::Refused { node, by, reason } => self.refused(node, by, reason),
            Event::Operator => self.operate(),
            Event::ToNode(connection, says) => self.client_says(connection, says),
            Event::ToClient(connection, says) => self.node_says(connection, says),
            Event::Client(client, timer) => self.client(client, Heard::Timer(timer)),
            Event::Thaw(node, life) => self.thaw(node, life),
            Event::Fault => self.fault(),
            Event::Strike => self.one_more_fault(),
            Event::Scene => self.scene(),
            Event::Folders => self.mix_folders(),
            Event::LateExpire => self.late_expire(),
            Event::Calm => self.calm_down(),
        }
    }

    // The end.

    fn calm_down(&mut self) {
        self.tell(|| "the faults stop".to_owned());
        self.put_right();
        self.calm = true;
        self.net.heal();
        self.net.set_manners(Manners::calm());
        let now_us = self.events.now_us();
        for node in 0..self.hosts.len() {
            self.hosts[node].hung_until_us = 0;
            self.hosts[node].slow_until_us = 0;
            let life = self.hosts[node].life;
            self.thaw(node, life);
            self.events.after(50 * MS, Event::Start(node));
            self.hosts[node].disk.make_room();
            for peer in 0..self.hosts.len() {
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
        let knows_left = |voter: NodeId, node: NodeId| {
            let host = self.hosts.get(host_of(voter));
            host.is_some_and(|host| host.is_up() && host.memories.has_left(node))
        };
        self.checks
            .finish(now_us, &processes, unfinished, &knows_left);
        self.checks.operator(self.operator.in_hand());
    }
}
