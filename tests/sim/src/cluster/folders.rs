//! Folders that are not the node's: empty ones, old copies, copies of a node that runs, another
//! cluster's. Only in situations in which every peer can know better; what no peer that is asked
//! remembers cannot be caught ([`docs/raft.md`]).
//!
//! [`docs/raft.md`]: ../../../../docs/raft.md

use std::collections::BTreeMap;

use ticketing_raftlog::peers::{Incarnation, Memories};
use ticketing_raftlog::raft::ConfigEntry;
use ticketing_raftlog::{ClusterId, HardState};

use super::host::{Host, genesis, host_of};
use super::sim::{Event, Sim};
use crate::node::messages::SnapshotFile;
use crate::plan::{MS, SECOND};
use crate::world::disk::Disk;
use crate::world::events::Us;
use crate::world::rng::Rng;

/// The cluster of a folder that strayed.
const OTHER_CLUSTER: ClusterId = ClusterId([8; 16]);
/// A folder that is not the node's is out for that long.
const OUT_US: (Us, Us) = (500 * MS, 6 * SECOND);

/// What is wrong with a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It was made anew under the name of a node that had another.
    Empty,
    /// A copy that was made before the node's last start.
    Old,
    /// A copy of a node that runs, on another machine.
    Copy,
    /// It belongs to another cluster.
    Foreign,
}

/// What is in a data folder.
#[derive(Clone, Debug)]
pub struct Folder {
    pub(super) cluster_id: ClusterId,
    pub(super) incarnation: Option<Incarnation>,
    pub(super) starts: u64,
    pub(super) disk: Disk,
    pub(super) hard: HardState,
    pub(super) snapshot: Option<SnapshotFile>,
    pub(super) installing: Option<SnapshotFile>,
    pub(super) first_config: ConfigEntry,
    pub(super) memories: Memories,
}

#[derive(Debug)]
struct Out {
    kind: Kind,
    machine: usize,
    started: bool,
    /// The folder that belongs there.
    own: Option<Folder>,
    /// Who can know better. A node that was replaced, and goes on, may not.
    members: Vec<usize>,
}

/// What mixes folders up.
#[derive(Debug)]
pub struct Folders {
    pub(super) rng: Rng,
    copies: BTreeMap<usize, Folder>,
    out: Option<Out>,
}

impl Folders {
    /// Of that stream.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            copies: BTreeMap::new(),
            out: None,
        }
    }

    /// What is wrong with the folder on that machine, if anything is.
    #[must_use]
    pub fn kind_of(&self, machine: usize) -> Option<Kind> {
        let out = self.out.as_ref().filter(|out| out.machine == machine);
        out.map(|out| out.kind)
    }

    /// Whether that machine has a folder that is not its node's, and the other one cannot know.
    #[must_use]
    pub fn deceives(&self, machine: usize, other: usize) -> bool {
        let out = self.out.as_ref().filter(|out| out.machine == machine);
        out.is_some_and(|out| !out.members.contains(&other))
    }

    /// A process starts on that machine. Whether its folder is an old one that was started before: each
    /// start raises its counter, and the next may pass what its peers have seen.
    pub(super) fn starts_again(&mut self, machine: usize) -> bool {
        let out = self.out.as_mut().filter(|out| out.machine == machine);
        let old = out.filter(|out| out.kind == Kind::Old);
        old.is_some_and(|out| std::mem::replace(&mut out.started, true))
    }

    /// Whether one is out.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.out.is_some()
    }
}

impl Host {
    fn folder(&self) -> Folder {
        Folder {
            cluster_id: self.cluster_id,
            incarnation: self.incarnation,
            starts: self.starts,
            disk: self.disk.clone(),
            hard: self.hard,
            snapshot: self.snapshot.clone(),
            installing: self.installing.clone(),
            first_config: self.first_config,
            memories: self.memories_saved.clone(),
        }
    }

    fn put(&mut self, folder: Folder) {
        self.cluster_id = folder.cluster_id;
        self.incarnation = folder.incarnation;
        self.starts = folder.starts;
        self.disk = folder.disk;
        self.hard = folder.hard;
        self.snapshot = folder.snapshot;
        self.installing = folder.installing;
        self.first_config = folder.first_config;
        self.memories_saved.clone_from(&folder.memories);
        self.memories = folder.memories;
    }
}

