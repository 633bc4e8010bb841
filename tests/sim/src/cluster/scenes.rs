//! Rare situations, staged: who reaches whom is chosen by what the nodes have come to, step by step, as
//! in the paper's figure 8. Nothing happens in them that a network may not do.

use ticketing_raftlog::raft::{Body, Input, Role};
use ticketing_raftlog::{LogIndex, Term};

use super::host::host_of;
use super::sim::{Event, Sim};
use crate::node::messages::{PeerFrame, Seen};
use crate::plan::MS;
use crate::world::events::Us;
use crate::world::rng::Rng;

/// Between two looks at a scene.
const LOOK_US: Us = MS;
/// A scene that comes to nothing ends after that long.
const AT_MOST_US: Us = 4_000 * MS;
/// Clients go on proposing to a leader that is cut off for at least so long.
const PROPOSE_US: Us = 30 * MS;
/// What a node decides has reached its shards and their clients by then.
const SETTLE_US: Us = 60 * MS;

/// What a scene is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plot {
    /// Figure 8, (a) to (d): entries of an earlier term come to be on a majority, and are overwritten by
    /// those of a later one.
    Counted,
    /// With five voters: a node's entry is truncated, and committed all the same by another node.
    Truncated,
    /// A leader hands over, and is cut off from the others before it hears of the new leader: for as long
    /// as it hears nobody it does not know that it was deposed, and clients reach both.
    Deposed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// The old leader, with one follower of five, is apart from the rest, which elects another.
    Parted,
    /// The new leader's log is its own alone; with [`Plot::Truncated`], it reaches the old leader.
    Hidden,
    /// The old half leads again, and gives its entries to one more.
    Again,
    /// A leader is asked to hand over.
    HandsOver,
    /// It has, and has not heard of it.
    Unaware,
    /// What must not have counted may be overwritten; what was truncated may be committed.
    Undone,
}

#[derive(Debug)]
struct Scene {
    plot: Plot,
    act: Act,
    old: Vec<usize>,
    rest: Vec<usize>,
    term: Term,
    /// The last entry that the old half has and the rest does not.
    entry: LogIndex,
    /// The leader of the rest.
    other: usize,
    /// Who is given the old half's entries.
    helper: usize,
    /// The newest term that the old half led in.
    again: Term,
    since_us: Us,
    until_us: Us,
}

/// What stages scenes.
#[derive(Debug)]
pub struct Scenes {
    rng: Rng,
    on: Option<Scene>,
    /// How many of each plot were played to their end.
    played: [u64; 3],
}

impl Scenes {
    /// Scenes of that stream.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            on: None,
            played: [0; 3],
        }
    }

    /// How many were played to their end: figure 8, the truncated entry, the leader that was deposed.
    #[must_use]
    pub fn played(&self) -> [u64; 3] {
        self.played
    }

    /// Whether one is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.is_some()
    }
}

impl Sim {
    /// A scene begins, goes on, or ends.
    pub(super) fn scene(&mut self) {
        let now_us = self.events.now_us();
        if self.scenes.on.is_none() {
            if self.calm {
                return;
            }
            if !self.begin_scene() {
                return self.events.after(100 * MS, Event::Scene);
            }
        }
        self.go_on_with_scene();
        let over = |scene: &Scene| now_us >= scene.until_us || self.calm;
        if self.scenes.on.as_ref().is_some_and(over) {
            self.end_scene("comes to nothing");
        }
        let next_us = match (self.scenes.on.is_some(), self.plan.scene_every_us) {
            (true, _) => LOOK_US,
            (false, Some(mean_us)) => self.scenes.rng.range(mean_us / 4, mean_us * 7 / 4),
            (false, None) => return,
        };
        self.events.after(next_us, Event::Scene);
    }

