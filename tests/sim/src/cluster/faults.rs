//! Faults, as the seed has them.

use ticketing::locks::Command;
use ticketing_raftlog::limits::MIN_SEGMENT_BYTES;
use ticketing_raftlog::raft::{Input, Role};

use super::sim::{Event, Hint, Inside, Sim};
use crate::node::journal::Payload;
use crate::plan::{Fault, MS, SECOND};
use crate::world::rng::Rng;

/// What is left at most of a disk that others fill: not even three segments.
const FULL_LEAVES_BYTES: u64 = 3 * MIN_SEGMENT_BYTES as u64;

/// Faults that may take somebody out of the cluster for a while.
const STOPPING: [Fault; 11] = [
    Fault::Kill,
    Fault::PowerCut,
    Fault::Blackout,
    Fault::Freeze,
    Fault::CutOneWay,
    Fault::CutBothWays,
    Fault::Isolate,
    Fault::Split,
    Fault::Hang,
    Fault::Transfer,
    Fault::Stop,
];

/// What draws faults.
#[derive(Debug)]
pub struct Faulty {
    rng: Rng,
    order: Vec<usize>,
    rotten: bool,
}

impl Faulty {
    /// Faults of that stream.
    #[must_use]
    pub fn new(rng: Rng, nodes: usize) -> Self {
        Self {
            rng,
            order: (0..nodes).collect(),
            rotten: false,
        }
    }
}

impl Sim {
    /// One fault, and the time of the next.
    pub(super) fn fault(&mut self) {
        if self.calm || self.plan.faults.is_empty() {
            return;
        }
        let fault = *self.faulty.rng.pick(&self.plan.faults);
        let mean_us = self.plan.fault_every_us;
        let next_us = self.faulty.rng.range(mean_us / 4, mean_us * 7 / 4);
        self.events.after(next_us, Event::Fault);
        if !self.scenes.is_on() {
            self.strike(fault);
        }
    }

    /// A fault beside the ones that come by themselves, of those that stop somebody.
    pub(super) fn one_more_fault(&mut self) {
        let stops = |fault: &&Fault| STOPPING.contains(fault);
        let faults: Vec<Fault> = self.plan.faults.iter().filter(stops).copied().collect();
        if !self.calm && !self.scenes.is_on() && !faults.is_empty() {
            let fault = *self.faulty.rng.pick(&faults);
            self.strike(fault);
        }
    }

    fn strike(&mut self, fault: Fault) {
        self.put_copy_away();
        self.story.note(&[13, fault as u64, self.events.now_us()]);
        self.tell(|| format!("fault: {fault:?}"));
        self.faulty.rng.shuffle(&mut self.faulty.order);
        let mut order = self.faulty.order.clone();
        order.retain(|node| self.hosts[*node].takes_part());
        let nodes = order.len();
        // A leader is the better half of the targets.
        let leader = self.leader();
        let node = match leader {
            Some(leader) if self.faulty.rng.chance(500) => leader,
            _ => order[0],
        };
        let other = if order[0] == node { order[1] } else { order[0] };
        match fault {
            Fault::Kill | Fault::PowerCut => {
                self.end_process(node, fault == Fault::PowerCut);
                self.restart_later(node);
            }
            Fault::Blackout => {
                for node in 0..self.hosts.len() {
                    self.end_process(node, true);
                    self.restart_later(node);
                }
            }
            Fault::Rot => self.rot(order[0]),
            Fault::Freeze => {
                let for_us = self.faulty.rng.range(5, 4_000) * MS;
                self.freeze(node, for_us);
            }
            Fault::CutOneWay => self.cut(node, other, false),
            Fault::CutBothWays => self.cut(node, other, true),
            Fault::Isolate => {
                for other in 0..self.hosts.len() {
                    if other != node {
                        self.cut(node, other, true);
                    }
                }
            }
            Fault::Split | Fault::Bridge => {
                let half = self.faulty.rng.range(1, nodes as u64 - 1) as usize;
                let bridge = (fault == Fault::Bridge).then_some(node);
                for &a in &order[..half] {
                    for &b in &order[half..] {
                        if Some(a) != bridge && Some(b) != bridge {
                            self.cut(a, b, true);
                        }
                    }
                }
            }
            Fault::Heal => self.heal(),
            Fault::Blip => {
                self.events.after(0, Event::Hint(node, other, Hint::Lost));
                let back_us = self.faulty.rng.range(1, 30) * MS;
                self.events
                    .after(back_us, Event::Hint(node, other, Hint::Connected));
            }
            Fault::Hang => {
                let for_us = self.faulty.rng.range(50, 4_000) * MS;
                let until_us = self.events.now_us() + for_us;
                self.hosts[node].hung_until_us = until_us;
                self.checks.hangs(until_us);
            }
            Fault::Full => {
                let empties = self.faulty.rng.chance(400);
                let left_bytes = self.faulty.rng.below(FULL_LEAVES_BYTES);
                let disk = &mut self.hosts[node].disk;
                if empties {
                    disk.make_room();
                } else {
                    disk.fill(left_bytes);
                }
            }
            Fault::Jump => {
                let by_us = self.faulty.rng.range(1, 20) * SECOND;
                self.hosts[node].clock.jump(by_us);
            }
            Fault::Drift => {
                let drift = self.plan.drift_ppm;
                let ppm = self.faulty.rng.range(0, 2 * drift) as i64 - drift as i64;
                let now_us = self.events.now_us();
                self.hosts[node].clock.set_rate(now_us, ppm);
            }
            Fault::SlowLane => {
                let for_us = self.faulty.rng.range(50, 2_000) * MS;
                self.hosts[node].slow_until_us = self.events.now_us() + for_us;
            }
            Fault::ClientCut => {
                let connections: Vec<u32> = self.connections.keys().copied().collect();
                if !connections.is_empty() {
                    let connection = *self.faulty.rng.pick(&connections);
                    self.break_connection(connection);
                }
            }
            Fault::Transfer => self.core_input(node, Input::Transfer { to: None }),
            Fault::Stop => {
                let stopping = self.hosts[node].process.as_ref().is_none_or(|p| p.stopping);
                if !stopping {
                    let life = self.hosts[node].life;
                    self.events
                        .after(0, Event::Process(node, life, Inside::Stop));
                }
            }
        }
    }