impl Sim {
    /// A folder is copied, put where it does not belong, or put right again.
    pub(super) fn mix_folders(&mut self) {
        let Some(mean_us) = self.plan.folders_every_us.filter(|_| !self.calm) else {
            return;
        };
        let mut next_us = self.folders.rng.range(mean_us / 4, mean_us * 7 / 4);
        if self.folders.is_out() {
            self.put_right();
        } else if !self.scenes.is_on() && self.put_wrong() {
            let (from_us, to_us) = OUT_US;
            next_us = self.folders.rng.range(from_us, to_us);
        }
        self.events.after(next_us, Event::Folders);
    }

    /// Whether a folder was put where it does not belong.
    fn put_wrong(&mut self) -> bool {
        let Some(leader) = self.leader() else {
            return false;
        };
        let Some(process) = &self.hosts[leader].process else {
            return false;
        };
        let (config, committed) = (
            process.role.core().config(),
            process.role.committed_config(),
        );
        let members: Vec<usize> = config.config.members().map(host_of).collect();
        let of = *self.folders.rng.pick(&members);
        if self.folders.rng.chance(400) && self.hosts[of].is_up() {
            let mut copy = self.hosts[of].folder();
            copy.disk.is_copied();
            self.folders.copies.insert(of, copy);
        }
        let up = self.hosts[of].is_up() && !self.hosts[of].frozen;
        let quiet = config.index == committed.index && config.config.replacement().is_none();
        if !up || !quiet || self.operator.in_hand().is_some() {
            return false;
        }
        let host = &self.hosts[of];
        let kind = *self
            .folders
            .rng
            .pick(&[Kind::Empty, Kind::Old, Kind::Copy, Kind::Foreign]);
        let copied = self.folders.copies.get(&of).cloned();
        let starts = match kind {
            Kind::Old => copied.as_ref().map_or(u64::MAX, |copy| copy.starts + 1),
            _ => 1,
        };
        // Everybody who may be asked remembers.
        let (id, incarnation) = (host.id, host.incarnation);
        let remember = members
            .iter()
            .filter(|member| **member != of)
            .all(|member| self.checks.remembers(*member, id, incarnation, starts));
        let founder = of < self.plan.nodes;
        let new = Host::new(
            id,
            host.clock.clone(),
            founder.then(|| genesis(self.plan.nodes)),
        );
        let spare = self.hosts.len() - 1;
        let (machine, folder) = match kind {
            Kind::Empty if remember => (of, new.folder()),
            Kind::Old if remember => match copied {
                Some(copy) if copy.incarnation == incarnation => (of, copy),
                _ => return false,
            },
            Kind::Copy if remember && self.answers_all(of, &members) => {
                let mut copy = host.folder();
                copy.disk.is_copied();
                (spare, copy)
            }
            Kind::Foreign => {
                let mut folder = new.folder();
                folder.cluster_id = OTHER_CLUSTER;
                (spare, folder)
            }
            _ => return false,
        };
        self.story
            .note(&[22, kind as u64, machine as u64, self.events.now_us()]);
        self.tell(|| format!("folders: {kind:?}, of node {of}, on machine {machine}"));
        let own = (machine == of).then(|| {
            self.end_process(machine, false);
            self.hosts[machine].folder()
        });
        self.hosts[machine].put(folder);
        self.hosts[machine].same_boot = true;
        self.hosts[machine].id = id;
        self.hosts[machine].in_use = true;
        self.ids[machine] = id;
        self.folders.out = Some(Out {
            kind,
            machine,
            started: false,
            own,
            members,
        });
        self.checks.folder_out();
        self.events.after(20 * MS, Event::Start(machine));
        true
    }

    /// The folder that does not belong where it is goes away, and the right one comes back.
    pub(super) fn put_right(&mut self) {
        let Some(machine) = self.folders.out.as_ref().map(|out| out.machine) else {
            return;
        };
        self.end_process(machine, false);
        let Some(out) = self.folders.out.take() else {
            return;
        };
        self.tell(|| format!("folders: machine {machine} has none that is not its node's"));
        match out.own {
            Some(own) => {
                self.hosts[machine].put(own);
                self.hosts[machine].same_boot = true;
                self.events.after(10 * MS, Event::Start(machine));
            }
            None => self.hosts[machine].in_use = false,
        }
    }

    /// Something else happens: a copy that runs beside its original is put away first. While the
    /// original is away it would look like a node that was restarted.
    pub(super) fn put_copy_away(&mut self) {
        let copy = |out: &Out| out.kind == Kind::Copy;
        if self.folders.out.as_ref().is_some_and(copy) {
            self.put_right();
        }
    }
}