    /// Whether the voters are all there, and agree on who leads.
    fn begin_scene(&mut self) -> bool {
        let leader = self.leader().filter(|_| !self.folders.is_out());
        let Some(leader) = leader else {
            return false;
        };
        let Some(process) = &self.hosts[leader].process else {
            return false;
        };
        let (term, committed) = (process.role.core().term(), process.role.committed_config());
        let config = process.role.core().config();
        let mut others: Vec<usize> = config
            .config
            .voters()
            .iter()
            .copied()
            .map(host_of)
            .collect();
        others.retain(|node| *node != leader);
        let agrees = |node: &usize| {
            let process = self.hosts[*node].process.as_ref();
            process.is_some_and(|process| process.role.core().term() == term)
                && !self.hosts[*node].frozen
        };
        if !process.role.is_ready()
            || config.index != committed.index
            || config.config.replacement().is_some()
            || others.len() + 1 != self.plan.nodes
            || !others.iter().all(agrees)
        {
            return false;
        }
        let rng = &mut self.scenes.rng;
        rng.shuffle(&mut others);
        let plot = match rng.below(3) {
            0 if others.len() == 4 => Plot::Truncated,
            0 | 1 => Plot::Counted,
            _ => Plot::Deposed,
        };
        let rest = others.split_off(others.len() / 2 - 1);
        let now_us = self.events.now_us();
        let mut old = vec![leader];
        old.append(&mut others);
        self.tell(|| format!("scene: {plot:?}: {old:?} and {rest:?}"));
        self.net.heal();
        let act = match plot {
            Plot::Deposed => Act::HandsOver,
            Plot::Counted | Plot::Truncated => Act::Parted,
        };
        match act {
            Act::HandsOver => self.core_input(leader, Input::Transfer { to: None }),
            _ => self.part(&old, &rest),
        }
        self.scenes.on = Some(Scene {
            plot,
            act,
            term,
            entry: LogIndex(0),
            other: rest[0],
            helper: rest[0],
            again: term,
            since_us: now_us,
            until_us: now_us + AT_MOST_US,
            old,
            rest,
        });
        true
    }

    /// Those do not reach these.
    fn part(&mut self, these: &[usize], those: &[usize]) {
        for &a in these {
            for &b in those {
                if a != b {
                    self.net.block(a, b, true);
                    self.net.block(b, a, true);
                }
            }
        }
    }

    /// Only within each of the groups does anybody reach anybody.
    fn regroup(&mut self, groups: &[&[usize]]) {
        self.net.heal();
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        for group in groups {
            let others: Vec<usize> = all.iter().copied().filter(|n| !group.contains(n)).collect();
            self.part(group, &others);
        }
    }

    fn scene_is_played(&mut self) {
        if let Some(scene) = &self.scenes.on {
            self.scenes.played[scene.plot as usize] += 1;
        }
        self.end_scene("is played to its end");
    }

    fn end_scene(&mut self, how: &str) {
        self.scenes.on = None;
        self.tell(|| format!("scene: it {how}"));
        self.heal();
    }

    /// Something happened in a process: who stands in the old leader's place, and who leads the rest, is
    /// hidden from it before it has said a word.
    pub(super) fn scene_sees(&mut self, node: usize, seen: &Seen) {
        let Some(scene) = &self.scenes.on else {
            return;
        };
        let &Seen::Role { role, term, .. } = seen else {
            return;
        };
        let deposed = scene.old[0];
        if scene.act == Act::HandsOver
            && role == Role::Candidate
            && node != deposed
            && term > scene.term
        {
            self.regroup(&[&[deposed]]);
            return self.scene_goes_on(Act::Unaware);
        }
        if role != Role::Leader
            || scene.act != Act::Parted
            || !scene.rest.contains(&node)
            || term <= scene.term
        {
            return;
        }
        let last = |node: &usize| self.hosts[*node].process.as_ref().map(|p| p.log.last());
        let begins = self.core(node).and_then(|core| core.term_start());
        let entry = scene
            .old
            .iter()
            .filter_map(last)
            .min_by_key(|last| last.index);
        let (Some(begins), Some(entry)) = (begins, entry) else {
            return;
        };
        let (plot, leader) = (scene.plot, scene.old[0]);
        if entry.term != scene.term || entry.index < begins {
            return self.end_scene("has no entry");
        }
        match plot {
            Plot::Truncated => self.regroup(&[&[node, leader]]),
            Plot::Counted | Plot::Deposed => self.regroup(&[&[node]]),
        }
        let now_us = self.events.now_us();
        if let Some(scene) = &mut self.scenes.on {
            scene.act = Act::Hidden;
            scene.other = node;
            scene.entry = entry.index;
            scene.since_us = now_us;
            scene.rest.retain(|other| *other != node);
            scene.helper = scene.rest[0];
        }
        self.tell(|| format!("scene: node {node} leads, and {entry:?} is not in its log"));
    }

