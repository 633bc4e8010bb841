//! Who is believed to be who it says: nodes that meet judge each other by the real rules
//! (`ticketing_raftlog::peers`), and only who was let in by the other sends to it.
//!
//! In the other runs frames go wherever the network carries them, which asks more of the cores.

use ticketing_raftlog::NodeId;
use ticketing_raftlog::peers::{Claim, Known, Live, Memory, Outcome, ProcessId, Reason};
use ticketing_raftlog::raft::{Body, Role};

use super::host::Host;
use super::sim::{Event, Hint, Sim};
use crate::node::bugs::ShellBug;
use crate::node::messages::PeerFrame;
use crate::plan::MS;
use crate::world::events::Us;

/// Between two tries to connect of a node that is refused.
const REFUSED_RETRY_US: (Us, Us) = (200 * MS, 1_500 * MS);
/// What was acknowledged is on the disk after that long.
const SAVE_US: Us = ticketing_raftlog::limits::PEERS_SAVE_MS * MS;

/// A connection between two processes.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// In which life of its machine each process is; that of the lower machine first.
    lives: [u64; 2],
    /// When each has last heard the other.
    heard_us: [Us; 2],
}

/// What a machine's process is known by.
#[must_use]
pub fn process_id(machine: usize, life: u64) -> ProcessId {
    let mut id = [0; 16];
    id[0] = machine as u8 + 1;
    id[8..].copy_from_slice(&life.to_le_bytes());
    ProcessId(id)
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Sim {
    /// Whether what `from` sends now is for the process of `to` that let it in. Strangers meet first.
    pub(super) fn connected(&mut self, from: usize, to: usize) -> bool {
        if !self.plan.asks_names || from == to {
            return true;
        }
        // For the network's sake: it may be there by the time that a frame arrives.
        if !self.hosts[to].is_up() {
            return self.folders.kind_of(from).is_none();
        }
        let connected = self.is_linked(from, to) || self.meet(from, to);
        if connected {
            let (now_us, kind) = (self.events.now_us(), self.folders.kind_of(from));
            self.checks.folder_heard(now_us, from, to, kind);
        }
        connected
    }

    /// The same, for one that has said that it is there.
    pub(super) fn knocks(&mut self, node: usize, peer: usize) -> bool {
        if !self.hosts[node].is_up() || !self.hosts[peer].is_up() {
            return false;
        }
        if self.hosts[node].memories.has_left(self.ids[peer]) {
            self.links.remove(&pair(node, peer));
            self.meets_again.remove(&pair(node, peer));
        }
        self.connected(peer, node)
    }

    fn is_linked(&self, a: usize, b: usize) -> bool {
        let (low, high) = pair(a, b);
        let lives = [self.hosts[low].life, self.hosts[high].life];
        self.links
            .get(&(low, high))
            .is_some_and(|link| link.lives == lives)
    }

    /// A frame from `from` arrives at `to`; false: it was for an earlier process, and the one that is
    /// there now has another folder.
    pub(super) fn hears(&mut self, to: usize, from: usize, frame: &PeerFrame) -> bool {
        if !self.plan.asks_names || from == to {
            return true;
        }
        let linked = self.is_linked(from, to);
        let (strange, now_us) = (self.folders.kind_of(to).is_some(), self.events.now_us());
        if linked && let Some(link) = self.links.get_mut(&pair(from, to)) {
            link.heard_us[usize::from(to > from)] = now_us;
        }
        if strange && !linked {
            return false;
        }
        self.note_acknowledgement(to, from, frame);
        true
    }

    /// A leader remembers what a follower has on its disk.
    fn note_acknowledgement(&mut self, to: usize, from: usize, frame: &PeerFrame) {
        let PeerFrame::Raft { message, .. } = frame else {
            return;
        };
        let (now_us, id) = (self.events.now_us(), self.ids[from]);
        let Host {
            process,
            memories,
            memories_saved,
            saved_us,
            ..
        } = &mut self.hosts[to];
        let Some(process) = process else {
            return;
        };
        let core = process.role.core();
        if let Body::Matched { up_to } = message.body
            && core.role() == Role::Leader
            && core.term() == message.term
        {
            if now_us >= *saved_us + SAVE_US {
                memories_saved.clone_from(memories);
                *saved_us = now_us;
            }
            if let Some(memory) = memories.of_mut(id) {
                memory.acknowledges(message.term, up_to);
                memory.commits(message.term, core.commit());
            }
        }
    }

    /// A process ends: its sockets close, unless its machine is gone or nobody is reached.
    pub(super) fn links_close(&mut self, node: usize, power: bool) {
        let now_us = self.events.now_us();
        for peer in 0..self.hosts.len() {
            let reaches = self.net.reaches(node, peer) && self.net.reaches(peer, node);
            if !power && reaches {
                self.links.remove(&pair(node, peer));
            }
        }
        self.links_fall_silent(node, now_us);
        let host = &mut self.hosts[node];
        // A crash forgets what was acknowledged a moment ago.
        host.memories.clone_from(&host.memories_saved);
    }

    /// A process that answered until now does so no more.
    pub(super) fn links_fall_silent(&mut self, node: usize, now_us: Us) {
        for (&(low, high), link) in &mut self.links {
            let peer = if low == node { high } else { low };
            if (low == node || high == node)
                && self.net.reaches(node, peer)
                && self.net.reaches(peer, node)
            {
                link.heard_us[usize::from(peer == high)] = now_us;
            }
        }
    }

    /// Two processes meet, if they can: each judges the other.
    fn meet(&mut self, from: usize, to: usize) -> bool {
        let now_us = self.events.now_us();
        let reach = self.net.reaches(from, to) && self.net.reaches(to, from);
        // A node has no connection with its own name.
        if self.ids[from] == self.ids[to]
            || self.folders.deceives(from, to)
            || self.folders.deceives(to, from)
        {
            return false;
        }
        let waits = self.meets_again.get(&pair(from, to));
        if !reach
            || self.hosts[to].frozen
            || self.hosts[from].frozen
            || waits.is_some_and(|&again_us| now_us < again_us)
        {
            return false;
        }
        self.story.note(&[20, from as u64, to as u64, now_us]);
        if !self.judged(to, from) || !self.judged(from, to) {
            let (from_us, to_us) = REFUSED_RETRY_US;
            let retry_us = self.folders.rng.range(from_us, to_us);
            self.meets_again.insert(pair(from, to), now_us + retry_us);
            return false;
        }
        self.meets_again.remove(&pair(from, to));
        let (low, high) = pair(from, to);
        let link = Link {
            lives: [self.hosts[low].life, self.hosts[high].life],
            heard_us: [now_us; 2],
        };
        self.links.insert((low, high), link);
        true
    }

    /// Whether `judge` lets `node` in. Who is let in is remembered first; who is not is told why.
    fn judged(&mut self, judge: usize, node: usize) -> bool {
        let now_us = self.events.now_us();
        let Some(claim) = self.claim(node) else {
            return false;
        };
        let live = self.live(judge, node);
        let Some(process) = &self.hosts[judge].process else {
            return false;
        };
        let core = process.role.core();
        let config = core.config().config;
        let known = Known {
            cluster_id: self.hosts[judge].cluster_id,
            config: &config,
            leads: core.role() == Role::Leader,
            memories: &self.hosts[judge].memories,
        };
        let bug = self.setup.shell_bug;
        let live = live.filter(|_| bug != Some(ShellBug::LetsCopyIn));
        let judged = known.judge(live.as_ref(), &claim);
        let judged = judged.map_err(|refusal| refusal.reason());
        let judged = match judged {
            Err(Reason::SeenBefore) if bug == Some(ShellBug::OldFolderVotes) => {
                Ok(Memory::first(&claim))
            }
            judged => judged,
        };
        let kinds = (self.folders.kind_of(judge), self.folders.kind_of(node));
        let id = self.ids[node];
        if kinds.0.is_none() {
            let verdict = judged.as_ref().map(|_| ()).map_err(|reason| *reason);
            self.checks
                .folder_judged(now_us, (judge, node), &claim, kinds.1, verdict);
        }
        self.story
            .note(&[21, judge as u64, node as u64, u64::from(judged.is_ok())]);
        match judged {
            Ok(memory) => {
                let host = &mut self.hosts[judge];
                host.memories.remember(&config, id, memory);
                host.memories_saved.clone_from(&host.memories);
                // The earlier connection under that name is closed.
                let ids = &self.ids;
                self.links.retain(|&(low, high), _| {
                    let other = if low == judge { high } else { low };
                    (low != judge && high != judge) || other == node || ids[other] != id
                });
                if let Some(process) = &mut self.hosts[node].process {
                    process.standing.let_in(self.ids[judge]);
                }
                true
            }
            Err(reason) => {
                self.tell(|| format!("node {judge} refuses node {node}: {reason:?}"));
                // A folder of another cluster has nothing to say.
                if kinds.0.is_none() {
                    let delay_us = self.folders.rng.range(100, 5_000);
                    let by = judge;
                    self.events
                        .after(delay_us, Event::Refused { node, by, reason });
                }
                false
            }
        }
    }

    /// What the process on a machine says of itself.
    fn claim(&self, node: usize) -> Option<Claim> {
        let host = &self.hosts[node];
        let process = host.process.as_ref()?;
        Some(Claim {
            cluster_id: host.cluster_id,
            node_id: self.ids[node],
            incarnation: host.incarnation?,
            starts: host.starts,
            process: process_id(node, host.life),
            term: process.role.core().term(),
            last_index: process.log.last().index,
        })
    }

    /// The connection that `judge` has open under the name of `node`, with another process.
    fn live(&self, judge: usize, node: usize) -> Option<Live> {
        let now_us = self.events.now_us();
        let (id, life) = (self.ids[node], self.hosts[node].life);
        let open = |other: usize| {
            let (low, high) = pair(judge, other);
            let link = self.links.get(&(low, high))?;
            let at = usize::from(judge == low);
            let [of_other, of_judge] = [link.lives[at], link.lives[1 - at]];
            if self.ids[other] != id
                || of_judge != self.hosts[judge].life
                || (other == node && of_other == life)
            {
                return None;
            }
            let answers = self.hosts[other].is_up()
                && self.hosts[other].life == of_other
                && !self.hosts[other].frozen
                && self.net.reaches(judge, other)
                && self.net.reaches(other, judge);
            let silent_us = now_us - link.heard_us[1 - at];
            Some(Live {
                process: process_id(other, of_other),
                silent_ms: if answers { 0 } else { silent_us / MS },
            })
        };
        (0..self.hosts.len()).find_map(open)
    }

    /// Whether every other machine of `members` that runs has a connection with `node` that answers.
    pub(super) fn answers_all(&self, node: usize, members: &[usize]) -> bool {
        let mut others = members.iter().filter(|other| **other != node);
        others.all(|&other| {
            let host = &self.hosts[other];
            host.is_up()
                && !host.frozen
                && self.is_linked(node, other)
                && self.net.reaches(node, other)
                && self.net.reaches(other, node)
        })
    }

    /// A node is refused: it tries again, unless enough have told it that this is no use.
    pub(super) fn refused(&mut self, node: usize, by: usize, reason: Reason) {
        let now_ms = self.now_ms(node);
        if self.hosts[node].frozen {
            self.deferred[node].push(Event::Refused { node, by, reason });
            return;
        }
        let by_id: NodeId = self.ids[by];
        let Some(process) = &mut self.hosts[node].process else {
            return;
        };
        let config = process.role.core().config().config;
        process.standing.refused(&config, by_id, reason, now_ms);
        let outcome = process.standing.outcome(&config);
        self.story
            .note(&[17, node as u64, by as u64, self.events.now_us()]);
        self.tell(|| format!("node {by} tells node {node}: {reason:?}: {outcome:?}"));
        match outcome {
            Outcome::Exit(Reason::Replaced) => return self.leaves(node),
            Outcome::Exit(reason) => return self.exits(node, reason),
            Outcome::GoOn => {}
        }
        if reason == Reason::Replaced {
            self.shut(node);
        }
        let (from_us, to_us) = REFUSED_RETRY_US;
        let retry_us = self.members_rng.range(from_us, to_us);
        self.events
            .after(retry_us, Event::Hint(by, node, Hint::Connected));
    }

    /// A process ends because it is told that its folder is not its node's.
    fn exits(&mut self, node: usize, reason: Reason) {
        let now_us = self.events.now_us();
        self.tell(|| format!("node {node} exits: {reason:?}"));
        self.checks
            .folder_exits(now_us, node, self.folders.kind_of(node));
        self.end_process(node, false);
    }
}
