//! An operator who replaces voters by spare machines, one after the other, while faults go on.

use std::collections::VecDeque;

use ticketing_raftlog::NodeId;
use ticketing_raftlog::raft::{Change, ChangeRefusal, ConfigEntry, Input, Slot};

use super::host::host_of;
use super::sim::{Event, Sim};
use crate::plan::{MS, SECOND};
use crate::world::events::Us;
use crate::world::rng::Rng;

/// Shortest and longest time between two looks at the cluster.
const LOOK_US: (Us, Us) = (50 * MS, 1_500 * MS);
/// A fault that is to meet a replacement comes within that time.
const STRIKE_US: Us = 20 * MS;
/// From then on, counted from the calm, nothing new is begun.
const LAST_BEGIN_US: Us = 5 * SECOND;
/// A spare that is not caught up so many times is removed again.
const PATIENCE: u32 = 25;

/// What the operator does, and has still to do.
#[derive(Debug)]
pub struct Operator {
    rng: Rng,
    spares: VecDeque<usize>,
    work: Option<Work>,
    /// The newest committed configuration that was shown.
    shown: u64,
}

#[derive(Debug)]
struct Work {
    spare: usize,
    /// It is only tried out, and removed again.
    tries_out: bool,
    slot: Option<Slot>,
    was_learner: bool,
    not_caught_up: u32,
}

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Ask(Change),
    Wait,
    Done,
}

impl Operator {
    /// An operator with these spare machines.
    #[must_use]
    pub fn new(rng: Rng, spares: std::ops::Range<usize>) -> Self {
        Self {
            rng,
            spares: spares.collect(),
            work: None,
            shown: 0,
        }
    }

    /// A node refuses a change.
    pub fn refused(&mut self, reason: ChangeRefusal) {
        if let Some(work) = &mut self.work
            && reason == ChangeRefusal::NotCaughtUp
        {
            work.not_caught_up += 1;
        }
    }

    /// The machine that it is not done with, if there is one.
    #[must_use]
    pub fn in_hand(&self) -> Option<usize> {
        self.work.as_ref().map(|work| work.spare)
    }

    /// Begins with the next spare machine, if there is one.
    fn begin(&mut self) -> Option<usize> {
        let spare = self.spares.pop_front()?;
        self.work = Some(Work {
            spare,
            tries_out: self.rng.chance(150),
            slot: None,
            was_learner: false,
            not_caught_up: 0,
        });
        Some(spare)
    }

    /// What to do next, when a leader shows this as committed. `prefers`: a slot whose voter is
    /// broken, else perhaps the leader's.
    fn next(&mut self, shown: &ConfigEntry, id: NodeId, prefers: Option<Slot>) -> Next {
        let Some(work) = &mut self.work else {
            return Next::Done;
        };
        if shown.index.0 < self.shown {
            return Next::Wait;
        }
        self.shown = shown.index.0;
        let config = &shown.config;
        if config.replacement().is_some() {
            return Next::Wait;
        }
        if config.voters().contains(&id) || (work.was_learner && !config.is_member(id)) {
            self.work = None;
            return Next::Done;
        }
        if !config.is_member(id) {
            return Next::Ask(Change::AddLearner { node: id });
        }
        work.was_learner = true;
        if work.tries_out || work.not_caught_up >= PATIENCE {
            return Next::Ask(Change::RemoveLearner { node: id });
        }
        let slots = config.voters().len() as u64;
        let slot = *work
            .slot
            .get_or_insert_with(|| prefers.unwrap_or(Slot(self.rng.below(slots) as u8)));
        Next::Ask(Change::Replace {
            slot,
            old: config.voters()[usize::from(slot.0)],
            new: id,
        })
    }
}

