//! Processes: they start, end, stand still, and hear of each other's sockets.

use ticketing_raftlog::Verdict as LogVerdict;
use ticketing_raftlog::peers::Incarnation;
use ticketing_raftlog::raft::Input;

use super::sim::{ClientSays, Event, Hint, Sim};
use crate::plan::{MS, SECOND};
use crate::world::events::Us;

impl Sim {
    pub(super) fn start(&mut self, node: usize) {
        let strange = self.folders.kind_of(node).is_some();
        if !strange && !self.hosts[node].is_up() {
            self.put_copy_away();
        }
        let host = &self.hosts[node];
        if host.is_up() || host.broken || !host.takes_part() {
            return;
        }
        if self.folders.starts_again(node) {
            return self.put_right();
        }
        let now_us = self.events.now_us();
        let mut effects = Vec::new();
        let setup = self.setup.clone();
        if self.hosts[node].incarnation.is_none() {
            let bytes = [self.folders.rng.draw(), self.folders.rng.draw()];
            let mut incarnation = [0; 16];
            incarnation[..8].copy_from_slice(&bytes[0].to_le_bytes());
            incarnation[8..].copy_from_slice(&bytes[1].to_le_bytes());
            self.hosts[node].incarnation = Some(Incarnation(incarnation));
        }
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
                let first = process.role.committed_config();
                if !strange {
                    self.checks.started(now_us, node, hard, &process.log, first);
                }
            }
            Err(_) if strange => return,
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
        self.open(node);
        self.is_fit(node);
        for peer in 0..self.hosts.len() {
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
        let strange = self.folders.kind_of(node).is_some();
        if !strange {
            self.put_copy_away();
        }
        let connections: Vec<u32> = match &self.hosts[node].process {
            Some(process) => process.connections.keys().copied().collect(),
            None => Vec::new(),
        };
        self.links_close(node, power);
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
        if !strange {
            self.checks.ended(now_us, node);
        }
        let silent_us = if power { SECOND } else { 0 };
        for connection in connections {
            self.close_at_client(connection, silent_us);
        }
        let is_elsewhere = strange && node + 1 == self.hosts.len();
        if power || is_elsewhere {
            return;
        }
        // Its sockets close, and who connects again finds nobody.
        for peer in 0..self.hosts.len() {
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
            self.links_fall_silent(node, self.events.now_us());
            self.hosts[node].frozen = true;
            self.checks.froze(node);
            self.tell(|| format!("node {node} stands still for {} ms", for_us / MS));
            self.events.after(for_us, Event::Thaw(node, life));
        }
    }

    pub(super) fn thaw(&mut self, node: usize, life: u64) {
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

    pub(super) fn hint(&mut self, node: usize, peer: usize, hint: Hint) {
        if self.hosts[node].frozen {
            self.deferred[node].push(Event::Hint(node, peer, hint));
            return;
        }
        // A peer that is back refuses nobody, and one that is not connects nobody.
        if (hint == Hint::Refused) == self.hosts[peer].is_up() && hint != Hint::Lost {
            return;
        }
        if hint == Hint::Connected && !self.lets_in(node, peer) {
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
}