    /// Whether the scene has the network lose that frame: the helper is given what is older, and nothing
    /// of the leader's own term.
    pub(super) fn scene_loses(&self, to: usize, frame: &PeerFrame) -> bool {
        let Some(scene) = &self.scenes.on else {
            return false;
        };
        let PeerFrame::Raft { message, .. } = frame else {
            return false;
        };
        let Body::Append { previous, run, .. } = message.body else {
            return false;
        };
        // What it would refuse tells the leader where to begin.
        let process = self.hosts[to].process.as_ref();
        let fits = process.is_some_and(|process| process.log.last().index >= previous.index);
        scene.act == Act::Again
            && to == scene.helper
            && fits
            && run.count > 0
            && run.term > scene.term
    }

    fn core(&self, node: usize) -> Option<&ticketing_raftlog::raft::Core> {
        let process = self.hosts[node].process.as_ref();
        process.map(|process| process.role.core())
    }

    /// Who of these leads, in a term above that one.
    fn leads_of(&self, nodes: &[usize], above: Term) -> Option<(usize, Term)> {
        let leads = |node: &usize| {
            let core = self.core(*node)?;
            (core.role() == Role::Leader && core.term() > above).then(|| (*node, core.term()))
        };
        nodes.iter().find_map(leads)
    }

    fn go_on_with_scene(&mut self) {
        let now_us = self.events.now_us();
        let Some(scene) = &self.scenes.on else {
            return;
        };
        let (entry, old, helper) = (scene.entry, scene.old.clone(), scene.helper);
        let (others, before) = (scene.rest.clone(), scene.again);
        let quiet_us = now_us - scene.since_us;
        let hides = self.core(scene.other).map_or(Term(0), |core| core.term());
        let next = match (scene.act, scene.plot) {
            (Act::Parted | Act::HandsOver, _) => None,
            (Act::Unaware, _) => {
                let leads = self.leads_of(&old[..1], Term(0));
                if leads.is_none() && quiet_us >= SETTLE_US {
                    return self.scene_is_played();
                }
                None
            }
            (Act::Hidden, Plot::Counted) if quiet_us >= PROPOSE_US => {
                let group: Vec<usize> = old.iter().copied().chain([helper]).collect();
                self.regroup(&[&group]);
                Some(Act::Again)
            }
            (Act::Hidden, Plot::Truncated) => {
                let log = self.hosts[old[0]].process.as_ref().map(|p| p.log.last());
                let cut = log.is_some_and(|last| last.term > scene.term);
                cut.then(|| {
                    let group: Vec<usize> = [old[1]].into_iter().chain(others).collect();
                    self.regroup(&[&group]);
                    Act::Undone
                })
            }
            (Act::Hidden, Plot::Counted | Plot::Deposed) => None,
            (Act::Again, _) => {
                let has = self
                    .core(helper)
                    .is_some_and(|core| core.persisted() >= entry);
                let leads = self.leads_of(&old, before);
                match leads {
                    Some((_, term)) if has && quiet_us >= SETTLE_US => {
                        if let Some(scene) = &mut self.scenes.on {
                            scene.again = term;
                        }
                        let group: Vec<usize> =
                            [self.scene_other()].into_iter().chain(others).collect();
                        self.regroup(&[&group]);
                        Some(Act::Undone)
                    }
                    _ => None,
                }
            }
            (Act::Undone, plot) => {
                let above = match plot {
                    Plot::Truncated => hides,
                    _ => before,
                };
                let group: Vec<usize> = match plot {
                    Plot::Truncated => vec![old[1]],
                    _ => vec![self.scene_other()],
                };
                let done = self.leads_of(&group, above).is_some_and(|(node, _)| {
                    self.core(node).is_some_and(|core| {
                        core.term_start()
                            .is_some_and(|start| core.commit() >= start)
                    })
                });
                if done && quiet_us >= SETTLE_US {
                    return self.scene_is_played();
                }
                None
            }
        };
        if let Some(act) = next {
            self.scene_goes_on(act);
        }
    }

    fn scene_goes_on(&mut self, act: Act) {
        let now_us = self.events.now_us();
        self.tell(|| format!("scene: {act:?}"));
        if let Some(scene) = &mut self.scenes.on {
            scene.act = act;
            scene.since_us = now_us;
        }
    }

    fn scene_other(&self) -> usize {
        self.scenes.on.as_ref().map_or(0, |scene| scene.other)
    }
}
