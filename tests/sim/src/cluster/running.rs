//! What runs inside a process, and what comes of it.

use ticketing_raftlog::raft::Input;

use super::host::{Job, Process, RoleIn};
use super::sim::{Event, Inside, NodeSays, Sim};
use crate::node::messages::{Effect, Seen};
use crate::plan::{MS, SECOND};
use crate::world::events::Us;

impl Sim {
    pub(super) fn core_input(&mut self, node: usize, input: Input) {
        if let Some(process) = &mut self.hosts[node].process {
            process.role_inbox.push_back(RoleIn::Core(input));
            self.wake_role(node);
        }
    }

    pub(super) fn lane_us(&mut self, node: usize) -> Us {
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

    pub(super) fn inside(&mut self, node: usize, inside: Inside) {
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
            Inside::Open => {
                if let Some(process) = &mut self.hosts[node].process {
                    process.opening = false;
                }
                self.open(node);
            }
            Inside::Fit => self.is_fit(node),
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
        self.open(node);
        if more {
            self.wake_role(node);
        }
        self.arm_role(node);
    }

    pub(super) fn arm_role(&mut self, node: usize) {
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
                Effect::Replaced => self.leaves(node),
                Effect::Seen(seen) => self.seen(node, &seen),
            }
        }
        self.take_writes(node);
    }

    pub(super) fn seen(&mut self, node: usize, seen: &Seen) {
        let now_us = self.events.now_us();
        self.scene_sees(node, seen);
        match seen {
            Seen::Role { role, term, leader } => {
                if leader.is_some() {
                    self.hears_a_leader(node);
                }
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
            Seen::ConfigCommitted { before, now } => self.config_committed(node, before, now),
            Seen::ChangeRefused(change, reason) => {
                self.tell(|| format!("node {node} refuses {change:?}: {reason:?}"));
                self.operator.refused(*reason);
            }
            _ => {}
        }
        let kind = self.folders.kind_of(node);
        if let Some(kind) = kind {
            return self.checks.folder_acts(now_us, node, seen, kind);
        }
        let Some(process) = &self.hosts[node].process else {
            return;
        };
        let now_ms = self.hosts[node].clock.shown_ms(now_us);
        self.checks.seen(now_us, now_ms, node, process, seen);
    }
}