    /// A leader is given an Expire of a grant that has ended, of a key that another holds. No leader of
    /// this code proposes one, but one that is late or comes twice must never end a newer grant.
    pub(super) fn late_expire(&mut self) {
        let Some(mean_us) = self.plan.late_expire_every_us.filter(|_| !self.calm) else {
            return;
        };
        let next_us = self.rare_rng.range(mean_us / 4, mean_us * 7 / 4);
        self.events.after(next_us, Event::LateExpire);
        let outlived = self.checks.outlived();
        let Some(leader) = self.leader().filter(|_| !outlived.is_empty()) else {
            return;
        };
        let (key, token) = self.rare_rng.pick(&outlived).clone();
        if self.hosts[leader].frozen {
            return;
        }
        self.story.note(&[19, leader as u64, token]);
        self.tell(|| format!("node {leader} is to expire token {token}, which has ended"));
        let mut payload = Vec::new();
        Command::Expire { key: &key, token }.encode(&mut payload);
        let mut effects = Vec::new();
        if let Some(process) = &mut self.hosts[leader].process {
            let payload = Payload::from(payload);
            process
                .role
                .propose_late(payload, &mut process.log, &mut effects);
        }
        self.carry_out(leader, effects);
    }

    /// Flips a bit of one node's acknowledged data: one node a run, so that a majority has all.
    fn rot(&mut self, node: usize) {
        // Of a folder that is not the node's nothing was acknowledged.
        if self.faulty.rotten || self.folders.kind_of(node).is_some() {
            return;
        }
        let Some((use_number, offset)) = self.hosts[node].acknowledged_byte(&mut self.faulty.rng)
        else {
            return;
        };
        self.faulty.rotten = true;
        self.hosts[node].disk.rot(use_number, offset, offset as u8);
        self.checks.rots(node);
        self.tell(|| format!("a bit flips on node {node}, segment {use_number}, byte {offset}"));
        let power = self.faulty.rng.chance(500);
        self.end_process(node, power);
        self.restart_later(node);
    }

    /// Who leads in the highest term.
    pub(super) fn leader(&self) -> Option<usize> {
        let leading = |node: &usize| {
            let process = self.hosts[*node].process.as_ref()?;
            let core = process.role.core();
            (core.role() == Role::Leader).then_some((core.term(), *node))
        };
        let nodes = 0..self.hosts.len();
        nodes
            .filter_map(|node| leading(&node))
            .max()
            .map(|(_, node)| node)
    }

    fn cut(&mut self, a: usize, b: usize, both: bool) {
        self.net.block(a, b, true);
        if both {
            self.net.block(b, a, true);
        }
        // The kernel may notice, in its own time.
        if self.faulty.rng.chance(300) {
            let seen_us = self.faulty.rng.range(100, 2_000) * MS;
            self.events.after(seen_us, Event::Hint(a, b, Hint::Lost));
            self.events.after(seen_us, Event::Hint(b, a, Hint::Lost));
        }
    }

    pub(super) fn heal(&mut self) {
        self.net.heal();
        for a in 0..self.hosts.len() {
            for b in 0..self.hosts.len() {
                if a != b {
                    let after_us = self.faulty.rng.range(1, 50) * MS;
                    self.events
                        .after(after_us, Event::Hint(a, b, Hint::Connected));
                }
            }
        }
    }
}
