//! Who belongs to the cluster, as the shell has it: addresses that move to a newcomer, and nodes
//! that are told that they were replaced.

use ticketing_raftlog::peers::Reason;
use ticketing_raftlog::raft::{ConfigEntry, Input};

use super::host::{Process, host_of};
use super::sim::{Event, Hint, Inside, Sim};
use crate::node::messages::ToShard;
use crate::plan::{MS, SECOND};
use crate::world::events::Us;

/// Between two tries to open a port that another process still has.
const BIND_RETRY_US: Us = 50 * MS;
/// A node is not handed leadership before its port was open for so long: clients may still wait
/// before they connect again.
const FIT_US: Us = 4 * SECOND;
/// After this time at the latest a peer's connection is closed once the peer was replaced, and at
/// the earliest once the leader no longer sends it entries.
const FAREWELL_US: (Us, Us) = (1_100 * MS, 2_000 * MS);

/// Where clients find a slot.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The machine.
    pub node: usize,
    /// The index of the configuration that gave it the slot.
    pub since: u64,
}

impl Sim {
    /// Opens the port to clients, if the node has a slot that nobody has taken over. Where a slot's
    /// address is shared, the process that has it must have let go of it first.
    pub(super) fn open(&mut self, node: usize) {
        let Some(process) = &mut self.hosts[node].process else {
            return;
        };
        // With a folder that is not its node's it could only say that it knows no leader: its clients are
        // those of the node, and are left out.
        if process.open || process.opening || process.shut || self.folders.kind_of(node).is_some() {
            return;
        }
        let Some(slot) = process.role.slot() else {
            return;
        };
        let slot = usize::from(slot.0);
        let since = process.role.committed_config().index.0;
        let Address {
            node: holder,
            since: taken,
        } = self.addresses[slot];
        if holder != node {
            let life = self.hosts[node].life;
            if since <= taken {
                return;
            }
            let held = self.hosts[holder].process.as_ref();
            if self.plan.shared_addresses && held.is_some_and(|process| process.open) {
                if let Some(process) = &mut self.hosts[node].process {
                    process.opening = true;
                }
                let again = Event::Process(node, life, Inside::Open);
                return self.events.after(BIND_RETRY_US, again);
            }
            self.addresses[slot] = Address { node, since };
            self.story
                .note(&[15, node as u64, slot as u64, self.events.now_us()]);
            self.tell(|| format!("node {node} opens the port of slot {slot}"));
            self.events
                .after(FIT_US, Event::Process(node, life, Inside::Fit));
        }
        if let Some(process) = &mut self.hosts[node].process {
            process.open = true;
            self.checks.opens(self.events.now_us(), node, process);
        }
    }

    /// A process whose port was open for long enough may be handed leadership.
    pub(super) fn is_fit(&mut self, node: usize) {
        if self.is_open(node) {
            self.core_input(node, Input::FitToLead { fit: true });
        }
    }

    pub(super) fn is_open(&self, node: usize) -> bool {
        let open = |process: &Process| process.open && !process.stopping;
        self.hosts[node].process.as_ref().is_some_and(open)
    }

    /// A node knows another configuration committed: it remembers who left, and closes their
    /// connections once the leader has said its farewell.
    pub(super) fn config_committed(
        &mut self,
        node: usize,
        before: &ConfigEntry,
        now: &ConfigEntry,
    ) {
        self.hosts[node]
            .memories
            .committed(&before.config, &now.config);
        let host = &mut self.hosts[node];
        host.memories_saved.clone_from(&host.memories);
        let gone = |member: &_| !now.config.is_member(*member);
        for member in before.config.members().filter(gone) {
            let (from_us, to_us) = FAREWELL_US;
            let closes_us = self.members_rng.range(from_us, to_us);
            let again = Event::Hint(node, host_of(member), Hint::Connected);
            self.events.after(closes_us, again);
        }
        let index = now.index.0;
        self.story
            .note(&[16, node as u64, index, self.events.now_us()]);
        self.tell(|| {
            let (voters, learners) = (now.config.voters().len(), now.config.learners().len());
            let joint = now.config.replacement();
            format!("node {node} knows {index} committed: {voters} voters, {learners} learners, {joint:?}")
        });
    }

    /// Whether `node` lets `peer` in. It does not if it knows that the peer has left, and says so.
    pub(super) fn lets_in(&mut self, node: usize, peer: usize) -> bool {
        if self.plan.asks_names {
            return self.knocks(node, peer);
        }
        if !self.hosts[node].memories.has_left(self.ids[peer]) {
            return true;
        }
        let reach = self.net.reaches(node, peer) && self.net.reaches(peer, node);
        if reach && self.hosts[node].is_up() {
            let delay_us = self.members_rng.range(100, 5_000);
            let refused = Event::Refused {
                node: peer,
                by: node,
                reason: Reason::Replaced,
            };
            self.events.after(delay_us, refused);
        }
        false
    }

    /// A node that is told that it was replaced, by too few to end it, and hears no leader, closes its
    /// port: its slot may be another's, whose clients must not be held here for ever.
    pub(super) fn shut(&mut self, node: usize) {
        let Some(process) = &mut self.hosts[node].process else {
            return;
        };
        if process.role.core().leader().is_some() || process.shut {
            return;
        }
        process.shut = true;
        process.open = false;
        for (connection, shard) in std::mem::take(&mut process.connections) {
            if let Some(process) = &mut self.hosts[node].process {
                process.shard_inbox[usize::from(shard)].push_back(ToShard::Closed(connection));
            }
            self.checks.disconnected(connection);
            self.close_at_client(connection, 0);
            self.wake_shard(node, usize::from(shard));
        }
        self.tell(|| format!("node {node} closes its port"));
    }

    /// A node hears a leader: it was not replaced, as far as that one knows.
    pub(super) fn hears_a_leader(&mut self, node: usize) {
        if let Some(process) = &mut self.hosts[node].process {
            process.shut = false;
        }
    }

    /// A node that was replaced closes its clients' connections and ends, for good.
    pub(super) fn leaves(&mut self, node: usize) {
        self.tell(|| format!("node {node} was replaced, and ends for good"));
        self.hosts[node].gone = true;
        self.end_process(node, false);
    }
}