impl Sim {
    /// The operator looks at what the leader shows, and asks it for the next step.
    pub(super) fn operate(&mut self) {
        let (from_us, to_us) = LOOK_US;
        let next_us = self.operator.rng.range(from_us, to_us);
        let begins = !self.calm || self.events.now_us() < self.plan.calm_at_us + LAST_BEGIN_US;
        if self.operator.in_hand().is_none() && self.folders.is_out() {
            return self.events.after(next_us, Event::Operator);
        }
        if self.operator.in_hand().is_none() {
            let spare = if begins { self.operator.begin() } else { None };
            let Some(spare) = spare else {
                return;
            };
            self.hosts[spare].in_use = true;
            self.tell(|| format!("the operator makes machine {spare} a node"));
            let starts_us = self.operator.rng.range(1, 1_000) * MS;
            self.events.after(starts_us, Event::Start(spare));
        }
        self.events.after(next_us, Event::Operator);
        if self.folders.is_out() {
            return;
        }
        let Some(leader) = self.leader() else {
            return;
        };
        let Some(process) = &self.hosts[leader].process else {
            return;
        };
        let Some(work) = &self.operator.work else {
            return;
        };
        let id = self.ids[work.spare];
        let shown = process.role.committed_config();
        let voters = shown.config.voters();
        let broken = voters
            .iter()
            .position(|voter| self.hosts[host_of(*voter)].broken);
        let leads = shown.config.slot_of(self.ids[leader]);
        let broken = broken.filter(|_| self.operator.rng.chance(900));
        let leads = leads.filter(|_| self.operator.rng.chance(300));
        let prefers = broken.map(|slot| Slot(slot as u8)).or(leads);
        let next = self.operator.next(&shown, id, prefers);
        self.story
            .note(&[18, leader as u64, shown.index.0, self.events.now_us()]);
        let Next::Ask(change) = next else {
            return;
        };
        // Sometimes it asks the wrong node.
        let asked = match self.operator.rng.chance(50) {
            true => self.operator.rng.below(self.hosts.len() as u64) as usize,
            false => leader,
        };
        self.tell(|| format!("the operator asks node {asked} for {change:?}"));
        if !self.hosts[asked].frozen {
            self.core_input(asked, Input::Change(change));
        }
        // A replacement takes milliseconds: faults seldom meet one unless they are asked to.
        if matches!(change, Change::Replace { .. }) && self.operator.rng.chance(600) {
            let strikes_us = self.operator.rng.below(STRIKE_US);
            self.events.after(strikes_us, Event::Strike);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::host::{genesis, node_id};
    use ticketing_raftlog::LogIndex;
    use ticketing_raftlog::raft::{Config, Replacement};

    const SPARE: usize = 3;

    fn shown(index: u64, voters: [usize; 3], joint: bool, learner: bool) -> ConfigEntry {
        let (slot, new) = (Slot(1), node_id(SPARE));
        let replacement = joint.then_some(Replacement { slot, new });
        let learners: Vec<NodeId> = learner.then_some(new).into_iter().collect();
        let config = Config::joint(&voters.map(node_id), replacement, &learners).expect("valid");
        ConfigEntry {
            index: LogIndex(genesis(3).index.0 + index),
            config,
        }
    }

    fn operator(tries_out: bool) -> Operator {
        let mut operator = Operator::new(Rng::new(1), SPARE..SPARE + 1);
        assert_eq!(operator.begin(), Some(SPARE));
        operator.work.as_mut().expect("begun").tries_out = tries_out;
        operator
    }

    #[test]
    fn a_spare_becomes_a_learner_and_then_takes_a_slot() {
        let (mut operator, id) = (operator(false), node_id(SPARE));
        let mut next = |entry: ConfigEntry| operator.next(&entry, id, Some(Slot(1)));
        let add = Next::Ask(Change::AddLearner { node: id });
        assert_eq!(next(shown(0, [0, 1, 2], false, false)), add);
        let (slot, old) = (Slot(1), node_id(1));
        let replace = Next::Ask(Change::Replace { slot, old, new: id });
        assert_eq!(next(shown(1, [0, 1, 2], false, true)), replace);
        let older = shown(0, [0, 1, 2], false, false);
        assert_eq!(next(older), Next::Wait, "a leader that knows less");
        assert_eq!(next(shown(2, [0, 1, 2], true, false)), Next::Wait);
        assert_eq!(next(shown(3, [0, SPARE, 2], false, false)), Next::Done);
        assert_eq!((operator.in_hand(), operator.begin()), (None, None));
    }

    #[test]
    fn who_does_not_catch_up_or_is_tried_out_is_removed() {
        for tries_out in [false, true] {
            let (mut operator, id) = (operator(tries_out), node_id(SPARE));
            if !tries_out {
                (0..PATIENCE).for_each(|_| operator.refused(ChangeRefusal::NotCaughtUp));
            }
            let learner = shown(1, [0, 1, 2], false, true);
            let remove = Next::Ask(Change::RemoveLearner { node: id });
            assert_eq!(operator.next(&learner, id, None), remove);
            let without = shown(2, [0, 1, 2], false, false);
            assert_eq!(operator.next(&without, id, None), Next::Done);
        }
        let mut patient = operator(false);
        (1..PATIENCE).for_each(|_| patient.refused(ChangeRefusal::NotCaughtUp));
        let learner = shown(1, [0, 1, 2], false, true);
        let next = patient.next(&learner, node_id(SPARE), None);
        assert!(matches!(next, Next::Ask(Change::Replace { .. })));
    }
}
